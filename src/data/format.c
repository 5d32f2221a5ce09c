#include "src/data/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/data/template.h"

/* The question is an SQL comment that describes the statement after it: base models have read millions of
 * these. The line end keeps the border of prompt and answer between two tokens, whatever the tokenizer. */
#define SQL_PROMPT "{context}\n-- {question}\n"

enum { MAX_KEYS = 3 };

struct kind {
    enum ot_row_kind kind;
    const char *name;
    const char *keys[MAX_KEYS]; /* required keys; for a prompt and an answer, the last key is the answer */
    const char *prompt;         /* prompt format; NULL: the kind has turns, or a single text */
};

/* The kinds in the order in which they are tried, the most specific first (alpaca files may also have a
 * "text"). */
static const struct kind kinds[] = {
    {OT_ROW_MESSAGES, "messages", {"messages"}, NULL},
    {OT_ROW_SHAREGPT, "sharegpt", {"conversations"}, NULL},
    {OT_ROW_SHAREGPT, "sharegpt", {"conversation"}, NULL},
    {OT_ROW_ALPACA, "alpaca", {"instruction", "output"}, "{instruction}"},
    {OT_ROW_SQL, "sql", {"question", "context", "answer"}, SQL_PROMPT},
    {OT_ROW_MESSAGES, "messages", {"prompt", "completion"}, NULL},
    {OT_ROW_PROMPT, "prompt", {"prompt", "completion"}, "{prompt}"},
    {OT_ROW_PROMPT, "prompt", {"prompt", "response"}, "{prompt}"},
    {OT_ROW_PAIR, "pair", {"input", "target"}, "{input}"},
    {OT_ROW_TEXT, "text", {"text"}, NULL},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

const char *const ot_answer_keys[] = {"answer", "completion", "response", "output", "target", NULL};

static const char accepted[] = "text; prompt + completion or response (texts, or lists of turns); "
                               "instruction + output (+ input); messages; "
                               "conversations; question + context + answer; input + target";

struct ot_format {
    const struct ot_chat_template *template; /* NULL: none, or the model's own */
    struct ot_chat_renderer *builtin;        /* `template`, open */
    const struct ot_chat_renderer *of_model; /* the model's own, if it is in use; NULL: it is not */
    struct ot_template_choice chat;
    enum ot_template_source source;
    struct ot_prompt_format *prompt; /* the user's, otherwise the kind's */
    struct ot_chat_marks marks;
    const struct ot_tokenizer *tokenizer;
    bool train_prompt, custom;
    enum ot_row_kind kind;
    const struct kind *row; /* NULL: custom */
    const char *answer_key; /* NULL: turns or a single text */
};

const char *ot_row_kind_name(enum ot_row_kind kind) {
    for (int i = 0; i < N_KINDS; i++)
        if (kinds[i].kind == kind)
            return kinds[i].name;
    return kind == OT_ROW_CUSTOM ? "custom" : "unknown";
}

static int use_builtin(struct ot_format *f, const struct ot_chat_template *t) {
    f->template = t;
    return ot_chat_renderer_open_builtin(t, &f->builtin);
}

static int take_template(struct ot_format *f, const char *name, enum ot_template_source source) {
    const struct ot_chat_template *t = ot_chat_template_find(name);
    f->source = source;
    if (t)
        return use_builtin(f, t);
    return ot_fail(source == OT_TEMPLATE_NAMED ? OT_E_USAGE : OT_E_INPUT,
                   "%sunknown chat template '%s'; known: %s",
                   source == OT_TEMPLATE_NAMED ? "" : "the model's run.json names a template: ", name,
                   ot_chat_template_names());
}

int ot_format_open(const struct ot_format_config *config, struct ot_format **out) {
    *out = NULL;
    int rc = 0;
    struct ot_format *f = calloc(1, sizeof *f);
    if (!f)
        return ot_fail(OT_E_BUDGET, "no memory for the data format");
    f->marks = config->marks;
    f->tokenizer = config->tokenizer;
    f->train_prompt = config->train_prompt;
    f->chat = config->chat;
    if (f->chat.named)
        OT_TRY_GOTO(take_template(f, f->chat.named, OT_TEMPLATE_NAMED), rc, out);
    f->custom = config->prompt_format != NULL;
    if (f->custom)
        OT_TRY_GOTO(ot_prompt_format_open(config->prompt_format, &f->prompt), rc, out);
    *out = f;
    f = NULL;
out:
    ot_format_close(f);
    return rc;
}

void ot_format_close(struct ot_format *f) {
    if (!f)
        return;
    ot_prompt_format_close(f->prompt);
    ot_chat_renderer_close(f->builtin);
    free(f);
}

enum ot_row_kind ot_format_kind(const struct ot_format *f) {
    return f->kind;
}

const char *ot_format_template(const struct ot_format *f) {
    if (f->template)
        return f->template->name;
    return f->of_model ? "the model's own" : NULL;
}

enum ot_template_source ot_format_template_source(const struct ot_format *f) {
    return f->source;
}

/* ---- detecting the kind ---- */

/* True if each key has a list of turns; only those of the second key train, which may also be one turn. */
static bool takes_lists(const struct kind *kind) {
    return kind->kind == OT_ROW_MESSAGES && kind->keys[1];
}

static bool has_keys(const struct ot_json *row, const struct kind *kind) {
    for (int i = 0; i < MAX_KEYS && kind->keys[i]; i++) {
        enum ot_json_type type = ot_json_type(ot_json_get(row, kind->keys[i]));
        bool is_turns = type == OT_JSON_ARRAY || (i == 1 && type == OT_JSON_OBJECT);
        if (type == OT_JSON_NULL || (takes_lists(kind) && !is_turns))
            return false;
    }
    return true;
}

/* Lists the keys of a row for an error message. */
static void list_keys(const struct ot_json *row, char *text, size_t capacity) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    size_t used = 0;
    text[0] = '\0';
    while (used < capacity && ot_json_next(row, &cursor, &key, &value))
        used += (size_t)snprintf(text + used, capacity - used, "%s%s%s", used ? ", " : "", key,
                                 ot_json_type(value) == OT_JSON_NULL ? " (null)" : "");
}

