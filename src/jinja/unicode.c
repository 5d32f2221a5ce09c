#include "src/jinja/unicode.h"

#include <utf8proc.h>

#include "src/base/text.h"
#include "src/jinja/special_case.h"
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

/* ---- classes ---- */

/* Digits of Unicode outside the general category. */
static const uint32_t other_digits[][2] = {
    {0xb2, 0xb3},     {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
    {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
    {0x24ea, 0x24ea}, {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
    {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
static const uint32_t other_upper[][2] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
static const uint32_t other_lower[][2] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};
#define IS_IN(c, ranges) is_in(c, ranges, sizeof ranges / sizeof *ranges)

static bool is_in(uint32_t c, const uint32_t (*ranges)[2], size_t n) {
    for (size_t i = 0; i < n; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

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
    case OT_JINJA_DIGIT:
        return decimal || IS_IN(c, other_digits);
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
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL || IS_IN(c, other_lower);
}

bool ot_jinja_is_upper(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU || IS_IN(c, other_upper);
}

/* ---- case ---- */

static void put(struct ot_string_builder *out, uint32_t c) {
    char text[4];
    ot_string_append(out, text, ot_utf8_encode(c, text));
}

static void put_upper(struct ot_string_builder *out, uint32_t c, bool title) {
    const struct ot_jinja_special_case *special = c < 0x80 ? NULL : ot_jinja_find_special_case(c);
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
