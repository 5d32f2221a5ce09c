/* The first step of a command with several ranks: which rank this process is, and the start of others. */
#ifndef OT_CLI_LAUNCH_H
#define OT_CLI_LAUNCH_H

#include "src/launch/ranks.h"
#include "src/options/options.h"

/* What the options and the environment say. Errors: OT_E_USAGE. */
int ot_launch_find(const struct ot_options *options, struct ot_launch *out);

/* Finds out which rank of the run this process is, and logs it. If it has to start ranks, starts them with
 * the words of argv and waits for them: returns 1, and the run's exit code in *exit_code. Else returns 0.
 * Call it before threads are started. Errors: OT_E_USAGE, OT_E_IO, OT_E_BUDGET. */
int ot_launch_command(const struct ot_options *options, char **argv, int *exit_code);

#endif
