#include "src/train/run_shape.h"

#include <math.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/units.h"

enum { DEFAULT_SEQ_LEN = 2048, STEPS_OF_AN_EPOCH = 50 };

int ot_shape_seq_len(struct ot_settings *settings, int64_t max_position, int64_t *seq_len) {
    const struct ot_options *options = &settings->in_effect;
    const struct ot_step_tokens *step = &options->tokens_per_step;
    if (options->seq_len > max_position)
        return ot_fail(OT_E_USAGE, "--seq-len %lld is beyond the model's %lld positions",
                       (long long)options->seq_len, (long long)max_position);
    if (!options->seq_len) {
        int64_t chosen = ot_min(max_position, DEFAULT_SEQ_LEN);
        int64_t most = step->count ? step->count : step->most;
        if (most && most < chosen)
            chosen = most;
        ot_settings_choose_count(settings, "seq-len", chosen);
    }
    *seq_len = options->seq_len;
    return 0;
}

double ot_shape_default_lr(int64_t params, bool from_random) {
    double lr = 3e-5 * sqrt(1e9 / (double)params);
    lr = from_random ? fmin(10 * lr, 3e-3) : fmin(fmax(lr, 1e-5), 1e-3);
    double digit = pow(10, floor(log10(lr) + 1e-9));
    return round(lr / digit) * digit;
}

int64_t ot_shape_step_sequences(const struct ot_options *options, int64_t seq_len, int64_t sequences) {
    int64_t chosen = options->tokens_per_step.count / seq_len;
    if (!chosen) {
        int64_t most = OT_DEFAULT_STEP_TOKENS / seq_len;
        chosen = ot_min(sequences / STEPS_OF_AN_EPOCH, most);
    }
    return chosen > 0 ? chosen : 1;
}

int64_t ot_shape_steps(const struct ot_options *options, int64_t sequences, int64_t step_sequences) {
    return options->steps ? options->steps
                          : options->epochs * ((sequences + step_sequences - 1) / step_sequences);
}

int64_t ot_shape_half_steps(const struct ot_options *options, int64_t sequences, int64_t step_sequences) {
    return options->steps ? (options->steps + 1) / 2 : ot_shape_steps(options, sequences, 2 * step_sequences);
}

const char *ot_shape_step_text(const struct ot_options *options, int64_t step_sequences, int64_t seq_len,
                               char text[OT_STEP_TEXT_BYTES]) {
    char whole[OT_TEXT_BYTES], asked[OT_TEXT_BYTES];
    int64_t tokens = step_sequences * seq_len;
    int n = snprintf(text, OT_STEP_TEXT_BYTES, "%s = %lld x %lld tokens a step", ot_text_count(tokens, whole),
                     (long long)step_sequences, (long long)seq_len);
    if (options->tokens_per_step.count > tokens)
        snprintf(text + n, OT_STEP_TEXT_BYTES - (size_t)n, " (%s rounded down)",
                 ot_text_count(options->tokens_per_step.count, asked));
    return text;
}

int ot_shape_schedule(const struct ot_options *options, int64_t steps, struct ot_lr_schedule *out) {
    *out = (struct ot_lr_schedule){.kind = (enum ot_schedule_kind)options->schedule,
                                   .peak = options->lr,
                                   .warmup = options->warmup.steps,
                                   .steps = steps};
    if (options->warmup.share > 0)
        out->warmup = (int64_t)round(options->warmup.share * (double)steps);
    if (out->warmup <= steps)
        return 0;
    return ot_fail(OT_E_USAGE, "--warmup %lld is longer than the run's %lld steps", (long long)out->warmup,
                   (long long)steps);
}

void ot_shape_choose(struct ot_settings *settings, int64_t params) {
    const struct ot_options *options = &settings->in_effect;
    if (!options->steps && !options->epochs)
        ot_settings_choose_count(settings, "epochs", OT_DEFAULT_EPOCHS);
    if (!ot_options_given(options, "lr"))
        ot_settings_choose_real(settings, "lr",
                                ot_shape_default_lr(params, options->init == OT_CHOICE_INIT_RANDOM));
}

int ot_shape_run(struct ot_settings *settings, int64_t seq_len, int64_t sequences, struct ot_run_shape *out) {
    const struct ot_options *options = &settings->in_effect;
    *out = (struct ot_run_shape){.seq_len = seq_len, .sequences = sequences};
    out->step_sequences = ot_shape_step_sequences(options, seq_len, sequences);
    out->steps_per_epoch = (sequences + out->step_sequences - 1) / out->step_sequences;
    if (options->micro_batch > out->step_sequences)
        return ot_fail(
            OT_E_USAGE,
            "--micro-batch %lld is more than the %lld sequences of a step; raise --tokens-per-step",
            (long long)options->micro_batch, (long long)out->step_sequences);
    if (!options->tokens_per_step.count)
        ot_settings_choose_step(settings, out->step_sequences * seq_len);
    return ot_shape_schedule(options, ot_shape_steps(options, sequences, out->step_sequences), &out->lr);
}
