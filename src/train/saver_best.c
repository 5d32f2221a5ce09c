/* The best state: rates what is saved, and loads the best state for the result of a run. */
#include <math.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/session/session_ranks.h"
#include "src/session/weights.h"
#include "src/train/saver_state.h"

/* The weights alone take the place of the checkpoint with the same state. */
void ot_saver_rate(struct ot_saver *sv, int64_t step, double cost, bool is_whole) {
    bool replaces = sv->best_step == step && sv->best_is_whole && !is_whole;
    if (isnan(cost) || (sv->best_step >= 0 && cost >= sv->best_cost && !replaces))
        return;
    sv->best_step = step;
    sv->best_cost = cost;
    sv->best_is_whole = is_whole;
}

static int rate_in(struct ot_saver *sv, const char *parent, bool is_whole) {
    struct ot_checkpoint_list list;
    double cost = NAN;
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    int best = ot_checkpoint_find_best(&list, &cost);
    if (best >= 0)
        ot_saver_rate(sv, list.entries[best].step, cost, is_whole);
    ot_checkpoint_list_free(&list);
    return 0;
}

int ot_saver_rate_earlier(struct ot_saver *sv) {
    OT_TRY(rate_in(sv, sv->best_parent, false));
    return rate_in(sv, sv->parent, true);
}

bool ot_saver_wants_best(const struct ot_saver *sv, int64_t step, double cost) {
    bool is_under_way = sv->under_way && sv->is_best_under_way && sv->cost_under_way <= cost;
    bool is_better =
        sv->best_step < 0 || cost < sv->best_cost || (sv->best_is_whole && sv->best_step == step);
    return sv->keeps_best && !sv->keeps_all && ot_saver_is_regular(sv->config.session->options) &&
           !isnan(cost) && !is_under_way && is_better;
}

int64_t ot_saver_best(const struct ot_saver *sv, double *cost) {
    *cost = sv->best_cost;
    return sv->keeps_best ? sv->best_step : -1;
}

/* ---- the best state as the result ---- */

int ot_saver_choose_result(struct ot_settings *settings, bool evaluates) {
    const struct ot_options *o = &settings->in_effect;
    bool wants_best = ot_options_given_now(o, "result") && o->result == OT_CHOICE_RESULT_BEST;
    bool stops_early = ot_options_given_now(o, "stop-early");
    if (!evaluates && (wants_best || stops_early))
        return ot_fail(OT_E_USAGE, "--%s needs evaluations, but no rows are held out; add --eval-data FILE",
                       stops_early ? "stop-early" : "result best");
    if (!ot_options_given(o, "result"))
        ot_settings_choose_word(settings, "result",
                                evaluates && ot_saver_is_regular(o) ? OT_CHOICE_RESULT_BEST
                                                                    : OT_CHOICE_RESULT_LAST);
    return 0;
}

/* The step of a saved state that is better than the last one; 0: none is, or the last state has no
 * evaluation, because a signal ended it. Rank 0 decides. */
static int find_better(const struct ot_saver *sv, const struct ot_checkpoint_record *end, int64_t *step) {
    double cost;
    int64_t best = ot_saver_best(sv, &cost);
    bool better = best > 0 && ot_checkpoint_record_cost(end) > cost;
    if (best > 0 && isnan(ot_checkpoint_record_cost(end)) && sv->is_rank0)
        ot_log(OT_LOG_WARN,
               "the last state is the result, because a signal ended its evaluation; "
               "the best one before is that of step %lld",
               (long long)best);
    *step = !sv->is_rank0 ? INT64_MAX : better ? best : 0;
    return ot_session_ranks_find_least(sv->config.session, step, 1);
}

/* *is_saved: the last state has a checkpoint. A failed save is logged already. */
static int save_last(struct ot_saver *sv, const struct ot_checkpoint_record *end, int *is_saved) {
    struct ot_session *s = sv->config.session;
    int rc = ot_saver_begin(sv, end, 0);
    OT_TRY(ot_session_ranks_agree(s, rc));
    rc = ot_saver_poll(sv, true);
    OT_TRY(ot_session_ranks_agree(s, rc));
    *is_saved = ot_saver_has(sv, end->progress.step);
    return ot_session_ranks_choose(s, is_saved);
}

/* Nothing is changed if a rank cannot open the checkpoint. */
static int open_best(struct ot_saver *sv, int64_t step, struct ot_checkpoint **out) {
    char *dir;
    *out = NULL;
    int is_whole = sv->best_is_whole;
    OT_TRY(ot_session_ranks_choose(sv->config.session, &is_whole));
    int rc = ot_checkpoint_name(is_whole ? sv->parent : sv->best_parent, step, &dir);
    if (rc == 0) {
        rc = ot_checkpoint_open(dir, out);
        free(dir);
    }
    if (rc == 0 && !sv->is_local)
        rc = ot_checkpoint_check_whole(*out);
    return ot_session_ranks_agree(sv->config.session, rc);
}

static int load(struct ot_saver *sv, struct ot_checkpoint *best) {
    struct ot_session *s = sv->config.session;
    struct ot_checkpoint *before = s->model.restored;
    s->model.restored = best;
    int rc = ot_session_restore(s);
    s->model.restored = before;
    return ot_session_ranks_agree(s, rc);
}

static void say_back(const struct ot_saver *sv, const struct ot_checkpoint_record *end, int64_t step) {
    char best[OT_EVAL_TEXT_BYTES], last[OT_EVAL_TEXT_BYTES];
    if (sv->is_rank0)
        ot_log(OT_LOG_INFO, "result  the state of step %lld, %s, in place of the last one (%s)",
               (long long)step, ot_eval_cost_text(end->evals.metric, sv->best_cost, best),
               ot_eval_cost_text(end->evals.metric, ot_checkpoint_record_cost(end), last));
}

int ot_saver_restore_best(struct ot_saver *sv, const struct ot_checkpoint_record *end, int64_t *step) {
    struct ot_checkpoint *best;
    int is_saved;
    OT_TRY(find_better(sv, end, step));
    if (*step == 0)
        return 0;
    OT_TRY(save_last(sv, end, &is_saved));
    int rc = is_saved ? open_best(sv, *step, &best) : 0;
    if (!is_saved || (rc < 0 && rc != -OT_E_COMM)) {
        if (sv->is_rank0)
            ot_log(
                OT_LOG_WARN, "the result is the state of the last step, not the best one, of step %lld: %s",
                (long long)*step, is_saved ? ot_error_text() : "the last state could not be saved beside it");
        *step = 0;
        if (is_saved)
            ot_checkpoint_close(best);
        return 0;
    }
    if (rc == 0) {
        say_back(sv, end, *step);
        rc = load(sv, best);
    }
    if (rc < 0 && rc != -OT_E_COMM)
        rc = ot_fail_context(
            rc, "the best state cannot be loaded (--result last makes the model of the last step)");
    ot_checkpoint_close(best);
    return rc;
}
