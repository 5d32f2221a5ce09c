/* Marks which bytes of a rendered conversation are trained, and which the user wrote. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/data/chat_render_state.h"
#include "src/tokenizer/tokenizer.h"

/* A character of a private use area: stands for an answer whose place is searched. */
#define STAND_IN "\xee\x80\x80"
enum { LONGEST_TOKEN = 64 };

static void set_flags(struct ot_chat_job *job, size_t begin, size_t end, unsigned char flag) {
    for (size_t i = begin; i < end; i++)
        job->flags[i] |= flag;
}

static bool begins_text(const struct ot_chat_job *job, const struct ot_jinja_text *part) {
    return part->bytes <= job->text.bytes &&
           (part->bytes == 0 || memcmp(part->text, job->text.text, part->bytes) == 0);
}

/* Keeps the reason for the first turn without a place. Returns 0. */
static int has_no_place(struct ot_chat_job *job, size_t turn, const char *why) {
    if (!*job->why)
        snprintf(job->why, sizeof job->why, "turn %zu: %s", turn + 1, why);
    return 0;
}

/* ---- where a turn begins ---- */

/* The messages before turn i, and a stand-in for its answer. */
static int make_stand_in(const struct ot_chat_job *job, size_t i, struct ot_json **out) {
    struct ot_json_writer w = {.indent = -1};
    char *text;
    size_t bytes;
    ot_json_begin_array(&w, NULL);
    for (size_t k = 0; k < i; k++)
        ot_json_put_value(&w, NULL, ot_json_at(job->messages, k));
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "role", "assistant");
    ot_json_put_text(&w, "content", STAND_IN);
    ot_json_end_object(&w);
    ot_json_end_array(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = ot_json_parse(text, bytes, "a conversation", out);
    free(text);
    return rc;
}

static size_t common_bytes(const struct ot_jinja_text *a, size_t a_bytes, const struct ot_jinja_text *b) {
    size_t n = 0;
    while (n < a_bytes && n < b->bytes && a->text[n] == b->text[n])
        n++;
    return n;
}

/* Sets *head to the number of bytes before the answer of turn i, by a stand-in for it. Returns 1, 0 (there
 * is no such place), or an error. */
static int find_head(struct ot_chat_job *job, size_t i, struct ot_jinja_text *text, size_t *head) {
    struct ot_json *messages;
    OT_TRY(make_stand_in(job, i, &messages));
    int rc = ot_chat_render_part(job, messages, i + 1, false, text);
    ot_json_free(messages);
    if (rc < 0)
        return rc == -OT_E_INPUT ? 0 : rc;
    const char *at = text->bytes ? memmem(text->text, text->bytes, STAND_IN, strlen(STAND_IN)) : NULL;
    if (!at)
        return 0;
    *head = (size_t)(at - text->text);
    text->bytes = *head;
    return begins_text(job, text);
}

/* Finds the begin of turn i in templates that have no prompt, or whose text does not begin with it. job->part
 * is the prompt. */
static int find_begin_by_head(struct ot_chat_job *job, size_t i, size_t *begin) {
    struct ot_jinja_text head = {0}, before = {0};
    size_t bytes = 0;
    int rc = find_head(job, i, &head, &bytes);
    if (rc > 0 && i > 0) {
        rc = ot_chat_render_part(job, job->messages, i, false, &before);
        rc = rc == -OT_E_INPUT ? 0 : rc < 0 ? rc : before.bytes <= bytes && begins_text(job, &before);
    }
    if (rc > 0 && i > 0 && ot_jinja_reads(job->renderer->jinja, "add_generation_prompt"))
        bytes = common_bytes(&head, bytes, &job->part);
    if (rc > 0 && bytes < before.bytes)
        rc = 0;
    *begin = bytes;
    ot_jinja_text_free(&head);
    ot_jinja_text_free(&before);
    return rc;
}

static int find_begin(struct ot_chat_job *job, size_t i, size_t *begin) {
    int rc = ot_chat_render_part(job, job->messages, i, true, &job->part);
    if (rc == -OT_E_INPUT && i == 0) { /* many templates refuse a conversation without a turn */
        job->part.bytes = 0;
        rc = find_begin_by_head(job, i, begin);
        return rc != 0 ? rc : has_no_place(job, i, "its beginning is not found");
    }
    if (rc == -OT_E_INPUT)
        return has_no_place(job, i, ot_error_text());
    OT_TRY(rc);
    *begin = job->part.bytes;
    if (begins_text(job, &job->part) && ot_jinja_reads(job->renderer->jinja, "add_generation_prompt"))
        return 1;
    rc = find_begin_by_head(job, i, begin);
    if (rc != 0)
        return rc;
    return has_no_place(job, i, "the generation prompt differs from the text before the answer");
}

