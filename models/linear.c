#include "models/linear.h"

#include "src/base/random.h"

static bool has_lora(const struct ot_linear *linear) {
    return linear->lora && linear->lora->n > 0;
}

/* ---- dropout ---- */

static bool drops(const struct ot_block_run *run, const struct ot_linear *linear) {
    return linear->lora->drop > 0 && run->pass == OT_PASS_TRAIN;
}

/* out = (addend +) dropout(x). All are [rows, in]; addend may be NULL. */
static void dropout(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                    const void *addend, void *out) {
    uint64_t stream = ot_random_stream(OT_RANDOM_DROPOUT, run->random.stream, (uint64_t)linear->lora->number);
    const struct ot_dropout op = {
        .dtype = run->dtype,
        .n = linear->rows * linear->in,
        .first = linear->first_row * linear->in,
        .drop = linear->lora->drop,
        .noise = ot_state_noise(run->random.seed, stream),
        .x = x,
        .addend = addend,
        .out = out,
    };
    ot_run_ops(run)->dropout(run->lane, &op);
}

/* What A multiplies: x, or dropout(x) in linear->dropped. */
static const void *input_of_a(const struct ot_block_run *run, const struct ot_linear *linear, const void *x) {
    if (!drops(run, linear))
        return x;
    dropout(run, linear, x, NULL, linear->dropped);
    return linear->dropped;
}

/* ---- forward ---- */

void ot_linear_forward_ax(const struct ot_block_run *run, const struct ot_linear *linear, const void *x) {
    const struct ot_lora_unit *lora = linear->lora;
    if (!has_lora(linear))
        return;
    const void *input = input_of_a(run, linear, x);
    int64_t first = 0;
    for (int i = 0, end; i < lora->n; i = end) {
        float scale = lora->maps[i].scale;
        int64_t rank = 0;
        for (end = i; end < lora->n && lora->maps[end].scale == scale; end++)
            rank += lora->maps[end].rank;
        const struct ot_gemm gemm = {
            .dtype = run->dtype,
            .c_dtype = run->dtype,
            .trans_b = true,
            .m = linear->rows,
            .n = rank,
            .k = linear->in,
            .a = input,
            .lda = linear->in,
            .b = ot_run_weight(run, ot_place_behind(lora->a, first * linear->in)),
            .ldb = linear->in,
            .c = ot_run_at(run, linear->ax, first),
            .ldc = lora->rank,
            .scale = scale,
        };
        ot_run_ops(run)->gemm(run->lane, &gemm);
        first += rank;
    }
}

/* y += B ax. */
static void add_lora(const struct ot_block_run *run, const struct ot_linear *linear, enum ot_dtype y_dtype,
                     void *y) {
    const struct ot_lora_unit *lora = linear->lora;
    int64_t first = 0;
    for (int i = 0; has_lora(linear) && i < lora->n; i++) {
        const struct ot_lora_map *map = &lora->maps[i];
        void *out = (char *)y + (size_t)map->first * ot_dtype_bytes(y_dtype);
        const struct ot_gemm gemm = {
            .dtype = run->dtype,
            .c_dtype = y_dtype,
            .trans_b = true,
            .m = linear->rows,
            .n = map->out,
            .k = map->rank,
            .a = ot_run_at(run, linear->ax, first),
            .lda = lora->rank,
            .b = ot_run_weight(run, map->b),
            .ldb = map->rank,
            .addend = out,
            .c = out,
            .ldc = linear->out,
        };
        ot_run_ops(run)->gemm(run->lane, &gemm);
        first += map->rank;
    }
}

void ot_linear_forward(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                       enum ot_dtype y_dtype, void *y) {
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = y_dtype,
        .trans_b = true,
        .m = linear->rows,
        .n = linear->out,
        .k = linear->in,
        .a = x,
        .lda = linear->in,
        .b = linear->weight,
        .ldb = linear->in,
        .bias = linear->bias,
        .addend = linear->residual,
        .c = y,
        .ldc = linear->out,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
    ot_linear_forward_ax(run, linear, x);
    add_lora(run, linear, y_dtype, y);
}

