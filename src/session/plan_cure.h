/* What a user can do where no plan fits. The engine says which tier is short and by how much (struct
 * ot_shortage); here that becomes options to change, each of which was tried: with it there is a plan. What
 * changes least comes first. An option that forces something is named only if the user gave it, and no cure
 * asks for more memory than the GPU or the machine has.
 */
#ifndef OT_SESSION_PLAN_CURE_H
#define OT_SESSION_PLAN_CURE_H

#include "offload/plan/make.h"
#include "src/options/options.h"

struct ot_cure {
    const struct ot_options *options;
    const struct ot_plan_request *request; /* the one that was refused */
    size_t most_gpu_bytes;                 /* that --gpu-mem can be */
    size_t most_host_bytes;                /* that --host-mem can be */
    bool is_described; /* a machine to come (plan --gpu): it can have more RAM and a disk */
};

/* After ot_plan_make or ot_planner_choose returned -OT_E_BUDGET with this shortage: fails again, with the
 * same sentence and up to three cures behind it. Always OT_E_BUDGET; where the shortage is empty the sentence
 * stays as it is. */
int ot_plan_cure(const struct ot_cure *cure, const struct ot_shortage *shortage);

#endif
