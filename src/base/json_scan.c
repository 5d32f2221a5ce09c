#include "src/base/json_scan.h"

#include <stdbool.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/utf8.h"

static int fault(const struct ot_json_scan *scan, const char *what) {
    if (scan->at >= scan->bytes)
        return ot_fail(OT_E_INPUT, "%s: byte %zu: not valid JSON: it ends here, too early", scan->where,
                       scan->at);
    return ot_fail(OT_E_INPUT, "%s: byte %zu: not valid JSON: %s", scan->where, scan->at, what);
}

/* The byte at the cursor, or -1 at the end. */
static int peek(const struct ot_json_scan *scan) {
    return scan->at < scan->bytes ? scan->text[scan->at] : -1;
}

static bool take(struct ot_json_scan *scan, int byte) {
    if (peek(scan) != byte)
        return false;
    scan->at++;
    return true;
}

static void skip_space(struct ot_json_scan *scan) {
    for (int c = peek(scan); c == ' ' || c == '\n' || c == '\r' || c == '\t'; c = peek(scan))
        scan->at++;
}

static bool is_digit(int c) {
    return c >= '0' && c <= '9';
}

static bool is_hex(int c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* ---- strings ---- */

/* The value of "\\uXXXX" at an offset; -1 where there is none. */
static int escaped_unit(const struct ot_json_scan *scan, size_t at) {
    int value = 0;
    if (at + 6 > scan->bytes || scan->text[at] != '\\' || scan->text[at + 1] != 'u')
        return -1;
    for (size_t i = at + 2; i < at + 6; i++) {
        int c = scan->text[i];
        if (!is_hex(c))
            return -1;
        value = value * 16 + (is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
}

/* Past the second half, if the escape at `start` is the first half of a pair. */
static int replace_pair(struct ot_json_scan *scan, size_t start) {
    int high = escaped_unit(scan, start), low = escaped_unit(scan, start + 6);
    if (high < 0xd800 || high > 0xdbff || low < 0xdc00 || low > 0xdfff)
        return 0;
    int point = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    char utf8[4] = {(char)(0xf0 | point >> 18), (char)(0x80 | (point >> 12 & 0x3f)),
                    (char)(0x80 | (point >> 6 & 0x3f)), (char)(0x80 | (point & 0x3f))};
    scan->at = start + 12;
    return scan->on_replace(scan->context, start, scan->at, utf8, sizeof utf8);
}

static int scan_escape(struct ot_json_scan *scan, bool is_key) {
    size_t start = scan->at++;
    int c = peek(scan);
    if (c >= 0 && c != 'u' && strchr("\"\\/bfnrt", c) && c != '\0') {
        scan->at++;
        return 0;
    }
    if (c != 'u')
        return fault(scan, "an unknown escape in a string");
    scan->at++;
    for (int i = 0; i < 4; i++, scan->at++)
        if (!is_hex(peek(scan)))
            return fault(scan, "\\u needs four hexadecimal digits");
    if (is_key && memcmp(scan->text + start, "\\u0000", 6) == 0) {
        scan->at = start;
        return fault(scan, "a key with a NUL in it");
    }
    return replace_pair(scan, start);
}

/* json-c measures strings with an int. */
static const size_t max_string_bytes = (size_t)1 << 30;

/* A letter above ASCII that is followed by ASCII is none of UTF-8, and a letter of most other encodings. */
static bool is_single_byte_text(const struct ot_json_scan *scan) {
    return scan->at + 1 < scan->bytes && scan->text[scan->at] >= 0x80 && scan->text[scan->at + 1] < 0x80;
}

static int scan_string(struct ot_json_scan *scan, bool is_key) {
    size_t start = ++scan->at; /* past the quote */
    for (;;) {
        int c = peek(scan);
        if (c < 0x20) /* the end, too */
            return fault(scan, "a control character in a string; it must be escaped");
        if (c == '"')
            break;
        if (c == '\\') {
            OT_TRY(scan_escape(scan, is_key));
            continue;
        }
        size_t length = ot_utf8_character((const char *)scan->text + scan->at, scan->bytes - scan->at);
        if (length == 0)
            return fault(scan, is_single_byte_text(scan)
                                   ? "invalid UTF-8 (Windows-1252 text? iconv -f WINDOWS-1252 -t UTF-8 "
                                     "converts the file)"
                                   : "invalid UTF-8");
        scan->at += length;
    }
    if (scan->at - start > max_string_bytes)
        return fault(scan, "a string of more than 1 GiB");
    scan->at++;
    return 0;
}

/* ---- numbers ---- */

static size_t scan_digits(struct ot_json_scan *scan) {
    size_t start = scan->at;
    while (is_digit(peek(scan)))
        scan->at++;
    return scan->at - start;
}

static bool exceeds_int64(const unsigned char *digits, size_t n, bool negative) {
    static const char *const limits[] = {"9223372036854775807", "9223372036854775808"};
    return n > 19 || (n == 19 && memcmp(digits, limits[negative], 19) > 0);
}

static int scan_number(struct ot_json_scan *scan) {
    bool negative = take(scan, '-'), is_int = true;
    const unsigned char *digits = scan->text + scan->at;
    size_t n_digits = scan_digits(scan);
    if (n_digits == 0)
        return fault(scan, "a number without digits");
    if (n_digits > 1 && digits[0] == '0') {
        scan->at -= n_digits;
        return fault(scan, "a number with a leading zero");
    }
    if (take(scan, '.')) {
        is_int = false;
        if (scan_digits(scan) == 0)
            return fault(scan, "a number without digits after its point");
    }
    if (take(scan, 'e') || take(scan, 'E')) {
        is_int = false;
        if (!take(scan, '-'))
            take(scan, '+');
        if (scan_digits(scan) == 0)
            return fault(scan, "a number without digits in its exponent");
    }
    if (is_int && exceeds_int64(digits, n_digits, negative))
        return scan->on_replace(scan->context, scan->at, scan->at, ".0", 2);
    return 0;
}

/* ---- values ---- */

static int scan_value(struct ot_json_scan *scan);

static int scan_word(struct ot_json_scan *scan, const char *word) {
    for (const char *c = word; *c; c++)
        if (!take(scan, (unsigned char)*c))
            return fault(scan, "an unknown word; only true, false and null are allowed");
    return 0;
}

static int scan_array(struct ot_json_scan *scan) {
    scan->at++;
    skip_space(scan);
    if (take(scan, ']'))
        return 0;
    for (;;) {
        OT_TRY(scan_value(scan));
        skip_space(scan);
        if (take(scan, ']'))
            return 0;
        if (!take(scan, ','))
            return fault(scan, "expected ',' or ']'");
    }
}

static int scan_object(struct ot_json_scan *scan) {
    scan->at++;
    skip_space(scan);
    if (take(scan, '}'))
        return 0;
    for (;;) {
        skip_space(scan);
        if (peek(scan) != '"')
            return fault(scan, "expected a key in double quotes");
        OT_TRY(scan_string(scan, true));
        skip_space(scan);
        if (!take(scan, ':'))
            return fault(scan, "expected ':' after a key");
        OT_TRY(scan_value(scan));
        skip_space(scan);
        if (take(scan, '}'))
            return 0;
        if (!take(scan, ','))
            return fault(scan, "expected ',' or '}'");
    }
}

static int scan_value(struct ot_json_scan *scan) {
    skip_space(scan);
    int c = peek(scan), rc;
    switch (c) {
    case '{':
    case '[':
        if (scan->depth == OT_JSON_MAX_DEPTH)
            return fault(scan, "nested more than 64 levels deep");
        scan->depth++;
        rc = c == '{' ? scan_object(scan) : scan_array(scan);
        scan->depth--;
        return rc;
    case '"':
        return scan_string(scan, false);
    case 't':
        return scan_word(scan, "true");
    case 'f':
        return scan_word(scan, "false");
    case 'n':
        return scan_word(scan, "null");
    case 'N':
    case 'I':
        return fault(scan, "NaN and Infinity are not JSON");
    default:
        if (c == '-' || is_digit(c))
            return scan_number(scan);
        return fault(scan, "expected a value");
    }
}

int ot_json_scan_document(struct ot_json_scan *scan) {
    OT_TRY(scan_value(scan));
    skip_space(scan);
    if (scan->at < scan->bytes)
        return fault(scan, "text after the end of the document");
    return 0;
}
