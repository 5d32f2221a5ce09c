/* The frequencies of rope.h. */
#include "models/rope.h"

#include <math.h>

/* ---- frequencies ---- */

/* Llama 3.1's scaling: short wavelengths keep their frequency, wavelengths beyond the original context are
 * stretched by the factor, and those between get a blend. */
static double scale_llama3(const struct ot_rope_config *rope, double frequency) {
    double wavelength = 2 * M_PI / frequency, original = rope->original_max_position;
    double low = rope->low_freq_factor, high = rope->high_freq_factor;
    if (wavelength < original / high)
        return frequency;
    if (wavelength > original / low)
        return frequency / rope->factor;
    double blend = (original / wavelength - low) / (high - low);
    return (1 - blend) * frequency / rope->factor + blend * frequency;
}

/* The index of the pair that makes `turns` turns in the original length. */
static double yarn_border(const struct ot_model_config *c, double turns) {
    const struct ot_rope_config *rope = &c->rope;
    return (double)c->rotary_dim * log(rope->original_max_position / (turns * 2 * M_PI)) /
           (2 * log(rope->theta));
}

/* Pairs before `low` keep their frequency, those behind `high` are divided by the factor. */
static double scale_yarn(const struct ot_model_config *c, double frequency, int64_t j) {
    const struct ot_rope_config *rope = &c->rope;
    double low = yarn_border(c, rope->beta_fast), high = yarn_border(c, rope->beta_slow);
    if (!rope->keeps_fractions) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)c->rotary_dim - 1);
    if (low == high)
        high += 0.001;
    double ramp = fmin(fmax(((double)j - low) / (high - low), 0), 1);
    return frequency / rope->factor * ramp + frequency * (1 - ramp);
}

/* Theta for sequences that are longer than the model's own. */
static double dynamic_theta(const struct ot_model_config *c, int64_t max_position) {
    double limit = (double)c->max_position, length = fmax((double)max_position, limit),
           dim = (double)c->rotary_dim;
    return c->rope.theta * pow(c->rope.factor * length / limit - (c->rope.factor - 1), dim / (dim - 2));
}

double ot_rope_frequency(const struct ot_model_config *c, int64_t max_position, bool local, int64_t j) {
    const struct ot_rope_config *rope = &c->rope;
    double power = -2.0 * (double)j / (double)c->rotary_dim, plain = pow(rope->theta, power);
    if (local)
        return pow(c->local_rope_theta, power);
    switch (rope->scaling) {
    case OT_ROPE_LINEAR:
        return plain / rope->factor;
    case OT_ROPE_LLAMA3:
        return scale_llama3(rope, plain);
    case OT_ROPE_DYNAMIC:
        return pow(dynamic_theta(c, max_position), power);
    case OT_ROPE_YARN:
        return scale_yarn(c, plain, j);
    case OT_ROPE_LONGROPE:
        return plain / (double)((double)max_position > rope->original_max_position ? rope->long_factors[j]
                                                                                   : rope->short_factors[j]);
    case OT_ROPE_PROPORTIONAL:
        return j < (int64_t)(rope->share * (double)c->rotary_dim / 2) ? plain / rope->factor : 0;
    default:
        return plain;
    }
}
