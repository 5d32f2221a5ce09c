#include "models/layer_memory.h"

#include "models/dropout.h"

#include "src/base/minmax.h"

/* ---- levels ---- */

enum ot_keep_level ot_layer_qkv_level(const struct ot_model *model, int64_t layer) {
    double window = (double)ot_model_layer_window(&model->config, layer);
    double keys = ot_model_mean_keys((double)model->chain.max_position, window);
    bool later = keys > (double)model->config.hidden / 4 || model->layer_kind->most_kept < OT_KEEP_ALL;
    return later ? OT_KEEP_PRODUCTS : OT_KEEP_ATTENTION;
}

/* ---- saved and work ---- */

/* The two buffers of inner activations. */
struct inside {
    enum ot_keep_level kept;
    struct ot_pieces saved, work;
};

static void *take_inside(struct inside *inside, enum ot_keep_level level, size_t bytes) {
    return ot_pieces_take(level <= inside->kept ? &inside->saved : &inside->work, bytes);
}

static void take_unit(struct inside *inside, enum ot_keep_level level, size_t n, size_t item, int64_t out,
                      const struct ot_lora_unit *unit, struct ot_unit_memory *memory) {
    size_t width = unit->dora ? (size_t)out : 0;
    memory->ax = take_inside(inside, level, n * (size_t)unit->rank * item);
    memory->u = take_inside(inside, level, n * width * item);
    memory->factors = take_inside(inside, level, 2 * width * sizeof(float));
}

static struct ot_norm_memory take_stats(const struct ot_model *model, struct inside *inside,
                                        enum ot_keep_level level, size_t n) {
    bool has_mean = model->config.norm == OT_NORM_LAYER;
    return (struct ot_norm_memory){.mean = take_inside(inside, level, has_mean ? n * sizeof(float) : 0),
                                   .rstd = take_inside(inside, level, n * sizeof(float))};
}

/* q, k and v, and the norms of q and k. */
static void take_qkv(const struct ot_model *model, enum ot_keep_level level, size_t n, struct inside *inside,
                     struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    size_t item = ot_dtype_bytes(model->chain.dtype), whole = c->qk_norm == OT_QK_NORM_WHOLE;
    memory->qkv = take_inside(inside, level, n * (size_t)model->qkv_elems * item);
    if (c->qk_norm == OT_QK_NORM_NONE)
        return;
    memory->qk = take_inside(inside, level, n * (size_t)(model->q_elems + model->kv_elems) * item);
    memory->rstd_q = take_inside(inside, level, n * (whole ? 1 : (size_t)c->n_heads) * sizeof(float));
    memory->rstd_k = take_inside(inside, level, n * (whole ? 1 : (size_t)c->n_kv_heads) * sizeof(float));
}

/* The sizes of the inner activation of the MLP, of each assignment with experts. */
struct inner {
    bool experts;
    int64_t rows, ffn, elems; /* elems: outputs of gate and up in a row */
};

static struct inner inner_of(const struct ot_model *model, int64_t layer, int64_t n_tokens) {
    const struct ot_model_config *c = &model->config;
    if (!ot_model_layer_has_experts(c, layer))
        return (struct inner){false, n_tokens, c->ffn, model->inner_elems};
    return (struct inner){true, n_tokens * c->top_experts, c->expert_ffn, 2 * c->expert_ffn};
}

/* Takes buffers for the router's decisions and the rows of its groups. */
static void take_choice(const struct ot_model *model, size_t n, struct inside *inside,
                        struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    enum ot_keep_level level = OT_KEEP_PRODUCTS;
    size_t experts = (size_t)c->n_experts, rows = n * (size_t)c->top_experts, item = sizeof(int32_t);
    memory->router_logits = take_inside(inside, level, n * experts * ot_dtype_bytes(model->chain.dtype));
    memory->weights = take_inside(inside, level, rows * sizeof(float));
    memory->ids = take_inside(inside, level, rows * item);
    memory->rows = take_inside(inside, level, rows * item);
    memory->assignments = take_inside(inside, level, rows * item);
    memory->offsets = take_inside(inside, level, (experts + 1) * item);
    memory->counts = take_inside(inside, level, experts * item);
}

