/* The functions of kernels/cuda/ptx.cuh for the emulator: the same names and meanings.
 *
 * A product of two bf16 or fp16 numbers is exact in fp32 (except for over- and underflow of bf16). So an mma
 * differs from a GPU's only by the order and rounding of its sums, which NVIDIA does not document. Here c +
 * a[0] b[0] + a[1] b[1] + ... is summed from left to right, and each sum is rounded to nearest even. The
 * result is within the error bound of any order.
 *
 * A barrier of some warps (ot_barrier_sync) orders memory between these warps alone. Reported are warps that
 * meet with different numbers of threads, numbers that no barrier can have, and a barrier where too few warps
 * meet.
 *
 * An asynchronous copy happens at the wait for its group, not before. Until then its destination holds NaNs;
 * if accesses are checked, touching it is an error. */
#ifndef OT_EMU_PTX_EMU_H
#define OT_EMU_PTX_EMU_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

void ot_emu_cp_async_16(void *shared, const void *global, bool valid, ot_emu_site site);
void ot_emu_cp_async_commit();
void ot_emu_cp_async_wait(int groups);
void ot_emu_barrier_sync(int id, int threads, ot_emu_site site);
void ot_emu_ldmatrix_x4(uint32_t (&out)[4], const void *row, bool transposed, ot_emu_site site);
enum ot_emu_mma_type { OT_EMU_MMA_BF16, OT_EMU_MMA_F16 };
void ot_emu_mma_16816(ot_emu_mma_type type, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                      ot_emu_site site);

__forceinline__ void ot_cp_async_16(void *shared, const void *global, bool valid, OT_EMU_HERE) {
    ot_emu_cp_async_16(shared, global, valid, {file, line});
}
__forceinline__ void ot_cp_async_commit() {
    ot_emu_cp_async_commit();
}
template <int N>
__forceinline__ void ot_cp_async_wait() {
    ot_emu_cp_async_wait(N);
}

__forceinline__ void ot_barrier_sync(int id, int threads, OT_EMU_HERE) {
    ot_emu_barrier_sync(id, threads, {file, line});
}

__forceinline__ void ot_ldmatrix_x4(uint32_t (&out)[4], const void *row, OT_EMU_HERE) {
    ot_emu_ldmatrix_x4(out, row, false, {file, line});
}
__forceinline__ void ot_ldmatrix_x4_trans(uint32_t (&out)[4], const void *row, OT_EMU_HERE) {
    ot_emu_ldmatrix_x4(out, row, true, {file, line});
}

template <class T>
__forceinline__ void ot_mma_16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                  OT_EMU_HERE);
template <>
__forceinline__ void ot_mma_16816<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1, const char *file, int line) {
    ot_emu_mma_16816(OT_EMU_MMA_BF16, c, a, b0, b1, {file, line});
}
template <>
__forceinline__ void ot_mma_16816<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                          const char *file, int line) {
    ot_emu_mma_16816(OT_EMU_MMA_F16, c, a, b0, b1, {file, line});
}

/* Within an ulp of the host's exp2f. Subnormal results become zero, as with ex2.approx.ftz. */
__forceinline__ float ot_exp2_approx(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

/* Within an ulp of the host's log2f. Subnormal arguments are zero, as with lg2.approx.ftz. */
__forceinline__ float ot_log2_approx(float x) {
    return log2f(fabsf(x) < 0x1p-126f ? 0.0f : x);
}

/* Correctly rounded. Subnormal arguments and results are zero, as with rcp.approx.ftz. */
__forceinline__ float ot_rcp_approx(float x) {
    float y = 1.0f / (fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x);
    return fabsf(y) < 0x1p-126f ? copysignf(0.0f, y) : y;
}

#endif
