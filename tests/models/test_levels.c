/* What forward keeps for backward, level by level: each level's bytes are a prefix of those of the next,
 * and all levels give the same losses, gradients and boundary gradients, bit by bit. The runner overwrites
 * work, scratch and what the level does not keep with NaNs, so a backward that reads more than its level
 * keeps gives NaNs. And a first backward, which overwrites the gradients, has the bits of one that adds to
 * zeros. Every second case has all regularisers. All of this also with the micro-batch in chunks, whose
 * results are those of the whole up to the rounding of fp32. Runs on the cpu device, and linked with an
 * emulated or a real cuda device on that. */
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "src/base/minmax.h"
#include "tests/models/chain_runner.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* CHUNK cuts the tokens into four chunks, of which the last one is shorter; rows cross their borders. */
enum {
    TOKENS = 29,
    CHUNK = 8,
    ROW = 15,
    LAYERS = 2,
    ADAPTED = 3,
    DORA = 4,
    DROPPED = 6,
    MAX_SLABS = 2 * (LAYERS + 2)
};
/* After the cases with names of their own: forms of a layer, each plain, with adapters, with DoRA, and with
 * DoRA and dropout. */
enum { FIRST_FORM = 8, FORMS = 15, FIRST_EXPERTS = 12, PER_FORM = 4, CASES = FIRST_FORM + PER_FORM * FORMS };

struct tokens {
    int32_t id[TOKENS], target[TOKENS], position[TOKENS], row_start[TOKENS];
};

static struct ot_lora_rank rank_of(const void *with_experts, const char *module) {
    if (ot_lora_is_of_experts(module))
        return (struct ot_lora_rank){!with_experts ? 0 : strstr(module, "down") ? 2 : 3, 5};
    const char *last = strrchr(module, '_') - 1; /* the letter before "_proj" or "_head" */
    return (struct ot_lora_rank){*last == 'v' ? 3 : strchr("qopnm", *last) ? 2 : 0, 3};
}

static struct ot_lora_rank rank_with_embedding(const void *with_experts, const char *module) {
    return strcmp(module, "model.embed_tokens") == 0 ? (struct ot_lora_rank){3, 2}
                                                     : rank_of(with_experts, module);
}

/* Adapters on the embedding, q, v, o, up, down and the head, so that a unit has a map without one; and with
 * other scales. With dropout; with experts, which have none. */
static const struct ot_lora lora = {.choose = rank_with_embedding, .dropout = 0.3f};
static const struct ot_lora of_experts = {.choose = rank_with_embedding, .context = ""};
static const struct ot_lora dora = {.choose = rank_of, .dora = true};
static const struct ot_lora dropped = {.choose = rank_of, .dora = true, .dropout = 0.3f};
static const struct ot_model_setup adapted = {.lora = &lora}, with_dora = {.lora = &dora},
                                   with_dropped = {.lora = &dropped}, with_experts = {.lora = &of_experts};

/* True if results are made again of u: with DoRA and without dropout. */
static bool makes_again(int i) {
    return i < FIRST_FORM ? i >= DORA && i < DROPPED : (i - FIRST_FORM) % PER_FORM == 2;
}

static const struct ot_model_setup *parts_of(int i) {
    static const struct ot_model_setup *const of_form[PER_FORM] = {NULL, &adapted, &with_dora, &with_dropped};
    if (i >= FIRST_FORM + PER_FORM * FIRST_EXPERTS && (i - FIRST_FORM) % PER_FORM == 1)
        return &with_experts;
    if (i >= FIRST_FORM)
        return of_form[(i - FIRST_FORM) % PER_FORM];
    return i == ADAPTED ? &adapted : i >= DROPPED ? &with_dropped : i >= DORA ? &with_dora : NULL;
}

/* All places of norms, both kinds; branches one after the other and beside each other; all norms of q and k;
 * both kinds of MLP; all kinds of positions, and two ropes; caps. */
