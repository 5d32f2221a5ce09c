/* Writes config.json from a model's description: for models that were not made from a file. Standard names
 * of keys: transformers maps them to those of each family. */
#include <stdio.h>
#include <stdlib.h>

#include "models/family.h"
#include "models/rope.h"
#include "src/base/json.h"

double ot_config_decimal(float value) {
    char text[32];
    double decimal = (double)value;
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        decimal = strtod(text, NULL);
        if ((float)decimal == value)
            break;
    }
    return decimal;
}

static const char *act_name(enum ot_activation act) {
    static const char *const names[] = {"silu", "gelu", "gelu_pytorch_tanh", "relu"};
    return names[act];
}

static void put_window(struct ot_json_writer *w, const struct ot_model_config *c,
                       const struct ot_family_row *row) {
    if (row->window == OT_WINDOW_NONE)
        return;
    if (c->window > 0)
        ot_json_put_int(w, "sliding_window", c->window);
    else
        ot_json_put_null(w, "sliding_window");
    if (row->window == OT_WINDOW_FLAG || row->window == OT_WINDOW_SWITCH || row->window == OT_WINDOW_NO_ROPE)
        ot_json_put_bool(w, "use_sliding_window", c->window > 0);
    if (row->window == OT_WINDOW_FLAG)
        ot_json_put_int(w, "max_window_layers", c->window > 0 ? c->window_first_layer : c->n_layers);
    if (!c->window_by_layer && row->window != OT_WINDOW_TYPES)
        return;
    ot_json_begin_array(w, "layer_types");
    for (int64_t i = 0; i < c->n_layers; i++)
        ot_json_put_text(w, NULL, ot_model_layer_window(c, i) ? "sliding_attention" : "full_attention");
    ot_json_end_array(w);
}

static void put_sizes(struct ot_json_writer *w, const struct ot_model_config *c) {
    ot_json_put_int(w, "hidden_size", c->hidden);
    ot_json_put_real(w, "initializer_range", c->init_std);
    ot_json_put_int(w, "intermediate_size", c->ffn);
    ot_json_put_int(w, "max_position_embeddings", c->max_position);
    ot_json_put_int(w, "num_attention_heads", c->n_heads);
    ot_json_put_int(w, "num_hidden_layers", c->n_layers);
    ot_json_put_int(w, "num_key_value_heads", c->n_kv_heads);
    ot_json_put_int(w, "vocab_size", c->vocab);
}

void ot_model_config_put(const struct ot_model_config *c, struct ot_json_writer *w) {
    const struct ot_family_row *row = ot_family_row(c->family);
    ot_json_begin_array(w, "architectures");
    ot_json_put_text(w, NULL, row->architecture);
    ot_json_end_array(w);
    ot_json_put_text(w, "model_type", row->model_type);
    if (row->writes_all) {
        row->write(c, w);
        return;
    }
    if (row->attention_bias)
        ot_json_put_bool(w, "attention_bias", c->out_bias);
    if (row->mlp_bias)
        ot_json_put_bool(w, "mlp_bias", c->mlp_bias);
    if (!c->plain_mlp)
        ot_json_put_int(w, "head_dim", c->head_dim);
    if (row->act_keys[0])
        ot_json_put_text(w, row->act_keys[0], act_name(c->act));
    put_sizes(w, c);
    ot_json_put_real(w, c->norm == OT_NORM_RMS ? "rms_norm_eps" : "layer_norm_epsilon",
                     ot_config_decimal(c->norm_eps));
    ot_rope_config_put(c, w);
    put_window(w, c, row);
    ot_json_put_bool(w, "tie_word_embeddings", c->tied);
    if (row->write)
        row->write(c, w);
}
