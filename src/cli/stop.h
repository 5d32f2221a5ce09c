/* SIGINT, SIGTERM and SIGHUP, where they are not ignored already: the first asks the run to finish its step
 * and save what it has, the second ends the process at once with exit code 8; both say so. Process-wide, as
 * signals are. */
#ifndef OT_CLI_STOP_H
#define OT_CLI_STOP_H

#include <stdbool.h>

/* line: what the first one says, with its newline; static. */
void ot_stop_install(const char *line);
void ot_stop_ignore(void); /* all is done: another one changes nothing any more */
bool ot_stop_requested(void);

#endif
