/* Instructions of compute capability 9.0 (sm_90a), one function each, with the meaning of the PTX ISA:
 * products of a warpgroup (wgmma, section "Asynchronous Warpgroup Level Matrix Instructions"), barriers in
 * shared memory (mbarrier), and the border between the two ways to shared memory.
 * tests/emu/ptx_hopper_emu.h implements the same list for the emulator.
 *
 * A WARPGROUP is four warps whose first thread is a multiple of 128. Its products run asynchronously:
 *
 *     ot_wgmma_fence();      after any other access to the registers that follow
 *     ot_wgmma<...>(...);    one or more; all four warps, with the same operands in shared memory
 *     ot_wgmma_commit();     makes them a group
 *     ot_wgmma_wait<N>();    until at most N groups are unfinished
 *     ot_wgmma_ready(sums);  the compiler may now use the sums
 *
 * Until the wait, nobody may touch the sums, write the registers of A, or write the operands in shared
 * memory.
 *
 * PROXIES. wgmma reads shared memory by another path (the async proxy) than loads, stores and cp.async (the
 * generic proxy). So a thread that has written an operand must execute ot_fence_proxy_async() before the
 * barrier that hands the operand to the warpgroup.
 *
 * TILES. An operand in shared memory consists of PANELS: rows of 64 two-byte elements (128 bytes), with the
 * 128-byte swizzle: bits 4-6 of an address are those of the unswizzled address xor its bits 7-9. A panel
 * begins at a multiple of 1024 bytes. ot_tile<64> (attention_tiles.cuh) has the same order.
 */
#ifndef OT_KERNELS_CUDA_PTX_HOPPER_CUH
#define OT_KERNELS_CUDA_PTX_HOPPER_CUH

#include <type_traits>

#include "kernels/cuda/ptx.cuh"

#ifdef OT_EMU
#include "tests/emu/ptx_hopper_emu.h"
#else

/* ---- barriers in shared memory ---- */

/* One thread makes the barrier: a phase ends when `count` threads have arrived. Others may use it after a
 * __syncthreads. */
__device__ __forceinline__ void ot_mbarrier_init(uint64_t *barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ot_shared_address(barrier)), "r"(count)
                 : "memory");
}

__device__ __forceinline__ void ot_mbarrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ot_shared_address(barrier)) : "memory");
}

/* Waits until the phase of this parity has ended. The first phase has the parity 0; the phase before it has
 * the parity 1 and counts as ended.
 *
 * A wait whose arrivals are lost ends too: a trap makes it an error of the launch. Otherwise it would hold
 * the GPU until somebody resets it. The bound counts tries, because a clock also runs while a debugger or
 * another process has stopped the block. A try takes up to 1 microsecond where the hardware sleeps as the
 * hint says, and some 30 ns where it does not sleep. So the trap comes after about 8 s, and not before
 * 0.25 s. A tile arrives within some microseconds.
 *
 * The whole loop is one asm statement: around a loop of C the compiler copies the sums of products that still
 * run, so backward's products would run one after the other and spill 1.4 KiB of registers. */
__device__ __forceinline__ void ot_mbarrier_wait(uint64_t *barrier, uint32_t parity) {
    constexpr unsigned HINT_NS = 1000, TRIES = 1u << 23;
    asm volatile("{\n"
                 ".reg .pred ended, more;\n"
                 ".reg .u32 left;\n"
                 "mov.u32 left, %3;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1, %2;\n"
                 "@ended bra done;\n"
                 "sub.u32 left, left, 1;\n"
                 "setp.ne.u32 more, left, 0;\n"
                 "@more bra again;\n"
                 "trap;\n"
                 "done:\n"
                 "}" ::"r"(ot_shared_address(barrier)),
                 "r"(parity), "r"(HINT_NS), "n"(TRIES)
                 : "memory");
}

/* ---- order ---- */

/* Orders this thread's earlier accesses to shared memory before later ones of wgmma. */
__device__ __forceinline__ void ot_fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void ot_wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void ot_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void ot_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Tells the compiler that the sums change here, at a wait. It does not know that a wgmma writes them later.
 * */
template <int N8>
__device__ __forceinline__ void ot_wgmma_ready(float (&sums)[N8][4]) {
#pragma unroll
    for (int n = 0; n < N8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(sums[n][i])::"memory");
}

/* ---- registers ---- */

/* A warpgroup gives registers back, or waits for more: each of its threads then has N. */
template <int N>
__device__ __forceinline__ void ot_registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void ot_registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products ---- */

#define OT_F4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define OT_F32(c, n)                                                                                         \
    OT_F4(c, n), OT_F4(c, n + 1), OT_F4(c, n + 2), OT_F4(c, n + 3), OT_F4(c, n + 4), OT_F4(c, n + 5),        \
        OT_F4(c, n + 6), OT_F4(c, n + 7)