static struct ot_model_config make_form(int i) {
    struct ot_model_config c = tiny_config(LAYERS, i % 4 == 3);
    c.norm = i % 2 ? OT_NORM_LAYER : OT_NORM_RMS;
    c.norm_adds_one = i % 5 == 2;
    c.norm_place = i % 3 == 1 ? OT_NORMS_AFTER : i % 3 == 2 ? OT_NORMS_AROUND : OT_NORMS_BEFORE;
    c.residual = i % 3 ? OT_SEQUENTIAL : i / 3 % 2 ? OT_PARALLEL : OT_PARALLEL_TWO;
    c.qk_norm = (enum ot_qk_norm)(i / 2 % 3);
    c.plain_mlp = i % 4 < 2;
    c.positions = i % 6 == 0 ? OT_POSITIONS_LEARNED : i % 6 == 1 ? OT_POSITIONS_ALIBI : OT_POSITIONS_ROPE;
    c.embed_norm = i % 6 < 2;
    c.embed_scale = i % 4 == 1 ? 3.3 : 0;
    c.qkv_bias = c.out_bias = c.mlp_bias = i % 2;
    c.head_bias = i % 2;
    c.window = i % 4 == 2 ? 5 : 0;
    c.window_by_layer = c.window > 0;
    c.window_layers.bits[0] = 2;
    c.local_rope_theta = c.window > 0 ? 50 : 0;
    c.rope_interleaved = i % 6 == 3;
    c.attention_softcap = i % 3 == 2 ? 2 : 0;
    c.logit_softcap = i % 3 == 2 ? 3 : 0;
    return c;
}

/* Experts in both layers; in the second alone, with weights of the softmax over all; in both with all biases,
 * interleaved gate and up, and sinks. */
static struct ot_model_config make_experts(int form) {
    bool some = form == 1;
    struct ot_model_config c = tiny_config(LAYERS, some);
    c.family = some ? OT_FAMILY_QWEN3_MOE : OT_FAMILY_MIXTRAL;
    c.qk_norm = some ? OT_QK_NORM_HEADS : OT_QK_NORM_NONE;
    c.n_experts = some ? 9 : 4;
    c.top_experts = some ? 3 : 2;
    c.expert_ffn = 24;
    c.router_over_all = some;
    c.dense_layers.bits[0] = some;
    c.window = some ? 5 : 0; /* level `attention` keeps q, k and v */
    if (form == 2) {
        c.family = OT_FAMILY_GPT_OSS;
        c.qkv_bias = c.out_bias = c.sinks = c.router_bias = c.expert_bias = true;
        c.glu_limit = 0.5f;
        c.glu_alpha = 1.702f;
    }
    return c;
}

/* Plain; with every optional tensor; with a window in the second layer, so small that level `attention`
 * keeps q, k and v there; the same with a tied head and adapters over a frozen base; the same with DoRA;
 * with DoRA and every optional tensor; these two with dropout. */
static struct ot_model_config make_plain_config(int i) {
    if (i >= FIRST_FORM)
        return (i - FIRST_FORM) / PER_FORM < FIRST_EXPERTS
                   ? make_form((i - FIRST_FORM) / PER_FORM)
                   : make_experts((i - FIRST_FORM) / PER_FORM - FIRST_EXPERTS);
    struct ot_model_config c = tiny_config(LAYERS, i == 1 || i == ADAPTED || i == DORA || i == DROPPED);
    if (i > 0) {
        c.qkv_bias = c.out_bias = c.mlp_bias = i == 1 || i == DORA + 1 || i == DROPPED + 1;
        c.qk_norm = i == 1 || i == DORA + 1 || i == DROPPED + 1;
    }
    if (i >= 2) {
        c.window = 5;
        c.window_by_layer = true;
        c.window_layers.bits[0] = 2;
        c.qk_norm = true;
    }
    return c;
}

