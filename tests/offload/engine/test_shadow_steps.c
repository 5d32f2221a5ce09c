/* Updates ahead of the decision (plan/shadow_updates.h): they are made, kept and undone, and never show in
 * the bits. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/engine/engine_state.h"
#include "offload/plan/shadow_updates.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static const float never_clips = 1e6f, always_clips = 1e-3f;

/* ---- a run whose last backward pass waits for shadows ---- */

static void (*models_backward)(const void *context, int block, const struct ot_block_run *run);
static struct ot_engine *_Atomic watched; /* its backward of block 0 waits for a shadow; NULL: none waits */
static atomic_bool poisons;               /* the gradient of block 0 becomes NaN */
static atomic_bool is_held;               /* the backward of block 0 waits until this is false */

static int count_pending(struct ot_engine *engine) {
    int n = 0;
    pthread_mutex_lock(&engine->shadows.mutex);
    for (int i = 0; i < engine->plan.shadow_frames; i++)
        n += engine->shadows.pending[i].task != NULL;
    pthread_mutex_unlock(&engine->shadows.mutex);
    return n;
}

/* Block 0 comes last in backward, so the decision is still to come. */
static void backward_after_shadow(const void *context, int block, const struct ot_block_run *run) {
    struct ot_engine *engine = atomic_load(&watched);
    while (block == 0 && engine && count_pending(engine) == 0)
        usleep(200);
    while (block == 0 && atomic_load(&is_held))
        usleep(200);
    models_backward(context, block, run);
    if (block == 0 && atomic_load(&poisons))
        ot_lane_fill(run->lane, run->grads[0], 0xff, sizeof(float));
}

static void change_backward(struct ot_chain *chain) {
    models_backward = chain->backward;
    chain->backward = backward_after_shadow;
}

/* All tiles are updated by the pool and have a shadow. belief: the share of the step's squared norm that each
 * slab is taken to have; 0: the rule's own shares. In fp16, layers keep their inner activations on the host,
 * and frames lie over them. */
