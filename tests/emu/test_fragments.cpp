/* The emulator's tensor cores, and the descriptors and tiles of the kernels, against the layouts of CuTe.
 * scripts/golden/fragments.py says what each table holds.
 *
 * The host places every element by these tables, and the kernels here only copy bytes and registers. So a
 * test also fails if the emulator and the kernels share an error.
 *
 * The vectors are made with their size: the emulator has vectors of the same types, and the linker would give
 * it this file's push_back, whose accesses are checked like those of kernels. */
#include "kernels/cuda/attention_hopper.cuh"
#include "tests/emu/emu_fixture.h"

extern "C" {
#include "tests/support/golden.h"
}

static struct ot_golden *golden;

static int open_golden(void **) {
    golden = golden_open("fragments.bin");
    return 0;
}

static int close_golden(void **) {
    golden_close(golden);
    return 0;
}

struct Table {
    const int32_t *values;
    size_t rows, columns;

    explicit Table(const std::string &name)
        : values(golden_i32(golden, name.c_str(), nullptr)),
          rows((size_t)golden_dim(golden, name.c_str(), 0)),
          columns((size_t)golden_dim(golden, name.c_str(), 1)) {}
    size_t at(size_t row, size_t column) const { return (size_t)values[row * columns + column]; }
};

/* ---- matrices ---- */

enum Matrix { A, B, C };

/* Whole numbers from -4 to 4, so products and sums are exact. */
static float element(Matrix matrix, size_t row, size_t column) {
    uint32_t mixed = (uint32_t)(matrix * 7919 + row * 1009 + column) * 2654435761u;
    return (float)((mixed >> 16) % 9) - 4;
}

static float element_of_product(size_t row, size_t column, size_t depth) {
    float sum = 0;
    for (size_t k = 0; k < depth; k++)
        sum += element(A, row, k) * element(B, k, column);
    return sum;
}

