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

/* The two buffers of inner activations, and the chunk whose rows are asked for. */
struct inside {
    enum ot_keep_level kept;
    struct ot_chunk_rows rows;
    struct ot_pieces saved, work;
};

static void *take_inside(struct inside *inside, enum ot_keep_level level, size_t bytes) {
    return ot_pieces_take(level <= inside->kept ? &inside->saved : &inside->work, bytes);
}

/* An array with `row` bytes for each token: for all tokens if it is kept or has_all, else for one chunk.
 * Returns the first row of the chunk. */
static void *take_rows(struct inside *inside, enum ot_keep_level level, bool has_all, size_t row) {
    bool all = has_all || level <= inside->kept;
    char *at = take_inside(inside, level, (size_t)(all ? inside->rows.all : inside->rows.chunk) * row);
    return at && all ? at + (size_t)inside->rows.first * row : at;
}

/* rows: of the unit's input for each token. */
static void take_unit(struct inside *inside, enum ot_keep_level level, bool has_all, size_t rows, size_t item,
                      int64_t out, const struct ot_lora_unit *unit, struct ot_unit_memory *memory) {
    size_t width = unit->dora ? (size_t)out : 0;
    memory->ax = take_rows(inside, level, has_all, rows * (size_t)unit->rank * item);
    memory->u = take_rows(inside, level, has_all, rows * width * item);
    memory->factors = take_inside(inside, level, 2 * width * sizeof(float));
}

static struct ot_norm_memory take_stats(const struct ot_model *model, struct inside *inside,
                                        enum ot_keep_level level) {
    bool has_mean = model->config.norm == OT_NORM_LAYER;
    float *mean = has_mean ? take_rows(inside, level, false, sizeof *mean) : NULL;
    return (struct ot_norm_memory){.mean = mean, .rstd = take_rows(inside, level, false, sizeof *mean)};
}

/* q, k and v, and the norms of q and k. */
static void take_qkv(const struct ot_model *model, enum ot_keep_level level, struct inside *inside,
                     struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    size_t item = ot_dtype_bytes(model->chain.dtype), n = (size_t)inside->rows.all;
    bool whole = c->qk_norm == OT_QK_NORM_WHOLE;
    memory->qkv = take_inside(inside, level, n * (size_t)model->qkv_elems * item);
    if (c->qk_norm == OT_QK_NORM_NONE)
        return;
    memory->qk = take_inside(inside, level, n * (size_t)(model->q_elems + model->kv_elems) * item);
    memory->rstd_q = take_rows(inside, level, true, (whole ? 1 : (size_t)c->n_heads) * sizeof(float));
    memory->rstd_k = take_rows(inside, level, true, (whole ? 1 : (size_t)c->n_kv_heads) * sizeof(float));
}

/* The sizes of the inner activation of the MLP for a token: with experts, a row for each assignment. */
struct inner {
    bool experts;
    int64_t rows, ffn, elems; /* elems: outputs of gate and up in a row */
};

static struct inner inner_of(const struct ot_model *model, int64_t layer) {
    const struct ot_model_config *c = &model->config;
    if (!ot_model_layer_has_experts(c, layer))
        return (struct inner){false, 1, c->ffn, model->inner_elems};
    return (struct inner){true, c->top_experts, c->expert_ffn, 2 * c->expert_ffn};
}

/* n values for each chunk. */
static int32_t *take_of_chunk(struct inside *inside, enum ot_keep_level level, int64_t n) {
    const struct ot_chunk_rows *rows = &inside->rows;
    bool all = level <= inside->kept;
    int64_t chunks = all ? (rows->all + rows->chunk - 1) / rows->chunk : 1;
    int32_t *at = take_inside(inside, level, (size_t)(chunks * n) * sizeof *at);
    return at && all ? at + rows->first / rows->chunk * n : at;
}

