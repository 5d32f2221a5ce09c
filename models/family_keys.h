/* Reads and writes keys of config.json that rows of families.c cannot describe. Private to models/. */
#ifndef OT_MODELS_FAMILY_KEYS_H
#define OT_MODELS_FAMILY_KEYS_H

#include "models/family.h"

/* The functions `read` and `write` of rows. Errors: OT_E_INPUT. */

/* ---- families with experts: family_experts.c ---- */

int ot_config_read_mixtral(const struct ot_config_reader *reader);
int ot_config_read_qwen3_moe(const struct ot_config_reader *reader);
int ot_config_read_gpt_oss(const struct ot_config_reader *reader);
void ot_config_write_mixtral(const struct ot_model_config *config, struct ot_json_writer *writer);
void ot_config_write_qwen3_moe(const struct ot_model_config *config, struct ot_json_writer *writer);
void ot_config_write_gpt_oss(const struct ot_model_config *config, struct ot_json_writer *writer);

/* ---- the others: family_keys.c ---- */

int ot_config_read_gpt2(const struct ot_config_reader *reader);
int ot_config_read_bloom(const struct ot_config_reader *reader);
int ot_config_read_falcon(const struct ot_config_reader *reader);
void ot_config_write_falcon(const struct ot_model_config *config, struct ot_json_writer *writer);
int ot_config_read_codegen(const struct ot_config_reader *reader);
void ot_config_write_codegen(const struct ot_model_config *config, struct ot_json_writer *writer);
void ot_config_write_gpt2(const struct ot_model_config *config, struct ot_json_writer *writer);
int ot_config_read_gemma(const struct ot_config_reader *reader);
void ot_config_write_gemma(const struct ot_model_config *config, struct ot_json_writer *writer);
int ot_config_read_smollm3(const struct ot_config_reader *reader);
void ot_config_write_smollm3(const struct ot_model_config *config, struct ot_json_writer *writer);
int ot_config_read_ministral3(const struct ot_config_reader *reader);
int ot_config_read_granite(const struct ot_config_reader *reader);
void ot_config_write_granite(const struct ot_model_config *config, struct ot_json_writer *writer);

#endif
