/* Inside the emulator: the block that runs, its threads and warps, and the reports about them.
 *
 * One kernel runs at a time (ot_emu::run_grid holds a lock), on the calling thread, block after block. The
 * threads of a block are fibers: one runs until it must wait, then the next. A thread that never waits needs
 * no switch at all: its successor starts on the same stack.
 */
#ifndef OT_EMU_BLOCK_H
#define OT_EMU_BLOCK_H

#include <stdint.h>
#include <string>
#include <vector>

#include "kernels/emu/emu_fiber.h"
#include "kernels/emu/launch.h"

namespace ot_emu {

enum { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP };

enum class State : uint8_t { RUNNING, AT_BARRIER, AT_WARP, DONE };
enum class WarpOp : uint8_t { SYNC, SHUFFLE, VOTE, LDMATRIX, MMA };

struct Copy { /* cp.async */
    void *to;
    const void *from; /* NULL: zeros */
    int group;        /* of the thread, counted from 0 */
};

struct Warp;

struct Thread {
    uint3 index;
    Fiber *fiber; /* NULL: has none yet or no longer */
    Warp *warp;
    int number, lane;
    State state;    /* AT_..: until it runs again, though it may be ready to */
    bool predicate; /* at a barrier or vote */
    ot_emu_site site;

    /* a warp operation's operands: which are used depends on it */
    WarpOp op;
    int kind, shuffle_lane, width;
    uint64_t value, result;
    const void *in;
    void *out;

    std::vector<Copy> copies; /* under way, oldest first */
    int groups;               /* committed so far */
};

struct Warp {
    Thread *threads; /* in lane order */
    int n_threads, arrived;
    Thread *first;  /* to come */
    uint32_t epoch; /* __syncwarps passed */
};

struct Block {
    const ot_emu_call *call;
    dim3 grid, size;
    uint3 index;
    int n_threads, n_warps, n_done, n_unstarted;
    char *shared;
    size_t shared_bytes;

    int arrived, set; /* at the barrier; with a predicate */
    Thread *first_at_barrier;
    ot_emu_tally tally; /* of the last barrier */

    Fiber host;
    bool failed;
    cudaError_t error;
    std::string report;

    Thread threads[MAX_THREADS];
    Warp warps[MAX_WARPS];
};

extern Block block;                  /* the one that runs, or ran last */
extern thread_local Thread *current; /* NULL: the caller is no kernel thread */

/* Runs every block of a launch; on failure *report says what happened. */
cudaError_t run_grid(const ot_emu_call *call, dim3 grid, dim3 size, size_t shared_bytes, std::string *report);

/* Writes "kernel NAME, block (..), thread (..): sentence (FILE:LINE)" about one thread, or none: NULL. */
void record_failure(cudaError_t error, const Thread *thread, ot_emu_site site, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

[[noreturn]] void leave_launch(); /* from a thread, for good */

/* What is wrong about the calling thread ends the launch. A macro, since what the arguments own must be gone
 * before the stack is left. */
#define OT_EMU_FAIL(error, site, ...)                                                                        \
    do {                                                                                                     \
        ot_emu::record_failure(error, ot_emu::current, site, __VA_ARGS__);                                   \
        ot_emu::leave_launch();                                                                              \
    } while (0)

std::string name_of(const Thread *thread); /* "thread (1,2,3)" */
std::string name_of(ot_emu_site site);     /* "file:line", or "" */

/* All lanes meet; the last to come runs combine(warp) for all. */
void meet(WarpOp op, unsigned mask, ot_emu_site site, void (*combine)(Warp *));
const char *name_of(WarpOp op, int kind);

/* ---- emu_shared.cpp: the block's shared memory ---- */

void shared_begin(size_t bytes); /* sets block.shared */
void shared_poison();
void shared_check_end(); /* reports what was written past the end where no page ends */

/* ---- settings ---- */

/* A number from the environment; 0 where there is none. */
uint64_t setting(const char *name);

} // namespace ot_emu

#endif
