/* A strict parser of RFC 8259. It limits the depth, names the byte of an error, and reports each failed
 * allocation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json_state.h"
#include "src/base/memory.h"
#include "src/base/utf8.h"

struct parser {
    const unsigned char *text;
    size_t bytes, at;
    const char *where; /* for errors */
    int depth;
    bool is_row;            /* NaN and Infinity are numbers, and torn strings are marked */
    bool is_torn;           /* the last string has half of a surrogate pair */
    bool is_escaped;        /* it has escapes */
    struct ot_arena *arena; /* of the reader */
    struct ot_json_reader *reader;
    size_t n_open; /* members and items of the containers that are still open, the innermost last */
};

static int parse_value(struct parser *p, struct ot_json **out);

static int fault(const struct parser *p, const char *what) {
    if (p->at >= p->bytes)
        return ot_fail(OT_E_INPUT, "%s: byte %zu: not valid JSON: the text ends too early", p->where, p->at);
    return ot_fail(OT_E_INPUT, "%s: byte %zu: not valid JSON: %s", p->where, p->at, what);
}

static int no_memory(const struct parser *p) {
    return ot_fail(OT_E_BUDGET, "%s: no memory to parse it", p->where);
}

static int new_value(struct parser *p, enum ot_json_type type, struct ot_json **out) {
    *out = ot_arena_alloc(p->arena, 1, sizeof **out);
    if (!*out)
        return no_memory(p);
    (*out)->type = type;
    return 0;
}

/* The byte at the cursor, or -1 at the end. */
static int peek(const struct parser *p) {
    return p->at < p->bytes ? p->text[p->at] : -1;
}

static bool take(struct parser *p, int byte) {
    if (peek(p) != byte)
        return false;
    p->at++;
    return true;
}

static void skip_space(struct parser *p) {
    for (int c = peek(p); c == ' ' || c == '\n' || c == '\r' || c == '\t'; c = peek(p))
        p->at++;
}

static bool is_digit(int c) {
    return c >= '0' && c <= '9';
}

