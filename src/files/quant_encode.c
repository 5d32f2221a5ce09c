#include "src/files/quant_encode.h"

#include <stdio.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/files/model_config.h"

static int64_t quotient_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* ---- the tensors ---- */

static int gptq_tensors(const struct ot_quant_format *f, int64_t rows, int64_t cols,
                        struct ot_quant_tensor *tensors) {
    int64_t groups = f->group_size < 0 ? 1 : quotient_up(cols, f->group_size);
    tensors[0] = (struct ot_quant_tensor){".qweight", "I32", 4, 2, {quotient_up(cols * f->bits, 32), rows}};
    tensors[1] = (struct ot_quant_tensor){".qzeros", "I32", 4, 2, {groups, quotient_up(rows * f->bits, 32)}};
    tensors[2] = (struct ot_quant_tensor){".scales", "F16", 2, 2, {groups, rows}};
    tensors[3] = (struct ot_quant_tensor){".g_idx", "I32", 4, 1, {cols}};
    return 4;
}

static int nf4_tensors(const struct ot_quant_format *f, int64_t rows, int64_t cols,
                       struct ot_quant_tensor *tensors) {
    const struct ot_weight weight = {
        .format = f->nested ? OT_WEIGHT_NF4_DOUBLE : OT_WEIGHT_NF4, .rows = rows, .cols = cols};
    struct ot_weight_layout l = ot_weight_layout(&weight);
    int n = 0;
    tensors[n++] = (struct ot_quant_tensor){".weight", "U8", 1, 2, {l.code_bytes, 1}};
    tensors[n++] = (struct ot_quant_tensor){
        ".weight.absmax", f->nested ? "U8" : "F32", f->nested ? 1 : 4, 1, {l.n_scales}};
    if (f->nested) {
        tensors[n++] = (struct ot_quant_tensor){".weight.nested_absmax", "F32", 4, 1, {l.n_groups}};
        tensors[n++] = (struct ot_quant_tensor){".weight.nested_quant_map", "F32", 4, 1, {256}};
    }
    tensors[n++] = (struct ot_quant_tensor){".weight.quant_map", "F32", 4, 1, {16}};
    tensors[n++] =
        (struct ot_quant_tensor){".weight.quant_state.bitsandbytes__nf4", "U8", 1, 1, {OT_QUANT_STATE_BYTES}};
    return n;
}

static int mxfp4_tensors(const struct ot_tensor *t, struct ot_quant_tensor *tensors) {
    int64_t rows = t->rows / t->parts, blocks = t->cols / OT_WEIGHT_MX_BLOCK;
    tensors[0] =
        (struct ot_quant_tensor){"_blocks", "U8", 1, 4, {t->parts, rows, blocks, OT_WEIGHT_MX_BLOCK / 2}};
    tensors[1] = (struct ot_quant_tensor){"_scales", "U8", 1, 3, {t->parts, rows, blocks}};
    return 2;
}

bool ot_quant_encode_takes(const struct ot_quant_format *f, const struct ot_tensor *tensor,
                           enum ot_layer_input *input) {
    if (f->plain_down && tensor->module == OT_MODULE_DOWN)
        return false;
    return ot_tensor_reads_input(tensor, input) && (f->kind != OT_QUANT_KIND_MXFP4 || tensor->parts > 0);
}

int ot_quant_encode_tensors(const struct ot_quant_format *f, const struct ot_tensor *tensor,
                            struct ot_quant_tensor tensors[OT_QUANT_TENSORS]) {
    int64_t rows = tensor->rows, cols = tensor->cols;
    if (f->kind == OT_QUANT_KIND_MXFP4)
        return mxfp4_tensors(tensor, tensors);
    if (f->kind == OT_QUANT_KIND_GPTQ)
        return gptq_tensors(f, rows, cols, tensors);
    if (f->kind == OT_QUANT_KIND_4BIT)
        return nf4_tensors(f, rows, cols, tensors);
    tensors[0] = (struct ot_quant_tensor){".weight", "I8", 1, 2, {rows, cols}};
    tensors[1] = (struct ot_quant_tensor){".SCB", "F32", 4, 1, {rows}};
    return 2;
}

