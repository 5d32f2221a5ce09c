/* The methods of str that divide a text. */
#ifndef OT_JINJA_STRING_SPLIT_H
#define OT_JINJA_STRING_SPLIT_H

#include "src/jinja/call.h"

int ot_jinja_split(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                   const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_rsplit(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_splitlines(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                        const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_partition(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                       const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_rpartition(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                        const struct ot_jinja_call *call, struct ot_jinja_value *out);

#endif
