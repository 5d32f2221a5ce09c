/* A snapshot holds the state between two steps, although later steps run while it is copied. It does not
 * change those steps. An engine under any plan can restore it. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/engine/engine_state.h"
#include "offload/engine/snapshot_state.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "tests/offload/tiny_keeper.h"
#include "tests/support/check.h"

enum { SPLIT = 2 };

static void whole_run(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
}

static void random_plan(struct tiny_run *run, uint64_t seed, int pinned_contents) {
    tiny_plan(run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
    tiny_randomise(run, seed);
    run->plan.snapshot_slots = 2;
    run->plan.pinned_contents = pinned_contents;
    tiny_finish(run);
}

/* Makes the steps from SPLIT on with another engine, which restores the snapshot under another plan. */
static void go_on(struct tiny_run *run, const struct tiny_result *whole, struct tiny_keeper *k, uint64_t seed,
                  const struct ot_engine_progress *progress, struct tiny_result *after) {
    struct tiny_engine second;
    char what[64];
    random_plan(run, seed + 1000, 0);
    tiny_open(run, &second);
    tiny_keeper_put_back(k, second.engine);
    ot_engine_set_progress(second.engine, progress);
    tiny_steps(run, second.engine, SPLIT, TINY_STEPS, after);
    check_ok(ot_engine_drain(second.engine));
    tiny_read(&second, after);
    snprintf(what, sizeof what, "plan %d, from the snapshot", (int)seed);
    tiny_same(whole, after, what);
    tiny_close(&second);
    ot_plan_free(&run->plan);
}

/* Makes two steps and a snapshot during the others, then the others once more from the snapshot. */
static void split_run(struct tiny_run *run, const struct tiny_result *whole, uint64_t seed) {
    struct tiny_engine first;
    struct tiny_result during = {0}, after = {0};
    struct ot_engine_progress progress;
    struct ot_pins *pins;
    struct tiny_keeper k;
    char what[64];
    random_plan(run, seed, seed % 2 ? 2 : 0);
    tiny_open(run, &first);
    tiny_keeper_open(&k, run, seed, seed % 3 ? 600 : 0);
    struct ot_snapshot_config config = tiny_keeper_config(&k);
    config.bytes_per_second = seed % 4 == 0 ? 1e6 : 0;
    tiny_steps(run, first.engine, 0, SPLIT, &during);
    check_ok(ot_engine_drain(first.engine));
    ot_engine_get_progress(first.engine, &progress);
    after = during;
    check_ok(ot_engine_snapshot(first.engine, &config));
    check_fails(ot_engine_snapshot(first.engine, &config), OT_E_INTERNAL, "has one under way");
    tiny_steps(run, first.engine, SPLIT, TINY_STEPS, &during);
    check_ok(ot_engine_snapshot_finish(first.engine, &pins));
    assert_true(k.ended && !ot_engine_snapshot_busy(first.engine));
    check_ok(ot_engine_drain(first.engine));
    tiny_keeper_check(&k, ot_model_chain(first.model));
    tiny_read(&first, &during);
    snprintf(what, sizeof what, "plan %d, while it is copied", (int)seed);
    tiny_same(whole, &during, what);
    if (k.may_refer)
        tiny_keeper_link(&k, first.engine);
    ot_pins_free(pins);
    tiny_close(&first);
    ot_plan_free(&run->plan);

    go_on(run, whole, &k, seed, &progress, &after);
    tiny_result_free(&during);
    tiny_result_free(&after);
    tiny_keeper_close(&k);
}

static void snapshots_beside_steps(void **state) {
    (void)state;
    int count = tests_are_brief() ? 2 : 24;
    for (int variant = 0; variant < 6 && variant < count; variant++) {
        struct tiny_run run;
        struct tiny_result whole;
        tiny_defaults(&run, 1 + variant % 3, variant & 1, (enum ot_dtype)(variant % 3));
        run.clip = run.dtype == OT_F16 || variant < 3 ? 1.0f : 0;
        run.state = (enum ot_state_format)((variant + variant / 3 + 1) % OT_STATE_FORMATS);
        run.masters = variant == 1 ? OT_MASTERS_NONE : OT_MASTERS_F32;
        whole_run(&run, &whole);
        for (int i = variant; i < count; i += 6)
            split_run(&run, &whole, (uint64_t)i + 1);
        tiny_result_free(&whole);
    }
}

