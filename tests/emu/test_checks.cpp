/* For each kind of error that the emulator must find: a wrong kernel, and the right version beside it. Every
 * wrong kernel must be reported with its name, block, thread and the access or call that was wrong. Every
 * right kernel must pass, in random orders too. */
#include "tests/emu/emu_fixture.h"

static constexpr unsigned FULL = 0xffffffffu;

/* ---- barriers and warps ---- */

static __global__ void early_exit(float *data, bool wrong) {
    if (wrong && threadIdx.x == 40)
        return;
    __syncthreads();
    data[threadIdx.x + blockIdx.x * blockDim.x] = 1;
}

static __global__ void two_barriers(float *data, bool wrong) {
    if (!wrong || threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    data[threadIdx.x] = 1;
}

static __global__ void barrier_in_a_warp_op(float *data, bool wrong) {
    if (wrong && threadIdx.x == 33)
        __syncthreads();
    else
        data[threadIdx.x] = (float)__popc(__ballot_sync(FULL, 1));
}

static __global__ void partial_shuffle(float *data, bool wrong) {
    float x = (float)threadIdx.x;
    if (!wrong || threadIdx.x % 32 < 16)
        x = __shfl_xor_sync(FULL, x, 1);
    data[threadIdx.x] = x;
}

static __global__ void two_warp_ops(float *data, bool wrong) {
    if (wrong && threadIdx.x % 2)
        data[threadIdx.x] = (float)__any_sync(FULL, 1);
    else
        data[threadIdx.x] = __shfl_sync(FULL, 1.0f, 0);
}

static __global__ void half_mask(float *data, bool wrong) {
    data[threadIdx.x] = __shfl_sync(wrong ? 0xffffu : FULL, 1.0f, 0);
}

/* ---- bounds and alignment ---- */

static __global__ void past_shared(float *data, bool wrong) {
    float *s = ot_shared<float>();
    s[threadIdx.x + (wrong ? 1 : 0)] = 1;
    __syncthreads();
    data[threadIdx.x] = s[threadIdx.x];
}

static __global__ void far_past_shared(float *data, bool wrong) {
    float *s = ot_shared<float>();
    s[threadIdx.x + (wrong && threadIdx.x == 5 ? 40 : 0)] = 1;
    data[threadIdx.x] = s[threadIdx.x];
}

static __global__ void past_global(float *data, bool wrong) {
    data[threadIdx.x + blockIdx.x * blockDim.x + (wrong ? 1 : 0)] = 1;
}

static __global__ void before_global(float *data, bool wrong) {
    data[(int)(threadIdx.x + blockIdx.x * blockDim.x) - (wrong ? 1 : 0)] = 1;
}

static __global__ void host_memory(float *data, bool wrong) {
    static float of_the_host;
    *(wrong ? &of_the_host : data) = 1;
}

static __global__ void misaligned(float *data, bool wrong) {
    const float4 *from = (const float4 *)(data + threadIdx.x * 4 + (wrong && threadIdx.x == 7));
    float4 v = *from;
    data[threadIdx.x * 4] = v.x + v.y + v.z + v.w;
}

static __global__ void deep(float *data, bool wrong) {
    volatile float room = data[0];
    if (wrong)
        deep(data, wrong); /* endless recursion uses up the stack */
    data[0] = room;
}

/* ---- races ---- */

static __global__ void missing_barrier(float *data, bool wrong) {
    float *s = ot_shared<float>();
    s[threadIdx.x] = data[threadIdx.x];
    if (!wrong)
        __syncthreads();
    data[threadIdx.x] = s[(threadIdx.x + 32) % blockDim.x];
}

static __global__ void missing_second_barrier(float *data, bool wrong) {
    float *s = ot_shared<float>();
    for (int i = 0; i < 2; i++) {
        s[threadIdx.x] = (float)i;
        __syncthreads();
        data[threadIdx.x] = s[(threadIdx.x + 32) % blockDim.x];
        if (!wrong)
            __syncthreads();
    }
}

static __global__ void missing_syncwarp(float *data, bool wrong) {
    float *s = ot_shared<float>();
    s[threadIdx.x] = data[threadIdx.x];
    if (!wrong)
        __syncwarp();
    data[threadIdx.x] = s[threadIdx.x ^ 1];
}

/* A shuffle does not order memory accesses. */
static __global__ void shuffle_for_syncwarp(float *data, bool wrong) {
    float *s = ot_shared<float>();
    s[threadIdx.x] = data[threadIdx.x];
    float x = __shfl_xor_sync(FULL, 1.0f, 1);
    if (!wrong)
        __syncwarp();
    data[threadIdx.x] = s[threadIdx.x ^ 1] + x;
}

static __global__ void same_element(float *data, bool wrong) {
    if (!wrong || threadIdx.x == 3)
        data[wrong ? 7 : threadIdx.x] = 1;
    if (wrong && threadIdx.x == 50)
        data[7] = 1;
}

static __global__ void between_blocks(float *data, bool wrong) {
    if (threadIdx.x == 0 && (wrong || blockIdx.x == 0))
        data[0] = data[0] + 1;
}

static __global__ void read_between_blocks(float *data, bool wrong) {
    float x = data[wrong ? 128 : 64 * blockIdx.x];
    if (threadIdx.x == 9 && blockIdx.x == 2)
        data[wrong ? 128 : 200] = x;
    if (blockIdx.x != 2 && !wrong)
        data[32 + threadIdx.x + 64 * blockIdx.x] = 0;
}

/* The data is float, but two threads share a four-byte word through two-byte elements: no race. */
static __global__ void neighbours(float *data, bool wrong) {
    uint16_t *halves = (uint16_t *)data;
    halves[wrong ? threadIdx.x / 2 : threadIdx.x] = 1;
}

static __global__ void plain_beside_atomic(float *data, bool wrong) {
    if (wrong && threadIdx.x == 60)
        data[0] = 1;
    else
        atomicAdd(&data[0], 1.0f);
}

/* ---- cp.async ---- */

static __global__ void missing_wait(float *data, bool wrong) {
    float *s = ot_shared<float>();
    ot_cp_async_16(s + 4 * threadIdx.x, data + 4 * threadIdx.x, true);
    ot_cp_async_commit();
    if (wrong)
        ot_cp_async_wait<1>();
    else
        ot_cp_async_wait<0>();
    __syncthreads();
    data[threadIdx.x] = s[(threadIdx.x + 5) % 256];
}

static __global__ void wait_without_barrier(float *data, bool wrong) {
    float *s = ot_shared<float>();
    ot_cp_async_16(s + 4 * threadIdx.x, data + 4 * threadIdx.x, true);
    ot_cp_async_commit();
    ot_cp_async_wait<0>();
    if (!wrong)
        __syncthreads();
    float x = s[(4 * threadIdx.x + 5) % 256];
    __syncthreads();
    data[threadIdx.x] = x;
}

/* ---- barriers of some warps ---- */

enum TeamFault { NO_BARRIER, OTHER_TEAM, EARLY_REUSE, OTHER_NUMBER, LONE_WARP, BAD_ID, PART_OF_A_WARP };

/* Warps 0 and 1 are a team, warps 2 and 3 another. In each team, the first warp hands three rounds of numbers
 * to the second one, through two rooms that alternate. */
template <TeamFault F>
static __global__ void teams(float *data, bool wrong) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, team = warp / 2, id = 1 + team;
    const int from = wrong && F == OTHER_TEAM ? 1 - team : team;
    float sum = 0;
    for (int round = 0; round < 3; round++) {
        const int room = wrong && F == EARLY_REUSE ? 0 : round % 2 * 64;
        if (warp % 2 == 0)
            ot_shared<float>()[room + 32 * team + lane] = (float)(round + team);
        if (wrong && ((F == LONE_WARP && warp == 3) || (F == PART_OF_A_WARP && threadIdx.x == 40)))
            break;
        if (!wrong || F != NO_BARRIER)
            ot_barrier_sync(wrong && F == BAD_ID ? 16 : id,
                            wrong && F == OTHER_NUMBER && warp == 1 ? 96 : 64);
        if (warp % 2 == 1)
            sum += ot_shared<float>()[room + 32 * from + lane];
    }
    if (warp % 2 == 1)
        data[threadIdx.x] = sum;
}