static void plan_shadows(struct tiny_run *run, int layers, bool tied, enum ot_dtype dtype, float clip,
                         double belief) {
    tiny_defaults(run, layers, tied, dtype);
    run->clip = clip;
    run->optimizer_threads = 2;
    run->change_chain = change_backward;
    tiny_plan(run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
    tiny_deal(run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_CPU, 0);
    run->plan.shadow_frames = (int)ot_plan_shadow_tiles(&run->plan);
    run->shadow_belief = belief;
    if (dtype == OT_F16) {
        run->plan.kept[OT_TIER_HOST] = (struct ot_kept_blocks){OT_KEEP_ALL, layers};
        run->plan.kept_slots = 1;
    }
    tiny_finish(run);
    assert_int_equal(run->plan.shadow_frames, ot_plan_count_tiles(&run->plan, OT_TILE_CPU));
}

static void train_resident(const struct tiny_run *like, struct tiny_result *result) {
    struct tiny_run run = *like;
    run.change_chain = NULL;
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_train(&run, result);
    ot_plan_free(&run.plan);
}

/* Makes steps [first, end) with at least one shadow in each, and drains. */
static void watch_steps(const struct tiny_run *run, struct tiny_engine *tiny, int first, int end,
                        struct tiny_result *result) {
    atomic_store(&watched, tiny->engine);
    tiny_steps(run, tiny->engine, first, end, result);
    check_ok(ot_engine_drain(tiny->engine));
    atomic_store(&watched, NULL);
}

static struct ot_shadow_usage usage_of(const struct tiny_engine *tiny) {
    struct ot_shadow_usage usage;
    ot_engine_shadow_usage(tiny->engine, &usage);
    return usage;
}

static void finish(struct tiny_run *run, struct tiny_engine *tiny, struct tiny_result *result,
                   const char *what) {
    struct tiny_result resident;
    tiny_read(tiny, result);
    tiny_close(tiny);
    ot_plan_free(&run->plan);
    train_resident(run, &resident);
    tiny_same(&resident, result, what);
    tiny_result_free(&resident);
    tiny_result_free(result);
}

/* ---- what becomes of shadows ---- */

static void one_end(enum ot_dtype dtype, enum ot_state_format state, enum ot_masters masters, bool tied,
                    bool clips) {
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result result = {0};
    char what[96];
    plan_shadows(&run, 2, tied, dtype, clips ? always_clips : never_clips, 1e30);
    run.state = state;
    run.masters = masters;
    tiny_finish(&run);
    tiny_open(&run, &tiny);
    assert_int_equal(ot_plan_free_frames(&tiny.engine->chain, &run.plan) > 0, dtype == OT_F16);
    watch_steps(&run, &tiny, 0, TINY_STEPS, &result);
    struct ot_shadow_usage usage = usage_of(&tiny);
    int skipped = 0; /* by fp16's first loss scales */
    for (int i = 0; i < TINY_STEPS; i++)
        skipped += result.skipped[i];
    int kept = clips ? 0 : TINY_STEPS - skipped;
    assert_true(usage.committed >= kept && usage.dropped >= TINY_STEPS - kept);
    assert_true((usage.committed > 0) == (kept > 0) && (usage.dropped > 0) == (kept < TINY_STEPS));
    assert_int_equal(count_pending(tiny.engine), 0);
    snprintf(what, sizeof what, "shadows in %s, %s state, %s masters, tied=%d clips=%d", ot_dtype_name(dtype),
             ot_state_format_name(state), ot_masters_name(masters), tied, clips);
    finish(&run, &tiny, &result, what);
}

static void unclipped_steps_keep_shadows(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
        for (int masters = OT_MASTERS_F32; masters <= (dtype == OT_BF16); masters++)
            one_end((enum ot_dtype)dtype, (enum ot_state_format)(dtype % OT_STATE_FORMATS),
                    (enum ot_masters)masters, dtype == OT_BF16, false);
}

static void clipped_steps_undo_shadows(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
        for (int format = 0; format < OT_STATE_FORMATS; format += tests_are_for_races() ? 2 : 1)
            one_end((enum ot_dtype)dtype, (enum ot_state_format)format,
                    dtype == OT_BF16 && format == OT_STATE_16BIT ? OT_MASTERS_NONE : OT_MASTERS_F32,
                    (dtype + format) % 2, true);
}

/* The first step has no shadow, because no share is known. Later the norm is far below the limit. */
static void the_rule_waits_for_a_step(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result result = {0};
    plan_shadows(&run, 2, false, OT_BF16, never_clips, 0);
    tiny_open(&run, &tiny);
    tiny_steps(&run, tiny.engine, 0, 1, &result);
    check_ok(ot_engine_drain(tiny.engine));
    assert_int_equal(usage_of(&tiny).committed, 0);
    double sum = 0;
    for (int s = 0; s < tiny.chain.n_slabs; s++)
        sum += tiny.engine->shadows.portions[s];
    assert_true(fabs(sum - 1) < 1e-12); /* rounding of a few sums of doubles */
    watch_steps(&run, &tiny, 1, TINY_STEPS, &result);
    assert_true(usage_of(&tiny).committed >= TINY_STEPS - 1 && usage_of(&tiny).dropped == 0);
    finish(&run, &tiny, &result, "shadows by the rule");
}

/* Makes a step that changes no weight. Steps of the same batch then have the same gradients. */
static double still_step(struct tiny_engine *tiny, bool is_watched) {
    struct tiny_batch *batch = malloc(sizeof *batch);
    struct ot_step_result result;
    assert_non_null(batch);
    tiny_fill_batch(batch, tiny->chain.vocab, 0, TINY_STEP_SEQUENCES, 2);
    batch->input.lr = 0;
    atomic_store(&watched, is_watched ? tiny->engine : NULL);
    check_ok(ot_engine_submit(tiny->engine, &batch->input));
    check_ok(ot_engine_result(tiny->engine, &result));
    check_ok(ot_engine_drain(tiny->engine));
    atomic_store(&watched, NULL);
    free(batch);
    return result.grad_norm;
}

/* If every step has the same gradients, each guess is the norm itself. The limit must be a tenth above it. */
static void the_rule_keeps_a_margin(void **state) {
    (void)state;
    static const double limits[] = {0.95, 1.05, 1.09, 1.11, 1.2}; /* as a multiple of the norm */
    double norm = 1;
    for (int i = -1; i < 5; i++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        plan_shadows(&run, 2, false, OT_F32, i < 0 ? never_clips : (float)(limits[i] * norm), 0);
        tiny_open(&run, &tiny);
        norm = still_step(&tiny, false);
        assert_int_equal(usage_of(&tiny).committed + usage_of(&tiny).dropped, 0);
        bool makes = i < 0 || limits[i] > 1.1;
        still_step(&tiny, makes);
        assert_int_equal(usage_of(&tiny).committed > 0, makes);
        assert_int_equal(usage_of(&tiny).dropped, 0);
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
    }
}

/* The norms are far above the limit in every step: no shadow is tried. */
static void the_rule_leaves_clipped_steps_alone(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result result = {0};
    plan_shadows(&run, 2, false, OT_F32, always_clips, 0);
    tiny_open(&run, &tiny);
    tiny_steps(&run, tiny.engine, 0, TINY_STEPS, &result);
    check_ok(ot_engine_drain(tiny.engine));
    assert_int_equal(usage_of(&tiny).committed + usage_of(&tiny).dropped, 0);
    finish(&run, &tiny, &result, "no shadows by the rule");
}

/* A gradient that is not finite comes after the shadows. The step is skipped as a whole, the loss scale of
 * fp16 is halved, and the next steps have shadows with the new scale. */
static void bad_steps_undo_shadows(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_result steps = {0}, before = {0}, after = {0};
        struct ot_engine_progress progress;
        plan_shadows(&run, 2, false, (enum ot_dtype)dtype, never_clips, 1e30);
        tiny_open(&run, &tiny);
        ot_engine_get_progress(tiny.engine, &progress);
        progress.loss_scale = dtype == OT_F16 ? 256 : 1; /* overflows in no step by itself */
        ot_engine_set_progress(tiny.engine, &progress);
        watch_steps(&run, &tiny, 0, 1, &steps);
        int64_t kept = usage_of(&tiny).committed;
        tiny_read(&tiny, &before);
        atomic_store(&poisons, true);
        watch_steps(&run, &tiny, 1, 2, &steps);
        atomic_store(&poisons, false);
        tiny_read(&tiny, &after);
        assert_true(steps.skipped[1] && usage_of(&tiny).dropped > 0 && usage_of(&tiny).committed == kept);
        assert_memory_equal(before.values, after.values, (size_t)before.n_values * sizeof(float));
        watch_steps(&run, &tiny, 2, TINY_STEPS, &steps);
        assert_true(usage_of(&tiny).committed > kept && !steps.skipped[2] && !steps.skipped[3]);
        ot_engine_get_progress(tiny.engine, &progress);
        assert_true(progress.loss_scale == (dtype == OT_F16 ? 128 : 1) && progress.adam_step == 3);
        tiny_result_free(&before);
        tiny_result_free(&after);
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
    }
}

