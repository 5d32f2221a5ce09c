#include "src/train/step_choice.h"

#include <math.h>

#include "offload/predict/planner.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/train/run_shape.h"

static void add(struct ot_step_choice *choice, int64_t step_sequences, int64_t seq_len, int64_t steps) {
    choice->candidates[choice->n++] = (struct ot_step_candidate){
        .sequences = step_sequences, .tokens = step_sequences * seq_len, .steps = steps};
}

static int list(const struct ot_options *o, int64_t seq_len, int64_t sequences, struct ot_step_choice *out) {
    const struct ot_step_tokens *bounds = &o->tokens_per_step;
    int64_t least = (bounds->least + seq_len - 1) / seq_len, most = bounds->most / seq_len;
    least = ot_max(o->micro_batch, least);
    if (least > most)
        return ot_fail(
            OT_E_USAGE,
            "--tokens-per-step auto:%lld..%lld: no step of whole sequences (%lld tokens each%s) lies "
            "within; raise MAX",
            (long long)bounds->least, (long long)bounds->most, (long long)seq_len,
            o->micro_batch > 1 ? ", at least one micro-batch" : "");
    if (sequences > 0 && most > sequences)
        most = ot_max(least, sequences);
    for (int64_t n = least;; n = ot_min(2 * n, most)) {
        int64_t steps = ot_shape_steps(o, sequences, n);
        if (out->n > 0 && steps > 0 && steps < o->warmup.steps)
            return 0;
        add(out, n, seq_len, steps);
        if (n == most)
            return 0;
    }
}

bool ot_step_is_open(const struct ot_options *options) {
    return options->tokens_per_step.count == 0 && options->tokens_per_step.most > 0;
}

static int pick(const struct ot_step_candidate *candidates, int n) {
    double best = 0;
    int i = 0;
    for (int k = 0; k < n; k++)
        best = fmax(best, candidates[k].tokens_per_second);
    while (candidates[i].tokens_per_second < (1 - OT_PLANNER_RESOLUTION) * best)
        i++;
    return i;
}

int ot_step_choice_make(const struct ot_options *options, int64_t seq_len, int64_t sequences,
                        ot_step_predict *predict, void *context, struct ot_step_choice *out) {
    *out = (struct ot_step_choice){0};
    OT_TRY(list(options, seq_len, sequences, out));
    for (int i = out->n - 1; i >= 0; i--) {
        int rc = predict(context, &out->candidates[i]);
        if (rc < 0 && rc != -OT_E_BUDGET)
            return rc;
    }
    out->chosen = pick(out->candidates, out->n);
    return 0;
}
