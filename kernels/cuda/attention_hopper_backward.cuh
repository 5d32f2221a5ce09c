/* The geometry of a block of attention_hopper_backward.cu: the sizes of the two passes, the span of tokens
 * that a block visits, the visible part of a tile, and the lse and delta of the queries.
 *
 * A block OWNS 128 rows and VISITS tiles of the other side. Owned rows are the rows of the score fragments in
 * both passes. So a query's lse and delta belong to a row of the fragment in the pass of queries, where a
 * lane keeps those of its two rows in registers. In the pass of keys they belong to a column and come with
 * the tile.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_HOPPER_BACKWARD_CUH
#define OT_KERNELS_CUDA_ATTENTION_HOPPER_BACKWARD_CUH

#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/attention_score.cuh"

/* ---- lse and delta ---- */

/* Returns a query's lse as an exponent of 2, or its delta times the scale; 0 from query `end` on. */
__device__ __forceinline__ float gradient_number(const struct ot_attention_backward &op, bool is_delta,
                                                 int head, int query, int end) {
    const struct ot_attention &f = op.forward;
    if (query >= end)
        return 0.0f;
    return is_delta ? op.scratch[head * f.n + query] * f.scale : f.lse[head * f.n + query] * OT_LOG2_E;
}

/* The place of a visited query's number in its slot. A lane needs those of the columns 2 t and 2 t + 1 of
 * each eight; four successive numbers are those of 16 columns. */
__device__ __forceinline__ int gradient_number_place(int query) {
    return query / 16 * 16 + query % 8 / 2 * 4 + query % 16 / 8 * 2 + query % 2;
}

/* Call f(n, i, number) for each element [n][i] of a fragment, with its query's lse or delta. Rows are
 * queries: the numbers stay in registers. */
template <int N>
struct gradient_row_numbers {
    float row_lse[2], row_delta[2];

    __device__ __forceinline__ gradient_row_numbers(const struct ot_attention_backward &op, int head,
                                                    int first) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int query = first + ot_lane() / 4 + 8 * r;
            row_lse[r] = gradient_number(op, false, head, query, (int)op.forward.n);
            row_delta[r] = gradient_number(op, true, head, query, (int)op.forward.n);
        }
    }
    __device__ __forceinline__ const gradient_row_numbers &with(const float *) const {
        return *this;
    }

    template <class F>
    __device__ __forceinline__ void lse(F f) const {
        each(row_lse, f);
    }
    template <class F>
    __device__ __forceinline__ void delta(F f) const {
        each(row_delta, f);
    }

  private:
    template <class F>
    __device__ static __forceinline__ void each(const float (&row)[2], F f) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                f(n, i, row[i / 2]);
    }
};

/* Columns are queries: the numbers come with the tile. */
template <int N>
struct gradient_column_numbers {
    const float *of_slot = nullptr;

    __device__ __forceinline__ gradient_column_numbers(const struct ot_attention_backward &, int, int) {}
    __device__ __forceinline__ explicit gradient_column_numbers(const float *numbers) : of_slot(numbers) {}
    __device__ __forceinline__ gradient_column_numbers with(const float *numbers) const {
        return gradient_column_numbers(numbers);
    }

    template <class F>
    __device__ __forceinline__ void lse(F f) const {
        each(of_slot, f);
    }
    template <class F>
    __device__ __forceinline__ void delta(F f) const {
        each(of_slot + 8 * N, f);
    }

  private:
    template <class F>
    __device__ static __forceinline__ void each(const float *numbers, F f) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            float4 four = *reinterpret_cast<const float4 *>(numbers + 8 * n + ot_lane() % 4 * 4);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                f(n, 2 * r, four.x);
                f(n, 2 * r + 1, four.y);
                f(n + 1, 2 * r, four.z);
                f(n + 1, 2 * r + 1, four.w);
            }
        }
    }
};

/* ---- sizes ---- */

enum gradient_pass { OF_QUERIES, OF_KEYS };

template <int HEAD_DIM, gradient_pass PASS_>
struct gradient_shape {
    static constexpr gradient_pass PASS = PASS_;
    static constexpr int DIM = HEAD_DIM, N = 8, VISITED = 8 * N;
    static constexpr int STAGES = DIM == 64 ? 6 : 4;
    static constexpr int TILE = VISITED * DIM, OWNED_TILE = HOPPER_ROWS * DIM; /* elements */
    static constexpr int SLOT_BYTES = 2 * TILE * 2;
    static constexpr int NUMBERS = PASS == OF_KEYS ? 2 * VISITED : 0; /* floats per slot: lse and delta */
    static constexpr int SPANS =
        2 * OWNED_TILE * 2 + STAGES * NUMBERS * (int)sizeof(float); /* their offset */
    static constexpr int OWNED_BYTES = SPANS + HOPPER_ROWS * (int)sizeof(ot_attention_span);
    /* Owned rows are left operands in registers where those suffice, else in panels. Also in panels in the
     * pass of queries for heads of 64: there ptxas of CUDA 13.0 puts the rounded ds into the registers of
     * dout, which the next tile still needs (seen on an H100; tests/scripts/test_hopper_code.py looks for
     * it). */
    static constexpr bool IN_REGISTERS = (PASS == OF_QUERIES) == (DIM == 128);
    /* No registers are left for a head's scale: each tile makes it again. */
    static constexpr bool IS_FULL = PASS == OF_KEYS && DIM == 128;
    using numbers = typename std::conditional<PASS == OF_QUERIES, gradient_row_numbers<N>,
                                              gradient_column_numbers<N>>::type;
    using owned =
        typename std::conditional<IN_REGISTERS, hopper_registers<DIM>, hopper_panels<HOPPER_ROWS>>::type;
};

