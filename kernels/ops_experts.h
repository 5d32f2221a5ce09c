/* The ops of mixtures of experts (Shazeer et al., "Outrageously Large Neural Networks", 2017): Mixtral,
 * Qwen3-MoE, gpt-oss. ops.h has the rules that hold for every op, and includes this header.
 *
 * WORDS. A router gives each token `top` experts. An ASSIGNMENT is a pair of a token and a slot in [0, top);
 * its number is token * top + slot. A GROUP is all assignments of one expert. PACKED arrays have one row for
 * each assignment, the groups one behind the other. So the rows of an expert lie together, and one product
 * computes them.
 *
 * THE WAY OF A BLOCK. x: [n, hidden], the normalised input of the layer.
 *
 *     gemm              logits = x R^T (+ bias)                [n, experts]
 *     router            ids, weights                           [n, top]
 *     group             offsets, rows, assignments
 *     gather            packed = the rows of x                 [capacity, hidden]
 *     gemm_groups, glu, gemm_groups                            out: [capacity, hidden]
 *     combine           y = residual + the weighted sum of each token's rows of out
 *
 * and backward, from dy to the gradient of x:
 *
 *     combine_backward  dout and dweights
 *     gemm_groups       gradients of each expert's weights (form SUMS) and of its inputs (form ROWS)
 *     combine           dx = the sum of each token's rows of dpacked: without weights, the backward of
 * gather
 *     router_backward   dlogits; then two products of the router add its part to dx and to dR
 *
 * WITHOUT WAITING FOR THE HOST. The router decides on the device how many rows an expert has. The host never
 * needs these numbers: packed arrays have a fixed capacity, ot_group_rows(), that holds every choice of the
 * router. No token is dropped. gemm_groups reads the offsets on the device and computes the rows of groups
 * alone. Element-wise ops run over all rows of the capacity. Rows of no group hold undefined values on the
 * way; no group and no token reads them.
 *
 * Another way: copy `offsets` (4 bytes for each expert) to the host, wait, and start one ot_gemm for each
 * expert. Each layer then waits once for the GPU. The bits differ from those of gemm_groups, because another
 * kernel adds. So a program decides once, by its arguments and the machine, which way it takes.
 *
 * DETERMINISM. All sums have a fixed order. A token adds its slots in the order of slots, whatever experts
 * they name. The product of an expert depends on the rows of its group and on its weights alone. The
 * gradient of its weights adds these rows in order, and they are in the order of tokens.
 */
#ifndef OT_KERNELS_OPS_EXPERTS_H
#define OT_KERNELS_OPS_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops_inline.h"
#include "src/base/dtype.h"

/* `top` is at most OT_MOST_TOP, the number of experts at most OT_MOST_EXPERTS. */
enum { OT_MOST_TOP = 16, OT_MOST_EXPERTS = 1024 };

/* For each token: ids of the `top` largest logits, the largest first; of equal logits, the lower id comes
 * first. A NaN counts as the largest, so that it shows in the weights. The weights are fp32:
 *
 *     weights[s] = exp(l[ids[s]]) / the sum of exp(l[e])
 *
 * The sum is over the chosen experts: gpt-oss; also Mixtral, and Qwen3-MoE with norm_topk_prob, which divide
 * the probabilities of the chosen experts by their sum. If over_all is set, the sum is over all experts:
 * Qwen3-MoE without norm_topk_prob. All devices compute the same bits: exp is that of kernels/formulas.h, of
 * the logit minus the largest logit. Sums have 16 parts; part p adds the terms p, p + 16, ...; a tree adds
 * parts 8 apart, then 4, 2 and 1. */
struct ot_router {
    enum ot_dtype dtype; /* type of the logits */
    bool over_all;
    int64_t n, experts, top, ld; /* ld: between the logits of two tokens; 1 <= top <= experts */
    const void *logits;          /* [n, experts] */
    int32_t *ids;                /* [n, top], each in [0, experts), all different in a token */
    float *weights;              /* [n, top] */
};

/* dlogits, the gradient of all logits, from the gradient of the weights. With d = the sum of weights *
 * dweights over the slots: a chosen expert gets weight * (dweight - d). Another expert gets 0; if over_all is
 * set, it gets -d * its probability. dlogits may be logits.
 *
 * With slopes, every expert also gets p * (slope - the sum of slopes * p), where p is the softmax over all
 * experts: the gradient of the balancing loss (struct ot_balance). */
