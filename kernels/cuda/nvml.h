/* What the driver's management library (libnvidia-ml, the one behind nvidia-smi) says of a GPU.
 *
 * The library comes with the driver and is opened at run time. It is asked for warnings alone: where it is
 * missing, too old for a question or refuses it (containers often do), the answer is "nothing known".
 * Source: NVIDIA's "NVML API Reference"; names, types and numbers below are its.
 *
 * OT_EMU: the library is kernels/emu/fake_nvml.h.
 */
#ifndef OT_KERNELS_CUDA_NVML_H
#define OT_KERNELS_CUDA_NVML_H

#include <stdbool.h>
#include <stdint.h>

struct ot_nvml_facts {
    uint64_t uncorrected; /* memory errors since the driver was loaded that ECC could not correct */
    bool repair_pending;  /* a bad row or page is replaced at the next reset of the GPU */
    bool repair_failed;   /* no spare row was left for a bad one */
};

/* bus_id: as cudaDeviceGetPCIBusId writes it. */
void ot_nvml_ask(const char *bus_id, struct ot_nvml_facts *out);

#endif
