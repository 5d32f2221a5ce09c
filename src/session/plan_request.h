/* What the options force of a plan, for everyone who makes one. */
#ifndef OT_SESSION_PLAN_REQUEST_H
#define OT_SESSION_PLAN_REQUEST_H

#include "offload/plan/make.h"
#include "src/options/options.h"

/* Homes, shares, slots, recomputation, order and clipping; what else a request has is the caller's. */
struct ot_plan_request ot_plan_request_of(const struct ot_options *options);

#endif