#define OT_WGMMA_64(type)                                                                                    \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %37, 0; "                                               \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                            \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "          \
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                      \
                 "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38; }"                                           \
                 : OT_F32(c, 0)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD), "n"(TRANSPOSED))
#define OT_WGMMA_128(type)                                                                                   \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %69, 0; "                                               \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                           \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "          \
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "          \
                 "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "          \
                 "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                      \
                 "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70; }"                                           \
                 : OT_F32(c, 0), OT_F32(c, 8)                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD), "n"(TRANSPOSED))

#define OT_WGMMA_64_SHARED(type)                                                                             \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %34, 0; "                                               \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                            \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "          \
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                      \
                 "}, %32, %33, add, 1, 1, 0, 0; }"                                                           \
                 : OT_F32(c, 0)                                                                              \
                 : "l"(a), "l"(b), "n"(ADD))

#define OT_WGMMA_256_SHARED(type)                                                                            \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %130, 0; "                                              \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {"                           \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "                    \
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "                    \
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "                    \
                 "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "                    \
                 "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "                    \
                 "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "                    \
                 "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                  \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "                  \
                 "%124, %125, %126, %127"                                                                    \
                 "}, %128, %129, add, 1, 1, %131, %132; }"                                                   \
                 : OT_F32(c, 0), OT_F32(c, 8), OT_F32(c, 16), OT_F32(c, 24)                                  \
                 : "l"(a), "l"(b), "n"(ADD), "n"(A_TRANSPOSED), "n"(TRANSPOSED))

/* Starts c = a b + (ADD ? c : 0) for a warpgroup, c[64][8 N8], fp32 accumulation. Warp w has the rows 16 w to
 * 16 w + 15 of a and c, in the fragments of ot_mma_16816: c[n] holds the columns 8 n to 8 n + 7. b: 16 rows
 * of 8 N8 columns, as ot_wgmma_operand describes them. TRANSPOSED: a row of the panel is a row of b.
 * Otherwise it is a column of b. */
template <class T, bool TRANSPOSED, bool ADD, int N8>
__device__ __forceinline__ void ot_wgmma(float (&c)[N8][4], const uint32_t (&a)[4], uint64_t b) {
    static_assert(N8 == 8 || N8 == 16, "64 or 128 columns");
    constexpr bool BF16 = std::is_same<T, __nv_bfloat16>::value;
    if constexpr (N8 == 8 && BF16)
        OT_WGMMA_64("bf16");
    else if constexpr (N8 == 8)
        OT_WGMMA_64("f16");
    else if constexpr (BF16)
        OT_WGMMA_128("bf16");
    else
        OT_WGMMA_128("f16");
}

/* The same with a in shared memory too: 64 rows of 16 elements, as ot_wgmma_operand describes them; warp w
 * reads the rows 16 w to 16 w + 15. A_TRANSPOSED: a row of the panel is a column of a. Otherwise it is a row
 * of a. */
template <class T, bool TRANSPOSED, bool ADD, bool A_TRANSPOSED = false, int N8>
__device__ __forceinline__ void ot_wgmma(float (&c)[N8][4], uint64_t a, uint64_t b) {
    static_assert(N8 == 32 || (N8 == 8 && !TRANSPOSED && !A_TRANSPOSED),
                  "256 columns, or 64 that are not transposed");
    constexpr bool BF16 = std::is_same<T, __nv_bfloat16>::value;
    if constexpr (N8 == 32 && BF16)
        OT_WGMMA_256_SHARED("bf16");
    else if constexpr (N8 == 32)
        OT_WGMMA_256_SHARED("f16");
    else if constexpr (BF16)
        OT_WGMMA_64_SHARED("bf16");
    else
        OT_WGMMA_64_SHARED("f16");
}

#endif

/* Describes an operand in panels for ot_wgmma. start: address of its first element. Not transposed (all 16
 * elements of a column of b, or of a row of a, lie in one row of the panel): the columns 8 n to 8 n + 7, or
 * these rows of a, begin `stride` bytes after the eight before; `leading` is not used. Transposed: the rows 8
 * to 15 of b, or these columns of a, begin `stride` bytes after the first eight; every 64 columns of b begin
 * `leading` bytes after the 64 before. a has 64 rows, so it does not use `leading`. */
__device__ __forceinline__ uint64_t ot_wgmma_operand(const void *start, unsigned leading, unsigned stride) {
    constexpr uint64_t SWIZZLE_128 = (uint64_t)1 << 62;
    return SWIZZLE_128 | (uint64_t)(stride >> 4) << 32 | (uint64_t)(leading >> 4) << 16 |
           ot_shared_address(start) >> 4;
}

/* The operand that begins `bytes` later. Shared memory ends before the address can reach the upper half. */
__device__ __forceinline__ uint64_t ot_wgmma_advance(uint64_t operand, unsigned bytes) {
    return operand >> 32 << 32 | (uint32_t)((uint32_t)operand + (bytes >> 4));
}

#endif