/* ---- backward ---- */

/* to = a^T b in fp32, or to += if the layer adds. a is [rows, m], b is [rows, n]. */
static void params_gemm(const struct ot_block_run *run, const struct ot_linear *linear, int64_t m,
                        const void *a, int64_t lda, int64_t n, const void *b, int64_t ldb, float *to) {
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = OT_F32,
        .trans_a = true,
        .addend = linear->adds ? to : NULL,
        .m = m,
        .n = n,
        .k = linear->rows,
        .a = a,
        .lda = lda,
        .b = b,
        .ldb = ldb,
        .c = to,
        .ldc = n,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}

/* dax = scale B^T dy; the gradients of A and B. */
static void lora_params(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                        const void *dy, int64_t ld_dy) {
    const struct ot_lora_unit *lora = linear->lora;
    int64_t first = 0;
    for (int i = 0; i < lora->n; i++) {
        const struct ot_lora_map *map = &lora->maps[i];
        const void *dout = ot_run_at(run, dy, map->first);
        const struct ot_gemm dax = {
            .dtype = run->dtype,
            .c_dtype = run->dtype,
            .m = linear->rows,
            .n = map->rank,
            .k = map->out,
            .a = dout,
            .lda = ld_dy,
            .b = ot_run_weight(run, map->b),
            .ldb = map->rank,
            .c = ot_run_at(run, linear->dax, first),
            .ldc = lora->rank,
            .scale = map->scale,
        };
        ot_run_ops(run)->gemm(run->lane, &dax);
        params_gemm(run, linear, map->out, dout, ld_dy, map->rank, ot_run_at(run, linear->ax, first),
                    lora->rank, ot_run_grad(run, map->b));
        first += map->rank;
    }
    params_gemm(run, linear, lora->rank, linear->dax, lora->rank, linear->in, input_of_a(run, linear, x),
                linear->in, ot_run_grad(run, lora->a));
}

void ot_linear_backward_params(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                               const void *dy, int64_t ld_dy) {
    if (linear->dweight)
        params_gemm(run, linear, linear->out, dy, ld_dy, linear->in, x, linear->in, linear->dweight);
    if (has_lora(linear))
        lora_params(run, linear, x, dy, ld_dy);
    if (!linear->dbias)
        return;
    const struct ot_bias_backward bias = {
        .dtype = run->dtype,
        .rows = linear->rows,
        .cols = linear->out,
        .ld = ld_dy,
        .dy = dy,
        .dbias = linear->dbias,
    };
    ot_run_ops(run)->bias_backward(run->lane, &bias);
}

/* dx = dy W, or dx += dy W. dy is [rows, k], W is [k, in]. */
static void input_gemm(const struct ot_block_run *run, const struct ot_linear *linear, int64_t k,
                       const void *dy, int64_t ld_dy, const void *weight, bool adds, void *dx) {
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = run->dtype,
        .m = linear->rows,
        .n = linear->in,
        .k = k,
        .a = dy,
        .lda = ld_dy,
        .b = weight,
        .ldb = linear->in,
        .addend = adds ? dx : NULL,
        .c = dx,
        .ldc = linear->in,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}

void ot_linear_backward_input(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                              int64_t ld_dy, void *dx) {
    input_gemm(run, linear, linear->out, dy, ld_dy, linear->weight, false, dx);
    if (!has_lora(linear))
        return;
    bool through_dropout = drops(run, linear);
    input_gemm(run, linear, linear->lora->rank, linear->dax, linear->lora->rank,
               ot_run_weight(run, linear->lora->a), !through_dropout, through_dropout ? linear->dropped : dx);
    if (through_dropout)
        dropout(run, linear, linear->dropped, dx, dx);
}
