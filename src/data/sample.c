#include "src/data/sample.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"

void ot_sample_free(struct ot_sample *s) {
    ot_token_list_free(&s->encoded);
    free(s->tokens);
    free(s->start);
    memset(s, 0, sizeof *s);
}

static int reserve(struct ot_sample *s, size_t n, const char *where) {
    size_t same = s->capacity;
    if (ot_try_grow(&s->tokens, &same, n, sizeof *s->tokens) &&
        ot_try_grow(&s->start, &s->capacity, n, sizeof *s->start))
        return 0;
    return ot_fail(OT_E_BUDGET, "%s: no memory for %zu tokens", where, n);
}

int ot_sample_append(struct ot_sample *s, const struct ot_sample *other, const char *where) {
    OT_TRY(reserve(s, s->n_tokens + other->n_tokens, where));
    memcpy(s->tokens + s->n_tokens, other->tokens, other->n_tokens * sizeof *s->tokens);
    memcpy(s->start + s->n_tokens, other->start, other->n_tokens * sizeof *s->start);
    s->n_tokens += other->n_tokens;
    s->piece_tokens = s->n_tokens;
    s->trained += other->trained;
    s->truncated = s->truncated || other->truncated;
    s->whole_tokens = 2 * ot_max(s->whole_tokens, other->whole_tokens);
    s->straddles = s->straddles || other->straddles;
    return 0;
}

static void push(struct ot_sample *s, int32_t id, size_t start, bool trained) {
    s->tokens[s->n_tokens] = (uint32_t)id | (trained ? OT_TOKEN_TRAINED : 0);
    s->start[s->n_tokens++] = (uint32_t)start;
}

static bool is_eos(const struct ot_special_tokens *specials, int32_t id) {
    for (int i = 0; i < specials->n_eos; i++)
        if (specials->eos_ids[i] == id)
            return true;
    return false;
}

/* First byte of the run of trained spans that contains span `s`. */
static size_t trained_run_begin(const struct ot_rendered *r, size_t s) {
    while (s > 0 && r->spans[s - 1].trained)
        s--;
    return s > 0 ? r->spans[s - 1].end : 0;
}

/* True if a trained span begins behind the start of a token, which lies in span `s`, and before its end. */
static bool spans_border(const struct ot_rendered *r, size_t s, size_t end) {
    for (; s + 1 < r->n_spans && r->spans[s].end < end; s++)
        if (r->spans[s + 1].trained && r->spans[s + 1].end > r->spans[s].end)
            return true;
    return false;
}

/* Marks tokens [begin, end), which begin in span `span`. before: the token before them trains. Returns
 * whether the last one trains. */
static bool mark_tokens(const struct ot_rendered *r, size_t span, size_t begin, size_t end, bool before,
                        struct ot_sample *s, uint32_t *tokens) {
    const int32_t *ids = s->encoded.ids;
    const uint32_t *starts = s->encoded.start;
    const bool all = r->spans[span].trained;
    const size_t n = s->encoded.n, alike = all || !r->marked ? end : begin;
    if (all && !before && begin > 0 && starts[begin] > trained_run_begin(r, span))
        s->straddles = true;
    for (size_t i = begin; i < alike; i++)
        tokens[i] = (uint32_t)ids[i] | (all ? OT_TOKEN_TRAINED : 0);
    for (size_t i = alike; i < end; i++) {
        bool trained = spans_border(r, span, i + 1 < n ? starts[i + 1] : r->bytes);
        if (trained && !before && i > 0 && starts[i] > trained_run_begin(r, span))
            s->straddles = true;
        tokens[i] = (uint32_t)ids[i] | (trained ? OT_TOKEN_TRAINED : 0);
        before = trained;
    }
    return alike == end ? all : before;
}

static void find_special(const struct ot_sample_config *config, size_t begin, size_t end,
                         struct ot_sample *s) {
    for (size_t i = begin; i < end && s->first_special < 0; i++)
        if (ot_tokenizer_is_special(config->tokenizer, s->encoded.ids[i]))
            s->first_special = s->encoded.ids[i];
}

/* Copies the encoded tokens, each with the mark of the span in which it begins. */
static void push_encoded(const struct ot_sample_config *config, const struct ot_rendered *r,
                         struct ot_sample *s) {
    const size_t n = s->encoded.n;
    const uint32_t *starts = s->encoded.start;
    size_t span = 0, end;
    bool before = false;
    for (size_t i = 0; i < n; i = end) {
        while (span + 1 < r->n_spans && starts[i] >= r->spans[span].end)
            span++;
        while (span > 0 && starts[i] < r->spans[span - 1].end)
            span--;
        const uint32_t from = (uint32_t)(span > 0 ? r->spans[span - 1].end : 0);
        const uint32_t to = span + 1 < r->n_spans ? (uint32_t)r->spans[span].end : UINT32_MAX;
        for (end = i + 1; end < n && starts[end] - from < to - from;) /* from <= starts[end] < to */
            end++;
        before = mark_tokens(r, span, i, end, before, s, s->tokens + s->n_tokens);
        if (s->encoded.specials > 0 && r->spans[span].user)
            find_special(config, i, end, s);
    }
    memcpy(s->start + s->n_tokens, starts, n * sizeof *starts);
    s->n_tokens += n;
}

