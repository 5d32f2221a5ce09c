#include "src/plan/comm_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "offload/comm/plugin.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "src/base/text.h"

enum { LONGEST_DELAY_NS = 2000000, UNTOUCHED = 0xa5, WHY_BYTES = 256 };

struct run {
    struct ot_comm_checks *checks;
    struct ot_lane *lane;
    int rank, ranks;
    unsigned round; /* makes the bytes of each check different */
};

/* ---- bytes ---- */

/* The byte that rank `from` has at `at` of its part for rank `to`. */
static unsigned char byte_of(const struct run *run, int from, int to, size_t at) {
    return (unsigned char)(at * 13 + (at >> 8) * 7 + (at >> 16) * 3 + (unsigned)from * 37 +
                           (unsigned)to * 61 + run->round * 101);
}

static void fill_part(const struct run *run, unsigned char *part, int from, int to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        part[i] = byte_of(run, from, to, i);
}

static int check_part(const struct run *run, const unsigned char *part, int from, int to, size_t bytes,
                      const char *what) {
    for (size_t i = 0; i < bytes; i++)
        if (part[i] != byte_of(run, from, to, i))
            return ot_fail(OT_E_COMM, "%s: byte %zu of the part of rank %d is %d, but should be %d", what, i,
                           from, part[i], byte_of(run, from, to, i));
    return 0;
}

static int check_untouched(const unsigned char *part, size_t bytes, const char *what) {
    for (size_t i = 0; i < bytes; i++)
        if (part[i] != UNTOUCHED)
            return ot_fail(OT_E_COMM, "%s: byte %zu of the own part has changed", what, i);
    return 0;
}

/* ---- device memory, of exactly the size that an operation may touch ---- */

struct buffer {
    unsigned char *host, *device;
    size_t bytes;
};

static void free_buffer(const struct run *run, struct buffer *buffer) {
    ot_device_free(run->checks->device, buffer->device);
    ot_device_free_pinned(run->checks->device, buffer->host, buffer->bytes);
    *buffer = (struct buffer){0};
}

static int open_buffer(const struct run *run, size_t bytes, struct buffer *out) {
    *out = (struct buffer){0};
    OT_TRY(ot_device_alloc_pinned(run->checks->device, bytes, "comm-test", (void **)&out->host));
    out->bytes = bytes;
    int rc = ot_device_alloc(run->checks->device, bytes, "comm-test", (void **)&out->device);
    if (rc < 0)
        free_buffer(run, out);
    else if (bytes > 0)
        memset(out->host, UNTOUCHED, bytes);
    return rc;
}

static void to_device(const struct run *run, const struct buffer *buffer) {
    ot_lane_copy(run->lane, OT_COPY_H2D, buffer->device, buffer->host, buffer->bytes);
}

static int to_host(const struct run *run, const struct buffer *buffer) {
    ot_lane_copy(run->lane, OT_COPY_D2H, buffer->host, buffer->device, buffer->bytes);
    OT_TRY(ot_lane_sync(run->lane));
    return ot_comm_error(run->checks->comm);
}

static void delay(const struct run *run) {
    uint64_t seed = run->checks->delay_seed;
    if (!seed)
        return;
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 3, (uint64_t)run->rank);
    long ns = (long)ot_random_below(seed, stream, run->round, LONGEST_DELAY_NS);
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* ---- the checks of operations ---- */

/* Rank r's part has the bytes from r to r. */
static int check_gather(const struct run *run, size_t bytes, bool inside) {
    struct buffer part = {0}, all = {0};
    int rc;
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * bytes, &all), rc, out);
    OT_TRY_GOTO(open_buffer(run, inside ? 0 : bytes, &part), rc, out);
    unsigned char *own = (inside ? all.host + (size_t)run->rank * bytes : part.host);
    fill_part(run, own, run->rank, run->rank, bytes);
    to_device(run, &all);
    to_device(run, &part);
    const unsigned char *from = inside ? all.device + (size_t)run->rank * bytes : part.device;
    ot_comm_all_gather(run->checks->comm, run->lane, from, all.device, bytes);
    OT_TRY_GOTO(to_host(run, &all), rc, out);
    for (int r = 0; rc == 0 && r < run->ranks; r++)
        rc = check_part(run, all.host + (size_t)r * bytes, r, r, bytes, "all_gather");
