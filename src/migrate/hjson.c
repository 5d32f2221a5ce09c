/* HJSON, as Python's package hjson reads it, for DeepSpeed does. A text without quotes ends with its line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/utf8.h"
#include "src/migrate/settings_file.h"
#include "src/migrate/tree.h"

struct parser {
    const char *text;
    size_t bytes, at;
    struct ot_tree *tree;
    struct ot_string_builder string; /* the text that was parsed last */
    size_t known_at, known_lines;    /* line ends before the byte known_at */
};

static int parse_value(struct parser *p, const char *key);

/* ---- characters ---- */

static int peek_at(const struct parser *p, size_t at) {
    return at < p->bytes ? (unsigned char)p->text[at] : -1;
}

static int peek(const struct parser *p) {
    return peek_at(p, p->at);
}

static bool take(struct parser *p, int byte) {
    if (peek(p) != byte)
        return false;
    p->at++;
    return true;
}

static bool is_space(int c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_eol(int c) {
    return c == '\n' || c == '\r' || c < 0;
}

/* Counts from the place that was asked for last. */
static size_t line_at(struct parser *p, size_t at) {
    for (; p->known_at < at && p->known_at < p->bytes; p->known_at++)
        p->known_lines += p->text[p->known_at] == '\n';
    for (; p->known_at > at; p->known_at--)
        p->known_lines -= p->text[p->known_at - 1] == '\n';
    return p->known_lines + 1;
}

static int fail_at(struct parser *p, size_t at, const char *what) {
    return ot_tree_fail(p->tree, line_at(p, at), what);
}

static bool begins_comment(const struct parser *p, size_t at) {
    int next = peek_at(p, at + 1);
    return peek_at(p, at) == '#' || (peek_at(p, at) == '/' && (next == '/' || next == '*'));
}

/* Skips spaces and comments. */
static int skip(struct parser *p) {
    for (;;) {
        while (is_space(peek(p)))
            p->at++;
        if (!begins_comment(p, p->at))
            return 0;
        if (peek(p) == '/' && peek_at(p, p->at + 1) == '*') {
            const char *end = memmem(p->text + p->at + 2, p->bytes - p->at - 2, "*/", 2);
            if (!end)
                return fail_at(p, p->at, "a comment that begins here does not end");
            p->at = (size_t)(end - p->text) + 2;
        } else {
            while (!is_eol(peek(p)))
                p->at++;
        }
    }
}

/* ---- texts ---- */

static int unit_at(const struct parser *p, size_t at) {
    int value = 0;
    for (size_t i = at; i < at + 4; i++) {
        const char *digits = "0123456789abcdef", *digit;
        int c = peek_at(p, i);
        digit = c > 0 ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
        if (!digit)
            return -1;
        value = value * 16 + (int)(digit - digits);
    }
    return value;
}

/* The escape behind a backslash, which is at the cursor. Half of a surrogate pair becomes U+FFFD. */
static int take_escape(struct parser *p) {
    static const char letters[] = "\"'\\/bfnrt", meant[] = "\"'\\/\b\f\n\r\t";
    int c = peek_at(p, p->at + 1);
    const char *letter = c > 0 ? strchr(letters, c) : NULL;
    if (letter) {
        ot_string_append(&p->string, meant + (letter - letters), 1);
        p->at += 2;
        return 0;
    }
    int point = c == 'u' ? unit_at(p, p->at + 2) : -1;
    if (point < 0)
        return fail_at(p, p->at, "an unknown escape in a text");
    p->at += 6;
    bool has_low = point >= 0xd800 && point <= 0xdbff && peek(p) == '\\' && peek_at(p, p->at + 1) == 'u';
    int low = has_low ? unit_at(p, p->at + 2) : -1;
    if (low >= 0xdc00 && low <= 0xdfff) {
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        p->at += 6;
    } else if (point >= 0xd800 && point <= 0xdfff) {
        point = 0xfffd;
    }
    char utf8[4];
    ot_string_append(&p->string, utf8, ot_utf8_encode((uint32_t)point, utf8));
    return 0;
}

static int take_quoted(struct parser *p) {
    size_t start = p->at;
    int quote = peek(p);
    p->string.bytes = 0;
    for (p->at++;;) {
        int c = peek(p);
        if (c < 0x20)
            return fail_at(p, start, "a text in quotes does not end in its line");
        if (c == '\\') {
            OT_TRY(take_escape(p));
            continue;
        }
        p->at++;
        if (c == quote)
            return 0;
        ot_string_append(&p->string, p->text + p->at - 1, 1);
    }
}

static void skip_indent(struct parser *p, size_t n) {
    for (int c = peek(p); n > 0 && (c == ' ' || c == '\t' || c == '\r'); c = peek(p), n--)
        p->at++;
}

/* A text in three single quotes: the indent of the quotes is no part of its lines, nor is its last line end.
 */
static int take_lines(struct parser *p) {
    size_t start = p->at, indent = 0;
    while (indent < start && p->text[start - indent - 1] != '\n')
        indent++;
    p->string.bytes = 0;
    p->at += 3;
    skip_indent(p, SIZE_MAX);
    if (take(p, '\n'))
        skip_indent(p, indent);
    for (;;) {
        int c = peek(p);
        if (c < 0)
            return fail_at(p, start, "a text in three quotes does not end");
        if (c == '\'' && peek_at(p, p->at + 1) == '\'' && peek_at(p, p->at + 2) == '\'')
            break;
        p->at++;
        if (c != '\r')
            ot_string_append(&p->string, p->text + p->at - 1, 1);
        if (c == '\n')
            skip_indent(p, indent);
    }
    p->at += 3;
    if (p->string.bytes > 0 && p->string.text[p->string.bytes - 1] == '\n')
        p->string.bytes--;
    return 0;
}

static int take_key(struct parser *p, const char **key) {
    size_t start = p->at, line = line_at(p, start);
    if (peek(p) == '"' || peek(p) == '\'') {
        OT_TRY(take_quoted(p));
        return ot_tree_take_key(p->tree, line, p->string.bytes ? p->string.text : "", p->string.bytes, key);
    }
    for (int c = peek(p); !is_space(c) && c != ':'; c = peek(p)) {
        if (c < 0)
            return fail_at(p, p->at, "the text ends where a key or '}' is expected");
        if (strchr("{}[],", c))
            return fail_at(p, p->at, "a key is expected; a key with {}[],: or a space needs quotes");
        p->at++;
    }
    if (p->at == start)
        return fail_at(p, p->at, "a key is expected");
    return ot_tree_take_key(p->tree, line, p->text + start, p->at - start, key);
}

/* ---- values without quotes ---- */

enum {
    MOST_DIGITS = 400
}; /* a longer number is a text: it would be looked at again at each comma behind it */

/* The length of the number at the front of a text; 0: none is there. */
static size_t number_bytes(const char *text, size_t n, bool *is_int) {
    size_t at = n > 0 && text[0] == '-', digits = at;
    while (at < n && text[at] >= '0' && text[at] <= '9')
        at++;
    if (at == digits || (text[digits] == '0' && at > digits + 1))
        return 0;
    *is_int = true;
    for (int part = 0; part < 2; part++) {
        size_t next = at;
        if (next >= n || (part == 0 ? text[next] != '.' : (text[next] | 0x20) != 'e'))
            continue;
        next++;
        if (part == 1 && next < n && (text[next] == '-' || text[next] == '+'))
            next++;
        digits = next;
        while (next < n && text[next] >= '0' && text[next] <= '9')
            next++;
        if (next == digits)
            return at;
        at = next;
        *is_int = false;
    }
    return at;
}

/* As hjson, takes 5e8 as an integer: a real number that is whole and below 1e10. */
static int put_number(struct parser *p, const char *key, const char *text, size_t n, bool is_int) {
    size_t line = line_at(p, p->at);
    char *digits = ot_arena_strdup(p->tree->arena, text, n), whole[32];
    if (!digits)
        return -OT_E_BUDGET;
    double value = strtod(digits, NULL);
    bool is_whole = !is_int && fabs(value) < 1e10 && value == floor(value);
    if (is_whole)
        snprintf(whole, sizeof whole, "%.0f", value);
    return ot_tree_put_number(p->tree, line, key, is_whole ? whole : digits, is_int || is_whole);
}

/* Takes a word or a number text[0..n), which a comma or a comment could follow. False: it is none. */
static bool put_word(struct parser *p, const char *key, const char *text, size_t n, int *rc) {
    size_t line = line_at(p, p->at), trimmed = n;
    bool is_int = false;
    while (trimmed > 0 && is_space((unsigned char)text[trimmed - 1]))
        trimmed--;
    if (trimmed == 4 && memcmp(text, "null", 4) == 0)
        *rc = ot_tree_put_null(p->tree, line, key);
    else if (trimmed == 4 && memcmp(text, "true", 4) == 0)
        *rc = ot_tree_put_bool(p->tree, line, key, true);
    else if (trimmed == 5 && memcmp(text, "false", 5) == 0)
        *rc = ot_tree_put_bool(p->tree, line, key, false);
    else if (trimmed > 0 && trimmed <= MOST_DIGITS && number_bytes(text, trimmed, &is_int) == trimmed)
        *rc = put_number(p, key, text, trimmed, is_int);
    else
        return false;
    return true;
}

static int parse_bare(struct parser *p, const char *key) {
    size_t start = p->at;
    const char *text = p->text + start;
    int rc = 0;
    if (peek(p) < 0)
        return fail_at(p, start, "the text ends where a value is expected");
    if (strchr("{}[],:", peek(p)))
        return fail_at(p, start, "a value is expected");
    for (;; p->at++) {
        int c = peek(p);
        bool can_end = is_eol(c) || c == ',' || c == '}' || c == ']' || begins_comment(p, p->at);
        if (can_end && put_word(p, key, text, p->at - start, &rc))
            return rc;
        if (is_eol(c))
            break;
    }
    size_t n = p->at - start;
    while (n > 0 && is_space((unsigned char)text[n - 1]))
        n--;
    return ot_tree_put_text(p->tree, line_at(p, start), key, text, n);
}

/* ---- containers ---- */

static int parse_members(struct parser *p, bool has_braces) {
    for (;;) {
        const char *key;
        OT_TRY(skip(p));
        if (has_braces ? take(p, '}') : peek(p) < 0)
            return 0;
        OT_TRY(take_key(p, &key));
        OT_TRY(skip(p));
        if (!take(p, ':'))
            return fail_at(p, p->at, "':' is expected after a key");
        OT_TRY(skip(p));
        OT_TRY(parse_value(p, key));
        OT_TRY(skip(p));
        take(p, ',');
    }
}

static int parse_items(struct parser *p) {
    for (;;) {
        OT_TRY(skip(p));
        if (take(p, ']'))
            return 0;
        if (peek(p) < 0)
            return fail_at(p, p->at, "the text ends where ']' is expected");
        OT_TRY(parse_value(p, NULL));
        OT_TRY(skip(p));
        take(p, ',');
    }
}

static int parse_container(struct parser *p, const char *key, bool is_object, bool has_braces) {
    OT_TRY(ot_tree_begin(p->tree, line_at(p, p->at), key, is_object));
    p->at += has_braces;
    OT_TRY(is_object ? parse_members(p, has_braces) : parse_items(p));
    ot_tree_end(p->tree, is_object);
    return 0;
}

/* NOLINTNEXTLINE(misc-no-recursion): at most OT_TREE_MAX_DEPTH deep */
static int parse_value(struct parser *p, const char *key) {
    size_t start = p->at;
    int c = peek(p);
    if (c == '{' || c == '[')
        return parse_container(p, key, c == '{', true);
    if (c != '"' && c != '\'')
        return parse_bare(p, key);
    bool has_lines = c == '\'' && peek_at(p, start + 1) == '\'' && peek_at(p, start + 2) == '\'';
    OT_TRY(has_lines ? take_lines(p) : take_quoted(p));
    return ot_tree_put_text(p->tree, line_at(p, start), key, p->string.bytes ? p->string.text : "",
                            p->string.bytes);
}

static int check_utf8(struct parser *p) {
    size_t length;
    for (size_t at = 0; at < p->bytes; at += length) {
        length = ot_utf8_character(p->text + at, p->bytes - at);
        if (length == 0)
            return fail_at(p, at, "not valid UTF-8");
        if (p->text[at] == '\0')
            return fail_at(p, at, "a NUL is no text");
    }
    return 0;
}

/* Braces around the whole file may be left out. */
static int parse(struct parser *p) {
    OT_TRY(check_utf8(p));
    if (p->bytes >= 3 && memcmp(p->text, "\xef\xbb\xbf", 3) == 0)
        p->at = 3;
    OT_TRY(skip(p));
    int c = peek(p);
    if (c != '{' && c != '[')
        return parse_container(p, NULL, true, false);
    OT_TRY(parse_value(p, NULL));
    OT_TRY(skip(p));
    return p->at < p->bytes ? fail_at(p, p->at, "text after the end of the document") : 0;
}

int ot_hjson_parse(const char *text, size_t bytes, const char *where, struct ot_json **out) {
    struct ot_tree tree;
    struct parser p = {.text = text, .bytes = bytes, .tree = &tree};
    *out = NULL;
    int rc = ot_tree_open(where, &tree);
    if (rc == 0)
        rc = parse(&p);
    if (rc == 0 && p.string.failed)
        rc = ot_fail(OT_E_BUDGET, "%s: no memory to parse it", where);
    if (rc == 0)
        rc = ot_tree_finish(&tree, out);
    free(p.string.text);
    ot_tree_close(&tree);
    return rc;
}
