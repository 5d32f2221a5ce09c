/* Functions for the row of T5 in families.c. Private to models/. */
#ifndef OT_MODELS_FAMILY_T5_H
#define OT_MODELS_FAMILY_T5_H

#include "models/family.h"

/* Relative positions have no end; this is far beyond what anyone trains. */
enum { OT_T5_LONGEST_ROW = 1 << 20 };
/* The first token of a decoder's row: the padding token. */
enum { OT_T5_START_ID = OT_PAIR_START_ID };

extern const struct ot_family_names OT_T5_NAMES[2][2]; /* [gated][in a decoder] */
const struct ot_family_names *ot_t5_layer_names(const struct ot_model_config *config, int64_t layer);
int ot_t5_read(const struct ot_config_reader *reader);
void ot_t5_write(const struct ot_model_config *config, struct ot_json_writer *writer);

#endif
