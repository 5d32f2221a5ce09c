/* A mixture of experts: its router, the grouping of its assignments, gather and combine.
 *
 * The router finds the largest logits of each token, their weights, and the gradients of all logits. The bits
 * are those of the cpu device (kernels/cpu/op_experts.inc).
 *
 * Bytes: each logit once from memory, and its gradient once. That is little beside the products of a block:
 * 2 KiB a token for 512 experts in bf16, both ways.
 *
 * A team of 16 lanes has a token, so that its sums have the 16 parts that the contract names. Choosing takes
 * `top` rounds. A round finds the first logit, in the order of the router, that stands behind the logit of
 * the round before. So no list of chosen experts is searched. Lane l reads the logits l, l + 16, ... again in
 * each round, from the L1 cache. Lane s keeps the logit that round s chose.
 */
#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/scalar.cuh"

enum { TEAM = OT_MOST_TOP, ROUTER_BLOCK = 128, TEAMS = ROUTER_BLOCK / TEAM };

struct router_place {
    float logit;
    int id;
};

/* True if a stands before b: the larger logit, or NaN; of equal logits the lower id. */
static __device__ __forceinline__ bool router_before(const struct router_place &a,
                                                     const struct router_place &b) {
    bool nan_a = a.logit != a.logit, nan_b = b.logit != b.logit;
    if (a.logit > b.logit || (nan_a && !nan_b))
        return true;
    return (a.logit == b.logit || (nan_a && nan_b)) && a.id < b.id;
}

static __device__ __forceinline__ float team_sum(float x) {
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* The sum of exp(logit - largest) over all experts, for every lane of the team. */
template <class T>
static __device__ __forceinline__ float router_sum(const T *logits, int experts, float largest) {
    float part = 0;
    for (int e = (int)threadIdx.x % TEAM; e < experts; e += TEAM)
        part += vec_exp(ot_to_float(logits[e]) - largest);
    return team_sum(part);
}

/* The first place behind `last`, for every lane of the team. first: there is no `last` yet. */
template <class T>
static __device__ __forceinline__ struct router_place
router_next(const T *logits, int experts, const struct router_place &last, bool first) {
    struct router_place best = {-INFINITY, INT32_MAX};
    for (int e = (int)threadIdx.x % TEAM; e < experts; e += TEAM) {
        struct router_place here = {ot_to_float(logits[e]), e};
        if ((first || router_before(last, here)) && router_before(here, best))
            best = here;
    }
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2) {
        struct router_place other = {__shfl_xor_sync(0xffffffffu, best.logit, offset),
                                     __shfl_xor_sync(0xffffffffu, best.id, offset)};
        best = router_before(other, best) ? other : best;
    }
    return best;
}

template <class T>
__global__ void router_forward(struct ot_router op) {
    int64_t token = (int64_t)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    int lane = (int)threadIdx.x % TEAM, experts = (int)op.experts, top = (int)op.top;
    bool live = token < op.n; /* a team without a token takes part in the exchanges of its warp */
    const T *logits = static_cast<const T *>(op.logits) + (live ? token : 0) * op.ld;
    struct router_place last = {0, 0}, own = {0, 0};
    float largest = 0;
    for (int s = 0; s < top; s++) {
        last = router_next(logits, experts, last, s == 0);
        largest = s == 0 ? last.logit : largest;
        own = s == lane ? last : own;
    }
    float term = lane < top ? vec_exp(own.logit - largest) : 0.0f;
    float weight = term / (op.over_all ? router_sum(logits, experts, largest) : team_sum(term));
    if (live && lane < top) {
        op.ids[token * top + lane] = own.id;
        op.weights[token * top + lane] = weight;
    }
}