out:
    free_buffer(run, &part);
    free_buffer(run, &all);
    return rc;
}

static int check_gather_inside(const struct run *run, size_t bytes) {
    return check_gather(run, bytes, true);
}

static int check_gather_outside(const struct run *run, size_t bytes) {
    return check_gather(run, bytes, false);
}

static int check_received(const struct run *run, const struct buffer *in, size_t bytes) {
    for (int r = 0; r < run->ranks; r++) {
        const unsigned char *part = in->host + (size_t)r * bytes;
        OT_TRY(r == run->rank ? check_untouched(part, bytes, "all_to_all")
                              : check_part(run, part, r, run->rank, bytes, "all_to_all"));
    }
    return 0;
}

static int check_exchange(const struct run *run, size_t bytes) {
    struct buffer out = {0}, in = {0};
    int rc;
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * bytes, &out), rc, out);
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * bytes, &in), rc, out);
    for (int r = 0; r < run->ranks; r++)
        fill_part(run, out.host + (size_t)r * bytes, run->rank, r, bytes);
    to_device(run, &out);
    to_device(run, &in);
    ot_comm_all_to_all(run->checks->comm, run->lane, out.device, in.device, bytes);
    OT_TRY_GOTO(to_host(run, &in), rc, out);
    rc = check_received(run, &in, bytes);
out:
    free_buffer(run, &in);
    free_buffer(run, &out);
    return rc;
}

static int check_broadcast(const struct run *run, size_t bytes) {
    int root = (int)(run->round % (unsigned)run->ranks);
    struct buffer memory;
    OT_TRY(open_buffer(run, bytes, &memory));
    if (run->rank == root)
        fill_part(run, memory.host, root, 0, bytes);
    to_device(run, &memory);
    ot_comm_broadcast(run->checks->comm, run->lane, memory.device, bytes, root);
    int rc = to_host(run, &memory);
    if (rc == 0)
        rc = check_part(run, memory.host, root, 0, bytes, "broadcast");
    free_buffer(run, &memory);
    return rc;
}

/* Two different operations in one group, while the ranks also wait for each other. */
static int check_group(const struct run *run, size_t bytes) {
    struct buffer all = {0}, out = {0}, in = {0};
    int rc;
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * bytes, &all), rc, out);
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * bytes, &out), rc, out);
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * bytes, &in), rc, out);
    unsigned char *own = all.device + (size_t)run->rank * bytes;
    fill_part(run, all.host + (size_t)run->rank * bytes, run->rank, run->rank, bytes);
    for (int r = 0; r < run->ranks; r++)
        fill_part(run, out.host + (size_t)r * bytes, run->rank, r, bytes);
    to_device(run, &all);
    to_device(run, &out);
    to_device(run, &in);
    ot_comm_group_begin(run->checks->comm, run->lane);
    ot_comm_all_gather(run->checks->comm, run->lane, own, all.device, bytes);
    ot_comm_all_to_all(run->checks->comm, run->lane, out.device, in.device, bytes);
    ot_comm_group_end(run->checks->comm, run->lane);
    OT_TRY_GOTO(ot_comm_barrier(run->checks->comm), rc, out);
    OT_TRY_GOTO(to_host(run, &all), rc, out);
    OT_TRY_GOTO(to_host(run, &in), rc, out);
    for (int r = 0; rc == 0 && r < run->ranks; r++)
        rc = check_part(run, all.host + (size_t)r * bytes, r, r, bytes, "all_gather in a group");
    if (rc == 0)
        rc = check_received(run, &in, bytes);
out:
    if (rc < 0)
        ot_lane_sync(run->lane); /* it may still use the memory if the barrier has failed */
    free_buffer(run, &in);
    free_buffer(run, &out);
    free_buffer(run, &all);
    return rc;
}

/* ---- the checks of the functions that wait ---- */

static int check_gather_host(const struct run *run, size_t bytes) {
    unsigned char *mine = malloc(bytes + 1), *all = malloc((size_t)run->ranks * bytes + 1);
    int rc = mine && all ? 0 : ot_fail(OT_E_BUDGET, "no memory for %zu bytes of each rank", bytes);
    if (rc == 0) {
        fill_part(run, mine, run->rank, run->rank, bytes);
        rc = ot_comm_all_gather_host(run->checks->comm, mine, bytes, all);
    }
    for (int r = 0; rc == 0 && r < run->ranks; r++)
        rc = check_part(run, all + (size_t)r * bytes, r, r, bytes, "all_gather on the host");
    free(mine);
    free(all);
    return rc;
}

