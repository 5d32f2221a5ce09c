/* Characters whose upper case or title case has several characters: Unicode's SpecialCasing. */
#ifndef OT_JINJA_SPECIAL_CASE_H
#define OT_JINJA_SPECIAL_CASE_H

#include <stdint.h>

struct ot_jinja_special_case {
    uint32_t code_point;
    const char *upper, *title; /* UTF-8 */
};

/* NULL: the character is not special. */
const struct ot_jinja_special_case *ot_jinja_find_special_case(uint32_t code_point);

#endif
