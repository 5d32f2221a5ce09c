/* offload-train eval: loss and token accuracy of a model on rows, and judged answers. Several ranks evaluate
 * together (src/train/evaluate.h); rank 0 alone prints. */
#include <math.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/signals.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/cli/launch.h"
#include "src/session/open.h"
#include "src/session/session_ranks.h"
#include "src/train/answers.h"
#include "src/session/plan_request.h"
#include "src/train/evaluate.h"
#include "src/train/reference.h"
#include "src/train/run_log.h"
#include "src/train/rows.h"
#include "src/train/run_identity.h"
#include "src/train/run_shape.h"

/* Lines by kind of query, and how well the contents tell queries apart. */
static void print_kinds(const struct ot_answer_score *score) {
    for (int k = 0; k < OT_SQL_KINDS; k++) {
        const struct ot_kind_score *kind = &score->kinds[k];
        if (kind->judged > 0)
            printf("  %-9s  %4lld rows · equal results %5.1f %% · valid SQL %5.1f %%\n",
                   ot_sql_kind_name((enum ot_sql_kind)k), (long long)kind->judged,
                   100 * (double)kind->equal / (double)kind->judged,
                   100 * (double)kind->valid / (double)kind->judged);
    }
    if (score->unjudged > 0)
        printf(
            "  %lld rows are not judged: their tables cannot be created, or their own query does not run\n",
            (long long)score->unjudged);
    if (score->variants > 0)
        printf("  made-up contents tell %.1f %% of %lld varied queries from the right ones\n",
               100 * (double)score->separated / (double)score->variants, (long long)score->variants);
}

static void print_answers(const struct ot_answer_score *score) {
    char text[OT_ANSWERS_TEXT_BYTES], time[OT_TEXT_BYTES];
    printf("%lld answers · %s · %lld tokens in %s, %.1f tok/s\n", (long long)score->rows,
           ot_answers_summary(score, text), (long long)score->tokens, ot_text_duration(score->seconds, time),
           score->seconds > 0 ? (double)score->tokens / score->seconds : 0.0);
    if (score->executes)
        print_kinds(score);
}

static int print_comparison(const struct ot_eval_result *result) {
    const struct ot_compare_means *means = &result->compared;
    char rows[OT_TEXT_BYTES];
    printf("loss %.6f · margin %.6f (rewards %.6f and %.6f) · right %.2f %% · %s rows\n", result->loss,
           means->chosen - means->rejected, means->chosen, means->rejected, 100 * means->right,
           ot_text_count(result->rows, rows));
    return 0;
}

