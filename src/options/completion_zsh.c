#include <string.h>

#include "src/options/help.h"
#include "src/options/manual.h"

static const char head[] =
    "#compdef offload-train\n"
    "# Completion of offload-train for zsh. Made at build time from the option table.\n"
    "_offload_train_words_or_dirs() {\n"
    "    compadd -- \"$@\"\n"
    "    _directories\n"
    "}\n"
    "_offload_train() {\n"
    "    local command=train\n";

/* Escapes the text for use in single quotes, inside a specification of _arguments or _describe. The text ends
 * before `end`. */
static void put_quoted(FILE *out, const char *text, const char *end) {
    for (; text < end; text++) {
        if (*text == '\'')
            fputs("'\\'", out);
        else if (strchr("[]:\\", *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

/* Writes the first sentence, without its period. */
static void put_first_sentence(FILE *out, const char *text) {
    const char *end = strstr(text, ". ");
    size_t bytes = strlen(text);
    put_quoted(out, text, end ? end : text + bytes - (text[bytes - 1] == '.'));
}

static void put_value(FILE *out, const struct ot_option *option) {
    char words[OT_MANUAL_WORDS_BYTES];
    const char *value = ot_help_value(option);
    enum ot_manual_path path = ot_manual_path(option);
    fputs(option->bare ? "::" : ":", out);
    put_quoted(out, value, value + strlen(value));
    fputc(':', out);
    ot_manual_words(option, words);
    if (*words && path != OT_MANUAL_NO_PATH)
        /* the leading space makes zsh call the function without extra arguments */
        fprintf(out, " _offload_train_words_or_dirs %s", words);
    else if (*words)
        fprintf(out, "(%s)", words);
    else if (path != OT_MANUAL_NO_PATH)
        fputs(path == OT_MANUAL_DIR ? "_directories" : "_files", out);
}

static void put_option(FILE *out, const struct ot_option *option) {
    bool has_value = option->type != OT_OPTION_FLAG;
    const char *repeated = option->type == OT_OPTION_NVME ? "*" : "";
    if (option->letter)
        fprintf(out, " \\\n            '(--%s)-%c%s[", option->name, option->letter, has_value ? "+" : "");
    for (int spelled = option->letter ? 0 : 1; spelled < 2; spelled++) {
        if (spelled)
            fprintf(out, " \\\n            '%s--%s%s[", repeated, option->name, has_value ? "=" : "");
        put_first_sentence(out, option->help);
        fputc(']', out);
        if (has_value)
            put_value(out, option);
        fputc('\'', out);
    }
}

static void put_command(FILE *out, enum ot_command command) {
    const struct ot_option *option;
    fprintf(out, "        %s) _arguments", ot_command_name(command));
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (option->commands & (1u << command))
            put_option(out, option);
    if (ot_manual_takes_dir(command))
        fputs(" \\\n            ':DIR:_directories'", out);
    fputs(" ;;\n", out);
}

static void put_commands(FILE *out) {
    fputs("    local -a commands=(\n", out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++) {
        fprintf(out, "        '%s:", ot_command_name((enum ot_command)c));
        put_first_sentence(out, ot_help_of_command((enum ot_command)c)->what);
        fputs("'\n", out);
    }
    fputs("    )\n    local -a topics=(\n", out);
    for (int i = 0; i < ot_topic_count; i++) {
        const char *title = ot_topics[i].title;
        fprintf(out, "        '%s:", ot_topics[i].name);
        put_quoted(out, title, title + strlen(title));
        fputs("'\n", out);
    }
    fputs("    )\n", out);
}

void ot_manual_write_zsh(FILE *out) {
    fputs(head, out);
    put_commands(out);
    fputs("    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
          "        commands+=('help:Prints a topic, or the help of a command')\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    if [[ $words[2] == help ]]; then\n"
          "        _describe topic topics -- commands\n"
          "        return\n"
          "    fi\n"
          "    if (( ${commands[(I)$words[2]:*]} )); then\n"
          "        command=$words[2]\n"
          "        shift words\n"
          "        (( CURRENT-- ))\n"
          "    fi\n"
          "    case $command in\n",
          out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        put_command(out, (enum ot_command)c);
    fputs("    esac\n}\n_offload_train \"$@\"\n", out);
}
