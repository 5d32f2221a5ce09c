#include "src/tokenizer/tokenizer_state.h"

#include <string.h>

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
