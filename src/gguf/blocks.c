#include "src/gguf/blocks.h"

#include <math.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/minmax.h"
#include "src/gguf/little.h"

enum { Q8_VALUES = 32, Q8_BYTES = 34, Q4_VALUES = 32, Q4_BYTES = 18, Q4_HALF = 16 };
enum {
    Q5_VALUES = 32,
    Q5_BYTES = 22,
    Q5_HALF = 16,
    Q5_CODES_AT = 6,
    MX_VALUES = 32,
    MX_BYTES = 17,
    MX_HALF = 16
};

/* ---- F32, F16, BF16 ---- */

static void decode_f32(const unsigned char *blocks, int64_t n, float *values) {
    memcpy(values, blocks, (size_t)n * sizeof *values);
}

static void encode_f32(const float *values, int64_t n, unsigned char *blocks) {
    memcpy(blocks, values, (size_t)n * sizeof *values);
}

static void decode_f16(const unsigned char *blocks, int64_t n, float *values) {
    for (int64_t i = 0; i < n; i++)
        values[i] = ot_f16_to_f32(ot_little_u16(blocks + 2 * i));
}

static void encode_f16(const float *values, int64_t n, unsigned char *blocks) {
    for (int64_t i = 0; i < n; i++)
        ot_little_put_u16(blocks + 2 * i, ot_f16_from_f32(values[i]));
}

static void decode_bf16(const unsigned char *blocks, int64_t n, float *values) {
    for (int64_t i = 0; i < n; i++)
        values[i] = ot_bf16_to_f32(ot_little_u16(blocks + 2 * i));
}

static void encode_bf16(const float *values, int64_t n, unsigned char *blocks) {
    for (int64_t i = 0; i < n; i++)
        ot_little_put_u16(blocks + 2 * i, ot_bf16_from_f32(values[i]));
}

/* ---- Q8_0 ---- */

static void decode_q8_0(const unsigned char *blocks, int64_t n_blocks, float *values) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q8_BYTES, values += Q8_VALUES) {
        float d = ot_f16_to_f32(ot_little_u16(blocks));
        for (int i = 0; i < Q8_VALUES; i++)
            values[i] = d * (float)(int8_t)blocks[2 + i];
    }
}

/* 1 / d. If d is 0, or so small that 1 / d overflows, the fp16 scale is 0 and the quotients do not matter. */
static float reciprocal(float d) {
    float inverse = d != 0 ? 1 / d : 0;
    return isfinite(inverse) ? inverse : 0;
}

static void encode_q8_0(const float *values, int64_t n_blocks, unsigned char *blocks) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q8_BYTES, values += Q8_VALUES) {
        float most = 0;
        for (int i = 0; i < Q8_VALUES; i++)
            most = fmaxf(most, fabsf(values[i]));
        float d = most / 127, inverse = reciprocal(d);
        ot_little_put_u16(blocks, ot_f16_from_f32(d));
        for (int i = 0; i < Q8_VALUES; i++)
            blocks[2 + i] = (unsigned char)(int8_t)roundf(values[i] * inverse);
    }
}

/* ---- Q4_0 ---- */

static void decode_q4_0(const unsigned char *blocks, int64_t n_blocks, float *values) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q4_BYTES, values += Q4_VALUES) {
        float d = ot_f16_to_f32(ot_little_u16(blocks));
        for (int i = 0; i < Q4_HALF; i++) {
            values[i] = d * (float)((blocks[2 + i] & 15) - 8);
            values[i + Q4_HALF] = d * (float)((blocks[2 + i] >> 4) - 8);
        }
    }
}

/* The value of largest magnitude, with its sign. The first of two equal magnitudes counts. */
static float largest_of(const float *values, int n) {
    float most = values[0];
    for (int i = 1; i < n; i++)
        if (fabsf(values[i]) > fabsf(most))
            most = values[i];
    return most;
}

static int code_q4_0(float value, float inverse) {
    int code = (int)(value * inverse + 8.5f);
    return ot_min(code, 15);
}

