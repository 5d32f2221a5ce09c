#include "src/plan/comm_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "offload/comm/crossing.h"
#include "offload/comm/plugin.h"
#include "offload/comm/shared_memory.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "src/base/text.h"

enum { LONGEST_DELAY_NS = 2000000, UNTOUCHED = 0xa5, WHY_BYTES = 256, MICRO_BATCHES = 5 };

/* The bytes of a part come in blocks of 256. In each a byte is 13 more than the byte before it, so a block is
 * a range of one table. BACK * 13 is 1 (mod 256): BACK * c is the place of the byte c in the table. */
enum { BLOCK = 256, STEP = 13, BACK = 197 };

struct run {
    unsigned char table[2 * BLOCK];
    struct ot_comm_checks *checks;
    struct ot_lane *lane;
    int rank, ranks;
    unsigned round; /* makes the bytes of each check different */
};

/* ---- bytes ---- */

/* The block with number `at` in the part of rank `from` for rank `to`. */
static const unsigned char *block_at(const struct run *run, int from, int to, size_t at) {
    size_t first = at * 7 + (at >> 8) * 3 + (size_t)from * 37 + (size_t)to * 61 + (size_t)run->round * 101;
    return run->table + first * BACK % BLOCK;
}

static void fill_part(const struct run *run, unsigned char *part, int from, int to, size_t bytes) {
    for (size_t at = 0; at < bytes; at += BLOCK)
        memcpy(part + at, block_at(run, from, to, at / BLOCK), ot_min((size_t)BLOCK, bytes - at));
}

static int check_part(const struct run *run, const unsigned char *part, int from, int to, size_t bytes,
                      const char *what) {
    for (size_t at = 0; at < bytes; at += BLOCK) {
        const unsigned char *block = block_at(run, from, to, at / BLOCK);
        size_t n = ot_min((size_t)BLOCK, bytes - at), i = 0;
        if (memcmp(part + at, block, n) == 0)
            continue;
        while (part[at + i] == block[i])
            i++;
        return ot_fail(OT_E_COMM, "%s: byte %zu of the part of rank %d is %d, but should be %d", what, at + i,
                       from, part[at + i], block[i]);
    }
    return 0;
}

static int check_untouched(const unsigned char *part, size_t bytes, const char *what) {
    for (size_t i = 0; i < bytes; i++)
        if (part[i] != UNTOUCHED)
            return ot_fail(OT_E_COMM, "%s: byte %zu of this rank's part has changed", what, i);
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
    unsigned char *sent = (inside ? all.host + (size_t)run->rank * bytes : part.host);
    fill_part(run, sent, run->rank, run->rank, bytes);
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
    unsigned char *sent = all.device + (size_t)run->rank * bytes;
    fill_part(run, all.host + (size_t)run->rank * bytes, run->rank, run->rank, bytes);
    for (int r = 0; r < run->ranks; r++)
        fill_part(run, out.host + (size_t)r * bytes, run->rank, r, bytes);
    to_device(run, &all);
    to_device(run, &out);
    to_device(run, &in);
    ot_comm_group_begin(run->checks->comm, run->lane);
    ot_comm_all_gather(run->checks->comm, run->lane, sent, all.device, bytes);
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

/* ---- the checks of transfers ---- */

static struct ot_comm_transfer_v1 send_to(int rank, void *memory, size_t bytes) {
    return (struct ot_comm_transfer_v1){.rank = rank, .is_send = 1, .memory = memory, .bytes = bytes};
}

static struct ot_comm_transfer_v1 receive_from(int rank, void *memory, size_t bytes) {
    return (struct ot_comm_transfer_v1){.rank = rank, .memory = memory, .bytes = bytes};
}

/* Every rank sends to the rank `step` further, and receives from the one `step` before. */
static void shift(const struct run *run, int step, void *from, void *to, size_t bytes) {
    int next = (run->rank + step) % run->ranks, previous = (run->rank + run->ranks - step) % run->ranks;
    const struct ot_comm_transfer_v1 list[] = {send_to(next, from, bytes), receive_from(previous, to, bytes)};
    ot_comm_transfer(run->checks->comm, run->lane, list, run->ranks > 1 ? 2 : 0);
}

/* A part goes around the ring, once, in both directions, with an operation of all ranks between the two. */
static int check_ring(const struct run *run, size_t bytes) {
    struct buffer parts = {0}, all = {0};
    int rc, previous = (run->rank + run->ranks - 1) % run->ranks, next = (run->rank + 1) % run->ranks;
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * bytes, &all), rc, out);
    OT_TRY_GOTO(open_buffer(run, 3 * bytes, &parts), rc, out);
    fill_part(run, parts.host, run->rank, run->rank, bytes);
    to_device(run, &parts);
    to_device(run, &all);
    shift(run, 1, parts.device, parts.device + bytes, bytes);
    ot_comm_all_gather(run->checks->comm, run->lane, parts.device, all.device, bytes);
    shift(run, run->ranks - 1, parts.device, parts.device + 2 * bytes, bytes);
    OT_TRY_GOTO(to_host(run, &parts), rc, out);
    OT_TRY_GOTO(to_host(run, &all), rc, out);
    if (run->ranks > 1)
        OT_TRY_GOTO(check_part(run, parts.host + bytes, previous, previous, bytes, "transfer"), rc, out);
    if (run->ranks > 1)
        OT_TRY_GOTO(check_part(run, parts.host + 2 * bytes, next, next, bytes, "transfer"), rc, out);
    for (int r = 0; rc == 0 && r < run->ranks; r++)
        rc = check_part(run, all.host + (size_t)r * bytes, r, r, bytes, "all_gather between transfers");
