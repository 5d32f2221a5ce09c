/* Checks of memory accesses: which thread touched which byte when, and which memory a thread may touch. Only
 * the emulator's files include this header.
 *
 * Kernels are compiled with the compiler's ThreadSanitizer instrumentation but not linked with its runtime.
 * emu_race.cpp receives the calls of the instrumentation, one for every load and store.
 */
#ifndef OT_EMU_CHECK_H
#define OT_EMU_CHECK_H

#include <stddef.h>
#include <string>

#include "tests/emu/launch.h"

namespace ot_emu {

struct Thread;

enum class Access { READ, WRITE, ATOMIC };

/* ---- calls during a launch ---- */

void check_begin_grid();
void check_begin_block();
void check_next_interval(); /* all threads of the block have passed a barrier */

/* ---- accesses ---- */

/* False if OT_EMU_CHECKS turns the checks off (emu.h). */
extern const bool checks_are_on;

/* Checks an access that the emulator makes for a kernel's thread. Does not return if the access is wrong. */
void check_access(Access access, const void *at, size_t bytes, ot_emu_site site);
/* Checks a load or store of the kernel's code. Does not return if the access is wrong. */
void check_instruction(Access access, const void *at, size_t bytes, const void *pc);
void check_fence();        /* __threadfence */
uint32_t check_interval(); /* number of the interval between two barriers */
/* Checks a read of shared memory by wgmma, in the name of a thread. */
void check_async_read(Thread *thread, const void *at, size_t bytes, ot_emu_site site);
/* emu_wgmma.cpp: a thread that has executed wgmma.fence accesses variables of its own. Names the variables
 * if a wgmma in flight uses them; otherwise NULL. */
const char *wgmma_touch(Thread *thread, Access access, const void *at, size_t bytes);
/* cp.async: the destination belongs to the copy from begin to end. */
void check_copy_begin(void *to, size_t bytes, ot_emu_site site);
void check_copy_end(void *to, size_t bytes);

/* ---- texts for reports ---- */

std::string describe_place(const void *address,
                           const Thread *thread); /* "byte 8 past the end of shared memory (96 bytes)" */
std::string describe_code(const void *pc);        /* "function (file:line)" */

/* ---- faults (emu_fault.cpp) ---- */

/* Between these calls, a fault of a kernel thread ends its launch. Other faults go to the handlers that were
 * there before. */
void catch_faults();
void release_faults();
void report_fault(); /* if a thread of the block faulted */

} // namespace ot_emu

#endif
