#include "tests/emu/emu_block.h"

#include <atomic>
#include <mutex>
#include <stdlib.h>

#include "tests/emu/emu.h"
#include "tests/emu/emu_check.h"

namespace ot_emu {

Block block;
uint32_t fence_time;
thread_local Thread *current;

/* ---- order ---- */

/* Threads that may continue. Without a seed the first one continues, and new threads start when no thread is
 * ready. */
static Thread *ready[MAX_THREADS];
static uint32_t ready_first, ready_count;
static uint16_t start_order[MAX_THREADS]; /* the last n_unstarted have not started; the last entry is next */
static std::atomic<uint64_t> order_seed{setting("OT_EMU_SEED")}; /* for the next launch; 0: fixed order */
static bool is_random;                                           /* the current launch has a random order */
static uint64_t random_state;

uint64_t setting(const char *name) {
    const char *value = getenv(name);
    return value ? strtoull(value, nullptr, 10) : 0;
}

static uint32_t random_below(uint32_t n) {
    random_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(((z >> 32) * n) >> 32);
}

static void make_ready(Thread *thread) {
    ready[(ready_first + ready_count++) % MAX_THREADS] = thread;
}

/* Chooses the next thread; NULL if no thread can continue. */
static inline Thread *pick() {
    if (is_random && ready_count + block.n_unstarted > 0) {
        uint32_t choice = random_below(ready_count + (uint32_t)block.n_unstarted);
        if (choice < ready_count)
            std::swap(ready[ready_first], ready[(ready_first + choice) % MAX_THREADS]);
        else
            return &block.threads[start_order[--block.n_unstarted]];
    }
    if (ready_count > 0) {
        Thread *thread = ready[ready_first];
        ready_first = (ready_first + 1) % MAX_THREADS;
        ready_count--;
        /* The stacks of a block exceed the first-level cache. The CPU loads the next one meanwhile. */
        if (ready_count > 0 && ready[ready_first]->fiber)
            __builtin_prefetch(ready[ready_first]->fiber->sp);
        return thread;
    }
    return block.n_unstarted > 0 ? &block.threads[start_order[--block.n_unstarted]] : nullptr;
}

/* ---- running ---- */

static void run_threads(Fiber *self);

__attribute__((always_inline)) static inline void switch_to(Fiber *from, Thread *next) {
    current = next;
    if (!next) {
        fiber_switch(from, &block.host);
        return;
    }
    if (!next->fiber)
        next->fiber = fiber_take(run_threads);
    fiber_switch(from, next->fiber);
}

/* When a fiber has finished its thread and is resumed later, `current` is a new thread. */
static void run_threads(Fiber *self) {
    for (;;) {
        Thread *thread = current;
        thread->state = State::RUNNING;
        block.call->run();
        thread->state = State::DONE;
        thread->fiber = nullptr;
        block.n_done++;
        Thread *next = pick();
        if (next && !next->fiber) {
            next->fiber = self;
            current = next;
        } else {
            fiber_give(self);
            switch_to(self, next);
        }
    }
}

/* The calling thread waits until another thread makes it ready. */
__attribute__((always_inline)) static inline void wait_as(State state) {
    Thread *self = current;
    self->state = state;
    switch_to(self->fiber, pick());
    self->state = State::RUNNING;
}

void wake(Thread *thread) {
    make_ready(thread);
}

void sleep_as(State state) {
    wait_as(state);
}

void leave_launch() {
    switch_to(current->fiber, nullptr);
    abort(); /* no thread resumes this one */
}

/* ---- barriers ---- */

ot_emu_tally barrier(bool predicate, ot_emu_site site) {
    Thread *self = current;
    self->site = site;
    self->predicate = predicate;
    if (block.arrived == 0) {
        block.first_at_barrier = self;
    } else if (site.line != block.first_at_barrier->site.line) {
        OT_EMU_FAIL(cudaErrorLaunchFailure, site,
                    "divergent barrier: __syncthreads here, but %s waits in another at %s",
                    name_of(block.first_at_barrier).c_str(), name_of(block.first_at_barrier->site).c_str());
    }
    block.arrived++;
    block.set += predicate;
    if (block.arrived < block.n_threads) {
        wait_as(State::AT_BARRIER);
        return block.tally;
    }
    block.tally = {block.n_threads, block.set};
    block.arrived = block.set = 0;
    check_next_interval();
    for (int i = 0; i < block.n_threads; i++)
        if (&block.threads[i] != self)
            make_ready(&block.threads[i]);
    return block.tally;
}

/* ---- warp operations ---- */

const char *name_of(WarpOp op, int kind) {
    static const char *const shuffles[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                           "__shfl_xor_sync"};
    static const char *const votes[] = {"__ballot_sync", "__any_sync", "__all_sync"};
    switch (op) {
    case WarpOp::SYNC:
        return "__syncwarp";
    case WarpOp::SHUFFLE:
        return shuffles[kind];
    case WarpOp::VOTE:
        return votes[kind];
    case WarpOp::BARRIER:
        return "barrier.sync";
    case WarpOp::LDMATRIX:
        return "ldmatrix";
    case WarpOp::MMA:
        return "mma";
    case WarpOp::WGMMA:
        return name_of_wgmma(kind);
    }
    return "";
}

void meet(WarpOp op, unsigned mask, ot_emu_site site, void (*combine)(Warp *)) {
    Thread *self = current;
    Warp *warp = self->warp;
    self->site = site;
    self->op = op;
    if (mask != 0xffffffffu)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "%s with the mask 0x%08x: only full warps are supported",
                    name_of(op, self->kind), mask);
    if (warp->n_threads < WARP && op != WarpOp::SYNC)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site,
                    "%s by part of a warp: the block's last warp has %d threads", name_of(op, self->kind),
                    warp->n_threads);
    if (warp->arrived == 0)
        warp->first = self;
    Thread *first = warp->first;
    if (op != first->op || self->kind != first->kind || site.line != first->site.line)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "divergent warp: %s here, but %s waits in %s at %s",
                    name_of(op, self->kind), name_of(first).c_str(), name_of(first->op, first->kind),
                    name_of(first->site).c_str());
    if (++warp->arrived < warp->n_threads) {
        wait_as(State::AT_WARP);
        return;
    }
    warp->arrived = 0;
    combine(warp);
    for (int lane = 0; lane < warp->n_threads; lane++)
        if (&warp->threads[lane] != self)
            make_ready(&warp->threads[lane]);
}

