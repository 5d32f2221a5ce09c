/* The emulated card and what goes wrong with it, for tests of host code. C and C++.
 *
 * The card is described once and stays until ot_emu_reset(); faults are counted from when they are set. All
 * of it may be called from any thread, but not while other threads use the runtime.
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
    int n_devices;          /* 0: cudaErrorNoDevice; all are alike */
    int driver_version;     /* 0: no driver; less than CUDART_VERSION's major: too old */
    int compute_capability; /* times ten: 80, 89, 90, 120 */
    int sm_count;
    size_t memory_bytes;
    int shared_bytes; /* of one block, opted in */
    int compute_mode; /* enum cudaComputeMode */
    bool has_display; /* its kernels may run for seconds at most */
};

/* sm_80 with 1 GiB, and 99 KiB of shared memory for a block: what sm_86, sm_89 and sm_120 have. */
struct ot_emu_card ot_emu_default_card(void);
void ot_emu_set_card(const struct ot_emu_card *card);

/* The nth call (1: the next one) of the named runtime function returns `error` and does nothing else. One
 * fault for each function at a time; ot_launch is "cudaLaunchKernel". */
void ot_emu_fail_call(const char *function, int nth, cudaError_t error);

/* From the nth command on that a stream runs (kernel, copy, fill; 1: the next one), the GPU is lost: that
 * command and all after it do nothing, and every later call returns `error`. */
void ot_emu_lose_gpu(int nth, cudaError_t error);

/* From now on kernels whose name contains the text do nothing, as if they were wrong; NULL: none. */
void ot_emu_break_kernels(const char *part_of_name);

/* What is open: for tests that all was given back. */
struct ot_emu_usage {
    int streams, events, allocations, registered;
    size_t allocated_bytes, registered_bytes;
    int64_t launches, copies,
        pageable_copies; /* from or to host memory that is not registered: the host waits */
    int blocking_events;   /* of the events that are open: made with cudaEventBlockingSync */
    int64_t spinning_waits; /* host threads that waited for an event without it, which keeps a core busy */
    int64_t most_queued;    /* commands that a stream had at once, begun ones included: the most of all */
};
struct ot_emu_usage ot_emu_usage(void);

/* A new process, as far as the runtime is concerned: the default card, no faults, no error. Streams, events
 * and memory must have been given back. */
void ot_emu_reset(void);

#ifdef __cplusplus
}
#endif

#endif
