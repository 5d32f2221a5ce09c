/* Computes the loss of an engine's present weights on packed rows. The sum is in double: over the trained
 * tokens of each micro-batch, then over the micro-batches, in file order. Several ranks take the
 * micro-batches in turn; the result is the same, and every rank gets it. */
#ifndef OT_TRAIN_EVALUATE_H
#define OT_TRAIN_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

struct ot_comm;
struct ot_dataset;
struct ot_engine;
struct ot_packing;

struct ot_evaluation {
    const struct ot_dataset *dataset;
    struct ot_packing *packing; /* not shuffled; its epoch is set to 0 */
    int64_t seq_len, micro_sequences;
    struct ot_comm *comm;  /* NULL: one rank */
    bool (*stopped)(void); /* called before each step: true ends the evaluation; NULL: never ends early */
};

struct ot_eval_result {
    double loss; /* mean over trained tokens */
    int64_t trained_tokens, rows;
    double seconds;
    bool stopped; /* ended early: the other members mean nothing */
};

/* The engine must be drained. Errors: OT_E_BUDGET, OT_E_INPUT (no rows), OT_E_DEVICE, OT_E_NUMERIC (the loss
 * is not finite). */
int ot_evaluate(struct ot_engine *engine, const struct ot_evaluation *evaluation, struct ot_eval_result *out);

#endif
