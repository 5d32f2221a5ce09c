/* Encoder-decoders: rows of pairs, and a slab that all layers share. Whatever a plan chooses, the results
 * have the same bits; and the engine refuses micro-batches whose ranges are wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static void open_run(struct tiny_run *run, bool gated, enum ot_dtype dtype) {
    tiny_defaults(run, 1, false, dtype);
    run->config = tiny_pair_config(gated);
    run->evals = true;
}

static void train_resident(struct tiny_run *run, struct tiny_result *out) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_train(run, out);
    ot_plan_free(&run->plan);
}

static void compare(const struct tiny_run *run, const struct tiny_result *resident, const char *what) {
    struct tiny_result other;
    tiny_train(run, &other);
    tiny_same(resident, &other, what);
    tiny_result_free(&other);
}

/* The emulated GPU takes a hundred times longer. */
static bool is_slow(void) {
    return !tiny_is_on_cpu() && tests_are_few();
}

static void homes(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant += is_slow() ? 3 : 1) {
        struct tiny_run run;
        struct tiny_result resident;
        open_run(&run, variant & 1, variant & 2 ? OT_BF16 : OT_F32);
        train_resident(&run, &resident);
        for (int mix = 1; mix < 8; mix += is_slow() ? 6 : tests_are_few() ? 3 : 1) {
            tiny_plan(&run, mix & 1 ? OT_HOME_HOST : OT_HOME_GPU, mix & 2 ? OT_HOME_HOST : OT_HOME_GPU,
                      mix & 4 ? OT_HOME_HOST : OT_HOME_GPU, 1 + mix % 3);
            compare(&run, &resident, "homes");
            ot_plan_free(&run.plan);
        }
        tiny_result_free(&resident);
    }
}

/* With rounds, kept levels, and everything on nvme. */
static void random_plans(void **state) {
    (void)state;
    enum { VARIANTS = 4 };
    int plans = getenv("OT_TEST_PLANS") ? atoi(getenv("OT_TEST_PLANS")) : 40;
    for (int variant = 0; variant < VARIANTS; variant += is_slow() ? 3 : 1) {
        struct tiny_run run;
        struct tiny_result resident;
        open_run(&run, variant & 1, variant & 2 ? OT_BF16 : OT_F32);
        run.clip = variant == 3 ? 0 : 1.0f;
        train_resident(&run, &resident);
        for (int i = variant; i < plans; i += VARIANTS) {
            char what[64];
            snprintf(what, sizeof what, "random plan %d", i + 1);
            tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
            tiny_randomise(&run, (uint64_t)i + 1);
            compare(&run, &resident, what);
            ot_plan_free(&run.plan);
        }
        tiny_result_free(&resident);
    }
}

static bool is_shared(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return tensor->module == OT_MODULE_DECODER_BIAS;
}

static bool is_not_shared(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return tensor->layer >= 3;
}

/* What all layers share is the only thing that is trained, or it is frozen. */
static void frozen(void **state) {
    (void)state;
    bool (*const trains[])(const void *, const struct ot_tensor *) = {is_shared, is_not_shared};
    for (int i = 0; i < 2; i++) {
        struct tiny_run run;
        struct tiny_result resident;
        open_run(&run, i, OT_BF16);
        run.trains = trains[i];
        train_resident(&run, &resident);
        assert_true(resident.loss[1] != resident.loss[0]);
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
        compare(&run, &resident, "frozen parts");
        ot_plan_free(&run.plan);
        tiny_result_free(&resident);
    }
}

/* ---- adapters, and bases in a storage type ---- */

static struct ot_lora_rank rank_of(const void *context, const char *module) {
    const char *last = strrchr(module, '.') ? strrchr(module, '.') + 1 : module;
    (void)context;
    return (struct ot_lora_rank){strcmp(last, "k") == 0 ? 0 : *last == 'v' ? 3 : 2, 4};
}

static bool is_norm(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return ot_module_is_norm(tensor->module);
}

static const struct ot_lora plain = {.choose = rank_of, .dropout = 0.3f},
                            dora = {.all = {3, 6}, .dora = true, .dropout = 0.1f};

enum { TYPES = 1 + OT_BASE_MXFP4 };
/* Adapters, adapters beside norms, or norms alone, over a base of each type. False: norms over a plain base,
 * or a type that is the dtype. */
static bool open_adapted(struct tiny_run *run, int variant) {
    enum ot_dtype dtype = variant & 2 ? OT_BF16 : OT_F32;
    open_run(run, variant & 1, dtype);
    run->base = (enum ot_base_type)(variant / 3 % TYPES);
    run->lora = variant % 3 == 2 ? NULL : variant % 3 ? &dora : &plain;
    run->trains = variant % 3 == 0 ? NULL : is_norm;
    return (run->lora || run->base != OT_BASE_AUTO) && !(run->base == OT_BASE_BF16 && dtype == OT_BF16);
}

