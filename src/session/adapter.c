#include "src/session/adapter.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/files/adapter_config.h"
#include "src/session/plan_request.h"

/* True if the run resumes: its record says which adapters it has. */
static bool resumes(const struct ot_options *o) {
    return o->lora && o->source[ot_option_find("lora", strlen("lora"), o->command)] == OT_FROM_CHECKPOINT;
}

static int take_lora(struct ot_session *s, const char *path) {
    const struct ot_options *o = s->options;
    bool equal = true;
    OT_TRY(ot_adapter_config_read(path, &s->config, o->command == OT_COMMAND_TRAIN && !o->lora, &s->lora));
    if (!o->lora) {
        ot_settings_choose_text(s->settings, "lora", s->lora);
        return 0;
    }
    OT_TRY(ot_adapter_config_equal(o->lora, s->lora, &s->config, &equal));
    return equal ? 0
                 : ot_fail(OT_E_USAGE,
                           "--lora %.200s and --adapter %s contradict each other: these adapters are %.200s; "
                           "leave out --lora, or change only its dropout and lr-ratio",
                           o->lora, path, s->lora);
}

/* The tensors of the base that the directory holds, as patterns of --train. NULL: there are none. */
static int name_modules(struct ot_session *s, const struct ot_model *model) {
    struct ot_string_builder b = {0};
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const char *name = ot_model_tensor(model, i)->name;
        if (ot_model_dir_is_adapted(s->dir, name) && !ot_lora_has_tensor(name))
            ot_string_append_format(&b, "%s%s", b.bytes ? "," : "", name);
    }
    s->train = b.text;
    return b.failed ? ot_fail(OT_E_BUDGET, "no memory for the names of an adapter's modules") : 0;
}

/* A run that goes on from adapters also goes on to train the modules that they were saved with. */
static int take_modules(struct ot_session *s, const char *path) {
    const struct ot_options *o = s->options;
    const struct ot_selection asked = ot_plan_request_selection(o);
    struct ot_model *model;
    OT_TRY(ot_model_open_selected(&s->config, OT_F32, 1, &asked, &model));
    int rc = name_modules(s, model);
    if (rc == 0 && s->train && !o->train)
        ot_settings_choose_text(s->settings, "train", s->train);
    for (int64_t i = 0; i < ot_model_tensor_count(model) && rc == 0 && o->train != s->train; i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        if (!t->trained && ot_model_dir_is_adapted(s->dir, t->name))
            rc =
                ot_fail(OT_E_USAGE,
                        "%s has trained values of %s, which --train leaves out; leave out --train, or add it",
                        path, t->name);
    }
    ot_model_close(model);
    return rc;
}

int ot_session_open_adapter(struct ot_session *s) {
    const struct ot_options *o = s->options;
    const char *named = s->resolved.adapter;
    if (named && o->adapter && strcmp(o->adapter, named) != 0)
        return ot_fail(OT_E_USAGE,
                       "--model %s is a directory of adapters, so --adapter %s cannot be used with it", named,
                       o->adapter);
    if (named && !o->adapter)
        ot_settings_choose_text(s->settings, "adapter", named);
    if (!o->adapter || resumes(o))
        return 0;
    if (!s->dir || o->init == OT_CHOICE_INIT_RANDOM)
        return ot_fail(OT_E_USAGE, "--adapter %s needs the weights of its base, and --init random has none",
                       o->adapter);
    OT_TRY(ot_model_dir_add_adapter(s->dir, o->adapter));
    if (o->command == OT_COMMAND_TRAIN || o->command == OT_COMMAND_EXPORT)
        OT_TRY(ot_model_dir_check_base_layers(s->dir));
    s->config.vocab = ot_model_dir_facts(s->dir)->config.vocab;
    OT_TRY(ot_adapter_config_check_saved(o->adapter, s->dir));
    OT_TRY(take_lora(s, o->adapter));
    /* An export writes the modules. A base type encodes only tensors that the adapters' run froze, so not the
     * modules. */
    bool needs_modules =
        o->command == OT_COMMAND_TRAIN || o->command == OT_COMMAND_EXPORT || o->base_type != OT_BASE_AUTO;
    return needs_modules ? take_modules(s, o->adapter) : 0;
}
