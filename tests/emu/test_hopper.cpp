/* The wrappers of ptx_hopper.cuh: products of a warpgroup against plain loops, and for each error that the
 * emulator must find a wrong kernel and its right twin. */
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/ptx_hopper.cuh"
#include "tests/emu/emu_fixture.h"

static constexpr unsigned PANEL_ROW = 128, PATTERN = 1024; /* bytes of a panel's row, and of the swizzle */

/* The first panel: shared memory from the next multiple of 1024 on. */
template <class T>
static __forceinline__ T *first_panel() {
    char *shared = ot_shared<char>();
    return reinterpret_cast<T *>(shared + (PATTERN - ot_shared_address(shared) % PATTERN) % PATTERN);
}

/* ---- products ---- */

enum { M = 64, K = 32 };

/* Writes b[K][N] into panels. */
template <class T, bool TRANSPOSED, int N>
static __forceinline__ void write_panels(T *panels, const T *b) {
    for (int i = (int)threadIdx.x; i < K * N; i += 128) {
        int k = i / N, n = i % N, row = TRANSPOSED ? k : n, column = TRANSPOSED ? n : k;
        T *panel = panels + column / 64 * (TRANSPOSED ? K : N) * 64;
        panel[ot_tile<64>::at(row, column % 64 / 8) + column % 8] = b[i];
    }
}

/* Where a is: in registers, or in a panel whose rows are those of a, or the columns of a. */
enum Place { REGISTERS, ROWS_OF_A, COLUMNS_OF_A };

/* Writes a[M][K] into a panel. */
template <class T, Place PLACE>
static __forceinline__ void write_panel_of_a(T *panel, const T *a) {
    for (int i = (int)threadIdx.x; i < M * K; i += 128) {
        int row = PLACE == ROWS_OF_A ? i / K : i % K, column = PLACE == ROWS_OF_A ? i % K : i / K;
        panel[ot_tile<64>::at(row, column / 8) + column % 8] = a[i];
    }
}

/* Bytes of the panels of b, a multiple of PATTERN. */
template <bool TRANSPOSED, int N>
static constexpr size_t panels_bytes() {
    return (size_t)(TRANSPOSED ? K * N / 64 : N) * PANEL_ROW;
}

/* a[M][K], b[K][N], c[M][N] by rows: c = a b, then c += the second half of the sum once more, as a product
 * that adds to another in flight. */
template <class T, bool TRANSPOSED, int N, Place A>
static __global__ void multiply(const T *a, const T *b, float *c) {
    T *panels = first_panel<T>(), *panel_of_a = panels + panels_bytes<TRANSPOSED, N>() / sizeof(T);
    write_panels<T, TRANSPOSED, N>(panels, b);
    if (A != REGISTERS)
        write_panel_of_a<T, A>(panel_of_a, a);
    ot_fence_proxy_async();
    __syncthreads();
    int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = 2 * ((int)threadIdx.x % 4);
    const T *row = a + (16 * warp + g) * K;
    uint32_t fragments[K / 16][4];
    for (int k = 0; k < K / 16; k++)
        for (int i = 0; i < 4; i++)
            memcpy(&fragments[k][i], row + i % 2 * 8 * K + 16 * k + i / 2 * 8 + t, 4);
    float sums[N / 8][4];
    uint64_t operand =
        TRANSPOSED ? ot_wgmma_operand(panels, K * PANEL_ROW, PATTERN) : ot_wgmma_operand(panels, 0, PATTERN);
    uint64_t next = ot_wgmma_advance(operand, TRANSPOSED ? 16 * PANEL_ROW : 32);
    ot_wgmma_fence();
    if constexpr (A != REGISTERS) {
        constexpr bool COLUMNS = A == COLUMNS_OF_A;
        uint64_t left = ot_wgmma_operand(panel_of_a, 0, PATTERN);
        ot_wgmma<T, TRANSPOSED, false, COLUMNS>(sums, left, operand);
        ot_wgmma<T, TRANSPOSED, true, COLUMNS>(sums, ot_wgmma_advance(left, COLUMNS ? 16 * PANEL_ROW : 32),
                                               next);
    } else {
        ot_wgmma<T, TRANSPOSED, false>(sums, fragments[0], operand);
        ot_wgmma<T, TRANSPOSED, true>(sums, fragments[1], next);
    }
    ot_wgmma_commit();
    ot_wgmma_wait<0>();
    ot_wgmma_ready(sums);
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++)
            c[(16 * warp + g + i / 2 * 8) * N + 8 * n + t + i % 2] = sums[n][i];
}

