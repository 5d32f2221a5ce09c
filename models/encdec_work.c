/* FLOPs and bytes of the layers of an encoder-decoder, counted as decoder_work.c says. A plan is made before
 * any row is read, so we assume that half of the tokens are inputs. */
#include "models/encdec.h"

static const double OWN_SHARE = 0.5; /* of the tokens, for each layer */

/* The work of a layer for one of its own tokens, and of a decoder's layer for one input. */
struct sizes {
    double h, q, inner, ffn;
    bool is_decoder;
};

static struct sizes sizes_of(const struct ot_model *model, int64_t layer) {
    const struct ot_model_config *c = &model->config;
    return (struct sizes){(double)c->hidden, (double)model->q_elems, (double)model->inner_elems,
                          (double)c->ffn, layer >= c->n_encoder_layers};
}

/* Multiplications of all maps, and of those that recomputation leaves out at level `attention`. */
static double map_params(const struct sizes *s) {
    double cross = s->is_decoder ? 2 * s->h * s->q + 2 * s->h * s->q : 0; /* of targets; of inputs */
    return 4 * s->h * s->q + cross + s->h * s->inner + s->ffn * s->h;
}

/* Multiplications of the maps whose gradient backward computes, or of the adapters of maps. A layer has one
 * slab of its own, or two. */
static double trained_params(const struct ot_model *model, int64_t layer, bool adapters) {
    const struct ot_block_spec *block = &model->blocks[1 + layer];
    double params = 0;
    for (int u = 0; u < block->n_uses; u++) {
        const struct ot_slab_memory *memory = &model->slab_memory[block->uses[u].slab];
        for (int64_t i = 0; i < memory->n_tensors; i++) {
            const struct ot_tensor *t = &model->tensors[memory->first_tensor + i];
            bool computed = ot_module_is_map(t->module) && !model->slabs[t->slab].frozen &&
                            ot_lora_has_tensor(t->name) == adapters;
            params += computed ? (double)(t->rows * t->cols) : 0;
        }
    }
    return params;
}

/* Keys that a query of the layer sees, in rows of row_tokens tokens. An encoder sees all inputs; a decoder
 * the targets before, and all inputs. */
static double mean_keys(const struct sizes *s, double row_tokens) {
    double part = row_tokens * OWN_SHARE;
    return s->is_decoder ? ot_model_mean_keys(part, 0) + part : part;
}

static double elems(const struct ot_model *model, const struct sizes *s, enum ot_work_part part,
                    enum ot_keep_level level) {
    bool plain = model->config.plain_mlp;
    double norms = (s->is_decoder ? 4 : 2) * 2 * s->h; /* of own tokens, and of inputs */
    double act = (plain ? 2 : 3) * s->ffn, sides = s->is_decoder ? 3 : 2;
    switch (part) {
    case OT_WORK_FORWARD: /* the residuals; the tokens of the other part are copied */
        return norms + sides * s->h + act + 2 * s->h;
    case OT_WORK_BACKWARD:
        return norms + act + (s->is_decoder ? 4 : 2) * 4 * s->h + (plain ? 3 : 5) * s->ffn;
    case OT_WORK_RECOMPUTE: /* the norms before the maps of attention; the residuals but the last */
        return level < OT_KEEP_PRODUCTS ? norms - 2 * s->h + (sides - 1) * s->h : 0;
    case OT_WORK_CLEAR: /* decoder.c */
        break;
    }
    return 0;
}

/* Adds the adapters of the maps, for n of the layer's own tokens, or inputs. */
static void lora_work(const struct ot_model *model, int64_t layer, enum ot_work_part part,
                      enum ot_keep_level level, double n, struct ot_block_work *out) {
    double item = (double)ot_dtype_bytes(model->chain.dtype);
    bool computed = part == OT_WORK_FORWARD || (part == OT_WORK_RECOMPUTE && level < OT_KEEP_PRODUCTS);
    struct ot_block_work token = {0};
    for (int i = 0; i < OT_ENCDEC_MAPS; i++) {
        const struct ot_encdec_map_layout map = ot_encdec_map_find(model, layer, (enum ot_encdec_map)i);
        const struct ot_unit_sizes unit = {map.lora, (double)map.in, (double)map.out, 1};
        bool result = computed && (i != OT_ENCDEC_DOWN || part == OT_WORK_FORWARD);
        if (map.lora->n == 0)
            continue;
        ot_unit_lora_work(&unit, (struct ot_unit_part){computed, result}, part, item, &token);
        if (computed)
            ot_dora_factors_work(map.lora, unit.in, item, out);
    }
    out->product_flops += n * token.product_flops;
    out->moved_bytes += n * token.moved_bytes;
}

void ot_encdec_work(const struct ot_model *model, int64_t layer, enum ot_work_part part,
                    enum ot_keep_level level, int64_t n_tokens, int64_t row_tokens,
                    struct ot_block_work *out) {
    const struct sizes s = sizes_of(model, layer);
    double n = (double)n_tokens * OWN_SHARE, attention = 2 * s.q * mean_keys(&s, (double)row_tokens);
    double maps = map_params(&s), item = (double)ot_dtype_bytes(model->chain.dtype);
    *out = (struct ot_block_work){.moved_bytes = n * item * elems(model, &s, part, level)};
    if (part == OT_WORK_FORWARD) {
        out->product_flops = n * 2 * maps;
        out->attention_flops = n * 2 * attention;
    } else if (part == OT_WORK_BACKWARD) {
        out->product_flops = n * 2 * (maps + trained_params(model, layer, false));
        out->attention_flops = n * 5 * attention;
    } else if (part == OT_WORK_RECOMPUTE) {
        out->product_flops = level < OT_KEEP_PRODUCTS ? n * 2 * (maps - s.ffn * s.h) : 0;
        out->attention_flops = level < OT_KEEP_ATTENTION ? n * 2 * attention : 0;
    }
    lora_work(model, layer, part, level, n, out);
}

/* As ot_model_flops_per_token: of an average token, in rows of mean_row_tokens. */
double ot_encdec_flops_per_token(const struct ot_model *model, double mean_row_tokens) {
    const struct ot_model_config *c = &model->config;
    const struct ot_lora_unit *head = &model->head.lora;
    bool trains_head =
        model->head.projection.use != OT_ABSENT &&
        !model->slabs[model->blocks[1 + c->n_layers].uses[model->head.projection.use].slab].frozen;
    double flops = OWN_SHARE * (trains_head ? 6 : 4) * (double)(c->vocab * c->hidden);
    flops += OWN_SHARE * 6 * (double)(head->rank * (c->vocab + c->hidden));
    for (int64_t l = 0; l < c->n_layers; l++) {
        const struct sizes s = sizes_of(model, l);
        flops += OWN_SHARE * (4 * map_params(&s) + 2 * trained_params(model, l, false) +
                              6 * trained_params(model, l, true));
        flops += OWN_SHARE * 12 * s.q * mean_keys(&s, mean_row_tokens);
    }
    return flops;
}