/* With dropouts. No family has a norm or experts behind what it drops. */
static struct ot_model_config make_config(int i) {
    struct ot_model_config c = make_plain_config(i);
    c.embed_drop = 0.1f;
    c.attention_drop = 0.2f;
    if (!ot_model_has_norms_after(&c) && c.n_experts == 0)
        c.o_drop = 0.3f, c.mlp_drop = 0.25f;
    return c;
}

static struct runner_batch make_batch(const struct ot_model_config *config, struct tokens *t) {
    for (int i = 0; i < TOKENS; i++) {
        t->id[i] = (int32_t)((i * 7 + i / 5) % config->vocab);
        t->target[i] = i % 6 == 2 ? -1 : (int32_t)((i * 5 + 1) % config->vocab);
        t->position[i] = i % ROW;
        t->row_start[i] = i - i % ROW;
    }
    return (struct runner_batch){TOKENS,        t->id, t->target, t->position, t->row_start,
                                 1.0f / TOKENS, 0,     NULL,      NULL};
}

/* B of the adapters is not zero, so that A has a gradient; nor are the changes of magnitudes. */
static struct runner *open_case(int i, const struct ot_model_config *config, enum ot_dtype dtype) {
    struct runner *runner = runner_open(config, parts_of(i), dtype, TOKENS, 2);
    const struct ot_model *model = runner_model(runner);
    const struct ot_regular regular = {.neftune = 4,
                                       .label_smoothing = 0.2f,
                                       .z_loss = 0.01f,
                                       .balance = config->n_experts > 0 ? 0.4f : 0,
                                       .dropout = true};
    if (i % 2 == 0 || config->n_experts > 0)
        runner_set_regular(runner, &regular);
    float values[2048];
    for (int j = 0; j < 2048; j++)
        values[j] = 0.01f * (float)(j % 17 - 8);
    runner_init_weights(runner, 11);
    for (int64_t t = 0; t < ot_model_tensor_count(model); t++) {
        const struct ot_tensor *tensor = ot_model_tensor(model, t);
        if (!strstr(tensor->name, "lora_B") && !strstr(tensor->name, "lora_magnitude") &&
            !strstr(tensor->name, "lora_embedding_A"))
            continue;
        assert_true(tensor->rows * tensor->cols <= 2048);
        runner_set_tensor(runner, tensor, values);
    }
    return runner;
}

/* Few tests: a fifth of the forms, each with other parts than its neighbours. */
static bool is_left_out(int i) {
    return tests_are_few() && i >= FIRST_FORM && (i / PER_FORM + i % PER_FORM) % 5 != 0;
}

/* ---- bytes ---- */

/* remakes: the results of products are made again of u, or mid of what a norm reads, and kept at the highest
 * level. */
static void check_sizes(const struct ot_chain *chain, int block, bool remakes, int64_t n) {
    bool layer = block > 0 && block < chain->n_blocks - 1;
    size_t saved[OT_KEEP_LEVELS], work[OT_KEEP_LEVELS];
    for (int i = 0; i < OT_KEEP_LEVELS; i++) {
        enum ot_keep_level level = (enum ot_keep_level)i;
        saved[i] = chain->saved_bytes(chain->context, block, level, n);
        work[i] = chain->work_bytes(chain->context, block, level, n);
        assert_true(i == 0 || (layer ? saved[i] > saved[i - 1] : saved[i] == 0));
        assert_true(layer || work[i] == 0);
        if (i <= OT_KEEP_PRODUCTS)
            assert_int_equal(saved[i] + work[i], work[OT_KEEP_NONE]);
    }
    assert_int_equal(saved[OT_KEEP_NONE], 0);
    assert_true((work[OT_KEEP_PRODUCTS] > 0) == (layer && remakes));
    assert_int_equal(work[OT_KEEP_ALL], 0);
}

