/* Inside the emulator: which thread touched which byte when, and what may be touched at all.
 *
 * Kernels are compiled with the compiler's ThreadSanitizer instrumentation but not linked with its runtime:
 * emu_race.cpp receives its calls, one for every load and store.
 */
#ifndef OT_EMU_CHECK_H
#define OT_EMU_CHECK_H

#include <stddef.h>
#include <string>

#include "kernels/emu/launch.h"

namespace ot_emu {

struct Thread;

enum class Access { READ, WRITE, ATOMIC };

/* ---- the course of a launch ---- */

void check_begin_grid();
void check_begin_block();
void check_next_interval(); /* a barrier of the block has been passed */

/* ---- accesses ---- */

/* Of a kernel's thread, made for it by the emulator. Does not return if it is wrong. */
void check_access(Access access, const void *at, size_t bytes, ot_emu_site site);
/* The same of a load or store of its code. */
void check_instruction(Access access, const void *at, size_t bytes, const void *pc);
void check_fence(); /* __threadfence */
/* cp.async: the destination belongs to the copy from begin to end. */
void check_copy_begin(void *to, size_t bytes, ot_emu_site site);
void check_copy_end(void *to, size_t bytes);

/* ---- words for reports ---- */

std::string describe_place(const void *address,
                           const Thread *thread); /* "byte 8 past the end of shared memory (96 bytes)" */
std::string describe_code(const void *pc);        /* "function (file:line)" */

/* ---- faults (emu_fault.cpp) ---- */

/* Between these, faults of kernel threads end their launch. Others go where they went before. */
void catch_faults();
void release_faults();
void report_fault(); /* if one of the block's threads had one */

} // namespace ot_emu

#endif
