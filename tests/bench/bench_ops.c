/* Ops of the cpu device. GEMM by shape, as a share of the BLAS's rate on one thread times the number of
 * threads; attention in GFLOP/s; row-wise and element-wise ops, and those of mixtures of experts, in GB/s of
 * the bytes that they must move.
 *
 *     bench_ops [THREADS]     default: all CPUs
 *
 * Each figure is the best of several repeats; each repeat enqueues the op often enough to last 20 ms. The
 * FLOPs of attention count only the pairs that a causal mask leaves: 4 n^2 / 2 head_dim per head forward, and
 * 4 n past head_dim more for a section of a row with keys before it; 2.5 times as many backward. Those of
 * attention over spans (`spans`) count all pairs of a row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/random.h"

enum { REPEATS = 7 };

struct bench {
    struct ot_device *device;
    struct ot_lane *lane;
    const struct ot_ops *ops;
    enum ot_dtype dtype;
};

static void must(int rc) {
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_ops: %s\n", ot_error_text());
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Device memory with random numbers of magnitude 1. It is never freed. */
static void *numbers(struct bench *b, enum ot_dtype dtype, int64_t n) {
    void *memory;
    must(ot_device_alloc(b->device, (size_t)n * ot_dtype_bytes(dtype), "bench", &memory));
    for (int64_t i = 0; i < n; i++) {
        float value = (float)(ot_random_unit(1, 1, (uint64_t)(i % 65521)) * 2 - 1);
        if (dtype == OT_F32)
            ((float *)memory)[i] = value;
        else
            ((uint16_t *)memory)[i] = ot_bf16_from_f32(value);
    }
    return memory;
}

typedef void (*enqueue_fn)(struct bench *b, const void *op);

/* Returns the seconds that one op takes. */
static double measure(struct bench *b, enqueue_fn enqueue, const void *op) {
    double best = 1e30;
    int count = 1;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double start = now(), seconds;
        for (int i = 0; i < count; i++)
            enqueue(b, op);
        must(ot_lane_sync(b->lane));
        seconds = (now() - start) / count;
        best = seconds < best ? seconds : best;
        if (repeat == 0 && seconds < 0.02)
            count = (int)(0.02 / seconds) + 1;
    }
    return best;
}

/* ---- gemm ---- */

static void enqueue_gemm(struct bench *b, const void *op) {
    b->ops->gemm(b->lane, op);
}

/* The three products of a linear layer: y = x W^T, dx = dy W, dW += dy^T x. */
static double gemm_rate(struct bench *b, int kind, int64_t tokens, int64_t out, int64_t in) {
    int64_t largest = tokens * out > tokens * in ? tokens * out : tokens * in;
    largest = largest > out * in ? largest : out * in;
    void *p = numbers(b, b->dtype, largest), *q = numbers(b, b->dtype, largest),
         *r = numbers(b, OT_F32, largest);
    struct ot_gemm op = {.dtype = b->dtype, .c_dtype = b->dtype, .a = p, .b = q, .c = r};
    if (kind == 0)
        op.trans_b = true, op.m = tokens, op.n = out, op.k = in, op.lda = in, op.ldb = in, op.ldc = out;
    else if (kind == 1)
        op.m = tokens, op.n = in, op.k = out, op.lda = out, op.ldb = in, op.ldc = in;
    else
        op.trans_a = true, op.addend = r, op.c_dtype = OT_F32, op.m = out, op.n = in, op.k = tokens,
        op.lda = out, op.ldb = in, op.ldc = in;
    double rate = 2e-9 * (double)tokens * (double)out * (double)in / measure(b, enqueue_gemm, &op);
    ot_device_free(b->device, p);
    ot_device_free(b->device, q);
    ot_device_free(b->device, r);
    return rate;
}

static void bench_gemm(struct bench *b, double peak) {
    static const int64_t shapes[][3] = {
        {2048, 512, 512}, {2048, 1376, 512}, {2048, 512, 1376}, {512, 512, 512},    {2048, 256, 256},
        {2048, 688, 256}, {1024, 4096, 256}, {256, 256, 256},   {2048, 2048, 2048}, {1, 2048, 2048}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t *s = shapes[i];
        printf("gemm %s %5lld x %4lld x %4lld", ot_dtype_name(b->dtype), (long long)s[0], (long long)s[1],
               (long long)s[2]);
        for (int kind = 0; kind < 3; kind++) {
            double rate = gemm_rate(b, kind, s[0], s[1], s[2]);
            printf("   %s %6.0f GF/s %3.0f %%", (const char *[]){"y", "dx", "dW"}[kind], rate,
                   100 * rate / peak);
        }
        printf("\n");
    }
}

