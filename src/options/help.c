#include "src/options/help.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "src/base/error.h"

enum { COLUMNS = 96, INDENT = 30, TOPIC_INDENT = 20 };

const struct ot_topic *ot_help_of_command(enum ot_command command) {
    const struct ot_topic *text = ot_command_texts;
    while (strcmp(text->name, ot_command_name(command)) != 0)
        text++;
    return text;
}

const char *ot_help_of_option(const struct ot_option *option) {
    for (int i = 0; i < ot_option_texts->n_blocks; i++) {
        const char *term = ot_option_texts->blocks[i].term;
        size_t n = strcspn(term, " ");
        if (strlen(option->name) != n || memcmp(term, option->name, n) != 0)
            continue;
        for (int c = 0; c < OT_COMMAND_COUNT; c++)
            if ((option->commands & (1u << c)) &&
                (!term[n] || strcmp(term + n + 1, ot_command_name((enum ot_command)c)) == 0))
                return ot_option_texts->blocks[i].text;
    }
    return NULL;
}

const char *ot_help_value(const struct ot_option *option) {
    return option->type == OT_OPTION_YES_NO ? "yes|no"
           : option->argument               ? option->argument
           : option->choices                ? option->choices
                                            : "";
}

const char *const ot_help_units =
    "For tokens and memory, k, M and G are powers of 1024 (16k tokens = 16,384; 24G = 24 GiB, but 24GB is "
    "decimal). For steps, rows and rates they are powers of 1000.";

/* Prints the words of `text` from `column` on, wrapped at COLUMNS. Indents each new line. Returns the column
 * reached. */
static int print_wrapped(FILE *out, const char *text, int column, int indent) {
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word > COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, (size_t)word, out);
        column += word;
        text += word + (text[word] == ' ');
    }
    return column;
}

/* Prints the option's name and value, and spaces up to column INDENT. */
static void print_option_head(FILE *out, const struct ot_option *option) {
    char letter[8] = "    ";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    const char *value = ot_help_value(option);
    int column = fprintf(out, "  %s--%s%s%s", letter, option->name, *value ? " " : "", value);
    bool is_long = column + 2 > INDENT;
    fprintf(out, "%s%*s", is_long ? "\n" : "", is_long ? INDENT : INDENT - column, "");
}

static void print_option(FILE *out, const struct ot_option *option) {
    print_option_head(out, option);
    char note[256] = "";
    if (option->fallback || option->chosen)
        snprintf(note, sizeof note, " (default: %s)", option->fallback ? option->fallback : option->chosen);
    int column = print_wrapped(out, ot_help_of_option(option), INDENT, INDENT);
    if (*note)
        print_wrapped(out, note + 1, column, INDENT);
    fputc('\n', out);
}

const struct ot_topic *ot_topic_find(const char *name) {
    for (int i = 0; i < ot_topic_count; i++)
        if (strcmp(ot_topics[i].name, name) == 0)
            return &ot_topics[i];
    return NULL;
}

/* Prints the items of topic exit-codes whose term is a number. */
static void print_exit_codes(FILE *out) {
    const struct ot_topic *codes = ot_topic_find("exit-codes");
    fputs("\nExit codes:\n", out);
    for (int i = 0; i < codes->n_blocks; i++) {
        const struct ot_topic_block *block = &codes->blocks[i];
        if (block->term && isdigit((unsigned char)*block->term))
            fprintf(out, "  %-2s %s\n", block->term, block->text);
    }
}

enum { TOPIC_NAMES_BYTES = 512 };
static const char *list_topics(char names[TOPIC_NAMES_BYTES]) {
    int used = 0;
    for (int i = 0; i < ot_topic_count; i++)
        used += snprintf(names + used, (size_t)(TOPIC_NAMES_BYTES - used), "%s%s", i ? ", " : "",
                         ot_topics[i].name);
    return names;
}

static void print_lines(FILE *out, const char *lines) {
    for (size_t n; *lines; lines += n + (lines[n] == '\n')) {
        n = strcspn(lines, "\n");
        fprintf(out, "%s%.*s\n", n ? "  " : "", (int)n, lines);
    }
}