/* Takes the results of products: those that one pass over u recomputes, or the others. Without norms behind
 * them, mid is the result of o. */
static void take_results(const struct ot_model *model, int64_t layer, size_t n, bool from_u,
                         struct inside *inside, struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    enum ot_keep_level level = from_u ? OT_KEEP_ALL : OT_KEEP_PRODUCTS;
    size_t item = ot_dtype_bytes(model->chain.dtype), hidden = n * (size_t)c->hidden * item;
    const struct inner inner = inner_of(model, layer, (int64_t)n);
    bool after = ot_model_has_norms_after(c);
    if (ot_layer_makes_from_u(model, &at->qkv_lora) == from_u)
        take_qkv(model, from_u ? OT_KEEP_ALL : ot_layer_qkv_level(model, layer), n, inside, memory);
    if (ot_layer_makes_from_u(model, &at->o_lora) == from_u && after)
        memory->o_out = take_inside(inside, level, hidden);
    else if (ot_layer_makes_from_u(model, &at->o_lora) == from_u && c->residual == OT_SEQUENTIAL)
        memory->mid = take_inside(inside, level, hidden);
    if (ot_layer_makes_from_u(model, &at->gate_up_lora) == from_u)
        memory->gate_up = take_inside(inside, level, (size_t)(inner.rows * inner.elems) * item);
    if (inner.experts && !from_u) {
        take_choice(model, n, inside, memory);
        memory->down_out = take_inside(inside, level, (size_t)inner.rows * (size_t)c->hidden * item);
    }
    if (ot_layer_makes_from_u(model, &at->down_lora) == from_u && after)
        memory->down_out = take_inside(inside, level, hidden);
}

/* Takes the results of cross attention's products, and their adapters'. */
static void take_cross(const struct ot_model *model, const struct ot_layer_layout *at, size_t n,
                       struct inside *inside, struct ot_layer_memory *memory) {
    enum ot_keep_level level = OT_KEEP_PRODUCTS;
    int64_t hidden = model->config.hidden, q = model->q_elems;
    size_t item = ot_dtype_bytes(model->chain.dtype);
    memory->cross_q = take_inside(inside, level, n * (size_t)q * item);
    memory->cross_kv = take_inside(inside, level, n * (size_t)(2 * q) * item);
    memory->across = take_inside(inside, level, n * (size_t)hidden * item);
    take_unit(inside, level, n, item, q, &at->cross_q_lora, &memory->cross_q_lora);
    take_unit(inside, level, n, item, 2 * q, &at->cross_kv_lora, &memory->cross_kv_lora);
    take_unit(inside, level, n, item, hidden, &at->cross_o_lora, &memory->cross_o_lora);
}

/* Attention's output, and what backward needs of its softmax. */
static void take_attention(const struct ot_model *model, size_t n, struct inside *inside, void **attn,
                           float **softmax) {
    size_t bytes = model->layer_kind->softmax_bytes((int64_t)n, model->config.n_heads);
    *attn = take_inside(inside, OT_KEEP_ATTENTION,
                        n * (size_t)model->q_elems * ot_dtype_bytes(model->chain.dtype));
    *softmax = take_inside(inside, OT_KEEP_ATTENTION, bytes);
}