static uint16_t bits_of(float value) {
    __half half = __float2half_rn(value);
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

/* Registers [thread][step][value / 2]: f(number, step) is the element of a value. */
template <class F>
static std::vector<uint32_t> registers_of(const Table &fragment, size_t steps, F f) {
    size_t per_step = fragment.columns / 2, per_thread = steps * per_step;
    std::vector<uint32_t> registers(fragment.rows * per_thread);
    for (size_t i = 0; i < registers.size(); i++) {
        size_t thread = i / per_thread, step = i % per_thread / per_step, value = i % per_step * 2;
        uint32_t low = bits_of(f(fragment.at(thread, value), step));
        registers[i] = low | (uint32_t)bits_of(f(fragment.at(thread, value + 1), step)) << 16;
    }
    return registers;
}

/* Of A from row `first` on, in steps of 16 columns. */
static std::vector<uint32_t> registers_of_a(const Table &fragment, size_t rows, size_t first, size_t steps) {
    return registers_of(fragment, steps, [&](size_t number, size_t step) {
        return element(A, first + number % rows, 16 * step + number / rows);
    });
}

/* Sums [thread][value] before a product: C's rows from `first` on. */
static std::vector<float> sums_before(const Table &fragment, size_t rows, size_t first) {
    std::vector<float> sums(fragment.rows * fragment.columns);
    for (size_t i = 0; i < sums.size(); i++) {
        size_t number = fragment.at(i / fragment.columns, i % fragment.columns);
        sums[i] = element(C, first + number % rows, number / rows);
    }
    return sums;
}

/* Checks the sums of A B, or C + A B. */
static void check_sums(const std::vector<float> &sums, const Table &fragment, size_t rows, size_t first,
                       size_t depth, bool adds, const char *name) {
    assert_int_equal(sums.size(), fragment.rows * fragment.columns);
    for (size_t thread = 0; thread < fragment.rows; thread++)
        for (size_t i = 0; i < fragment.columns; i++) {
            size_t row = first + fragment.at(thread, i) % rows, column = fragment.at(thread, i) / rows;
            float got = sums[thread * fragment.columns + i];
            float want = element_of_product(row, column, depth) + (adds ? element(C, row, column) : 0);
            if (got != want)
                fail_msg("%s: thread %d, value %d (row %d, column %d): %g instead of %g", name, (int)thread,
                         (int)i, (int)row, (int)column, (double)got, (double)want);
        }
}

/* ---- operands in shared memory ---- */

/* An operand in panels, as it lies in shared memory, and its descriptors. */
struct Operand {
    std::string name;
    Matrix matrix;
    bool along; /* a row of memory runs along the sum */
    Table places;
    std::vector<uint64_t> descriptors;

    explicit Operand(const std::string &name_)
        : name(name_), matrix(name_[0] == 'a' ? A : B), along(name_[2] == 'k'), places(name_ + "_places") {
        int64_t count;
        const int64_t *values = golden_i64(golden, (name + "_descriptors").c_str(), &count);
        descriptors.assign(values, values + count);
    }

    size_t chunks() const { return places.rows * places.columns; }

    float at(size_t row, size_t column) const {
        size_t k = along ? column : row, other = along ? row : column;
        return matrix == A ? element(A, other, k) : element(B, k, other);
    }

    std::vector<uint16_t> image() const {
        std::vector<uint16_t> image(8 * chunks(), 0xffff);
        for (size_t row = 0; row < places.rows; row++)
            for (size_t i = 0; i < 8 * places.columns; i++)
                image[8 * places.at(row, i / 8) + i % 8] = bits_of(at(row, i));
        return image;
    }
};

/* The first multiple of 1024 in shared memory. */
static __forceinline__ char *first_panel() {
    char *shared = ot_shared<char>();
    return shared + (1024 - ot_shared_address(shared) % 1024) % 1024;
}

/* All threads of the block must call. */
static __forceinline__ void put_image(char *at, const uint16_t *image, size_t chunks) {
    for (size_t i = threadIdx.x; i < chunks; i += blockDim.x)
        ((uint4 *)at)[i] = ((const uint4 *)image)[i];
}

/* The golden descriptors are for the start 1024. */
static __forceinline__ uint64_t move_to(const char *start, uint64_t descriptor) {
    return descriptor + (ot_shared_address(start) >> 4) - (1024 >> 4);
}

/* ---- places of elements ---- */

static void check_places(const char *name) {
    const Operand operand(name);
    const Table &places = operand.places;
    for (size_t row = 0; row < places.rows; row++)
        for (size_t chunk = 0; chunk < places.columns; chunk++) {
            size_t panel = chunk / 8 * places.rows * 8;
            int in_panel = ot_tile<64>::at((int)row, (int)chunk % 8) / 8;
            assert_int_equal(places.at(row, chunk), panel + (size_t)in_panel);
        }
}

static void test_tiles_have_the_swizzle(void **) {
    for (const char *name :
         {"a_k", "a_mn", "b_k_64", "b_k_128", "b_k_256", "b_mn_64", "b_mn_128", "b_mn_256"})
        check_places(name);
}

template <int ROWS, int DIM>
static __global__ void copy_tile(const __half *from, uint16_t *image) {
    char *tile = first_panel();
    hopper_copy_tile<ROWS, DIM>((__half *)tile, from, DIM, 0, ROWS);
    ot_cp_async_commit();
    ot_cp_async_wait<0>();
    __syncthreads();
    for (int i = (int)threadIdx.x; i < ROWS * DIM; i += HOPPER_GROUP)
        image[i] = ((const uint16_t *)tile)[i];
}

template <int ROWS, int DIM>
static void check_copy(const char *name) {
    const Operand operand(name);
    assert_int_equal(operand.chunks(), ROWS * DIM / 8);
    std::vector<__half> matrix(ROWS * DIM);
    for (size_t i = 0; i < matrix.size(); i++)
        matrix[i] = __float2half_rn(operand.at(i / DIM, i % DIM));
    DeviceArray<__half> from(matrix);
    DeviceArray<uint16_t> image(ROWS * DIM, 0);
    run_well(copy_tile<ROWS, DIM>, 1, HOPPER_GROUP, 1024 + 2 * ROWS * DIM, (const __half *)from.device,
             image.device);
    assert_true(image.get() == operand.image());
}

static void test_copies_make_panels(void **) {
    reset_to(90);
    check_copy<128, 128>("a_k");
    check_copy<64, 128>("b_k_64");
    check_copy<128, 128>("b_k_128");
    check_copy<128, 64>("b_mn_64");
    check_copy<128, 128>("b_mn_128");
}

/* ---- descriptors ---- */

enum { STEPS = 8, MOST_DESCRIPTORS = 2 * STEPS };

/* The descriptors of an operand of ROWS rows in memory, as the kernels make them: of each `block` bytes, some
 * steps of 16 along the sum. */
template <int ROWS, bool ALONG>
static __global__ void describe(uint64_t *out, uint32_t *start, int blocks, unsigned block, int steps) {
    const char *panel = first_panel();
    *start = ot_shared_address(panel);
    for (int b = 0; b < blocks; b++, panel += block)
        for (int i = 0; i < steps; i++)
            if constexpr (ALONG)
                *out++ = hopper_panels<ROWS>{ot_wgmma_operand(panel, 0, HOPPER_EIGHT_ROWS)}.step(i);
            else
                *out++ = ot_wgmma_advance(ot_wgmma_operand(panel, ROWS * HOPPER_PANEL_ROW, HOPPER_EIGHT_ROWS),
                                          16 * i * HOPPER_PANEL_ROW);
}

/* The distance of panels counts only if the sum runs across the rows and a product takes two panels. */
template <int ROWS, bool ALONG>
static void check_descriptors(const char *name, unsigned block, bool has_distance) {
    const Operand operand(name);
    std::string table = std::string(name) + "_descriptors";
    int blocks = (int)golden_dim(golden, table.c_str(), 0), steps = (int)golden_dim(golden, table.c_str(), 1);
    const uint64_t distance = has_distance ? 0 : (uint64_t)0xffff << 16;
    assert_int_equal(operand.places.rows, ROWS);
    assert_true(blocks * steps <= MOST_DESCRIPTORS);
    DeviceArray<uint64_t> out(MOST_DESCRIPTORS, 0);
    DeviceArray<uint32_t> start(1, 0);
    run_well(describe<ROWS, ALONG>, 1, 1, 1024 + 16 * operand.chunks(), out.device, start.device, blocks,
             block, steps);
    out.get();
    start.get();
    for (size_t i = 0; i < operand.descriptors.size(); i++) {
        uint64_t want = operand.descriptors[i] + (start.host[0] >> 4) - (1024 >> 4);
        if ((out.host[i] | distance) != (want | distance))
            fail_msg("%s: descriptor %d is 0x%016llx instead of 0x%016llx", name, (int)i,
                     (unsigned long long)out.host[i], (unsigned long long)want);
    }
}

static void test_descriptors(void **) {
    reset_to(90);
    check_descriptors<128, true>("a_k", 64 * HOPPER_PANEL_ROW, false);
    check_descriptors<64, false>("a_mn", 64 * HOPPER_PANEL_ROW, false);
    check_descriptors<64, true>("b_k_64", 0, false);
    check_descriptors<128, true>("b_k_128", 0, false);
    check_descriptors<256, true>("b_k_256", 0, false);
    check_descriptors<128, false>("b_mn_64", 0, false);
    check_descriptors<128, false>("b_mn_128", 0, true);
    check_descriptors<64, false>("b_mn_256", 0, true);
}

/* ---- products of a warpgroup ---- */

enum { DEPTH = 16 * STEPS, GROUP = 128, GROUP_ROWS = 64 };

/* Device memory. */
struct Factors {
    const uint16_t *a_image, *b_image;
    const uint64_t *a, *b;       /* descriptors of the steps */
    const uint32_t *a_registers; /* [thread][step][4] */
    size_t a_chunks, b_chunks;
    int block;   /* of 64 rows of A in shared memory */
    bool golden; /* use the golden descriptors, else the functions of attention */
};

/* Starts sums += a b by the golden descriptors. */
template <int N8, bool TRANSPOSED, bool A_SHARED>
static __forceinline__ void start_golden(const Factors &f, float (&sums)[1][N8][4],
                                         const uint32_t (&x)[1][STEPS][4], const char *a, const char *b) {
    ot_wgmma_fence();
    for (int i = 0; i < STEPS; i++)
        if constexpr (A_SHARED)
            ot_wgmma<__half, TRANSPOSED, true>(sums[0], move_to(a, f.a[i]), move_to(b, f.b[i]));
        else
            ot_wgmma<__half, TRANSPOSED, true>(sums[0], x[0][i], move_to(b, f.b[i]));
    ot_wgmma_commit();
}

/* The same by the functions of attention. */
template <int N8, bool TRANSPOSED, bool A_SHARED>
static __forceinline__ void start_ours(const Factors &f, float (&sums)[1][N8][4],
                                       const uint32_t (&x)[1][STEPS][4], const char *a, const char *b) {
    const __half *tile = (const __half *)b;
    hopper_registers<DEPTH> rows;
    memcpy(rows.a, x, sizeof rows.a);
    if constexpr (A_SHARED) {
        a += f.block * GROUP_ROWS * HOPPER_PANEL_ROW;
        hopper_panels<HOPPER_ROWS> panels = {ot_wgmma_operand(a, 0, HOPPER_EIGHT_ROWS)};
        hopper_start_dots<__half, DEPTH>(sums, panels, tile);
    } else if constexpr (TRANSPOSED) {
        hopper_start_weigh<__half, 8 * N8>(sums, x, tile);
    } else {
        hopper_start_dots<__half, DEPTH>(sums, rows, tile);
    }
    ot_wgmma_wait<0>(); /* while `rows` are there */
}

template <int N8, bool TRANSPOSED, bool A_SHARED>
static __global__ void multiply(const Factors f, float *c) {
    char *b = first_panel(), *a = b + 16 * f.b_chunks;
    put_image(b, f.b_image, f.b_chunks);
    put_image(a, f.a_image, f.a_chunks);
    ot_fence_proxy_async();
    __syncthreads();
    uint32_t x[1][STEPS][4];
    memcpy(x, f.a_registers + threadIdx.x * (STEPS * 4), sizeof x);
    float sums[1][N8][4];
    memcpy(sums, c + threadIdx.x * (N8 * 4), sizeof sums);
    if (f.golden)
        start_golden<N8, TRANSPOSED, A_SHARED>(f, sums, x, a, b);
    else
        start_ours<N8, TRANSPOSED, A_SHARED>(f, sums, x, a, b);
    ot_wgmma_wait<0>();
    ot_wgmma_ready(sums[0]);
    memcpy(c + threadIdx.x * (N8 * 4), sums, sizeof sums);
}

template <int N, bool A_SHARED>
static void check_product(const char *name_of_b, int block = 0) {
    const Operand left("a_k"), right(name_of_b);
    size_t first = (size_t)block * GROUP_ROWS;
    DeviceArray<uint16_t> a_image(left.image()), b_image(right.image());
    DeviceArray<uint64_t> a(left.descriptors), b(right.descriptors);
    DeviceArray<uint32_t> registers(registers_of_a(Table("wgmma_a"), GROUP_ROWS, first, STEPS));
    const Table fragment("wgmma_c_" + std::to_string(N));
    for (bool golden_descriptors : {true, false}) {
        DeviceArray<float> sums(sums_before(fragment, GROUP_ROWS, first));
        Factors f = {a_image.device,    b_image.device, a.device + block * STEPS, b.device,
                     registers.device,  left.chunks(),  right.chunks(),           block,
                     golden_descriptors};
        size_t shared_bytes = 1024 + 16 * (left.chunks() + right.chunks());
        auto kernel = right.along ? multiply<N / 8, false, A_SHARED> : multiply<N / 8, !A_SHARED, A_SHARED>;
        run_well(kernel, 1, GROUP, shared_bytes, f, sums.device);
        std::string what = right.name + (A_SHARED ? ", A in shared memory" : "") +
                           (golden_descriptors ? ", golden descriptors" : ", our descriptors");
        bool adds = golden_descriptors || !right.along; /* hopper_start_dots does not */
        check_sums(sums.get(), fragment, GROUP_ROWS, first, DEPTH, adds, what.c_str());
    }
}

static void test_wgmma(void **) {
    reset_to(90);
    check_product<64, false>("b_k_64");
    check_product<128, false>("b_k_128");
    check_product<64, false>("b_mn_64");
    check_product<128, false>("b_mn_128");
    check_product<64, true>("b_k_64", 0);
    check_product<64, true>("b_k_64", 1);
}

/* Products of 256 columns, over the 64 elements of a step of gemm_groups_hopper.cu. */
template <bool A_TRANSPOSED, bool TRANSPOSED>
static __global__ void multiply_wide(const Factors f, float *c) {
    char *b = first_panel(), *a = b + 16 * f.b_chunks;
    put_image(b, f.b_image, f.b_chunks);
    put_image(a, f.a_image, f.a_chunks);
    ot_fence_proxy_async();
    __syncthreads();
    float sums[32][4];
    memcpy(sums, c + threadIdx.x * 128, sizeof sums);
    ot_wgmma_fence();
    for (int i = 0; i < 64 / 16; i++)
        ot_wgmma<__half, TRANSPOSED, true, A_TRANSPOSED>(sums, move_to(a, f.a[i]), move_to(b, f.b[i]));
    ot_wgmma_commit();
    ot_wgmma_wait<0>();
    ot_wgmma_ready(sums);
    memcpy(c + threadIdx.x * 128, sums, sizeof sums);
}

template <bool A_TRANSPOSED, bool TRANSPOSED>
static void check_wide(const char *name_of_a, const char *name_of_b) {
    const Operand left(name_of_a), right(name_of_b);
    const Table fragment("wgmma_c_256");
    DeviceArray<uint16_t> a_image(left.image()), b_image(right.image());
    DeviceArray<uint64_t> a(left.descriptors), b(right.descriptors);
    size_t steps = left.descriptors.size() / 2;
    for (size_t block = 0; block < 2; block++) {
        DeviceArray<float> sums(sums_before(fragment, GROUP_ROWS, block * GROUP_ROWS));
        Factors f = {};
        f.a_image = a_image.device, f.a = a.device + block * steps, f.a_chunks = left.chunks();
        f.b_image = b_image.device, f.b = b.device, f.b_chunks = right.chunks();
        run_well(multiply_wide<A_TRANSPOSED, TRANSPOSED>, 1, GROUP,
                 1024 + 16 * (left.chunks() + right.chunks()), f, sums.device);
        check_sums(sums.get(), fragment, GROUP_ROWS, block * GROUP_ROWS, 64, true,
                   (left.name + ", " + right.name).c_str());
    }
}

static void test_wgmma_of_groups(void **) {
    reset_to(90);
    check_wide<false, false>("a_k", "b_k_256");
    check_wide<false, true>("a_k", "b_mn_256");
    check_wide<true, true>("a_mn", "b_mn_256");
}

/* Sums that are rounded become A of the next product, without an exchange between threads. */
static __global__ void round_sums(const float *sums, uint32_t *out) {
    float c[1][8][4];
    uint32_t p[1][4][4];
    memcpy(c, sums + threadIdx.x * 32, sizeof c);
    ot_tile_round<__half>(p, c);
    memcpy(out + threadIdx.x * 16, p, sizeof p);
}

static void test_rounded_sums_are_a(void **) {
    const Table sums("wgmma_c_64");
    std::vector<float> values(GROUP * 32);
    for (size_t i = 0; i < values.size(); i++)
        values[i] = (float)(sums.at(i / 32, i % 32) % 2039); /* fp16 has all numbers up to 2048 */
    DeviceArray<float> from(values);
    DeviceArray<uint32_t> out(GROUP * 16, 0);
    run_well(round_sums, 1, GROUP, 0, (const float *)from.device, out.device);
    assert_true(out.get() == registers_of(Table("wgmma_a"), 4, [](size_t number, size_t step) {
                    return (float)((number + GROUP_ROWS * 16 * step) % 2039);
                }));
}

/* ---- products and loads of a warp ---- */

static __global__ void multiply_by_mma(const uint32_t *a, const uint32_t *b, float *sums) {
    uint32_t x[4], y[2];
    float c[4];
    memcpy(c, sums + threadIdx.x * 4, sizeof c);
    memcpy(x, a + threadIdx.x * 4, sizeof x);
    memcpy(y, b + threadIdx.x * 2, sizeof y);
    ot_mma_16816<__half>(c, x, y[0], y[1]);
    memcpy(sums + threadIdx.x * 4, c, sizeof c);
}

static void test_mma(void **) {
    auto element_of_b = [](size_t number, size_t) { return element(B, number / 8, number % 8); };
    DeviceArray<uint32_t> a(registers_of_a(Table("mma_a"), 16, 0, 1));
    DeviceArray<uint32_t> b(registers_of(Table("mma_b"), 1, element_of_b));
    DeviceArray<float> sums(sums_before(Table("mma_c"), 16, 0));
    run_well(multiply_by_mma, 1, 32, 0, (const uint32_t *)a.device, (const uint32_t *)b.device, sums.device);
    check_sums(sums.get(), Table("mma_c"), 16, 0, 16, true, "mma");
}

/* Lane i passes row i. */
static __global__ void load_rows(const uint16_t *rows, uint16_t *out, bool transposed) {
    char *shared = first_panel();
    put_image(shared, rows, 32);
    __syncwarp();
    uint32_t x[4];
    if (transposed)
        ot_ldmatrix_x4_trans(x, shared + threadIdx.x * 16);
    else
        ot_ldmatrix_x4(x, shared + threadIdx.x * 16);
    memcpy(out + threadIdx.x * 8, x, sizeof x);
}

static void test_ldmatrix(void **) {
    std::vector<uint16_t> numbers(256);
    for (size_t i = 0; i < numbers.size(); i++)
        numbers[i] = (uint16_t)i;
    DeviceArray<uint16_t> rows(numbers);
    for (bool transposed : {false, true}) {
        const Table load(transposed ? "ldmatrix_trans" : "ldmatrix");
        DeviceArray<uint16_t> out(256, 0);
        run_well(load_rows, 1, 32, 2048, (const uint16_t *)rows.device, out.device, transposed);
        out.get();
        for (size_t i = 0; i < 256; i++)
            assert_int_equal(out.host[i], load.at(i / 8, i % 8));
    }
}

/* The functions of attention_tiles.cuh: the fragments of 16 rows of a panel, and two products with the first
 * 16 rows of another. dots: with a row of the panel as a column. weighed: with a row as a row. */
static __global__ void use_tiles(const uint16_t *a_image, const uint16_t *b_image, size_t chunks,
                                 uint32_t *fragments, float *dots, float *weighed) {
    char *a = first_panel(), *b = a + 16 * chunks;
    put_image(a, a_image, chunks);
    put_image(b, b_image, chunks);
    __syncwarp();
    uint32_t x[4][1][4];
    ot_tile_load<64>(x, (const __half *)a);
    memcpy(fragments + threadIdx.x * 16, x, sizeof x);
    float of_dots[1][2][4] = {}, of_weighed[1][8][4] = {};
    ot_tile_dots<64>(of_dots, x, (const __half *)b);
    memcpy(dots + threadIdx.x * 8, of_dots, sizeof of_dots);
    uint32_t p[1][1][4];
    memcpy(p, x[0], sizeof p);
    ot_tile_weigh<64>(of_weighed, p, (const __half *)b);
    memcpy(weighed + threadIdx.x * 32, of_weighed, sizeof of_weighed);
}

/* Checks the sums of pieces of 8 columns: f(row, column) are the right ones. */
template <class F>
static void check_pieces(const std::vector<float> &sums, size_t pieces, F f) {
    const Table fragment("mma_c");
    for (size_t i = 0; i < sums.size(); i++) {
        size_t lane = i / (4 * pieces), piece = i / 4 % pieces, number = fragment.at(lane, i % 4);
        assert_true(sums[i] == f(number % 16, 8 * piece + number / 16));
    }
}

static void test_tiles(void **) {
    const Operand panel("b_k_256"); /* one panel; A's elements take the place of B's */
    size_t chunks = 16 * 8;
    std::vector<uint16_t> image(8 * chunks);
    for (size_t i = 0; i < image.size(); i++)
        image[8 * panel.places.at(i / 64, i % 64 / 8) + i % 8] = bits_of(element(A, i / 64, i % 64));
    std::vector<uint16_t> other = panel.image();
    other.resize(image.size());
    DeviceArray<uint16_t> a(image), b(other);
    DeviceArray<uint32_t> fragments(32 * 16, 0);
    DeviceArray<float> dots(32 * 8, NAN), weighed(32 * 32, NAN);
    run_well(use_tiles, 1, 32, 1024 + 2 * 16 * chunks, (const uint16_t *)a.device, (const uint16_t *)b.device,
             chunks, fragments.device, dots.device, weighed.device);
    assert_true(fragments.get() == registers_of_a(Table("mma_a"), 16, 0, 4));
    check_pieces(dots.get(), 2,
                 [](size_t row, size_t column) { return element_of_product(row, column, 64); });
    check_pieces(weighed.get(), 8, [&](size_t row, size_t column) {
        float sum = 0;
        for (size_t k = 0; k < 16; k++)
            sum += element(A, row, k) * panel.at(k, column);
        return sum;
    });
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_have_the_swizzle),
        cmocka_unit_test(test_copies_make_panels),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_wgmma),
        cmocka_unit_test(test_wgmma_of_groups),
        cmocka_unit_test(test_rounded_sums_are_a),
        cmocka_unit_test(test_mma),
        cmocka_unit_test(test_ldmatrix),
        cmocka_unit_test(test_tiles),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
