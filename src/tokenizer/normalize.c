#include "src/tokenizer/tokenizer_state.h"

#include <string.h>
#include <utf8proc.h>

#include "src/base/error.h"

static int prepend(const struct ot_normalizer *n, const struct ot_piece *in, struct ot_text *out) {
    OT_TRY(ot_text_reserve(out, n->content.bytes + in->n));
    OT_TRY(ot_text_append(out, n->content.text, n->content.bytes, ot_piece_start(in, 0)));
    return ot_text_append_piece(out, in, 0, in->n);
}

static int replace(const struct ot_normalizer *n, struct ot_scratch *scratch, const struct ot_piece *in,
                   struct ot_text *out) {
    struct ot_finder finder = {0};
    size_t done = 0, begin, end;
    int found;
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
