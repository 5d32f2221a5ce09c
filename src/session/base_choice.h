/* Chooses the matrices that --base-type encodes in generate and eval: those that the model's run froze.
 *
 * A model that was trained over an encoded base has its trained tensors, and the base's exact weights
 * (weights.h). The run encoded only frozen weights, so only these are encoded to compute the trained model.
 * run.json in the model's directory names them. All matrices of the layers are encoded if there is no
 * run.json, or if the run trained over a plain base: then a person measures the cost of quantising the
 * model. */
#ifndef OT_SESSION_BASE_CHOICE_H
#define OT_SESSION_BASE_CHOICE_H

#include "src/session/parts.h"

/* Chooses --train and --freeze for a command that does not train, after session->run was read. Adapters
 * have said it before (adapter.h). Errors: OT_E_INPUT (run.json names no tensor of this model). */
int ot_base_choice_open(struct ot_session *session);

#endif
