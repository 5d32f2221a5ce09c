#include "src/train/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "offload/comm/comm.h"
#include "offload/engine/engine.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/data/batch.h"
#include "src/session/plan_request.h"

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
    double sums[OT_COMPARE_SUMS]; /* the first is the sum of losses; the others are of comparisons */
    int64_t trained_tokens, hits, comparisons;
    int64_t stopped;
};

/* For the tokens of a micro-batch. */
struct room {
    float *losses;
    bool *hits;
    double *answers; /* [comparisons][2]: log-probabilities */
};

/* Adds the comparisons of a micro-batch. */
static void add_comparisons(const struct ot_objective *objective, const struct ot_micro_batch *micro,
                            const struct room *room, struct share *out) {
    int64_t n = micro->n_comparisons;
    const struct ot_comparison *all = micro->comparisons;
    for (int64_t i = 0; i < n; i++)
        ot_compare_answers(&all[i], room->losses, room->answers + 2 * i);
    double shift = ot_compare_shift(objective, all, room->answers, n);
    for (int64_t i = 0; i < n; i++) {
        struct ot_comparison_loss loss = ot_compare_loss(objective, &all[i], room->answers + 2 * i, shift);
        ot_compare_add(objective, &all[i], &loss, out->sums);
    }
    out->comparisons += n;
}

/* Runs one micro-batch. counts: false if it only keeps the other ranks company. */
static int run_micro(struct ot_engine *engine, const struct ot_evaluation *evaluation,
                     const struct ot_micro_batch *micro, bool counts, const struct room *room,
                     struct share *out) {
    bool compares = evaluation->objective.kind != OT_OBJECTIVE_SFT;
    OT_TRY(ot_engine_eval_hits(engine, micro, room->losses, room->hits));
    if (compares && counts)
        add_comparisons(&evaluation->objective, micro, room, out);
    for (int64_t i = 0; i < micro->n_tokens && counts; i++)
        if (micro->targets[i] >= 0) {
            out->sums[0] += compares ? 0 : room->losses[i];
            out->hits += room->hits[i];
            out->trained_tokens++;
        }
    return 0;
}

/* Adds up the shares of all ranks, in order. */
static int add_shares(const struct ot_evaluation *evaluation, const struct share *share, struct share *sum) {
    struct share all[OT_MAX_RANKS];
    int ranks = evaluation->comm ? ot_comm_ranks(evaluation->comm) : 1;
    all[0] = *share;
    if (evaluation->comm)
        OT_TRY(ot_comm_all_gather_host(evaluation->comm, share, sizeof *share, all));
    for (int r = 0; r < ranks; r++) {
        for (int k = 0; k < OT_COMPARE_SUMS; k++)
            sum->sums[k] += all[r].sums[k];
        sum->comparisons += all[r].comparisons;
        sum->trained_tokens += all[r].trained_tokens;
        sum->hits += all[r].hits;
        sum->stopped = sum->stopped || all[r].stopped;
    }
    return 0;
}

/* Runs the micro-batches from `first` on, one a rank; together: the first alone, which rank 0 counts. */
static int run_round(struct ot_engine *engine, const struct ot_evaluation *evaluation,
                     struct ot_batcher *batcher, int64_t first, const struct room *room, struct share *sum) {
    struct ot_step_batch batch;
    struct share share = {.stopped = evaluation->stopped && evaluation->stopped()};
    int rank = evaluation->comm ? ot_comm_rank(evaluation->comm) : 0;
    bool together = ot_engine_runs_together(engine);
    int64_t mine = first + (together ? 0 : rank);
    bool counts = mine < ot_batcher_steps_per_epoch(batcher) && (rank == 0 || !together);
    int64_t sequence = (counts ? mine : first) * evaluation->micro_sequences;
    OT_TRY(ot_batcher_seek(batcher, (struct ot_data_position){0, sequence}));
    OT_TRY(ot_batcher_next(batcher, &batch));
    if (!share.stopped || evaluation->comm) /* several ranks stop together */
        OT_TRY(run_micro(engine, evaluation, &batch.input.micro[0], counts, room, &share));
    OT_TRY(add_shares(evaluation, &share, sum));
    return isfinite(sum->sums[0]) || sum->stopped ? 0 : refuse(engine, &batch.input.micro[0]);
}