/* Takes the buffers that only level `all` keeps. At other levels, all but mid lie in scratch. */
static void take_rest(const struct ot_model *model, int64_t layer, size_t n, struct inside *inside,
                      struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct inner inner = inner_of(model, layer, (int64_t)n);
    size_t item = ot_dtype_bytes(model->chain.dtype), hidden = n * (size_t)c->hidden * item;
    bool before = ot_model_has_norms_before(c), one = c->residual == OT_PARALLEL;
    if (ot_model_has_norms_after(c))
        memory->mid = take_inside(inside, OT_KEEP_ALL, hidden);
    if (inside->kept < OT_KEEP_ALL)
        return;
    if (before) {
        memory->normed1 = take_inside(inside, OT_KEEP_ALL, hidden);
        memory->normed2 = one ? memory->normed1 : take_inside(inside, OT_KEEP_ALL, hidden);
    }
    memory->inner = take_inside(inside, OT_KEEP_ALL, (size_t)(inner.rows * inner.ffn) * item);
    if (inner.experts)
        memory->packed = take_inside(inside, OT_KEEP_ALL, (size_t)(inner.rows * c->hidden) * item);
    if (before) {
        memory->stats1 = take_stats(model, inside, OT_KEEP_ALL, n);
        memory->stats2 = one ? memory->stats1 : take_stats(model, inside, OT_KEEP_ALL, n);
    }
}

/* Takes the pieces in the order of their levels, so that the pieces of a level are a prefix of `saved`. */
static void inside_memory(const struct ot_model *model, int64_t layer, int64_t n_tokens,
                          struct inside *inside, struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    enum ot_keep_level qkv = ot_layer_qkv_level(model, layer), products = OT_KEEP_PRODUCTS;
    size_t n = (size_t)n_tokens, item = ot_dtype_bytes(model->chain.dtype);
    size_t rows = (size_t)inner_of(model, layer, n_tokens).rows;
    *memory = (struct ot_layer_memory){0};
    take_attention(model, n, inside, &memory->attn, &memory->softmax);
    if (ot_layer_has_cross(at))
        take_attention(model, n, inside, &memory->cross_attn, &memory->cross_softmax);
    take_unit(inside, qkv, n, item, model->qkv_elems, &at->qkv_lora, &memory->qkv_lora);
    take_results(model, layer, n, false, inside, memory);
    if (ot_layer_has_cross(at))
        take_cross(model, at, n, inside, memory);
    take_unit(inside, products, n, item, c->hidden, &at->o_lora, &memory->o_lora);
    take_unit(inside, products, rows, item, model->inner_elems, &at->gate_up_lora, &memory->gate_up_lora);
    take_unit(inside, products, rows, item, c->hidden, &at->down_lora, &memory->down_lora);
    if (ot_model_has_norms_after(c)) {
        memory->post1 = take_stats(model, inside, products, n);
        memory->post2 = take_stats(model, inside, products, n);
    }
    take_results(model, layer, n, true, inside, memory);
    take_rest(model, layer, n, inside, memory);
}

/* ---- scratch ---- */

/* The needs of one unit at a time: the largest of all. */
struct unit_needs {
    int64_t rank, inner_rank; /* of all; of gate, up and down, which may have more rows */
    size_t products;
};

static struct unit_needs unit_needs(const struct ot_layer_layout *at) {
    const struct ot_lora_unit *units[] = {&at->qkv_lora,      &at->o_lora,       &at->cross_q_lora,
                                          &at->cross_kv_lora, &at->cross_o_lora, &at->gate_up_lora,
                                          &at->down_lora};
    struct unit_needs needs = {.inner_rank = ot_max(at->gate_up_lora.rank, at->down_lora.rank)};
    for (int i = 0; i < 7; i++) {
        size_t bytes = ot_linear_products_bytes(units[i]);
        needs.products = ot_max(bytes, needs.products);
        needs.rank = ot_max(units[i]->rank, needs.rank);
    }
    return needs;
}

