/* The plugin `nccl` with the fake libnccl (tests/fakes/fake_nccl.h) on emulated GPUs, one process a rank.
 * Usage: test_nccl PLUGIN FAKE BROKEN_FAKE; with `no-driver` alone where libcuda is not found. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "src/base/clock.h"
#include "tests/emu/emu_gpu.h"
#include "tests/offload/comm/plugins/plugin_ranks.h"
#include "tests/support/check.h"

static const char *plugin_path, *fake, *broken_fake;

static void sleep_seconds(double seconds) {
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)}, NULL);
}

/* ---- a rank with a stream ---- */

struct gpu_rank {
    struct plugin_rank *rank;
    const struct ot_comm_v1 *api;
    void *stream;
};

static struct gpu_rank open_rank(struct plugin_rank *rank, double timeout_seconds) {
    setenv("OFFLOAD_TRAIN_NCCL", fake, 0);
    struct gpu_rank g = {rank, plugin_load(plugin_path), NULL};
    NEED(rank, plugin_open(rank, g.api, rank->rank, timeout_seconds) == OT_COMM_OK);
    emu_gpu_use(rank->rank);
    g.stream = emu_gpu_stream_open();
    return g;
}

/* After an abort, a call of the plugin's helper may still be under way. It may use the stream until close has
 * returned. */
static void close_rank(struct gpu_rank *g, int broken) {
    g->api->close(g->rank->context, broken);
    emu_gpu_stream_close(g->stream);
}

/* Byte i of the part that rank `from` has for rank `to`. */
static unsigned char byte_of(int from, int to, size_t i) {
    return (unsigned char)(1 + from * 31 + to * 7 + i * 3 + i / 251);
}

static unsigned char *make_parts(int from, int ranks, size_t bytes, int same) {
    unsigned char *parts = malloc((size_t)ranks * bytes);
    for (int to = 0; to < ranks; to++)
        for (size_t i = 0; i < bytes; i++)
            parts[(size_t)to * bytes + i] = byte_of(from, same ? 0 : to, i);
    return parts;
}

/* ---- every operation ---- */

static void check_all_gather(struct gpu_rank *g, size_t bytes, bool is_in_place) {
    struct plugin_rank *rank = g->rank;
    size_t total = bytes * (size_t)rank->ranks;
    unsigned char *mine = make_parts(rank->rank, 1, bytes, 1), *all = malloc(total);
    unsigned char *memory = emu_gpu_alloc(total), *part = emu_gpu_alloc(bytes);
    unsigned char *from = is_in_place ? memory + (size_t)rank->rank * bytes : part;
    emu_gpu_to_device(g->stream, from, mine, bytes);
    NEED(rank, g->api->all_gather(rank->context, from, memory, bytes, g->stream) == OT_COMM_OK);
    emu_gpu_to_host(g->stream, all, memory, total);
    for (int r = 0; r < rank->ranks; r++)
        for (size_t i = 0; i < bytes; i++)
            NEED(rank, all[(size_t)r * bytes + i] == byte_of(r, 0, i));
    emu_gpu_free(memory);
    emu_gpu_free(part);
    free(mine);
    free(all);
}

static void check_all_to_all(struct gpu_rank *g, size_t bytes) {
    struct plugin_rank *rank = g->rank;
    size_t total = bytes * (size_t)rank->ranks;
    unsigned char *mine = make_parts(rank->rank, rank->ranks, bytes, 0), *all = malloc(total);
    unsigned char *send = emu_gpu_alloc(total), *receive = emu_gpu_alloc(total);
    emu_gpu_to_device(g->stream, send, mine, total);
    memset(all, 0, total);
    emu_gpu_to_device(g->stream, receive, all, total);
    NEED(rank, g->api->all_to_all(rank->context, send, receive, bytes, g->stream) == OT_COMM_OK);
    emu_gpu_to_host(g->stream, all, receive, total);
    for (int r = 0; r < rank->ranks; r++)
        for (size_t i = 0; i < bytes; i++)
            NEED(rank, all[(size_t)r * bytes + i] == (r == rank->rank ? 0 : byte_of(r, rank->rank, i)));
    emu_gpu_free(send);
    emu_gpu_free(receive);
    free(mine);
    free(all);
}

