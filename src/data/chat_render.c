#include "src/data/chat_render.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/text.h"
#include "src/data/chat_render_state.h"
#include "src/tokenizer/tokenizer.h"

/* The date that strftime_now and the built-in templates write. It is fixed, so that a run has the same rows
 * on every day. */
static const struct ot_jinja_date fixed_day = {2024, 7, 26};

/* Bytes that a built-in template writes around the user's texts, and in place of BOS and EOS if the tokenizer
 * does not find them in their texts. No text of a row has these bytes, because it is UTF-8. */
static const char user_begin[] = "\xfc", user_end[] = "\xfd", bos_mark[] = "\xfe", eos_mark[] = "\xff";

/* Variables of a template: ours (at most six), the special tokens, and those of a row. */
enum { MOST_VARIABLES = 32 };

/* ---- opening ---- */

/* The special tokens of tokenizer_config.json: strings, or objects with "content". */
static int read_tokens(const struct ot_json *config, struct ot_json **out) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    struct ot_json_writer w = {.indent = -1};
    char *text;
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct ot_json *value = ot_json_get(config, names[i]);
        const char *token = ot_json_string(value, &bytes);
        token = token ? token : ot_json_string(ot_json_get(value, "content"), &bytes);
        if (token)
            ot_json_put_string(&w, names[i], token, bytes);
    }
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = ot_json_parse(text, bytes, "special tokens", out);
    free(text);
    return rc;
}

static bool contains(const struct ot_jinja_text *text, const char *word) {
    return text->bytes > 0 && memmem(text->text, text->bytes, word, strlen(word)) != NULL;
}

/* Finds out by a trial whether the template writes the text of parts. Those that do not write the list
 * itself, or fail. */
static int find_parts(struct ot_chat_renderer *renderer) {
    static const char probe[] =
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Zq7\"}]}]";
    struct ot_jinja_text text = {0};
    struct ot_json *messages;
    OT_TRY(ot_json_parse(probe, sizeof probe - 1, "a probe", &messages));
    struct ot_jinja_variable variables[] = {{.name = "messages", .value = messages},
                                            {.name = "tools"},
                                            {.name = "add_generation_prompt", .is_flag = true}};
    int rc = ot_jinja_render(renderer->jinja, variables, 3, fixed_day, &text);
    renderer->takes_parts =
        rc == 0 && contains(&text, "Zq7") && !contains(&text, "'type'") && !contains(&text, "\"type\"");
    ot_jinja_text_free(&text);
    ot_json_free(messages);
    return rc == -OT_E_BUDGET ? rc : 0;
}

static int parse(struct ot_chat_renderer *renderer, size_t bytes, const char *name) {
    int rc = ot_jinja_open(renderer->source, bytes, name, &renderer->jinja);
    if (rc != -OT_E_INPUT)
        return rc < 0 ? rc : find_parts(renderer);
    renderer->fault = strdup(ot_error_text());
    return renderer->fault ? 0 : ot_fail(OT_E_BUDGET, "no memory for a chat template");
}

int ot_chat_renderer_open(const char *jinja, size_t bytes, const char *name, const struct ot_json *tokens,
                          struct ot_chat_renderer **out) {
    struct ot_chat_renderer *renderer = calloc(1, sizeof *renderer);
    int rc = 0;
    *out = NULL;
    if (!renderer || !(renderer->source = ot_string_copy(jinja, bytes)) ||
        !(renderer->work = calloc(1, sizeof *renderer->work))) {
        rc = ot_fail(OT_E_BUDGET, "no memory for a chat template");
        goto out;
    }
    OT_TRY_GOTO(ot_chat_template_recognize(jinja, bytes, &renderer->known), rc, out);
    if (tokens)
        OT_TRY_GOTO(read_tokens(tokens, &renderer->tokens), rc, out);
    OT_TRY_GOTO(parse(renderer, bytes, name), rc, out);
    *out = renderer;
    renderer = NULL;
out:
    ot_chat_renderer_close(renderer);
    return rc;
}