static Case make_team(const char *name, void (*kernel)(float *, bool), std::vector<const char *> words,
                      bool needs_access_checks = false) {
    return {name, kernel, 1, 128, 512, cudaErrorLaunchFailure, words, needs_access_checks};
}

static const std::vector<Case> cases = {
    {"early_exit",
     early_exit,
     2,
     64,
     0,
     cudaErrorLaunchFailure,
     {"kernel early_exit, block (0,0,0), thread (0,0,0)", "divergent barrier: 63 of 64 threads",
      "thread (40,0,0) has exited", "test_checks.cpp:"},
     false},
    {"two_barriers",
     two_barriers,
     1,
     64,
     0,
     cudaErrorLaunchFailure,
     {"kernel two_barriers", "divergent barrier", "thread (32,0,0)", "thread (0,0,0) waits in another"},
     false},
    {"barrier_in_a_warp_op",
     barrier_in_a_warp_op,
     1,
     64,
     0,
     cudaErrorLaunchFailure,
     {"thread (32,0,0): __ballot_sync by part of a warp: 31 of 32", "thread (33,0,0) waits in __syncthreads"},
     false},
    {"partial_shuffle",
     partial_shuffle,
     1,
     64,
     0,
     cudaErrorLaunchFailure,
     {"kernel partial_shuffle", "__shfl_xor_sync by part of a warp: 16 of 32", "thread (16,0,0) has exited"},
     false},
    {"two_warp_ops",
     two_warp_ops,
     1,
     32,
     0,
     cudaErrorLaunchFailure,
     {"divergent warp: __any_sync here, but thread (0,0,0) waits in __shfl_sync"},
     false},
    {"half_mask",
     half_mask,
     1,
     32,
     0,
     cudaErrorLaunchFailure,
     {"__shfl_sync with the mask 0x0000ffff"},
     false},
    {"past_shared",
     past_shared,
     1,
     62,
     62 * sizeof(float),
     cudaErrorIllegalAddress,
     {"kernel past_shared, block (0,0,0)", "shared memory"},
     false},
    {"past_shared_exactly",
     past_shared,
     1,
     62,
     62 * sizeof(float),
     cudaErrorIllegalAddress,
     {"thread (61,0,0)", "4 bytes", "offset 248 of shared memory, which has 248 bytes"},
     true},
    {"far_past_shared",
     far_past_shared,
     1,
     32,
     128,
     cudaErrorIllegalAddress,
     {"kernel far_past_shared, block (0,0,0), thread (5,0,0)", "offset 180 of shared memory"},
     false},
    {"past_global",
     past_global,
     4,
     64,
     0,
     cudaErrorIllegalAddress,
     {"kernel past_global, block (3,0,0), thread (63,0,0)",
      "0 bytes past the end of an allocation of 1024 bytes"},
     false},
    {"before_global",
     before_global,
     1,
     64,
     0,
     cudaErrorIllegalAddress,
     {"thread (0,0,0)", "4 bytes before an allocation of 1024 bytes"},
     true},
    {"host_memory",
     host_memory,
     1,
     1,
     0,
     cudaErrorIllegalAddress,
     {"4 bytes", "written", "memory of the host"},
     true},
    {"misaligned",
     misaligned,
     1,
     32,
     0,
     cudaErrorMisalignedAddress,
     {"kernel misaligned", "thread (7,0,0)", "not aligned to 16 bytes", "test_checks.cpp:"},
     true},
    {"deep",
     deep,
     1,
     1,
     0,
     cudaErrorIllegalAddress,
     {"kernel deep", "past the end of the thread's stack"},
     false},
    {"missing_barrier",
     missing_barrier,
     1,
     64,
     256,
     cudaErrorLaunchFailure,
     {"kernel missing_barrier", "race: offset", "shared memory", "without a __syncthreads between"},
     true},
    {"missing_second_barrier",
     missing_second_barrier,
     1,
     64,
     256,
     cudaErrorLaunchFailure,
     {"race: offset", "without a __syncthreads between"},
     true},
    {"missing_syncwarp",
     missing_syncwarp,
     1,
     32,
     128,
     cudaErrorLaunchFailure,
     {"race: offset", "without a __syncwarp between"},
     true},
    {"shuffle_for_syncwarp",
     shuffle_for_syncwarp,
     1,
     32,
     128,
     cudaErrorLaunchFailure,
     {"race: offset", "was written by thread (", "without a __syncwarp between"},
     true},
    {"same_element",
     same_element,
     1,
     64,
     0,
     cudaErrorLaunchFailure,
     {"race: byte 28 of an allocation of 1024 bytes is written here", "was written by thread (3,0,0)"},
     true},
    {"between_blocks",
     between_blocks,
     2,
     32,
     0,
     cudaErrorLaunchFailure,
     {"block (1,0,0), thread (0,0,0): race: byte 0", "block (0,0,0), thread (0,0,0), in this launch"},
     true},
    {"read_between_blocks",
     read_between_blocks,
     3,
     32,
     0,
     cudaErrorLaunchFailure,
     {"block (2,0,0), thread (9,0,0): race: byte 512", "is written here", "was read by", "block (0,0,0)"},
     true},
    {"neighbours", neighbours, 1, 64, 0, cudaErrorLaunchFailure, {"race: byte 0 of"}, true},
    {"plain_beside_atomic",
     plain_beside_atomic,
     1,
     64,
     0,
     cudaErrorLaunchFailure,
     {"race: byte 0 of", "is written here", "was changed by an atomic by"},
     true},
    {"missing_wait",
     missing_wait,
     1,
     64,
     1024,
     cudaErrorLaunchFailure,
     {"shared memory", "is read here", "the cp.async to it by thread", "has not been waited for"},
     true},
    {"wait_without_barrier",
     wait_without_barrier,
     1,
     64,
     1024,
     cudaErrorLaunchFailure,
     {"of shared memory"},
     true},
    make_team("no_barrier", teams<NO_BARRIER>, {"race: offset", "of shared memory"}, true),
    make_team("other_team", teams<OTHER_TEAM>, {"race: offset", "of shared memory"}, true),
    make_team("early_reuse", teams<EARLY_REUSE>, {"race: offset", "of shared memory"}, true),
    make_team("other_number", teams<OTHER_NUMBER>,
              {"barrier.sync 1 for 96 threads, but thread (0,0,0) waits there for 64", "test_checks.cpp:"}),
    make_team("lone_warp", teams<LONE_WARP>,
              {"thread (64,0,0)", "divergent barrier: 32 of 64 threads wait in barrier.sync 2"}),
    make_team("bad_id", teams<BAD_ID>, {"barrier.sync 16 for 64 of the block's 128 threads"}),
    make_team("part_of_a_warp", teams<PART_OF_A_WARP>,
              {"barrier.sync by part of a warp: 31 of 32", "thread (40,0,0) has exited"}),
};