/* In pinned memory. */
static void check_broadcast(struct gpu_rank *g, size_t bytes, int root) {
    struct plugin_rank *rank = g->rank;
    unsigned char *memory = emu_gpu_alloc_pinned(bytes);
    for (size_t i = 0; i < bytes; i++)
        memory[i] = byte_of(rank->rank, 5, i);
    NEED(rank, g->api->broadcast(rank->context, memory, bytes, root, g->stream) == OT_COMM_OK);
    NEED(rank, emu_gpu_wait(g->stream, 20));
    for (size_t i = 0; i < bytes; i++)
        NEED(rank, memory[i] == byte_of(root, 5, i));
    emu_gpu_free_pinned(memory);
}

/* Three all-gathers of different sizes and an all-to-all in one group. */
static void check_group(struct gpu_rank *g) {
    enum { OPS = 3, BYTES = 5000 };
    struct plugin_rank *rank = g->rank;
    size_t total = (size_t)BYTES * (size_t)rank->ranks;
    unsigned char *mine = make_parts(rank->rank, rank->ranks, BYTES, 1), *all = malloc(total);
    unsigned char *memory[OPS + 2];
    for (int k = 0; k < OPS + 2; k++) {
        memory[k] = emu_gpu_alloc(total);
        emu_gpu_to_device(g->stream, memory[k], mine, total);
    }
    NEED(rank, g->api->group_begin(rank->context) == OT_COMM_OK);
    for (int k = 0; k < OPS; k++) {
        size_t bytes = BYTES - (size_t)k;
        NEED(rank, g->api->all_gather(rank->context, memory[OPS], memory[k], bytes, g->stream) == 0);
    }
    NEED(rank, g->api->all_to_all(rank->context, memory[OPS], memory[OPS + 1], BYTES, g->stream) == 0);
    NEED(rank, g->api->group_end(rank->context, g->stream) == OT_COMM_OK);
    for (int k = 0; k < OPS + 2; k++) {
        size_t bytes = k < OPS ? BYTES - (size_t)k : BYTES;
        emu_gpu_to_host(g->stream, all, memory[k], bytes * (size_t)rank->ranks);
        for (int r = 0; r < rank->ranks && k != OPS; r++)
            for (size_t i = 0; i < bytes; i++)
                NEED(rank, all[(size_t)r * bytes + i] == byte_of(r, 0, i));
        emu_gpu_free(memory[k]);
    }
    free(mine);
    free(all);
}

static int transfer(struct gpu_rank *g, const struct ot_comm_transfer_v1 *list, size_t n) {
    return plugin_transfers(plugin_path)->transfer(g->rank->context, list, n, g->stream);
}

/* Every rank sends two parts to the next rank, and one to the previous. A part of no bytes is between them.
 * */
