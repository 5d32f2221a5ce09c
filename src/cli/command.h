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
int ot_command_download(const struct ot_options *options);
int ot_command_migrate(const struct ot_options *options);
int ot_command_watch(const struct ot_options *options);
int ot_command_report(const struct ot_options *options);

/* ---- texts of the user ---- */

/* Reads texts from the user: the text of -p, or each line of stdin. A line ends at \n, which is not part of
 * the text; the last line may lack it. */

struct ot_lines {
    char **text; /* each text ends with a NUL and may hold NULs */
    size_t *bytes;
    size_t n, capacity;
};

void ot_lines_invite(void); /* at a terminal, says which input is expected */
/* Appends up to `most` lines and returns their number. Errors: OT_E_IO, OT_E_BUDGET (a line is too long). */
int ot_lines_read_stdin(struct ot_lines *lines, int most);
/* Errors: OT_E_BUDGET. */
int ot_lines_add(struct ot_lines *lines, const char *text, size_t bytes);
void ot_lines_clear(struct ot_lines *lines); /* frees everything; a zeroed struct is fine */

#endif
