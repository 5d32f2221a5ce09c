/* Finds the GPU. Each obstacle has one sentence that names the cause and the cure. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_health.h"
#include "kernels/cuda/cuda_state.h"
#include "src/base/log.h"
#include "src/base/minmax.h"

enum { OLDEST_ARCH = 75 };

static const char *visible_devices(void) {
    return getenv("CUDA_VISIBLE_DEVICES");
}

bool ot_cuda_is_present(void) {
    int count = 0, driver = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaErrorInsufficientDriver)
        return cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
    return code == cudaSuccess ? count > 0 : code != cudaErrorNoDevice;
}

bool ot_cuda_bus_id(int index, char text[OT_BUS_ID_BYTES]) {
    if (cudaDeviceGetPCIBusId(text, OT_BUS_ID_BYTES, index) == cudaSuccess)
        return true;
    (void)cudaGetLastError(); /* opening the device reports the fault */
    return false;
}

/* ---- no GPU at all ---- */

/* 13000 gives "13.0" */
static const char *format_version(int version, char text[16]) {
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
    return text;
}

static int explain_driver(void) {
    int driver = 0;
    char have[16], need[16];
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return ot_fail_cause(OT_E_DEVICE, OT_CAUSE_NO_DRIVER, "no NVIDIA driver is installed here");
    return ot_fail(
        OT_E_DEVICE,
        "the NVIDIA driver is too old: it is for CUDA %s, this program needs one for CUDA %s; update the "
        "driver, or build with an older toolkit",
        format_version(driver, have), format_version(CUDART_VERSION, need));
}

static int explain_no_device(void) {
    const char *visible = visible_devices();
    if (visible)
        return ot_fail(OT_E_DEVICE,
                       "CUDA_VISIBLE_DEVICES is '%s', which hides every GPU; unset it, or set it to 0",
                       visible);
    return ot_fail_cause(OT_E_DEVICE, OT_CAUSE_NO_GPU,
                         "the NVIDIA driver is here, but it finds no GPU (nvidia-smi shows what it sees)");
}

static int count_gpus(int *count) {
    cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaErrorInsufficientDriver)
        return explain_driver();
    if (code == cudaErrorNoDevice || (code == cudaSuccess && *count == 0))
        return explain_no_device();
    return ot_cuda_check(code, "start");
}

static int check_index(int index, int count) {
    if (index < count)
        return 0;
    const char *visible = visible_devices();
    return ot_fail(OT_E_DEVICE, "there is no GPU %d: %d %s visible%s%s%s, counted from 0", index, count,
                   count == 1 ? "is" : "are", visible ? " (CUDA_VISIBLE_DEVICES is '" : "",
                   visible ? visible : "", visible ? "')" : "");
}

/* ---- a GPU that cannot be used ---- */

bool ot_cuda_needs_ptx(const char *archs, int arch) {
    for (const char *at = archs; *at;) {
        char *end;
        int one = (int)strtol(at, &end, 10);
        if (one / 10 == arch / 10 && one <= arch)
            return false; /* code also runs on later minor versions of the same major version */
        at = end + strspn(end, " ");
    }
    return true;
}

bool ot_cuda_runs_on(const char *archs, int arch) {
    int newest = 0;
    for (const char *at = archs; *at;) {
        char *end;
        int one = (int)strtol(at, &end, 10);
        newest = ot_max(one, newest);
        at = end + strspn(end, " ");
    }
    return !ot_cuda_needs_ptx(archs, arch) || newest < arch; /* PTX runs on newer GPUs */
}

/* A driver for the toolkit's major version runs its machine code, even if the driver is older (NVIDIA calls
 * this minor version compatibility). Only PTX needs a driver that is at least as new as the toolkit. */