/* Multiples of 1/16 below 2: products and sums are exact. */
template <class T>
static std::vector<T> matrix(int n, int step) {
    std::vector<T> values((size_t)n);
    for (int i = 0; i < n; i++)
        values[(size_t)i] = ot_from_float<T>((float)(i * step % 61 - 30) / 16);
    return values;
}

template <class T, bool TRANSPOSED, int N, Place A = REGISTERS>
static void check_product() {
    DeviceArray<T> a(matrix<T>(M * K, 7)), b(matrix<T>(K * N, 11));
    DeviceArray<float> c(M * N, -1);
    size_t shared_bytes = PATTERN + panels_bytes<TRANSPOSED, N>() + (A != REGISTERS ? M * PANEL_ROW : 0);
    run_well(multiply<T, TRANSPOSED, N, A>, 1, 128, shared_bytes, (const T *)a.device, (const T *)b.device,
             c.device);
    c.get();
    for (size_t row = 0; row < M; row++)
        for (size_t n = 0; n < N; n++) {
            float want = 0;
            for (size_t k = 0; k < K; k++)
                want += ot_to_float(a.host[row * K + k]) * ot_to_float(b.host[k * N + n]);
            if (c.host[row * N + n] != want)
                fail_msg("row %d, column %d: %g instead of %g", (int)row, (int)n, (double)c.host[row * N + n],
                         (double)want);
        }
}

static void test_wgmma_multiplies(void **) {
    reset_to(90);
    check_product<__nv_bfloat16, false, 64>();
    check_product<__nv_bfloat16, true, 64>();
    check_product<__nv_bfloat16, false, 128>();
    check_product<__nv_bfloat16, true, 128>();
    check_product<__half, false, 128>();
    check_product<__half, true, 64>();
    check_product<__nv_bfloat16, false, 64, ROWS_OF_A>();
    check_product<__half, false, 64, ROWS_OF_A>();
    check_product<__nv_bfloat16, false, 256, ROWS_OF_A>();
    check_product<__half, false, 256, COLUMNS_OF_A>();
    check_product<__half, true, 256, ROWS_OF_A>();
    check_product<__nv_bfloat16, true, 256, COLUMNS_OF_A>();
}

/* A sum over many groups of products, of which one is always in flight: rounds products of ones. */
static __global__ void accumulate(float *sums_out, int rounds) {
    __half *panel = first_panel<__half>();
    for (int i = (int)threadIdx.x; i < 64 * 64; i += 128)
        panel[i] = __float2half_rn(1);
    ot_fence_proxy_async();
    __syncthreads();
    float sums[8][4] = {};
    uint64_t operand = ot_wgmma_operand(panel, 0, PATTERN);
    for (int i = 0; i < rounds; i++) {
        ot_wgmma_fence();
        ot_wgmma<__half, false, true>(sums, operand, operand);
        ot_wgmma_commit();
        ot_wgmma_wait<1>();
    }
    ot_wgmma_wait<0>();
    ot_wgmma_ready(sums);
    sums_out[threadIdx.x] = sums[7][3];
}

static void test_groups_in_flight_add_up(void **) {
    enum { ROUNDS = 5 };
    reset_to(90);
    DeviceArray<float> sums(128, -1);
    run_well(accumulate, 1, 128, PATTERN + 64 * PANEL_ROW, sums.device, (int)ROUNDS);
    sums.get();
    for (float sum : sums.host)
        assert_true(sum == ROUNDS * 16);
}

/* ---- wrong and right: one warpgroup ---- */

enum Fault {
    NONE,
    EARLY_READ,
    EARLY_WRITE,
    WRITTEN_A,
    NO_FENCE,
    LATE_SUMS,
    LATE_A,
    NO_PROXY_FENCE,
    OUTSIDE,
    MISALIGNED,
    ACROSS_ROWS,
    NO_SWIZZLE,
    OTHER_OPERAND,
    MISSING_WARP,
    NO_COMMIT,
    OVERWRITTEN,
};

/* The start of the operand, and with it some faults. */
static __forceinline__ uint64_t operand_of(const __half *panel, Fault fault) {
    unsigned skip = fault == MISALIGNED ? 128 : fault == ACROSS_ROWS ? 112 : fault == OUTSIDE ? 1024 : 0;
    if (fault == OTHER_OPERAND && threadIdx.x / 32 == 2)
        skip = 32;
    uint64_t operand = ot_wgmma_advance(ot_wgmma_operand(panel, 0, PATTERN), skip);
    return fault == NO_SWIZZLE ? operand & ~((uint64_t)3 << 62) : operand;
}