/* ---- beside snapshots ---- */

/* A copy of the weights and the state of all slabs at home. */
static char *copy_homes(const struct tiny_engine *tiny, size_t *bytes) {
    const struct ot_layout *layout = &tiny->engine->layout;
    char *copy = NULL;
    *bytes = 0;
    for (int s = 0; s < tiny->chain.n_slabs; s++) {
        const int homes[2] = {layout->slabs[s].weights_host, layout->slabs[s].state_host};
        for (int i = 0; i < 2; i++) {
            size_t more = layout->buffers[homes[i]].bytes;
            copy = realloc(copy, *bytes + more);
            assert_non_null(copy);
            memcpy(copy + *bytes, ot_engine_at(tiny->engine, homes[i]), more);
            *bytes += more;
        }
    }
    return copy;
}

/* A step hangs in its last backward pass, with shadows pending. Undone, they leave no byte. When the step
 * goes on after all, it makes its updates in the normal way, and later steps have no shadows. */
static void a_stuck_step_loses_its_shadows(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result result = {0};
    struct tiny_batch *batch = malloc(sizeof *batch);
    struct ot_step_result step;
    size_t bytes;
    assert_non_null(batch);
    plan_shadows(&run, 2, true, OT_BF16, never_clips, 1e30);
    tiny_open(&run, &tiny);
    watch_steps(&run, &tiny, 0, 1, &result);
    int64_t kept = usage_of(&tiny).committed;
    char *before = copy_homes(&tiny, &bytes);
    atomic_store(&is_held, true);
    tiny_fill_batch(batch, run.config.vocab, 1, TINY_STEP_SEQUENCES, run.micro_sequences);
    check_ok(ot_engine_submit(tiny.engine, &batch->input));
    while (count_pending(tiny.engine) == 0)
        usleep(200);
    ot_engine_undo_shadows(tiny.engine);
    char *after = copy_homes(&tiny, &bytes);
    assert_memory_equal(before, after, bytes);
    assert_true(usage_of(&tiny).dropped > 0);
    atomic_store(&is_held, false);
    check_ok(ot_engine_result(tiny.engine, &step));
    check_ok(ot_engine_drain(tiny.engine));
    result.loss[1] = step.loss;
    result.norm[1] = step.grad_norm;
    tiny_steps(&run, tiny.engine, 2, TINY_STEPS, &result);
    check_ok(ot_engine_drain(tiny.engine));
    assert_int_equal(usage_of(&tiny).committed, kept);
    free(before);
    free(after);
    free(batch);
    finish(&run, &tiny, &result, "after shadows were undone");
}

