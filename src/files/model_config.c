#include "src/files/model_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"

/* ---- dtype and ids ---- */

static const struct {
    const char *name;
    enum ot_dtype dtype;
} dtypes[] = {{"float32", OT_F32}, {"bfloat16", OT_BF16}, {"float16", OT_F16}};

const char *ot_torch_dtype_name(enum ot_dtype dtype) {
    size_t i = 0;
    while (dtypes[i].dtype != dtype)
        i++;
    return dtypes[i].name;
}

static int parse_dtype(const struct ot_json *root, const char *where, struct ot_config_file *out) {
    const char *key = ot_json_get(root, "dtype") ? "dtype" : "torch_dtype", *name = NULL;
    OT_TRY(ot_json_need_string(root, where, key, false, &name));
    if (!name || strcmp(name, "auto") == 0)
        return 0;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            out->dtype = dtypes[i].dtype;
            out->has_dtype = true;
            return 0;
        }
    return ot_fail(OT_E_INPUT, "%s: %s '%s' is not supported; known: float32, bfloat16, float16", where, key,
                   name);
}

static int parse_id(const struct ot_json *value, const char *where, const char *key, int64_t vocab,
                    int32_t *id) {
    int64_t number = ot_json_int(value, -1);
    if (ot_json_type(value) != OT_JSON_INT || number < 0 || number >= vocab)
        return ot_fail(OT_E_INPUT, "%s: %s must be a token id from 0 to %lld, the vocabulary's last", where,
                       key, (long long)vocab - 1);
    *id = (int32_t)number;
    return 0;
}

int ot_token_ids_parse(const struct ot_json *root, const char *where, int64_t vocab,
                       struct ot_token_ids *ids) {
    const struct ot_json *bos = ot_json_get(root, "bos_token_id"), *eos = ot_json_get(root, "eos_token_id");
    if (bos)
        OT_TRY(parse_id(bos, where, "bos_token_id", vocab, &ids->bos));
    if (!eos)
        return 0;
    if (ot_json_type(eos) != OT_JSON_ARRAY) {
        ids->n_eos = 1;
        return parse_id(eos, where, "eos_token_id", vocab, &ids->eos[0]);
    }
    if (ot_json_length(eos) > OT_MAX_EOS)
        return ot_fail(OT_E_INPUT, "%s: eos_token_id lists %zu ids, at most %d are supported", where,
                       ot_json_length(eos), OT_MAX_EOS);
    ids->n_eos = (int)ot_json_length(eos);
    for (int i = 0; i < ids->n_eos; i++)
        OT_TRY(parse_id(ot_json_at(eos, (size_t)i), where, "eos_token_id", vocab, &ids->eos[i]));
    return 0;
}

int ot_model_config_parse(const struct ot_json *root, const char *where, struct ot_config_file *out) {
    *out = (struct ot_config_file){.dtype = OT_BF16, .ids = {.bos = -1}};
    OT_TRY(ot_model_config_read(root, where, &out->config));
    const struct ot_json *part = ot_model_config_text_part(root);
    OT_TRY(parse_dtype(root, where, out));
    if (ot_json_get(root, "quantization_config"))
        OT_TRY(ot_quantization_parse(ot_json_get(root, "quantization_config"), where, &out->quantized));
    if (part)
        OT_TRY(ot_token_ids_parse(part, where, out->config.vocab, &out->ids));
    return ot_token_ids_parse(root, where, out->config.vocab, &out->ids);
}
