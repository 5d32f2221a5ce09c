/* config.json: what a Hugging Face model says about itself, read into what models/ computes with, and
 * written.
 *
 * READING accepts the key names of old and new transformers (rope_theta and rope_scaling, or rope_parameters;
 * torch_dtype or dtype; n_layer and its like), fills absent keys with what the family's class in transformers
 * would, and refuses by name whatever would make the result differ from transformers': an unknown model_type,
 * architecture, rope type or activation, quantized weights, partial layer types.
 *
 * WRITING. A preset gets a config.json that transformers 4 and 5 both read. A base model's config.json is
 * kept byte for byte but for the values that must change (ot_json_splice), so that keys which we do not know
 * survive.
 */
#ifndef OT_FILES_MODEL_CONFIG_H
#define OT_FILES_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "models/model.h"

enum { OT_MAX_EOS = 16, OT_CONFIG_MAX_BYTES = 4 << 20 };

/* Token ids as config.json and generation_config.json give them. */
struct ot_token_ids {
    int32_t bos; /* -1: none */
    int n_eos;
    int32_t eos[OT_MAX_EOS];
};

struct ot_config_file {
    struct ot_model_config config;
    bool has_dtype; /* torch_dtype or dtype is there */
    enum ot_dtype dtype;
    struct ot_token_ids ids;
    double attention_dropout; /* which is not applied */
};

struct ot_json;

/* where: the file's path, for sentences. Errors: OT_E_INPUT. */
int ot_model_config_parse(const struct ot_json *root, const char *where, struct ot_config_file *out);
/* bos_token_id and eos_token_id (an id or a list) of either file; absent keys leave *ids as it is. vocab: ids
 * must be below. Errors: OT_E_INPUT. */
int ot_token_ids_parse(const struct ot_json *root, const char *where, int64_t vocab,
                       struct ot_token_ids *ids);

/* A whole config.json, and the generation_config.json beside it. The caller frees the text. Errors:
 * OT_E_BUDGET. */
int ot_model_config_write(const struct ot_config_file *file, char **text, size_t *bytes);
int ot_generation_config_write(const struct ot_token_ids *ids, char **text, size_t *bytes);

/* The config.json of a base with another dtype and, where ids->n_eos > 0, other ids; *text stays NULL where
 * nothing would change. The caller frees the text. Errors: OT_E_BUDGET. */
int ot_model_config_rewrite(const struct ot_json *root, enum ot_dtype dtype, const struct ot_token_ids *ids,
                            char **text, size_t *bytes);
/* The same for a generation_config.json, which knows ids alone. */
int ot_generation_config_rewrite(const struct ot_json *root, const struct ot_token_ids *ids, char **text,
                                 size_t *bytes);

/* "bfloat16", as torch_dtype says it. */
const char *ot_torch_dtype_name(enum ot_dtype dtype);

#endif
