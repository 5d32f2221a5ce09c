/* GPUs that cannot be used, and GPUs that fail during a run. Each failure gives one sentence, nothing hangs,
 * and all memory is returned. On the emulated device alone, because only it can be made to fail. */
#include "tests/support/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_health.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/ops.h"
#include "tests/emu/emu_faults.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/fakes/fake_nvml.h"

enum { MIB = 1 << 20 };

static int reset(void **state) {
    (void)state;
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
    ot_fake_cublaslt_reset();
    ot_fake_nvml_reset();
    ot_emu_reset();
    return 0;
}

static int check_all_is_back(void **state) {
    (void)state;
    struct ot_emu_usage usage = ot_emu_usage();
    assert_int_equal(usage.streams, 0);
    assert_int_equal(usage.events, 0);
    assert_int_equal(usage.allocations, 0);
    assert_int_equal(usage.registered, 0);
    return 0;
}

static int open_index(int index, size_t memory_bytes, struct ot_device **out) {
    struct ot_device_config config = {
        .kind = "cuda", .index = index, .memory_bytes = memory_bytes, .threads = 1};
    return ot_device_open(&config, out);
}

static void check_no_device(int index, size_t memory_bytes, int code, const char *words) {
    struct ot_device *device;
    check_fails(open_index(index, memory_bytes, &device), code, words);
    assert_null(device);
}

static struct ot_emu_card card(void) {
    return ot_emu_default_card();
}

/* ---- no GPU ---- */

static void test_no_driver(void **state) {
    (void)state;
    struct ot_emu_card none = card();
    none.driver_version = 0;
    ot_emu_set_card(&none);
    check_no_device(0, 0, OT_E_DEVICE, "no NVIDIA driver is installed here");
    assert_int_equal(ot_error_cause(), OT_CAUSE_NO_DRIVER);
    assert_false(ot_device_is_present("cuda"));
}

static void test_old_driver(void **state) {
    (void)state;
    struct ot_emu_card old = card();
    old.driver_version = 12040;
    ot_emu_set_card(&old);
    check_no_device(
        0, 0, OT_E_DEVICE,
        "the NVIDIA driver is too old: it is for CUDA 12.4, this program needs one for CUDA 13.1");
    /* A user with an old driver gets an error; the run does not fall back to the CPU. */
    assert_true(ot_device_is_present("cuda"));
}

static void test_no_gpu(void **state) {
    (void)state;
    struct ot_emu_card none = card();
    none.n_devices = 0;
    ot_emu_set_card(&none);
    check_no_device(0, 0, OT_E_DEVICE, "the NVIDIA driver is here, but it finds no GPU");
    assert_int_equal(ot_error_cause(), OT_CAUSE_NO_GPU);
    assert_false(ot_device_is_present("cuda"));
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    check_no_device(0, 0, OT_E_DEVICE, "CUDA_VISIBLE_DEVICES is '', which hides every GPU; unset it");
}

static void test_index(void **state) {
    (void)state;
    struct ot_emu_card two = card();
    two.n_devices = 2;
    ot_emu_set_card(&two);
    check_no_device(2, 0, OT_E_DEVICE, "there is no GPU 2: 2 are visible, counted from 0");
    setenv("CUDA_VISIBLE_DEVICES", "4,6", 1);
    check_no_device(7, 0, OT_E_DEVICE,
                    "there is no GPU 7: 2 are visible (CUDA_VISIBLE_DEVICES is '4,6'), counted from 0");
    struct ot_device *device;
    check_ok(open_index(1, 0, &device));
    assert_non_null(strstr(ot_device_name(device), "cuda: GPU 1 ("));
    ot_device_close(device);
}

static void test_driver_does_not_start(void **state) {
    (void)state;
    ot_emu_fail_call("cudaGetDeviceCount", 1, cudaErrorSystemDriverMismatch);
    check_no_device(0, 0, OT_E_DEVICE, "CUDA: cannot start: ");
    ot_emu_fail_call("cudaGetDeviceProperties", 1, cudaErrorUnknown);
    check_no_device(0, 0, OT_E_DEVICE, "cannot ask for the properties of GPU 0: the GPU stopped answering");
}

/* ---- a GPU that cannot be used ---- */