static bool is_hex(int c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* ---- strings ---- */

/* The value of the escape \uXXXX at an offset; -1: there is no such escape. */
static int escaped_unit(const struct parser *p, size_t at) {
    int value = 0;
    if (at + 6 > p->bytes || p->text[at] != '\\' || p->text[at + 1] != 'u')
        return -1;
    for (size_t i = at + 2; i < at + 6; i++) {
        int c = p->text[i];
        if (!is_hex(c))
            return -1;
        value = value * 16 + (is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
}

static int scan_escape(struct parser *p, bool is_key) {
    size_t start = p->at++;
    int c = peek(p);
    if (c >= 0 && c != 'u' && strchr("\"\\/bfnrt", c) && c != '\0') {
        p->at++;
        return 0;
    }
    if (c != 'u')
        return fault(p, "an unknown escape in a string");
    p->at++;
    for (int i = 0; i < 4; i++, p->at++)
        if (!is_hex(peek(p)))
            return fault(p, "\\u needs four hexadecimal digits");
    if (is_key && memcmp(p->text + start, "\\u0000", 6) == 0) {
        p->at = start;
        return fault(p, "a key with a NUL in it");
    }
    return 0;
}

static const size_t max_string_bytes = (size_t)1 << 30;

/* A byte above ASCII followed by ASCII is never UTF-8, but is a letter in most other encodings. */
static bool is_single_byte_text(const struct parser *p) {
    return p->at + 1 < p->bytes && p->text[p->at] >= 0x80 && p->text[p->at + 1] < 0x80;
}

static int scan_string(struct parser *p, bool is_key) {
    size_t start = ++p->at; /* past the quote */
    p->is_escaped = false;
    for (;;) {
        p->at += ot_json_plain_bytes((const char *)p->text + p->at, p->bytes - p->at);
        int c = peek(p);
        if (c < 0x20) /* also at the end of the text */
            return fault(p, "a control character in a string must be escaped");
        if (c == '"')
            break;
        if (c == '\\') {
            OT_TRY(scan_escape(p, is_key));
            p->is_escaped = true;
            continue;
        }
        size_t length = ot_utf8_character((const char *)p->text + p->at, p->bytes - p->at);
        if (length == 0)
            return fault(p, is_single_byte_text(p)
                                ? "invalid UTF-8 (Windows-1252 text? iconv -f WINDOWS-1252 "
                                  "-t UTF-8 converts the file)"
                                : "invalid UTF-8");
        p->at += length;
    }
    if (p->at - start > max_string_bytes)
        return fault(p, "a string of more than 1 GiB");
    p->at++;
    return 0;
}

/* Decodes the escape at *at and moves *at behind it. Half of a surrogate pair becomes U+FFFD. */
static size_t decode_escape(struct parser *p, size_t *at, char *to) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    int c = p->text[*at + 1];
    if (c != 'u') {
        *to = meant[strchr(letters, c) - letters];
        *at += 2;
        return 1;
    }
    int point = escaped_unit(p, *at), low = escaped_unit(p, *at + 6);
    *at += 6;
    if (point >= 0xd800 && point <= 0xdbff && low >= 0xdc00 && low <= 0xdfff) {
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        *at += 6;
    } else if (point >= 0xd800 && point <= 0xdfff) {
        point = 0xfffd;
        p->is_torn = true;
    }
    return ot_utf8_encode((uint32_t)point, to);
}

/* Parses the string whose opening quote is at the cursor. Adds a NUL. */
static int parse_string(struct parser *p, bool is_key, const char **out, size_t *n) {
    size_t at = p->at + 1;
    OT_TRY(scan_string(p, is_key));
    size_t end = p->at - 1;
    char *to = ot_arena_alloc(p->arena, end - at + 1, 1);
    if (!to)
        return no_memory(p);
    *out = to;
    p->is_torn = false;
    while (at < end) {
        const unsigned char *escape = p->is_escaped ? memchr(p->text + at, '\\', end - at) : NULL;
        size_t plain = escape ? (size_t)(escape - p->text) - at : end - at;
        memcpy(to, p->text + at, plain);
        to += plain;
        at += plain;
        if (escape)
            to += decode_escape(p, &at, to);
    }
    *n = (size_t)(to - *out);
    return is_key && p->is_row && p->is_torn ? fault(p, "half of a surrogate pair in a key") : 0;
}

/* ---- numbers ---- */

static size_t scan_digits(struct parser *p) {
    size_t start = p->at;
    while (is_digit(peek(p)))
        p->at++;
    return p->at - start;
}

static bool exceeds_int64(const unsigned char *digits, size_t n, bool negative) {
    static const char *const limits[] = {"9223372036854775807", "9223372036854775808"};
    return n > 19 || (n == 19 && memcmp(digits, limits[negative], 19) > 0);
}

static int put_int(struct parser *p, const unsigned char *digits, size_t n, bool negative,
                   struct ot_json **out) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value = value * 10 + (uint64_t)(digits[i] - '0');
    OT_TRY(new_value(p, OT_JSON_INT, out));
    (*out)->integer = (int64_t)(negative ? 0 - value : value);
    return 0;
}

/* Converts the number that ends at the cursor. */
static int put_real(struct parser *p, size_t start, struct ot_json **out) {
    char *number = ot_arena_strdup(p->arena, (const char *)p->text + start, p->at - start);
    if (!number)
        return no_memory(p);
    OT_TRY(new_value(p, OT_JSON_REAL, out));
    (*out)->real = strtod(number, NULL);
    return 0;
}

static int parse_number(struct parser *p, struct ot_json **out) {
    size_t start = p->at;
    bool negative = take(p, '-'), is_int = true;
    const unsigned char *digits = p->text + p->at;
    size_t n_digits = scan_digits(p);
    if (n_digits == 0)
        return fault(p, "a number without digits");
    if (n_digits > 1 && digits[0] == '0') {
        p->at -= n_digits;
        return fault(p, "a number with a leading zero");
    }
    if (take(p, '.')) {
        is_int = false;
        if (scan_digits(p) == 0)
            return fault(p, "a number without digits after its point");
    }
    if (take(p, 'e') || take(p, 'E')) {
        is_int = false;
        if (!take(p, '-'))
            take(p, '+');
        if (scan_digits(p) == 0)
            return fault(p, "a number without digits in its exponent");
    }
    if (is_int && !exceeds_int64(digits, n_digits, negative))
        return put_int(p, digits, n_digits, negative, out);
    return put_real(p, start, out);
}

/* ---- containers ---- */

static int keep_open(struct parser *p, const char *key, struct ot_json *value) {
    struct ot_json_reader *r = p->reader;
    if (!ot_try_grow(&r->open, &r->open_capacity, p->n_open + 1, sizeof *r->open))
        return no_memory(p);
    r->open[p->n_open++] = (struct ot_json_member){key, value};
    return 0;
}

static int close_array(struct parser *p, size_t first, struct ot_json **out) {
    size_t n = p->n_open - first;
    OT_TRY(new_value(p, OT_JSON_ARRAY, out));
    struct ot_json **items = ot_arena_alloc(p->arena, n, sizeof(struct ot_json *));
    if (!items)
        return no_memory(p);
    for (size_t i = 0; i < n; i++)
        items[i] = p->reader->open[first + i].value;
    (*out)->array.items = items;
    (*out)->array.n = n;
    p->n_open = first;
    return 0;
}

static int compare_members(const void *a, const void *b) {
    const struct ot_json_member *x = *(const struct ot_json_member *const *)a,
                                *y = *(const struct ot_json_member *const *)b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x > y) - (x < y);
}