/* weights[0] is 1 / the sum, because the first chosen logit is the largest: exp of 0. */
template <class T>
__global__ void router_gradients(struct ot_router_backward op) {
    const struct ot_router &forward = op.forward;
    int64_t token = (int64_t)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    int lane = (int)threadIdx.x % TEAM, experts = (int)forward.experts, top = (int)forward.top;
    bool live = token < forward.n;
    int64_t here = live ? token : 0, own = here * top + lane;
    const T *logits = static_cast<const T *>(forward.logits) + here * forward.ld;
    T *dlogits = static_cast<T *>(op.dlogits) + here * forward.ld;
    float weight = lane < top ? forward.weights[own] : 0.0f;
    float dweight = lane < top ? op.dweights[own] : 0.0f, d = team_sum(weight * dweight);
    int id = lane < top ? forward.ids[own] : -1;
    float gradient = weight * (dweight - d), first = __shfl_sync(0xffffffffu, weight, 0, TEAM);
    /* The lane that will write over the largest logit reads it. */
    int top_id = __shfl_sync(0xffffffffu, id, 0, TEAM), owner = top_id % TEAM;
    float largest = live && lane == owner ? ot_to_float(logits[top_id]) : 0.0f;
    largest = __shfl_sync(0xffffffffu, largest, owner, TEAM);
    float sum = 1, dot = 0;
    if (op.slopes) { /* a team without a token reads nothing: the logits may be overwritten */
        int mine = live ? experts : 0;
        sum = router_sum(logits, mine, largest);
        for (int e = lane; e < mine; e += TEAM)
            dot += op.slopes[e] * (vec_exp(ot_to_float(logits[e]) - largest) / sum);
        dot = team_sum(dot);
    }
    for (int begin = 0; begin < experts; begin += TEAM) {
        int e = begin + lane;
        bool mine = live && e < experts;
        float x = 0;
        if (forward.over_all && mine)
            x = -d * (vec_exp(ot_to_float(logits[e]) - largest) * first);
        for (int s = 0; s < top; s++) {
            int chosen = __shfl_sync(0xffffffffu, id, s, TEAM);
            float its = __shfl_sync(0xffffffffu, gradient, s, TEAM);
            x = chosen == e ? its : x;
        }
        if (op.slopes && mine)
            x += vec_exp(ot_to_float(logits[e]) - largest) / sum * (op.slopes[e] - dot);
        if (mine)
            dlogits[e] = ot_from_float<T>(x);
    }
}

cudaError_t ot_cuda_router(const struct ot_router *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        return ot_launch(router_forward<decltype(zero)>, dim3((unsigned)ot_ceil_div(args->n, TEAMS)),
                         dim3(ROUTER_BLOCK), 0, on->stream, *args);
    });
}

cudaError_t ot_cuda_router_backward(const struct ot_router_backward *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->forward.dtype, [&](auto zero) {
        return ot_launch(router_gradients<decltype(zero)>,
                         dim3((unsigned)ot_ceil_div(args->forward.n, TEAMS)), dim3(ROUTER_BLOCK), 0,
                         on->stream, *args);
    });
}

/* ---- balance ---- */

/* The load of the experts, in two kernels. load_parts: a block has a part of the tokens, TEAMS at a time. A
 * team finds a token's largest logit and sum; then the threads add the probabilities of these tokens, each
 * thread those of its experts, in order. load_join: a thread adds the parts of an expert, and counts its
 * assignments in shared memory, with integer additions. Bytes: two reads of the logits, one from cache. */

struct load_token {
    float largest, sum;
};

template <class T>
__global__ void load_parts(struct ot_load op, float *parts) {
    struct load_token *tokens = ot_shared<struct load_token>();
    const struct ot_router &router = op.router;
    float *sums = parts + (int64_t)blockIdx.x * router.experts;
    int experts = (int)router.experts, team = (int)threadIdx.x / TEAM;
    int64_t part = (router.n + OT_LOAD_PARTS - 1) / OT_LOAD_PARTS, first = blockIdx.x * part;
    int64_t end = first + part < router.n ? first + part : router.n;
    for (int e = (int)threadIdx.x; e < experts; e += ROUTER_BLOCK)
        sums[e] = 0;
    for (; first < end; first += TEAMS) {
        bool live = first + team < end;
        int64_t own = live ? first + team : first;
        const T *logits = static_cast<const T *>(router.logits) + own * router.ld;
        float largest = ot_to_float(logits[router.ids[own * router.top]]);
        float sum = router_sum(logits, experts, largest);
        if (threadIdx.x % TEAM == 0)
            tokens[team] = {largest, sum};
        __syncthreads();
        for (int e = (int)threadIdx.x; e < experts; e += ROUTER_BLOCK)
            for (int t = 0; t < TEAMS && first + t < end; t++) {
                const T *its = static_cast<const T *>(router.logits) + (first + t) * router.ld;
                sums[e] += vec_exp(ot_to_float(its[e]) - tokens[t].largest) / tokens[t].sum;
            }
        __syncthreads();
    }
}

