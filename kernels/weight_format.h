/* The formats of frozen weights: plain numbers, int8 with a scale a row, or 4-bit codes with a scale for
 * every 64 or 32 weights. They lie in this form on every tier and cross the bus in it. The op `decode`
 * (kernels/ops.h) makes the compute dtype of them on the device. Encoding runs on the host, once.
 *
 * OT_WEIGHT_F32, _BF16, _F16   plain numbers
 * OT_WEIGHT_INT8               1 byte a weight and 4 bytes a row: vector-wise absmax, as in LLM.int8()
 *                              (Dettmers et al., arXiv 2208.07339), without outlier columns
 * OT_WEIGHT_NF4                4.5 bits a weight: the 16 quantiles of NormalFloat4 (Dettmers et al., "QLoRA",
 *                              arXiv 2305.14314), and fp32 scales
 * OT_WEIGHT_NF4_DOUBLE         4.127 bits a weight: the scales have 8 bits (double quantisation)
 * OT_WEIGHT_MXFP4              4.25 bits a weight: floating-point numbers of 4 bits, and a power of two for
 *                              every 32 ("OCP Microscaling Formats (MX) Specification", version 1.0)
 *
 * The arithmetic of int8 and NF4 is that of bitsandbytes 0.50, so its checkpoints decode to the same bits.
 * That of MXFP4 is transformers' and torchao's. Every operation below is exact or rounds once to fp32, in the
 * order written here, without fma. So all engines have the same bits.
 *
 * INT8. Row r has a = the largest |x|, which is stored (bitsandbytes: SCB).
 *
 *     code = round(x k), k = the least of (1 / a) 127 and the largest fp32     to nearest even; -127..127
 *     x    = (code a) (1 / 127)                                                1 / 127 is rounded to fp32
 *
 * NF4. The matrix is flat, row after row. Block j is the weights [64 j, 64 j + 64); the last block may be
 * shorter. It has a = the largest |x|, which is stored (absmax). A byte has two codes, the first in its upper
 * half. table: the 16 values of the codes, ascending.
 *
 *     code = how many i < 15 have x (1 / max(a, 1e-38)) > (table[i] + table[i + 1]) / 2
 *     x    = table[code] a
 *
 * DOUBLE. Block j has an 8-bit code s in place of a. Group g is the blocks [256 g, 256 g + 256).
 *
 *     offset = the mean of all a, summed in double and rounded to fp32
 *     b      = the largest |a - offset| of a group, which is stored (nested_absmax)
 *     s      = how many i < 255 have (a - offset) (1 / max(b, 1e-38)) > (map[i] + map[i + 1]) / 2
 *     a      = map[s] b + offset                                               two roundings
 *
 * map is the dynamic data type (Dettmers, arXiv 1511.04561): seven decades of either sign, each with twice as
 * many values as the decade below it, and 0 and 1.
 *
 * MXFP4. The matrix is flat, row after row. Block j is the weights [32 j, 32 j + 32); the last block may be
 * shorter. The specification has blocks within rows: that is the same if rows have a multiple of 32 weights,
 * as in all files of MXFP4. A block has a byte s, its scale 2^(s - 127); s is 0..254. A code is E2M1: the
 * sign in bit 3, and a magnitude of 0, 0.5, 1, 1.5, 2, 3, 4 or 6. A byte has two codes, the first in its
 * lower half, as files have it.
 *
 *     s    = max(0, floor(log2(the largest |x|)) + 127 - 2)            0 for a block of zeros
 *     code = x 2^(127 - s), to the nearest magnitude, of two that are equally near the one with an even
 *            code; 6 if it is more. The sign is that of x, also for zeros
 *     x    = (the code's number) 2^(s - 127)                           exact, also where it is subnormal
 *
 * s and codes are those of the specification (section 6.3) and of torchao 0.18 (to_mx, FLOOR), except where s
 * is 0: torchao multiplies by 2^126 there, and not by 2^127. A decoded number of 2^128 or more is infinite.
 * Encoding makes no s above 252 and so no such number; readers of files refuse them
 * (src/files/quant_decode.h).
 *
 * DECODED MXFP4 IS KEPT. Blocks of a file may have another s than encoding their numbers makes: the largest
 * magnitude of a block may be less than 4. Encoding then lowers s by 1 (2 and 3), 2 (1 and 1.5) or 3 (0.5),
 * or less, where s would be below 0. Every magnitude up to the largest is then again a magnitude, 2, 4 or 8
 * times as large. So finite numbers of any block are encoded to bytes that decode to the same numbers. The
 * bytes are the same too if the largest magnitude is 4 or 6, or if s is 0.
 *
 * A decoded weight is rounded from fp32 to the compute dtype once. bf16 has all numbers of MXFP4; fp16 makes
 * infinities of those of 65,520 and more. An NF4 matrix that was decoded to fp32 has the same codes and
 * scales when it is encoded again, unless a scale is between 0 and 1e-38.
 *
 * BITSANDBYTES DIFFERS FROM ITSELF. Its CPU and its CUDA code do not agree everywhere:
 * - 1 / a: the CPU divides, CUDA approximates (it is compiled with --use_fast_math). Ours: the CPU's.
 * - A block of zeros: code 7 on the CPU, 0 on CUDA, where 0 / 0 is compared. Ours: 7, which is exactly 0 also
 *   after double quantisation has changed the scale.
 * - A last block that is shorter: the CPU divides by a, CUDA multiplies by 1 / a as in every other block.
 *   Ours: CUDA's.
 * - s: CUDA finds the nearest value of map. The CPU rounds the number to 16 bits first, so it may take the
 *   neighbour. Ours: the nearest, and the lower one of two that are equally near, as bitsandbytes has it on
 *   devices without a kernel of their own.
 * - offset: torch.mean adds in an order that depends on the machine. Ours does not.
 * - int8 of a row with a < 127 / (the largest fp32): infinite products there. Ours: the bound on k.
 * - Subnormal numbers: CUDA takes them as 0. Ours are exact, as on the CPU.
 * NaNs and infinities: bitsandbytes makes arbitrary codes of them. Ours refuses them.
 *
 * IN MEMORY an encoded matrix is contiguous, so one transfer moves all of it. It begins at a multiple of
 * OT_WEIGHT_ALIGN bytes, and so does each of its parts. Its length is a multiple of OT_WEIGHT_EXTENT, so it
 * can be a direct I/O of its own. Bytes between the parts are zero.
 *
 *     part          INT8              NF4                NF4_DOUBLE          MXFP4
 *     codes         int8 [rows, cols] [(n + 1) / 2]      [(n + 1) / 2]       [(n + 1) / 2]
 *     scales        fp32 [rows]       fp32 [blocks]      uint8 [blocks]      uint8 [blocks]
 *     group_scales                                       fp32 [groups]
 *     tables                          ot_weight_tables   ot_weight_tables
 *
 * Codes begin at 0. In plain formats they are the numbers.
 *
 * The tables travel with the matrix, because the maps of old checkpoints may differ from ours in their last
 * bits. So a loader of bitsandbytes files copies the tensors weight, absmax (or SCB), nested_absmax,
 * quant_map, nested_quant_map and the number nested_offset to their places, and the matrix decodes as in
 * bitsandbytes. Any 16 values can be the table; encoding uses those of NF4 alone.
 */
