/* The machine that a plan is for. It is either this machine, which is opened and measured, or a described
 * machine (cards.h), for which nothing is opened. */
#ifndef OT_PLAN_MACHINE_H
#define OT_PLAN_MACHINE_H

#include "offload/predict/costs.h"
#include "src/plan/cards.h"
#include "src/session/open.h"

struct ot_plan_machine {
    char name[200];
    char assumed[256];                /* options with assumed values (ot_cards_assumed); "": none */
    const struct ot_card *card;       /* NULL: this machine */
    bool has_future_disks;            /* this machine with --nvme SIZE: disks that it does not have yet */
    struct ot_session session;        /* of this machine; zero for a described machine */
    struct ot_described described;    /* the described machine; zero for this machine */
    struct ot_described_request said; /* the user's options about the described machine */
    size_t most_bytes[OT_TIER_COUNT]; /* the largest budgets of gpu and host */
    enum ot_dtype dtype;
    size_t budget_bytes[OT_TIER_COUNT];
    size_t workspace_bytes; /* scratch of the device's ops, part of the gpu budget */
    struct ot_rates rates;
};

/* Opens or describes the machine of the settings, and writes its own choices (dtype, for example) into them.
 * Errors: as ot_session_open_machine and ot_rates_obtain; as ot_cards_describe; OT_E_USAGE. `out` needs
 * ot_plan_machine_close in either case. */
int ot_plan_machine_open(struct ot_settings *settings, struct ot_plan_machine *out);
void ot_plan_machine_close(struct ot_plan_machine *machine);

/* Finds the costs of the chain's blocks: measures them on this machine, or estimates them for a described
 * machine. Errors: as ot_calibrate and ot_costs_estimate. */
int ot_plan_machine_cost(const struct ot_plan_machine *machine, const struct ot_chain *chain,
                         int64_t sequence_tokens, int64_t step_tokens, struct ot_costs *out);
/* Estimates the costs for a described machine at one end of the assumptions' errors (ot_cards_vary). end -1:
 * slowest; 1: fastest. */
int ot_plan_machine_cost_at(const struct ot_plan_machine *machine, int end, const struct ot_chain *chain,
                            int64_t sequence_tokens, int64_t step_tokens, struct ot_costs *out);

#endif