/* ---- no thread can continue ---- */

static std::string whereabouts(const Thread *thread) {
    std::string who = name_of(thread);
    if (thread->state == State::DONE)
        return who + " has exited";
    if (thread->state == State::AT_BARRIER)
        return who + " waits in __syncthreads at " + name_of(thread->site);
    if (thread->state == State::AT_NAMED_BARRIER)
        return who + " waits in barrier.sync at " + name_of(thread->site);
    if (thread->state == State::AT_MBARRIER)
        return who + " waits for an mbarrier at " + name_of(thread->site);
    return who + " waits in " + name_of(thread->op, thread->kind) + " at " + name_of(thread->site);
}

/* Reports a warp that waits forever: its first waiting lane, and one of the lanes that will not arrive. */
static bool report_stuck_warp(Warp *warp) {
    Thread *waiting = nullptr, *missing = nullptr;
    for (int lane = 0; lane < warp->n_threads; lane++) {
        Thread *thread = &warp->threads[lane];
        if (thread->state == State::AT_WARP)
            waiting = waiting ? waiting : thread;
        else
            missing = missing ? missing : thread;
    }
    if (!waiting)
        return false;
    record_failure(cudaErrorLaunchFailure, waiting, waiting->site,
                   "%s by part of a warp: %d of %d threads wait in it, but %s",
                   name_of(waiting->op, waiting->kind), warp->arrived, warp->n_threads,
                   whereabouts(missing).c_str());
    return true;
}

static void report_stuck() {
    for (int i = 0; i < block.n_warps; i++)
        if (report_stuck_warp(&block.warps[i]))
            return;
    for (int i = 0; i < block.n_threads; i++) {
        const Thread *thread = &block.threads[i];
        if (thread->state == State::AT_MBARRIER)
            return mbarrier_report_stuck(thread);
        if (thread->state == State::AT_NAMED_BARRIER)
            return named_barrier_report_stuck(thread);
    }
    Thread *waiting = block.first_at_barrier, *missing = block.threads;
    while (missing->state == State::AT_BARRIER)
        missing++;
    record_failure(cudaErrorLaunchFailure, waiting, waiting->site,
                   "divergent barrier: %d of %d threads wait in __syncthreads, but %s", block.arrived,
                   block.n_threads, whereabouts(missing).c_str());
}

