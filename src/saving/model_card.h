/* README.md of a trained model: what it was made from and how, as hubs read it. */
#ifndef OT_SAVING_MODEL_CARD_H
#define OT_SAVING_MODEL_CARD_H

#include "src/base/json.h"

/* run: the effective options, as run.json has them. base: the hub's name of the model that training began
 * with; NULL: it is not known. The caller frees *text. Errors: OT_E_BUDGET. */
int ot_model_card_make(const struct ot_json *run, const char *base, char **text, size_t *bytes);

#endif
