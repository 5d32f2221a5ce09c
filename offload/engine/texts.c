/* Generation: texts that grow side by side (engine.h). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "offload/engine/engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- begin and end ---- */

static int check_room(const struct ot_engine *en, const struct ot_text_room *room) {
    int64_t own = room->capacity - room->n_inputs;
    if (en->chain.has_pairs && (room->n_inputs < 1 || room->n_inputs > en->plan.micro_tokens))
        return ot_fail(OT_E_INPUT,
                       "an input of %lld tokens must be encoded at once; the plan allows 1 to %lld",
                       (long long)room->n_inputs, (long long)en->plan.micro_tokens);
    if (own < 1 || own > en->chain.max_position)
        return ot_fail(OT_E_INPUT,
                       "a text of %lld tokens is beyond the %lld positions that the model was opened for",
                       (long long)own, (long long)en->chain.max_position);
    return 0;
}

int ot_engine_texts_begin(struct ot_engine *en, const struct ot_text_room *rooms, int n) {
    struct ot_engine_texts *texts = &en->texts;
    int64_t rows = 0;
    assert(n > 0);
    for (int i = 0; i < n; i++) {
        OT_TRY(check_room(en, &rooms[i]));
        rows += rooms[i].capacity;
    }
    if (rows > en->plan.cache_rows)
        return ot_fail(OT_E_BUDGET, "texts of %lld tokens do not fit the plan's cache of %lld tokens",
                       (long long)rows, (long long)en->plan.cache_rows);
    ot_engine_decode_end(en);
    texts->at = calloc((size_t)n, sizeof *texts->at);
    texts->pieces = calloc((size_t)en->plan.max_micro, sizeof *texts->pieces);
    texts->continued = calloc((size_t)ot_max(en->plan.texts, 1), sizeof *texts->continued);
    if (!texts->at || !texts->pieces || !texts->continued) {
        ot_engine_decode_end(en);
        return ot_fail(OT_E_BUDGET, "no memory for %d texts", n);
    }
    rows = 0;
    for (int i = 0; i < n; rows += rooms[i++].capacity)
        texts->at[i] = (struct ot_engine_text){rows, rooms[i].capacity, 0, rooms[i].n_inputs};
    texts->n = n;
    return 0;
}

void ot_engine_decode_end(struct ot_engine *en) {
    free(en->texts.at);
    free(en->texts.pieces);
    free(en->texts.continued);
    en->texts = (struct ot_engine_texts){0};
}

int64_t ot_engine_logits_of_pass(const struct ot_engine *en, int64_t step) {
    int last = en->steps[step & 1].n_places - 1;
    const struct ot_engine_piece *piece = &en->texts.pieces[last];
    int64_t texts = piece->texts ? en->steps[step & 1].micro_tokens[last] : 1;
    return (piece->first_logits + texts) * en->chain.vocab;
}

/* ---- passes ---- */

/* Token arrays of a micro-batch: [n] each. */
struct fields {
    int32_t *targets, *position, *row_start, *input_first, *input_end;
};

static int fields_open(struct fields *f, int64_t n) {
    int32_t *memory = calloc(5 * (size_t)n, sizeof *memory);
    if (!memory)
        return ot_fail(OT_E_BUDGET, "no memory for %lld tokens", (long long)n);
    *f = (struct fields){memory, memory + n, memory + 2 * n, memory + 3 * n, memory + 4 * n};
    return 0;
}

static void set_token(const struct fields *f, int64_t i, const struct ot_engine_text *text, int64_t at) {
    int64_t part = at < text->inputs ? 0 : text->inputs; /* inputs have positions of their own */
    f->targets[i] = -1;
    f->position[i] = (int32_t)(at - part);
    f->row_start[i] = (int32_t)part;
    f->input_first[i] = 0;
    f->input_end[i] = (int32_t)text->inputs;
}