out:
    free_buffer(run, &parts);
    free_buffer(run, &all);
    return rc;
}

/* The transfers of a call between each two ranks, in each direction. */
static int pair_transfers(int ranks, size_t bytes) {
    return ranks <= 8 && bytes <= 1 << 20 ? 3 : 1;
}

static size_t call_bytes(int ranks, size_t bytes) {
    return 2 * (size_t)ranks * (size_t)pair_transfers(ranks, bytes) * bytes;
}

/* The size of transfer k from one rank to another; they differ, and some are 0. */
static size_t pair_bytes(size_t bytes, int k) {
    return k == 0 ? bytes : k == 1 ? bytes / 3 : bytes - bytes / 2;
}

/* Every rank sends to every other in one call, several times. Every second rank has its list in reverse
 * order. */
static int check_pairs(const struct run *run, size_t bytes) {
    struct ot_comm_transfer_v1 list[OT_COMM_MOST_TRANSFERS];
    struct buffer out = {0}, in = {0};
    int rc, each = pair_transfers(run->ranks, bytes), n = 0;
    size_t stride = (size_t)each * bytes;
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * stride, &out), rc, out);
    OT_TRY_GOTO(open_buffer(run, (size_t)run->ranks * stride, &in), rc, out);
    for (int i = 1; i < run->ranks; i++)
        for (int k = 0; k < each; k++) {
            int other = (run->rank + (run->rank % 2 ? i : run->ranks - i)) % run->ranks;
            size_t at = (size_t)other * stride + (size_t)k * bytes;
            fill_part(run, out.host + at, run->rank, other + 16 * k, pair_bytes(bytes, k));
            list[n++] = send_to(other, out.device + at, pair_bytes(bytes, k));
            list[n++] = receive_from(other, in.device + at, pair_bytes(bytes, k));
        }
    to_device(run, &out);
    to_device(run, &in);
    ot_comm_transfer(run->checks->comm, run->lane, list, n);
    OT_TRY_GOTO(to_host(run, &in), rc, out);
    for (int r = 0; r < run->ranks; r++)
        for (int k = 0; k < each && r != run->rank; k++)
            OT_TRY_GOTO(check_part(run, in.host + (size_t)r * stride + (size_t)k * bytes, r,
                                   run->rank + 16 * k, pair_bytes(bytes, k), "transfers in one call"),
                        rc, out);
    rc = check_untouched(in.host + (size_t)run->rank * stride, stride, "transfers in one call");
out:
    free_buffer(run, &in);
    free_buffer(run, &out);
    return rc;
}

/* Micro-batches go through the ranks, from one to the next, as in a pipeline: while a rank sends one, it
 * receives the next. Ranks take part in different numbers of calls. */