static void check_transfers(struct gpu_rank *g, size_t bytes) {
    struct plugin_rank *rank = g->rank;
    int next = (rank->rank + 1) % rank->ranks, previous = (rank->rank + rank->ranks - 1) % rank->ranks;
    unsigned char *mine = make_parts(rank->rank, 3, bytes, 0), *got = malloc(3 * bytes);
    unsigned char *out = emu_gpu_alloc(3 * bytes), *in = emu_gpu_alloc(3 * bytes);
    emu_gpu_to_device(g->stream, out, mine, 3 * bytes);
    const struct ot_comm_transfer_v1 list[] = {
        {previous, 0, in, bytes},
        {next, 1, out, bytes},
        {next, 1, out, 0},
        {next, 1, out + bytes, bytes},
        {previous, 0, in, 0},
        {previous, 0, in + bytes, bytes},
        {next, 0, in + 2 * bytes, bytes},
        {previous, 1, out + 2 * bytes, bytes},
    };
    NEED(rank, transfer(g, list, sizeof list / sizeof *list) == OT_COMM_OK);
    emu_gpu_to_host(g->stream, got, in, 3 * bytes);
    /* With two ranks the next rank is the previous one too, and the order of its list counts. */
    for (size_t i = 0; i < bytes; i++)
        NEED(rank, got[i] == byte_of(previous, 0, i) && got[bytes + i] == byte_of(previous, 1, i) &&
                       got[2 * bytes + i] == byte_of(next, 2, i));
    emu_gpu_free(out);
    emu_gpu_free(in);
    free(mine);
    free(got);
}

struct poller {
    struct gpu_rank *g;
    atomic_bool stop;
    int code;
};

static void *poll_all_the_time(void *arg) {
    struct poller *p = arg;
    char why[512];
    while (!atomic_load(&p->stop) && p->code == OT_COMM_OK) {
        p->code = p->g->api->poll_error(p->g->rank->context, why, sizeof why);
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    return NULL;
}

static void use_everything(struct plugin_rank *rank, const void *argument) {
    const char *slow_us = argument;
    if (slow_us)
        setenv("OT_FAKE_NCCL_SLOW_US", slow_us, 1);
    struct gpu_rank g = open_rank(rank, 20);
    struct poller poller = {.g = &g};
    pthread_t thread;
    NEED(rank, rank->facts.rank == rank->rank && rank->facts.ranks == rank->ranks);
    NEED(rank, strstr(rank->facts.description, "NCCL 2.27.3"));
    NEED(rank, pthread_create(&thread, NULL, poll_all_the_time, &poller) == 0);
    static const size_t sizes[] = {1, 1000, 200001};
    void *often = emu_gpu_alloc(4096), *kept = emu_gpu_alloc(4096);
    for (int k = 0; k < 3; k++) {
        check_all_gather(&g, sizes[k], false);
        check_all_gather(&g, sizes[k], true);
        check_all_to_all(&g, sizes[k]);
        check_broadcast(&g, sizes[k], k % rank->ranks);
        if (rank->ranks > 1)
            check_transfers(&g, sizes[k]);
    }
    NEED(rank, transfer(&g, NULL, 0) == OT_COMM_OK);
    NEED(rank, g.api->all_gather(rank->context, often, kept, 0, g.stream) == OT_COMM_OK);
    check_group(&g);
    atomic_store(&poller.stop, true);
    pthread_join(thread, NULL);
    NEED(rank, poller.code == OT_COMM_OK);
    close_rank(&g, 0);
    emu_gpu_free(often);
    emu_gpu_free(kept);
}

static void test_every_operation(void **state) {
    static const int ranks[] = {1, 2, 4, 8};
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(plugin_ranks_run(ranks[i], use_everything, NULL), 0);
}

static void test_threads_meet_inside(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, use_everything, "300"), 0);
}

/* ---- failures ---- */

/* Enqueues an all-gather of device memory, which is never freed. */
static int gather(struct gpu_rank *g, size_t bytes) {
    return g->api->all_gather(g->rank->context, emu_gpu_alloc(bytes),
                              emu_gpu_alloc(bytes * (size_t)g->rank->ranks), bytes, g->stream);
}

/* Polls until the communicator is broken. */
static int wait_for_error(struct gpu_rank *g, double seconds) {
    int code = OT_COMM_OK;
    for (double end = ot_clock_seconds() + seconds; code == OT_COMM_OK && ot_clock_seconds() < end;) {
        code = g->api->poll_error(g->rank->context, g->rank->why, sizeof g->rank->why);
        sleep_seconds(0.001);
    }
    return code;
}

