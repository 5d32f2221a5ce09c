/* The operators of Python; attributes, items and slices of values; loops. */
#ifndef OT_JINJA_OPERATE_H
#define OT_JINJA_OPERATE_H

#include "src/base/text.h"
#include "src/jinja/value.h"

/* op: of the lexer. Errors: OT_E_INPUT (the kinds do not fit, division by zero, more than 64 bits). */
int ot_jinja_operate(struct ot_jinja_heap *heap, int op, const struct ot_jinja_value *a,
                     const struct ot_jinja_value *b, struct ot_jinja_value *out);
int ot_jinja_sign(struct ot_jinja_heap *heap, int op, const struct ot_jinja_value *a,
                  struct ot_jinja_value *out);
/* *order: < 0, 0 or > 0. Errors: OT_E_INPUT (Python does not order these). */
int ot_jinja_order(struct ot_jinja_heap *heap, const struct ot_jinja_value *a, const struct ot_jinja_value *b,
                   int *order);
/* op: of the lexer, or OT_JINJA_OP_IN and NOT_IN. */
int ot_jinja_compare(struct ot_jinja_heap *heap, int op, const struct ot_jinja_value *a,
                     const struct ot_jinja_value *b, bool *out);
/* Fails if the value is undefined. */
int ot_jinja_need_defined(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v);
/* The first place of `part` in a text at or behind `from`; SIZE_MAX: none. */
size_t ot_jinja_search(const struct ot_jinja_string *text, const struct ot_jinja_string *part, size_t from);
/* Appends a text with &, <, >, ' and " escaped for HTML. */
void ot_jinja_escape(const struct ot_jinja_string *string, struct ot_string_builder *out);

/* ---- attributes, items, slices (lookup.c) ---- */

/* As in jinja2, a.name finds methods before keys, a['name'] finds keys before methods. A name that is not
 * found is undefined. */

/* Errors: OT_E_INPUT (the object is undefined), OT_E_BUDGET. */
int ot_jinja_attribute(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                       const struct ot_jinja_string *name, struct ot_jinja_value *out);
int ot_jinja_item(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                  const struct ot_jinja_value *key, struct ot_jinja_value *out);
/* begin, end, step: ABSENT or none: the default. */
int ot_jinja_slice(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                   const struct ot_jinja_value *begin, const struct ot_jinja_value *end,
                   const struct ot_jinja_value *step, struct ot_jinja_value *out);
/* The attribute of filters: a name with points, or a number. ABSENT and none: the object itself. */
int ot_jinja_path(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                  const struct ot_jinja_value *path, struct ot_jinja_value *out);

/* A running for loop, and the variable `loop` that shows it to the template. As in jinja2, the loop looks one
 * item ahead only if the template asks for loop.last or loop.nextitem: the condition of a loop may depend on
 * variables that its body sets. */
struct ot_jinja_loop {
    struct ot_jinja_reader reader;
    /* Tells whether an item belongs to the loop; NULL: all do. Returns 1, 0 or an error. */
    int (*accepts)(void *context, const struct ot_jinja_value *item);
    void *context;
    struct ot_jinja_value current, previous, next;
    bool peeked, has_next;
    size_t count; /* items that were begun */
};

/* Moves to the next item. Returns 1, 0 at the end, or an error. */
int ot_jinja_loop_next(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop);

#endif
