/* Between steps, extents on nvme are read and changed in slots of host memory, and written back behind the
 * driver. Whatever the order of gets and sets, the number of slots and the speed of the disk, a get returns
 * what was set last. A write that fails is reported, and no value is lost. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/random.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* A disk that holds its writes, or fails them. */
struct disk {
    struct ot_io_calls calls;
    atomic_bool holds, fails;
    atomic_int held; /* writes that are held now */
};

static ssize_t disk_write(void *context, int fd, const void *memory, size_t bytes, off_t offset) {
    struct disk *disk = context;
    disk->held++;
    while (disk->holds)
        usleep(200);
    disk->held--;
    return disk->fails ? -EIO : ot_io_system.pwrite(ot_io_system.context, fd, memory, bytes, offset);
}

/* A run whose weights and state are in small tiles on nvme. */
struct staging {
    struct tiny_run run;
    struct tiny_engine tiny;
    struct disk disk;
    float *values[3]; /* of slab `slab`: what was set last, by kind */
    int slab;
    int64_t n;
};

static void open_staging(struct staging *s, int tile_slots, enum ot_io_choice io) {
    *s = (struct staging){.disk = {.calls = ot_io_system}};
    s->disk.calls.context = &s->disk;
    s->disk.calls.pwrite = disk_write;
    tiny_defaults(&s->run, 2, false, OT_BF16);
    s->run.io = io;
    s->run.io_calls = &s->disk.calls;
    s->run.stall_limit_seconds = 20; /* so that a driver that waits for a held write ends the test */
    tiny_plan(&s->run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_GPU, 2);
    s->run.plan.tile_slots = tile_slots;
    tiny_deal(&s->run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_CPU, 0);
    tiny_open(&s->run, &s->tiny);
    s->slab = 1;
    s->n = s->tiny.chain.slabs[s->slab].n_params;
    for (int kind = 0; kind < 3; kind++) {
        s->values[kind] = calloc((size_t)s->n, sizeof(float));
        assert_non_null(s->values[kind]);
        check_ok(ot_engine_get(s->tiny.engine, (enum ot_slab_kind)kind, s->slab, 0, s->n, s->values[kind]));
    }
}

static void close_staging(struct staging *s) {
    tiny_close(&s->tiny);
    ot_plan_free(&s->run.plan);
    for (int kind = 0; kind < 3; kind++)
        free(s->values[kind]);
}

static int set(struct staging *s, enum ot_slab_kind kind, int64_t first, int64_t n, uint64_t seed) {
    for (int64_t i = first; i < first + n; i++)
        s->values[kind][i] = (float)ot_random_unit(seed, (uint64_t)kind, (uint64_t)i);
    return ot_engine_set(s->tiny.engine, kind, s->slab, first, n, s->values[kind] + first);
}

static void check_range(const struct staging *s, enum ot_slab_kind kind, int64_t first, int64_t n) {
    float *got = malloc((size_t)n * sizeof *got);
    assert_non_null(got);
    check_ok(ot_engine_get(s->tiny.engine, kind, s->slab, first, n, got));
    assert_memory_equal(got, s->values[kind] + first, (size_t)n * sizeof *got);
    free(got);
}

static void check_all(const struct staging *s) {
    for (int kind = 0; kind < 3; kind++)
        check_range(s, (enum ot_slab_kind)kind, 0, s->n);
}

static void a_get_returns_what_was_set(void **state) {
    (void)state;
    for (int slots = 1; slots <= 10; slots += 3) {
        struct staging s;
        open_staging(&s, slots, slots & 1 ? OT_IO_POOL : OT_IO_URING);
        for (uint64_t i = 0; i < 200; i++) {
            uint64_t at = 4 * i;
            enum ot_slab_kind kind = (enum ot_slab_kind)ot_random_below(1, (uint64_t)slots, at, 3);
            int64_t first = (int64_t)ot_random_below(1, (uint64_t)slots, at + 1, (uint64_t)s.n);
            int64_t most = s.n - first < 4000 ? s.n - first : 4000;
            int64_t n = 1 + (int64_t)ot_random_below(1, (uint64_t)slots, at + 2, (uint64_t)most);
            if (ot_random_below(1, (uint64_t)slots, at + 3, 2))
                check_ok(set(&s, kind, first, n, i));
            else
                check_range(&s, kind, first, n);
        }
        check_ok(ot_engine_unstage(s.tiny.engine));
        check_all(&s);
        close_staging(&s);
    }
}