static int check_ids(const struct ot_sample_config *config, const char *where, const struct ot_sample *s) {
    size_t i = 0;
    if (ot_tokenizer_vocab_size(config->tokenizer) <= config->vocab_size)
        return 0; /* the pipeline has checked BOS and EOS */
    while (i < s->n_tokens && ot_token_id(s->tokens[i]) < config->vocab_size)
        i++;
    if (i == s->n_tokens)
        return 0;
    const int32_t id = ot_token_id(s->tokens[i]);
    const char *name = ot_tokenizer_token(config->tokenizer, id, NULL);
    return ot_fail(OT_E_INPUT,
                   "%s: token %d ('%s') is beyond the model's embedding of %d rows; use the model's own "
                   "tokenizer",
                   where, id, name ? name : "", config->vocab_size);
}

/* Cuts the oldest tokens of the prompt first. BOS stays, and one token that predicts the answer's first
 * token. Then cuts the end. */
static void truncate_row(const struct ot_sample_config *config, struct ot_sample *s) {
    size_t limit = (size_t)config->seq_len, prompt = 0;
    s->whole_tokens = s->n_tokens;
    if (s->n_tokens <= limit && config->cut == 0)
        return;
    while (prompt < s->n_tokens && !ot_token_trained(s->tokens[prompt]))
        prompt++;
    size_t head = ot_token_id(s->tokens[0]) == config->specials.bos_id ? 1 : 0;
    size_t removable = prompt > 1 ? prompt - 1 : 0;
    size_t excess = ot_max(s->n_tokens, limit) - limit, wanted = ot_max(excess, (size_t)config->cut);
    size_t cut = ot_min(wanted, removable);
    size_t behind = s->n_tokens - head - cut;
    memmove(s->tokens + head, s->tokens + head + cut, behind * sizeof *s->tokens);
    memmove(s->start + head, s->start + head + cut, behind * sizeof *s->start);
    s->n_tokens = ot_min(head + behind, limit);
    s->truncated = true;
}

/* Makes room for the token that each piece but the first repeats: piece k moves
 * from k * (limit - 1) to k * limit. */
static int split_row(const struct ot_sample_config *config, const char *where, struct ot_sample *s) {
    size_t limit = (size_t)config->seq_len, n = s->n_tokens;
    s->piece_tokens = limit;
    if (n <= limit)
        return 0;
    size_t pieces = (n - 2) / (limit - 1) + 1;
    OT_TRY(reserve(s, n + pieces - 1, where));
    for (size_t k = pieces; k-- > 1;) {
        size_t from = k * (limit - 1);
        size_t count = ot_min(n - from, limit);
        memmove(s->tokens + k * limit, s->tokens + from, count * sizeof *s->tokens);
        memmove(s->start + k * limit, s->start + from, count * sizeof *s->start);
    }
    s->n_tokens = n + pieces - 1;
    return 0;
}

/* The first token of a piece is never a target. */
static void count_trained(struct ot_sample *s) {
    for (size_t i = 0; i < s->n_tokens; i += s->piece_tokens)
        s->tokens[i] &= ~OT_TOKEN_TRAINED;
    int64_t trained = 0;
    for (size_t i = 0; i < s->n_tokens; i++)
        trained += ot_token_trained(s->tokens[i]);
    s->trained += trained;
    if (s->trained == 0)
        s->piece_tokens = 0;
}

/* A span that stands for one token (id >= 0) becomes that token. The text between such spans is encoded as a
 * whole. */
static int encode(const struct ot_tokenizer *tokenizer, const struct ot_rendered *r,
                  struct ot_token_list *out) {
    size_t begin = 0, done = 0; /* begin: start of the present span. done: end of the text encoded so far */
    ot_token_list_clear(out);
    for (size_t i = 0; i < r->n_spans; begin = r->spans[i++].end) {
        if (r->spans[i].id < 0)
            continue;
        OT_TRY(ot_tokenizer_encode_part(tokenizer, r->text, done, begin, out));
        OT_TRY(ot_token_list_add(out, r->spans[i].id, (uint32_t)begin));
        done = r->spans[i].end;
    }
    return ot_tokenizer_encode_part(tokenizer, r->text, done, r->bytes, out);
}

/* ---- pairs ---- */

/* Finds the byte where the target begins in the text. Errors: OT_E_INPUT: the row has more than one
 * answer. */
static int find_border(const struct ot_rendered *r, const char *where, size_t *border) {
    size_t answer = 0, begin = 0;
    *border = 0;
    while (answer < r->n_spans && !r->spans[answer].trained)
        *border = r->spans[answer++].end;
    for (size_t i = answer; i < r->n_spans; begin = r->spans[i++].end)
        if (!r->spans[i].trained && r->spans[i].end > ot_max(begin, *border))
            return ot_fail(OT_E_INPUT,
                           "%s: the row has several answers, but an encoder-decoder learns one target a row; "
                           "make a row of each",
                           where);
    return 0;
}

