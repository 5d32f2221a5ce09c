#include "src/session/base_choice.h"

#include <string.h>

#include "models/selection.h"
#include "src/base/error.h"

int ot_base_choice_open(struct ot_session *s) {
    const struct ot_options *o = s->options;
    const char *type = ot_json_string(ot_json_get(s->run, "base-type"), NULL);
    const struct ot_selection then = {.train = ot_json_string(ot_json_get(s->run, "train"), NULL),
                                      .freeze = ot_json_string(ot_json_get(s->run, "freeze"), NULL)};
    int64_t trained;
    bool reads = o->command == OT_COMMAND_GENERATE || o->command == OT_COMMAND_EVAL;
    if (!reads || o->base_type == OT_BASE_AUTO || o->lora || !type || strcmp(type, "auto") == 0)
        return 0;
    if (ot_selection_count(&s->config, &then, &trained) < 0)
        return ot_fail(OT_E_INPUT, "%s/run.json does not belong to this model: %s", ot_model_dir_path(s->dir),
                       ot_error_text());
    if (then.train)
        ot_settings_choose_text(s->settings, "train", then.train);
    if (then.freeze)
        ot_settings_choose_text(s->settings, "freeze", then.freeze);
    return 0;
}
