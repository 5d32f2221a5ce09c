/* The normalizers of a tokenizer.json. Each makes another text, and keeps where its bytes came from. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/tokenizer/tokenizer_state.h"

static int prepend(const struct ot_normalizer *n, const struct ot_piece *in, struct ot_text *out) {
    OT_TRY(ot_text_reserve(out, n->content.bytes + in->n));
    OT_TRY(ot_text_append(out, n->content.text, n->content.bytes, ot_piece_start(in, 0)));
    return ot_text_append_piece(out, in, 0, in->n);
}

enum { SHORT_BYTES = 4, WORD_BYTES = 8 };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "replace_byte writes characters as numbers");

/* The number of bytes of the word before the first one that equals `byte`; WORD_BYTES: none does. */
static inline size_t bytes_before(uint64_t word, char byte) {
    const uint64_t ones = UINT64_MAX / 255, differs = word ^ ones * (uint8_t)byte,
                   found = (differs - ones) & ~differs & ones << 7;
    return found ? (size_t)__builtin_ctzll(found) / 8 : WORD_BYTES;
}

static inline void take_starts(const struct ot_piece *in, size_t begin, size_t n, uint32_t *start) {
    if (in->start)
        memcpy(start, in->start + begin, n * sizeof *start);
    else
        for (size_t k = 0; k < n; k++)
            start[k] = in->base + (uint32_t)(begin + k);
}

/* Replaces a byte by 1 to SHORT_BYTES bytes, as each space by the mark that stands for it. Copies WORD_BYTES
 * bytes and offsets, and writes the mark behind those before the first space. It moves on by those that
 * count, so that few branches depend on where the spaces are. */
static int replace_byte(const struct ot_normalizer *n, const struct ot_piece *in, struct ot_text *out) {
    const char byte = n->pattern.literal.text[0];
    const size_t most = n->content.bytes, n_bytes = in->n;
    uint32_t mark = 0;
    size_t count = 0, at = out->n;
    memcpy(&mark, n->content.text, most);
    for (size_t i = 0; i < n_bytes; i++)
        count += in->bytes[i] == byte;
    OT_TRY(ot_text_reserve(out, n_bytes + count * (most - 1) + WORD_BYTES));
    char *bytes = out->bytes;
    uint32_t *starts = out->start;
    for (size_t i = 0; i < n_bytes;) {
        uint64_t word = 0;
        const size_t here = ot_min(n_bytes - i, (size_t)WORD_BYTES);
        uint32_t start[WORD_BYTES + 1] = {0};
        if (here == WORD_BYTES) {
            memcpy(&word, in->bytes + i, WORD_BYTES);
            take_starts(in, i, WORD_BYTES, start);
        } else {
            memcpy(&word, in->bytes + i, here);
            take_starts(in, i, here, start);
        }
        const size_t plain = ot_min(bytes_before(word, byte), here), is_mark = plain < here;
        memcpy(bytes + at, &word, WORD_BYTES);
        memcpy(starts + at, start, WORD_BYTES * sizeof *start);
        at += plain;
        memcpy(bytes + at, &mark, SHORT_BYTES);
        for (size_t k = 0; k < SHORT_BYTES; k++)
            starts[at + k] = start[plain];
        at += is_mark * most;
        i += plain + is_mark;
    }
    out->n = at;
    return 0;
}

static int replace(const struct ot_normalizer *n, struct ot_scratch *scratch, const struct ot_piece *in,
                   struct ot_text *out) {
    struct ot_finder finder = {0};
    size_t done = 0, begin, end;
    int found;
    bool is_byte = n->pattern.kind == OT_PATTERN_LITERAL && n->pattern.literal.bytes == 1;
    if (is_byte && n->content.bytes >= 1 && n->content.bytes <= SHORT_BYTES)
        return replace_byte(n, in, out);
    OT_TRY(ot_text_reserve(out, in->n));
    while ((found = ot_pattern_next(&n->pattern, scratch->regex, in, &finder, &begin, &end)) > 0) {
        OT_TRY(ot_text_append_piece(out, in, done, begin));
        OT_TRY(ot_text_append(out, n->content.text, n->content.bytes,
                              begin < in->n ? ot_piece_start(in, begin) : 0));
        done = end;
    }
    OT_TRY(found);
    return ot_text_append_piece(out, in, done, in->n);
}

