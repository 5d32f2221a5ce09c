/* Stages of ranks that are unlike (plan/stages.h): the machine of each stage, and the layers that it gets. */
#include <math.h>
#include <string.h>

#include "offload/plan/stages.h"
#include "offload/predict/planner_ranks.h"
#include "offload/predict/planner_state.h"
#include "src/base/minmax.h"

/* ---- the ranks ---- */

/* Budgets, and times of computing, that differ by no more than this share of the larger one are alike:
 * measured ones always differ a little, and a search for ranks that are alike is several times faster. */
static const double ALIKE = 0.1;

static bool are_alike(const struct ot_rank_machine *a, const struct ot_rank_machine *b) {
    bool alike = fabs(a->slowness - b->slowness) <= ALIKE * fmax(a->slowness, b->slowness);
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        double one = (double)a->budget_bytes[t], other = (double)b->budget_bytes[t];
        alike = alike && fabs(one - other) <= ALIKE * fmax(one, other);
    }
    return alike;
}

/* Leaves in *a the least of both. */
static void take_worse(struct ot_rank_machine *a, const struct ot_rank_machine *b) {
    a->slowness = fmax(a->slowness, b->slowness);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        a->budget_bytes[t] = ot_min(a->budget_bytes[t], b->budget_bytes[t]);
}

bool ot_machines_sort(struct ot_rank_machine *machines, int n) {
    int like[OT_SHARD_MOST_STAGES];
    bool unlike = false;
    for (int r = 0; r < n; r++) {
        for (like[r] = 0;
             like[r] < r && !(like[like[r]] == like[r] && are_alike(&machines[like[r]], &machines[r]));)
            like[r]++;
        unlike = unlike || like[r] > 0;
    }
    for (int r = 0; r < n; r++)
        take_worse(&machines[like[r]], &machines[r]);
    for (int r = 0; r < n; r++)
        machines[r] = machines[like[r]];
    return unlike;
}

struct ot_rank_machine ot_stages_machine(const struct ot_plan_request *request, int stage) {
    const struct ot_shard *shard = &request->shard;
    struct ot_rank_machine machine = {.slowness = 1};
    memcpy(machine.budget_bytes, request->budget_bytes, sizeof machine.budget_bytes);
    if (!request->machines)
        return machine;
    machine = request->machines[ot_shard_rank_of(shard, 0, stage)];
    for (int holder = 1; holder < ot_shard_holders(shard); holder++)
        take_worse(&machine, &request->machines[ot_shard_rank_of(shard, holder, stage)]);
    return machine;
}

void ot_stages_move(struct ot_plan_request *request, int stage) {
    struct ot_rank_machine machine = ot_stages_machine(request, stage);
    request->shard.rank = ot_shard_rank_of(&request->shard, 0, stage);
    memcpy(request->budget_bytes, machine.budget_bytes, sizeof machine.budget_bytes);
}

/* ---- the layers ---- */

/* The speeds of the stages, in percent of the fastest. */
static void find_speeds(const struct ot_plan_request *request, int *speeds) {
    int stages = ot_shard_stages(&request->shard);
    double fastest = INFINITY;
    for (int stage = 0; stage < stages; stage++)
        fastest = fmin(fastest, ot_stages_machine(request, stage).slowness);
    for (int stage = 0; stage < stages; stage++)
        speeds[stage] = ot_max((int)lround(100 * fastest / ot_stages_machine(request, stage).slowness), 1);
}

/* True if the stage has a plan. */
static bool fits(const struct ot_plan_request *request, int stage) {
    struct ot_plan_request trial = *request;
    struct ot_plan plan;
    trial.is_trial = true;
    ot_stages_move(&trial, stage);
    if (ot_plan_make(&trial, &plan) < 0)
        return false;
    ot_plan_free(&plan);
    return true;
}

/* True if the stage has a plan with so many layers. How the others divide the rest does not matter to it. */
static bool has_room(const struct ot_plan_request *request, int stage, int layers) {
    struct ot_plan_request trial = *request;
    int stages = ot_shard_stages(&trial.shard), rest = request->chain->n_blocks - 2 - layers;
    for (int s = 0, others = stages - 1; s < stages; s++) {
        int own = s == stage ? layers : rest / others + (rest % others > 0);
        trial.shard.layers[s] = (uint8_t)own;
        rest -= s == stage ? 0 : own;
        others -= s != stage;
    }
    return fits(&trial, stage);
}

/* The most layers for which the stage has room; 0: not even for one. The other stages need one each. */
static int find_most(const struct ot_plan_request *request, int stage) {
    int least = 0, beyond = request->chain->n_blocks - 2 - (ot_shard_stages(&request->shard) - 1) + 1;
    while (beyond - least > 1) {
        int middle = (least + beyond) / 2;
        *(has_room(request, stage, middle) ? &least : &beyond) = middle;
    }
    return least;
}

void ot_stages_deal_by_speed(struct ot_plan_request *request) {
    int speeds[OT_SHARD_MOST_STAGES], most[OT_SHARD_MOST_STAGES];
    if (!request->machines)
        return;
    find_speeds(request, speeds);
    for (int stage = 0; stage < ot_shard_stages(&request->shard); stage++)
        most[stage] = request->chain->n_blocks;
    ot_stages_deal(request->chain, &request->shard, speeds, most);
}

void ot_stages_find_room(struct ot_plan_request *request) {
    bool all = true;
    for (int stage = 0; request->machines && stage < ot_shard_stages(&request->shard) && all; stage++)
        all = fits(request, stage);
    if (!all)
        ot_stages_deal_by_room(request);
}

bool ot_stages_deal_by_room(struct ot_plan_request *request) {
    int speeds[OT_SHARD_MOST_STAGES], most[OT_SHARD_MOST_STAGES], stages = ot_shard_stages(&request->shard);
    struct ot_shard before = request->shard;
    if (!request->machines)
        return false;
    find_speeds(request, speeds);
    for (int stage = 0; stage < stages; stage++)
        most[stage] = find_most(request, stage);
    return ot_stages_deal(request->chain, &request->shard, speeds, most) &&
           memcmp(before.layers, request->shard.layers, sizeof before.layers) != 0;
}