static __global__ void load_join(struct ot_load op, const float *parts) {
    int *counts = ot_shared<int>();
    int experts = (int)op.router.experts, e = (int)threadIdx.x;
    counts[e] = 0;
    __syncthreads();
    for (int64_t a = threadIdx.x; a < op.router.n * op.router.top; a += OT_MOST_EXPERTS)
        atomicAdd(&counts[op.router.ids[a]], 1);
    __syncthreads();
    if (e >= experts)
        return;
    float sum = parts[e];
    for (int p = 1; p < OT_LOAD_PARTS; p++)
        sum += parts[(int64_t)p * experts + e];
    op.sums_out[e] = op.sums_in[e] + sum;
    op.counts_out[e] = op.counts_in[e] + counts[e];
}

cudaError_t ot_cuda_load(const struct ot_load *args, const struct ot_cuda_stream *on) {
    static_assert(OT_LOAD_PARTS * OT_MOST_EXPERTS * sizeof(float) <= OT_CUDA_MIN_SCRATCH_BYTES,
                  "any scratch holds the parts");
    float *parts = static_cast<float *>(on->scratch);
    OT_CUDA_TRY(ot_dispatch(args->router.dtype, [&](auto zero) {
        return ot_launch(load_parts<decltype(zero)>, dim3(OT_LOAD_PARTS), dim3(ROUTER_BLOCK),
                         TEAMS * sizeof(struct load_token), on->stream, *args, parts);
    }));
    return ot_launch(load_join, dim3(1), dim3(OT_MOST_EXPERTS), OT_MOST_EXPERTS * sizeof(int), on->stream,
                     *args, static_cast<const float *>(parts));
}

/* One block. Each thread computes the loss by itself: a sum of at most 1024 terms. */
static __global__ void balance_loss(struct ot_balance op) {
    int *trained = ot_shared<int>();
    if (threadIdx.x == 0)
        *trained = 0;
    __syncthreads();
    float loss = ot_balance_loss(&op);
    int mine = 0;
    for (int64_t i = threadIdx.x; i < op.n; i += blockDim.x)
        if (op.targets[i] >= 0) {
            op.loss[i] += loss;
            mine++;
        }
    atomicAdd(trained, mine);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < op.experts; e += blockDim.x)
        op.slopes[e] = ot_balance_slope(&op, e, ot_balance_scale(&op) * (double)*trained);
}

cudaError_t ot_cuda_balance(const struct ot_balance *args, const struct ot_cuda_stream *on) {
    return ot_launch(balance_loss, dim3(1), dim3(512), sizeof(int), on->stream, *args);
}

/* ---- group ---- */

/* Sorts the assignments of tokens to experts (kernels/ops_experts.h): a counting sort in three kernels, whose
 * result is the only one that the contract allows.
 *
 * 1. group_count: a block counts the experts of a chunk of assignments, with integer additions in shared
 *    memory, whose order changes nothing. It also marks all rows as empty.
 * 2. group_offsets: one block. Thread e adds up the chunks' counts of expert e, and leaves in their place the
 *    number before each chunk. The sums, padded, are scanned over the experts.
 * 3. group_place: a block compares each assignment of a chunk with the assignments before it in the chunk.
 *    The number of equal experts among them completes its row.
 *
 * Bytes: 12 for each assignment, and 12 for each chunk and expert. 65536 assignments to 128 experts make 64
 * chunks, whose counts the second kernel reads in 8 rounds of 8 loads. The comparisons of a chunk take some
 * 10^4 clocks of a multiprocessor. So the op takes some 15 us, and grows slowly. Not measured.
 */