static int check_pipeline(const struct run *run, size_t bytes) {
    struct buffer batches;
    OT_TRY(open_buffer(run, MICRO_BATCHES * bytes, &batches));
    for (int i = 0; i < MICRO_BATCHES && run->rank == 0; i++)
        fill_part(run, batches.host + (size_t)i * bytes, 0, i, bytes);
    to_device(run, &batches);
    for (int i = 0; i <= MICRO_BATCHES; i++) {
        struct ot_comm_transfer_v1 list[2];
        unsigned char *at = batches.device + (size_t)i * bytes;
        int n = 0;
        if (i < MICRO_BATCHES && run->rank > 0)
            list[n++] = receive_from(run->rank - 1, at, bytes);
        if (i > 0 && run->rank < run->ranks - 1)
            list[n++] = send_to(run->rank + 1, at - bytes, bytes);
        ot_comm_transfer(run->checks->comm, run->lane, list, n);
    }
    int rc = to_host(run, &batches);
    for (int i = 0; rc == 0 && i < MICRO_BATCHES; i++)
        rc = check_part(run, batches.host + (size_t)i * bytes, 0, i, bytes, "transfers from rank to rank");
    free_buffer(run, &batches);
    return rc;
}

/* Half of the ranks: what they gather, and what they exchange. The other half does the same at the same time.
 */
