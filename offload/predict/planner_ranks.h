/* Chooses the plans of several ranks: what they share, and how.
 *
 * Ranks that share slabs have equal parts of the work, so the plan of one stands for all (simulate.h). STAGES
 * (plan/stages.h) differ, and wait for each other, so all ranks are planned and simulated together
 * (planner_stages.c): a search of one rank's plan tries each change on all ranks at once. Ranks with equally
 * many layers, and with the same edges of the model, always have the same choices. At the end each other
 * shape is changed by itself. The budgets and the rates of the request are those of each rank, unless stages
 * are unlike (request->machines): then each has budgets of its own, and its compute lane is as slow as its
 * machine. All its other rates are taken to be those of the request.
 *
 * THE CONTEST. The ways to divide the work are the modes, one copy of the weights, and two divisions into
 * stages: turns of one layer, and one turn for each rank; of several numbers of stages, if the number is open
 * too. The first plan of each, which costs one simulation, tells their order. The best way is searched first.
 * Each other search ends as soon as it is clear that it will not win (HOPE_FIRST and others in
 * planner_state.h); most end after a fraction of a search.
 *
 * STAGES OR SHARES. Stages have the bits of one rank, D replicas of a pipeline have the bits of D ranks, and
 * shares have the bits of W ranks. So stages, like another micro-batch, must save OT_PLANNER_MARGIN of the
 * step to be chosen. With shard.world all have the same bits, and OT_PLANNER_RESOLUTION is enough.
 */
#ifndef OT_OFFLOAD_PREDICT_PLANNER_RANKS_H
#define OT_OFFLOAD_PREDICT_PLANNER_RANKS_H

#include "offload/predict/planner.h"

/* The parts of request->shard that are to be chosen: the mode, among those that cut slabs, which have the
 * same bits; whether it is stages instead, and how many; in mode full, whether the weights on the host are
 * one copy of all ranks (slabs.h). */
struct ot_shard_open {
    bool mode, stages, one_copy;
};
/* The modes that the choice was made from. */
struct ot_shard_choice {
    /* By mode: of the best plan that was found. A mode that does not win is given up before its best plan
     * is found. 0: the mode was not tried, has no plan, or (but for mode full) is slower by more than a
     * quarter. */
    double step_seconds[OT_SHARD_STAGES + 1];
    char no_stages[256]; /* why there is no plan with stages; "": there is one, or they were not tried */
};
/* With several ranks, also chooses the open fields of request->shard: the shard whose best plan has the
 * shortest step. out->forced has it. A plan with one copy has all weights on the host, so that the ranks
 * agree on it. With stages: chooses the division, and predicts the step of this rank among all. choice: NULL,
 * or what was compared. Errors: as ot_planner_choose; OT_E_USAGE: the model cannot be divided; the error, the
 * shortage and out->forced are those of the first try: mode full without one copy, if the mode is open. */
int ot_planner_choose_shard(const struct ot_plan_request *request, const struct ot_costs *costs,
                            struct ot_shard_open open, struct ot_planner_result *out,
                            struct ot_shard_choice *choice);
/* Compares the machines of n ranks, as measured. Those that are alike become equal, with the worst of their
 * numbers. Returns true if some are unlike: then a request needs the table. */
bool ot_machines_sort(struct ot_rank_machine *machines, int n);
/* Divides the layers of stages that are unlike (request->machines) by the room that each has, if a stage has
 * none for its layers of request->shard. Does nothing else, also if no division fits. */
void ot_stages_find_room(struct ot_plan_request *request);

/* The mode with the next best step after the mode `chosen`; < 0: there is none. */
int ot_shard_runner_up(const struct ot_shard_choice *choice, enum ot_shard_mode chosen);

#endif
