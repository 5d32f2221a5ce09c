/* Types of GGUF tensors, and the codecs of those that this program reads and writes.
 *
 * A row of a tensor is a sequence of blocks. A block stores a fixed number of values in a fixed number of
 * bytes: scales, then small integers. Bytes are little-endian, fp16 is IEEE binary16.
 *
 *   type   values bytes  a value is decoded as
 *   F32         1     4
 *   F16, BF16   1     2
 *   Q8_0       32    34  d * q            d fp16; q int8
 *   Q4_0       32    18  d * (q - 8)      d fp16; q 4 bits: byte i has values i (low) and i + 16
 *   Q5_0       32    22  d * (q - 16)     d fp16; q 5 bits: their high bits in 4 bytes, then as Q4_0
 *   MXFP4      32    17  (2^(s - 128)) * (2 v)   s 8 bits; v = 0, 0.5, 1, 1.5, 2, 3, 4 or 6, and its sign: 4
 *                                         bits in the order of Q4_0
 *   Q4_K      256   144  (d * s) * q - (e * m)   d, e fp16; 8 parts of 32 values, each with s and m of 6 bits
 *   Q6_K      256   210  (d * s) * (q - 32)      d fp16; 16 parts of 16 values, each with s of 8 bits
 *
 * Decoding is exact: the products above in fp32, in this order, which is the order of ggml's
 * dequantize_row_* and of the package gguf, so all three give the same bits. But MXFP4 follows its
 * specification, as in kernels/weight_format.h: the scale 255 is no number, where ggml has 2^127, and a
 * zero may be negative, where ggml has 0. Encoding F16, BF16, Q8_0, Q5_0, Q4_0 and MXFP4 gives the bits of
 * the package gguf (quants.py), but a zero keeps its sign in MXFP4. So what MXFP4 decodes is encoded to
 * bytes that decode to the same bits (weight_format.h says why). Encoding Q4_K and Q6_K searches for the
 * scales with the least weighted square error, in the steps and the order of arithmetic of ggml's
 * quantize_row_q4_K_ref and quantize_row_q6_K_ref, so the decoded values are theirs. Only codes whose scale
 * is 0 may differ.
 *
 * Source: ggml's ggml-common.h and ggml-quants.c, gguf-py's constants.py and quants.py (version 0.19).
 */
#ifndef OT_GGUF_BLOCKS_H
#define OT_GGUF_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

/* Values of the type field of a tensor. */
enum ot_gguf_type_id {
    OT_GGUF_F32 = 0,
    OT_GGUF_F16 = 1,
    OT_GGUF_Q4_0 = 2,
    OT_GGUF_Q5_0 = 6,
    OT_GGUF_Q8_0 = 8,
    OT_GGUF_Q4_K = 12,
    OT_GGUF_Q6_K = 14,
    OT_GGUF_BF16 = 30,
    OT_GGUF_MXFP4 = 39,
};

enum { OT_GGUF_MAX_BLOCK_VALUES = 256 };

struct ot_gguf_type {
    uint32_t id;
    const char *name;              /* "Q4_K" */
    int block_values, block_bytes; /* block_values is a power of two */
    /* NULL: the type is known, so its tensors can be skipped, but not read and written. */
    void (*decode)(const unsigned char *blocks, int64_t n_blocks, float *values);
    void (*encode)(const float *values, int64_t n_blocks, unsigned char *blocks);
    float largest; /* encode needs finite values of at most this magnitude */
};

/* NULL: no type has this id. */
const struct ot_gguf_type *ot_gguf_type(uint32_t id);
/* "F32, F16, ...": the names of the types that can be decoded, for error messages. */
const char *ot_gguf_readable_types(void);

/* The codecs of Q4_K and Q6_K. */
void ot_gguf_decode_q4_k(const unsigned char *blocks, int64_t n_blocks, float *values);
void ot_gguf_encode_q4_k(const float *values, int64_t n_blocks, unsigned char *blocks);
void ot_gguf_decode_q6_k(const unsigned char *blocks, int64_t n_blocks, float *values);
void ot_gguf_encode_q6_k(const float *values, int64_t n_blocks, unsigned char *blocks);

#endif
