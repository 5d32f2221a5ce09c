/* White space, upper and lower case as Python's str has them. */
#include "src/jinja/methods.h"

#include <utf8proc.h>

#include "src/base/text.h"
#include "src/tokenizer/text.h"

enum { DOTTED_I = 0x130, BIG_SIGMA = 0x3a3, SIGMA = 0x3c3, FINAL_SIGMA = 0x3c2 };

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

/* ---- case ---- */

/* Sorted by code point. Made from Python's str.upper() and str.title(). */
static const struct special_case {
    uint32_t code_point;
    const char *upper, *title;
} special_cases[] = {
    {0x00df, "SS", "Ss"},
    {0x0149, "\xca\xbcN", "\xca\xbcN"},
    {0x01f0, "J\xcc\x8c", "J\xcc\x8c"},
    {0x0390, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81"},
    {0x03b0, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81"},
    {0x0587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82"},
    {0x1e96, "H\xcc\xb1", "H\xcc\xb1"},
    {0x1e97, "T\xcc\x88", "T\xcc\x88"},
    {0x1e98, "W\xcc\x8a", "W\xcc\x8a"},
    {0x1e99, "Y\xcc\x8a", "Y\xcc\x8a"},
    {0x1e9a, "A\xca\xbe", "A\xca\xbe"},
    {0x1f50, "\xce\xa5\xcc\x93", "\xce\xa5\xcc\x93"},
    {0x1f52, "\xce\xa5\xcc\x93\xcc\x80", "\xce\xa5\xcc\x93\xcc\x80"},
    {0x1f54, "\xce\xa5\xcc\x93\xcc\x81", "\xce\xa5\xcc\x93\xcc\x81"},
    {0x1f56, "\xce\xa5\xcc\x93\xcd\x82", "\xce\xa5\xcc\x93\xcd\x82"},
    {0x1f80, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88"},
    {0x1f81, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89"},
    {0x1f82, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a"},
    {0x1f83, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b"},
    {0x1f84, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c"},
    {0x1f85, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d"},
    {0x1f86, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e"},
    {0x1f87, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f"},
    {0x1f88, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88"},
    {0x1f89, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89"},
    {0x1f8a, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a"},
    {0x1f8b, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b"},
    {0x1f8c, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c"},
    {0x1f8d, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d"},
    {0x1f8e, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e"},
    {0x1f8f, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f"},
    {0x1f90, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98"},
    {0x1f91, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99"},
    {0x1f92, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a"},
    {0x1f93, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b"},
    {0x1f94, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c"},
    {0x1f95, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d"},
    {0x1f96, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e"},
    {0x1f97, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f"},
    {0x1f98, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98"},
    {0x1f99, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99"},
    {0x1f9a, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a"},
    {0x1f9b, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b"},
    {0x1f9c, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c"},
    {0x1f9d, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d"},
    {0x1f9e, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e"},
    {0x1f9f, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f"},
    {0x1fa0, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8"},
    {0x1fa1, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9"},
    {0x1fa2, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa"},
    {0x1fa3, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab"},
    {0x1fa4, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac"},
    {0x1fa5, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad"},
    {0x1fa6, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae"},
    {0x1fa7, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf"},
    {0x1fa8, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8"},
    {0x1fa9, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9"},
    {0x1faa, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa"},
    {0x1fab, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab"},
    {0x1fac, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac"},
    {0x1fad, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad"},
    {0x1fae, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae"},
    {0x1faf, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf"},
    {0x1fb2, "\xe1\xbe\xba\xce\x99", "\xe1\xbe\xba\xcd\x85"},
    {0x1fb3, "\xce\x91\xce\x99", "\xe1\xbe\xbc"},
    {0x1fb4, "\xce\x86\xce\x99", "\xce\x86\xcd\x85"},
    {0x1fb6, "\xce\x91\xcd\x82", "\xce\x91\xcd\x82"},
    {0x1fb7, "\xce\x91\xcd\x82\xce\x99", "\xce\x91\xcd\x82\xcd\x85"},
    {0x1fbc, "\xce\x91\xce\x99", "\xe1\xbe\xbc"},
    {0x1fc2, "\xe1\xbf\x8a\xce\x99", "\xe1\xbf\x8a\xcd\x85"},
    {0x1fc3, "\xce\x97\xce\x99", "\xe1\xbf\x8c"},
    {0x1fc4, "\xce\x89\xce\x99", "\xce\x89\xcd\x85"},
    {0x1fc6, "\xce\x97\xcd\x82", "\xce\x97\xcd\x82"},
    {0x1fc7, "\xce\x97\xcd\x82\xce\x99", "\xce\x97\xcd\x82\xcd\x85"},
    {0x1fcc, "\xce\x97\xce\x99", "\xe1\xbf\x8c"},
    {0x1fd2, "\xce\x99\xcc\x88\xcc\x80", "\xce\x99\xcc\x88\xcc\x80"},
    {0x1fd3, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81"},
    {0x1fd6, "\xce\x99\xcd\x82", "\xce\x99\xcd\x82"},
    {0x1fd7, "\xce\x99\xcc\x88\xcd\x82", "\xce\x99\xcc\x88\xcd\x82"},
    {0x1fe2, "\xce\xa5\xcc\x88\xcc\x80", "\xce\xa5\xcc\x88\xcc\x80"},
    {0x1fe3, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81"},
    {0x1fe4, "\xce\xa1\xcc\x93", "\xce\xa1\xcc\x93"},
    {0x1fe6, "\xce\xa5\xcd\x82", "\xce\xa5\xcd\x82"},
    {0x1fe7, "\xce\xa5\xcc\x88\xcd\x82", "\xce\xa5\xcc\x88\xcd\x82"},
    {0x1ff2, "\xe1\xbf\xba\xce\x99", "\xe1\xbf\xba\xcd\x85"},
    {0x1ff3, "\xce\xa9\xce\x99", "\xe1\xbf\xbc"},
    {0x1ff4, "\xce\x8f\xce\x99", "\xce\x8f\xcd\x85"},
    {0x1ff6, "\xce\xa9\xcd\x82", "\xce\xa9\xcd\x82"},
    {0x1ff7, "\xce\xa9\xcd\x82\xce\x99", "\xce\xa9\xcd\x82\xcd\x85"},
    {0x1ffc, "\xce\xa9\xce\x99", "\xe1\xbf\xbc"},
    {0xfb00, "FF", "Ff"},
    {0xfb01, "FI", "Fi"},
    {0xfb02, "FL", "Fl"},
    {0xfb03, "FFI", "Ffi"},
    {0xfb04, "FFL", "Ffl"},
    {0xfb05, "ST", "St"},
    {0xfb06, "ST", "St"},
    {0xfb13, "\xd5\x84\xd5\x86", "\xd5\x84\xd5\xb6"},
    {0xfb14, "\xd5\x84\xd4\xb5", "\xd5\x84\xd5\xa5"},
    {0xfb15, "\xd5\x84\xd4\xbb", "\xd5\x84\xd5\xab"},
    {0xfb16, "\xd5\x8e\xd5\x86", "\xd5\x8e\xd5\xb6"},
    {0xfb17, "\xd5\x84\xd4\xbd", "\xd5\x84\xd5\xad"},
};

static const struct special_case *find_special_case(uint32_t code_point) {
    size_t low = 0, high = sizeof special_cases / sizeof *special_cases;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (special_cases[middle].code_point < code_point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof special_cases / sizeof *special_cases && special_cases[low].code_point == code_point
               ? &special_cases[low]
               : NULL;
}

static void put(struct ot_string_builder *out, uint32_t c) {
    char text[4];
    ot_string_append(out, text, ot_utf8_encode(c, text));
}

static void put_upper(struct ot_string_builder *out, uint32_t c, bool title) {
    const struct special_case *special = c < 0x80 ? NULL : find_special_case(c);
    if (special)
        ot_string_append_text(out, title ? special->title : special->upper);
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
        bool first = (to == OT_JINJA_TITLE && !in_word) || (to == OT_JINJA_CAPITAL && at == 0);
        if (to == OT_JINJA_UPPER || first)
            put_upper(out, c, first);
        else
            put_lower(out, text, at, at + length, n, c);
        in_word = is_cased(c);
    }
}
