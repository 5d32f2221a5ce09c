/* The embedding: gathers rows of a table by token id.
 *
 * Bytes moved per value: 2 times the dtype, less if ids repeat and the table's rows are in a cache. Without a
 * scale there is no arithmetic: a thread copies 16 bytes if rows begin at 16-byte borders, otherwise one
 * value. With a scale, a thread takes one value: such rows are as short as the rank of an adapter.
 */
#include "kernels/cuda/rows.cuh"

enum { EMBED_BLOCK = 256 };

/* The ids whose rows a table has: `n` from `first` on. */
struct embed_ids {
    int32_t first, n;
    /* The row of an id. False: the table has none. */
    __device__ __forceinline__ bool find(int32_t id, int32_t *row) const {
        *row = id - first;
        return *row >= 0 && *row < n;
    }
};

/* A block has `tokens` tokens; a row has `words` words. */
template <class WORD>
__global__ void embed_rows(const int32_t *ids, int64_t n, int tokens, int words, struct embed_ids known,
                           const WORD *table, WORD *out) {
    int64_t first = (int64_t)blockIdx.x * tokens;
    int here = n - first < tokens ? (int)(n - first) : tokens;
    int32_t row;
    for (int i = (int)threadIdx.x; i < here * words; i += EMBED_BLOCK) {
        int64_t token = first + i / words;
        if (known.find(ids[token], &row))
            out[token * words + i % words] = table[(int64_t)row * words + i % words];
    }
}

/* A block has `tokens` tokens. */
template <class T>
__global__ void embed_scaled(struct ot_embed op, int tokens) {
    const T *table = static_cast<const T *>(op.table);
    T *out = static_cast<T *>(op.out);
    int64_t first = (int64_t)blockIdx.x * tokens;
    struct embed_ids known = {(int32_t)op.first, (int32_t)op.vocab};
    int cols = (int)op.cols, here = op.n - first < tokens ? (int)(op.n - first) : tokens;
    int32_t row;
    for (int i = (int)threadIdx.x; i < here * cols; i += EMBED_BLOCK) {
        int64_t token = first + i / cols;
        if (!known.find(op.tokens[token], &row))
            continue;
        float x = ot_to_float(table[(int64_t)row * cols + i % cols]);
        out[token * cols + i % cols] = ot_from_float<T>(x * op.scale);
    }
}

template <class WORD>
static cudaError_t embed_words(const struct ot_embed *op, const struct ot_cuda_stream *on) {
    int64_t words = op->cols * (int64_t)ot_dtype_bytes(op->dtype) / (int64_t)sizeof(WORD);
    int tokens = words < EMBED_BLOCK ? (int)(EMBED_BLOCK / words) : 1;
    struct embed_ids known = {(int32_t)op->first, (int32_t)op->vocab};
    return ot_launch(embed_rows<WORD>, dim3((unsigned)ot_ceil_div(op->n, tokens)), dim3(EMBED_BLOCK), 0,
                     on->stream, op->tokens, op->n, tokens, (int)words, known,
                     static_cast<const WORD *>(op->table), static_cast<WORD *>(op->out));
}

cudaError_t ot_cuda_embed(const struct ot_embed *args, const struct ot_cuda_stream *on) {
    size_t bytes = ot_dtype_bytes(args->dtype);
    if (args->n == 0 || args->cols == 0)
        return cudaSuccess;
    if (args->scale != 0 && args->scale != 1)
        return ot_dispatch(args->dtype, [&](auto zero) {
            using T = decltype(zero);
            int tokens = args->cols < EMBED_BLOCK ? (int)(EMBED_BLOCK / args->cols) : 1;
            return ot_launch(embed_scaled<T>, dim3((unsigned)ot_ceil_div(args->n, tokens)), dim3(EMBED_BLOCK),
                             0, on->stream, *args, tokens);
        });
    if (ot_rows_aligned(args->table, args->cols, bytes) && ot_rows_aligned(args->out, args->cols, bytes))
        return embed_words<uint4>(args, on);
    return bytes == 4 ? embed_words<uint32_t>(args, on) : embed_words<uint16_t>(args, on);
}

/* ---- backward ---- */

/* The backward of the embedding: adds each token's gradient to the row of the table that the token came from.
 * Repeated ids are added in the order of their tokens, so the bits are those of the cpu device.
 *
 * Bytes moved per value: one element of dtype for dout, and 8 for each value of a distinct id's row. Before
 * that, the tokens are sorted by (id, index). This takes one comparison of two instructions for each pair of
 * tokens in a piece. Pieces of tokens are added in order. Pieces keep the number of comparisons small, any
 * scratch can hold one, and no memory depends on the size of the vocabulary.
 *
 * A rejected version: count the ids in a table of the vocabulary's size, scan it, and rank the tokens of an
 * id. The ranking compares pairs of tokens too, and comparisons alone give the whole order.
 *
 * Summing: a block has one distinct id and a strip of columns, one pack for each thread. It walks over the
 * id's tokens with BATCH loads in flight. The time of an id grows with its number of tokens, but other ids do
 * not wait for it: blocks of different ids and strips are independent.
 */

enum { PIECE_TOKENS = 8192, SORT_BLOCK = 128, SUM_BLOCK = 128, BATCH = 8 };

