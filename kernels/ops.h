/* The ops: one contract per op, for every device.
 *
 * Every op enqueues its work on the given lane (device.h) and returns. All pointers are device memory.
 * Argument structs are copied. Matrices are row-major; a leading dimension (ld) counts elements. `dtype` is
 * the storage format of activations and weights: OT_F32, OT_BF16 or OT_F16. A device may lack one
 * (ot_device_has_dtype). Arithmetic and accumulation are fp32 everywhere; a result is rounded once, to
 * nearest even, when it is stored. Gradients of weights are fp32 and are accumulated (+=) unless stated
 * otherwise. Gradients of activations have the dtype of the activation and are overwritten unless stated
 * otherwise.
 *
 * Determinism: a result depends on the arguments alone. Sums over rows are cut into chunks of fixed size, and
 * the chunks are added in order. So neither the number of threads nor timing changes a bit.
 *
 * Token arrays: a micro-batch is a flat list of n tokens, made of rows (samples) laid end to end.
 * row_start[i] is the index of the first token in the row of token i: token i attends to the keys
 * row_start[i]..i. position[i] is the position that RoPE rotates by. These two arrays are all that marks the
 * borders of sequences, so the ops have no batch dimension.
 *
 * Mixtures of experts have ops of their own: ops_experts.h. So have the attention of encoder-decoders
 * (ops_spans.h), and objectives that compare answers (ops_compare.h).
 */
#ifndef OT_KERNELS_OPS_H
#define OT_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/ops_compare.h"
#include "kernels/ops_drop.h"
#include "kernels/ops_experts.h"
#include "kernels/ops_inline.h"
#include "kernels/ops_spans.h"
#include "kernels/state_format.h"
#include "kernels/weight_format.h"
#include "src/base/dtype.h"

/* C[m,n] = scale op(A)[m,k] op(B)[k,n] (+ bias[n]) (+ addend[m,n]). op transposes if trans_* is set. For a
 * linear layer y = x W^T sets trans_b; dx = dy W sets nothing; dW += dy^T x sets trans_a, and addend to C. A,
 * B and bias have dtype; C and addend have c_dtype and ldc. scale 0 means 1. The scale multiplies the fp32
 * sums; with another scale than 1, bias must be NULL. Bias and addend are added in fp32, before the only
 * rounding. C must not overlap A, B and bias; addend is C, or does not overlap C.
 *
 * The bits of a row may depend on m, because a device chooses its algorithm by the shape. by_rows: each row
 * has the bits of a product of that row alone, m = 1 (set in both). It reads B once on the cpu device, and
 * once a row on the cuda device. It needs trans_b, and not trans_a. */
struct ot_gemm {
    enum ot_dtype dtype, c_dtype;
    bool trans_a, trans_b, by_rows;
    int64_t m, n, k;
    const void *a, *b, *bias, *addend; /* bias and addend may be NULL */
    void *c;
    int64_t lda, ldb, ldc;
    float scale;
};

/* dbias[cols] += column sums of dy[rows, cols]. */
struct ot_bias_backward {
    enum ot_dtype dtype;
    int64_t rows, cols, ld;
    const void *dy;
    float *dbias;
};

/* out[i, cols] = scale table[tokens[i] - first] for i < n. scale 0 means 1. Token ids must be in
 * [first, first + vocab); the host checks them. partial: others are allowed, and out[i] stays as it is. */
struct ot_embed {
    enum ot_dtype dtype;
    int64_t n, cols, vocab;
    const int32_t *tokens;
    const void *table; /* [vocab, cols] */
    void *out;
    float scale;
    bool partial;
    int64_t first;
};

/* dtable[tokens[i] - first] += scale dout[i], with the product rounded to fp32. scale 0 means 1. Repeated ids
 * are added in the order of i. partial: ids outside of [first, first + vocab) are allowed, and add
 * nothing. */
struct ot_embed_backward {
    enum ot_dtype dtype;
    int64_t n, cols, vocab;
    const int32_t *tokens;
    const void *dout;
    float *dtable; /* [vocab, cols] */
    float scale;
    bool partial;
    int64_t first;
};

