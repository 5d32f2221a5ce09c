/* The wrappers of PTX (kernels/cuda/ptx.cuh) against plain loops: fragments, products, copies, special
 * functions; and the tanh that is made of them. */
#include "kernels/cuda/attention_score.cuh"
#include "tests/emu/emu_fixture.h"

/* ---- ldmatrix ---- */

/* tiles: four 8x8 matrices, one after the other. Each lane stores its four registers. */
static __global__ void load_fragments(const uint16_t *tiles, uint32_t *out, bool transposed) {
    uint4 *s = ot_shared<uint4>();
    s[threadIdx.x] = ((const uint4 *)tiles)[threadIdx.x]; /* thread t stores row t % 8 of tile t / 8 */
    __syncwarp();
    uint32_t fragment[4];
    if (transposed)
        ot_ldmatrix_x4_trans(fragment, s + threadIdx.x);
    else
        ot_ldmatrix_x4(fragment, s + threadIdx.x);
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + i] = fragment[i];
}

static std::vector<uint16_t> numbered_tiles() {
    std::vector<uint16_t> tiles(4 * 64);
    for (size_t i = 0; i < tiles.size(); i++)
        tiles[i] = (uint16_t)(1000 + i);
    return tiles;
}

static void check_fragments(bool transposed) {
    DeviceArray<uint16_t> tiles(numbered_tiles());
    DeviceArray<uint32_t> out(128, 0);
    run_well(load_fragments, 1, 32, 512, tiles.device, out.device, transposed);
    out.get();
    for (int lane = 0; lane < 32; lane++)
        for (int tile = 0; tile < 4; tile++) {
            int row = lane / 4, col = 2 * (lane % 4);
            int first = transposed ? col * 8 + row : row * 8 + col, step = transposed ? 8 : 1;
            assert_int_equal(out.host[4 * lane + tile] & 0xffff, 1000 + tile * 64 + first);
            assert_int_equal(out.host[4 * lane + tile] >> 16, 1000 + tile * 64 + first + step);
        }
}

static void test_ldmatrix_gives_each_lane_its_elements(void **) {
    check_fragments(false);
    check_fragments(true);
}

/* ---- bank conflicts ---- */

/* Each lane copies or loads 16 bytes, `stride` bytes behind those of the lane before it. */
static __global__ void access_banks(const char *from, int stride, bool load) {
    char *at = ot_shared<char>() + threadIdx.x / 32 * 4096 + threadIdx.x % 32 * stride;
    uint32_t fragment[4];
    if (load)
        ot_ldmatrix_x4(fragment, at);
    else
        ot_cp_async_16(at, from, true);
}

static void check_banks(int stride, bool load, int64_t conflicts) {
    DeviceArray<char> from(16, 0);
    const struct ot_emu_usage before = ot_emu_usage();
    run_well(access_banks, 3, 64, 2 * 4096, (const char *)from.device, stride, load);
    const struct ot_emu_usage after = ot_emu_usage();
    assert_int_equal(after.shared_accesses - before.shared_accesses, 3 * 2 * 4);
    assert_int_equal(after.bank_conflicts - before.bank_conflicts, 3 * 2 * conflicts);
}

static void test_bank_conflicts_are_counted(void **) {
    check_banks(16, true, 0);
    check_banks(32, true, 4 * 4); /* eight rows in four groups of banks */
    check_banks(80, true, 0);
    check_banks(128, true, 4 * 7);
    check_banks(0, true, 0); /* one row for all lanes */
    check_banks(16, false, 0);
    check_banks(48, false, 0);
    check_banks(64, false, 4 * 6);
    check_banks(128, false, 4 * 7);
}

/* ---- mma ---- */