/* Sets moments of every parameter, because no step has made any yet: each differs from its neighbours. */
static void set_moments(const struct tiny_engine *tiny) {
    const struct ot_chain *chain = ot_model_chain(tiny->model);
    for (int s = 0; s < chain->n_slabs; s++) {
        int64_t n = chain->slabs[s].n_params;
        float *values = malloc((size_t)n * sizeof *values);
        assert_non_null(values);
        for (int kind = OT_SLAB_M; kind <= OT_SLAB_V; kind++) {
            for (int64_t i = 0; i < n; i++)
                values[i] = (float)(i + s + kind) * 0x1p-24f;
            check_ok(ot_engine_set(tiny->engine, (enum ot_slab_kind)kind, s, 0, n, values));
        }
        free(values);
    }
}

/* A tile that is larger than a segment is delivered in several segments. State on nvme is read once, outside
 * the slots. The copy takes some milliseconds; it keeps to its limit of bytes per second unless someone waits
 * for it. */
static void large_tiles_come_in_segments(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16 && !tests_are_brief(); dtype++) {
        struct tiny_run run;
        struct tiny_engine first, second;
        struct tiny_result given = {0}, got = {0};
        struct ot_pins *pins;
        struct tiny_keeper k;
        tiny_defaults(&run, 1, false, (enum ot_dtype)dtype);
        /* Hidden is 32, so each edge slab is larger than a segment. */
        run.config.vocab = OT_SEGMENT_PARAMS / 32 + 100;
        tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_GPU, 2);
        run.plan.snapshot_slots = 2;
        /* The sink takes no references, so the copy needs memory beyond the plan's. */
        run.plan.pinned_contents = dtype == OT_F32;
        tiny_deal(&run, 2 * OT_SEGMENT_PARAMS, 1 << OT_TILE_CPU, 0);
        tiny_open(&run, &first);
        set_moments(&first);
        tiny_read(&first, &given);
        tiny_keeper_open(&k, &run, 1, 0);
        k.may_refer = false;
        /* This test's sink brings its own memory, so the engine's stays untouched. */
        int slots = first.engine->layout.snapshot_slots;
        unsigned char *memory = ot_engine_at(first.engine, slots);
        memset(memory, 0x5a, first.engine->layout.buffers[slots].bytes);
        struct ot_snapshot_config config = tiny_keeper_config(&k);
        bool hurried = dtype == OT_BF16;
        const double least = hurried ? 60 : 0.25; /* seconds that the copy takes within its limit */
        config.bytes_per_second = (double)given.n_values / 3 * 12 / least;
        double began = ot_clock_seconds();
        check_ok(ot_engine_snapshot(first.engine, &config));
        while (!hurried && ot_engine_snapshot_busy(first.engine))
            usleep(1000);
        check_ok(ot_engine_snapshot_finish(first.engine, &pins));
        double took = ot_clock_seconds() - began;
        assert_true(hurried ? took < least / 2 : took >= least);
        /* The seconds without the pauses. */
        assert_true(hurried || ot_engine_snapshot_seconds(first.engine) <= took - least / 4);
        for (size_t i = 0; i < first.engine->layout.buffers[slots].bytes; i++)
            assert_int_equal(memory[i], 0x5a);
        int tile = first.engine->layout.snapshot_tile;
        assert_true(first.engine->snapshot->tile_memory == ot_engine_at(first.engine, tile));
        tiny_keeper_check(&k, ot_model_chain(first.model));
        assert_true(k.n_segments > ot_model_chain(first.model)->n_slabs);
        ot_pins_free(pins);
        tiny_close(&first);
        ot_plan_free(&run.plan);
        tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
        tiny_open(&run, &second);
        tiny_keeper_put_back(&k, second.engine);
        tiny_read(&second, &got);
        tiny_same(&given, &got, "large tiles, from the snapshot");
        tiny_close(&second);
        ot_plan_free(&run.plan);
        tiny_result_free(&given);
        tiny_result_free(&got);
        tiny_keeper_close(&k);
    }
}

/* A streamed update waits until the snapshot has copied the tile that it changes. The sink holds the copy
 * back until a task waits. */
