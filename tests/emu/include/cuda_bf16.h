/* bfloat16 for kernels: the conversions of the CUDA Math API that this project uses, by the formulas of
 * src/base/dtype.h. There is no arithmetic, because kernels compute in fp32. The types are trivial, so that
 * unions may hold them. */
#ifndef OT_EMU_CUDA_BF16_H
#define OT_EMU_CUDA_BF16_H

#include <cuda_runtime.h>
#include "src/base/dtype.h"

struct __align__(2) __nv_bfloat16 {
    unsigned short bits;
};
struct __align__(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    return {bits};
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
    return x.bits;
}
static inline float __bfloat162float(__nv_bfloat16 x) {
    return ot_bf16_to_f32(x.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    return {ot_bf16_from_f32(x)};
}
static inline __nv_bfloat16 __float2bfloat16(float x) {
    return __float2bfloat16_rn(x);
}

static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
    return {x, y};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
    return __floats2bfloat162_rn(v.x, v.y);
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return make_float2(__bfloat162float(v.x), __bfloat162float(v.y));
}
static inline float __low2float(__nv_bfloat162 v) {
    return __bfloat162float(v.x);
}
static inline float __high2float(__nv_bfloat162 v) {
    return __bfloat162float(v.y);
}

#endif
