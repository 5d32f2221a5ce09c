/* Turns options into a request for a plan. */
#ifndef OT_SESSION_PLAN_REQUEST_H
#define OT_SESSION_PLAN_REQUEST_H

#include "offload/plan/make.h"
#include "src/options/options.h"

/* Sets homes, shares, slots, recomputation, order and clipping. The caller sets all other fields. */
struct ot_plan_request ot_plan_request_of(const struct ot_options *options);
/* The mode of --shard; `auto` counts as full. */
enum ot_shard_mode ot_plan_request_mode(const struct ot_options *options);
/* True if the options leave it open whether ranks have one copy of the weights; false if they say so. */
bool ot_plan_request_may_share(const struct ot_options *options);

#endif