static void streamed_updates_wait(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result whole, result = {0};
    struct ot_engine_progress progress;
    struct ot_pins *pins;
    struct tiny_keeper k;
    if (tests_are_brief())
        return; /* this test covers nothing of the device */
    tiny_defaults(&run, 2, false, OT_BF16);
    whole_run(&run, &whole);
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_HOST, OT_HOME_GPU, 1);
    run.plan.snapshot_slots = 2;
    tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_STREAM, 0);
    tiny_open(&run, &tiny);
    tiny_keeper_open(&k, &run, 1, 0);
    k.held_for = tiny.engine->snapshot;
    struct ot_snapshot_config config = tiny_keeper_config(&k);
    tiny_steps(&run, tiny.engine, 0, SPLIT, &result);
    check_ok(ot_engine_drain(tiny.engine));
    ot_engine_get_progress(tiny.engine, &progress);
    struct tiny_result after = result;
    check_ok(ot_engine_snapshot(tiny.engine, &config));
    tiny_steps(&run, tiny.engine, SPLIT, TINY_STEPS, &result);
    atomic_store(&k.steps_are_over, true);
    check_ok(ot_engine_snapshot_finish(tiny.engine, &pins));
    assert_true(k.was_waited_for);
    ot_pins_free(pins);
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    go_on(&run, &whole, &k, 1, &progress, &after);
    tiny_result_free(&after);
    tiny_result_free(&whole);
    tiny_keeper_close(&k);
}

/* Opens the run and trains to SPLIT. `given`: the values then, which a snapshot must hold. */
static void train_to_split(struct tiny_run *run, struct tiny_engine *tiny, struct tiny_result *given) {
    tiny_open(run, tiny);
    tiny_steps(run, tiny->engine, 0, SPLIT, given);
    check_ok(ot_engine_drain(tiny->engine));
    tiny_read(tiny, given);
}

/* Restores the snapshot into an engine with everything on the device, and compares the values. */
static void check_values(struct tiny_run *run, struct tiny_keeper *k, const struct tiny_result *given) {
    struct tiny_engine second;
    struct tiny_result got = *given;
    got.n_values = 0;
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_open(run, &second);
    tiny_keeper_put_back(k, second.engine);
    tiny_read(&second, &got);
    tiny_same(given, &got, "from the snapshot");
    tiny_result_free(&got);
    tiny_close(&second);
    ot_plan_free(&run->plan);
}

/* The state of some tiles of each slab is on the device and is copied. The state of the others is on nvme.
 * The snapshot refers to their extents, which number the tiles on nvme alone. */
static void slabs_split_between_device_and_nvme(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result given = {0};
    struct ot_pins *pins;
    struct tiny_keeper k;
    if (tests_are_brief())
        return; /* this test covers nothing of the device */
    tiny_defaults(&run, 2, false, OT_BF16);
    tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_GPU, 2);
    run.plan.pinned_contents = 2;
    run.plan.snapshot_slots = 2;
    tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_GPU | 1 << OT_TILE_CPU, 0);
    for (int s = 0; s < run.plan.n_slabs; s++)
        assert_true(run.plan.slabs[s].tiles[OT_TILE_GPU] > 0 && run.plan.slabs[s].tiles[OT_TILE_CPU] > 0);
    train_to_split(&run, &tiny, &given);
    tiny_keeper_open(&k, &run, 1, 0);
    struct ot_snapshot_config config = tiny_keeper_config(&k);
    check_ok(ot_engine_snapshot(tiny.engine, &config));
    check_ok(ot_engine_snapshot_finish(tiny.engine, &pins));
    tiny_keeper_check(&k, ot_model_chain(tiny.model));
    tiny_keeper_link(&k, tiny.engine);
    ot_pins_free(pins);
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    check_values(&run, &k, &given);
    tiny_result_free(&given);
    tiny_keeper_close(&k);
}

