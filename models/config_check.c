/* Checks a configuration, and counts its parameters. */
#include <math.h>

#include "models/config.h"
#include "models/family.h"
#include "models/rope.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

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
    if (c->n_experts > 0) {
        const struct field experts[] = {
            {"num_experts", c->n_experts, OT_MOST_EXPERTS},
            {"num_experts_per_tok", c->top_experts, ot_min(c->n_experts, OT_MOST_TOP)},
            {"moe_intermediate_size", c->expert_ffn, MAX_WIDTH}};
        for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++)
            OT_TRY(check_count(&experts[i], where));
    }
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

/* Attention with a bias of positions, and the norms that only some families have. */
static int check_kinds(const struct ot_model_config *c, const char *where) {
    const struct ot_family_names *names = ot_model_names(c);
    if (c->norm_place != OT_NORMS_BEFORE && c->residual != OT_SEQUENTIAL)
        return ot_fail(OT_E_INPUT, "%s: attention beside the MLP needs the norms before them", where);
    if (c->fused_groups > 1 && (c->n_heads % c->fused_groups || c->n_kv_heads % c->fused_groups))
        return ot_fail(
            OT_E_INPUT,
            "%s: the fused matrix of q, k and v has %lld groups, but num_attention_heads is %lld and "
            "there are %lld heads of k; both must be multiples of the groups",
            where, (long long)c->fused_groups, (long long)c->n_heads, (long long)c->n_kv_heads);
    if (names->modules[OT_MODULE_QKV] == NULL && c->fused_groups > 1)
        return ot_fail(OT_E_INPUT, "%s: this family has no fused matrix of q, k and v", where);
    if (c->n_experts > 0 &&
        (c->norm_place != OT_NORMS_BEFORE || c->residual != OT_SEQUENTIAL || c->residual_scale != 0 ||
         c->plain_mlp || c->mlp_bias || names->modules[OT_MODULE_ROUTER] == NULL))
        return ot_fail(OT_E_INPUT,
                       "%s: experts need a family that has them, norms before attention and MLP, and an MLP "
                       "with a gate, without biases",
                       where);
    if (c->residual_scale != 0 && (c->out_bias || c->mlp_bias))
        return ot_fail(OT_E_INPUT, "%s: residual_multiplier with attention_bias or mlp_bias is not supported",
                       where);
    if (!(c->attention_softcap >= 0) || !(c->logit_softcap >= 0) || !isfinite(c->attention_softcap) ||
        !isfinite(c->logit_softcap))
        return ot_fail(OT_E_INPUT, "%s: a softcap must be a number from 0 (none) up", where);
    return 0;
}

/* Checks that an encoder-decoder has the only form that its layers compute. */
static int check_pairs(const struct ot_model_config *c, const char *where) {
    if (!ot_model_has_pairs(c))
        return 0;
    if (c->n_encoder_layers >= c->n_layers)
        return ot_fail(OT_E_INPUT, "%s: num_decoder_layers is %lld, must be 1 or more", where,
                       (long long)(c->n_layers - c->n_encoder_layers));
    if (c->head_dim > OT_SPAN_MOST_DIM)
        return ot_fail(OT_E_INPUT, "%s: d_kv is %lld; heads of an encoder-decoder have at most %d elements",
                       where, (long long)c->head_dim, OT_SPAN_MOST_DIM);
    if (c->position_buckets < 4 || c->position_buckets > OT_SPAN_MOST_BUCKETS || c->position_buckets % 4)
        return ot_fail(OT_E_INPUT,
                       "%s: relative_attention_num_buckets is %lld, must be a multiple of 4 up to %d", where,
                       (long long)c->position_buckets, OT_SPAN_MOST_BUCKETS);
    if (c->position_distance <= c->position_buckets / 2 || c->position_distance > 1 << 20)
        return ot_fail(OT_E_INPUT,
                       "%s: relative_attention_max_distance is %lld, must be more than half of the buckets, "
                       "and at most 2^20",
                       where, (long long)c->position_distance);
    return 0;
}

