#include "offload/predict/rates.h"

#include <stddef.h>

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
