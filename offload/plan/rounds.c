#include "offload/plan/rounds.h"

#include "src/base/minmax.h"

static int first_round(const struct ot_plan *plan) {
    return plan->first_round ? plan->first_round : plan->max_micro;
}

int ot_plan_rounds(const struct ot_plan *plan) {
    int rest = plan->max_micro - first_round(plan);
    return rest == 0 ? 1 : 2 + (rest - 1) / plan->round_micro;
}

struct ot_round ot_plan_round(const struct ot_plan *plan, int round) {
    if (round == 0)
        return (struct ot_round){0, first_round(plan)};
    int first = first_round(plan) + (round - 1) * plan->round_micro, rest = plan->max_micro - first;
    return (struct ot_round){first, ot_min(rest, plan->round_micro)};
}

int ot_plan_round_places(const struct ot_plan *plan) {
    int first = first_round(plan), rest = plan->max_micro - first;
    int later = ot_min(rest, plan->round_micro);
    return ot_max(first, later);
}

int ot_plan_place(const struct ot_plan *plan, int micro) {
    int first = first_round(plan);
    return micro < first ? micro : (micro - first) % plan->round_micro;
}

void ot_plan_set_rounds(struct ot_plan *plan, int rounds) {
    int n = rounds < 1 ? 1 : ot_min(rounds, plan->max_micro);
    plan->round_micro = (plan->max_micro - 1) / n + 1; /* max_micro may be INT_MAX */
    plan->first_round = plan->round_micro;
}