/* No write ends, and the driver goes on to the next tiles, as long as there are slots. */
static void the_driver_does_not_wait_for_writes(void **state) {
    (void)state;
    struct staging s;
    enum { TILES = 4 };
    open_staging(&s, TILES, OT_IO_POOL);
    check_ok(ot_engine_unstage(s.tiny.engine));
    s.disk.holds = true;
    for (int tile = 0; tile < TILES; tile++)
        check_ok(set(&s, OT_SLAB_M, tile * OT_SLAB_ALIGN_PARAMS, OT_SLAB_ALIGN_PARAMS, 7));
    check_range(&s, OT_SLAB_M, (TILES - 1) * OT_SLAB_ALIGN_PARAMS, OT_SLAB_ALIGN_PARAMS);
    for (int i = 0; i < 10000 && s.disk.held == 0; i++)
        usleep(1000); /* until the store's threads have taken a write */
    assert_true(s.disk.held > 0);
    s.disk.holds = false;
    check_all(&s);
    close_staging(&s);
}

/* The failure is reported, and stays until the disk works again. Then all values are there. */
static void a_failed_write_is_reported(void **state) {
    (void)state;
    for (int slots = 1; slots <= 4; slots += 3) {
        struct staging s;
        open_staging(&s, slots, OT_IO_POOL);
        check_ok(ot_engine_unstage(s.tiny.engine));
        s.disk.fails = true;
        int rc = 0, tile = 0;
        for (; tile < 6 && rc == 0; tile++)
            rc = set(&s, OT_SLAB_V, tile * OT_SLAB_ALIGN_PARAMS, OT_SLAB_ALIGN_PARAMS, 9);
        check_fails(rc, OT_E_IO, strerror(EIO));
        assert_in_range(tile, 2, slots + 1);
        check_fails(ot_engine_unstage(s.tiny.engine), OT_E_IO, strerror(EIO));
        check_fails(ot_engine_unstage(s.tiny.engine), OT_E_IO, strerror(EIO));
        s.disk.fails = false;
        check_ok(ot_engine_unstage(s.tiny.engine));
        check_ok(set(&s, OT_SLAB_V, 0, s.n, 10));
        check_ok(ot_engine_unstage(s.tiny.engine));
        check_all(&s);
        close_staging(&s);
    }
}

/* ---- several threads ---- */

enum { THREADS = 3 };

struct putter {
    struct ot_engine *engine;
    const struct ot_chain *chain;
    int number, count; /* puts every segment whose number is `number` modulo `count` */
    int rc;
};

static int put_segment(struct ot_engine *engine, enum ot_dtype dtype, const struct ot_segment *segment) {
    size_t bytes = ot_segment_bytes(dtype, segment);
    char *memory = malloc(bytes);
    if (!memory)
        return ot_fail(OT_E_BUDGET, "no memory for a segment");
    for (size_t i = 0; i < bytes; i++) /* no byte makes a value that is not finite */
        memory[i] = (char)ot_random_below(3, (uint64_t)segment->slab, (uint64_t)segment->first * 64 + i, 60);
    int rc = ot_engine_put(engine, segment, memory);
    free(memory);
    return rc;
}

static void *put_segments(void *arg) {
    struct putter *p = arg;
    int number = 0;
    for (int s = 0; s < p->chain->n_slabs; s++)
        for (int64_t first = 0, n = p->chain->slabs[s].n_params; first < n; first += OT_SLAB_ALIGN_PARAMS) {
            struct ot_segment segment = {s,    first,           OT_SLAB_ALIGN_PARAMS, true,
                                         true, p->chain->state, p->chain->masters,    false};
            if (number++ % p->count == p->number && p->rc == 0)
                p->rc = put_segment(p->engine, p->chain->dtype, &segment);
        }
    return NULL;
}

static void put_all(const struct tiny_engine *tiny, int count, struct tiny_result *result) {
    struct putter putters[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < count; i++) {
        putters[i] = (struct putter){tiny->engine, &tiny->chain, i, count, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, put_segments, &putters[i]), 0);
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(putters[i].rc, 0);
    }
    check_ok(ot_engine_unstage(tiny->engine));
    *result = (struct tiny_result){0};
    tiny_read(tiny, result);
}

static void threads_put_at_the_same_time(void **state) {
    (void)state;
    for (int home = OT_HOME_GPU; home <= OT_HOME_NVME; home++) {
        struct tiny_result results[2];
        for (int i = 0; i < 2; i++) {
            struct tiny_run run;
            struct tiny_engine tiny;
            tiny_defaults(&run, 2, false, OT_BF16);
            tiny_plan(&run, (enum ot_home)home, (enum ot_home)home, OT_HOME_GPU, 2);
            tiny_deal(&run, 3 * OT_SLAB_ALIGN_PARAMS, home == OT_HOME_GPU ? 7 : 1 << OT_TILE_CPU, 0);
            tiny_open(&run, &tiny);
            put_all(&tiny, i ? THREADS : 1, &results[i]);
            tiny_close(&tiny);
            ot_plan_free(&run.plan);
        }
        tiny_same(&results[0], &results[1], ot_tier_name((enum ot_tier)home));
        tiny_result_free(&results[0]);
        tiny_result_free(&results[1]);
    }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_get_returns_what_was_set),
        cmocka_unit_test(the_driver_does_not_wait_for_writes),
        cmocka_unit_test(a_failed_write_is_reported),
        cmocka_unit_test(threads_put_at_the_same_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
