/* Texts from the user: the one of -p, or each line of stdin. A line ends at \n, which is not part of it; the
 * last line may lack it. And the answer with --json: a line of stdout. */
#ifndef OT_REPORT_LINES_H
#define OT_REPORT_LINES_H

#include <stddef.h>

struct ot_json_writer;

struct ot_lines {
    char **text; /* each followed by a NUL; texts may hold NULs */
    size_t *bytes;
    size_t n, capacity;
};

enum { OT_LINES_MAX_BYTES = 1 << 28 };

/* Appends up to `most` lines; returns how many. Someone at a terminal is told once what is awaited. Errors:
 * OT_E_IO, OT_E_BUDGET (a line is too long). */
int ot_lines_read_stdin(struct ot_lines *lines, int most);
/* Errors: OT_E_BUDGET. */
int ot_lines_add(struct ot_lines *lines, const char *text, size_t bytes);
void ot_lines_clear(struct ot_lines *lines); /* frees everything; zeroed is fine */

/* Takes what was written and puts it on a line of stdout; main() asks whether stdout took it. Errors:
 * OT_E_BUDGET. */
int ot_lines_print_json(struct ot_json_writer *w);

#endif
