/* Facts that follow from a configuration. */
#include "models/config.h"

#include <math.h>

/* ---- facts of layers ---- */

int64_t ot_model_layer_window(const struct ot_model_config *c, int64_t layer) {
    bool has =
        c->window_by_layer ? ot_layer_set_has(&c->window_layers, layer) : layer >= c->window_first_layer;
    return has ? c->window : 0;
}

bool ot_model_layer_rotates(const struct ot_model_config *c, int64_t layer) {
    return c->positions == OT_POSITIONS_ROPE && !ot_layer_set_has(&c->no_rope, layer);
}

bool ot_model_layer_has_experts(const struct ot_model_config *c, int64_t layer) {
    return c->n_experts > 0 && !ot_layer_set_has(&c->dense_layers, layer);
}

float ot_model_attention_scale(const struct ot_model_config *c) {
    return (float)(c->attention_scale != 0 ? c->attention_scale : 1 / sqrt((double)c->head_dim));
}

int64_t ot_model_longest_row(const struct ot_model_config *c) {
    bool grows = c->positions == OT_POSITIONS_ROPE && c->rope.scaling == OT_ROPE_DYNAMIC;
    return grows ? (int64_t)(c->rope.factor * (double)c->max_position) : c->max_position;
}

int64_t ot_model_fused_row(const struct ot_model_config *c, int64_t row) {
    int64_t groups = c->fused_groups > 0 ? c->fused_groups : 1;
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    int64_t group_q = q / groups, group_kv = kv / groups, group = group_q + 2 * group_kv;
    if (row < q)
        return row / group_q * group + row % group_q;
    bool is_v = row >= q + kv;
    int64_t at = row - q - (is_v ? kv : 0), second = group_q + (is_v != c->fused_v_first ? group_kv : 0);
    return at / group_kv * group + second + at % group_kv;
}

double ot_model_mean_keys(double row_tokens, double window) {
    if (window == 0 || row_tokens <= window)
        return (row_tokens + 1) / 2;
    return (window * (window + 1) / 2 + (row_tokens - window) * window) / row_tokens;
}

float ot_model_most_dropout(const struct ot_model_config *c) {
    return fmaxf(fmaxf(c->embed_drop, c->attention_drop), fmaxf(c->o_drop, c->mlp_drop));
}
