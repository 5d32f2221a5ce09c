/* The functions that every template may call: range, dict, namespace, joiner, cycler, raise_exception and
 * strftime_now. */
#ifndef OT_JINJA_FUNCTIONS_H
#define OT_JINJA_FUNCTIONS_H

#include "src/jinja/call.h"

/* NULL: there is no such function. */
const struct ot_jinja_function *ot_jinja_find_function(const struct ot_jinja_string *name);
/* Calls the result of joiner(). */
int ot_jinja_join_next(struct ot_jinja_heap *heap, struct ot_jinja_cycler *joiner,
                       struct ot_jinja_value *out);

#endif