static int check_members(const struct run *run, size_t bytes) {
    int half = run->ranks - run->ranks / 2;
    const struct ot_comm_members members = run->rank < half
                                               ? (struct ot_comm_members){0, half}
                                               : (struct ot_comm_members){half, run->ranks - half};
    size_t all_bytes = (size_t)members.n * bytes;
    struct buffer part = {0}, all = {0}, out = {0}, in = {0};
    int rc;
    OT_TRY_GOTO(open_buffer(run, bytes, &part), rc, out);
    OT_TRY_GOTO(open_buffer(run, all_bytes, &all), rc, out);
    OT_TRY_GOTO(open_buffer(run, all_bytes, &out), rc, out);
    OT_TRY_GOTO(open_buffer(run, all_bytes, &in), rc, out);
    fill_part(run, part.host, run->rank, run->rank, bytes);
    for (int i = 0; i < members.n; i++)
        fill_part(run, out.host + (size_t)i * bytes, run->rank, members.first + i, bytes);
    to_device(run, &part);
    to_device(run, &all);
    to_device(run, &out);
    to_device(run, &in);
    ot_comm_members_gather(run->checks->comm, run->lane, members, part.device, all.device, bytes);
    ot_comm_members_exchange(run->checks->comm, run->lane, members, out.device, in.device, bytes);
    OT_TRY_GOTO(to_host(run, &all), rc, out);
    OT_TRY_GOTO(to_host(run, &in), rc, out);
    for (int i = 0; i < members.n && rc == 0; i++) {
        int r = members.first + i;
        const unsigned char *received = in.host + (size_t)i * bytes;
        rc = check_part(run, all.host + (size_t)i * bytes, r, r, bytes, "what half of the ranks gather");
        if (rc == 0 && r == run->rank)
            rc = check_untouched(received, bytes, "what half of the ranks exchange");
        else if (rc == 0)
            rc = check_part(run, received, r, run->rank, bytes, "what half of the ranks exchange");
    }
out:
    free_buffer(run, &in);
    free_buffer(run, &out);
    free_buffer(run, &all);
    free_buffer(run, &part);
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

typedef int check(const struct run *run, size_t bytes);
static check *const checks_of_all[] = {
    check_gather_inside, check_gather_outside, check_exchange,       check_broadcast,
    check_group,         check_gather_host,    check_broadcast_host, check_agreement,
};
static check *const checks_of_transfers[] = {check_ring, check_pairs, check_pipeline, check_members};
enum {
    OF_ALL = sizeof checks_of_all / sizeof *checks_of_all,
    OF_TRANSFERS = sizeof checks_of_transfers / sizeof *checks_of_transfers
};

static int run_some(struct run *run, check *const *checks, size_t n_checks, size_t bytes) {
    for (size_t i = 0; i < n_checks; i++) {
        run->round++;
        delay(run);
        int rc = compare_results(run, checks[i](run, bytes));
        if (rc < 0)
            return ot_fail_context(rc, "parts of %zu bytes", bytes);
        run->checks->done++;
    }
    return 0;
}

static int run_all(struct run *run) {
    bool has_transfers = ot_comm_need_transfers(run->checks->comm) == 0;
    for (int s = 0; s < run->checks->n_sizes; s++) {
        OT_TRY(run_some(run, checks_of_all, OF_ALL, run->checks->sizes[s]));
        if (has_transfers)
            OT_TRY(run_some(run, checks_of_transfers, OF_TRANSFERS, run->checks->sizes[s]));
    }
    return 0;
}

/* Repeats the checks of transfers through memory that the ranks share, with the sizes for which this memory
 * is not too large. Ranks that share no memory skip them. */
static int run_crossing(struct run *run) {
    enum { MOST_BYTES = 64 << 20, SLOTS = 6 /* 2 x pair_transfers */ };
    struct ot_crossing_link links[OT_MAX_RANKS * OT_MAX_RANKS];
    struct ot_crossing crossing = {.links = links};
    size_t most = 0;
    struct ot_comm_checks *c = run->checks;
    void *memory = NULL;
    bool is_pinned = false;
    for (int from = 0; from < run->ranks; from++)
        for (int to = 0; to < run->ranks; to++)
            if (from != to)
                links[crossing.n_links++] = (struct ot_crossing_link){from, to, SLOTS, 0};
    for (int s = 0; s < c->n_sizes; s++)
        if (c->sizes[s] <= MOST_BYTES / ((size_t)crossing.n_links * SLOTS))
            most = ot_max(c->sizes[s], most);
    for (int i = 0; i < crossing.n_links; i++)
        links[i].slot_bytes = most;
    size_t bytes = ot_crossing_bytes(&crossing);
    int rc = ot_shared_memory_map(c->comm, bytes, &memory);
    if (rc < 0)
        return rc == -OT_E_COMM ? rc : 0;
    rc = ot_device_pin(c->device, memory, bytes, bytes, "memory that ranks share");
    is_pinned = rc == 0;
    OT_TRY_GOTO(compare_results(run, rc), rc, out);
    OT_TRY_GOTO(compare_results(run, ot_comm_cross(c->comm, &crossing, memory)), rc, out);
    for (int s = 0; s < c->n_sizes && rc == 0; s++)
        if (c->sizes[s] <= most)
            rc = run_some(run, checks_of_transfers, OF_TRANSFERS, c->sizes[s]);
out:
    if (rc < 0) {
        ot_comm_abort(c->comm);
        ot_lane_sync(run->lane); /* it may still use the memory */
    }
    ot_comm_end_crossing(c->comm);
    if (is_pinned)
        ot_device_unpin(c->device, memory, bytes, bytes);
    ot_shared_memory_unmap(memory, bytes);
    return rc < 0 ? ot_fail_context(rc, "through memory that the ranks share") : 0;
}

int ot_comm_checks_run(struct ot_comm_checks *checks) {
    struct run run = {
        .checks = checks, .rank = ot_comm_rank(checks->comm), .ranks = ot_comm_ranks(checks->comm)};
    size_t most = 0, most_in_call = 0, staging_bytes;
    void *staging = NULL;
    int rc;
    for (int s = 0; s < checks->n_sizes; s++) {
        most = ot_max(checks->sizes[s], most);
        most_in_call = ot_max(call_bytes(run.ranks, checks->sizes[s]), most_in_call);
    }
    staging_bytes = ot_max(ot_comm_staging_bytes(checks->comm, most),
                           ot_comm_transfer_staging_bytes(checks->comm, most_in_call));
    checks->done = 0;
    for (int i = 0; i < 2 * BLOCK; i++)
        run.table[i] = (unsigned char)(STEP * i);
    OT_TRY_GOTO(ot_device_alloc_pinned(checks->device, staging_bytes, "staging", &staging), rc, out);
    ot_comm_reserve(checks->comm, staging, staging_bytes);
    OT_TRY_GOTO(ot_lane_open(checks->device, "comm", &run.lane), rc, out);
    rc = run_all(&run);
    if (rc == 0 && checks->crosses && ot_comm_wants_crossing(checks->comm) &&
        ot_comm_need_transfers(checks->comm) == 0)
        rc = run_crossing(&run);
out:
    if (rc < 0)
        ot_comm_abort(checks->comm);
    ot_lane_close(run.lane);
    ot_comm_reserve(checks->comm, NULL, 0);
    ot_device_free_pinned(checks->device, staging, staging_bytes);
    return rc;
}
