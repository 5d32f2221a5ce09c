/* Attention over spans of keys on tensor cores (kernels/ops_spans.h): its own parts of the kernels. The
 * kernels are the ones of causal attention, attention_forward.cu and attention_backward_{queries,keys}.cu,
 * which are templates over the op. This header has the overloads that they call for spans.
 *
 * RUNS. A block of queries is cut into runs: consecutive queries whose nonempty spans begin at the same
 * key. For each run, the block walks over the run's keys, from its first key on, and stores the run's rows.
 * Rows of other runs compute numbers that nobody stores. So a tile never holds keys of two runs, and a
 * query's bits depend on its q, its span and the bias, not on the place of its row in the batch. Packed
 * rows make a run for each row in the block, mostly one or two. An empty span belongs to the run before it,
 * and costs nothing.
 *
 * BIAS. The bias depends on the distance from query to key alone. At its start a block makes a table of the
 * biases of its head in shared memory, by distance, as exponents of 2. The table reaches 2 PAD beyond the
 * distances that have a bias of their own. A warp's piece of scores is at most PAD wide and high, so the
 * distance of its corner can be clamped to the reach and PAD, and no element needs a clamp of its own. The
 * elements of a lane lie on N + 2 M - 1 pairs of diagonals (M fragments of 16 rows, N of 8 columns), whose
 * addresses are constants beside the lane's corner. Two lanes of a load meet in a bank only if they read the
 * same word.
 *
 * GRADIENT OF THE BIAS. In the pass of the queries, each lane adds its ds on the same diagonal in
 * registers. The warp writes these 2 (N + 2 M - 1) sums of each lane to shared memory. Then a lane adds the
 * eight sums of one diagonal, and adds the result to the warp's own histogram of distances, which has the
 * places of the table. With clamped corners, two diagonals of a piece never share a place. At the end the
 * block adds the warps' histograms in order, and then the places of each bucket in order. spans_join_bias
 * (attention_spans.cu) adds the blocks in order. So no atomics, and the same bits each time.
 *
 * EMPTY SPANS. The contract lets q and dout of a query with an empty span hold anything. A row of fragments
 * keeps that to itself, and its results are cleared before they are stored. As a visited row of the pass of
 * keys, such a query would spread a NaN (0 * NaN is NaN). There, queries that see no key of the block are
 * copied as zeros if there are any between the first and the last query that see one. Keys that no query
 * sees can hold anything too: a pair with p = 0 has ds = 0.
 *
 * COST, heads of 64 elements, 512 keys, on an H100 (132 SM, 1.75 GHz). Products on mma.sync take
 * 6.4 clocks of a scheduler (62 % of wgmma's rate). Counted for one warp and tile:
 *
 *     forward, 32 queries x 64 keys         128 mma = 820 clocks    special functions: 64 exp2 = 512 clocks
 *     queries, 32 queries x 16 keys         48 mma = 310 clocks     16 exp2 = 128; dbias: 45 instructions
 *     keys, each warp, 48 keys x 16 queries 48 mma = 310 clocks     24 exp2 = 192, in one warp of the team
 *
 * All other instructions of the forward tile are about 500: 32 LDSM, 22 loads of biases, and per element
 * (64) a fma for the bias, a fma for the exponent, a sum, a maximum and half a conversion. They issue
 * beside the products of the other warp of the scheduler. So the tensor cores are the limit, with a ceiling
 * of about 590 TFLOP/s in theory, and about half of it where products and exponents of two warps overlap
 * only in part: 200 to 300 TFLOP/s forward. Backward recomputes scores twice: 14 head_dim operations for
 * each pair, of which the two passes reach 150 to 250 TFLOP/s in the same way. The kernels with ordinary
 * arithmetic are bounded by fp32 multiply-adds and shared memory at 30 TFLOP/s.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_SPANS_CUH
#define OT_KERNELS_CUDA_ATTENTION_SPANS_CUH

#include "kernels/cuda/attention_score.cuh"
#include "kernels/cuda/attention_tiles.cuh"

/* ---- which keys ---- */

/* An empty span has first > last, like a query beyond the end. */
__device__ __forceinline__ ot_attention_span ot_attention_keys(const struct ot_attend_spans &op, int query) {
    if (query >= op.n)
        return {INT32_MAX, -1};
    int first = op.key_first[query], last = op.key_end[query] - 1;
    return first <= last ? ot_attention_span{first, last} : ot_attention_span{INT32_MAX, -1};
}

