/* adapter_config.json: the description of adapters in a directory of PEFT (huggingface/peft,
 * tuners/lora/config.py; the directory is save_pretrained's).
 *
 * READING turns the file into the text of a spec (models/lora_spec.h): target_modules (a list, "all-linear"
 * or a regular expression), r, lora_alpha, rank_pattern, alpha_pattern, exclude_modules and
 * layers_to_transform are applied to the modules of the base, as PEFT does. target_parameters can name
 * experts; as in PEFT, exclude_modules and layers_to_transform do not concern them. Anything else that
 * changes what adapters compute is refused by name: other kinds of adapters, biases, initial values that
 * change the base (PiSSA, OLoRA), and keys that this program does not know and that are not empty.
 *
 * WRITING gives PEFT the same spec. Rank and alpha of a module may differ by pattern, as in the text. */
#ifndef OT_FILES_ADAPTER_CONFIG_H
#define OT_FILES_ADAPTER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "models/selection.h"

struct ot_json;
struct ot_model_dir;

#define OT_ADAPTER_CONFIG_NAME  "adapter_config.json"
#define OT_ADAPTER_WEIGHTS_STEM "adapter_model"

/* Reads the name of the base: a path or a hub id, as PEFT recorded it. The caller frees *base. Errors:
 * OT_E_INPUT (also if the file names none), OT_E_IO, OT_E_BUDGET. */
int ot_adapter_config_base(const char *dir, char **base);

/* Reads the spec of DIR's adapters for a base of this shape. to_train: the spec has their dropout, which only
 * training applies. The caller frees *lora. Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. */
int ot_adapter_config_read(const char *dir, const struct ot_model_config *config, bool to_train, char **lora);
/* The same from the file's tree. where: its path, for messages. */
int ot_adapter_config_parse(struct ot_json *root, const char *where, const struct ot_model_config *config,
                            bool to_train, char **lora);

/* Tokens whose rows the adapters have (trainable_token_indices). */
struct ot_adapter_tokens {
    int64_t first, n; /* neighbouring ids; n 0: none */
    bool in_head;     /* the head has rows of its own; false for a tied one */
};
/* Reads them from DIR's file. Errors: OT_E_INPUT (tokens that do not have neighbouring ids, or not of the
 * embedding), OT_E_IO, OT_E_BUDGET. */
int ot_adapter_config_tokens(const char *dir, const struct ot_model_config *config,
                             struct ot_adapter_tokens *out);

/* Checks that the adapter of DIR, which was added to `dir`, has the weights of all its modules_to_save.
 * Errors: OT_E_INPUT, OT_E_IO. */
int ot_adapter_config_check_saved(const char *path, const struct ot_model_dir *dir);

/* Writes the spec of `lora`. model: opened with it; its own trained tensors become modules_to_save. base:
 * the name of the base; NULL: unknown. The caller frees *text. Errors: OT_E_BUDGET. */
int ot_adapter_config_write(const char *lora, const struct ot_model *model, const char *base, char **text,
                            size_t *bytes);

/* True if two specs give all modules of a base the same adapters; dropout may differ. Errors: as
 * ot_lora_spec_read. */
int ot_adapter_config_equal(const char *a, const char *b, const struct ot_model_config *config, bool *equal);

#endif
