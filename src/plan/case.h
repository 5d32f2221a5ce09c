/* One question of `plan`: a model, a machine and a step size. A caller opens a case (which reads the model's
 * shape and the machine's rates), predicts it (which finds the fastest plan that fits) and closes it. The
 * single answer, the comparison, the sweep and the minimum all use cases.
 *
 * On a described machine the prediction is only as good as the data sheet and the assumptions. slow_seconds
 * and fast_seconds are the times of the same plan at both ends of their errors (ot_cards_vary).
 */
#ifndef OT_PLAN_CASE_H
#define OT_PLAN_CASE_H

#include "offload/predict/planner.h"
#include "src/files/resolve.h"
#include "src/options/options.h"
#include "src/plan/machine.h"
#include "src/train/run_shape.h"

struct ot_plan_case {
    struct ot_settings settings;
    const struct ot_options *options; /* settings.in_effect */
    struct ot_plan_machine machine;
    struct ot_resolved resolved;
    struct ot_model_config config;
    struct ot_model *model;
    int64_t seq_len, step_sequences;
    int64_t sequences;        /* of an epoch; 0: no option tells */
    int64_t steps;            /* of the run; 0: no option gives its length */
    int64_t eval_sequences;   /* of an evaluation; 0: --data does not tell */
    bool has_tokenizer;       /* the model's own is on this machine */
    double price;             /* of the machine an hour; 0: unknown */
    bool is_price_missing;    /* --price/h names machines, and not this one */
    bool wants_cures;         /* a refusal names options that help, which takes time; true after opening */
    int64_t rows, row_tokens; /* of --data, without held-out rows; 0: not counted */
    double bytes_per_token;   /* the tokens of --data are estimated from their bytes; 0: they were counted */
    struct ot_costs costs;
    struct ot_plan_request request;
    struct ot_step_choice choice; /* of --tokens-per-step auto; n 0: none was made */
    int tried;                    /* plans, of all steps */
    struct ot_planner_result chosen;
    struct ot_shard_choice shards;     /* of several ranks: the modes that were compared */
    struct ot_run_times times;         /* of the run's work besides steps */
    struct ot_explanation explanation; /* with --explain */
    double slow_seconds, fast_seconds; /* time of a step; on a measured machine both are the prediction's */
};

/* Reads the model, opens the machine, finds the costs of the model's blocks, and makes the request. gpu: NULL
 * for this machine. Errors: OT_E_INPUT, OT_E_IO, OT_E_USAGE; as ot_plan_machine_open and
 * ot_plan_machine_cost. `out` needs ot_plan_case_close in either case. */
int ot_plan_case_open(const struct ot_options *options, const char *model, const char *gpu,
                      struct ot_plan_case *out);
/* Chooses the tokens of a step, with --tokens-per-step auto; chooses the plan and predicts its step. With
 * --explain, also predicts the gain of more of each resource. May be called again after the request has
 * changed. Errors: OT_E_BUDGET (no plan fits; the error text names options that help), OT_E_USAGE. */
int ot_plan_case_predict(struct ot_plan_case *plan_case);
void ot_plan_case_close(struct ot_plan_case *plan_case);

/* "llama-7b", or the place where its files were found. */
const char *ot_plan_case_model(const struct ot_plan_case *plan_case);

/* Figures that follow from the prediction, for full steps. */
struct ot_plan_answer {
    int ranks;
    double tokens_per_second, slow_rate, fast_rate; /* of all ranks */
    double model_flops, mfu, peak; /* of all ranks; peak: FLOP/s; 0: unknown, and mfu is 0 too */
    double run_seconds, run_tokens, run_price, million_price; /* run_seconds: with evaluations and saving */
    double written, read;                                     /* bytes of a host's nvme for each step */
    double link;    /* several ranks: bytes that cross the link of a GPU in a step, in both directions */
    double network; /* bytes that a host receives from the others for each step */
};
struct ot_plan_answer ot_plan_case_answer(const struct ot_plan_case *plan_case);

#endif
