#include "kernels/cuda/nvml.h"

#include <stddef.h>
#include <string.h>

#ifdef OT_EMU
#include "tests/fakes/fake_nvml.h"
#define library_open() ot_fake_nvml_dlopen()
#define library_symbol ot_fake_nvml_dlsym
#define library_close  ot_fake_nvml_dlclose
#else
#include <dlfcn.h>
#define library_open() dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)
#define library_symbol dlsym
#define library_close  dlclose
#endif

enum { SUCCESS = 0 };                           /* nvmlReturn_t */
enum { UNCORRECTED = 1, SINCE_THE_DRIVER = 0 }; /* nvmlMemoryErrorType_t, nvmlEccCounterType_t (volatile) */

/* Functions return an nvmlReturn_t. */
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *bus_id, void **device);
    int (*ecc_errors)(void *device, int type, int counter, unsigned long long *count);
    int (*remapped_rows)(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                         unsigned *failed);
    /* GPUs before Ampere retire pages instead of remapping rows */
    int (*retired_pages)(void *device, int *pending);
};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"nvmlInit_v2", offsetof(struct nvml, init)},
    {"nvmlShutdown", offsetof(struct nvml, shutdown)},
    {"nvmlDeviceGetHandleByPciBusId_v2", offsetof(struct nvml, find)},
    {"nvmlDeviceGetTotalEccErrors", offsetof(struct nvml, ecc_errors)},
    {"nvmlDeviceGetRemappedRows", offsetof(struct nvml, remapped_rows)},
    {"nvmlDeviceGetRetiredPagesPendingStatus", offsetof(struct nvml, retired_pages)},
};

/* A function that the library lacks becomes NULL. */
static struct nvml read_table(void *library) {
    struct nvml nvml;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = library_symbol(library, functions[i].name);
        memcpy((char *)&nvml + functions[i].offset, &function, sizeof function);
    }
    return nvml;
}

static void ask_device(const struct nvml *nvml, void *device, struct ot_nvml_facts *out) {
    unsigned long long errors = 0;
    unsigned rows[4] = {0};
    int pages = 0;
    if (nvml->ecc_errors && nvml->ecc_errors(device, UNCORRECTED, SINCE_THE_DRIVER, &errors) == SUCCESS)
        out->uncorrected = errors;
    if (nvml->remapped_rows &&
        nvml->remapped_rows(device, &rows[0], &rows[1], &rows[2], &rows[3]) == SUCCESS) {
        out->repair_pending = rows[2] != 0;
        out->repair_failed = rows[3] != 0;
    }
    if (nvml->retired_pages && nvml->retired_pages(device, &pages) == SUCCESS && pages)
        out->repair_pending = true;
}

void ot_nvml_ask(const char *bus_id, struct ot_nvml_facts *out) {
    *out = (struct ot_nvml_facts){0};
    void *library = library_open(), *device;
    if (!library)
        return;
    const struct nvml nvml = read_table(library);
    if (nvml.init && nvml.shutdown && nvml.find && nvml.init() == SUCCESS) {
        if (nvml.find(bus_id, &device) == SUCCESS)
            ask_device(&nvml, device, out);
        nvml.shutdown();
    }
    library_close(library);
}
