/* Bank conflicts in ldmatrix and cp.async, whose lanes access 16 bytes each. Shared memory has 32 banks of
 * four bytes. It serves eight such accesses at a time, those of eight lanes in succession, unless two of them
 * want different places in the same four banks. Ordinary loads and stores are not counted: the emulator does
 * not know which of them are one instruction of a warp. */
#include <atomic>

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_runtime.h"

namespace ot_emu {

enum { TOGETHER = 8 };

static std::atomic<int64_t> n_accesses, n_conflicts;

/* A bit for the four banks at an address. */
static uint32_t banks_of(const void *at) {
    return 1u << (uintptr_t)at / 16 % TOGETHER;
}

void banks_begin_block() {
    for (int i = 0; i < block.n_threads; i++)
        block.threads[i].n_copies = 0;
    for (int i = 0; i < block.n_warps; i++)
        block.warps[i].copied.clear();
}

void banks_load(const Thread *lanes) {
    uint32_t used = 0;
    for (int i = 0; i < TOGETHER; i++) {
        bool known = false; /* a row that several lanes ask for is read once */
        for (int j = 0; j < i; j++)
            known = known || lanes[j].in == lanes[i].in;
        if (!known && used & banks_of(lanes[i].in))
            n_conflicts++;
        used |= banks_of(lanes[i].in);
    }
    n_accesses++;
}

/* The lanes run one after another. The nth copies of all lanes of a warp are one instruction. */
void banks_copy(Thread *thread, const void *to) {
    std::vector<uint32_t> &copied = thread->warp->copied;
    const size_t copy = thread->n_copies++;
    if (copy == copied.size())
        copied.push_back(0);
    const int first = thread->lane / TOGETHER * TOGETHER;
    if ((copied[copy] >> first & 0xff) == 0)
        n_accesses++;
    if (copied[copy] >> first & banks_of(to))
        n_conflicts++;
    copied[copy] |= banks_of(to) << first;
}

void banks_usage(struct ot_emu_usage *usage) {
    usage->shared_accesses = n_accesses;
    usage->bank_conflicts = n_conflicts;
}

void banks_reset() {
    n_accesses = n_conflicts = 0;
}

} // namespace ot_emu
