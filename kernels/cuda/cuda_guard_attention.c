/* The check of attention.
 *
 * The problem is two rows of tokens in one causal sequence, so that masks, row borders and the last, shorter
 * tile occur; two query heads share a key head. The problem of the kernels for compute capability 9.0 is
 * longer, so that their rings of tiles turn. Scores are about 1/3, so the softcap is as small as they are.
 *
 * FEATURES. A softcap, sinks, slopes (ALiBi), a window, and keys before the first query (decoding, and
 * sections of rows) select other instructions or other tiles. So an op that has them has a path of its own
 * for each combination, and its problem has them too. A run meets few combinations: a model's layers have one
 * or two, and decoding adds as many. The window is much smaller than a tile, so one key too many changes a
 * result by more than the bound; most queries leave out whole tiles. The number of earlier keys is no
 * multiple of a tile, and leaves a warpgroup of the last block without queries. Backward with earlier keys
 * has stored sums.
 *
 * BOUNDS. The gradient of the sinks is not compared, because one kernel computes it for all paths. The fast
 * kernels round the weights (and in backward the gradients of the scores) to the dtype before they multiply
 * them; the plain kernels do not. That makes a difference of some units in the last place. A wrong fragment,
 * mask or tile makes a difference as large as the numbers themselves. */
#include <math.h>
#include <stdio.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_guard_checks.h"
#include "kernels/cuda/gemm_plain.h"

/* ---- paths ---- */

static const int head_dims[OT_GUARD_HEAD_DIMS] = {64, 80, 96, 128, 256};

enum { HAS_SOFTCAP = 1, HAS_SINKS = 2, HAS_SLOPES = 4, HAS_WINDOW = 8, HAS_PAST = 16 };
_Static_assert(HAS_PAST << 1 == 1 << OT_GUARD_FEATURES, "a path for each combination");

static int features_of(const struct ot_attention *op) {
    return (op->softcap > 0 ? HAS_SOFTCAP : 0) | (op->sinks ? HAS_SINKS : 0) | (op->slopes ? HAS_SLOPES : 0) |
           (op->window > 0 ? HAS_WINDOW : 0) | (op->n_keys > op->n ? HAS_PAST : 0);
}

static bool is_backward(enum ot_guard_attention kind) {
    return kind == OT_GUARD_HOPPER_BACKWARD || kind == OT_GUARD_BACKWARD;
}

static bool is_hopper(enum ot_guard_attention kind) {
    return kind == OT_GUARD_HOPPER_FORWARD || kind == OT_GUARD_HOPPER_BACKWARD;
}

int ot_guard_attention_path(const struct ot_attention *op, enum ot_guard_attention kind) {
    int dim = 0;
    while (dim < OT_GUARD_HEAD_DIMS - 1 && head_dims[dim] != op->head_dim)
        dim++;
    return (((int)kind * 3 + (int)op->dtype) * OT_GUARD_HEAD_DIMS + dim) << OT_GUARD_FEATURES |
           features_of(op);
}

void ot_guard_attention_name(const struct ot_attention *op, enum ot_guard_attention kind,
                             char name[OT_GUARD_NAME_BYTES]) {
    int has = features_of(op);
    snprintf(name, OT_GUARD_NAME_BYTES, "attention %s%s in %s with heads of %lld%s%s%s%s%s",
             is_backward(kind) ? "backward" : "forward", is_hopper(kind) ? " (compute capability 9.0)" : "",
             ot_dtype_name(op->dtype), (long long)op->head_dim, has & HAS_SOFTCAP ? ", a softcap" : "",
             has & HAS_SINKS ? ", sinks" : "", has & HAS_SLOPES ? ", slopes (ALiBi)" : "",
             has & HAS_WINDOW ? ", a window" : "", has & HAS_PAST ? ", keys before the queries" : "");
}

/* ---- the problem ---- */

enum { TOKENS = OT_GUARD_TOKENS, HEADS = OT_GUARD_HEADS, ROW_BORDER = 50, WINDOW = 20, PAST = 90 };
#define SOFTCAP 0.5f
static const float SLOPES[HEADS] = {0.0625f, 0.25f};

static double attention_bound(enum ot_dtype dtype) {
    return dtype == OT_BF16 ? 0x1p-5 : 0x1p-8; /* 8 units of roundoff, which are 2^-8 and 2^-11 */
}