template <Fault F>
static __global__ void product(float *data, bool wrong) {
    const Fault fault = wrong ? F : NONE;
    __half *panel = first_panel<__half>();
    for (int i = (int)threadIdx.x; i < 64 * 64; i += 128)
        panel[i] = __float2half_rn(0.5f);
    if (fault != NO_PROXY_FENCE)
        ot_fence_proxy_async();
    __syncthreads();
    float sums[8][4] = {};
    uint32_t a[4] = {threadIdx.x, 1, 2, 3};
    if (fault != NO_FENCE)
        ot_wgmma_fence();
    if (fault == LATE_SUMS)
        sums[3][1] = data[1];
    if (fault == LATE_A)
        a[2] = (uint32_t)data[2];
    if (fault != MISSING_WARP || threadIdx.x / 32 != 3)
        ot_wgmma<__half, false, true>(sums, a, operand_of(panel, fault));
    if (fault != NO_COMMIT)
        ot_wgmma_commit();
    if (fault == EARLY_READ)
        data[threadIdx.x] = sums[0][0];
    if (fault == EARLY_WRITE)
        sums[7][3] = data[3];
    if (fault == WRITTEN_A)
        a[1] = (uint32_t)data[1];
    if (fault == OVERWRITTEN && threadIdx.x == 77)
        panel[0] = __float2half_rn(data[0]);
    ot_wgmma_wait<0>();
    ot_wgmma_ready(sums);
    data[threadIdx.x] = sums[0][0] + sums[3][1] + sums[7][3] + (float)a[1];
}

/* ---- wrong and right: A in shared memory ---- */

/* b is the first panel; A is the second: 64 rows of 64 elements. */
template <Fault F>
static __global__ void product_of_shared(float *data, bool wrong) {
    const Fault fault = wrong ? F : NONE;
    __half *b = first_panel<__half>(), *a = b + 64 * 64;
    for (int i = (int)threadIdx.x; i < 64 * 64; i += 128)
        b[i] = __float2half_rn(0.5f);
    ot_fence_proxy_async();
    for (int i = (int)threadIdx.x; i < 64 * 64; i += 128)
        a[i] = __float2half_rn((float)(i / 64));
    if (fault != NO_PROXY_FENCE)
        ot_fence_proxy_async();
    __syncthreads();
    float sums[8][4] = {};
    ot_wgmma_fence();
    if (fault == LATE_SUMS)
        sums[3][1] = data[1];
    ot_wgmma<__half, false, true>(sums, operand_of(a, fault), ot_wgmma_operand(b, 0, PATTERN));
    ot_wgmma_commit();
    if (fault == EARLY_READ)
        data[threadIdx.x] = sums[0][0];
    if (fault == OVERWRITTEN && threadIdx.x == 77) /* a row of another warp than the first */
        a[40 * 64] = __float2half_rn(data[0]);
    ot_wgmma_wait<0>();
    ot_wgmma_ready(sums);
    data[threadIdx.x] = sums[0][0] + sums[3][1];
}

/* ---- wrong and right: a warpgroup copies, another multiplies ---- */

enum HandFault {
    NO_INIT,
    NO_SYNC,
    PARITY_OF_FULL,
    PARITY_OF_EMPTY,
    COUNT,
    EARLY_RELEASE,
    NO_RELEASE_WAIT,
    NO_SYNCWARP,
    NO_COPY_WAIT,
    FENCE_BEFORE_COPY,
    SOUND,
};

enum { ROUNDS = 3 };

struct Hand { /* a panel of 64 rows that goes round, and its barriers */
    __half *panel;
    uint64_t *full, *empty;
    HandFault fault;
};

/* The lanes of a warp arrive by one lane. */
static __forceinline__ void arrive(const Hand &h, uint64_t *barrier) {
    if (h.fault != NO_SYNCWARP)
        __syncwarp();
    if (threadIdx.x % 32 == 0)
        ot_mbarrier_arrive(barrier);
}

