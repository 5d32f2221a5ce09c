/* Cuts a template into tokens. */
#include "src/jinja/parser.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/utf8.h"
#include "src/jinja/methods.h"

enum { MOST_BRACKETS = 64, NUMBER_BYTES = 400 };

struct lexer {
    struct ot_jinja_heap *heap;
    const char *text; /* with its line ends normalised */
    size_t n, at;
    bool line_start; /* the text before `at` ends with a line end, or is empty */
    struct ot_jinja_tokens *out;
};

static int add(struct lexer *x, struct ot_jinja_token token) {
    struct ot_jinja_tokens *out = x->out;
    OT_TRY(ot_jinja_grow(x->heap, &out->items, out->n, &out->capacity, sizeof *out->items, 256));
    token.line = x->heap->line;
    out->items[out->n++] = token;
    return 0;
}

static bool looking_at(const struct lexer *x, size_t at, const char *word) {
    size_t n = strlen(word);
    return x->n - at >= n && memcmp(x->text + at, word, n) == 0;
}

/* Moves to `end` and counts its lines. */
static void move_to(struct lexer *x, size_t end) {
    for (; x->at < end; x->at++)
        x->heap->line += x->text[x->at] == '\n';
}

static size_t skip_space(const struct lexer *x, size_t at) {
    size_t n;
    while (at < x->n && (n = ot_jinja_space_at(x->text + at, x->n - at)) > 0)
        at += n;
    return at;
}

/* The text before a tag, without the white space that the tag's sign or lstrip_blocks takes. */
static size_t strip_before(const struct lexer *x, size_t begin, size_t end, char sign, bool block) {
    size_t n, line = end;
    if (sign == '-') {
        while (end > begin && (n = ot_jinja_space_before(x->text + begin, end - begin)) > 0)
            end -= n;
        return end;
    }
    if (sign == '+' || !block)
        return end;
    while (line > begin && x->text[line - 1] != '\n')
        line--;
    if (line == begin && !x->line_start)
        return end;
    return skip_space(x, line) >= end ? line : end;
}

/* ---- texts between tags ---- */

static int add_data(struct lexer *x, size_t begin, size_t end) {
    if (end == begin)
        return 0;
    return add(
        x, (struct ot_jinja_token){.kind = OT_JINJA_T_DATA, .text = x->text + begin, .bytes = end - begin});
}

/* The end of "{% raw %}" that begins at `at`; 0: another tag. */
static size_t raw_end(const struct lexer *x, size_t at) {
    at += 2;
    if (at < x->n && (x->text[at] == '-' || x->text[at] == '+'))
        at++;
    at = skip_space(x, at);
    if (!looking_at(x, at, "raw"))
        return 0;
    at = skip_space(x, at + 3);
    if (looking_at(x, at, "-%}"))
        return skip_space(x, at + 3);
    return looking_at(x, at, "%}") ? at + 2 : 0;
}

/* The end of a tag whose closing mark begins at `at`, with the white space that it takes; 0: none is there.
 */
static size_t tag_end(const struct lexer *x, size_t at, const char *mark, bool trims) {
    if (at < x->n && x->text[at] == '-' && looking_at(x, at + 1, mark))
        return skip_space(x, at + 3);
    if (trims && at < x->n && x->text[at] == '+' && looking_at(x, at + 1, mark))
        return at + 3;
    if (!looking_at(x, at, mark))
        return 0;
    return at + 2 < x->n && trims && x->text[at + 2] == '\n' ? at + 3 : at + 2;
}

static void finish_tag(struct lexer *x, size_t end) {
    move_to(x, end);
    x->line_start = end > 0 && x->text[end - 1] == '\n';
}

static int lex_comment(struct lexer *x, size_t begin) {
    for (size_t at = begin; at < x->n; at++) {
        size_t end = tag_end(x, at, "#}", true);
        if (end > 0) {
            finish_tag(x, end);
            return 0;
        }
    }
    return ot_jinja_fail(x->heap, "a comment is not closed with #}");
}

