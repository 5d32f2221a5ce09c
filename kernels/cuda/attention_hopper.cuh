/* The parts that the attention kernels of compute capability 9.0 share (attention_hopper.cu,
 * attention_hopper_backward.cu): which tiles a block takes, and the two kinds of products.
 *
 * A BLOCK owns 128 rows, queries or keys, and walks over tiles of the other side. S describes the shape. It
 * has the members that ring_hopper.cuh names, and DIM, the elements of a head: 64 or 128.
 *
 * PANELS. A tile that wgmma reads consists of DIM / 64 panels (ptx_hopper.cuh), each with all rows of the
 * tile.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_HOPPER_CUH
#define OT_KERNELS_CUDA_ATTENTION_HOPPER_CUH

#include "kernels/cuda/ring_hopper.cuh"

/* ---- which tiles ---- */

/* Tokens [first, end). */
struct hopper_span {
    int first, end;
};

/* The keys that some queries see, first rounded down to a tile of KEYS. Empty if there is no query. */
template <int KEYS>
__device__ __forceinline__ hopper_span hopper_keys(const struct ot_attention &op, int query, int queries) {
    if (query >= op.n)
        return {0, 0};
    int past = (int)(op.n_keys - op.n), end = query + queries + past;
    return {ot_attention_keys(op, query).first / KEYS * KEYS, end < op.n_keys ? end : (int)op.n_keys};
}

/* ---- copies ---- */

/* Starts copies of ROWS rows of one head into panels. The copying warpgroup takes part (ot_tile_copy). */
template <int ROWS, int DIM, class T>
__device__ __forceinline__ void hopper_copy_tile(T *tile, const T *from, int64_t ld, int first, int end) {
#pragma unroll
    for (int panel = 0; panel < DIM / 64; panel++)
        ot_tile_copy<ROWS, 64, HOPPER_GROUP>(tile + panel * (ROWS * 64), from + panel * 64, ld, first, end);
}

/* ---- products ---- */

/* The 64 rows of a warpgroup as the left operand of hopper_start_dots. step(i): elements from 16 i
 * on. */
template <int DIM>
struct hopper_registers {
    uint32_t a[DIM / 16][1][4];
    __device__ __forceinline__ const uint32_t (&step(int i) const)[4] { return a[i][0]; }
};

/* In panels of ROWS rows. */
template <int ROWS>
struct hopper_panels {
    uint64_t a;
    __device__ __forceinline__ uint64_t step(int i) const {
        return ot_wgmma_advance(a, i / 4 * (ROWS * HOPPER_PANEL_ROW) + i % 4 * 32);
    }
};

/* Starts s = x y^T: x is the warpgroup's rows, y is the 8 N rows at y, in panels. */
template <class T, int DIM, int N, class X>
__device__ __forceinline__ void hopper_start_dots(float (&s)[1][N][4], const X &x, const T *y) {
    hopper_panels<8 *N> rows = {ot_wgmma_operand(y, 0, HOPPER_EIGHT_ROWS)};
    ot_wgmma_fence();
    ot_wgmma<T, false, false>(s[0], x.step(0), rows.step(0));
#pragma unroll
    for (int i = 1; i < DIM / 16; i++)
        ot_wgmma<T, false, true>(s[0], x.step(i), rows.step(i));
    ot_wgmma_commit();
}

/* Starts sum += p z: p are weights of the warpgroup's rows, z is the 16 K rows at z, in panels. */
template <class T, int DIM, int K>
__device__ __forceinline__ void hopper_start_weigh(float (&sum)[1][DIM / 8][4], const uint32_t (&p)[1][K][4],
                                                   const T *z) {
    uint64_t rows = ot_wgmma_operand(z, 16 * K * HOPPER_PANEL_ROW, HOPPER_EIGHT_ROWS);
    ot_wgmma_fence();
#pragma unroll
    for (int i = 0; i < K; i++)
        ot_wgmma<T, true, true>(sum[0], p[0][i], ot_wgmma_advance(rows, i * 16 * HOPPER_PANEL_ROW));
    ot_wgmma_commit();
}

#endif
