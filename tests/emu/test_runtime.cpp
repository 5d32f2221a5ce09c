/* The emulated runtime: memory, streams, events, faults. */
#include <semaphore.h>
#include <unistd.h>

#include "tests/emu/emu_fixture.h"

static constexpr size_t N = 1 << 14;

#define check_cuda(expr)                                                                                     \
    do {                                                                                                     \
        cudaError_t rc_ = (expr);                                                                            \
        if (rc_ != cudaSuccess)                                                                              \
            fail_msg("%s: %s", #expr, cudaGetErrorString(rc_));                                              \
    } while (0)

/* Registered (pinned) host memory, which copies may read and write. */
struct Pinned {
    std::vector<float> values;
    explicit Pinned(float value) : values(N, value) {
        check_cuda(cudaHostRegister(values.data(), bytes(), 0));
    }
    ~Pinned() { cudaHostUnregister(values.data()); }
    size_t bytes() const { return N * sizeof(float); }
};

static __global__ void add_one(float *data, int n) {
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x))
        data[i] += 1;
}

/* ---- streams and events ---- */

struct Pipeline {
    cudaStream_t up, compute, down;
    cudaEvent_t copied, computed;
    float *device;

    Pipeline() {
        for (cudaStream_t *stream : {&up, &compute, &down})
            check_cuda(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0));
        for (cudaEvent_t *event : {&copied, &computed})
            check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
        check_cuda(cudaMalloc((void **)&device, N * sizeof(float)));
    }
    ~Pipeline() {
        for (cudaStream_t stream : {up, compute, down})
            cudaStreamDestroy(stream);
        for (cudaEvent_t event : {copied, computed})
            cudaEventDestroy(event);
        cudaFree(device);
    }
};

/* Copy up, add one, copy down, each on its own stream. Without the events, the copy down may run first. */
static void run_round(Pipeline *p, Pinned *host) {
    check_cuda(cudaMemcpyAsync(p->device, host->values.data(), host->bytes(), cudaMemcpyHostToDevice, p->up));
    check_cuda(cudaEventRecord(p->copied, p->up));
    check_cuda(cudaStreamWaitEvent(p->compute, p->copied, 0));
    check_cuda(ot_launch(add_one, dim3(2), dim3(64), 0, p->compute, p->device, (int)N));
    check_cuda(cudaEventRecord(p->computed, p->compute));
    check_cuda(cudaStreamWaitEvent(p->down, p->computed, 0));
    check_cuda(
        cudaMemcpyAsync(host->values.data(), p->device, host->bytes(), cudaMemcpyDeviceToHost, p->down));
    check_cuda(cudaStreamSynchronize(p->down));
}

static void test_events_order_streams(void **) {
    for (uint64_t seed = 0; seed < 4; seed++) {
        ot_emu_set_delays(seed);
        Pipeline p;
        Pinned host(0);
        for (int i = 0; i < 5; i++)
            run_round(&p, &host);
        for (float value : host.values)
            assert_true(value == 5);
    }
    ot_emu_set_delays(0);
    struct ot_emu_usage usage = ot_emu_usage();
    assert_int_equal(usage.streams + usage.events + usage.allocations + usage.registered, 0);
}

static void wait_for_gate(void *gate) {
    sem_wait((sem_t *)gate);
}

