/* Slabs of which only used parts cross the bus (offload/plan/used_parts.h). The bits are those of a run that
 * holds everything, under all homes, slots, levels and rounds, with NaNs wherever a part was not fetched; and
 * exactly the chosen parts are copied. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/used_parts.h"
#include "offload/schedule/schedule.h"
#include "src/base/random.h"
#include "tests/offload/tiny_parts.h"
#include "tests/offload/tiny_run.h"
#include "tests/offload/tiny_schedule.h"
#include "tests/support/check.h"

enum { LAYERS = 3 };

/* Of experts too: these lie in slabs without parts. */
static struct ot_lora_rank of_layers(const void *context, const char *module) {
    (void)context;
    return (struct ot_lora_rank){ot_lora_layer_of(module) >= 0 ? 4 : 0, 8};
}

static const struct ot_lora LORA = {.choose = of_layers};

/* PARTS: tiny_parts.h, on the cpu device only. EXPERTS: Mixtral. SOME_EXPERTS: Qwen3-MoE whose first layer
 * has none. JOINED_EXPERTS: gpt-oss, whose files join them, and whose experts have biases. */
enum kind { PARTS, EXPERTS, SOME_EXPERTS, JOINED_EXPERTS, KINDS };

static void defaults(struct tiny_run *run, enum kind kind, enum ot_dtype dtype, bool lora) {
    tiny_defaults(run, LAYERS, false, dtype);
    run->parts = kind == PARTS;
    run->lora = lora ? &LORA : NULL;
    run->evals = true;
    if (kind == PARTS)
        return;
    static const enum ot_family families[KINDS] = {[EXPERTS] = OT_FAMILY_MIXTRAL,
                                                   [SOME_EXPERTS] = OT_FAMILY_QWEN3_MOE,
                                                   [JOINED_EXPERTS] = OT_FAMILY_GPT_OSS};
    run->config.family = families[kind];
    run->config.qk_norm = kind == SOME_EXPERTS ? OT_QK_NORM_HEADS : OT_QK_NORM_NONE;
    run->config.router_over_all = kind == SOME_EXPERTS;
    run->config.dense_layers.bits[0] = kind == SOME_EXPERTS;
    run->config.n_experts = 8;
    run->config.top_experts = 2;
    run->config.expert_ffn = 24;
    if (kind != JOINED_EXPERTS)
        return;
    run->config.qkv_bias = run->config.out_bias = run->config.sinks = true;
    run->config.router_bias = run->config.expert_bias = true;
    run->config.glu_limit = 0.5f;
    run->config.glu_alpha = 1.702f;
}

static enum kind first_kind(void) {
    return tiny_is_on_cpu() ? PARTS : EXPERTS;
}

static int choosing_layers(enum kind kind) {
    return kind == SOME_EXPERTS ? LAYERS - 1 : LAYERS;
}

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    run->plan.fetch_used = false;
    tiny_finish(run);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
    int skipped = 0; /* fp16, whose loss scale begins too large */
    for (int i = 0; i < TINY_STEPS; i++) {
        assert_true(isfinite(result->loss[i]));
        skipped += result->skipped[i];
    }
    assert_true(skipped <= (run->dtype == OT_F16 ? TINY_STEPS / 2 : 0));
}

/* How many layers of the plan run in halves. */
static int count_choosing(const struct tiny_run *run) {
    struct ot_model *model;
    int n = 0;
    tiny_open_model(run, &model);
    for (int b = 0; b < ot_model_chain(model)->n_blocks; b++)
        n += ot_block_chooses(ot_model_chain(model), &run->plan, b);
    ot_model_close(model);
    return n;
}

/* ---- the same bits ---- */

/* Moves streamed tiles to the pool in half of the slabs: the others are fetched whole. */
static void stream_less(struct tiny_run *run, uint64_t seed) {
    for (int s = 0; s < run->plan.n_slabs; s++) {
        int *tiles = run->plan.slabs[s].tiles;
        if (ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 0, 82), (uint64_t)s, 2))
            continue;
        tiles[OT_TILE_CPU] += tiles[OT_TILE_STREAM];
        tiles[OT_TILE_STREAM] = 0;
    }
    run->plan.shadow_frames = 0; /* of other tiles than before */
    tiny_finish(run);
}

