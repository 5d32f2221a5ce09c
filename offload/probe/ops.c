/* The ops that the probe times: matrix products and kernels of a decoder layer with Llama's proportions. */
#include <math.h>
#include <stdio.h>

#include "kernels/adamw.h"
#include "offload/probe/probe_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

static size_t elem(const struct ot_probe *p) {
    return ot_dtype_bytes(p->config->dtype);
}

/* ---- tasks ---- */

/* Two almost empty tasks on two lanes, each waiting for the task before it. */
static void run_hand_over(struct ot_probe *p, const void *op) {
    (void)op;
    ot_lane_fill(p->compute, p->buffers[3], 0, 4);
    ot_lane_record(p->compute, p->events[2]);
    ot_lane_wait(p->h2d, p->events[2]);
    ot_lane_fill(p->h2d, p->buffers[3], 0, 4);
    ot_lane_record(p->h2d, p->events[3]);
    ot_lane_wait(p->compute, p->events[3]);
}

static int probe_tasks(struct ot_probe *p) {
    struct ot_probe_row row = {
        .group = OT_PROBE_TASK, .use = OT_PROBE_START, .name = "from lane to lane", .work = 1};
    struct ot_repeats times;
    OT_TRY(ot_probe_measure(p, &(struct ot_probe_call){run_hand_over, NULL}, 1, &times));
    for (int i = 0; i < times.n; i++)
        times.seconds[i] /= 2;
    return ot_probe_report_times(&p->config->reader, row, &times);
}

/* ---- products ---- */

static void run_gemm(struct ot_probe *p, const void *op) {
    p->ops->gemm(p->compute, op);
}

enum product { PRODUCT_Y, PRODUCT_DX, PRODUCT_DW, PRODUCTS };

/* The three products of a linear layer: y = x W^T, dx = dy W, dW += dy^T x. */
static struct ot_gemm product(const struct ot_probe *p, enum product kind, int64_t out, int64_t in) {
    int64_t n = p->config->tokens;
    struct ot_gemm op = {.dtype = p->config->dtype,
                         .c_dtype = p->config->dtype,
                         .a = p->buffers[0],
                         .b = p->buffers[1],
                         .c = p->buffers[2]};
    if (kind == PRODUCT_Y) {
        op.trans_b = true;
        op.m = n, op.n = out, op.k = in, op.lda = in, op.ldb = in, op.ldc = out;
    } else if (kind == PRODUCT_DX) {
        op.m = n, op.n = in, op.k = out, op.lda = out, op.ldb = in, op.ldc = in;
    } else {
        op.trans_a = true;
        op.addend = op.c;
        op.c_dtype = OT_F32;
        op.m = out, op.n = in, op.k = n, op.lda = out, op.ldb = in, op.ldc = in;
    }
    return op;
}

enum { LAYERS = 4, LAYER_PRODUCTS = LAYERS * PRODUCTS };

struct layer {
    const char *name;
    int64_t out, in;
};

static struct layer layer_of(const struct ot_probe *p, int number) {
    int64_t h = p->config->hidden, inter = ot_probe_inter(h);
    const struct layer layers[LAYERS] = {
        {"qkv", 3 * h, h}, {"o", h, h}, {"gate+up", 2 * inter, h}, {"down", h, inter}};
    return layers[number];
}

static struct ot_gemm layer_product(const struct ot_probe *p, int number) {
    struct layer layer = layer_of(p, number / PRODUCTS);
    return product(p, (enum product)(number % PRODUCTS), layer.out, layer.in);
}

int ot_probe_tune(struct ot_probe *p) {
    struct ot_device_tuning tuning;
    for (int i = 0; i < LAYER_PRODUCTS; i++) {
        struct ot_gemm op = layer_product(p, i);
        run_gemm(p, &op);
    }
    OT_TRY(ot_lane_sync(p->compute));
    return ot_device_tune(p->config->device, p->memory, OT_PROBE_BUFFERS * p->config->buffer_bytes,
                          LAYER_PRODUCTS * p->config->seconds, &tuning);
}

