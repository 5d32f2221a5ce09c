/* The engine's reaction to bad numbers: steps whose loss or gradient is not finite, loss spikes, and the
 * search for the block where a forward pass stops being finite. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* ---- steps ---- */

/* Makes the step of batch number `step` with its loss and gradient multiplied by `times`. The engine divides
 * both by the count of trained tokens that the batch states, so this function states a smaller count. */
static struct ot_step_result take_step(const struct tiny_engine *tiny, int step, int times) {
    struct tiny_batch *batch = malloc(sizeof *batch);
    struct ot_step_result result;
    assert_non_null(batch);
    tiny_fill_batch(batch, tiny->chain.vocab, step, TINY_STEP_SEQUENCES, 2);
    batch->input.n_losses /= times;
    batch->input.lr = 1e-4f;
    check_ok(ot_engine_submit(tiny->engine, &batch->input));
    check_ok(ot_engine_result(tiny->engine, &result));
    free(batch);
    return result;
}

static void take_steps(const struct tiny_engine *tiny, int first, int end) {
    for (int step = first; step < end; step++) {
        struct ot_step_result result = take_step(tiny, step, 1);
        assert_true(!result.skipped && !result.spike && result.bad_slab == -1 && result.bad_micro == -1);
    }
}

static void read_values(const struct tiny_engine *tiny, struct tiny_result *out) {
    memset(out, 0, sizeof *out);
    check_ok(ot_engine_drain(tiny->engine));
    tiny_read(tiny, out);
}

static bool same_values(const struct tiny_result *a, const struct tiny_result *b) {
    return a->n_values == b->n_values && !memcmp(a->values, b->values, (size_t)a->n_values * sizeof(float));
}

/* Opens the run. fp16 gets a loss scale that overflows in no step. */
static void open_guarded(struct tiny_run *run, struct tiny_engine *tiny) {
    struct ot_engine_progress progress;
    tiny_open(run, tiny);
    ot_engine_get_progress(tiny->engine, &progress);
    progress.loss_scale = run->dtype == OT_F16 ? 256 : 1;
    ot_engine_set_progress(tiny->engine, &progress);
}

static void open_resident(struct tiny_run *run, struct tiny_engine *tiny) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    open_guarded(run, tiny);
}

static void close_run(struct tiny_run *run, struct tiny_engine *tiny) {
    tiny_close(tiny);
    ot_plan_free(&run->plan);
}

/* ---- spikes ---- */

/* The engine trusts its loss statistics after this number of steps. */
enum { WARM = 32 };

static void a_spike_is_seen_after_a_while(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    tiny_defaults(&run, 1, true, OT_F32);
    open_resident(&run, &tiny);
    take_steps(&tiny, 0, WARM - 2);
    /* The losses so far scatter by a few percent. */
    struct ot_step_result early = take_step(&tiny, WARM - 2, 5);
    assert_true(!early.spike && !early.skipped);
    take_steps(&tiny, WARM - 1, 8 * WARM); /* the statistics forget the unusual loss */
    struct ot_step_result late = take_step(&tiny, 8 * WARM, 5);
    assert_true(late.spike && !late.skipped);
    assert_int_equal(tiny_adam_step(tiny.engine), 8 * WARM + 1);
    take_steps(&tiny, 8 * WARM + 1, 8 * WARM + 3);
    close_run(&run, &tiny);
}

/* A run whose statistics make every step a spike has the same bits as a run without statistics. */
static void spikes_that_are_counted_change_nothing(void **state) {
    (void)state;
    struct tiny_result plain, spiky;
    for (int spikes = 0; spikes < 2; spikes++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        tiny_defaults(&run, 1, true, OT_BF16);
        open_resident(&run, &tiny);
        struct ot_engine_progress progress;
        ot_engine_get_progress(tiny.engine, &progress);
        assert_true(progress.losses.n == 0);
        progress.losses = (struct ot_loss_stats){.mean = -1e6, .variance = 1, .n = spikes ? 100 : 0};
        ot_engine_set_progress(tiny.engine, &progress);
        for (int step = 0; step < 4; step++)
            assert_int_equal(take_step(&tiny, step, 1).spike, spikes);
        read_values(&tiny, spikes ? &spiky : &plain);
        close_run(&run, &tiny);
    }
    assert_true(same_values(&plain, &spiky));
    tiny_result_free(&plain), tiny_result_free(&spiky);
}