static void test_architecture(void **state) {
    (void)state;
    struct ot_emu_card other = card();
    other.name = "Tesla V100";
    other.compute_capability = 70;
    ot_emu_set_card(&other);
    check_no_device(0, 0, OT_E_DEVICE, "GPU 0 (Tesla V100, sm_70) is too old: sm_75 and newer are supported");
}

/* A driver that is older than the toolkit, with the same major version, runs the toolkit's machine code but
 * cannot compile its PTX. */
static void test_older_driver_of_the_same_major_version(void **state) {
    (void)state;
    struct ot_emu_card older = card();
    struct ot_device *device;
    older.driver_version = 13000;
    ot_emu_set_card(&older);
    check_ok(open_index(0, 0, &device));
    ot_device_close(device);
    older.compute_capability = 90; /* the emulated build has machine code for 75 and 80 */
    ot_emu_set_card(&older);
    check_no_device(0, 0, OT_E_DEVICE,
                    "is newer than this build (sm_ 75 80); its driver is for CUDA 13.0, and translating the "
                    "kernels needs a driver for CUDA 13.1");
    older.driver_version = 13010;
    ot_emu_set_card(&older);
    check_ok(open_index(0, 0, &device));
    ot_device_close(device);
}

/* Machine code runs on its major version; PTX runs on all newer versions. */
static void test_which_code_runs(void **state) {
    (void)state;
    assert_true(ot_cuda_runs_on("80 86", 80));
    assert_true(ot_cuda_runs_on("80 90", 89));
    assert_true(ot_cuda_runs_on("80", 90));
    assert_true(ot_cuda_runs_on("75 80", 120));
    assert_false(ot_cuda_runs_on("86 90", 80));
    assert_false(ot_cuda_runs_on("80 90", 75));
    assert_false(ot_cuda_runs_on("89 120", 100));
    assert_false(ot_cuda_needs_ptx("80 90", 89));
    assert_true(ot_cuda_needs_ptx("80 90", 100));
}

static void test_no_bf16(void **state) {
    (void)state;
    struct ot_emu_card turing = card();
    turing.compute_capability = 75;
    ot_emu_set_card(&turing);
    struct ot_device *device;
    check_ok(open_index(0, 0, &device));
    assert_false(ot_device_has_dtype(device, OT_BF16));
    assert_true(ot_device_has_dtype(device, OT_F16));
    ot_device_close(device);
}

static void test_busy(void **state) {
    (void)state;
    ot_emu_fail_call("cudaSetDevice", 1, cudaErrorDevicesUnavailable);
    check_no_device(0, 0, OT_E_DEVICE, "is busy: another program has it for itself");
    assert_int_equal(ot_error_cause(), OT_CAUSE_GPU_BUSY);
    ot_emu_fail_call("cudaSetDevice", 1, cudaErrorMemoryAllocation);
    check_no_device(0, 0, OT_E_DEVICE, "has no memory left to start in: other programs use it all");
    struct ot_emu_card prohibited = card();
    prohibited.compute_mode = cudaComputeModeProhibited;
    ot_emu_set_card(&prohibited);
    ot_emu_fail_call("cudaSetDevice", 1, cudaErrorDevicesUnavailable);
    check_no_device(0, 0, OT_E_DEVICE, "is in compute mode 'prohibited': nvidia-smi -c 0");
}

static void test_too_small(void **state) {
    (void)state;
    check_no_device(0, 16 * MIB, OT_E_BUDGET, "are too little: the kernels' workspace alone takes 64.0 MiB");
    struct ot_device *all, *whole;
    struct ot_device_usage usage, whole_usage;
    check_ok(open_index(0, 0, &all));
    ot_device_usage(all, &usage);
    ot_device_close(all);
    check_ok(open_index(0, 1100 * MIB, &whole)); /* 1,024 MiB of it, under the product's name */
    ot_device_usage(whole, &whole_usage);
    ot_device_close(whole);
    assert_int_equal(whole_usage.budget_bytes, usage.budget_bytes);
    assert_int_equal(usage.total_bytes, 1024 * MIB);
    assert_int_equal(usage.taken_bytes, 0);
    void *of_another;
    assert_int_equal(cudaMalloc(&of_another, 200 * MIB), cudaSuccess);
    check_ok(open_index(0, 0, &all));
    ot_device_usage(all, &usage);
    ot_device_close(all);
    assert_int_equal(usage.taken_bytes, 200 * MIB);
    assert_int_equal(cudaFree(of_another), cudaSuccess);
    struct ot_emu_card small = card();
    small.memory_bytes = 300 * MIB;
    ot_emu_set_card(&small);
    check_no_device(0, 0, OT_E_BUDGET, "44.0 MiB of GPU 0 (");
}

