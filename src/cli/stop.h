/* SIGINT, SIGTERM and SIGHUP, where they are not ignored already: the first asks the run to finish its step
 * and save, the second ends the process at once with exit code 8; both say so. Process-wide, as signals
 * are. */
#ifndef OT_CLI_STOP_H
#define OT_CLI_STOP_H

#include <stdbool.h>

void ot_stop_install(void);
void ot_stop_ignore(void); /* all is done: another one changes nothing any more */
bool ot_stop_requested(void);

#endif
