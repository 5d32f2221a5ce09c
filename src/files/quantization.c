#include "src/files/quantization.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"

/* The cure for every quantised model that cannot be read. */
#define CURE "use the model that it was made from, or one in GPTQ, bitsandbytes, MXFP4 or GGUF"

static int refuse(const char *where, const char *key, const char *value) {
    return ot_fail(OT_E_INPUT, "%s: quantized weights with %s '%.64s' cannot be read; " CURE, where, key,
                   value);
}

/* "gptq" and "gptq_v2" are the formats that hold the codes in the order of the matrix. The others are for
 * one kernel each. */
static int parse_format(const struct ot_json *config, const char *where, struct ot_quantization *out) {
    const char *format = "gptq", *pack = "int32";
    OT_TRY(ot_json_need_string(config, where, "format", false, &format));
    OT_TRY(ot_json_need_string(config, where, "checkpoint_format", false, &format));
    OT_TRY(ot_json_need_string(config, where, "pack_dtype", false, &pack));
    out->true_zeros = strcmp(format, "gptq_v2") == 0;
    if (!out->true_zeros && strcmp(format, "gptq") != 0)
        return refuse(where, "checkpoint_format", format);
    if (ot_json_bool(ot_json_get(config, "is_marlin_format"), false))
        return refuse(where, "checkpoint_format", "marlin");
    return strcmp(pack, "int32") == 0 ? 0 : refuse(where, "pack_dtype", pack);
}

/* GPTQModel's key `dynamic` gives modules settings of their own. "-:PATTERN" leaves modules as they are,
 * which their tensors show too. */
static int check_dynamic(const struct ot_json *config, const char *where) {
    const struct ot_json *dynamic = ot_json_get(config, "dynamic");
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(dynamic, &cursor, &key, &value))
        if (strncmp(key, "-:", 2) != 0)
            return refuse(where, "dynamic", key);
    return 0;
}

static int parse_gptq(const struct ot_json *config, const char *where, struct ot_quantization *out) {
    int64_t bits = 4;
    out->method = OT_QUANT_GPTQ;
    out->group_size = -1;
    OT_TRY(ot_json_need_int(config, where, "bits", true, 2, 8, &bits));
    if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
        return ot_fail(OT_E_INPUT, "%s: GPTQ weights of %lld bits cannot be read, only those of 2, 3, 4 or 8",
                       where, (long long)bits);
    out->bits = (int)bits;
    OT_TRY(ot_json_need_int(config, where, "group_size", false, -1, INT32_MAX, &out->group_size));
    if (out->group_size == 0)
        return ot_fail(OT_E_INPUT, "%s: group_size is 0, must be -1 or more than 0", where);
    OT_TRY(check_dynamic(config, where));
    return parse_format(config, where, out);
}

static int parse_bitsandbytes(const struct ot_json *config, const char *where, struct ot_quantization *out) {
    const char *type = "nf4";
    out->method = OT_QUANT_BITSANDBYTES;
    if (!ot_json_bool(ot_json_get(config, "load_in_4bit"), false))
        return 0;
    OT_TRY(ot_json_need_string(config, where, "bnb_4bit_quant_type", false, &type));
    return strcmp(type, "nf4") == 0 ? 0 : refuse(where, "bnb_4bit_quant_type", type);
}

int ot_quantization_parse(const struct ot_json *config, const char *where, struct ot_quantization *out) {
    const char *method = NULL;
    *out = (struct ot_quantization){.method = OT_QUANT_NONE};
    if (ot_json_type(config) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: the description of quantized weights is %s, not an object", where,
                       ot_json_type_name(ot_json_type(config)));
    OT_TRY(ot_json_need_string(config, where, "quant_method", false, &method));
    if (!method) /* the first versions of both wrote none */
        method = ot_json_get(config, "bits") ? "gptq" : "bitsandbytes";
    if (strcmp(method, "gptq") == 0)
        return parse_gptq(config, where, out);
    if (strcmp(method, "bitsandbytes") == 0)
        return parse_bitsandbytes(config, where, out);
    if (strcmp(method, "mxfp4") == 0) {
        out->method = OT_QUANT_MXFP4;
        return 0;
    }
    return refuse(where, "quant_method", method);
}