/* The text of a raw block. `endraw` may have signs. */
static int lex_raw(struct lexer *x, size_t begin) {
    move_to(x, begin);
    x->line_start = begin > 0 && x->text[begin - 1] == '\n';
    for (size_t at = begin; at + 2 <= x->n; at++) {
        if (!looking_at(x, at, "{%"))
            continue;
        size_t name = at + 2;
        char sign = name < x->n && (x->text[name] == '-' || x->text[name] == '+') ? x->text[name] : 0;
        name = skip_space(x, name + (sign != 0));
        if (!looking_at(x, name, "endraw"))
            continue;
        size_t end = tag_end(x, skip_space(x, name + 6), "%}", true);
        if (end == 0)
            continue;
        OT_TRY(add_data(x, begin, strip_before(x, begin, at, sign, true)));
        finish_tag(x, end);
        return 0;
    }
    return ot_jinja_fail(x->heap, "{%% raw %%} has no {%% endraw %%}");
}

/* ---- inside of tags ---- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name_byte(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

static size_t skip_digits(const struct lexer *x, size_t at) {
    while (at < x->n &&
           (is_digit(x->text[at]) || (x->text[at] == '_' && at + 1 < x->n && is_digit(x->text[at + 1]))))
        at++;
    return at;
}

/* The end of the number's part behind a point, or of its exponent; `at`: there is none. */
static size_t skip_fraction(const struct lexer *x, size_t at) {
    return at + 1 < x->n && x->text[at] == '.' && is_digit(x->text[at + 1]) ? skip_digits(x, at + 1) : at;
}

static size_t skip_exponent(const struct lexer *x, size_t at) {
    size_t digits = at + 1;
    if (at >= x->n || (x->text[at] | 0x20) != 'e')
        return at;
    if (digits < x->n && (x->text[digits] == '+' || x->text[digits] == '-'))
        digits++;
    return digits < x->n && is_digit(x->text[digits]) ? skip_digits(x, digits) : at;
}

static int base_of(const struct lexer *x) {
    char letter = x->at + 1 < x->n ? (char)(x->text[x->at + 1] | 0x20) : 0;
    if (x->text[x->at] != '0')
        return 10;
    return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
}

/* The number's characters without underscores. */
static int copy_number(const struct lexer *x, size_t begin, size_t end, char out[NUMBER_BYTES]) {
    size_t n = 0;
    for (size_t i = begin; i < end; i++) {
        if (n + 1 == NUMBER_BYTES)
            return ot_jinja_fail(x->heap, "a number has more than %d digits", NUMBER_BYTES);
        if (x->text[i] != '_')
            out[n++] = x->text[i];
    }
    out[n] = '\0';
    return 0;
}

static int lex_number(struct lexer *x) {
    char digits[NUMBER_BYTES];
    struct ot_jinja_token token = {.kind = OT_JINJA_T_INT};
    int base = base_of(x);
    size_t begin = base == 10 ? x->at : x->at + 2, end = begin;
    bool after_point = x->at > 0 && x->text[x->at - 1] == '.';
    if (base == 10) {
        end = skip_digits(x, begin);
        size_t fraction = after_point ? end : skip_exponent(x, skip_fraction(x, end));
        if (fraction > end)
            token.kind = OT_JINJA_T_REAL;
        end = fraction;
    } else {
        while (end < x->n && is_name_byte(x->text[end]))
            end++;
    }
    OT_TRY(copy_number(x, begin, end, digits));
    errno = 0;
    char *stop = digits;
    if (token.kind == OT_JINJA_T_REAL)
        token.value = ot_jinja_real(strtod(digits, &stop));
    else
        token.value = ot_jinja_int(strtoll(digits, &stop, base));
    if (*stop || stop == digits)
        return ot_jinja_fail(x->heap, "'%.40s' is not a number", digits);
    if (errno == ERANGE && token.kind == OT_JINJA_T_INT)
        return ot_jinja_unsupported(x->heap, "the integer %.40s of more than 64 bits", digits);
    token.text = x->text + x->at;
    token.bytes = end - x->at;
    x->at = end;
    return add(x, token);
}

