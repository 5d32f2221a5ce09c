/* One question of `plan`: this model, on that machine, in such steps. A case is opened (the model's shape,
 * the machine's rates), predicted (the fastest plan that fits) and closed. The single answer, the comparison,
 * the sweep and the minimum are all made of cases.
 *
 * Of a described machine the prediction is as good as the data sheet and the assumptions: slow_seconds and
 * fast_seconds are the same plan at both ends of what they leave open.
 */
#ifndef OT_PLAN_CASE_H
#define OT_PLAN_CASE_H

#include "offload/predict/planner.h"
#include "src/files/resolve.h"
#include "src/options/options.h"
#include "src/plan/machine.h"

struct ot_plan_case {
    struct ot_settings settings;
    const struct ot_options *options; /* in effect: of the settings */
    struct ot_plan_machine machine;
    struct ot_resolved resolved;
    struct ot_model_config config;
    struct ot_model *model;
    int64_t seq_len, step_sequences;
    int64_t steps; /* of the run; 0: nobody said how long it is */
    int64_t rows;  /* of --data, without those held out; 0: not counted */
    struct ot_costs costs;
    struct ot_plan_request request;
    struct ot_planner_result chosen;
    struct ot_explanation explanation; /* with --explain */
    double slow_seconds, fast_seconds; /* of a step; the prediction's on a measured machine */
};

/* Reads the model, opens the machine and its costs, and makes the request. gpu: NULL for this machine.
 * Errors: OT_E_INPUT, OT_E_IO, OT_E_USAGE; as ot_plan_machine_open and ot_plan_machine_cost. `out` needs
 * ot_plan_case_close in either case. */
int ot_plan_case_open(const struct ot_options *options, const char *model, const char *gpu,
                      struct ot_plan_case *out);
/* Chooses the plan, predicts its step and, with --explain, asks what more would buy. May be called again
 * after the request has changed. Errors: OT_E_BUDGET with what helps; OT_E_USAGE. */
int ot_plan_case_predict(struct ot_plan_case *plan_case);
void ot_plan_case_close(struct ot_plan_case *plan_case);

/* "llama-7b", or where its files were found. */
const char *ot_plan_case_model(const struct ot_plan_case *plan_case);

/* What follows from the prediction. Tokens are those of a whole step. */
struct ot_plan_answer {
    double tokens_per_second, slow_rate, fast_rate;
    double model_flops, mfu, peak; /* peak 0: unknown, and so mfu */
    double run_seconds, run_tokens, run_price, million_price;
    double written, read; /* bytes of nvme, a step */
};
struct ot_plan_answer ot_plan_case_answer(const struct ot_plan_case *plan_case);

#endif
