/* Turns options into a request for a plan. */
#ifndef OT_SESSION_PLAN_REQUEST_H
#define OT_SESSION_PLAN_REQUEST_H

#include "models/model.h"
#include "offload/plan/make.h"
#include "src/options/options.h"

/* Sets homes, shares, slots, recomputation, order and clipping. The caller sets all other fields. */
struct ot_plan_request ot_plan_request_of(const struct ot_options *options);
/* Gives the model the format of --state and the masters of --master-weights. Errors: OT_E_USAGE (the model's
 * dtype needs masters). */
int ot_plan_request_state(const struct ot_options *options, struct ot_model *model);
/* The mode of --shard; `auto` counts as full. */
enum ot_shard_mode ot_plan_request_mode(const struct ot_options *options);
/* True if the options leave it open whether ranks have one copy of the weights; false if they say so. */
bool ot_plan_request_may_share(const struct ot_options *options);

#endif