static bool is_placeholder(const struct ot_prompt_format *format, const char *key) {
    for (size_t i = 0; i < ot_prompt_format_fields(format); i++)
        if (strcmp(ot_prompt_format_field(format, i), key) == 0)
            return true;
    return false;
}

static int detect_custom(struct ot_format *f, const struct ot_json *row, const char *where) {
    for (const char *const *key = ot_answer_keys; *key && !f->answer_key; key++)
        if (ot_json_get(row, *key) && !is_placeholder(f->prompt, *key))
            f->answer_key = *key;
    if (!f->answer_key) {
        char keys[256];
        list_keys(row, keys, sizeof keys);
        return ot_fail(
            OT_E_INPUT,
            "%s: --prompt-format renders only the prompt; the row must have the answer in a key 'answer', "
            "'completion', 'response', 'output' or 'target' (its keys: %s)",
            where, keys);
    }
    f->kind = OT_ROW_CUSTOM;
    return 0;
}

/* Chooses the template for conversations if the user gave none. */
static int choose_model_template(struct ot_format *f, const char *where) {
    const struct ot_chat_renderer *renderer = f->chat.of_model;
    if (renderer && ot_chat_renderer_fault(renderer))
        return ot_fail(
            OT_E_USAGE,
            "%s: the model's chat template cannot be used: %s; choose a format with --template: %s", where,
            ot_chat_renderer_fault(renderer), ot_chat_template_names());
    f->of_model = renderer;
    f->source = renderer ? OT_TEMPLATE_OWN : OT_TEMPLATE_GUESSED;
    const struct ot_chat_template *t =
        renderer ? ot_chat_renderer_known(renderer) : ot_chat_template_guess(f->tokenizer);
    if (renderer || t)
        return t ? use_builtin(f, t) : 0;
    return ot_fail(
        OT_E_USAGE,
        "%s: the rows are conversations, but the model has no chat template; choose one with --template: %s",
        where, ot_chat_template_names());
}

/* A run records the name of a built-in template. If the model's own template is the same, it renders the rows
 * that the built-in one cannot. */
static int take_recorded(struct ot_format *f) {
    OT_TRY(take_template(f, f->chat.recorded, OT_TEMPLATE_RECORDED));
    if (f->chat.of_model && ot_chat_renderer_known(f->chat.of_model) == f->template)
        f->of_model = f->chat.of_model;
    return 0;
}

static int choose_template(struct ot_format *f, enum ot_row_kind kind, const char *where) {
    if (kind == OT_ROW_TEXT && f->template)
        return ot_fail(OT_E_USAGE, "%s: rows of plain text have no turns, so leave out --template %s", where,
                       f->template->name);
    if (kind == OT_ROW_TEXT || f->template)
        return 0;
    if (f->chat.recorded)
        return take_recorded(f);
    if (kind == OT_ROW_MESSAGES || kind == OT_ROW_SHAREGPT)
        return choose_model_template(f, where);
    return kind == OT_ROW_ALPACA ? take_template(f, "alpaca", OT_TEMPLATE_BY_KIND) : 0;
}