/* answers: NULL if none were wanted. */
static int print_result(const struct ot_options *options, const struct ot_eval_result *result,
                        const struct ot_answer_score *answers) {
    bool compares = options->objective != OT_OBJECTIVE_SFT;
    if (!options->json) {
        char tokens[OT_TEXT_BYTES], rows[OT_TEXT_BYTES];
        if (compares)
            return print_comparison(result);
        printf("loss %.6f · perplexity %.6g · accuracy %.2f %% of %s trained tokens · %s rows\n",
               result->loss, exp(result->loss), 100 * result->accuracy,
               ot_text_count(result->trained_tokens, tokens), ot_text_count(result->rows, rows));
        if (answers)
            print_answers(answers);
        return 0;
    }
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_real(&w, "loss", result->loss);
    if (compares)
        ot_run_log_put_means(&w, &result->compared);
    else
        ot_json_put_real(&w, "perplexity", exp(result->loss));
    ot_json_put_real(&w, "accuracy", result->accuracy);
    ot_json_put_int(&w, "trained_tokens", result->trained_tokens);
    ot_json_put_int(&w, "rows", result->rows);
    if (answers) {
        ot_answers_put(answers, &w);
        ot_json_put_real(&w, "generate_seconds", answers->seconds);
        ot_json_put_int(&w, "generated_tokens", answers->tokens);
    }
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

static int start(struct ot_session *s, const struct ot_rows *rows, const struct ot_answers *answers) {
    int64_t micro = s->options->micro_batch;
    int64_t sequences =
        ot_min(ot_packing_sequences(rows->eval), OT_EVAL_MOST_MICRO_BATCHES * ot_max(micro, 1));
    struct ot_session_need need = {.max_position = rows->seq_len,
                                   .sequence_tokens = rows->seq_len,
                                   .step_sequences = sequences,
                                   .micro_sequences = ot_min(micro, sequences) /* 0: chosen */,
                                   .host_bytes = ot_rows_bytes(rows)};
    ot_answers_need(answers, s, &need);
    OT_TRY(ot_session_plan(s, &need));
    OT_TRY(ot_session_start(s, NULL));
    return ot_agree_on_weights(s);
}

/* Rows that were left out or cut. */
static void warn(const struct ot_session *s, const struct ot_rows *rows) {
    const struct ot_data_stats *stats = ot_dataset_stats(rows->data);
    char name[OT_DATA_NAME_BYTES];
    if (stats->bad || stats->untrained || stats->duplicates || stats->truncated)
        ot_log(
            OT_LOG_WARN,
            "%s: %lld rows skipped as bad, %lld without a trained token, %lld duplicates, %lld truncated to "
            "%lld tokens",
            ot_data_name(s->options, name), (long long)stats->bad, (long long)stats->untrained,
            (long long)stats->duplicates, (long long)stats->truncated, (long long)rows->seq_len);
}

struct evaluation {
    struct ot_rows rows;
    struct ot_answers *answers;
    struct ot_references references;
};

static int evaluate(struct ot_session *s, struct evaluation *e) {
    struct ot_rows *rows = &e->rows;
    int64_t seq_len;
    struct ot_answer_score score;
    ot_shape_choose_beta(s->settings);
    OT_TRY(ot_shape_seq_len(s->settings, ot_model_longest_row(&s->model.config), &seq_len));
    OT_TRY(ot_rows_open(s, seq_len, rows));
    OT_TRY(ot_agree_on_use(s, rows));
    if (s->options->show_sample && ot_is_rank0(s))
        OT_TRY(ot_sample_view_print(s, rows));
    OT_TRY(ot_answers_open(s, rows, &e->answers));
    OT_TRY(ot_references_of_model(s, rows, &e->references));
    OT_TRY(start(s, rows, e->answers));
    struct ot_evaluation evaluation = {.dataset = rows->eval_set,
                                       .packing = rows->eval,
                                       .seq_len = seq_len,
                                       .micro_sequences = ot_plan_micro_sequences(&s->plan.chosen, seq_len),
                                       .objective = ot_plan_request_objective(s->options),
                                       .references = ot_references_of_eval(&e->references, rows),
                                       .comm = s->ranks.comm};
    struct ot_eval_result result;
    OT_TRY(ot_evaluate(s->engine, &evaluation, &result));
    if (ot_is_rank0(s))
        warn(s, rows);
    if (e->answers)
        OT_TRY(ot_answers_run(e->answers, s, NULL, &score));
    return ot_is_rank0(s) ? print_result(s->options, &result, e->answers ? &score : NULL) : 0;
}

int ot_command_eval(const struct ot_options *options) {
    struct ot_settings settings = {*options};
    struct ot_session session = {0};
    struct ot_world *world = NULL;
    struct evaluation e = {0};
    int rc = ot_launch_join(options, &world);
    session.ranks.world = world;
    if (rc == 0 && world)
        rc = ot_stop_install_early("error: stopped before the evaluation was done\n");
    if (rc == 0)
        rc = ot_session_open(&settings, &session);
    if (rc == 0)
        rc = evaluate(&session, &e);
    rc = ot_launch_leave(&session, world, rc);
    ot_answers_close(e.answers);
    ot_references_free(&e.references);
    ot_rows_close(&e.rows);
    return rc;
}
