#include "src/data/conversation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/data/template.h"

static const char *const thought_keys[] = {"reasoning_content", "thinking", "reasoning", NULL};
static const char *const train_keys[] = {"train", "loss", NULL}; /* false: the turn does not train */

void ot_conversation_free(struct ot_conversation *c) {
    for (size_t i = 0; i < c->n; i++) {
        free(c->messages[i].joined);
        ot_json_free(c->messages[i].calls);
    }
    free(c->messages);
    ot_json_free(c->parsed_tools);
    *c = (struct ot_conversation){0};
}

int ot_conversation_add(struct ot_conversation *c, struct ot_message message) {
    int rc = ot_grow(&c->messages, &c->capacity, c->n + 1, sizeof *c->messages, "turns");
    if (rc < 0) {
        free(message.joined);
        ot_json_free(message.calls);
        return rc;
    }
    c->messages[c->n++] = message;
    return 0;
}

bool ot_message_speaks(const struct ot_message *m) {
    return m->says_more || m->has_value || !ot_text_is_blank(m->text, m->bytes);
}

/* True if the key is present and not empty. */
static bool is_filled(const struct ot_json *value) {
    size_t bytes = 0;
    const char *text = ot_json_string(value, &bytes);
    void *cursor = NULL;
    const char *key;
    struct ot_json *member;
    if (text)
        return !ot_text_is_blank(text, bytes) && strcmp(text, "[]") != 0 && strcmp(text, "null") != 0;
    if (ot_json_type(value) == OT_JSON_OBJECT)
        return ot_json_next(value, &cursor, &key, &member);
    return ot_json_type(value) == OT_JSON_ARRAY ? ot_json_length(value) > 0
                                                : ot_json_type(value) != OT_JSON_NULL;
}

/* ---- roles ---- */

const char *ot_role_name(enum ot_role role) {
    static const char *const names[] = {"system", "user", "assistant", "tool"};
    return names[role];
}

static const struct {
    const char *name;
    enum ot_role role;
    const char *template_name;
    bool calls; /* the content is tool calls in JSON */
} roles[] = {
    {"system", OT_ROLE_SYSTEM, "system", false},
    {"developer", OT_ROLE_SYSTEM, "developer", false},
    {"user", OT_ROLE_USER, "user", false},
    {"human", OT_ROLE_USER, "user", false},
    {"assistant", OT_ROLE_ASSISTANT, "assistant", false},
    {"gpt", OT_ROLE_ASSISTANT, "assistant", false},
    {"chatgpt", OT_ROLE_ASSISTANT, "assistant", false},
    {"model", OT_ROLE_ASSISTANT, "assistant", false},
    {"function_call", OT_ROLE_ASSISTANT, "assistant", true},
    {"tool", OT_ROLE_TOOL, "tool", false},
    {"observation", OT_ROLE_TOOL, "tool", false},
    {"function", OT_ROLE_TOOL, "function", false},
    {"ipython", OT_ROLE_TOOL, "ipython", false},
};
enum { N_ROLES = sizeof roles / sizeof *roles };

static int find_role(const char *name, const char *where) {
    for (int i = 0; i < N_ROLES; i++)
        if (strcmp(roles[i].name, name) == 0)
            return i;
    return ot_fail(OT_E_INPUT,
                   "%s: unknown role '%.60s'; known roles: system, developer, user (human), assistant (gpt), "
                   "tool (observation), function, ipython, function_call",
                   where, name);
}

/* ---- contents ---- */

static int need_text(const struct ot_json *object, const char *key, const char *where, const char **text,
                     size_t *bytes) {
    const struct ot_json *value = ot_json_get(object, key);
    *text = ot_json_string(value, bytes);
    if (*text)
        return 0;
    if (ot_json_type(value) == OT_JSON_NULL)
        return ot_fail(OT_E_INPUT, "%s: key '%s' is missing or null", where, key);
    return ot_fail(OT_E_INPUT, "%s: key '%s' must be a string, not %s", where, key,
                   ot_json_type_name(ot_json_type(value)));
}

/* The text of a part: a string, or {"type": "text", "text": ..}. */
static const char *part_text(const struct ot_json *part, size_t *bytes) {
    const char *type = ot_json_string(ot_json_get(part, "type"), NULL);
    if (ot_json_type(part) == OT_JSON_STRING)
        return ot_json_string(part, bytes);
    return !type || strcmp(type, "text") == 0 ? ot_json_string(ot_json_get(part, "text"), bytes) : NULL;
}

