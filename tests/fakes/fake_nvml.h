/* A fake of the driver's management library for the emulated card; kernels/cuda/cuda_health.c opens it under
 * OT_EMU. The test writes the answers to ot_fake_nvml. ot_fake_nvml_reset restores a healthy GPU. */
#ifndef OT_KERNELS_EMU_FAKE_NVML_H
#define OT_KERNELS_EMU_FAKE_NVML_H

#include <stdbool.h>

struct ot_fake_nvml {
    bool is_missing;                             /* the library is missing */
    const char *missing_symbol;                  /* NULL: it has all functions */
    int init_status, find_status, answer_status; /* statuses that these calls return; 0: success */
    unsigned long long uncorrected;
    unsigned rows_pending, rows_failed;
    int pages_pending;
    int open; /* number of inits without their shutdown */
};
extern struct ot_fake_nvml ot_fake_nvml;
void ot_fake_nvml_reset(void);

/* Like dlopen, dlsym and dlclose. */
void *ot_fake_nvml_dlopen(void);
void *ot_fake_nvml_dlsym(void *library, const char *name);
int ot_fake_nvml_dlclose(void *library);

#endif
