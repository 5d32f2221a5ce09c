/* The functions that a kernel thread calls: indices, barriers, warp operations, atomics. cuda_runtime.h
 * includes this header.
 *
 * Every operation passes on the source line of its call (a default argument is evaluated at the call). Two
 * threads that meet at different lines have diverged, and reports name lines. The meanings are those of the
 * CUDA C++ Programming Guide, for full masks only. */
#ifndef OT_EMU_THREAD_H
#define OT_EMU_THREAD_H

#include <stdint.h>
#include <string.h>

struct ot_emu_site {
    const char *file;
    int line;
};

#define OT_EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* The indices of a thread never change, so the compiler may merge the calls of a whole kernel. */
__attribute__((const)) uint3 ot_emu_thread_index() noexcept;
__attribute__((const)) uint3 ot_emu_block_index() noexcept;
__attribute__((const)) dim3 ot_emu_block_size() noexcept;
__attribute__((const)) dim3 ot_emu_grid_size() noexcept;
#define threadIdx (ot_emu_thread_index())
#define blockIdx  (ot_emu_block_index())
#define blockDim  (ot_emu_block_size())
#define gridDim   (ot_emu_grid_size())
static constexpr int warpSize = 32;

/* ---- barriers ---- */

struct ot_emu_tally {
    int threads, set; /* threads of the block; those whose predicate is not 0 */
};
ot_emu_tally ot_emu_barrier(bool predicate, ot_emu_site site);

__forceinline__ void __syncthreads(OT_EMU_HERE) {
    ot_emu_barrier(false, {file, line});
}
__forceinline__ int __syncthreads_count(int predicate, OT_EMU_HERE) {
    return ot_emu_barrier(predicate != 0, {file, line}).set;
}
__forceinline__ int __syncthreads_or(int predicate, OT_EMU_HERE) {
    return ot_emu_barrier(predicate != 0, {file, line}).set > 0;
}
__forceinline__ int __syncthreads_and(int predicate, OT_EMU_HERE) {
    ot_emu_tally tally = ot_emu_barrier(predicate != 0, {file, line});
    return tally.set == tally.threads;
}

void ot_emu_fence();
__forceinline__ void __threadfence() {
    ot_emu_fence();
}
__forceinline__ void __threadfence_block() {}

/* ---- warp operations ---- */

void ot_emu_syncwarp(unsigned mask, ot_emu_site site);
__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu, OT_EMU_HERE) {
    ot_emu_syncwarp(mask, {file, line});
}

enum ot_emu_shuffle_kind { OT_EMU_SHFL_INDEX, OT_EMU_SHFL_UP, OT_EMU_SHFL_DOWN, OT_EMU_SHFL_XOR };
uint64_t ot_emu_shuffle(ot_emu_shuffle_kind kind, unsigned mask, uint64_t value, int lane, int width,
                        ot_emu_site site);

template <class T>
__forceinline__ T ot_emu_shuffle_value(ot_emu_shuffle_kind kind, unsigned mask, T value, int lane, int width,
                                       ot_emu_site site) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = ot_emu_shuffle(kind, mask, bits, lane, width, site);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32, OT_EMU_HERE) {
    return ot_emu_shuffle_value(OT_EMU_SHFL_INDEX, mask, value, lane, width, {file, line});
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, OT_EMU_HERE) {
    return ot_emu_shuffle_value(OT_EMU_SHFL_UP, mask, value, (int)delta, width, {file, line});
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, OT_EMU_HERE) {
    return ot_emu_shuffle_value(OT_EMU_SHFL_DOWN, mask, value, (int)delta, width, {file, line});
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, OT_EMU_HERE) {
    return ot_emu_shuffle_value(OT_EMU_SHFL_XOR, mask, value, lanes, width, {file, line});
}

enum ot_emu_vote_kind { OT_EMU_BALLOT, OT_EMU_ANY, OT_EMU_ALL };
unsigned ot_emu_vote(ot_emu_vote_kind kind, unsigned mask, bool predicate, ot_emu_site site);
__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate, OT_EMU_HERE) {
    return ot_emu_vote(OT_EMU_BALLOT, mask, predicate != 0, {file, line});
}
__forceinline__ int __any_sync(unsigned mask, int predicate, OT_EMU_HERE) {
    return ot_emu_vote(OT_EMU_ANY, mask, predicate != 0, {file, line}) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate, OT_EMU_HERE) {
    return ot_emu_vote(OT_EMU_ALL, mask, predicate != 0, {file, line}) == 0xffffffffu;
}

/* ---- atomics: each returns the old value ---- */

enum ot_emu_atomic_kind { OT_EMU_ADD, OT_EMU_MAX, OT_EMU_MIN, OT_EMU_EXCHANGE, OT_EMU_CAS };
/* For int, unsigned, unsigned long long, float and double. `other` is the value that CAS compares with. */
template <class T>
T ot_emu_atomic(ot_emu_atomic_kind kind, T *at, T value, T other, ot_emu_site site);

#define OT_EMU_ATOMICS(type)                                                                                 \
    __forceinline__ type atomicAdd(type *at, type value, OT_EMU_HERE) {                                      \
        return ot_emu_atomic<type>(OT_EMU_ADD, at, value, value, {file, line});                              \
    }                                                                                                        \
    __forceinline__ type atomicExch(type *at, type value, OT_EMU_HERE) {                                     \
        return ot_emu_atomic<type>(OT_EMU_EXCHANGE, at, value, value, {file, line});                         \
    }
#define OT_EMU_INTEGER_ATOMICS(type)                                                                         \
    __forceinline__ type atomicMax(type *at, type value, OT_EMU_HERE) {                                      \
        return ot_emu_atomic<type>(OT_EMU_MAX, at, value, value, {file, line});                              \
    }                                                                                                        \
    __forceinline__ type atomicMin(type *at, type value, OT_EMU_HERE) {                                      \
        return ot_emu_atomic<type>(OT_EMU_MIN, at, value, value, {file, line});                              \
    }                                                                                                        \
    __forceinline__ type atomicCAS(type *at, type compare, type value, OT_EMU_HERE) {                        \
        return ot_emu_atomic<type>(OT_EMU_CAS, at, value, compare, {file, line});                            \
    }
OT_EMU_ATOMICS(int)
OT_EMU_ATOMICS(unsigned)
OT_EMU_ATOMICS(unsigned long long)
OT_EMU_ATOMICS(float)
OT_EMU_ATOMICS(double)
OT_EMU_INTEGER_ATOMICS(int)
OT_EMU_INTEGER_ATOMICS(unsigned)
OT_EMU_INTEGER_ATOMICS(unsigned long long)
#undef OT_EMU_ATOMICS
#undef OT_EMU_INTEGER_ATOMICS

[[noreturn]] void ot_emu_trap(ot_emu_site site);
[[noreturn]] __forceinline__ void __trap(OT_EMU_HERE) {
    ot_emu_trap({file, line});
}

#endif
