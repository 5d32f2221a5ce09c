/* The ops: one contract each, for every device.
 *
 * Every op enqueues on the given lane (device.h) and returns; all pointers are device memory. Argument
 * structs are copied. Matrices are row-major with a leading dimension in elements. `dtype` is the storage
 * format of activations and weights (OT_F32 or OT_BF16); arithmetic and accumulation are fp32 everywhere,
 * results are rounded to nearest even once, when stored. Gradients of weights are fp32 and are accumulated
 * into (+=) unless said otherwise; gradients of activations have the dtype of the activation and are
 * overwritten unless said otherwise.
 *
 * Determinism: the result is a function of the arguments alone. Sums over rows are cut into chunks of fixed
 * size and added in order, so neither thread count nor timing shows.
 *
 * Token arrays: a micro-batch is a flat list of n tokens made of rows (samples) laid end to end. row_start[i]
 * is the index of the first token of the row that token i belongs to: token i attends to keys
 * row_start[i]..i. position[i] is what RoPE rotates by. A sequence border needs nothing else, so the ops know
 * no batch dimension.
 */
#ifndef OT_KERNELS_OPS_H
#define OT_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "src/base/dtype.h"

/* C[m,n] = op(A)[m,k] op(B)[k,n] (+ bias[n]) (+ C if accumulate). op transposes where trans_* is set: a
 * linear layer y = x W^T is {trans_b}, dx = dy W plain, dW += dy^T x {trans_a, accumulate}. A, B and bias
 * have dtype; C has c_dtype. accumulate needs c_dtype OT_F32. C must not overlap the inputs. */
struct ot_gemm {
    enum ot_dtype dtype, c_dtype;
    bool trans_a, trans_b, accumulate;
    int64_t m, n, k;
    const void *a, *b, *bias; /* bias may be NULL */
    void *c;
    int64_t lda, ldb, ldc;
};

/* dbias[cols] += column sums of dy[rows, cols]. */
struct ot_bias_backward {
    enum ot_dtype dtype;
    int64_t rows, cols, ld;
    const void *dy;
    float *dbias;
};

/* out[n, cols] = table[tokens[i]]. Token ids must be in [0, vocab): the host checks. */
struct ot_embed {
    enum ot_dtype dtype;
    int64_t n, cols, vocab;
    const int32_t *tokens;
    const void *table; /* [vocab, cols] */
    void *out;
};

/* dtable[tokens[i]] += dout[i], repeated ids in index order. */
struct ot_embed_backward {
    enum ot_dtype dtype;
    int64_t n, cols, vocab;
    const int32_t *tokens;
    const void *dout;
    float *dtable; /* [vocab, cols] */
};

/* Row-wise normalisation of rows r = 0..rows-1, each `cols` long. Row r starts at x + (r / group) * ldx +
 * (r % group) * cols, likewise y with ldy: group > 1 walks the heads of q or k inside a wider row (Qwen3);
 * plain rows have group 1 and ld = cols.
 *
 *     RMS:   y = x * rstd * weight,           rstd = 1 / sqrt(mean(x^2) + eps)
 *     LAYER: y = (x - mean) * rstd * weight + bias
 *
 * If delta is not NULL (same shape and ld as x), x + delta is rounded to dtype, written to sum (which may be
 * x), and normalised: the fused residual. y may be x where sum is NULL. mean (LAYER) and rstd are fp32
 * [rows]. */
enum ot_norm_kind { OT_NORM_RMS, OT_NORM_LAYER };
struct ot_norm {
    enum ot_dtype dtype;
    enum ot_norm_kind kind;
    int64_t rows, cols, group, ldx, ldy;
    float eps;
    const void *x, *delta, *weight, *bias; /* delta may be NULL; bias for LAYER only */
    void *sum, *y;
    float *mean, *rstd; /* mean for LAYER only */
};

/* x: what was normalised (the sum, where there was a delta). dx = gradient (+ dx_add if not NULL, the
 * gradient that comes along the residual; dx may be dx_add or dy). ldx holds for x, dx and dx_add; ldy for
 * dy. dweight, dbias +=. */
