/* Writes the man page with man macros that both groff and mandoc understand. */
#include <ctype.h>
#include <string.h>

#include "src/options/help.h"
#include "src/options/manual.h"

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
