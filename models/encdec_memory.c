#include "models/encdec.h"

#include "src/base/minmax.h"

struct ot_encdec_map_layout ot_encdec_map_find(const struct ot_model *model, int64_t layer,
                                               enum ot_encdec_map map) {
    const struct ot_layer_layout *at = &model->layers[layer];
    int64_t h = model->config.hidden, q = model->q_elems;
    const struct ot_encdec_map_layout maps[OT_ENCDEC_MAPS] = {
        [OT_ENCDEC_QKV] = {h, model->qkv_elems, at->qkv, &at->qkv_lora},
        [OT_ENCDEC_O] = {q, h, at->o, &at->o_lora},
        [OT_ENCDEC_CROSS_Q] = {h, q, at->cross_q, &at->cross_q_lora},
        [OT_ENCDEC_CROSS_KV] = {h, 2 * q, at->cross_kv, &at->cross_kv_lora},
        [OT_ENCDEC_CROSS_O] = {q, h, at->cross_o, &at->cross_o_lora},
        [OT_ENCDEC_GATE_UP] = {h, model->inner_elems, at->gate_up, &at->gate_up_lora},
        [OT_ENCDEC_DOWN] = {model->config.ffn, h, at->down, &at->down_lora},
    };
    return maps[map];
}

/* The two buffers of inner activations. */
struct inside {
    enum ot_keep_level kept;
    struct ot_pieces saved, work;
};

/* An array of `width` elements for each token. */
static void *take(const struct ot_model *model, struct inside *inside, enum ot_keep_level level, int64_t n,
                  int64_t width) {
    size_t bytes = (size_t)(n * width) * ot_dtype_bytes(model->chain.dtype);
    return ot_pieces_take(level <= inside->kept ? &inside->saved : &inside->work, bytes);
}

static float *take_softmax(const struct ot_model *model, struct inside *inside, int64_t n) {
    size_t bytes = ot_attend_spans_softmax_bytes(n, model->config.n_heads);
    return ot_pieces_take(OT_KEEP_ATTENTION <= inside->kept ? &inside->saved : &inside->work, bytes);
}

/* Takes the buffers of all maps' adapters. */
static void take_lora(const struct ot_model *model, int64_t layer, int64_t n, struct inside *inside,
                      struct ot_encdec_memory *m) {
    for (int i = 0; i < OT_ENCDEC_MAPS; i++) {
        const struct ot_encdec_map_layout map = ot_encdec_map_find(model, layer, (enum ot_encdec_map)i);
        int64_t width = map.lora->dora ? map.out : 0;
        m->lora[i].ax = take(model, inside, OT_KEEP_PRODUCTS, n, map.lora->rank);
        m->lora[i].u = take(model, inside, OT_KEEP_PRODUCTS, n, width);
        m->lora[i].factors = ot_pieces_take(OT_KEEP_PRODUCTS <= inside->kept ? &inside->saved : &inside->work,
                                            2 * (size_t)width * sizeof(float));
    }
}

static void inside_memory(const struct ot_model *model, int64_t layer, int64_t n, struct inside *inside,
                          struct ot_encdec_memory *m) {
    bool is_decoder = layer >= model->config.n_encoder_layers;
    int64_t q = model->q_elems, h = model->config.hidden;
    *m = (struct ot_encdec_memory){0};
    m->attn = take(model, inside, OT_KEEP_ATTENTION, n, q);
    m->softmax = take_softmax(model, inside, n);
    if (is_decoder) {
        m->cross_attn = take(model, inside, OT_KEEP_ATTENTION, n, q);
        m->cross_softmax = take_softmax(model, inside, n);
    }
    m->qkv = take(model, inside, OT_KEEP_PRODUCTS, n, model->qkv_elems);
    m->mid = take(model, inside, OT_KEEP_PRODUCTS, n, h);
    if (is_decoder) {
        m->cross_q = take(model, inside, OT_KEEP_PRODUCTS, n, q);
        m->cross_kv = take(model, inside, OT_KEEP_PRODUCTS, n, 2 * q);
        m->across = take(model, inside, OT_KEEP_PRODUCTS, n, h);
    }
    m->gate_up = take(model, inside, OT_KEEP_PRODUCTS, n, model->inner_elems);
    take_lora(model, layer, n, inside, m);
}

/* Scratch of one map at a time. All maps have one dropout. */
static void take_lora_scratch(const struct ot_model *model, int64_t layer, size_t tokens, size_t item,
                              struct ot_pieces *pieces, struct ot_encdec_memory *m) {
    int64_t rank = 0, widest = 0;
    size_t products = 0;
    bool drops = false;
    for (int i = 0; i < OT_ENCDEC_MAPS; i++) {
        const struct ot_encdec_map_layout map = ot_encdec_map_find(model, layer, (enum ot_encdec_map)i);
        size_t bytes = ot_linear_products_bytes(map.lora);
        rank = ot_max(rank, map.lora->rank);
        widest = ot_max(widest, map.in);
        products = ot_max(bytes, products);
        drops = drops || (map.lora->n > 0 && map.lora->drop > 0);
    }
    m->dax = ot_pieces_take(pieces, tokens * (size_t)rank * item);
    m->dropped = ot_pieces_take(pieces, drops ? tokens * (size_t)widest * item : 0);
    m->products = ot_pieces_take(pieces, products);
}

static size_t scratch_memory(const struct ot_model *model, int64_t layer, int64_t n, void *scratch,
                             struct ot_encdec_memory *m) {
    const struct ot_model_config *c = &model->config;
    size_t tokens = (size_t)n, item = ot_dtype_bytes(model->chain.dtype);
    struct ot_pieces pieces = {.base = scratch};
    m->wide = ot_pieces_take(&pieces, tokens * (size_t)ot_max(c->ffn, model->qkv_elems) * item);
    m->normed = ot_pieces_take(&pieces, tokens * (size_t)c->hidden * item);
    m->narrow = ot_pieces_take(&pieces, tokens * (size_t)ot_max(c->hidden, model->q_elems) * item);
    m->rstd = ot_pieces_take(&pieces, tokens * sizeof(float));
    take_lora_scratch(model, layer, tokens, item, &pieces, m);
    m->attention = ot_pieces_take(&pieces, ot_attend_spans_scratch_bytes(n, c->n_heads, c->position_buckets));
    return pieces.bytes;
}

size_t ot_encdec_saved_bytes(const struct ot_model *model, int64_t layer, enum ot_keep_level level,
                             int64_t n_tokens) {
    struct ot_encdec_memory memory;
    struct inside inside = {.kept = level};
    inside_memory(model, layer, n_tokens, &inside, &memory);
    return inside.saved.bytes;
}

size_t ot_encdec_work_bytes(const struct ot_model *model, int64_t layer, enum ot_keep_level level,
                            int64_t n_tokens) {
    struct ot_encdec_memory memory;
    struct inside inside = {.kept = level};
    inside_memory(model, layer, n_tokens, &inside, &memory);
    return inside.work.bytes;
}

size_t ot_encdec_scratch_bytes(const struct ot_model *model, int64_t layer, int64_t n_tokens) {
    struct ot_encdec_memory memory;
    return scratch_memory(model, layer, n_tokens, NULL, &memory);
}

void ot_encdec_memory_find(const struct ot_model *model, int64_t layer, const struct ot_block_run *run,
                           struct ot_encdec_memory *out) {
    struct inside inside = {run->saved_level, {.base = run->saved}, {.base = run->work}};
    inside_memory(model, layer, run->batch.n_tokens, &inside, out);
    scratch_memory(model, layer, run->batch.n_tokens, run->scratch, out);
}
