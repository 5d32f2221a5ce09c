/* The base of every kernel file: types, 16-byte accesses, reductions, the launch.
 *
 * Two compilers read each kernel file. nvcc makes GPU code. A host C++ compiler, with OT_EMU defined and
 * tests/emu/include first in its include path, makes a library that runs each kernel on a CPU, thread by
 * thread (tests/emu/emu.h explains how, and what it checks). So kernel files use only what both compilers
 * understand:
 *
 * - Kernels are __global__ functions (templates too). ot_launch launches them, never <<<>>>.
 * - Shared memory is dynamic: ot_shared<T>() is its start, the launch gives its size. No __shared__
 *   variables.
 * - Allowed are __syncthreads, __syncwarp, full-mask shuffles, votes, and atomics on 32- and 64-bit numbers.
 * - PTX only through the wrappers of ptx.cuh and ptx_hopper.cuh.
 * - Names that a file keeps to itself are in an inline namespace with the file's name, such as adamw_cu. In
 *   an anonymous one, nvcc names them by the path of the source: two folders would give two programs.
 *
 * EXACTNESS. Everything is compiled with -fmad=false (host: -ffp-contract=off) and without fast-math: a
 * product and a sum are two roundings unless the code says fmaf. So the emulator has the GPU's bits wherever
 * only + - * / fma and sqrt occur. The order of a sum depends on the arguments alone, never on the number of
 * multiprocessors. Floating-point atomics are forbidden.
 */
#ifndef OT_KERNELS_CUDA_KERNEL_CUH
#define OT_KERNELS_CUDA_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdint.h>

#include "kernels/cuda/launchers.h"

enum { OT_WARP = 32 };

/* ---- shared memory and the launch ---- */

#ifdef OT_EMU
#include "tests/emu/launch.h" /* ot_shared, ot_launch */
#else
template <class T>
__device__ __forceinline__ T *ot_shared() {
    extern __shared__ __align__(128) unsigned char ot_shared_memory[];
    return reinterpret_cast<T *>(ot_shared_memory);
}

/* kernel<<<grid, block, shared_bytes, stream>>>(args...); raises the kernel's limit of shared memory if
 * needed. */
template <class... P, class... A>
cudaError_t ot_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                      A... args) {
    if (shared_bytes > 48 * 1024) {
        cudaError_t rc = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (rc != cudaSuccess)
            return rc;
    }
    kernel<<<grid, block, shared_bytes, stream>>>(static_cast<P>(args)...);
    return cudaGetLastError();
}
#endif

/* Call it first in a kernel that, if only_75, GPUs of compute capability 7.5 alone run. In the code for newer
 * ones it traps and returns true; then return, so that the kernel takes neither time to compile nor room. */
__device__ __forceinline__ bool ot_trap_unless_75(bool only_75) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    if (only_75)
        __trap();
    return only_75;
#else
    return (void)only_75, false;
#endif
}

#define OT_CUDA_TRY(expr)                                                                                    \
    do {                                                                                                     \
        cudaError_t ot_cuda_rc_ = (expr);                                                                    \
        if (ot_cuda_rc_ != cudaSuccess)                                                                      \
            return ot_cuda_rc_;                                                                              \
    } while (0)

static inline int64_t ot_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* ---- storage types ---- */

__device__ __forceinline__ float ot_to_float(float x) {
    return x;
}
__device__ __forceinline__ float ot_to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ __forceinline__ float ot_to_float(__half x) {
    return __half2float(x);
}

template <class T>
__device__ __forceinline__ T ot_from_float(float x);
template <>
__device__ __forceinline__ float ot_from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 ot_from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half ot_from_float<__half>(float x) {
    return __float2half_rn(x);
}

/* Calls f with a value of the C++ type of an ot_dtype: ot_dispatch(dtype, [&](auto zero) { using T =
 * decltype(zero); ... }) */
template <class F>
cudaError_t ot_dispatch(enum ot_dtype dtype, F f) {
    switch (dtype) {
    case OT_F32:
        return f(float());
    case OT_BF16:
        return f(__nv_bfloat16());
    case OT_F16:
        return f(__half());
    }
    return cudaErrorInvalidValue;
}

/* ---- 16 bytes at a time ---- */

/* N consecutive values as fp32, loaded and stored by one 16-byte access. N is 4 for fp32 and 8 for two-byte
 * types. */
