/* Q4_K and Q6_K: blocks of 256 values in parts, each part with a scale that is itself quantised. */
#include <math.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/gguf/blocks.h"
#include "src/gguf/little.h"

enum {
    BLOCK = 256,
    Q4_PARTS = 8,
    Q4_PART = BLOCK / Q4_PARTS,
    Q4_SCALES_AT = 4,
    Q4_CODES_AT = 16,
    Q4_BYTES = 144,
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
    for (int64_t b = 0; b < n_blocks; b++, blocks += Q4_BYTES)
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
        encode_q4_block(values + b * BLOCK, blocks + b * Q4_BYTES);
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
