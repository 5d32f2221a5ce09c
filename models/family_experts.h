/* What the rows of families.c cannot say of families with experts: keys of config.json. Private to
 * models/. */
#ifndef OT_MODELS_FAMILY_EXPERTS_H
#define OT_MODELS_FAMILY_EXPERTS_H

#include "models/family.h"

/* The functions `read` and `write` of their rows. Errors: OT_E_INPUT. */
int ot_config_read_mixtral(const struct ot_config_reader *r);
int ot_config_read_qwen3_moe(const struct ot_config_reader *r);
int ot_config_read_gpt_oss(const struct ot_config_reader *r);
void ot_config_write_mixtral(const struct ot_model_config *c, struct ot_json_writer *w);
void ot_config_write_qwen3_moe(const struct ot_model_config *c, struct ot_json_writer *w);
void ot_config_write_gpt_oss(const struct ot_model_config *c, struct ot_json_writer *w);

#endif