/* a[16][16], b[16][8] and c[16][8], all by rows. Registers are filled as ptx.cuh says. */
template <class T>
static __global__ void multiply(const T *a, const T *b, float *c) {
    int g = threadIdx.x / 4, t = 2 * (threadIdx.x % 4);
    auto two = [](T low, T high) { return ot_pack_two<T>(ot_to_float(low), ot_to_float(high)); };
    uint32_t fragment[4] = {
        two(a[g * 16 + t], a[g * 16 + t + 1]), two(a[(g + 8) * 16 + t], a[(g + 8) * 16 + t + 1]),
        two(a[g * 16 + t + 8], a[g * 16 + t + 9]), two(a[(g + 8) * 16 + t + 8], a[(g + 8) * 16 + t + 9])};
    uint32_t b0 = two(b[t * 8 + g], b[(t + 1) * 8 + g]), b1 = two(b[(t + 8) * 8 + g], b[(t + 9) * 8 + g]);
    float sums[4] = {c[g * 8 + t], c[g * 8 + t + 1], c[(g + 8) * 8 + t], c[(g + 8) * 8 + t + 1]};
    ot_mma_16816<T>(sums, fragment, b0, b1);
    c[g * 8 + t] = sums[0];
    c[g * 8 + t + 1] = sums[1];
    c[(g + 8) * 8 + t] = sums[2];
    c[(g + 8) * 8 + t + 1] = sums[3];
}

/* Numbers that T represents exactly; a row never repeats a number. */
template <class T>
static std::vector<T> matrix(int n, int step) {
    std::vector<T> values((size_t)n);
    for (int i = 0; i < n; i++)
        values[(size_t)i] = ot_from_float<T>((float)(i * step % 61 - 30) / 16);
    return values;
}

template <class T>
static void check_product() {
    DeviceArray<T> a(matrix<T>(256, 7)), b(matrix<T>(128, 11));
    DeviceArray<float> c(matrix<float>(128, 5));
    std::vector<float> want = c.host;
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < 8; col++)
            for (int k = 0; k < 16; k++) {
                float product =
                    ot_to_float(a.host[(size_t)(row * 16 + k)]) * ot_to_float(b.host[(size_t)(k * 8 + col)]);
                want[(size_t)(row * 8 + col)] += product;
            }
    run_well(multiply<T>, 1, 32, 0, a.device, b.device, c.device);
    c.get();
    assert_memory_equal(c.host.data(), want.data(), c.bytes());
}

static void test_mma_multiplies(void **) {
    check_product<__nv_bfloat16>();
    check_product<__half>();
}

/* ---- cp.async ---- */

/* Two groups of copies. After wait<1> the first group has arrived and the second is still NaN. Invalid
 * elements become zeros. */
static __global__ void copy_groups(const float4 *from, float *out) {
    float4 *s = ot_shared<float4>();
    ot_cp_async_16(s + threadIdx.x, from + threadIdx.x, true);
    ot_cp_async_commit();
    ot_cp_async_16(s + 32 + threadIdx.x, from, false);
    ot_cp_async_commit();
    ot_cp_async_wait<1>();
    out[threadIdx.x] = s[threadIdx.x].w;
    ot_cp_async_wait<0>();
    out[32 + threadIdx.x] = s[32 + threadIdx.x].w;
}

static void test_copies_come_in_groups(void **) {
    DeviceArray<float> from(matrix<float>(128, 3)), out(64, -1);
    run_well(copy_groups, 1, 32, 1024, (const float4 *)from.device, out.device);
    out.get();
    for (size_t i = 0; i < 32; i++) {
        assert_true(out.host[i] == from.host[4 * i + 3]);
        assert_true(out.host[32 + i] == 0);
    }
}

static __global__ void copy_and_exit(const float4 *from) {
    ot_cp_async_16(ot_shared<float4>(), from, true);
    ot_cp_async_commit();
}

static __global__ void read_first(float *out) {
    out[0] = ot_shared<float>()[0];
}