/* The masters of all parameters, and nothing of the moments. */
static void check_weights_alone(struct tiny_run *run, struct tiny_keeper *k,
                                const struct tiny_result *given) {
    struct tiny_engine second;
    struct tiny_result got = *given;
    got.n_values = 0;
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_open(run, &second);
    tiny_keeper_put_back(k, second.engine);
    tiny_read(&second, &got);
    const struct ot_chain *chain = ot_model_chain(second.model);
    size_t one = ot_dtype_bytes(chain->dtype), at = 0, bytes = 0;
    if (chain->dtype != OT_F32 && chain->masters == OT_MASTERS_F32)
        one += chain->dtype == OT_BF16 ? sizeof(int16_t) : sizeof(float);
    for (int s = 0; s < chain->n_slabs; s++) {
        size_t n = (size_t)chain->slabs[s].n_params;
        assert_memory_equal(got.values + at, given->values + at, n * sizeof *got.values);
        for (size_t i = n; i < 3 * n; i++)
            assert_true(got.values[at + i] == 0);
        at += 3 * n;
        bytes += n * one;
    }
    for (int i = 0; i < k->n_segments; i++) {
        assert_true(k->segments[i].segment.lacks_moments && k->segments[i].bytes);
        bytes -= ot_segment_bytes(k->dtype, &k->segments[i].segment);
    }
    assert_int_equal(bytes, 0);
    tiny_result_free(&got);
    tiny_close(&second);
    ot_plan_free(&run->plan);
}

/* A snapshot without the moments has the exact model of its step, while later steps run, and copies also
 * what it could refer to. */
static void the_weights_alone(void **state) {
    (void)state;
    for (int variant = 0; variant < (tests_are_brief() ? 2 : 8); variant++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_result given = {0};
        struct ot_pins *pins;
        struct tiny_keeper k;
        tiny_defaults(&run, 1 + variant % 3, variant & 1, (enum ot_dtype)(variant % 3));
        run.state = (enum ot_state_format)(variant / 3 % OT_STATE_FORMATS);
        run.masters = variant % 6 == 4 ? OT_MASTERS_NONE : OT_MASTERS_F32;
        random_plan(&run, (uint64_t)variant + 50, variant & 1 ? 2 : 0);
        train_to_split(&run, &tiny, &given);
        tiny_keeper_open(&k, &run, 1, 100);
        struct ot_snapshot_config config = tiny_keeper_config(&k);
        config.weights_alone = true;
        check_ok(ot_engine_snapshot(tiny.engine, &config));
        tiny_steps(&run, tiny.engine, SPLIT, TINY_STEPS, &given);
        check_ok(ot_engine_snapshot_finish(tiny.engine, &pins));
        assert_null(pins);
        check_ok(ot_engine_drain(tiny.engine));
        tiny_keeper_check(&k, ot_model_chain(tiny.model));
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
        check_weights_alone(&run, &k, &given);
        tiny_result_free(&given);
        tiny_keeper_close(&k);
    }
}

/* A snapshot that was given up ends with an error, and the next one is whole. The sink holds the first one's
 * first segment back until it has been given up. */
static void a_snapshot_after_one_given_up(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result given = {0};
    struct ot_pins *pins;
    struct tiny_keeper k;
    if (tests_are_brief())
        return; /* this test covers nothing of the device */
    tiny_defaults(&run, 2, false, OT_BF16);
    tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
    run.plan.snapshot_slots = 2;
    tiny_finish(&run);
    train_to_split(&run, &tiny, &given);
    tiny_keeper_open(&k, &run, 1, 0);
    k.held_for = tiny.engine->snapshot;
    struct ot_snapshot_config config = tiny_keeper_config(&k);
    check_ok(ot_engine_snapshot(tiny.engine, &config));
    ot_engine_snapshot_give_up(tiny.engine);
    atomic_store(&k.steps_are_over, true);
    check_fails(ot_engine_snapshot_finish(tiny.engine, &pins), OT_E_INTERNAL, "cancelled");
    assert_true(!pins && !k.ended);
    tiny_keeper_close(&k);
    tiny_keeper_open(&k, &run, 1, 0);
    check_ok(ot_engine_snapshot(tiny.engine, &config));
    check_ok(ot_engine_snapshot_finish(tiny.engine, &pins));
    assert_true(k.ended);
    tiny_keeper_check(&k, ot_model_chain(tiny.model));
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    check_values(&run, &k, &given);
    tiny_result_free(&given);
    tiny_keeper_close(&k);
}

