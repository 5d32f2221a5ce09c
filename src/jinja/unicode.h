/* White space and letters as Python's str methods know them. Texts are valid UTF-8. */
#ifndef OT_JINJA_UNICODE_H
#define OT_JINJA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_string_builder;

/* Length of the white space character at the front of text[0..n); 0: none. n > 0. */
size_t ot_jinja_space_at(const char *text, size_t n);
/* The same at the end of text[0..n). */
size_t ot_jinja_space_before(const char *text, size_t n);

enum ot_jinja_case { OT_JINJA_LOWER, OT_JINJA_UPPER, OT_JINJA_TITLE, OT_JINJA_CAPITAL, OT_JINJA_SWAP };
/* Appends the text in another case. */
void ot_jinja_change_case(const char *text, size_t n, enum ot_jinja_case to, struct ot_string_builder *out);

enum ot_jinja_class {
    OT_JINJA_ALPHA,
    OT_JINJA_DECIMAL,
    OT_JINJA_DIGIT,
    OT_JINJA_NUMERIC,
    OT_JINJA_ALNUM,
    OT_JINJA_SPACE,
    OT_JINJA_ASCII,
    OT_JINJA_WORD /* \w of Python's re */
};
bool ot_jinja_has_class(uint32_t code_point, enum ot_jinja_class class);
bool ot_jinja_is_lower(uint32_t code_point);
bool ot_jinja_is_upper(uint32_t code_point);

#endif