int64_t ot_quant_tensor_bytes(const struct ot_quant_tensor *stored) {
    int64_t bytes = stored->item_bytes;
    for (int d = 0; d < stored->dims; d++)
        bytes *= stored->shape[d];
    return bytes;
}

void ot_quant_tensor_name(const struct ot_tensor *tensor, const struct ot_quant_tensor *stored, char *name,
                          size_t bytes) {
    const char *end = strstr(tensor->name, ".weight");
    int stem = (int)(end ? (size_t)(end - tensor->name) : strlen(tensor->name));
    snprintf(name, bytes, "%.*s%s", stem, tensor->name, stored->suffix);
}

/* Kernels read whole words and groups. Tensors lie in the file without gaps, and readers want each to
 * begin at a multiple of its items' size. */
int ot_quant_encode_check(const struct ot_quant_format *f, const struct ot_tensor *tensor) {
    struct ot_quant_tensor tensors[OT_QUANT_TENSORS];
    const char *name = tensor->name;
    int64_t rows = tensor->rows, cols = tensor->cols;
    bool gptq = f->kind == OT_QUANT_KIND_GPTQ;
    if (f->kind == OT_QUANT_KIND_MXFP4 && cols % OT_WEIGHT_MX_BLOCK != 0)
        return ot_fail(OT_E_INPUT, "%s has %lld columns; MXFP4 needs a multiple of %d", name, (long long)cols,
                       OT_WEIGHT_MX_BLOCK);
    if (gptq && f->group_size > 0 && cols % f->group_size != 0)
        return ot_fail(OT_E_INPUT, "%s has %lld columns, which is not a multiple of the group size %lld",
                       name, (long long)cols, (long long)f->group_size);
    if (gptq && (rows % 32 != 0 || cols % 32 != 0))
        return ot_fail(OT_E_INPUT, "%s is %lld x %lld; GPTQ needs multiples of 32", name, (long long)rows,
                       (long long)cols);
    for (int i = ot_quant_encode_tensors(f, tensor, tensors) - 1; i >= 0; i--)
        if (ot_quant_tensor_bytes(&tensors[i]) % 4 != 0)
            return ot_fail(OT_E_INPUT, "%s is %lld x %lld; this format needs multiples of 4 %s", name,
                           (long long)rows, (long long)cols, f->nested ? "x 64 x 4 weights" : "weights");
    return 0;
}

/* ---- the bytes ---- */

static void put_bits(uint32_t *words, int64_t at, int64_t step, int64_t bit, int bits, uint32_t code) {
    int shift = (int)(bit % 32);
    words[at] |= code << shift;
    if (shift + bits > 32)
        words[at + step] |= code >> (32 - shift);
}

void ot_quant_encode_codes(const struct ot_quant_format *f, int64_t rows, int64_t cols, const uint8_t *codes,
                           uint32_t *words) {
    enum { TILE = 16 }; /* rows whose words lie in one cache line */
    memset(words, 0, (size_t)(quotient_up(cols * f->bits, 32) * rows) * sizeof *words);
    for (int64_t first = 0; first < rows; first += TILE)
        for (int64_t c = 0; c < cols; c++)
            for (int64_t r = first; r < first + TILE && r < rows; r++) {
                int64_t bit = c * f->bits;
                put_bits(words, bit / 32 * rows + r, rows, bit, f->bits, codes[r * cols + c]);
            }
}

void ot_quant_encode_zeros(const struct ot_quant_format *f, int64_t rows, int64_t groups,
                           const uint8_t *zeros, uint32_t *words) {
    int64_t line = quotient_up(rows * f->bits, 32);
    uint32_t mask = (1u << f->bits) - 1, less = f->symmetric ? 1 : 0; /* format "gptq" stores zero - 1 */
    memset(words, 0, (size_t)(groups * line) * sizeof *words);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < rows; r++)
            put_bits(words, g * line + r * f->bits / 32, 1, r * f->bits, f->bits,
                     (zeros[g * rows + r] - less) & mask);
}

