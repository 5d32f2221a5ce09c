/* Warp operations, asynchronous copies and atomics. The last lane that reaches a warp operation executes it
 * for all. */
#include <string.h>

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_runtime.h"
#include "tests/emu/emu_check.h"
#include "tests/emu/ptx_emu.h"

namespace ot_emu {

/* ---- shuffles and votes ---- */

/* The lane that `lane` reads, as the PTX ISA defines shfl.sync: itself if the source is outside of the
 * segment of `width` lanes. */
static int shuffle_source(int kind, int lane, int by, int width) {
    int segment = lane & ~(width - 1), from;
    switch (kind) {
    case OT_EMU_SHFL_INDEX:
        return segment + (by & (width - 1));
    case OT_EMU_SHFL_UP:
        from = lane - by;
        return from >= segment ? from : lane;
    case OT_EMU_SHFL_DOWN:
        from = lane + by;
        return from < segment + width ? from : lane;
    default: /* XOR: may read from segments below, not above */
        from = lane ^ by;
        return from < segment + width ? from : lane;
    }
}

static void combine_shuffle(Warp *warp) {
    for (int lane = 0; lane < WARP; lane++) {
        Thread *to = &warp->threads[lane];
        to->result = warp->threads[shuffle_source(to->kind, lane, to->shuffle_lane, to->width)].value;
    }
}

static void combine_vote(Warp *warp) {
    uint32_t bits = 0;
    for (int lane = 0; lane < WARP; lane++)
        bits |= (uint32_t)warp->threads[lane].predicate << lane;
    for (int lane = 0; lane < WARP; lane++)
        warp->threads[lane].result = bits;
}

static void combine_sync(Warp *warp) {
    warp->epoch++;
}

/* ---- matrices ---- */

static void combine_ldmatrix(Warp *warp) {
    for (int tile = 0; tile < 4; tile++) {
        uint16_t values[8][8];
        banks_load(&warp->threads[8 * tile]);
        for (int row = 0; row < 8; row++)
            memcpy(values[row], warp->threads[8 * tile + row].in, sizeof values[row]);
        for (int lane = 0; lane < WARP; lane++) {
            int g = lane / 4, t = 2 * (lane % 4);
            bool transposed = warp->threads[lane].kind;
            uint32_t low = transposed ? values[t][g] : values[g][t];
            uint32_t high = transposed ? values[t + 1][g] : values[g][t + 1];
            ((uint32_t *)warp->threads[lane].out)[tile] = low | high << 16;
        }
    }
}

/* Eight sums at once, each a chain of its own. Without this type, the compiler transposes the matrices
 * instead. */
typedef float Row __attribute__((vector_size(8 * sizeof(float))));

struct MmaOperands {
    const uint32_t *a;
    uint32_t b[2];
};

/* For the processor that runs it: a row of sums fits one register of AVX. The bits are the same. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(OT_EMU_CHECK_ACCESSES)
#define FOR_EACH_CPU __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

/* The layouts are those of kernels/cuda/ptx.cuh. */
FOR_EACH_CPU
static void combine_mma(Warp *warp) {
    float a[16][16], b[16][8], c[16][8];
    int type = warp->threads[0].kind;
    for (int lane = 0; lane < WARP; lane++) {
        auto *operands = (const MmaOperands *)warp->threads[lane].in;
        auto *sums = (const float *)warp->threads[lane].out;
        int g = lane / 4, t = 2 * (lane % 4);
        for (int i = 0; i < 4; i++)
            unpack_two(type, operands->a[i], &a[g + i % 2 * 8][t + i / 2 * 8],
                       &a[g + i % 2 * 8][t + 1 + i / 2 * 8]);
        for (int i = 0; i < 2; i++)
            unpack_two(type, operands->b[i], &b[t + 8 * i][g], &b[t + 1 + 8 * i][g]);
        for (int i = 0; i < 4; i++)
            c[g + i / 2 * 8][t + i % 2] = sums[i];
    }
    for (int row = 0; row < 16; row++) {
        Row sums, factors;
        memcpy(&sums, c[row], sizeof sums);
        for (int k = 0; k < 16; k++) {
            memcpy(&factors, b[k], sizeof factors);
            sums += a[row][k] * factors;
        }
        memcpy(c[row], &sums, sizeof sums);
    }
    for (int lane = 0; lane < WARP; lane++) {
        auto *sums = (float *)warp->threads[lane].out;
        int g = lane / 4, t = 2 * (lane % 4);
        for (int i = 0; i < 4; i++)
            sums[i] = c[g + i / 2 * 8][t + i % 2];
    }
}

/* ---- asynchronous copies ---- */

static void finish_copies(Thread *thread, int groups_left) {
    size_t done = 0;
    for (; done < thread->copies.size() && thread->copies[done].group < thread->groups - groups_left;
         done++) {
        const Copy &copy = thread->copies[done];
        check_copy_end(copy.to, 16);
        if (copy.from)
            memcpy(copy.to, copy.from, 16);
        else
            memset(copy.to, 0, 16);
    }
    thread->copies.erase(thread->copies.begin(), thread->copies.begin() + (ptrdiff_t)done);
}

/* ---- atomics ---- */

template <class T>
static T updated(ot_emu_atomic_kind kind, T old, T value, T other) {
    switch (kind) {
    case OT_EMU_ADD:
        return old + value;
    case OT_EMU_MAX:
        return value > old ? value : old;
    case OT_EMU_MIN:
        return value < old ? value : old;
    case OT_EMU_EXCHANGE:
        return value;
    case OT_EMU_CAS:
        return old == other ? value : old;
    }
    return old;
}

static void require_alignment(const void *at, size_t bytes, ot_emu_site site, const char *what) {
    if ((uintptr_t)at % bytes != 0)
        OT_EMU_FAIL(cudaErrorMisalignedAddress, site, "%s at %p, which is not aligned to %zu bytes", what, at,
                    bytes);
}

} // namespace ot_emu

