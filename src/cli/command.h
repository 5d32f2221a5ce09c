/* The commands. Each takes the options of the user, which it does not change (src/options/settings.h), and
 * returns 0 or an error. Results go to stdout; all other lines go to stderr through the log. */
#ifndef OT_CLI_COMMAND_H
#define OT_CLI_COMMAND_H

#include "src/options/options.h"

int ot_command_train(const struct ot_options *options);
int ot_command_generate(const struct ot_options *options);
int ot_command_eval(const struct ot_options *options);
int ot_command_tokenize(const struct ot_options *options);
int ot_command_probe(const struct ot_options *options);
int ot_command_plan(const struct ot_options *options);
int ot_command_bench(const struct ot_options *options);
int ot_command_verify(const struct ot_options *options);
int ot_command_export(const struct ot_options *options);
int ot_command_merge(const struct ot_options *options);
int ot_command_quantize(const struct ot_options *options);
int ot_command_comm_test(const struct ot_options *options);

#endif
