#include <math.h>

#include "models/model.h"
#include "src/base/error.h"

/* Largest width of an activation: tokens (below 2^31) times a few widths times 4 bytes stays far below 2^63.
 * The widest published model has 2^16. */
static const int64_t MAX_WIDTH = (int64_t)1 << 24, MAX_COUNT = INT32_MAX;
/* With 16 bytes of state a parameter, the sum of all bytes stays below 2^63. */
static const double MAX_PARAMS = 0x1p56;

struct field {
    const char *key; /* the key of config.json, so that the user knows what to correct */
    int64_t value, max;
};

static int check_count(const struct field *field, const char *where) {
    if (field->value < 1 || field->value > field->max)
        return ot_fail(OT_E_INPUT, "%s: %s is %lld, must be from 1 to %lld", where, field->key,
                       (long long)field->value, (long long)field->max);
    return 0;
}

static int check_positive(double value, const char *key, const char *where) {
    if (!(value > 0) || !isfinite(value))
        return ot_fail(OT_E_INPUT, "%s: %s is %g, must be a positive number", where, key, value);
    return 0;
}

static int check_counts(const struct ot_model_config *c, const char *where) {
    const struct field fields[] = {
        {"num_hidden_layers", c->n_layers, OT_MODEL_MAX_LAYERS},
        {"hidden_size", c->hidden, MAX_WIDTH},
        {"intermediate_size", c->ffn, MAX_WIDTH},
        {"num_attention_heads", c->n_heads, MAX_WIDTH},
        {"num_key_value_heads", c->n_kv_heads, MAX_WIDTH},
        {"head_dim", c->head_dim, MAX_WIDTH},
        {"vocab_size", c->vocab, MAX_COUNT},
        {"max_position_embeddings", c->max_position, MAX_COUNT},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        OT_TRY(check_count(&fields[i], where));
    struct field width = {"num_attention_heads x head_dim", c->n_heads * c->head_dim, MAX_WIDTH};
    OT_TRY(check_count(&width, where));
    if (c->n_heads % c->n_kv_heads)
        return ot_fail(
            OT_E_INPUT,
            "%s: num_attention_heads is %lld, which is not a multiple of num_key_value_heads, %lld", where,
            (long long)c->n_heads, (long long)c->n_kv_heads);
    if (c->window < 0 || c->window > MAX_COUNT)
        return ot_fail(OT_E_INPUT, "%s: sliding_window is %lld, must be from 0 (none) to %lld", where,
                       (long long)c->window, (long long)MAX_COUNT);
    if (c->window_first_layer < 0)
        return ot_fail(OT_E_INPUT, "%s: max_window_layers is %lld, must not be negative", where,
                       (long long)c->window_first_layer);
    return 0;
}

static int check_rope(const struct ot_model_config *c, const char *where) {
    if (c->rotary_dim < 2 || c->rotary_dim > c->head_dim || c->rotary_dim % 2)
        return ot_fail(
            OT_E_INPUT,
            "%s: rope would rotate %lld of each head's %lld elements; must be even and from 2 to head_dim",
            where, (long long)c->rotary_dim, (long long)c->head_dim);
    OT_TRY(check_positive(c->rope_theta, "rope_theta", where));
    if (c->rope_scaling == OT_ROPE_PLAIN)
        return 0;
    OT_TRY(check_positive(c->rope_factor, "rope_scaling.factor", where));
    if (c->rope_scaling == OT_ROPE_LINEAR)
        return 0;
    OT_TRY(check_positive(c->rope_low_freq_factor, "rope_scaling.low_freq_factor", where));
    OT_TRY(check_positive(c->rope_high_freq_factor, "rope_scaling.high_freq_factor", where));
    OT_TRY(check_positive(c->rope_original_max_position, "rope_scaling.original_max_position_embeddings",
                          where));
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        return ot_fail(OT_E_INPUT,
                       "%s: rope_scaling.high_freq_factor is %g, must be above low_freq_factor, %g", where,
                       c->rope_high_freq_factor, c->rope_low_freq_factor);
    return 0;
}

/* Parameters of one layer. Exact: check_counts keeps every product below 2^50. */
static int64_t layer_params(const struct ot_model_config *c) {
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    int64_t n = (q + 2 * kv) * c->hidden + q * c->hidden + 3 * c->hidden * c->ffn + 2 * c->hidden;
    n += c->qkv_bias ? q + 2 * kv : 0;
    n += c->out_bias ? c->hidden : 0;
    n += c->mlp_bias ? 2 * c->ffn + c->hidden : 0;
    n += c->qk_norm ? 2 * c->head_dim : 0;
    return n;
}

int ot_model_config_check(const struct ot_model_config *c, const char *where) {
    OT_TRY(check_counts(c, where));
    OT_TRY(check_rope(c, where));
    OT_TRY(check_positive(c->norm_eps, "rms_norm_eps", where));
    if (!(c->init_std >= 0) || !isfinite(c->init_std))
        return ot_fail(OT_E_INPUT, "%s: initializer_range is %g, must be 0 or more", where, c->init_std);
    if (c->norm != OT_NORM_RMS)
        return ot_fail(OT_E_INPUT, "%s: only RMS norms are supported", where);
    double n = (double)layer_params(c) * (double)c->n_layers + 2.0 * (double)c->vocab * (double)c->hidden;
    if (n > MAX_PARAMS)
        return ot_fail(
            OT_E_INPUT,
            "%s: num_hidden_layers, hidden_size and the other sizes make %.3g parameters, which is too many",
            where, n);
    return 0;
}

int64_t ot_model_param_count(const struct ot_model_config *c) {
    return layer_params(c) * c->n_layers + c->hidden + (c->tied ? 1 : 2) * c->vocab * c->hidden;
}

int64_t ot_model_layer_window(const struct ot_model_config *c, int64_t layer) {
    bool has = c->window_by_layer ? c->window_layers[layer / 64] >> (layer % 64) & 1
                                  : layer >= c->window_first_layer;
    return has ? c->window : 0;
}

double ot_model_mean_keys(double row_tokens, double window) {
    if (window == 0 || row_tokens <= window)
        return (row_tokens + 1) / 2;
    return (window * (window + 1) / 2 + (row_tokens - window) * window) / row_tokens;
}
