/* --help and --version, generated from the option table. */
#ifndef OT_OPTIONS_HELP_H
#define OT_OPTIONS_HELP_H

#include <stdio.h>

#include "src/options/options.h"

/* The command's usage, its options by section, examples and the exit codes; at most 96 columns. The overview
 * (train without its name) also lists the commands. */
void ot_help_print(FILE *out, enum ot_command command);
void ot_help_print_version(FILE *out);

#endif
