/* The functions of kernels/cuda/ptx_hopper.cuh for the emulator: the same names and meanings.
 *
 * A wgmma happens at the wait for its group, not before (emu_wgmma.cpp). Until then its sums hold NaNs. Its
 * sums are added in the order of ptx_emu.h. These errors are reported:
 *
 * - wgmma and setmaxnreg on a card of another compute capability than 9.0;
 * - the four warps of a warpgroup do not execute the same wgmmas with the same operands in shared memory;
 * - an operand that is outside of shared memory, that is not aligned to the swizzle, or that leaves the rows
 *   of its panel; a swizzle other than that of 128 bytes;
 * - bytes of an operand whose writer executed no ot_fence_proxy_async since;
 * - an mbarrier before its init, or a wait that never ends (where a GPU traps after some seconds, the
 *   emulator reports at once, when no thread of the block can go on);
 * - if accesses are checked: sums that are touched and registers of A that are written before the wait; sums
 *   and registers of A that were written since the last ot_wgmma_fence; races, as for all of shared memory.
 *
 * An mbarrier orders memory like this: a wait comes after everything that the arriving warps did before their
 * last __syncwarp. So a warp arrives after a __syncwarp.
 *
 * LIMITS. A wait of one lane counts for its warp. Of the warps that read b, the first of the warpgroup
 * counts. Of a in shared memory, each warp reads its own 16 rows. Registers are not counted. */
#ifndef OT_EMU_PTX_HOPPER_EMU_H
#define OT_EMU_PTX_HOPPER_EMU_H

#include <type_traits>

#include "tests/emu/ptx_emu.h"

uint32_t ot_emu_shared_address(const void *p, ot_emu_site site);
void ot_emu_mbarrier_init(uint64_t *barrier, unsigned count, ot_emu_site site);
void ot_emu_mbarrier_arrive(uint64_t *barrier, ot_emu_site site);
void ot_emu_mbarrier_wait(uint64_t *barrier, uint32_t parity, ot_emu_site site);
void ot_emu_fence_proxy_async();

struct ot_emu_wgmma {
    ot_emu_mma_type type;
    bool transposed, a_transposed, add; /* a_transposed: of A in shared memory */
    int n8;                             /* columns / 8 */
    float (*c)[4];                      /* this lane's sums, n8 of them */
    const uint32_t *a;    /* this lane's registers of A, four of them; NULL: A is in shared memory */
    uint64_t a_shared, b; /* descriptors */
    ot_emu_site site;
};
void ot_emu_wgmma_start(const ot_emu_wgmma *product);
void ot_emu_wgmma_fence(ot_emu_site site);
void ot_emu_wgmma_commit(ot_emu_site site);
void ot_emu_wgmma_wait(int groups, ot_emu_site site);
void ot_emu_registers(int count, ot_emu_site site);

__forceinline__ uint32_t ot_shared_address(const void *p, OT_EMU_HERE) {
    return ot_emu_shared_address(p, {file, line});
}

__forceinline__ void ot_mbarrier_init(uint64_t *barrier, unsigned count, OT_EMU_HERE) {
    ot_emu_mbarrier_init(barrier, count, {file, line});
}
__forceinline__ void ot_mbarrier_arrive(uint64_t *barrier, OT_EMU_HERE) {
    ot_emu_mbarrier_arrive(barrier, {file, line});
}
__forceinline__ void ot_mbarrier_wait(uint64_t *barrier, uint32_t parity, OT_EMU_HERE) {
    ot_emu_mbarrier_wait(barrier, parity, {file, line});
}

__forceinline__ void ot_fence_proxy_async() {
    ot_emu_fence_proxy_async();
}
__forceinline__ void ot_wgmma_fence(OT_EMU_HERE) {
    ot_emu_wgmma_fence({file, line});
}
__forceinline__ void ot_wgmma_commit(OT_EMU_HERE) {
    ot_emu_wgmma_commit({file, line});
}
template <int N>
__forceinline__ void ot_wgmma_wait(OT_EMU_HERE) {
    ot_emu_wgmma_wait(N, {file, line});
}
template <int N8>
__forceinline__ void ot_wgmma_ready(float (&)[N8][4]) {}

template <int N>
__forceinline__ void ot_registers_give(OT_EMU_HERE) {
    ot_emu_registers(N, {file, line});
}
template <int N>
__forceinline__ void ot_registers_take(OT_EMU_HERE) {
    ot_emu_registers(N, {file, line});
}

template <class T, bool TRANSPOSED, bool ADD, int N8>
__forceinline__ void ot_wgmma(float (&c)[N8][4], const uint32_t (&a)[4], uint64_t b, OT_EMU_HERE) {
    static_assert(N8 == 8 || N8 == 16, "64 or 128 columns");
    ot_emu_mma_type type = std::is_same<T, __half>::value ? OT_EMU_MMA_F16 : OT_EMU_MMA_BF16;
    ot_emu_wgmma product = {type, TRANSPOSED, false, ADD, N8, c, a, 0, b, {file, line}};
    ot_emu_wgmma_start(&product);
}
template <class T, bool TRANSPOSED, bool ADD, bool A_TRANSPOSED = false, int N8>
__forceinline__ void ot_wgmma(float (&c)[N8][4], uint64_t a, uint64_t b, OT_EMU_HERE) {
    static_assert(N8 == 32 || (N8 == 8 && !TRANSPOSED && !A_TRANSPOSED),
                  "256 columns, or 64 that are not transposed");
    ot_emu_mma_type type = std::is_same<T, __half>::value ? OT_EMU_MMA_F16 : OT_EMU_MMA_BF16;
    ot_emu_wgmma product = {type, TRANSPOSED, A_TRANSPOSED, ADD, N8, c, nullptr, a, b, {file, line}};
    ot_emu_wgmma_start(&product);
}

#endif
