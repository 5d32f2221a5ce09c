#include "src/tokenizer/regex_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

/* Limit of backtracking steps for one match. The known patterns need a few steps a character. Oniguruma gives
 * up after 10 million. */
enum { MATCH_STEPS = 20 * 1000 * 1000 };
/* Limit for the interpreter's frames, one for every open choice. PCRE2's default is 20 GB. */
enum { MATCH_HEAP_KIB = 256 << 10 };
enum { JIT_STACK_START = 32 << 10, JIT_STACK_LIMIT = 8 << 20 };

struct ot_regex {
    pcre2_code *code;
    bool jit;
};

struct ot_regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static int compile(const char *translated, const char *where, struct ot_regex *regex) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return ot_fail(OT_E_BUDGET, "no memory to compile a pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int error;
    PCRE2_SIZE offset;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    regex->code =
        pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, options, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (!regex->code) {
        char reason[128];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
        return ot_fail(OT_E_INPUT, "%s: pattern '%.200s': %s (at offset %zu)", where, translated, reason,
                       (size_t)offset);
    }
    /* If the system forbids executable memory, the interpreter runs instead: slower, with the same
     * matches. */
    regex->jit = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

int ot_regex_open(const char *pattern, size_t bytes, const char *where, struct ot_regex **out) {
    int rc = 0;
    char *translated = NULL;
    struct ot_regex *regex = calloc(1, sizeof *regex);
    if (!regex)
        return ot_fail(OT_E_BUDGET, "no memory for a pattern");
    OT_TRY_GOTO(ot_regex_translate(pattern, bytes, where, &translated), rc, out);
    OT_TRY_GOTO(compile(translated, where, regex), rc, out);
    *out = regex;
    regex = NULL;
out:
    free(translated);
    ot_regex_close(regex);
    return rc;
}

void ot_regex_close(struct ot_regex *regex) {
    if (!regex)
        return;
    pcre2_code_free(regex->code);
    free(regex);
}

int ot_regex_scratch_open(struct ot_regex_scratch **out) {
    struct ot_regex_scratch *s = calloc(1, sizeof *s);
    if (s) {
        s->data = pcre2_match_data_create(1, NULL); /* one pair: the whole match; groups are not used */
        s->context = pcre2_match_context_create(NULL);
        s->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    }
    if (!s || !s->data || !s->context) {
        ot_regex_scratch_close(s);
        return ot_fail(OT_E_BUDGET, "no memory for pattern matching");
    }
    pcre2_set_match_limit(s->context, MATCH_STEPS);
    pcre2_set_heap_limit(s->context, MATCH_HEAP_KIB);
    if (s->stack)
        pcre2_jit_stack_assign(s->context, NULL, s->stack);
    *out = s;
    return 0;
}

void ot_regex_scratch_close(struct ot_regex_scratch *s) {
    if (!s)
        return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

int ot_regex_match(const struct ot_regex *regex, struct ot_regex_scratch *s, const char *text, size_t n,
                   size_t from, size_t *begin, size_t *end) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (regex->jit)
        rc = pcre2_jit_match(regex->code, subject, n, from, 0, s->data, s->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's frames are on the heap */
        rc = pcre2_match(regex->code, subject, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->data,
                         s->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        char reason[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
        return ot_fail(rc == PCRE2_ERROR_NOMEMORY ? OT_E_BUDGET : OT_E_INPUT,
                       "a pattern of the tokenizer cannot match a piece of %zu bytes: %s", n, reason);
    }
    const PCRE2_SIZE *where = pcre2_get_ovector_pointer(s->data);
    *begin = where[0];
    *end = where[1];
    return 1;
}

/* ---- sets of Oniguruma ---- */

/* Oniguruma's sets, written as members of a PCRE2 class. Space is White_Space. Word is Alphabetic, M, Nd and
 * Pc; beyond L, M and Nl, Alphabetic has the circled and squared letters. Outside of classes, an old table of
 * Oniguruma adds the numbers of Latin-1 to word. ASCII members come first, since PCRE2 tests them with a
 * bitmap and properties with a table. */
#define SPACE                                                                                                \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"     \
    "3000}"
#define WORD_LETTERS  "0-9A-Z_a-z\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"
#define WORD_SYMBOLS  "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define WORD_IN_CLASS WORD_LETTERS WORD_SYMBOLS
#define WORD          WORD_IN_CLASS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define HEX           "0-9A-Fa-f"

struct translation {
    const char *pattern, *where;
    size_t bytes, at, set_end; /* set_end: end of the last set, a shorthand or a property */
    struct ot_string_builder out;
    struct ot_string_builder
        open; /* groups that are open: '(' of the pattern, '?' of an option (put_group) */
};

static int refuse(const struct translation *t, const char *what) {
    return ot_fail(OT_E_INPUT, "%s: pattern '%.*s': %s is not supported (at offset %zu)", t->where,
                   (int)ot_min(t->bytes, 200), t->pattern, what, t->at);
}

static int peek(const struct translation *t, size_t ahead) {
    return t->at + ahead < t->bytes ? (unsigned char)t->pattern[t->at + ahead] : -1;
}

/* Copies from `at` up to and including the next '}'. */
static int put_braced(struct translation *t, const char *prefix, size_t skip) {
    const char *close = memchr(t->pattern + t->at, '}', t->bytes - t->at);
    if (!close)
        return refuse(t, "a brace without its end");
    size_t end = (size_t)(close - t->pattern) + 1;
    ot_string_append_text(&t->out, prefix);
    ot_string_append(&t->out, t->pattern + t->at + skip, end - t->at - skip);
    t->at = end;
    return 0;
}

/* A property p{NAME}, P{NAME} or p{^NAME}, after its backslash. For speed, L and N get their ASCII members
 * too. A name longer than a category's is a script; PCRE2 needs a prefix for scripts, or it uses script
 * extensions. */
static int put_property(struct translation *t, bool in_class) {
    const char *name = t->pattern + t->at + 3;
    const char *close = peek(t, 2) == '{' ? memchr(name, '}', t->bytes - t->at - 3) : NULL;
    if (!close || close == name)
        return refuse(t, "\\p without a name in braces");
    bool negated = (peek(t, 1) == 'P') != (*name == '^');
    name += *name == '^';
    size_t n = (size_t)(close - name);
    bool is_fast = n == 1 && !negated && (*name == 'L' || *name == 'N');
    ot_string_append_text(&t->out, is_fast && !in_class ? "[" : "");
    ot_string_append_text(&t->out, !is_fast ? "" : *name == 'L' ? "A-Za-z" : "0-9");
    ot_string_append_text(&t->out, negated ? "\\P{" : "\\p{");
    ot_string_append_text(&t->out, n > 2 ? "sc:" : "");
    ot_string_append(&t->out, name, n);
    ot_string_append_text(&t->out, is_fast && !in_class ? "}]" : "}");
    t->at = t->set_end = (size_t)(close - t->pattern) + 1;
    return 0;
}

/* \uHHHH */
static int put_unicode(struct translation *t) {
    char text[16];
    for (size_t i = 2; i < 6; i++)
        if (peek(t, i) < 0 || !strchr("0123456789abcdefABCDEF", peek(t, i)))
            return refuse(t, "\\u without four hexadecimal digits");
    snprintf(text, sizeof text, "\\x{%.4s}", t->pattern + t->at + 2);
    ot_string_append_text(&t->out, text);
    t->at += 6;
    return 0;
}

/* The set that \s, \w, \d or \h stands for, or NULL. */
static const char *shorthand(int letter, bool in_class) {
    switch (letter | 0x20) {
    case 's':
        return SPACE;
    case 'w':
        return in_class ? WORD_IN_CLASS : WORD;
    case 'd':
        return "0-9\\p{Nd}";
    case 'h':
        return HEX;
    default:
        return NULL;
    }
}

static int put_shorthand(struct translation *t, int letter, bool in_class) {
    bool negated = letter < 'a';
    if (!in_class) {
        ot_string_append_text(&t->out, negated ? "[^" : "[");
        ot_string_append_text(&t->out, shorthand(letter, in_class));
        ot_string_append_text(&t->out, "]");
    } else if (!negated) {
        ot_string_append_text(&t->out, shorthand(letter, in_class));
    } else if (letter == 'S') { /* a class cannot contain a negated set, but \S and \D are one property */
        ot_string_append_text(&t->out, "\\P{White_Space}");
    } else if (letter == 'D') {
        ot_string_append_text(&t->out, "\\P{Nd}");
    } else {
        return refuse(t, "\\W or \\H in a class");
    }
    t->at += 2;
    t->set_end = t->at;
    return 0;
}

static int put_escape(struct translation *t, bool in_class) {
    int c = peek(t, 1);
    if (c < 0)
        return refuse(t, "a backslash at the end");
    if (shorthand(c, in_class))
        return put_shorthand(t, c, in_class);
    if (c == 'p' || c == 'P')
        return put_property(t, in_class);
    if (c == 'u')
        return put_unicode(t);
    if (c == 'x' && peek(t, 2) == '{')
        return put_braced(t, "", 0);
    if (!in_class && (c == 'b' || c == 'B')) {
        ot_string_append_text(&t->out,
                              c == 'b' ? "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"
                                       : "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
        t->at += 2;
        return 0;
    }
    bool letter = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (letter && !strchr(in_class ? "tnrfaex" : "tnrfaexAzZ", c)) {
        char what[] = "the escape \\?";
        what[sizeof what - 2] = (char)c;
        return refuse(t, what);
    }
    ot_string_append(&t->out, t->pattern + t->at, 2);
    t->at += 2;
    return 0;
}

/* Writes one plain character of a class. In PCRE2 '.', ':' and '=' could open a POSIX bracket. A '-' that is
 * literal in Oniguruma (at the border of a class, or after a set) could become a range when classes are
 * joined and sets are written out. All of these are escaped. */
static void put_member(struct translation *t, int c) {
    bool border = peek(t, 1) == ']';
    size_t before = t->at - 1;
    if (t->pattern[before] == '^' || t->pattern[before] == '[' || t->pattern[before] == ']' ||
        before + 1 == t->set_end)
        border = true;
    if (strchr(".:=", c) || (c == '-' && border))
        ot_string_append_text(&t->out, "\\");
    ot_string_append(&t->out, t->pattern + t->at, 1);
}

/* Translates a class, from its '['. A nested class is a union: its members join the outer class. */
static int put_class(struct translation *t) {
    int depth = 0;
    do {
        int c = peek(t, 0);
        if (c < 0)
            return refuse(t, "a class without its end");
        if (c == '\\') {
            OT_TRY(put_escape(t, true));
            continue;
        }
        if (c == '&' && peek(t, 1) == '&')
            return refuse(t, "an intersection of classes");
        if (c == '[') {
            if (peek(t, 1) == ':')
                return refuse(t, "a POSIX bracket");
            bool negated = peek(t, 1) == '^';
            if (negated && depth > 0)
                return refuse(t, "a negated class within a class");
            if (peek(t, negated ? 2 : 1) == ']')
                return refuse(t, "a class that starts with ]");
            ot_string_append_text(&t->out, depth ? "" : negated ? "[^" : "[");
            t->at += negated ? 2 : 1;
            depth++;
            continue;
        }
        if (c != ']' || depth == 1)
            put_member(t, c);
        t->at++;
        depth -= c == ']';
    } while (depth > 0);
    return 0;
}

/* Ends the groups that options have opened since the last '(' of the pattern. */
static void end_options(struct translation *t) {
    for (; t->open.bytes > 0 && t->open.text[t->open.bytes - 1] == '?'; t->open.bytes--)
        ot_string_append_text(&t->out, ")");
}

/* A ')' of the pattern. If it ends no group, PCRE2 reports it. */
static void put_end(struct translation *t) {
    end_options(t);
    t->open.bytes -= t->open.bytes > 0;
    ot_string_append_text(&t->out, ")");
    t->at++;
}

/* Translates a group that begins with "(?"; `at` is at the '('. Oniguruma's flag m lets the dot match
 * newlines; in PCRE2 this is the flag s. An option without a group, as in "x(?i)b|c", reaches over the
 * alternatives to the end of the group around it. In PCRE2 the alternatives would begin at the x, so this
 * becomes "x(?i:b|c)". */
static int put_group(struct translation *t) {
    size_t i = 2;
    char flags[16];
    size_t n = 0;
    while (peek(t, i) > 0 && strchr("imx-", peek(t, i)) && n < sizeof flags) {
        flags[n++] = (char)(peek(t, i) == 'm' ? 's' : peek(t, i));
        i++;
    }
    int after = peek(t, i);
    bool plain = n == 0 && after > 0 && strchr(":=!>", after);
    bool look_behind = n == 0 && after == '<' && (peek(t, i + 1) == '=' || peek(t, i + 1) == '!');
    bool options = n > 0 && n < sizeof flags && (after == ':' || after == ')');
    if (!plain && !look_behind && !options)
        return refuse(t, "this kind of group");
    ot_string_append_text(&t->out, "(?");
    ot_string_append(&t->out, flags, n);
    size_t tail = look_behind ? 2 : 1;
    ot_string_append(&t->out, after == ')' ? ":" : t->pattern + t->at + i, tail);
    ot_string_append_text(&t->open, after == ')' ? "?" : "(");
    t->at += i + tail;
    return 0;
}

/* Translates {n,m} if it is a quantifier; else copies the brace. */
static int put_brace(struct translation *t) {
    size_t i = 1;
    while (peek(t, i) > 0 && strchr("0123456789,", peek(t, i)))
        i++;
    if (i == 1 || peek(t, i) != '}') {
        ot_string_append_text(&t->out, "\\{");
        t->at++;
        return 0;
    }
    if (peek(t, i + 1) == '+')
        return refuse(t, "a + after {n,m}");
    return put_braced(t, peek(t, 1) == ',' ? "{0" : "{", 1);
}

int ot_regex_translate(const char *pattern, size_t bytes, const char *where, char **out) {
    struct translation t = {.pattern = pattern, .where = where, .bytes = bytes};
    int rc = 0;
    ot_string_append(&t.out, "", 0);
    if (memchr(pattern, '\0', bytes))
        OT_TRY_GOTO(refuse(&t, "a NUL character"), rc, out);
    while (t.at < bytes && !t.out.failed && !t.open.failed) {
        int c = peek(&t, 0);
        if (c == '\\') {
            OT_TRY_GOTO(put_escape(&t, false), rc, out);
        } else if (c == '[') {
            OT_TRY_GOTO(put_class(&t), rc, out);
        } else if (c == '(' && peek(&t, 1) == '?') {
            OT_TRY_GOTO(put_group(&t), rc, out);
        } else if (c == '{') {
            OT_TRY_GOTO(put_brace(&t), rc, out);
        } else if (c == ')') {
            put_end(&t);
        } else {
            /* "(*" begins a verb in PCRE2, and is an error in Oniguruma. */
            if (c == '(' && peek(&t, 1) == '*')
                OT_TRY_GOTO(refuse(&t, "(*"), rc, out);
            if (c == '(')
                ot_string_append_text(&t.open, "(");
            ot_string_append(&t.out, pattern + t.at, 1);
            t.at++;
        }
    }
    end_options(&t);
    if (t.out.failed || t.open.failed)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory for a pattern of %zu bytes", bytes), rc, out);
    *out = t.out.text;
    t.out.text = NULL;
out:
    free(t.out.text);
    free(t.open.text);
    return rc;
}
