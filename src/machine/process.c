#include "src/machine/process.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/text.h"

/* Writing "5" resets the peak (VmHWM). */
void ot_process_forget_peak(void) {
    malloc_trim(0);
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t written = write(fd, "5", 1);
    (void)written;
    close(fd);
}

int64_t ot_process_peak(void) {
    FILE *file = fopen("/proc/self/status", "re");
    char line[128];
    long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lld kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

/* ---- commands for a shell ---- */

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
