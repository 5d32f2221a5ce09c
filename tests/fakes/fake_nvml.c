#include "tests/fakes/fake_nvml.h"

#include <stddef.h>
#include <string.h>

enum { NOT_FOUND = 6 };

struct ot_fake_nvml ot_fake_nvml;

void ot_fake_nvml_reset(void) {
    ot_fake_nvml = (struct ot_fake_nvml){0};
}

static int fake_init(void) {
    ot_fake_nvml.open += ot_fake_nvml.init_status == 0;
    return ot_fake_nvml.init_status;
}

static int fake_shutdown(void) {
    ot_fake_nvml.open--;
    return 0;
}

/* The GPUs of the emulated runtime are at 0000:01:00.0 and the following buses. */
static int fake_find(const char *bus_id, void **device) {
    *device = &ot_fake_nvml;
    return strncmp(bus_id, "0000:0", 6) == 0 ? ot_fake_nvml.find_status : NOT_FOUND;
}

static int fake_ecc_errors(void *device, int type, int counter, unsigned long long *count) {
    (void)device;
    *count = type == 1 && counter == 0 ? ot_fake_nvml.uncorrected : 0;
    return ot_fake_nvml.answer_status;
}

static int fake_remapped_rows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    (void)device;
    *corrected = *uncorrected = 0;
    *pending = ot_fake_nvml.rows_pending;
    *failed = ot_fake_nvml.rows_failed;
    return ot_fake_nvml.answer_status;
}

static int fake_retired_pages(void *device, int *pending) {
    (void)device;
    *pending = ot_fake_nvml.pages_pending;
    return ot_fake_nvml.answer_status;
}

static const struct {
    const char *name;
    void (*function)(void);
} nvml_symbols[] = {
    {"nvmlInit_v2", (void (*)(void))fake_init},
    {"nvmlShutdown", (void (*)(void))fake_shutdown},
    {"nvmlDeviceGetHandleByPciBusId_v2", (void (*)(void))fake_find},
    {"nvmlDeviceGetTotalEccErrors", (void (*)(void))fake_ecc_errors},
    {"nvmlDeviceGetRemappedRows", (void (*)(void))fake_remapped_rows},
    {"nvmlDeviceGetRetiredPagesPendingStatus", (void (*)(void))fake_retired_pages},
};

void *ot_fake_nvml_dlopen(void) {
    return ot_fake_nvml.is_missing ? NULL : &ot_fake_nvml;
}

void *ot_fake_nvml_dlsym(void *library, const char *name) {
    void *function = NULL;
    (void)library;
    if (ot_fake_nvml.missing_symbol && strcmp(name, ot_fake_nvml.missing_symbol) == 0)
        return NULL;
    for (size_t i = 0; i < sizeof nvml_symbols / sizeof *nvml_symbols; i++)
        if (strcmp(nvml_symbols[i].name, name) == 0)
            memcpy(&function, &nvml_symbols[i].function, sizeof function);
    return function;
}

int ot_fake_nvml_dlclose(void *library) {
    (void)library;
    return 0;
}
