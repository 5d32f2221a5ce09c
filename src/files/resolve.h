/* Finds the model that --model names: a directory, a GGUF file, a preset's name, a hub id ("org/name",
 * "org/name@revision"), or a GGUF file of the hub ("hf://org/name/file.gguf"). Finds the adapters that
 * --adapter names: a directory, or a hub id.
 *
 * A directory or a file NAME.gguf that exists is taken as it is. A directory of adapters (PEFT) names its
 * base, which is looked for in the same way. A preset's name may be spelled in another way
 * (ot_preset_spelled). Any other name is looked up in $OFFLOAD_MODELS/NAME (a preset also under its hub id
 * and the id's last component), then in the Hugging Face cache: $HF_HUB_CACHE, or $HF_HOME/hub, or
 * $XDG_CACHE_HOME/huggingface/hub, or ~/.cache/huggingface/hub, in models--ORG--NAME/snapshots/ by
 * refs/main; org/name@revision by refs/REVISION. ot_model_obtain and ot_model_resolve_shape download what
 * is missing (src/hub/hub.h). Nothing is chosen silently: `found` says what was taken, `missing` says
 * where it looked and how to get the weights.
 */
#ifndef OT_FILES_RESOLVE_H
#define OT_FILES_RESOLVE_H

#include <stdbool.h>

struct ot_preset;

struct ot_resolved {
    const struct ot_preset *preset; /* the preset of that name, also if a directory was taken; NULL: none */
    char *adapter; /* a directory of adapters over `path`, named as the model or by --adapter; NULL: none */
    char *base;    /* the name of the base in adapter_config.json of a directory named as the model */
    char *path;  /* a directory with config.json, or a GGUF file; NULL: a preset whose weights are not here */
    char *found; /* "llama-7b → huggyllama/llama-7b (HF cache, PATH)"; NULL without a path */
    char *missing; /* an error message if path is NULL */
};

/* Errors: OT_E_INPUT: neither found nor a preset; the message names the places and the presets. OT_E_IO,
 * OT_E_BUDGET. */
int ot_model_resolve(const char *name, struct ot_resolved *out);
/* The same, but downloads a model of the hub that is not here, or not whole, unless HF_HUB_OFFLINE forbids
 * it. Without weights: a config.json and a tokenizer are enough. Errors: as above, and those of
 * ot_hub_get_model.
 */
int ot_model_obtain(const char *name, bool weights, struct ot_resolved *out);
/* Finds adapters by a name, and lays their directory over the model that was found: sets out->adapter and
 * completes out->found. Downloads what is missing, as ot_model_obtain. A directory is taken as it is. Errors:
 * OT_E_INPUT: nothing is found, and the message names the places; those of ot_hub_get_model. */
int ot_adapter_obtain(const char *name, struct ot_resolved *out);
/* For a caller that needs the model's shape alone: a config.json without weights is enough, and a name
 * that stands for no model here is the preset of the same shape (ot_preset_shaped). Downloads the small
 * files of a model of the hub if there is no such preset. Errors: as above; the message says how to get
 * config.json.
 */
int ot_model_resolve_shape(const char *name, struct ot_resolved *out);
void ot_resolved_free(struct ot_resolved *resolved); /* NULL and zeroed are fine */

#endif
