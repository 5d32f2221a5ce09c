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

/* ---- blocks of 256 values ---- */

/* Q4_K and Q6_K: blocks of 256 values in parts, each part with a scale that is itself quantised. */

enum {
    BLOCK = 256,
    Q4_PARTS = 8,
    Q4_PART = BLOCK / Q4_PARTS,
    Q4_SCALES_AT = 4,
    Q4_CODES_AT = 16,
    Q4K_BYTES = 144,
    Q4_MOST_CODE = 15,
    Q4_MOST_SCALE = 63,
    Q6_PARTS = 16,
    Q6_PART = BLOCK / Q6_PARTS,
    Q6_HIGH_AT = 128,
    Q6_SCALES_AT = 192,
    Q6_D_AT = 208,
    Q6_BYTES = 210,
};

/* Smaller magnitudes count as 0. fp16 stores none below 6e-8, so their scale is 0 in any case. */
static const float SMALLEST = 1e-15f;

/* The factor that turns scales into codes: the scale `most` gets `code`. */
static float inverse_of(float code, float most) {
    return fabsf(most) < SMALLEST ? 0 : code / most;
}

static int clamp(long code, int least, int most) {
    return code < least ? least : code > most ? most : (int)code;
}

/* ---- Q4_K ---- */

/* Scale and minimum of part j, 6 bits each. The first 4 parts have bytes j and j + 4. The others share a byte
 * for their low 4 bits; their high 2 bits are the high bits of the bytes of part j - 4. */
static void unpack_scales(const unsigned char *packed, int j, int *scale, int *minimum) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *minimum = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
}

static void pack_scales(const int scale[Q4_PARTS], const int minimum[Q4_PARTS], unsigned char *packed) {
    for (int j = 0; j < 4; j++) {
        packed[j] = (unsigned char)(scale[j] | (scale[j + 4] >> 4) << 6);
        packed[j + 4] = (unsigned char)(minimum[j] | (minimum[j + 4] >> 4) << 6);
        packed[j + 8] = (unsigned char)((scale[j + 4] & 15) | (minimum[j + 4] & 15) << 4);
    }
}

/* Parts 2 i and 2 i + 1 share 32 bytes: the low and the high halves. */
static int code_of(const unsigned char *codes, int part, int i) {
    unsigned char byte = codes[part / 2 * Q4_PART + i];
    return part % 2 ? byte >> 4 : byte & 15;
}

void ot_gguf_decode_q4_k(const unsigned char *blocks, int64_t n_blocks, float *values) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q4K_BYTES)
        for (int j = 0; j < Q4_PARTS; j++) {
            int scale, minimum;
            unpack_scales(blocks + Q4_SCALES_AT, j, &scale, &minimum);
            float d = ot_f16_to_f32(ot_little_u16(blocks)) * (float)scale;
            float low = ot_f16_to_f32(ot_little_u16(blocks + 2)) * (float)minimum;
            for (int i = 0; i < Q4_PART; i++)
                *values++ = d * (float)code_of(blocks + Q4_CODES_AT, j, i) - low;
        }
}

/* A part as scale * code - minimum, and its weighted square error. */
struct fit {
    float scale, minimum, error;
};

static void measure(const float x[Q4_PART], const float weight[Q4_PART], const float code[Q4_PART],
                    struct fit *fit) {
    fit->error = 0;
    for (int i = 0; i < Q4_PART; i++) {
        float miss = fit->scale * code[i] - fit->minimum - x[i];
        fit->error += weight[i] * (miss * miss);
    }
}

/* The codes of x for a step and a lowest value, and from these codes the scale and the minimum (>= 0) of the
 * least weighted square error: the normal equations of a line through (code, x). If all codes are equal, no
 * line is determined, and the error is infinite. */
static struct fit fit_part(const float x[Q4_PART], const float weight[Q4_PART], float low, float inverse) {
    float w_sum = 0, code_sum = 0, code2_sum = 0, x_sum = 0, xcode_sum = 0, code[Q4_PART];
    for (int i = 0; i < Q4_PART; i++) {
        code[i] = (float)clamp(lrintf(inverse * (x[i] - low)), 0, Q4_MOST_CODE);
        w_sum += weight[i];
        code_sum += weight[i] * code[i];
        code2_sum += weight[i] * code[i] * code[i];
        x_sum += weight[i] * x[i];
        xcode_sum += weight[i] * code[i] * x[i];
    }
    struct fit fit = {.error = INFINITY};
    float determinant = w_sum * code2_sum - code_sum * code_sum;
    if (!(determinant > 0))
        return fit;
    fit.scale = (w_sum * xcode_sum - x_sum * code_sum) / determinant;
    fit.minimum = (code_sum * xcode_sum - code2_sum * x_sum) / determinant;
    if (fit.minimum < 0) { /* the format has no negative minimum: a line through 0 */
        fit.minimum = 0;
        fit.scale = xcode_sum / code2_sum;
    }
    if (fit.scale >= 0)
        measure(x, weight, code, &fit);
    return fit;
}

