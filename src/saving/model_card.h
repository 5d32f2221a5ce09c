/* Makes README.md of a trained model: the base model and the options, in the form that model hubs read. */
#ifndef OT_SAVING_MODEL_CARD_H
#define OT_SAVING_MODEL_CARD_H

#include "src/base/json.h"

/* run: the effective options, as in run.json. base: the base model's name on the hub; NULL: not known. The
 * caller frees *text. Errors: OT_E_BUDGET. */
int ot_model_card_make(const struct ot_json *run, const char *base, char **text, size_t *bytes);

#endif