/* A budget that is larger than the free memory is tried. A budget that is larger than the GPU's memory means
 * all of it. */
static void test_budget_beyond_what_is_free(void **state) {
    (void)state;
    struct ot_device *device;
    struct ot_device_usage usage;
    void *other, *memory, *none;
    assert_int_equal(cudaMalloc(&other, 512u * MIB), cudaSuccess); /* memory of another program */
    check_ok(open_index(0, 800u * MIB, &device));
    ot_device_usage(device, &usage);
    assert_int_equal(usage.budget_bytes, 800u * MIB);
    check_fails(ot_device_alloc(device, 600u * MIB, "the plan", &none), OT_E_BUDGET,
                "the GPU has no 600.0 MiB in one piece left for 'the plan'");
    assert_int_equal(cudaFree(other), cudaSuccess);
    check_ok(ot_device_alloc(device, 600u * MIB, "the plan", &memory));
    ot_device_free(device, memory);
    ot_device_close(device);
    check_ok(open_index(0, (size_t)2048 * MIB, &device));
    ot_device_usage(device, &usage);
    assert_int_equal(usage.budget_bytes, 768u * MIB); /* 1 GiB minus the memory that is left to others */
    ot_device_close(device);
}

/* ---- a GPU that works but reports problems ---- */

static void check_warnings(const struct ot_emu_card *emulated, int n, const char *const words[]) {
    struct ot_cuda_gpu gpu;
    struct ot_cuda_warnings warnings;
    ot_emu_set_card(emulated);
    check_ok(ot_cuda_find_gpu(0, &gpu));
    ot_cuda_warnings(&gpu, &warnings);
    assert_int_equal(warnings.n, n);
    for (int i = 0; i < n; i++)
        if (!strstr(warnings.text[i], words[i]))
            fail_msg("'%s' does not say '%s'", warnings.text[i], words[i]);
    assert_int_equal(ot_fake_nvml.open, 0);
}

static void test_health(void **state) {
    (void)state;
    struct ot_emu_card screen = card(), headless = card();
    screen.has_display = true;
    check_warnings(&headless, 0, NULL);
    ot_fake_nvml = (struct ot_fake_nvml){.uncorrected = 3, .rows_pending = 1};
    check_warnings(
        &screen, 3,
        (const char *const[]){"GPU 0 (Emulated GPU, sm_80) has had 3 memory errors that ECC could not",
                              "has bad memory that its next reset replaces", "also drives a display"});
    ot_fake_nvml = (struct ot_fake_nvml){.rows_pending = 1, .rows_failed = 1};
    check_warnings(&headless, 1, (const char *const[]){"no spare left to replace it: do not train on it"});
    ot_fake_nvml = (struct ot_fake_nvml){.pages_pending = 1, .missing_symbol = "nvmlDeviceGetRemappedRows"};
    check_warnings(&headless, 1, (const char *const[]){"its next reset replaces"});
    /* An answer that the library cannot give is unknown: it causes no warning and no refusal. */
    ot_fake_nvml = (struct ot_fake_nvml){.uncorrected = 3, .answer_status = 3};
    check_warnings(&headless, 0, NULL);
    ot_fake_nvml = (struct ot_fake_nvml){.uncorrected = 3, .init_status = 9};
    check_warnings(&headless, 0, NULL);
    ot_fake_nvml = (struct ot_fake_nvml){.uncorrected = 3, .find_status = 4};
    check_warnings(&headless, 0, NULL);
    ot_fake_nvml = (struct ot_fake_nvml){.uncorrected = 3, .missing_symbol = "nvmlInit_v2"};
    check_warnings(&headless, 0, NULL);
    ot_fake_nvml = (struct ot_fake_nvml){.uncorrected = 3, .is_missing = true};
    check_warnings(&headless, 0, NULL);
}

static void test_a_display_keeps_its_memory(void **state) {
    (void)state;
    struct ot_emu_card screen = card();
    screen.memory_bytes = (size_t)4096 * MIB;
    screen.has_display = true;
    ot_emu_set_card(&screen);
    struct ot_device *device;
    struct ot_device_usage usage;
    check_ok(open_index(0, 0, &device));
    ot_device_usage(device, &usage);
    assert_int_equal(usage.budget_bytes, (size_t)3072 * MIB);
    ot_device_close(device);
}

