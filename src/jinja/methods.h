/* The methods of Python's str, dict, list and tuple. */
#ifndef OT_JINJA_METHODS_H
#define OT_JINJA_METHODS_H

#include "src/jinja/call.h"

/* The methods of a kind, up to a row without a name; NULL: none. */
const struct ot_jinja_method_row *ot_jinja_methods(enum ot_jinja_kind kind);
/* The function of methods that would change their object: jinja2's immutable sandbox makes them undefined. */
int ot_jinja_changes(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                     const struct ot_jinja_call *call, struct ot_jinja_value *out);
extern const struct ot_jinja_method_row ot_jinja_string_methods[];

/* ---- functions that filters share with the methods of strings ---- */

enum ot_jinja_strip { OT_JINJA_STRIP_LEFT = 1, OT_JINJA_STRIP_RIGHT = 2, OT_JINJA_STRIP_BOTH = 3 };
/* chars: the characters to strip; NULL: white space. */
int ot_jinja_strip(struct ot_jinja_heap *heap, const struct ot_jinja_string *text,
                   const struct ot_jinja_string *chars, enum ot_jinja_strip sides,
                   struct ot_jinja_value *out);
/* most: replacements; < 0: all. */
int ot_jinja_replace(struct ot_jinja_heap *heap, const struct ot_jinja_string *text,
                     const struct ot_jinja_string *from, const struct ot_jinja_string *to, int64_t most,
                     struct ot_jinja_value *out);
/* The lines of a text as str.splitlines() gives them. */
int ot_jinja_split_lines(struct ot_jinja_heap *heap, const struct ot_jinja_string *text, bool keep_ends,
                         struct ot_jinja_list **out);
/* Pads with `fill` to `width` characters. left, right: the sides that are padded. */
int ot_jinja_pad(struct ot_jinja_heap *heap, const struct ot_jinja_string *text, int64_t width, char fill,
                 bool left, bool right, struct ot_jinja_value *out);
/* "{} {name}".format(..) (format_braces.c). */
int ot_jinja_format_braces(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                           const struct ot_jinja_call *call, struct ot_jinja_value *out);

#endif