/* The sink of a snapshot that takes no tile while is_held is true. */
static char part_memory[1 << 20];
static int held_room(void *context, void **memory) {
    (void)context;
    while (atomic_load(&is_held))
        usleep(200);
    *memory = part_memory;
    return 0;
}
static int ignore_segment(void *context, const struct ot_segment *segment, void *memory) {
    (void)context, (void)segment, (void)memory;
    return 0;
}
static int end_at_once(void *context) {
    (void)context;
    return 0;
}

/* A snapshot that has not copied a tile keeps it from being updated ahead. */
static void snapshots_come_before_shadows(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_result result = {0};
    struct ot_pins *pins;
    plan_shadows(&run, 2, false, OT_F32, never_clips, 1e30);
    tiny_open(&run, &tiny);
    struct ot_snapshot_config config = {
        .sink = {.room = held_room, .put = ignore_segment, .end = end_at_once}};
    struct ot_tile_span first = {.n_tiles = 1};
    assert_true(ot_snapshot_is_copied(tiny.engine->snapshot, 0, first));
    atomic_store(&is_held, true);
    check_ok(ot_engine_snapshot(tiny.engine, &config));
    assert_false(ot_snapshot_is_copied(tiny.engine->snapshot, 0, first));
    atomic_store(&is_held, false);
    check_ok(ot_engine_snapshot_finish(tiny.engine, &pins));
    assert_null(pins);
    assert_true(ot_snapshot_is_copied(tiny.engine->snapshot, 0, first));
    watch_steps(&run, &tiny, 0, TINY_STEPS, &result);
    finish(&run, &tiny, &result, "after a snapshot");
}

/* ---- frozen slabs ---- */

static bool trains_norms(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "norm") != NULL;
}

/* With shadows the squared norms of trained slabs come to the host one by one. Those of frozen slabs must
 * stay zero there, though an evaluation between the steps writes its losses to the same place. */
static void evaluations_leave_the_norm_alone(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_BF16; dtype++) {
        struct tiny_run run;
        struct tiny_result resident, other;
        tiny_defaults(&run, 3, false, (enum ot_dtype)dtype);
        run.trains = trains_norms;
        run.evals = true;
        train_resident(&run, &resident);
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
        tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_CPU, 0);
        run.plan.shadow_frames = (int)ot_plan_shadow_tiles(&run.plan);
        tiny_finish(&run);
        assert_true(ot_plan_sends_norms(&run.plan));
        tiny_train(&run, &other);
        tiny_same(&resident, &other, "an evaluation between steps");
        tiny_result_free(&other);
        tiny_result_free(&resident);
        ot_plan_free(&run.plan);
    }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unclipped_steps_keep_shadows),
        cmocka_unit_test(clipped_steps_undo_shadows),
        cmocka_unit_test(the_rule_waits_for_a_step),
        cmocka_unit_test(the_rule_keeps_a_margin),
        cmocka_unit_test(the_rule_leaves_clipped_steps_alone),
        cmocka_unit_test(bad_steps_undo_shadows),
        cmocka_unit_test(a_stuck_step_loses_its_shadows),
        cmocka_unit_test(snapshots_come_before_shadows),
        cmocka_unit_test(evaluations_leave_the_norm_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
