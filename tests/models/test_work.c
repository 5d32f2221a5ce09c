/* The table of work (models/decoder_work.c) beside what the blocks enqueue. A device that computes nothing
 * counts each op by its contract, so models of any size run here without memory.
 *
 * Counted as moved bytes: every array that grows with the tokens and has a row of values for each, once
 * for each time that an op reads or writes it. Products count their FLOPs instead, and an addend that is
 * not their own result; attention counts its FLOPs alone, because its rate was measured with all that it
 * moves (q, k, v, lse, delta). A product with one size as small as a rank of an adapter takes as long as
 * its arrays take to be moved, so they are counted too, beside its FLOPs. So are the weights of which DoRA
 * computes norms. Not counted: other weights, tables, token ids, and single numbers of a row. They are small
 * or stay in the caches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "models/model.h"
#include "offload/plan/slabs.h"
#include "tests/support/check.h"

enum { TOKENS = 3072, ROW = 1024, VARIANTS = 3, THIN = 16 };

/* ---- a device that counts ---- */

static struct counts {
    double product_flops, group_flops, attention_flops, moved_bytes, filled_bytes;
} counted;

static void move(double rows, int64_t cols, enum ot_dtype dtype, double times) {
    counted.moved_bytes += times * rows * (double)cols * (double)ot_dtype_bytes(dtype);
}

/* An address that nothing reads: only ops would. Distinct arrays have distinct addresses, those of weights
 * and gradients the highest. */
enum { FIRST_TENSOR = 8 };
static void *somewhere(int number) {
    return (void *)((uintptr_t)(number + 1) << 40);
}

static void move_unless_tensor(const void *array, int64_t rows, int64_t cols, enum ot_dtype dtype,
                               double times) {
    if ((uintptr_t)array < (uintptr_t)somewhere(FIRST_TENSOR))
        move((double)rows, cols, dtype, times);
}

static void count_gemm(struct ot_lane *lane, const struct ot_gemm *op) {
    (void)lane;
    counted.product_flops += 2.0 * (double)op->m * (double)op->n * (double)op->k;
    if (op->m <= THIN || op->n <= THIN || op->k <= THIN) {
        bool whole_weight = op->m > THIN && op->k > THIN; /* DoRA's product of a weight with A */
        if (whole_weight)
            move((double)op->m, op->k, op->dtype, 1);
        else
            move_unless_tensor(op->a, op->m, op->k, op->dtype, 1);
        move_unless_tensor(op->b, op->k, op->n, op->dtype, 1);
        move_unless_tensor(op->c, op->m, op->n, op->c_dtype, op->addend ? 2 : 1);
    } else if (op->addend && op->addend != op->c)
        move((double)op->m, op->n, op->c_dtype, 1);
}

static void count_dora_factors(struct ot_lane *lane, const struct ot_dora_factors *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 1);
    move((double)op->rows, op->rank, OT_F32, 1);
}

static void count_dora(struct ot_lane *lane, const struct ot_dora *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 2 + !!op->less + !!op->addend);
}

static void count_dora_backward(struct ot_lane *lane, const struct ot_dora_backward *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, op->du ? 2 : 1);
    if (op->dchange)
        move((double)op->rows, op->cols, op->u_dtype, 1);
}

static void count_dropout(struct ot_lane *lane, const struct ot_dropout *op) {
    (void)lane;
    move((double)op->n, 1, op->dtype, op->addend ? 3 : 2);
}

static void count_bias_backward(struct ot_lane *lane, const struct ot_bias_backward *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 1);
}

static void count_embed(struct ot_lane *lane, const struct ot_embed *op) {
    (void)lane;
    if (!op->partial) /* a table of few tokens */
        move((double)op->n, op->cols, op->dtype, 2);
}

static void count_embed_backward(struct ot_lane *lane, const struct ot_embed_backward *op) {
    (void)lane;
    if (op->partial)
        return;
    move((double)op->n, op->cols, op->dtype, 1);
    move((double)op->n, op->cols, OT_F32, 2);
}

static void count_norm(struct ot_lane *lane, const struct ot_norm *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 2);
}

static void count_norm_backward(struct ot_lane *lane, const struct ot_norm_backward *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, op->dx_add ? 4 : 3);
}