void ot_help_print_all(FILE *out, enum ot_command command) {
    char names[TOPIC_NAMES_BYTES];
    const struct ot_topic *help = ot_help_of_command(command);
    fprintf(out, "Usage: offload-train %s\n\n", help->title);
    print_wrapped(out, help->blocks[0].text, 0, 0);
    fputs("\n", out);
    if (command == OT_COMMAND_TRAIN) {
        fputs("\nOther commands (offload-train COMMAND --help tells more):\n", out);
        for (int c = 1; c < OT_COMMAND_COUNT; c++)
            fprintf(out, "  %s\n", ot_help_of_command((enum ot_command)c)->title);
        fputs("  help [TOPIC]\n", out);
    }
    for (int section = 0; section < OT_SECTION_COUNT; section++) {
        bool titled = false;
        const struct ot_option *option;
        for (int i = 0; (option = ot_option_at(i)); i++) {
            if ((int)option->section != section || !(option->commands & (1u << command)))
                continue;
            if (!titled)
                fprintf(out, "\n%s:\n", ot_option_section_title((enum ot_option_section)section));
            titled = true;
            print_option(out, option);
        }
    }
    fputs("\nUnits:", out);
    print_wrapped(out, ot_help_units, 6, 0);
    fputc('\n', out);
    fputs("\nExamples:\n", out);
    print_lines(out, help->blocks[1].text);
    print_exit_codes(out);
    fputs("\nMore, with offload-train help TOPIC:\n  ", out);
    print_wrapped(out, list_topics(names), 2, 2);
    fputc('\n', out);
}

void ot_help_print_brief(FILE *out, enum ot_command command) {
    const struct ot_topic *help = ot_help_of_command(command);
    fprintf(out, "Usage: offload-train %s\n\n", help->title);
    print_wrapped(out, help->blocks[0].text, 0, 0);
    int length = (int)strcspn(help->blocks[1].text, "\n");
    fprintf(out, "\n\n  %.*s\n\n", length, help->blocks[1].text);
    for (int i = 2; i < help->n_blocks; i++) {
        const char *name = help->blocks[i].term;
        print_option_head(out, ot_option_at(ot_option_find(name, strlen(name), command)));
        fprintf(out, "%s\n", help->blocks[i].text);
    }
    const char *name = ot_command_name(command);
    fprintf(out, "\nAll options: offload-train %s --help all. Topics: offload-train help.\n", name);
    if (command != OT_COMMAND_TRAIN)
        return;
    int column = fprintf(out, "Other commands:");
    for (int c = 1; c < OT_COMMAND_COUNT; c++)
        column = print_wrapped(out, ot_command_name((enum ot_command)c), column, 0);
    fputs(".\n", out);
}

static void print_block(FILE *out, const struct ot_topic_block *block) {
    if (!block->term) {
        print_wrapped(out, block->text, 0, 0);
        fputc('\n', out);
    } else if (!*block->term) {
        print_lines(out, block->text);
    } else {
        int column = fprintf(out, "  %s", block->term);
        fprintf(out, "%s%*s", column + 2 > TOPIC_INDENT ? "\n" : "",
                column + 2 > TOPIC_INDENT ? TOPIC_INDENT : TOPIC_INDENT - column, "");
        print_wrapped(out, block->text, TOPIC_INDENT, TOPIC_INDENT);
        fputc('\n', out);
    }
}

static void print_topic(FILE *out, const struct ot_topic *topic) {
    fprintf(out, "%s\n", topic->title);
    for (int i = 0; i < topic->n_blocks; i++) {
        bool is_item = topic->blocks[i].term && *topic->blocks[i].term;
        if (!is_item || i == 0 || !topic->blocks[i - 1].term || !*topic->blocks[i - 1].term)
            fputc('\n', out);
        print_block(out, &topic->blocks[i]);
    }
}

static int refuse_topic(const char *name) {
    char names[TOPIC_NAMES_BYTES];
    return ot_fail(OT_E_USAGE, "no help topic '%.60s'; the topics are %s; each command has help too", name,
                   list_topics(names));
}

int ot_help_print_topic(FILE *out, const char *name) {
    const struct ot_topic *topic = name ? ot_topic_find(name) : NULL;
    if (topic) {
        print_topic(out, topic);
        return 0;
    }
    for (int c = 0; name && c < OT_COMMAND_COUNT; c++)
        if (strcmp(name, ot_command_name((enum ot_command)c)) == 0) {
            ot_help_print_all(out, (enum ot_command)c);
            return 0;
        }
    if (name)
        return refuse_topic(name);
    fputs("Usage: offload-train help TOPIC|COMMAND\n\nTopics:\n", out);
    for (int i = 0; i < ot_topic_count; i++)
        fprintf(out, "  %-13s %s\n", ot_topics[i].name, ot_topics[i].title);
    fputs("\nCommands:\n", out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        fprintf(out, "  %s\n", ot_help_of_command((enum ot_command)c)->title);
    return 0;
}
