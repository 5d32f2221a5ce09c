#include "tests/offload/comm/comm_seat.h"

#include <time.h>

#include "src/base/error.h"

int open_seat(struct ot_world *world, const struct ot_comm_v1 *api,
              const struct ot_comm_transfers_v1 *transfers, double timeout_seconds, size_t part_bytes,
              struct seat *out) {
    const size_t bytes = (size_t)ot_world_ranks(world)->ranks * part_bytes;
    *out = (struct seat){0};
    OT_TRY(ot_device_open(&(struct ot_device_config){.kind = "cpu", .threads = 1}, &out->device));
    OT_TRY(ot_device_alloc(out->device, bytes, "send", (void **)&out->send));
    OT_TRY(ot_device_alloc(out->device, bytes, "receive", (void **)&out->receive));
    OT_TRY(ot_lane_open(out->device, "comm", &out->lane));
    struct ot_comm_config config = {
        .world = world, .device = out->device, .device_index = -1, .timeout_seconds = timeout_seconds};
    return ot_comm_open_with(api, transfers, &config, &out->comm);
}

void close_seat(struct seat *s) {
    ot_lane_close(s->lane);
    ot_comm_close(s->comm);
    ot_device_free(s->device, s->send);
    ot_device_free(s->device, s->receive);
    ot_device_close(s->device);
}

int finish_seat(struct seat *s) {
    int rc = ot_lane_sync(s->lane);
    return rc < 0 ? rc : ot_comm_error(s->comm);
}

void sleep_ms(int ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}
