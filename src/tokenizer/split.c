/* Pre-tokenizers. Each cuts a piece into smaller pieces and passes them, from left to right, to the next
 * stage. */
#include <string.h>

#include "src/base/error.h"
#include "src/tokenizer/tokenizer_state.h"

/* The behaviours of Hugging Face's `split`, as a stream: ranges of match and non-match come in, pieces go
 * out. One piece is held back, because it may still grow. */
struct stream {
    struct ot_encoding *e;
    const struct ot_piece *piece;
    int next_stage;
    enum ot_behavior behavior;
    bool invert, holds, held_is_match, previous_match;
    size_t begin, end; /* the piece that is held back */
};

static int pass_on(struct ot_encoding *e, int stage, const struct ot_piece *piece, size_t begin, size_t end) {
    return begin < end ? ot_split(e, stage, ot_piece_slice(piece, begin, end)) : 0;
}

static int release(struct stream *s) {
    bool holds = s->holds;
    s->holds = false;
    return holds ? pass_on(s->e, s->next_stage, s->piece, s->begin, s->end) : 0;
}

static int hold(struct stream *s, size_t begin, size_t end, bool is_match) {
    OT_TRY(release(s));
    s->holds = true;
    s->begin = begin;
    s->end = end;
    s->held_is_match = is_match;
    return 0;
}

static int put_range(struct stream *s, size_t begin, size_t end, bool is_match) {
    is_match ^= s->invert;
    bool previous = s->previous_match;
    s->previous_match = is_match;
    switch (s->behavior) {
    case OT_REMOVED:
        return is_match ? 0 : pass_on(s->e, s->next_stage, s->piece, begin, end);
    case OT_ISOLATED:
        return pass_on(s->e, s->next_stage, s->piece, begin, end);
    case OT_CONTIGUOUS:
        if (!s->holds || is_match != previous)
            return hold(s, begin, end, is_match);
        break;
    case OT_MERGED_WITH_PREVIOUS:
        if (!s->holds || !is_match || previous)
            return hold(s, begin, end, is_match);
        break;
    case OT_MERGED_WITH_NEXT:
        if (!s->holds || !s->held_is_match || is_match)
            return hold(s, begin, end, is_match);
        s->held_is_match = false;
        break;
    }
    s->end = end;
    return 0;
}

static int split_pattern(struct ot_encoding *e, const struct ot_splitter *splitter, int stage,
                         const struct ot_piece *piece) {
    struct stream s = {.e = e,
                       .piece = piece,
                       .next_stage = stage + 1,
                       .behavior = splitter->behavior,
                       .invert = splitter->invert};
    struct ot_finder finder = {0};
    size_t done = 0, begin, end;
    int found;
    while ((found = ot_pattern_next(&splitter->pattern, e->scratch->regex, piece, &finder, &begin, &end)) >
           0) {
        if (done < begin)
            OT_TRY(put_range(&s, done, begin, false));
        OT_TRY(put_range(&s, begin, end, true));
        done = end;
    }
    OT_TRY(found);
    if (done < piece->n)
        OT_TRY(put_range(&s, done, piece->n, false));
    return release(&s);
}

/* Puts `front` in front of a piece. *piece becomes a view of `text`. */
static int put_in_front(struct ot_text *text, const char *front, size_t n, struct ot_piece *piece) {
    text->n = 0;
    OT_TRY(ot_text_append(text, front, n, ot_piece_start(piece, 0)));
    OT_TRY(ot_text_append_piece(text, piece, 0, piece->n));
    *piece = ot_text_view(text);
    return 0;
}

/* Writes each byte as its character of the byte-level alphabet. */
static int spell_bytes(struct ot_encoding *e, int stage, const struct ot_piece *piece) {
    struct ot_text *text = &e->scratch->staged[stage];
    text->n = 0;
    OT_TRY(ot_text_spell_bytes(piece, text));
    return ot_split(e, stage + 1, ot_text_view(text));
}

static int split_byte_level(struct ot_encoding *e, const struct ot_splitter *splitter, int stage,
                            struct ot_piece piece) {
    if (splitter->add_prefix_space && piece.bytes[0] != ' ')
        OT_TRY(put_in_front(&e->scratch->staged[stage], " ", 1, &piece));
    return splitter->splits ? split_pattern(e, splitter, stage, &piece) : ot_split(e, stage + 1, piece);
}