static void count_rope(struct ot_lane *lane, const struct ot_rope *op) {
    (void)lane;
    move((double)(op->n * op->heads), op->rotary_dim, op->dtype, 2);
}

static double attention_of(const struct ot_attention *op, int products) {
    double pairs = 0;
    assert_int_equal(op->n_keys, op->n);
    for (int64_t i = 0; i < op->n; i++) {
        int64_t keys = i - op->row_start[i] + 1;
        pairs += (double)(op->window && keys > op->window ? op->window : keys);
    }
    return 2.0 * products * pairs * (double)(op->heads * op->head_dim);
}

static void count_attention(struct ot_lane *lane, const struct ot_attention *op) {
    (void)lane;
    counted.attention_flops += attention_of(op, 2);
}

static void count_attention_backward(struct ot_lane *lane, const struct ot_attention_backward *op) {
    (void)lane;
    counted.attention_flops += attention_of(&op->forward, 5);
}

static double spans_of(const struct ot_attend_spans *op, int products) {
    double pairs = 0;
    for (int64_t i = 0; i < op->n; i++)
        pairs += op->key_end[i] > op->key_first[i] ? op->key_end[i] - op->key_first[i] : 0;
    return 2.0 * products * pairs * (double)(op->heads * op->head_dim);
}

static void count_attend_spans(struct ot_lane *lane, const struct ot_attend_spans *op) {
    (void)lane;
    counted.attention_flops += spans_of(op, 2);
}

static void count_attend_spans_backward(struct ot_lane *lane, const struct ot_attend_spans_backward *op) {
    (void)lane;
    counted.attention_flops += spans_of(&op->forward, 5);
}

static void count_glu(struct ot_lane *lane, const struct ot_glu *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 3);
}

static void count_glu_backward(struct ot_lane *lane, const struct ot_glu_backward *op) {
    (void)lane;
    move((double)op->forward.rows, op->forward.cols, op->forward.dtype, 5);
}

static void count_add(struct ot_lane *lane, const struct ot_add *op) {
    (void)lane;
    move((double)op->n, 1, op->dtype, 3);
}

static void count_activate(struct ot_lane *lane, const struct ot_activate *op) {
    (void)lane;
    move((double)op->n, 1, op->dtype, 2);
}

static void count_activate_backward(struct ot_lane *lane, const struct ot_activate_backward *op) {
    (void)lane;
    move((double)op->n, 1, op->dtype, 3);
}

static void count_cross_entropy(struct ot_lane *lane, const struct ot_cross_entropy *op) {
    (void)lane;
    move((double)op->rows, op->vocab, OT_F32, op->grad ? 2 : 1);
    if (op->grad)
        move((double)op->rows, op->vocab, op->grad_dtype, 1);
}

static void count_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes) {
    (void)lane, (void)device_dst, (void)byte;
    counted.filled_bytes += (double)bytes;
}

/* ids and weights of the router are single numbers of a row, and so are the numbers of groups. */
static void count_router(struct ot_lane *lane, const struct ot_router *op) {
    (void)lane;
    move((double)op->n, op->experts, op->dtype, 1);
}

static void count_router_backward(struct ot_lane *lane, const struct ot_router_backward *op) {
    (void)lane;
    move((double)op->forward.n, op->forward.experts, op->forward.dtype, 2);
}

static void count_group(struct ot_lane *lane, const struct ot_group *op) {
    (void)lane, (void)op;
}

static void count_gather(struct ot_lane *lane, const struct ot_gather *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 2);
}

static void count_combine(struct ot_lane *lane, const struct ot_combine *op) {
    (void)lane;
    move((double)(op->n * op->top), op->cols, op->dtype, 1);
    move((double)op->n, op->cols, op->dtype, op->addend ? 2 : 1);
}

static void count_combine_backward(struct ot_lane *lane, const struct ot_combine_backward *op) {
    (void)lane;
    move((double)op->rows, op->cols, op->dtype, 3);
}

static void count_gemm_groups(struct ot_lane *lane, const struct ot_gemm_groups *op) {
    (void)lane;
    int64_t width = op->form == OT_GROUPS_ROWS ? op->k : op->m;
    if (width == 1) /* ones, and the rows that they add: the gradient of biases, which bytes alone bound */
        move((double)op->rows, op->n + 1, op->dtype, 1);
    else
        counted.group_flops += 2.0 * (double)op->rows * (double)op->n * (double)width;
    if (width > 1 && (op->n <= THIN || width <= THIN)) {
        move((double)op->rows, width, op->dtype, 1);
        move((double)op->rows, op->n, op->dtype, op->form == OT_GROUPS_ROWS && op->addend ? 2 : 1);
    }
}

