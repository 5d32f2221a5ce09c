/* Opens a model as a chain of blocks, and passes each call to the code of the block's kind. */
#include "models/kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

static const struct ot_block_kind *kind_of(const struct ot_model *model, int block) {
    if (block == 0)
        return &OT_EMBED_BLOCK;
    return block == model->chain.n_blocks - 1 ? &OT_HEAD_BLOCK : &model->layer_kind->block;
}

/* ---- memory ---- */

static size_t saved_bytes(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    return kind_of(context, block)->bytes(context, block, level, n_tokens).saved;
}

static size_t work_bytes(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    return kind_of(context, block)->bytes(context, block, level, n_tokens).work;
}

static size_t scratch_bytes(const void *context, int block, int64_t n_tokens) {
    return kind_of(context, block)->bytes(context, block, OT_KEEP_NONE, n_tokens).scratch;
}

/* ---- forward and backward ---- */

static void forward(const void *context, int block, const struct ot_block_run *run) {
    kind_of(context, block)->forward(context, block, run);
}

/* The first use of a slab's gradient clears it from this parameter to the end. Matrices come first in a slab,
 * and their products overwrite the gradient. A tied head overwrites only the token table, which comes first
 * in the embedding's slab; learned positions may follow it. The embedding's own backward adds to its tables,
 * and layers add to shared slabs. */
static int64_t first_cleared(const struct ot_model *model, int block, const struct ot_slab_spec *slab) {
    const struct ot_block_spec *embed = &model->blocks[0];
    if (block == 0 || slab->shared)
        return 0;
    if (slab == &model->slabs[embed->uses[model->embed.table.use].slab])
        return model->config.vocab * model->config.hidden;
    if (model->embed.new_rows.use != OT_ABSENT &&
        slab == &model->slabs[embed->uses[model->embed.new_rows.use].slab])
        return 0; /* a tied head's use of the rows of new tokens */
    return model->slab_memory[slab - model->slabs].matrix_params;
}

static const struct ot_slab_spec *slab_of(const struct ot_model *model, int block, int use) {
    return &model->slabs[model->blocks[block].uses[use].slab];
}

static void clear_grads(const struct ot_model *model, int block, const struct ot_block_run *run) {
    for (int u = 0; u < model->blocks[block].n_uses; u++) {
        const struct ot_slab_spec *slab = slab_of(model, block, u);
        int64_t from = first_cleared(model, block, slab);
        if (slab->frozen)
            continue;
        ot_lane_fill(run->lane, run->grads[u] + from, 0, (size_t)(slab->n_params - from) * sizeof(float));
    }
}

static void backward(const void *context, int block, const struct ot_block_run *run) {
    const struct ot_model *model = context;
    if (run->first && run->phase <= OT_PHASE_BEGIN)
        clear_grads(model, block, run);
    kind_of(model, block)->backward(model, block, run);
}

static void keys(const void *context, int block, const struct ot_block_run *run) {
    kind_of(context, block)->keys(context, block, run);
}

/* ---- work, for predictions ---- */

static void work(const void *context, int block, enum ot_work_kind kind, enum ot_keep_level level,
                 int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out) {
    const struct ot_model *model = context;
    *out = (struct ot_block_work){0};
    if (kind == OT_WORK_CLEAR) {
        for (int u = 0; u < model->blocks[block].n_uses; u++) {
            const struct ot_slab_spec *slab = slab_of(model, block, u);
            if (!slab->frozen)
                out->moved_bytes +=
                    (double)(slab->n_params - first_cleared(model, block, slab)) * sizeof(float);
        }
        return;
    }
    kind_of(model, block)->work(model, block, kind, level, n_tokens, row_tokens, out);
}

double ot_model_flops_per_token(const struct ot_model *model, double mean_row_tokens) {
    return model->layer_kind->flops_per_token(model, mean_row_tokens);
}

/* An expert is not chosen by n tokens, if each chooses `top` of them at random, with probability
 * (1 - top / experts)^n. */
static double used_parts(const void *context, int block, int64_t n_tokens) {
    const struct ot_model_config *c = &((const struct ot_model *)context)->config;
    (void)block;
    double experts = (double)c->n_experts;
    return experts * (1 - pow(1 - (double)c->top_experts / experts, (double)n_tokens));
}

/* ---- constants ---- */

/* The slope of each head (Press et al., "Train Short, Test Long", 2022): for 2^k heads 2^(-8 i / 2^k), i
 * from 1 on; the heads beyond a power of two have every second slope of twice as many. */
static double slope_of(int64_t head, int64_t n_heads) {
    int64_t power = 1;
    while (power * 2 <= n_heads)
        power *= 2;
    return head < power ? exp2(-8 * (double)(head + 1) / (double)power)
                        : exp2(-8 * (double)(2 * (head - power) + 1) / (double)(2 * power));
}

static size_t constant_bytes(const struct ot_model *model) {
    bool alibi = model->config.positions == OT_POSITIONS_ALIBI;
    return ot_encdec_constant_bytes(&model->config) + ot_rope_bytes(model) +
           (alibi ? (size_t)model->config.n_heads * sizeof(float) : 0) +
           (model->config.expert_bias ? sizeof(float) : 0);
}

const void *ot_model_one(const struct ot_model *model, const void *constants) {
    return (const char *)constants + constant_bytes(model) - sizeof(float);
}

const float *ot_model_slopes(const struct ot_model *model, const void *constants) {
    return model->config.positions == OT_POSITIONS_ALIBI
               ? (const float *)((const char *)constants + ot_rope_bytes(model))
               : NULL;
}