/* The work of rank 1 fails on the GPU. Rank 0, whose kernel waits, is aborted by its program. */
static void fail_on_the_stream(struct plugin_rank *rank, const void *argument) {
    (void)argument;
    if (rank->rank == 1)
        setenv("OT_FAKE_NCCL_ASYNC", "3", 1);
    struct gpu_rank g = open_rank(rank, 20);
    for (int k = 0; k < 2; k++)
        NEED(rank, gather(&g, 100000) == OT_COMM_OK);
    (void)gather(&g, 100000); /* the call may see the failure already */
    if (rank->rank == 1) {
        NEED(rank, emu_gpu_wait(g.stream, 20)); /* the plugin sees it by itself, and aborts */
        NEED(rank, wait_for_error(&g, 20) == OT_COMM_FAILED);
        NEED(rank, strstr(rank->why, "rank 1") && strstr(rank->why, "remote process exited"));
        NEED(rank, strstr(rank->why, "told by the fake") && !strstr(rank->why, "second line"));
        NEED(rank, gather(&g, 10) == OT_COMM_FAILED);
    } else {
        NEED(rank, !emu_gpu_wait(g.stream, 0.2));
        NEED(rank, g.api->poll_error(rank->context, rank->why, sizeof rank->why) == OT_COMM_OK);
        g.api->abort(rank->context);
        g.api->abort(rank->context);
        NEED(rank, emu_gpu_wait(g.stream, 20));
        NEED(rank, gather(&g, 10) == OT_COMM_ABORTED);
        NEED(rank, g.api->poll_error(rank->context, rank->why, sizeof rank->why) == OT_COMM_ABORTED);
    }
    close_rank(&g, 1);
}

static void test_async_error_and_abort(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, fail_on_the_stream, NULL), 0);
}

static void *abort_soon(void *arg) {
    struct gpu_rank *g = arg;
    sleep_seconds(0.02 + 0.0013 * g->rank->rank);
    g->api->abort(g->rank->context);
    return NULL;
}

/* Another thread aborts while this one enqueues operations, and while NCCL is slow. */
static void abort_in_the_middle(struct plugin_rank *rank, const void *argument) {
    int code = OT_COMM_OK;
    pthread_t thread;
    setenv("OT_FAKE_NCCL_SLOW_US", argument, 1);
    struct gpu_rank g = open_rank(rank, 20);
    unsigned char *memory = emu_gpu_alloc(12000);
    NEED(rank, pthread_create(&thread, NULL, abort_soon, &g) == 0);
    for (double end = ot_clock_seconds() + 20; code == OT_COMM_OK && ot_clock_seconds() < end;) {
        g.api->group_begin(rank->context);
        g.api->all_gather(rank->context, memory, memory + 4000, 1000, g.stream);
        g.api->all_to_all(rank->context, memory, memory + 8000, 1000, g.stream);
        code = g.api->group_end(rank->context, g.stream);
    }
    NEED(rank, code == OT_COMM_ABORTED);
    pthread_join(thread, NULL);
    NEED(rank, emu_gpu_wait(g.stream, 20));
    close_rank(&g, 1);
}

static void test_abort_in_the_middle(void **state) {
    static const char *const slow_us[] = {"1", "100", "700"};
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(plugin_ranks_run(4, abort_in_the_middle, slow_us[i]), 0);
}

/* A call fails at once, also inside a group. */
static void fail_in_a_call(struct plugin_rank *rank, const void *argument) {
    char *memory;
    setenv("OT_FAKE_NCCL_FAIL", argument, 1);
    struct gpu_rank g = open_rank(rank, 20);
    memory = emu_gpu_alloc(1000);
    NEED(rank, g.api->group_begin(rank->context) == OT_COMM_OK);
    NEED(rank, g.api->all_to_all(rank->context, memory, memory + 500, 100, g.stream) == OT_COMM_OK);
    NEED(rank, g.api->all_gather(rank->context, memory, memory + 500, 100, g.stream) == OT_COMM_OK);
    NEED(rank, g.api->group_end(rank->context, g.stream) == OT_COMM_FAILED);
    NEED(rank, wait_for_error(&g, 0.1) == OT_COMM_FAILED && strstr(rank->why, "unhandled system error"));
    NEED(rank, strstr(rank->why, strcmp(argument, "ncclAllGather:1") == 0 ? "all-gather" : "all-to-all"));
    NEED(rank, gather(&g, 10) == OT_COMM_FAILED);
    close_rank(&g, 1);
}