__device__ __forceinline__ int spans_warp_max(int x) {
#pragma unroll
    for (int offset = OT_WARP / 2; offset > 0; offset /= 2)
        x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

/* Queries [begin, end), which see keys of [first, last): see RUNS. */
struct spans_run {
    int begin, end, first, last;
};

/* The run that begins with query `begin` of a block that ends before query `end`. All lanes of a warp must
 * call. */
__device__ __forceinline__ spans_run spans_run_at(const struct ot_attend_spans &op, int begin, int end) {
    spans_run run = {begin, end, 0, 0};
    for (int at = begin; at < end; at += OT_WARP) {
        int lane = ot_lane(), query = at + lane;
        ot_attention_span seen = ot_attention_keys(op, query < end ? query : (int)op.n);
        bool sees = seen.first <= seen.last;
        unsigned seeing = __ballot_sync(0xffffffffu, sees);
        if (seeing == 0)
            continue;
        int first = __shfl_sync(0xffffffffu, seen.first, __ffs((int)seeing) - 1);
        run.first = run.last > 0 ? run.first : first;
        unsigned others = __ballot_sync(0xffffffffu, sees && seen.first != run.first);
        int stop = others ? __ffs((int)others) - 1 : OT_WARP;
        run.last = max(run.last, spans_warp_max(sees && lane < stop ? seen.last + 1 : 0));
        if (others) {
            run.end = at + stop;
            break;
        }
    }
    return run;
}

/* The op as seen by the queries of one run: the other queries see nothing. */
struct spans_rows {
    const struct ot_attend_spans &op;
    int begin, end;
};

__device__ __forceinline__ ot_attention_span ot_attention_keys(const spans_rows &rows, int query) {
    return ot_attention_keys(rows.op, query >= rows.begin && query < rows.end ? query : (int)rows.op.n);
}

/* The queries [first, end) that see a key of [begin, end_key); has_holes: one between them does not. */
struct spans_watchers {
    int first, end;
    bool has_holes;
};

/* All threads of the block must call. `memory`: 3 ints of shared memory for each warp, free again at the
 * end. */
template <int THREADS>
__device__ __forceinline__ spans_watchers spans_find_watchers(const struct ot_attend_spans &op, int begin,
                                                              int end_key, int *memory) {
    int least = INT32_MIN, most = 0, count = 0; /* least: the negative of the first query */
#pragma unroll 8
    for (int query = (int)threadIdx.x; query < (int)op.n; query += THREADS)
        if (max(op.key_first[query], begin) < min(op.key_end[query], end_key)) {
            least = max(least, -query);
            most = query + 1;
            count++;
        }
    least = spans_warp_max(least);
    most = spans_warp_max(most);
#pragma unroll
    for (int offset = OT_WARP / 2; offset > 0; offset /= 2)
        count += __shfl_xor_sync(0xffffffffu, count, offset);
    if (ot_lane() == 0) {
        int *own = memory + (int)threadIdx.x / OT_WARP * 3;
        own[0] = least, own[1] = most, own[2] = count;
    }
    __syncthreads();
    count = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / OT_WARP; warp++) {
        least = max(least, memory[warp * 3]);
        most = max(most, memory[warp * 3 + 1]);
        count += memory[warp * 3 + 2];
    }
    __syncthreads();
    return count == 0 ? spans_watchers{0, 0, false} : spans_watchers{-least, most, count < most + least};
}

/* ---- scores ---- */

/* PAD of a warp that has 16 M rows and 8 N columns of scores. */
static constexpr int spans_pad(int m, int n) {
    return 16 * m > 8 * n ? 16 * m : 8 * n;
}

/* Places of a table. */
__host__ __device__ __forceinline__ int spans_table_places(const struct ot_attend_spans &op, int pad) {
    return op.bias ? 2 * ((int)op.reach + 2 * pad) + 1 : 0;
}

/* The bucket of place i of a table. */
__device__ __forceinline__ int spans_bucket_at(const struct ot_attend_spans &op, int pad, int i) {
    int reach = (int)op.reach, distance = i - reach - 2 * pad;
    return op.bucket_of[max(-reach, min(reach, distance)) + reach];
}

/* Writes the table of the biases of a head. The caller's next barrier shows it to the block. */
template <class T, int THREADS>
__device__ __forceinline__ void spans_make_table(const struct ot_attend_spans &op, int pad, int head,
                                                 float *table) {
    for (int i = (int)threadIdx.x; i < spans_table_places(op, pad); i += THREADS)
        table[i] =
            ot_to_float(static_cast<const T *>(op.bias)[spans_bucket_at(op, pad, i) * (int)op.heads + head]) *
            OT_LOG2_E;
}

/* The counterpart of ot_score_scale. */
template <int PAD>
struct spans_score {
    static constexpr float cap = 0.0f; /* no softcap */
    float factor;
    const float *table; /* its first place; NULL: no bias */
    int reach;

    __device__ __forceinline__ spans_score(const struct ot_attend_spans &op, const float *table_)
        : factor(op.scale * OT_LOG2_E), table(op.bias ? table_ : nullptr), reach((int)op.reach) {}
    __device__ __forceinline__ bool is_bent() const { return table || !(factor > 0.0f); }
    __device__ __forceinline__ float rest() const { return is_bent() ? 1.0f : factor; }
    /* The place of a distance, clamped: see BIAS. */
    __device__ __forceinline__ int place(int distance) const {
        return max(-reach - PAD, min(reach + PAD, distance)) + reach + 2 * PAD;
    }
};