/* The value of largest magnitude gets the code 0, so that it is exact up to the scale's rounding. */
static void encode_q4_0(const float *values, int64_t n_blocks, unsigned char *blocks) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q4_BYTES, values += Q4_VALUES) {
        float d = largest_of(values, Q4_VALUES) / -8, inverse = reciprocal(d);
        ot_little_put_u16(blocks, ot_f16_from_f32(d));
        for (int i = 0; i < Q4_HALF; i++)
            blocks[2 + i] =
                (unsigned char)(code_q4_0(values[i], inverse) | code_q4_0(values[i + Q4_HALF], inverse) << 4);
    }
}

/* ---- Q5_0 ---- */

static void decode_q5_0(const unsigned char *blocks, int64_t n_blocks, float *values) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q5_BYTES, values += Q5_VALUES) {
        float d = ot_f16_to_f32(ot_little_u16(blocks));
        uint32_t high = ot_little_u32(blocks + 2);
        for (int i = 0; i < Q5_HALF; i++) {
            int code = blocks[Q5_CODES_AT + i];
            values[i] = d * (float)((code & 15) + (int)(high >> i & 1) * 16 - 16);
            values[i + Q5_HALF] = d * (float)((code >> 4) + (int)(high >> (i + Q5_HALF) & 1) * 16 - 16);
        }
    }
}

/* As Q4_0, with codes of 5 bits. */
static void encode_q5_0(const float *values, int64_t n_blocks, unsigned char *blocks) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q5_BYTES, values += Q5_VALUES) {
        float d = largest_of(values, Q5_VALUES) / -16, inverse = reciprocal(d);
        memset(blocks, 0, Q5_BYTES);
        ot_little_put_u16(blocks, ot_f16_from_f32(d));
        for (int i = 0; i < Q5_VALUES; i++) {
            int code = (int)(values[i] * inverse + 16.5f);
            code = ot_min(code, 31);
            blocks[Q5_CODES_AT + i % Q5_HALF] |= (unsigned char)((code & 15) << i / Q5_HALF * 4);
            blocks[2 + i / 8] |= (unsigned char)(code >> 4 << i % 8);
        }
    }
}

/* ---- MXFP4 ---- */

/* Twice the numbers of the codes. */
static const float MX_DOUBLED[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
/* Twice the middles between their magnitudes. */
enum { MX_MIDDLES_N = 7 };
static const float MX_MIDDLES[MX_MIDDLES_N] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10};

/* 2^(scale - 128). The byte 255 is no number. */
static float half_scale(unsigned char scale) {
    return scale < 255 ? ldexpf(1, scale - 128) : NAN;
}

static void decode_mxfp4(const unsigned char *blocks, int64_t n_blocks, float *values) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += MX_BYTES, values += MX_VALUES) {
        float d = half_scale(blocks[0]);
        for (int i = 0; i < MX_HALF; i++) {
            values[i] = d * MX_DOUBLED[blocks[1 + i] & 15];
            values[i + MX_HALF] = d * MX_DOUBLED[blocks[1 + i] >> 4];
        }
    }
}

/* The codes of the nearest magnitudes; of two that are equally near, the smaller. A zero keeps its sign. */
static void code_mxfp4(const float values[MX_VALUES], float d, unsigned char codes[MX_VALUES]) {
    memset(codes, 0, MX_VALUES);
    for (int k = 0; k < MX_MIDDLES_N; k++)
        for (int i = 0; i < MX_VALUES; i++)
            codes[i] += fabsf(values[i]) > d * MX_MIDDLES[k];
    for (int i = 0; i < MX_VALUES; i++)
        if (signbit(values[i]) && (codes[i] > 0 || values[i] == 0))
            codes[i] |= 8;
}

static void encode_mxfp4(const float *values, int64_t n_blocks, unsigned char *blocks) {
    unsigned char codes[MX_VALUES];
    for (int64_t b = 0; b < n_blocks; b++, blocks += MX_BYTES, values += MX_VALUES) {
        float most = fabsf(largest_of(values, MX_VALUES));
        int scale = most > 0 ? (int)floorf(log2f(most)) - 2 + 127 : 0;
        blocks[0] = (unsigned char)ot_max(scale, 0);
        code_mxfp4(values, half_scale(blocks[0]), codes);
        for (int i = 0; i < MX_HALF; i++)
            blocks[1 + i] = (unsigned char)(codes[i] | codes[i + MX_HALF] << 4);
    }
}

/* ---- the table ---- */