int ot_chat_renderer_open_builtin(const struct ot_chat_template *t, struct ot_chat_renderer **out) {
    struct ot_chat_renderer *renderer = calloc(1, sizeof *renderer);
    size_t bytes;
    int rc = 0;
    *out = NULL;
    if (!renderer || !(renderer->work = calloc(1, sizeof *renderer->work))) {
        rc = ot_fail(OT_E_BUDGET, "no memory for a chat template");
        goto out;
    }
    renderer->known = t;
    renderer->is_builtin = true;
    OT_TRY_GOTO(ot_chat_template_write_for_rows(t, &renderer->source, &bytes), rc, out);
    OT_TRY_GOTO(ot_jinja_open(renderer->source, bytes, t->name, &renderer->jinja), rc, out);
    *out = renderer;
    renderer = NULL;
out:
    ot_chat_renderer_close(renderer);
    return rc;
}

int ot_chat_renderer_add_tools(struct ot_chat_renderer *renderer, const char *jinja, size_t bytes,
                               const char *name) {
    OT_TRY(ot_chat_renderer_open(jinja, bytes, name, NULL, &renderer->for_tools));
    renderer->for_tools->tokens = renderer->tokens;
    return 0;
}

uint32_t ot_chat_renderer_crc(const struct ot_chat_renderer *renderer) {
    struct ot_json_writer w = {.indent = -1};
    uint32_t crc = ot_crc32(0, renderer->source, strlen(renderer->source));
    if (renderer->tokens)
        ot_json_put_value(&w, NULL, renderer->tokens);
    crc = ot_crc32(crc, w.out.text, w.out.bytes);
    free(w.out.text);
    if (renderer->for_tools)
        crc = ot_crc32(crc, renderer->for_tools->source, strlen(renderer->for_tools->source));
    return crc;
}

void ot_chat_renderer_close(struct ot_chat_renderer *renderer) {
    if (!renderer)
        return;
    if (renderer->for_tools)
        renderer->for_tools->tokens = NULL; /* they are borrowed */
    ot_chat_renderer_close(renderer->for_tools);
    ot_jinja_close(renderer->jinja);
    ot_json_free(renderer->tokens);
    free(renderer->work);
    free(renderer->source);
    free(renderer->fault);
    free(renderer);
}

const struct ot_chat_template *ot_chat_renderer_known(const struct ot_chat_renderer *renderer) {
    return renderer->known;
}

const char *ot_chat_renderer_fault(const struct ot_chat_renderer *renderer) {
    return renderer->fault;
}

/* ---- rendering ---- */

static void add_members(const struct ot_json *object, struct ot_jinja_variable *variables, size_t *n) {
    void *cursor = NULL;
    const char *name;
    struct ot_json *value;
    while (*n < MOST_VARIABLES && ot_json_next(object, &cursor, &name, &value))
        variables[(*n)++] = (struct ot_jinja_variable){.name = name, .value = value};
}

/* Each rendering has its own bound (jinja.h); this one bounds all renderings of a file. */
static int check_work(const struct ot_chat_job *job) {
    struct ot_chat_work *work = job->renderer->work;
    size_t conversations = atomic_load(&work->conversations), steps = atomic_load(&work->steps);
    if (steps <= OT_CHAT_FREE_STEPS + OT_CHAT_STEPS_EACH * conversations)
        return 0;
    return ot_fail(OT_E_USAGE,
                   "%s: the model's chat template is too slow: it has taken %zu million steps for %zu "
                   "conversations; choose a built-in format with --template",
                   job->where, steps / 1000000, conversations);
}

static void add_text(struct ot_jinja_variable *variables, size_t *n, const char *name, const char *text) {
    if (text)
        variables[(*n)++] = (struct ot_jinja_variable){.name = name, .text = text};
}

static void add_marks(const struct ot_chat_job *job, struct ot_jinja_variable *variables, size_t *n) {
    const struct ot_chat_mark *bos = &job->marks->bos, *eos = &job->marks->eos;
    bool is_builtin = job->renderer->is_builtin;
    add_text(variables, n, "bos_token", is_builtin && bos->text && bos->id >= 0 ? bos_mark : bos->text);
    add_text(variables, n, "eos_token", is_builtin && eos->text && eos->id >= 0 ? eos_mark : eos->text);
    if (is_builtin) {
        add_text(variables, n, "user", user_begin);
        add_text(variables, n, "end", user_end);
    }
}

