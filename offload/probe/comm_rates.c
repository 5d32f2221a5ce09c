#include "offload/probe/comm_rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/comm/crossing.h"
#include "offload/comm/shared_memory.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"

enum { BATCHES = 5, MOST_REPEATS = 10000 };

enum measured { GATHER, EXCHANGE, BROADCAST, TRANSFER, COPY, MEASURED };

struct run {
    const struct ot_comm_rates_config *config;
    struct ot_lane *lane;
    char *send, *receive; /* device memory: [ranks][part] */
    size_t part_bytes, received_bytes;
    int ranks;
    struct ot_comm_members members;
    void *shared; /* of transfers that cross: [shared_bytes] */
    size_t shared_bytes;
    bool is_pinned;
};

/* The next rank in the ring, or the previous one (-1). */
static int neighbour(const struct run *run, int rank, int direction) {
    const struct ot_comm_members *m = &run->members;
    int stride = run->config->stride > 0 ? run->config->stride % m->n : 1;
    return m->first + (rank - m->first + direction * stride + m->n) % m->n;
}

static void enqueue_transfer(const struct run *run) {
    struct ot_comm *comm = run->config->comm;
    int rank = ot_comm_rank(comm);
    const struct ot_comm_transfer_v1 list[] = {{neighbour(run, rank, 1), 1, run->send, run->part_bytes},
                                               {neighbour(run, rank, -1), 0, run->receive, run->part_bytes}};
    ot_comm_transfer(comm, run->lane, list, run->members.n > 1 ? 2 : 0);
}

static char *own_part(const struct run *run) {
    int number = ot_comm_rank(run->config->comm) - run->members.first;
    return run->receive + (size_t)number * run->part_bytes;
}

static void enqueue(const struct run *run, enum measured measured) {
    struct ot_comm *comm = run->config->comm;
    switch (measured) {
    case GATHER:
        ot_comm_members_gather(comm, run->lane, run->members, own_part(run), run->receive, run->part_bytes);
        break;
    case EXCHANGE:
        ot_comm_members_exchange(comm, run->lane, run->members, run->send, run->receive, run->part_bytes);
        break;
    case BROADCAST:
        ot_comm_broadcast(comm, run->lane, run->receive, run->part_bytes, 0);
        break;
    case TRANSFER:
        enqueue_transfer(run);
        break;
    case COPY:
    case MEASURED:
        ot_lane_copy(run->lane, OT_COPY_D2D, run->receive, run->send, run->received_bytes);
        break;
    }
}

/* Seconds of `repeats` operations. The ranks leave the barrier at different times: over a network, later by
 * as much as an operation takes. An early rank waits so much longer, and a late one so much shorter, so the
 * mean of the ranks is right. */
