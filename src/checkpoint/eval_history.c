#include "src/checkpoint/eval_history.h"

#include <math.h>
#include <stdio.h>

const char *ot_eval_metric_name(enum ot_eval_metric metric) {
    static const char *const names[OT_EVAL_METRICS] = {"loss", "accuracy", "match", "execution"};
    return names[metric];
}

double ot_eval_cost(enum ot_eval_metric metric, const struct ot_eval_score *score) {
    const double costs[OT_EVAL_METRICS] = {score->loss, -score->accuracy, -score->match, -score->execution};
    return costs[metric];
}

const char *ot_eval_cost_text(enum ot_eval_metric metric, double cost, char text[OT_EVAL_TEXT_BYTES]) {
    if (metric == OT_EVAL_LOSS)
        snprintf(text, OT_EVAL_TEXT_BYTES, "eval %.4f", cost);
    else
        snprintf(text, OT_EVAL_TEXT_BYTES, "%s %.2f %%", ot_eval_metric_name(metric), -100 * cost);
    return text;
}

bool ot_eval_history_add(struct ot_eval_history *h, int64_t step, const struct ot_eval_score *score,
                         double delta) {
    double gain = ot_eval_cost(h->metric, &h->best) - ot_eval_cost(h->metric, score);
    bool is_first = !h->has_any || h->best_step == 0 || isnan(gain);
    bool is_best = is_first || gain > 0;
    if (!h->has_any)
        h->first = *score;
    h->has_any = true;
    h->last = *score;
    h->last_step = step;
    h->without_gain = is_first || gain > delta ? 0 : h->without_gain + 1;
    if (is_best) {
        h->best = *score;
        h->best_step = step;
    }
    return is_best;
}

bool ot_eval_history_stops(const struct ot_eval_history *h, int64_t step, int64_t patience) {
    return patience > 0 && h->has_any && h->last_step == step && h->without_gain >= patience;
}

double ot_eval_history_cost(const struct ot_eval_history *h, int64_t step) {
    return h->has_any && h->last_step == step ? ot_eval_cost(h->metric, &h->last) : NAN;
}