/* ---- where a turn ends ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The text of a message without white space around it, and without thoughts in front of it. */
static const char *visible_text(const struct ot_message *m, bool thoughts, size_t *bytes) {
    static const char mark[] = "</think>";
    const char *text = m->text, *end = text + m->bytes, *at = text;
    while (!thoughts && m->bytes > 0 && (at = memmem(text, (size_t)(end - text), mark, strlen(mark))))
        text = at + strlen(mark);
    while (text < end && is_space(*text))
        text++;
    while (end > text && is_space(end[-1]))
        end--;
    *bytes = (size_t)(end - text);
    return text;
}

/* The turn rendered last (job->part from `begin`) may begin with a frame that the whole text lacks. Returns
 * the length of the turn's longest suffix that the whole text has at `begin` and that holds all of the turn's
 * words; 0: none. */
static size_t find_overlap(const struct ot_chat_job *job, size_t i, size_t begin) {
    const struct ot_message *m = &job->c->messages[i];
    const struct ot_jinja_text *part = &job->part, *whole = &job->text;
    size_t bytes, alone = part->bytes - begin, after = whole->bytes - begin;
    const char *text = visible_text(m, true, &bytes);
    if (m->says_more || bytes == 0)
        return 0;
    for (size_t n = ot_min(alone, after); n >= bytes; n--) {
        const char *tail = part->text + part->bytes - n;
        if (*tail == whole->text[begin] && memcmp(tail, whole->text + begin, n) == 0)
            return memmem(tail, n, text, bytes) ? n : 0;
    }
    return 0;
}

/* Length of the special token at the front of text[0..n); 0: none. */
static size_t token_at(const struct ot_tokenizer *tokenizer, const char *text, size_t n) {
    for (size_t length = ot_min(n, LONGEST_TOKEN); length > 0; length--) {
        int32_t id = ot_tokenizer_find(tokenizer, text, length);
        if (id >= 0 && ot_tokenizer_is_special(tokenizer, id))
            return length;
    }
    return 0;
}

/* Some templates end every text with a mark that is not between turns. If job->part, which ends with the
 * turn, differs from the whole text only by this mark, the turn ends before the mark. Returns the turn's end;
 * 0: the texts differ otherwise. */
static size_t find_end_before_mark(const struct ot_chat_job *job, const struct ot_tokenizer *tokenizer,
                                   size_t begin) {
    const struct ot_jinja_text *part = &job->part;
    size_t end = common_bytes(part, part->bytes, &job->text), back = ot_min(end, LONGEST_TOKEN);
    for (size_t at = end - back; at < end; at++)
        if (at + token_at(tokenizer, part->text + at, part->bytes - at) > end) {
            end = at;
            break;
        }
    size_t at = end, n;
    while (at < part->bytes) {
        n = is_space(part->text[at]) ? 1 : token_at(tokenizer, part->text + at, part->bytes - at);
        if (n == 0)
            return 0;
        at += n;
    }
    return end > begin ? end : 0;
}

static int find_end(struct ot_chat_job *job, const struct ot_tokenizer *tokenizer, size_t i, size_t begin,
                    size_t *end) {
    *end = job->text.bytes;
    if (i + 1 == job->c->n)
        return 1;
    int rc = ot_chat_render_part(job, job->messages, i + 1, false, &job->part);
    if (rc == -OT_E_INPUT)
        return has_no_place(job, i, ot_error_text());
    OT_TRY(rc);
    *end = job->part.bytes;
    if (begins_text(job, &job->part))
        return 1;
    bool same = job->part.bytes >= begin && memcmp(job->part.text, job->text.text, begin) == 0;
    *end = same ? find_end_before_mark(job, tokenizer, begin) : 0;
    if (*end > 0)
        return 1;
    size_t overlap = same ? find_overlap(job, i, begin) : 0;
    *end = begin + overlap;
    if (overlap > 0)
        return 1;
    return has_no_place(job, i, "the template writes the turn in another way once later turns follow it");
}

/* The end of a turn is its last special token: white space behind that is the template's, not the model's. A
 * turn without one takes the token that follows it, because that is where the model has to stop. */
static size_t settle_end(const struct ot_chat_job *job, const struct ot_tokenizer *tokenizer, size_t begin,
                         size_t end) {
    const struct ot_jinja_text *text = &job->text;
    size_t last = end;
    while (last > begin && is_space(text->text[last - 1]))
        last--;
    for (size_t n = 1; n <= LONGEST_TOKEN && n <= last - begin; n++)
        if (token_at(tokenizer, text->text + last - n, n) == n)
            return last;
    return end + token_at(tokenizer, text->text + end, text->bytes - end);
}

static int mark_turn(struct ot_chat_job *job, const struct ot_tokenizer *tokenizer, size_t i) {
    size_t begin, end;
    int rc = find_begin(job, i, &begin);
    if (rc > 0)
        rc = find_end(job, tokenizer, i, begin, &end);
    if (rc > 0 && end > begin)
        set_flags(job, begin, settle_end(job, tokenizer, begin, end), OT_CHAT_TRAINED);
    job->untrainable += rc == 0;
    return rc < 0 ? rc : 0;
}

static bool trains(const struct ot_message *m) {
    return m->role == OT_ROLE_ASSISTANT && !m->untrained && ot_message_speaks(m);
}

