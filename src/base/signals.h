/* Signals that stop a run or ask for a checkpoint, and crashes of libraries. The state is process-wide.
 *
 * SIGINT and SIGTERM, unless they were ignored when the program started: While there is nothing to save
 * (ot_stop_install_early), the first signal ends the process at once. Later (ot_stop_install), the first
 * signal asks the run to finish its step and save, and the second ends the process at once. Ending at once
 * has exit code 8. Each signal prints a line. The same signal again within 0.2 s counts as the first. SIGUSR1
 * asks for a checkpoint. SIGHUP is ignored: a run continues after its terminal is closed.
 *
 * The handlers only set flags. A thread of its own logs the lines and ends the process, so a terminal or a
 * pipe that takes no output delays neither the stop nor the run.
 */
#ifndef OT_BASE_SIGNALS_H
#define OT_BASE_SIGNALS_H

#include <stdbool.h>

/* Call it while there is nothing to save. line: the error that the first signal prints, with its newline;
 * static. Errors: OT_E_IO (no thread can start). */
int ot_stop_install_early(const char *line);
/* Call it when there is something to save. line: the text that the first signal prints, with its newline;
 * static. Errors: OT_E_IO (no thread can start). */
int ot_stop_install(const char *line);
/* For a part of the work during which the first signal ends the process with a line of its own, such as a
 * download. ot_stop_end_part restores what was before. The parts do not nest. Errors: as above. */
int ot_stop_begin_part(const char *line);
void ot_stop_end_part(void);
void ot_stop_ignore(void); /* the run is done: later signals have no effect */

bool ot_stop_requested(void);
double ot_stop_seconds(void); /* seconds since the stop request; 0: none */
/* True once the stop request is older than 2 seconds, or than a quarter of the grace if that is less. A step
 * that still runs is then abandoned. Any thread. */
bool ot_stop_is_urgent(void);
void ot_stop_set_grace(double seconds); /* time that the process may run after the first signal */
/* True if a checkpoint was requested since the last call. */
bool ot_stop_take_save_request(void);

/* ---- crashes of libraries ---- */

/* Turns a crash inside a library into an error. hwloc, and oneDNN while it is set up, crash or abort when
 * memory runs out.
 *
 * After a crash, everything that the call held stays held: memory, locks, half-made objects. The caller must
 * not call into the library again. Only for set-up, with one such call at a time: the call replaces the
 * handlers of SIGSEGV, SIGBUS and SIGABRT while it runs. A crash in another thread ends the process as
 * always.
 */

/* Calls fn and returns its result. Errors: OT_E_BUDGET: fn crashed; the sentence names the library. */
int ot_crash_contain(const char *library, int (*fn)(void *context), void *context);

#endif
