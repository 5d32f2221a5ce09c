/* The methods of Python's str, dict, list and tuple. */
#ifndef OT_JINJA_METHODS_H
#define OT_JINJA_METHODS_H

#include "src/base/text.h"
#include "src/jinja/call.h"

/* The methods of a kind, up to a row without names; NULL: none. */
const struct ot_jinja_method_row *ot_jinja_methods(enum ot_jinja_kind kind);
/* The function of methods that would change their object: jinja2's immutable sandbox makes them undefined. */
int ot_jinja_changes(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                     const struct ot_jinja_call *call, struct ot_jinja_value *out);

/* ---- strings: filters and methods share these ---- */

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

/* ---- white space and case, as Python's str knows them; texts are valid UTF-8 (unicode.c) ---- */

/* Length of the white space character at the front of text[0..n); 0: none. n > 0. */
size_t ot_jinja_space_at(const char *text, size_t n);
/* The same at the end of text[0..n). */
size_t ot_jinja_space_before(const char *text, size_t n);

enum ot_jinja_case { OT_JINJA_LOWER, OT_JINJA_UPPER, OT_JINJA_TITLE, OT_JINJA_CAPITAL };
/* Appends the text in another case. */
void ot_jinja_change_case(const char *text, size_t n, enum ot_jinja_case to, struct ot_string_builder *out);

/* ---- methods of str in string_parts.c ---- */

int ot_jinja_split(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                   const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_rsplit(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_splitlines(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                        const struct ot_jinja_call *call, struct ot_jinja_value *out);
int ot_jinja_format(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out);

#endif