static void a_skipped_spike_changes_nothing(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_result before, after;
        tiny_defaults(&run, 1, true, (enum ot_dtype)dtype);
        run.skip_spikes = 8;
        open_resident(&run, &tiny);
        take_steps(&tiny, 0, WARM);
        read_values(&tiny, &before);
        struct ot_engine_progress warm, then;
        ot_engine_get_progress(tiny.engine, &warm);
        struct ot_step_result spike = take_step(&tiny, WARM, 5);
        assert_true(spike.spike && spike.skipped == OT_SKIP_SPIKE && isfinite(spike.grad_norm));
        assert_string_equal(ot_skip_name(spike.skipped), "spike");
        read_values(&tiny, &after);
        assert_true(same_values(&before, &after));
        ot_engine_get_progress(tiny.engine, &then);
        assert_int_equal(then.adam_step, WARM);
        assert_true(then.loss_scale == warm.loss_scale); /* not a loss-scale overflow */
        take_steps(&tiny, WARM, WARM + 2);
        tiny_result_free(&before), tiny_result_free(&after);
        close_run(&run, &tiny);
    }
}

/* Losses that stay five times as large are skipped for a while and then accepted. */
static void what_has_come_to_stay_comes_through(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    int skipped = 0;
    tiny_defaults(&run, 1, true, OT_F32);
    run.skip_spikes = 6;
    open_resident(&run, &tiny);
    take_steps(&tiny, 0, WARM);
    while (skipped < 100 && take_step(&tiny, WARM, 5).skipped == OT_SKIP_SPIKE)
        skipped++;
    assert_in_range(skipped, 3, 40);
    for (int step = WARM; step < 2 * WARM; step++)
        assert_false(take_step(&tiny, step, 5).skipped);
    close_run(&run, &tiny);
}

/* The statistics are first the average of all losses, later a moving average whose weights halve in 64
 * steps. */
static void statistics_are_what_they_say(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct ot_engine_progress progress;
    double sum = 0, squares = 0;
    tiny_defaults(&run, 1, true, OT_F32);
    open_resident(&run, &tiny);
    for (int step = 0; step < WARM; step++) {
        double loss = take_step(&tiny, step, 1).loss;
        sum += loss;
        squares += loss * loss;
    }
    ot_engine_get_progress(tiny.engine, &progress);
    const struct ot_loss_stats *s = &progress.losses;
    assert_int_equal(s->n, WARM);
    assert_true(fabs(s->mean - sum / WARM) < 1e-12);
    assert_true(fabs(s->variance - (squares / WARM - s->mean * s->mean)) < 1e-9 && s->variance > 0);
    progress.losses = (struct ot_loss_stats){.mean = 100, .variance = 1e4, .n = 1000};
    ot_engine_set_progress(tiny.engine, &progress);
    for (int step = 0; step < 64; step++)
        sum += take_step(&tiny, step, 1).loss;
    ot_engine_get_progress(tiny.engine, &progress);
    double later = sum / (WARM + 64); /* the mean of the losses, which hardly change */
    assert_true(fabs(progress.losses.mean - (100 + later) / 2) < 0.1);
    close_run(&run, &tiny);
}

/* A run that goes on in another engine makes the same decisions, bit by bit. */
static void a_resumed_run_decides_alike(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine first, second;
    struct ot_engine_progress a, b;
    int skipped = 0;
    tiny_defaults(&run, 1, true, OT_F32);
    run.skip_spikes = 4;
    open_resident(&run, &first);
    open_guarded(&run, &second);
    take_steps(&first, 0, WARM);
    check_ok(ot_engine_drain(first.engine));
    for (int s = 0; s < first.chain.n_slabs; s++)
        for (int kind = OT_SLAB_MASTER; kind <= OT_SLAB_V; kind++) {
            int64_t n = first.chain.slabs[s].n_params;
            float *values = malloc((size_t)n * sizeof *values);
            assert_non_null(values);
            check_ok(ot_engine_get(first.engine, (enum ot_slab_kind)kind, s, 0, n, values));
            check_ok(ot_engine_set(second.engine, (enum ot_slab_kind)kind, s, 0, n, values));
            free(values);
        }
    tiny_hand_over(first.engine, second.engine);
    for (int step = WARM; step < 2 * WARM; step++) {
        int times = step % 3 == 0 ? 4 : 1;
        struct ot_step_result one = take_step(&first, step, times), two = take_step(&second, step, times);
        assert_int_equal(one.step, two.step);
        assert_int_equal(one.skipped, two.skipped);
        assert_true(one.loss == two.loss && one.spike == two.spike);
        skipped += one.skipped != OT_SKIP_NONE;
    }
    assert_in_range(skipped, 1, WARM / 3 + 1);
    ot_engine_get_progress(first.engine, &a);
    ot_engine_get_progress(second.engine, &b);
    assert_memory_equal(&a.losses, &b.losses, sizeof a.losses);
    tiny_close(&second);
    close_run(&run, &first);
}

