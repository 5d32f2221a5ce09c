/* The adapter of a module, checked. */
#include "models/lora.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

float ot_lora_scale(const struct ot_lora *lora, struct ot_lora_rank rank) {
    double divisor = lora->rslora ? sqrt((double)rank.rank) : (double)rank.rank;
    return (float)(rank.alpha / divisor);
}

static struct ot_lora_rank choose(const struct ot_lora *lora, const char *module) {
    if (lora->choose)
        return lora->choose(lora->context, module);
    return ot_lora_is_linear(module) ? lora->all : (struct ot_lora_rank){0};
}

bool ot_lora_is_of_experts(const char *module) {
    return strstr(module, ".experts.") != NULL;
}

bool ot_lora_is_linear(const char *module) {
    return ot_lora_layer_of(module) >= 0 && !ot_lora_is_of_experts(module);
}

int64_t ot_lora_layer_of(const char *module) {
    for (const char *part = module; part; part = strchr(part, '.')) {
        part += *part == '.';
        size_t digits = strspn(part, "0123456789");
        if (digits > 0 && digits < 10 && part[digits] == '.')
            return strtoll(part, NULL, 10);
    }
    return -1;
}

int ot_lora_find(const struct ot_lora *lora, const char *module, struct ot_lora_rank *out) {
    *out = choose(lora, module);
    if (out->rank == 0)
        return 0;
    if (out->rank < 1 || out->rank > OT_LORA_MAX_RANK)
        return ot_fail(OT_E_INPUT, "adapter of %s: its rank is %lld, must be from 1 to %d", module,
                       (long long)out->rank, OT_LORA_MAX_RANK);
    if (!(lora->dropout >= 0 && lora->dropout < 1))
        return ot_fail(OT_E_INPUT, "adapter of %s: its dropout is %g, must be from 0 to less than 1", module,
                       (double)lora->dropout);
    if (ot_lora_is_of_experts(module) && (lora->dropout > 0 || lora->dora))
        return ot_fail(OT_E_INPUT, "adapter of %s: experts cannot have %s, in PEFT neither; leave it out",
                       module, lora->dora ? "DoRA" : "dropout");
    float scale = ot_lora_scale(lora, *out);
    if (!isfinite(scale) || scale == 0)
        return ot_fail(OT_E_INPUT, "adapter of %s: its alpha is %g; it must be finite and not 0", module,
                       out->alpha);
    return 0;
}

bool ot_lora_has_tensor(const char *name) {
    return strncmp(name, OT_LORA_PREFIX, sizeof OT_LORA_PREFIX - 1) == 0;
}

bool ot_lora_is_of_tokens(const char *name) {
    return ot_lora_has_tensor(name) && strstr(name, "." OT_LORA_TOKENS) != NULL;
}

void ot_lora_row_norms(const float *weight, int64_t rows, int64_t cols, float *norms) {
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = r * cols; i < (r + 1) * cols; i++)
            sum += (double)weight[i] * weight[i];
        norms[r] = (float)sqrt(sum);
    }
}

int ot_lora_transpose(float *values, int64_t rows, int64_t cols) {
    size_t bytes = (size_t)(rows * cols) * sizeof *values;
    float *copy = malloc(bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory to transpose %lld values", (long long)(rows * cols));
    memcpy(copy, values, bytes);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            values[c * rows + r] = copy[r * cols + c];
    free(copy);
    return 0;
}
