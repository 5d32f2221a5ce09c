/* Turns options into a request for a plan. */
#ifndef OT_SESSION_PLAN_REQUEST_H
#define OT_SESSION_PLAN_REQUEST_H

#include "models/model.h"
#include "offload/plan/plan_search.h"
#include "src/options/options.h"

/* Sets homes, shares, slots, recomputation, order and clipping. The caller sets all other fields. */
struct ot_plan_request ot_plan_request_of(const struct ot_options *options);
struct ot_selection;
/* The selection of --train, --freeze, --lora and --base-type. Without the first three, a command that only
 * reads the model freezes all of it for a base type. Borrows the texts of the options. */
struct ot_selection ot_plan_request_selection(const struct ot_options *options);
/* Opens the model that the run trains: with that selection, the format of --state and the masters of
 * --master-weights. Errors: as ot_model_open_selected; OT_E_USAGE (the dtype needs masters; the base type
 * has no effect). */
int ot_plan_request_model(const struct ot_options *options, const struct ot_model_config *config,
                          enum ot_dtype dtype, int64_t max_position, struct ot_model **out);
/* Refuses --fetch-experts used if the finished plan takes no layer by its used experts, and another option
 * would change that. Layers that live on the GPU are fine. Errors: OT_E_USAGE. */
int ot_plan_request_check_fetch(const struct ot_options *options, const struct ot_chain *chain,
                                const struct ot_plan *plan);
/* The mode of --shard; `auto` counts as full. */
enum ot_shard_mode ot_plan_request_mode(const struct ot_options *options);
/* True if the options leave it open whether ranks have one copy of the weights; false if they say so. */
bool ot_plan_request_may_one_copy(const struct ot_options *options);

#endif
