/* The running block of the emulator: its threads and warps, and the reports about them. Only the emulator's
 * files include this header.
 *
 * One kernel runs at a time (ot_emu::run_grid holds a lock), on the calling thread, block after block. The
 * threads of a block are fibers: one runs until it must wait, then the next. A thread that never waits needs
 * no switch: its successor starts on the same stack.
 */
#ifndef OT_EMU_BLOCK_H
#define OT_EMU_BLOCK_H

#include <stdint.h>
#include <string>
#include <vector>

#include "tests/emu/emu_fiber.h"
#include "tests/emu/launch.h"
#include "tests/emu/ptx_hopper_emu.h"

namespace ot_emu {

enum { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP };

enum class State : uint8_t { RUNNING, AT_BARRIER, AT_NAMED_BARRIER, AT_WARP, AT_MBARRIER, DONE };
enum class WarpOp : uint8_t { SYNC, SHUFFLE, VOTE, BARRIER, LDMATRIX, MMA, WGMMA };

/* Address of the first byte of shared memory, not aligned to more than kernel.cuh promises. */
enum { SHARED_ADDRESS = 1024 + 128 };

struct Copy { /* one cp.async */
    void *to;
    const void *from; /* NULL: writes zeros */
    int group;        /* the thread's group of copies, counted from 0 */
};

struct Product {       /* one wgmma of a warp, in flight */
    struct Shared {    /* what the four warps of a warpgroup have in common */
        uint64_t a, b; /* descriptors; a: 0 if A is in registers */
        int n8;
        ot_emu_mma_type type;
        bool transposed, a_transposed, add;
        int line;
    };
    ot_emu_wgmma lanes[WARP];
    uint32_t a[WARP][4];
    float c[WARP][32]
           [4]; /* the sums before; the product in flight that has the same sums writes them at its end */
    int group;  /* the warp's group of products, counted from 0 */
};

struct Warp;

struct Thread {
    uint3 index;
    Fiber *fiber; /* NULL: not started yet, or finished */
    Warp *warp;
    int number, lane;
    State state;    /* AT_...: stays until the thread runs again, even if it is ready to */
    bool predicate; /* its argument at a barrier or vote */
    ot_emu_site site;

    /* operands of a warp operation; the operation decides which are used */
    WarpOp op;
    int kind, shuffle_lane, width;
    uint64_t value, result;
    const void *in;
    void *out;

    std::vector<Copy> copies; /* outstanding copies, oldest first */
    int groups;               /* number of committed groups */
    size_t n_copies;          /* in this block */

    uint32_t wgmma_fence, proxy_fence; /* times of its last fences, in fence_time; 0: none in this block */
};

/* For each warp, its epoch at some time. */
struct Clocks {
    uint16_t epochs[MAX_WARPS];

    void merge(const Clocks &other) {
        for (int i = 0; i < MAX_WARPS; i++)
            epochs[i] = epochs[i] > other.epochs[i] ? epochs[i] : other.epochs[i];
    }
};

struct Warp {
    Thread *threads; /* in lane order */
    int n_threads, arrived;
    Thread *first;  /* the first thread to arrive at the current operation */
    uint32_t epoch; /* number of __syncwarps passed */
    Clocks seen;    /* this warp comes after all that the warps did in earlier epochs than these */

    std::vector<uint32_t> copied; /* for each cp.async in this block, the banks in use (emu_banks.cpp) */

    std::vector<Product> products; /* in flight, oldest first */
    int n_groups;                  /* committed groups of products */
    size_t n_products;             /* in this block */
};

struct Block {
    const ot_emu_call *call;
    dim3 grid, size;
    uint3 index;
    int n_threads, n_warps, n_done, n_unstarted;
    char *shared;
    size_t shared_bytes;

    int arrived, set; /* threads at the barrier; those of them with a true predicate */
    Thread *first_at_barrier;
    ot_emu_tally tally; /* the result of the last barrier */

    Fiber host;
    bool failed;
    cudaError_t error;
    std::string report;

    Thread threads[MAX_THREADS];
    bool has_proxy_fence; /* some thread has executed a fence of the proxies */
    Warp warps[MAX_WARPS];
    std::vector<Product::Shared> warpgroups[MAX_WARPS / 4]; /* all products of each */
};

extern Block block;                  /* the running block, or the last one */
extern thread_local Thread *current; /* NULL: the calling thread runs no kernel thread */
extern uint32_t fence_time;          /* number of fences of wgmma and of proxies so far */

/* Runs every block of a launch. If it fails, *report describes the failure. */
cudaError_t run_grid(const ot_emu_call *call, dim3 grid, dim3 size, size_t shared_bytes, std::string *report);

/* Writes "kernel NAME, block (..), thread (..): sentence (FILE:LINE)". thread: NULL if the failure is not of
 * one thread. */
void record_failure(cudaError_t error, const Thread *thread, ot_emu_site site, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

[[noreturn]] void leave_launch(); /* called by a kernel thread; ends the launch */

/* Ends the launch because of an error of the calling thread. It is a macro, because objects that the
 * arguments own must be destroyed before the stack is left. */
#define OT_EMU_FAIL(error, site, ...)                                                                        \
    do {                                                                                                     \
        ot_emu::record_failure(error, ot_emu::current, site, __VA_ARGS__);                                   \
        ot_emu::leave_launch();                                                                              \
    } while (0)

std::string name_of(const Thread *thread); /* "thread (1,2,3)" */
std::string name_of(ot_emu_site site);     /* "file:line", or "" */

/* The calling thread waits until another thread wakes it. */
void sleep_as(State state);
void wake(Thread *thread);

/* All lanes meet. The last lane to arrive runs combine(warp) for all. */
void meet(WarpOp op, unsigned mask, ot_emu_site site, void (*combine)(Warp *));
const char *name_of(WarpOp op, int kind);

/* Two bf16 or fp16 numbers as fp32. */
inline void unpack_two(int type, uint32_t bits, float *low, float *high) {
    if (type == OT_EMU_MMA_BF16) {
        *low = ot_bf16_to_f32((uint16_t)bits);
        *high = ot_bf16_to_f32((uint16_t)(bits >> 16));
    } else {
        *low = ot_f16_to_f32((uint16_t)bits);
        *high = ot_f16_to_f32((uint16_t)(bits >> 16));
    }
}

/* ---- emu_wgmma.cpp, emu_mbarrier.cpp, emu_named_barrier.cpp ---- */

void wgmma_begin_block();
void wgmma_end_block(); /* reports warps that executed fewer products than others of their warpgroup */
const char *name_of_wgmma(int kind);
void mbarrier_begin_block();
void mbarrier_report_stuck(const Thread *thread);
void named_barrier_begin_block();
void named_barrier_report_stuck(const Thread *thread);

/* ---- emu_shared.cpp: the block's shared memory ---- */

void shared_begin(size_t bytes); /* sets block.shared */
void shared_poison();
void shared_check_end(); /* reports writes past the end in the bytes before the next page */

/* ---- emu_banks.cpp: bank conflicts ---- */

void banks_begin_block();
void banks_load(const Thread *lanes); /* eight lanes of an ldmatrix, with the addresses of their rows */
void banks_copy(Thread *thread, const void *to); /* a cp.async */

/* ---- settings ---- */

/* A number from the environment; 0 if the variable is not set. */
uint64_t setting(const char *name);

} // namespace ot_emu

#endif
