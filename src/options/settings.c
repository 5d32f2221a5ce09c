#include "src/options/settings.h"

#include <assert.h>
#include <string.h>

static void *choose(struct ot_settings *settings, const char *name, enum ot_option_type type) {
    struct ot_options *values = &settings->in_effect;
    int index = ot_option_find(name, strlen(name), values->command);
    const struct ot_option *option = ot_option_at(index);
    assert(option && option->type == type);
    (void)type;
    values->source[index] = OT_FROM_PROGRAM;
    return (char *)values + option->field;
}

/* As `choose`, for types that have no value "auto": the user must not have given the option. */
static void *choose_unsaid(struct ot_settings *settings, const char *name, enum ot_option_type type) {
    assert(!ot_options_given(&settings->in_effect, name));
    return choose(settings, name, type);
}

void ot_settings_choose_count(struct ot_settings *settings, const char *name, int64_t value) {
    *(int64_t *)choose_unsaid(settings, name, OT_OPTION_COUNT) = value;
}

void ot_settings_choose_list(struct ot_settings *settings, const char *name, struct ot_count_list list) {
    *(struct ot_count_list *)choose_unsaid(settings, name, OT_OPTION_COUNTS) = list;
}

void ot_settings_choose_real(struct ot_settings *settings, const char *name, double value) {
    *(double *)choose_unsaid(settings, name, OT_OPTION_REAL) = value;
}

void ot_settings_choose_text(struct ot_settings *settings, const char *name, const char *value) {
    *(const char **)choose_unsaid(settings, name, OT_OPTION_TEXT) = value;
}

void ot_settings_choose_word(struct ot_settings *settings, const char *name, int index) {
    *(int *)choose(settings, name, OT_OPTION_CHOICE) = index;
}

void ot_settings_choose_step(struct ot_settings *settings, int64_t tokens) {
    struct ot_step_tokens *step = choose(settings, "tokens-per-step", OT_OPTION_STEP);
    assert(step->count == 0);
    step->count = tokens;
}

void ot_settings_choose_device(struct ot_settings *settings, struct ot_device_choice device) {
    *(struct ot_device_choice *)choose(settings, "device", OT_OPTION_DEVICE) = device;
}

int ot_settings_take_recorded(struct ot_settings *settings, int index, const struct ot_json *value,
                              bool given) {
    const struct ot_option *option = ot_option_at(index);
    int rc = ot_option_parse_json(option, option->name, value, &settings->in_effect);
    settings->in_effect.source[index] = given ? OT_FROM_CHECKPOINT : OT_FROM_DEFAULT;
    return rc;
}
