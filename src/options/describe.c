/* A program of the build, which is not installed: prints the option table, the commands and the topics as one
 * JSON object. `manual` makes the man page and the completions of it. */
#include <stdio.h>

#include "src/base/json.h"
#include "src/options/help.h"

static void put_option(struct ot_json_writer *w, const struct ot_option *option) {
    const char letter[2] = {option->letter};
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "name", option->name);
    ot_json_put_text(w, "letter", letter);
    ot_json_put_text(w, "help", ot_help_of_option(option));
    ot_json_put_text(w, "value", ot_help_value(option));
    ot_json_put_text(w, "default",
                     option->fallback ? option->fallback
                     : option->chosen ? option->chosen
                                      : "");
    ot_json_put_text(w, "section", ot_option_section_title(option->section));
    ot_json_put_bool(w, "has_value", option->type != OT_OPTION_FLAG);
    ot_json_put_bool(w, "value_is_optional", option->bare != NULL);
    ot_json_put_bool(w, "repeats", ot_option_repeats(option));
    ot_json_begin_array(w, "commands");
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        if (option->commands & (1u << c))
            ot_json_put_text(w, NULL, ot_command_name((enum ot_command)c));
    ot_json_end_array(w);
    ot_json_end_object(w);
}

/* Of a topic, or of the help of a command, which has the same form. */
static void put_topic(struct ot_json_writer *w, const struct ot_topic *topic) {
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "name", topic->name);
    ot_json_put_text(w, "title", topic->title);
    ot_json_begin_array(w, "blocks");
    for (int i = 0; i < topic->n_blocks; i++) {
        ot_json_begin_array(w, NULL);
        if (topic->blocks[i].term)
            ot_json_put_text(w, NULL, topic->blocks[i].term);
        else
            ot_json_put_null(w, NULL);
        ot_json_put_text(w, NULL, topic->blocks[i].text);
        ot_json_end_array(w);
    }
    ot_json_end_array(w);
    ot_json_end_object(w);
}

int main(void) {
    struct ot_json_writer w = {.indent = -1};
    const struct ot_option *option;
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", OT_VERSION);
    ot_json_put_text(&w, "units", ot_help_units);
    ot_json_begin_array(&w, "commands");
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        put_topic(&w, ot_help_of_command((enum ot_command)c));
    ot_json_end_array(&w);
    ot_json_begin_array(&w, "sections");
    for (int section = 0; section < OT_SECTION_COUNT; section++)
        ot_json_put_text(&w, NULL, ot_option_section_title((enum ot_option_section)section));
    ot_json_end_array(&w);
    ot_json_begin_array(&w, "options");
    for (int i = 0; (option = ot_option_at(i)); i++)
        put_option(&w, option);
    ot_json_end_array(&w);
    ot_json_begin_array(&w, "topics");
    for (int i = 0; i < ot_topic_count; i++)
        put_topic(&w, &ot_topics[i]);
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_json_print(&w) < 0;
}
