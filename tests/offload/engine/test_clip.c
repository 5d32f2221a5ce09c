/* Each rank takes from a segment what it holds of it, wherever the borders of the segment lie. And an engine
 * takes segments with masters and without, whether it has masters or not. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"
#include "tests/support/damage.h"
#include "tests/support/thread_world.h"

enum { RANKS = 3 };

/* The value of a parameter in an array of fp32: a small whole number. */
static float value_of(enum ot_segment_array array, int slab, int64_t index) {
    return (float)((index * 7 + slab * 31 + (int)array * 5) % 251);
}

/* Fills in the segment, in fp32. */
static float *make_segment(const struct ot_segment *segment) {
    float *values = calloc(1, ot_segment_bytes(OT_F32, segment));
    assert_non_null(values);
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_ARRAYS; array++) {
        struct ot_segment_values place = ot_segment_find(OT_F32, segment, array);
        for (int64_t i = 0; place.width > 0 && i < segment->n; i++)
            values[place.offset / sizeof *values + (size_t)i] =
                value_of(array, segment->slab, segment->first + i);
    }
    return values;
}

/* Puts all segments of a slab, cut at random, in an order that is not theirs: the second half first. */
static void put_slab(const struct tiny_engine *tiny, int slab, struct dice *dice, int *n_held) {
    const int64_t params = tiny->chain.slabs[slab].n_params;
    for (int half = 1; half >= 0; half--) {
        int64_t end = half ? params : params / 2;
        for (int64_t first = half * (params / 2), n; first < end; first += n) {
            n = 1 + (int64_t)throw_below(dice, (size_t)(end - first));
            struct ot_segment segment = {slab, first, n, true, true, OT_STATE_F32, OT_MASTERS_F32, false};
            float *values = make_segment(&segment);
            *n_held += ot_engine_holds(tiny->engine, &segment);
            assert_int_equal(ot_engine_put(tiny->engine, &segment, values),
                             0); /* also what it does not hold */
            free(values);
        }
    }
}

static void check_slab(const struct tiny_engine *tiny, const struct ot_plan *plan, int slab) {
    static const enum ot_segment_array arrays[] = {
        [OT_SLAB_MASTER] = OT_SEGMENT_WEIGHTS, [OT_SLAB_M] = OT_SEGMENT_M, [OT_SLAB_V] = OT_SEGMENT_V};
    struct ot_shard_range held = ot_slab_holding(&tiny->chain, plan, slab);
    float *values = calloc((size_t)held.n + 1, sizeof *values);
    assert_non_null(values);
    for (int kind = OT_SLAB_MASTER; kind <= OT_SLAB_V; kind++) {
        check_ok(ot_engine_get(tiny->engine, (enum ot_slab_kind)kind, slab, held.first, held.n, values));
        for (int64_t i = 0; i < held.n; i++)
            if (values[i] != value_of(arrays[kind], slab, held.first + i))
                fail_msg("kind %d, slab %d: parameter %lld is %g", kind, slab, (long long)(held.first + i),
                         (double)values[i]);
    }
    free(values);
}

struct member {
    struct tiny_run run;
    int n_held; /* segments that this rank holds something of */
    pthread_t thread;
};

static void *put_all(void *context) {
    struct member *m = context;
    struct dice dice = {.round = 11};
    struct tiny_engine tiny;
    tiny_open(&m->run, &tiny);
    for (int slab = 0; slab < tiny.chain.n_slabs; slab++)
        put_slab(&tiny, slab, &dice, &m->n_held);
    for (int slab = 0; slab < tiny.chain.n_slabs; slab++)
        check_slab(&tiny, &m->run.plan, slab);
    struct ot_segment outside = {
        0, tiny.chain.slabs[0].n_params, 1, true, true, OT_STATE_F32, OT_MASTERS_F32, false};
    check_fails(ot_engine_put(tiny.engine, &outside, &outside), OT_E_INTERNAL, "there are no parameters");
    assert_false(ot_engine_holds(tiny.engine, &outside));
    tiny_close(&tiny);
    return NULL;
}

static int join(void *context, int rank, struct ot_device *device, struct ot_comm **out) {
    return thread_world_join(context, rank, device, out);
}

