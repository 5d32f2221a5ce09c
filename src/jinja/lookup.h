/* Attributes, items and slices of values, in the order in which jinja2 looks for them: a.name finds methods
 * before keys, a['name'] finds keys before methods. A name that is not found is undefined. */
#ifndef OT_JINJA_LOOKUP_H
#define OT_JINJA_LOOKUP_H

#include "src/jinja/value.h"

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

#endif