static int lowercase(const struct ot_piece *in, struct ot_text *out) {
    size_t length;
    OT_TRY(ot_text_reserve(out, in->n));
    for (size_t i = 0; i < in->n; i += length) {
        char text[4];
        uint32_t cp = ot_utf8_decode(in->bytes + i, &length);
        if (cp == 0x130) { /* the only character with two in lower case: i, dot above */
            OT_TRY(ot_text_append(out, "i\xcc\x87", 3, ot_piece_start(in, i)));
            continue;
        }
        uint32_t lower = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        if (lower == cp)
            OT_TRY(ot_text_append_piece(out, in, i, i + length));
        else
            OT_TRY(ot_text_append(out, text, ot_utf8_encode(lower, text), ot_piece_start(in, i)));
    }
    return 0;
}

static bool is_mark(uint32_t cp) {
    utf8proc_category_t c = cp < 0x300 ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* True if Nmt removes the character: most control characters. */
static bool is_control(uint32_t cp) {
    return (cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f || cp == 0x8f ||
           cp == 0x9f;
}

/* True if Nmt replaces the character by a space. */
static bool is_blank(uint32_t cp) {
    return cp == 9 || cp == 0xa || cp == 0xc || cp == 0xd || cp == 0x1680 || (cp >= 0x200b && cp <= 0x200f) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xfeff || cp == 0xfffd;
}

/* StripAccents and Nmt. */
static int filter(const struct ot_normalizer *n, const struct ot_piece *in, struct ot_text *out) {
    bool nmt = n->kind == OT_NORMALIZE_NMT;
    size_t length;
    OT_TRY(ot_text_reserve(out, in->n));
    for (size_t i = 0; i < in->n; i += length) {
        uint32_t cp = ot_utf8_decode(in->bytes + i, &length);
        if (nmt ? is_control(cp) : is_mark(cp))
            continue;
        if (nmt && is_blank(cp))
            OT_TRY(ot_text_append(out, " ", 1, ot_piece_start(in, i)));
        else
            OT_TRY(ot_text_append_piece(out, in, i, i + length));
    }
    return 0;
}

int ot_text_spell_bytes(const struct ot_piece *in, struct ot_text *out) {
    OT_TRY(ot_text_reserve(out, 2 * in->n));
    for (size_t i = 0; i < in->n; i++) {
        char spelled[4];
        size_t n = ot_utf8_encode(ot_byte_level_char((uint8_t)in->bytes[i]), spelled);
        OT_TRY(ot_text_append(out, spelled, n, ot_piece_start(in, i)));
    }
    return 0;
}

static struct ot_piece strip(const struct ot_normalizer *n, const struct ot_piece *in) {
    size_t begin = 0, end = in->n, length;
    while (n->left && begin < end && ot_unicode_is_space(ot_utf8_decode(in->bytes + begin, &length)))
        begin += length;
    while (n->right && end > begin && ot_unicode_is_space(ot_utf8_decode_before(in->bytes, end, &length)))
        end -= length;
    return ot_piece_slice(in, begin, end);
}

/* True if Unicode normalisation does not change these bytes. No character below U+0300 composes with a
 * character before it. NFC keeps all of them, NFKC keeps those up to U+009F, NFD and NFKD keep ASCII. */
static bool is_plain(const struct ot_normalizer *n, const struct ot_piece *in) {
    unsigned char limit = n->compose && !n->compatible ? 0xcc : n->compose ? 0xc2 : 0x80;
    for (size_t i = 0; i < in->n; i++)
        if ((unsigned char)in->bytes[i] >= limit)
            return false;
    return true;
}

static int run_normalizer(const struct ot_normalizer *n, struct ot_scratch *scratch,
                          const struct ot_piece *in, struct ot_text *out) {
    switch (n->kind) {
    case OT_NORMALIZE_PREPEND:
        return prepend(n, in, out);
    case OT_NORMALIZE_REPLACE:
        return replace(n, scratch, in, out);
    case OT_NORMALIZE_UNICODE:
        return ot_normalize_unicode(n, scratch, in, out);
    case OT_NORMALIZE_LOWERCASE:
        return lowercase(in, out);
    case OT_NORMALIZE_STRIP_ACCENTS:
    case OT_NORMALIZE_NMT:
        return filter(n, in, out);
    case OT_NORMALIZE_SPELL_BYTES:
        return ot_text_spell_bytes(in, out);
    case OT_NORMALIZE_CHARSMAP:
        return ot_charsmap_apply(&n->charsmap, in, out);
    case OT_NORMALIZE_STRIP: /* needs no text */
        break;
    }
    return 0;
}

int ot_normalize(const struct ot_tokenizer *t, struct ot_scratch *scratch, struct ot_piece in,
                 struct ot_piece *out) {
    int side = 0;
    size_t most = OT_GROWTH_BYTES + OT_GROWTH * in.n;
    for (int i = 0; i < t->n_normalizers && in.n > 0; i++) {
        const struct ot_normalizer *n = &t->normalizers[i];
        struct ot_text *text = &scratch->normal[side];
        if (n->kind == OT_NORMALIZE_STRIP) {
            in = strip(n, &in);
            continue;
        }
        if (n->kind == OT_NORMALIZE_UNICODE && is_plain(n, &in))
            continue;
        text->n = 0;
        text->most = most;
        OT_TRY(run_normalizer(n, scratch, &in, text));
        in = ot_text_view(text);
        side = !side;
    }
    *out = in;
    return 0;
}

/* ---- forms of Unicode ---- */

/* NFC, NFD, NFKC and NFKD, with offsets. utf8proc has the tables. The algorithm (UAX #15) is here, because
 * each character must record how many original characters it replaces, counted as in the Rust crate that
 * Hugging Face uses. */

enum { LONGEST_DECOMPOSITION = 32 }; /* U+FDFA gives 18 characters */

static int push(struct ot_scratch *s, uint32_t cp, int32_t change) {
    OT_TRY(ot_grow(&s->chars, &s->chars_capacity, s->n_chars + 1, sizeof *s->chars, "characters of a text"));
    int class = cp < 0x300 ? 0 : utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
    s->chars[s->n_chars++] = (struct ot_normal_char){cp, change, class, 0};
    return 0;
}

static int decompose(struct ot_scratch *s, uint32_t cp, bool compatible) {
    utf8proc_int32_t parts[LONGEST_DECOMPOSITION];
    int bound = 0;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, parts, LONGEST_DECOMPOSITION, options, &bound);
    if (n <= 0 || n > LONGEST_DECOMPOSITION)
        return push(s, cp, 0);
    for (utf8proc_ssize_t i = 0; i < n; i++)
        OT_TRY(push(s, (uint32_t)parts[i], i > 0));
    return 0;
}

static int compare_class(const void *a, const void *b) {
    const struct ot_normal_char *x = a, *y = b;
    if (x->class != y->class)
        return x->class < y->class ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Canonical order: sorts each run of non-starters by class and keeps the order of equals. Most runs have one
 * character, but a text of one long run must not take quadratic time. */
static void reorder(struct ot_normal_char *chars, size_t n) {
    for (size_t begin = 0, end; begin < n; begin = end + 1) {
        for (end = begin; end < n && chars[end].class != 0; end++)
            chars[end].order = (uint32_t)(end - begin);
        if (end - begin > 1)
            qsort(chars + begin, end - begin, sizeof *chars, compare_class);
    }
}

/* The composition of two characters, or 0. utf8proc only composes buffers, so this makes a buffer of two. */
static uint32_t compose_pair(uint32_t first, uint32_t second) {
    utf8proc_int32_t pair[3] = {(utf8proc_int32_t)first, (utf8proc_int32_t)second, 0};
    if (second < 0x300)
        return 0;
    utf8proc_ssize_t n = utf8proc_normalize_utf32(pair, 2, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return n == 1 ? (uint32_t)pair[0] : 0;
}

/* Composes characters in place. Returns the new count. */
static size_t compose(struct ot_normal_char *chars, size_t n) {
    size_t kept = 0, starter = SIZE_MAX;
    int last_class = -1; /* class of the last one kept after the starter; -1: none */
    for (size_t i = 0; i < n; i++) {
        struct ot_normal_char c = chars[i];
        uint32_t composed = 0;
        if (starter != SIZE_MAX && last_class < c.class)
            composed = compose_pair(chars[starter].code_point, c.code_point);
        if (composed) {
            chars[starter].code_point = composed;
            chars[starter].change += c.change - 1;
            continue;
        }
        if (c.class == 0) {
            starter = kept;
            last_class = -1;
        } else {
            last_class = c.class;
        }
        chars[kept++] = c;
    }
    return kept;
}

/* Writes the characters of one segment; its original text is in[begin..). A changed character has the offset
 * of the first original character that it replaces. An inserted character has the offset of the last byte
 * before it. */
static int write_segment(const struct ot_scratch *s, const struct ot_piece *in, size_t begin,
                         struct ot_text *out) {
    size_t at = begin, length;
    for (size_t i = 0; i < s->n_chars; i++) {
        const struct ot_normal_char *c = &s->chars[i];
        char text[4];
        size_t bytes = ot_utf8_encode(c->code_point, text);
        if (c->change > 0) {
            OT_TRY(ot_text_append(out, text, bytes, ot_piece_start(in, at > 0 ? at - 1 : 0)));
            continue;
        }
        uint32_t original = ot_utf8_decode(in->bytes + at, &length);
        if (original == c->code_point)
            OT_TRY(ot_text_append_piece(out, in, at, at + length));
        else
            OT_TRY(ot_text_append(out, text, bytes, ot_piece_start(in, at)));
        at += length;
        for (int32_t k = c->change; k < 0; k++) {
            ot_utf8_decode(in->bytes + at, &length);
            at += length;
        }
    }
    return 0;
}

int ot_normalize_unicode(const struct ot_normalizer *normalizer, struct ot_scratch *scratch,
                         const struct ot_piece *in, struct ot_text *out) {
    /* Characters below the limit do not change and never compose with a character before them: they start
     * segments. */
    uint32_t limit = normalizer->compose && !normalizer->compatible ? 0x300
                     : normalizer->compose                          ? 0xa0
                                                                    : 0x80;
    size_t i = 0, length;
    OT_TRY(ot_text_reserve(out, in->n));
    while (i < in->n) {
        size_t begin = i;
        uint32_t first = ot_utf8_decode(in->bytes + i, &length);
        i += length;
        if (first < limit && (i == in->n || ot_utf8_decode(in->bytes + i, &length) < limit)) {
            OT_TRY(ot_text_append_piece(out, in, begin, i));
            continue;
        }
        scratch->n_chars = 0;
        OT_TRY(decompose(scratch, first, normalizer->compatible));
        while (i < in->n) {
            uint32_t cp = ot_utf8_decode(in->bytes + i, &length);
            if (cp < limit)
                break;
            OT_TRY(decompose(scratch, cp, normalizer->compatible));
            i += length;
        }
        reorder(scratch->chars, scratch->n_chars);
        if (normalizer->compose)
            scratch->n_chars = compose(scratch->chars, scratch->n_chars);
        OT_TRY(write_segment(scratch, in, begin, out));
    }
    return 0;
}
