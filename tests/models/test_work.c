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
#include "tests/models/counting_device.h"
#include "tests/support/check.h"

enum { TOKENS = 3072, ROW = 1024, VARIANTS = 3 };

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

static struct counts count_keys(const struct ot_chain *chain, int block) {
    struct ot_block_run run = make_run(chain, block, OT_KEEP_NONE, false);
    run.row = (struct ot_run_row){.k = somewhere(8), .v = somewhere(9)};
    counted = (struct counts){0};
    chain->keys(chain->context, block, &run);
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
    static const char *const names[] = {"forward", "backward", "recomputation", "keys", "clearing"};
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
    if (layer && chain->section_align > 0)
        check_part(chain, block, OT_WORK_KEYS, OT_KEEP_NONE, count_keys(chain, block));
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

static void regularisers_are_counted(void **state) {
    (void)state;
    struct ot_model_config c = ot_preset_find("mixtral-8x7b")->config;
    const struct ot_regular regular = {
        .neftune = 5, .label_smoothing = 0.1f, .z_loss = 1e-4f, .balance = 0.01f};
    struct ot_model *model;
    c.n_layers = 2;
    c.dense_layers.bits[0] = 1;
    c.embed_norm = true;
    check_ok(ot_model_open(&c, OT_BF16, ROW, &model));
    ot_model_set_regular(model, &regular);
    const struct ot_chain *chain = ot_model_chain(model);
    tail_bytes = chain->boundary_tail_bytes;
    for (int b = 0; b < chain->n_blocks; b++)
        check_block(chain, b);
    tail_bytes = 0;
    ot_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_preset_moves_what_its_table_says),
        cmocka_unit_test(every_option_of_a_layer_is_counted),
        cmocka_unit_test(every_form_of_a_layer_is_counted),
        cmocka_unit_test(experts_are_counted),
        cmocka_unit_test(regularisers_are_counted),
        cmocka_unit_test(frozen_tensors_and_adapters_are_counted),
        cmocka_unit_test(adapters_of_pairs_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