/* Adds a micro-batch to the pass. Token i is of the one text, or of text i. */
static int add_piece(struct ot_engine *en, const struct fields *f, const int32_t *tokens, int64_t n,
                     int64_t inputs, const struct ot_engine_piece *piece) {
    struct ot_micro_batch micro = {.n_tokens = n,
                                   .tokens = tokens,
                                   .targets = f->targets,
                                   .position = f->position,
                                   .row_start = f->row_start,
                                   .n_inputs = inputs,
                                   .input_first = f->input_first,
                                   .input_end = f->input_end};
    OT_TRY(ot_rows_check_tokens(&en->chain, en->plan.micro_tokens, &micro, 0));
    en->texts.pieces[en->steps[0].n_places] = *piece;
    ot_engine_add_micro(en, &micro, piece->past, n); /* a padding token would get a place in the cache */
    return 0;
}

/* Adds n tokens of one text as a micro-batch, behind `before` others in this pass. row: of its logits. */
static int add_tokens(struct ot_engine *en, struct ot_engine_text *text, const int32_t *tokens, int64_t n,
                      int64_t before, int row) {
    struct fields f = {0};
    struct ot_engine_piece piece = {.first = text->first,
                                    .filled = before > 0 ? 0 : text->past,
                                    .past = text->past + before,
                                    .first_logits = row};
    OT_TRY(fields_open(&f, n));
    for (int64_t i = 0; i < n; i++)
        set_token(&f, i, text, piece.past + i);
    int rc = add_piece(en, &f, tokens, n, text->inputs, &piece);
    free(f.targets);
    return rc;
}

/* Makes one pass for the next pieces of each of these texts that has one: of one text as many as there is
 * room for, so that all of them read weights and a cache that are fetched once. done: tokens of each in
 * earlier passes; afterwards with those of this pass. */
static int append_pieces(struct ot_engine *en, const struct ot_text_tokens *appended, int n, int64_t *done,
                         float *logits) {
    float *results;
    int64_t vocab = en->chain.vocab, most = en->plan.micro_tokens;
    int unfinished = 0, row = 0;
    for (int i = 0; i < n; i++)
        unfinished += done[i] < appended[i].n;
    int64_t room = ot_schedule_prompts(&en->plan) / unfinished * most; /* tokens of a text */
    OT_TRY(ot_engine_begin_pass(en));
    for (int i = 0; i < n; i++) {
        int64_t left = ot_min(appended[i].n - done[i], room);
        for (int64_t at = 0; at < left; at += most)
            OT_TRY(add_tokens(en, &en->texts.at[appended[i].text], appended[i].tokens + done[i] + at,
                              ot_min(left - at, most), at, row));
        row += left > 0;
    }
    struct ot_bound *bound = en->steps[0].n_places > 1 ? en->prompts_bound : en->decode_bound;
    OT_TRY(ot_engine_run_pass(en, OT_PASS_DECODE, bound, row * vocab, &results));
    for (int i = 0; i < n; i++) {
        int64_t left = ot_min(appended[i].n - done[i], room);
        if (left == 0)
            continue;
        done[i] += left;
        en->texts.at[appended[i].text].past += left;
        if (done[i] == appended[i].n)
            memcpy(logits + i * vocab, results, (size_t)vocab * sizeof *logits);
        results += vocab;
    }
    ot_engine_clear_results(en);
    return 0;
}

/* True if all tokens of a group of texts are appended. */
static bool are_done(const struct ot_text_tokens *appended, int n, const int64_t *done) {
    for (int i = 0; i < n; i++)
        if (done[i] < appended[i].n)
            return false;
    return true;
}

/* Appends to a group of texts, each with micro-batches of its own, in as many passes as they need. */
static int append_apart(struct ot_engine *en, const struct ot_text_tokens *appended, int n, float *logits) {
    int rc = 0;
    int64_t *done = calloc((size_t)n, sizeof *done);
    if (!done)
        return ot_fail(OT_E_BUDGET, "no memory for %d texts", n);
    while (rc == 0 && !are_done(appended, n, done))
        rc = append_pieces(en, appended, n, done, logits);
    free(done);
    return rc;
}

