/* Attention over spans of keys: the attention of encoder-decoders (T5, Raffel et al. 2020). ops.h has the
 * rules that hold for every op, and includes this header. The attention of decoders is struct
 * ot_attention.
 *
 * SPANS. Query i sees the keys key_first[i] to key_end[i] - 1. If key_end[i] <= key_first[i], its span is
 * empty. The spans make every kind of attention of an encoder-decoder, for several rows of one
 * micro-batch:
 *
 *     encoder           the inputs of the query's row, before and behind it
 *     decoder           from the first target of the row to the query itself
 *     cross attention   the inputs of the row; k and v are of other tokens than q
 *
 * Tokens that have no part in a layer (targets in an encoder) have empty spans. Their out and dq are 0.
 *
 * BIAS. T5 adds a learned number to each score: bias[b][head], where the bucket b depends on the distance
 * alone, from the query's own key i + n_keys - n to the key. The host makes the table of the buckets, so
 * the op knows no formula: bucket_of[reach + d] is that of distance d, from -reach to reach. Larger
 * distances have the bucket of -reach or reach.
 *
 * EXACTNESS. out of a query depends on its q, on the keys of its span and on the bias, not on other queries,
 * nor on the place of its row in the batch. All devices compute the same bits, except where tensor cores
 * compute (below). To this end, every order of sums is fixed here:
 *
 *   - A dot product is a chain of fma over the elements, in order.
 *   - The keys of a span come in tiles of OT_SPAN_TILE, from its first key on. Each tile raises the
 *     maximum m of the scores (online softmax). If m grows, the sums are multiplied by exp(old m - new m).
 *     Then the keys are added in order: total += e, and out = fma(e, v, out), with e = exp(score - m). exp
 *     is that of kernels/formulas.h.
 *   - dq is a chain of fma over the keys, dk and dv over the queries, in order.
 *   - dbias: queries come in blocks of OT_SPAN_TILE, from 0 on. For each tile of keys, the block adds the
 *     pairs of equal distance, queries in order; then these sums, from the least distance on, to their
 *     buckets. At the end the blocks are added in order.
 *
 * Pairs with the weight 0, and keys outside of a span, are left out of the sums. So a NaN of one row does
 * not reach another row.
 *
 * TENSOR CORES. A device may compute bf16 and fp16 on tensor cores (kernels/cuda/attention_spans.cuh). Then
 * it rounds weights, and ds for dq and dk, to dtype before it multiplies them, and its sums have another
 * order. That order is as fixed. The bits of dk and dv may depend on the place of the row in the batch, those
 * of out do not. A NaN in q or dout of a row may reach dk and dv of another row whose keys lie within the
 * same 48 keys; it does not reach out. Unseen rows are not used there either: q and dout of empty spans, k
 * and v of keys outside of all spans.
 *
 * COST. 4 head_dim operations for each visible pair and head forward, 14 backward. With 512 keys for each
 * query, that is a tenth of the operations of a layer of T5-base. Blocks of queries visit the tiles of
 * their own spans alone. Consecutive queries share tiles if their spans have the same first key. So windows
 * that move with the query are correct, but slow. */
#ifndef OT_KERNELS_OPS_SPANS_H
#define OT_KERNELS_OPS_SPANS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops_drop.h"
#include "src/base/dtype.h"

enum { OT_SPAN_TILE = 32, OT_SPAN_MOST_DIM = 128, OT_SPAN_MOST_BUCKETS = 256 };

/* out = softmax(score) v over the keys of each query's span, in fp32, with
 *
 *     score = scale * q.k                             without a bias
 *     score = fma(scale, q.k, bias[bucket][head])     with a bias
 *
 * q, out: [n, heads, head_dim]; k, v: [n_keys, heads, head_dim]. Training: n_keys is n, or the number of
 * keys of the other side. With a key/value cache n is the number of new queries: their own keys are the
 * last n. n, n_keys and reach are below 2^30; head_dim is at most OT_SPAN_MOST_DIM, `buckets` at most
 * OT_SPAN_MOST_BUCKETS. Each nonempty span lies in [0, n_keys). */
struct ot_attend_spans {
    enum ot_dtype dtype;
    int64_t n, n_keys, heads, head_dim;
    int64_t ldq, ldk, ldv, ldo; /* elements between tokens */
    float scale;
    const int32_t *key_first, *key_end; /* [n] */
    const void *bias;                   /* dtype, [buckets, heads]; NULL: none */
    int64_t buckets, reach;             /* with a bias only */
    const int32_t *bucket_of;           /* [2 reach + 1], each in [0, buckets); with a bias only */
    struct ot_weight_drop drop;
    const void *q, *k, *v;
    void *out;
    /* [heads, n, 2]: two numbers a and b, so that the weight of a pair is exp(score - a) b. They are the
     * largest score of the span, and 1 / the sum of exp(score - largest); on tensor cores the logarithm of
     * the sum of exp(score), and 1. 0 and 0 for an empty span. Backward takes both. NULL: not wanted. */
    float *softmax;
};

/* dq, dk and dv are written with ldq, ldk and ldv. They must not overlap the inputs. A key that no query
 * sees gets 0. dbias is accumulated. dout of empty spans is not used. */
struct ot_attend_spans_backward {
    struct ot_attend_spans forward; /* the arguments of forward, with the out and softmax that it wrote */
    const void *dout;               /* stride: forward.ldo */
    void *dq, *dk, *dv;
    float *dbias;   /* [buckets, heads]; NULL: not wanted, and always without bias */
    float *scratch; /* ot_attend_spans_scratch_bytes() bytes */
};

static inline size_t ot_attend_spans_softmax_bytes(int64_t n, int64_t heads) {
    return (size_t)(n * heads) * 2 * sizeof(float);
}

/* For backward: dot(out, dout) of each query and head; then, if dbias is wanted, the part of each block of
 * queries. buckets: 0 if dbias is not wanted. */
static inline size_t ot_attend_spans_scratch_bytes(int64_t n, int64_t heads, int64_t buckets) {
    int64_t blocks = (n + OT_SPAN_TILE - 1) / OT_SPAN_TILE;
    return (size_t)((n + blocks * buckets) * heads) * sizeof(float);
}

#endif
