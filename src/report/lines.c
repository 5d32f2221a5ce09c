#include "src/report/lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/grow.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/text.h"

int ot_lines_add(struct ot_lines *lines, const char *text, size_t bytes) {
    size_t same = lines->capacity;
    OT_TRY(ot_grow(&lines->text, &same, lines->n + 1, sizeof *lines->text, "texts"));
    OT_TRY(ot_grow(&lines->bytes, &lines->capacity, lines->n + 1, sizeof *lines->bytes, "texts"));
    char *copy = ot_string_copy(text, bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for a text of %zu bytes", bytes);
    lines->text[lines->n] = copy;
    lines->bytes[lines->n++] = bytes;
    return 0;
}

int ot_lines_read_stdin(struct ot_lines *lines, int most) {
    char *line = NULL;
    size_t capacity = 0;
    int rc = 0, n = 0;
    if (isatty(STDIN_FILENO) && lines->n == 0)
        ot_log(OT_LOG_INFO, "enter one text on each line; Ctrl-D ends the input");
    while (n < most && rc == 0) {
        errno = 0;
        ssize_t bytes = getline(&line, &capacity, stdin);
        if (bytes < 0) {
            rc = feof(stdin) ? 0 : ot_fail_errno(OT_E_IO, errno, "stdin: cannot read");
            break;
        }
        if (bytes > OT_LINES_MAX_BYTES)
            rc = ot_fail(OT_E_BUDGET, "stdin: a line of %zd bytes is longer than %d MiB", bytes,
                         OT_LINES_MAX_BYTES >> 20);
        else
            rc = ot_lines_add(lines, line, (size_t)bytes - (line[bytes - 1] == '\n'));
        n++;
    }
    free(line);
    return rc < 0 ? rc : n;
}

void ot_lines_clear(struct ot_lines *lines) {
    for (size_t i = 0; i < lines->n; i++)
        free(lines->text[i]);
    free(lines->text);
    free(lines->bytes);
    *lines = (struct ot_lines){0};
}

int ot_lines_print_json(struct ot_json_writer *w) {
    char *text;
    OT_TRY(ot_json_writer_take(w, &text, NULL));
    puts(text);
    free(text);
    return 0;
}
