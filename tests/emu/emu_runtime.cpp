#include "tests/emu/emu_runtime.h"

#include <atomic>
#include <map>
#include <mutex>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu_block.h"

namespace ot_emu {

struct Fault {
    int calls_left;
    cudaError_t error;
};

/* The mutex guards all of these except the atomics, which every call reads. */
static std::mutex mutex;
static ot_emu_card the_card = ot_emu_default_card();
static std::map<std::string, Fault> faults;
static std::string last_report;
static int lost_after; /* number of commands; 0: never */
static cudaError_t lost_error;
static std::atomic<bool> has_faults, may_lose;
static std::atomic<cudaError_t> sticky;
static std::atomic<int> n_streams, n_events, n_blocking;
static std::atomic<int64_t> n_launches, n_copies, n_pageable, n_spinning, most_queued;

static thread_local cudaError_t last_error;
thread_local bool in_host_function;

const ot_emu_card &card() {
    return the_card;
}

cudaError_t sticky_error() {
    return sticky.load(std::memory_order_relaxed);
}

void set_sticky(cudaError_t error, const std::string &report) {
    std::lock_guard<std::mutex> lock(mutex);
    if (sticky != cudaSuccess)
        return;
    last_report = report;
    sticky = error;
}

cudaError_t refuse(cudaError_t error, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    std::lock_guard<std::mutex> lock(mutex);
    if (sticky == cudaSuccess)
        last_report = text;
    return error;
}

static cudaError_t injected(const char *function) {
    std::lock_guard<std::mutex> lock(mutex);
    auto fault = faults.find(function);
    if (fault == faults.end() || --fault->second.calls_left > 0)
        return cudaSuccess;
    cudaError_t error = fault->second.error;
    faults.erase(fault);
    return error;
}

static bool is_driver_too_old() {
    return the_card.driver_version / 1000 < CUDART_VERSION / 1000;
}

cudaError_t enter(const char *function) {
    if (has_faults.load(std::memory_order_relaxed)) {
        cudaError_t error = injected(function);
        if (error != cudaSuccess)
            return error;
    }
    if (in_host_function)
        return refuse(cudaErrorNotPermitted, "%s called in a host function", function);
    if (is_driver_too_old())
        return cudaErrorInsufficientDriver;
    if (the_card.n_devices == 0)
        return cudaErrorNoDevice;
    return sticky_error();
}

cudaError_t leave(cudaError_t error) {
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

bool command_may_run() {
    if (may_lose.load(std::memory_order_relaxed)) {
        std::unique_lock<std::mutex> lock(mutex);
        if (lost_after > 0 && --lost_after == 0) {
            lock.unlock();
            set_sticky(lost_error, "the GPU was lost, as asked for");
        }
    }
    return sticky_error() == cudaSuccess;
}

void count_stream(int change) {
    n_streams += change;
}
void count_event(int change, bool blocking) {
    n_events += change;
    n_blocking += blocking ? change : 0;
}
void count_spinning_wait() {
    n_spinning.fetch_add(1, std::memory_order_relaxed);
}
void count_queued(int64_t commands) {
    int64_t most = most_queued.load(std::memory_order_relaxed);
    while (commands > most && !most_queued.compare_exchange_weak(most, commands, std::memory_order_relaxed))
        ;
}
void count_launch() {
    n_launches.fetch_add(1, std::memory_order_relaxed);
}
void count_copy(bool pageable) {
    n_copies.fetch_add(1, std::memory_order_relaxed);
    n_pageable.fetch_add(pageable, std::memory_order_relaxed);
}

} // namespace ot_emu

using namespace ot_emu;

/* ---- the card and its faults ---- */

struct ot_emu_card ot_emu_default_card(void) {
    int n_devices = (int)setting("OT_EMU_DEVICES");
    return {"Emulated GPU", n_devices > 0 ? n_devices : 1, CUDART_VERSION, 80,   4, (size_t)1 << 30,
            99 << 10,       cudaComputeModeDefault,        false,          false};
}

void ot_emu_set_card(const struct ot_emu_card *new_card) {
    the_card = *new_card;
}

void ot_emu_fail_call(const char *function, int nth, cudaError_t error) {
    std::lock_guard<std::mutex> lock(mutex);
    faults[function] = {nth, error};
    has_faults = true;
}

void ot_emu_lose_gpu(int nth, cudaError_t error) {
    std::lock_guard<std::mutex> lock(mutex);
    lost_after = nth;
    lost_error = error;
    may_lose = true;
}

struct ot_emu_usage ot_emu_usage(void) {
    struct ot_emu_usage usage = {};
    usage.streams = n_streams;
    usage.events = n_events;
    usage.launches = n_launches;
    usage.copies = n_copies;
    usage.pageable_copies = n_pageable;
    usage.blocking_events = n_blocking;
    usage.spinning_waits = n_spinning;
    usage.most_queued = most_queued;
    memory_usage(&usage);
    banks_usage(&usage);
    return usage;
}

void ot_emu_reset(void) {
    ot_emu_break_kernels(nullptr);
    ot_emu_change_arguments(nullptr, nullptr);
    ot_emu_lose_arrival(0);
    std::lock_guard<std::mutex> lock(mutex);
    the_card = ot_emu_default_card();
    faults.clear();
    has_faults = may_lose = false;
    lost_after = 0;
    last_report.clear();
    sticky = cudaSuccess;
    last_error = cudaSuccess;
    n_launches = n_copies = n_pageable = n_spinning = most_queued = 0;
    banks_reset();
}

const char *ot_emu_report(void) {
    static thread_local std::string copy;
    std::lock_guard<std::mutex> lock(mutex);
    copy = last_report;
    return copy.c_str();
}

/* ---- versions and devices ---- */

cudaError_t cudaDriverGetVersion(int *version) {
    *version = the_card.driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    OT_EMU_ENTER();
    *count = the_card.n_devices;
    return cudaSuccess;
}

static bool is_device(int device) {
    return device >= 0 && device < the_card.n_devices;
}

static thread_local int current_device;

cudaError_t cudaSetDevice(int device) {
    OT_EMU_ENTER();
    if (!is_device(device))
        return leave(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    OT_EMU_ENTER();
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    OT_EMU_ENTER();
    if (!is_device(device))
        return leave(cudaErrorInvalidDevice);
    *prop = {};
    snprintf(prop->name, sizeof prop->name, "%s", the_card.name);
    prop->totalGlobalMem = the_card.memory_bytes;
    prop->sharedMemPerBlock = 48 << 10;
    prop->sharedMemPerBlockOptin = (size_t)the_card.shared_bytes;
    prop->major = the_card.compute_capability / 10;
    prop->minor = the_card.compute_capability % 10;
    prop->multiProcessorCount = the_card.sm_count;
    prop->l2CacheSize = 4 << 20;
    prop->asyncEngineCount = 2;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    OT_EMU_ENTER();
    if (!is_device(device))
        return leave(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = MAX_THREADS;
        break;
    case cudaDevAttrComputeMode:
        *value = the_card.compute_mode;
        break;
    case cudaDevAttrKernelExecTimeout:
        *value = the_card.has_display;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 48 << 10;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = the_card.shared_bytes;
        break;
    case cudaDevAttrWarpSize:
        *value = WARP;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = the_card.sm_count;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = the_card.compute_capability / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = the_card.compute_capability % 10;
        break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
        *value = 1000000; /* kHz */
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = 1024;
        break;
    case cudaDevAttrL2CacheSize:
        *value = 4 << 20;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value = 2;
        break;
    case cudaDevAttrHostRegisterSupported:
        *value = 1;
        break;
    case cudaDevAttrPciBusId:
        *value = device + 1;
        break;
    default: /* integrated, compute mode, ECC, PCI domain and device */
        *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device) {
    OT_EMU_ENTER();
    if (!is_device(device))
        return leave(cudaErrorInvalidDevice);
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", (unsigned)device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) {
    OT_EMU_ENTER();
    char name[32];
    for (int i = 0; i < the_card.n_devices; i++) {
        snprintf(name, sizeof name, "0000:%02x:00.0", (unsigned)i + 1);
        if (strcmp(name, id) == 0) {
            *device = i;
            return cudaSuccess;
        }
    }
    return leave(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    OT_EMU_ENTER();
    if (!is_device(device) || !is_device(peer))
        return leave(cudaErrorInvalidDevice);
    *can = the_card.has_peers && device != peer;
    return cudaSuccess;
}

static thread_local uint64_t enabled_peers; /* bits */

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    OT_EMU_ENTER();
    if (!is_device(peer) || peer == current_device || !the_card.has_peers || flags != 0)
        return leave(cudaErrorInvalidDevice);
    if (enabled_peers >> peer & 1)
        return leave(cudaErrorPeerAccessAlreadyEnabled);
    enabled_peers |= (uint64_t)1 << peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    OT_EMU_ENTER();
    if (!is_device(peer) || !(enabled_peers >> peer & 1))
        return leave(cudaErrorPeerAccessNotEnabled);
    enabled_peers &= ~((uint64_t)1 << peer);
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void) {
    OT_EMU_ENTER();
    return cudaSuccess;
}

/* ---- errors ---- */

cudaError_t cudaPeekAtLastError(void) {
    return sticky_error() != cudaSuccess ? sticky_error() : last_error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

struct ErrorText {
    cudaError_t error;
    const char *name, *text;
};
#define TEXT(error, text)                                                                                    \
    { error, #error, text }
static const ErrorText error_texts[] = {
    TEXT(cudaSuccess, "no error"),
    TEXT(cudaErrorInvalidValue, "invalid argument"),
    TEXT(cudaErrorMemoryAllocation, "out of memory"),
    TEXT(cudaErrorInitializationError, "initialization error"),
    TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    TEXT(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    TEXT(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    TEXT(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    TEXT(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    TEXT(cudaErrorInvalidDeviceFunction, "invalid device function"),
    TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    TEXT(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    TEXT(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    TEXT(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    TEXT(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    TEXT(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    TEXT(cudaErrorUnsupportedPtxVersion, "the provided PTX was compiled with an unsupported toolchain."),
    TEXT(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    TEXT(cudaErrorNotReady, "device not ready"),
    TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    TEXT(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    TEXT(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    TEXT(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    TEXT(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    TEXT(cudaErrorAssert, "device-side assert triggered"),
    TEXT(cudaErrorHardwareStackError, "hardware stack error"),
    TEXT(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    TEXT(cudaErrorMisalignedAddress, "misaligned address"),
    TEXT(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    TEXT(cudaErrorInvalidPc, "invalid program counter"),
    TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    TEXT(cudaErrorNotPermitted, "operation not permitted"),
    TEXT(cudaErrorNotSupported, "operation not supported"),
    TEXT(cudaErrorSystemNotReady, "system not yet initialized"),
    TEXT(cudaErrorSystemDriverMismatch, "system has unsupported display driver / cuda driver combination"),
    TEXT(cudaErrorCompatNotSupportedOnDevice, "forward compatibility was attempted on non supported HW"),
};
#undef TEXT

static const ErrorText *find_text(cudaError_t error) {
    for (const ErrorText &text : error_texts)
        if (text.error == error)
            return &text;
    return nullptr;
}

const char *cudaGetErrorName(cudaError_t error) {
    const ErrorText *text = find_text(error);
    return text ? text->name : "cudaErrorUnknown";
}

/* Returns CUDA's own text. For the error that was reported last it adds the report, so that everyone who
 * prints the text sees the report. */
const char *cudaGetErrorString(cudaError_t error) {
    static thread_local std::string sentence;
    const ErrorText *text = find_text(error);
    const char *report = ot_emu_report();
    if (!text)
        return "unknown error";
    if (error != sticky_error() || error == cudaSuccess || !report[0])
        return text->text;
    sentence = std::string(text->text) + ": " + report;
    return sentence.c_str();
}

/* ---- kernels ---- */

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute attribute, int value) {
    OT_EMU_ENTER();
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > the_card.shared_bytes)
        return leave(cudaErrorInvalidValue);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int block_size,
                                                          size_t shared_bytes) {
    OT_EMU_ENTER();
    size_t by_threads = 2048 / (size_t)(block_size > 0 ? block_size : 1);
    size_t by_shared = shared_bytes ? (size_t)the_card.shared_bytes / shared_bytes : by_threads;
    *blocks = (int)(by_threads < by_shared ? by_threads : by_shared);
    return cudaSuccess;
}
