#include "tests/support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/thread.h"

/* ---- every element once; chunk borders depend only on the range and the chunk size ---- */

struct visit {
    int64_t n_chunks;
    int threads;
    int *elements;          /* plain ints, so that a chunk given out twice is also a data race */
    int64_t *begins, *ends; /* indexed by chunk */
};

static void visit_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct visit *visit = context;
    if (chunk < 0 || chunk >= visit->n_chunks || worker < 0 || worker >= visit->threads)
        abort();
    visit->begins[chunk] = begin;
    visit->ends[chunk] = end;
    for (int64_t i = begin; i < end; i++)
        visit->elements[i]++;
}

static void check_visit(struct ot_pool *pool, int64_t count, int64_t chunk_size) {
    int64_t n_chunks = ot_chunk_count(count, chunk_size);
    struct visit visit = {n_chunks, ot_pool_threads(pool), calloc((size_t)count + 1, sizeof(int)),
                          calloc((size_t)n_chunks + 1, sizeof(int64_t)),
                          calloc((size_t)n_chunks + 1, sizeof(int64_t))};
    ot_pool_run(pool, count, chunk_size, visit_chunk, &visit);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(visit.elements[i], 1);
    for (int64_t c = 0; c < n_chunks; c++) {
        assert_int_equal(visit.begins[c], c * chunk_size);
        assert_int_equal(visit.ends[c], c + 1 == n_chunks ? count : (c + 1) * chunk_size);
    }
    free(visit.elements);
    free(visit.begins);
    free(visit.ends);
}

static void test_covers_every_element_once(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{0, 1},     {1, 1},     {1, 100},  {2, 1},   {99, 100},
                                       {100, 100}, {101, 100}, {1000, 7}, {3000, 1}};
    for (int threads = 1; threads <= 5; threads += 2) {
        struct ot_pool *pool;
        check_ok(ot_pool_open(threads, "visit", &pool));
        assert_int_equal(ot_pool_threads(pool), threads);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            check_visit(pool, sizes[i][0], sizes[i][1]);
        ot_pool_close(pool);
    }
}

/* ---- a sum of partial results has the same bits for every number of threads ---- */

enum { SUM_COUNT = 100003, SUM_CHUNK = 1000 };

struct sum {
    const float *x;
    float partial[SUM_COUNT / SUM_CHUNK + 1];
};

static void sum_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)worker;
    struct sum *sum = context;
    float total = 0;
    for (int64_t i = begin; i < end; i++)
        total += sum->x[i];
    sum->partial[chunk] = total;
}

static void test_sum_is_independent_of_threads(void **state) {
    (void)state;
    float *x = malloc(SUM_COUNT * sizeof *x);
    for (int i = 0; i < SUM_COUNT; i++)
        x[i] = 1.0f / (float)(i + 1);
    float first = 0;
    for (int threads = 1; threads <= 4; threads++) {
        struct ot_pool *pool;
        check_ok(ot_pool_open(threads, "sum", &pool));
        for (int round = 0; round < 20; round++) {
            struct sum sum = {.x = x};
            ot_pool_run(pool, SUM_COUNT, SUM_CHUNK, sum_chunk, &sum);
            float total = 0;
            for (int64_t c = 0; c < ot_chunk_count(SUM_COUNT, SUM_CHUNK); c++)
                total += sum.partial[c];
            if (threads == 1 && round == 0)
                first = total;
            assert_memory_equal(&total, &first, sizeof total);
        }
        ot_pool_close(pool);
    }
    free(x);
}

/* ---- two callers ---- */

enum { ROUNDS = 2000 };

struct caller {
    struct ot_pool *pool;
    atomic_int *inside; /* how many chunks run now, in units of 1 for caller 0 and 1000 for caller 1 */
    int unit;
    atomic_bool mixed;
    int64_t sums[8];
    bool idle_between;
};

static void caller_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)worker;
    struct caller *caller = context;
    int now = atomic_fetch_add(caller->inside, caller->unit) + caller->unit;
    if (now % 1000 && now / 1000)
        atomic_store(&caller->mixed, true);
    caller->sums[chunk] += end - begin;
    atomic_fetch_sub(caller->inside, caller->unit);
}

