/* Turns options into a request for a plan, and finds options that cure a request that no plan fits. */
#ifndef OT_SESSION_PLAN_REQUEST_H
#define OT_SESSION_PLAN_REQUEST_H

#include "models/model.h"
#include "offload/plan/plan_search.h"
#include "src/machine/machine.h"
#include "src/options/options.h"

/* Sets homes, shares, slots, recomputation, order and clipping. The caller sets all other fields. */
struct ot_plan_request ot_plan_request_of(const struct ot_options *options);
struct ot_selection;
/* The selection of --train, --freeze, --lora and --base-type. Without the first three, a command that only
 * reads the model freezes all of it for a base type. Borrows the texts of the options. */
struct ot_selection ot_plan_request_selection(const struct ot_options *options);
/* Opens the model that the run trains: with that selection, the format of --state and the masters of
 * --master-weights, and the regularisers. Errors: as ot_model_open_selected and ot_plan_request_regular;
 * OT_E_USAGE (the dtype needs masters; the base type has no effect). */
int ot_plan_request_model(const struct ot_options *options, const struct ot_model_config *config,
                          enum ot_dtype dtype, int64_t max_position, struct ot_model **out);
/* The regularisers of the options. Errors: OT_E_USAGE (the model cannot have one). */
int ot_plan_request_regular(const struct ot_options *options, const struct ot_model_config *config,
                            struct ot_regular *out);
/* Refuses --fetch-experts used if the finished plan takes no layer by its used experts, and another option
 * would change that. Layers that live on the GPU are fine. Errors: OT_E_USAGE. */
int ot_plan_request_check_fetch(const struct ot_options *options, const struct ot_chain *chain,
                                const struct ot_plan *plan);
/* The mode of --shard; `auto` counts as full. */
struct ot_objective ot_plan_request_objective(const struct ot_options *options);
enum ot_shard_mode ot_plan_request_mode(const struct ot_options *options);
/* True if the options leave it open whether ranks have one copy of the weights; false if they say so. */
bool ot_plan_request_may_one_copy(const struct ot_options *options);

/* ---- cures ---- */

/* Finds options with which a plan fits, after no plan fitted. The engine says which tier is short and by how
 * much (struct ot_shortage). Each option named here was tried: with it there is a plan. The options that
 * change least come first. An option that forces a placement is named only if the user gave it. No cure asks
 * for more memory than the GPU or the machine has. */

struct ot_cure {
    const struct ot_options *options;
    const struct ot_plan_request *request; /* the refused request */
    size_t most_gpu_bytes;                 /* the most that --gpu-mem can be */
    size_t most_host_bytes;                /* the most that --host-mem can be */
    int host_ranks;    /* ranks that share the described host, and so its RAM and disks; 0 counts as 1 */
    bool is_described; /* a machine described by plan --gpu: it can get more RAM and a disk */
    const struct ot_machine *shared; /* the machine whose RAM both --gpu-mem and --host-mem are; NULL: the
                                      * device has its own memory */
};

/* Call this after ot_plan_make or ot_planner_choose returned -OT_E_BUDGET with this shortage. Adds up to
 * three cures to its sentence (ot_error_cures), or says that there is none. A cure is one option, or two
 * where one is not enough. Always returns -OT_E_BUDGET. If the shortage is empty, the sentence stays as it
 * is. */
int ot_plan_cure(const struct ot_cure *cure, const struct ot_shortage *shortage);

#endif