static void count_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src,
                       size_t bytes) {
    (void)lane, (void)dst, (void)src;
    assert_int_equal(kind, OT_COPY_D2D);
    counted.moved_bytes += 2 * (double)bytes;
}

/* An op that is not listed is NULL, so a block that begins to use it crashes this test. */
static const struct ot_ops counting_ops = {.gemm = count_gemm,
                                           .bias_backward = count_bias_backward,
                                           .dropout = count_dropout,
                                           .dora_factors = count_dora_factors,
                                           .dora = count_dora,
                                           .dora_backward = count_dora_backward,
                                           .embed = count_embed,
                                           .embed_backward = count_embed_backward,
                                           .norm = count_norm,
                                           .norm_backward = count_norm_backward,
                                           .rope = count_rope,
                                           .attention = count_attention,
                                           .attention_backward = count_attention_backward,
                                           .attend_spans = count_attend_spans,
                                           .attend_spans_backward = count_attend_spans_backward,
                                           .glu = count_glu,
                                           .glu_backward = count_glu_backward,
                                           .activate = count_activate,
                                           .activate_backward = count_activate_backward,
                                           .add = count_add,
                                           .router = count_router,
                                           .router_backward = count_router_backward,
                                           .group = count_group,
                                           .gather = count_gather,
                                           .combine = count_combine,
                                           .combine_backward = count_combine_backward,
                                           .gemm_groups = count_gemm_groups,
                                           .cross_entropy = count_cross_entropy};
static const struct ot_device_api counting_api = {.fill = count_fill, .copy = count_copy};
static struct ot_device counting_device = {.api = &counting_api, .ops = &counting_ops};
static struct ot_lane counting_lane = {.device = &counting_device};

/* ---- calls ---- */

static int32_t row_start[TOKENS], input_first[TOKENS], input_end[TOKENS], key_end[TOKENS];

/* Rows whose first half is inputs. */
static void make_pairs(struct ot_batch_view *batch) {
    enum { HALF = ROW / 2 };
    batch->n_inputs = TOKENS / 2;
    for (int i = 0; i < TOKENS; i++) {
        int at = i % (TOKENS / 2);
        row_start[i] = i - at % HALF;
        input_first[i] = at - at % HALF;
        input_end[i] = input_first[i] + HALF;
        key_end[i] = i < TOKENS / 2 ? input_end[i] : i + 1;
    }
    batch->input_first = input_first;
    batch->input_end = input_end;
    batch->key_end = key_end;
}

static struct ot_block_run make_run(const struct ot_chain *chain, int block, enum ot_keep_level level,
                                    bool first) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    struct ot_block_run run = {.lane = &counting_lane,
                               .dtype = chain->dtype,
                               .pass = OT_PASS_TRAIN,
                               .batch = {.n_tokens = TOKENS, .row_start = row_start},
                               .constants = somewhere(0),
                               .first = first,
                               .x = somewhere(1),
                               .y = somewhere(2),
                               .dxy = somewhere(3),
                               .saved = somewhere(4),
                               .saved_level = level,
                               .work = somewhere(5),
                               .scratch = somewhere(6),
                               .token_loss = somewhere(7)};
    for (int use = 0; use < spec->n_uses; use++) {
        run.weights[use] = somewhere(FIRST_TENSOR + use);
        if (!chain->slabs[spec->uses[use].slab].frozen)
            run.grads[use] = somewhere(FIRST_TENSOR + OT_MAX_USES + use);
    }
    for (int i = 0; i < TOKENS; i++)
        row_start[i] = i - i % ROW;
    if (chain->has_pairs)
        make_pairs(&run.batch);
    return run;
}

/* The last block has a forward of its own in evaluation alone. */
static struct counts count_forward(const struct ot_chain *chain, int block) {
    struct ot_block_run run = make_run(chain, block, OT_KEEP_ALL, false);
    if (block == chain->n_blocks - 1)
        run.pass = OT_PASS_EVAL, run.saved_level = OT_KEEP_NONE;
    counted = (struct counts){0};
    chain->forward(chain->context, block, &run);
    return counted;
}

