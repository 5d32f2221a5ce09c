/* Barriers in shared memory (ptx_hopper_emu.h). Their state lies beside shared memory, by address.
 *
 * A barrier carries clocks: for each warp the epoch at its latest arrival. A thread that passes a wait has
 * seen all that those warps did in earlier epochs (emu_race.cpp). */
#include <atomic>
#include <map>
#include <string.h>

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_check.h"
#include "tests/emu/emu_faults.h"
#include "tests/emu/ptx_hopper_emu.h"

namespace ot_emu {

struct MBarrier {
    unsigned count, arrived;
    uint32_t phases; /* that have ended */
    const Thread *maker;
    uint32_t interval;       /* of the init */
    uint32_t clock_interval; /* of the clocks; a __syncthreads makes older ones worthless */
    Clocks arriving, ended;  /* of the running phase; of the phases before */
    std::vector<Thread *> waiting;

    bool has_ended(uint32_t parity) const { return (phases & 1) != parity; }
};

static std::map<const uint64_t *, MBarrier> barriers;
static std::atomic<int> until_lost; /* arrivals up to the one that a test loses; 0: none */

void mbarrier_begin_block() {
    barriers.clear();
}

static MBarrier *find(const uint64_t *at, const char *what, ot_emu_site site) {
    auto found = barriers.find(at);
    if (found == barriers.end())
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "%s before the mbarrier's init, at %s", what,
                    describe_place(at, current).c_str());
    MBarrier *barrier = &found->second;
    if (barrier->interval == check_interval() && barrier->maker != current)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site,
                    "%s, but the mbarrier's init by %s has no __syncthreads after it", what,
                    name_of(barrier->maker).c_str());
    if (barrier->clock_interval != check_interval()) {
        barrier->clock_interval = check_interval();
        barrier->arriving = barrier->ended = {};
    }
    return barrier;
}

void mbarrier_report_stuck(const Thread *thread) {
    const MBarrier &barrier = barriers.at((const uint64_t *)thread->in);
    record_failure(
        cudaErrorLaunchFailure, thread, thread->site,
        "the wait for an mbarrier never ends: %u phases have ended, and %u of %u threads have arrived "
        "in the next; it waits for one of parity %u",
        barrier.phases, barrier.arrived, barrier.count, (unsigned)thread->value);
}

} // namespace ot_emu

using namespace ot_emu;

void ot_emu_mbarrier_init(uint64_t *at, unsigned count, ot_emu_site site) {
    if ((uintptr_t)at % sizeof *at != 0 || (char *)at < block.shared ||
        (char *)(at + 1) > block.shared + block.shared_bytes)
        OT_EMU_FAIL(cudaErrorIllegalAddress, site, "an mbarrier at %s, or not aligned to 8 bytes",
                    describe_place(at, current).c_str());
    if (count == 0)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "an mbarrier for 0 threads");
    check_access(Access::WRITE, at, sizeof *at, site);
    barriers[at] = {count, 0, 0, current, check_interval(), check_interval(), {}, {}, {}};
}

void ot_emu_mbarrier_arrive(uint64_t *at, ot_emu_site site) {
    MBarrier *barrier = find(at, "an arrival", site);
    Thread *self = current;
    Clocks mine = self->warp->seen;
    mine.epochs[self->warp - block.warps] = (uint16_t)self->warp->epoch;
    if (until_lost > 0 && --until_lost == 0)
        return;
    barrier->arriving.merge(mine);
    if (++barrier->arrived < barrier->count)
        return;
    barrier->arrived = 0;
    barrier->phases++;
    barrier->ended.merge(barrier->arriving);
    for (Thread *thread : barrier->waiting)
        wake(thread);
    barrier->waiting.clear();
}

void ot_emu_mbarrier_wait(uint64_t *at, uint32_t parity, ot_emu_site site) {
    MBarrier *barrier = find(at, "a wait", site);
    Thread *self = current;
    while (!barrier->has_ended(parity)) {
        self->site = site;
        self->in = at;
        self->value = parity;
        barrier->waiting.push_back(self);
        sleep_as(State::AT_MBARRIER);
    }
    self->warp->seen.merge(barrier->ended);
}

void ot_emu_lose_arrival(int nth) {
    until_lost = nth;
}
