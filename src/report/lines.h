/* Reads texts from the user: the text of -p, or each line of stdin. A line ends at \n, which is not part of
 * the text; the last line may lack it. Also writes the answer of --json as one line of stdout. */
#ifndef OT_REPORT_LINES_H
#define OT_REPORT_LINES_H

#include <stddef.h>

struct ot_json_writer;

struct ot_lines {
    char **text; /* each text ends with a NUL and may hold NULs */
    size_t *bytes;
    size_t n, capacity;
};

enum { OT_LINES_MAX_BYTES = 1 << 28 };

/* Appends up to `most` lines and returns their number. At a terminal, says once which input is expected.
 * Errors: OT_E_IO, OT_E_BUDGET (a line is too long). */
int ot_lines_read_stdin(struct ot_lines *lines, int most);
/* Errors: OT_E_BUDGET. */
int ot_lines_add(struct ot_lines *lines, const char *text, size_t bytes);
void ot_lines_clear(struct ot_lines *lines); /* frees everything; a zeroed struct is fine */

/* Takes the writer's text and prints it as a line of stdout. main() checks later that stdout accepted it.
 * Errors: OT_E_BUDGET. */
int ot_lines_print_json(struct ot_json_writer *w);

#endif