/* Pinned contents survive while their extents are written again and again, for two snapshots at a time. */
static void two_snapshots_kept(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result result = {0};
    struct ot_pins *pins[2];
    struct tiny_keeper k[2];
    tiny_defaults(&run, 2, false, OT_BF16);
    tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
    run.plan.pinned_contents = 2;
    run.plan.snapshot_slots = 2;
    tiny_finish(&run);
    tiny_open(&run, &tiny);
    for (int i = 0; i < 2; i++) {
        tiny_keeper_open(&k[i], &run, 1, 100);
        struct ot_snapshot_config config = tiny_keeper_config(&k[i]);
        tiny_steps(&run, tiny.engine, i, i + 1, &result);
        check_ok(ot_engine_drain(tiny.engine));
        check_ok(ot_engine_snapshot(tiny.engine, &config));
        check_ok(ot_engine_snapshot_finish(tiny.engine, &pins[i]));
        assert_non_null(pins[i]);
        tiny_keeper_link(&k[i], tiny.engine);
    }
    tiny_steps(&run, tiny.engine, 2, TINY_STEPS, &result);
    check_ok(ot_engine_drain(tiny.engine));
    for (int i = 0; i < 2; i++) { /* restores each snapshot and repeats the steps after it */
        struct tiny_result again = result;
        again.values = NULL;
        struct ot_engine_progress progress = {.step = i + 1, .adam_step = i + 1, .loss_scale = 1};
        tiny_keeper_put_back(&k[i], tiny.engine);
        ot_engine_set_progress(tiny.engine, &progress);
        tiny_steps(&run, tiny.engine, i + 1, TINY_STEPS, &again);
        check_ok(ot_engine_drain(tiny.engine));
        tiny_same(&result, &again, "from a kept content");
    }
    ot_engine_release(tiny.engine, pins[0]);
    ot_engine_release(tiny.engine, pins[1]);
    tiny_close(&tiny);
    for (int i = 0; i < 2; i++)
        tiny_keeper_close(&k[i]);
    ot_plan_free(&run.plan);
}

/* Whichever call of the sink fails, the steps go on as without a snapshot, and the next snapshot works. */
static void failing_sinks(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result whole;
    if (tests_are_brief())
        return; /* this test covers nothing of the device */
    tiny_defaults(&run, 2, false, OT_BF16);
    whole_run(&run, &whole);
    for (int kept = 0; kept < 3; kept += 2)
        for (int fail_at = 1, reached = 1; reached; fail_at += 5) {
            struct tiny_engine tiny;
            struct tiny_result result = {0};
            struct ot_pins *pins;
            struct tiny_keeper k;
            random_plan(&run, 7, kept);
            tiny_open(&run, &tiny);
            tiny_keeper_open(&k, &run, 1, 50);
            k.fail_at = fail_at;
            struct ot_snapshot_config config = tiny_keeper_config(&k);
            tiny_steps(&run, tiny.engine, 0, SPLIT, &result);
            check_ok(ot_engine_drain(tiny.engine));
            check_ok(ot_engine_snapshot(tiny.engine, &config));
            tiny_steps(&run, tiny.engine, SPLIT, TINY_STEPS, &result);
            int rc = ot_engine_snapshot_finish(tiny.engine, &pins);
            reached = k.calls == fail_at;
            assert_int_equal(k.ended, !reached);
            if (reached) {
                check_fails(rc, OT_E_IO, "fails");
                assert_null(pins);
            }
            ot_engine_release(tiny.engine, pins);
            check_ok(ot_engine_drain(tiny.engine));
            tiny_read(&tiny, &result);
            tiny_same(&whole, &result, "beside a snapshot that fails");
            k.fail_at = 0;
            check_ok(ot_engine_snapshot(tiny.engine, &config));
            check_ok(ot_engine_snapshot_finish(tiny.engine, &pins));
            ot_engine_release(tiny.engine, pins);
            tiny_close(&tiny);
            ot_plan_free(&run.plan);
            tiny_result_free(&result);
            tiny_keeper_close(&k);
        }
    tiny_result_free(&whole);
}

/* ---- abandoned steps ---- */

static atomic_bool is_given_up;

static bool give_up(void) {
    return atomic_load(&is_given_up);
}

/* Submits the steps after SPLIT, abandons them at a random moment, and takes back the steps that were not
 * decided. Returns the number of steps that count. */