/* Memory was free at the start, and another program takes it later. */
static void test_memory_is_gone(void **state) {
    (void)state;
    struct ot_device *device;
    struct ot_device_usage usage;
    void *none;
    check_ok(open_index(0, 200 * MIB, &device));
    ot_emu_fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
    check_fails(ot_device_alloc(device, 100 * MIB, "the plan", &none), OT_E_BUDGET,
                "the GPU has no 100.0 MiB in one piece left for 'the plan'");
    assert_int_equal(ot_error_cause(), OT_CAUSE_DEVICE_MEMORY);
    assert_null(none);
    ot_device_usage(device, &usage);
    assert_int_equal(usage.used_bytes, usage.scratch_bytes);
    ot_emu_fail_call("cudaHostRegister", 1, cudaErrorMemoryAllocation);
    check_fails(ot_device_alloc_pinned(device, 5 * MIB, "the plan", &none), OT_E_BUDGET,
                "cannot pin 5.0 MiB of host memory for 'the plan': out of memory");
    assert_int_equal(ot_error_cause(), OT_CAUSE_PINNED_MEMORY);
    assert_null(none);
    ot_device_usage(device, &usage);
    assert_int_equal(usage.pinned_bytes, 0);
    ot_device_close(device);
}

static void test_library_that_was_given(void **state) {
    (void)state;
    struct ot_device_config config = {.kind = "cuda", .threads = 1, .blas = "/nowhere/libcublasLt.so.13"};
    struct ot_device *device;
    check_fails(ot_device_open(&config, &device), OT_E_DEVICE, "the given libcublasLt cannot be opened");
    ot_fake_cublaslt.libraries[1] = ot_fake_cublaslt.libraries[0];
    ot_fake_cublaslt.libraries[1].path = config.blas;
    ot_fake_cublaslt.libraries[1].patch = 7;
    check_ok(ot_device_open(&config, &device));
    assert_non_null(strstr(ot_device_name(device), "cuBLASLt 13.1.7"));
    ot_device_close(device);
}

/* Each call that opening a device makes fails once: the error is a sentence, and nothing stays allocated. */
static void test_every_call_of_opening(void **state) {
    (void)state;
    static const char *const calls[] = {"cudaGetDeviceCount",
                                        "cudaGetDeviceProperties",
                                        "cudaDeviceGetAttribute",
                                        "cudaSetDevice",
                                        "cudaMemGetInfo",
                                        "cudaHostAlloc",
                                        "cudaMalloc",
                                        "cudaEventRecord",
                                        "cudaEventQuery",
                                        "cudaEventCreateWithFlags"};
    struct ot_device *device;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        ot_emu_fail_call(calls[i], 1, cudaErrorInitializationError);
        if (open_index(0, 0, &device) != -OT_E_DEVICE)
            fail_msg("the device was opened although %s failed", calls[i]);
        check_all_is_back(NULL);
        reset(NULL);
    }
    ot_fake_cublaslt.create_status = 1;
    check_no_device(0, 0, OT_E_DEVICE, "does not start on this GPU");
}

/* Each call that opening a lane makes fails once. (The emulated runtime makes every stream with the call that
 * takes a priority.) */
static void test_every_call_of_a_lane(void **state) {
    (void)state;
    static const char *const calls[] = {"cudaStreamCreateWithPriority", "cudaEventCreateWithFlags"};
    struct ot_device *device;
    struct ot_lane *lane;
    check_ok(open_index(0, 0, &device));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int nth = 1; nth <= (i == 0 ? 1 : 9); nth += 4) {
            ot_emu_fail_call(calls[i], nth, cudaErrorUnknown);
            check_fails(ot_lane_open(device, "lane", &lane), OT_E_DEVICE, "the lane 'lane'");
            assert_null(lane);
        }
    ot_device_close(device);
}

/* ---- failures during a run ---- */

struct work {
    struct ot_device *device;
    struct ot_lane *compute, *d2h;
    struct ot_event *event;
    float *memory, *host;
};

