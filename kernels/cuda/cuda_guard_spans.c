/* The check of attention over spans.
 *
 * The problem has every kind of tile: a row whose queries see all of its keys, more than a tile of them;
 * queries with empty spans; a row whose queries see one key more than their predecessor. So a block has two
 * runs. There are more keys than queries, so the distances of the bias have an offset, and most of them are
 * beyond its reach. An op with a bias has a path of its own, because other instructions compute its scores.
 * Causal spans make no difference: the same masks hide keys behind the end of any span.
 *
 * FORWARD. The numbers of the softmax have two forms (kernels/ops_spans.h), so they cannot be compared. But
 * backward needs them. So both forward passes are followed by the plain backward pass, and the check
 * compares out and all gradients but dbias, which magnifies the rounding of out. BACKWARD. Both start from
 * the plain forward pass. Before each pass the memory between kernels is spoiled: it may hold right numbers
 * of an earlier check.
 *
 * BOUNDS are those of attention (cuda_guard_attention.c). dbias is a sum of fp32 numbers that the fast
 * kernels do not round; its error comes from exp and from the order of sums, 2^-20 of its terms. */
#include <math.h>
#include <stdio.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_guard_checks.h"
#include "kernels/cuda/gemm_plain.h"

enum { N = 140, N_KEYS = 170, HEADS = 2, BUCKETS = 8, REACH = 24, TABLE = 2 * REACH + 1 };
/* Queries [0, EMPTY) see the keys [0, BORDER). Queries from FILLED on see the keys from BORDER to their
 * own. */
enum { EMPTY = 50, FILLED = 60, BORDER = 70 };
_Static_assert(2 * N + TABLE <= OT_GUARD_HOPPER_TOKENS, "spans and buckets fit into the pinned memory");

#define DBIAS_BOUND 0x1p-10

/* ---- the path ---- */

int ot_guard_spans_path(const struct ot_attend_spans *op, bool backward) {
    return OT_GUARD_ATTENTION_PATHS + OT_GUARD_GEMM_PATHS + OT_GUARD_GROUPS_PATHS +
           ((backward * 3 + (int)op->dtype) * 2 + (op->head_dim > 64)) * 2 + (op->bias != NULL);
}

void ot_guard_spans_name(const struct ot_attend_spans *op, bool backward, char name[OT_GUARD_NAME_BYTES]) {
    snprintf(name, OT_GUARD_NAME_BYTES, "attention over spans %s in %s with heads of %lld%s",
             backward ? "backward" : "forward", ot_dtype_name(op->dtype), (long long)op->head_dim,
             op->bias ? ", a bias" : "");
}

/* ---- the problem ---- */

enum { OUT, DQ, DK, DV, DBIAS, PAIRS };

struct spans_check {
    struct ot_attend_spans_backward op;
    void *q, *k, *v, *dout, *bias;
    int32_t *tables; /* first keys, ends, buckets */
    struct ot_guard_pair pairs[PAIRS];
    struct ot_guard_room room; /* memory that is left for the comparison */
};

static cudaError_t take_memory(struct spans_check *c, const struct ot_attend_spans *like,
                               const struct ot_cuda_stream *on) {
    enum ot_dtype dtype = like->dtype;
    int64_t width = HEADS * like->head_dim, n = N * width, n_keys = N_KEYS * width;
    double bound = dtype == OT_BF16 ? 0x1p-5 : 0x1p-8;
    struct ot_guard_room *room = &c->room;
    *room = (struct ot_guard_room){.memory = on->scratch, .bytes = on->scratch_bytes};
    c->q = ot_guard_take(room, n, dtype);
    c->k = ot_guard_take(room, n_keys, dtype);
    c->v = ot_guard_take(room, n_keys, dtype);
    c->dout = ot_guard_take(room, n, dtype);
    c->bias = ot_guard_take(room, BUCKETS * HEADS, dtype);
    c->tables = ot_guard_take(room, 2 * N + TABLE, OT_F32);
    c->op.forward.softmax = ot_guard_take(room, 2 * N * HEADS, OT_F32);
    c->op.scratch = ot_guard_take(
        room, (int64_t)(ot_attend_spans_scratch_bytes(N, HEADS, BUCKETS) / sizeof(float)), OT_F32);
    c->pairs[OUT] = ot_guard_make_pair(room, dtype, n, bound);
    c->pairs[DQ] = ot_guard_make_pair(room, dtype, n, bound);
    c->pairs[DK] = ot_guard_make_pair(room, dtype, n_keys, bound);
    c->pairs[DV] = ot_guard_make_pair(room, dtype, n_keys, bound);
    c->pairs[DBIAS] = ot_guard_make_pair(room, OT_F32, BUCKETS * HEADS, DBIAS_BOUND);
    return room->used > room->bytes ? cudaErrorMemoryAllocation : cudaSuccess;
}