double ot_probe_largest_flops(int64_t hidden, int64_t tokens) {
    return 2.0 * (double)tokens * (double)(2 * ot_probe_inter(hidden)) * (double)hidden;
}

int ot_probe_largest(struct ot_probe *p, double *rate) {
    struct ot_repeats times;
    struct ot_gemm op = product(p, PRODUCT_Y, 2 * ot_probe_inter(p->config->hidden), p->config->hidden);
    OT_TRY(ot_probe_measure(p, &(struct ot_probe_call){run_gemm, &op}, 1, &times));
    *rate = ot_probe_largest_flops(p->config->hidden, p->config->tokens) / ot_repeats_median(&times);
    return 0;
}

static int probe_gemms(struct ot_probe *p) {
    static const char *const kinds[PRODUCTS] = {"y", "dx", "dW"};
    char names[LAYER_PRODUCTS][64];
    struct ot_gemm ops[LAYER_PRODUCTS];
    struct ot_probe_call calls[LAYER_PRODUCTS];
    struct ot_repeats times[LAYER_PRODUCTS];
    double work[LAYER_PRODUCTS], best = 0;
    for (int i = 0; i < LAYER_PRODUCTS; i++) {
        struct layer layer = layer_of(p, i / PRODUCTS);
        const struct ot_gemm *op = &ops[i];
        ops[i] = layer_product(p, i);
        calls[i] = (struct ot_probe_call){run_gemm, op};
        snprintf(names[i], sizeof names[i], "%s %s %lldx%lldx%lld", layer.name, kinds[i % PRODUCTS],
                 (long long)op->m, (long long)op->n, (long long)op->k);
        work[i] = 2.0 * (double)op->m * (double)op->n * (double)op->k;
    }
    OT_TRY(ot_probe_measure(p, calls, LAYER_PRODUCTS, times));
    for (int i = 0; i < LAYER_PRODUCTS; i++)
        best = fmax(best, work[i] / ot_repeats_median(&times[i]));
    for (int i = 0; i < LAYER_PRODUCTS; i++) {
        struct ot_probe_row row = {
            .group = OT_PROBE_GEMM, .use = OT_PROBE_PRODUCT, .name = names[i], .work = work[i], .peak = best};
        OT_TRY(ot_probe_report_times(&p->config->reader, row, &times[i]));
    }
    p->product_rate = best;
    return 0;
}

/* ---- products by groups ---- */

static void run_gemm_groups(struct ot_probe *p, const void *op) {
    p->ops->gemm_groups(p->compute, op);
}

/* The three products of gate and up of experts, which together have the width of the ordinary layer's. Each
 * expert gets an equal share of the tokens. */
static struct ot_gemm_groups group_product(const struct ot_probe *p, enum product kind) {
    int64_t in = p->config->hidden, out = 2 * ot_probe_inter(in) / OT_PROBE_EXPERTS;
    struct ot_gemm_groups op = {.dtype = p->config->dtype,
                                .c_dtype = p->config->dtype,
                                .form = OT_GROUPS_ROWS,
                                .experts = OT_PROBE_EXPERTS,
                                .rows = p->config->tokens,
                                .offsets = p->ids + 3 * p->rows,
                                .a = p->buffers[0],
                                .b = p->buffers[1],
                                .c = p->buffers[2],
                                .stride = in * out};
    if (kind == PRODUCT_Y) {
        op.trans_b = true;
        op.n = out, op.k = in, op.lda = in, op.ldb = in, op.ldc = out;
    } else if (kind == PRODUCT_DX) {
        op.n = in, op.k = out, op.lda = out, op.ldb = in, op.ldc = in;
    } else {
        op.form = OT_GROUPS_SUMS;
        op.c_dtype = OT_F32;
        op.addend = op.c;
        op.m = out, op.n = in, op.lda = out, op.ldb = in, op.ldc = in;
    }
    return op;
}

