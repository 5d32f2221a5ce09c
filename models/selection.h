/* Selects the tensors that a run trains, from a person's list.
 *
 * A list of patterns, separated by commas, selects the tensors that match one of them:
 *
 *     embeddings      the table of the embedding, and that of learned positions
 *     head            the output projection, where it is not tied to the embedding
 *     norms  biases   all weights of norms; all biases
 *     layers          everything in the layers
 *     layers:8-11     everything in these layers; they count from 0. layers:8: in one layer
 *     first:4 last:4  everything in the first or in the last 4 layers
 *     anything else   tensors whose name matches it, as a shell matches file names: *.q_proj.*
 *
 * `train` selects the trained tensors. Without it a run trains all tensors, or with adapters none of the
 * model's own. `freeze` then takes tensors away. Adapters are always trained. */
#ifndef OT_MODELS_SELECTION_H
#define OT_MODELS_SELECTION_H

#include "models/lora_spec.h"
#include "models/model.h"

struct ot_selection {
    const char *train, *freeze; /* NULL: not given */
    const char *lora;           /* adapters, as lora_spec.h says; NULL: none */
    bool trains_nothing;        /* all is frozen, without patterns: of a program that only reads the model */
    enum ot_base_type base;
};

/* Opens a model as ot_model_open does, with the tensors frozen that the selection does not train. The texts
 * are read before it returns. Errors: as ot_model_open; OT_E_USAGE: a pattern matches no tensor of the
 * model, or no tensor is left to train (the message quotes the pattern), or
 * `lora` is wrong. */
int ot_model_open_selected(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                           const struct ot_selection *selection, struct ot_model **out);

/* True if a slab of the model is frozen. */
bool ot_model_has_frozen(const struct ot_model *model);
/* Parameters that are trained, and those that are not, adapters among them; a tied tensor counts once. */
int64_t ot_model_trained_count(const struct ot_model *model);
int64_t ot_model_frozen_count(const struct ot_model *model);
/* The same for a model that is not open. Errors: as ot_model_open_selected. */
int ot_selection_count(const struct ot_model_config *config, const struct ot_selection *selection,
                       int64_t *trained);

#endif
