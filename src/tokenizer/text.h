/* UTF-8, and texts that record where each byte came from.
 *
 * A text owns its memory; a piece is a borrowed view of a text. Both have, for each byte, its offset in the
 * caller's original text. start == NULL: byte i came from offset base + i, which holds until a normaliser
 * changes the text.
 */
#ifndef OT_TOKENIZER_TEXT_H
#define OT_TOKENIZER_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#include "src/base/utf8.h"

struct ot_piece {
    const char *bytes;
    size_t n;
    const uint32_t *start;
    uint32_t base;
};

static inline uint32_t ot_piece_start(const struct ot_piece *p, size_t i) {
    return p->start ? p->start[i] : p->base + (uint32_t)i;
}

static inline struct ot_piece ot_piece_slice(const struct ot_piece *p, size_t begin, size_t end) {
    return (struct ot_piece){p->bytes + begin, end - begin, p->start ? p->start + begin : NULL,
                             p->base + (p->start ? 0 : (uint32_t)begin)};
}

struct ot_text {
    char *bytes;
    uint32_t *start;
    size_t n, capacity;
    size_t most; /* bytes that it may have; 0: 4 GiB */
};

void ot_text_free(struct ot_text *text);
struct ot_piece ot_text_view(const struct ot_text *text);
/* Makes room for `more` bytes after the first n. Errors: OT_E_BUDGET (no memory, or the text would exceed 4
 * GiB), OT_E_INPUT (it would exceed `most`). */
int ot_text_reserve(struct ot_text *text, size_t more);
/* Appends bytes that all come from offset `start` of the original text. Errors: as ot_text_reserve. */
int ot_text_append(struct ot_text *text, const char *bytes, size_t n, uint32_t start);
/* Appends bytes [begin, end) of a piece with their offsets. Errors: as ot_text_reserve. */
int ot_text_append_piece(struct ot_text *text, const struct ot_piece *piece, size_t begin, size_t end);

/* The code point of the first character of valid UTF-8. *bytes: its length. */
static inline uint32_t ot_utf8_decode(const char *text, size_t *bytes) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        *bytes = 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *bytes = 2;
        return (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    }
    if (s[0] < 0xf0) {
        *bytes = 3;
        return (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    }
    *bytes = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 | (uint32_t)(s[2] & 0x3f) << 6 |
           (s[3] & 0x3f);
}

/* The code point of the character that ends just before text[end], in valid UTF-8. end > 0. */
static inline uint32_t ot_utf8_decode_before(const char *text, size_t end, size_t *bytes) {
    size_t begin = end - 1;
    while (begin > 0 && ((unsigned char)text[begin] & 0xc0) == 0x80)
        begin--;
    return ot_utf8_decode(text + begin, bytes);
}

/* Length of the longest valid prefix of text[0..n). */
size_t ot_utf8_valid(const char *text, size_t n);
/* For a text[0..n), n > 0, that does not start with a valid character: the length of the part that one U+FFFD
 * replaces (the longest prefix of a valid character, or one byte). *open: true if the text ends inside this
 * character. */
size_t ot_utf8_invalid(const char *text, size_t n, bool *open);
/* Appends a piece, with U+FFFD in place of each invalid part. Errors: as ot_text_reserve. */
int ot_utf8_repair(const struct ot_piece *piece, struct ot_text *out);

/* Unicode White_Space, like Rust's char::is_whitespace and like \s in both regex engines of Hugging Face. */
bool ot_unicode_is_space(uint32_t code_point);
bool ot_unicode_is_number(uint32_t code_point);      /* categories Nd, Nl, No */
bool ot_unicode_is_punctuation(uint32_t code_point); /* categories P*, and all ASCII punctuation */
bool ot_unicode_is_word(uint32_t code_point);        /* \w of Rust's regex crate */

#endif
