#include "src/options/resume_with.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"

static const struct {
    enum ot_resume_change kind;
    const char *names; /* separated by spaces */
} changeable[] = {
    {OT_CHANGE_STEP, "lr schedule weight-decay beta1 beta2 eps clip micro-batch row-sections skip-spikes "
                     "exchange label-smoothing z-loss neftune config-dropout sft-weight"},
    {OT_CHANGE_LENGTH, "steps epochs"},
    {OT_CHANGE_WARMUP, "warmup"},
    {OT_CHANGE_STEP_ROWS, "tokens-per-step"},
    {OT_CHANGE_ROWS, "data template prompt-format columns mix-by text-by max-rows dedup seq-len pack "
                     "train-on-prompt no-eos skip-bad seed eval-fraction"},
    {OT_CHANGE_EVALS, "eval-data eval-metric"},
};

enum ot_resume_change ot_resume_with_kind(const char *name) {
    for (size_t i = 0; i < sizeof changeable / sizeof *changeable; i++)
        if (ot_words_have(changeable[i].names, name))
            return changeable[i].kind;
    return OT_CHANGE_NOTHING;
}

/* Takes one item, which ends with a NUL. */
static int take(struct ot_options *out, char *item) {
    size_t length = strcspn(item, "=");
    const char *value = item[length] ? item + length + 1 : NULL;
    int index = ot_option_find(item, length, OT_COMMAND_TRAIN);
    const struct ot_option *option = ot_option_at(index);
    if (!option || !(option->commands & OT_FOR_TRAIN))
        return ot_fail(OT_E_USAGE,
                       "--resume-with: train has no option '%.*s'; an item is OPTION=VALUE, and a value with "
                       "a comma is given by its own option: --resume-with data --data A --data B",
                       (int)length, item);
    if (ot_resume_with_kind(option->name) == OT_CHANGE_NOTHING)
        return ot_fail(OT_E_USAGE,
                       option->on_resume == OT_RESUME_FREE || option->on_resume == OT_RESUME_CONVERT
                           ? "--resume-with %s: not needed; --%s may change in any run that resumes"
                           : "--resume-with %s: --%s cannot change in a run that goes on; start a new run "
                             "from the weights, with --model OUT and another --out",
                       option->name, option->name);
    if (!value)
        return out->source[index] >= OT_FROM_FILE
                   ? 0
                   : ot_fail(OT_E_USAGE, "--resume-with %s: give its value, %s=VALUE", option->name,
                             option->name);
    ot_option_reset(out, index);
    out->source[index] = OT_FROM_COMMAND_LINE;
    int rc = ot_option_parse_value(option, option->name, value, out);
    return rc < 0 ? ot_fail_context(rc, "--resume-with") : 0;
}

int ot_resume_with_parse(struct ot_options *out) {
    if (!out->resume_with)
        return 0;
    if (strcmp(out->resume, "never") == 0)
        return ot_fail(OT_E_USAGE, "--resume-with has no effect with --resume never, which starts a new run");
    OT_TRY(ot_string_format(&out->changes_text, "%s", out->resume_with));
    char *rest = out->changes_text, *item;
    int n = 0;
    for (; (item = strsep(&rest, ",")); n += *item != '\0')
        if (*item)
            OT_TRY(take(out, item));
    return n > 0 ? 0 : ot_fail(OT_E_USAGE, "--resume-with: name an option, such as lr=1e-5");
}

bool ot_resume_with_has(const struct ot_options *options, const char *name) {
    size_t length = strlen(name);
    const char *at = options->resume_with;
    for (; at && *at; at += *at == ',') {
        size_t item = strcspn(at, ",="); /* an item may be spelled with '_' */
        const struct ot_option *option = ot_option_at(ot_option_find(at, item, OT_COMMAND_TRAIN));
        if (option && strlen(option->name) == length && strcmp(option->name, name) == 0)
            return true;
        at += strcspn(at, ",");
    }
    return false;
}