/* The sorted tokens of a piece: [PIECE_TOKENS] each. */
struct sorted_tokens {
    int32_t *ids, *index; /* index: the token's index in the piece */
};

/* Counts the ids in shared memory that are less than `limit`. */
static __device__ __forceinline__ int count_below(const int32_t *ids, int32_t limit) {
    const int4 *fours = reinterpret_cast<const int4 *>(ids);
    int count = 0;
#pragma unroll 8
    for (int i = 0; i < SORT_BLOCK / 4; i++) {
        int4 four = fours[i];
        count += (four.x < limit) + (four.y < limit) + (four.z < limit) + (four.w < limit);
    }
    return count;
}

/* The place of a token is the number of tokens before it in the order: tokens of a smaller id, and tokens of
 * the same id with a smaller index. For tiles before the token's own tile that is id <= its id; for tiles
 * after it, id < its id. */
__global__ void embed_sort(const int32_t *tokens, int n, struct sorted_tokens sorted) {
    int32_t *tile = ot_shared<int32_t>();
    int thread = (int)threadIdx.x, own = (int)blockIdx.x * SORT_BLOCK + thread;
    int32_t id = own < n ? tokens[own] : 0;
    int place = 0;
    for (int first = 0; first < n; first += SORT_BLOCK) {
        tile[thread] = first + thread < n ? tokens[first + thread] : INT32_MAX; /* sorts behind every token */
        __syncthreads();
        bool before = first + SORT_BLOCK <= own;
        place += count_below(tile, id + before);
        if (first == (int)blockIdx.x * SORT_BLOCK)
            for (int i = 0; i < thread; i++)
                place += tile[i] == id;
        __syncthreads();
    }
    if (own < n) {
        sorted.ids[place] = id;
        sorted.index[place] = own;
    }
}

template <class T, bool ALIGNED>
__global__ void embed_sum(const T *dout, int n, int cols, struct sorted_tokens sorted, struct embed_ids known,
                          float scale, float *dtable) {
    constexpr int N = ot_pack<T>::N;
    int begin = (int)blockIdx.x, p = (int)blockIdx.y * SUM_BLOCK + (int)threadIdx.x;
    int32_t id = sorted.ids[begin], row;
    if ((begin > 0 && sorted.ids[begin - 1] == id) || p * N >= cols || !known.find(id, &row))
        return;
    float *to = dtable + (int64_t)row * cols;
    ot_pack<T> sum = ot_row_load_floats<ALIGNED, T>(to, p, cols);
    for (int at = begin; at < n && sorted.ids[at] == id; at += BATCH) {
        ot_pack<T> more[BATCH];
        int count = 0;
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (at + b < n && sorted.ids[at + b] == id) {
                more[b] = ot_row_load<ALIGNED>(dout + (int64_t)sorted.index[at + b] * cols, p, cols);
                count++;
            }
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (b < count)
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum.v[i] += scale * more[b].v[i];
    }
    ot_row_store_floats<ALIGNED, T>(to, p, cols, sum);
}

template <class T>
static cudaError_t embed_run(const struct ot_embed_backward *op, const struct ot_cuda_stream *on) {
    static_assert(2 * PIECE_TOKENS * sizeof(int32_t) <= OT_CUDA_MIN_SCRATCH_BYTES,
                  "any scratch holds a piece");
    int32_t *scratch = static_cast<int32_t *>(on->scratch);
    struct sorted_tokens sorted = {scratch, scratch + PIECE_TOKENS};
    bool aligned = ot_rows_aligned(op->dout, op->cols, sizeof(T)) &&
                   ot_rows_aligned(op->dtable, op->cols, sizeof(float));
    auto sum = aligned ? embed_sum<T, true> : embed_sum<T, false>;
    float scale = op->scale != 0 ? op->scale : 1.0f;
    struct embed_ids known = {(int32_t)op->first, (int32_t)op->vocab};
    unsigned strips = (unsigned)ot_ceil_div(ot_ceil_div(op->cols, ot_pack<T>::N), SUM_BLOCK);
    for (int64_t first = 0; first < op->n; first += PIECE_TOKENS) {
        int n = op->n - first < PIECE_TOKENS ? (int)(op->n - first) : (int)PIECE_TOKENS;
        OT_CUDA_TRY(ot_launch(embed_sort, dim3((unsigned)ot_ceil_div(n, SORT_BLOCK)), dim3(SORT_BLOCK),
                              SORT_BLOCK * sizeof(int32_t), on->stream, op->tokens + first, n, sorted));
        OT_CUDA_TRY(ot_launch(sum, dim3((unsigned)n, strips), dim3(SUM_BLOCK), 0, on->stream,
                              static_cast<const T *>(op->dout) + first * op->cols, n, (int)op->cols, sorted,
                              known, scale, op->dtable));
    }
    return cudaSuccess;
}

cudaError_t ot_cuda_embed_backward(const struct ot_embed_backward *args, const struct ot_cuda_stream *on) {
    if (args->cols == 0)
        return cudaSuccess;
    return ot_dispatch(args->dtype, [&](auto zero) { return embed_run<decltype(zero)>(args, on); });
}