/* ---- attention ---- */

static void enqueue_attention(struct bench *b, const void *op) {
    b->ops->attention(b->lane, op);
}

static void enqueue_attention_backward(struct bench *b, const void *op) {
    b->ops->attention_backward(b->lane, op);
}

/* n tokens, cut into rows of `row` tokens; or a section of one row, with `past` keys before it. */
struct attention_size {
    int64_t n, past, row, heads, kv_heads, dim;
};

static void bench_attention(struct bench *b, struct attention_size s) {
    int64_t width = s.heads * s.dim, kv_width = s.kv_heads * s.dim, n_keys = s.past + s.n;
    int32_t *row_start = numbers(b, OT_F32, s.n);
    for (int64_t i = 0; i < s.n; i++)
        row_start[i] = (int32_t)(i / s.row * s.row);
    struct ot_attention op = {.dtype = b->dtype,
                              .n = s.n,
                              .n_keys = n_keys,
                              .heads = s.heads,
                              .kv_heads = s.kv_heads,
                              .head_dim = s.dim,
                              .ldq = width,
                              .ldk = kv_width,
                              .ldv = kv_width,
                              .ldo = width,
                              .scale = 0.125f,
                              .row_start = row_start};
    op.q = numbers(b, b->dtype, s.n * width);
    op.k = numbers(b, b->dtype, n_keys * kv_width);
    op.v = numbers(b, b->dtype, n_keys * kv_width);
    op.out = numbers(b, b->dtype, s.n * width);
    op.lse = numbers(b, OT_F32, s.n * s.heads);
    struct ot_attention_backward back = {.forward = op, .lddk = kv_width, .lddv = kv_width};
    back.dout = numbers(b, b->dtype, s.n * width);
    back.dq = numbers(b, b->dtype, s.n * width);
    back.dk = numbers(b, b->dtype, s.n * kv_width);
    back.dv = numbers(b, b->dtype, s.n * kv_width);
    back.dk_sums = s.past ? numbers(b, OT_F32, n_keys * kv_width) : NULL;
    back.dv_sums = s.past ? numbers(b, OT_F32, n_keys * kv_width) : NULL;
    back.scratch = numbers(b, OT_F32, s.n * s.heads);
    double forward = measure(b, enqueue_attention, &op),
           backward = measure(b, enqueue_attention_backward, &back);
    double flops = 2e-9 * (double)(s.n * (s.row + 2 * s.past)) * (double)width;
    printf("attention %s rows of %4lld after %4lld, %lld heads (%lld) of %3lld   forward %6.2f ms %5.0f GF/s "
           "  backward %6.2f ms %5.0f GF/s\n",
           ot_dtype_name(b->dtype), (long long)s.row, (long long)s.past, (long long)s.heads,
           (long long)s.kv_heads, (long long)s.dim, forward * 1e3, flops / forward, backward * 1e3,
           2.5 * flops / backward);
}

/* ---- attention over spans ---- */

static void enqueue_spans(struct bench *b, const void *op) {
    b->ops->attend_spans(b->lane, op);
}

static void enqueue_spans_backward(struct bench *b, const void *op) {
    b->ops->attend_spans_backward(b->lane, op);
}

