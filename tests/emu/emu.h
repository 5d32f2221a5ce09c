/* An emulation of CUDA on the CPU, for tests: the kernels of kernels/cuda as host C++, and a runtime for the
 * host code that launches them. C and C++ code may include this header.
 *
 * THE KERNELS are compiled unchanged, with tests/emu/include first in the include path. The headers there
 * provide __global__, threadIdx, __shfl_sync and the rest (emu_thread.h, cuda_runtime.h); ptx_emu.h and
 * ptx_hopper_emu.h replace the PTX. A launch runs block after block. The threads of a block are fibers
 * (emu_fiber.h). A thread runs until it waits at a barrier or for its warp. The last lane that reaches a
 * warp operation executes it for all 32 (emu_warp.cpp). So a run is deterministic. ot_emu_set_order()
 * selects another, equally valid order.
 *
 * THE RUNTIME (emu_runtime.cpp, emu_memory.cpp, emu_stream.cpp) has the C interface of libcudart, as far as
 * kernels/cuda uses it. Streams are threads with queues, ordered by events only. So a dependency that the
 * caller forgot is a data race; ot_emu_set_delays() makes it happen. emu_faults.h describes the emulated card
 * and injects faults.
 *
 * CHECKS. Each of these errors ends the launch, sticks to the device as on a GPU, and writes a report that
 * names kernel, block, thread, source line and operation:
 *
 * - a __syncthreads or warp operation that some threads of the block or warp do not reach, or reach at
 *   another line of the source; masks that are not full;
 * - wrong uses of wgmma and mbarrier, which ptx_hopper_emu.h lists;
 * - in builds that instrument kernels (emu_instrument.cpp, emu_race.cpp), every access: outside of live
 *   allocations, of the launch's shared memory and of the thread's own variables; two threads at the same
 *   byte, one of them writing, with no barrier between them, within a block and between blocks; bytes of a
 *   cp.async before the wait for it; pointers that are not aligned to their type;
 * - in other builds, such as AddressSanitizer's: accesses to the page behind shared memory, an allocation or
 *   a stack, and writes to the few bytes between the end of shared memory and that page;
 * - launches that no GPU accepts. Shared memory is filled with NaNs at the start of each block, device memory
 *   when it is allocated.
 *
 * The instrumentation is the compiler's for ThreadSanitizer, without its runtime. So a build with
 * -Db_sanitize has none. It makes a run 2 to 5 times longer; OT_EMU_CHECKS=0 in the environment turns it off,
 * OT_EMU_CHECKS=slow also, unless OT_TEST_SLOW is set.
 *
 * LIMITS. The emulation does not see races on a path that this input did not take. It has an order that a GPU
 * lacks: blocks do not overlap, so a kernel that waits in a loop for another block hangs or passes by luck.
 * It sees bank conflicts in ldmatrix and cp.async alone (emu_banks.cpp), and no coalescing, registers or
 * speed. It does not reproduce the rounding of tensor cores' sums and of the special functions; ptx_emu.h and
 * cuda_runtime.h describe the replacements. It does not see host code that touches device memory. It may miss
 * a race on a single byte whose neighbour at the same even address belongs to another thread (emu_race.cpp).
 */
#ifndef OT_EMU_H
#define OT_EMU_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The report of the first error since ot_emu_reset(), or "". Valid until this thread's next call of this
 * function. cudaGetErrorString of the error contains the report too. */
const char *ot_emu_report(void);

/* 0 (the default): threads and blocks run in order. Otherwise each launch derives its own order from the
 * seed. OT_EMU_SEED in the environment sets the seed for a whole run. */
void ot_emu_set_order(uint64_t seed);

/* 0 (the default): streams run commands at once. Otherwise each stream waits up to 200 us before some of its
 * commands. OT_EMU_DELAY_SEED in the environment sets the seed for a whole run. */
void ot_emu_set_delays(uint64_t seed);

/* True if this build checks every access of the kernels (races, bounds). */
bool ot_emu_checks_accesses(void);

#ifdef __cplusplus
}
#endif

#endif