/* fp32 sums of exact products, one exp and one log: an error of some 2^-20. */
#define LSE_BOUND 0x1p-12

struct attention_check {
    struct ot_attention_backward op;
    void *q, *k, *v, *dout, *sinks;
    int32_t *row_start;
    float *slopes;
    struct ot_guard_pair out, lse;
    struct ot_guard_pair gradients[5]; /* dq, dk, dv; with earlier keys, the stored sums of dk and dv */
    int n_gradients;
    struct ot_guard_room room; /* memory that is left for the comparison */
};

/* Sizes of the problem: elements of q and out, of k and v, of dk and dv, of lse. */
struct sizes {
    int64_t n, n_keys, wide, narrow, own, rows;
};

static struct sizes sizes_of(const struct ot_attention *like, enum ot_guard_attention kind) {
    int64_t n_keys = is_hopper(kind) ? OT_GUARD_HOPPER_TOKENS : TOKENS;
    int64_t n = features_of(like) & HAS_PAST ? n_keys - PAST : n_keys;
    int64_t dim = like->head_dim;
    return (struct sizes){n, n_keys, n * HEADS * dim, n_keys * dim, n * dim, n * HEADS};
}

static cudaError_t take_memory(struct attention_check *c, const struct ot_attention *like, bool backward,
                               const struct sizes *sizes, const struct ot_cuda_stream *on) {
    struct ot_guard_room *room = &c->room;
    double bound = attention_bound(like->dtype);
    *room = (struct ot_guard_room){.memory = on->scratch, .bytes = on->scratch_bytes};
    c->q = ot_guard_take(room, sizes->wide, like->dtype);
    c->k = ot_guard_take(room, sizes->narrow, like->dtype);
    c->v = ot_guard_take(room, sizes->narrow, like->dtype);
    c->row_start = ot_guard_take(room, sizes->n, OT_F32);
    c->op.scratch = ot_guard_take(room, sizes->rows, OT_F32);
    c->sinks = ot_guard_take(room, HEADS, like->dtype);
    c->slopes = ot_guard_take(room, HEADS, OT_F32);
    c->out = ot_guard_make_pair(room, like->dtype, sizes->wide, bound);
    c->lse = ot_guard_make_pair(room, OT_F32, sizes->rows, LSE_BOUND);
    if (backward) {
        c->dout = ot_guard_take(room, sizes->wide, like->dtype);
        c->gradients[0] = ot_guard_make_pair(room, like->dtype, sizes->wide, bound);
        c->gradients[1] = ot_guard_make_pair(room, like->dtype, sizes->own, bound);
        c->gradients[2] = ot_guard_make_pair(room, like->dtype, sizes->own, bound);
        c->n_gradients = features_of(like) & HAS_PAST ? 5 : 3;
        for (int i = 3; i < c->n_gradients; i++)
            c->gradients[i] = ot_guard_make_pair(room, OT_F32, sizes->narrow, bound);
    }
    return room->used > room->bytes ? cudaErrorMemoryAllocation : cudaSuccess;
}

