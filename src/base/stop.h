/* What a person or a scheduler tells the process by signals. Process-wide, as signals are.
 *
 * SIGINT and SIGTERM, where they are not ignored already: as long as there is nothing to keep, the first
 * ends the process at once; from then on the first asks the run to finish its step and keep what it has, and
 * the second ends the process at once; that is exit code 8, and each says what it does. The same signal
 * again within 0.2 s is still the first. SIGUSR1 asks for a checkpoint. SIGHUP ends nothing: a run survives
 * the terminal that it was started from.
 *
 * The handlers only set flags. A thread says the sentences, through the log, so that a terminal or a pipe
 * that takes no output delays neither the stop nor the run. It ends the process where that is asked for.
 */
#ifndef OT_BASE_STOP_H
#define OT_BASE_STOP_H

#include <stdbool.h>

/* Nothing to keep yet. line: the error that the first signal says, with its newline; static. Errors: OT_E_IO
 * (no thread can start). */
int ot_stop_install_early(const char *line);
/* line: what the first one says, likewise. Errors: as above. */
int ot_stop_install(const char *line);
void ot_stop_ignore(void); /* all is done: another one changes nothing any more */

bool ot_stop_requested(void);
double ot_stop_seconds(void); /* since it was; 0: it was not */
/* It was some seconds, or a quarter of the grace, ago: a step that is still not over is given up. Any
 * thread. */
bool ot_stop_is_urgent(void);
void ot_stop_set_grace(double seconds); /* after the first signal, as the machine lets the process live */
/* Whether a checkpoint was asked for since the last call. */
bool ot_stop_take_save_request(void);

#endif
