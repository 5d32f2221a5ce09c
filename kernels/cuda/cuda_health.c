#include "kernels/cuda/cuda_health.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- NVML ---- */

/* Asks the driver's management library (libnvidia-ml, which nvidia-smi uses) about a GPU.
 *
 * The driver brings the library, and it is opened at run time. The answers are used for warnings only. If the
 * library is missing, lacks a function or refuses the question (containers often do), the answer is "nothing
 * known". Source: NVIDIA's "NVML API Reference"; the names, types and constants are defined there.
 *
 * OT_EMU: the library is tests/fakes/fake_nvml.h.
 */

struct ot_nvml_facts {
    uint64_t uncorrected; /* memory errors since the driver was loaded that ECC could not correct */
    bool repair_pending;  /* the next reset of the GPU replaces a bad row or page */
    bool repair_failed;   /* a bad row could not be replaced: no spare row was left */
};

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

/* bus_id: the text that cudaDeviceGetPCIBusId writes. */
static void nvml_ask(const char *bus_id, struct ot_nvml_facts *out) {
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

/* ---- cuda health ---- */

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
        nvml_ask(bus_id, &facts);
    warn_of_memory(gpu, &facts, out);
    if (gpu->has_display)
        warn(out,
             "%s also drives a display: part of its memory is left to the display, and the driver may end a "
             "kernel that runs for seconds",
             gpu->name);
}
