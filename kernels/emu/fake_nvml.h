/* The driver's management library for the emulated card: what kernels/cuda/nvml.c opens under OT_EMU. The
 * test writes the answers to ot_fake_nvml; ot_fake_nvml_reset leaves a healthy GPU. */
#ifndef OT_KERNELS_EMU_FAKE_NVML_H
#define OT_KERNELS_EMU_FAKE_NVML_H

#include <stdbool.h>

struct ot_fake_nvml {
    bool is_missing;                             /* the library */
    const char *missing_symbol;                  /* NULL: none */
    int init_status, find_status, answer_status; /* what these calls return; 0: success */
    unsigned long long uncorrected;
    unsigned rows_pending, rows_failed;
    int pages_pending;
    int open; /* inits without their shutdown */
};
extern struct ot_fake_nvml ot_fake_nvml;
void ot_fake_nvml_reset(void);

/* As dlopen and its kin. */
void *ot_fake_nvml_dlopen(void);
void *ot_fake_nvml_dlsym(void *library, const char *name);
int ot_fake_nvml_dlclose(void *library);

#endif