/* Sorts by key; equal keys stay in file order. Few members, as those of rows, need no call of qsort. */
static void sort_members(struct ot_json *object) {
    enum { FEW = 8 };
    const struct ot_json_member **sorted = object->object.sorted, *members = object->object.members;
    const size_t n = object->object.n;
    object->object.key_bits = 0;
    for (size_t i = 0; i < n; i++) {
        size_t at = i;
        for (; n <= FEW && at > 0 && strcmp(sorted[at - 1]->key, members[i].key) > 0; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = &members[i];
        object->object.key_bits |= ot_json_key_bit(members[i].key);
    }
    if (n > FEW)
        qsort(sorted, n, sizeof *sorted, compare_members);
}

/* Removes members without a key. */
static void keep_named(struct ot_json *object) {
    struct ot_json_member *members = object->object.members;
    size_t kept = 0;
    for (size_t i = 0; i < object->object.n; i++)
        if (members[i].key)
            members[kept++] = members[i];
    object->object.n = kept;
}

void ot_json_order_members(struct ot_json *object) {
    keep_named(object);
    sort_members(object);
}

/* A repeated key keeps its first place and its last value. */
static void join_repeated(struct ot_json *object) {
    struct ot_json_member *members = object->object.members, *first = NULL;
    size_t n = object->object.n;
    for (size_t i = 0; i < n; i++) {
        struct ot_json_member *member = &members[object->object.sorted[i] - members];
        if (!first || strcmp(first->key, member->key) != 0) {
            first = member;
            continue;
        }
        first->value = member->value;
        member->key = NULL;
    }
    keep_named(object);
    if (object->object.n < n)
        sort_members(object);
}

static int close_object(struct parser *p, size_t first, struct ot_json **out) {
    size_t n = p->n_open - first;
    OT_TRY(new_value(p, OT_JSON_OBJECT, out));
    (*out)->object.members = ot_arena_alloc(p->arena, n, sizeof *(*out)->object.members);
    (*out)->object.sorted = ot_arena_alloc(p->arena, n, sizeof *(*out)->object.sorted);
    if (!(*out)->object.members || !(*out)->object.sorted)
        return no_memory(p);
    if (n > 0)
        memcpy((*out)->object.members, p->reader->open + first, n * sizeof *p->reader->open);
    (*out)->object.n = n;
    sort_members(*out);
    join_repeated(*out);
    p->n_open = first;
    return 0;
}

static int parse_array(struct parser *p, struct ot_json **out) {
    size_t first = p->n_open;
    p->at++;
    skip_space(p);
    if (take(p, ']'))
        return close_array(p, first, out);
    for (;;) {
        struct ot_json *value;
        OT_TRY(parse_value(p, &value));
        OT_TRY(keep_open(p, NULL, value));
        skip_space(p);
        if (take(p, ']'))
            return close_array(p, first, out);
        if (!take(p, ','))
            return fault(p, "expected ',' or ']'");
    }
}

static int parse_object(struct parser *p, struct ot_json **out) {
    size_t first = p->n_open, n;
    p->at++;
    skip_space(p);
    if (take(p, '}'))
        return close_object(p, first, out);
    for (;;) {
        const char *key;
        struct ot_json *value;
        skip_space(p);
        if (peek(p) != '"')
            return fault(p, "expected a key in double quotes");
        OT_TRY(parse_string(p, true, &key, &n));
        skip_space(p);
        if (!take(p, ':'))
            return fault(p, "expected ':' after a key");
        OT_TRY(parse_value(p, &value));
        OT_TRY(keep_open(p, key, value));
        skip_space(p);
        if (take(p, '}'))
            return close_object(p, first, out);
        if (!take(p, ','))
            return fault(p, "expected ',' or '}'");
    }
}

/* ---- values ---- */

static int parse_word(struct parser *p, const char *word, struct ot_json **out) {
    for (const char *c = word; *c; c++)
        if (!take(p, (unsigned char)*c))
            return fault(p, "an unknown word; only true, false and null are allowed");
    *out = NULL;
    if (*word == 'n')
        return 0;
    OT_TRY(new_value(p, OT_JSON_BOOL, out));
    (*out)->truth = *word == 't';
    return 0;
}

/* Python's words for numbers that JSON does not have. */
static int parse_lost_number(struct parser *p, struct ot_json **out) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    static const double values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; p->is_row && i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if (p->bytes - p->at < n || memcmp(p->text + p->at, words[i], n) != 0)
            continue;
        p->at += n;
        OT_TRY(new_value(p, OT_JSON_REAL, out));
        (*out)->real = values[i];
        return 0;
    }
    return fault(p, "NaN and Infinity are not JSON");
}