#ifndef OT_KERNELS_WEIGHT_FORMAT_H
#define OT_KERNELS_WEIGHT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/dtype.h"

struct ot_pool;

/* The plain formats have the numbers of their dtypes. */
enum ot_weight_format {
    OT_WEIGHT_F32 = OT_F32,
    OT_WEIGHT_BF16 = OT_BF16,
    OT_WEIGHT_F16 = OT_F16,
    OT_WEIGHT_INT8,
    OT_WEIGHT_NF4,
    OT_WEIGHT_NF4_DOUBLE,
    OT_WEIGHT_MXFP4,
    OT_WEIGHT_FORMATS
};

enum {
    OT_WEIGHT_BLOCK = 64,    /* weights that share a scale in NF4 */
    OT_WEIGHT_GROUP = 256,   /* scales that share a scale in NF4_DOUBLE */
    OT_WEIGHT_MX_BLOCK = 32, /* weights that share a scale in MXFP4 */
    OT_WEIGHT_ALIGN = 256,
    OT_WEIGHT_EXTENT = 4096,
};

#define OT_WEIGHT_MOST_ELEMS ((int64_t)1 << 42)
#define OT_WEIGHT_INT8_STEP  (1.0f / 127.0f)
/* The fp32 bits of 2^(s - 127), the scale of a block of MXFP4. 2^-127 is subnormal. s: a uint8_t. */
#define OT_WEIGHT_MX_SCALE(s) ((s) > 0 ? (uint32_t)(s) << 23 : (uint32_t)1 << 22)

/* A matrix in a format. A vector has one row. */
struct ot_weight {
    enum ot_weight_format format;
    int64_t rows, cols;
};

struct ot_weight_tables {
    float table[16];
    float offset; /* NF4_DOUBLE, like map; else 0 */
    float unused[15];
    float map[256];
};

/* The offsets of an encoded matrix's parts, in bytes. A part that the format lacks has 0 bytes and the offset
 * of the next part. */
struct ot_weight_layout {
    int64_t n;    /* weights */
    int64_t unit; /* weights that share a scale: a block, or the columns of an INT8 matrix; else 1 */
    int64_t n_scales, n_groups;           /* numbers of scales and of group_scales */
    int64_t scale_bytes;                  /* bytes of a scale */
    int64_t code_bytes;                   /* bytes of the codes, at offset 0 */
    int64_t scales, group_scales, tables; /* offsets */
    int64_t bytes;                        /* total */
};

static inline bool ot_weight_is_plain(enum ot_weight_format format) {
    return format <= OT_WEIGHT_F16;
}