/* Takes buffers for the router's decisions and the rows of its groups. */
static void take_choice(const struct ot_model *model, struct inside *inside, struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    enum ot_keep_level level = OT_KEEP_PRODUCTS;
    size_t top = (size_t)c->top_experts, item = sizeof(int32_t);
    memory->router_logits =
        take_rows(inside, level, false, (size_t)c->n_experts * ot_dtype_bytes(model->chain.dtype));
    memory->weights = take_rows(inside, level, false, top * sizeof(float));
    memory->ids = take_rows(inside, level, false, top * item);
    memory->rows = take_rows(inside, level, false, top * item);
    memory->assignments = take_rows(inside, level, false, top * item);
    memory->offsets = take_of_chunk(inside, level, c->n_experts + 1);
    memory->counts = take_of_chunk(inside, level, c->n_experts);
}

/* Takes the results of products: those that one pass over u recomputes, or the others. Without norms behind
 * them, mid is the result of o. */
static void take_results(const struct ot_model *model, int64_t layer, bool from_u, struct inside *inside,
                         struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    enum ot_keep_level level = from_u ? OT_KEEP_ALL : OT_KEEP_PRODUCTS;
    size_t item = ot_dtype_bytes(model->chain.dtype), hidden = (size_t)c->hidden * item;
    const struct inner inner = inner_of(model, layer);
    bool after = ot_model_has_norms_after(c);
    if (ot_layer_makes_from_u(model, &at->qkv_lora) == from_u)
        take_qkv(model, from_u ? OT_KEEP_ALL : ot_layer_qkv_level(model, layer), inside, memory);
    if (ot_layer_makes_from_u(model, &at->o_lora) == from_u && after)
        memory->o_out = take_rows(inside, level, false, hidden);
    else if (ot_layer_makes_from_u(model, &at->o_lora) == from_u && c->residual == OT_SEQUENTIAL)
        memory->mid = take_rows(inside, level, false, hidden);
    if (ot_layer_makes_from_u(model, &at->gate_up_lora) == from_u)
        memory->gate_up = take_rows(inside, level, false, (size_t)(inner.rows * inner.elems) * item);
    if (inner.experts && !from_u) {
        take_choice(model, inside, memory);
        memory->down_out = take_rows(inside, level, false, (size_t)inner.rows * hidden);
    }
    if (ot_layer_makes_from_u(model, &at->down_lora) == from_u && after)
        memory->down_out = take_rows(inside, level, false, hidden);
}

/* Takes the results of cross attention's products, and their adapters'. */
static void take_cross(const struct ot_model *model, const struct ot_layer_layout *at, struct inside *inside,
                       struct ot_layer_memory *memory) {
    enum ot_keep_level level = OT_KEEP_PRODUCTS;
    int64_t hidden = model->config.hidden, q = model->q_elems;
    size_t item = ot_dtype_bytes(model->chain.dtype);
    memory->cross_q = take_rows(inside, level, true, (size_t)q * item);
    memory->cross_kv = take_rows(inside, level, true, (size_t)(2 * q) * item);
    memory->across = take_rows(inside, level, true, (size_t)hidden * item);
    take_unit(inside, level, true, 1, item, q, &at->cross_q_lora, &memory->cross_q_lora);
    take_unit(inside, level, true, 1, item, 2 * q, &at->cross_kv_lora, &memory->cross_kv_lora);
    take_unit(inside, level, true, 1, item, hidden, &at->cross_o_lora, &memory->cross_o_lora);
}

/* Attention's output, and what backward needs of its softmax. */
static void take_attention(const struct ot_model *model, struct inside *inside, void **attn,
                           float **softmax) {
    size_t bytes = model->layer_kind->softmax_bytes(inside->rows.all, model->config.n_heads);
    *attn = take_rows(inside, OT_KEEP_ATTENTION, true,
                      (size_t)model->q_elems * ot_dtype_bytes(model->chain.dtype));
    *softmax = take_inside(inside, OT_KEEP_ATTENTION, bytes);
}