static void test_calls_fail(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, fail_in_a_call, "ncclSend:1"), 0);
    assert_int_equal(plugin_ranks_run(4, fail_in_a_call, "ncclRecv:3"), 0);
    assert_int_equal(plugin_ranks_run(2, fail_in_a_call, "ncclAllGather:1"), 0);
}

/* Rank 1 comes to the second operation late, or never: rank 0 waits on its stream until the deadline. */
static void miss_an_operation(struct plugin_rank *rank, const void *argument) {
    (void)argument;
    struct gpu_rank g = open_rank(rank, 0.5);
    NEED(rank, gather(&g, 100000) == OT_COMM_OK && emu_gpu_wait(g.stream, 20));
    NEED(rank, plugin_rank_meet(rank));
    double start = ot_clock_seconds();
    if (rank->rank == 0) {
        (void)gather(&g, 100000); /* on a busy machine the deadline passes within the call */
        NEED(rank, emu_gpu_wait(g.stream, 20));
        NEED(rank, ot_clock_seconds() - start > 0.4 && wait_for_error(&g, 20) == OT_COMM_TIMED_OUT);
        NEED(rank, strstr(rank->why, "on the GPU"));
    }
    NEED(rank, plugin_rank_meet(rank));
    close_rank(&g, 1);
}

/* Rank 1 does not send, or receive, or sends less than rank 0 receives. */
static void miss_a_transfer(struct plugin_rank *rank, const void *argument) {
    const char *what = argument;
    struct gpu_rank g = open_rank(rank, 0.5);
    NEED(rank, gather(&g, 100000) == OT_COMM_OK && emu_gpu_wait(g.stream, 20));
    NEED(rank, plugin_rank_meet(rank));
    double start = ot_clock_seconds();
    bool differs = strcmp(what, "size") == 0;
    const struct ot_comm_transfer_v1 half = {1, strcmp(what, "send") == 0, emu_gpu_alloc(100000), 100000};
    const struct ot_comm_transfer_v1 other = {0, 1, half.memory, 99999};
    if (rank->rank == 0 || differs)
        (void)transfer(&g, rank->rank == 0 ? &half : &other, 1); /* the call may see the failure already */
    if (rank->rank == 0) {
        NEED(rank, wait_for_error(&g, 20) == (differs ? OT_COMM_FAILED : OT_COMM_TIMED_OUT));
        NEED(rank, emu_gpu_wait(g.stream, 20));
        NEED(rank, strstr(rank->why, differs ? "invalid usage" : "on the GPU"));
        NEED(rank, differs || ot_clock_seconds() - start > 0.4);
        NEED(rank, transfer(&g, &half, 1) != OT_COMM_OK);
    }
    NEED(rank, plugin_rank_meet(rank));
    close_rank(&g, 1);
}

static void test_transfers_fail(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, miss_a_transfer, "send"), 0);
    assert_int_equal(plugin_ranks_run(2, miss_a_transfer, "receive"), 0);
    assert_int_equal(plugin_ranks_run(2, miss_a_transfer, "size"), 0);
}

