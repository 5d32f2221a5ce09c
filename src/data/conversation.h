/* Conversations: the turns of a row, before a template renders them.
 *
 * Rows come in several dialects; here they become one. Turns have {"role", "content"} or {"from", "value"}.
 * Roles of ShareGPT get the names that templates know (human: user; gpt: assistant; observation: tool;
 * function_call: an assistant turn with tool calls). Content is a text, or a list of text parts. "tools" is
 * a list, or a text with a list in JSON; "functions" and "function_call" are older names and become tools
 * and tool calls. A turn with "weight": 0 or "train": false does not train. All other keys of a turn go to
 * the model's own template unchanged. The built-in templates have no place for tools, tool calls, results of
 * tools and thoughts in keys of their own: `needs` names the first of these.
 *
 * Threads: a conversation belongs to one thread. It borrows from its row.
 */
#ifndef OT_DATA_CONVERSATION_H
#define OT_DATA_CONVERSATION_H

#include "src/base/json.h"

enum ot_role {
    OT_ROLE_SYSTEM,
    OT_ROLE_USER,
    OT_ROLE_ASSISTANT,
    OT_ROLE_TOOL /* not for built-in templates */
};
const char *ot_role_name(enum ot_role role); /* "system", ... */

struct ot_message {
    enum ot_role role;
    const char *role_name; /* as a model's own template sees it */
    const char *text;      /* the content; parts are joined */
    size_t bytes;
    char *joined;      /* owns the text if parts were joined */
    const char *input; /* the separate input of an alpaca instruction; NULL: none */
    size_t input_bytes;
    const struct ot_json *source; /* the turn in the row; NULL: it is made of keys of the row */
    bool has_parts;               /* its content is a list of text parts */
    bool has_value;               /* its content is another JSON value, of a tool's result */
    struct ot_json *calls;        /* tool calls that the row writes as a text; owned; NULL: none */
    bool says_more;               /* an assistant turn with tool calls or thoughts in keys of their own */
    bool untrained;
};

struct ot_conversation { /* set to zero before the first use */
    struct ot_message *messages;
    size_t n, capacity;
    const struct ot_json *tools;
    struct ot_json *parsed_tools; /* owns the tools if the row writes them as a text */
    bool bare_tools; /* of "functions": each lacks {"type": "function", "function": ..} around it */
    const struct ot_json *variables; /* "chat_template_kwargs" of the row, an object; NULL: none */
    const char *needs;               /* what only a model's own template can write; NULL: nothing */
};

void ot_conversation_free(struct ot_conversation *c);
/* Adds a turn that is no turn of the row's list. Errors: OT_E_BUDGET. */
int ot_conversation_add(struct ot_conversation *c, struct ot_message message);
/* Reads "system", "tools" and "chat_template_kwargs" of a row, then the turns under `key`. Errors: OT_E_INPUT
 * with `where` in front, OT_E_BUDGET. */
int ot_conversation_read(struct ot_conversation *c, const struct ot_json *row, const char *key,
                         const char *where);
/* Adds the assistant's turns under `key`, or the one turn there. Only these train: turns read before do not.
 * Errors: as above. */
int ot_conversation_read_answer(struct ot_conversation *c, const struct ot_json *row, const char *key,
                                const char *where);
/* Reads only "system" of a row. */
int ot_conversation_read_system(struct ot_conversation *c, const struct ot_json *row, const char *where);
/* Refuses a row with tools: a prompt and its answer have no place for them. */
int ot_conversation_refuse_tools(const struct ot_json *row, const char *where);

/* Writes the turns as a built-in template sees them: "role", "content", and the "input" of an alpaca
 * instruction. The caller frees *out. */
int ot_conversation_plain_messages(const struct ot_conversation *c, struct ot_json **out);
/* Writes the turns as a model's own template sees them. takes_parts: content may stay a list of parts.
 * developer: the template knows that role; otherwise it becomes system. The caller frees *out. */
int ot_conversation_messages(const struct ot_conversation *c, bool takes_parts, bool developer,
                             struct ot_json **out);
/* The tools in the same way; *out NULL: none. */
int ot_conversation_tools(const struct ot_conversation *c, struct ot_json **out);
/* True if an assistant turn says something. */
bool ot_message_speaks(const struct ot_message *m);

#endif
