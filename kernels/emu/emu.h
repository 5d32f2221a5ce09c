/* CUDA on a CPU, for tests: the kernels of kernels/cuda as host C++, and a runtime for the host code that
 * launches them. C and C++.
 *
 * THE KERNELS are compiled unchanged, with kernels/emu/include first in the include path: the headers there
 * give __global__, threadIdx, __shfl_sync and the rest (emu_thread.h, cuda_runtime.h), and ptx_emu.h
 * stands for the PTX. A launch runs block after block; the threads of a block are fibers (emu_fiber.h), and a
 * thread runs until it waits at a barrier or for its warp. The last lane that comes to a warp operation does
 * it for all 32 (emu_warp.cpp). So a run is deterministic; ot_emu_set_order() makes it another, equally valid
 * one.
 *
 * THE RUNTIME (emu_runtime.cpp, emu_memory.cpp, emu_stream.cpp) has the C interface of libcudart as far as
 * kernels/cuda uses it. Streams are threads with queues, ordered by events alone, so that a dependency that
 * the caller forgot is a data race; ot_emu_set_delays() makes it happen. emu_faults.h describes the card
 * and breaks it.
 *
 * WHAT IS CHECKED. Each of these ends the launch with an error that stays, as on a GPU, and with a report
 * that names kernel, block, thread, place and what was done:
 *
 *   - a __syncthreads or warp operation that some threads of the block or warp do not reach, or reach at
 *     another line of the source; masks that are not full;
 *   - every access, where the build instruments kernels (emu_instrument.cpp, emu_race.cpp): outside of the
 *     live allocations, of the launch's shared memory and of the thread's own variables; two threads at one
 *     byte, one of them writing, with no barrier that orders them, within a block and between blocks; bytes
 *     of a cp.async that was not waited for; pointers that are not aligned to their type;
 *   - in other builds, such as AddressSanitizer's: what reaches a page behind shared memory, an allocation or
 *     a stack, and what is written to the few bytes between the end of shared memory and that page;
 *   - launches that no GPU takes. Shared memory begins each block as NaNs, device memory its life.
 *
 * The instrumentation is the compiler's for ThreadSanitizer without its runtime, so a build with -Db_sanitize
 * goes without. It costs 2 to 5 times the run; OT_EMU_CHECKS=0 in the environment turns it off.
 *
 * WHAT IT CANNOT SEE. Races of a path that this input did not take. Order that a GPU lacks and this run has:
 * blocks do not overlap, so a kernel that waits in a loop for another block hangs or passes by luck.
 * Bank conflicts, coalescing, registers, speed. The rounding of tensor cores' sums and of the special
 * functions: ptx_emu.h and cuda_runtime.h say what stands for them. Host code that touches device memory.
 * Of single bytes that share an even address with another, a race may be missed (emu_race.cpp).
 */
#ifndef OT_EMU_H
#define OT_EMU_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The sentence of the first thing that went wrong since ot_emu_reset(), "" if nothing did. Valid until this
 * thread's next call of it. cudaGetErrorString of the error contains it too. */
const char *ot_emu_report(void);

/* 0: threads and blocks run in order, the default. Otherwise every launch takes an order of its own from the
 * seed. OT_EMU_SEED in the environment sets it for a whole run. */
void ot_emu_set_order(uint64_t seed);

/* 0: streams run commands at once, the default. Otherwise each waits up to 200 us before some of them.
 * OT_EMU_DELAY_SEED in the environment sets it for a whole run. */
void ot_emu_set_delays(uint64_t seed);

/* Whether this build checks every access of the kernels (races, bounds). */
bool ot_emu_checks_accesses(void);

#ifdef __cplusplus
}
#endif

#endif