/* Rank 0 waits in open for rank 1, which does not connect. */
static void miss_the_connection(struct plugin_rank *rank, const void *argument) {
    (void)argument;
    setenv("OFFLOAD_TRAIN_NCCL", fake, 1);
    if (rank->rank == 1)
        setenv("OT_FAKE_NCCL_FAIL", "ncclCommInitRankConfig:1", 1);
    const struct ot_comm_v1 *api = plugin_load(plugin_path);
    int code = plugin_open(rank, api, rank->rank, 0.5);
    NEED(rank, code == (rank->rank == 0 ? OT_COMM_TIMED_OUT : OT_COMM_FAILED));
    NEED(rank, strstr(rank->why, rank->rank == 0 ? "in connecting" : "ncclCommInitRankConfig failed"));
}

static void test_deadlines(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, miss_an_operation, NULL), 0);
    assert_int_equal(plugin_ranks_run(2, miss_the_connection, NULL), 0);
}

/* A stream that is busy with other work is not late. */
static void wait_behind_other_work(struct plugin_rank *rank, const void *argument) {
    (void)argument;
    struct gpu_rank g = open_rank(rank, 0.3);
    emu_gpu_keep_busy(g.stream, 1.0);
    NEED(rank, gather(&g, 1000) == OT_COMM_OK);
    NEED(rank, wait_for_error(&g, 0.8) == OT_COMM_OK);
    NEED(rank, emu_gpu_wait(g.stream, 20));
    NEED(rank, wait_for_error(&g, 0.01) == OT_COMM_OK);
    close_rank(&g, 0);
}

static void test_deadline_counts_own_work(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, wait_behind_other_work, NULL), 0);
}

static void differ(struct plugin_rank *rank, const void *argument) {
    (void)argument;
    struct gpu_rank g = open_rank(rank, 20);
    (void)gather(&g, rank->rank == 0 ? 1000 : 1001); /* the call may see already that the sizes differ */
    NEED(rank, wait_for_error(&g, 20) == OT_COMM_FAILED && strstr(rank->why, "invalid usage"));
    close_rank(&g, 1);
}

static void test_different_operations(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, differ, NULL), 0);
}

/* NCCL hangs when it ends: close returns nevertheless. */
static void hang_at_the_end(struct plugin_rank *rank, const void *argument) {
    setenv("OT_FAKE_NCCL_HANG", argument, 1);
    struct gpu_rank g = open_rank(rank, 20);
    bool aborts = strcmp(argument, "ncclCommAbort") == 0;
    NEED(rank, gather(&g, 1000) == OT_COMM_OK && emu_gpu_wait(g.stream, 20));
    NEED(rank, plugin_rank_meet(rank));
    double start = ot_clock_seconds();
    if (aborts) {
        g.api->abort(rank->context);
        NEED(rank, ot_clock_seconds() - start < 1);
        NEED(rank, gather(&g, 10) == OT_COMM_ABORTED);
        NEED(rank, g.api->poll_error(rank->context, rank->why, sizeof rank->why) == OT_COMM_ABORTED);
    }
    close_rank(&g, aborts);
    NEED(rank, ot_clock_seconds() - start > 1.5 && ot_clock_seconds() - start < 6);
    NEED(rank, strstr(rank->logged, "does not end"));
    _Exit(0); /* the helper is still inside */
}

static void test_hangs_are_abandoned(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, hang_at_the_end, "ncclCommFinalize"), 0);
    assert_int_equal(plugin_ranks_run(2, hang_at_the_end, "ncclCommDestroy"), 0);
    assert_int_equal(plugin_ranks_run(2, hang_at_the_end, "ncclCommAbort"), 0);
}

/* ---- starting ---- */

/* How the ranks start, and what the last one of them is told. */
struct start {
    const char *library; /* $OFFLOAD_TRAIN_NCCL of the last rank; NULL: not set */
    const char *version; /* of the last rank's library; NULL: as the others */
    int device;          /* of the last rank */
    const char *why, *also;
};