/* ---- reasons ---- */

static void (*models_backward)(const void *context, int block, const struct ot_block_run *run);
static int poisoned_block; /* -1: none */

/* The gradient of the block's first weight becomes NaN. The gradients of the blocks below stay finite. */
static void poison_gradient(const void *context, int block, const struct ot_block_run *run) {
    models_backward(context, block, run);
    if (block == poisoned_block)
        ot_lane_fill(run->lane, run->grads[0], 0xff, sizeof(float));
}

static void change_backward(struct ot_chain *chain) {
    models_backward = chain->backward;
    chain->backward = poison_gradient;
}

static void a_bad_gradient_names_its_slab(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        tiny_defaults(&run, 3, false, (enum ot_dtype)dtype);
        run.change_chain = change_backward;
        poisoned_block = -1;
        open_resident(&run, &tiny);
        for (poisoned_block = 0; poisoned_block < tiny.chain.n_blocks; poisoned_block++) {
            struct ot_step_result result = take_step(&tiny, 0, 1);
            assert_int_equal(result.skipped, dtype == OT_F16 ? OT_SKIP_OVERFLOW : OT_SKIP_GRADIENT);
            assert_int_equal(result.bad_slab, tiny.chain.blocks[poisoned_block].uses[0].slab);
            assert_int_equal(result.bad_micro, -1);
            assert_true(isfinite(result.loss) && !result.spike);
        }
        struct ot_engine_progress progress;
        ot_engine_get_progress(tiny.engine, &progress);
        assert_int_equal(progress.losses.n, tiny.chain.n_blocks); /* all losses were finite */
        if (dtype == OT_F16) {                                    /* the scale cannot decrease any more */
            progress.loss_scale = 1;
            ot_engine_set_progress(tiny.engine, &progress);
            poisoned_block = 1;
            assert_int_equal(take_step(&tiny, 0, 1).skipped, OT_SKIP_GRADIENT);
        }
        close_run(&run, &tiny);
    }
}

/* Continues the run as if `scaled_steps` steps had been taken since the loss scale last changed. */
static void set_scaled_steps(const struct tiny_engine *tiny, int64_t scaled_steps) {
    struct ot_engine_progress progress;
    check_ok(ot_engine_drain(tiny->engine));
    ot_engine_get_progress(tiny->engine, &progress);
    progress.scaled_steps = scaled_steps;
    ot_engine_set_progress(tiny->engine, &progress);
}

static float scale_after_step(const struct tiny_engine *tiny, int step) {
    struct ot_engine_progress progress;
    take_step(tiny, step, 1);
    ot_engine_get_progress(tiny->engine, &progress);
    return progress.loss_scale;
}

/* The step after which the loss scale grows uses the old scale for its update: its gradients have the old
 * scale. */
static void the_loss_scale_grows_after_the_update(void **state) {
    (void)state;
    struct tiny_result results[2];
    for (int grows = 0; grows < 2; grows++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        tiny_defaults(&run, 1, true, OT_F16);
        open_resident(&run, &tiny);
        set_scaled_steps(&tiny, grows ? 1999 : 0);
        assert_true(scale_after_step(&tiny, 0) == (grows ? 512 : 256));
        read_values(&tiny, &results[grows]);
        close_run(&run, &tiny);
    }
    assert_true(same_values(&results[0], &results[1]));
    for (int grows = 0; grows < 2; grows++)
        tiny_result_free(&results[grows]);
}

/* The loss scale grows after 2000 steps without an overflow. The count begins again after the scale has
 * grown, and after an overflow. */
