#include "src/train/model_card.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

/* The last component of a path: people read the card on other machines. */
static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static void put_option(struct ot_string_builder *b, const struct ot_json *run, const char *name) {
    const struct ot_json *value = ot_json_get(run, name);
    const char *text = ot_json_string(value, NULL);
    switch (ot_json_type(value)) {
    case OT_JSON_STRING:
        ot_string_append_format(b, "- %s: `%s`\n", name, last_part(text));
        break;
    case OT_JSON_INT:
        ot_string_append_format(b, "- %s: %lld\n", name, (long long)ot_json_int(value, 0));
        break;
    case OT_JSON_REAL:
        ot_string_append_format(b, "- %s: %g\n", name, ot_json_real(value, 0));
        break;
    default:
        break;
    }
}

static void put_front(struct ot_string_builder *b, const char *base, bool adapters) {
    ot_string_append_format(b, "---\nlibrary_name: %s\npipeline_tag: text-generation\n",
                            adapters ? "peft" : "transformers");
    if (base)
        ot_string_append_format(b, "base_model: %s\nbase_model_relation: %s\n", base,
                                adapters ? "adapter" : "finetune");
    ot_string_append_format(b, "tags:\n- offload-train\n%s---\n\n", adapters ? "- lora\n" : "");
}

/* Says which function was trained, if frozen weights were quantised: the files have them before that. */
static void put_base(struct ot_string_builder *b, const char *type, enum ot_card kind) {
    if (!type || strcmp(type, "auto") == 0)
        return;
    ot_string_append_format(b, "\nThe frozen matrices of the layers were %s during training. ", type);
    if (kind == OT_CARD_MERGED)
        ot_string_append_text(b, "Here the adapters are merged into their exact values.\n");
    else if (kind == OT_CARD_ADAPTERS)
        ot_string_append_format(b, "A base that is loaded in %s computes what was trained.\n", type);
    else
        ot_string_append_format(b,
                                "The files here have their exact values: eval and generate with "
                                "`--base-type %s` compute what was trained.\n",
                                type);
}

int ot_model_card_make(const struct ot_json *run, const char *out, const char *base, enum ot_card kind,
                       char **text, size_t *bytes) {
    static const char *const options[] = {
        "data",    "template", "train",    "freeze", "lora", "epochs",       "steps", "tokens-per-step",
        "seq-len", "lr",       "schedule", "warmup", "clip", "weight-decay", "dtype", "seed"};
    const char *model = ot_json_string(ot_json_get(run, "model"), NULL);
    const char *init = ot_json_string(ot_json_get(run, "init"), NULL);
    bool random = init && strcmp(init, "random") == 0;
    bool all = !ot_json_get(run, "train") && !ot_json_get(run, "freeze");
    struct ot_string_builder b = {0};
    put_front(&b, random ? NULL : base, kind == OT_CARD_ADAPTERS);
    ot_string_append_format(&b, "# %s\n\n%s %s with offload-train " OT_VERSION ": %s, AdamW.\n\n",
                            last_part(out),
                            random ? "Trained from random weights, in the shape of" : "Fine-tuned from",
                            base && !random ? base
                            : model         ? last_part(model)
                                            : "a model",
                            kind == OT_CARD_ADAPTERS ? "adapters (LoRA)"
                            : kind == OT_CARD_MERGED ? "adapters (LoRA), merged into the weights"
                            : all                    ? "all parameters"
                                                     : "some parameters");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        put_option(&b, run, options[i]);
    put_base(&b, ot_json_string(ot_json_get(run, "base-type"), NULL), kind);
    ot_string_append_format(&b, "\n`run.json` has every option%s.\n",
                            kind == OT_CARD_MERGED ? " of the run that made the adapters"
                                                   : ", `log.jsonl` the record of the run");
    if (b.failed) {
        free(b.text);
        return ot_fail(OT_E_BUDGET, "no memory for a model card");
    }
    *text = b.text;
    *bytes = b.bytes;
    return 0;
}