/* Takes the buffers that only level `all` keeps. At other levels, all but mid lie in scratch. */
static void take_rest(const struct ot_model *model, int64_t layer, struct inside *inside,
                      struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct inner inner = inner_of(model, layer);
    size_t item = ot_dtype_bytes(model->chain.dtype), hidden = (size_t)c->hidden * item;
    bool before = ot_model_has_norms_before(c), one = c->residual == OT_PARALLEL;
    if (ot_model_has_norms_after(c))
        memory->mid = take_rows(inside, OT_KEEP_ALL, false, hidden);
    if (inside->kept < OT_KEEP_ALL)
        return;
    if (before) {
        memory->normed1 = take_rows(inside, OT_KEEP_ALL, false, hidden);
        memory->normed2 = one ? memory->normed1 : take_rows(inside, OT_KEEP_ALL, false, hidden);
    }
    memory->inner = take_rows(inside, OT_KEEP_ALL, false, (size_t)(inner.rows * inner.ffn) * item);
    if (inner.experts)
        memory->packed = take_rows(inside, OT_KEEP_ALL, false, (size_t)inner.rows * hidden);
    if (before) {
        memory->stats1 = take_stats(model, inside, OT_KEEP_ALL);
        memory->stats2 = one ? memory->stats1 : take_stats(model, inside, OT_KEEP_ALL);
    }
}

/* Takes the pieces in the order of their levels, so that the pieces of a level are a prefix of `saved`. */
static void inside_memory(const struct ot_model *model, int64_t layer, struct inside *inside,
                          struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    enum ot_keep_level qkv = ot_layer_qkv_level(model, layer), products = OT_KEEP_PRODUCTS;
    size_t item = ot_dtype_bytes(model->chain.dtype), rows = (size_t)inner_of(model, layer).rows;
    *memory = (struct ot_layer_memory){0};
    take_attention(model, inside, &memory->attn, &memory->softmax);
    if (ot_layer_has_cross(at))
        take_attention(model, inside, &memory->cross_attn, &memory->cross_softmax);
    take_unit(inside, qkv, true, 1, item, model->qkv_elems, &at->qkv_lora, &memory->qkv_lora);
    take_results(model, layer, false, inside, memory);
    if (ot_layer_has_cross(at))
        take_cross(model, at, inside, memory);
    take_unit(inside, products, false, 1, item, c->hidden, &at->o_lora, &memory->o_lora);
    take_unit(inside, products, false, rows, item, model->inner_elems, &at->gate_up_lora,
              &memory->gate_up_lora);
    take_unit(inside, products, false, rows, item, c->hidden, &at->down_lora, &memory->down_lora);
    if (ot_model_has_norms_after(c)) {
        memory->post1 = take_stats(model, inside, products);
        memory->post2 = take_stats(model, inside, products);
    }
    take_results(model, layer, true, inside, memory);
    take_rest(model, layer, inside, memory);
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

/* Row `row` of an array, which may be NULL. */
static void *row_at(void *base, int64_t row, int64_t elems, size_t item) {
    return base ? (char *)base + (size_t)(row * elems) * item : NULL;
}

/* kept: the level of the call. Scratch has the same size at every level. */
static size_t scratch_memory(const struct ot_model *model, int64_t layer, const struct ot_chunk_rows *rows,
                             void *scratch, enum ot_keep_level kept, struct ot_layer_memory *memory) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    /* All units have one dropout, and need memory for one x. */
    const struct inner inner = inner_of(model, layer);
    int64_t all = rows->all, chunk = rows->chunk, inner_rows = chunk * inner.rows;
    int64_t widest = ot_max(ot_max(c->hidden, c->ffn), model->q_elems);
    int64_t experts = inner.experts ? inner_rows : 0, narrow = ot_max(c->hidden, model->q_elems);
    const struct unit_needs needs = unit_needs(at);
    size_t n = (size_t)chunk, item = ot_dtype_bytes(model->chain.dtype);
    bool qk_norm = c->qk_norm != OT_QK_NORM_NONE, mean = c->norm == OT_NORM_LAYER;
    int64_t qk = qk_norm ? model->q_elems + model->kv_elems : 0;
    struct ot_pieces pieces = {.base = scratch};
    int64_t wide = ot_max(inner_rows * inner.ffn, all * model->qkv_elems);
    if (ot_drop_share_of(model, OT_DROP_O) > 0) /* the gradient of o's result */
        wide = ot_max(wide, chunk * c->hidden);
    memory->wide = ot_pieces_take(&pieces, (size_t)wide * item);
    memory->normed = ot_pieces_take(&pieces, (size_t)ot_max(chunk * c->hidden, all * qk) * item);
    void *narrows = ot_pieces_take(&pieces, (size_t)(all * narrow) * item);
    void *besides =
        ot_pieces_take(&pieces, c->residual != OT_SEQUENTIAL ? (size_t)(all * c->hidden) * item : 0);
    memory->narrow = row_at(narrows, rows->first, model->q_elems, item);
    memory->beside = row_at(besides, rows->first, c->hidden, item);
    memory->dax =
        ot_pieces_take(&pieces, (size_t)ot_max(chunk * needs.rank, inner_rows * needs.inner_rank) * item);
    memory->dropped =
        ot_pieces_take(&pieces, at->qkv_lora.drop > 0 && needs.rank > 0 ? n * (size_t)widest * item : 0);
    memory->products = ot_pieces_take(&pieces, needs.products);
    const struct ot_norm_memory stats = {.mean = mean ? ot_pieces_take(&pieces, n * sizeof(float)) : NULL,
                                         .rstd = ot_pieces_take(&pieces, n * sizeof(float))};
    memory->dweights = ot_pieces_take(&pieces, (size_t)experts * sizeof(float));
    memory->ones = ot_pieces_take(&pieces, c->expert_bias ? (size_t)experts * item : 0);
    memory->grouping = ot_pieces_take(
        &pieces, experts > 0 ? ot_group_scratch_bytes(chunk, c->top_experts, c->n_experts) : 0);
    void *packed = ot_pieces_take(&pieces, (size_t)(experts * c->hidden) * item);
    memory->attention = ot_pieces_take(&pieces, model->layer_kind->attention_bytes(model, all));
    if (kept < OT_KEEP_ALL) {
        memory->normed1 = memory->normed2 = memory->normed;
        memory->inner = memory->wide;
        memory->packed = packed;
        memory->stats1 = memory->stats2 = stats;
    }
    return pieces.bytes;
}