static int64_t norm_params(const struct ot_model_config *c, int64_t width) {
    return c->norm == OT_NORM_LAYER ? 2 * width : width;
}

/* Counts a layer's MLP matrices, or all its experts and their router, with biases. */
static int64_t mlp_params(const struct ot_model_config *c, int64_t layer) {
    if (!ot_model_layer_has_experts(c, layer))
        return (c->plain_mlp ? 2 : 3) * c->ffn * c->hidden;
    int64_t biases = (c->router_bias ? 1 : 0) + (c->expert_bias ? 2 * c->expert_ffn + c->hidden : 0);
    return ((3 * c->expert_ffn + 1) * c->hidden + biases) * c->n_experts;
}

/* Parameters of one layer. Exact: check_counts keeps every product below 2^61. */
static int64_t layer_params(const struct ot_model_config *c, int64_t layer) {
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    int64_t inner = (c->plain_mlp ? 1 : 2) * c->ffn;
    int64_t n_norms = (ot_model_has_norms_before(c) ? (c->residual == OT_PARALLEL ? 1 : 2) : 0) +
                      (ot_model_has_norms_after(c) ? 2 : 0);
    int64_t n = (q + 2 * kv) * c->hidden + q * c->hidden + mlp_params(c, layer);
    n += n_norms * norm_params(c, c->hidden);
    n += c->qkv_bias ? q + 2 * kv : 0;
    n += c->out_bias ? c->hidden : 0;
    n += c->sinks ? c->n_heads : 0;
    n += c->mlp_bias ? inner + c->hidden : 0;
    n += c->qk_norm == OT_QK_NORM_HEADS ? 2 * c->head_dim : 0;
    n += c->qk_norm == OT_QK_NORM_WHOLE ? q + kv : 0;
    return n;
}

/* Parameters of the attention to the encoder's output, in all layers of the decoder. */
static int64_t cross_params(const struct ot_model_config *c) {
    int64_t each = 4 * c->n_heads * c->head_dim * c->hidden + norm_params(c, c->hidden);
    return ot_model_has_pairs(c) ? each * (c->n_layers - c->n_encoder_layers) : 0;
}

/* Parameters outside of layers. */
static int64_t edge_params(const struct ot_model_config *c) {
    int64_t n = (c->tied ? 1 : 2) * c->vocab * c->hidden + norm_params(c, c->hidden);
    n += ot_model_has_pairs(c) ? norm_params(c, c->hidden) : 0;
    n += c->positions == OT_POSITIONS_RELATIVE ? 2 * c->position_buckets * c->n_heads : 0;
    n += c->positions == OT_POSITIONS_LEARNED ? c->max_position * c->hidden : 0;
    n += c->embed_norm ? norm_params(c, c->hidden) : 0;
    n += c->head_bias ? c->vocab : 0;
    return n;
}

int ot_model_config_check(const struct ot_model_config *c, const char *where) {
    OT_TRY(check_counts(c, where));
    OT_TRY(check_kinds(c, where));
    OT_TRY(check_pairs(c, where));
    OT_TRY(ot_rope_config_check(c, where));
    OT_TRY(check_positive((double)c->norm_eps, "rms_norm_eps", where));
    if (!(c->init_std >= 0) || !isfinite(c->init_std))
        return ot_fail(OT_E_INPUT, "%s: initializer_range is %g, must be 0 or more", where, c->init_std);
    double n = (double)cross_params(c) + 3.0 * (double)c->vocab * (double)c->hidden +
               (double)c->max_position * (double)c->hidden;
    for (int64_t l = 0; l < c->n_layers; l++)
        n += (double)layer_params(c, l);
    if (n > MAX_PARAMS)
        return ot_fail(
            OT_E_INPUT,
            "%s: num_hidden_layers, hidden_size and the other sizes make %.3g parameters, which is too many",
            where, n);
    return 0;
}

int64_t ot_model_param_count(const struct ot_model_config *c) {
    int64_t n = cross_params(c) + edge_params(c);
    for (int64_t l = 0; l < c->n_layers; l++)
        n += layer_params(c, l);
    return n;
}