struct ot_norm_backward {
    enum ot_dtype dtype;
    enum ot_norm_kind kind;
    int64_t rows, cols, group, ldx, ldy;
    const void *x, *dy, *weight, *dx_add;
    const float *mean, *rstd;
    void *dx;
    float *dweight, *dbias;
};

/* Rotary embedding, in place, on x[n, heads, head_dim] with ld between tokens. The first rotary_dim elements
 * of each head are rotated as pairs (j, j + rotary_dim/2) (the rotate-half convention of Hugging Face).
 * cos_table and sin_table are fp32 [max_position, rotary_dim/2], made by the model (scaling included).
 * inverse: rotates back, which is its backward. */
struct ot_rope {
    enum ot_dtype dtype;
    int64_t n, heads, head_dim, rotary_dim, ld, max_position;
    bool inverse;
    const int32_t *position; /* [n], each in [0, max_position) */
    const float *cos_table, *sin_table;
    void *x;
};

/* Causal attention of n queries over n_keys keys; query i stands at key index i + n_keys - n (in training
 * n_keys = n; with a key/value cache n_keys = past + n). Query i sees keys j with
 *
 *     row_start[i] <= j <= i + n_keys - n   and   (window == 0 or j > i + n_keys - n - window)
 *
 * q, out: [n, heads, head_dim]; k, v: [n_keys, kv_heads, head_dim]; query head h uses kv head h / (heads /
 * kv_heads). With slopes (ALiBi, Press et al. 2022: fp32 [heads], device memory) the score of key j is scale
 * * q.k - slopes[h] * (i + n_keys - n - j). lse: fp32 [heads, n], log of the sum of exp(score): kept for
 * backward; may be NULL. Memory is linear in n. */
struct ot_attention {
    enum ot_dtype dtype;
    int64_t n, n_keys, heads, kv_heads, head_dim, window;
    int64_t ldq, ldk, ldv, ldo; /* elements between tokens */
    float scale;
    const int32_t *row_start; /* [n], key indices; never decreasing */
    const float *slopes;      /* [heads]; NULL: none */
    const void *q, *k, *v;
    void *out;
    float *lse;
};

/* Training shape only (n_keys = n). dq, dk, dv are written with ldq, ldk, ldv; they must not overlap the
 * inputs. scratch: fp32, ot_attention_backward_scratch_bytes() big. */
struct ot_attention_backward {
    struct ot_attention forward; /* with out and lse as forward left them */
    const void *dout;            /* ldo */
    void *dq, *dk, *dv;
    float *scratch;
};

/* out = act(gate) * up. SILU: x * sigmoid(x); GELU_ERF; GELU_TANH (gelu_new, gelu_pytorch_tanh); RELU. */
enum ot_activation { OT_ACT_SILU, OT_ACT_GELU_ERF, OT_ACT_GELU_TANH, OT_ACT_RELU };
struct ot_glu {
    enum ot_dtype dtype;
    enum ot_activation act;
    int64_t rows, cols, ld_in, ld_out; /* ld_in: gate and up; ld_out: out */
    const void *gate, *up;
    void *out;
};
/* dgate and dup (ld_in) from dout (ld_out); dgate may be gate and dup may be up. */
struct ot_glu_backward {
    struct ot_glu forward; /* out is not read */
    const void *dout;
    void *dgate, *dup;
};

/* y = act(x), contiguous; y may be x. */
struct ot_activate {
    enum ot_dtype dtype;
    enum ot_activation act;
    int64_t n;
    const void *x;
    void *y;
};
/* dx = dy * act'(x); dx may be dy. */
struct ot_activate_backward {
    enum ot_dtype dtype;
    enum ot_activation act;
    int64_t n;
    const void *x, *dy;
    void *dx;
};

/* out = a + b, contiguous; out may be a or b. With dtype OT_F32 it also joins two gradient accumulators. */
struct ot_add {
    enum ot_dtype dtype;
    int64_t n;
    const void *a, *b;
    void *out;
};

