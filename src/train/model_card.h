/* Makes README.md of a trained model: the base model and the options, in the form that model hubs read. */
#ifndef OT_TRAIN_MODEL_CARD_H
#define OT_TRAIN_MODEL_CARD_H

#include "src/base/json.h"

enum ot_card {
    OT_CARD_MODEL,
    OT_CARD_ADAPTERS, /* the directory has adapters for PEFT instead of a model */
    OT_CARD_MERGED    /* adapters were added to a model's weights */
};

/* run: the effective options, as in run.json. out: the directory. base: the base model's name on the hub;
 * NULL: not known. The caller frees *text. Errors: OT_E_BUDGET. */
int ot_model_card_make(const struct ot_json *run, const char *out, const char *base, enum ot_card kind,
                       char **text, size_t *bytes);

#endif