static int hex_digits(const struct lexer *x, size_t at, size_t end, int n, uint32_t *value) {
    char digits[9] = "", *stop;
    if (end - at < (size_t)n)
        return ot_jinja_fail(x->heap, "an escape in a string is too short");
    memcpy(digits, x->text + at, (size_t)n);
    for (int i = 0; i < n; i++)
        if (!strchr("0123456789abcdefABCDEF", digits[i]))
            return ot_jinja_fail(x->heap, "an escape in a string has no %d hexadecimal digits", n);
    *value = (uint32_t)strtoul(digits, &stop, 16);
    if (*value > 0x10ffff || (*value >= 0xd800 && *value <= 0xdfff))
        return ot_jinja_unsupported(x->heap, "the escape of a character that Unicode does not have");
    return 0;
}

/* Appends the characters of the escape at text[at], behind a backslash. Returns its length. */
static int unescape(const struct lexer *x, size_t at, size_t end, char *out, size_t *n) {
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = x->text[at];
    const char *found = c ? strchr(from, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t value = 0;
    if (found)
        out[(*n)++] = to[found - from];
    else if (digits > 0) {
        OT_TRY(hex_digits(x, at + 1, end, digits, &value));
        *n += ot_utf8_encode(value, out + *n);
        return digits + 1;
    } else if (c >= '0' && c <= '7') {
        int length = 0;
        for (; length < 3 && at + (size_t)length < end && x->text[at + (size_t)length] >= '0' &&
               x->text[at + (size_t)length] <= '7';
             length++)
            value = 8 * value + (uint32_t)(x->text[at + (size_t)length] - '0');
        *n += ot_utf8_encode(value, out + *n);
        return length;
    } else if (c == 'N')
        return ot_jinja_unsupported(x->heap, "the escape \\N of a character's name");
    else if (c != '\n') { /* an escape that is none stays as it is */
        out[(*n)++] = '\\';
        out[(*n)++] = c;
    }
    return 1;
}

static int lex_string(struct lexer *x) {
    char quote = x->text[x->at];
    size_t begin = x->at + 1, end = begin, n = 0;
    while (end < x->n && x->text[end] != quote)
        end += x->text[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return ot_jinja_fail(x->heap, "a string is not closed");
    struct ot_jinja_token token = {.kind = OT_JINJA_T_STRING, .text = x->text + x->at};
    /* No escape grows when it is decoded, except octal digits: \377 becomes two bytes. */
    char *text = ot_jinja_alloc(x->heap, end - begin + 2, 1);
    if (!text)
        return x->heap->error;
    for (size_t i = begin; i < end;) {
        if (x->text[i] != '\\') {
            text[n++] = x->text[i++];
            continue;
        }
        int length = unescape(x, i + 1, end, text, &n);
        OT_TRY(length);
        i += 1 + (size_t)length;
    }
    OT_TRY(ot_jinja_string(x->heap, text, n, false, &token.value));
    token.bytes = end + 1 - x->at;
    OT_TRY(add(x, token));
    move_to(x, end + 1);
    return 0;
}

static int lex_operator(struct lexer *x, char brackets[MOST_BRACKETS], int *depth) {
    static const struct {
        const char *text;
        int op;
    } longer[] = {{"**", OT_JINJA_OP_POWER}, {"//", OT_JINJA_OP_FLOOR}, {"==", OT_JINJA_OP_EQ},
                  {"!=", OT_JINJA_OP_NE},    {"<=", OT_JINJA_OP_LE},    {">=", OT_JINJA_OP_GE}};
    char c = x->text[x->at];
    struct ot_jinja_token token = {
        .kind = OT_JINJA_T_OPERATOR, .op = (unsigned char)c, .text = x->text + x->at, .bytes = 1};
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        if (looking_at(x, x->at, longer[i].text)) {
            token.op = longer[i].op;
            token.bytes = 2;
        }
    if (token.bytes == 1 && !strchr("+-/*%~[](){}<>=.:|,;", c))
        return ot_jinja_fail(x->heap, "unexpected character '%.*s'", (int)(c & 0x80 ? 0 : 1), &c);
    if (strchr("([{", c)) {
        if (*depth == MOST_BRACKETS)
            return ot_jinja_fail(x->heap, "brackets are nested more than %d deep", MOST_BRACKETS);
        brackets[(*depth)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (*depth == 0 || brackets[--*depth] != c)
            return ot_jinja_fail(x->heap, "unexpected '%c'", c);
    }
    x->at += token.bytes;
    return add(x, token);
}

static int lex_name(struct lexer *x) {
    size_t end = x->at;
    while (end < x->n && is_name_byte(x->text[end]))
        end++;
    struct ot_jinja_token token = {.kind = OT_JINJA_T_NAME, .text = x->text + x->at, .bytes = end - x->at};
    x->at = end;
    return add(x, token);
}

/* The tokens up to the end of the tag. */
static int lex_tag(struct lexer *x, bool block) {
    char brackets[MOST_BRACKETS];
    int depth = 0;
    for (;;) {
        size_t end = depth == 0 ? tag_end(x, x->at, block ? "%}" : "}}", block) : 0;
        if (end > 0) {
            OT_TRY(
                add(x, (struct ot_jinja_token){.kind = block ? OT_JINJA_T_BLOCK_END : OT_JINJA_T_PRINT_END}));
            finish_tag(x, end);
            return 0;
        }
        if (x->at >= x->n)
            return ot_jinja_fail(x->heap, "a tag is not closed with %s", block ? "%}" : "}}");
        char c = x->text[x->at];
        size_t space = ot_jinja_space_at(x->text + x->at, x->n - x->at);
        if (space > 0)
            move_to(x, x->at + space);
        else if (is_digit(c))
            OT_TRY(lex_number(x));
        else if (c == '"' || c == '\'')
            OT_TRY(lex_string(x));
        else if (is_name_byte(c))
            OT_TRY(lex_name(x));
        else
            OT_TRY(lex_operator(x, brackets, &depth));
    }
}

/* Lexes the text up to the next tag, and that tag. */
static int lex_part(struct lexer *x) {
    size_t begin = x->at, tag = begin;
    while (tag < x->n &&
           !(x->text[tag] == '{' && tag + 1 < x->n && strchr("%{#", x->text[tag + 1]) && x->text[tag + 1]))
        tag++;
    if (tag >= x->n) {
        OT_TRY(add_data(x, begin, x->n));
        move_to(x, x->n);
        return 0;
    }
    char kind = x->text[tag + 1];
    size_t inside = tag + 2, raw = kind == '%' ? raw_end(x, tag) : 0;
    char sign = inside < x->n && (x->text[inside] == '-' || x->text[inside] == '+') ? x->text[inside] : 0;
    OT_TRY(add_data(x, begin, strip_before(x, begin, tag, sign, kind != '{')));
    if (raw > 0)
        return lex_raw(x, raw);
    move_to(x, inside + (sign != 0));
    if (kind == '#')
        return lex_comment(x, x->at);
    OT_TRY(add(
        x, (struct ot_jinja_token){.kind = kind == '%' ? OT_JINJA_T_BLOCK_BEGIN : OT_JINJA_T_PRINT_BEGIN}));
    return lex_tag(x, kind == '%');
}

/* A copy of the text in which every line end is \n; one at the end is dropped. */
static int normalise(struct lexer *x, const char *text, size_t bytes) {
    char *copy = ot_jinja_alloc(x->heap, bytes + 1, 1);
    size_t n = 0;
    if (!copy)
        return x->heap->error;
    for (size_t i = 0; i < bytes; i++) {
        size_t length = ot_utf8_character(text + i, bytes - i);
        if (length == 0)
            return ot_jinja_fail(x->heap, "the template is not UTF-8 (byte %zu)", i);
        if (text[i] == '\0')
            return ot_jinja_fail(x->heap, "the template has a NUL (byte %zu); remove it", i);
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n')
            continue;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
        for (size_t k = 1; k < length; k++)
            copy[n++] = text[++i];
    }
    x->text = copy;
    x->n = n > 0 && copy[n - 1] == '\n' ? n - 1 : n;
    return 0;
}

int ot_jinja_lex(struct ot_jinja_heap *heap, const char *text, size_t bytes, struct ot_jinja_tokens *out) {
    struct lexer x = {.heap = heap, .out = out, .line_start = true};
    *out = (struct ot_jinja_tokens){0};
    heap->line = 1;
    OT_TRY(normalise(&x, text, bytes));
    while (x.at < x.n)
        OT_TRY(lex_part(&x));
    return add(&x, (struct ot_jinja_token){.kind = OT_JINJA_T_END});
}
