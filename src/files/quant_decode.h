/* A matrix of a quantised checkpoint: several tensors of safetensors files that together are the values of
 * one matrix [rows, cols]. They are decoded to fp32 exactly, as the tool that wrote them decodes them.
 *
 * GPTQ (AutoGPTQ, GPTQModel), of the module X:
 *
 *     X.qweight  I32 [cols b / 32, rows]    codes of b bits; a column is one stream of bits, low bits first
 *     X.qzeros   I32 [groups, rows b / 32]  zero points; a row is one stream of bits, low bits first
 *     X.scales   F16 [groups, rows]         BF16 and F32 are read too
 *     X.g_idx    I32 [cols]                 the group of each column; may be absent: column / group_size
 *
 *     value = scale (code - zero)
 *
 * Quotients are rounded up. Format "gptq" stores each zero point less 1, modulo 2^b. The factors have so few
 * bits that the product is exact, if the scales have 16 bits.
 *
 * BITSANDBYTES 4 BITS, of the matrix W ("X.weight"), with the arithmetic of kernels/weight_format.h:
 *
 *     W           [n / 2, 1] bytes      two codes a byte, the first in its upper half
 *     W.absmax    F32 [n / 64]          or U8, if the scales are quantised too; then also:
 *     W.nested_absmax F32 [n / 16384], W.nested_quant_map F32 [256]
 *     W.quant_map F32 [16]
 *     W.quant_state.bitsandbytes__nf4   U8: JSON with shape, blocksize, nested_offset and more
 *
 * BITSANDBYTES 8 BITS: X.weight I8 [rows, cols], X.SCB F32 [rows] (or [rows, 1]), and perhaps
 * X.weight_format, a byte that is 0.
 *
 * MXFP4, of the matrices X of all experts (gpt-oss), with the arithmetic of kernels/weight_format.h:
 *
 *     X_blocks    U8 [experts, rows, cols / 32, 16]  two codes a byte, the first in its lower half
 *     X_scales    U8 [experts, rows, cols / 32]      255, which is no number, is refused
 *
 * Their rows, one expert after the other, are the rows of one matrix here.
 *
 * Sources: GPTQModel's BaseQuantLinear and model_dequant.py, bitsandbytes' QuantState.as_dict and
 * Linear8bitLt (0.50), transformers' convert_moe_packed_tensors (integrations/mxfp4.py).
 */
#ifndef OT_FILES_QUANT_DECODE_H
#define OT_FILES_QUANT_DECODE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/weight_format.h"
#include "src/files/safetensors.h"

/* ---- quantization ---- */

/* Reads how weights are quantised: from the key quantization_config of config.json, or from
 * quantize_config.json, which older versions of AutoGPTQ wrote instead.
 *
 * Three methods are read: "gptq" (Frantar et al., arXiv 2210.17323; written by AutoGPTQ and GPTQModel),
 * "bitsandbytes" (load_in_8bit; load_in_4bit with nf4) and "mxfp4" (gpt-oss). All others are refused by name;
 * so is fp4, which bitsandbytes decodes to other bits on the CPU than on a GPU. The essay at the top says
 * how the tensors of a method are stored.
 */

struct ot_json;

enum ot_quant_method { OT_QUANT_NONE, OT_QUANT_GPTQ, OT_QUANT_BITSANDBYTES, OT_QUANT_MXFP4 };

struct ot_quantization {
    enum ot_quant_method method;
    /* GPTQ */
    int bits;           /* 2, 3, 4 or 8 */
    int64_t group_size; /* inputs that share a scale; -1: all inputs of a matrix */
    bool true_zeros;    /* checkpoint_format "gptq_v2" stores zero points; "gptq" stores them less 1 */
};

/* where: the file, for error messages. Errors: OT_E_INPUT (another method, or values that the method does
 * not have). */
int ot_quantization_parse(const struct ot_json *config, const char *where, struct ot_quantization *out);

/* ---- quant decode ---- */

enum ot_quant_kind { OT_QUANT_KIND_GPTQ, OT_QUANT_KIND_4BIT, OT_QUANT_KIND_INT8, OT_QUANT_KIND_MXFP4 };

/* A tensor of a packed matrix, and its file. tensor NULL: absent. */
struct ot_quant_file_tensor {
    const struct ot_safetensor *tensor;
    const struct ot_mapped_file *file;
};

struct ot_quant_matrix {
    enum ot_quant_kind kind;
    int64_t rows, cols;
    int64_t experts; /* MXFP4; the others: 0 */
    struct ot_quant_file_tensor codes, scales;
    /* GPTQ */
    int bits;
    bool true_zeros;
    int64_t groups, group_size;
    struct ot_quant_file_tensor zeros, index;
    /* 4 bits */
    struct ot_quant_file_tensor group_scales; /* absent: the scales are fp32 */
    const struct ot_weight_tables *tables;    /* NULL for the other kinds */
};

/* Bytes of a file. */
struct ot_file_range {
    const struct ot_mapped_file *file;
    const char *data;
    size_t bytes;
};
enum { OT_QUANT_RANGES = 4 };

/* ---- opening: checks the shapes and dtypes of the parts, and fills in the rest ---- */

/* codes, scales, zeros and index are set. Error OT_E_INPUT. */
int ot_quant_open_gptq(struct ot_quant_matrix *packed, const struct ot_quantization *config);
/* codes and scales are set. Error OT_E_INPUT. */
int ot_quant_open_int8(struct ot_quant_matrix *packed);
/* codes and scales are set. Error OT_E_INPUT. */
int ot_quant_open_mxfp4(struct ot_quant_matrix *packed);
/* codes, scales and group_scales are set. map, nested_map (absent without group_scales) and state: the other
 * tensors, which are read now. tables: memory that lives as long as packed. Errors: OT_E_INPUT, OT_E_IO. */
int ot_quant_open_4bit(struct ot_quant_matrix *packed, struct ot_quant_file_tensor map,
                       struct ot_quant_file_tensor nested_map, struct ot_quant_file_tensor state,
                       struct ot_weight_tables *tables);

/* ---- reading ---- */

/* The bytes that values [first, first + n) are decoded from. Returns the number of ranges. */
int ot_quant_ranges(const struct ot_quant_matrix *packed, int64_t first, int64_t n,
                    struct ot_file_range ranges[OT_QUANT_RANGES]);
/* Decodes the values, whose ranges are fetched. Values may be not finite. Errors: OT_E_INPUT (a column has a
 * group that does not exist, or a scale is no number). Any thread. */
int ot_quant_decode(const struct ot_quant_matrix *packed, int64_t first, int64_t n, float *values);

/* Bytes of all parts in the files. */
size_t ot_quant_matrix_bytes(const struct ot_quant_matrix *packed);

#endif