/* Normalises rows r = 0..rows-1 of `cols` elements each. Row r starts at x + (r / group) * ldx + (r % group)
 * * cols; the same formula with ldy holds for y. group > 1 walks the heads of q or k inside a wider row
 * (Qwen3). Plain rows have group 1.
 *
 *     RMS:   y = x * rstd * weight,           rstd = 1 / sqrt(mean(x^2) + eps)
 *     LAYER: y = (x - mean) * rstd * weight + bias
 *
 * With adds_one, 1 + weight, rounded to fp32, takes the place of weight (Gemma). y may be x. mean (LAYER
 * only) and rstd are fp32 [rows]. */
enum ot_norm_kind { OT_NORM_RMS, OT_NORM_LAYER };
struct ot_norm {
    enum ot_dtype dtype;
    enum ot_norm_kind kind;
    bool adds_one;
    int64_t rows, cols, group, ldx, ldy;
    float eps;
    const void *x, *weight, *bias; /* bias: LAYER only */
    void *y;
    float *mean, *rstd; /* mean: LAYER only */
};

/* x is the input of the normalisation. dx = gradient (+ dx_add if not NULL,
 * the gradient that arrives over the residual). dx may be dx_add or dy. ldx is the stride of x, dx and
 * dx_add; ldy is the stride of dy. dweight and dbias are accumulated; NULL: they are not wanted. */
struct ot_norm_backward {
    enum ot_dtype dtype;
    enum ot_norm_kind kind;
    bool adds_one;
    int64_t rows, cols, group, ldx, ldy;
    const void *x, *dy, *weight, *dx_add;
    const float *mean, *rstd;
    void *dx;
    float *dweight, *dbias;
};

/* Rotary embedding, in place, on x[n, heads, head_dim]; ld elements lie between tokens. The first rotary_dim
 * elements of each head are rotated as pairs (j, j + rotary_dim/2), the rotate-half convention of Hugging
 * Face, or, if `interleaved` is set, as pairs (2 j, 2 j + 1) (GPT-J, CodeGen). The model makes cos_table and
 * sin_table, fp32 [max_position, rotary_dim/2], scaling included; column j belongs to pair j. If `inverse` is
 * set, the op rotates back: that is the backward. */
struct ot_rope {
    enum ot_dtype dtype;
    int64_t n, heads, head_dim, rotary_dim, ld, max_position;
    bool inverse, interleaved;
    const int32_t *position; /* [n], each in [0, max_position) */
    const float *cos_table, *sin_table;
    void *x;
};

/* Causal attention of n queries over n_keys keys. Query i is at key index i + n_keys - n. For whole rows
 * n_keys = n; with a key/value cache, or a section of a row, n_keys = past + n. Query i sees the keys j with
 *
 *     row_start[i] <= j <= i + n_keys - n   and   (window == 0 or j > i + n_keys - n - window)
 *
 * q, out: [n, heads, head_dim]; k, v: [n_keys, kv_heads, head_dim]; query head h uses kv head h / (heads /
 * kv_heads). Three steps make the score of key j, in this order:
 *
 *     x = scale * q.k
 *     x = softcap * tanh(x / softcap)             if softcap is not 0 (Gemma 2; Bello et al. 2016)
 *     x = x - slopes[h] * (i + n_keys - n - j)    if slopes is not NULL (ALiBi, Press et al. 2022)
 *
 * Keys that the query does not see are left out after these steps. softcap is finite and not negative; slopes
 * are fp32 [heads] in device memory.
 *
 * If sinks is not NULL (gpt-oss; Xiao et al. 2023; dtype, [heads]), each softmax of head h has one more
 * logit, sinks[h], without a value: it takes its part of the sum, and nothing is added to out. The three
 * steps do not apply to it.
 *
 * lse: fp32 [heads, n], the log of the sum of exp(score), with exp(sinks[h]) where sinks are given. Backward
 * needs it; it may be NULL. Memory is linear in n. */
