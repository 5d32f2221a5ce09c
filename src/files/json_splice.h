/* Changes to a JSON text that leave every other byte alone: what a parser and a writer would lose (the digits
 * of a number, the order, the spacing) survives. Texts are valid JSON whose root is an object: parse them
 * first (base/json.h). */
#ifndef OT_FILES_JSON_SPLICE_H
#define OT_FILES_JSON_SPLICE_H

#include <stddef.h>

/* Replaces the value of a key of the root object by `value` (JSON text), or adds the key in front if it is
 * not there. Frees *text and puts the new one in its place. Errors: OT_E_BUDGET. */
int ot_json_splice(char **text, size_t *bytes, const char *key, const char *value);

/* Members of all objects of the text, keys that come twice counted twice: a parsed tree has dropped these. */
size_t ot_json_count_members(const char *text, size_t bytes);

#endif
