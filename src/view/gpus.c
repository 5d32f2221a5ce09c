#include "src/view/gpus.h"

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/minmax.h"
#include "src/base/utf8.h"

enum { SUCCESS = 0, OF_THE_GPU = 0 }; /* nvmlReturn_t, nvmlTemperatureSensors_t */

struct busy { /* nvmlUtilization_t: per cent */
    unsigned gpu, memory;
};

struct memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

struct ot_gpus {
    void *library;
    /* Functions return an nvmlReturn_t. The first ones are needed. */
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*find)(unsigned index, void **device);
    int (*name)(void *device, char *text, unsigned bytes);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*power)(void *device, unsigned *milliwatts);
    int (*power_limit)(void *device, unsigned *milliwatts);
    int (*busy)(void *device, struct busy *out);
    int (*memory)(void *device, struct memory *out);
};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"nvmlInit_v2", offsetof(struct ot_gpus, init)},
    {"nvmlShutdown", offsetof(struct ot_gpus, shutdown)},
    {"nvmlDeviceGetCount_v2", offsetof(struct ot_gpus, count)},
    {"nvmlDeviceGetHandleByIndex_v2", offsetof(struct ot_gpus, find)},
    {"nvmlDeviceGetName", offsetof(struct ot_gpus, name)},
    {"nvmlDeviceGetTemperature", offsetof(struct ot_gpus, temperature)},
    {"nvmlDeviceGetPowerUsage", offsetof(struct ot_gpus, power)},
    {"nvmlDeviceGetEnforcedPowerLimit", offsetof(struct ot_gpus, power_limit)},
    {"nvmlDeviceGetUtilizationRates", offsetof(struct ot_gpus, busy)},
    {"nvmlDeviceGetMemoryInfo", offsetof(struct ot_gpus, memory)},
};

struct ot_gpus *ot_gpus_open(void) {
    struct ot_gpus *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; g->library && i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(g->library, functions[i].name);
        memcpy((char *)g + functions[i].offset, &function, sizeof function);
    }
    if (g->library && g->init && g->shutdown && g->count && g->find && g->init() == SUCCESS)
        return g;
    if (g->library)
        dlclose(g->library);
    free(g);
    return NULL;
}

void ot_gpus_close(struct ot_gpus *g) {
    if (!g)
        return;
    g->shutdown();
    dlclose(g->library);
    free(g);
}

static void read_gpu(const struct ot_gpus *g, void *device, struct ot_gpu_reading *out) {
    unsigned value;
    struct busy busy;
    struct memory memory;
    *out = (struct ot_gpu_reading){"", NAN, NAN, NAN, NAN, NAN, NAN};
    if (!g->name || g->name(device, out->name, sizeof out->name) != SUCCESS)
        out->name[0] = '\0';
    out->name[sizeof out->name - 1] = '\0';
    ot_utf8_keep_line(out->name);
    if (g->temperature && g->temperature(device, OF_THE_GPU, &value) == SUCCESS)
        out->celsius = value;
    if (g->power && g->power(device, &value) == SUCCESS)
        out->watts = value / 1000.0;
    if (g->power_limit && g->power_limit(device, &value) == SUCCESS)
        out->most_watts = value / 1000.0;
    if (g->busy && g->busy(device, &busy) == SUCCESS)
        out->busy = busy.gpu / 100.0;
    if (g->memory && g->memory(device, &memory) == SUCCESS) {
        out->used_bytes = (double)memory.used;
        out->bytes = (double)memory.total;
    }
}

int ot_gpus_read(const struct ot_gpus *g, struct ot_gpu_reading readings[OT_GPUS_MAX]) {
    unsigned n = 0;
    int made = 0;
    void *device;
    if (!g || g->count(&n) != SUCCESS)
        return 0;
    for (unsigned i = 0; i < n && made < OT_GPUS_MAX; i++)
        if (g->find(i, &device) == SUCCESS)
            read_gpu(g, device, &readings[made++]);
    return made;
}
