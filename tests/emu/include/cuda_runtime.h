/* The kernel language for the emulator: everything of CUDA C++ that needs no header, as far as this project
 * uses it. The meanings are those of the CUDA C++ Programming Guide and the CUDA Math API. tests/emu/emu.h
 * explains how threads, barriers and warp operations run, and what is checked. */
#ifndef OT_EMU_CUDA_RUNTIME_H
#define OT_EMU_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)

/* ---- vectors ---- */

#define OT_EMU_VECTORS(type, name, align2, align4)                                                           \
    struct __align__(align2) name##2 {                                                                       \
        type x, y;                                                                                           \
    };                                                                                                       \
    struct name##3 {                                                                                         \
        type x, y, z;                                                                                        \
    };                                                                                                       \
    struct __align__(align4) name##4 {                                                                       \
        type x, y, z, w;                                                                                     \
    };                                                                                                       \
    static inline name##2 make_##name##2(type x, type y) {                                                   \
        return {x, y};                                                                                       \
    }                                                                                                        \
    static inline name##3 make_##name##3(type x, type y, type z) {                                           \
        return {x, y, z};                                                                                    \
    }                                                                                                        \
    static inline name##4 make_##name##4(type x, type y, type z, type w) {                                   \
        return {x, y, z, w};                                                                                 \
    }
OT_EMU_VECTORS(float, float, 8, 16)
OT_EMU_VECTORS(int, int, 8, 16)
OT_EMU_VECTORS(unsigned, uint, 8, 16)
OT_EMU_VECTORS(short, short, 4, 8)
OT_EMU_VECTORS(unsigned short, ushort, 4, 8)
OT_EMU_VECTORS(double, double, 16, 16)
OT_EMU_VECTORS(long long, longlong, 16, 16)
#undef OT_EMU_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#include "tests/emu/emu_thread.h" /* threadIdx, barriers, warp operations, atomics */

/* ---- loads and stores with cache hints, here plain ones ---- */

template <class T>
__forceinline__ T __ldg(const T *p) {
    return *p;
}
template <class T>
__forceinline__ T __ldcs(const T *p) {
    return *p;
}
template <class T>
__forceinline__ T __ldcg(const T *p) {
    return *p;
}
template <class T>
__forceinline__ void __stcs(T *p, T value) {
    *p = value;
}
template <class T>
__forceinline__ void __stcg(T *p, T value) {
    *p = value;
}

/* ---- bits ---- */

template <class To, class From>
__forceinline__ To ot_emu_bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) {
    return ot_emu_bit_cast<unsigned>(x);
}
static inline int __float_as_int(float x) {
    return ot_emu_bit_cast<int>(x);
}
static inline float __uint_as_float(unsigned x) {
    return ot_emu_bit_cast<float>(x);
}
static inline float __int_as_float(int x) {
    return ot_emu_bit_cast<float>(x);
}
static inline long long __double_as_longlong(double x) {
    return ot_emu_bit_cast<long long>(x);
}
static inline double __longlong_as_double(long long x) {
    return ot_emu_bit_cast<double>(x);
}
static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
static inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)(((unsigned long long)a * b) >> 32);
}

/* ---- arithmetic: IEEE, rounded to nearest even ---- */

static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fsub_rn(float a, float b) {
    return a - b;
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
static inline float __frcp_rn(float x) {
    return 1.0f / x;
}
static inline double __dadd_rn(double a, double b) {
    return a + b;
}
static inline double __dmul_rn(double a, double b) {
    return a * b;
}
static inline double __fma_rn(double a, double b, double c) {
    return fma(a, b, c);
}
static inline int __float2int_rn(float x) {
    return (int)rintf(x);
}
static inline float __int2float_rn(int x) {
    return (float)x;
}
static inline float __double2float_rn(double x) {
    return (float)x;
}

/* ---- functions whose GPU versions are approximate: the host's library replaces them ---- */

/* Macros, because the C library has, or may have, functions with these names. */
static inline float ot_emu_rsqrtf(float x) {
    return (float)(1.0 / sqrt((double)x));
}
#define rsqrtf(x) ot_emu_rsqrtf(x)
#define __expf(x) expf(x)
#define __logf(x) logf(x)
static inline float __fdividef(float a, float b) {
    return a / b;
}
static inline float __saturatef(float x) {
    return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;
}

#define OT_EMU_MIN_MAX(type)                                                                                 \
    static inline type min(type a, type b) {                                                                 \
        return b < a ? b : a;                                                                                \
    }                                                                                                        \
    static inline type max(type a, type b) {                                                                 \
        return a < b ? b : a;                                                                                \
    }
OT_EMU_MIN_MAX(int)
OT_EMU_MIN_MAX(unsigned)
OT_EMU_MIN_MAX(long)
OT_EMU_MIN_MAX(unsigned long)
OT_EMU_MIN_MAX(long long)
OT_EMU_MIN_MAX(unsigned long long)
#undef OT_EMU_MIN_MAX
static inline float min(float a, float b) {
    return fminf(a, b);
}
static inline float max(float a, float b) {
    return fmaxf(a, b);
}
static inline double min(double a, double b) {
    return fmin(a, b);
}
static inline double max(double a, double b) {
    return fmax(a, b);
}

#endif
