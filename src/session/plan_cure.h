/* Finds options with which a plan fits, after no plan fitted. The engine says which tier is short and by how
 * much (struct ot_shortage). Each option named here was tried: with it there is a plan. The options that
 * change least come first. An option that forces a placement is named only if the user gave it. No cure asks
 * for more memory than the GPU or the machine has. */
#ifndef OT_SESSION_PLAN_CURE_H
#define OT_SESSION_PLAN_CURE_H

#include "offload/plan/plan_search.h"
#include "src/machine/machine.h"
#include "src/options/options.h"

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