static struct counts count_backward(const struct ot_chain *chain, int block, enum ot_keep_level level,
                                    bool first) {
    struct ot_block_run run = make_run(chain, block, level, first);
    counted = (struct counts){0};
    chain->backward(chain->context, block, &run);
    return counted;
}

static struct counts less(struct counts a, struct counts b) {
    return (struct counts){a.product_flops - b.product_flops, a.group_flops - b.group_flops,
                           a.attention_flops - b.attention_flops, a.moved_bytes - b.moved_bytes,
                           a.filled_bytes - b.filled_bytes};
}

/* ---- the table ---- */

static void check_one(const char *what, int block, const char *kind, double table, double want) {
    if (!(fabs(table - want) <= 1e-12 * fmax(fabs(want), 1e6))) /* sums of doubles in another order */
        fail_msg("%s of block %d: %s are %.15g in the table, %.15g counted", what, block, kind, table, want);
}

static void check_part(const struct ot_chain *chain, int block, enum ot_work_kind kind,
                       enum ot_keep_level level, struct counts want) {
    static const char *const names[] = {"forward", "backward", "recomputation", "clearing"};
    struct ot_block_work work;
    chain->work(chain->context, block, kind, level, TOKENS, ROW, &work);
    check_one(names[kind], block, "FLOPs of products", work.product_flops - work.group_flops,
              want.product_flops);
    check_one(names[kind], block, "FLOPs of products by groups", work.group_flops, want.group_flops);
    check_one(names[kind], block, "FLOPs of attention", work.attention_flops, want.attention_flops);
    check_one(names[kind], block, "bytes", work.moved_bytes, want.moved_bytes + want.filled_bytes);
}

static void check_block(const struct ot_chain *chain, int block) {
    check_part(chain, block, OT_WORK_FORWARD, OT_KEEP_ALL, count_forward(chain, block));
    if (block < ot_chain_first_trained(chain))
        return;
    struct counts backward = count_backward(chain, block, OT_KEEP_ALL, false);
    assert_true(backward.filled_bytes == 0 || (chain->has_pairs && block == chain->n_blocks - 1));
    check_part(chain, block, OT_WORK_BACKWARD, OT_KEEP_ALL, backward);
    check_part(chain, block, OT_WORK_CLEAR, OT_KEEP_ALL,
               less(count_backward(chain, block, OT_KEEP_ALL, true), backward));
    bool layer = block > 0 && block < chain->n_blocks - 1;
    for (int level = OT_KEEP_NONE; layer && level < OT_KEEP_LEVELS; level++)
        check_part(chain, block, OT_WORK_RECOMPUTE, (enum ot_keep_level)level,
                   less(count_backward(chain, block, (enum ot_keep_level)level, false), backward));
}