static void the_loss_scale_waits_2000_steps(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    tiny_defaults(&run, 1, true, OT_F16);
    run.change_chain = change_backward;
    poisoned_block = -1;
    open_resident(&run, &tiny);
    set_scaled_steps(&tiny, 1998);
    assert_true(scale_after_step(&tiny, 0) == 256);
    assert_true(scale_after_step(&tiny, 1) == 512);
    assert_true(scale_after_step(&tiny, 2) == 512);
    set_scaled_steps(&tiny, 1998);
    poisoned_block = 0;
    assert_true(scale_after_step(&tiny, 3) == 256);
    poisoned_block = -1;
    assert_true(scale_after_step(&tiny, 4) == 256);
    close_run(&run, &tiny);
}

static void plant(const struct tiny_engine *tiny, int slab, int64_t at, float value) {
    check_ok(ot_engine_drain(tiny->engine));
    check_ok(ot_engine_set(tiny->engine, OT_SLAB_MASTER, slab, at, 1, &value));
}

static void a_bad_loss_comes_first(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct ot_engine_progress progress;
    tiny_defaults(&run, 2, false, OT_F32);
    open_resident(&run, &tiny);
    plant(&tiny, 1, 0, NAN);
    struct ot_step_result result = take_step(&tiny, 0, 1);
    assert_int_equal(result.skipped, OT_SKIP_LOSS);
    assert_int_equal(result.bad_micro, 0);
    assert_int_equal(result.bad_slab, tiny.chain.n_slabs - 1);
    assert_false(result.spike);
    ot_engine_get_progress(tiny.engine, &progress);
    assert_int_equal(progress.losses.n, 0);
    close_run(&run, &tiny);
}

/* Without clipping, spikes are counted and never skipped. A gradient that is not finite skips the step if
 * nothing was updated before it; otherwise the run ends with an error that names the block. */
static void without_clipping(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct ot_step_result result;
    struct tiny_batch batch;
    tiny_defaults(&run, 2, false, OT_F32);
    run.clip = 0;
    run.skip_spikes = 6;
    run.change_chain = change_backward;
    poisoned_block = -1;
    open_resident(&run, &tiny);
    take_steps(&tiny, 0, WARM);
    result = take_step(&tiny, WARM, 5);
    assert_true(result.spike && !result.skipped);
    poisoned_block = tiny.chain.n_blocks - 1;
    result = take_step(&tiny, WARM + 1, 1);
    assert_int_equal(result.skipped, OT_SKIP_GRADIENT);
    assert_int_equal(tiny_adam_step(tiny.engine), WARM + 1);
    poisoned_block = 1;
    tiny_fill_batch(&batch, tiny.chain.vocab, 0, TINY_STEP_SEQUENCES, 2);
    check_ok(ot_engine_submit(tiny.engine, &batch.input));
    check_fails(ot_engine_result(tiny.engine, &result), OT_E_NUMERIC,
                "step 35: the gradient of layer.0 was not finite after other blocks had been updated");
    assert_int_equal(ot_error_cause(), OT_CAUSE_UNCLIPPED);
    close_run(&run, &tiny);
}

/* A bound that no norm reaches, and no bound, give the same norms. With a bound there is one result, without
 * one there is a result per slab. */
static void the_norm_needs_no_clipping(void **state) {
    (void)state;
    static const enum ot_home homes[2] = {OT_HOME_GPU, OT_HOME_HOST};
    for (int home = 0; home < 2; home++) {
        struct ot_step_result results[2][3];
        struct tiny_result values[2];
        for (int clip = 0; clip < 2; clip++) {
            struct tiny_run run;
            struct tiny_engine tiny;
            tiny_defaults(&run, 2, false, OT_F32);
            run.clip = clip ? 1e9f : 0;
            tiny_plan(&run, homes[home], homes[home], OT_HOME_GPU, 2);
            open_guarded(&run, &tiny);
            for (int step = 0; step < 3; step++)
                results[clip][step] = take_step(&tiny, step, 1);
            read_values(&tiny, &values[clip]);
            close_run(&run, &tiny);
        }
        for (int step = 0; step < 3; step++) {
            assert_true(results[0][step].grad_norm > 0);
            assert_true(results[0][step].grad_norm == results[1][step].grad_norm);
            assert_true(results[0][step].loss == results[1][step].loss);
        }
        assert_true(same_values(&values[0], &values[1]));
        tiny_result_free(&values[0]), tiny_result_free(&values[1]);
    }
}