static int time_batch(const struct run *run, enum measured measured, int repeats, double *out) {
    double all[OT_MAX_RANKS];
    OT_TRY(ot_comm_barrier(run->config->comm));
    double since = ot_clock_seconds();
    for (int i = 0; i < repeats; i++)
        enqueue(run, measured);
    OT_TRY(ot_lane_sync(run->lane));
    double seconds = ot_clock_seconds() - since;
    OT_TRY(ot_comm_error(run->config->comm));
    OT_TRY(ot_comm_all_gather_host(run->config->comm, &seconds, sizeof seconds, all));
    *out = 0;
    for (int r = 0; r < run->ranks; r++)
        *out += all[r] / run->ranks;
    return 0;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of some batches, in seconds of one operation. All ranks see the same times, so they choose the
 * same number of repeats. */
static int time_operation(const struct run *run, enum measured measured, double *out) {
    double first, seconds[BATCHES], budget = run->config->seconds > 0 ? run->config->seconds : 0.5;
    OT_TRY(time_batch(run, measured, 1, &first)); /* touches the memory */
    OT_TRY(time_batch(run, measured, 1, &first));
    int repeats = (int)fmin(MOST_REPEATS, fmax(1, budget / BATCHES / fmax(first, 1e-9)));
    for (int i = 0; i < BATCHES; i++)
        OT_TRY(time_batch(run, measured, repeats, &seconds[i]));
    qsort(seconds, BATCHES, sizeof *seconds, compare_doubles);
    *out = seconds[BATCHES / 2] / repeats;
    return 0;
}

static int measure_size(struct run *run) {
    static const char *const names[] = {"all_gather", "all_to_all", "broadcast", "transfer"};
    for (int op = GATHER; op <= TRANSFER; op++) {
        struct ot_comm_rate rate = {.operation = names[op], .part_bytes = run->part_bytes};
        if ((op == BROADCAST && run->config->members > 0) || (op == TRANSFER && !run->config->with_transfers))
            continue;
        double copy_seconds;
        if (run->ranks > 1)
            rate.received_bytes = op == BROADCAST || op == TRANSFER
                                      ? run->part_bytes
                                      : (size_t)(run->members.n - 1) * run->part_bytes;
        run->received_bytes = rate.received_bytes;
        OT_TRY(time_operation(run, (enum measured)op, &rate.seconds));
        rate.rate = (double)rate.received_bytes / rate.seconds;
        if (!run->config->is_gpu && rate.received_bytes > 0) {
            OT_TRY(time_operation(run, COPY, &copy_seconds));
            rate.copy_rate = (double)rate.received_bytes / copy_seconds;
        }
        OT_TRY(run->config->take(run->config->context, &rate));
    }
    return 0;
}

static int open_memory(struct run *run, size_t bytes, size_t staging_bytes, void **staging) {
    struct ot_device *device = run->config->device;
    OT_TRY(ot_device_alloc_pinned(device, staging_bytes, "staging", staging));
    ot_comm_reserve(run->config->comm, *staging, staging_bytes);
    OT_TRY(ot_device_alloc(device, bytes, "sent parts", (void **)&run->send));
    OT_TRY(ot_device_alloc(device, bytes, "received parts", (void **)&run->receive));
    OT_TRY(ot_lane_open(device, "comm", &run->lane));
    ot_lane_fill(run->lane, run->send, 1, bytes);
    ot_lane_fill(run->lane, run->receive, 2, bytes);
    return ot_lane_sync(run->lane);
}

/* Lets the transfers of the ring cross. */
static int cross(struct run *run, size_t most) {
    struct ot_crossing_link links[OT_MAX_RANKS];
    struct ot_crossing crossing = {.links = links};
    if (!run->config->crosses || run->ranks == 1)
        return 0;
    for (int r = 0; r < run->ranks; r++)
        links[crossing.n_links++] = (struct ot_crossing_link){r, neighbour(run, r, 1), 2, most};
    run->shared_bytes = ot_crossing_bytes(&crossing);
    OT_TRY(ot_shared_memory_map(run->config->comm, run->shared_bytes, &run->shared));
    OT_TRY(
        ot_device_pin(run->config->device, run->shared, run->shared_bytes, run->shared_bytes, "transfers"));
    run->is_pinned = true;
    return ot_comm_cross(run->config->comm, &crossing, run->shared);
}

static void end_crossing(const struct run *run) {
    ot_comm_end_crossing(run->config->comm);
    if (run->is_pinned)
        ot_device_unpin(run->config->device, run->shared, run->shared_bytes, run->shared_bytes);
    ot_shared_memory_unmap(run->shared, run->shared_bytes);
}

int ot_comm_rates_measure(const struct ot_comm_rates_config *config) {
    struct run run = {.config = config, .ranks = ot_comm_ranks(config->comm)};
    int rank = ot_comm_rank(config->comm), n = config->members > 0 ? config->members : run.ranks;
    run.members = (struct ot_comm_members){rank - rank % n, n};
    size_t most = 0, staging_bytes;
    void *staging = NULL;
    for (int i = 0; i < config->n_sizes; i++)
        most = ot_max(config->sizes[i], most);
    staging_bytes = ot_comm_staging_bytes(config->comm, most);
    if (config->with_transfers)
        staging_bytes = ot_max(staging_bytes, ot_comm_transfer_staging_bytes(config->comm, 2 * most));
    int rc = open_memory(&run, (size_t)run.ranks * most, staging_bytes, &staging);
    if (rc == 0)
        rc = cross(&run, most);
    for (int i = 0; i < config->n_sizes && rc == 0; i++) {
        run.part_bytes = config->sizes[i];
        rc = measure_size(&run);
    }
    if (rc < 0)
        ot_comm_abort(config->comm);
    ot_lane_close(run.lane);
    end_crossing(&run);
    ot_comm_reserve(config->comm, NULL, 0);
    ot_device_free_pinned(config->device, staging, staging_bytes);
    ot_device_free(config->device, run.receive);
    ot_device_free(config->device, run.send);
    return rc;
}

/* ---- peers ---- */

/* The location of a rank's GPU, and the rank's measurements. */
struct seat {
    char host[128], bus_id[OT_BUS_ID_BYTES];
    bool has_next, is_measured;
    struct ot_device_peer peer;
};

/* The next rank of this host, in a circle. NULL: the rank is alone there, or the next has the same GPU. */
static const struct seat *next_seat(const struct seat *all, int ranks, int rank) {
    const struct seat *own = &all[rank];
    for (int i = 1; i < ranks; i++) {
        const struct seat *other = &all[(rank + i) % ranks];
        if (strcmp(other->host, own->host) == 0)
            return strcmp(other->bus_id, own->bus_id) ? other : NULL;
    }
    return NULL;
}

static int measure(const struct ot_peers_config *config, const char *bus_id, struct ot_device_peer *out) {
    void *memory;
    OT_TRY(ot_device_alloc(config->device, config->bytes, "copies between GPUs", &memory));
    int rc = ot_device_measure_peer(config->device, bus_id, memory, config->bytes, config->seconds, out);
    ot_device_free(config->device, memory);
    return rc;
}

static void sum_up(const struct seat *all, int ranks, struct ot_peers *out) {
    int n = 0;
    *out = (struct ot_peers){.is_known = true, .has_access = true};
    for (int r = 0; r < ranks; r++) {
        const struct seat *seat = &all[r];
        if (!seat->has_next)
            continue;
        out->is_known &= seat->is_measured;
        out->has_access &= seat->peer.has_access;
        if (n++ == 0 || seat->peer.rate < out->rate)
            out->rate = seat->peer.rate;
    }
    if (n == 0 || !out->is_known)
        *out = (struct ot_peers){0};
}

int ot_probe_peers(const struct ot_peers_config *config, struct ot_peers *out) {
    const struct ot_ranks *ranks = ot_world_ranks(config->world);
    struct seat own = {0}, *all = calloc((size_t)ranks->ranks, sizeof *all);
    *out = (struct ot_peers){0};
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory for the GPUs of %d ranks", ranks->ranks);
    if (gethostname(own.host, sizeof own.host - 1) < 0 ||
        !ot_device_bus_id(config->kind, config->index, own.bus_id))
        own.host[0] = own.bus_id[0] = '\0';
    int rc = ot_world_all_gather(config->world, &own, sizeof own, all);
    const struct seat *next = rc == 0 ? next_seat(all, ranks->ranks, ranks->rank) : NULL;
    if (next) {
        own.has_next = true;
        own.is_measured = measure(config, next->bus_id, &own.peer) == 0;
        if (!own.is_measured)
            ot_log(OT_LOG_DEBUG, "peers   not measured: %s", ot_error_text());
    }
    if (rc == 0)
        rc = ot_world_all_gather(config->world, &own, sizeof own, all);
    if (rc == 0)
        sum_up(all, ranks->ranks, out);
    free(all);
    return rc;
}
