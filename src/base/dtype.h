/* Storage formats and the conversions between them. Each conversion is an exact function of the bits, the
 * same on every CPU. The CUDA kernels use the same formulas.
 *
 * Split master (as Megatron's store_param_remainders): an fp32 value
 * p is kept as hi, a bf16 that the device computes with, and lo, a signed 16-bit remainder, such that bits(p)
 * = (bits(hi) << 16) + lo exactly. hi is p rounded to nearest, ties away from zero: ties-to-even cannot be
 * encoded, because +0x8000 does not fit a signed 16-bit remainder.
 */
#ifndef OT_BASE_DTYPE_H
#define OT_BASE_DTYPE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum ot_dtype { OT_F32, OT_BF16, OT_F16 };

static inline size_t ot_dtype_bytes(enum ot_dtype dtype) {
    return dtype == OT_F32 ? 4 : 2;
}

static inline const char *ot_dtype_name(enum ot_dtype dtype) {
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    return names[dtype];
}

static inline uint32_t ot_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float ot_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float ot_bf16_to_f32(uint16_t value) {
    return ot_f32_from_bits((uint32_t)value << 16);
}

/* Round to nearest, ties to even; NaN stays NaN (quiet). */
static inline uint16_t ot_bf16_from_f32(float value) {
    uint32_t bits = ot_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Splits a finite p; see the top of this file. This is exact also if p is so large that hi rounds to infinity
 * (above 3.39e38): (inf << 16) + lo, with a negative lo, is p again. */
static inline void ot_split_f32(float p, uint16_t *hi, int16_t *lo) {
    uint32_t bits = ot_f32_bits(p);
    uint32_t high = (bits + 0x8000u) >> 16;
    *hi = (uint16_t)high;
    *lo = (int16_t)(uint16_t)(bits - (high << 16));
}

static inline float ot_join_f32(uint16_t hi, int16_t lo) {
    return ot_f32_from_bits(((uint32_t)hi << 16) + (uint32_t)(int32_t)lo);
}

/* IEEE binary16 to fp32, exact; subnormals included. */
static inline float ot_f16_to_f32(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = (value >> 10) & 0x1fu;
    uint32_t mantissa = value & 0x3ffu;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return ot_f32_from_bits(ot_f32_bits(magnitude) | sign);
    }
    if (exponent == 31)
        return ot_f32_from_bits(sign | 0x7f800000u | (mantissa << 13));
    return ot_f32_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/* fp32 to IEEE binary16, round to nearest, ties to even; overflow becomes infinity. */
static inline uint16_t ot_f16_from_f32(float value) {
    uint32_t bits = ot_f32_bits(value);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* subnormal: let the FPU round at 2^-24 */
        return (uint16_t)(sign | (uint16_t)nearbyintf(ot_f32_from_bits(magnitude) * 0x1p24f));
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

/* The index of the first value that is not finite, or -1. The common case is a vector loop, which only finds
 * out whether there is one. */
static inline int64_t ot_f32_first_not_finite(const float *values, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad |= (ot_f32_bits(values[i]) & 0x7f800000u) == 0x7f800000u;
    for (int64_t i = 0; bad && i < n; i++)
        if (!isfinite(values[i]))
            return i;
    return -1;
}

/* One element of an array in a storage format. */
static inline float ot_dtype_read(enum ot_dtype dtype, const void *array, int64_t index) {
    switch (dtype) {
    case OT_F32:
        return ((const float *)array)[index];
    case OT_BF16:
        return ot_bf16_to_f32(((const uint16_t *)array)[index]);
    default:
        return ot_f16_to_f32(((const uint16_t *)array)[index]);
    }
}

static inline void ot_dtype_write(enum ot_dtype dtype, void *array, int64_t index, float value) {
    switch (dtype) {
    case OT_F32:
        ((float *)array)[index] = value;
        return;
    case OT_BF16:
        ((uint16_t *)array)[index] = ot_bf16_from_f32(value);
        return;
    default:
        ((uint16_t *)array)[index] = ot_f16_from_f32(value);
    }
}

#endif