void ot_quant_encode_state(const struct ot_quant_format *f, int64_t rows, int64_t cols, float offset,
                           char text[OT_QUANT_STATE_BYTES]) {
    char nested[128] = "";
    if (f->nested)
        snprintf(nested, sizeof nested,
                 ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %.9g",
                 OT_WEIGHT_GROUP, (double)offset);
    int n =
        snprintf(text, OT_QUANT_STATE_BYTES,
                 "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", \"shape\": [%lld, "
                 "%lld]%s}",
                 OT_WEIGHT_BLOCK, ot_torch_dtype_name(f->dtype), (long long)rows, (long long)cols, nested);
    memset(text + n, ' ', (size_t)(OT_QUANT_STATE_BYTES - n));
}

/* ---- config.json ---- */

/* The keys of GPTQModel, which transformers and vLLM read too. */
static void put_gptq(const struct ot_quant_format *f, struct ot_json_writer *w) {
    const char *format = f->symmetric ? "gptq" : "gptq_v2";
    ot_json_put_text(w, "quant_method", "gptq");
    ot_json_put_int(w, "bits", f->bits);
    ot_json_put_int(w, "group_size", f->group_size);
    ot_json_put_bool(w, "desc_act", f->act_order);
    ot_json_put_bool(w, "sym", f->symmetric);
    ot_json_put_bool(w, "lm_head", false);
    ot_json_put_text(w, "checkpoint_format", format);
    ot_json_put_text(w, "format", format);
    ot_json_put_text(w, "pack_dtype", "int32");
    ot_json_put_bool(w, "static_groups", false);
    ot_json_put_bool(w, "true_sequential", true);
    ot_json_put_real(w, "damp_percent", f->damping);
    ot_json_begin_object(w, "meta");
    ot_json_begin_array(w, "quantizer");
    ot_json_put_text(w, NULL, "offload-train:" OT_VERSION);
    ot_json_end_array(w);
    ot_json_put_real(w, "damp_percent", f->damping);
    ot_json_put_bool(w, "static_groups", false);
    ot_json_put_bool(w, "true_sequential", true);
    if (f->least_share > 0) {
        char share[32];
        snprintf(share, sizeof share, "%g%%", 100 * f->least_share);
        ot_json_begin_object(w, "fallback");
        ot_json_put_text(w, "strategy", "rtn");
        ot_json_put_text(w, "threshold", share);
        ot_json_put_null(w, "smooth");
        ot_json_end_object(w);
    }
    ot_json_end_object(w);
}

static void put_bitsandbytes(const struct ot_quant_format *f, struct ot_json_writer *w) {
    bool is_4bit = f->kind == OT_QUANT_KIND_4BIT;
    ot_json_put_text(w, "quant_method", "bitsandbytes");
    ot_json_put_bool(w, "_load_in_4bit", is_4bit);
    ot_json_put_bool(w, "_load_in_8bit", !is_4bit);
    ot_json_put_bool(w, "load_in_4bit", is_4bit);
    ot_json_put_bool(w, "load_in_8bit", !is_4bit);
    ot_json_put_text(w, "bnb_4bit_compute_dtype", ot_torch_dtype_name(f->dtype));
    ot_json_put_text(w, "bnb_4bit_quant_storage", "uint8");
    ot_json_put_text(w, "bnb_4bit_quant_type", "nf4");
    ot_json_put_bool(w, "bnb_4bit_use_double_quant", f->nested);
    ot_json_put_bool(w, "llm_int8_enable_fp32_cpu_offload", false);
    ot_json_put_bool(w, "llm_int8_has_fp16_weight", false);
    ot_json_put_null(w, "llm_int8_skip_modules");
}

/* Names the modules of gpt-oss that are not experts, as its published files do. */
static void put_mxfp4(struct ot_json_writer *w) {
    static const char *const plain[] = {"model.layers.*.self_attn", "model.layers.*.mlp.router",
                                        "model.embed_tokens", "lm_head"};
    ot_json_put_text(w, "quant_method", "mxfp4");
    ot_json_begin_array(w, "modules_to_not_convert");
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        ot_json_put_text(w, NULL, plain[i]);
    ot_json_end_array(w);
}

void ot_quant_encode_config(const struct ot_quant_format *f, const char *key, struct ot_json_writer *w) {
    ot_json_begin_object(w, key);
    if (f->kind == OT_QUANT_KIND_GPTQ)
        put_gptq(f, w);
    else if (f->kind == OT_QUANT_KIND_MXFP4)
        put_mxfp4(w);
    else
        put_bitsandbytes(f, w);
    ot_json_end_object(w);
}