static inline int64_t ot_weight_align(int64_t bytes, int64_t to) {
    return (bytes + to - 1) / to * to;
}

static inline bool ot_weight_is_nf4(enum ot_weight_format format) {
    return format == OT_WEIGHT_NF4 || format == OT_WEIGHT_NF4_DOUBLE;
}

/* The layout of a matrix that ot_weight_check accepts. */
static inline struct ot_weight_layout ot_weight_layout(const struct ot_weight *w) {
    struct ot_weight_layout l = {.n = w->rows * w->cols, .unit = 1};
    bool nested = w->format == OT_WEIGHT_NF4_DOUBLE, nf4 = ot_weight_is_nf4(w->format);
    bool mx = w->format == OT_WEIGHT_MXFP4;
    if (ot_weight_is_plain(w->format)) {
        l.code_bytes = l.n * (int64_t)ot_dtype_bytes((enum ot_dtype)w->format);
    } else {
        l.unit = nf4 ? (int64_t)OT_WEIGHT_BLOCK : mx ? (int64_t)OT_WEIGHT_MX_BLOCK : w->cols;
        l.n_scales = (l.n + l.unit - 1) / l.unit;
        l.n_groups = nested ? (l.n_scales + OT_WEIGHT_GROUP - 1) / OT_WEIGHT_GROUP : 0;
        l.scale_bytes = nested || mx ? 1 : 4;
        l.code_bytes = nf4 || mx ? (l.n + 1) / 2 : l.n;
    }
    l.scales = ot_weight_align(l.code_bytes, OT_WEIGHT_ALIGN);
    l.group_scales = ot_weight_align(l.scales + l.n_scales * l.scale_bytes, OT_WEIGHT_ALIGN);
    l.tables = ot_weight_align(l.group_scales + l.n_groups * 4, OT_WEIGHT_ALIGN);
    l.bytes = l.tables + (nf4 ? (int64_t)sizeof(struct ot_weight_tables) : 0);
    l.bytes = ot_weight_align(l.bytes, OT_WEIGHT_EXTENT);
    return l;
}

/* True if a range of weights consists of whole units, or ends with the matrix. */
static inline bool ot_weight_is_range(const struct ot_weight *w, int64_t first, int64_t n) {
    struct ot_weight_layout l = ot_weight_layout(w);
    return first >= 0 && n >= 0 && n <= l.n - first && first % l.unit == 0 &&
           (n % l.unit == 0 || first + n == l.n);
}

#ifdef __cplusplus
extern "C" {
#endif

/* "fp32", "bf16", "fp16", "int8", "nf4", "nf4-double", "mxfp4" */
const char *ot_weight_format_name(enum ot_weight_format format);
/* False, and *out unchanged, if no format has the name. */
bool ot_weight_format_from_name(const char *name, enum ot_weight_format *out);

/* Error OT_E_INPUT: an unknown format, less than one row or column, or more than OT_WEIGHT_MOST_ELEMS
 * weights. The numbers may come from a file. */
int ot_weight_check(const struct ot_weight *w);

/* ---- encoding, on the host ---- */

/* The tables of NF4 and NF4_DOUBLE, with offset 0. */
void ot_weight_default_tables(struct ot_weight_tables *out);

/* The 16 numbers of the codes of MXFP4. */
extern const float ot_weight_mx_table[16];

/* Some weights of a matrix. first: a multiple of the layout's unit. n: a multiple of it too, or all that is
 * left of the matrix. */
struct ot_weight_range {
    enum ot_dtype dtype; /* type of the values */
    int64_t first, n;
    const void *values; /* n, row after row */
};

/* Encodes a matrix part by part, in memory of the layout's bytes:
 *
 *     ot_weight_begin(&w, encoded);
 *     for each part: ot_weight_encode(pool, &w, &part, encoded, scales);
 *     ot_weight_end(pool, &w, scales, encoded);
 *
 * Parts may come in any order and have any sizes: the bits stay the same, on any number of threads. scales:
 * for NF4_DOUBLE, n_scales floats that keep the scales until ot_weight_end; else NULL. A plain format takes
 * values of any dtype, and rounds them once.
 *
 * ot_weight_encode fails with OT_E_INPUT if a value is NaN or infinite, and names the first such value; the
 * encoded part is then invalid. Plain formats keep such values. */
void ot_weight_begin(const struct ot_weight *w, void *encoded);
int ot_weight_encode(struct ot_pool *pool, const struct ot_weight *w, const struct ot_weight_range *range,
                     void *encoded, float *scales);
void ot_weight_end(struct ot_pool *pool, const struct ot_weight *w, const float *scales, void *encoded);

/* ---- decoding ---- */

/* The reference of the op `decode`: writes the n weights from `first` on to out, rounded to dtype. first, n:
 * as in ot_weight_range. One thread. */
void ot_weight_decode(const struct ot_weight *w, const void *encoded, enum ot_dtype dtype, int64_t first,
                      int64_t n, void *out);

#ifdef __cplusplus
}
#endif

#endif
