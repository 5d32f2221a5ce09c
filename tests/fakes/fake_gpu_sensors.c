/* A fake of the driver's management library for src/view/gpus.h: two GPUs; the second one refuses some
 * questions. FAKE_SENSORS in the environment: "none" refuses to start, "bare" has no GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, REFUSED = 3 };

static char devices[2];

__attribute__((visibility("default"))) int nvmlInit_v2(void);
__attribute__((visibility("default"))) int nvmlShutdown(void);
__attribute__((visibility("default"))) int nvmlDeviceGetCount_v2(unsigned *n);
__attribute__((visibility("default"))) int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
__attribute__((visibility("default"))) int nvmlDeviceGetName(void *device, char *text, unsigned bytes);
__attribute__((visibility("default"))) int nvmlDeviceGetTemperature(void *device, int sensor,
                                                                    unsigned *value);
__attribute__((visibility("default"))) int nvmlDeviceGetPowerUsage(void *device, unsigned *value);
__attribute__((visibility("default"))) int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *value);
__attribute__((visibility("default"))) int nvmlDeviceGetUtilizationRates(void *device, unsigned value[2]);
__attribute__((visibility("default"))) int nvmlDeviceGetMemoryInfo(void *device, unsigned long long value[3]);

static int is_told(const char *word) {
    const char *told = getenv("FAKE_SENSORS");
    return told && strcmp(told, word) == 0;
}

int nvmlInit_v2(void) {
    return is_told("none") ? REFUSED : OK;
}

int nvmlShutdown(void) {
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *n) {
    *n = is_told("bare") ? 0 : 2;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &devices[index];
    return OK;
}

int nvmlDeviceGetName(void *device, char *text, unsigned bytes) {
    snprintf(text, bytes, "Fake\x1b[31m %d", (int)((char *)device - devices));
    return OK;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *value) {
    *value = 61 + (unsigned)((char *)device - devices);
    return sensor == 0 ? OK : REFUSED;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *value) {
    (void)device;
    *value = 312400;
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *value) {
    *value = 450000;
    return device == devices ? OK : REFUSED;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned value[2]) {
    value[0] = 97;
    value[1] = 12;
    return device == devices ? OK : REFUSED;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long value[3]) {
    value[0] = 24ULL << 30;
    value[1] = 4ULL << 30;
    value[2] = 20ULL << 30;
    return device == devices ? OK : REFUSED;
}