static void check_parts(const struct ot_model_config *config, enum ot_dtype dtype,
                        const struct ot_model_setup *parts) {
    struct ot_model *model;
    check_ok(ot_model_open_setup(config, dtype, ROW, parts, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    const int blocks[] = {0, 1, chain->n_blocks - 2, chain->n_blocks - 1};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        check_block(chain, blocks[i]);
    ot_model_close(model);
}

static void check_model(const struct ot_model_config *config, enum ot_dtype dtype) {
    check_parts(config, dtype, NULL);
}

static void every_preset_moves_what_its_table_says(void **state) {
    (void)state;
    for (int i = 0; ot_preset_at(i); i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_model(&ot_preset_at(i)->config, (enum ot_dtype)dtype);
}

/* With every optional tensor; with heads that rotate in part; with a window in the second layer, so small
 * that level `attention` keeps q, k and v there. */
static void every_option_of_a_layer_is_counted(void **state) {
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        struct ot_model_config c = ot_preset_find("tinyllama-1.1b")->config;
        c.n_layers = 2;
        if (i == 0) {
            c.qkv_bias = c.out_bias = c.mlp_bias = true;
            c.qk_norm = OT_QK_NORM_HEADS;
        }
        if (i == 1)
            c.rotary_dim = c.head_dim / 2;
        if (i == 2) {
            c.window = 40;
            c.window_by_layer = true;
            c.window_layers.bits[0] = 2;
        }
        check_model(&c, OT_BF16);
    }
}

/* Forms of a layer that no preset has together: number i. */
static struct ot_model_config form(int i) {
    struct ot_model_config c = ot_preset_find("tinyllama-1.1b")->config;
    c.n_layers = 2;
    c.norm = i % 2 ? OT_NORM_LAYER : OT_NORM_RMS;
    c.norm_place = i % 3 == 1 ? OT_NORMS_AFTER : i % 3 == 2 ? OT_NORMS_AROUND : OT_NORMS_BEFORE;
    c.residual = i % 3 ? OT_SEQUENTIAL : i / 3 % 2 ? OT_PARALLEL : OT_PARALLEL_TWO;
    c.qk_norm = (enum ot_qk_norm)(i / 2 % 3);
    c.plain_mlp = i % 4 < 2;
    c.positions = i % 5 == 0 ? OT_POSITIONS_LEARNED : i % 5 == 1 ? OT_POSITIONS_ALIBI : OT_POSITIONS_ROPE;
    c.embed_norm = i % 5 < 2;
    c.qkv_bias = c.out_bias = c.mlp_bias = c.head_bias = i % 2;
    c.window = i % 3 == 2 ? 40 : 0; /* level `attention` keeps q, k and v */
    return c;
}

enum { FORMS = 30 };

static void every_form_of_a_layer_is_counted(void **state) {
    (void)state;
    for (int i = 0; i < FORMS; i++) {
        const struct ot_model_config c = form(i);
        check_model(&c, i % 4 ? OT_BF16 : OT_F32);
    }
}

enum { EXPERT_FORMS = 3 };
/* Few experts, whose router's product is thin, and many; one layer has an MLP. Then with sinks, and with
 * biases of the router and of experts, whose gate and up are interleaved. */
static struct ot_model_config form_of_experts(int form) {
    bool many = form == 1;
    struct ot_model_config c = ot_preset_find("tinyllama-1.1b")->config;
    c.n_layers = 2;
    c.family = many ? OT_FAMILY_QWEN3_MOE : OT_FAMILY_MIXTRAL;
    c.qk_norm = many ? OT_QK_NORM_HEADS : OT_QK_NORM_NONE;
    c.n_experts = many ? 64 : 8;
    c.top_experts = many ? 6 : 2;
    c.expert_ffn = many ? 768 : c.ffn;
    c.router_over_all = many;
    c.dense_layers.bits[0] = many ? 1 : 0;
    if (form == 2) {
        c.family = OT_FAMILY_GPT_OSS;
        c.sinks = c.router_bias = c.expert_bias = true;
        c.glu_limit = 7;
        c.glu_alpha = 1.702f;
    }
    return c;
}

static void experts_are_counted(void **state) {
    (void)state;
    for (int i = 0; i < 2 * EXPERT_FORMS; i++) {
        const struct ot_model_config c = form_of_experts(i % EXPERT_FORMS);
        check_model(&c, i < EXPERT_FORMS ? OT_BF16 : OT_F32);
    }
}

/* ---- frozen tensors and adapters ---- */

static bool trains_some(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "k_proj") || strstr(tensor->name, "down_proj") ||
           strstr(tensor->name, "o_proj.bias") || strstr(tensor->name, "mlp.gate.") ||
           strstr(tensor->name, "layernorm") || strstr(tensor->name, "gate_up_proj_bias");
}

static bool trains_head(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "lm_head") != NULL;
}

/* q and v have one scale and k has none, so they share a product; gate and up have two. */
static struct ot_lora_rank some_ranks(const void *with_embedding, const char *module) {
    if (with_embedding && strstr(module, "embed_tokens"))
        return (struct ot_lora_rank){5, 4};
    if (ot_lora_is_of_experts(module))
        return (struct ot_lora_rank){0};
    if (strstr(module, "q_proj") || strstr(module, "v_proj") || strstr(module, "gate_proj"))
        return (struct ot_lora_rank){4, 4};
    if (strstr(module, "up_proj") || strstr(module, "down_proj") || strstr(module, "lm_head"))
        return (struct ot_lora_rank){3, 9};
    return (struct ot_lora_rank){0};
}