static struct work open_work(void) {
    struct work w;
    check_ok(open_index(0, 0, &w.device));
    check_ok(ot_lane_open(w.device, "compute", &w.compute));
    check_ok(ot_lane_open(w.device, "d2h", &w.d2h));
    check_ok(ot_event_create(w.device, &w.event));
    check_ok(ot_device_alloc(w.device, 4096, "memory", (void **)&w.memory));
    check_ok(ot_device_alloc_pinned(w.device, 4096, "host", (void **)&w.host));
    ot_lane_fill(w.compute, w.memory, 0, 4096);
    check_ok(ot_lane_sync(w.compute));
    return w;
}

static void close_work(struct work *w) {
    ot_lane_close(w->compute);
    ot_lane_close(w->d2h);
    ot_event_destroy(w->event);
    ot_device_free(w->device, w->memory);
    ot_device_free_pinned(w->device, w->host, 4096);
    ot_device_close(w->device);
}

static void add(struct work *w, float *memory) {
    struct ot_add op = {.dtype = OT_F32, .n = 1024, .a = memory, .b = memory, .out = memory};
    ot_device_ops(w->device)->add(w->compute, &op);
}

static void count(void *arg) {
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* A kernel accesses memory that is not its own. The error names the task that launched the kernel, although
 * other tasks have been enqueued since. Every lane fails. Notifications are called nevertheless, so that no
 * thread waits forever. */
static void test_illegal_access_names_its_task(void **state) {
    (void)state;
    struct work w = open_work();
    atomic_int called = 0;
    ot_lane_mark(w.compute, "forward layer.2 #0");
    add(&w, w.memory);
    ot_lane_mark(w.compute, "backward layer.3 #2");
    add(&w, w.memory + 512); /* half of it lies beyond the end */
    ot_lane_notify(w.compute, count, &called);
    ot_lane_record(w.compute, w.event);
    ot_lane_mark(w.compute, "update gpu layer.3");
    add(&w, w.memory);
    ot_lane_mark(w.d2h, "gradients out layer.3");
    ot_lane_wait(w.d2h, w.event);
    ot_lane_copy(w.d2h, OT_COPY_D2H, w.host, w.memory, 4096);
    ot_lane_notify(w.d2h, count, &called);
    const char *sentence = "CUDA: an illegal memory access in 'backward layer.3 #2' on the compute lane";
    check_fails(ot_lane_sync(w.compute), OT_E_DEVICE, sentence);
    check_fails(ot_lane_error(w.compute), OT_E_DEVICE, sentence);
    check_fails(ot_lane_sync(w.d2h), OT_E_DEVICE, sentence);
    check_fails(ot_event_sync(w.event), OT_E_DEVICE,
                "CUDA: an illegal memory access in 'backward layer.3 #2'");
    assert_int_equal(atomic_load(&called), 2);
    ot_lane_notify(w.compute, count, &called); /* notifications are called after the failure too */
    ot_lane_call(w.compute, count, &called);   /* calls are not */
    check_fails(ot_lane_sync(w.compute), OT_E_DEVICE, sentence);
    assert_int_equal(atomic_load(&called), 3);
    ot_fail(OT_E_DEVICE, "what the caller is about to say"); /* closing does not replace this error */
    close_work(&w);
    assert_string_equal(ot_error_text(), "what the caller is about to say");
}

static void test_gpu_is_lost(void **state) {
    (void)state;
    struct work w = open_work();
    atomic_int called = 0;
    ot_emu_lose_gpu(3, cudaErrorUnknown);
    ot_lane_mark(w.compute, "forward layer.0 #0");
    for (int i = 0; i < 8; i++)
        add(&w, w.memory);
    ot_lane_notify(w.compute, count, &called);
    check_fails(
        ot_lane_sync(w.compute), OT_E_DEVICE,
        "CUDA: the GPU stopped answering (unknown error) in 'forward layer.0 #0' on the compute lane; the "
        "kernel's log (dmesg, Xid) says more");
    assert_int_equal(atomic_load(&called), 1);
    close_work(&w);
}

/* RUN-AHEAD (cuda_state.h): the GPU is never more than this number of commands behind, however many are
 * enqueued. */
static void test_run_ahead_is_bounded(void **state) {
    (void)state;
    struct ot_device *device;
    struct ot_lane *lane;
    void *memory;
    struct ot_device_config config = {.kind = "cuda", .threads = 1, .lane_delay_seed = 7};
    /* Each command takes the GPU a while, and enqueuing takes no time. */
    check_ok(ot_device_open(&config, &device));
    check_ok(ot_lane_open(device, "fills", &lane));
    check_ok(ot_device_alloc(device, 64, "memory", &memory));
    int64_t spinning = ot_emu_usage().spinning_waits; /* the waits of opening do not count */
    for (int i = 0; i < 4 * OT_CUDA_RUN_AHEAD; i++)
        ot_lane_fill(lane, memory, i & 255, 64);
    struct ot_emu_usage usage = ot_emu_usage();
    check_ok(ot_lane_sync(lane));
    /* each fill has its delay before it, and each round has its event */
    assert_in_range(usage.most_queued, OT_CUDA_RUN_AHEAD, 2 * OT_CUDA_RUN_AHEAD + OT_CUDA_ROUNDS + 1);
    assert_int_equal(usage.spinning_waits, spinning);
    ot_lane_close(lane);
    ot_device_free(device, memory);
    ot_device_close(device);
}

/* Events between lanes are waited for on the GPU, so they are plain events. Events on which a host thread can
 * sleep cost more. */
static void test_edges_have_plain_events(void **state) {
    (void)state;
    struct ot_device *device;
    struct ot_event *edge, *timed;
    check_ok(open_index(0, 0, &device));
    int blocking = ot_emu_usage().blocking_events;
    check_ok(ot_event_create(device, &edge));
    check_ok(ot_event_create_timed(device, &timed));
    assert_int_equal(ot_emu_usage().blocking_events, blocking);
    ot_event_destroy(edge);
    ot_event_destroy(timed);
    ot_device_close(device);
}

/* A call that is refused names the current task, and only its own lane fails. */
static void test_refused_calls(void **state) {
    (void)state;
    struct work w = open_work();
    ot_lane_mark(w.d2h, "results out");
    ot_emu_fail_call("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
    ot_lane_copy(w.d2h, OT_COPY_D2H, w.host, w.memory, 64);
    check_fails(ot_lane_error(w.d2h), OT_E_DEVICE, "CUDA: invalid argument");
    check_fails(ot_lane_sync(w.d2h), OT_E_DEVICE, "in 'results out' on the d2h lane");
    ot_emu_fail_call("cudaMemcpyAsync", 1,
                     cudaErrorUnknown); /* the first failure stays, and no further call is made */
    ot_lane_copy(w.d2h, OT_COPY_D2H, w.host, w.memory, 64);
    check_fails(ot_lane_sync(w.d2h), OT_E_DEVICE, "CUDA: invalid argument");
    add(&w, w.memory);
    check_ok(ot_lane_sync(w.compute));
    ot_emu_fail_call("cudaLaunchKernel", 1, cudaErrorLaunchOutOfResources);
    add(&w, w.memory);
    check_fails(ot_lane_sync(w.compute), OT_E_DEVICE,
                "CUDA: a kernel needs more registers than this GPU has on the compute lane");
    close_work(&w);
}

static void test_failed_waits_and_records(void **state) {
    (void)state;
    static const char *const calls[] = {"cudaEventRecord", "cudaStreamWaitEvent", "cudaMemsetAsync"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct work w = open_work();
        ot_emu_fail_call(calls[i], 1, cudaErrorInvalidResourceHandle);
        ot_lane_record(w.compute, w.event);
        ot_lane_wait(w.d2h, w.event);
        ot_lane_fill(w.d2h, w.memory, 1, 64);
        int rc[2] = {ot_lane_sync(w.compute), ot_lane_sync(w.d2h)};
        assert_int_equal(rc[i == 0 ? 0 : 1], -OT_E_DEVICE);
        assert_int_equal(rc[i == 0 ? 1 : 0], 0);
        close_work(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_driver, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_old_driver, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_no_gpu, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_index, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_driver_does_not_start, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_architecture, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_which_code_runs, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_older_driver_of_the_same_major_version, reset,
                                        check_all_is_back),
        cmocka_unit_test_setup_teardown(test_no_bf16, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_busy, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_too_small, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_budget_beyond_what_is_free, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_health, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_a_display_keeps_its_memory, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_memory_is_gone, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_library_that_was_given, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_every_call_of_opening, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_every_call_of_a_lane, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_illegal_access_names_its_task, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_gpu_is_lost, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_run_ahead_is_bounded, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_edges_have_plain_events, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_refused_calls, reset, check_all_is_back),
        cmocka_unit_test_setup_teardown(test_failed_waits_and_records, reset, check_all_is_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