static int adopt_kind(struct ot_format *f, const struct kind *kind, const char *where) {
    OT_TRY(choose_template(f, kind->kind, where));
    if (kind->prompt) {
        OT_TRY(ot_prompt_format_open(kind->prompt, &f->prompt));
        int last = MAX_KEYS - 1;
        while (!kind->keys[last])
            last--;
        f->answer_key = kind->keys[last];
    }
    f->row = kind;
    f->kind = kind->kind;
    return 0;
}

static int need_object(const struct ot_json *row, const char *where) {
    if (ot_json_type(row) == OT_JSON_OBJECT)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: a row must be an object {...}, not %s", where,
                   ot_json_type_name(ot_json_type(row)));
}

int ot_format_detect(struct ot_format *f, const struct ot_json *row, const char *where) {
    if (f->kind != OT_ROW_UNKNOWN)
        return 0;
    OT_TRY(need_object(row, where));
    OT_TRY(ot_row_refuse_preference(row, where));
    if (f->custom)
        return detect_custom(f, row, where);
    for (int i = 0; i < N_KINDS; i++)
        if (has_keys(row, &kinds[i]))
            return adopt_kind(f, &kinds[i], where);
    char keys[256];
    list_keys(row, keys, sizeof keys);
    return ot_fail(OT_E_INPUT,
                   "%s: unknown kind of row: it has the keys %s; accepted: %s; or give the fields with "
                   "--prompt-format",
                   where, *keys ? keys : "(none)", accepted);
}

/* ---- rendering ---- */

static int need_string(const struct ot_format *f, const struct ot_json *row, const char *where,
                       const char *key, const char **text, size_t *bytes) {
    const struct ot_json *value = ot_json_get(row, key);
    *text = ot_json_string(value, bytes);
    if (*text)
        return 0;
    if (!value)
        return ot_fail(OT_E_INPUT, "%s: key '%s' is missing or null (the file's rows are of kind '%s')",
                       where, key, ot_row_kind_name(f->kind));
    return ot_fail(OT_E_INPUT, "%s: key '%s' must be a string, not %s", where, key,
                   ot_json_type_name(ot_json_type(value)));
}

static int render_text(const struct ot_format *f, const struct ot_json *row, const char *where,
                       struct ot_rendered *r) {
    const char *text;
    size_t bytes;
    OT_TRY(need_string(f, row, where, "text", &text, &bytes));
    ot_rendered_append(r, text, bytes, !ot_text_is_blank(text, bytes), true);
    return 0;
}

/* ---- turns ---- */

/* Adds the turns of "history": pairs of a user's text and the assistant's answer. */
static int add_history(const struct ot_json *row, const char *where, struct ot_conversation *talk) {
    const struct ot_json *history = ot_json_get(row, "history");
    for (size_t i = 0; i < ot_json_length(history); i++) {
        const struct ot_json *pair = ot_json_at(history, i);
        for (size_t k = 0; k < 2; k++) {
            struct ot_message m = {.role = k ? OT_ROLE_ASSISTANT : OT_ROLE_USER,
                                   .role_name = k ? "assistant" : "user"};
            m.text = ot_json_string(ot_json_at(pair, k), &m.bytes);
            if (!m.text || ot_json_length(pair) != 2)
                return ot_fail(OT_E_INPUT,
                               "%s: key 'history' must be a list of pairs of strings: what the user said, "
                               "what the assistant answered",
                               where);
            OT_TRY(ot_conversation_add(talk, m));
        }
    }
    return 0;
}

/* True if the key is present and not empty. */
static bool is_filled(const struct ot_json *value) {
    size_t bytes = 0;
    const char *text = ot_json_string(value, &bytes);
    if (text)
        return !ot_text_is_blank(text, bytes);
    return ot_json_type(value) == OT_JSON_ARRAY ? ot_json_length(value) > 0
                                                : ot_json_type(value) != OT_JSON_NULL;
}

