/* IEEE binary16 for kernels; see cuda_bf16.h. */
#ifndef OT_EMU_CUDA_FP16_H
#define OT_EMU_CUDA_FP16_H

#include <cuda_runtime.h>
#include "src/base/dtype.h"

struct __align__(2) __half {
    unsigned short bits;
};
struct __align__(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

static inline __half __ushort_as_half(unsigned short bits) {
    return {bits};
}
static inline unsigned short __half_as_ushort(__half x) {
    return x.bits;
}
static inline float __half2float(__half x) {
    return ot_f16_to_f32(x.bits);
}
static inline __half __float2half_rn(float x) {
    return {ot_f16_from_f32(x)};
}
static inline __half __float2half(float x) {
    return __float2half_rn(x);
}

static inline __half2 __halves2half2(__half x, __half y) {
    return {x, y};
}
static inline __half2 __floats2half2_rn(float x, float y) {
    return {__float2half_rn(x), __float2half_rn(y)};
}
static inline __half2 __float22half2_rn(float2 v) {
    return __floats2half2_rn(v.x, v.y);
}
static inline float2 __half22float2(__half2 v) {
    return make_float2(__half2float(v.x), __half2float(v.y));
}
static inline float __low2float(__half2 v) {
    return __half2float(v.x);
}
static inline float __high2float(__half2 v) {
    return __half2float(v.y);
}

#endif
