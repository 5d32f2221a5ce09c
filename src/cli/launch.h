/* The first step of a command with several ranks: which rank this process is, and the start of others. */
#ifndef OT_CLI_LAUNCH_H
#define OT_CLI_LAUNCH_H

#include "src/cli/ranks.h"
#include "src/options/options.h"

/* Reads the launch from the options and the environment. Errors: OT_E_USAGE. */
int ot_launch_find(const struct ot_options *options, struct ot_launch *out);

/* Opens the world of this rank, with the secret of the environment. Errors: as ot_world_open. */
int ot_launch_world(const struct ot_options *options, const struct ot_launch *launch,
                    struct ot_world **world);
/* For a command whose words are wrong (rc: the error of ot_options_parse): tells the other ranks of the run,
 * if there are any, so that they do not wait for this one. Takes up to 10 seconds. */
void ot_launch_tell(int argc, char *const *argv, struct ot_options *options, int rc);

/* Finds out which rank of the run this process is, and logs it. If it has to start ranks, starts them with
 * the words of argv and waits for them: returns 1, and the run's exit code in *exit_code. Else returns 0.
 * Call it before threads are started. Errors: OT_E_USAGE, OT_E_IO, OT_E_BUDGET. */
int ot_launch_command(const struct ot_options *options, char **argv, int *exit_code);

#endif