/* Softmax cross-entropy over rows of fp32 logits[rows, vocab] (ld elements between rows). loss[i] = -log
 * softmax(logits[i]) [targets[i]], 0 where targets[i] < 0. With want_grad the logits are overwritten by their
 * gradient times grad_scale, in grad_dtype: row i then holds vocab elements of grad_dtype from the row's
 * first byte on (so its ld in elements of a two-byte grad_dtype is 2 * ld); a row with target < 0 becomes
 * zeros. */
struct ot_cross_entropy {
    int64_t rows, vocab, ld;
    const int32_t *targets;
    float *logits;
    float *loss;
    bool want_grad;
    enum ot_dtype grad_dtype;
    float grad_scale;
    const float *loss_scale; /* device memory, 1 value: grad_scale is multiplied by it; NULL: by 1 */
};

/* *out = sum of x[i] (squares: of x[i]^2), in double over fixed chunks; += if accumulate. Not finite if any x
 * is not. */
struct ot_reduce {
    int64_t n;
    const float *x;
    double *out;
    bool squares, accumulate;
};

/* Converts n contiguous elements, rounding to nearest even. src and dst must not overlap. */
struct ot_cast {
    enum ot_dtype from, to;
    int64_t n;
    const void *src;
    void *dst;
};

/* One AdamW step's numbers, in memory that the updating engine can read (device memory for the op). */
struct ot_adamw_step {
    float lr, beta1, beta2, eps, weight_decay;
    float bias1, bias2_sqrt; /* 1 - beta1^t and sqrt(1 - beta2^t) */
    float grad_scale;        /* the clip factor: gradients are multiplied by it */
    int32_t skip;            /* not 0: change nothing */
};

/* AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization") on n parameters; see
 * kernels/adamw.h for the exact arithmetic, which is the same in every engine. dtype OT_F32: weight is the
 * fp32 master, grad is fp32, low unused. OT_BF16: weight is hi, low the remainder, grad bf16. decay:
 * whether weight_decay applies. OT_F16: the fp32 master lies beside the state, grad is fp16, and weight is
 * written: the master rounded to nearest even. */
struct ot_adamw {
    enum ot_dtype dtype;
    int64_t n;
    bool decay;
    const struct ot_adamw_step *step;
    void *weight;
    int16_t *low;  /* OT_BF16 only */
    float *master; /* OT_F16 only */
    float *m, *v;
    const void *grad;
};

struct ot_ops {
    void (*gemm)(struct ot_lane *, const struct ot_gemm *);
    void (*bias_backward)(struct ot_lane *, const struct ot_bias_backward *);
    void (*embed)(struct ot_lane *, const struct ot_embed *);
    void (*embed_backward)(struct ot_lane *, const struct ot_embed_backward *);
    void (*norm)(struct ot_lane *, const struct ot_norm *);
    void (*norm_backward)(struct ot_lane *, const struct ot_norm_backward *);
    void (*rope)(struct ot_lane *, const struct ot_rope *);
    void (*attention)(struct ot_lane *, const struct ot_attention *);
    void (*attention_backward)(struct ot_lane *, const struct ot_attention_backward *);
    void (*glu)(struct ot_lane *, const struct ot_glu *);
    void (*glu_backward)(struct ot_lane *, const struct ot_glu_backward *);
    void (*activate)(struct ot_lane *, const struct ot_activate *);
    void (*activate_backward)(struct ot_lane *, const struct ot_activate_backward *);
    void (*add)(struct ot_lane *, const struct ot_add *);
    void (*cross_entropy)(struct ot_lane *, const struct ot_cross_entropy *);
    void (*reduce)(struct ot_lane *, const struct ot_reduce *);
    void (*cast)(struct ot_lane *, const struct ot_cast *);
    void (*adamw)(struct ot_lane *, const struct ot_adamw *);
};

static inline size_t ot_attention_backward_scratch_bytes(int64_t n, int64_t heads) {
    return (size_t)n * (size_t)heads * sizeof(float); /* one dot(out, dout) per query and head */
}

#endif
