/* The operators of Python. */
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
/* text % values: Python's printf (format_percent.c). */
int ot_jinja_percent(struct ot_jinja_heap *heap, const struct ot_jinja_string *format,
                     const struct ot_jinja_value *values, struct ot_jinja_value *out);
/* Appends a text with &, <, >, ' and " escaped for HTML. */
void ot_jinja_escape(const struct ot_jinja_string *string, struct ot_string_builder *out);

#endif