struct ot_attention {
    enum ot_dtype dtype;
    int64_t n, n_keys, heads, kv_heads, head_dim, window;
    int64_t ldq, ldk, ldv, ldo; /* elements between tokens */
    float scale;
    float softcap;            /* 0: none */
    const int32_t *row_start; /* [n], key indices; never decreasing */
    const float *slopes;      /* [heads]; NULL: no ALiBi */
    const void *sinks;        /* [heads]; NULL: none */
    struct ot_weight_drop drop;
    const void *q, *k, *v;
    void *out;
    float *lse;
};

/* dq [n, heads, head_dim] is written with ldq, and dk and dv [n, kv_heads, head_dim] with lddk and lddv. They
 * must not overlap the inputs. dsinks is accumulated, like the gradient of a weight: one sum over all queries
 * for each head. scratch: fp32, ot_attention_backward_scratch_bytes() bytes.
 *
 * Without dk_sums and dv_sums (both NULL), n_keys = n.
 *
 * SECTIONS. With them, n_keys >= n >= 1: a long row goes backward section by section. The queries of a
 * section are at the last n keys, the section's own keys. dk and dv are the gradients of its own keys alone.
 * The sums, fp32 [n_keys, kv_heads, head_dim] without gaps and aligned to 16 bytes, carry the gradients of
 * keys to earlier sections. If g[j] is the gradient of key j by the queries of this section,
 *
 *     sums[j] = sums[j] + g[j]                   for the keys before the section, j < n_keys - n
 *     dk[j - (n_keys - n)] = sums[j] + g[j]      for its own keys; their sums are read only
 *
 * and the same for dv. g[j] is a finished fp32 sum, in the order that each device has for whole rows; adding
 * it is one more fp32 addition; dk and dv are rounded after that. So the sections of a row go from the last
 * to the first, and the caller clears the sums before the last. A section may begin at any key. The sums of
 * keys that no query of the section sees keep their values.
 *
 * The random words of a dropped weight depend on n and n_keys (ops_drop.h), so forward and backward of one
 * section agree. Sections of one row share words, unless each has its own noise. */
struct ot_attention_backward {
    struct ot_attention forward; /* the arguments of forward, with the out and lse that it wrote */
    const void *dout;            /* stride: forward.ldo */
    void *dq, *dk, *dv;
    int64_t lddk, lddv;       /* elements between tokens */
    float *dk_sums, *dv_sums; /* NULL: whole rows */
    float *dsinks;            /* [heads]; NULL: not wanted, and always without sinks */
    float *scratch;
};

/* out = act(gate) * up. SILU: x * sigmoid(x); GELU_ERF; GELU_TANH (gelu_new, gelu_pytorch_tanh); RELU.
 *
 * If limit is not 0, the op is that of gpt-oss, and act and up are not used:
 *
 *     g = min(gate, limit),   u = up between -limit and limit,   out = (u + 1) * g * sigmoid(alpha * g)
 *
 * Gate and up then lie interleaved in rows of 2 cols elements, from `gate` on: gate, up, gate, up. ld_in is
 * even. An input beyond its limit has the gradient 0. limit is finite and not negative. */
enum ot_activation { OT_ACT_SILU, OT_ACT_GELU_ERF, OT_ACT_GELU_TANH, OT_ACT_RELU };
struct ot_glu {
    enum ot_dtype dtype;
    enum ot_activation act;
    int64_t rows, cols, ld_in, ld_out; /* ld_in: gate and up; ld_out: out */
    const void *gate, *up;
    void *out;
    float limit, alpha;
};
/* Writes dgate and dup (stride ld_in) from dout (stride ld_out). dgate may be gate, and dup may be up. With a
 * limit both gradients lie interleaved from dgate on, and dup is not used. */
struct ot_glu_backward {
    struct ot_glu forward; /* out is not read */
    const void *dout;
    void *dgate, *dup;
};

/* y = act(x), n contiguous elements; y may be x. */
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

/* out = a + b, n contiguous elements; out may be a or b. With dtype OT_F32 the op also adds two gradient
 * accumulators. */
struct ot_add {
    enum ot_dtype dtype;
    int64_t n;
    const void *a, *b;
    void *out;
};