/* Returns how many layers choose. */
static int check_random_plan(struct tiny_run *run, uint64_t seed, const struct tiny_result *want) {
    struct tiny_result other;
    char what[64];
    tiny_plan(run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    tiny_randomise(run, seed);
    stream_less(run, seed);
    int choosing = count_choosing(run);
    snprintf(what, sizeof what, "%s, random plan %d", ot_dtype_name(run->dtype), (int)seed);
    tiny_train(run, &other);
    tiny_same(want, &other, what);
    tiny_result_free(&other);
    ot_plan_free(&run->plan);
    return choosing;
}

static void random_plans(void **state) {
    (void)state;
    int count = getenv("OT_TEST_SLOW") ? 100 : tests_are_brief() ? 1 : tests_are_few() ? 3 : 10;
    enum { VARIANTS = 12 };
    int first = tiny_is_on_cpu() ? 0 : VARIANTS / 2, choosing = 0;
    for (int variant = first; variant < VARIANTS; variant++) {
        struct tiny_run run;
        struct tiny_result resident;
        enum kind kind = variant < VARIANTS / 2 ? PARTS : (enum kind)(EXPERTS + variant % 3);
        defaults(&run, kind, (enum ot_dtype)(variant % 4 % 3), variant / 2 % 2);
        run.clip = run.dtype != OT_F16 && variant % 6 >= 3 ? 0 : 1.0f;
        run.micro_sequences = 1 + variant % 2;
        train_resident(&run, &resident);
        for (int i = 0; i < count; i++)
            choosing += check_random_plan(&run, (uint64_t)(1000 * variant + i + 1), &resident);
        tiny_result_free(&resident);
    }
    /* Of nearly LAYERS times as many layers; with fewer, this tests nothing. */
    assert_true(choosing > (VARIANTS - first) * count / 2);
}

/* Plans of the search, with every forced home of the weights and all numbers of slots. */
static void homes(void **state) {
    (void)state;
    bool emulated = !tiny_is_on_cpu() && tests_are_few(); /* nvme is the host's, and takes no kernels */
    for (int variant = 2 * (int)first_kind(); variant < 2 * KINDS; variant += emulated ? 3 : 1) {
        struct tiny_run run;
        struct tiny_result resident, other;
        enum kind kind = (enum kind)(variant / 2);
        defaults(&run, kind, OT_BF16, variant & 1);
        train_resident(&run, &resident);
        for (int home = OT_HOME_HOST; home <= (emulated ? OT_HOME_HOST : OT_HOME_NVME); home++)
            for (int slots = 1; slots <= 4; slots += tests_are_few() || tests_are_brief() ? 3 : 1) {
                tiny_plan(&run, (enum ot_home)home, OT_HOME_HOST, OT_HOME_GPU, slots);
                assert_int_equal(count_choosing(&run), choosing_layers(kind));
                tiny_train(&run, &other);
                tiny_same(&resident, &other, "a forced home of the weights");
                tiny_result_free(&other);
                ot_plan_free(&run.plan);
            }
        tiny_result_free(&resident);
    }
}

/* ---- what is copied ---- */

/* Parameters of a layer's slabs that cross the bus if `used` of their parts do. */
static int64_t layer_params(const struct ot_chain *chain, int block, int used) {
    int64_t params = 0;
    for (int u = 0; u < chain->blocks[block].n_uses; u++) {
        const struct ot_slab_spec *slab = &chain->slabs[chain->blocks[block].uses[u].slab];
        params += slab->n_params - (slab->n_parts - used) * ot_slab_part_params(slab);
    }
    return params;
}

static void generate(struct ot_engine *engine, const int32_t *tokens, float *logits, int64_t vocab) {
    check_ok(ot_engine_decode_begin(engine, TINY_SEQUENCE));
    for (int i = 0; i < TINY_SEQUENCE; i++)
        check_ok(ot_engine_decode(engine, tokens + i, 1, logits + i * vocab));
    ot_engine_decode_end(engine);
}

static void open_to_generate(struct tiny_run *run, enum ot_home weights, bool fetch_used,
                             struct tiny_engine *tiny) {
    tiny_plan(run, weights, OT_HOME_HOST, OT_HOME_GPU, 2);
    run->plan.fetch_used = fetch_used;
    run->cache_bytes = 1 << 20;
    run->plan.train = false;
    for (int s = 0; s < run->plan.n_slabs; s++)
        memset(run->plan.slabs[s].tiles, 0, sizeof run->plan.slabs[s].tiles);
    tiny_finish(run);
    tiny_open(run, tiny);
}

/* What a token of generation copies if its layers choose `used` parts each, in parameters. */
static int64_t token_params(const struct ot_chain *chain, int used) {
    int64_t params = 0;
    for (int b = 0; b < chain->n_blocks; b++)
        params += layer_params(chain, b, used);
    return params;
}

static int slabs_with_parts(const struct ot_chain *chain) {
    int n = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        n += chain->slabs[s].n_parts > 0;
    return n;
}

/* A token copies exactly the parts that it chooses, and leaves the others at home. */
static void check_fetches(const struct tiny_engine *tiny, int used) {
    const struct ot_chain *chain = &tiny->chain;
    struct ot_engine_fetches fetches;
    int parts = ot_chain_most_parts(chain), slabs = TINY_SEQUENCE * slabs_with_parts(chain);
    int64_t one = TINY_SEQUENCE * (int64_t)ot_dtype_bytes(chain->dtype);
    ot_engine_get_fetches(tiny->engine, &fetches);
    assert_int_equal(fetches.parts, slabs * parts);
    assert_int_equal(fetches.used, slabs * used);
    assert_int_equal(fetches.bytes, one * token_params(chain, used));
    assert_int_equal(fetches.left_bytes, one * (token_params(chain, parts) - token_params(chain, used)));
}

static void check_generation(enum kind kind, bool lora, enum ot_home home) {
    struct tiny_run run;
    struct tiny_engine tiny;
    struct ot_engine_fetches fetches;
    struct tiny_batch *batch = malloc(sizeof *batch);
    defaults(&run, kind, OT_BF16, lora);
    size_t bytes = (size_t)(TINY_SEQUENCE * run.config.vocab) * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    assert_true(batch && want && got);
    tiny_fill_batch(batch, run.config.vocab, 0, 1, 1);
    open_to_generate(&run, OT_HOME_GPU, false, &tiny);
    generate(tiny.engine, batch->tokens, want, run.config.vocab);
    ot_engine_get_fetches(tiny.engine, &fetches);
    assert_int_equal(fetches.bytes, 0);
    tiny_close(&tiny);
    ot_plan_free(&run.plan);

    open_to_generate(&run, home, true, &tiny);
    generate(tiny.engine, batch->tokens, got, run.config.vocab);
    assert_memory_equal(want, got, bytes);
    check_fetches(&tiny, kind == PARTS ? 1 : 2);
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    free(batch);
    free(want);
    free(got);
}

/* Its logits have the bits of a run that holds everything. */
static void generation(void **state) {
    (void)state;
    for (int kind = (int)first_kind(); kind < KINDS; kind++)
        for (int lora = 0; lora < 2; lora++) {
            check_generation((enum kind)kind, lora, OT_HOME_HOST);
            check_generation((enum kind)kind, lora, OT_HOME_NVME);
        }
}

/* ---- schedules ---- */

/* Their kind is PARTS, of which only sizes count. */
static void open_schedule(struct tiny_schedule *made, int variant) {
    memset(made, 0, sizeof *made);
    defaults(&made->run, PARTS, OT_BF16, variant & 1);
    tiny_plan(&made->run, variant & 2 ? OT_HOME_NVME : OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    ot_plan_set_rounds(&made->run.plan, 1 + variant % 3);
    tiny_finish(&made->run);
    tiny_schedule_make(made);
}

/* The verifier notices each edge that is missing, and each host-side edge that is an ordinary one. */
static void every_edge_counts(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        struct tiny_schedule made;
        int host_side = 0;
        open_schedule(&made, variant);
        tiny_schedule_drop_edges(&made, &made.schedule);
        for (int t = 0; t < made.schedule.n_tasks; t++)
            for (int d = 0; d < made.schedule.tasks[t].n_deps; d++) {
                struct ot_dep *dep = &made.schedule.tasks[t].deps[d];
                if (!dep->on_host)
                    continue;
                host_side++;
                assert_int_equal(made.schedule.tasks[dep->task].kind, OT_TASK_USED_OUT);
                assert_true(made.schedule.tasks[dep->task].needs_notify);
                dep->on_host = false;
                check_fails(ot_schedule_verify(&made.schedule, &made.layout, &made.run.plan), OT_E_INTERNAL,
                            "does not wait");
                dep->on_host = true;
            }
        assert_true(host_side > LAYERS); /* in forward; in backward unless a slot still has the slab */
        tiny_schedule_free(&made);
    }
}

/* A fetch that takes the choice of another round, or that leaves out the parts, is found. */
static void contents_count(void **state) {
    (void)state;
    struct tiny_schedule made;
    int tried = 0;
    open_schedule(&made, 2);
    for (int t = 0; t < made.schedule.n_tasks; t++) {
        struct ot_task *task = &made.schedule.tasks[t];
        if (task->kind != OT_TASK_FORWARD || task->half != OT_HALF_REST)
            continue;
        for (int a = 0; a < task->n_accesses; a++)
            if (task->accesses[a].before.content == OT_CONTENT_USED) {
                task->accesses[a].before.micro++;
                check_fails(ot_schedule_verify(&made.schedule, &made.layout, &made.run.plan), OT_E_INTERNAL,
                            "wrong content");
                task->accesses[a].before.micro--;
                tried++;
            }
    }
    assert_true(tried >= LAYERS);
    tiny_schedule_free(&made);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans),      cmocka_unit_test(homes),          cmocka_unit_test(generation),
        cmocka_unit_test(every_edge_counts), cmocka_unit_test(contents_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