static int probe_groups(struct ot_probe *p) {
    static const char *const kinds[PRODUCTS] = {"y", "dx", "dW"};
    struct ot_gemm_groups ops[PRODUCTS];
    struct ot_probe_call calls[PRODUCTS];
    struct ot_repeats times[PRODUCTS];
    int64_t in = p->config->hidden, out = 2 * ot_probe_inter(in) / OT_PROBE_EXPERTS;
    for (int i = 0; i < PRODUCTS; i++) {
        ops[i] = group_product(p, (enum product)i);
        calls[i] = (struct ot_probe_call){run_gemm_groups, &ops[i]};
    }
    OT_TRY(ot_probe_measure(p, calls, PRODUCTS, times));
    for (int i = 0; i < PRODUCTS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%d experts %s %lldx%lldx%lld", OT_PROBE_EXPERTS, kinds[i],
                 (long long)p->config->tokens, (long long)out, (long long)in);
        struct ot_probe_row row = {.group = OT_PROBE_GEMM,
                                   .use = OT_PROBE_GROUP_PRODUCT,
                                   .name = name,
                                   .work = 2.0 * (double)p->config->tokens * (double)out * (double)in,
                                   .peak = p->product_rate};
        OT_TRY(ot_probe_report_times(&p->config->reader, row, &times[i]));
    }
    return 0;
}

/* ---- attention ---- */

static void run_attention(struct ot_probe *p, const void *op) {
    p->ops->attention(p->compute, op);
}

static void run_attention_backward(struct ot_probe *p, const void *op) {
    p->ops->attention_backward(p->compute, op);
}

/* The address of element `elems` of a buffer, counted in the storage dtype. */
static char *part(struct ot_probe *p, int buffer, int64_t elems) {
    return p->buffers[buffer] + (size_t)elems * elem(p);
}

/* Attention over one causal row of n tokens. Buffer 0 holds q, k, v; 1 holds out, dout; 2 holds dq, dk, dv; 3
 * holds lse and scratch. */
static struct ot_attention_backward attention_of(struct ot_probe *p, int64_t n, int64_t head_dim) {
    int64_t h = p->config->hidden, heads = h / head_dim;
    struct ot_attention forward = {.dtype = p->config->dtype,
                                   .n = n,
                                   .n_keys = n,
                                   .heads = heads,
                                   .kv_heads = heads,
                                   .head_dim = head_dim,
                                   .ldq = h,
                                   .ldk = h,
                                   .ldv = h,
                                   .ldo = h,
                                   .scale = 0.088388f, /* 1 / sqrt(128) */
                                   .row_start = p->ids + 2 * p->rows,
                                   .q = part(p, 0, 0),
                                   .k = part(p, 0, n * h),
                                   .v = part(p, 0, 2 * n * h),
                                   .out = part(p, 1, 0),
                                   .lse = (float *)(void *)p->buffers[3]};
    return (struct ot_attention_backward){.forward = forward,
                                          .dout = part(p, 1, n * h),
                                          .dq = part(p, 2, 0),
                                          .dk = part(p, 2, n * h),
                                          .dv = part(p, 2, 2 * n * h),
                                          .lddk = h,
                                          .lddv = h,
                                          .scratch = (float *)(void *)p->buffers[3] + n * heads};
}

