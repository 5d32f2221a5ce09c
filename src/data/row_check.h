/* Refuses, by name, keys of a row that this program does not support: such a row must not train as something
 * else. Preference rows ("chosen", "rejected") need another objective. "label", "loss", "train" with false,
 * and "weight" with 0, say that the answer is not to be learned.
 *
 * Rows are read as Python writes them (ot_json_parse_row). NaN, Infinity and half of a surrogate pair are
 * errors only in a field that is used.
 *
 * Threads: any number.
 */
#ifndef OT_DATA_ROW_CHECK_H
#define OT_DATA_ROW_CHECK_H

#include <stdbool.h>

#include "src/base/json.h"

struct ot_prompt_format;

/* Refuses preference rows. Errors: OT_E_INPUT (names `where`, the key and the cure). */
int ot_row_refuse_preference(const struct ot_json *row, const char *where);
/* Refuses a row that is not to be learned. placed: the fields of --prompt-format, which are text; NULL: none.
 * is_text: the row is plain text, whose "label" is often a class. Errors: OT_E_INPUT. */
int ot_row_refuse_unlearned(const struct ot_json *row, const struct ot_prompt_format *placed, bool is_text,
                            const char *where);
/* Refuses values that are no text and no number. key: the value's name in the row. A key of a turn whose
 * value is NaN counts as missing. Errors: OT_E_INPUT. */
int ot_row_check_value(const struct ot_json *value, const char *key, const char *where);

#endif
