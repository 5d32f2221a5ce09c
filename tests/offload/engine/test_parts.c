/* Slabs of which only used parts cross the bus (offload/plan/used_parts.h). The bits are those of a run that
 * holds everything, under all homes, slots, levels and rounds, with NaNs wherever a part was not fetched or
 * not decoded; and exactly the chosen parts are copied. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/used_parts.h"
#include "offload/schedule/schedule.h"
#include "src/base/random.h"
#include "tests/offload/tiny_parts.h"
#include "tests/offload/tiny_ranks.h"
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

static void defaults(struct tiny_run *run, enum kind kind, enum ot_dtype dtype) {
    tiny_defaults(run, LAYERS, false, dtype);
    run->parts = kind == PARTS;
    run->evals = true;
    if (kind == PARTS)
        return;
    static const enum ot_family families[KINDS] = {[EXPERTS] = OT_FAMILY_MIXTRAL,
                                                   [SOME_EXPERTS] = OT_FAMILY_QWEN3_MOE,
                                                   [JOINED_EXPERTS] = OT_FAMILY_GPT_OSS};
    run->regular = (struct ot_regular){.balance = 0.5f, .neftune = 1};
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

/* The weights of layers: all trained; frozen under adapters; the same, encoded. */
enum form { TRAINED, FROZEN, ENCODED, FORMS };

/* number: of the way in which an encoded base is encoded. PARTS: one that only tests know. */
static void take_form(struct tiny_run *run, enum form form, int number) {
    static const enum ot_base_type bases[] = {OT_BASE_MXFP4, OT_BASE_NF4, OT_BASE_INT8, OT_BASE_NF4_DOUBLE};
    run->lora = form == TRAINED ? NULL : &LORA;
    run->encodes = form == ENCODED && run->parts;
    run->base = form == ENCODED && !run->parts ? bases[number % 4] : OT_BASE_AUTO;
}

static enum kind first_kind(void) {
    return tiny_is_on_cpu() ? PARTS : EXPERTS;
}

/* The emulated GPU takes a hundred times longer, and nvme is the host's, which runs no kernels. */
static bool is_slow(void) {
    return !tiny_is_on_cpu() && tests_are_few();
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
    int count = getenv("OT_TEST_SLOW") ? 100 : tests_are_brief() ? 1 : 3;
    enum { VARIANTS = 18 };
    int first = tiny_is_on_cpu() ? 0 : VARIANTS / 2, step = is_slow() ? 4 : 1, choosing = 0;
    for (int variant = first; variant < VARIANTS; variant += step) {
        struct tiny_run run;
        struct tiny_result resident;
        enum kind kind = variant < VARIANTS / 2 ? PARTS : (enum kind)(EXPERTS + variant % 3);
        defaults(&run, kind, (enum ot_dtype)(variant % 4 % 3));
        take_form(&run, (enum form)(variant / 3 % FORMS), variant);
        run.clip = run.dtype != OT_F16 && variant % 6 >= 3 ? 0 : 1.0f;
        run.micro_sequences = 1 + variant % 2;
        train_resident(&run, &resident);
        for (int i = 0; i < count; i++)
            choosing += check_random_plan(&run, (uint64_t)(1000 * variant + i + 1), &resident);
        tiny_result_free(&resident);
    }
    /* Of nearly LAYERS times as many layers; with fewer, this tests nothing. */
    assert_true(choosing > (VARIANTS - first) / step * count / 2);
}