static int check_broadcast_host(const struct run *run, size_t bytes) {
    int root = (int)(run->round % (unsigned)run->ranks);
    unsigned char *memory = calloc(1, bytes + 1);
    if (!memory)
        return ot_fail(OT_E_BUDGET, "no memory for %zu bytes", bytes);
    if (run->rank == root)
        fill_part(run, memory, root, 0, bytes);
    int rc = ot_comm_broadcast_host(run->checks->comm, memory, bytes, root);
    if (rc == 0)
        rc = check_part(run, memory, root, 0, bytes, "broadcast on the host");
    free(memory);
    return rc;
}

/* Ranks that differ are seen on every rank. */
static int check_agreement(const struct run *run, size_t bytes) {
    (void)bytes;
    OT_TRY(ot_comm_agree(run->checks->comm, "the weather", "sunny"));
    if (run->ranks == 1)
        return 0;
    const char *mine = run->rank == run->ranks - 1 ? "rainy" : "sunny";
    int rc = ot_comm_agree(run->checks->comm, "the weather", mine);
    if (rc == 0)
        return ot_fail(OT_E_COMM, "a difference between ranks was not seen");
    return ot_error_cause() == OT_CAUSE_RANKS_DIFFER ? 0 : rc;
}

/* ---- all of them ---- */

/* All ranks learn how the check went. Returns the result of the first rank that failed. */
static int compare_results(const struct run *run, int rc) {
    struct {
        char why[WHY_BYTES];
    } mine = {{0}}, all[OT_MAX_RANKS];
    struct ot_error error;
    ot_error_save(&error, rc);
    OT_TRY(ot_comm_error(run->checks->comm));
    if (rc < 0)
        snprintf(mine.why, sizeof mine.why, "%.*s", WHY_BYTES - 1, error.text);
    OT_TRY(ot_comm_all_gather_host(run->checks->comm, &mine, sizeof mine, all));
    if (rc < 0)
        return ot_error_load(&error);
    for (int r = 0; r < run->ranks; r++)
        if (*all[r].why)
            return ot_fail(OT_E_COMM, "on rank %d: %.*s", r, WHY_BYTES - 1, all[r].why);
    return 0;
}

static int run_all(struct run *run) {
    static int (*const checks[])(const struct run *run, size_t bytes) = {
        check_gather_inside, check_gather_outside, check_exchange,       check_broadcast,
        check_group,         check_gather_host,    check_broadcast_host, check_agreement,
    };
    for (int s = 0; s < run->checks->n_sizes; s++)
        for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
            size_t bytes = run->checks->sizes[s];
            run->round++;
            delay(run);
            int rc = compare_results(run, checks[i](run, bytes));
            if (rc < 0)
                return ot_fail_context(rc, "parts of %zu bytes", bytes);
            run->checks->done++;
        }
    return 0;
}

int ot_comm_checks_run(struct ot_comm_checks *checks) {
    struct run run = {
        .checks = checks, .rank = ot_comm_rank(checks->comm), .ranks = ot_comm_ranks(checks->comm)};
    size_t most = 0, staging_bytes;
    void *staging = NULL;
    int rc;
    for (int s = 0; s < checks->n_sizes; s++)
        most = ot_max(checks->sizes[s], most);
    staging_bytes = ot_comm_staging_bytes(checks->comm, most);
    checks->done = 0;
    OT_TRY_GOTO(ot_device_alloc_pinned(checks->device, staging_bytes, "staging", &staging), rc, out);
    ot_comm_reserve(checks->comm, staging, staging_bytes);
    OT_TRY_GOTO(ot_lane_open(checks->device, "comm", &run.lane), rc, out);
    rc = run_all(&run);
out:
    if (rc < 0)
        ot_comm_abort(checks->comm);
    ot_lane_close(run.lane);
    ot_comm_reserve(checks->comm, NULL, 0);
    ot_device_free_pinned(checks->device, staging, staging_bytes);
    return rc;
}