/* out[i] = (addend[i] +) kept(i) x[i], n contiguous elements. kept(i) is 0 if the random word of element i is
 * less than drop * 2^32, else 1 / (1 - drop) (ops_drop.h). The word of element i is
 * ot_state_word(noise, first + i). drop: in [0, 1). out may be x or addend. */
struct ot_dropout {
    enum ot_dtype dtype;
    int64_t n, first;
    float drop;
    struct ot_state_noise noise;
    const void *x, *addend; /* addend may be NULL */
    void *out;
    bool of_difference; /* kept(i) multiplies x[i] - addend[i] in place of x[i] */
};

/* NEFTune (Jain et al., "NEFTune: Noisy Embeddings Improve Instruction Finetuning", 2023): adds noise to the
 * embeddings of n tokens, in place. With u from the random words, as a signed number times 2^-31, and L the
 * tokens in the row of token i (those with its row_start),
 *
 *     x[i, c] = x[i, c] + m u,   m = alpha / sqrt(L cols)
 *
 * The word of an element is ot_state_word(noise, i * cols + c). Each operation is rounded to fp32, and the
 * sum to dtype, so all devices compute the same bits. alpha is finite and not negative. */
struct ot_neftune {
    enum ot_dtype dtype;
    int64_t n, cols;
    float alpha;
    struct ot_state_noise noise;
    const int32_t *row_start; /* [n]; never decreasing */
    void *x;                  /* [n, cols] */
};

