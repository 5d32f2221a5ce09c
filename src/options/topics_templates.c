/* The topic about chat templates. */
#include <stddef.h>

#include "src/options/topics.h"

static const struct ot_topic_block templates[] = {
    {NULL, "Conversations (help rows) become text by a chat template. The first of these decides:"},
    {"--template",
     "The name of a built-in template; --help lists them. It renders system, user and assistant "
     "turns. A row with anything else is an error that names it."},
    {"the run's record", "generate and eval use the built-in template of the run that made the model."},
    {"the model's own",
     "The Jinja text in chat_template.jinja or tokenizer_config.json (with a template for tools in "
     "additional_chat_templates/tool_use.jinja or in a list). The text of a row is that of transformers' "
     "apply_chat_template, and its tokens are those of the text."},
    {"the tokenizer's tokens", "A model without a template, whose tokenizer has a token of a built-in one."},
    {NULL, "A template is the text of another person. The program renders it with its own engine, which "
           "cannot read files and has limits on time, memory and output. It knows the part of Jinja that "
           "templates use: if, for, set, macro, call, filter, with, raw, generation, the filters, tests and "
           "string methods of jinja2 that make text, tojson, raise_exception, strftime_now. An error names "
           "the line and what is not supported. The cure is --template."},
    {"what trains",
     "If the template marks it with {% generation %}, those parts. Otherwise each assistant turn, from the "
     "end of what asks for the answer to the mark that ends it. The program finds both by rendering the "
     "conversation up to the turn and comparing. --show-sample shows it."},
    {"earlier thoughts",
     "Some templates leave the thoughts out of earlier answers. Such an answer does not train, because the "
     "model would learn to answer without thinking; a line counts these turns. The last answer trains with "
     "its thoughts. Split a conversation into rows that end with each answer to train all of them."},
    {"what is left out", "A line counts the rows of which the template does not write some text."},
    {"tools", "tools, tool_calls and results of tools go to the model's own template. A template without a "
              "place for them is an error."},
    {"weights", "A turn with \"weight\": 0 or \"train\": false does not train."},
    {"dates", "strftime_now always gives 26 Jul 2024, so that a run has the same rows on every day."},
    {"the result",
     "The trained model keeps the template of its base. If it had none, --template adds chat_template.jinja "
     "with the same format for servers."},
};
const struct ot_topic ot_topic_templates =
    OT_TOPIC("templates", "Chat templates: which is used, what trains", templates);
