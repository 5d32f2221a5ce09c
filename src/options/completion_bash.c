#include <string.h>

#include "src/options/help.h"
#include "src/options/manual.h"

static const char head[] =
    "# Completion of offload-train for bash. Made at build time from the option table.\n"
    "_offload_train() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "    local command=train options='' words='' kind='' dir=''\n"
    "    COMPREPLY=()\n"
    "    # --option=value comes as three words\n"
    "    if [ \"$cur\" = = ]; then cur=''; elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; "
    "fi\n"
    "    if [ \"$COMP_CWORD\" = 1 ] && [[ $cur != -* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$commands help\" -- \"$cur\")\n"
    "        return\n"
    "    fi\n"
    "    if [ \"${COMP_WORDS[1]}\" = help ]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$topics $commands\" -- \"$cur\")\n"
    "        return\n"
    "    fi\n"
    "    [[ \" $commands \" != *\" ${COMP_WORDS[1]} \"* ]] || command=${COMP_WORDS[1]}\n"
    "    case $command in\n";

static const char tail[] =
    "    esac\n"
    "    [ \"$words$kind\" ] || [[ $cur == -* ]] || kind=$dir\n"
    "    [ \"$words$kind\" ] || words=$options\n"
    "    mapfile -t COMPREPLY < <(\n"
    "        compgen -W \"$words\" -- \"$cur\"\n"
    "        case $kind in file) compgen -f -- \"$cur\" ;; dir) compgen -d -- \"$cur\" ;; esac\n"
    "    )\n"
    "    case $kind in file | dir) compopt -o filenames 2>/dev/null || true ;; esac\n"
    "}\n"
    "complete -F _offload_train offload-train\n";

static void put_names(FILE *out, enum ot_command command) {
    const struct ot_option *option;
    fputs("        options='", out);
    for (int i = 0, n = 0; (option = ot_option_at(i)); i++)
        if (option->commands & (1u << command))
            fprintf(out, "%s--%s", n++ ? " " : "", option->name);
    fputs("'\n", out);
}

/* Writes one case for the option before the word to complete. "other": the possible values are not known. */
static void put_value(FILE *out, const struct ot_option *option) {
    static const char *const kinds[] = {[OT_MANUAL_FILE] = "file", [OT_MANUAL_DIR] = "dir"};
    char words[OT_MANUAL_WORDS_BYTES];
    enum ot_manual_path path = ot_manual_path(option);
    if (option->type == OT_OPTION_FLAG)
        return;
    fputs("        ", out);
    if (option->letter)
        fprintf(out, "-%c | ", option->letter);
    fprintf(out, "--%s)", option->name);
    if (*ot_manual_words(option, words))
        fprintf(out, " words='%s'", words);
    if (path != OT_MANUAL_NO_PATH)
        fprintf(out, " kind=%s", kinds[path]);
    else if (!*words)
        fputs(" kind=other", out);
    fputs(" ;;\n", out);
}

static void put_command(FILE *out, enum ot_command command) {
    const struct ot_option *option;
    fprintf(out, "    %s)\n", ot_command_name(command));
    put_names(out, command);
    if (ot_manual_takes_dir(command))
        fputs("        dir=dir\n", out);
    fputs("        case $prev in\n", out);
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (option->commands & (1u << command))
            put_value(out, option);
    fputs("        esac\n        ;;\n", out);
}

void ot_manual_write_bash(FILE *out) {
    const char *rest = strchr(head, '{') + 2;
    fwrite(head, 1, (size_t)(rest - head), out);
    fputs("    local commands='", out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        fprintf(out, "%s%s", c ? " " : "", ot_command_name((enum ot_command)c));
    fputs("' topics='", out);
    for (int i = 0; i < ot_topic_count; i++)
        fprintf(out, "%s%s", i ? " " : "", ot_topics[i].name);
    fputs("'\n", out);
    fputs(rest, out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        put_command(out, (enum ot_command)c);
    fputs(tail, out);
}