static void *caller_main(void *arg) {
    struct caller *caller = arg;
    for (int round = 0; round < ROUNDS; round++) {
        ot_pool_run(caller->pool, 8, 1, caller_chunk, caller);
        if (caller->idle_between && round % 100 == 0) /* long enough for the workers to sleep */
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return NULL;
}

static void test_two_callers_take_turns(void **state) {
    (void)state;
    struct ot_pool *pool;
    check_ok(ot_pool_open(3, "turns", &pool));
    atomic_int inside = 0;
    struct caller callers[2] = {{.pool = pool, .inside = &inside, .unit = 1, .idle_between = true},
                                {.pool = pool, .inside = &inside, .unit = 1000, .idle_between = true}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, caller_main, &callers[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_false(atomic_load(&callers[i].mixed));
        for (int chunk = 0; chunk < 8; chunk++)
            assert_int_equal(callers[i].sums[chunk], ROUNDS);
    }
    ot_pool_close(pool);
}

/* ---- the workers take part in the work ---- */

struct meeting {
    atomic_int arrived;
    atomic_int workers_seen;
};

static void meet_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)begin, (void)end, (void)chunk;
    struct meeting *meeting = context;
    atomic_fetch_or(&meeting->workers_seen, 1 << worker);
    atomic_fetch_add(&meeting->arrived, 1);
    while (atomic_load(&meeting->arrived) < 3) /* ends only if three threads are here at the same time */
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
}

static void test_all_threads_work(void **state) {
    (void)state;
    struct ot_pool *pool;
    check_ok(ot_pool_open(3, "meeting", &pool));
    for (int round = 0; round < 20; round++) {
        struct meeting meeting = {0};
        ot_pool_run(pool, 3, 1, meet_chunk, &meeting);
        assert_int_equal(atomic_load(&meeting.workers_seen), 7);
    }
    ot_pool_close(pool);
    ot_pool_close(NULL);
}

/* ---- the hook at the start of a thread ---- */

struct started {
    int pool_threads;
    pthread_t threads[8]; /* indexed by worker: the thread of its first chunk */
    bool is_there[8];
    atomic_int strangers;
};

static void note_start(void *arg, int worker, int threads) {
    struct started *started = arg;
    if (worker < 1 || worker >= threads || threads != started->pool_threads || started->is_there[worker])
        abort();
    started->threads[worker] = pthread_self();
    started->is_there[worker] = true;
}

static void check_started(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)begin, (void)end, (void)chunk;
    struct started *started = context;
    if (worker > 0 &&
        (!started->is_there[worker] || !pthread_equal(started->threads[worker], pthread_self())))
        atomic_fetch_add(&started->strangers, 1);
}

static void test_each_thread_calls_the_hook_first(void **state) {
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        struct ot_pool *pool;
        struct started started = {.pool_threads = threads};
        struct ot_pool_config config = {
            .threads = threads, .name = "hook", .on_start = note_start, .arg = &started};
        check_ok(ot_pool_open_with(&config, &pool));
        ot_pool_run(pool, 1000, 1, check_started, &started);
        ot_pool_close(pool);
        assert_int_equal(atomic_load(&started.strangers), 0);
        for (int worker = 0; worker < 8; worker++)
            assert_int_equal(started.is_there[worker], worker > 0 && worker < threads);
    }
}

/* A loop inside a loop of another pool is allowed, because an op may run inside another pool's chunk. */
static void inner_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)begin, (void)end, (void)chunk, (void)worker;
    atomic_fetch_add((atomic_int *)context, 1);
}

struct outer {
    struct ot_pool *inner;
    atomic_int runs;
};

static void outer_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)begin, (void)end, (void)chunk, (void)worker;
    struct outer *outer = context;
    ot_pool_run(outer->inner, 5, 1, inner_chunk, &outer->runs);
}

static void test_pools_nest(void **state) {
    (void)state;
    struct ot_pool *pool;
    struct outer outer = {0};
    check_ok(ot_pool_open(2, "outer", &pool));
    check_ok(ot_pool_open(2, "inner", &outer.inner));
    for (int round = 0; round < 100; round++)
        ot_pool_run(pool, 4, 1, outer_chunk, &outer);
    assert_int_equal(atomic_load(&outer.runs), 100 * 4 * 5);
    ot_pool_close(outer.inner);
    ot_pool_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_covers_every_element_once),
        cmocka_unit_test(test_sum_is_independent_of_threads),
        cmocka_unit_test(test_two_callers_take_turns),
        cmocka_unit_test(test_all_threads_work),
        cmocka_unit_test(test_each_thread_calls_the_hook_first),
        cmocka_unit_test(test_pools_nest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