/* T5's encoder: 2048 tokens, cut into rows of `row` tokens that see their whole row, with a bias. */
static void bench_spans(struct bench *b, int64_t row, int64_t heads, int64_t dim) {
    enum { N = 2048, BUCKETS = 32, REACH = 128 };
    int64_t width = heads * dim;
    int32_t *first = numbers(b, OT_F32, N), *end = numbers(b, OT_F32, N),
            *bucket_of = numbers(b, OT_F32, 2 * REACH + 1);
    for (int64_t i = 0; i < N; i++) {
        first[i] = (int32_t)(i / row * row);
        end[i] = (int32_t)(first[i] + row);
    }
    for (int i = 0; i < 2 * REACH + 1; i++)
        bucket_of[i] = i % BUCKETS;
    struct ot_attend_spans op = {.dtype = b->dtype,
                                 .n = N,
                                 .n_keys = N,
                                 .heads = heads,
                                 .head_dim = dim,
                                 .ldq = width,
                                 .ldk = width,
                                 .ldv = width,
                                 .ldo = width,
                                 .scale = 1,
                                 .key_first = first,
                                 .key_end = end,
                                 .bias = numbers(b, b->dtype, BUCKETS * heads),
                                 .buckets = BUCKETS,
                                 .reach = REACH,
                                 .bucket_of = bucket_of};
    op.q = numbers(b, b->dtype, N * width);
    op.k = numbers(b, b->dtype, N * width);
    op.v = numbers(b, b->dtype, N * width);
    op.out = numbers(b, b->dtype, N * width);
    op.softmax = numbers(b, OT_F32, 2 * N * heads);
    struct ot_attend_spans_backward back = {.forward = op, .dout = numbers(b, b->dtype, N * width)};
    back.dq = numbers(b, b->dtype, N * width);
    back.dk = numbers(b, b->dtype, N * width);
    back.dv = numbers(b, b->dtype, N * width);
    back.dbias = numbers(b, OT_F32, BUCKETS * heads);
    back.scratch = numbers(b, OT_F32, (int64_t)(ot_attend_spans_scratch_bytes(N, heads, BUCKETS) / 4));
    double forward = measure(b, enqueue_spans, &op), backward = measure(b, enqueue_spans_backward, &back);
    double flops = 4e-9 * N * (double)row * (double)width;
    printf("spans %s rows of %4lld, %lld heads of %3lld   forward %6.2f ms %5.0f GF/s   backward %6.2f ms "
           "%5.0f GF/s\n",
           ot_dtype_name(b->dtype), (long long)row, (long long)heads, (long long)dim, forward * 1e3,
           flops / forward, backward * 1e3, 2.5 * flops / backward);
}

/* ---- rows and elements ---- */

static void enqueue_norm(struct bench *b, const void *op) {
    b->ops->norm(b->lane, op);
}

static void enqueue_norm_backward(struct bench *b, const void *op) {
    b->ops->norm_backward(b->lane, op);
}

static void enqueue_glu(struct bench *b, const void *op) {
    b->ops->glu(b->lane, op);
}

static void enqueue_glu_backward(struct bench *b, const void *op) {
    b->ops->glu_backward(b->lane, op);
}

static void enqueue_cross_entropy(struct bench *b, const void *op) {
    b->ops->cross_entropy(b->lane, op);
}

static void enqueue_rope(struct bench *b, const void *op) {
    b->ops->rope(b->lane, op);
}

static void report(struct bench *b, const char *name, double seconds, double bytes) {
    printf("%-16s %s %7.3f ms %6.1f GB/s\n", name, ot_dtype_name(b->dtype), seconds * 1e3,
           bytes * 1e-9 / seconds);
}

static void bench_norm(struct bench *b) {
    enum { ROWS = 2048, COLS = 512, N = ROWS * COLS };
    void *x = numbers(b, b->dtype, N), *add = numbers(b, b->dtype, N), *y = numbers(b, b->dtype, N);
    void *weight = numbers(b, b->dtype, COLS);
    float *rstd = numbers(b, OT_F32, ROWS), *dweight = numbers(b, OT_F32, COLS);
    struct ot_norm op = {.dtype = b->dtype,
                         .kind = OT_NORM_RMS,
                         .rows = ROWS,
                         .cols = COLS,
                         .group = 1,
                         .ldx = COLS,
                         .ldy = COLS,
                         .eps = 1e-5f,
                         .x = x,
                         .weight = weight,
                         .y = y,
                         .rstd = rstd};
    struct ot_norm_backward back = {.dtype = b->dtype,
                                    .kind = OT_NORM_RMS,
                                    .rows = ROWS,
                                    .cols = COLS,
                                    .group = 1,
                                    .ldx = COLS,
                                    .ldy = COLS,
                                    .x = x,
                                    .dy = y,
                                    .weight = weight,
                                    .dx_add = add,
                                    .rstd = rstd,
                                    .dx = numbers(b, b->dtype, N),
                                    .dweight = dweight};
    double pass = N * (double)ot_dtype_bytes(b->dtype);
    report(b, "rms norm", measure(b, enqueue_norm, &op), 2 * pass);
    report(b, "its backward", measure(b, enqueue_norm_backward, &back), 4 * pass);
}

