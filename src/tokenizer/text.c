#include "src/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/utf8.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

void ot_text_free(struct ot_text *text) {
    free(text->bytes);
    free(text->start);
    *text = (struct ot_text){0};
}

struct ot_piece ot_text_view(const struct ot_text *text) {
    return (struct ot_piece){text->bytes, text->n, text->start, 0};
}

int ot_text_reserve(struct ot_text *text, size_t more) {
    size_t need = text->n + more;
    if (text->most && need > text->most)
        return ot_fail(
            OT_E_INPUT,
            "the tokenizer's normalizers make more than %zu bytes of a text; its tokenizer.json is "
            "not one of a model",
            text->most);
    if (more <= text->capacity - text->n)
        return 0;
    if (need < more || need > UINT32_MAX)
        return ot_fail(OT_E_BUDGET, "the normalised text would exceed 4 GiB; cut the text into smaller rows");
    size_t same = text->capacity;
    OT_TRY(ot_grow(&text->bytes, &same, need, 1, "bytes of a normalised text"));
    return ot_grow(&text->start, &text->capacity, need, sizeof *text->start, "bytes of a normalised text");
}

int ot_text_append(struct ot_text *text, const char *bytes, size_t n, uint32_t start) {
    OT_TRY(ot_text_reserve(text, n));
    for (size_t i = 0; i < n; i++) {
        text->bytes[text->n + i] = bytes[i];
        text->start[text->n + i] = start;
    }
    text->n += n;
    return 0;
}

int ot_text_append_piece(struct ot_text *text, const struct ot_piece *piece, size_t begin, size_t end) {
    size_t n = end - begin;
    if (n == 0)
        return 0;
    OT_TRY(ot_text_reserve(text, n));
    memcpy(text->bytes + text->n, piece->bytes + begin, n);
    uint32_t *start = text->start + text->n;
    if (piece->start)
        memcpy(start, piece->start + begin, n * sizeof *start);
    else
        for (size_t i = 0; i < n; i++)
            start[i] = piece->base + (uint32_t)(begin + i);
    text->n += n;
    return 0;
}

size_t ot_utf8_valid(const char *text, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        while (i + 8 <= n && (memcpy(&word, text + i, 8), (word & 0x8080808080808080u) == 0))
            i += 8;
        if (i == n)
            break;
        size_t length = ot_utf8_character(text + i, n - i);
        if (length == 0)
            return i;
        i += length;
    }
    return n;
}

size_t ot_utf8_invalid(const char *text, size_t n, bool *open) {
    size_t length, good = ot_utf8_well_formed(text, n, &length);
    *open = length > 0 && good == n;
    return good ? good : 1;
}

int ot_utf8_repair(const struct ot_piece *piece, struct ot_text *out) {
    size_t i = 0;
    while (i < piece->n) {
        size_t valid = ot_utf8_valid(piece->bytes + i, piece->n - i);
        OT_TRY(ot_text_append_piece(out, piece, i, i + valid));
        i += valid;
        if (i == piece->n)
            break;
        bool open;
        size_t invalid = ot_utf8_invalid(piece->bytes + i, piece->n - i, &open);
        OT_TRY(ot_text_append(out, replacement, 3, ot_piece_start(piece, i)));
        i += invalid;
    }
    return 0;
}

bool ot_unicode_is_space(uint32_t cp) {
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool ot_unicode_is_number(uint32_t cp) {
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool ot_unicode_is_punctuation(uint32_t cp) {
    if (cp < 0x80)
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
               (cp >= '{' && cp <= '~');
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool ot_unicode_is_word(uint32_t cp) {
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || cp == '_' || (cp >= 'a' && cp <= 'z');
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    if ((c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC)
        return true;
    /* Alphabetic symbols (circled and squared letters) and the two joiners. */
    return (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
           (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189) || cp == 0x200c ||
           cp == 0x200d;
}
