#include "src/tokenizer/regex_match.h"

#include <stdlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "src/base/error.h"

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