struct ot_router_backward {
    struct ot_router forward; /* the arguments of forward, with the ids and weights that it wrote */
    const float *dweights;    /* [n, top] */
    const float *slopes;      /* [experts]; NULL: none */
    void *dlogits;            /* [n, experts], forward.ld between tokens */
};

/* BALANCE. The balancing loss of a micro-batch (Fedus et al., "Switch Transformers", arXiv 2101.03961; the
 * load_balancing_loss_func of transformers) is small if all experts get equally many tokens:
 *
 *     coefficient * experts * sum over e of (counts[e] / rows) (sums[e] / rows)
 *
 * counts[e] are the assignments of expert e, and sums[e] the sum of its probabilities (the softmax over all
 * experts), over all tokens of all layers that have experts; rows is the number of tokens times that of these
 * layers. counts is a constant to backward. So the layers hand on both sums in forward (ot_load), and after
 * the last layer ot_balance has the loss, and the slopes that the router's backward needs in all layers. */

/* Adds a layer to the sums: counts_out[e] = counts_in[e] + the tokens that chose e, and so the sums. Each
 * result may have the place of its input, as for later chunks of a layer. The
 * bits of sums are the same on all devices: tokens are cut into OT_LOAD_PARTS parts of equal length (the
 * last ones may be shorter or empty), each part adds its tokens in order, and then the parts are added in
 * order. */
enum { OT_LOAD_PARTS = 64 };
struct ot_load {
    struct ot_router router; /* the arguments of forward, with the ids that it wrote; weights are not read */
    const int32_t *counts_in;
    const float *sums_in; /* [experts] */
    int32_t *counts_out;
    float *sums_out; /* [experts] */
};

/* Adds the balancing loss to the loss of each token with a target. So the mean over the trained tokens of a
 * step weighs its micro-batches by their trained tokens. Writes slopes[e], the derivative of the step's loss
 * by a probability of e, times the loss scale. Sums are in double, in order. */
struct ot_balance {
    int64_t n, experts, rows;
    const int32_t *targets; /* [n] */
    const int32_t *counts;  /* [experts] */
    const float *sums;      /* [experts] */
    float coefficient, grad_scale;
    const float *loss_scale; /* device memory, 1 value; NULL: 1 */
    float *loss;             /* [n] */
    float *slopes;           /* [experts] */
};

/* The formulas of ot_balance. */
static OT_OPS_INLINE double ot_balance_scale(const struct ot_balance *op) {
    return (double)op->coefficient * (double)op->experts / ((double)op->rows * (double)op->rows);
}

static OT_OPS_INLINE float ot_balance_loss(const struct ot_balance *op) {
    double sum = 0;
    for (int64_t e = 0; e < op->experts; e++)
        sum += (double)op->counts[e] * (double)op->sums[e];
    return (float)(ot_balance_scale(op) * sum);
}

/* scale: ot_balance_scale times the trained tokens of the micro-batch. */
static OT_OPS_INLINE float ot_balance_slope(const struct ot_balance *op, int64_t expert, double scale) {
    double step = (double)op->grad_scale * (op->loss_scale ? (double)*op->loss_scale : 1);
    return (float)(scale * (double)op->counts[expert] * step);
}

/* Sorts assignments by expert, and those of an expert by their numbers. Group e is the packed rows
 * offsets[e] to offsets[e + 1] - 1. Its first counts[e] rows have assignments. The rest is padding, if the
 * op pads each group to a multiple of `multiple` rows. rows[a] is the row of assignment a. assignments[r] is
 * the assignment of row r; -1 for padding, and for rows behind the last group. used[e] becomes 1 for each
 * expert e with assignments, and keeps its value for the others.
 *
 * The ids must be in [0, experts). n * top and the capacity are below 2^31 - 2^10. */
struct ot_group {
    int64_t n, top, experts, multiple; /* multiple: 1 for no padding */
    const int32_t *ids;                /* [n, top] */
    int32_t *offsets, *counts;         /* [experts + 1] and [experts] */
    int32_t *rows;                     /* [n, top] */
    int32_t *assignments;              /* [ot_group_rows()] */
    int32_t *used;                     /* [experts]; NULL: not wanted */
    int32_t *scratch;                  /* ot_group_scratch_bytes() bytes */
};