/* ---- which rows and tiles ---- */

/* The end of the queries that see `key`, if the end is not behind `end`, which is not 0. A warp searches
 * together only if it must. */
__device__ __forceinline__ int gradient_end_query(const struct ot_attention &op, int key, int end) {
    if (ot_attention_keys(op, end - 1).first <= key)
        return end;
    return ot_attention_end_query(op, key, key + 1);
}

/* A block's task: sum the rows from `begin` on over the visited tokens, for query heads [head, end_head),
 * which share one kv head. */
template <class S>
struct gradient_block {
    int head, end_head, kv_head, begin;
    hopper_span visited;

    /* The longest blocks start first: the last queries see most keys, the first keys are seen by most
     * queries. All lanes of a warp must call. */
    __device__ __forceinline__ explicit gradient_block(const struct ot_attention &op) {
        int n = (int)op.n, heads = (int)op.heads, kv_heads = (int)op.kv_heads, group = heads / kv_heads;
        if constexpr (S::PASS == OF_QUERIES) {
            int blocks = (n + HOPPER_ROWS - 1) / HOPPER_ROWS;
            head = (int)blockIdx.x % heads;
            end_head = head + 1;
            kv_head = head / group;
            begin = (blocks - 1 - (int)blockIdx.x / heads) * HOPPER_ROWS;
            visited = hopper_keys<S::VISITED>(op, begin, HOPPER_ROWS);
        } else {
            kv_head = (int)blockIdx.x % kv_heads;
            head = kv_head * group;
            end_head = head + group;
            begin = (int)blockIdx.x / kv_heads * HOPPER_ROWS;
            int end = min(begin + HOPPER_ROWS, (int)op.n_keys);
            visited = {ot_attention_first_query(op, begin),
                       hopper_uniform(ot_attention_end_query(op, begin, end))};
        }
    }

    /* The visited tokens that matter to the warpgroup that owns the rows from `first` on; they begin with a
     * tile. */
    __device__ __forceinline__ hopper_span seen(const struct ot_attention &op, int first) const {
        if (first >= rows(op))
            return {visited.first, visited.first};
        if constexpr (S::PASS == OF_QUERIES)
            return hopper_keys<S::VISITED>(op, first, HOPPER_GROUP_ROWS);
        int last = min(first + HOPPER_GROUP_ROWS, rows(op)) - 1;
        int before = ot_attention_first_query(op, first) - visited.first;
        return {visited.first + before / S::VISITED * S::VISITED, gradient_end_query(op, last, visited.end)};
    }

    /* The rows of all blocks. */
    __host__ __device__ static __forceinline__ int rows(const struct ot_attention &op) {
        return (int)(S::PASS == OF_QUERIES ? op.n : op.n_keys);
    }
};

/* The queries that see a key; their end is in [low, high]. A key beyond the end has none. */
__device__ __forceinline__ ot_attention_span gradient_seeing(const struct ot_attention &op, int key, int low,
                                                             int high) {
    if (key >= op.n_keys)
        return {INT32_MAX, -1};
    while (low < high) {
        int middle = (low + high) / 2;
        if (ot_attention_keys(op, middle).first <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return {ot_attention_first_query(op, key), low - 1};
}

/* ---- the tokens that a row sees ---- */

/* The tokens that a row of the warp sees, or that see it. They lie in shared memory, because few tiles need
 * them. */
template <class T, class S>
__device__ __forceinline__ ot_attention_span *gradient_sight(const hopper_room<T, S> &room, int row) {
    return reinterpret_cast<ot_attention_span *>(reinterpret_cast<char *>(room.owned) + S::SPANS) +
           hopper_warp_row() + row;
}

/* Finds these tokens. first: the warp's first row. end: the end of the tokens that the warpgroup visits. */
template <class T, class S>
__device__ __forceinline__ void gradient_look(const struct ot_attention &op, const hopper_room<T, S> &room,
                                              int first, int end) {
    ot_attention_span span;
    if constexpr (S::PASS == OF_QUERIES) {
        span = ot_attention_keys(op, first + ot_lane() % 16);
    } else {
        int low = end, high = end;
        if (first < op.n_keys && end > 0) {
            low = gradient_end_query(op, first, end);
            high = gradient_end_query(op, min(first + 15, (int)op.n_keys - 1), end);
        }
        span = gradient_seeing(op, first + ot_lane() % 16, low, high);
    }
    if (ot_lane() < 16)
        *gradient_sight(room, ot_lane()) = span;
    __syncwarp();
}

/* Masks the scores of the tile that begins with `token`. */
template <class T, class S>
__device__ __forceinline__ void gradient_mask(float (&s)[1][S::N][4], const hopper_room<T, S> &room,
                                              int token) {
    /* Neither bound decreases from row to row, so all rows see the tokens that the first and the last row
     * see. */
    int all_first = gradient_sight(room, 15)->first, all_last = gradient_sight(room, 0)->last;
    if (token >= all_first && token + S::VISITED - 1 <= all_last)
        return;
    int lane = ot_lane(), at = token + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        ot_attention_span span = *gradient_sight(room, lane / 4 + 8 * r);
        int first = span.first - at, last = span.last - at;
#pragma unroll
        for (int n = 0; n < S::N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (8 * n + i < first || 8 * n + i > last)
                    s[0][n][2 * r + i] = -INFINITY;
    }
}

#endif