/* forward_use: the use of the forward row. The use of the backward row follows it. */
static int probe_attention_of(struct ot_probe *p, int64_t n, int64_t head_dim,
                              enum ot_probe_use forward_use) {
    struct ot_attention_backward op = attention_of(p, n, head_dim);
    char name[64];
    struct ot_repeats times[2];
    /* FLOPs under a causal mask: half of two products forward and of five backward. */
    double forward = 2.0 * (double)n * (double)n * (double)p->config->hidden;
    if (n > p->rows || 3 * (size_t)(n * p->config->hidden) * elem(p) > p->config->buffer_bytes)
        return 0;
    const struct ot_probe_call calls[2] = {{run_attention, &op.forward}, {run_attention_backward, &op}};
    OT_TRY(ot_probe_measure(p, calls, 2, times));
    snprintf(name, sizeof name, "forward %lld tokens, head %lld", (long long)n, (long long)head_dim);
    struct ot_probe_row row = {.group = OT_PROBE_ATTENTION,
                               .use = forward_use,
                               .name = name,
                               .work = forward,
                               .peak = p->product_rate};
    OT_TRY(ot_probe_report_times(&p->config->reader, row, &times[0]));
    snprintf(name, sizeof name, "backward %lld tokens, head %lld", (long long)n, (long long)head_dim);
    row.work = 2.5 * forward;
    row.use = forward_use == OT_PROBE_NO_USE ? OT_PROBE_NO_USE : forward_use + 1;
    return ot_probe_report_times(&p->config->reader, row, &times[1]);
}

static int probe_attention(struct ot_probe *p) {
    int64_t n = p->config->tokens;
    OT_TRY(probe_attention_of(p, n, 128, OT_PROBE_ATTENTION_FORWARD));
    if (p->config->quick)
        return 0;
    OT_TRY(probe_attention_of(p, n / 4, 128, OT_PROBE_NO_USE));
    OT_TRY(probe_attention_of(p, 4 * n, 128, OT_PROBE_NO_USE));
    return probe_attention_of(p, n, 64, OT_PROBE_ATTENTION_64_FORWARD);
}

/* ---- kernels that move bytes ---- */

static void run_copy(struct ot_probe *p, const void *op) {
    (void)op;
    ot_lane_copy(p->compute, OT_COPY_D2D, p->buffers[1], p->buffers[0], p->config->buffer_bytes);
}

static void run_fill(struct ot_probe *p, const void *op) {
    (void)op;
    ot_lane_fill(p->compute, p->buffers[2], 0, p->config->buffer_bytes);
}

static void run_norm(struct ot_probe *p, const void *op) {
    p->ops->norm(p->compute, op);
}

static void run_norm_backward(struct ot_probe *p, const void *op) {
    p->ops->norm_backward(p->compute, op);
}

static void run_rope(struct ot_probe *p, const void *op) {
    p->ops->rope(p->compute, op);
}

static void run_glu(struct ot_probe *p, const void *op) {
    p->ops->glu(p->compute, op);
}

static void run_glu_backward(struct ot_probe *p, const void *op) {
    p->ops->glu_backward(p->compute, op);
}

static void run_add(struct ot_probe *p, const void *op) {
    p->ops->add(p->compute, op);
}

static void run_cast(struct ot_probe *p, const void *op) {
    p->ops->cast(p->compute, op);
}

static void run_reduce(struct ot_probe *p, const void *op) {
    p->ops->reduce(p->compute, op);
}

static void run_embed(struct ot_probe *p, const void *op) {
    p->ops->embed(p->compute, op);
}

static void run_embed_backward(struct ot_probe *p, const void *op) {
    p->ops->embed_backward(p->compute, op);
}

static void run_cross_entropy(struct ot_probe *p, const void *op) {
    p->ops->cross_entropy(p->compute, op);
}

static void run_adamw(struct ot_probe *p, const void *op) {
    p->ops->adamw(p->compute, op);
}

static int probe_kernel(struct ot_probe *p, const char *name,
                        void (*enqueue)(struct ot_probe *, const void *), const void *op, double bytes) {
    struct ot_probe_row row = {.group = OT_PROBE_KERNEL, .name = name, .work = bytes};
    struct ot_repeats times;
    OT_TRY(ot_probe_measure(p, &(struct ot_probe_call){enqueue, op}, 1, &times));
    if (enqueue == run_copy) {
        p->copy_rate = bytes / ot_repeats_median(&times);
        row.use = OT_PROBE_DEVICE_COPY;
    }
    row.peak = p->copy_rate;
    return ot_probe_report_times(&p->config->reader, row, &times);
}

