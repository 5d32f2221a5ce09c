/* CUDA on a CPU: kernels and the runtime API, for tests.  C and C++. */
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
