#include "src/options/manual.h"

#include <string.h>

#include "src/options/help.h"

/* Parts of "auto|cpu|cuda[:N]": lower-case words are fixed words; all others are names of values. */
const char *ot_manual_words(const struct ot_option *option, char words[OT_MANUAL_WORDS_BYTES]) {
    const char *at = ot_help_value(option);
    int used = 0;
    words[0] = '\0';
    while (*at) {
        size_t part = strcspn(at, "|"), bytes = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789-");
        bool is_word = bytes > 0 && (bytes == part || at[bytes] == '[');
        if (is_word)
            used += snprintf(words + used, (size_t)(OT_MANUAL_WORDS_BYTES - used), "%s%.*s", used ? " " : "",
                             (int)bytes, at);
        at += part + (at[part] == '|');
    }
    return words;
}

enum ot_manual_path ot_manual_path(const struct ot_option *option) {
    const char *value = ot_help_value(option);
    if (strcmp(value, "FILE") == 0)
        return OT_MANUAL_FILE;
    return strstr(value, "DIR") || strcmp(value, "MODEL") == 0 ? OT_MANUAL_DIR : OT_MANUAL_NO_PATH;
}

bool ot_manual_takes_dir(enum ot_command command) {
    return strstr(ot_help_of_command(command)->usage, " DIR") && command != OT_COMMAND_TRAIN &&
           command != OT_COMMAND_PLAN;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*write)(FILE *out);
    } kinds[] = {{"man", ot_manual_write_man}, {"bash", ot_manual_write_bash}, {"zsh", ot_manual_write_zsh}};
    for (size_t i = 0; argc == 3 && i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(argv[1], kinds[i].name) != 0)
            continue;
        FILE *out = fopen(argv[2], "w");
        if (out)
            kinds[i].write(out);
        bool failed = !out || ferror(out);
        if ((out && fclose(out) != 0) || failed) {
            perror(argv[2]);
            return 1;
        }
        return 0;
    }
    fputs("usage: manual man|bash|zsh FILE\n", stderr);
    return 2;
}
