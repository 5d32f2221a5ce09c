#include <math.h>
#include <string.h>

#include "models/decoder.h"

static int64_t table_elems(const struct ot_model *model) {
    return model->chain.max_position * (model->config.rotary_dim / 2);
}

size_t ot_rope_table_bytes(const struct ot_model *model) {
    return ((size_t)table_elems(model) * sizeof(float) + 255) & ~(size_t)255;
}

/* Llama 3.1's scaling: short wavelengths keep their frequency, wavelengths beyond the original context are
 * stretched by rope_factor, and those between get a blend. */
static double scale_llama3(const struct ot_model_config *c, double frequency) {
    double wavelength = 2 * M_PI / frequency, original = c->rope_original_max_position;
    double low = c->rope_low_freq_factor, high = c->rope_high_freq_factor;
    if (wavelength < original / high)
        return frequency;
    if (wavelength > original / low)
        return frequency / c->rope_factor;
    double blend = (original / wavelength - low) / (high - low);
    return (1 - blend) * frequency / c->rope_factor + blend * frequency;
}

/* Radians per position of pair j. */
static double pair_frequency(const struct ot_model_config *c, int64_t j) {
    double frequency = pow(c->rope_theta, -2.0 * (double)j / (double)c->rotary_dim);
    if (c->rope_scaling == OT_ROPE_LINEAR)
        return frequency / c->rope_factor;
    return c->rope_scaling == OT_ROPE_LLAMA3 ? scale_llama3(c, frequency) : frequency;
}

/* Computes in double and rounds once: an fp32 angle at position 100,000 would be off by 0.004. */
void ot_rope_fill_tables(const struct ot_model *model, void *host_memory) {
    int64_t half = model->config.rotary_dim / 2;
    float *cosines = host_memory, *sines = (float *)((char *)host_memory + ot_rope_table_bytes(model));
    for (int64_t j = 0; j < half; j++) {
        double frequency = pair_frequency(&model->config, j);
        for (int64_t p = 0; p < model->chain.max_position; p++) {
            cosines[p * half + j] = (float)cos((double)p * frequency);
            sines[p * half + j] = (float)sin((double)p * frequency);
        }
    }
    size_t filled = (size_t)table_elems(model) * sizeof(float);
    memset((char *)cosines + filled, 0, ot_rope_table_bytes(model) - filled);
    memset((char *)sines + filled, 0, ot_rope_table_bytes(model) - filled);
}