/* Like ot_score_bend for causal attention. */
template <int SIGN, int PAD, int M, int N>
__device__ __forceinline__ void ot_score_bend(float (&s)[M][N][4], const spans_score<PAD> &scale,
                                              int distance) {
    if (!scale.is_bent())
        return;
    const float *near = scale.table ? scale.table + scale.place(distance) : nullptr;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][n][i] = near ? fmaf(s[m][n][i], scale.factor, near[ot_score_step<SIGN>(m, n, i)])
                                  : s[m][n][i] * scale.factor;
}

/* ---- rows ---- */

__device__ __forceinline__ bool spans_is_empty(const struct ot_attend_spans &op, int query) {
    ot_attention_span seen = ot_attention_keys(op, query);
    return seen.first > seen.last;
}

/* Clears the sums of rows with empty spans, and multiplies the other sums. query: the lane's first row. */
template <int M, int D>
__device__ __forceinline__ void spans_clear(float (&sum)[M][D][4], const struct ot_attend_spans &op,
                                            int query, float factor) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool empty = spans_is_empty(op, query + 16 * m + 8 * r);
#pragma unroll
            for (int d = 0; d < D; d++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++)
                    sum[m][d][i] = empty ? 0.0f : sum[m][d][i] * factor;
        }
}

/* ---- the gradient of the bias ---- */

/* One warp's room for the sums of its diagonals, and its histogram. Rows of the room have 8 DIAGONALS
 * floats: an odd number of eights, so the lanes of a 64-bit store are in different banks. */
template <int M, int N>
struct spans_slopes {
    static constexpr int DIAGONALS = N + 2 * M - 1, WIDTH = 8 * DIAGONALS, ROOM = 8 * WIDTH;
    static_assert(DIAGONALS % 2 == 1, "no bank conflicts");

    /* Adds ds of a piece to the histogram. place: the place of the corner's distance. */
    __device__ static __forceinline__ void add(const float (&ds)[M][N][4], float *room, float *histogram,
                                               int place) {
        const int lane = ot_lane();
        float *own = room + lane / 4 * WIDTH + lane % 4 * 2;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < DIAGONALS; j++) {
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int n = j - (2 * M - 1) + 2 * m + r;
                    if (n >= 0 && n < N) {
                        sum.x += ds[m][n][2 * r];
                        sum.y += ds[m][n][2 * r + 1];
                    }
                }
            *reinterpret_cast<float2 *>(own + 8 * j) = sum;
        }
        __syncwarp();
        for (int diagonal = lane - 7; diagonal < WIDTH; diagonal += OT_WARP) {
            float sum = 0.0f;
#pragma unroll
            for (int g = 0; g < 8; g++)
                if (diagonal + g >= 0 && diagonal + g < WIDTH)
                    sum += room[g * WIDTH + diagonal + g];
            histogram[place + diagonal - 8 * (2 * M - 1)] += sum;
        }
    }
};

/* Adds the histograms of WARPS warps, one behind the other, by buckets, and writes the block's part of
 * dbias. Overwrites the table. */
template <int PAD, int WARPS>
__device__ __forceinline__ void spans_finish_bias(const struct ot_attend_spans &op, float *table,
                                                  float *histograms, float *part) {
    const int places = spans_table_places(op, PAD), warp = (int)threadIdx.x / OT_WARP;
    int *buckets = reinterpret_cast<int *>(table);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < places; i += WARPS * OT_WARP) {
        float sum = histograms[i];
        for (int w = 1; w < WARPS; w++)
            sum += histograms[w * places + i];
        histograms[i] = sum;
        buckets[i] = spans_bucket_at(op, PAD, i);
    }
    __syncthreads();
    for (int bucket = warp; bucket < op.buckets; bucket += WARPS) {
        float sum = 0.0f;
        for (int i = ot_lane(); i < places; i += OT_WARP)
            sum += buckets[i] == bucket ? histograms[i] : 0.0f;
#pragma unroll
        for (int offset = OT_WARP / 2; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (ot_lane() == 0)
            part[bucket] = sum;
    }
}

/* ---- launch ---- */

/* Calls f(T(), ot_head_dim<DIM>()) for the types and head sizes that ot_attend_spans_is_tiled accepts. */
template <class F>
cudaError_t spans_tiled_dispatch(const struct ot_attend_spans *op, F f) {
    auto with = [&](auto dim) { return op->dtype == OT_BF16 ? f(__nv_bfloat16(), dim) : f(__half(), dim); };
    return op->head_dim == 64 ? with(ot_head_dim<64>()) : with(ot_head_dim<128>());
}

#endif