static void test_work_is_under_way_until_it_is_done(void **) {
    Pipeline p;
    sem_t gate;
    sem_init(&gate, 0, 0);
    assert_int_equal(cudaEventQuery(p.copied), cudaSuccess); /* never recorded */
    check_cuda(cudaLaunchHostFunc(p.up, wait_for_gate, &gate));
    check_cuda(cudaEventRecord(p.copied, p.up));
    assert_int_equal(cudaEventQuery(p.copied), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(p.up), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(p.down), cudaSuccess); /* streams are independent */
    check_cuda(cudaStreamWaitEvent(p.down, p.copied, 0));
    assert_int_equal(cudaStreamQuery(p.down), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* "not ready" is not an error */
    sem_post(&gate);
    check_cuda(cudaEventSynchronize(p.copied));
    check_cuda(cudaDeviceSynchronize());
    assert_int_equal(cudaStreamQuery(p.down), cudaSuccess);
}

static void test_events_tell_time(void **) {
    cudaEvent_t start, end;
    float milliseconds;
    check_cuda(cudaEventCreate(&start));
    check_cuda(cudaEventCreate(&end));
    check_cuda(cudaEventRecord(start, nullptr));
    check_cuda(cudaLaunchHostFunc(
        nullptr, [](void *) { usleep(3000); }, nullptr));
    check_cuda(cudaEventRecord(end, nullptr));
    check_cuda(cudaEventSynchronize(end));
    check_cuda(cudaEventElapsedTime(&milliseconds, start, end));
    assert_true(milliseconds >= 3);
    cudaEventDestroy(start);
    cudaEventDestroy(end);
}

static void call_the_runtime(void *result) {
    size_t free_bytes, total_bytes;
    *(cudaError_t *)result = cudaMemGetInfo(&free_bytes, &total_bytes);
}

static void test_host_functions_may_not_call_the_runtime(void **) {
    cudaError_t result = cudaSuccess;
    check_cuda(cudaLaunchHostFunc(nullptr, call_the_runtime, &result));
    check_cuda(cudaStreamSynchronize(nullptr));
    assert_int_equal(result, cudaErrorNotPermitted);
}

/* ---- memory ---- */

static void test_memory_is_budgeted(void **) {
    struct ot_emu_card small = ot_emu_default_card();
    small.memory_bytes = 1 << 20;
    ot_emu_set_card(&small);
    void *first, *second;
    size_t free_bytes, total_bytes;
    check_cuda(cudaMalloc(&first, 700 << 10));
    assert_int_equal((uintptr_t)first % 256, 0);
    assert_int_equal(cudaMalloc(&second, 400 << 10), cudaErrorMemoryAllocation);
    assert_null(second);
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(total_bytes, 1 << 20);
    assert_int_equal(free_bytes, (1 << 20) - (700 << 10));
    check_cuda(cudaFree(first));
    check_cuda(cudaMalloc(&second, 1 << 20));
    check_cuda(cudaFree(second));
    assert_int_equal(cudaFree(second), cudaErrorInvalidValue);
    ot_emu_reset();
}

static void test_copies_need_memory_of_their_kind(void **) {
    Pinned host(1);
    std::vector<float> pageable(N);
    float *device;
    check_cuda(cudaMalloc((void **)&device, host.bytes()));
    assert_int_equal(
        cudaMemcpyAsync(device, host.values.data(), host.bytes() + 4, cudaMemcpyHostToDevice, nullptr),
        cudaErrorInvalidValue);
    assert_non_null(strstr(ot_emu_report(), "is not device memory"));
    assert_int_equal(
        cudaMemcpyAsync(host.values.data(), device, host.bytes(), cudaMemcpyDeviceToDevice, nullptr),
        cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(device + 1, 0, host.bytes(), nullptr), cudaErrorInvalidValue);
    assert_int_equal(cudaHostRegister(host.values.data() + 8, 64, 0), cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(cudaHostUnregister(pageable.data()), cudaErrorHostMemoryNotRegistered);
    check_cuda(cudaMemsetAsync(device, 0, host.bytes(), nullptr));
    check_cuda(cudaMemcpyAsync(host.values.data(), device, host.bytes(), cudaMemcpyDeviceToHost, nullptr));
    check_cuda(cudaStreamSynchronize(nullptr));
    assert_true(host.values[N - 1] == 0);
    cudaGetLastError();
    check_cuda(cudaFree(device));
}

static __global__ void mark(unsigned *word) {
    *word = 42;
}

static void test_kernels_reach_mapped_host_memory(void **) {
    unsigned *word;
    check_cuda(cudaHostAlloc((void **)&word, sizeof *word, cudaHostAllocMapped));
    run_well(mark, 1, 1, 0, word);
    assert_int_equal(*word, 42);
    check_cuda(cudaFreeHost(word));
    check_cuda(cudaHostAlloc((void **)&word, sizeof *word, cudaHostAllocDefault));
    if (ot_emu_checks_accesses())
        assert_int_equal(run(mark, 1, 1, 0, word), cudaErrorIllegalAddress);
    ot_emu_reset();
    check_cuda(cudaFreeHost(word));
}

/* A copy of pageable memory waits for its end, because the caller may touch the memory at once. */
static void test_copies_of_pageable_memory_are_counted(void **) {
    std::vector<float> pageable(N, 3);
    Pinned host(0);
    float *device;
    int64_t before = ot_emu_usage().pageable_copies;
    check_cuda(cudaMalloc((void **)&device, host.bytes()));
    check_cuda(cudaMemcpyAsync(device, pageable.data(), host.bytes(), cudaMemcpyHostToDevice, nullptr));
    pageable[0] = 4;
    check_cuda(cudaMemcpyAsync(host.values.data(), device, host.bytes(), cudaMemcpyDeviceToHost, nullptr));
    check_cuda(cudaStreamSynchronize(nullptr));
    assert_true(host.values[0] == 3);
    assert_int_equal(ot_emu_usage().pageable_copies - before, 1);
    check_cuda(cudaFree(device));
}

/* ---- faults ---- */

static void test_a_machine_without_a_gpu(void **) {
    int count = -1, version = -1;
    struct ot_emu_card none = ot_emu_default_card();
    none.n_devices = 0;
    ot_emu_set_card(&none);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(count, 0);
    none.driver_version = 12040;
    ot_emu_set_card(&none);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    check_cuda(cudaDriverGetVersion(&version));
    assert_int_equal(version, 12040);
    ot_emu_reset();
    check_cuda(cudaGetDeviceCount(&count));
    assert_int_equal(count, 1);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    cudaGetLastError();
}

static void test_the_card_is_as_described(void **) {
    struct ot_emu_card ada = {"Ada", 2, CUDART_VERSION, 89, 128, (size_t)24 << 30, 99 << 10};
    struct cudaDeviceProp prop;
    int value;
    ot_emu_set_card(&ada);
    check_cuda(cudaGetDeviceProperties(&prop, 1));
    assert_string_equal(prop.name, "Ada");
    assert_int_equal(prop.major * 10 + prop.minor, 89);
    assert_int_equal(prop.totalGlobalMem, (size_t)24 << 30);
    check_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    assert_int_equal(value, 128);
    check_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    assert_int_equal(value, 99 << 10);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 2), cudaErrorInvalidDevice);
    ot_emu_reset();
}