static void fill_constants(const void *context, void *host_memory) {
    const struct ot_model *model = context;
    const struct ot_model_config *c = &model->config;
    float *slopes = (float *)((char *)host_memory + ot_rope_bytes(model));
    ot_encdec_fill_constants(c, host_memory);
    ot_rope_fill(model, host_memory);
    if (c->expert_bias) {
        char *one = (char *)host_memory + constant_bytes(model) - sizeof(float);
        memset(one, 0, sizeof(float));
        ot_dtype_write(model->chain.dtype, one, 0, 1);
    }
    for (int64_t h = 0; c->positions == OT_POSITIONS_ALIBI && h < c->n_heads; h++)
        slopes[h] =
            (float)(slope_of(h, c->n_heads) * (c->alibi_scaled ? (double)ot_model_attention_scale(c) : 1));
}

/* ---- the chain ---- */

static void build_chain(struct ot_model *model, enum ot_dtype dtype, int64_t max_position) {
    struct ot_chain *chain = &model->chain;
    bool pairs = ot_model_has_pairs(&model->config);
    model->layer_kind = pairs ? &OT_ENCDEC_LAYERS : &OT_DECODER_LAYERS;
    model->chunk_tokens = pairs ? INT64_MAX : OT_CHUNK_TOKENS;
    chain->context = model;
    chain->dtype = dtype;
    chain->n_blocks = (int)model->config.n_layers + 2;
    chain->boundary_elems = model->config.hidden;
    chain->kv_elems = model->kv_elems;
    chain->has_pairs = pairs;
    chain->head_dim = model->config.head_dim;
    chain->vocab = model->config.vocab;
    chain->max_position = max_position;
    chain->constant_bytes = constant_bytes(model);
    chain->fill_constants = fill_constants;
    chain->saved_bytes = saved_bytes;
    chain->work_bytes = work_bytes;
    chain->scratch_bytes = scratch_bytes;
    chain->work = work;
    chain->used_parts = used_parts;
    chain->forward = forward;
    chain->backward = backward;
    chain->keys = keys;
    chain->section_align = pairs ? 0 : OT_SECTION_ALIGN;
    chain->key_heads = pairs ? 0 : model->config.n_kv_heads;
}

int ot_model_open(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                  struct ot_model **out) {
    return ot_model_open_setup(config, dtype, max_position, NULL, out);
}

int ot_model_open_setup(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                        const struct ot_model_setup *setup, struct ot_model **out) {
    int rc;
    *out = NULL;
    OT_TRY(ot_model_config_check(config, "model"));
    if (max_position < 1 || max_position > INT32_MAX)
        return ot_fail(OT_E_INPUT, "the sequence length is %lld tokens, must be from 1 to %d",
                       (long long)max_position, INT32_MAX);
    if (config->positions == OT_POSITIONS_LEARNED && max_position > config->max_position)
        return ot_fail(
            OT_E_INPUT,
            "the sequence length is %lld tokens, but the model has learned positions for %lld tokens, "
            "and cannot see more",
            (long long)max_position, (long long)config->max_position);
    struct ot_model *model = calloc(1, sizeof *model);
    if (!model)
        return ot_fail(OT_E_BUDGET, "no memory for the model");
    model->config = *config;
    model->q_elems = config->n_heads * config->head_dim;
    model->kv_elems = config->n_kv_heads * config->head_dim;
    model->qkv_elems = model->q_elems + 2 * model->kv_elems;
    model->inner_elems = (config->plain_mlp ? 1 : 2) * config->ffn;
    build_chain(model, dtype, max_position);
    model->base = setup ? setup->base : OT_BASE_AUTO;
    OT_TRY_GOTO(ot_model_build_params(model, setup), rc, out);
    model->chain.slabs = model->slabs;
    model->chain.blocks = model->blocks;
    *out = model;
    return 0;
out:
    ot_model_close(model);
    return rc;
}

void ot_model_set_state(struct ot_model *model, enum ot_state_format format, enum ot_masters masters) {
    model->chain.state = format;
    model->chain.masters = masters;
}

void ot_model_set_compares(struct ot_model *model, bool compares) {
    model->chain.compares = compares;
}

void ot_model_set_regular(struct ot_model *model, const struct ot_regular *regular) {
    model->regular = *regular;
    model->chain.boundary_tail_bytes = regular->balance > 0 ? 2 * (size_t)model->config.n_experts * 4 : 0;
    if (regular->neftune > 0) /* the noise of a token depends on the length of its row */
        model->chain.section_align = 0;
    if (regular->dropout && model->config.attention_drop > 0) /* its random words count all heads */
        model->chain.key_heads = 0;
}

const struct ot_regular *ot_model_get_regular(const struct ot_model *model) {
    return &model->regular;
}

void ot_model_set_chunk(struct ot_model *model, int64_t tokens) {
    if (!model->chain.has_pairs)
        model->chunk_tokens = tokens;
}

void ot_model_set_section_align(struct ot_model *model, int64_t tokens) {
    if (model->chain.section_align > 0)
        model->chain.section_align = tokens;
}

int64_t ot_model_get_chunk(const struct ot_model *model) {
    return model->chunk_tokens;
}

void ot_model_close(struct ot_model *model) {
    if (!model)
        return;
    free(model->tensors);
    free(model->slab_memory);
    free(model->groups);
    free(model->slabs);
    free(model->blocks);
    free(model->block_names);
    free(model->layers);
    free(model);
}

const struct ot_model_config *ot_model_get_config(const struct ot_model *model) {
    return &model->config;
}

const struct ot_chain *ot_model_chain(const struct ot_model *model) {
    return &model->chain;
}
