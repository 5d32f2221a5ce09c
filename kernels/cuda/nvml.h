/* Asks the driver's management library (libnvidia-ml, which nvidia-smi uses) about a GPU.
 *
 * The driver brings the library, and it is opened at run time. The answers are used for warnings only. If the
 * library is missing, lacks a function or refuses the question (containers often do), the answer is "nothing
 * known". Source: NVIDIA's "NVML API Reference"; the names, types and constants are defined there.
 *
 * OT_EMU: the library is tests/fakes/fake_nvml.h.
 */
#ifndef OT_KERNELS_CUDA_NVML_H
#define OT_KERNELS_CUDA_NVML_H

#include <stdbool.h>
#include <stdint.h>

struct ot_nvml_facts {
    uint64_t uncorrected; /* memory errors since the driver was loaded that ECC could not correct */
    bool repair_pending;  /* the next reset of the GPU replaces a bad row or page */
    bool repair_failed;   /* a bad row could not be replaced: no spare row was left */
};

/* bus_id: the text that cudaDeviceGetPCIBusId writes. */
void ot_nvml_ask(const char *bus_id, struct ot_nvml_facts *out);

#endif