static void clip(enum ot_shard_mode mode, enum ot_home home) {
    struct thread_world *world = thread_world_open(RANKS, 0);
    struct member members[RANKS] = {0};
    enum ot_home weights = mode == OT_SHARD_STATE ? OT_HOME_GPU : home;
    for (int r = 0; r < RANKS; r++) {
        struct tiny_run *run = &members[r].run;
        tiny_defaults(run, 1, false, OT_F32);
        run->shard = (struct ot_shard){.rank = r, .ranks = RANKS, .mode = mode};
        run->join = join;
        run->join_context = world;
        tiny_plan(run, weights, home, OT_HOME_GPU, 2);
    }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&members[r].thread, NULL, put_all, &members[r]), 0);
    for (int r = 0; r < RANKS; r++)
        pthread_join(members[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) {
        assert_true(members[r].n_held > 0);
        ot_plan_free(&members[r].run.plan);
    }
    thread_world_close(world);
}

static void test_a_rank_takes_what_it_holds(void **state) {
    (void)state;
    for (int mode = 0; mode < OT_SHARD_MODES; mode++)
        for (int home = OT_HOME_GPU; home <= OT_HOME_NVME; home++)
            clip((enum ot_shard_mode)mode, (enum ot_home)home);
}

/* ---- masters ---- */

static uint16_t weight_of(int slab, int64_t index) {
    return (uint16_t)(0x3c00 + (index * 7 + slab * 31) % 251);
}

static int16_t low_of(int64_t index) {
    return (int16_t)(index % 201 * 100 - 10000);
}

/* Puts a slab as one segment; the moments are zeros. */
static void put_bf16(const struct tiny_engine *tiny, int slab, enum ot_masters masters) {
    struct ot_segment segment = {.slab = slab,
                                 .n = tiny->chain.slabs[slab].n_params,
                                 .has_state = true,
                                 .has_weights = true,
                                 .masters = masters};
    char *memory = calloc(1, ot_segment_bytes(OT_BF16, &segment));
    assert_non_null(memory);
    struct ot_segment_values rest = ot_segment_find(OT_BF16, &segment, OT_SEGMENT_MASTER_REST);
    int16_t *low = (int16_t *)(void *)(memory + rest.offset);
    uint16_t *high =
        (uint16_t *)(void *)(memory + ot_segment_find(OT_BF16, &segment, OT_SEGMENT_WEIGHTS).offset);
    for (int64_t i = 0; i < segment.n; i++) {
        if (rest.width)
            low[i] = low_of(i);
        high[i] = weight_of(slab, i);
    }
    check_ok(ot_engine_put(tiny->engine, &segment, memory));
    free(memory);
}

/* Masters are what weights and remainders say if the segment and the engine have remainders; else they are
 * the weights. The engine had other masters before. */
static void check_masters(const struct tiny_engine *tiny, int slab, bool both) {
    int64_t n = tiny->chain.slabs[slab].n_params;
    float *values = calloc((size_t)n, sizeof *values);
    assert_non_null(values);
    check_ok(ot_engine_get(tiny->engine, OT_SLAB_MASTER, slab, 0, n, values));
    for (int64_t i = 0; i < n; i++) {
        float want = ot_join_f32(weight_of(slab, i), both ? low_of(i) : 0);
        if (values[i] != want)
            fail_msg("slab %d: master %lld is %a, not %a", slab, (long long)i, (double)values[i],
                     (double)want);
    }
    free(values);
}

static void test_parts_with_and_without_masters(void **state) {
    (void)state;
    for (int home = OT_HOME_GPU; home <= OT_HOME_NVME; home++)
        for (int mix = 0; mix < 4; mix++) {
            struct tiny_run run;
            struct tiny_engine tiny;
            tiny_defaults(&run, 1, false, OT_BF16);
            run.masters = mix & 1 ? OT_MASTERS_NONE : OT_MASTERS_F32;
            tiny_plan(&run, (enum ot_home)home, (enum ot_home)home, OT_HOME_GPU, 2);
            tiny_open(&run, &tiny);
            for (int slab = 0; slab < tiny.chain.n_slabs; slab++) {
                put_bf16(&tiny, slab, mix & 2 ? OT_MASTERS_NONE : OT_MASTERS_F32);
                check_masters(&tiny, slab, mix == 0);
            }
            tiny_close(&tiny);
            ot_plan_free(&run.plan);
        }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_takes_what_it_holds),
        cmocka_unit_test(test_parts_with_and_without_masters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
