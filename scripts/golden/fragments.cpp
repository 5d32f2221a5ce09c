/* Prints what CuTe, the library of layouts in NVIDIA's CUTLASS, says about the operands of tensor cores:
 * which element each register of each thread holds, and how an operand lies in shared memory.
 * scripts/golden/fragments.py compiles and runs this program, and describes the tables.
 *
 * A table is a line: NAME DIMxDIM VALUE VALUE ... */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

/* make_gmma_desc asks for an address in shared memory. Here that is an array, and the operand begins BASE
 * bytes behind its start. */
enum { BASE = 1024 };
alignas(1024) static char shared[BASE];

static inline size_t __cvta_generic_to_shared(const void *at) {
    return (size_t)((const char *)at - shared);
}
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1

#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

using namespace cute;
using GMMA::Major;
using bf16 = cute::bfloat16_t;

static constexpr int CHUNK = 8; /* elements of 16 bytes */

[[noreturn]] static void fail(const char *name) {
    fprintf(stderr, "%s: 16 bytes of it do not lie together\n", name);
    exit(1);
}

/* ---- registers ---- */

/* [thread][value] */
template <class Layout>
static void print_fragment(const char *name, Layout layout) {
    int threads = size<0>(layout), values = size<1>(layout);
    printf("%s %dx%d", name, threads, values);
    for (int thread = 0; thread < threads; thread++)
        for (int value = 0; value < values; value++)
            printf(" %d", int(layout(thread, value)));
    printf("\n");
}

/* [lane][value]. CuTe counts bits. */
template <class Copy>
static void print_load(const char *name) {
    typename Copy_Traits<Copy>::SrcLayout source;
    typename Copy_Traits<Copy>::DstLayout target;
    printf("%s 32x8", name);
    for (int lane = 0; lane < 32; lane++)
        for (int value = 0; value < 8; value++) {
            int bit = target(lane, 16 * value);
            if (int(source(bit / 128, bit % 128)) != bit)
                fail(name);
            printf(" %d", bit / 16);
        }
    printf("\n");
}

/* ---- shared memory ---- */

/* Panels of 64 elements, one after the other. In each, groups of eight rows follow each other. */
template <Major MAJOR, int MN, int K>
static auto panels() {
    if constexpr (MAJOR == Major::K)
        return tile_to_shape(GMMA::Layout_K_SW128_Atom<bf16>{}, Shape<Int<MN>, Int<K>>{}, Step<_1, _2>{});
    else
        return tile_to_shape(GMMA::Layout_MN_SW128_Atom<bf16>{}, Shape<Int<MN>, Int<K>>{}, Step<_2, _1>{});
}

/* [row][chunk] */
template <Major MAJOR, class Layout>
static void print_places(const char *name, Layout layout) {
    auto place = as_position_independent_swizzle_layout(layout);
    int mn = size<0>(layout), k = size<1>(layout);
    int rows = MAJOR == Major::K ? mn : k, columns = MAJOR == Major::K ? k : mn;
    auto at = [&](int row, int column) {
        return int(MAJOR == Major::K ? place(row, column) : place(column, row));
    };
    printf("%s_places %dx%d", name, rows, columns / CHUNK);
    for (int row = 0; row < rows; row++)
        for (int chunk = 0; chunk < columns / CHUNK; chunk++) {
            int first = at(row, CHUNK * chunk);
            for (int i = 0; i < CHUNK; i++)
                if (first % CHUNK != 0 || at(row, CHUNK * chunk + i) != first + i)
                    fail(name);
            printf(" %d", first / CHUNK);
        }
    printf("\n");
}

/* [block of 64 rows of a, or of all columns of b][step of 16 along the sum] */
template <class Fragment>
static void print_descriptors(const char *name, Fragment fragment) {
    printf("%s_descriptors %dx%d", name, int(size<1>(fragment)), int(size<2>(fragment)));
    for (int block = 0; block < size<1>(fragment); block++)
        for (int step = 0; step < size<2>(fragment); step++)
            printf(" %llu", (unsigned long long)fragment(0, block, step).desc_);
    printf("\n");
}

template <Major MAJOR, int M, int K>
static void print_a(const char *name) {
    auto layout = panels<MAJOR, M, K>();
    auto thread = make_tiled_mma(SM90_64x64x16_F32BF16BF16_SS<MAJOR, Major::K>{}).get_thread_slice(0);
    auto tile = make_tensor(make_smem_ptr((bf16 *)(shared + BASE)), layout);
    print_places<MAJOR>(name, layout);
    print_descriptors(name, thread.make_fragment_A(thread.partition_A(tile)));
}

/* OP: the product that takes all columns at once. */
template <class OP, Major MAJOR, int N, int K>
static void print_b(const char *name) {
    auto layout = panels<MAJOR, N, K>();
    auto thread = make_tiled_mma(OP{}).get_thread_slice(0);
    auto tile = make_tensor(make_smem_ptr((bf16 *)(shared + BASE)), layout);
    print_places<MAJOR>(name, layout);
    print_descriptors(name, thread.make_fragment_B(thread.partition_B(tile)));
}

int main() {
    using Warp = MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN>;
    print_fragment("mma_a", Warp::ALayout{});
    print_fragment("mma_b", Warp::BLayout{});
    print_fragment("mma_c", Warp::CLayout{});
    print_load<SM75_U32x4_LDSM_N>("ldmatrix");
    print_load<SM75_U16x8_LDSM_T>("ldmatrix_trans");

    using Of64 = SM90_64x64x16_F32BF16BF16_RS<Major::K, Major::K>;
    using Of128 = SM90_64x128x16_F32BF16BF16_RS<Major::K, Major::K>;
    using Of256 = SM90_64x256x16_F32BF16BF16_SS<Major::K, Major::K>;
    print_fragment("wgmma_a", MMA_Traits<Of64>::ALayout{});
    print_fragment("wgmma_c_64", MMA_Traits<Of64>::CLayout{});
    print_fragment("wgmma_c_128", MMA_Traits<Of128>::CLayout{});
    print_fragment("wgmma_c_256", MMA_Traits<Of256>::CLayout{});

    print_a<Major::K, 128, 128>("a_k");
    print_a<Major::MN, 128, 64>("a_mn");
    print_b<Of64, Major::K, 64, 128>("b_k_64");
    print_b<Of128, Major::K, 128, 128>("b_k_128");
    print_b<Of256, Major::K, 256, 64>("b_k_256");
    print_b<SM90_64x64x16_F32BF16BF16_RS<Major::K, Major::MN>, Major::MN, 64, 128>("b_mn_64");
    print_b<SM90_64x128x16_F32BF16BF16_RS<Major::K, Major::MN>, Major::MN, 128, 128>("b_mn_128");
    print_b<SM90_64x256x16_F32BF16BF16_SS<Major::K, Major::MN>, Major::MN, 256, 64>("b_mn_256");
    return 0;
}