/* Every plan has the bits of the resident run. tiny_run.c checks that no encoded byte changes. */
static void adapted_plans(void **state) {
    (void)state;
    int plans = getenv("OT_TEST_SLOW") ? 12 : 1;
    for (int variant = 0; variant < 3 * TYPES; variant += is_slow() ? 7 : tests_are_few() ? 4 : 1) {
        struct tiny_run run;
        struct tiny_result resident;
        if (!open_adapted(&run, variant))
            continue;
        train_resident(&run, &resident);
        assert_true(resident.loss[1] != resident.loss[0]);
        for (int i = 0; i < plans; i++) {
            char what[64];
            snprintf(what, sizeof what, "base type %d, random plan %d", (int)run.base,
                     plans * variant + i + 1);
            tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
            tiny_randomise(&run, (uint64_t)(plans * variant + i + 1));
            compare(&run, &resident, what);
            ot_plan_free(&run.plan);
        }
        tiny_result_free(&resident);
    }
}

/* The arithmetic sees decoded weights and nothing else; a type that changes no weight would prove nothing. */
static void a_base_is_its_decoded_weights(void **state) {
    (void)state;
    for (int variant = 0; variant < 3 * TYPES; variant += is_slow() ? 12 : 3) {
        struct tiny_run run;
        struct tiny_result encoded, decoded, exact;
        if (!open_adapted(&run, variant) || run.base == OT_BASE_AUTO)
            continue;
        train_resident(&run, &encoded);
        run.decoded = run.base;
        run.base = OT_BASE_AUTO;
        train_resident(&run, &decoded);
        run.decoded = OT_BASE_AUTO;
        train_resident(&run, &exact);
        for (int i = 0; i < TINY_STEPS; i++)
            assert_true(encoded.loss[i] == decoded.loss[i] && encoded.norm[i] == decoded.norm[i]);
        assert_true(encoded.loss[0] != exact.loss[0]);
        tiny_result_free(&encoded);
        tiny_result_free(&decoded);
        tiny_result_free(&exact);
    }
}