static int mark_by_prefixes(struct ot_chat_job *job, const struct ot_tokenizer *tokenizer) {
    int turns = 0;
    for (size_t i = 0; i < job->c->n; i++) {
        if (!trains(&job->c->messages[i]))
            continue;
        turns++;
        OT_TRY(mark_turn(job, tokenizer, i));
    }
    if (turns == 0 || job->untrainable < turns)
        return 0;
    return ot_fail(
        OT_E_INPUT,
        "%s: cannot find the assistant's answers in the rendered conversation (%s); choose a format with "
        "--template, or remove the row",
        job->where, job->why);
}

/* ---- generation blocks ---- */

/* Turns with a weight need one block for each assistant turn. */
static int mark_by_blocks(struct ot_chat_job *job) {
    size_t turns = 0, unlike = 0;
    for (size_t i = 0; i < job->c->n; i++) {
        const struct ot_message *m = &job->c->messages[i];
        turns += m->role == OT_ROLE_ASSISTANT;
        unlike += m->role == OT_ROLE_ASSISTANT && !trains(m);
    }
    bool matches = turns == job->text.n_spans;
    if (unlike > 0 && !matches)
        return ot_fail(
            OT_E_INPUT,
            "%s: the model's chat template marks %zu parts of %zu assistant turns, so turns that are "
            "empty or have the weight 0 cannot be told from the others",
            job->where, job->text.n_spans, turns);
    for (size_t i = 0, k = 0; k < job->text.n_spans; i++) {
        const struct ot_message *m = matches ? &job->c->messages[i] : NULL;
        if (m && m->role != OT_ROLE_ASSISTANT)
            continue;
        if (!m || trains(m))
            set_flags(job, job->text.spans[k].begin, job->text.spans[k].end, OT_CHAT_TRAINED);
        k++;
    }
    return 0;
}

int ot_chat_mark_trained(struct ot_chat_job *job, const struct ot_tokenizer *tokenizer) {
    return ot_jinja_has_generation(job->renderer->jinja) ? mark_by_blocks(job)
                                                         : mark_by_prefixes(job, tokenizer);
}

/* ---- the user's text ---- */

/* Finds a text behind *at and moves *at behind it. */
static bool find_text(struct ot_chat_job *job, const char *text, size_t bytes, size_t *at) {
    const char *found = bytes ? memmem(job->text.text + *at, job->text.bytes - *at, text, bytes) : NULL;
    if (!found)
        return bytes == 0;
    size_t begin = (size_t)(found - job->text.text);
    set_flags(job, begin, begin + bytes, OT_CHAT_USER);
    *at = begin + bytes;
    return true;
}

/* Templates write results of tools as JSON: the text with escapes. */
static bool find_escaped(struct ot_chat_job *job, const char *text, size_t bytes, size_t *at) {
    struct ot_json_writer w = {.indent = -1};
    char *json;
    size_t n;
    ot_json_put_string(&w, NULL, text, bytes);
    if (ot_json_writer_take(&w, &json, &n) < 0)
        return true;
    bool found = n >= 2 && find_text(job, json + 1, n - 2, at);
    free(json);
    return found;
}

/* True if the rendered conversation contains the text. */
static bool appears(struct ot_chat_job *job, const char *text, size_t bytes) {
    size_t at = 0;
    return find_text(job, text, bytes, &at) || find_escaped(job, text, bytes, &at);
}

static void trim(const char **text, const char **end) {
    while (*text < *end && is_space(**text))
        ++*text;
    while (*end > *text && is_space((*end)[-1]))
        --*end;
}

/* True if the turn's thoughts are in the text, wherever the row has them. */
static bool has_thoughts(struct ot_chat_job *job, const struct ot_message *m) {
    static const char open[] = "<think>", close[] = "</think>";
    const char *text = m->text, *end = m->bytes ? memmem(text, m->bytes, close, strlen(close)) : NULL;
    size_t bytes = 0;
    if (!end) {
        text = ot_json_string(ot_json_get(m->source, "reasoning_content"), &bytes);
        end = text ? text + bytes : NULL;
    } else {
        const char *begin = memmem(text, (size_t)(end - text), open, strlen(open));
        text = begin ? begin + strlen(open) : text;
    }
    if (!end)
        return true;
    trim(&text, &end);
    return appears(job, text, (size_t)(end - text));
}

void ot_chat_mark_user(struct ot_chat_job *job) {
    size_t at = 0;
    for (size_t i = 0; i < job->c->n && job->text.bytes > 0; i++) {
        const struct ot_message *m = &job->c->messages[i];
        size_t bytes, answer_bytes;
        const char *text = visible_text(m, true, &bytes), *answer = visible_text(m, false, &answer_bytes);
        bool found = find_text(job, text, bytes, &at) || find_text(job, answer, answer_bytes, &at) ||
                     find_escaped(job, text, bytes, &at);
        /* Some templates write a system turn elsewhere, and white space between parts. */
        if (!found && !m->has_parts && !appears(job, text, bytes))
            job->left_out = true;
        job->left_out |= !has_thoughts(job, m);
    }
}
