#include "src/jinja/unicode.h"

#include <utf8proc.h>

#include "src/base/strings.h"
#include "src/tokenizer/text.h"

enum {
    SHARP_S = 0xdf,
    DOTTED_I = 0x130,
    BIG_SIGMA = 0x3a3,
    SIGMA = 0x3c3,
    FINAL_SIGMA = 0x3c2,
    LIGATURES = 0xfb00
};

size_t ot_jinja_space_at(const char *text, size_t n) {
    unsigned char lead = (unsigned char)text[0];
    size_t length = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : lead >= 0xe0 && lead < 0xf0 ? 3 : 0;
    if (length == 0 || length > n)
        return 0;
    uint32_t c = ot_utf8_decode(text, &length);
    return ot_unicode_is_space(c) || (c >= 0x1c && c <= 0x1f) ? length : 0;
}

size_t ot_jinja_space_before(const char *text, size_t n) {
    for (size_t length = 1; length <= 3 && length <= n; length++)
        if (ot_jinja_space_at(text + n - length, length) == length)
            return length;
    return 0;
}

/* ---- classes ---- */

bool ot_jinja_has_class(uint32_t c, enum ot_jinja_class class) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    bool decimal = category == UTF8PROC_CATEGORY_ND;
    bool number = decimal || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
    switch (class) {
    case OT_JINJA_ALPHA:
        return letter;
    case OT_JINJA_DECIMAL:
        return decimal;
    case OT_JINJA_DIGIT: /* superscripts and numbers in circles are digits too */
        return decimal || (c >= 0x2070 && c <= 0x2089 && number) || c == 0xb2 || c == 0xb3 || c == 0xb9 ||
               (c >= 0x2460 && c <= 0x2468);
    case OT_JINJA_NUMERIC:
        return number;
    case OT_JINJA_ALNUM:
        return letter || number;
    case OT_JINJA_SPACE:
        return ot_unicode_is_space(c) || (c >= 0x1c && c <= 0x1f);
    case OT_JINJA_ASCII:
        return c < 0x80;
    case OT_JINJA_WORD:
        return letter || number || c == '_';
    }
    return false;
}

bool ot_jinja_is_lower(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba;
}

bool ot_jinja_is_upper(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU;
}

/* ---- case ---- */

static void put(struct ot_string_builder *out, uint32_t c) {
    char text[4];
    ot_string_append(out, text, ot_utf8_encode(c, text));
}

static void put_upper(struct ot_string_builder *out, uint32_t c, bool title) {
    static const char *const ligatures[] = {"FF", "FI", "FL", "FFI", "FFL", "ST", "ST"};
    static const char *const titled[] = {"Ff", "Fi", "Fl", "Ffi", "Ffl", "St", "St"};
    if (c == SHARP_S)
        ot_string_append_text(out, title ? "Ss" : "SS");
    else if (c >= LIGATURES && c < LIGATURES + 7)
        ot_string_append_text(out, (title ? titled : ligatures)[c - LIGATURES]);
    else
        put(out, (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)c)
                                  : utf8proc_toupper((utf8proc_int32_t)c)));
}

/* Letters, and marks that do not end a word for the rule of the final sigma. */
static bool is_cased(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT;
}

static bool is_ignorable(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
           category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
           category == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2019;
}

/* A sigma that ends a word has its own form. */
static bool is_final(const char *text, size_t at, size_t after, size_t n) {
    size_t length;
    bool before = false;
    while (at > 0) {
        uint32_t c = ot_utf8_decode_before(text, at, &length);
        at -= length;
        if (is_ignorable(c))
            continue;
        before = is_cased(c);
        break;
    }
    for (; after < n; after += length) {
        uint32_t c = ot_utf8_decode(text + after, &length);
        if (!is_ignorable(c))
            return before && !is_cased(c);
    }
    return before;
}

static void put_lower(struct ot_string_builder *out, const char *text, size_t at, size_t after, size_t n,
                      uint32_t c) {
    if (c == DOTTED_I)
        ot_string_append_text(out, "i\xcc\x87");
    else if (c == BIG_SIGMA)
        put(out, is_final(text, at, after, n) ? FINAL_SIGMA : SIGMA);
    else
        put(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

void ot_jinja_change_case(const char *text, size_t n, enum ot_jinja_case to, struct ot_string_builder *out) {
    bool in_word = false;
    for (size_t at = 0, length; at < n; at += length) {
        uint32_t c = ot_utf8_decode(text + at, &length);
        bool upper = to == OT_JINJA_UPPER || (to == OT_JINJA_SWAP && ot_jinja_is_lower(c));
        bool first = (to == OT_JINJA_TITLE && !in_word) || (to == OT_JINJA_CAPITAL && at == 0);
        if (to == OT_JINJA_SWAP && !ot_jinja_is_lower(c) && !ot_jinja_is_upper(c))
            put(out, c);
        else if (upper || first)
            put_upper(out, c, first);
        else
            put_lower(out, text, at, at + length, n, c);
        in_word = is_cased(c);
    }
}