/* The update uses a gradient whose norm is --clip, except for the 1e-6 in the formula. */
static void the_clipped_norm_is_what_is_left(void **state) {
    (void)state;
    for (int clips = 0; clips < 2; clips++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        tiny_defaults(&run, 2, false, OT_F32);
        run.clip = clips ? 0.01f : 1e9f;
        open_resident(&run, &tiny);
        struct ot_step_result result = take_step(&tiny, 0, 1);
        assert_true(result.grad_norm > 0.1); /* ten times the smaller bound, 1e5 times the formula's 1e-6 */
        if (clips)
            assert_true(fabs(result.clipped_norm / 0.01f - 1) < 2e-5);
        else
            assert_true(result.clipped_norm == result.grad_norm);
        close_run(&run, &tiny);
    }
}

/* ---- frozen parameters ---- */

enum { FROZEN_BLOCK = 1, FROZEN_SLAB = 1, MOST_SPECS = 8 };

/* Freezes the group with the slab's first parameter. The test poisons that parameter's gradient. */
static void freeze_first_group(struct ot_chain *chain) {
    static struct ot_slab_spec slabs[MOST_SPECS];
    static struct ot_param_group groups[MOST_SPECS];
    struct ot_slab_spec *slab = &slabs[FROZEN_SLAB];
    change_backward(chain);
    assert_true(chain->n_slabs <= MOST_SPECS);
    memcpy(slabs, chain->slabs, (size_t)chain->n_slabs * sizeof *slabs);
    assert_true(slab->n_groups <= MOST_SPECS && slab->groups[0].first == 0 && slab->groups[0].trained);
    memcpy(groups, slab->groups, (size_t)slab->n_groups * sizeof *groups);
    groups[0].trained = false;
    slab->groups = groups;
    chain->slabs = slabs;
}

/* Frozen parameters keep their bits and do not count in the norm, even if their gradient is not finite. */
static void frozen_parameters_have_no_part(void **state) {
    (void)state;
    for (int engine = 0; engine < OT_TILE_ENGINES; engine++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_result before, after;
        tiny_defaults(&run, 2, false, OT_BF16);
        run.change_chain = freeze_first_group;
        poisoned_block = FROZEN_BLOCK;
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
        run.plan.state_slots = 2;
        tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1u << engine, 0);
        open_guarded(&run, &tiny);
        const struct ot_slab_spec *slab = &tiny.chain.slabs[FROZEN_SLAB];
        int64_t frozen = slab->groups[0].n, changed = 0;
        /* The slab's master in the array of values. */
        size_t first = 3 * (size_t)tiny.chain.slabs[0].n_params;
        read_values(&tiny, &before);
        take_steps(&tiny, 0, 2);
        read_values(&tiny, &after);
        for (int kind = 0; kind < 3; kind++) {
            size_t at = first + (size_t)kind * (size_t)slab->n_params;
            assert_memory_equal(before.values + at, after.values + at, (size_t)frozen * sizeof(float));
        }
        for (int64_t i = frozen; i < slab->n_params; i++)
            changed += before.values[first + (size_t)i] != after.values[first + (size_t)i];
        assert_true(changed > 0);
        tiny_result_free(&before), tiny_result_free(&after);
        close_run(&run, &tiny);
    }
}

/* ---- the first bad block ---- */

static const struct {
    const char *what;
    enum ot_home weights, state, activations;
} places[] = {{"resident", OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU},
              {"host", OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST},
              {"nvme", OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME}};

static void find(const struct tiny_engine *tiny, int suspect, struct ot_bad_block *out) {
    struct tiny_batch *batch = malloc(sizeof *batch);
    assert_non_null(batch);
    tiny_fill_batch(batch, tiny->chain.vocab, 0, 2, 2);
    check_ok(ot_engine_find_bad_block(tiny->engine, &batch->micro[0], suspect, out));
    free(batch);
}

/* Makes a weight of each slab bad, one after the other. The search finds the first block that uses the slab,
 * and the slab. */