static int join_parts(const struct ot_json *parts, const char *where, struct ot_message *m) {
    struct ot_string_builder b = {0};
    for (size_t i = 0; i < ot_json_length(parts); i++) {
        size_t bytes = 0;
        const struct ot_json *part = ot_json_at(parts, i);
        const char *text = part_text(part, &bytes), *type = ot_json_string(ot_json_get(part, "type"), NULL);
        if (!text) {
            free(b.text);
            return ot_fail(OT_E_INPUT,
                           "%s: a part of a turn's content is of type '%.40s', but only parts of text can be "
                           "trained on",
                           where, type ? type : "unknown");
        }
        ot_string_append(&b, text, bytes);
    }
    ot_string_append(&b, "", 0);
    if (b.failed)
        return ot_fail(OT_E_BUDGET, "%s: no memory for the text of a turn", where);
    m->text = m->joined = b.text;
    m->bytes = b.bytes;
    m->has_parts = true;
    return 0;
}

static int read_content(const struct ot_json *turn, const char *key, const char *where,
                        struct ot_message *m) {
    const struct ot_json *value = ot_json_get(turn, key);
    enum ot_json_type type = ot_json_type(value);
    m->text = "";
    if (type == OT_JSON_ARRAY && m->role != OT_ROLE_TOOL)
        return join_parts(value, where, m);
    if (m->role == OT_ROLE_TOOL && (type == OT_JSON_OBJECT || type == OT_JSON_ARRAY)) {
        m->has_value = true;
        return 0;
    }
    if (type == OT_JSON_NULL && m->says_more)
        return 0;
    return need_text(turn, key, where, &m->text, &m->bytes);
}

/* ---- tool calls ---- */

/* Writes calls as {"type": "function", "function": {"name", "arguments"}}. */
static void put_call(struct ot_json_writer *w, const struct ot_json *call) {
    if (ot_json_get(call, "function")) {
        ot_json_put_value(w, NULL, call);
        return;
    }
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "type", "function");
    ot_json_put_value(w, "function", call);
    ot_json_end_object(w);
}

