#include "src/tokenizer/charsmap.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/tokenizer/text.h"

/* A grapheme of more bytes is taken apart. */
enum { GRAPHEME_BYTES = 5 };
/* Real replacements have up to 33 bytes. The limit bounds how much a hostile table lengthens a text. */
enum { LONGEST_TEXT = 1024 };

/* ---- the table ---- */

static uint32_t read_u32(const char *bytes) {
    const unsigned char *b = (const unsigned char *)bytes;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static bool is_leaf_below(uint32_t unit) {
    return unit >> 8 & 1;
}

static uint32_t label_of(uint32_t unit) {
    return unit & (1u << 31 | 0xff);
}

static uint32_t offset_of(uint32_t unit) {
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

/* Looks for the shortest key that begins text[0, n). Returns its replacement, or NULL. */
static const char *find(const struct ot_charsmap *map, const char *text, size_t n) {
    uint32_t at = offset_of(map->units[0]);
    for (size_t i = 0; i < n && text[i]; i++) {
        at ^= (uint8_t)text[i];
        if (at >= map->n_units || label_of(map->units[at]) != (uint8_t)text[i])
            return NULL;
        uint32_t unit = map->units[at];
        at ^= offset_of(unit);
        if (!is_leaf_below(unit))
            continue;
        uint32_t place = at < map->n_units ? map->units[at] & 0x7fffffff : UINT32_MAX;
        bool is_inside = place <= map->n_texts && ((unsigned char)map->texts[place] & 0xc0) != 0x80;
        return is_inside ? map->texts + place : NULL;
    }
    return NULL;
}

static void find_plain(struct ot_charsmap *map) {
    for (int c = 0; c < 128; c++) {
        char text = (char)c;
        map->plain[c] = c != '\r' && !find(map, &text, 1); /* "\r\n" is one grapheme */
    }
}

/* Checks that all replacements end and are UTF-8. */
static int check_texts(const struct ot_charsmap *map, const char *where) {
    if (ot_utf8_valid(map->texts, map->n_texts) < map->n_texts)
        return ot_fail(OT_E_INPUT, "%s: the replacements are not UTF-8", where);
    for (size_t i = 0; i < map->n_texts;) {
        const char *end = memchr(map->texts + i, '\0', map->n_texts - i);
        size_t n = (end ? (size_t)(end - map->texts) : map->n_texts) - i;
        if (n > LONGEST_TEXT)
            return ot_fail(OT_E_INPUT, "%s: a replacement is longer than %d bytes", where, LONGEST_TEXT);
        i += n + 1;
    }
    return 0;
}

int ot_charsmap_open(const char *bytes, size_t n, const char *where, struct ot_arena *arena,
                     struct ot_charsmap *out) {
    uint32_t trie_bytes = n >= 4 ? read_u32(bytes) : 0;
    if (trie_bytes < 4 || trie_bytes > n - 4)
        return ot_fail(OT_E_INPUT, "%s: the table is cut off or empty", where);
    size_t n_units = trie_bytes / 4, head = 4 + 4 * n_units;
    uint32_t *units = ot_arena_alloc(arena, n_units, sizeof *units);
    char *texts = ot_arena_strdup(arena, bytes + head, n - head); /* ends with a NUL */
    if (!units || !texts)
        return ot_fail(OT_E_BUDGET, "%s: no memory for a table of %zu bytes", where, n);
    for (size_t i = 0; i < n_units; i++)
        units[i] = read_u32(bytes + 4 + 4 * i);
    *out = (struct ot_charsmap){.units = units, .n_units = n_units, .texts = texts, .n_texts = n - head};
    OT_TRY(check_texts(out, where));
    find_plain(out);
    return 0;
}

/* ---- the normaliser ---- */

/* Appends a replacement of the bytes [begin, end) of the piece. Each of its characters has the offset of the
 * original character with the same number, or of the last one. */
static int put_text(const struct ot_piece *in, size_t begin, size_t end, const char *text,
                    struct ot_text *out) {
    size_t bytes, length, at = begin;
    for (; *text; text += bytes) {
        ot_utf8_decode(text, &bytes);
        OT_TRY(ot_text_append(out, text, bytes, ot_piece_start(in, at)));
        ot_utf8_decode(in->bytes + at, &length);
        at += at + length < end ? length : 0;
    }
    return 0;
}

/* The end of the grapheme that begins at `begin`. */
static size_t grapheme_end(const struct ot_piece *in, size_t begin) {
    utf8proc_int32_t state = 0;
    size_t length, at = begin;
    uint32_t left = ot_utf8_decode(in->bytes + at, &length);
    for (at += length; at < in->n; at += length) {
        uint32_t right = ot_utf8_decode(in->bytes + at, &length);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)left, (utf8proc_int32_t)right, &state))
            break;
        left = right;
    }
    return at;
}