/* What the second warps add up. */
static void test_teams_hand_over(void **) {
    DeviceArray<float> data(256, -1.0f);
    run_well(teams<NO_BARRIER>, 1, 128, 512, data.device, false);
    data.get();
    for (size_t thread = 0; thread < 128; thread++)
        assert_true(data.host[thread] == (thread / 32 % 2 == 0 ? -1.0f : thread < 64 ? 3.0f : 6.0f));
}

static void test_right_kernels_pass(void **) {
    check_right_kernels(cases);
}

static void test_wrong_kernels_are_reported(void **) {
    check_wrong_kernels(cases);
}

/* ---- errors outside a single kernel ---- */

static __global__ void touch_shared(float *data) {
    data[0] = ot_shared<float>()[0];
}

static void test_shared_memory_begins_as_nan(void **) {
    DeviceArray<float> data(1, 0);
    run_well(touch_shared, 1, 1, 16, data.device);
    assert_true(isnan(data.get()[0]));
}

static void test_device_memory_begins_as_nan(void **) {
    float *device;
    assert_int_equal(cudaMalloc((void **)&device, sizeof(float)), cudaSuccess);
    DeviceArray<float> data(1, 0);
    assert_int_equal(cudaMemcpyAsync(data.device, device, sizeof(float), cudaMemcpyDeviceToDevice, nullptr),
                     cudaSuccess);
    assert_true(isnan(data.get()[0]));
    assert_int_equal(cudaFree(device), cudaSuccess);
}

