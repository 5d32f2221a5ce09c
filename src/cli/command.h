/* The commands. Each takes the parsed options (and completes them with what it chooses) and returns 0 or an
 * error; results go to stdout, all else to stderr through the log. */
#ifndef OT_CLI_COMMAND_H
#define OT_CLI_COMMAND_H

#include "src/options/options.h"

int ot_command_train(struct ot_options *options);
int ot_command_generate(struct ot_options *options);
int ot_command_eval(struct ot_options *options);
int ot_command_tokenize(struct ot_options *options);
int ot_command_probe(struct ot_options *options);
int ot_command_plan(struct ot_options *options);
int ot_command_bench(struct ot_options *options);
int ot_command_verify(struct ot_options *options);
int ot_command_export(struct ot_options *options);

#endif