static void test_levels_are_nested(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const struct ot_model_config config = make_config(i);
        struct ot_model *model;
        check_ok(ot_model_open_setup(&config, OT_BF16, config.max_position, parts_of(i), &model));
        const struct ot_chain *chain = ot_model_chain(model);
        for (int b = 0; b < chain->n_blocks; b++)
            for (int64_t n = 1; n < 400; n += 57)
                check_sizes(chain, b, makes_again(i) || ot_model_has_norms_after(&config), n);
        ot_model_close(model);
    }
}

/* Bytes of q, k and v in a row of `attention` minus attention's output and its lse. */
static int64_t attention_extra(int64_t max_position, int64_t window) {
    struct ot_model_config config = tiny_config(1, false);
    struct ot_model *model;
    int64_t n = 64 * 256; /* so many that no piece needs padding */
    config.window = window;
    check_ok(ot_model_open(&config, OT_BF16, max_position, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    size_t bytes = chain->saved_bytes(chain->context, 1, OT_KEEP_ATTENTION, n);
    ot_model_close(model);
    return (int64_t)bytes / n - (config.hidden * 2 + config.n_heads * 4);
}

/* A query that sees more than a quarter of `hidden` keys (here 8) makes attention's output the better
 * bargain: then q, k and v are not part of its level. */
static void test_attention_keeps_qkv_where_that_is_cheaper(void **state) {
    (void)state;
    int64_t qkv = 2 * (32 + 2 * 16);
    assert_int_equal(attention_extra(15, 0), qkv);
    assert_int_equal(attention_extra(16, 0), 0);
    assert_int_equal(attention_extra(64, 8), qkv);
    assert_int_equal(attention_extra(64, 10), 0);
}

/* ---- bits ---- */

/* What a training pass leaves: losses, gradients of slabs, gradients of boundaries. */
struct results {
    float loss[TOKENS], *slab[MAX_SLABS]; /* NULL: frozen */
    void *boundary[LAYERS + 1];
};

/* Of the blocks before the first trained one, backward computes nothing. */
static int first_boundary(const struct ot_chain *chain) {
    int first = ot_chain_first_trained(chain);
    return first > 0 ? first - 1 : 0;
}

static void take_results(struct runner *runner, const struct runner_batch *batch, enum ot_keep_level level,
                         bool first, struct results *out) {
    if (first)
        runner_begin_grads(runner);
    else
        runner_zero_grads(runner);
    runner_train(runner, batch, level, out->loss);
    const struct ot_chain *chain = ot_model_chain(runner_model(runner));
    for (int s = 0; s < MAX_SLABS; s++)
        out->slab[s] = s < chain->n_slabs && !chain->slabs[s].frozen ? runner_slab_grad(runner, s) : NULL;
    for (int b = 0; b < LAYERS + 1; b++)
        out->boundary[b] = runner_boundary_grad(runner, b, TOKENS);
}

static void free_results(struct results *results) {
    for (int s = 0; s < MAX_SLABS; s++)
        free(results->slab[s]);
    for (int b = 0; b < LAYERS + 1; b++)
        free(results->boundary[b]);
}

static void check_same(struct runner *runner, const struct results *got, const struct results *want) {
    const struct ot_chain *chain = ot_model_chain(runner_model(runner));
    size_t boundary = (size_t)(TOKENS * chain->boundary_elems) * ot_dtype_bytes(chain->dtype);
    assert_memory_equal(got->loss, want->loss, sizeof got->loss);
    for (int s = 0; s < MAX_SLABS; s++) {
        assert_true(!got->slab[s] == !want->slab[s]);
        if (got->slab[s])
            assert_memory_equal(got->slab[s], want->slab[s],
                                (size_t)chain->slabs[s].n_params * sizeof(float));
    }
    for (int b = first_boundary(chain); b < LAYERS + 1; b++)
        assert_memory_equal(got->boundary[b], want->boundary[b], boundary);
}

/* Equal NaNs would be equal bits. */
static void check_finite(const struct results *results, const struct ot_chain *chain) {
    for (int s = 0; s < MAX_SLABS; s++)
        for (int64_t i = 0; results->slab[s] && i < chain->slabs[s].n_params; i++)
            assert_true(results->slab[s][i] - results->slab[s][i] == 0);
}

/* Chunks cut sums over tokens, so fp32 rounds them elsewhere: by some 2^-24 of the addends of a sum of few
 * tokens, whose largest are near 1. */
static void check_results_close(const struct ot_chain *chain, const struct results *got,
                                const struct results *want) {
    const double absolute = 2e-6, relative = 2e-5;
    check_close("loss", got->loss, want->loss, TOKENS, absolute, relative);
    for (int s = 0; s < MAX_SLABS; s++)
        if (got->slab[s])
            check_close(chain->slabs[s].name, got->slab[s], want->slab[s], chain->slabs[s].n_params, absolute,
                        relative);
    for (int b = first_boundary(chain); b < LAYERS + 1; b++)
        check_close("boundary", got->boundary[b], want->boundary[b], TOKENS * chain->boundary_elems, absolute,
                    relative);
}

/* in_chunks: the micro-batch takes chunks of CHUNK tokens. */
static void check_levels(int i, enum ot_dtype dtype, bool in_chunks) {
    const struct ot_model_config config = make_config(i);
    struct tokens tokens;
    const struct runner_batch batch = make_batch(&config, &tokens);
    struct runner *runner = open_case(i, &config, dtype);
    struct results whole = {0}, want, got;
    float eval_loss[2][TOKENS];
    bool compares_whole = in_chunks && dtype == OT_F32;
    if (compares_whole)
        take_results(runner, &batch, OT_KEEP_NONE, false, &whole);
    if (in_chunks)
        runner_set_chunk(runner, CHUNK);
    take_results(runner, &batch, OT_KEEP_NONE, false, &want);
    check_finite(&want, ot_model_chain(runner_model(runner)));
    if (compares_whole)
        check_results_close(ot_model_chain(runner_model(runner)), &want, &whole);
    for (int level = OT_KEEP_NONE; level < OT_KEEP_LEVELS; level++) {
        take_results(runner, &batch, (enum ot_keep_level)level, level % 2 == 0, &got);
        check_same(runner, &got, &want);
        runner_keep(runner, (enum ot_keep_level)level);
        runner_eval(runner, &batch, eval_loss[level > OT_KEEP_NONE]);
        assert_memory_equal(eval_loss[level > OT_KEEP_NONE], eval_loss[0], sizeof eval_loss[0]);
        free_results(&got);
    }
    free_results(&whole);
    free_results(&want);
    runner_close(runner);
}

static void test_levels_give_the_same_bits(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            if (!is_left_out(i) && (i < FIRST_FORM || i / PER_FORM % 3 == dtype)) /* a form in one dtype */
                check_levels(i, (enum ot_dtype)dtype, false);
}

static void test_chunks_have_levels_too(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            if (!is_left_out(i) &&
                (i < FIRST_FORM || (i / PER_FORM + 1) % 3 == dtype || (dtype == OT_F32 && !tests_are_few())))
                check_levels(i, (enum ot_dtype)dtype, true);
}

/* In a micro-batch of many chunks, work and scratch grow with the rows that attention needs of all tokens
 * alone. */
static void test_chunks_bound_the_work(void **state) {
    (void)state;
    const struct ot_model_config config = tiny_config(1, false);
    struct ot_model *model;
    check_ok(ot_model_open(&config, OT_BF16, config.max_position, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    int64_t n = 64 * OT_CHUNK_TOKENS, q = config.n_heads * config.head_dim;
    int64_t qkv = q + 2 * config.n_kv_heads * config.head_dim, lse = config.n_heads * 4;
    size_t work[2], scratch[2];
    for (int i = 0; i < 2; i++) {
        work[i] = chain->work_bytes(chain->context, 1, OT_KEEP_NONE, (i + 1) * n);
        scratch[i] = chain->scratch_bytes(chain->context, 1, (i + 1) * n);
    }
    assert_int_equal((int64_t)(work[1] - work[0]), n * (2 * (q + qkv) + lse));
    assert_int_equal((int64_t)(scratch[1] - scratch[0]), n * (2 * (qkv + ot_max(config.hidden, q)) + lse));
    ot_model_close(model);
}

/* Two halves, each without what it may not read, give the bits of one forward, at all levels alike. The fewer
 * tokens there are, the more experts nobody chooses. Few tests: every second level. */
static void check_halves(int i, enum ot_dtype dtype, int64_t n, bool in_chunks) {
    const struct ot_model_config config = make_config(i);
    struct tokens tokens;
    struct runner_batch batch = make_batch(&config, &tokens);
    struct runner *runner = open_case(i, &config, dtype);
    const struct ot_chain *chain = ot_model_chain(runner_model(runner));
    float whole_loss[TOKENS], loss[TOKENS];
    struct results want, got;
    batch.n = n;
    if (in_chunks)
        runner_set_chunk(runner, CHUNK);
    take_results(runner, &batch, OT_KEEP_NONE, false, &want);
    check_finite(&want, chain);
    runner_eval(runner, &batch, whole_loss);
    runner_use_halves(runner);
    for (int level = tests_are_few() ? i / 2 % 2 : 0; level < OT_KEEP_LEVELS;
         level += tests_are_few() ? 2 : 1) {
        take_results(runner, &batch, (enum ot_keep_level)level, true, &got);
        for (int s = 0; s < MAX_SLABS; s++)
            if (got.slab[s])
                assert_memory_equal(got.slab[s], want.slab[s],
                                    (size_t)chain->slabs[s].n_params * sizeof(float));
        assert_memory_equal(got.loss, want.loss, (size_t)n * sizeof(float));
        free_results(&got);
    }
    runner_eval(runner, &batch, loss);
    assert_memory_equal(loss, whole_loss, (size_t)n * sizeof(float));
    free_results(&want);
    runner_close(runner);
}

static void test_halves_give_the_same_bits(void **state) {
    (void)state;
    int64_t next = tests_are_few() ? 28 : 14;
    for (int i = FIRST_FORM + PER_FORM * FIRST_EXPERTS; i < CASES; i++) {
        for (int64_t n = 1; n <= TOKENS; n += next)
            check_halves(i, i % 2 ? OT_BF16 : OT_F32, n, n > CHUNK);
        check_halves(i, OT_F32, TOKENS, false);
    }
}

/* What forward keeps at a level is the first part of what it keeps at the highest. So a block that kept
 * more may go on as one that kept less. */
static void test_what_is_kept_is_a_prefix(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        if (is_left_out(i))
            continue;
        const struct ot_model_config config = make_config(i);
        struct tokens tokens;
        const struct runner_batch batch = make_batch(&config, &tokens);
        struct runner *runner = open_case(i, &config, OT_BF16);
        const struct ot_chain *chain = ot_model_chain(runner_model(runner));
        for (int b = 1; b <= LAYERS; b++) {
            char *all = runner_forward_saved(runner, &batch, OT_KEEP_ALL, b);
            for (int level = OT_KEEP_ATTENTION; level < OT_KEEP_ALL; level++) {
                enum ot_keep_level kept = (enum ot_keep_level)level;
                char *part = runner_forward_saved(runner, &batch, kept, b);
                assert_memory_equal(part, all, chain->saved_bytes(chain->context, b, kept, TOKENS));
                free(part);
            }
            free(all);
        }
        runner_close(runner);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_are_nested),
        cmocka_unit_test(test_attention_keeps_qkv_where_that_is_cheaper),
        cmocka_unit_test(test_levels_give_the_same_bits),
        cmocka_unit_test(test_chunks_have_levels_too),
        cmocka_unit_test(test_chunks_bound_the_work),
        cmocka_unit_test(test_halves_give_the_same_bits),
        cmocka_unit_test(test_what_is_kept_is_a_prefix),
    };
    tiny_skip_without_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