template <class T>
struct ot_pack {
    static constexpr int N = 16 / (int)sizeof(T);
    float v[N];
};

/* Unpacks one register of a pack into values, and packs values into a register: one fp32, or two two-byte
 * values, the first in the low half. */
__device__ __forceinline__ void ot_unpack_word(const float *, uint32_t word, float *v) {
    v[0] = __uint_as_float(word);
}
__device__ __forceinline__ void ot_unpack_word(const __nv_bfloat16 *, uint32_t word, float *v) {
    v[0] = __uint_as_float(word << 16); /* one instruction each */
    v[1] = __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ void ot_unpack_word(const __half *, uint32_t word, float *v) {
    union {
        uint32_t word;
        __half values[2];
    } u = {word};
    v[0] = __half2float(u.values[0]);
    v[1] = __half2float(u.values[1]);
}

__device__ __forceinline__ uint32_t ot_pack_word(const float *, const float *v) {
    return __float_as_uint(v[0]);
}
template <class T>
__device__ __forceinline__ uint32_t ot_pack_word(const T *, const float *v) {
    union {
        T values[2];
        uint32_t word;
    } u = {{ot_from_float<T>(v[0]), ot_from_float<T>(v[1])}};
    return u.word;
}

template <class T>
__device__ __forceinline__ ot_pack<T> ot_load(const T *from) {
    constexpr int PER_WORD = ot_pack<T>::N / 4;
    uint4 raw = *reinterpret_cast<const uint4 *>(from);
    ot_pack<T> pack;
    ot_unpack_word(from, raw.x, pack.v);
    ot_unpack_word(from, raw.y, pack.v + PER_WORD);
    ot_unpack_word(from, raw.z, pack.v + 2 * PER_WORD);
    ot_unpack_word(from, raw.w, pack.v + 3 * PER_WORD);
    return pack;
}

template <class T>
__device__ __forceinline__ uint4 ot_pack_raw(const T *type, const ot_pack<T> &pack) {
    constexpr int PER_WORD = ot_pack<T>::N / 4;
    return make_uint4(ot_pack_word(type, pack.v), ot_pack_word(type, pack.v + PER_WORD),
                      ot_pack_word(type, pack.v + 2 * PER_WORD), ot_pack_word(type, pack.v + 3 * PER_WORD));
}

template <class T>
__device__ __forceinline__ void ot_store(T *to, const ot_pack<T> &pack) {
    *reinterpret_cast<uint4 *>(to) = ot_pack_raw(to, pack);
}

/* Like ot_store, for global memory only, and always as one store. (nvcc 13 makes four stores of the
 * assignment in ot_store, in loops where it keeps a moving address.) */
template <class T>
__device__ __forceinline__ void ot_store_global(T *to, const ot_pack<T> &pack) {
#ifdef OT_EMU
    ot_store(to, pack);
#else
    uint4 raw = ot_pack_raw(to, pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(raw.x),
                 "r"(raw.y), "r"(raw.z), "r"(raw.w)
                 : "memory");
#endif
}

/* True if rows that start at p and lie ld elements apart can be read in whole packs up to cols. */
template <class T>
static inline bool ot_is_packable(const T *p, int64_t ld, int64_t cols) {
    constexpr int N = ot_pack<T>::N;
    return (uintptr_t)p % 16 == 0 && ld % N == 0 && cols % N == 0;
}

/* ---- reductions: sums in the order of a fixed tree ---- */

template <class T>
__device__ __forceinline__ T ot_warp_sum(T x) {
#pragma unroll
    for (int offset = OT_WARP / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

template <class T>
__device__ __forceinline__ T ot_warp_max(T x) {
#pragma unroll
    for (int offset = OT_WARP / 2; offset > 0; offset /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, x, offset);
        x = other > x ? other : x;
    }
    return x;
}

/* Every thread of the block gets the sum. blockDim.x must be a multiple of the warp size, at most 1024. room:
 * shared memory for 32 values, which is free again when the function returns. */
template <class T>
__device__ __forceinline__ T ot_block_sum(T x, T *room) {
    int warp = (int)threadIdx.x / OT_WARP, lane = (int)threadIdx.x % OT_WARP,
        warps = (int)blockDim.x / OT_WARP;
    x = ot_warp_sum(x);
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    x = ot_warp_sum(lane < warps ? room[lane] : T(0));
    __syncthreads();
    return x;
}

#endif