/* Adds the prompt as a user's turn and the answer as an assistant's turn. */
static int add_pair(const struct ot_format *f, const struct ot_json *row, const char *where,
                    struct ot_rendered *prompt, struct ot_message answer, struct ot_conversation *talk) {
    struct ot_message question = {.role = OT_ROLE_USER, .role_name = "user"};
    ot_prompt_format_render(f->prompt, row, prompt);
    /* Drop the white space that ends a prompt format: between turns the template writes the separator. */
    while (prompt->bytes > 0 && ot_text_is_blank(prompt->text + prompt->bytes - 1, 1))
        prompt->bytes--;
    question.text = prompt->bytes ? prompt->text : "";
    question.bytes = prompt->bytes;
    if (f->kind == OT_ROW_ALPACA)
        question.input = ot_json_string(ot_json_get(row, "input"), &question.input_bytes);
    if (f->kind == OT_ROW_ALPACA && !question.input && is_filled(ot_json_get(row, "input")))
        return ot_fail(OT_E_INPUT, "%s: key 'input' must be a string, not %s", where,
                       ot_json_type_name(ot_json_type(ot_json_get(row, "input"))));
    if (question.input_bytes == 0)
        question.input = NULL;
    OT_TRY(ot_rendered_check(prompt));
    OT_TRY(ot_conversation_add(talk, question));
    return ot_conversation_add(talk, answer);
}

/* Refuses parts of a conversation that the built-in templates cannot render: they must not be lost
 * silently. */
static int check_needs(const struct ot_format *f, const struct ot_conversation *talk, const char *where) {
    if (!talk->needs)
        return 0;
    return ot_fail(
        OT_E_INPUT,
        "%s: the built-in chat template %s has no place for %s; use a model that has a template of its own "
        "with a place for it, without --template, or write its contents into the text of the turns",
        where, f->template->name, talk->needs);
}

static int render_builtin(const struct ot_format *f, const struct ot_conversation *talk, const char *where,
                          struct ot_rendered *r) {
    OT_TRY(check_needs(f, talk, where));
    return ot_chat_renderer_render(f->builtin, talk, f->tokenizer, &f->marks, where, r);
}

/* True if the model's own template writes this conversation. Where a built-in template gives the same, it
 * does, because it also trains answers whose place in that template's text is not exact. */
static bool uses_own(const struct ot_format *f, const struct ot_conversation *talk) {
    bool is_own = f->of_model && (!f->template || f->template == ot_chat_renderer_known(f->of_model));
    return is_own && (!f->template || talk->needs);
}

static int render_talk(const struct ot_format *f, const struct ot_conversation *talk, const char *where,
                       struct ot_rendered *r) {
    if (uses_own(f, talk))
        return ot_chat_renderer_render(f->of_model, talk, f->tokenizer, &f->marks, where, r);
    return render_builtin(f, talk, where, r);
}

/* True for kinds whose rows may have a system turn and earlier turns in keys of their own. */
static bool has_earlier_turns(const struct ot_format *f) {
    return f->kind == OT_ROW_ALPACA || f->kind == OT_ROW_PROMPT;
}

static int render_pair_as_turns(const struct ot_format *f, const struct ot_json *row, const char *where,
                                struct ot_message answer, struct ot_rendered *r) {
    struct ot_rendered prompt = {0};
    struct ot_conversation talk = {0};
    int rc;
    if (has_earlier_turns(f)) {
        OT_TRY_GOTO(ot_conversation_refuse_tools(row, where), rc, out);
        OT_TRY_GOTO(ot_conversation_read_system(&talk, row, where), rc, out);
        OT_TRY_GOTO(add_history(row, where, &talk), rc, out);
    }
    OT_TRY_GOTO(add_pair(f, row, where, &prompt, answer, &talk), rc, out);
    rc = render_builtin(f, &talk, where, r);
out:
    ot_conversation_free(&talk);
    ot_rendered_free(&prompt);
    return rc;
}

/* Without a template the prompt has no place for these keys. */
static int refuse_earlier_turns(const struct ot_format *f, const struct ot_json *row, const char *where) {
    static const char *const keys[] = {"system", "history", "tools", "functions"};
    for (size_t i = 0; has_earlier_turns(f) && i < sizeof keys / sizeof *keys; i++)
        if (is_filled(ot_json_get(row, keys[i])))
            return ot_fail(
                OT_E_INPUT,
                "%s: key '%s' cannot be part of a prompt without a template; use --template to make "
                "turns of the row, or --prompt-format to place its keys",
                where, keys[i]);
    return 0;
}

static int render_pair(const struct ot_format *f, const struct ot_json *row, const char *where,
                       struct ot_rendered *r) {
    struct ot_message answer = {.role = OT_ROLE_ASSISTANT, .role_name = "assistant"};
    for (size_t i = 0; i < ot_prompt_format_fields(f->prompt); i++) {
        const char *text;
        size_t bytes;
        OT_TRY(need_string(f, row, where, ot_prompt_format_field(f->prompt, i), &text, &bytes));
    }
    OT_TRY(need_string(f, row, where, f->answer_key, &answer.text, &answer.bytes));
    if (f->template)
        return render_pair_as_turns(f, row, where, answer, r);
    OT_TRY(refuse_earlier_turns(f, row, where));
    ot_prompt_format_render(f->prompt, row, r);
    ot_rendered_append(r, answer.text, answer.bytes, !ot_text_is_blank(answer.text, answer.bytes), true);
    return 0;
}

