/* Options of other programs (transformers' Trainer, axolotl, torchtune, DeepSpeed, llama.cpp) that a user may
 * type here: elsewhere/options.txt has the answers. If only the name differs, the name is in the
 * `elsewhere` field of our option. */
#include <string.h>
#include <strings.h>

#include "src/options/help.h"

/* True if `word` is one of `names`. Ignores case and reads '_' as '-'. */
static bool has_name(const char *names, const char *word) {
    for (size_t length; *names; names += length + (names[length] == ' ')) {
        length = strcspn(names, " ");
        size_t same = 0;
        while (same < length &&
               (strncasecmp(names + same, word + same, 1) == 0 || (names[same] == '-' && word[same] == '_')))
            same++;
        if (same == length && !word[length])
            return true;
    }
    return false;
}

const char *ot_option_foreign(const char *word) {
    for (int i = 0; i < ot_elsewhere->n_blocks; i++)
        if (has_name(ot_elsewhere->blocks[i].term, word))
            return ot_elsewhere->blocks[i].text;
    return NULL;
}

const struct ot_option *ot_option_called(const char *word, enum ot_command command) {
    const struct ot_option *option, *found = NULL;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (option->elsewhere && has_name(option->elsewhere, word) &&
            (!found || (!(found->commands & (1u << command)) && (option->commands & (1u << command)))))
            found = option;
    return found;
}
