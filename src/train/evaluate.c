#include "src/train/evaluate.h"

#include <math.h>
#include <stdlib.h>

#include "offload/comm/comm.h"
#include "offload/engine/engine.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/data/batch.h"
#include "src/train/loss_guard.h"

/* Fails with the block that made the loss not finite: an evaluation with such a loss has no result. */
static int refuse(struct ot_engine *engine, const struct ot_micro_batch *micro) {
    struct ot_bad_block found;
    char finding[OT_LOSS_GUARD_TEXT_BYTES];
    OT_TRY(ot_engine_find_bad_block(engine, micro, -1, &found));
    return ot_fail(
        OT_E_NUMERIC,
        "the evaluation loss is not a finite number: %s; go back to earlier weights, or use another --dtype",
        ot_loss_guard_finding(&found, NULL, finding));
}

/* A rank's contribution to a round. In a round, each rank takes one micro-batch. */
struct share {
    double sum;
    int64_t trained_tokens;
    int64_t stopped;
};

/* Runs one micro-batch. counts: false if it only keeps the other ranks company. */
static int run_micro(struct ot_engine *engine, const struct ot_micro_batch *micro, bool counts, float *losses,
                     struct share *out) {
    OT_TRY(ot_engine_eval(engine, micro, losses));
    for (int64_t i = 0; i < micro->n_tokens && counts; i++)
        if (micro->targets[i] >= 0) {
            out->sum += losses[i];
            out->trained_tokens++;
        }
    return 0;
}

/* Adds up the shares of all ranks, in order. */
static int add_shares(const struct ot_evaluation *evaluation, const struct share *own, double *sum,
                      struct ot_eval_result *out) {
    struct share all[OT_MAX_RANKS];
    int ranks = evaluation->comm ? ot_comm_ranks(evaluation->comm) : 1;
    all[0] = *own;
    if (evaluation->comm)
        OT_TRY(ot_comm_all_gather_host(evaluation->comm, own, sizeof *own, all));
    for (int r = 0; r < ranks; r++) {
        *sum += all[r].sum;
        out->trained_tokens += all[r].trained_tokens;
        out->stopped = out->stopped || all[r].stopped;
    }
    return 0;
}

/* Runs the micro-batches from `first` on, one a rank. */
static int run_round(struct ot_engine *engine, const struct ot_evaluation *evaluation,
                     struct ot_batcher *batcher, int64_t first, float *losses, double *sum,
                     struct ot_eval_result *out) {
    struct ot_step_batch batch;
    struct share own = {.stopped = evaluation->stopped && evaluation->stopped()};
    int64_t mine = first + (evaluation->comm ? ot_comm_rank(evaluation->comm) : 0);
    bool counts = mine < ot_batcher_steps_per_epoch(batcher);
    int64_t sequence = (counts ? mine : first) * evaluation->micro_sequences;
    OT_TRY(ot_batcher_seek(batcher, (struct ot_data_position){0, sequence}));
    ot_batcher_next(batcher, &batch);
    if (!own.stopped || evaluation->comm) /* several ranks stop together */
        OT_TRY(run_micro(engine, &batch.input.micro[0], counts, losses, &own));
    OT_TRY(add_shares(evaluation, &own, sum, out));
    return isfinite(*sum) || out->stopped ? 0 : refuse(engine, &batch.input.micro[0]);
}

int ot_evaluate(struct ot_engine *engine, const struct ot_evaluation *evaluation,
                struct ot_eval_result *out) {
    struct ot_batcher *batcher = NULL;
    struct ot_batch_config config = {.packing = evaluation->packing,
                                     .dataset = evaluation->dataset,
                                     .seq_len = evaluation->seq_len,
                                     .step_sequences = evaluation->micro_sequences,
                                     .micro_sequences = evaluation->micro_sequences};
    double started = ot_clock_seconds(), sum = 0;
    int64_t ranks = evaluation->comm ? ot_comm_ranks(evaluation->comm) : 1;
    int rc;
    *out = (struct ot_eval_result){.rows = ot_packing_rows(evaluation->packing)};
    float *losses = malloc((size_t)(evaluation->seq_len * evaluation->micro_sequences) * sizeof *losses);
    if (!losses)
        return ot_fail(OT_E_BUDGET, "no memory for the losses of a micro-batch");
    OT_TRY_GOTO(ot_batcher_open(&config, &batcher), rc, out);
    for (int64_t i = 0; i < ot_batcher_steps_per_epoch(batcher) && !out->stopped; i += ranks)
        OT_TRY_GOTO(run_round(engine, evaluation, batcher, i, losses, &sum, out), rc, out);
    out->loss = out->trained_tokens ? sum / (double)out->trained_tokens : 0;
    out->seconds = ot_clock_seconds() - started;
out:
    ot_batcher_close(batcher);
    free(losses);
    return rc;
}