static int render_turns(const struct ot_format *f, const struct ot_json *row, const char *where,
                        struct ot_rendered *r) {
    struct ot_conversation talk = {0};
    int rc = ot_conversation_read(&talk, row, f->row->keys[0], where);
    if (rc == 0 && takes_lists(f->row))
        rc = ot_conversation_read_answer(&talk, row, f->row->keys[1], where);
    if (rc == 0)
        rc = render_talk(f, &talk, where, r);
    ot_conversation_free(&talk);
    return rc;
}

int ot_format_render_prompt(const struct ot_format *f, const struct ot_json *row, const char *where,
                            struct ot_rendered *r) {
    struct ot_conversation talk = {0};
    ot_rendered_reset(r);
    if (f->kind != OT_ROW_MESSAGES && f->kind != OT_ROW_SHAREGPT)
        return 0;
    int rc = ot_conversation_read(&talk, row, f->row->keys[0], where);
    if (rc == 0 && uses_own(f, &talk))
        rc = ot_chat_renderer_prompt(f->of_model, &talk, &f->marks, where, r);
    if (rc == 0)
        rc = uses_own(f, &talk);
    ot_conversation_free(&talk);
    return rc;
}

/* Refuses keys of the row that this program does not support, and NaN, Infinity or broken texts in used
 * fields. */
static int check_row(const struct ot_format *f, const struct ot_json *row, const char *where) {
    static const char *const shared[] = {"system",    "history", "tools",
                                         "functions", "input",   "chat_template_kwargs"};
    OT_TRY(ot_row_refuse_preference(row, where));
    OT_TRY(ot_row_refuse_unlearned(row, f->custom ? f->prompt : NULL, f->kind == OT_ROW_TEXT, where));
    for (size_t i = 0; f->prompt && i < ot_prompt_format_fields(f->prompt); i++) {
        const char *key = ot_prompt_format_field(f->prompt, i);
        OT_TRY(ot_row_check_value(ot_json_get(row, key), key, where));
    }
    if (f->answer_key)
        OT_TRY(ot_row_check_value(ot_json_get(row, f->answer_key), f->answer_key, where));
    const bool has_others = f->row && !f->answer_key; /* else they are those of the prompt and the answer */
    for (int i = 0; has_others && i < MAX_KEYS && f->row->keys[i]; i++)
        OT_TRY(ot_row_check_value(ot_json_get(row, f->row->keys[i]), f->row->keys[i], where));
    for (size_t i = 0; !f->custom && f->kind != OT_ROW_TEXT && i < sizeof shared / sizeof *shared; i++)
        OT_TRY(ot_row_check_value(ot_json_get(row, shared[i]), shared[i], where));
    return 0;
}

/* Drops the text after the last trained span. With train_prompt, first makes everything train. */
static void finish(const struct ot_format *f, struct ot_rendered *r) {
    if (f->train_prompt)
        for (size_t i = 0; i < r->n_spans; i++)
            r->spans[i].trained = true;
    while (r->n_spans > 0 && !r->spans[r->n_spans - 1].trained)
        r->n_spans--;
    r->bytes = r->n_spans > 0 ? r->spans[r->n_spans - 1].end : 0;
}

int ot_format_render(const struct ot_format *f, const struct ot_json *row, const char *where,
                     struct ot_rendered *r) {
    ot_rendered_reset(r);
    OT_TRY(need_object(row, where));
    OT_TRY(check_row(f, row, where));
    switch (f->kind) {
    case OT_ROW_TEXT:
        OT_TRY(render_text(f, row, where, r));
        break;
    case OT_ROW_MESSAGES:
    case OT_ROW_SHAREGPT:
        OT_TRY(render_turns(f, row, where, r));
        break;
    case OT_ROW_PROMPT:
    case OT_ROW_ALPACA:
    case OT_ROW_SQL:
    case OT_ROW_PAIR:
    case OT_ROW_CUSTOM:
        OT_TRY(render_pair(f, row, where, r));
        break;
    case OT_ROW_UNKNOWN:
        return ot_fail(OT_E_INTERNAL, "%s: the row was rendered before its kind was known", where);
    }
    finish(f, r);
    return ot_rendered_check(r);
}
