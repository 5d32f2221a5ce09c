/* Which matrices --base-type encodes in generate and eval: those that were frozen in the run that made the
 * model.
 *
 * A model that a run trained over a base of some type has, beside what was trained, the base's exact weights
 * (weights.h). Only the frozen ones were encoded in the run, so only these are encoded to compute what it
 * trained. run.json beside the model says which. All matrices of the layers are encoded if there is no
 * run.json, or if the run trained over a plain base: then the question is what quantising the model costs. */
#ifndef OT_SESSION_BASE_CHOICE_H
#define OT_SESSION_BASE_CHOICE_H

#include "src/session/parts.h"

/* Chooses --train and --freeze for a command that does not train, after session->run was read. Adapters
 * have said it before (adapter.h). Errors: OT_E_INPUT (run.json names no tensor of this model). */
int ot_base_choice_open(struct ot_session *session);

#endif
