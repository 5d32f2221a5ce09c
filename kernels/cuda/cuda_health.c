#include "kernels/cuda/cuda_health.h"

#include <stdarg.h>
#include <stdio.h>

#include "kernels/cuda/nvml.h"

__attribute__((format(printf, 2, 3))) static void warn(struct ot_cuda_warnings *out, const char *format,
                                                       ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(out->text[out->n++], OT_CUDA_WARNING_BYTES, format, args);
    va_end(args);
}

static void warn_of_memory(const struct ot_cuda_gpu *gpu, const struct ot_nvml_facts *facts,
                           struct ot_cuda_warnings *out) {
    if (facts->uncorrected > 0)
        warn(out,
             "%s has had %llu memory errors that ECC could not correct since its driver was loaded: reset it "
             "before a long run (nvidia-smi -q -d ECC shows them)",
             gpu->name, (unsigned long long)facts->uncorrected);
    if (facts->repair_failed)
        warn(out, "%s has bad memory and no spare left to replace it: do not train on it", gpu->name);
    else if (facts->repair_pending)
        warn(out,
             "%s has bad memory that its next reset replaces: reset it before a long run (nvidia-smi -q -d "
             "ROW_REMAPPER shows it)",
             gpu->name);
}

void ot_cuda_warnings(const struct ot_cuda_gpu *gpu, struct ot_cuda_warnings *out) {
    char bus_id[OT_BUS_ID_BYTES];
    struct ot_nvml_facts facts = {0};
    out->n = 0;
    if (ot_cuda_bus_id(gpu->index, bus_id))
        ot_nvml_ask(bus_id, &facts);
    warn_of_memory(gpu, &facts, out);
    if (gpu->has_display)
        warn(out,
             "%s also drives a display: part of its memory is left to the display, and the driver may end a "
             "kernel that runs for seconds",
             gpu->name);
}
