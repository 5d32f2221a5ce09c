#include "src/cli/process_command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/strings.h"

static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%";

static void append_word(struct ot_string_builder *out, const char *word) {
    if (*word && word[strspn(word, plain)] == '\0') {
        ot_string_append_text(out, word);
        return;
    }
    ot_string_append_text(out, "'");
    for (; *word; word++)
        ot_string_append_format(out, *word == '\'' ? "'\\''" : "%c", *word);
    ot_string_append_text(out, "'");
}

int ot_process_command(char **text) {
    struct ot_string_builder out = {0};
    char *word = NULL;
    size_t room = 0;
    FILE *file = fopen("/proc/self/cmdline", "re");
    *text = NULL;
    if (!file)
        return ot_fail_errno(OT_E_IO, errno, "/proc/self/cmdline: cannot be read");
    for (int n = 0; getdelim(&word, &room, '\0', file) > 0; n++) {
        if (n > 0)
            ot_string_append_text(&out, " ");
        append_word(&out, word);
    }
    fclose(file);
    free(word);
    if (out.failed || !out.text) {
        free(out.text);
        return ot_fail(OT_E_BUDGET, "no memory for the command");
    }
    *text = out.text;
    return 0;
}
