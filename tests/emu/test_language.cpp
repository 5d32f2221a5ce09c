/* The language of kernels works on the emulator: indices, barriers, shuffles, votes, atomics, conversions,
 * orders. */
#include "tests/emu/emu_fixture.h"

static constexpr unsigned FULL = 0xffffffffu;

/* ---- indices ---- */

static __global__ void number_threads(int *out) {
    int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    int thread = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    out[block * (int)(blockDim.x * blockDim.y * blockDim.z) + thread] += 1 + block * 1000 + thread;
}

static void test_each_thread_runs_once(void **) {
    DeviceArray<int> out(12 * 42, 0);
    for (uint64_t seed = 0; seed < 3; seed++) {
        ot_emu_set_order(seed);
        run_well(number_threads, dim3(2, 3, 2), dim3(7, 3, 2), 0, out.device);
    }
    ot_emu_set_order(0);
    out.get();
    for (int block = 0; block < 12; block++)
        for (int thread = 0; thread < 42; thread++)
            assert_int_equal(out.host[(size_t)(block * 42 + thread)], 3 * (1 + block * 1000 + thread));
}

/* ---- barriers ---- */

static __global__ void tally(int *out) {
    int is_odd = threadIdx.x % 2, is_last = threadIdx.x == blockDim.x - 1;
    int count = __syncthreads_count(is_odd), any = __syncthreads_or(is_last), none = __syncthreads_or(0);
    int all = __syncthreads_and(1), not_all = __syncthreads_and(!is_last);
    out[threadIdx.x] = count * 10000 + any * 1000 + none * 100 + all * 10 + not_all;
}

static void test_barriers_tally(void **) {
    DeviceArray<int> out(100, 0);
    run_well(tally, 1, 100, 0, out.device);
    for (int value : out.get())
        assert_int_equal(value, 50 * 10000 + 1000 + 10);
}

static __global__ void sum_all(const float *x, float *sum) {
    float total = ot_block_sum(x[threadIdx.x], ot_shared<float>());
    sum[threadIdx.x] = total;
}

static void test_block_sum(void **) {
    DeviceArray<float> x(1024, 0.25f), sum(1024, 0);
    run_well(sum_all, 1, 1024, 128, (const float *)x.device, sum.device);
    for (float value : sum.get())
        assert_true(value == 256);
}

/* ---- warps ---- */

template <class T>
static __global__ void shuffle_all(T *out) {
    T lane = (T)threadIdx.x + (T)0.5;
    out[threadIdx.x] = __shfl_sync(FULL, lane, 5);
    out[32 + threadIdx.x] = __shfl_sync(FULL, lane, (int)threadIdx.x + 3, 8);
    out[64 + threadIdx.x] = __shfl_up_sync(FULL, lane, 2);
    out[96 + threadIdx.x] = __shfl_up_sync(FULL, lane, 3, 16);
    out[128 + threadIdx.x] = __shfl_down_sync(FULL, lane, 1);
    out[160 + threadIdx.x] = __shfl_down_sync(FULL, lane, 2, 4);
    out[192 + threadIdx.x] = __shfl_xor_sync(FULL, lane, 7);
}

static int within(int lane, int from, int width) {
    return from >= lane / width * width && from < (lane / width + 1) * width ? from : lane;
}

template <class T>
static void check_shuffles() {
    DeviceArray<T> out(7 * 32, 0);
    run_well(shuffle_all<T>, 1, 32, 0, out.device);
    out.get();
    for (int lane = 0; lane < 32; lane++) {
        const int from[] = {5,
                            lane / 8 * 8 + (lane + 3) % 8,
                            within(lane, lane - 2, 32),
                            within(lane, lane - 3, 16),
                            within(lane, lane + 1, 32),
                            within(lane, lane + 2, 4),
                            lane ^ 7};
        for (int i = 0; i < 7; i++)
            assert_true(out.host[(size_t)(32 * i + lane)] == (T)from[i] + (T)0.5);
    }
}

static void test_shuffles(void **) {
    check_shuffles<float>();
    check_shuffles<int>();
    check_shuffles<double>();
    check_shuffles<long long>();
}

static __global__ void vote(unsigned *out) {
    int lane = threadIdx.x % 32;
    out[threadIdx.x] = __ballot_sync(FULL, lane % 3 == 0);
    unsigned any = (unsigned)__any_sync(FULL, threadIdx.x == 40),
             all = (unsigned)__all_sync(FULL, threadIdx.x >= 32);
    out[64 + threadIdx.x] = any * 10 + all;
}

static void test_votes_are_of_one_warp(void **) {
    DeviceArray<unsigned> out(128, 0);
    run_well(vote, 1, 64, 0, out.device);
    out.get();
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(out.host[i], 0x49249249u);
        assert_int_equal(out.host[64 + i], i < 32 ? 0 : 11);
    }
}

/* ---- atomics ---- */