/* Even steps over the range, which has 0 in it. */
static struct fit span_part(const float x[Q4_PART], const float weight[Q4_PART], float low, float high) {
    float inverse = Q4_MOST_CODE / (high - low), code[Q4_PART];
    struct fit fit = {.scale = 1 / inverse, .minimum = 0 - low};
    for (int i = 0; i < Q4_PART; i++)
        code[i] = (float)clamp(lrintf(inverse * (x[i] - low)), 0, Q4_MOST_CODE);
    measure(x, weight, code, &fit);
    return fit;
}

/* Tries steps around the step that spans the part's range, from the lowest value of the best fit so far, and
 * keeps the best. Large values weigh more, because their error counts more in products. */
static struct fit search_part(const float x[Q4_PART]) {
    enum { STEPS = 20 };
    float weight[Q4_PART], square = 0, low = 0, high = x[0];
    for (int i = 0; i < Q4_PART; i++) {
        square += x[i] * x[i];
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    if (!(high > low)) /* all values are equal, and not positive; of zeros the minimum is not -0 */
        return (struct fit){.minimum = 0 - low};
    float mean = sqrtf(square / Q4_PART);
    for (int i = 0; i < Q4_PART; i++)
        weight[i] = mean + fabsf(x[i]);
    struct fit best = span_part(x, weight, low, high);
    for (int step = 0; step <= STEPS; step++) {
        float codes = -1 + 0.1f * (float)step + Q4_MOST_CODE;
        struct fit fit = fit_part(x, weight, 0 - best.minimum, codes / (high + best.minimum));
        if (fit.error < best.error)
            best = fit;
    }
    return best;
}

static void encode_q4_block(const float *x, unsigned char *block) {
    struct fit parts[Q4_PARTS];
    float most_scale = 0, most_minimum = 0;
    int scale[Q4_PARTS], minimum[Q4_PARTS];
    for (int j = 0; j < Q4_PARTS; j++) {
        parts[j] = search_part(x + j * Q4_PART);
        most_scale = fmaxf(most_scale, parts[j].scale);
        most_minimum = fmaxf(most_minimum, parts[j].minimum);
    }
    float scale_inverse = inverse_of(Q4_MOST_SCALE, most_scale);
    float minimum_inverse = inverse_of(Q4_MOST_SCALE, most_minimum);
    for (int j = 0; j < Q4_PARTS; j++) {
        scale[j] = clamp(lrintf(scale_inverse * parts[j].scale), 0, Q4_MOST_SCALE);
        minimum[j] = clamp(lrintf(minimum_inverse * parts[j].minimum), 0, Q4_MOST_SCALE);
    }
    ot_little_put_u16(block, ot_f16_from_f32(most_scale / Q4_MOST_SCALE));
    ot_little_put_u16(block + 2, ot_f16_from_f32(most_minimum / Q4_MOST_SCALE));
    pack_scales(scale, minimum, block + Q4_SCALES_AT);
    unsigned char *codes = block + Q4_CODES_AT;
    memset(codes, 0, BLOCK / 2);
    for (int j = 0; j < Q4_PARTS; j++) {
        float d = ot_f16_to_f32(ot_little_u16(block)) * (float)scale[j];
        float low = ot_f16_to_f32(ot_little_u16(block + 2)) * (float)minimum[j];
        for (int i = 0; d > 0 && i < Q4_PART; i++) {
            float code = fminf((x[j * Q4_PART + i] + low) / d, Q4_MOST_CODE);
            codes[j / 2 * Q4_PART + i] |=
                (unsigned char)(clamp(lrintf(fmaxf(code, 0)), 0, Q4_MOST_CODE) << j % 2 * 4);
        }
    }
}

void ot_gguf_encode_q4_k(const float *values, int64_t n_blocks, unsigned char *blocks) {
    for (int64_t b = 0; b < n_blocks; b++)
        encode_q4_block(values + b * BLOCK, blocks + b * Q4K_BYTES);
}

/* ---- Q6_K ---- */

/* Value i of a block is in half i / 128, quarter i / 32 % 4 of the half, place i % 32 of the quarter. Its low
 * 4 bits are in one of 64 bytes a half, its high 2 bits in one of 32. */
struct q6_place {
    int low, low_shift, high, high_shift;
};

static struct q6_place q6_place(int i) {
    int half = i / 128, quarter = i / 32 % 4, place = i % 32;
    return (struct q6_place){.low = half * 64 + quarter % 2 * 32 + place,
                             .low_shift = quarter / 2 * 4,
                             .high = Q6_HIGH_AT + half * 32 + place,
                             .high_shift = quarter * 2};
}

void ot_gguf_decode_q6_k(const unsigned char *blocks, int64_t n_blocks, float *values) {
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q6_BYTES, values += BLOCK) {
        float d = ot_f16_to_f32(ot_little_u16(blocks + Q6_D_AT));
        for (int i = 0; i < BLOCK; i++) {
            struct q6_place at = q6_place(i);
            int code = (blocks[at.low] >> at.low_shift & 15) | (blocks[at.high] >> at.high_shift & 3) << 4;
            values[i] = d * (float)(int8_t)blocks[Q6_SCALES_AT + i / Q6_PART] * (float)(code - 32);
        }
    }
}

