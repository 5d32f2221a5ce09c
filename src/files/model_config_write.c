/* Writes config.json and generation_config.json, new or from a base's, with other ids and dtype. */
#include "src/files/model_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/files/quant_encode.h"

static void put_ids(struct ot_json_writer *w, const char *key, const int32_t *ids, int n) {
    if (n == 1) {
        ot_json_put_int(w, key, ids[0]);
        return;
    }
    ot_json_begin_array(w, key);
    for (int i = 0; i < n; i++)
        ot_json_put_int(w, NULL, ids[i]);
    ot_json_end_array(w);
}

static void put_token_ids(struct ot_json_writer *w, const struct ot_token_ids *ids) {
    if (ids->bos >= 0)
        ot_json_put_int(w, "bos_token_id", ids->bos);
    if (ids->n_eos > 0)
        put_ids(w, "eos_token_id", ids->eos, ids->n_eos);
}

int ot_model_config_write(const struct ot_config_file *file, char **text, size_t *bytes) {
    struct ot_json_writer w = {.indent = 0};
    ot_json_begin_object(&w, NULL);
    ot_model_config_put(&file->config, &w);
    put_token_ids(&w, &file->ids);
    ot_json_put_text(&w, "torch_dtype", ot_torch_dtype_name(file->dtype));
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

int ot_generation_config_write(const struct ot_token_ids *ids, bool pairs, char **text, size_t *bytes) {
    struct ot_json_writer w = {.indent = 0};
    ot_json_begin_object(&w, NULL);
    ot_json_put_bool(&w, "_from_model_config", true);
    if (pairs) /* transformers looks here alone for them */
        ot_json_put_int(&w, "decoder_start_token_id", OT_PAIR_START_ID);
    if (pairs)
        ot_json_put_int(&w, "pad_token_id", OT_PAIR_START_ID);
    put_token_ids(&w, ids);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

/* ---- rewriting a base's file ---- */

/* dtype_key NULL: the file has ids only. */
struct rewrite {
    const char *dtype_key;
    struct ot_config_changes to;
};

static bool same_ids(const struct ot_json *value, const int32_t *ids, int n) {
    if (n == 1 && ot_json_type(value) == OT_JSON_INT)
        return ot_json_int(value, -1) == ids[0];
    if (ot_json_length(value) != (size_t)n)
        return false;
    for (int i = 0; i < n; i++)
        if (ot_json_int(ot_json_at(value, (size_t)i), -1) != ids[i])
            return false;
    return true;
}

static bool changes(const struct ot_json *root, const struct rewrite *change) {
    const struct ot_config_changes *to = &change->to;
    if (change->dtype_key) {
        const char *name = ot_json_string(ot_json_get(root, change->dtype_key), NULL);
        if (!name || strcmp(name, ot_torch_dtype_name(to->dtype)) != 0 || to->pack ||
            ot_json_get(root, "quantization_config"))
            return true;
    }
    if (to->unties || to->vocab || to->rope)
        return true;
    if (to->ids->n_eos == 0)
        return false;
    return !same_ids(ot_json_get(root, "eos_token_id"), to->ids->eos, to->ids->n_eos) ||
           (to->ids->bos >= 0 && ot_json_int(ot_json_get(root, "bos_token_id"), -1) != to->ids->bos);
}

static bool is_replaced(const char *key, const struct rewrite *change) {
    const struct ot_config_changes *to = &change->to;
    bool ids = to->ids->n_eos > 0;
    return (change->dtype_key && strcmp(key, change->dtype_key) == 0) ||
           (change->dtype_key && strcmp(key, "quantization_config") == 0) ||
           (to->unties && strcmp(key, "tie_word_embeddings") == 0) ||
           (to->vocab && strcmp(key, "vocab_size") == 0) || (to->rope && ot_model_config_is_rope_key(key)) ||
           (ids && strcmp(key, "eos_token_id") == 0) ||
           (ids && to->ids->bos >= 0 && strcmp(key, "bos_token_id") == 0);
}

static int rewrite(const struct ot_json *root, const struct rewrite *change, char **text, size_t *bytes) {
    const struct ot_config_changes *to = &change->to;
    struct ot_json_writer w = {.indent = 0};
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    *text = NULL;
    if (!changes(root, change))
        return 0;
    ot_json_begin_object(&w, NULL);
    while (ot_json_next(root, &cursor, &key, &value))
        if (!is_replaced(key, change))
            ot_json_put_value(&w, key, value);
    if (change->dtype_key)
        ot_json_put_text(&w, change->dtype_key, ot_torch_dtype_name(to->dtype));
    if (to->unties)
        ot_json_put_bool(&w, "tie_word_embeddings", false);
    if (to->vocab)
        ot_json_put_int(&w, "vocab_size", to->vocab);
    if (to->rope)
        ot_model_config_put_rope(to->rope, &w);
    if (to->ids->n_eos > 0)
        put_token_ids(&w, to->ids);
    if (to->pack)
        ot_quant_encode_config(to->pack, "quantization_config", &w);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

int ot_model_config_rewrite(const struct ot_json *root, const struct ot_config_changes *changes, char **text,
                            size_t *bytes) {
    struct rewrite change = {.dtype_key = ot_json_get(root, "dtype") ? "dtype" : "torch_dtype",
                             .to = *changes};
    return rewrite(root, &change, text, bytes);
}

int ot_generation_config_rewrite(const struct ot_json *root, const struct ot_token_ids *ids, char **text,
                                 size_t *bytes) {
    struct rewrite change = {.to.ids = ids};
    return rewrite(root, &change, text, bytes);
}