static cudaError_t fill_memory(const struct spans_check *c, struct ot_guard_pinned *pinned,
                               const struct ot_attend_spans *like, const struct ot_cuda_stream *on) {
    int64_t width = HEADS * like->head_dim;
    int32_t *first = pinned->starts, *end = first + N, *buckets = end + N;
    for (int i = 0; i < N; i++) {
        first[i] = i < FILLED ? 0 : BORDER;
        end[i] = i < EMPTY ? BORDER : i < FILLED ? 0 : i + N_KEYS - N + 1;
    }
    for (int i = 0; i < TABLE; i++)
        buckets[i] = i % BUCKETS;
    OT_GUARD_TRY(cudaMemcpyAsync(c->tables, pinned->starts, (2 * N + TABLE) * sizeof *c->tables,
                                 cudaMemcpyHostToDevice, on->stream));
    OT_GUARD_TRY(ot_cuda_gemm_fill(like->dtype, c->q, N * width, 1, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(like->dtype, c->k, N_KEYS * width, 2, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(like->dtype, c->v, N_KEYS * width, 3, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(like->dtype, c->dout, N * width, 4, on));
    return ot_cuda_gemm_fill(like->dtype, c->bias, BUCKETS * HEADS, 5, on);
}

static cudaError_t make_spans(struct spans_check *c, struct ot_guard_pinned *pinned,
                              const struct ot_attend_spans *like, const struct ot_cuda_stream *on) {
    int64_t width = HEADS * like->head_dim;
    *c = (struct spans_check){0};
    OT_GUARD_TRY(take_memory(c, like, on));
    float *softmax = c->op.forward.softmax;
    c->op.forward = (struct ot_attend_spans){.dtype = like->dtype,
                                             .n = N,
                                             .n_keys = N_KEYS,
                                             .heads = HEADS,
                                             .head_dim = like->head_dim,
                                             .ldq = width,
                                             .ldk = width,
                                             .ldv = width,
                                             .ldo = width,
                                             .scale = 1 / sqrtf((float)like->head_dim),
                                             .key_first = c->tables,
                                             .key_end = c->tables + N,
                                             .bias = like->bias ? c->bias : NULL,
                                             .buckets = BUCKETS,
                                             .reach = REACH,
                                             .bucket_of = c->tables + 2 * N,
                                             .q = c->q,
                                             .k = c->k,
                                             .v = c->v,
                                             .softmax = softmax};
    c->op.dout = c->dout;
    return fill_memory(c, pinned, like, on);
}

/* ---- the check ---- */

/* Runs both passes. forward, backward: true for the fast pass. fast: destination of the results. */
static cudaError_t run_spans(struct spans_check *c, bool forward, bool backward, bool fast,
                             const struct ot_cuda_stream *device) {
    struct ot_cuda_stream on = *device;
    void *results[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        results[i] = fast ? c->pairs[i].fast : c->pairs[i].plain;
    c->op.forward.out = results[OUT];
    c->op.dq = results[DQ];
    c->op.dk = results[DK];
    c->op.dv = results[DV];
    c->op.dbias = c->op.forward.bias ? results[DBIAS] : NULL;
    OT_GUARD_TRY(cudaMemsetAsync(results[DBIAS], 0, (size_t)c->pairs[DBIAS].n * sizeof(float), on.stream));
    OT_GUARD_TRY(
        cudaMemsetAsync(c->op.forward.softmax, 0xff, ot_attend_spans_softmax_bytes(N, HEADS), on.stream));
    OT_GUARD_TRY(
        cudaMemsetAsync(c->op.scratch, 0xff, ot_attend_spans_scratch_bytes(N, HEADS, BUCKETS), on.stream));
    on.plain = !forward;
    OT_GUARD_TRY(ot_cuda_attend_spans(&c->op.forward, &on));
    on.plain = !backward;
    return ot_cuda_attend_spans_backward(&c->op, &on);
}

cudaError_t ot_guard_check_spans(struct ot_guard_pinned *pinned, const struct ot_attend_spans *like,
                                 bool backward, const struct ot_cuda_stream *on, bool *agree) {
    struct spans_check c;
    OT_GUARD_TRY(make_spans(&c, pinned, like, on));
    for (int i = 0; i < DBIAS; i++)
        OT_GUARD_TRY(ot_guard_spoil(&c.pairs[i], on));
    OT_GUARD_TRY(run_spans(&c, !backward, backward, true, on));
    OT_GUARD_TRY(run_spans(&c, false, false, false, on));
    return ot_guard_compare(pinned, c.pairs, backward && like->bias ? PAIRS : DBIAS, c.room, on, agree);
}