/* ---- blocks and grids ---- */

static void begin_block() {
    block.n_done = block.arrived = block.set = 0;
    ready_first = ready_count = 0;
    for (int i = 0; i < block.n_threads; i++) {
        Thread *thread = &block.threads[i];
        thread->fiber = nullptr;
        thread->copies.clear();
        thread->groups = 0;
    }
    for (int i = 0; i < block.n_warps; i++)
        block.warps[i].arrived = 0;
    block.n_unstarted = block.n_threads;
    for (int i = 0; i < block.n_threads; i++)
        start_order[i] = (uint16_t)(block.n_threads - 1 - i);
    shared_poison();
    wgmma_begin_block();
    mbarrier_begin_block();
    named_barrier_begin_block();
    banks_begin_block();
    check_begin_block();
}

static void run_block() {
    begin_block();
    Thread *first = pick();
    switch_to(&block.host, first);
    current = nullptr;
    report_fault();
    if (!block.failed && block.n_done < block.n_threads)
        report_stuck();
    if (!block.failed)
        shared_check_end();
    if (!block.failed)
        wgmma_end_block();
    if (block.failed)
        for (int i = 0; i < block.n_threads; i++)
            if (block.threads[i].fiber)
                fiber_abandon(block.threads[i].fiber);
}

static void begin_grid(const ot_emu_call *call, dim3 grid, dim3 size, size_t shared_bytes) {
    block.call = call;
    block.grid = grid;
    block.size = size;
    block.n_threads = (int)(size.x * size.y * size.z);
    block.n_warps = (block.n_threads + WARP - 1) / WARP;
    block.failed = false;
    for (int i = 0; i < block.n_threads; i++) {
        Thread *thread = &block.threads[i];
        thread->number = i;
        thread->lane = i % WARP;
        thread->warp = &block.warps[i / WARP];
        thread->index = {(unsigned)i % size.x, (unsigned)i / size.x % size.y,
                         (unsigned)i / (size.x * size.y)};
    }
    for (int i = 0; i < block.n_warps; i++) {
        block.warps[i].threads = &block.threads[i * WARP];
        block.warps[i].n_threads = block.n_threads - i * WARP < WARP ? block.n_threads - i * WARP : (int)WARP;
    }
    shared_begin(shared_bytes);
    check_begin_grid();
}

/* With a seed, blocks run in a random order: an odd stride through the next power of two, at or above their
 * number. */
static uint64_t block_at(uint64_t turn, uint64_t stride, uint64_t offset, uint64_t power) {
    return (turn * stride + offset) & (power - 1);
}

cudaError_t run_grid(const ot_emu_call *call, dim3 grid, dim3 size, size_t shared_bytes,
                     std::string *report) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    catch_faults();
    begin_grid(call, grid, size, shared_bytes);
    fiber_begin(&block.host);
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, power = 1, stride = 1, offset = 0;
    while (power < blocks)
        power *= 2;
    random_state = order_seed;
    is_random = random_state != 0;
    if (is_random) {
        order_seed++;
        stride = 2 * (uint64_t)random_below(1u << 30) + 1;
        offset = random_below(1u << 30);
    }
    for (uint64_t turn = 0; turn < power && !block.failed; turn++) {
        uint64_t i = block_at(turn, stride, offset, power);
        if (i >= blocks)
            continue;
        block.index = {(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                       (unsigned)(i / grid.x / grid.y)};
        run_block();
    }
    fiber_end(&block.host);
    release_faults();
    if (!block.failed)
        return cudaSuccess;
    *report = block.report;
    return block.error;
}

} // namespace ot_emu

using namespace ot_emu;

uint3 ot_emu_thread_index() noexcept {
    return current->index;
}

uint3 ot_emu_block_index() noexcept {
    return block.index;
}

dim3 ot_emu_block_size() noexcept {
    return block.size;
}

dim3 ot_emu_grid_size() noexcept {
    return block.grid;
}

void ot_emu_set_order(uint64_t seed) {
    order_seed = seed;
}

void *ot_emu_shared_memory() noexcept {
    return block.shared;
}

ot_emu_tally ot_emu_barrier(bool predicate, ot_emu_site site) {
    return barrier(predicate, site);
}