/* Those of experts have neither dropout nor DoRA. */
static struct ot_lora_rank ranks_of_experts(const void *without_down, const char *module) {
    if (!ot_lora_is_of_experts(module))
        return some_ranks(NULL, module);
    bool down = strstr(module, "down_proj") != NULL;
    return (struct ot_lora_rank){down && without_down ? 0 : down ? 6 : 4, 4};
}

static void frozen_tensors_and_adapters_are_counted(void **state) {
    (void)state;
    const struct ot_lora all = {.all = {4, 8}}, some = {.choose = some_ranks, .context = "", .dropout = 0.1f};
    const struct ot_lora dora = {.all = {4, 8}, .dora = true},
                         some_dora = {.choose = some_ranks, .dora = true},
                         dropped = {.all = {4, 8}, .dora = true, .dropout = 0.1f},
                         some_dropped = {.choose = some_ranks, .dora = true, .dropout = 0.1f},
                         experts = {.choose = ranks_of_experts},
                         half = {.choose = ranks_of_experts, .context = ""};
    const struct ot_model_setup parts[] = {{.trains = trains_some},
                                           {.trains = trains_head},
                                           {.lora = &all},
                                           {.lora = &some},
                                           {.lora = &some, .trains = trains_some},
                                           {.lora = &dora},
                                           {.lora = &some_dora, .trains = trains_some},
                                           {.lora = &dropped},
                                           {.lora = &some_dropped, .trains = trains_some},
                                           {.lora = &experts},
                                           {.lora = &half, .trains = trains_some}};
    for (int i = 0; i < 18; i++) {
        struct ot_model_config c = ot_preset_find("tinyllama-1.1b")->config;
        c.n_layers = 2;
        c.tied = i % 2;
        c.qkv_bias = c.out_bias = c.mlp_bias = i % 3 == 0;
        c.qk_norm = i % 4 == 1;
        c.window = i % 3 == 1 ? 40 : 0; /* level `attention` keeps q, k and v */
        c.n_new = parts[i / 2].lora == &all ? 300 : 0;
        c.head_has_new = !c.tied;
        if (!c.tied || parts[i / 2].trains != trains_head)
            check_parts(&c, i % 4 == 0 ? OT_F32 : OT_BF16, &parts[i / 2]);
    }
    for (int i = 0; i < FORMS + EXPERT_FORMS; i++) {
        const struct ot_model_config c = i < FORMS ? form(i) : form_of_experts(i - FORMS);
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
            check_parts(&c, OT_BF16, &parts[p]);
    }
}

static bool trains_some_of_pairs(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "SelfAttention.k") || strstr(tensor->name, "layer_norm");
}

static struct ot_lora_rank some_ranks_of_pairs(const void *context, const char *module) {
    const char *last = strrchr(module, '.') ? strrchr(module, '.') + 1 : module;
    (void)context;
    return (struct ot_lora_rank){strcmp(last, "k") == 0 || strcmp(last, "wi_0") == 0 ? 0
                                 : *last == 'v'                                      ? 3
                                                                                     : 4,
                                 4};
}

static void adapters_of_pairs_are_counted(void **state) {
    (void)state;
    const struct ot_lora all = {.all = {4, 8}}, some = {.choose = some_ranks_of_pairs, .dropout = 0.1f},
                         dora = {.all = {4, 8}, .dora = true},
                         dropped = {.all = {4, 8}, .dora = true, .dropout = 0.1f};
    const struct ot_model_setup parts[] = {{.lora = &all},
                                           {.lora = &some},
                                           {.lora = &some, .trains = trains_some_of_pairs},
                                           {.trains = trains_some_of_pairs},
                                           {.lora = &dora},
                                           {.lora = &dropped}};
    for (size_t i = 0; i < 2 * sizeof parts / sizeof *parts; i++) {
        struct ot_model_config c = ot_preset_find(i % 2 ? "flan-t5-base" : "t5-small")->config;
        c.n_encoder_layers = 2;
        c.n_layers = 4;
        check_parts(&c, i % 4 < 2 ? OT_BF16 : OT_F32, &parts[i / 2]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_preset_moves_what_its_table_says),
        cmocka_unit_test(every_option_of_a_layer_is_counted),
        cmocka_unit_test(every_form_of_a_layer_is_counted),
        cmocka_unit_test(experts_are_counted),
        cmocka_unit_test(frozen_tensors_and_adapters_are_counted),
        cmocka_unit_test(adapters_of_pairs_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
