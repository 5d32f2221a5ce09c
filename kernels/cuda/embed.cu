/* The embedding: gathers rows of a table by token id.
 *
 * Bytes moved per value: 2 times the dtype, less if ids repeat and the table's rows are in a cache. Without a
 * scale there is no arithmetic: a thread copies 16 bytes if rows begin at 16-byte borders, otherwise one
 * value. With a scale, a thread takes one value: such rows are as short as the rank of an adapter.
 */
#include "kernels/cuda/rows.cuh"

enum { EMBED_BLOCK = 256 };

/* A block has `tokens` tokens; a row has `words` words. */
template <class WORD>
__global__ void embed_rows(const int32_t *ids, int64_t n, int tokens, int words, const WORD *table,
                           WORD *out) {
    int64_t first = (int64_t)blockIdx.x * tokens;
    int here = n - first < tokens ? (int)(n - first) : tokens;
    for (int i = (int)threadIdx.x; i < here * words; i += EMBED_BLOCK) {
        int64_t token = first + i / words;
        out[token * words + i % words] = table[(int64_t)ids[token] * words + i % words];
    }
}

/* A block has `tokens` tokens. */
template <class T>
__global__ void embed_scaled(struct ot_embed op, int tokens) {
    const T *table = static_cast<const T *>(op.table);
    T *out = static_cast<T *>(op.out);
    int64_t first = (int64_t)blockIdx.x * tokens;
    int cols = (int)op.cols, here = op.n - first < tokens ? (int)(op.n - first) : tokens;
    for (int i = (int)threadIdx.x; i < here * cols; i += EMBED_BLOCK) {
        int64_t token = first + i / cols;
        float x = ot_to_float(table[(int64_t)op.tokens[token] * cols + i % cols]);
        out[token * cols + i % cols] = ot_from_float<T>(x * op.scale);
    }
}

template <class WORD>
static cudaError_t embed_words(const struct ot_embed *op, const struct ot_cuda_stream *on) {
    int64_t words = op->cols * (int64_t)ot_dtype_bytes(op->dtype) / (int64_t)sizeof(WORD);
    int tokens = words < EMBED_BLOCK ? (int)(EMBED_BLOCK / words) : 1;
    return ot_launch(embed_rows<WORD>, dim3((unsigned)ot_ceil_div(op->n, tokens)), dim3(EMBED_BLOCK), 0,
                     on->stream, op->tokens, op->n, tokens, (int)words, static_cast<const WORD *>(op->table),
                     static_cast<WORD *>(op->out));
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