/* ---- a layer's memory ---- */

static struct ot_chunk_rows chunk_rows(const struct ot_model *model, int64_t n_tokens, int64_t first) {
    return (struct ot_chunk_rows){n_tokens, ot_min(n_tokens, model->chunk_tokens), first};
}

struct ot_block_bytes ot_layer_bytes(const struct ot_model *model, int block, enum ot_keep_level level,
                                     int64_t n_tokens) {
    struct ot_layer_memory memory;
    struct inside inside = {.kept = ot_layer_kept(model, level), .rows = chunk_rows(model, n_tokens, 0)};
    inside_memory(model, block - 1, &inside, &memory);
    return (struct ot_block_bytes){
        .saved = inside.saved.bytes,
        .work = inside.work.bytes,
        .scratch = scratch_memory(model, block - 1, &inside.rows, NULL, inside.kept, &memory),
    };
}

void ot_layer_memory_find(const struct ot_model *model, int64_t layer, const struct ot_block_run *run,
                          int64_t first, struct ot_layer_memory *out) {
    enum ot_keep_level kept = ot_layer_kept(model, run->saved_level);
    struct ot_chunk_rows rows = chunk_rows(model, run->batch.n_tokens, first);
    struct inside inside = {kept, rows, {.base = run->saved}, {.base = run->work}};
    inside_memory(model, layer, &inside, out);
    scratch_memory(model, layer, &rows, run->scratch, kept, out);
}
