#include "tests/offload/comm/random_transfers.h"

#include <string.h>
#include <time.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

/* An event of the program that all ranks know: a transfer, or an operation of all. */
struct event {
    int from, to; /* both -1: an all_gather */
    size_t bytes;
};

enum { EVENTS = 60, MARGIN = 64 }; /* MARGIN: bytes after those of an event, which nobody may touch */
enum { MOST_EVENT_BYTES = RANDOM_TRANSFERS_BYTES, TRANSFERS_IN_CALL = RANDOM_TRANSFERS_IN_CALL };
static uint64_t seed;
static int n_ranks;
static size_t places[EVENTS + 1]; /* of the events in the memory, and its end */

static unsigned char byte_of(int event, int rank, size_t at) {
    return (unsigned char)(event * 41 + rank * 7 + (int)(at * 5) + (int)(at >> 9));
}

static uint64_t draw(int rank, uint64_t index, uint64_t below) {
    return ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 9, (uint64_t)(rank + 1)), index, below);
}

static struct event event_of(int number) {
    static const size_t sizes[] = {0, 1, 17, 5000, 16385, 70001, MOST_EVENT_BYTES};
    uint64_t index = 8 * (uint64_t)number;
    struct event event = {.from = -1, .to = -1, .bytes = sizes[draw(-1, index, 7)]};
    if (draw(-1, index + 1, 12) == 0) {
        event.bytes = event.bytes / (size_t)n_ranks;
        return event;
    }
    event.from = (int)draw(-1, index + 2, (uint64_t)n_ranks);
    event.to = (int)draw(-1, index + 3, (uint64_t)n_ranks - 1);
    event.to += event.to >= event.from;
    return event;
}

struct program {
    struct ot_comm *comm;
    struct ot_lane *lane;
    int rank;
    unsigned char *host, *device; /* the events, at `places` */
    struct ot_comm_transfer_v1 list[TRANSFERS_IN_CALL];
    int n;
};

/* Places the events one after the other. With room for the largest at each, most of the memory would be
 * filled and copied for nothing. */
static void find_places(void) {
    for (int e = 0; e < EVENTS; e++)
        places[e + 1] =
            places[e] + event_of(e).bytes * (event_of(e).from == -1 ? (size_t)n_ranks : 1) + MARGIN;
}

static void end_call(struct program *p) {
    ot_comm_transfer(p->comm, p->lane, p->list, p->n);
    p->n = 0;
}

/* Ends the call here or later, as this rank likes. */
static void do_event(struct program *p, int number) {
    struct event event = event_of(number);
    unsigned char *memory = p->device + places[number];
    uint64_t index = 4 * (uint64_t)number;
    if (event.from == -1) {
        end_call(p);
        ot_comm_all_gather(p->comm, p->lane, memory + (size_t)p->rank * event.bytes, memory, event.bytes);
    } else if (event.from == p->rank || event.to == p->rank) {
        bool sends = event.from == p->rank;
        p->list[p->n++] =
            (struct ot_comm_transfer_v1){sends ? event.to : event.from, sends, memory, event.bytes};
        if (p->n == TRANSFERS_IN_CALL || draw(p->rank, index, 3) == 0)
            end_call(p);
    }
    if (draw(p->rank, index + 1, 10) == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)draw(p->rank, index + 2, 4000000)}, NULL);
}

static void fill_events(struct program *p) {
    memset(p->host, 0xa5, places[EVENTS]);
    for (int e = 0; e < EVENTS; e++) {
        struct event event = event_of(e);
        unsigned char *memory = p->host + places[e];
        size_t own = event.from == -1 ? (size_t)p->rank * event.bytes : 0;
        for (size_t i = 0; i < event.bytes && (event.from == -1 || event.from == p->rank); i++)
            memory[own + i] = byte_of(e, p->rank, i);
    }
}

/* Checks that the events without this rank, and the margins, are untouched. */
static int check_events(const struct program *p) {
    for (int e = 0; e < EVENTS; e++) {
        struct event event = event_of(e);
        const unsigned char *memory = p->host + places[e];
        bool has_part = event.from == -1 || event.from == p->rank || event.to == p->rank;
        size_t bytes = !has_part ? 0 : event.from == -1 ? event.bytes * (size_t)n_ranks : event.bytes;
        for (size_t i = 0; i < bytes + MARGIN; i++) {
            int want = i >= bytes         ? 0xa5
                       : event.from == -1 ? byte_of(e, (int)(i / event.bytes), i % event.bytes)
                                          : byte_of(e, event.from, i);
            if (memory[i] != want)
                return ot_fail(OT_E_COMM, "byte %zu of event %d, from %d to %d of %zu bytes, is wrong", i, e,
                               event.from, event.to, event.bytes);
        }
    }
    return 0;
}

int random_transfers_run(struct ot_comm *comm, struct ot_device *device, struct ot_lane *lane,
                         uint64_t given_seed) {
    struct program p = {.comm = comm, .lane = lane, .rank = ot_comm_rank(comm)};
    const size_t staging_bytes =
        ot_max(ot_comm_staging_bytes(comm, MOST_EVENT_BYTES),
               ot_comm_transfer_staging_bytes(comm, (size_t)TRANSFERS_IN_CALL * MOST_EVENT_BYTES));
    void *staging = NULL;
    int rc;
    seed = given_seed;
    n_ranks = ot_comm_ranks(comm);
    find_places();
    const size_t bytes = places[EVENTS];
    OT_TRY_GOTO(ot_device_alloc_pinned(device, bytes, "events", (void **)&p.host), rc, out);
    OT_TRY_GOTO(ot_device_alloc(device, bytes, "events", (void **)&p.device), rc, out);
    OT_TRY_GOTO(ot_device_alloc_pinned(device, staging_bytes, "staging", &staging), rc, out);
    ot_comm_reserve(comm, staging, staging_bytes);
    fill_events(&p);
    ot_lane_copy(lane, OT_COPY_H2D, p.device, p.host, bytes);
    for (int e = 0; e < EVENTS; e++)
        do_event(&p, e);
    end_call(&p);
    ot_lane_copy(lane, OT_COPY_D2H, p.host, p.device, bytes);
    OT_TRY_GOTO(ot_lane_sync(lane), rc, out);
    OT_TRY_GOTO(ot_comm_error(comm), rc, out);
    rc = check_events(&p);
out:
    if (rc < 0)
        ot_lane_sync(lane);
    ot_comm_reserve(comm, NULL, 0);
    ot_device_free_pinned(device, staging, staging_bytes);
    ot_device_free(device, p.device);
    ot_device_free_pinned(device, p.host, bytes);
    return rc;
}
