/* The loss of an engine's present weights on packed rows: summed in double over every trained token, in file
 * order. */
#ifndef OT_RUN_EVALUATE_H
#define OT_RUN_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

struct ot_dataset;
struct ot_engine;
struct ot_packing;

struct ot_evaluation {
    const struct ot_dataset *dataset;
    struct ot_packing *packing; /* not shuffled; its epoch is set to 0 */
    int64_t seq_len, micro_sequences;
    bool (*stopped)(void); /* asked before each step whether to give up; NULL: never */
};

struct ot_eval_result {
    double loss; /* mean over trained tokens */
    int64_t trained_tokens, rows;
    double seconds;
    bool stopped; /* given up: the rest says nothing */
};

/* The engine is drained. Errors: OT_E_BUDGET, OT_E_INPUT (no rows), OT_E_DEVICE, OT_E_NUMERIC (the loss is
 * not finite). */
int ot_evaluate(struct ot_engine *engine, const struct ot_evaluation *evaluation, struct ot_eval_result *out);

#endif
