#include "src/train/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/error.h"

struct candidate {
    double weight;
    int32_t id;
};

struct ot_sampler {
    int64_t vocab;
    struct candidate candidates[];
};

int ot_sampler_open(int64_t vocab, struct ot_sampler **out) {
    *out = malloc(sizeof **out + (size_t)vocab * sizeof(struct candidate));
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory to sample from %lld tokens", (long long)vocab);
    (*out)->vocab = vocab;
    return 0;
}

void ot_sampler_close(struct ot_sampler *sampler) {
    free(sampler);
}

static int by_weight(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

int ot_sampler_pick(struct ot_sampler *sampler, const float *logits, double temperature, double top_p,
                    double unit, int32_t *id) {
    int32_t best = 0;
    for (int64_t i = 0; i < sampler->vocab; i++) {
        if (isnan(logits[i]))
            return ot_fail(OT_E_NUMERIC, "the model's output is not a number; its weights are damaged");
        if (logits[i] > logits[best])
            best = (int32_t)i;
    }
    *id = best;
    if (temperature <= 0)
        return 0;
    double sum = 0;
    for (int64_t i = 0; i < sampler->vocab; i++) {
        double weight = exp(((double)logits[i] - logits[best]) / temperature);
        sampler->candidates[i] = (struct candidate){weight, (int32_t)i};
        sum += weight;
    }
    qsort(sampler->candidates, (size_t)sampler->vocab, sizeof *sampler->candidates, by_weight);
    double kept = 0;
    int64_t n = 0;
    while (n < sampler->vocab && (n == 0 || kept < top_p * sum))
        kept += sampler->candidates[n++].weight;
    double at = unit * kept;
    for (int64_t i = 0; i < n; i++) {
        *id = sampler->candidates[i].id;
        at -= sampler->candidates[i].weight;
        if (at < 0)
            break;
    }
    return 0;
}
