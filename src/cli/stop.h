/* SIGINT and SIGTERM: the first asks the run to finish its step and save, the second ends the process at once
 * with exit code 8. Process-wide, as signals are. */
#ifndef OT_CLI_STOP_H
#define OT_CLI_STOP_H

#include <stdbool.h>

void ot_stop_install(void);
void ot_stop_restore(void); /* the signals end the process again, as they do by default */
bool ot_stop_requested(void);

#endif
