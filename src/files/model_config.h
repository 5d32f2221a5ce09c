/* Reads and writes config.json, the description of a Hugging Face model, as the configuration that models/
 * uses.
 *
 * READING leaves the model itself to models/family.h, and reads what is around it: the dtype, ids of tokens,
 * the method of quantization.
 *
 * WRITING. A preset gets a config.json that transformers 4 and 5 both read. A base model's config.json is
 * copied byte for byte; only the values that must change are replaced (ot_json_splice), so that unknown keys
 * survive.
 */
#ifndef OT_FILES_MODEL_CONFIG_H
#define OT_FILES_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "models/model.h"
#include "src/files/quant_decode.h"

enum { OT_MAX_EOS = 16, OT_CONFIG_MAX_BYTES = 4 << 20 };

/* Token ids of config.json and generation_config.json. */
struct ot_token_ids {
    int32_t bos; /* -1: none */
    int n_eos;
    int32_t eos[OT_MAX_EOS];
};

struct ot_config_file {
    struct ot_model_config config;
    bool has_dtype; /* the file has torch_dtype or dtype */
    enum ot_dtype dtype;
    struct ot_token_ids ids;
    struct ot_quantization quantized;
};

struct ot_json;
struct ot_quant_format;

/* where: the path of the file, for error messages. Errors: OT_E_INPUT. */
int ot_model_config_parse(const struct ot_json *root, const char *where, struct ot_config_file *out);
/* Reads bos_token_id and eos_token_id (an id or a list) from either file. Absent keys leave *ids unchanged.
 * Ids must be below vocab. Errors: OT_E_INPUT. */
int ot_token_ids_parse(const struct ot_json *root, const char *where, int64_t vocab,
                       struct ot_token_ids *ids);

/* Writes a new config.json, or the generation_config.json beside it. The caller frees the text. Errors:
 * OT_E_BUDGET. */
int ot_model_config_write(const struct ot_config_file *file, char **text, size_t *bytes);
int ot_generation_config_write(const struct ot_token_ids *ids, bool pairs, char **text, size_t *bytes);

/* The changes that a save makes to its base's config.json. */
struct ot_config_changes {
    enum ot_dtype dtype;
    const struct ot_token_ids *ids; /* n_eos 0: as in the file */
    const struct ot_quant_format
        *pack;     /* how the matrices of the layers are stored (quant_encode.h); NULL: plainly, and
                                         * a key quantization_config goes */
    bool unties;   /* tie_word_embeddings becomes false */
    int64_t vocab; /* another vocab_size than the file's; 0: that */
    const struct ot_model_config *rope; /* another rope than the file's; NULL: that */
};

/* Rewrites a base's config.json. *text stays NULL if nothing changes. The caller frees the text. Errors:
 * OT_E_BUDGET. */
int ot_model_config_rewrite(const struct ot_json *root, const struct ot_config_changes *changes, char **text,
                            size_t *bytes);
/* The same for a generation_config.json, which has ids only. */
int ot_generation_config_rewrite(const struct ot_json *root, const struct ot_token_ids *ids, char **text,
                                 size_t *bytes);

/* The name in torch_dtype: "bfloat16", for example. */
const char *ot_torch_dtype_name(enum ot_dtype dtype);

#endif