/* Plans of the search, with every forced home of the weights and all numbers of slots. */
static void homes(void **state) {
    (void)state;
    int step = is_slow() ? 8 : tests_are_few() ? 2 : 1;
    for (int variant = FORMS * (int)first_kind(); variant < FORMS * KINDS; variant += step) {
        struct tiny_run run;
        struct tiny_result resident, other;
        enum kind kind = (enum kind)(variant / FORMS);
        enum form form = (enum form)(variant % FORMS);
        defaults(&run, kind, OT_BF16);
        take_form(&run, form, variant);
        train_resident(&run, &resident);
        /* On the device, the used parts of an encoded slab are decoded. */
        bool few = form == ENCODED || tests_are_few() || tests_are_brief();
        int first_home = form == ENCODED ? OT_HOME_GPU : OT_HOME_HOST;
        for (int home = first_home; home <= (is_slow() ? OT_HOME_HOST : OT_HOME_NVME); home++)
            for (int slots = 1; slots <= (is_slow() ? 1 : 4); slots += few ? 3 : 1) {
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

/* ---- ranks ---- */

struct fetch_case {
    bool used;
    int layers; /* that then choose */
};

static void set_fetch(struct tiny_run *run, int rank, void *context) {
    const struct fetch_case *fetch = context;
    (void)rank;
    run->plan.fetch_used = fetch->used;
    tiny_finish(run);
    assert_int_equal(count_choosing(run), fetch->used ? fetch->layers : 0);
}

/* Ranks that hold everything, or that share one copy of the weights, gather nothing: each fetches what its
 * own micro-batches choose. They have the bits of ranks that fetch whole slabs. */
static void ranks(void **state) {
    (void)state;
    tiny_needs_cpu();
    for (int variant = 0; variant < 2 * FORMS * KINDS; variant += tests_are_few() ? 5 : 1) {
        struct tiny_run run;
        struct tiny_result whole, used;
        enum form form = (enum form)(variant / 2 % FORMS);
        enum kind kind = (enum kind)(variant / 2 / FORMS);
        struct fetch_case fetch = {false, choosing_layers(kind)};
        defaults(&run, kind, OT_BF16);
        take_form(&run, form, variant);
        run.micro_sequences = 1;
        struct tiny_world world = {.ranks = 2 + variant % 3 / 2,
                                   .mode = variant & 1 ? OT_SHARD_FULL : OT_SHARD_NONE,
                                   .one_copy = variant & 1,
                                   .weights = OT_HOME_HOST,
                                   .state = OT_HOME_HOST,
                                   .activations = OT_HOME_GPU,
                                   .slots = 2,
                                   .change = set_fetch,
                                   .context = &fetch};
        run.fractions[OT_TILE_CPU] = 1;
        tiny_train_ranks(&run, &world, &whole);
        fetch.used = true;
        tiny_train_ranks(&run, &world, &used);
        tiny_same(&whole, &used, "ranks that fetch used parts");
        tiny_result_free(&whole);
        tiny_result_free(&used);
    }
}

/* ---- what is copied ---- */

/* Bytes of a layer's slabs that cross the bus if `used` of their parts do. */
static int64_t layer_bytes(const struct ot_chain *chain, int block, int used) {
    int64_t bytes = 0;
    for (int u = 0; u < chain->blocks[block].n_uses; u++) {
        int s = chain->blocks[block].uses[u].slab;
        const struct ot_slab_spec *slab = &chain->slabs[s];
        int64_t left = (slab->n_parts - used) * ot_slab_part_units(slab);
        bytes += (int64_t)ot_slab_bytes(chain, s, ot_slab_units(chain, s) - left);
    }
    return bytes;
}

static void generate(struct ot_engine *engine, const int32_t *tokens, float *logits, int64_t vocab) {
    check_ok(ot_engine_decode_begin(engine, TINY_SEQUENCE));
    for (int i = 0; i < TINY_SEQUENCE; i++)
        check_ok(ot_engine_decode(engine, tokens + i, 1, logits + i * vocab));
    ot_engine_decode_end(engine);
}

static void open_to_generate(struct tiny_run *run, enum ot_home weights, bool fetch_used,
                             struct tiny_engine *tiny) {
    run->cache_rows = TINY_SEQUENCE;
    tiny_plan(run, weights, OT_HOME_HOST, OT_HOME_GPU, 2);
    run->plan.fetch_used = fetch_used;
    run->plan.train = false;
    for (int s = 0; s < run->plan.n_slabs; s++)
        memset(run->plan.slabs[s].tiles, 0, sizeof run->plan.slabs[s].tiles);
    tiny_finish(run);
    tiny_open(run, tiny);
}

/* What a token of generation copies if its layers choose `used` parts each. */
static int64_t token_bytes(const struct ot_chain *chain, int used) {
    int64_t bytes = 0;
    for (int b = 0; b < chain->n_blocks; b++)
        bytes += layer_bytes(chain, b, used);
    return bytes;
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
    ot_engine_get_fetches(tiny->engine, &fetches);
    assert_int_equal(fetches.parts, slabs * parts);
    assert_int_equal(fetches.used, slabs * used);
    assert_int_equal(fetches.bytes, TINY_SEQUENCE * token_bytes(chain, used));
    assert_int_equal(fetches.left_bytes,
                     TINY_SEQUENCE * (token_bytes(chain, parts) - token_bytes(chain, used)));
}

static void check_generation(enum kind kind, enum form form, enum ot_home home) {
    struct tiny_run run;
    struct tiny_engine tiny;
    struct ot_engine_fetches fetches;
    struct tiny_batch *batch = malloc(sizeof *batch);
    defaults(&run, kind, OT_BF16);
    take_form(&run, form, kind);
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
    if (home != OT_HOME_GPU)
        check_fetches(&tiny, kind == PARTS ? 1 : 2);
    assert_int_equal(count_choosing(&run), choosing_layers(kind));
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    free(batch);
    free(want);
    free(got);
}

/* Its logits have the bits of a run that holds everything. */
static void generation(void **state) {
    (void)state;
    int last_home = is_slow() ? OT_HOME_HOST : OT_HOME_NVME;
    for (int kind = (int)first_kind(); kind < KINDS; kind++)
        for (int form = 0; form < FORMS; form++)
            for (int home = form == ENCODED ? OT_HOME_GPU : OT_HOME_HOST; home <= last_home; home++)
                if (!is_slow() || form == kind - EXPERTS)
                    check_generation((enum kind)kind, (enum form)form, (enum ot_home)home);
}

/* ---- schedules ---- */

/* Their kind is PARTS, of which only sizes count. The last three are encoded, in each home. */
enum { SCHEDULES = 7, FIRST_ENCODED = 4 };
static void open_schedule(struct tiny_schedule *made, int variant) {
    bool encoded = variant >= FIRST_ENCODED;
    enum ot_home home = encoded       ? (enum ot_home)(variant - FIRST_ENCODED)
                        : variant & 2 ? OT_HOME_NVME
                                      : OT_HOME_HOST;
    memset(made, 0, sizeof *made);
    defaults(&made->run, PARTS, OT_BF16);
    take_form(&made->run, encoded ? ENCODED : variant & 1 ? FROZEN : TRAINED, 0);
    tiny_plan(&made->run, home, OT_HOME_HOST, OT_HOME_HOST, 2);
    ot_plan_set_rounds(&made->run.plan, 1 + variant % 3);
    tiny_finish(&made->run);
    tiny_schedule_make(made);
}

/* The verifier notices each edge that is missing, and each host-side edge that is an ordinary one. */
static void every_edge_counts(void **state) {
    (void)state;
    for (int variant = 0; variant < SCHEDULES; variant++) {
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
                char words[64];
                snprintf(words, sizeof words, "(task %d) writes, and its thread does not wait", dep->task);
                check_fails(ot_schedule_verify(&made.schedule, &made.layout, &made.run.plan), OT_E_INTERNAL,
                            words);
                dep->on_host = true;
            }
        assert_true(host_side > LAYERS); /* in forward; in backward unless a slot still has the slab */
        tiny_schedule_free(&made);
    }
}

/* Lets each second half expect the parts of another choice, and each decoding the parts of another fetch. The
 * verifier finds it. Returns how often. */
static int try_contents(struct tiny_schedule *made, enum ot_content content) {
    int tried = 0;
    for (int t = 0; t < made->schedule.n_tasks; t++) {
        struct ot_task *task = &made->schedule.tasks[t];
        bool rest = task->kind == OT_TASK_FORWARD && task->half == OT_HALF_REST;
        for (int a = 0; a < task->n_accesses; a++) {
            struct ot_tag *before = &task->accesses[a].before;
            if (!(rest && before->content == content) &&
                !(task->kind == OT_TASK_DECODE && before->content == OT_CONTENT_USED))
                continue;
            before->micro++;
            check_fails(ot_schedule_verify(&made->schedule, &made->layout, &made->run.plan), OT_E_INTERNAL,
                        "wrong content");
            before->micro--;
            tried++;
        }
    }
    return tried;
}

/* A fetch or a decoding that takes the choice of another round, or that leaves out the parts, is found. */
static void contents_count(void **state) {
    (void)state;
    for (int variant = 2; variant < SCHEDULES; variant += 2) {
        bool encoded = variant >= FIRST_ENCODED;
        struct tiny_schedule made;
        open_schedule(&made, variant);
        assert_true(try_contents(&made, encoded ? OT_CONTENT_DECODED_USED : OT_CONTENT_USED) >= LAYERS);
        tiny_schedule_free(&made);
    }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks),      cmocka_unit_test(random_plans),      cmocka_unit_test(homes),
        cmocka_unit_test(generation), cmocka_unit_test(every_edge_counts), cmocka_unit_test(contents_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