static __forceinline__ void copy_rounds(const Hand &h, const float *data) {
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (h.fault != NO_RELEASE_WAIT)
            ot_mbarrier_wait(h.empty, (round & 1) ^ (h.fault == PARITY_OF_EMPTY ? 0 : 1));
        for (unsigned i = threadIdx.x; i < 64 * 8; i += 128)
            ot_cp_async_16(h.panel + 8 * i, data, false);
        ot_cp_async_commit();
        if (h.fault == FENCE_BEFORE_COPY)
            ot_fence_proxy_async();
        if (h.fault != NO_COPY_WAIT)
            ot_cp_async_wait<0>();
        if (h.fault != FENCE_BEFORE_COPY)
            ot_fence_proxy_async();
        arrive(h, h.full);
    }
}

static __forceinline__ void multiply_rounds(const Hand &h, float *data) {
    float sums[8][4] = {};
    uint32_t a[4] = {};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        ot_mbarrier_wait(h.full, (round & 1) ^ (h.fault == PARITY_OF_FULL ? 1 : 0));
        ot_wgmma_fence();
        ot_wgmma<__half, false, true>(sums, a, ot_wgmma_operand(h.panel, 0, PATTERN));
        ot_wgmma_commit();
        if (h.fault == EARLY_RELEASE)
            arrive(h, h.empty);
        ot_wgmma_wait<0>();
        ot_wgmma_ready(sums);
        if (h.fault != EARLY_RELEASE)
            arrive(h, h.empty);
    }
    data[threadIdx.x] = sums[0][0];
}

template <HandFault F>
static __global__ void hand_over(float *data, bool wrong) {
    Hand h = {first_panel<__half>(), nullptr, nullptr, wrong ? F : SOUND};
    h.full = reinterpret_cast<uint64_t *>(h.panel + 64 * 64);
    h.empty = h.full + 1;
    if (threadIdx.x == 0 && h.fault != NO_INIT) {
        ot_mbarrier_init(h.full, 4);
        ot_mbarrier_init(h.empty, h.fault == COUNT ? 5 : 4);
    }
    if (h.fault != NO_SYNC)
        __syncthreads();
    if (threadIdx.x < 128) {
        ot_registers_give<40>();
        copy_rounds(h, data);
    } else {
        ot_registers_take<232>();
        multiply_rounds(h, data);
    }
}

/* ---- the cases ---- */

static constexpr size_t ROOM =
    PATTERN - 128 + 64 * PANEL_ROW; /* the panel begins 896 bytes after the start */

static const Case make_product(const char *name, void (*kernel)(float *, bool),
                               std::vector<const char *> words, bool needs_access_checks = false,
                               cudaError_t error = cudaErrorLaunchFailure) {
    return {name, kernel, 1, 128, ROOM, error, words, needs_access_checks, 90};
}

static const Case make_shared(const char *name, void (*kernel)(float *, bool),
                              std::vector<const char *> words, bool needs_access_checks = false,
                              cudaError_t error = cudaErrorLaunchFailure) {
    return {name, kernel, 1, 128, ROOM + 64 * PANEL_ROW, error, words, needs_access_checks, 90};
}

static const Case make_hand(const char *name, void (*kernel)(float *, bool), std::vector<const char *> words,
                            bool needs_access_checks = false) {
    return {name, kernel, 1, 256, ROOM + 16, cudaErrorLaunchFailure, words, needs_access_checks, 90};
}