/* What all layers share stays in the dtype of the device: transformers quantises linear maps alone. */
static void the_shared_slab_is_plain(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    open_run(&run, true, OT_BF16);
    run.lora = &plain;
    run.base = OT_BASE_NF4;
    tiny_open_model(&run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    int encoded = 0;
    for (int s = 0; s < chain->n_slabs; s++) {
        assert_false(chain->slabs[s].shared && chain->slabs[s].encoded_bytes > 0);
        encoded += chain->slabs[s].encoded_bytes > 0;
    }
    assert_int_equal(encoded, run.config.n_layers);
    ot_model_close(model);
}

/* ---- several ranks ---- */

/* Adapters freeze what all layers share, so the bits may be those of every number of ranks. */
static void adapters_on_any_number_of_ranks(void **state) {
    (void)state;
    tiny_needs_cpu(); /* tiny plans have no room to exchange through the host */
    for (int variant = 0; variant < 2; variant++) {
        struct tiny_run run;
        struct tiny_result one, other;
        open_run(&run, variant, variant ? OT_BF16 : OT_F32);
        run.lora = variant ? &dora : &plain;
        run.base = variant ? OT_BASE_NF4 : OT_BASE_AUTO;
        run.evals = false;
        run.micro_sequences = 1;
        struct tiny_world w = {.ranks = 1, .world = true, .slots = 2};
        tiny_train_ranks(&run, &w, &one);
        for (w.ranks = 2; w.ranks <= 4; w.ranks *= 2) {
            w.mode = OT_SHARD_FULL;
            w.weights = w.state = OT_HOME_HOST;
            tiny_train_ranks(&run, &w, &other);
            tiny_same(&one, &other, "another number of ranks");
            tiny_result_free(&other);
        }
        tiny_result_free(&one);
    }
}

/* The ranks borrow what all layers share: it is trained with everything else, or alone, or frozen under
 * adapters. */
static void stages(void **state) {
    (void)state;
    tiny_needs_cpu();
    bool slow = getenv("OT_TEST_SLOW") != NULL;
    for (int variant = 0; variant < (slow ? 24 : tests_are_few() ? 1 : 3); variant++) {
        struct tiny_run run;
        struct tiny_result alone, divided;
        open_run(&run, variant & 1, (enum ot_dtype)(variant % 3));
        run.micro_sequences = 1;
        run.clip = variant % 4 == 3 && run.dtype != OT_F16 ? 0 : 1.0f;
        run.lora = variant % 3 == 2 ? &plain : NULL;
        run.trains = variant % 6 == 1 ? is_shared : NULL;
        struct tiny_world w = {.ranks = 1, .world = variant % 5 == 4, .slots = 2};
        tiny_train_ranks(&run, &w, &alone);
        for (uint64_t seed = 0; seed < (slow ? 8 : 2); seed++) {
            uint64_t own = 100 * (uint64_t)variant + seed;
            w = (struct tiny_world){.ranks = 2 + variant % 4,
                                    .mode = OT_SHARD_STAGES,
                                    .world = w.world,
                                    .in_flight = (int)seed % 3,
                                    .weights = OT_HOME_HOST,
                                    .state = OT_HOME_HOST,
                                    .activations = OT_HOME_HOST,
                                    .slots = 2,
                                    .crosses = seed % 2,
                                    .delay_seed = seed,
                                    .change = tiny_random_stage,
                                    .context = &own};
            tiny_train_ranks(&run, &w, &divided);
            tiny_same(&alone, &divided, "stages");
            tiny_result_free(&divided);
        }
        tiny_result_free(&alone);
    }
}

/* ---- refusals ---- */

/* The owner of the shared slab is the rank of the first layer. */
static void a_wrong_owner(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    open_run(&run, false, OT_F32);
    run.shard = (struct ot_shard){.ranks = 2, .mode = OT_SHARD_STAGES};
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_open_model(&run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    int *owner = &run.plan.slabs[chain->blocks[1].uses[0].slab].owner;
    check_ok(ot_plan_finish(chain, &run.plan));
    assert_int_equal(*owner, 0);
    for (*owner = -1; *owner <= 2; *owner += *owner < 0 ? 2 : 1)
        check_fails(ot_plan_finish(chain, &run.plan), OT_E_USAGE, "uses it on rank ");
    ot_model_close(model);
    ot_plan_free(&run.plan);
}

static void refuse(const struct tiny_run *run, struct ot_engine *engine, struct ot_step_input *input,
                   const char *words) {
    (void)run;
    check_fails(ot_engine_submit(engine, input), OT_E_INPUT, words);
}

static void wrong_ranges(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_batch *batch = malloc(sizeof *batch);
    assert_non_null(batch);
    open_run(&run, false, OT_F32);
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_open(&run, &tiny);
#define REFUSED(change, words)                                                                               \
    do {                                                                                                     \
        tiny_fill_batch(batch, run.config.vocab, 0, TINY_STEP_SEQUENCES, run.micro_sequences);               \
        tiny_pair_batch(batch);                                                                              \
        change;                                                                                              \
        refuse(&run, tiny.engine, &batch->input, words);                                                     \
    } while (0)
    REFUSED(batch->micro[0].n_inputs = 0, "0 of its 48 tokens are inputs");
    REFUSED(batch->micro[0].n_inputs = 48, "48 of its 48 tokens are inputs");
    REFUSED(batch->input_end[3] = 3, "token 3: the inputs of its row");
    REFUSED(batch->input_end[30] = 17, "token 30: the inputs of its row cannot be tokens");
    REFUSED(batch->input_first[30] = -1, "token 30: the inputs of its row cannot be tokens -1");
    REFUSED(batch->input_first[9] = 0, "token 9: the inputs of its row cannot be tokens 0");
    REFUSED(batch->row_start[30] = 2, "token 30: the inputs of its row");
#undef REFUSED
    check_fails(ot_engine_decode_begin_pair(tiny.engine, 0, 8), OT_E_INPUT, "an input of 0 tokens");
    check_fails(ot_engine_decode_begin_pair(tiny.engine, 1000, 1010), OT_E_INPUT, "an input of 1000 tokens");
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    free(batch);
}

/* The sum over the uses of the shared slab is a rank's own, so it depends on their number. */
static void no_world(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    open_run(&run, false, OT_F32);
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_open_model(&run, &model);
    run.plan.shard = (struct ot_shard){.ranks = 2, .mode = OT_SHARD_FULL, .world = true};
    run.plan.max_micro = 8;
    check_fails(ot_plan_finish(ot_model_chain(model), &run.plan), OT_E_USAGE,
                "stacks is used by many blocks");
    ot_model_close(model);
    ot_plan_free(&run.plan);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes),
        cmocka_unit_test(random_plans),
        cmocka_unit_test(frozen),
        cmocka_unit_test(adapted_plans),
        cmocka_unit_test(a_base_is_its_decoded_weights),
        cmocka_unit_test(the_shared_slab_is_plain),
        cmocka_unit_test(adapters_on_any_number_of_ranks),
        cmocka_unit_test(stages),
        cmocka_unit_test(a_wrong_owner),
        cmocka_unit_test(wrong_ranges),
        cmocka_unit_test(no_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