/* kept: the level of the call. Scratch has the same size at every level. */
static size_t scratch_memory(const struct ot_model *model, int64_t layer, int64_t n_tokens, void *scratch,
                             enum ot_keep_level kept, struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    /* All units have one dropout, and need memory for one x. */
    const struct inner inner = inner_of(model, layer, n_tokens);
    int64_t widest = ot_max(ot_max(c->hidden, c->ffn), model->q_elems);
    int64_t experts = inner.experts ? inner.rows : 0;
    const struct unit_needs needs = unit_needs(at);
    size_t n = (size_t)n_tokens, item = ot_dtype_bytes(model->chain.dtype);
    bool qk_norm = c->qk_norm != OT_QK_NORM_NONE, mean = c->norm == OT_NORM_LAYER;
    int64_t normed = ot_max(c->hidden, qk_norm ? model->q_elems + model->kv_elems : 0);
    struct ot_pieces pieces = {.base = scratch};
    int64_t wide = ot_max(inner.rows * inner.ffn, n_tokens * model->qkv_elems);
    if (ot_drop_share_of(model, OT_DROP_O) > 0) /* the gradient of o's result */
        wide = ot_max(wide, n_tokens * c->hidden);
    memory->wide = ot_pieces_take(&pieces, (size_t)wide * item);
    memory->normed = ot_pieces_take(&pieces, n * (size_t)normed * item);
    memory->narrow = ot_pieces_take(&pieces, n * (size_t)ot_max(c->hidden, model->q_elems) * item);
    memory->beside = ot_pieces_take(&pieces, c->residual != OT_SEQUENTIAL ? n * (size_t)c->hidden * item : 0);
    memory->dax =
        ot_pieces_take(&pieces, (size_t)ot_max(n_tokens * needs.rank, inner.rows * needs.inner_rank) * item);
    memory->dropped =
        ot_pieces_take(&pieces, at->qkv_lora.drop > 0 && needs.rank > 0 ? n * (size_t)widest * item : 0);
    memory->products = ot_pieces_take(&pieces, needs.products);
    const struct ot_norm_memory stats = {.mean = ot_pieces_take(&pieces, mean ? n * sizeof(float) : 0),
                                         .rstd = ot_pieces_take(&pieces, n * sizeof(float))};
    memory->dweights = ot_pieces_take(&pieces, (size_t)experts * sizeof(float));
    memory->ones = ot_pieces_take(&pieces, c->expert_bias ? (size_t)experts * item : 0);
    memory->grouping = ot_pieces_take(
        &pieces, experts > 0 ? ot_group_scratch_bytes(n_tokens, c->top_experts, c->n_experts) : 0);
    void *packed = ot_pieces_take(&pieces, (size_t)(experts * c->hidden) * item);
    memory->attention = ot_pieces_take(&pieces, model->layer_kind->attention_bytes(model, n_tokens));
    if (kept < OT_KEEP_ALL) {
        memory->normed1 = memory->normed2 = memory->normed;
        memory->inner = memory->wide;
        memory->packed = packed;
        memory->stats1 = memory->stats2 = stats;
    }
    return pieces.bytes;
}

/* ---- a layer's memory ---- */

struct ot_block_bytes ot_layer_bytes(const struct ot_model *model, int block, enum ot_keep_level level,
                                     int64_t n_tokens) {
    struct ot_layer_memory memory;
    struct inside inside = {.kept = ot_layer_kept(model, level)};
    inside_memory(model, block - 1, n_tokens, &inside, &memory);
    return (struct ot_block_bytes){
        .saved = inside.saved.bytes,
        .work = inside.work.bytes,
        .scratch = scratch_memory(model, block - 1, n_tokens, NULL, inside.kept, &memory),
    };
}

void ot_layer_memory_find(const struct ot_model *model, int64_t layer, const struct ot_block_run *run,
                          struct ot_layer_memory *out) {
    enum ot_keep_level kept = ot_layer_kept(model, run->saved_level);
    struct inside inside = {kept, {.base = run->saved}, {.base = run->work}};
    int64_t n = run->batch.n_tokens;
    inside_memory(model, layer, n, &inside, out);
    scratch_memory(model, layer, n, run->scratch, kept, out);
}