static int probe_rows(struct ot_probe *p) {
    int64_t h = p->config->hidden, n = p->rows;
    float *stats = (float *)(void *)p->buffers[3], *grads = stats + n; /* [n], then [2 h] */
    double row = (double)n * (double)h * (double)elem(p);
    struct ot_norm norm = {.dtype = p->config->dtype,
                           .rows = n,
                           .cols = h,
                           .group = 1,
                           .ldx = h,
                           .ldy = h,
                           .eps = 1e-5f,
                           .x = p->buffers[0],
                           .weight = grads,
                           .y = p->buffers[2],
                           .rstd = stats};
    struct ot_norm_backward back = {.dtype = p->config->dtype,
                                    .rows = n,
                                    .cols = h,
                                    .group = 1,
                                    .ldx = h,
                                    .ldy = h,
                                    .x = p->buffers[0],
                                    .dy = p->buffers[2],
                                    .weight = grads,
                                    .dx_add = p->buffers[1],
                                    .rstd = stats,
                                    .dx = p->buffers[1],
                                    .dweight = grads + h};
    struct ot_rope rope = {.dtype = p->config->dtype,
                           .n = n,
                           .heads = h / 128,
                           .head_dim = 128,
                           .rotary_dim = 128,
                           .ld = h,
                           .max_position = p->config->tokens,
                           .position = p->ids + p->rows,
                           .cos_table = stats,
                           .sin_table = stats + p->config->tokens * 64,
                           .x = p->buffers[0]};
    OT_TRY(probe_kernel(p, "RMSNorm", run_norm, &norm, 2 * row));
    OT_TRY(probe_kernel(p, "RMSNorm backward", run_norm_backward, &back, 4 * row));
    return probe_kernel(p, "RoPE", run_rope, &rope, 2 * row);
}

static int probe_tokens(struct ot_probe *p) {
    int64_t h = p->config->hidden, vocab = p->config->tokens,
            n = p->rows / 2; /* ids are positions modulo vocab: each occurs n / vocab times */
    int64_t distinct = ot_min(n, vocab);
    struct ot_embed embed = {.dtype = p->config->dtype,
                             .n = n,
                             .cols = h,
                             .vocab = vocab,
                             .tokens = p->ids + p->rows,
                             .table = p->buffers[0],
                             .out = p->buffers[1]};
    struct ot_embed_backward back = {.dtype = p->config->dtype,
                                     .n = n,
                                     .cols = h,
                                     .vocab = vocab,
                                     .tokens = p->ids + p->rows,
                                     .dout = p->buffers[1],
                                     .dtable = (float *)(void *)p->buffers[2]};
    struct ot_cross_entropy loss = {.rows = p->rows / 8,
                                    .vocab = p->vocab,
                                    .ld = p->vocab,
                                    .ld_grad = p->vocab,
                                    .targets = p->ids,
                                    .logits = (float *)(void *)p->buffers[2],
                                    .loss = (float *)(void *)p->buffers[3],
                                    .grad = p->buffers[0],
                                    .grad_dtype = p->config->dtype,
                                    .grad_scale = 1e-3f};
    double gathered = (double)n * (double)h * (double)elem(p), table = (double)distinct * (double)h;
    OT_TRY(probe_kernel(p, "embedding", run_embed, &embed, gathered + table * (double)elem(p)));
    OT_TRY(probe_kernel(p, "embedding backward", run_embed_backward, &back, gathered + 8 * table));
    /* Logits are read twice: for maximum and sum, and for the gradient, which is written. */
    return probe_kernel(p, "cross-entropy", run_cross_entropy, &loss,
                        (double)loss.rows * (double)loss.vocab * (8 + (double)elem(p)));
}