static int put_grapheme(const struct ot_charsmap *map, const struct ot_piece *in, size_t begin, size_t end,
                        struct ot_text *out) {
    size_t length;
    const char *text = end - begin <= GRAPHEME_BYTES ? find(map, in->bytes + begin, end - begin) : NULL;
    if (text)
        return put_text(in, begin, end, text, out);
    for (size_t at = begin; at < end; at += length) {
        ot_utf8_decode(in->bytes + at, &length);
        text = find(map, in->bytes + at, length);
        if (text)
            OT_TRY(put_text(in, at, at + length, text, out));
        else
            OT_TRY(ot_text_append_piece(out, in, at, at + length));
    }
    return 0;
}

/* The end of a run of characters that stay. No ASCII character but a line break joins the one before it. */
static size_t plain_end(const struct ot_charsmap *map, const struct ot_piece *in, size_t begin) {
    size_t at = begin;
    while (at < in->n && (unsigned char)in->bytes[at] < 0x80 && map->plain[(unsigned char)in->bytes[at]])
        at++;
    /* A combining mark may follow the last one. */
    return at < in->n && at > begin && (unsigned char)in->bytes[at] >= 0x80 ? at - 1 : at;
}

int ot_charsmap_apply(const struct ot_charsmap *map, const struct ot_piece *in, struct ot_text *out) {
    OT_TRY(ot_text_reserve(out, in->n));
    for (size_t at = 0, end; at < in->n; at = end) {
        end = plain_end(map, in, at);
        if (end > at) {
            OT_TRY(ot_text_append_piece(out, in, at, end));
            continue;
        }
        end = grapheme_end(in, at);
        OT_TRY(put_grapheme(map, in, at, end, out));
    }
    return 0;
}

/* ---- base64 ---- */

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* The six bits of a letter, or -1. */
static int value_of(char c) {
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : -1;
}

int ot_base64_decode(const char *text, size_t n, const char *where, char **bytes, size_t *n_bytes) {
    size_t padding = n > 0 && text[n - 1] == '=' ? 1 + (n > 1 && text[n - 2] == '=') : 0;
    if (n % 4 != 0)
        return ot_fail(OT_E_INPUT, "%s is not base64: its length, %zu, is no multiple of 4", where, n);
    uint8_t *out = malloc(n / 4 * 3 + 1);
    if (!out)
        return ot_fail(OT_E_BUDGET, "%s: no memory for %zu bytes", where, n);
    size_t at = 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++) {
            int value = i + k >= n - padding ? 0 : value_of(text[i + k]);
            if (value < 0) {
                free(out);
                return ot_fail(OT_E_INPUT, "%s is not base64: byte %zu is none of its letters", where, i + k);
            }
            bits = bits << 6 | (uint32_t)value;
        }
        out[at++] = (uint8_t)(bits >> 16);
        out[at++] = (uint8_t)(bits >> 8);
        out[at++] = (uint8_t)bits;
    }
    *n_bytes = at - padding;
    out[*n_bytes] = 0;
    *bytes = (char *)out;
    return 0;
}

int ot_base64_encode(const void *bytes, size_t n, char **text, size_t *n_text) {
    const uint8_t *in = bytes;
    char *out = malloc((n + 2) / 3 * 4 + 1), *at = out;
    if (!out)
        return ot_fail(OT_E_BUDGET, "no memory to write %zu bytes as base64", n);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = (uint32_t)in[i] << 16;
        bits |= i + 1 < n ? (uint32_t)in[i + 1] << 8 : 0;
        bits |= i + 2 < n ? in[i + 2] : 0;
        *at++ = letters[bits >> 18];
        *at++ = letters[bits >> 12 & 63];
        *at++ = i + 1 < n ? letters[bits >> 6 & 63] : '=';
        *at++ = i + 2 < n ? letters[bits & 63] : '=';
    }
    *at = '\0';
    *text = out;
    *n_text = (size_t)(at - out);
    return 0;
}
