#include "src/train/process_command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/text.h"

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

/* The number of words that the option takes at this word: 1 for "--name=value", 2 if its value is the next
 * word, 0 if this is another word. */
static int count_words(const char *word, const char *option) {
    size_t length = option ? strlen(option) : 0;
    if (!option || strncmp(word, option, length) != 0 || (word[length] && word[length] != '='))
        return 0;
    return word[length] ? 1 : 2;
}

static int take_text(struct ot_string_builder *out, char **text) {
    if (out->failed || !out->text) {
        free(out->text);
        return ot_fail(OT_E_BUDGET, "no memory for the command");
    }
    *text = out->text;
    return 0;
}

int ot_process_quote(const char *word, char **text) {
    struct ot_string_builder out = {0};
    *text = NULL;
    append_word(&out, word);
    return take_text(&out, text);
}

int ot_process_command(const char *without, char **text) {
    struct ot_string_builder out = {0};
    char *word = NULL;
    size_t room = 0;
    FILE *file = fopen("/proc/self/cmdline", "re");
    *text = NULL;
    if (!file)
        return ot_fail_errno(OT_E_IO, errno, "/proc/self/cmdline: cannot be read");
    for (int skip = 0; getdelim(&word, &room, '\0', file) > 0; skip -= skip > 0) {
        if (skip == 0)
            skip = count_words(word, without);
        if (skip > 0)
            continue;
        ot_string_append_text(&out, out.bytes ? " " : "");
        append_word(&out, word);
    }
    fclose(file);
    free(word);
    return take_text(&out, text);
}
