/* The machine that a plan is for: this one, opened and measured, or one that is described (cards.h), for
 * which nothing is opened. */
#ifndef OT_PLAN_MACHINE_H
#define OT_PLAN_MACHINE_H

#include "offload/predict/costs.h"
#include "src/plan/cards.h"
#include "src/session/session.h"

struct ot_plan_machine {
    char name[200];
    char assumed[256];                /* what nobody said or measured; "": nothing */
    const struct ot_card *card;       /* NULL: this machine */
    struct ot_session session;        /* this machine's; nothing in it for another */
    struct ot_described described;    /* another's; nothing in it for this one */
    struct ot_described_request said; /* of the described one */
    size_t most_bytes[OT_TIER_COUNT]; /* of gpu and host that a budget could be */
    enum ot_dtype dtype;
    size_t budget_bytes[OT_TIER_COUNT];
    size_t workspace_bytes; /* of the gpu budget */
    struct ot_rates rates;
};

/* By the settings, in which it fills in what it chooses. Errors: as ot_session_open_machine and
 * ot_rates_obtain; as ot_cards_describe; OT_E_USAGE. `out` needs ot_plan_machine_close in either case. */
int ot_plan_machine_open(struct ot_settings *settings, struct ot_plan_machine *out);
void ot_plan_machine_close(struct ot_plan_machine *machine);

/* Times the chain's blocks on this machine, or estimates them for another. Errors: as ot_calibrate and
 * ot_costs_estimate. */
int ot_plan_machine_cost(const struct ot_plan_machine *machine, const struct ot_chain *chain,
                         int64_t sequence_tokens, int64_t step_tokens, struct ot_costs *out);
/* The same at one end of what the assumptions about another machine leave open: -1 slowest, 1 fastest. */
int ot_plan_machine_cost_at(const struct ot_plan_machine *machine, int end, const struct ot_chain *chain,
                            int64_t sequence_tokens, int64_t step_tokens, struct ot_costs *out);

#endif
