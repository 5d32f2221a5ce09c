/* The initial values of a model that is trained from scratch, and of adapters. */
#include <math.h>

#include "models/decoder.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

/* An encoder-decoder has the standard deviations of T5 (T5PreTrainedModel): its attention does not divide
 * scores, so q is smaller. */
static double pair_std(const struct ot_model *model, const struct ot_tensor *t) {
    const struct ot_model_config *c = &model->config;
    switch (t->module) {
    case OT_MODULE_EMBEDDING:
    case OT_MODULE_HEAD:
        return 1;
    case OT_MODULE_Q:
    case OT_MODULE_CROSS_Q:
        return 1 / sqrt((double)(c->hidden * c->head_dim));
    case OT_MODULE_ENCODER_BIAS:
    case OT_MODULE_DECODER_BIAS:
        return 1 / sqrt((double)c->hidden);
    default: /* the inputs of the map */
        return 1 / sqrt((double)t->cols);
    }
}

static void init_part(const struct ot_model *model, uint64_t seed, int64_t tensor, int64_t first, int64_t n,
                      float *out) {
    const struct ot_tensor *t = &model->tensors[tensor];
    bool normal = t->init == OT_INIT_LORA_NORMAL; /* its words differ from those of a tied head's A */
    double std = normal ? 1 : model->config.init_std, bound = 1 / sqrt((double)t->cols);
    uint64_t stream = ot_random_stream(ot_lora_has_tensor(t->name) ? OT_RANDOM_LORA : OT_RANDOM_INIT,
                                       normal ? 1 : 0, (uint64_t)t->number);
    if (ot_model_has_pairs(&model->config))
        std = pair_std(model, t);
    else if (t->init == OT_INIT_NORMAL_RESIDUAL)
        std /= sqrt(2.0 * (double)model->config.n_layers);
    bool constant = t->init == OT_INIT_ZERO || t->init == OT_INIT_ONE, uniform = t->init == OT_INIT_LORA_A;
    if (!constant && !uniform)
        ot_random_normals(seed, stream, (uint64_t)first, n, out);
    for (int64_t i = 0; i < n; i++) {
        if (constant)
            out[i] = t->init == OT_INIT_ONE ? 1.0f : 0.0f;
        else if (uniform)
            out[i] = (float)(bound * (2 * ot_random_unit(seed, stream, (uint64_t)(first + i)) - 1));
        else
            out[i] *= (float)std;
    }
}

void ot_model_init_values(const struct ot_model *model, uint64_t seed, int slab, int64_t first, int64_t n,
                          float *values) {
    const struct ot_slab_memory *memory = &model->slab_memory[slab];
    int64_t at = first, end = first + n;
    for (int64_t i = 0; i < memory->n_tensors && at < end; i++) {
        int64_t tensor = memory->first_tensor + i;
        const struct ot_tensor *t = &model->tensors[tensor];
        int64_t tensor_end = t->first + t->rows * t->cols;
        if (at >= tensor_end)
            continue;
        int64_t stop = ot_min(end, tensor_end);
        init_part(model, seed, tensor, at - t->first, stop - at, values + (at - first));
        at = stop;
    }
    for (; at < end; at++) /* padding */
        values[at - first] = 0.0f;
}
