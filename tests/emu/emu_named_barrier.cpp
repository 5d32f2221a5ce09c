/* Barriers of some of a block's warps (ot_barrier_sync in ptx_emu.h). A warp arrives as a whole. Warps that
 * have met come after all that each of them did before (emu_race.cpp). */
#include "tests/emu/emu_block.h"
#include "tests/emu/ptx_emu.h"

namespace ot_emu {

struct NamedBarrier {
    int threads, arrived; /* of the running phase: the number of threads that meet, and those that are here */
    uint64_t phases;      /* that have ended */
    Clocks clocks;
    std::vector<Warp *> warps;
    std::vector<Thread *> waiting;
};

static NamedBarrier named_barriers[16]; /* the first is that of __syncthreads, and not used */

void named_barrier_begin_block() {
    for (NamedBarrier &barrier : named_barriers) {
        barrier.arrived = 0;
        barrier.clocks = {};
        barrier.warps.clear();
        barrier.waiting.clear();
    }
}

/* Each lane's `value` becomes the number of the phase in which its warp arrived. */
static void combine_barrier(Warp *warp) {
    NamedBarrier *barrier = &named_barriers[warp->threads[0].kind];
    for (int lane = 0; lane < WARP; lane++)
        warp->threads[lane].value = barrier->phases;
    warp->epoch++;
    barrier->clocks.merge(warp->seen);
    barrier->clocks.epochs[warp - block.warps] = (uint16_t)warp->epoch;
    barrier->warps.push_back(warp);
    barrier->arrived += WARP;
    if (barrier->arrived < barrier->threads)
        return;
    for (Warp *arrived : barrier->warps)
        arrived->seen.merge(barrier->clocks);
    for (Thread *thread : barrier->waiting)
        wake(thread);
    barrier->phases++;
    barrier->arrived = 0;
    barrier->clocks = {};
    barrier->warps.clear();
    barrier->waiting.clear();
}

void named_barrier_report_stuck(const Thread *thread) {
    const NamedBarrier &barrier = named_barriers[thread->kind];
    record_failure(cudaErrorLaunchFailure, thread, thread->site,
                   "divergent barrier: %d of %d threads wait in barrier.sync %d, and no other comes",
                   barrier.arrived, barrier.threads, thread->kind);
}

} // namespace ot_emu

using namespace ot_emu;

void ot_emu_barrier_sync(int id, int threads, ot_emu_site site) {
    Thread *self = current;
    if (id < 1 || id > 15 || threads < WARP || threads % WARP != 0 || threads > block.n_threads)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "barrier.sync %d for %d of the block's %d threads", id,
                    threads, block.n_threads);
    NamedBarrier *barrier = &named_barriers[id];
    if (barrier->arrived > 0 && threads != barrier->threads)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site,
                    "barrier.sync %d for %d threads, but %s waits there for %d threads", id, threads,
                    name_of(barrier->warps[0]->threads).c_str(), barrier->threads);
    barrier->threads = threads;
    self->kind = id;
    meet(WarpOp::BARRIER, 0xffffffffu, site, combine_barrier);
    while (barrier->phases == self->value) {
        barrier->waiting.push_back(self);
        sleep_as(State::AT_NAMED_BARRIER);
    }
}
