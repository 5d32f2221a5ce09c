/* The filters of jinja2, and its tests. A filter is a call whose first argument is the value before the bar.
 */
#ifndef OT_JINJA_FILTERS_H
#define OT_JINJA_FILTERS_H

#include "src/jinja/call.h"

/* Errors: OT_E_INPUT (no such filter, or the filter's own error), OT_E_BUDGET. */
int ot_jinja_filter(struct ot_jinja_heap *heap, const struct ot_jinja_string *name,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_test(struct ot_jinja_heap *heap, const struct ot_jinja_string *name,
                  const struct ot_jinja_call *call, bool *out);
/* True for jinja2's test `filter` and `test`. */
bool ot_jinja_has_filter(const struct ot_jinja_string *name);
bool ot_jinja_has_test(const struct ot_jinja_string *name);

/* The filters by subject; each table ends with a row without a name. */
extern const struct ot_jinja_function ot_jinja_text_filters[], ot_jinja_value_filters[],
    ot_jinja_list_filters[], ot_jinja_order_filters[];

#endif