enum { CHUNK = OT_GROUP_CHUNK, CHUNK_THREADS = CHUNK / 4, SCAN_THREADS = OT_MOST_EXPERTS };

__global__ void group_count(struct ot_group op, int n, int capacity) {
    int *counts = ot_shared<int>();
    int thread = (int)threadIdx.x, experts = (int)op.experts, first = (int)blockIdx.x * CHUNK;
    for (int e = thread; e < experts; e += CHUNK_THREADS)
        counts[e] = 0;
    __syncthreads();
    for (int a = first + thread; a < first + CHUNK && a < n; a += CHUNK_THREADS)
        atomicAdd(&counts[op.ids[a]], 1);
    __syncthreads();
    for (int e = thread; e < experts; e += CHUNK_THREADS)
        op.scratch[(int64_t)blockIdx.x * experts + e] = counts[e];
    for (int64_t r = (int64_t)blockIdx.x * CHUNK_THREADS + thread; r < capacity;
         r += (int64_t)gridDim.x * CHUNK_THREADS)
        op.assignments[r] = -1;
}

/* The sum of x over this thread and the threads before it. room: OT_WARP values. */
static __device__ __forceinline__ int block_scan(int x, int *room) {
    int lane = (int)threadIdx.x % OT_WARP, warp = (int)threadIdx.x / OT_WARP;
#pragma unroll
    for (int offset = 1; offset < OT_WARP; offset *= 2) {
        int before = __shfl_up_sync(0xffffffffu, x, offset);
        x += lane >= offset ? before : 0;
    }
    if (lane == OT_WARP - 1)
        room[warp] = x;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        x += room[w];
    return x;
}

__global__ void __launch_bounds__(SCAN_THREADS) group_offsets(struct ot_group op, int chunks) {
    int expert = (int)threadIdx.x, experts = (int)op.experts, multiple = (int)op.multiple;
    int count = 0;
    if (expert < experts) {
#pragma unroll 8
        for (int c = 0; c < chunks; c++) {
            int32_t *place = op.scratch + (int64_t)c * experts + expert;
            int here = *place;
            *place = count;
            count += here;
        }
        op.counts[expert] = count;
        if (op.used && count > 0)
            op.used[expert] = 1;
    }
    int padded = (count + multiple - 1) / multiple * multiple, end = block_scan(padded, ot_shared<int>());
    if (expert < experts)
        op.offsets[expert + 1] = end;
    if (expert == 0)
        op.offsets[0] = 0;
}