/* Encodes one part, and adds its EOS. */
static int push_part(const struct ot_sample_config *config, const struct ot_rendered *r, size_t begin,
                     size_t end, bool trained, bool eos, const char *where, struct ot_sample *s) {
    const struct ot_special_tokens *specials = &config->specials;
    ot_token_list_clear(&s->encoded);
    int rc = ot_tokenizer_encode_part(config->tokenizer, r->text, begin, end, &s->encoded);
    if (rc < 0)
        return ot_fail_context(rc, "%s", where);
    size_t n = s->encoded.n;
    OT_TRY(reserve(s, s->n_tokens + n + 1, where));
    for (size_t i = 0; i < n; i++) {
        int32_t id = s->encoded.ids[i];
        bool special = s->encoded.specials > 0 && ot_tokenizer_is_special(config->tokenizer, id);
        if (special && !trained && s->first_special < 0)
            s->first_special = id;
        push(s, id, s->encoded.start[i], trained);
    }
    if (eos && specials->n_eos > 0 && !(n > 0 && is_eos(specials, s->encoded.ids[n - 1])))
        push(s, specials->eos_ids[0], end, trained);
    return 0;
}

/* Cuts the input's end before its last token, and then the target's end. n_inputs: tokens of the input. */
static void truncate_pair(const struct ot_sample_config *config, size_t n_inputs, struct ot_sample *s) {
    size_t limit = (size_t)config->seq_len;
    s->whole_tokens = s->n_tokens;
    if (s->n_tokens <= limit && config->cut == 0)
        return;
    size_t excess = ot_max(s->n_tokens, limit) - limit, removable = n_inputs - 1;
    size_t wanted = ot_max(excess, (size_t)config->cut), cut = ot_min(wanted, removable), from = n_inputs - 1,
           to = from - cut;
    memmove(s->tokens + to, s->tokens + from, (s->n_tokens - from) * sizeof *s->tokens);
    memmove(s->start + to, s->start + from, (s->n_tokens - from) * sizeof *s->start);
    s->n_tokens = ot_min(s->n_tokens - cut, limit);
    s->truncated = true;
}

static int make_pair(const struct ot_sample_config *config, const struct ot_rendered *r, const char *where,
                     struct ot_sample *s) {
    size_t border;
    OT_TRY(find_border(r, where, &border));
    OT_TRY(push_part(config, r, 0, border, false, true, where, s));
    size_t n_inputs = s->n_tokens;
    if (n_inputs == 0)
        return ot_fail(OT_E_INPUT, "%s: the input is empty, and the tokenizer has no EOS", where);
    OT_TRY(push_part(config, r, border, r->bytes, true, config->append_eos, where, s));
    OT_TRY(check_ids(config, where, s));
    truncate_pair(config, n_inputs, s);
    s->piece_tokens = s->n_tokens;
    for (size_t i = 0; i < s->n_tokens; i++)
        s->trained += ot_token_trained(s->tokens[i]);
    if (s->trained == 0)
        s->piece_tokens = 0;
    return 0;
}

/* True if a special token is the last one, with nothing but white space behind it. */
static bool ends_in_special(const struct ot_tokenizer *tokenizer, const struct ot_rendered *r,
                            const struct ot_token_list *list) {
    for (size_t i = list->n; i-- > 0;) {
        if (ot_tokenizer_is_special(tokenizer, list->ids[i]))
            return true;
        if (!ot_text_is_blank(r->text + list->start[i], r->bytes - list->start[i]))
            return false;
    }
    return false;
}

int ot_sample_make(const struct ot_sample_config *config, const struct ot_rendered *r, bool split,
                   const char *where, struct ot_sample *s) {
    const struct ot_special_tokens *specials = &config->specials;
    s->n_tokens = s->piece_tokens = s->whole_tokens = 0;
    s->trained = 0;
    s->truncated = s->straddles = false;
    s->first_special = -1;
    if (r->bytes == 0)
        return 0;
    if (config->pairs)
        return make_pair(config, r, where, s);
    int rc = encode(config->tokenizer, r, &s->encoded);
    if (rc < 0)
        return ot_fail_context(rc, "%s", where);
    size_t n = s->encoded.n;
    if (n == 0)
        return 0;
    OT_TRY(reserve(s, n + 2, where));
    if (specials->add_bos && !r->complete && specials->bos_id >= 0 && s->encoded.ids[0] != specials->bos_id)
        push(s, specials->bos_id, 0, false);
    push_encoded(config, r, s);
    if (config->append_eos && !(r->complete && ends_in_special(config->tokenizer, r, &s->encoded)) &&
        specials->n_eos > 0 && !is_eos(specials, s->encoded.ids[n - 1]))
        push(s, specials->eos_ids[0], r->bytes, true);
    OT_TRY(check_ids(config, where, s));
    if (split) {
        OT_TRY(split_row(config, where, s));
    } else {
        truncate_row(config, s);
        s->piece_tokens = s->n_tokens;
    }
    count_trained(s);
    return 0;
}
