/* Maps the blocks of a product by groups to tiles of C, of ROWS x COLS elements.
 *
 * The host does not know how many rows an expert has. It knows how many tiles there can be, and numbers them.
 * A block that computes the tile of a number counts: the tiles of expert 0, of expert 1, ... until the number
 * is reached. Each warp counts for itself, 32 experts at a time. Numbers behind the last tile have no tile.
 *
 * Form ROWS: expert e has ceil(its rows / ROWS) x (tiles of n) tiles. Tiles are numbered down the rows first,
 * then to the right, in bands of BAND tiles of rows. So the blocks that run at the same time share tiles of
 * the weights, and the rows of a band, BAND * ROWS * k elements, stay in the L2 cache. Form SUMS: all experts
 * have the same number of tiles.
 */
#ifndef OT_KERNELS_CUDA_GEMM_GROUPS_CUH
#define OT_KERNELS_CUDA_GEMM_GROUPS_CUH

#include "kernels/cuda/kernel.cuh"

enum { OT_GROUPS_BAND = 16 };

struct ot_groups_tile {
    int expert, begin, end; /* the rows of its group */
    int row, col;           /* the tile's origin: a packed row (ROWS), or a row of C_e (SUMS) */
};

static inline int64_t ot_groups_tiles(const struct ot_gemm_groups &op, int tile_rows, int tile_cols) {
    int64_t across = ot_ceil_div(op.n, tile_cols);
    if (op.form == OT_GROUPS_SUMS)
        return op.experts * ot_ceil_div(op.m, tile_rows) * across;
    int64_t groups = op.experts < op.rows ? op.experts : op.rows;
    return (op.rows / tile_rows + groups) * across;
}

/* Cuts a group of `down` x `across` tiles. */
template <int ROWS, int COLS>
__device__ __forceinline__ void ot_groups_place(struct ot_groups_tile *at, int index, int down, int across) {
    int band = index / (OT_GROUPS_BAND * across), left = index - band * OT_GROUPS_BAND * across;
    int height = min(OT_GROUPS_BAND, down - band * OT_GROUPS_BAND);
    at->row += (band * OT_GROUPS_BAND + left % height) * ROWS;
    at->col = left / height * COLS;
}

/* Finds tile number `index`, which is below ot_groups_tiles(). False: there is no such tile. All lanes of a
 * warp must call. */
template <int ROWS, int COLS>
__device__ __forceinline__ bool ot_groups_find(const struct ot_gemm_groups &op, int index,
                                               struct ot_groups_tile *at) {
    int across = (int)((op.n + COLS - 1) / COLS), experts = (int)op.experts;
    if (op.form == OT_GROUPS_SUMS) {
        int down = (int)((op.m + ROWS - 1) / ROWS);
        at->expert = index / (down * across);
        at->begin = op.offsets[at->expert];
        at->end = op.offsets[at->expert + 1];
        at->row = 0;
        ot_groups_place<ROWS, COLS>(at, index % (down * across), down, across);
        return true;
    }
    int lane = (int)threadIdx.x % OT_WARP;
    for (int first = 0; first < experts; first += OT_WARP) {
        int expert = first + lane;
        int begin = expert < experts ? op.offsets[expert] : 0,
            end = expert < experts ? op.offsets[expert + 1] : 0;
        int down = (end - begin + ROWS - 1) / ROWS, sum = down * across;
#pragma unroll
        for (int offset = 1; offset < OT_WARP; offset *= 2) {
            int before = __shfl_up_sync(0xffffffffu, sum, offset);
            sum += lane >= offset ? before : 0;
        }
        int all = __shfl_sync(0xffffffffu, sum, OT_WARP - 1);
        if (index >= all) {
            index -= all;
            continue;
        }
        int owner = OT_WARP - __popc(__ballot_sync(0xffffffffu, sum > index));
        index -= __shfl_sync(0xffffffffu, sum - down * across, owner);
        at->expert = first + owner;
        at->begin = at->row = __shfl_sync(0xffffffffu, begin, owner);
        at->end = __shfl_sync(0xffffffffu, end, owner);
        ot_groups_place<ROWS, COLS>(at, index, __shfl_sync(0xffffffffu, down, owner), across);
        return true;
    }
    return false;
}

/* An element of C from its sum: scaled, then with the bias and the addend. row and col: in C (ROWS) or C_e
 * (SUMS); place: the element's offset in C. */
template <class T, class C>
__device__ __forceinline__ float ot_groups_finish(const struct ot_gemm_groups &op, int expert, float sum,
                                                  int col, int64_t place) {
    if (op.scale != 0)
        sum *= op.scale;
    if (op.bias)
        sum += ot_to_float(static_cast<const T *>(op.bias)[expert * op.n + col]);
    if (op.addend)
        sum += ot_to_float(static_cast<const C *>(op.addend)[place]);
    return sum;
}

#endif