/* A part as scale * code, where each value weighs as its square. For given codes the best scale takes
 * scale * xcode_sum, the gain, off the weighted square error. */
struct q6_fit {
    float scale, gain, xcode_sum, code2_sum;
};

static struct q6_fit fit_q6_part(const float x[Q6_PART], float inverse) {
    struct q6_fit fit = {0};
    for (int i = 0; i < Q6_PART; i++) {
        float code = (float)clamp(lrintf(inverse * x[i]), -32, 31), weight = x[i] * x[i];
        fit.xcode_sum += weight * x[i] * code;
        fit.code2_sum += weight * code * code;
    }
    fit.scale = fit.code2_sum > 0 ? fit.xcode_sum / fit.code2_sum : 0;
    fit.gain = fit.scale * fit.xcode_sum;
    return fit;
}

/* The scale of a part, of either sign. Tries steps around the step that gives the value of largest magnitude
 * the code -32, and returns the step with the largest gain. */
static float search_q6_part(const float x[Q6_PART]) {
    float most = 0;
    for (int i = 0; i < Q6_PART; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];
    if (fabsf(most) < SMALLEST)
        return 0;
    struct q6_fit best = fit_q6_part(x, -32 / most);
    for (int step = -9; step <= 9; step++) {
        struct q6_fit fit = fit_q6_part(x, -(32 + 0.1f * (float)step) / most);
        if (step != 0 && fit.code2_sum > 0 && fit.xcode_sum * fit.xcode_sum > best.gain * fit.code2_sum)
            best = fit;
    }
    return best.scale;
}

static void encode_q6_block(const float *x, unsigned char *block) {
    float scales[Q6_PARTS], most = 0;
    for (int j = 0; j < Q6_PARTS; j++) {
        scales[j] = search_q6_part(x + j * Q6_PART);
        if (fabsf(scales[j]) > fabsf(most))
            most = scales[j];
    }
    float inverse = inverse_of(-128, most);
    memset(block, 0, Q6_BYTES);
    ot_little_put_u16(block + Q6_D_AT, inverse != 0 ? ot_f16_from_f32(1 / inverse) : 0);
    float d = ot_f16_to_f32(ot_little_u16(block + Q6_D_AT));
    for (int i = 0; i < BLOCK; i++) {
        struct q6_place at = q6_place(i);
        int j = i / Q6_PART, scale = clamp(lrintf(inverse * scales[j]), -128, 127);
        float step = d * (float)scale;
        float code = step != 0 ? fminf(fmaxf(x[i] / step, -32), 31) : 0;
        int biased = clamp(lrintf(code), -32, 31) + 32;
        block[Q6_SCALES_AT + j] = (unsigned char)(int8_t)scale;
        block[at.low] |= (unsigned char)((biased & 15) << at.low_shift);
        block[at.high] |= (unsigned char)(biased >> 4 << at.high_shift);
    }
}

void ot_gguf_encode_q6_k(const float *values, int64_t n_blocks, unsigned char *blocks) {
    for (int64_t b = 0; b < n_blocks; b++)
        encode_q6_block(values + b * BLOCK, blocks + b * Q6_BYTES);
}