static const std::vector<Case> cases = {
    make_product("early_read", product<EARLY_READ>, {"sums of a wgmma that has not been waited for are read"},
                 true),
    make_product("early_write", product<EARLY_WRITE>, {"sums of a wgmma", "are written"}, true),
    make_product("written_a", product<WRITTEN_A>, {"registers of A of a wgmma", "are written"}, true),
    make_product("no_commit", product<NO_COMMIT>, {"sums of a wgmma", "are read"}, true),
    make_product("no_fence", product<NO_FENCE>, {"wgmma before the first wgmma.fence", "test_hopper.cpp:"}),
    make_product("late_sums", product<LATE_SUMS>,
                 {"wgmma: sums of thread (0,0,0) were written after the last"}, true),
    make_product("late_a", product<LATE_A>, {"wgmma: registers of A of", "were written after the last"},
                 true),
    make_product("no_proxy_fence", product<NO_PROXY_FENCE>,
                 {"wgmma reads offset", "which wrote it, has executed no fence.proxy.async since"}, true),
    make_product("overwritten", product<OVERWRITTEN>, {"race: offset", "thread (77,0,0)"}, true),
    make_product("outside", product<OUTSIDE>, {"wgmma of offset 9088 of shared memory, which has 9088 bytes"},
                 false, cudaErrorIllegalAddress),
    make_product("misaligned", product<MISALIGNED>, {"does not begin at a multiple of 1024 bytes"}, false,
                 cudaErrorMisalignedAddress),
    make_product("across_rows", product<ACROSS_ROWS>, {"it leaves the rows of its panel"}, false,
                 cudaErrorMisalignedAddress),
    make_product("no_swizzle", product<NO_SWIZZLE>, {"only the swizzle of 128 bytes"}),
    make_product("other_operand", product<OTHER_OPERAND>,
                 {"divergent warpgroup: warp 2 executes another wgmma"}),
    make_product("missing_warp", product<MISSING_WARP>, {"divergent warpgroup: warp 3 ends after 0 wgmmas"}),
    make_shared("shared_early_read", product_of_shared<EARLY_READ>,
                {"sums of a wgmma that has not been waited for are read"}, true),
    make_shared("shared_late_sums", product_of_shared<LATE_SUMS>,
                {"wgmma: sums of thread (0,0,0) were written after the last"}, true),
    make_shared("shared_no_proxy_fence", product_of_shared<NO_PROXY_FENCE>,
                {"wgmma reads offset", "which wrote it, has executed no fence.proxy.async since"}, true),
    make_shared("shared_overwritten", product_of_shared<OVERWRITTEN>, {"race: offset", "thread (77,0,0)"},
                true),
    make_shared("shared_outside", product_of_shared<OUTSIDE>,
                {"wgmma of offset 17280 of shared memory, which has 17280 bytes"}, false,
                cudaErrorIllegalAddress),
    make_shared("shared_misaligned", product_of_shared<MISALIGNED>,
                {"does not begin at a multiple of 1024 bytes"}, false, cudaErrorMisalignedAddress),
    make_shared("shared_across_rows", product_of_shared<ACROSS_ROWS>, {"it leaves the rows of its panel"},
                false, cudaErrorMisalignedAddress),
    make_shared("shared_no_swizzle", product_of_shared<NO_SWIZZLE>, {"only the swizzle of 128 bytes"}),
    make_shared("shared_other_operand", product_of_shared<OTHER_OPERAND>,
                {"divergent warpgroup: warp 2 executes another wgmma"}),
    make_hand("no_init", hand_over<NO_INIT>, {"before the mbarrier's init, at offset"}),
    make_hand("no_sync", hand_over<NO_SYNC>,
              {"mbarrier's init by thread (0,0,0) has no __syncthreads after it"}),
    make_hand("parity_of_full", hand_over<PARITY_OF_FULL>, {"race: offset"}, true),
    make_hand("parity_of_empty", hand_over<PARITY_OF_EMPTY>,
              {"the wait for an mbarrier never ends: 0 phases have ended, and 0 of 4"}),
    make_hand("count", hand_over<COUNT>,
              {"the wait for an mbarrier never ends", "4 of 5 threads have arrived"}),
    make_hand("early_release", hand_over<EARLY_RELEASE>, {"shared memory"}, true),
    make_hand("no_release_wait", hand_over<NO_RELEASE_WAIT>, {"shared memory"}, true),
    make_hand("no_syncwarp", hand_over<NO_SYNCWARP>, {"race: offset"}, true),
    make_hand("no_copy_wait", hand_over<NO_COPY_WAIT>, {"the cp.async to it by thread"}, true),
    make_hand("fence_before_copy", hand_over<FENCE_BEFORE_COPY>, {"has executed no fence.proxy.async since"},
              true),
};

static void test_right_hopper_kernels_pass(void **) {
    check_right_kernels(cases);
}

static void test_wrong_hopper_kernels_are_reported(void **) {
    check_wrong_kernels(cases);
}

/* The code of the kernels is for sm_90a; a newer card does not run it either. */
static void test_other_cards_have_no_wgmma(void **) {
    for (int compute_capability : {80, 89, 100, 120}) {
        reset_to(compute_capability);
        DeviceArray<float> data(256, 0.5f);
        assert_int_equal(run(product<NONE>, 1, 128, ROOM, data.device, false), cudaErrorLaunchFailure);
        assert_non_null(strstr(ot_emu_report(), "only 9.0 has it"));
        ot_emu_reset();
    }
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wgmma_multiplies),
        cmocka_unit_test(test_groups_in_flight_add_up),
        cmocka_unit_test(test_right_hopper_kernels_pass),
        cmocka_unit_test(test_wrong_hopper_kernels_are_reported),
        cmocka_unit_test(test_other_cards_have_no_wgmma),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