static __global__ void use(float *data) {
    data[0] = 1;
}

static void test_use_after_free_is_reported(void **) {
    float *device;
    assert_int_equal(cudaMalloc((void **)&device, 4096), cudaSuccess);
    assert_int_equal(cudaFree(device), cudaSuccess);
    assert_int_equal(run(use, 1, 1, 0, device), cudaErrorIllegalAddress);
    assert_non_null(strstr(ot_emu_report(), "kernel use, block (0,0,0), thread (0,0,0)"));
    ot_emu_reset();
}

static void check_refused(dim3 grid, dim3 block, size_t shared_bytes, cudaError_t error, const char *words) {
    DeviceArray<float> data(1, 0);
    assert_int_equal(run(use, grid, block, shared_bytes, data.device), error);
    assert_non_null(strstr(ot_emu_report(), words));
    assert_int_equal(cudaGetLastError(), error);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* the error does not affect other calls */
    run_well(use, 1, 1, 0, data.device);
}

static void test_impossible_launches_are_refused(void **) {
    check_refused(1, 1025, 0, cudaErrorInvalidConfiguration, "kernel use: a block of 1025 x 1 x 1 threads");
    check_refused(1, dim3(32, 33), 0, cudaErrorInvalidConfiguration, "a block of 32 x 33 x 1");
    check_refused(1, 0, 0, cudaErrorInvalidConfiguration, "a block of 0");
    check_refused(0, 1, 0, cudaErrorInvalidConfiguration, "a grid of 0");
    check_refused(dim3(1, 65536), 1, 0, cudaErrorInvalidConfiguration, "a grid of 1 x 65536 x 1");
    check_refused(1, 1, (99 << 10) + 1, cudaErrorInvalidValue, "101377 bytes of shared memory");
    struct ot_emu_card turing = ot_emu_default_card();
    turing.compute_capability = 75;
    turing.shared_bytes = 64 << 10;
    ot_emu_set_card(&turing);
    check_refused(1, 1, (64 << 10) + 1, cudaErrorInvalidValue, "a block may have 65536");
    ot_emu_reset();
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_kernels_pass),
        cmocka_unit_test(test_wrong_kernels_are_reported),
        cmocka_unit_test(test_teams_hand_over),
        cmocka_unit_test(test_shared_memory_begins_as_nan),
        cmocka_unit_test(test_device_memory_begins_as_nan),
        cmocka_unit_test(test_use_after_free_is_reported),
        cmocka_unit_test(test_impossible_launches_are_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