static int give_up_some(struct tiny_run *run, struct tiny_engine *tiny, uint64_t seed,
                        struct tiny_result *result) {
    struct tiny_batch *batch = malloc(sizeof *batch);
    struct ot_engine_progress progress;
    struct ot_step_result r;
    int end = SPLIT;
    assert_non_null(batch);
    for (int step = SPLIT; step < SPLIT + 2; step++) {
        tiny_fill_batch(batch, run->config.vocab, step,
                        step == 2 ? (int)run->micro_sequences + 1 : TINY_STEP_SEQUENCES,
                        run->micro_sequences);
        check_ok(ot_engine_submit(tiny->engine, &batch->input));
    }
    usleep((useconds_t)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 0, 6), 0, 3000));
    atomic_store(&is_given_up, true);
    for (int step = SPLIT; step < SPLIT + 2; step++) {
        check_ok(ot_engine_result(tiny->engine, &r));
        /* After an abandoned step no step counts. */
        assert_true(r.skipped == OT_SKIP_GIVEN_UP || end == step);
        if (r.skipped == OT_SKIP_GIVEN_UP)
            continue;
        result->loss[step] = r.loss;
        result->norm[step] = r.grad_norm;
        end = step + 1;
    }
    check_ok(ot_engine_drain(tiny->engine));
    ot_engine_get_progress(tiny->engine, &progress);
    progress.step = end;
    ot_engine_set_progress(tiny->engine, &progress);
    atomic_store(&is_given_up, false);
    free(batch);
    return end;
}

static void given_up_steps_change_nothing(void **state) {
    (void)state;
    static const enum ot_dtype dtypes[3] = {OT_F32, OT_BF16, OT_F16};
    int given_up = 0, count = tests_are_brief() ? 1 : 12;
    for (int i = 0; i < count; i++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_result whole, result = {0};
        tiny_defaults(&run, 1 + i % 3, i & 1, dtypes[i % 3]);
        whole_run(&run, &whole);
        random_plan(&run, 500 + (uint64_t)i, 0);
        tiny_open(&run, &tiny);
        tiny.engine->give_up = give_up;
        tiny_steps(&run, tiny.engine, 0, SPLIT, &result);
        int end = give_up_some(&run, &tiny, (uint64_t)i, &result);
        given_up += SPLIT + 2 - end;
        if (end < TINY_STEPS)
            tiny_steps(&run, tiny.engine, end, TINY_STEPS, &result);
        check_ok(ot_engine_drain(tiny.engine));
        tiny_read(&tiny, &result);
        tiny_same(&whole, &result, "after steps that were given up");
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
        tiny_result_free(&result);
        tiny_result_free(&whole);
    }
    assert_true(given_up > 0);
}

static void when_it_may_begin(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_batch *batch = malloc(sizeof *batch);
    struct tiny_keeper k;
    struct ot_pins *pins;
    assert_non_null(batch);
    tiny_defaults(&run, 1, false, OT_F32);
    tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 1);
    tiny_open(&run, &tiny);
    tiny_keeper_open(&k, &run, 1, 0);
    struct ot_snapshot_config config = tiny_keeper_config(&k);
    tiny_fill_batch(batch, run.config.vocab, 0, 2, 2);
    check_ok(ot_engine_snapshot_finish(tiny.engine, &pins));
    check_ok(ot_engine_submit(tiny.engine, &batch->input));
    check_fails(ot_engine_snapshot(tiny.engine, &config), OT_E_INTERNAL, "drained");
    struct ot_step_result result;
    check_ok(ot_engine_result(tiny.engine, &result));
    check_ok(ot_engine_drain(tiny.engine));
    /* Closing the engine abandons a snapshot that was not finished. */
    k.most_us = 2000;
    check_ok(ot_engine_snapshot(tiny.engine, &config));
    tiny_close(&tiny);
    tiny_keeper_close(&k);
    ot_plan_free(&run.plan);
    free(batch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshots_beside_steps),
        cmocka_unit_test(large_tiles_come_in_segments),
        cmocka_unit_test(streamed_updates_wait),
        cmocka_unit_test(slabs_split_between_device_and_nvme),
        cmocka_unit_test(the_weights_alone),
        cmocka_unit_test(a_snapshot_after_one_given_up),
        cmocka_unit_test(two_snapshots_kept),
        cmocka_unit_test(failing_sinks),
        cmocka_unit_test(given_up_steps_change_nothing),
        cmocka_unit_test(when_it_may_begin),
    };
    tiny_skip_without_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