static __global__ void count(int *ints, unsigned long long *longs, float *floats) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&ints[0], i);
    atomicMax(&ints[1], i);
    atomicMin(&ints[2], -i);
    atomicExch(&ints[3], 7);
    atomicCAS(&ints[4], 0, 1 + i); /* the first thread wins */
    atomicAdd(&longs[0], 1ull << 33);
    atomicAdd(&floats[0], 0.5f);
}

static void test_atomics(void **) {
    DeviceArray<int> ints(5, 0);
    DeviceArray<unsigned long long> longs(1, 0);
    DeviceArray<float> floats(1, 0);
    run_well(count, 4, 64, 0, ints.device, longs.device, floats.device);
    const std::vector<int> want = {255 * 128, 255, -255, 7, 1};
    assert_true(ints.get() == want);
    assert_true(longs.get()[0] == 256ull << 33);
    assert_true(floats.get()[0] == 128);
}

/* The last block adds the values that the other blocks stored: after a fence and an atomic, only this block
 * may read them. */
static __global__ void last_block_adds(float *parts, unsigned *arrived, float *sum) {
    bool *is_last = ot_shared<bool>();
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = (float)(blockIdx.x + 1);
        __threadfence();
        is_last[0] = atomicAdd(arrived, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last[0] && threadIdx.x == 0)
        for (unsigned i = 0; i < gridDim.x; i++)
            *sum += parts[i];
}

static void test_a_fence_and_an_atomic_order_blocks(void **) {
    for (uint64_t seed = 0; seed < 3; seed++) {
        DeviceArray<float> parts(8, 0), sum(1, 0);
        DeviceArray<unsigned> arrived(1, 0);
        ot_emu_set_order(seed);
        run_well(last_block_adds, 8, 32, 16, parts.device, arrived.device, sum.device);
        ot_emu_set_order(0);
        assert_true(sum.get()[0] == 36);
    }
}

/* ---- numbers ---- */

static __global__ void convert(float *out) {
    const float x[] = {1.00390625f, 65520, 1e-8f, -0.0f, 3.4e38f}; /* ties, overflows and underflows */
    for (int i = 0; i < 5; i++) {
        out[i] = __bfloat162float(__float2bfloat16_rn(x[i]));
        out[5 + i] = __half2float(__float2half_rn(x[i]));
    }
    float2 two = __bfloat1622float2(__floats2bfloat162_rn(3, 4));
    float2 halves = __half22float2(__floats2half2_rn(5, 6));
    out[10] = two.x + 10 * two.y + 100 * halves.x + 1000 * halves.y;
    out[11] = (float)(__clz(1) + 100 * __popc(0xffu) + 10000 * __ffs(8));
    out[12] = rsqrtf(4) + __frcp_rn(4) + __fmaf_rn(2, 3, 4) + (float)max(3, 5) + min(0.5f, 2.0f);
    out[13] = __uint_as_float(__float_as_uint(-2.5f) & 0x7fffffffu);
}

static void test_numbers(void **) {
    DeviceArray<float> out(14, 0);
    const float want[] = {1, 65536, 0x1.58p-27f, -0.0f, INFINITY, 1.00390625f, INFINITY, 0, -0.0f, INFINITY};
    run_well(convert, 1, 1, 0, out.device);
    out.get();
    for (size_t i = 0; i < 10; i++)
        if (out.host[i] != want[i])
            fail_msg("number %d is %a, not %a", (int)i, (double)out.host[i], (double)want[i]);
    assert_true(out.host[10] == 3 + 40 + 500 + 6000);
    assert_true(out.host[11] == 31 + 800 + 40000);
    assert_true(out.host[12] == 0.5f + 0.25f + 10 + 5 + 0.5f);
    assert_true(out.host[13] == 2.5f);
}

/* ---- orders ---- */

static __global__ void draw_tickets(unsigned *next, unsigned *ticket) {
    ticket[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1u);
}

static std::vector<unsigned> tickets(uint64_t seed) {
    DeviceArray<unsigned> next(1, 0), ticket(128, 0);
    ot_emu_set_order(seed);
    run_well(draw_tickets, 4, 32, 0, next.device, ticket.device);
    ot_emu_set_order(0);
    return ticket.get();
}

static void test_orders_follow_from_the_seed(void **) {
    std::vector<unsigned> in_order = tickets(0);
    for (unsigned i = 0; i < 128; i++)
        assert_int_equal(in_order[i], i);
    assert_true(tickets(5) == tickets(5));
    assert_true(tickets(5) != tickets(6));
    assert_true(tickets(5) != in_order);
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_thread_runs_once),
        cmocka_unit_test(test_barriers_tally),
        cmocka_unit_test(test_block_sum),
        cmocka_unit_test(test_shuffles),
        cmocka_unit_test(test_votes_are_of_one_warp),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_a_fence_and_an_atomic_order_blocks),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_orders_follow_from_the_seed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
