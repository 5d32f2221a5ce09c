/* GPU instructions that CUDA C++ cannot express, one function each, with the meaning of the PTX ISA (chapter
 * 9): matrix products on tensor cores, their loads from shared memory, asynchronous copies into shared
 * memory, and special functions. tests/emu/ptx_emu.h implements the same list for the emulator. If an
 * architecture lacks an instruction, the function uses others: sm_75 copies synchronously and computes k16
 * as two k8 (fp16 only).
 */
#ifndef OT_KERNELS_CUDA_PTX_CUH
#define OT_KERNELS_CUDA_PTX_CUH

#include "kernels/cuda/kernel.cuh"

#ifdef OT_EMU
#include "tests/emu/ptx_emu.h"
#else

__device__ __forceinline__ uint32_t ot_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- asynchronous copies ---- */

/* Copies 16 bytes from global to shared memory, both 16-byte aligned. If not `valid`, it writes zeros and
 * does not read global memory. The copy is complete after a commit and the wait for its group; other threads
 * see it after a barrier. */
__device__ __forceinline__ void ot_cp_async_16(void *shared, const void *global, bool valid) {
#if __CUDA_ARCH__ >= 800
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ot_shared_address(shared)),
                 "l"(global), "r"(bytes)
                 : "memory");
#else
    *reinterpret_cast<uint4 *>(shared) =
        valid ? *reinterpret_cast<const uint4 *>(global) : make_uint4(0, 0, 0, 0);
#endif
}

__device__ __forceinline__ void ot_cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most N groups of this thread are unfinished. */
template <int N>
__device__ __forceinline__ void ot_cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* ---- barriers of some warps ---- */

/* Like __syncthreads, for `threads` threads of the block: whole warps, all of whose lanes call. Warps that
 * meet pass the same id, 1 to 15, and the same number. */
__device__ __forceinline__ void ot_barrier_sync(int id, int threads) {
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- fragments from shared memory ---- */

/* Loads four 8x8 tiles of two-byte elements. Lane 8 i + r passes the address of row r of tile i (16 bytes,
 * aligned). Lane l gets the elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1) of tile i in out[i]. */
__device__ __forceinline__ void ot_ldmatrix_x4(uint32_t (&out)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(ot_shared_address(row))
                 : "memory");
}

/* Like ot_ldmatrix_x4, but transposes: lane l gets the elements (2 (l % 4), l / 4) and (2 (l % 4) + 1, l /
 * 4). */
__device__ __forceinline__ void ot_ldmatrix_x4_trans(uint32_t (&out)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(ot_shared_address(row))
                 : "memory");
}

/* ---- products ---- */

/* c[16][8] += a[16][16] b[16][8] for one warp, fp32 accumulation; a and b are T (bf16 or fp16), two to a
 * register. Lane l with g = l / 4, t = l % 4 holds
 *   a: rows g, g + 8, columns 2t, 2t+1 in a[0], a[1]; the same rows, columns 2t+8, 2t+9 in a[2], a[3]
 *   b: rows 2t, 2t+1 of column g in b0; rows 2t+8, 2t+9 in b1
 *   c: row g, columns 2t, 2t+1 in c[0], c[1]; row g + 8 in c[2], c[3]. */
template <class T>
__device__ __forceinline__ void ot_mma_16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void ot_mma_16816<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                            uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap(); /* the host refuses bf16 on such a GPU */
#endif
}

template <>
__device__ __forceinline__ void ot_mma_16816<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/* 2^x by the special-function unit: error up to 2 ulp, subnormal results become zero. */
__device__ __forceinline__ float ot_exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* log2(x) by the special-function unit: error up to 2^-22, relative outside of 0.5 < x < 2 and absolute
 * inside; subnormal x counts as zero. */
__device__ __forceinline__ float ot_log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x by the special-function unit: error up to 1 ulp, subnormal x and results count as zero. */
__device__ __forceinline__ float ot_rcp_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

/* Packs two fp32 values as two T into one register, the first in the low half. */
template <class T>
__device__ __forceinline__ uint32_t ot_pack_two(float low, float high) {
    union {
        T values[2];
        uint32_t bits;
    } u = {{ot_from_float<T>(low), ot_from_float<T>(high)}};
    return u.bits;
}

#endif
