#include "offload/comm/plugins/nccl_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/comm/plugin.h"

/* ---- our declarations, compared with NVIDIA's header if it is installed ---- */

#if defined(__has_include)
#if __has_include(<nccl.h>)
#include <nccl.h>
#define SAME(ours, theirs) _Static_assert((size_t)(ours) == (size_t)(theirs), #theirs)
SAME(OT_NCCL_SUCCESS, ncclSuccess);
SAME(OT_NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(OT_NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(OT_NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(OT_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(OT_NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(OT_NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(OT_NCCL_IN_PROGRESS, ncclInProgress);
SAME(OT_NCCL_INT8, ncclInt8);
SAME(OT_NCCL_OLDEST, NCCL_VERSION(2, 18, 0));
SAME(sizeof(struct ot_nccl_id), sizeof(ncclUniqueId));
SAME(offsetof(struct ot_nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(struct ot_nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(struct ot_nccl_config, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(struct ot_nccl_config, net_name), offsetof(ncclConfig_t, netName));
SAME(offsetof(struct ot_nccl_config, split_share), offsetof(ncclConfig_t, splitShare));
#endif
#endif

/* A function of a library, and the destination of its address. */
struct function {
    const char *name;
    size_t offset;
    bool may_lack;
};

/* Fills the table. Returns the name of a function that the library lacks, or NULL. */
static const char *read_table(void *library, const struct function *functions, size_t n, void *table) {
    for (size_t i = 0; i < n; i++) {
        void *function = dlsym(library, functions[i].name);
        if (function)
            memcpy((char *)table + functions[i].offset, &function, sizeof function);
        else if (!functions[i].may_lack)
            return functions[i].name;
    }
    return NULL;
}

/* ---- the CUDA driver ---- */

int ot_cuda_driver_open(struct ot_cuda_driver *out, char *why, size_t why_bytes) {
    static const struct function functions[] = {
        {"cuInit", offsetof(struct ot_cuda_driver, init), false},
        {"cuDeviceGet", offsetof(struct ot_cuda_driver, get_device), false},
        {"cuDeviceGetUuid", offsetof(struct ot_cuda_driver, get_uuid), false},
        /* since CUDA 11.4: the UUID of a part of a GPU (MIG), not of the whole */
        {"cuDeviceGetUuid_v2", offsetof(struct ot_cuda_driver, get_uuid), true},
        {"cuDevicePrimaryCtxRetain", offsetof(struct ot_cuda_driver, retain_context), false},
        {"cuDevicePrimaryCtxRelease_v2", offsetof(struct ot_cuda_driver, release_context), false},
        {"cuCtxPushCurrent_v2", offsetof(struct ot_cuda_driver, push_context), false},
        {"cuCtxPopCurrent_v2", offsetof(struct ot_cuda_driver, pop_context), false},
        {"cuEventCreate", offsetof(struct ot_cuda_driver, event_create), false},
        {"cuEventDestroy_v2", offsetof(struct ot_cuda_driver, event_destroy), false},
        {"cuEventRecord", offsetof(struct ot_cuda_driver, event_record), false},
        {"cuEventQuery", offsetof(struct ot_cuda_driver, event_query), false},
    };
    *out = (struct ot_cuda_driver){0};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, why_bytes, "no NVIDIA driver: %s", dlerror());
        return OT_COMM_UNSUPPORTED;
    }
    const char *missing = read_table(library, functions, sizeof functions / sizeof *functions, out);
    int result = missing ? 0 : out->init(0);
    if (missing)
        snprintf(why, why_bytes, "the NVIDIA driver has no function %s: update the driver", missing);
    else if (result != OT_CUDA_SUCCESS)
        snprintf(why, why_bytes, "the NVIDIA driver does not start: cuInit returns %d", result);
    return missing || result != OT_CUDA_SUCCESS ? OT_COMM_UNSUPPORTED : OT_COMM_OK;
}

/* ---- NCCL ---- */

#define HOW_TO_GET                                                                                           \
    "install NCCL 2.18 or later (NVIDIA's package libnccl2, or the Python package nvidia-nccl-cu12 or "      \
    "nvidia-nccl-cu13), or set OFFLOAD_TRAIN_NCCL to the path of a libnccl.so.2"

const char *ot_nccl_version_text(int version, char text[OT_NCCL_VERSION_BYTES]) {
    int major = version < 10000 ? 1000 : 10000; /* until 2.8 the major version counted thousands */
    snprintf(text, OT_NCCL_VERSION_BYTES, "%d.%d.%d", version / major, version % major / 100, version % 100);
    return text;
}

static int read_nccl(void *library, struct ot_nccl *out, int *version, char *why, size_t why_bytes) {
    static const struct function functions[] = {
        {"ncclGetVersion", offsetof(struct ot_nccl, get_version), false},
        {"ncclGetErrorString", offsetof(struct ot_nccl, get_error_string), false},
        {"ncclGetLastError", offsetof(struct ot_nccl, get_last_error), false},
        {"ncclGetUniqueId", offsetof(struct ot_nccl, get_unique_id), false},
        {"ncclCommInitRankConfig", offsetof(struct ot_nccl, init), false},
        {"ncclCommFinalize", offsetof(struct ot_nccl, finalize), false},
        {"ncclCommDestroy", offsetof(struct ot_nccl, destroy), false},
        {"ncclCommAbort", offsetof(struct ot_nccl, abort), false},
        {"ncclCommGetAsyncError", offsetof(struct ot_nccl, get_async_error), false},
        {"ncclAllGather", offsetof(struct ot_nccl, all_gather), false},
        {"ncclBroadcast", offsetof(struct ot_nccl, broadcast), false},
        {"ncclSend", offsetof(struct ot_nccl, send), false},
        {"ncclRecv", offsetof(struct ot_nccl, receive), false},
        {"ncclGroupStart", offsetof(struct ot_nccl, group_start), false},
        {"ncclGroupEnd", offsetof(struct ot_nccl, group_end), false},
    };
    *out = (struct ot_nccl){0};
    const char *missing = read_table(library, functions, sizeof functions / sizeof *functions, out);
    Dl_info info;
    const char *path = "libnccl.so.2";
    /* an old library lacks functions too, and its version says more */
    if (out->get_version && dladdr((const void *)(uintptr_t)out->get_version, &info) && info.dli_fname)
        path = info.dli_fname;
    if (out->get_version && out->get_version(version) == OT_NCCL_SUCCESS && *version < OT_NCCL_OLDEST)
        snprintf(why, why_bytes, "%s is NCCL %s, which is too old: %s", path,
                 ot_nccl_version_text(*version, (char[OT_NCCL_VERSION_BYTES]){0}), HOW_TO_GET);
    else if (missing)
        snprintf(why, why_bytes, "%s has no function %s: %s", path, missing, HOW_TO_GET);
    else
        return OT_COMM_OK;
    return OT_COMM_UNSUPPORTED;
}

/* The libnccl.so.2 in the folder of the program. */
static void *open_beside_program(void) {
    static const char name[] = "libnccl.so.2";
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof name);
    if (length <= 0)
        return NULL;
    path[length] = 0;
    char *slash = strrchr(path, '/');
    if (!slash)
        return NULL;
    memcpy(slash + 1, name, sizeof name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

int ot_nccl_open(struct ot_nccl *out, int *version, char *why, size_t why_bytes) {
    const char *given = getenv("OFFLOAD_TRAIN_NCCL");
    void *library;
    *version = 0;
    if (given && *given) {
        library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            snprintf(why, why_bytes, "the library that OFFLOAD_TRAIN_NCCL names cannot be opened: %s",
                     dlerror());
    } else {
        library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (!library)
            snprintf(why, why_bytes,
                     "found no NCCL, neither on the loader's path (%s) nor beside the program: %s", dlerror(),
                     HOW_TO_GET);
        if (!library)
            library = open_beside_program();
    }
    return library ? read_nccl(library, out, version, why, why_bytes) : OT_COMM_UNSUPPORTED;
}
