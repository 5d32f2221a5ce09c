/* Command lines for tests of options. Each line is one string. */
#ifndef OT_TESTS_OPTION_LINES_H
#define OT_TESTS_OPTION_LINES_H

#include <stdio.h>
#include <string.h>

#include "src/options/options.h"
#include "tests/support/check.h"

/* Splits the line at spaces; '_' stands for a space inside a word. The texts are valid until the next
 * call. */
static inline int parse(struct ot_options *options, const char *line) {
    static char text[4096];
    char *argv[128], *rest = text, *word;
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    while ((word = strsep(&rest, " ")))
        if (*word) {
            for (char *c = word; *c; c++)
                *c = *c == '_' ? ' ' : *c;
            argv[argc++] = word;
        }
    return ot_options_parse(argc, argv, options);
}

/* Fails the test if the line is refused. */
static inline void accept(struct ot_options *options, const char *line) {
    int rc = parse(options, line);
    if (rc < 0)
        fail_msg("%s: %s", line, ot_error_text());
}

/* The line must be refused as wrong use, with a one-line error that contains `words`. */
static inline void refuse(const char *line, const char *words) {
    struct ot_options options;
    int rc = parse(&options, line);
    if (rc != -OT_E_USAGE || !strstr(ot_error_text(), words))
        fail_msg("%s: returned %d \"%s\", which does not contain \"%s\"", line, rc, ot_error_text(), words);
    assert_null(strchr(ot_error_text(), '\n'));
    ot_options_free(&options);
}

#endif
