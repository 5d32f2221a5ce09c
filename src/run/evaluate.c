#include "src/run/evaluate.h"

#include <math.h>
#include <stdlib.h>

#include "offload/engine/engine.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/data/batch.h"
#include "src/run/guard.h"

/* No number comes of an evaluation that meets one that is none. */
static int refuse(struct ot_engine *engine, const struct ot_micro_batch *micro) {
    struct ot_bad_block found;
    char finding[OT_GUARD_TEXT_BYTES];
    OT_TRY(ot_engine_find_bad_block(engine, micro, -1, &found));
    return ot_fail(
        OT_E_NUMERIC,
        "the evaluation loss is not a finite number: %s; go back to earlier weights, or use another --dtype",
        ot_guard_finding(&found, NULL, finding));
}

static int add_step(struct ot_engine *engine, const struct ot_step_input *input, float *losses, double *sum,
                    struct ot_eval_result *out) {
    for (int m = 0; m < input->n_micro; m++) {
        const struct ot_micro_batch *micro = &input->micro[m];
        OT_TRY(ot_engine_eval(engine, micro, losses));
        for (int64_t i = 0; i < micro->n_tokens; i++)
            if (micro->targets[i] >= 0) {
                *sum += losses[i];
                out->trained_tokens++;
            }
        if (!isfinite(*sum))
            return refuse(engine, micro);
    }
    return 0;
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
    int rc;
    *out = (struct ot_eval_result){.rows = ot_packing_rows(evaluation->packing)};
    float *losses = malloc((size_t)(evaluation->seq_len * evaluation->micro_sequences) * sizeof *losses);
    if (!losses)
        return ot_fail(OT_E_BUDGET, "no memory for the losses of a micro-batch");
    OT_TRY_GOTO(ot_batcher_open(&config, &batcher), rc, out);
    for (int64_t step = 0; step < ot_batcher_steps_per_epoch(batcher); step++) {
        struct ot_step_batch batch;
        out->stopped = evaluation->stopped && evaluation->stopped();
        if (out->stopped)
            goto out;
        ot_batcher_next(batcher, &batch);
        OT_TRY_GOTO(add_step(engine, &batch.input, losses, &sum, out), rc, out);
    }
    out->loss = out->trained_tokens ? sum / (double)out->trained_tokens : 0;
    out->seconds = ot_clock_seconds() - started;
out:
    ot_batcher_close(batcher);
    free(losses);
    return rc;
}