/* The largest value that does not round to infinity. */
static const float MOST_F16 = 65504.0f, MOST_BF16 = 0x1.fep127f, MOST_F32 = 0x1.fffffep127f;

/* Types without a codec are here for their sizes. */
static const struct ot_gguf_type TYPES[] = {
    {OT_GGUF_F32, "F32", 1, 4, decode_f32, encode_f32, MOST_F32},
    {OT_GGUF_F16, "F16", 1, 2, decode_f16, encode_f16, MOST_F16},
    {OT_GGUF_Q4_0, "Q4_0", Q4_VALUES, Q4_BYTES, decode_q4_0, encode_q4_0, 8 * MOST_F16},
    {.id = 3, .name = "Q4_1", .block_values = 32, .block_bytes = 20},
    {OT_GGUF_Q5_0, "Q5_0", Q5_VALUES, Q5_BYTES, decode_q5_0, encode_q5_0, 16 * MOST_F16},
    {.id = 7, .name = "Q5_1", .block_values = 32, .block_bytes = 24},
    {OT_GGUF_Q8_0, "Q8_0", Q8_VALUES, Q8_BYTES, decode_q8_0, encode_q8_0, 127 * MOST_F16},
    {.id = 9, .name = "Q8_1", .block_values = 32, .block_bytes = 40},
    {.id = 10, .name = "Q2_K", .block_values = 256, .block_bytes = 84},
    {.id = 11, .name = "Q3_K", .block_values = 256, .block_bytes = 110},
    {OT_GGUF_Q4_K, "Q4_K", 256, 144, ot_gguf_decode_q4_k, ot_gguf_encode_q4_k, MOST_F16},
    {.id = 13, .name = "Q5_K", .block_values = 256, .block_bytes = 176},
    {OT_GGUF_Q6_K, "Q6_K", 256, 210, ot_gguf_decode_q6_k, ot_gguf_encode_q6_k, MOST_F16},
    {.id = 15, .name = "Q8_K", .block_values = 256, .block_bytes = 292},
    {.id = 16, .name = "IQ2_XXS", .block_values = 256, .block_bytes = 66},
    {.id = 17, .name = "IQ2_XS", .block_values = 256, .block_bytes = 74},
    {.id = 18, .name = "IQ3_XXS", .block_values = 256, .block_bytes = 98},
    {.id = 19, .name = "IQ1_S", .block_values = 256, .block_bytes = 50},
    {.id = 20, .name = "IQ4_NL", .block_values = 32, .block_bytes = 18},
    {.id = 21, .name = "IQ3_S", .block_values = 256, .block_bytes = 110},
    {.id = 22, .name = "IQ2_S", .block_values = 256, .block_bytes = 82},
    {.id = 23, .name = "IQ4_XS", .block_values = 256, .block_bytes = 136},
    {.id = 24, .name = "I8", .block_values = 1, .block_bytes = 1},
    {.id = 25, .name = "I16", .block_values = 1, .block_bytes = 2},
    {.id = 26, .name = "I32", .block_values = 1, .block_bytes = 4},
    {.id = 27, .name = "I64", .block_values = 1, .block_bytes = 8},
    {.id = 28, .name = "F64", .block_values = 1, .block_bytes = 8},
    {.id = 29, .name = "IQ1_M", .block_values = 256, .block_bytes = 56},
    {OT_GGUF_BF16, "BF16", 1, 2, decode_bf16, encode_bf16, MOST_BF16},
    {.id = 34, .name = "TQ1_0", .block_values = 256, .block_bytes = 54},
    {.id = 35, .name = "TQ2_0", .block_values = 256, .block_bytes = 66},
    {OT_GGUF_MXFP4, "MXFP4", MX_VALUES, MX_BYTES, decode_mxfp4, encode_mxfp4, MOST_F32},
    {.id = 40, .name = "NVFP4", .block_values = 64, .block_bytes = 36},
    {.id = 41, .name = "Q1_0", .block_values = 128, .block_bytes = 18},
};

const struct ot_gguf_type *ot_gguf_type(uint32_t id) {
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (TYPES[i].id == id)
            return &TYPES[i];
    return NULL;
}

const char *ot_gguf_readable_types(void) {
    return "F32, F16, BF16, Q8_0, Q5_0, Q4_0, Q4_K, Q6_K, MXFP4";
}