static void find_planted(const struct tiny_engine *tiny, float value) {
    struct tiny_batch batch;
    tiny_fill_batch(&batch, tiny->chain.vocab, 0, 2, 2);
    for (int block = 0; block < tiny->chain.n_blocks; block++) {
        int slab = tiny->chain.blocks[block].uses[0].slab;
        /* The row of a token that the batch has. */
        int64_t at = block == 0 ? batch.tokens[0] * tiny->chain.boundary_elems : 0;
        struct ot_bad_block found;
        float kept;
        check_ok(ot_engine_get(tiny->engine, OT_SLAB_MASTER, slab, at, 1, &kept));
        plant(tiny, slab, at, value);
        find(tiny, -1, &found);
        assert_int_equal(found.block, block);
        assert_int_equal(found.slab, slab);
        assert_int_equal(found.bad_weights, 1);
        plant(tiny, slab, at, kept);
    }
}

static void the_first_bad_block_is_found(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
        for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
            struct tiny_run run;
            struct tiny_engine tiny;
            struct ot_bad_block found;
            tiny_defaults(&run, 2, false, (enum ot_dtype)dtype);
            tiny_plan(&run, places[p].weights, places[p].state, places[p].activations, 0);
            if (p > 0) /* all update engines; streamed tiles leave one flush to the drain */
                tiny_deal(&run, 2048, 7, 0);
            open_guarded(&run, &tiny);
            take_steps(&tiny, 0, 2);
            find(&tiny, -1, &found);
            assert_true(found.block == -1 && found.slab == -1 && found.bad_weights == 0);
            find_planted(&tiny, NAN);
            find_planted(&tiny, dtype == OT_F16 ? 7e4f : INFINITY); /* a master value that overflows fp16 */
            take_steps(&tiny, 2, 3);
            close_run(&run, &tiny);
        }
}

/* A token that the batch of the search does not have. */
static int32_t absent_token(const struct tiny_engine *tiny) {
    struct tiny_batch batch;
    int32_t absent = (int32_t)tiny->chain.vocab - 1;
    tiny_fill_batch(&batch, tiny->chain.vocab, 0, 2, 2);
    for (int64_t i = 0; i < batch.micro[0].n_tokens; i++)
        if (batch.micro[0].tokens[i] == absent)
            absent--, i = -1;
    return absent;
}

/* Finite weights whose output overflows fp16; and a bad weight that no token of the batch uses. */
static void what_the_weights_say(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct ot_bad_block found;
    tiny_defaults(&run, 2, false, OT_F16);
    open_resident(&run, &tiny);
    for (int64_t i = 0; i < tiny.chain.slabs[2].n_params; i++)
        plant(&tiny, 2, i, 300);
    plant(&tiny, 0, absent_token(&tiny) * tiny.chain.boundary_elems, NAN); /* block 2 does not use it */
    find(&tiny, -1, &found);
    assert_int_equal(found.block, 2);
    assert_int_equal(found.slab, -1);
    close_run(&run, &tiny);
    tiny_defaults(&run, 2, false, OT_BF16);
    run.config.vocab = 2100; /* the search reads the embedding in two pieces */
    open_resident(&run, &tiny);
    plant(&tiny, 0, absent_token(&tiny) * tiny.chain.boundary_elems, NAN);
    find(&tiny, -1, &found);
    assert_true(found.block == -1 && found.slab == -1);
    find(&tiny, 0, &found);
    assert_true(found.block == -1 && found.slab == 0 && found.bad_weights == 1);
    close_run(&run, &tiny);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spike_is_seen_after_a_while),
        cmocka_unit_test(spikes_that_are_counted_change_nothing),
        cmocka_unit_test(a_skipped_spike_changes_nothing),
        cmocka_unit_test(what_has_come_to_stay_comes_through),
        cmocka_unit_test(statistics_are_what_they_say),
        cmocka_unit_test(a_resumed_run_decides_alike),
        cmocka_unit_test(a_bad_gradient_names_its_slab),
        cmocka_unit_test(the_loss_scale_grows_after_the_update),
        cmocka_unit_test(the_loss_scale_waits_2000_steps),
        cmocka_unit_test(a_bad_loss_comes_first),
        cmocka_unit_test(without_clipping),
        cmocka_unit_test(the_norm_needs_no_clipping),
        cmocka_unit_test(the_clipped_norm_is_what_is_left),
        cmocka_unit_test(frozen_parameters_have_no_part),
        cmocka_unit_test(the_first_bad_block_is_found),
        cmocka_unit_test(what_the_weights_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