__global__ void __launch_bounds__(CHUNK_THREADS) group_place(struct ot_group op, int n) {
    int *ids = ot_shared<int>();
    int thread = (int)threadIdx.x, first = (int)blockIdx.x * CHUNK;
    for (int i = thread; i < CHUNK; i += CHUNK_THREADS)
        ids[i] = first + i < n ? op.ids[first + i] : -1;
    __syncthreads();
    const int4 *fours = reinterpret_cast<const int4 *>(ids);
    int own[4], before[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 4; j++)
        own[j] = ids[4 * thread + j];
#pragma unroll 4
    for (int i = 0; i < thread; i++) {
        int4 four = fours[i];
#pragma unroll
        for (int j = 0; j < 4; j++)
            before[j] += (four.x == own[j]) + (four.y == own[j]) + (four.z == own[j]) + (four.w == own[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < j; i++)
            before[j] += own[i] == own[j];
        int a = first + 4 * thread + j;
        if (a >= n)
            continue;
        int row = op.offsets[own[j]] + op.scratch[(int64_t)blockIdx.x * op.experts + own[j]] + before[j];
        op.rows[a] = row;
        op.assignments[row] = a;
    }
}

/* One chunk at least: without assignments, the offsets and counts are zeros. */
cudaError_t ot_cuda_group(const struct ot_group *args, const struct ot_cuda_stream *on) {
    int n = (int)(args->n * args->top), chunks = (int)ot_ceil_div(n, CHUNK);
    int capacity = (int)ot_group_rows(args->n, args->top, args->experts, args->multiple);
    unsigned threads = (unsigned)ot_ceil_div(args->experts, OT_WARP) * OT_WARP;
    if (chunks > 0)
        OT_CUDA_TRY(ot_launch(group_count, dim3((unsigned)chunks), dim3(CHUNK_THREADS),
                              (size_t)args->experts * sizeof(int), on->stream, *args, n, capacity));
    OT_CUDA_TRY(
        ot_launch(group_offsets, dim3(1), dim3(threads), OT_WARP * sizeof(int), on->stream, *args, chunks));
    if (chunks == 0)
        return cudaSuccess;
    return ot_launch(group_place, dim3((unsigned)chunks), dim3(CHUNK_THREADS), CHUNK * sizeof(int),
                     on->stream, *args, n);
}

/* ---- combine ---- */

/* Rows of tokens to the packed rows of their experts, and back (kernels/ops_experts.h): gather, combine and
 * the backward of combine. All of them are bound by memory bandwidth.
 *
 * Bytes per two-byte element of a packed row: gather 2 to write, and 2 to read, most of them from the L2
 * cache, because a token has several rows. combine: 2, and (2 or 4) / top for y and the addend.
 * combine_backward: 6 (dy, packed, dpacked), of which dy hits the L2 cache too.
 *
 * gather and combine write each element once, by the thread that computes it; a token's rows are added in the
 * order of its slots. In combine_backward a team of threads has a packed row (rows.cuh). Order of its dot
 * product: a thread's values from the left, then the tree of ot_team_sum.
 */

enum { GATHER_BLOCK = 256 };

/* ---- gather ---- */

/* A block has `here` rows of `words` words. */
template <class WORD>
__global__ void gather_rows(struct ot_gather op, int block_rows, int words, int64_t ld_x, int64_t ld_packed) {
    const WORD *x = static_cast<const WORD *>(op.x);
    WORD *packed = static_cast<WORD *>(op.packed);
    int64_t first = (int64_t)blockIdx.x * block_rows;
    int here = op.rows - first < block_rows ? (int)(op.rows - first) : block_rows, top = (int)op.top;
    for (int i = (int)threadIdx.x; i < here * words; i += GATHER_BLOCK) {
        int64_t row = first + i / words;
        int32_t assignment = op.assignments[row];
        packed[row * ld_packed + i % words] =
            assignment < 0 ? WORD() : x[assignment / top * ld_x + i % words];
    }
}

template <class WORD>
static cudaError_t gather_words(const struct ot_gather *op, const struct ot_cuda_stream *on) {
    int64_t elems = (int64_t)(sizeof(WORD) / ot_dtype_bytes(op->dtype)), words = op->cols / elems;
    int rows = words < GATHER_BLOCK ? (int)(GATHER_BLOCK / words) : 1;
    return ot_launch(gather_rows<WORD>, dim3((unsigned)ot_ceil_div(op->rows, rows)), dim3(GATHER_BLOCK), 0,
                     on->stream, *op, rows, (int)words, op->ld_x / elems, op->ld_packed / elems);
}

cudaError_t ot_cuda_gather(const struct ot_gather *args, const struct ot_cuda_stream *on) {
    size_t bytes = ot_dtype_bytes(args->dtype);
    if (ot_rows_aligned(args->x, args->ld_x, bytes) &&
        ot_rows_aligned(args->packed, args->ld_packed, bytes) && args->cols * (int64_t)bytes % 16 == 0)
        return gather_words<uint4>(args, on);
    return bytes == 4 ? gather_words<uint32_t>(args, on) : gather_words<uint16_t>(args, on);
}

/* ---- combine ---- */

template <class T>
struct combine {
    static constexpr int N = ot_pack<T>::N;
    const T *packed, *addend;
    const int32_t *rows;
    const float *weights;
    T *y;
    int64_t ld_packed, ld_y;
    int top;

    template <int W>
    __device__ __forceinline__ void run(int64_t token, int64_t i) const {
        const int32_t *row = rows + token * top;
        const float *weight = weights ? weights + token * top : nullptr;
        ot_values<W> sum;
#pragma unroll 4
        for (int s = 0; s < top; s++) {
            ot_values<W> x = ot_read<W>(packed + row[s] * ld_packed + i);
            float w = weight ? weight[s] : 1.0f;
#pragma unroll
            for (int j = 0; j < W; j++)
                sum.v[j] = s == 0 ? w * x.v[j] : sum.v[j] + w * x.v[j];
        }
        if (addend) {
            ot_values<W> more = ot_read<W>(addend + token * ld_y + i);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum.v[j] += more.v[j];
        }
        ot_write(y + token * ld_y + i, sum);
    }
};

/* 64 registers: four rows are in flight. */
template <class T>
constexpr int ot_map_blocks(const combine<T> *) {
    return 4;
}

cudaError_t ot_cuda_combine(const struct ot_combine *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t bytes = sizeof(T), ld = args->ld_y;
        int64_t head = ot_map_head({{args->packed, bytes, args->ld_packed},
                                    {args->addend ? args->addend : args->y, bytes, ld},
                                    {args->y, bytes, ld}},
                                   2 /* rows of any index are read */, args->cols);
        combine<T> op = {(const T *)args->packed,
                         (const T *)args->addend,
                         args->rows,
                         args->weights,
                         (T *)args->y,
                         args->ld_packed,
                         ld,
                         (int)args->top};
        return ot_map(op, args->n, args->cols, head, on);
    });
}