/* Appends one token to each of a group of texts, in one micro-batch. */
static int append_together(struct ot_engine *en, const struct ot_text_tokens *appended, int n,
                           float *logits) {
    struct fields f = {0};
    float *results;
    size_t bytes = (size_t)(n * en->chain.vocab) * sizeof *logits;
    const struct ot_engine_piece piece = {.texts = en->texts.continued};
    int rc;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    OT_TRY_GOTO(tokens ? 0 : ot_fail(OT_E_BUDGET, "no memory for %d tokens", n), rc, out);
    OT_TRY_GOTO(fields_open(&f, n), rc, out);
    for (int i = 0; i < n; i++) {
        const struct ot_engine_text *text = &en->texts.at[appended[i].text];
        tokens[i] = appended[i].tokens[0];
        set_token(&f, i, text, text->past);
        en->texts.continued[i] = (struct ot_kv_text){text->first, text->past};
    }
    OT_TRY_GOTO(ot_engine_begin_pass(en), rc, out);
    OT_TRY_GOTO(add_piece(en, &f, tokens, n, 0, &piece), rc, out);
    OT_TRY_GOTO(ot_engine_run_pass(en, OT_PASS_DECODE, en->decode_bound, n * en->chain.vocab, &results), rc,
                out);
    memcpy(logits, results, bytes);
    ot_engine_clear_results(en);
    for (int i = 0; i < n; i++)
        en->texts.at[appended[i].text].past++;
out:
    free(tokens);
    free(f.targets);
    return rc;
}

static int check_appended(const struct ot_engine *en, const struct ot_text_tokens *appended, int n) {
    for (int i = 0; i < n; i++) {
        const struct ot_text_tokens *a = &appended[i];
        bool known = a->text >= 0 && a->text < en->texts.n && (i == 0 || a->text > appended[i - 1].text);
        if (!known)
            return ot_fail(OT_E_INTERNAL, "text %d is not one of the %d texts, or not in order", a->text,
                           en->texts.n);
        const struct ot_engine_text *text = &en->texts.at[a->text];
        if (a->n < 1 || a->n > text->capacity - text->past)
            return ot_fail(OT_E_INPUT, "the text would grow to %lld tokens, but the cache holds %lld",
                           (long long)(text->past + a->n), (long long)text->capacity);
        if (text->past == 0 && a->n < text->inputs)
            return ot_fail(OT_E_INPUT, "the first %lld tokens of a text are not all of its %lld inputs",
                           (long long)a->n, (long long)text->inputs);
    }
    return 0;
}

int ot_engine_texts_append(struct ot_engine *en, const struct ot_text_tokens *appended, int n,
                           float *logits) {
    int most = ot_max(en->plan.texts, 1), prompts = ot_schedule_prompts(&en->plan);
    OT_TRY(check_appended(en, appended, n));
    for (int i = 0, group; i < n; i += group) {
        const struct ot_text_tokens *first = &appended[i];
        float *to = logits + i * en->chain.vocab;
        bool together = !en->chain.has_pairs;
        for (group = 0; i + group < n && group < ot_min(most, en->plan.micro_tokens) && together; group++)
            if (first[group].n > 1 || en->texts.at[first[group].text].past == 0)
                break;
        together = group > 0;
        for (; i + group < n && group < ot_min(most, prompts) && !together; group++)
            if (!en->chain.has_pairs && group > 0 && first[group].n == 1 &&
                en->texts.at[first[group].text].past > 0)
                break;
        OT_TRY((together ? append_together : append_apart)(en, first, group, to));
    }
    return 0;
}

/* ---- a single text ---- */

int ot_engine_decode_begin(struct ot_engine *en, int64_t capacity) {
    return ot_engine_texts_begin(en, &(struct ot_text_room){0, capacity}, 1);
}

int ot_engine_decode_begin_pair(struct ot_engine *en, int64_t n_inputs, int64_t capacity) {
    return ot_engine_texts_begin(en, &(struct ot_text_room){n_inputs, capacity}, 1);
}

int ot_engine_decode(struct ot_engine *en, const int32_t *tokens, int64_t n, float *logits) {
    return ot_engine_texts_append(en, &(struct ot_text_tokens){0, tokens, n}, 1, logits);
}