/* Copies that nobody waited for do not reach into the next launch. */
static void test_copies_end_with_their_block(void **) {
    DeviceArray<float> from(4, 1), out(1, 0);
    run_well(copy_and_exit, 1, 1, 16, (const float4 *)from.device);
    run_well(read_first, 1, 1, 16, out.device);
    assert_true(isnan(out.get()[0]));
}

/* ---- 2^x, log2(x), 1 / x ---- */

static __global__ void powers(const float *x, float *y) {
    y[threadIdx.x] = ot_exp2_approx(x[threadIdx.x]);
}

static void test_exp2_flushes_what_is_subnormal(void **) {
    DeviceArray<float> x({0, 1, -126, -126.5f, -150, 128, -INFINITY}), y(7, -1);
    const float want[] = {1, 2, 0x1p-126f, 0, 0, INFINITY, 0};
    run_well(powers, 1, 7, 0, (const float *)x.device, y.device);
    y.get();
    for (size_t i = 0; i < 7; i++)
        assert_true(y.host[i] == want[i]);
}

static __global__ void logarithms(const float *x, float *y) {
    y[threadIdx.x] = ot_log2_approx(x[threadIdx.x]);
}

static __global__ void reciprocals(const float *x, float *y) {
    y[threadIdx.x] = ot_rcp_approx(x[threadIdx.x]);
}

static void test_log2_and_rcp_flush_what_is_subnormal(void **) {
    DeviceArray<float> x({1, -4, 0x1p-126f, 0x1p-127f, -0x1p-140f, 0x1p127f, -INFINITY, 0}), y(8, -1);
    const float inverse[] = {1, -0.25f, 0x1p126f, INFINITY, -INFINITY, 0, 0, INFINITY};
    const float log2[] = {0, NAN, -126, -INFINITY, -INFINITY, 127, NAN, -INFINITY};
    run_well(reciprocals, 1, 8, 0, (const float *)x.device, y.device);
    y.get();
    for (size_t i = 0; i < 8; i++)
        assert_true(y.host[i] == inverse[i]);
    run_well(logarithms, 1, 8, 0, (const float *)x.device, y.device);
    y.get();
    for (size_t i = 0; i < 8; i++)
        assert_true(y.host[i] == log2[i] || (isnan(y.host[i]) && isnan(log2[i])));
}

/* ---- the softcap's tanh ---- */

static __global__ void capped(const float *x, float *y) {
    y[threadIdx.x] = ot_score_tanh(x[threadIdx.x]);
}

/* Each 2^16th float: 128 of each exponent and sign. */
static void test_score_tanh(void **) {
    enum { COUNT = 1024, LAUNCHES = 64 };
    for (uint32_t launch = 0; launch < LAUNCHES; launch++) {
        std::vector<float> values(COUNT);
        for (uint32_t i = 0; i < COUNT; i++)
            values[i] = ot_f32_from_bits((launch * COUNT + i) << 16 | (i * 2654435761u) >> 16);
        DeviceArray<float> x(values), y(COUNT, -2);
        run_well(capped, 1, COUNT, 0, (const float *)x.device, y.device);
        y.get();
        for (size_t i = 0; i < COUNT; i++) {
            double want = tanh((double)x.host[i]);
            if (isnan(want))
                assert_true(isnan(y.host[i]));
            else
                assert_true(fabs(y.host[i] - want) <= 0x1p-21 * fabs(want) + 0x1p-149);
        }
    }
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ldmatrix_gives_each_lane_its_elements),
        cmocka_unit_test(test_bank_conflicts_are_counted),
        cmocka_unit_test(test_mma_multiplies),
        cmocka_unit_test(test_copies_come_in_groups),
        cmocka_unit_test(test_copies_end_with_their_block),
        cmocka_unit_test(test_exp2_flushes_what_is_subnormal),
        cmocka_unit_test(test_log2_and_rcp_flush_what_is_subnormal),
        cmocka_unit_test(test_score_tanh),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
