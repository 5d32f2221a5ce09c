#include "src/options/manual.h"

#include <ctype.h>
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

/* ---- man page ---- */

/* Writes the man page with man macros that both groff and mandoc understand. */

/* Writes plain text: escapes requests, backslashes and hyphens, so that a reader can copy the hyphens. */
static void put(FILE *out, const char *text) {
    bool begins = true; /* at the start of a line '.' and '\'' begin a request */
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        begins = *text == '\n';
        switch (*text) {
        case '\\':
            fputs("\\e", out);
            break;
        case '-':
            fputs("\\-", out);
            break;
        case '\'':
            fputs("\\(aq", out);
            break;
        case '`':
            fputs("\\(ga", out);
            break;
        case '^':
            fputs("\\(ha", out);
            break;
        case '~':
            fputs("\\(ti", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

/* Writes a paragraph in short lines, as is usual for man pages. */
static void put_prose(FILE *out, const char *text) {
    enum { COLUMNS = 72 };
    for (size_t n, column = 0; *text; text += n + (text[n] == ' ')) {
        char word[256];
        n = strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, text);
        if (column > 0 && column + 1 + n > COLUMNS)
            column = 0, fputc('\n', out);
        else if (column > 0)
            fputc(' ', out);
        put(out, word);
        column += 1 + n;
    }
    fputc('\n', out);
}

/* Writes lines unchanged. */
static void put_literal(FILE *out, const char *text) {
    fputs(".PP\n.RS 4\n.nf\n", out);
    put(out, text);
    fputs("\n.fi\n.RE\n", out);
}

static void put_heading(FILE *out, const char *macro, const char *title) {
    fprintf(out, "%s \"", macro);
    for (; *title; title++)
        fputc(toupper((unsigned char)*title), out);
    fputs("\"\n", out);
}

/* ---- commands and options ---- */

static void put_commands(FILE *out) {
    fputs(".SH COMMANDS\n", out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++) {
        const struct ot_command_help *help = ot_help_of_command((enum ot_command)c);
        fputs(".TP\n.B ", out);
        put(out, help->usage);
        fputc('\n', out);
        put_prose(out, help->what);
    }
    fputs(".TP\n.B help\n[TOPIC|COMMAND]\nPrints a topic of this page, or the help of a command.\n", out);
}

static void put_option(FILE *out, const struct ot_option *option) {
    const char *value = ot_help_value(option),
               *fallback = option->fallback ? option->fallback : option->chosen;
    fputs(".TP\n", out);
    if (option->letter)
        fprintf(out, "\\fB\\-%c\\fR, ", option->letter);
    fputs("\\fB\\-\\-", out);
    put(out, option->name);
    fputs("\\fR", out);
    if (*value) {
        fputs(" \\fI", out);
        put(out, value);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    char text[1024], owners[OT_COMMAND_LIST_BYTES];
    bool is_general = option->commands == OT_FOR_ALL;
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", option->help, fallback ? " (default: " : "",
             fallback ? fallback : "", fallback ? ")" : "", is_general ? "" : " (",
             is_general ? "" : ot_command_list(option->commands, owners), is_general ? "" : ")");
    put_prose(out, text);
}

static void put_options(FILE *out) {
    fputs(".SH OPTIONS\n", out);
    fputs("The parentheses after an option name the commands that have it, if not all have it.\n", out);
    for (int section = 0; section < OT_SECTION_COUNT; section++) {
        const struct ot_option *option;
        fprintf(out, ".SS %s\n", ot_option_section_title((enum ot_option_section)section));
        for (int i = 0; (option = ot_option_at(i)); i++)
            if ((int)option->section == section)
                put_option(out, option);
    }
    fputs(".SS Units\n", out);
    put_prose(out, ot_help_units);
}

/* ---- topics ---- */

static void put_topic(FILE *out, const struct ot_topic *topic) {
    put_heading(out, ".SH", topic->title);
    for (int i = 0; i < topic->n_blocks; i++) {
        const struct ot_topic_block *block = &topic->blocks[i];
        if (!block->term) {
            fputs(i ? ".PP\n" : "", out);
            put_prose(out, block->text);
        } else if (*block->term) {
            fputs(".TP\n\\fB", out);
            put(out, block->term);
            fputs("\\fR\n", out);
            put_prose(out, block->text);
        } else {
            put_literal(out, block->text);
        }
    }
}

void ot_manual_write_man(FILE *out) {
    fputs(".\\\" Made at build time from the option table and the topics.\n", out);
    fprintf(out, ".TH OFFLOAD\\-TRAIN 1 \"\" \"offload\\-train %s\" \"User Commands\"\n.nh\n.ad l\n",
            OT_VERSION);
    fputs(".SH NAME\noffload\\-train \\- trains large language models on one GPU, with RAM and disks as its "
          "memory\n"
          ".SH SYNOPSIS\n.nf\n",
          out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++) {
        fputs("\\fBoffload\\-train\\fR ", out);
        put(out, ot_help_of_command((enum ot_command)c)->usage);
        fputc('\n', out);
    }
    fputs("\\fBoffload\\-train\\fR help [TOPIC|COMMAND]\n.fi\n.SH DESCRIPTION\n", out);
    put_prose(out, ot_help_of_command(OT_COMMAND_TRAIN)->what);
    put_commands(out);
    put_options(out);
    for (int i = 0; i < ot_topic_count; i++)
        put_topic(out, &ot_topics[i]);
    fputs(".SH EXAMPLES\nWith names of your own models and files:\n", out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++) {
        const char *const *examples = ot_help_of_command((enum ot_command)c)->examples;
        for (int i = 0; i < 4 && examples[i]; i++)
            put_literal(out, examples[i]);
    }
}

/* ---- completion of bash ---- */

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
    const char *body = strchr(head, '{') + 2;
    fwrite(head, 1, (size_t)(body - head), out);
    fputs("    local commands='", out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        fprintf(out, "%s%s", c ? " " : "", ot_command_name((enum ot_command)c));
    fputs("' topics='", out);
    for (int i = 0; i < ot_topic_count; i++)
        fprintf(out, "%s%s", i ? " " : "", ot_topics[i].name);
    fputs("'\n", out);
    fputs(body, out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        put_command(out, (enum ot_command)c);
    fputs(tail, out);
}

/* ---- completion of zsh ---- */

static const char zsh_head[] =
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
static void zsh_put_quoted(FILE *out, const char *text, const char *end) {
    for (; text < end; text++) {
        if (*text == '\'')
            fputs("'\\'", out);
        else if (strchr("[]:\\", *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

/* Writes the first sentence, without its period. */
static void zsh_put_first_sentence(FILE *out, const char *text) {
    const char *end = strstr(text, ". ");
    size_t bytes = strlen(text);
    zsh_put_quoted(out, text, end ? end : text + bytes - (text[bytes - 1] == '.'));
}

static void zsh_put_value(FILE *out, const struct ot_option *option) {
    char words[OT_MANUAL_WORDS_BYTES];
    const char *value = ot_help_value(option);
    enum ot_manual_path path = ot_manual_path(option);
    fputs(option->bare ? "::" : ":", out);
    zsh_put_quoted(out, value, value + strlen(value));
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

static void zsh_put_option(FILE *out, const struct ot_option *option) {
    bool has_value = option->type != OT_OPTION_FLAG;
    const char *repeated = option->type == OT_OPTION_NVME ? "*" : "";
    if (option->letter)
        fprintf(out, " \\\n            '(--%s)-%c%s[", option->name, option->letter, has_value ? "+" : "");
    for (int spelled = option->letter ? 0 : 1; spelled < 2; spelled++) {
        if (spelled)
            fprintf(out, " \\\n            '%s--%s%s[", repeated, option->name, has_value ? "=" : "");
        zsh_put_first_sentence(out, option->help);
        fputc(']', out);
        if (has_value)
            zsh_put_value(out, option);
        fputc('\'', out);
    }
}

static void zsh_put_command(FILE *out, enum ot_command command) {
    const struct ot_option *option;
    fprintf(out, "        %s) _arguments", ot_command_name(command));
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (option->commands & (1u << command))
            zsh_put_option(out, option);
    if (ot_manual_takes_dir(command))
        fputs(" \\\n            ':DIR:_directories'", out);
    fputs(" ;;\n", out);
}

static void zsh_put_commands(FILE *out) {
    fputs("    local -a commands=(\n", out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++) {
        fprintf(out, "        '%s:", ot_command_name((enum ot_command)c));
        zsh_put_first_sentence(out, ot_help_of_command((enum ot_command)c)->what);
        fputs("'\n", out);
    }
    fputs("    )\n    local -a topics=(\n", out);
    for (int i = 0; i < ot_topic_count; i++) {
        const char *title = ot_topics[i].title;
        fprintf(out, "        '%s:", ot_topics[i].name);
        zsh_put_quoted(out, title, title + strlen(title));
        fputs("'\n", out);
    }
    fputs("    )\n", out);
}

void ot_manual_write_zsh(FILE *out) {
    fputs(zsh_head, out);
    zsh_put_commands(out);
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
        zsh_put_command(out, (enum ot_command)c);
    fputs("    esac\n}\n_offload_train \"$@\"\n", out);
}