int ot_evaluate(struct ot_engine *engine, const struct ot_evaluation *evaluation,
                struct ot_eval_result *out) {
    struct ot_batcher *batcher = NULL;
    struct ot_batch_config config = {.packing = evaluation->packing,
                                     .dataset = evaluation->dataset,
                                     .seq_len = evaluation->seq_len,
                                     .step_sequences = evaluation->micro_sequences,
                                     .micro_sequences = evaluation->micro_sequences,
                                     .references = evaluation->references};
    double started = ot_clock_seconds();
    struct share sum = {0};
    int64_t ranks =
        evaluation->comm && !ot_engine_runs_together(engine) ? ot_comm_ranks(evaluation->comm) : 1;
    size_t tokens = (size_t)(evaluation->seq_len * evaluation->micro_sequences);
    struct room room = {malloc(tokens * sizeof *room.losses), malloc(tokens * sizeof *room.hits),
                        malloc(2 * tokens / OT_COMPARISON_TOKENS * sizeof *room.answers)};
    int rc;
    if (!room.losses || !room.hits || !room.answers)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory for the losses of a micro-batch"), rc, out);
    OT_TRY_GOTO(ot_batcher_open(&config, &batcher), rc, out);
    for (int64_t i = 0; i < ot_batcher_steps_per_epoch(batcher) && !sum.stopped; i += ranks)
        OT_TRY_GOTO(run_round(engine, evaluation, batcher, i, &room, &sum), rc, out);
    double n = sum.trained_tokens ? (double)sum.trained_tokens : 1, compared = (double)sum.comparisons;
    struct ot_compare_means means = {0};
    if (sum.comparisons > 0)
        means = ot_compare_mean(&evaluation->objective, sum.sums, compared);
    *out = (struct ot_eval_result){.loss = sum.sums[0] / (sum.comparisons ? compared : n),
                                   .accuracy = sum.comparisons ? means.right : (double)sum.hits / n,
                                   .compared = means,
                                   .trained_tokens = sum.trained_tokens,
                                   .rows = ot_packing_rows(evaluation->packing),
                                   .seconds = ot_clock_seconds() - started,
                                   .stopped = sum.stopped};
out:
    ot_batcher_close(batcher);
    free(room.losses);
    free(room.hits);
    free(room.answers);
    return rc;
}

struct ot_compare_means ot_step_means(const struct ot_options *options, const struct ot_step_result *result) {
    struct ot_objective objective = ot_plan_request_objective(options);
    if (objective.kind == OT_OBJECTIVE_SFT)
        return (struct ot_compare_means){0};
    return ot_compare_mean(&objective, result->compared, 1);
}

/* ---- the loss guard ---- */

int64_t ot_loss_guard_skipped(const struct ot_loss_guard_counts *counts) {
    int64_t all = 0;
    for (int why = OT_SKIP_NONE + 1; why < OT_SKIP_COUNT; why++)
        all += counts->skipped[why];
    return all;
}

const char *ot_loss_guard_summary(const struct ot_loss_guard_counts *counts,
                                  char text[OT_LOSS_GUARD_TEXT_BYTES]) {
    int64_t skipped = ot_loss_guard_skipped(counts);
    size_t used = 0;
    text[0] = '\0';
    if (skipped > 0)
        used = (size_t)snprintf(text, OT_LOSS_GUARD_TEXT_BYTES, "skipped %lld step%s (", (long long)skipped,
                                skipped == 1 ? "" : "s");
    for (int why = OT_SKIP_NONE + 1, first = 1; why < OT_SKIP_COUNT; why++)
        if (counts->skipped[why] > 0) {
            used +=
                (size_t)snprintf(text + used, OT_LOSS_GUARD_TEXT_BYTES - used, "%s%lld %s", first ? "" : ", ",
                                 (long long)counts->skipped[why], ot_skip_name((enum ot_skip)why));
            first = 0;
        }
    if (skipped > 0)
        used += (size_t)snprintf(text + used, OT_LOSS_GUARD_TEXT_BYTES - used, ")");
    if (counts->spikes > 0)
        snprintf(text + used, OT_LOSS_GUARD_TEXT_BYTES - used, "%s%lld loss spike%s", used ? " · " : "",
                 (long long)counts->spikes, counts->spikes == 1 ? "" : "s");
    return text;
}

const char *ot_loss_guard_reason(enum ot_skip skip) {
    static const char *const reasons[OT_SKIP_COUNT] = {[OT_SKIP_NONE] = "not skipped",
                                                       [OT_SKIP_LOSS] = "loss not finite",
                                                       [OT_SKIP_GRADIENT] = "gradient not finite",
                                                       [OT_SKIP_OVERFLOW] =
                                                           "gradient too large for fp16, loss scale halved",
                                                       [OT_SKIP_SPIKE] = "loss spike",
                                                       [OT_SKIP_GIVEN_UP] = "given up"};
    return reasons[skip];
}

bool ot_loss_guard_add(struct ot_loss_guard *guard, const struct ot_step_result *result) {
    guard->counts->skipped[result->skipped]++;
    guard->counts->spikes += result->spike;
    if (result->skipped == OT_SKIP_NONE)
        guard->in_a_row = 0;
    else if (result->skipped != OT_SKIP_OVERFLOW)
        guard->in_a_row++;
    return guard->in_a_row >= guard->most;
}

/* ---- the cause ---- */