using namespace ot_emu;

void ot_emu_syncwarp(unsigned mask, ot_emu_site site) {
    current->kind = 0;
    meet(WarpOp::SYNC, mask, site, combine_sync);
}

uint64_t ot_emu_shuffle(ot_emu_shuffle_kind kind, unsigned mask, uint64_t value, int lane, int width,
                        ot_emu_site site) {
    Thread *self = current;
    self->kind = kind;
    self->value = value;
    self->shuffle_lane = lane;
    self->width = width;
    if (width < 1 || width > WARP || (width & (width - 1)) != 0)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "a shuffle of width %d, which is no power of two up to 32",
                    width);
    meet(WarpOp::SHUFFLE, mask, site, combine_shuffle);
    return self->result;
}

unsigned ot_emu_vote(ot_emu_vote_kind kind, unsigned mask, bool predicate, ot_emu_site site) {
    Thread *self = current;
    self->kind = kind;
    self->predicate = predicate;
    meet(WarpOp::VOTE, mask, site, combine_vote);
    return (unsigned)self->result;
}

void ot_emu_ldmatrix_x4(uint32_t (&out)[4], const void *row, bool transposed, ot_emu_site site) {
    Thread *self = current;
    self->kind = transposed;
    self->in = row;
    self->out = out;
    require_alignment(row, 16, site, "ldmatrix of a row");
    check_access(Access::READ, row, 16, site);
    meet(WarpOp::LDMATRIX, 0xffffffffu, site, combine_ldmatrix);
}

void ot_emu_mma_16816(ot_emu_mma_type type, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                      ot_emu_site site) {
    Thread *self = current;
    MmaOperands operands = {a, {b0, b1}};
    self->kind = type;
    self->in = &operands;
    self->out = c;
    meet(WarpOp::MMA, 0xffffffffu, site, combine_mma);
}

void ot_emu_cp_async_16(void *shared, const void *global, bool valid, ot_emu_site site) {
    Thread *self = current;
    require_alignment(shared, 16, site, "cp.async to shared memory");
    if ((char *)shared < block.shared || (char *)shared + 16 > block.shared + block.shared_bytes)
        OT_EMU_FAIL(cudaErrorIllegalAddress, site,
                    "cp.async to offset %lld of shared memory, which has %zu bytes",
                    (long long)((char *)shared - block.shared), block.shared_bytes);
    if (valid) {
        require_alignment(global, 16, site, "cp.async from global memory");
        check_access(Access::READ, global, 16, site);
    }
    check_copy_begin(shared, 16, site);
    memset(shared, POISON, 16);
    banks_copy(self, shared);
    self->copies.push_back({shared, valid ? global : nullptr, self->groups});
}

void ot_emu_cp_async_commit() {
    current->groups++;
}

void ot_emu_cp_async_wait(int groups) {
    finish_copies(current, groups);
}

template <class T>
T ot_emu_atomic(ot_emu_atomic_kind kind, T *at, T value, T other, ot_emu_site site) {
    require_alignment(at, sizeof *at, site, "an atomic");
    check_access(Access::ATOMIC, at, sizeof *at, site);
    T old = *at;
    *at = updated(kind, old, value, other);
    return old;
}
template int ot_emu_atomic(ot_emu_atomic_kind, int *, int, int, ot_emu_site);
template unsigned ot_emu_atomic(ot_emu_atomic_kind, unsigned *, unsigned, unsigned, ot_emu_site);
template unsigned long long ot_emu_atomic(ot_emu_atomic_kind, unsigned long long *, unsigned long long,
                                          unsigned long long, ot_emu_site);
template float ot_emu_atomic(ot_emu_atomic_kind, float *, float, float, ot_emu_site);
template double ot_emu_atomic(ot_emu_atomic_kind, double *, double, double, ot_emu_site);

void ot_emu_fence() {
    check_fence();
}

void ot_emu_trap(ot_emu_site site) {
    OT_EMU_FAIL(cudaErrorLaunchFailure, site, "__trap");
}