static void bench_glu(struct bench *b) {
    enum { ROWS = 2048, COLS = 1376, N = ROWS * COLS };
    struct ot_glu op = {.dtype = b->dtype,
                        .act = OT_ACT_SILU,
                        .rows = ROWS,
                        .cols = COLS,
                        .ld_in = COLS,
                        .ld_out = COLS,
                        .gate = numbers(b, b->dtype, N),
                        .up = numbers(b, b->dtype, N),
                        .out = numbers(b, b->dtype, N)};
    struct ot_glu_backward back = {op, numbers(b, b->dtype, N), numbers(b, b->dtype, N),
                                   numbers(b, b->dtype, N)};
    double unit = N * (double)ot_dtype_bytes(b->dtype);
    report(b, "silu glu", measure(b, enqueue_glu, &op), 3 * unit);
    report(b, "its backward", measure(b, enqueue_glu_backward, &back), 5 * unit);
    op.act = OT_ACT_GELU_ERF;
    report(b, "gelu glu", measure(b, enqueue_glu, &op), 3 * unit);
}

static void bench_cross_entropy(struct bench *b) {
    enum { ROWS = 256, VOCAB = 32000 };
    int32_t *targets = numbers(b, OT_F32, ROWS);
    memset(targets, 0, ROWS * sizeof *targets);
    struct ot_cross_entropy op = {.rows = ROWS,
                                  .vocab = VOCAB,
                                  .ld = VOCAB,
                                  .ld_grad = VOCAB,
                                  .targets = targets,
                                  .logits = numbers(b, OT_F32, ROWS * VOCAB),
                                  .loss = numbers(b, OT_F32, ROWS),
                                  .grad = numbers(b, b->dtype, ROWS * VOCAB),
                                  .grad_dtype = b->dtype,
                                  .grad_scale = 1};
    report(b, "cross-entropy", measure(b, enqueue_cross_entropy, &op),
           (double)ROWS * VOCAB * (4.0 + (double)ot_dtype_bytes(b->dtype)));
}

static void bench_rope(struct bench *b) {
    enum { N = 2048, HEADS = 8, DIM = 64 };
    int32_t *position = numbers(b, OT_F32, N);
    for (int i = 0; i < N; i++)
        position[i] = i;
    struct ot_rope op = {b->dtype,
                         N,
                         HEADS,
                         DIM,
                         DIM,
                         HEADS * DIM,
                         N,
                         false,
                         false,
                         position,
                         numbers(b, OT_F32, N * DIM / 2),
                         numbers(b, OT_F32, N * DIM / 2),
                         numbers(b, b->dtype, N * HEADS * DIM)};
    report(b, "rope", measure(b, enqueue_rope, &op),
           2.0 * N * HEADS * DIM * (double)ot_dtype_bytes(b->dtype));
}

/* ---- experts ---- */

static void enqueue_router(struct bench *b, const void *op) {
    b->ops->router(b->lane, op);
}

static void enqueue_group(struct bench *b, const void *op) {
    b->ops->group(b->lane, op);
}

static void enqueue_combine(struct bench *b, const void *op) {
    b->ops->combine(b->lane, op);
}

static void enqueue_gemm_groups(struct bench *b, const void *op) {
    b->ops->gemm_groups(b->lane, op);
}

