#include "src/data/row_check.h"

#include <math.h>
#include <string.h>

#include "src/base/error.h"
#include "src/data/template.h"

static bool is_given(const struct ot_json *value) {
    size_t bytes = 1;
    if (ot_json_string(value, &bytes))
        return bytes > 0;
    return ot_json_type(value) == OT_JSON_ARRAY ? ot_json_length(value) > 0
                                                : ot_json_type(value) != OT_JSON_NULL;
}

int ot_row_refuse_preference(const struct ot_json *row, const char *where) {
    static const char *const keys[] = {"chosen", "rejected", "rejected_response", "rejected_messages"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (is_given(ot_json_get(row, keys[i])))
            return ot_fail(
                OT_E_INPUT,
                "%s: key '%s' makes this a row of preferences (DPO and alike), for which there is no "
                "objective here; to train on the chosen answers alone, give --columns "
                "completion=chosen, or messages=chosen if each is a whole conversation",
                where, keys[i]);
    return 0;
}

static bool is_placed(const struct ot_prompt_format *format, const char *key) {
    for (size_t i = 0; format && i < ot_prompt_format_fields(format); i++)
        if (strcmp(ot_prompt_format_field(format, i), key) == 0)
            return true;
    return false;
}

int ot_row_refuse_unlearned(const struct ot_json *row, const struct ot_prompt_format *placed, bool is_text,
                            const char *where) {
    static const char *const keys[] = {"label", "loss", "train", "weight"};
    for (size_t i = is_text; i < sizeof keys / sizeof *keys; i++) {
        const struct ot_json *value = ot_json_get(row, keys[i]);
        bool is_false = ot_json_type(value) == OT_JSON_BOOL && !ot_json_bool(value, true);
        bool is_zero = strcmp(keys[i], "weight") == 0 && ot_json_real(value, 1) == 0;
        if ((is_false || is_zero) && !is_placed(placed, keys[i]))
            return ot_fail(OT_E_INPUT,
                           "%s: key '%s' is %s: the row is not to be learned, and there is no objective here "
                           "that learns from bad answers; remove such rows from the file",
                           where, keys[i], is_false ? "false" : "0");
    }
    return 0;
}

static bool is_number_lost(const struct ot_json *value) {
    return ot_json_type(value) == OT_JSON_REAL && !isfinite(ot_json_real(value, 0));
}

static int check_members(const struct ot_json *object, const char *key, const char *where) {
    void *cursor = NULL;
    const char *name;
    struct ot_json *value;
    while (ot_json_next(object, &cursor, &name, &value)) {
        if (ot_json_type(ot_json_get(object, "role") ? ot_json_get(object, "role")
                                                     : ot_json_get(object, "from")) == OT_JSON_STRING &&
            is_number_lost(value))
            continue;
        OT_TRY(ot_row_check_value(value, key, where));
    }
    return 0;
}

int ot_row_check_value(const struct ot_json *value, const char *key, const char *where) {
    if (ot_json_is_torn(value))
        return ot_fail(
            OT_E_INPUT,
            "%s: key '%s' has half of a surrogate pair (\\ud800 to \\udfff), which is no character", where,
            key);
    if (is_number_lost(value))
        return ot_fail(OT_E_INPUT, "%s: key '%s' has NaN or Infinity where the row needs a value", where,
                       key);
    for (size_t i = 0; i < ot_json_length(value); i++)
        OT_TRY(ot_row_check_value(ot_json_at(value, i), key, where));
    return check_members(value, key, where);
}