static int probe_elements(struct ot_probe *p) {
    size_t bytes = p->config->buffer_bytes;
    int64_t inter = ot_probe_inter(p->config->hidden), rows = (int64_t)(bytes / sizeof(float)) / (2 * inter);
    int64_t n = (int64_t)(bytes / sizeof(float));
    double wide = (double)rows * (double)inter * (double)elem(p);
    struct ot_glu glu = {.dtype = p->config->dtype,
                         .act = OT_ACT_SILU,
                         .rows = rows,
                         .cols = inter,
                         .ld_in = 2 * inter,
                         .ld_out = inter,
                         .gate = p->buffers[0],
                         .up = part(p, 0, inter),
                         .out = p->buffers[1]};
    struct ot_glu_backward glu_back = {
        .forward = glu, .dout = p->buffers[1], .dgate = p->buffers[2], .dup = part(p, 2, inter)};
    struct ot_add add = {
        .dtype = OT_F32, .n = n, .a = p->buffers[0], .b = p->buffers[1], .out = p->buffers[2]};
    struct ot_cast cast = {.from = OT_F32, .to = OT_BF16, .n = n, .src = p->buffers[0], .dst = p->buffers[2]};
    struct ot_reduce norm = {.n = n,
                             .x = (float *)(void *)p->buffers[0],
                             .out = (double *)(void *)p->buffers[3],
                             .squares = true,
                             .rounded_dtype = OT_BF16,
                             .rounded = p->buffers[2]};
    OT_TRY(probe_kernel(p, "SwiGLU", run_glu, &glu, 3 * wide));
    OT_TRY(probe_kernel(p, "SwiGLU backward", run_glu_backward, &glu_back, 5 * wide));
    OT_TRY(probe_kernel(p, "add fp32", run_add, &add, 12.0 * (double)n));
    OT_TRY(probe_kernel(p, "cast fp32 to bf16", run_cast, &cast, 6.0 * (double)n));
    return probe_kernel(p, "sum of squares, cast", run_reduce, &norm, 6.0 * (double)n);
}

/* The buffers hold: weights and remainders; gradients; m; v. */
static int probe_optimizer(struct ot_probe *p) {
    int64_t n = (int64_t)(p->config->buffer_bytes / sizeof(float));
    bool split = p->config->dtype == OT_BF16;
    struct ot_adamw_step *step = (void *)(p->buffers[3] + (size_t)(n / 2) * sizeof(float));
    struct ot_adamw op = {.dtype = split ? OT_BF16 : OT_F32,
                          .n = n / 2,
                          .decay = true,
                          .step = step,
                          .weight = p->buffers[0],
                          .low = (int16_t *)(void *)(p->buffers[0] + n),
                          .m = (float *)(void *)p->buffers[2],
                          .v = (float *)(void *)p->buffers[3],
                          .grad = p->buffers[1]};
    /* v is zero, since a mean of squares is never negative. The step's numbers are zeros too: that does not
     * change the work. */
    ot_lane_fill(p->compute, p->buffers[3], 0, p->config->buffer_bytes);
    return probe_kernel(p, split ? "AdamW, split master" : "AdamW, fp32", run_adamw, &op,
                        ot_adamw_bytes(op.dtype, op.state, op.masters) * (double)op.n);
}

int ot_probe_ops(struct ot_probe *p) {
    double bytes = (double)p->config->buffer_bytes;
    OT_TRY(probe_tasks(p));
    OT_TRY(probe_gemms(p));
    if (!p->config->quick)
        OT_TRY(probe_groups(p));
    OT_TRY(probe_attention(p));
    OT_TRY(probe_kernel(p, "copy", run_copy, NULL, 2 * bytes));
    if (p->config->quick)
        return 0;
    OT_TRY(probe_kernel(p, "fill", run_fill, NULL, bytes));
    OT_TRY(probe_rows(p));
    OT_TRY(probe_tokens(p));
    OT_TRY(probe_elements(p));
    return probe_optimizer(p);
}