/* 2048 tokens, 2 of 16 experts each; the product of the gates and ups of all experts. */
static void bench_experts(struct bench *b, double peak) {
    enum { N = 2048, EXPERTS = 16, TOP = 2, HIDDEN = 512, WIDE = 2 * 1376, ROWS = N * TOP };
    struct ot_router router = {.dtype = b->dtype,
                               .n = N,
                               .experts = EXPERTS,
                               .top = TOP,
                               .ld = EXPERTS,
                               .logits = numbers(b, b->dtype, N * EXPERTS),
                               .ids = numbers(b, OT_F32, ROWS),
                               .weights = numbers(b, OT_F32, ROWS)};
    report(b, "router", measure(b, enqueue_router, &router),
           N * EXPERTS * (double)ot_dtype_bytes(b->dtype) + 8.0 * ROWS);
    struct ot_group group = {.n = N,
                             .top = TOP,
                             .experts = EXPERTS,
                             .multiple = 1,
                             .ids = router.ids,
                             .offsets = numbers(b, OT_F32, EXPERTS + 1),
                             .counts = numbers(b, OT_F32, EXPERTS),
                             .rows = numbers(b, OT_F32, ROWS),
                             .assignments = numbers(b, OT_F32, ROWS),
                             .scratch = numbers(b, OT_F32, 16 * EXPERTS)};
    report(b, "group", measure(b, enqueue_group, &group), 12.0 * ROWS);
    struct ot_combine combine = {.dtype = b->dtype,
                                 .n = N,
                                 .cols = HIDDEN,
                                 .top = TOP,
                                 .ld_packed = HIDDEN,
                                 .ld_y = HIDDEN,
                                 .rows = group.rows,
                                 .weights = router.weights,
                                 .packed = numbers(b, b->dtype, ROWS * HIDDEN),
                                 .y = numbers(b, b->dtype, N * HIDDEN)};
    report(b, "combine", measure(b, enqueue_combine, &combine),
           (double)(ROWS + N) * HIDDEN * (double)ot_dtype_bytes(b->dtype));
    struct ot_gemm_groups op = {.dtype = b->dtype,
                                .c_dtype = b->dtype,
                                .trans_b = true,
                                .experts = EXPERTS,
                                .rows = ROWS,
                                .n = WIDE,
                                .k = HIDDEN,
                                .offsets = group.offsets,
                                .a = combine.packed,
                                .b = numbers(b, b->dtype, (int64_t)EXPERTS * WIDE * HIDDEN),
                                .c = numbers(b, b->dtype, (int64_t)ROWS * WIDE),
                                .lda = HIDDEN,
                                .ldb = HIDDEN,
                                .ldc = WIDE,
                                .stride = WIDE * HIDDEN};
    double rate = 2e-9 * ROWS * WIDE * HIDDEN / measure(b, enqueue_gemm_groups, &op);
    printf("gemm_groups %s %d experts, %d rows x %d x %d   y %6.0f GF/s %3.0f %%\n", ot_dtype_name(b->dtype),
           EXPERTS, ROWS, WIDE, HIDDEN, rate, 100 * rate / peak);
}

/* ---- all ---- */

static void open_bench(struct bench *b, int threads, enum ot_dtype dtype) {
    struct ot_device_config config = {.kind = "cpu", .threads = threads};
    must(ot_device_open(&config, &b->device));
    must(ot_lane_open(b->device, "compute", &b->lane));
    b->ops = ot_device_ops(b->device);
    b->dtype = dtype;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (threads < 1) {
        fprintf(stderr, "usage: bench_ops [THREADS]\n");
        return 2;
    }
    for (int dtype = OT_F32; dtype <= OT_BF16; dtype++) {
        struct bench one, b;
        open_bench(&one, 1, (enum ot_dtype)dtype);
        double peak = threads * gemm_rate(&one, 0, 1024, 1024, 1024);
        open_bench(&b, threads, (enum ot_dtype)dtype);
        printf("%s, %s: %.0f GF/s on one thread, taken as the peak of each\n", ot_device_name(b.device),
               ot_dtype_name(b.dtype), peak / threads);
        bench_gemm(&b, peak);
        bench_attention(&b, (struct attention_size){2048, 0, 256, 8, 8, 32});
        bench_attention(&b, (struct attention_size){2048, 0, 512, 8, 8, 64});
        bench_attention(&b, (struct attention_size){2048, 0, 512, 8, 2, 64});
        bench_attention(&b, (struct attention_size){2048, 0, 2048, 8, 8, 64});
        /* the last of eight sections of a row: nearly as many pairs as the row above has */
        bench_attention(&b, (struct attention_size){512, 7 * 512, 512, 8, 8, 64});
        bench_spans(&b, 512, 8, 64);
        bench_norm(&b);
        bench_glu(&b);
        bench_cross_entropy(&b);
        bench_rope(&b);
        bench_experts(&b, peak);
    }
    return 0;
}
