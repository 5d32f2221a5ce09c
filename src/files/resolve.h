/* What --model means: a directory, a preset's name, or a hub id ("org/name").
 *
 * A directory that exists is taken as it is. Any other name is looked up in $OFFLOAD_MODELS/NAME (for a
 * preset also under its hub id and the id's last part), then in the Hugging Face cache: $HF_HUB_CACHE, or
 * $HF_HOME/hub, or $XDG_CACHE_HOME/huggingface/hub, or ~/.cache/huggingface/hub, in
 * models--ORG--NAME/snapshots/ by refs/main. Nothing is downloaded, and nothing is chosen silently: `found`
 * says what was taken from where, `missing` where it looked and how to get the weights.
 */
#ifndef OT_FILES_RESOLVE_H
#define OT_FILES_RESOLVE_H

struct ot_preset;

struct ot_resolved {
    const struct ot_preset *preset; /* the name is a preset's (also beside a path); or NULL */
    char *path;    /* a directory with a config.json; NULL: a preset whose weights are not here */
    char *found;   /* "llama-7b → huggyllama/llama-7b (HF cache, PATH)"; NULL without a path */
    char *missing; /* a sentence, where path is NULL */
};

/* Errors: OT_E_INPUT: neither found nor a preset; the sentence names the places and the presets. */
int ot_model_resolve(const char *name, struct ot_resolved *out);
void ot_resolved_free(struct ot_resolved *resolved); /* NULL and zeroed are fine */

#endif