/* The capacity: no router needs more packed rows. An expert without tokens has no padding. */
static inline int64_t ot_group_rows(int64_t n, int64_t top, int64_t experts, int64_t multiple) {
    int64_t groups = n * top < experts ? n * top : experts;
    return n * top + groups * (multiple - 1);
}

enum { OT_GROUP_CHUNK = 1024 }; /* assignments that a device counts and places together */

static inline size_t ot_group_scratch_bytes(int64_t n, int64_t top, int64_t experts) {
    int64_t chunks = (n * top + OT_GROUP_CHUNK - 1) / OT_GROUP_CHUNK;
    return (size_t)((chunks + 1) * experts) * sizeof(int32_t);
}

/* packed[r] = x[assignments[r] / top], and zeros if assignments[r] is -1, for r < rows. */
struct ot_gather {
    enum ot_dtype dtype;
    int64_t rows, cols, top, ld_x, ld_packed;
    const int32_t *assignments;
    const void *x;
    void *packed;
};

/* y[t] = the sum over slots s of weights[t, s] * packed[rows[t, s]] (+ addend[t]). Products and sums are
 * fp32, in the order of slots; the addend comes last; the result is rounded once. weights NULL: 1. That is
 * the backward of gather. y may be addend, and must not overlap packed. */
struct ot_combine {
    enum ot_dtype dtype;
    int64_t n, cols, top, ld_packed, ld_y; /* ld_y: for y and addend */
    const int32_t *rows;                   /* [n, top] */
    const float *weights;                  /* [n, top] */
    const void *packed, *addend;           /* addend may be NULL */
    void *y;
};

/* For each packed row r < rows with assignment a of token t: dpacked[r] = weights[a] * dy[t], and
 * dweights[a] = the dot product of dy[t] and packed[r], in fp32. Rows without an assignment become zeros.
 * dpacked may be packed. dweights NULL: it is not wanted, and packed is not read. */
struct ot_combine_backward {
    enum ot_dtype dtype;
    int64_t rows, cols, top, ld_packed, ld_dy; /* ld_packed: for packed and dpacked */
    const int32_t *assignments;
    const float *weights; /* [n, top] */
    const void *dy, *packed;
    void *dpacked;
    float *dweights; /* [n, top] */
};

/* One product for each group e, whose rows are offsets[e] to offsets[e + 1] - 1 of the packed arrays:
 *
 *     ROWS:  C[rows of e, n] = scale A[rows of e, k] op(B_e)[k, n] (+ bias_e[n]) (+ addend[rows of e, n])
 *     SUMS:  C_e[m, n] = scale (A[rows of e, m])^T B[rows of e, n] (+ addend_e[m, n])
 *
 * ROWS: y = x W^T sets trans_b; dx = dy W does not. Rows of no group are neither read nor written. SUMS:
 * dW += dy^T x sets addend to C. An expert without rows gets zeros, or its addend. B_e (ROWS), or C_e and
 * addend_e (SUMS), begin `stride` elements behind those of expert e - 1. bias is [experts, n]; its gradient
 * is the form SUMS with m = 1 and an A of ones. scale, c_dtype, addend and overlaps are as in struct
 * ot_gemm.
 *
 * by_rows: as in struct ot_gemm; ROWS with trans_b only.
 *
 * rows: the capacity, at least offsets[experts]. It sets the size of the launch; no result depends on it. */
enum ot_groups_form { OT_GROUPS_ROWS, OT_GROUPS_SUMS };
struct ot_gemm_groups {
    enum ot_dtype dtype, c_dtype;
    enum ot_groups_form form;
    bool trans_b, by_rows;             /* ROWS only */
    int64_t experts, rows, m, n, k;    /* m: SUMS only; k: ROWS only */
    const int32_t *offsets;            /* [experts + 1] */
    const void *a, *b, *bias, *addend; /* bias (ROWS only) and addend may be NULL */
    void *c;
    int64_t lda, ldb, ldc, stride;
    float scale;
};

#endif
