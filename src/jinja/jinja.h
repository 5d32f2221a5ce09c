/* Jinja: renders chat templates, those that models bring in their directories and the built-in ones.
 *
 * A template may be a text of another person. It is read as a program of a small language and never as
 * anything else: it sees the values that the caller passes, and it writes text. It can do nothing else. The
 * language is the part of Jinja that chat templates use, with the meaning that jinja2's
 * ImmutableSandboxedEnvironment gives it when transformers sets it up (trim_blocks, lstrip_blocks, loop
 * controls, its own tojson). Texts are equal byte for byte, including how Python prints lists, dicts and
 * floating-point numbers.
 *
 * Supported is what published chat templates use (the 72 of TRL, those of llama.cpp and others, which
 * scripts/golden/jinja_real.py renders): if, for (with else, if, break, continue, and loop.index, index0,
 * revindex, revindex0, first, last, length, previtem, nextitem), set (also blocks, tuples and namespaces),
 * macro, filter, raw, generation; all expressions of jinja2, except powers, formatting with %, and products
 * of lists; the filters and tests that filters.c lists; the methods of Python's str, dict and list in
 * methods.c; range, dict, namespace, raise_exception, strftime_now. Anything else is refused by name and
 * line: "the filter 'xmlattr' is not supported in chat templates". A construct that parses is refused only
 * when it is executed, so a template with one strange branch still works.
 *
 * Differences from Python: integers have 64 bits; strftime_now writes the date that the caller passes, since
 * a run must have the same rows on every day.
 *
 * Bounds. A rendering has at most OT_JINJA_MOST_STEPS steps, OT_JINJA_MOST_BYTES bytes of values and
 * OT_JINJA_MOST_OUTPUT bytes of text; templates have at most OT_JINJA_MOST_TEXT bytes. Nesting is limited
 * too, so that the stack of a worker thread suffices. Over a bound, the rendering is an error like any
 * other.
 *
 * Files: value.* (values and their memory), print.* (Python's str, repr and json.dumps), parser.h (lexer.c,
 * parse_*.c) and its tree, node.h, then evaluation: operate.h (operators; lookup.c has attributes, items,
 * loops), evaluate.h (expression.c, statement.c), call.* (arguments, functions), filters, methods.
 *
 * Threads: a parsed template never changes; any number of threads may render with it at the same time.
 */
#ifndef OT_JINJA_JINJA_H
#define OT_JINJA_JINJA_H

#include <stdbool.h>
#include <stddef.h>

struct ot_json;
struct ot_jinja;

enum {
    OT_JINJA_MOST_TEXT = 1 << 20,
    OT_JINJA_MOST_STEPS = 20 * 1000 * 1000,
    OT_JINJA_MOST_BYTES = 256 << 20,
    OT_JINJA_MOST_OUTPUT = 64 << 20
};

/* Parses a template. name: for errors, such as "chat_template of llama/"; copied. The text is copied. Errors:
 * OT_E_INPUT (names the template and the line), OT_E_BUDGET. */
int ot_jinja_open(const char *text, size_t bytes, const char *name, struct ot_jinja **out);
void ot_jinja_close(struct ot_jinja *jinja); /* NULL is fine */
/* True if the template marks the model's answers with {% generation %}. */
bool ot_jinja_has_generation(const struct ot_jinja *jinja);
/* True if the template reads this variable. */
bool ot_jinja_reads(const struct ot_jinja *jinja, const char *variable);

struct ot_jinja_variable {
    const char *name;
    const struct ot_json *value; /* NULL: see `text` */
    const char *text;            /* a string in place of `value`; NULL with a NULL value: none */
    const size_t *most;          /* if the value is an array: the number of items to use; NULL: all */
    bool is_flag, flag;          /* is_flag: the value is `flag`, true or false */
};

struct ot_jinja_date {
    int year, month, day;
};

struct ot_jinja_span {
    size_t begin, end;
};

struct ot_jinja_text { /* set to zero before the first use; memory is kept from rendering to rendering */
    char *text;        /* NUL-terminated */
    size_t bytes, capacity;
    struct ot_jinja_span *spans; /* the generation blocks that were rendered, in order */
    size_t n_spans, span_capacity;
    size_t steps; /* of the last rendering, also if it failed */
};
void ot_jinja_text_free(struct ot_jinja_text *text);

/* Renders with these variables and replaces *out. Errors: OT_E_INPUT (names the template and the line: the
 * template raised an exception, needs an unsupported feature, or is over a bound), OT_E_BUDGET. */
int ot_jinja_render(const struct ot_jinja *jinja, const struct ot_jinja_variable *variables, size_t n,
                    struct ot_jinja_date date, struct ot_jinja_text *out);
/* The same within fewer steps, for tests that render many hostile templates. */
int ot_jinja_render_within(const struct ot_jinja *jinja, const struct ot_jinja_variable *variables, size_t n,
                           struct ot_jinja_date date, size_t most_steps, struct ot_jinja_text *out);

#endif