static int wrap_calls(const struct ot_json *calls, const char *where, struct ot_json **out) {
    struct ot_json_writer w = {.indent = -1};
    char *text;
    size_t bytes;
    ot_json_begin_array(&w, NULL);
    if (ot_json_type(calls) == OT_JSON_OBJECT)
        put_call(&w, calls);
    for (size_t i = 0; i < ot_json_length(calls); i++)
        put_call(&w, ot_json_at(calls, i));
    ot_json_end_array(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = ot_json_parse(text, bytes, where, out);
    free(text);
    return rc;
}

/* A ShareGPT turn of calls: its text is a call, or a list of calls, in JSON. */
static int parse_calls(const char *where, struct ot_message *m) {
    struct ot_json *calls = NULL;
    if (ot_json_parse_row(m->text, m->bytes, "calls", &calls) < 0 ||
        ot_row_check_value(calls, "function_call", where) < 0 ||
        (ot_json_type(calls) != OT_JSON_OBJECT && ot_json_length(calls) == 0)) {
        ot_json_free(calls);
        return ot_fail(OT_E_INPUT,
                       "%s: the value of a function_call turn must be JSON such as {\"name\": .., "
                       "\"arguments\": {..}}",
                       where);
    }
    int rc = wrap_calls(calls, where, &m->calls);
    ot_json_free(calls);
    m->text = "";
    m->bytes = 0;
    m->says_more = true;
    return rc;
}

/* ---- weights ---- */

static int read_weight(const struct ot_json *turn, const char *where, struct ot_message *m) {
    const struct ot_json *weight = ot_json_get(turn, "weight");
    enum ot_json_type type = ot_json_type(weight);
    double value = ot_json_real(weight, 1);
    bool given = type == OT_JSON_INT || type == OT_JSON_REAL;
    if (type != OT_JSON_NULL && (!given || (value != 0 && value != 1)))
        return ot_fail(OT_E_INPUT, "%s: the weight of a turn must be 0 or 1", where);
    m->untrained = given && value == 0;
    bool wanted = given && value == 1;
    for (const char *const *key = train_keys; *key; key++) {
        const struct ot_json *train = ot_json_get(turn, *key);
        if (ot_json_type(train) != OT_JSON_NULL && ot_json_type(train) != OT_JSON_BOOL)
            return ot_fail(OT_E_INPUT, "%s: key '%s' of a turn must be true or false", where, *key);
        m->untrained = m->untrained || !ot_json_bool(train, true);
        wanted = wanted || ot_json_bool(train, false);
    }
    if (wanted && m->role != OT_ROLE_ASSISTANT)
        return ot_fail(OT_E_INPUT,
                       "%s: a turn with the role %s has the weight 1, but only assistant turns can train",
                       where, m->role_name);
    return 0;
}

/* ---- turns ---- */

static void note_need(struct ot_conversation *c, const char *what) {
    if (!c->needs)
        c->needs = what;
}

static int read_more(struct ot_conversation *c, const struct ot_json *turn, const char *where,
                     struct ot_message *m) {
    if (m->role == OT_ROLE_TOOL)
        note_need(c, "a turn of a tool");
    if (is_filled(ot_json_get(turn, "tool_calls")) || is_filled(ot_json_get(turn, "function_call"))) {
        m->says_more = true;
        note_need(c, is_filled(ot_json_get(turn, "tool_calls")) ? "key 'tool_calls'" : "key 'function_call'");
    }
    for (const char *const *key = thought_keys; *key; key++)
        if (is_filled(ot_json_get(turn, *key))) {
            m->says_more = true;
            note_need(c, strcmp(*key, "thinking") == 0 ? "key 'thinking'" : "key 'reasoning_content'");
        }
    if (is_filled(ot_json_get(turn, "function_call")))
        return wrap_calls(ot_json_get(turn, "function_call"), where, &m->calls);
    return 0;
}

static int fill_turn(struct ot_conversation *c, const struct ot_json *turn, const char *where,
                     struct ot_message *m) {
    bool sharegpt = ot_json_get(turn, "from") != NULL;
    const char *name;
    size_t bytes;
    OT_TRY(need_text(turn, sharegpt ? "from" : "role", where, &name, &bytes));
    int role = find_role(name, where);
    OT_TRY(role);
    m->role = roles[role].role;
    m->role_name = roles[role].template_name;
    m->source = turn;
    OT_TRY(read_more(c, turn, where, m));
    bool value = sharegpt && ot_json_get(turn, "value");
    OT_TRY(read_content(turn, value || (sharegpt && !ot_json_get(turn, "content")) ? "value" : "content",
                        where, m));
    if (roles[role].calls) {
        note_need(c, "a function_call turn");
        OT_TRY(parse_calls(where, m));
    }
    return read_weight(turn, where, m);
}

static int read_turn(struct ot_conversation *c, const struct ot_json *turn, const char *where) {
    struct ot_message m = {0};
    if (ot_json_type(turn) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: a turn must be an object {...}, not %s", where,
                       ot_json_type_name(ot_json_type(turn)));
    int rc = fill_turn(c, turn, where, &m);
    if (rc == 0)
        return ot_conversation_add(c, m);
    free(m.joined);
    ot_json_free(m.calls);
    return rc;
}

/* ---- keys of the row ---- */

int ot_conversation_read_system(struct ot_conversation *c, const struct ot_json *row, const char *where) {
    struct ot_message m = {.role = OT_ROLE_SYSTEM, .role_name = "system"};
    if (!is_filled(ot_json_get(row, "system")))
        return 0;
    OT_TRY(need_text(row, "system", where, &m.text, &m.bytes));
    return ot_conversation_add(c, m);
}

int ot_conversation_refuse_tools(const struct ot_json *row, const char *where) {
    static const char *const keys[] = {"tools", "functions", NULL};
    for (const char *const *key = keys; *key; key++)
        if (is_filled(ot_json_get(row, *key)))
            return ot_fail(
                OT_E_INPUT,
                "%s: key '%s' cannot be part of a prompt and its answer; write the row as messages", where,
                *key);
    return 0;
}

static int read_tools(struct ot_conversation *c, const struct ot_json *row, const char *where) {
    const struct ot_json *tools = ot_json_get(row, "tools"), *functions = ot_json_get(row, "functions");
    size_t bytes;
    c->bare_tools = !is_filled(tools) && is_filled(functions);
    const struct ot_json *value = c->bare_tools ? functions : tools;
    if (!is_filled(value))
        return 0;
    const char *text = ot_json_string(value, &bytes);
    if (text && ot_json_parse_row(text, bytes, "tools", &c->parsed_tools) == 0)
        value = c->parsed_tools;
    OT_TRY(ot_row_check_value(value, c->bare_tools ? "functions" : "tools", where));
    if (ot_json_type(value) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: key '%s' must be a list of tools, or a text with such a list in JSON",
                       where, c->bare_tools ? "functions" : "tools");
    for (size_t i = 0; i < ot_json_length(value); i++)
        if (ot_json_type(ot_json_at(value, i)) != OT_JSON_OBJECT)
            return ot_fail(OT_E_INPUT, "%s: a tool must be an object {...}", where);
    if (ot_json_length(value) == 0)
        return 0;
    c->tools = value;
    note_need(c, c->bare_tools ? "key 'functions'" : "key 'tools'");
    return 0;
}

static int read_variables(struct ot_conversation *c, const struct ot_json *row, const char *where) {
    const struct ot_json *variables = ot_json_get(row, "chat_template_kwargs");
    if (!is_filled(variables))
        return 0;
    if (ot_json_type(variables) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: key 'chat_template_kwargs' must be an object {...}", where);
    c->variables = variables;
    note_need(c, "key 'chat_template_kwargs'");
    return 0;
}

int ot_conversation_read(struct ot_conversation *c, const struct ot_json *row, const char *key,
                         const char *where) {
    const struct ot_json *list = ot_json_get(row, key);
    if (ot_json_type(list) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: key '%s' must be an array of turns, but it is %s", where, key,
                       list ? ot_json_type_name(ot_json_type(list)) : "missing");
    OT_TRY(read_tools(c, row, where));
    OT_TRY(read_variables(c, row, where));
    OT_TRY(ot_conversation_read_system(c, row, where));
    bool system = c->n > 0;
    for (size_t i = 0; i < ot_json_length(list); i++)
        OT_TRY(read_turn(c, ot_json_at(list, i), where));
    if (system && c->n > 1 && c->messages[1].role == OT_ROLE_SYSTEM)
        return ot_fail(OT_E_INPUT,
                       "%s: key 'system' and the first turn are both system turns; remove one of them",
                       where);
    return 0;
}

int ot_conversation_read_answer(struct ot_conversation *c, const struct ot_json *row, const char *key,
                                const char *where) {
    const struct ot_json *list = ot_json_get(row, key);
    bool single = ot_json_type(list) == OT_JSON_OBJECT;
    if (ot_json_type(list) != OT_JSON_ARRAY && !single)
        return ot_fail(OT_E_INPUT, "%s: key '%s' must be an array of turns, but it is %s", where, key,
                       list ? ot_json_type_name(ot_json_type(list)) : "missing");
    for (size_t i = 0; i < c->n; i++)
        c->messages[i].untrained = true;
    for (size_t i = 0; i < (single ? 1 : ot_json_length(list)); i++) {
        OT_TRY(read_turn(c, single ? list : ot_json_at(list, i), where));
        if (c->messages[c->n - 1].role != OT_ROLE_ASSISTANT)
            return ot_fail(OT_E_INPUT, "%s: key '%s' may have assistant turns alone, not one of the role %s",
                           where, key, c->messages[c->n - 1].role_name);
    }
    return 0;
}

/* ---- for templates ---- */

/* The turn's thoughts, under any of their keys; NULL: none. */
static const struct ot_json *find_thoughts(const struct ot_json *source) {
    for (const char *const *key = thought_keys; *key; key++)
        if (ot_json_type(ot_json_get(source, *key)) != OT_JSON_NULL)
            return ot_json_get(source, *key);
    return NULL;
}

static void put_content(struct ot_json_writer *w, const struct ot_message *m, bool takes_parts) {
    bool keeps = (m->has_parts && takes_parts) || m->has_value;
    const struct ot_json *value = ot_json_get(m->source, "content");
    if (keeps)
        ot_json_put_value(w, "content", value ? value : ot_json_get(m->source, "value"));
    else
        ot_json_put_string(w, "content", m->text, m->bytes);
}

struct dialect { /* how a template sees turns */
    bool takes_parts, developer;
};

static bool is_for_training(const char *key) {
    bool is = strcmp(key, "weight") == 0;
    for (const char *const *name = train_keys; *name; name++)
        is = is || strcmp(key, *name) == 0;
    return is;
}

/* Python writes NaN for a missing value. */
static bool is_lost(const struct ot_json *value) {
    return ot_json_type(value) == OT_JSON_REAL && isnan(ot_json_real(value, 0));
}

/* Writes a key of the row's turn. Keys with null are left out, as transformers does. */
static void put_key(struct ot_json_writer *w, const struct ot_message *m, struct dialect dialect,
                    const char *key, const struct ot_json *value) {
    if (strcmp(key, "role") == 0 || strcmp(key, "from") == 0)
        ot_json_put_text(w, "role",
                         !dialect.developer && strcmp(m->role_name, "developer") == 0 ? "system"
                                                                                      : m->role_name);
    else if (ot_json_type(value) == OT_JSON_NULL || is_for_training(key) || is_lost(value))
        return;
    else if (strcmp(key, "content") == 0 || strcmp(key, "value") == 0)
        put_content(w, m, dialect.takes_parts);
    else if (strcmp(key, "reasoning_content") == 0)
        ot_json_put_value(w, key, find_thoughts(m->source));
    else if (strcmp(key, "function_call") != 0 && !(m->calls && strcmp(key, "tool_calls") == 0))
        ot_json_put_value(w, key, value);
}

/* Thoughts have both names that templates read, in the places where transformers puts them. */
static void put_message(struct ot_json_writer *w, const struct ot_message *m, struct dialect dialect) {
    const struct ot_json *thoughts = find_thoughts(m->source);
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    ot_json_begin_object(w, NULL);
    if (!m->source) {
        ot_json_put_text(w, "role", m->role_name);
        put_content(w, m, false);
    }
    if (thoughts && ot_json_type(ot_json_get(m->source, "thinking")) == OT_JSON_NULL)
        ot_json_put_value(w, "thinking", thoughts);
    while (ot_json_next(m->source, &cursor, &key, &value))
        put_key(w, m, dialect, key, value);
    if (m->calls)
        ot_json_put_value(w, "tool_calls", m->calls);
    if (thoughts && ot_json_type(ot_json_get(m->source, "reasoning_content")) == OT_JSON_NULL)
        ot_json_put_value(w, "reasoning_content", thoughts);
    ot_json_end_object(w);
}

static void put_plain_message(struct ot_json_writer *w, const struct ot_message *m) {
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "role", ot_role_name(m->role));
    ot_json_put_string(w, "content", m->text, m->bytes);
    if (m->input)
        ot_json_put_string(w, "input", m->input, m->input_bytes);
    ot_json_end_object(w);
}

static int take_json(struct ot_json_writer *w, struct ot_json **out) {
    char *text;
    size_t bytes;
    OT_TRY(ot_json_writer_take(w, &text, &bytes));
    int rc = ot_json_parse(text, bytes, "a conversation", out);
    free(text);
    return rc;
}

int ot_conversation_plain_messages(const struct ot_conversation *c, struct ot_json **out) {
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_array(&w, NULL);
    for (size_t i = 0; i < c->n; i++)
        put_plain_message(&w, &c->messages[i]);
    ot_json_end_array(&w);
    return take_json(&w, out);
}

int ot_conversation_messages(const struct ot_conversation *c, bool takes_parts, bool developer,
                             struct ot_json **out) {
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_array(&w, NULL);
    for (size_t i = 0; i < c->n; i++)
        put_message(&w, &c->messages[i], (struct dialect){takes_parts, developer});
    ot_json_end_array(&w);
    return take_json(&w, out);
}

int ot_conversation_tools(const struct ot_conversation *c, struct ot_json **out) {
    struct ot_json_writer w = {.indent = -1};
    *out = NULL;
    if (!c->tools)
        return 0;
    ot_json_begin_array(&w, NULL);
    for (size_t i = 0; i < ot_json_length(c->tools); i++) {
        if (c->bare_tools)
            put_call(&w, ot_json_at(c->tools, i));
        else
            ot_json_put_value(&w, NULL, ot_json_at(c->tools, i));
    }
    ot_json_end_array(&w);
    return take_json(&w, out);
}