int ot_chat_render_part(const struct ot_chat_job *job, const struct ot_json *messages, size_t n, bool prompt,
                        struct ot_jinja_text *out) {
    struct ot_jinja_variable variables[MOST_VARIABLES + 4];
    size_t count = 0;
    if (!job->renderer->tokens)
        add_marks(job, variables, &count);
    add_members(job->renderer->tokens, variables, &count);
    add_members(job->c->variables, variables, &count);
    variables[count++] = (struct ot_jinja_variable){.name = "messages", .value = messages, .most = &n};
    variables[count++] = (struct ot_jinja_variable){.name = "tools", .value = job->tools};
    variables[count++] = (struct ot_jinja_variable){.name = "documents"};
    variables[count++] =
        (struct ot_jinja_variable){.name = "add_generation_prompt", .is_flag = true, .flag = prompt};
    OT_TRY(check_work(job));
    int rc = ot_jinja_render(job->renderer->jinja, variables, count, fixed_day, out);
    atomic_fetch_add(&job->renderer->work->steps, out->steps);
    return rc;
}

/* Refuses parts of a conversation that the template never reads; transformers would drop them silently. */
static int check_place(const struct ot_chat_renderer *renderer, const struct ot_conversation *c,
                       const char *where) {
    bool calls = false;
    for (size_t i = 0; i < c->n; i++)
        calls |= c->messages[i].calls ||
                 ot_json_type(ot_json_get(c->messages[i].source, "tool_calls")) == OT_JSON_ARRAY;
    const char *what = c->tools && !ot_jinja_reads(renderer->jinja, "tools") ? "tools"
                       : calls && !strstr(renderer->source, "tool_calls")    ? "tool calls"
                                                                             : NULL;
    if (!what)
        return 0;
    return ot_fail(
        OT_E_INPUT,
        "%s: the model's chat template has no place for %s; remove them from the row, or write them into "
        "the text of a turn",
        where, what);
}

static int open_job(struct ot_chat_job *job, const struct ot_chat_renderer *renderer,
                    const struct ot_conversation *c, const struct ot_chat_marks *marks, const char *where) {
    renderer = c->tools && renderer->for_tools ? renderer->for_tools : renderer;
    *job = (struct ot_chat_job){.renderer = renderer, .c = c, .marks = marks, .where = where};
    if (renderer->fault)
        return ot_fail(OT_E_INPUT, "%s: the model's chat template for tools cannot be used: %s", where,
                       renderer->fault);
    atomic_fetch_add(&renderer->work->conversations, 1);
    if (renderer->is_builtin) {
        OT_TRY(ot_chat_template_check(renderer->known, c, where));
        return ot_conversation_plain_messages(c, &job->messages);
    }
    OT_TRY(check_place(renderer, c, where));
    OT_TRY(ot_conversation_messages(c, renderer->takes_parts, strstr(renderer->source, "developer") != NULL,
                                    &job->messages));
    return ot_conversation_tools(c, &job->tools);
}

static void close_job(struct ot_chat_job *job) {
    ot_json_free(job->messages);
    ot_json_free(job->tools);
    ot_jinja_text_free(&job->text);
    ot_jinja_text_free(&job->part);
    free(job->flags);
}

/* A token that the tokenizer does not find in a text that spells it becomes that token, where the template
 * wrote it. Returns its length at text[at]; 0: none. */
static size_t append_token(const struct ot_chat_job *job, size_t at, struct ot_rendered *r) {
    const struct ot_chat_mark *const marks[] = {&job->marks->bos, &job->marks->eos};
    const struct ot_jinja_text *text = &job->text;
    for (int i = 0; i < 2; i++) {
        const struct ot_chat_mark *mark = marks[i];
        if (mark->id < 0 || !mark->text || mark->bytes == 0 || mark->bytes > text->bytes - at ||
            memcmp(text->text + at, mark->text, mark->bytes) != 0)
            continue;
        ot_rendered_append_token(r, mark->text, mark->bytes, mark->id, job->flags[at] & OT_CHAT_TRAINED);
        return mark->bytes;
    }
    return 0;
}