const char *ot_loss_guard_finding(const struct ot_bad_block *found, const char *gradient,
                                  char text[OT_LOSS_GUARD_TEXT_BYTES]) {
    char count[OT_TEXT_BYTES];
    ot_text_count(found->bad_weights, count);
    if (found->block_name && found->slab_name)
        snprintf(text, OT_LOSS_GUARD_TEXT_BYTES,
                 "%s is the first block whose output is not finite, because %s weights of %s are not",
                 found->block_name, count, found->slab_name);
    else if (found->block_name)
        snprintf(text, OT_LOSS_GUARD_TEXT_BYTES,
                 "%s is the first block whose output is not finite (its weights are)", found->block_name);
    else if (found->slab_name)
        snprintf(text, OT_LOSS_GUARD_TEXT_BYTES, "the forward pass is finite, but %s weights of %s are not",
                 count, found->slab_name);
    else if (gradient)
        snprintf(
            text, OT_LOSS_GUARD_TEXT_BYTES,
            "the forward pass is finite; in the backward pass the gradient of %s is the first that is not "
            "finite (its weights are)",
            gradient);
    else
        snprintf(text, OT_LOSS_GUARD_TEXT_BYTES, "a second forward pass gave only finite numbers");
    return text;
}

enum { ROWS_BYTES = 192, MOST_ROWS = 3 };

/* "rows 12, 80, 7 and 5 more of data.jsonl": the rows in micro-batch `micro`. */
static void name_rows(const struct ot_rows *rows, const struct ot_loss_guard_step *step, int micro,
                      const char *path, char text[ROWS_BYTES]) {
    const struct ot_step_batch *batch = step->batch;
    int64_t first = batch->position.sequence + micro * step->micro_sequences;
    int64_t end = batch->position.sequence + batch->sequences, count = 0, last = -1, n;
    size_t used = 0;
    for (int64_t s = first; s < end && s < first + step->micro_sequences; s++) {
        const uint32_t *numbers = ot_packing_sequence(rows->train, s, &n);
        for (int64_t i = 0; i < n; i++) {
            int64_t document = ot_dataset_row(rows->data, numbers[i]).document;
            if (document == last) /* another piece of the same row */
                continue;
            last = document;
            if (count++ < MOST_ROWS)
                used += (size_t)snprintf(text + used, ROWS_BYTES - used, "%s%lld", count > 1 ? ", " : "",
                                         (long long)document + 1);
        }
    }
    if (count > MOST_ROWS)
        used += (size_t)snprintf(text + used, ROWS_BYTES - used, " and %lld more",
                                 (long long)(count - MOST_ROWS));
    const struct ot_data_stats *stats = ot_dataset_stats(rows->data);
    snprintf(text + used, ROWS_BYTES - used, " of %.80s%s", path,
             stats->kept < stats->rows ? " (counting those that were kept)" : "");
}

/* The cure in words. Resuming cannot change an option that fixes the result, so most cures begin a new
 * run. */
static const char *name_cure(const struct ot_session *s, const struct ot_bad_block *found) {
    if (found->slab_name)
        return "resume from an earlier checkpoint (--resume DIR), start over with a lower --lr";
    return s->model.dtype == OT_F16 ? "start over with a lower --lr or with --dtype bf16"
                                    : "start over with a lower --lr";
}

int ot_loss_guard_explain(const struct ot_loss_guard *guard, const struct ot_session *s,
                          const struct ot_rows *rows, const struct ot_loss_guard_step *step) {
    const struct ot_step_result *result = step->result;
    const char *gradient =
        result->bad_slab >= 0 ? ot_model_chain(s->model.built)->slabs[result->bad_slab].name : NULL;
    /* if every micro-batch was finite, look at the first */
    int micro = ot_max(result->bad_micro, 0);
    char finding[OT_LOSS_GUARD_TEXT_BYTES], data[ROWS_BYTES], in_a_row[64] = "";
    char name[OT_DATA_NAME_BYTES];
    struct ot_bad_block found;
    name_rows(rows, step, micro, ot_data_name(s->options, name), data);
    if (guard->in_a_row > 1)
        snprintf(in_a_row, sizeof in_a_row, ", the last of %lld in a row", (long long)guard->in_a_row);
    if (result->skipped == OT_SKIP_SPIKE)
        return ot_fail(
            OT_E_NUMERIC,
            "step %lld was skipped%s, because its loss of %.4g is far above the losses before it: raise "
            "--max-skips, start over with a lower --lr or a higher --skip-spikes, or look at rows %s",
            (long long)result->step, in_a_row, result->loss, data);
    OT_TRY(ot_engine_find_bad_block(s->engine, &step->batch->input.micro[micro], result->bad_slab, &found));
    return ot_fail(OT_E_NUMERIC,
                   "step %lld was skipped%s, because its %s is not finite: %s; %s, or look at rows %s",
                   (long long)result->step, in_a_row, result->skipped == OT_SKIP_LOSS ? "loss" : "gradient",
                   ot_loss_guard_finding(&found, gradient, finding), name_cure(s, &found), data);
}