static int split_metaspace(struct ot_encoding *e, const struct ot_splitter *splitter, int stage,
                           struct ot_piece piece) {
    struct ot_text *text = &e->scratch->staged[stage];
    const struct ot_string *mark = &splitter->pattern.literal;
    size_t done = 0;
    bool marked = piece.bytes[0] == ' ' ||
                  (piece.n >= mark->bytes && memcmp(piece.bytes, mark->text, mark->bytes) == 0);
    bool at_start = ot_piece_start(&piece, 0) == 0;
    text->n = 0;
    OT_TRY(ot_text_reserve(text, piece.n + mark->bytes));
    if (!marked &&
        (splitter->prepend == OT_PREPEND_ALWAYS || (splitter->prepend == OT_PREPEND_FIRST && at_start)))
        OT_TRY(ot_text_append(text, mark->text, mark->bytes, ot_piece_start(&piece, 0)));
    for (const char *space; (space = memchr(piece.bytes + done, ' ', piece.n - done));) {
        size_t at = (size_t)(space - piece.bytes);
        OT_TRY(ot_text_append_piece(text, &piece, done, at));
        OT_TRY(ot_text_append(text, mark->text, mark->bytes, ot_piece_start(&piece, at)));
        done = at + 1;
    }
    OT_TRY(ot_text_append_piece(text, &piece, done, piece.n));
    piece = ot_text_view(text);
    return splitter->splits ? split_pattern(e, splitter, stage, &piece) : ot_split(e, stage + 1, piece);
}

int ot_split(struct ot_encoding *e, int stage, struct ot_piece piece) {
    if (piece.n == 0)
        return 0;
    if (stage == e->t->n_splitters)
        return ot_encode_word(e, &piece);
    const struct ot_splitter *splitter = &e->t->splitters[stage];
    switch (splitter->kind) {
    case OT_SPLIT_PATTERN:
        return split_pattern(e, splitter, stage, &piece);
    case OT_SPLIT_BYTE_LEVEL:
        return split_byte_level(e, splitter, stage, piece);
    case OT_SPLIT_METASPACE:
        return split_metaspace(e, splitter, stage, piece);
    case OT_SPLIT_SPELL_BYTES:
        return spell_bytes(e, stage, &piece);
    }
    return 0;
}

/* ---- pattern ---- */

static int next_literal(const struct ot_string *literal, const struct ot_piece *p, size_t from, size_t *begin,
                        size_t *end) {
    const char *at = literal->bytes == 1
                         ? memchr(p->bytes + from, literal->text[0], p->n - from)
                         : memmem(p->bytes + from, p->n - from, literal->text, literal->bytes);
    if (!at)
        return 0;
    *begin = (size_t)(at - p->bytes);
    *end = *begin + literal->bytes;
    return 1;
}

static int next_member(bool (*is_member)(uint32_t), const struct ot_piece *p, size_t from, size_t *begin,
                       size_t *end) {
    size_t length;
    for (size_t i = from; i < p->n; i += length) {
        if (is_member(ot_utf8_decode(p->bytes + i, &length))) {
            *begin = i;
            *end = i + length;
            return 1;
        }
    }
    return 0;
}

enum kind { SPACE, WORD, OTHER };

static enum kind kind_at(const struct ot_piece *p, size_t i, size_t *length) {
    uint32_t cp = ot_utf8_decode(p->bytes + i, length);
    return ot_unicode_is_word(cp) ? WORD : ot_unicode_is_space(cp) ? SPACE : OTHER;
}

static int next_run(const struct ot_piece *p, size_t from, size_t *begin, size_t *end) {
    size_t length, i = from;
    enum kind kind = SPACE;
    for (; i < p->n && (kind = kind_at(p, i, &length)) == SPACE; i += length)
        ;
    if (i >= p->n)
        return 0;
    *begin = i;
    for (i += length; i < p->n && kind_at(p, i, &length) == kind; i += length)
        ;
    *end = i;
    return 1;
}

/* Like the find_iter of Hugging Face's Oniguruma crate: after a match, an empty match at its end is skipped,
 * and the search goes on a character later. */
static int next_regex(const struct ot_regex *regex, struct ot_regex_scratch *scratch,
                      const struct ot_piece *p, struct ot_finder *finder, size_t *begin, size_t *end) {
    while (finder->from <= p->n) {
        int found = ot_regex_match(regex, scratch, p->bytes, p->n, finder->from, begin, end);
        if (found <= 0)
            return found;
        if (*begin < *end || !finder->has_last || finder->last_end != *end)
            return 1;
        size_t length = 1;
        if (finder->from < p->n)
            ot_utf8_decode(p->bytes + finder->from, &length);
        finder->from += length;
    }
    return 0;
}

int ot_pattern_next(const struct ot_pattern *pattern, struct ot_regex_scratch *scratch,
                    const struct ot_piece *piece, struct ot_finder *finder, size_t *begin, size_t *end) {
    int found = 0;
    if (piece->n == 0)
        return 0;
    switch (pattern->kind) {
    case OT_PATTERN_LITERAL:
        found = next_literal(&pattern->literal, piece, finder->from, begin, end);
        break;
    case OT_PATTERN_REGEX:
        found = next_regex(pattern->regex, scratch, piece, finder, begin, end);
        break;
    case OT_PATTERN_CLASS:
        found = next_member(pattern->is_member, piece, finder->from, begin, end);
        break;
    case OT_PATTERN_WHITESPACE:
        found = next_run(piece, finder->from, begin, end);
        break;
    }
    if (found == 1) {
        finder->from = finder->last_end = *end;
        finder->has_last = true;
    }
    return found;
}

void ot_pattern_free(struct ot_pattern *pattern) {
    ot_regex_close(pattern->regex);
    pattern->regex = NULL;
}
