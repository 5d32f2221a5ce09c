/* Writes values as Python does: str() and repr() of a value, and json.dumps(). */
#ifndef OT_JINJA_PRINT_H
#define OT_JINJA_PRINT_H

#include "src/base/text.h"
#include "src/jinja/value.h"

/* Appends str(value), the text that {{ value }} prints. Errors: OT_E_INPUT (has no text in the subset, or is
 * nested too deeply), OT_E_BUDGET. */
int ot_jinja_print(struct ot_jinja_heap *heap, const struct ot_jinja_value *v, struct ot_string_builder *out);
int ot_jinja_print_repr(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                        struct ot_string_builder *out);

struct ot_jinja_dump {  /* the arguments of json.dumps */
    const char *indent; /* for each level; NULL: one line */
    size_t indent_bytes;
    struct ot_jinja_value item_separator, key_separator; /* strings */
    bool sort_keys, ascii;
};
int ot_jinja_print_json(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                        const struct ot_jinja_dump *dump, struct ot_string_builder *out);

/* Makes str(value) a string value. A string is itself. */
int ot_jinja_to_string(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                       struct ot_jinja_value *out);
/* Takes the builder's text as a string value and empties the builder. Errors: OT_E_BUDGET. */
int ot_jinja_take(struct ot_jinja_heap *heap, struct ot_string_builder *b, struct ot_jinja_value *out);

#endif
