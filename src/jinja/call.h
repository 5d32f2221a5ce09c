/* Calls: their arguments, and the callable functions. Filters and tests are called in the same way; their
 * value is the first argument. */
#ifndef OT_JINJA_CALL_H
#define OT_JINJA_CALL_H

#include "src/jinja/value.h"

struct ot_jinja_call {
    const struct ot_jinja_value *args;
    size_t n;
    const struct ot_jinja_value *names; /* of the named arguments: strings */
    const struct ot_jinja_value *named;
    size_t n_named;
};

/* Gives each parameter its argument; ABSENT: not given. what: the name of the callee, for errors. parameters:
 * their names, separated by spaces. need: the first parameters that must be given. out: one value for each
 * parameter. */
int ot_jinja_bind(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                  const char *parameters, size_t need, struct ot_jinja_value *out);

/* The only argument of a filter, its value. */
int ot_jinja_take_value(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                        struct ot_jinja_value *out);

/* Arguments of one kind. ABSENT: *out keeps its value. Errors: OT_E_INPUT (another kind). */
int ot_jinja_take_int(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v, const char *what,
                      int64_t *out);
int ot_jinja_take_text(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v, const char *what,
                       const struct ot_jinja_string **out);
static inline bool ot_jinja_take_flag(const struct ot_jinja_value *v, bool fallback) {
    return v->kind == OT_JINJA_ABSENT ? fallback : ot_jinja_truth(v);
}

struct ot_jinja_function {
    const char *name;
    int (*run)(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, struct ot_jinja_value *out);
};

struct ot_jinja_method_row {
    const char *names; /* separated by spaces */
    /* NULL: Python has the method and this engine has not. */
    int (*run)(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
               const struct ot_jinja_call *call, struct ot_jinja_value *out);
};
struct ot_jinja_method {
    struct ot_jinja_value object;
    const struct ot_jinja_string *name;
    const struct ot_jinja_method_row *row;
};

/* The functions of every template: range, dict, namespace, raise_exception, strftime_now. NULL: there is no
 * such function. */
const struct ot_jinja_function *ot_jinja_find_function(const struct ot_jinja_string *name);

/* Runs a filter or a test of jinja2. Errors: OT_E_INPUT (no such filter, or the filter's own error),
 * OT_E_BUDGET. */
int ot_jinja_filter(struct ot_jinja_heap *heap, const struct ot_jinja_string *name,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_test(struct ot_jinja_heap *heap, const struct ot_jinja_string *name,
                  const struct ot_jinja_call *call, bool *out);
/* Filters that make a text, number or default; filters of lists. A row without a name ends each table. */
extern const struct ot_jinja_function ot_jinja_text_filters[], ot_jinja_list_filters[];

#endif