static void refuse(struct plugin_rank *rank, const void *argument) {
    const struct start *start = argument;
    bool is_last = rank->rank == rank->ranks - 1;
    if (is_last && start->version)
        setenv("OT_FAKE_NCCL_VERSION", start->version, 1);
    if (!is_last)
        setenv("OFFLOAD_TRAIN_NCCL", fake, 1);
    else if (start->library)
        setenv("OFFLOAD_TRAIN_NCCL", start->library, 1);
    const struct ot_comm_v1 *api = plugin_load(plugin_path);
    double begin = ot_clock_seconds();
    NEED(rank, plugin_open(rank, api, is_last ? start->device : rank->rank, 20) == OT_COMM_UNSUPPORTED);
    NEED(rank, strstr(rank->why, start->why) && strstr(rank->why, start->also));
    NEED(rank, ot_clock_seconds() - begin < 10);
}

static void test_refusals(void **state) {
    const struct start one[] = {
        {NULL, NULL, 0, "found no NCCL", "nvidia-nccl-cu12"},
        {"/nowhere/libnccl.so.2", NULL, 0, "OFFLOAD_TRAIN_NCCL", "/nowhere/libnccl.so.2"},
        {fake, "21703", 0, "is NCCL 2.17.3, which is too old", "install NCCL 2.18"},
        {fake, "2708", 0, "is NCCL 2.7.8, which is too old", fake},
        {broken_fake, NULL, 0, "has no function ncclAllGather", "install NCCL 2.18"},
        {fake, NULL, -1, "the device is the CPU", "GPU"},
        {fake, NULL, 99, "no usable GPU 99", "GPU"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        assert_int_equal(plugin_ranks_run(1, refuse, &one[i]), 0);
    /* every rank tells which one is the reason */
    const struct start many[] = {
        {"/nowhere/libnccl.so.2", NULL, 2, "rank 2: ", "/nowhere/libnccl.so.2"},
        {fake, "22900", 2, "rank 0 has NCCL 2.27.3, rank 2 has 2.29.0", "same version"},
        {fake, NULL, 1, "ranks 1 and 2 use the same GPU", "UUID 66616b65"},
    };
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        assert_int_equal(plugin_ranks_run(3, refuse, &many[i]), 0);
}

static void work_with_an_old_library(struct plugin_rank *rank, const void *argument) {
    (void)argument;
    setenv("OFFLOAD_TRAIN_NCCL", fake, 1);
    setenv("OT_FAKE_NCCL_VERSION", "21805", 1);
    struct gpu_rank g = open_rank(rank, 20);
    NEED(rank, strstr(rank->facts.description, "NCCL 2.18.5, 2 ranks"));
    check_all_to_all(&g, 1000);
    close_rank(&g, 0);
}

static void test_old_library(void **state) {
    (void)state;
    assert_int_equal(plugin_ranks_run(2, work_with_an_old_library, NULL), 0);
}

static void find_no_driver(struct plugin_rank *rank, const void *argument) {
    const struct ot_comm_v1 *api = plugin_load(argument);
    NEED(rank, plugin_open(rank, api, 0, 20) == OT_COMM_UNSUPPORTED);
    NEED(rank, strstr(rank->why, "no NVIDIA driver") && strstr(rank->why, "libcuda.so.1"));
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[2], "no-driver") == 0)
        return plugin_ranks_run(1, find_no_driver, argv[1]);
    if (argc != 4) {
        fprintf(stderr, "usage: test_nccl PLUGIN FAKE BROKEN_FAKE | PLUGIN no-driver\n");
        return 2;
    }
    plugin_path = argv[1];
    fake = argv[2];
    broken_fake = argv[3];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation),
        cmocka_unit_test(test_threads_meet_inside),
        cmocka_unit_test(test_async_error_and_abort),
        cmocka_unit_test(test_abort_in_the_middle),
        cmocka_unit_test(test_calls_fail),
        cmocka_unit_test(test_transfers_fail),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_deadline_counts_own_work),
        cmocka_unit_test(test_different_operations),
        cmocka_unit_test(test_hangs_are_abandoned),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_old_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
