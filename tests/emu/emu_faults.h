/* The emulated card and its faults, for tests of host code. C and C++ code may include this header.
 *
 * A card stays until ot_emu_reset(). Faults count from the call that sets them. Any thread may call these
 * functions, but not while other threads use the runtime.
 */
#ifndef OT_EMU_FAULTS_H
#define OT_EMU_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ot_emu_card {
    const char *name;
    int n_devices;          /* all devices are alike; 0: cudaErrorNoDevice */
    int driver_version;     /* 0: no driver; below CUDART_VERSION's major version: too old */
    int compute_capability; /* times ten: 80, 89, 90, 120 */
    int sm_count;
    size_t memory_bytes;
    int shared_bytes; /* the most that one block may have, opted in */
    int compute_mode; /* an enum cudaComputeMode */
    bool has_display; /* the card limits the run time of kernels to seconds */
    bool has_peers;   /* a device can reach the memory of the others */
};

/* sm_80 with 1 GiB of memory. A block may have 99 KiB of shared memory, as on sm_86, sm_89 and sm_120.
 * OT_EMU_DEVICES in the environment sets the number of devices; 1 by default. A process may use one of them,
 * and copy to the others.
 */
struct ot_emu_card ot_emu_default_card(void);
void ot_emu_set_card(const struct ot_emu_card *card);

/* The nth call (1: the next one) of the named runtime function returns `error` and does nothing else. Each
 * function has at most one fault. ot_launch is "cudaLaunchKernel". */
void ot_emu_fail_call(const char *function, int nth, cudaError_t error);

/* Loses the GPU at the nth command that a stream runs (kernel, copy, fill; 1: the next one). That command and
 * all later ones do nothing, and every later call returns `error`. */
void ot_emu_lose_gpu(int nth, cudaError_t error);

/* From now on, kernels whose name contains the text do nothing, so their results are wrong; NULL: no
 * kernel. */
void ot_emu_break_kernels(const char *part_of_name);

/* From now on, kernels whose name contains the text get their arguments through this function: `first` is the
 * copy of the first argument that the kernel will read. The function runs on the stream's thread just before
 * the kernel, so it may also stop or end the process there. NULL: no kernel. */
void ot_emu_change_arguments(const char *part_of_name, void (*change)(void *first));

/* The nth arrival at an mbarrier (1: the next one) is lost; 0: none. */
void ot_emu_lose_arrival(int nth);

/* Open objects and counters, for tests that check that everything was freed. */
struct ot_emu_usage {
    int streams, events, allocations, registered;
    size_t allocated_bytes, registered_bytes;
    int64_t launches, copies,
        pageable_copies; /* copies from or to host memory that is not registered, for which the host waits */
    int blocking_events; /* those of the open events that were made with cudaEventBlockingSync */
    /* waits of host threads for an event without cudaEventBlockingSync, which keep a core busy */
    int64_t spinning_waits;
    /* how often eight lanes accessed shared memory by ldmatrix or cp.async, and how many of these lanes had
     * to wait for another one that used the same banks (emu_banks.cpp) */
    int64_t shared_accesses, bank_conflicts;
    int64_t most_queued; /* the most commands that a stream held at once, including those that had begun */
};
struct ot_emu_usage ot_emu_usage(void);

/* Resets the runtime as if the process were new: the default card, no faults, no error. Streams, events and
 * memory must have been freed. */
void ot_emu_reset(void);

#ifdef __cplusplus
}
#endif

#endif