/* ---- the backward of combine ---- */

template <class T, bool ALIGNED>
__global__ void combine_gradients(struct ot_combine_backward op, int team_size) {
    constexpr int N = ot_pack<T>::N;
    struct ot_team team = ot_team_here(team_size);
    int64_t row = (int64_t)blockIdx.x * team.count + team.index;
    bool live = row < op.rows;
    int assignment = live ? op.assignments[row] : -1, token = assignment < 0 ? 0 : assignment / (int)op.top;
    int cols = (int)op.cols, end = live ? (cols + N - 1) / N : 0;
    float weight = assignment < 0 ? 0.0f : op.weights[assignment], dot = 0;
    const T *dy = static_cast<const T *>(op.dy) + token * op.ld_dy;
    const T *packed = static_cast<const T *>(op.packed) + row * op.ld_packed;
    T *dpacked = static_cast<T *>(op.dpacked) + row * op.ld_packed;
    for (int p = team.rank; p < end; p += team.size) {
        ot_pack<T> d = {}, x = {};
        if (assignment >= 0) {
            d = ot_row_load<ALIGNED>(dy, p, cols);
            if (op.dweights)
                x = ot_row_load<ALIGNED>(packed, p, cols);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            dot += d.v[i] * x.v[i];
            d.v[i] = weight * d.v[i];
        }
        ot_row_store<ALIGNED>(dpacked, p, cols, d);
    }
    if (!op.dweights)
        return;
    dot = ot_team_sum(team, dot, ot_shared<float>());
    if (team.rank == 0 && assignment >= 0)
        op.dweights[assignment] = dot;
}

cudaError_t ot_cuda_combine_backward(const struct ot_combine_backward *args,
                                     const struct ot_cuda_stream *on) {
    if (args->rows > INT32_MAX || args->cols > INT32_MAX - OT_WARP)
        return cudaErrorInvalidValue;
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        struct ot_team_shape shape = ot_team_shape(ot_ceil_div(args->cols, ot_pack<T>::N));
        bool aligned =
            ot_rows_aligned(args->dy, args->ld_dy, sizeof(T)) &&
            ot_rows_aligned(args->dpacked, args->ld_packed, sizeof(T)) &&
            ot_rows_aligned(args->dweights ? args->packed : args->dpacked, args->ld_packed, sizeof(T));
        auto kernel = aligned ? combine_gradients<T, true> : combine_gradients<T, false>;
        return ot_launch(kernel, dim3((unsigned)ot_ceil_div(args->rows, shape.block / shape.team)),
                         dim3((unsigned)shape.block), OT_WARP * sizeof(float), on->stream, *args, shape.team);
    });
}
