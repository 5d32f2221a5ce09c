#include "offload/predict/rates.h"

#include <stddef.h>

struct ot_attention_rates ot_rates_attention(const struct ot_rates *rates, int64_t head_dim) {
    enum ot_head_size size = head_dim > 128               ? OT_HEAD_256
                             : head_dim > 64 || !head_dim ? OT_HEAD_128
                                                          : OT_HEAD_64;
    const struct ot_attention_rates *found = &rates->attention[size];
    return found->forward > 0 && found->backward > 0 ? *found : rates->attention[OT_HEAD_128];
}

void ot_rates_scale_memory(struct ot_rates *rates, double factor) {
    rates->triad_bytes *= factor;
    for (int format = 0; format < OT_STATE_FORMATS; format++)
        rates->adamw_bytes[format] *= factor;
}

void ot_rates_divide(struct ot_rates *rates, int local_ranks) {
    double *shared[] = {&rates->nvme_read_bytes, &rates->nvme_write_bytes, &rates->nvme_mixed_bytes};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        *shared[i] /= local_ranks;
    ot_rates_scale_memory(rates, 1.0 / local_ranks);
    rates->cores = rates->cores > local_ranks ? rates->cores / local_ranks : 1;
}