static int check_arch(const struct ot_cuda_gpu *gpu) {
    char have[16], need[16];
    if (gpu->arch < OLDEST_ARCH)
        return ot_fail(OT_E_DEVICE, "%s is too old: sm_%d and newer are supported", gpu->name, OLDEST_ARCH);
    if (!ot_cuda_runs_on(OT_CUDA_ARCHS, gpu->arch))
        return ot_fail(OT_E_DEVICE,
                       "this build has no code for %s, only for sm_ %s; build with -Dgpu_arch=sm_%d",
                       gpu->name, OT_CUDA_ARCHS, gpu->arch);
    if (gpu->driver >= CUDART_VERSION || !ot_cuda_needs_ptx(OT_CUDA_ARCHS, gpu->arch))
        return 0;
    return ot_fail(
        OT_E_DEVICE,
        "%s is newer than this build (sm_ %s); its driver is for CUDA %s, and translating the kernels "
        "needs a driver for CUDA %s; update the driver, or build with -Dgpu_arch=sm_%d",
        gpu->name, OT_CUDA_ARCHS, format_version(gpu->driver, have), format_version(CUDART_VERSION, need),
        gpu->arch);
}

static int explain_start(const struct ot_cuda_gpu *gpu, int compute_mode, cudaError_t code) {
    if (compute_mode == cudaComputeModeProhibited)
        return ot_fail(OT_E_DEVICE,
                       "%s is in compute mode 'prohibited': nvidia-smi -c 0 lets programs use it", gpu->name);
    if (code == cudaErrorDevicesUnavailable)
        return ot_fail_cause(
            OT_E_DEVICE, OT_CAUSE_GPU_BUSY,
            "%s is busy: another program has it for itself (its compute mode is exclusive; nvidia-smi "
            "shows who)",
            gpu->name);
    if (code == cudaErrorMemoryAllocation)
        return ot_fail(OT_E_DEVICE,
                       "%s has no memory left to start in: other programs use it all (nvidia-smi shows who)",
                       gpu->name);
    return ot_cuda_check(code, "start %s", gpu->name);
}

/* ---- finding the GPU ---- */

static int read_facts(struct ot_cuda_gpu *out, int *compute_mode) {
    struct cudaDeviceProp properties;
    OT_TRY(ot_cuda_check(cudaGetDeviceProperties(&properties, out->index), "ask for the properties of GPU %d",
                         out->index));
    OT_TRY(ot_cuda_check(cudaDeviceGetAttribute(compute_mode, cudaDevAttrComputeMode, out->index),
                         "ask for the compute mode of GPU %d", out->index));
    int timeout = 0;
    OT_TRY(ot_cuda_check(cudaDeviceGetAttribute(&timeout, cudaDevAttrKernelExecTimeout, out->index),
                         "ask whether GPU %d drives a display", out->index));
    OT_TRY(ot_cuda_check(cudaDriverGetVersion(&out->driver), "ask for the driver's version"));
    out->has_display = timeout != 0;
    out->arch = properties.major * 10 + properties.minor;
    out->sm_count = properties.multiProcessorCount;
    out->shared_bytes = (int)properties.sharedMemPerBlockOptin;
    snprintf(out->name, sizeof out->name, "GPU %d (%.80s, sm_%d)", out->index, properties.name, out->arch);
    return 0;
}

/* Warns once for each process: a bench opens the device for each of its points. */
static void say_warnings(const struct ot_cuda_gpu *gpu) {
    static atomic_bool said;
    struct ot_cuda_warnings warnings;
    if (atomic_exchange(&said, true))
        return;
    ot_cuda_warnings(gpu, &warnings);
    for (int i = 0; i < warnings.n; i++)
        ot_log(OT_LOG_WARN, "%s", warnings.text[i]);
}

int ot_cuda_find_gpu(int index, struct ot_cuda_gpu *out) {
    int count = 0, compute_mode = 0;
    *out = (struct ot_cuda_gpu){.index = index};
    OT_TRY(count_gpus(&count));
    OT_TRY(check_index(index, count));
    OT_TRY(read_facts(out, &compute_mode));
    OT_TRY(check_arch(out));
    say_warnings(out);
    cudaError_t code = cudaSetDevice(index);
    if (code == cudaSuccess)
        code = cudaFree(NULL); /* up to toolkit 12, this call starts the GPU, not cudaSetDevice */
    OT_TRY(explain_start(out, compute_mode, code));
    return ot_cuda_check(cudaMemGetInfo(&out->free_bytes, &out->total_bytes), "ask for the memory of %s",
                         out->name);
}