/* Divides the text where its flags change, and at tokens. */
static int append_text(const struct ot_chat_job *job, struct ot_rendered *r) {
    const struct ot_jinja_text *text = &job->text;
    for (size_t at = 0, end; at < text->bytes; at = end) {
        unsigned char flags = job->flags[at];
        size_t token = flags & OT_CHAT_USER ? 0 : append_token(job, at, r);
        end = at + (token ? token : 1);
        if (token)
            continue;
        bool marks = job->marks->bos.id >= 0 || job->marks->eos.id >= 0;
        while (!marks && end < text->bytes && job->flags[end] == flags)
            end++;
        ot_rendered_append(r, text->text + at, end - at, flags & OT_CHAT_TRAINED, flags & OT_CHAT_USER);
    }
    r->complete = true;
    r->marked = ot_jinja_has_generation(job->renderer->jinja);
    r->untrainable_turns = job->untrainable;
    r->left_out = job->left_out;
    return ot_rendered_check(r);
}

/* The same for a built-in template, which marks the user's text. */
static int append_marked_text(const struct ot_chat_job *job, struct ot_rendered *r) {
    const struct ot_jinja_text *text = &job->text;
    bool user = false;
    for (size_t at = 0, end; at < text->bytes; at = end) {
        bool trained = job->flags[at] & OT_CHAT_TRAINED;
        char c = text->text[at];
        end = at + 1;
        if (c == *user_begin || c == *user_end) {
            user = c == *user_begin;
            continue;
        }
        if (c == *bos_mark || c == *eos_mark) {
            const struct ot_chat_mark *token = c == *bos_mark ? &job->marks->bos : &job->marks->eos;
            ot_rendered_append_token(r, token->text, token->bytes, token->id, trained);
            continue;
        }
        while (end < text->bytes && job->flags[end] == job->flags[at] &&
               (unsigned char)text->text[end] < (unsigned char)*user_begin)
            end++;
        ot_rendered_append(r, text->text + at, end - at, trained, user);
    }
    return ot_rendered_check(r);
}

static int render(struct ot_chat_job *job, const struct ot_tokenizer *tokenizer, struct ot_rendered *r) {
    int rc = ot_chat_render_part(job, job->messages, job->c->n, false, &job->text);
    if (rc < 0)
        return ot_fail_context(rc, "%s", job->where);
    job->flags = calloc(job->text.bytes + 1, 1);
    if (!job->flags)
        return ot_fail(OT_E_BUDGET, "%s: no memory for the text of a row", job->where);
    OT_TRY(ot_chat_mark_trained(job, tokenizer));
    if (job->renderer->is_builtin)
        return append_marked_text(job, r);
    ot_chat_mark_user(job);
    return append_text(job, r);
}

int ot_chat_renderer_render(const struct ot_chat_renderer *renderer, const struct ot_conversation *c,
                            const struct ot_tokenizer *tokenizer, const struct ot_chat_marks *marks,
                            const char *where, struct ot_rendered *r) {
    struct ot_chat_job job;
    int rc = open_job(&job, renderer, c, marks, where);
    if (rc == 0)
        rc = render(&job, tokenizer, r);
    close_job(&job);
    return rc;
}

int ot_chat_renderer_prompt(const struct ot_chat_renderer *renderer, const struct ot_conversation *c,
                            const struct ot_chat_marks *marks, const char *where, struct ot_rendered *r) {
    struct ot_chat_job job;
    size_t n = c->n > 0 && c->messages[c->n - 1].role == OT_ROLE_ASSISTANT ? c->n - 1 : c->n;
    int rc;
    OT_TRY_GOTO(open_job(&job, renderer, c, marks, where), rc, out);
    rc = ot_chat_render_part(&job, job.messages, n, true, &job.text);
    if (rc < 0) {
        rc = ot_fail_context(rc, "%s", where);
        goto out;
    }
    job.flags = calloc(job.text.bytes + 1, 1);
    rc =
        job.flags ? append_text(&job, r) : ot_fail(OT_E_BUDGET, "%s: no memory for the text of a row", where);
out:
    close_job(&job);
    return rc;
}