/* The end of the row of token i. */
static OT_OPS_INLINE int64_t ot_neftune_row_end(const struct ot_neftune *op, int64_t i) {
    int64_t low = i + 1, high = op->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (op->row_start[middle] == op->row_start[i])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* DoRA (Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024). A map's weight W [rows, cols] and
 * its adapter make V = W + scale B A; |.| is the Euclidean norm of a row. The op computes, in fp32 [rows],
 *
 *     inverse = 1 / |V|,   factor = (|W| + change) / |V|
 *
 * The op computes |V|^2 as |W|^2 + 2 scale B.(W A^T) + scale^2 B (A A^T) B^T, so that V needs no memory:
 * cross is W A^T [rows, rank], gram is A A^T [rank, rank], both fp32. Where B is zero, |V| has the bits of
 * |W|, so a change of 0 makes a factor of exactly 1. The relative error of |V| grows with |W|^2 / |V|^2. A
 * row with |V|^2 <= 0 has inverse 0 and factor 0. */
struct ot_dora_factors {
    enum ot_dtype dtype; /* type of weight, b and change */
    int64_t rows, cols, rank;
    float scale;
    const void *weight, *b, *change; /* b: [rows, rank]; change: [rows] */
    const float *cross, *gram;
    float *factor, *inverse;
};

/* y = factor u (- less) (+ bias) (+ addend), each sum rounded to fp32, in this order. u, less, addend and y
 * are [rows, cols], ld elements between rows; factor and bias are [cols]. y may be u, less or addend. */
struct ot_dora {
    enum ot_dtype dtype;
    int64_t rows, cols, ld;
    const float *factor;                  /* NULL: 1 */
    const void *u, *less, *bias, *addend; /* less, bias and addend may be NULL */
    void *y;
};

/* du = factor dy; dchange[cols] += inverse * (sum over rows of dy u). ld: for u and du. du may be dy, or u if
 * both have one dtype, or NULL: not wanted. */
struct ot_dora_backward {
    enum ot_dtype dtype, u_dtype; /* u_dtype: dtype or OT_F32 */
    int64_t rows, cols, ld, ld_dy;
    const float *factor, *inverse; /* factor NULL: 1 */
    const void *dy, *u;
    void *du;
    float *dchange; /* NULL: not wanted; then u and inverse are not read */
};

/* out = the sum of n_parts arrays of n contiguous elements, in fp32, in a fixed order: one after the other,
 * or along a binary tree: ((0 + 1) + (2 + 3)) + ... Part p begins `stride` elements after part p - 1. Part
 * `own` is at own_part instead, which may be out. With `tree`, n_parts is a power of two, at most
 * OT_JOIN_TREE_PARTS. */
enum { OT_JOIN_TREE_PARTS = 8 };
struct ot_join {
    enum ot_dtype dtype; /* type of the parts */
    int64_t n;
    int n_parts, own;
    const void *parts;
    int64_t stride; /* in elements; a multiple of 32 */
    const void *own_part;
    float *out;
    bool tree;
};

/* x = cap tanh(x / cap), n contiguous fp32 elements, in place (Gemma 2; Bello et al. 2016). cap: finite and
 * positive. All devices compute the same bits (kernels/formulas.h). */
struct ot_softcap {
    int64_t n;
    float cap;
    float *x;
};

/* Softmax cross-entropy over the rows of fp32 logits[rows, vocab], ld elements between rows. loss[i] = -log
 * softmax(logits[i]) [targets[i]], and 0 if targets[i] < 0. If grad is not NULL, the op writes the gradient
 * of the logits times grad_scale to grad[rows, vocab], ld_grad elements between rows. A row with targets[i] <
 * 0 becomes zeros. With grad_dtype OT_F32 grad may be logits, with the same ld; otherwise it must not overlap
 * them.
 *
 * If softcap is not 0, softcap tanh(logit / softcap) takes the place of each logit, with the bits that
 * ot_softcap writes. The logits themselves stay as they are, and the gradient is theirs: that of the capped
 * logit times 1 - tanh(logit / softcap)^2. softcap is finite and not negative.
 *
 * Two regularisers change the loss of a row, and its gradient. Let x be the row's logits (capped ones with a
 * softcap), z the logarithm of the sum of exp(x), e smoothing, and c z_weight:
 *
 *     loss = z - (1 - e) x[target] - e mean(x) + c z^2
 *
 * Label smoothing (Szegedy et al., arXiv 1512.00567) takes the target with the probability 1 - e, and the
 * rest from all entries equally: transformers' LabelSmoother. The square is the z-loss of PaLM (Chowdhery et
 * al., arXiv 2204.02311), which keeps z near 0. The mean is summed in fp32. With e = c = 0 the bits are those
 * of the plain loss. smoothing: in [0, 1); z_weight: finite and not negative.
 *
 * If marks_hits is set, the op writes -loss[i] for a row without a larger logit than the target's (-0 for 0).
 * A loss is never negative: the sum has the term exp(0) = 1, and no mean exceeds the largest logit. */
struct ot_cross_entropy {
    int64_t rows, vocab, ld, ld_grad;
    const int32_t *targets;
    const float *logits;
    float *loss;
    void *grad;
    enum ot_dtype grad_dtype;
    float softcap;
    float smoothing, z_weight;
    bool marks_hits;
    float grad_scale;
    const float *loss_scale; /* device memory, 1 value that multiplies grad_scale; NULL: 1 */
    const float *weights;    /* [rows]: multiply the rows' gradients; NULL: 1 */
};

/* *out = the sum of x[i] (squares: of x[i]^2), in double, over chunks of OT_REDUCE_CHUNK elements. += if
 * accumulate is set. An array that is cut where a chunk begins, and whose parts are accumulated in order, has
 * the bits of the whole. The result is not finite if any x is not finite. If rounded is not NULL, the op also
 * writes x there, rounded to nearest even to rounded_dtype; rounded must not overlap x. Together that moves 6
 * bytes an element for bf16, as two ops 10. */
enum { OT_REDUCE_CHUNK = 65536 };
struct ot_reduce {
    int64_t n;
    const float *x;
    double *out;
    bool squares, accumulate;
    enum ot_dtype rounded_dtype;
    void *rounded;
};

/* Converts n contiguous elements, rounding to nearest even. src and dst must not overlap. */
struct ot_cast {
    enum ot_dtype from, to;
    int64_t n;
    const void *src;
    void *dst;
};

/* Decodes n frozen weights, from `first` on, of a matrix in a storage type (kernels/weight_format.h):
 * computes them in fp32 and rounds once. first: a multiple of the layout's unit (64 weights for NF4, 32 for
 * MXFP4, a row for int8, one for plain formats). n: a multiple of it too, or all that is left. encoded: the
 * whole matrix, aligned to OT_WEIGHT_ALIGN. out: n elements; it must not overlap the matrix. */
struct ot_decode {
    struct ot_weight weight;
    enum ot_dtype dtype; /* type of out */
    int64_t first, n;
    const void *encoded;
    void *out;
};

/* The numbers of one AdamW step, in memory that the updating engine can read (device memory for the op). */
struct ot_adamw_step {
    float lr, beta1, beta2, eps, weight_decay;
    float bias1, bias2_sqrt; /* 1 - beta1^t and sqrt(1 - beta2^t) */
    float grad_scale;        /* the clipping factor: gradients are multiplied by it */
    int32_t skip;            /* not 0: the update changes nothing */
    /* The random words that round a compact state, and weights without masters (kernels/state_format.h). */
    struct ot_state_noise noise, weight_noise;
};

/* AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization") on n parameters. kernels/adamw.h
 * defines the exact arithmetic, the same for every engine.
 *
 * OT_F32: weight is the fp32 master, grad is fp32. OT_BF16: weight and low together are the master (weight is
 * the master rounded to bf16, low the 16-bit remainder), grad is bf16; with OT_MASTERS_NONE weight is all
 * there is, rounded stochastically. OT_F16: master is a separate fp32 array, grad is fp16, and the op writes
 * weight as the master rounded to nearest even.
 *
 * m, v and scales are stored as kernels/state_format.h says: fp32, bf16 bits, or codes with scales.
 *
 * decay: true if weight_decay applies to these parameters. rate multiplies step->lr for them; 0 means 1. */
struct ot_adamw {
    enum ot_dtype dtype;
    enum ot_state_format state;
    enum ot_masters masters; /* OT_MASTERS_NONE: OT_BF16 only */
    int64_t first;           /* if anything is rounded: the place of the first parameter in its slab */
    int64_t n;
    bool decay;
    float rate;
    const struct ot_adamw_step *step;
    void *weight;
    int16_t *low;  /* OT_BF16 with masters only */
    float *master; /* OT_F16 only */
    void *m, *v;
    struct ot_state_scale *scales; /* OT_STATE_8BIT only: the first one is of the group of `first` */
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
    void (*dropout)(struct ot_lane *, const struct ot_dropout *);
    void (*neftune)(struct ot_lane *, const struct ot_neftune *);
    void (*dora_factors)(struct ot_lane *, const struct ot_dora_factors *);
    void (*dora)(struct ot_lane *, const struct ot_dora *);
    void (*dora_backward)(struct ot_lane *, const struct ot_dora_backward *);
    void (*join)(struct ot_lane *, const struct ot_join *);
    void (*softcap)(struct ot_lane *, const struct ot_softcap *);
    void (*cross_entropy)(struct ot_lane *, const struct ot_cross_entropy *);
    void (*compare)(struct ot_lane *, const struct ot_compare *); /* ops_compare.h */
    void (*reduce)(struct ot_lane *, const struct ot_reduce *);
    void (*cast)(struct ot_lane *, const struct ot_cast *);
    void (*decode)(struct ot_lane *, const struct ot_decode *);
    void (*adamw)(struct ot_lane *, const struct ot_adamw *);
    /* ops_experts.h */
    void (*router)(struct ot_lane *, const struct ot_router *);
    void (*router_backward)(struct ot_lane *, const struct ot_router_backward *);
    void (*load)(struct ot_lane *, const struct ot_load *);
    void (*balance)(struct ot_lane *, const struct ot_balance *);
    void (*group)(struct ot_lane *, const struct ot_group *);
    void (*gather)(struct ot_lane *, const struct ot_gather *);
    void (*combine)(struct ot_lane *, const struct ot_combine *);
    void (*combine_backward)(struct ot_lane *, const struct ot_combine_backward *);
    void (*gemm_groups)(struct ot_lane *, const struct ot_gemm_groups *);
    /* ops_spans.h */
    void (*attend_spans)(struct ot_lane *, const struct ot_attend_spans *);
    void (*attend_spans_backward)(struct ot_lane *, const struct ot_attend_spans_backward *);
};

static inline size_t ot_attention_backward_scratch_bytes(int64_t n, int64_t heads) {
    return (size_t)n * (size_t)heads * sizeof(float); /* one dot(out, dout) per query and head */
}

#endif