static void test_the_nth_call_fails(void **) {
    void *memory;
    ot_emu_fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
    check_cuda(cudaMalloc(&memory, 64));
    check_cuda(cudaFree(memory));
    assert_int_equal(cudaMalloc(&memory, 64), cudaErrorMemoryAllocation);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    check_cuda(cudaMalloc(&memory, 64));
    ot_emu_fail_call("cudaLaunchKernel", 1, cudaErrorLaunchOutOfResources);
    assert_int_equal(run(add_one, 1, 1, 0, (float *)memory, 1), cudaErrorLaunchOutOfResources);
    run_well(add_one, 1, 1, 0, (float *)memory, 1);
    check_cuda(cudaFree(memory));
    ot_emu_reset();
}

static void count_call(void *calls) {
    ++*(int *)calls;
}

static void test_a_lost_gpu_stays_lost(void **) {
    DeviceArray<float> data(4, 0);
    int calls = 0;
    void *memory;
    ot_emu_lose_gpu(2, cudaErrorECCUncorrectable);
    run_well(add_one, 1, 1, 0, data.device, 4);
    assert_int_equal(cudaStreamSynchronize(nullptr), cudaSuccess);
    assert_int_equal(run(add_one, 1, 1, 0, data.device, 4), cudaErrorECCUncorrectable);
    assert_int_equal(cudaMalloc(&memory, 64), cudaErrorECCUncorrectable);
    assert_int_equal(cudaLaunchHostFunc(nullptr, count_call, &calls), cudaErrorECCUncorrectable);
    assert_int_equal(cudaGetLastError(), cudaErrorECCUncorrectable);
    assert_int_equal(cudaGetLastError(), cudaErrorECCUncorrectable); /* the error stays */
    assert_string_equal(cudaGetErrorName(cudaErrorECCUncorrectable), "cudaErrorECCUncorrectable");
    assert_int_equal(calls, 0);
    ot_emu_reset();
    assert_true(data.get()[0] == 1); /* the second launch did nothing */
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_order_streams),
        cmocka_unit_test(test_work_is_under_way_until_it_is_done),
        cmocka_unit_test(test_events_tell_time),
        cmocka_unit_test(test_host_functions_may_not_call_the_runtime),
        cmocka_unit_test(test_memory_is_budgeted),
        cmocka_unit_test(test_copies_need_memory_of_their_kind),
        cmocka_unit_test(test_copies_of_pageable_memory_are_counted),
        cmocka_unit_test(test_kernels_reach_mapped_host_memory),
        cmocka_unit_test(test_a_machine_without_a_gpu),
        cmocka_unit_test(test_the_card_is_as_described),
        cmocka_unit_test(test_the_nth_call_fails),
        cmocka_unit_test(test_a_lost_gpu_stays_lost),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