static cudaError_t fill_memory(const struct attention_check *c, struct ot_guard_pinned *pinned,
                               enum ot_dtype dtype, const struct sizes *sizes,
                               const struct ot_cuda_stream *on) {
    int64_t past = sizes->n_keys - sizes->n;
    for (int i = 0; i < sizes->n; i++)
        pinned->starts[i] = i < ROW_BORDER ? 0 : ROW_BORDER + (int32_t)past;
    for (int i = 0; i < HEADS; i++)
        pinned->slopes[i] = SLOPES[i];
    OT_GUARD_TRY(cudaMemcpyAsync(c->row_start, pinned->starts, (size_t)sizes->n * sizeof *c->row_start,
                                 cudaMemcpyHostToDevice, on->stream));
    OT_GUARD_TRY(
        cudaMemcpyAsync(c->slopes, pinned->slopes, sizeof SLOPES, cudaMemcpyHostToDevice, on->stream));
    OT_GUARD_TRY(ot_cuda_gemm_fill(dtype, c->q, sizes->wide, 1, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(dtype, c->k, sizes->narrow, 2, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(dtype, c->v, sizes->narrow, 3, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(dtype, c->sinks, HEADS, 5, on));
    return c->dout ? ot_cuda_gemm_fill(dtype, c->dout, sizes->wide, 4, on) : cudaSuccess;
}

static cudaError_t make_attention(struct ot_guard_pinned *pinned, const struct ot_attention *like,
                                  enum ot_guard_attention kind, const struct ot_cuda_stream *on,
                                  struct attention_check *c) {
    struct sizes sizes = sizes_of(like, kind);
    int64_t dim = like->head_dim, has = features_of(like);
    *c = (struct attention_check){0};
    OT_GUARD_TRY(take_memory(c, like, is_backward(kind), &sizes, on));
    c->op.forward = (struct ot_attention){.dtype = like->dtype,
                                          .n = sizes.n,
                                          .n_keys = sizes.n_keys,
                                          .heads = HEADS,
                                          .kv_heads = 1,
                                          .head_dim = dim,
                                          .window = has & HAS_WINDOW ? WINDOW : 0,
                                          .ldq = HEADS * dim,
                                          .ldk = dim,
                                          .ldv = dim,
                                          .ldo = HEADS * dim,
                                          .scale = 1 / sqrtf((float)dim),
                                          .softcap = has & HAS_SOFTCAP ? SOFTCAP : 0,
                                          .row_start = c->row_start,
                                          .slopes = has & HAS_SLOPES ? c->slopes : NULL,
                                          .sinks = has & HAS_SINKS ? c->sinks : NULL,
                                          .q = c->q,
                                          .k = c->k,
                                          .v = c->v};
    c->op.dout = c->dout;
    c->op.lddk = c->op.lddv = dim;
    return fill_memory(c, pinned, like->dtype, &sizes, on);
}

/* Runs the fast or the plain kernels: the launchers use the plain ones if on->plain is set. */
static cudaError_t run_attention(struct attention_check *c, bool backward, bool plain,
                                 const struct ot_cuda_stream *device) {
    struct ot_cuda_stream on = *device;
    struct ot_attention_backward *op = &c->op;
    on.plain = plain || backward; /* both backward passes start from the same plain forward pass */
    op->forward.out = on.plain ? c->out.plain : c->out.fast;
    op->forward.lse = on.plain ? c->lse.plain : c->lse.fast;
    OT_GUARD_TRY(ot_cuda_attention(&op->forward, &on));
    if (!backward)
        return cudaSuccess;
    on.plain = plain;
    op->dq = plain ? c->gradients[0].plain : c->gradients[0].fast;
    op->dk = plain ? c->gradients[1].plain : c->gradients[1].fast;
    op->dv = plain ? c->gradients[2].plain : c->gradients[2].fast;
    op->dk_sums = plain ? c->gradients[3].plain : c->gradients[3].fast;
    op->dv_sums = plain ? c->gradients[4].plain : c->gradients[4].fast;
    return ot_cuda_attention_backward(op, &on);
}

/* Every stored sum is 0.011, which is about as large as what the kernels add to it. */
static cudaError_t fill_stored(const struct ot_guard_pair *pair, const struct ot_cuda_stream *on) {
    size_t bytes = (size_t)pair->n * ot_dtype_bytes(pair->dtype);
    OT_GUARD_TRY(cudaMemsetAsync(pair->fast, 0x3c, bytes, on->stream));
    return cudaMemsetAsync(pair->plain, 0x3c, bytes, on->stream);
}

cudaError_t ot_guard_check_attention(struct ot_guard_pinned *pinned, const struct ot_attention *like,
                                     enum ot_guard_attention kind, const struct ot_cuda_stream *on,
                                     bool *agree) {
    struct attention_check c;
    bool backward = is_backward(kind);
    OT_GUARD_TRY(make_attention(pinned, like, kind, on, &c));
    const struct ot_guard_pair forward[] = {c.out, c.lse}, *pairs = backward ? c.gradients : forward;
    int n = backward ? c.n_gradients : 2;
    for (int i = 0; i < n; i++)
        OT_GUARD_TRY(i < 3 ? ot_guard_spoil(&pairs[i], on) : fill_stored(&pairs[i], on));
    OT_GUARD_TRY(run_attention(&c, backward, false, on));
    OT_GUARD_TRY(run_attention(&c, backward, true, on));
    return ot_guard_compare(pinned, pairs, n, c.room, on, agree);
}