static int parse_text(struct parser *p, struct ot_json **out) {
    const char *bytes;
    size_t n;
    OT_TRY(parse_string(p, false, &bytes, &n));
    OT_TRY(new_value(p, OT_JSON_STRING, out));
    (*out)->string.bytes = bytes;
    (*out)->string.n = n;
    (*out)->is_torn = p->is_torn;
    return 0;
}

static int parse_value(struct parser *p, struct ot_json **out) {
    skip_space(p);
    int c = peek(p), rc;
    switch (c) {
    case '{':
    case '[':
        if (p->depth == OT_JSON_MAX_DEPTH)
            return fault(p, "nested more than 64 levels deep");
        p->depth++;
        rc = c == '{' ? parse_object(p, out) : parse_array(p, out);
        p->depth--;
        return rc;
    case '"':
        return parse_text(p, out);
    case 't':
        return parse_word(p, "true", out);
    case 'f':
        return parse_word(p, "false", out);
    case 'n':
        return parse_word(p, "null", out);
    case 'N':
    case 'I':
        return parse_lost_number(p, out);
    default:
        if (p->is_row && c == '-' && p->at + 1 < p->bytes && p->text[p->at + 1] == 'I')
            return parse_lost_number(p, out);
        if (c == '-' || is_digit(c))
            return parse_number(p, out);
        return fault(p, "expected a value");
    }
}

int ot_json_parse_document(const char *text, size_t bytes, const char *where, bool is_row,
                           struct ot_json_reader *reader, struct ot_json **out) {
    struct parser p = {.text = (const unsigned char *)text,
                       .bytes = bytes,
                       .where = where,
                       .arena = reader->arena,
                       .reader = reader,
                       .is_row = is_row};
    int rc = parse_value(&p, out);
    skip_space(&p);
    if (rc == 0 && p.at < p.bytes)
        rc = fault(&p, "text after the end of the document");
    return rc;
}
