/* --help, --help all and help TOPIC, generated from the option table and the topics. */
#ifndef OT_OPTIONS_HELP_H
#define OT_OPTIONS_HELP_H

#include <stdio.h>

#include "src/options/options.h"

/* Prints the command's usage, its options by section, examples and the exit codes, at most 96 columns wide.
 * The help of train, which is also the program's overview, lists the other commands too. */
void ot_help_print_all(FILE *out, enum ot_command command);

/* Prints the usage, what the command does, an example, the options that most users of it need, and where the
 * rest is: at most 30 lines of 96 columns. */
void ot_help_print_brief(FILE *out, enum ot_command command);

/* `help NAME`: prints a topic or a command's help. NULL: lists the topics and the commands.
 * Errors: OT_E_USAGE: no such topic or command; the sentence lists the topics. */
int ot_help_print_topic(FILE *out, const char *name);

/* ---- topics: help pages about matters that concern more than one option ---- */

/* The texts are in topics/NAME.txt; embed-topics makes a C file of them at build time. */
struct ot_topic_block {
    /* NULL: a paragraph; "": lines that are printed as they are; else an item that `text` explains. */
    const char *term;
    const char *text; /* for a paragraph or an item: one line, wrapped when printed */
};
struct ot_topic {
    const char *name, *title; /* "exit-codes", "What the exit codes mean" */
    const struct ot_topic_block *blocks;
    int n_blocks;
};
extern const struct ot_topic ot_topics[]; /* in alphabetical order */
extern const int ot_topic_count;
extern const struct ot_topic ot_command_texts[]; /* one for each command; see ot_help_of_command */
/* One topic of items: the names of options of other programs, separated by spaces, and the answer to a user
 * who types one of them (elsewhere.c). */
extern const struct ot_topic ot_elsewhere[];
/* One topic with an item for each option: its name, and a command that has it if the table has several rows
 * with that name; see ot_help_of_option. */
extern const struct ot_topic ot_option_texts[];
/* NULL: no such topic. */
const struct ot_topic *ot_topic_find(const char *name);

/* ---- the texts of commands and options, for the manual (describe.c) ---- */

/* The help of a command is a topic too, of commands/NAME.txt. Its title is the usage. The first block says
 * what the command does. The second block has the examples, one a line. The other blocks are the options
 * that ot_help_print_brief prints: a name, and some words. */
const struct ot_topic *ot_help_of_command(enum ot_command command);
/* What the option does, in one or two sentences. */
const char *ot_help_of_option(const struct ot_option *option);
/* The placeholder of the option's value: "yes|no", "FILE"; "" for a flag. */
const char *ot_help_value(const struct ot_option *option);
extern const char *const ot_help_units;

#endif
