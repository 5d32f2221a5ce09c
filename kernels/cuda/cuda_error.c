#include "kernels/cuda/cuda_error.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "src/base/error.h"

#define XID "; the kernel's log (dmesg, Xid) says more"

static const struct description {
    cudaError_t code;
    bool is_fault;
    const char *text, *hint; /* hint: NULL if there is none */
} descriptions[] = {
    {cudaErrorIllegalAddress, true, "an illegal memory access", NULL},
    {cudaErrorMisalignedAddress, true, "a misaligned memory access", NULL},
    {cudaErrorInvalidAddressSpace, true, "an access to the wrong kind of memory", NULL},
    {cudaErrorIllegalInstruction, true, "an illegal instruction", NULL},
    {cudaErrorInvalidPc, true, "a jump to an address that holds no code", NULL},
    {cudaErrorHardwareStackError, true, "a stack overflow", NULL},
    {cudaErrorAssert, true, "a failed assertion", NULL},
    {cudaErrorLaunchFailure, true, "a kernel failed, and the driver does not say how", XID},
    {cudaErrorLaunchTimeout, true, "a kernel ran longer than the driver allows on a GPU with a display",
     NULL},
    {cudaErrorECCUncorrectable, true, "a memory error that the GPU could not correct (ECC)",
     "; the GPU needs a reset" XID},
    {cudaErrorUnknown, true, "the GPU stopped answering (unknown error)", XID},
    {cudaErrorMemoryAllocation, false, "out of GPU memory", NULL},
    {cudaErrorNoKernelImageForDevice, false, "this build has no code for this GPU", NULL},
    {cudaErrorUnsupportedPtxVersion, false, "the driver is too old to translate this build's kernels",
     "; update it, or build with -Dgpu_arch for this GPU"},
    {cudaErrorCompatNotSupportedOnDevice, false, "CUDA's compatibility package does not support this GPU",
     "; remove its libcuda.so from LD_LIBRARY_PATH"},
    {cudaErrorSystemDriverMismatch, false,
     "the driver's library and its kernel module have different versions", "; reboot, or reload the module"},
    {cudaErrorSystemNotReady, false, "the GPU's fabric is not ready",
     "; start nvidia-fabricmanager, or wait until it has started"},
    {cudaErrorLaunchOutOfResources, false, "a kernel needs more registers than this GPU has", NULL},
};

static const struct description *find(cudaError_t code) {
    for (size_t i = 0; i < sizeof descriptions / sizeof *descriptions; i++)
        if (descriptions[i].code == code)
            return &descriptions[i];
    return NULL;
}

const char *ot_cuda_error_text(cudaError_t code) {
    const struct description *found = find(code);
    return found ? found->text : cudaGetErrorString(code);
}

bool ot_cuda_error_is_fault(cudaError_t code) {
    const struct description *found = find(code);
    return found && found->is_fault;
}

const char *ot_cuda_error_hint(cudaError_t code) {
    const struct description *found = find(code);
    return found && found->hint ? found->hint : "";
}

int ot_cuda_check(cudaError_t code, const char *format, ...) {
    if (code == cudaSuccess)
        return 0;
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return ot_fail(OT_E_DEVICE, "CUDA: cannot %s: %s%s", what, ot_cuda_error_text(code),
                   ot_cuda_error_hint(code));
}
