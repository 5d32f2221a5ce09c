/* Norms, RoPE, embedding, bias, reduce: PyTorch's values, layouts, the same bits on any number
 * of threads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_ops.h"
#include "src/base/dtype.h"
#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"
#include "tests/support/golden.h"

/* ---- norm ---- */

struct norm_case {
    enum ot_norm_kind kind;
    int64_t rows, cols, group, pad; /* pad: elements between groups of rows */
    bool residual;                  /* backward adds the gradient of a residual */
    bool adds_one;
    const float *x, *weight, *bias, *dy;
};

/* Dense rows, with `pad` NaNs after every `group` rows. */
static float *padded(const float *from, const struct norm_case *c, int64_t *n) {
    int64_t ld = c->group * c->cols + c->pad;
    *n = c->rows / c->group * ld;
    float *to = malloc((size_t)*n * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < *n; i++)
        to[i] = i % ld < ld - c->pad ? from[i / ld * (ld - c->pad) + i % ld] : NAN;
    return to;
}

static void *upload_rows(struct ops_fixture *f, const float *from, const struct norm_case *c) {
    int64_t n;
    float *wide = padded(from, c, &n);
    void *memory = ops_upload(f, f->dtype, wide, n);
    free(wide);
    return memory;
}

/* Forward, then backward. dx, dx_add and dy share memory where the layout allows
 * it. */
static void run_norm(struct ops_fixture *f, const void *argument) {
    const struct norm_case *c = argument;
    int64_t ld = c->group * c->cols + c->pad, n = c->rows / c->group * ld;
    bool layer = c->kind == OT_NORM_LAYER;
    struct ot_norm op = {.dtype = f->dtype,
                         .kind = c->kind,
                         .adds_one = c->adds_one,
                         .rows = c->rows,
                         .cols = c->cols,
                         .group = c->group,
                         .ldx = ld,
                         .ldy = ld,
                         .eps = 1e-5f};
    op.x = upload_rows(f, c->x, c);
    op.weight = ops_upload(f, f->dtype, c->weight, c->cols);
    op.bias = layer ? ops_upload(f, f->dtype, c->bias, c->cols) : NULL;
    op.y = ops_blank_values(f, f->dtype, n);
    op.rstd = ops_blank_values(f, OT_F32, c->rows);
    op.mean = layer ? ops_blank_values(f, OT_F32, c->rows) : NULL;
    f->ops->norm(f->lane, &op);
    ops_collect(f, "y", f->dtype, op.y, n);
    ops_collect(f, "rstd", OT_F32, op.rstd, c->rows);
    if (layer)
        ops_collect(f, "mean", OT_F32, op.mean, c->rows);
    float *ones = malloc((size_t)c->cols * sizeof *ones);
    assert_non_null(ones);
    for (int64_t i = 0; i < c->cols; i++)
        ones[i] = 1; /* += must keep the earlier values */
    struct ot_norm_backward back = {.dtype = f->dtype,
                                    .kind = c->kind,
                                    .adds_one = c->adds_one,
                                    .rows = c->rows,
                                    .cols = c->cols,
                                    .group = c->group,
                                    .ldx = ld,
                                    .ldy = ld};
    back.x = op.x;
    back.weight = op.weight;
    back.mean = op.mean;
    back.rstd = op.rstd;
    back.dy = upload_rows(f, c->dy, c);
    back.dx_add = c->residual ? back.dy : NULL;
    back.dx = (void *)(uintptr_t)back.dy;
    back.dweight = ops_upload(f, OT_F32, ones, c->cols);
    back.dbias = layer ? ops_upload(f, OT_F32, ones, c->cols) : NULL;
    free(ones);
    f->ops->norm_backward(f->lane, &back);
    ops_collect(f, "dx", f->dtype, back.dx, n);
    ops_collect(f, "dweight", OT_F32, back.dweight, c->cols);
    if (layer)
        ops_collect(f, "dbias", OT_F32, back.dbias, c->cols);
}

static void check_plus_one(const struct ops_fixture *f, const char *name, const float *want, double bound) {
    int64_t n;
    const float *got = ops_result(f, name, &n);
    for (int64_t i = 0; i < n; i++) {
        float less = got[i] - 1;
        check_close(name, &less, &want[i], 1, bound, bound);
    }
}

static void check_norm_golden(struct ot_golden *golden, enum ot_norm_kind kind, bool adds_one,
                              const char *name) {
    char array[64];
#define ARRAY(field) (snprintf(array, sizeof array, "norm.%s.%s", name, field), array)
    struct norm_case c = {.kind = kind, .group = 1, .adds_one = adds_one};
    c.x = golden_f32(golden, ARRAY("x"), NULL);
    c.rows = golden_dim(golden, array, 0);
    c.cols = golden_dim(golden, array, 1);
    c.weight = golden_f32(golden, ARRAY("weight"), NULL);
    c.bias = golden_f32(golden, ARRAY("bias"), NULL);
    c.dy = golden_f32(golden, ARRAY("dy"), NULL);
    struct ops_fixture f;
    ops_check_threads(&f, run_norm, &c, OT_F32);
    /* Sums of 21 terms of magnitude 1 and a few more operations: some ulp. */
    check_close("y", ops_result(&f, "y", NULL), golden_f32(golden, ARRAY("y"), NULL), c.rows * c.cols, 1e-6,
                1e-6);
    check_close("rstd", ops_result(&f, "rstd", NULL), golden_f32(golden, ARRAY("rstd"), NULL), c.rows, 0,
                5e-7);
    check_close("dx", ops_result(&f, "dx", NULL), golden_f32(golden, ARRAY("dx"), NULL), c.rows * c.cols,
                2e-6, 2e-6);
    check_plus_one(&f, "dweight", golden_f32(golden, ARRAY("dweight"), NULL), 2e-6);
    if (kind == OT_NORM_LAYER) {
        check_close("mean", ops_result(&f, "mean", NULL), golden_f32(golden, ARRAY("mean"), NULL), c.rows,
                    2e-7, 2e-7);
        check_plus_one(&f, "dbias", golden_f32(golden, ARRAY("dbias"), NULL), 2e-6);
    }
    ops_close(&f);
#undef ARRAY
}

static void test_norm_golden(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    check_norm_golden(golden, OT_NORM_RMS, false, "rms");
    check_norm_golden(golden, OT_NORM_LAYER, false, "layer");
    check_norm_golden(golden, OT_NORM_RMS, true, "rms_one");
    check_norm_golden(golden, OT_NORM_LAYER, true, "layer_one");
    golden_close(golden);
}

/* Computes one row in double. If there is a residual, dx includes dx_add, which equals dy. */
static void reference_norm_row(const struct norm_case *c, const float *x, const float *dy, double *y,
                               double *dx, double *dweight) {
    double mean = 0, variance = 0, mean_g = 0, mean_gz = 0;
    for (int64_t i = 0; c->kind == OT_NORM_LAYER && i < c->cols; i++)
        mean += x[i] / (double)c->cols;
    for (int64_t i = 0; i < c->cols; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)c->cols;
    double rstd = 1 / sqrt(variance + 1e-5f);
    for (int64_t i = 0; i < c->cols; i++) {
        double weight = (double)c->weight[i] + c->adds_one, z = (x[i] - mean) * rstd, g = dy[i] * weight;
        y[i] = z * weight + (c->kind == OT_NORM_LAYER ? c->bias[i] : 0);
        mean_g += c->kind == OT_NORM_LAYER ? g / (double)c->cols : 0;
        mean_gz += g * z / (double)c->cols;
        dweight[i] += dy[i] * z;
    }
    for (int64_t i = 0; i < c->cols; i++) {
        double z = (x[i] - mean) * rstd, g = dy[i] * ((double)c->weight[i] + c->adds_one);
        dx[i] = rstd * (g - mean_g - z * mean_gz) + (c->residual ? dy[i] : 0);
    }
}

/* Wide cases against double: residual, groups of heads, many rows. */
static void check_norm_case(struct norm_case *c) {
    int64_t n = c->rows * c->cols, ld = c->group * c->cols;
    float *inputs[4];
    for (int i = 0; i < 4; i++)
        inputs[i] = ops_random(10 + (uint64_t)i, n, 1);
    c->x = inputs[0];
    c->weight = inputs[1];
    c->bias = inputs[2];
    c->dy = inputs[3];
    struct ops_fixture f;
    ops_check_threads(&f, run_norm, c, OT_F32);
    double *y = calloc((size_t)c->cols, sizeof *y), *dx = calloc((size_t)c->cols, sizeof *dx),
           *dweight = calloc((size_t)c->cols, sizeof *dweight);
    float *want = malloc((size_t)c->cols * sizeof *want);
    assert_true(y && dx && dweight && want);
    for (int64_t r = 0; r < c->rows; r++) {
        int64_t first = r / c->group * (ld + c->pad) + r % c->group * c->cols;
        reference_norm_row(c, c->x + r * c->cols, c->dy + r * c->cols, y, dx, dweight);
        for (int64_t i = 0; i < c->cols; i++)
            want[i] = (float)y[i];
        check_close("y", ops_result(&f, "y", NULL) + first, want, c->cols, 2e-6, 2e-6);
        for (int64_t i = 0; i < c->cols; i++)
            want[i] = (float)dx[i];
        check_close("dx", ops_result(&f, "dx", NULL) + first, want, c->cols, 4e-6, 4e-6);
    }
    for (int64_t i = 0; i < c->cols; i++)
        want[i] = (float)dweight[i];
    /* as many terms of magnitude 1 as rows, summed in fp32 in chunks */
    check_plus_one(&f, "dweight", want, 1e-6 * sqrt((double)c->rows));
    ops_close(&f);
    ops_check_threads(&f, run_norm, c, OT_BF16);
    ops_close(&f);
    if (c->pad == 0) /* norms over the padding would be NaN; bf16 rounds y and dx by at most 2^-9 each */
        ops_check_half(run_norm, c, 6e-3);
    for (int i = 0; i < 4; i++)
        free(inputs[i]);
    free(y);
    free(dx);
    free(dweight);
    free(want);
}

static void test_norm_layouts(void **state) {
    (void)state;
    check_norm_case(
        &(struct norm_case){.kind = OT_NORM_RMS, .rows = 700, .cols = 96, .group = 1, .residual = true});
    check_norm_case(
        &(struct norm_case){.kind = OT_NORM_LAYER, .rows = 515, .cols = 130, .group = 1, .residual = true});
    check_norm_case(
        &(struct norm_case){.kind = OT_NORM_RMS, .rows = 4 * 150, .cols = 24, .group = 4, .pad = 48});
    check_norm_case(&(struct norm_case){
        .kind = OT_NORM_RMS, .rows = 3 * 50, .cols = 37, .group = 3, .pad = 5, .adds_one = true});
    check_norm_case(&(struct norm_case){.kind = OT_NORM_RMS, .rows = 1, .cols = 1, .group = 1});
    check_norm_case(&(struct norm_case){.kind = OT_NORM_LAYER, .rows = 9, .cols = 2000, .group = 1});
}

/* A constant row far from 0 has variance 0. Then rstd is 1 / sqrt(eps), not the NaN of a cancelled
 * difference. */
static void test_norm_constant(void **state) {
    (void)state;
    enum { COLS = 100 };
    float x[COLS], ones[COLS];
    for (int i = 0; i < COLS; i++) {
        x[i] = 4096;
        ones[i] = 1;
    }
    struct norm_case c = {.kind = OT_NORM_LAYER,
                          .rows = 1,
                          .cols = COLS,
                          .group = 1,
                          .x = x,
                          .weight = ones,
                          .bias = ones,
                          .dy = ones};
    struct ops_fixture f;
    ops_open(&f, 1, OT_F32);
    run_norm(&f, &c);
    check_close("y", ops_result(&f, "y", NULL), ones, COLS, 0, 0);
    assert_true(fabsf(ops_result(&f, "rstd", NULL)[0] - 316.2278f) < 1e-3f);
    ops_close(&f);
}

/* ---- rope ---- */

struct rope_case {
    int64_t n, heads, head_dim, rotary_dim, pad, positions;
    const int32_t *position;
    bool interleaved;
    const float *x, *dy, *cosines, *sines;
};

static void run_rope(struct ops_fixture *f, const void *argument) {
    const struct rope_case *c = argument;
    int64_t width = c->heads * c->head_dim, n = c->n * width;
    struct ot_rope op = {.dtype = f->dtype,
                         .n = c->n,
                         .heads = c->heads,
                         .head_dim = c->head_dim,
                         .rotary_dim = c->rotary_dim,
                         .ld = width,
                         .max_position = c->positions,
                         .interleaved = c->interleaved};
    op.position = ops_upload_ids(f, c->position, c->n);
    op.cos_table = ops_upload(f, OT_F32, c->cosines, c->positions * c->rotary_dim / 2);
    op.sin_table = ops_upload(f, OT_F32, c->sines, c->positions * c->rotary_dim / 2);
    op.x = ops_upload(f, f->dtype, c->x, n);
    f->ops->rope(f->lane, &op);
    ops_collect(f, "y", f->dtype, op.x, n);
    op.inverse = true;
    f->ops->rope(f->lane, &op);
    ops_collect(f, "back", f->dtype, op.x, n);
    op.x = ops_upload(f, f->dtype, c->dy, n);
    f->ops->rope(f->lane, &op);
    ops_collect(f, "dx", f->dtype, op.x, n);
}

static void check_rope_golden(struct ot_golden *golden, const char *name, bool interleaved) {
    char array[64];
#define ARRAY(field) (snprintf(array, sizeof array, "%s.%s", name, field), array)
    struct rope_case c = {.interleaved = interleaved};
    c.x = golden_f32(golden, ARRAY("x"), NULL);
    c.n = golden_dim(golden, array, 0);
    c.heads = golden_dim(golden, array, 1);
    c.head_dim = golden_dim(golden, array, 2);
    c.dy = golden_f32(golden, ARRAY("dy"), NULL);
    c.position = golden_i32(golden, ARRAY("position"), NULL);
    c.sines = golden_f32(golden, ARRAY("sin"), NULL);
    c.cosines = golden_f32(golden, ARRAY("cos"), NULL);
    c.positions = golden_dim(golden, array, 0);
    c.rotary_dim = 2 * golden_dim(golden, array, 1);
    struct ops_fixture f;
    ops_check_threads(&f, run_rope, &c, OT_F32);
    int64_t n = c.n * c.heads * c.head_dim;
    check_close("y", ops_result(&f, "y", NULL), golden_f32(golden, ARRAY("y"), NULL), n, 5e-7, 0);
    check_close("back", ops_result(&f, "back", NULL), c.x, n, 1e-6, 0);
    check_close("dx", ops_result(&f, "dx", NULL), golden_f32(golden, ARRAY("dx"), NULL), n, 5e-7, 0);
    ops_close(&f);
    ops_check_half(run_rope, &c, 0x1p-8);
#undef ARRAY
}

static void test_rope(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    check_rope_golden(golden, "rope", false);
    check_rope_golden(golden, "rope.interleaved", true);
    golden_close(golden);
}

/* The dims [first, last, first, last, ...] of each head: pair j of the rotate-half order moves to (2 j, 2 j +
 * 1). Dims behind rotary_dim stay. */
static float *interleave(const struct rope_case *c, const float *from) {
    int64_t n = c->n * c->heads * c->head_dim, half = c->rotary_dim / 2;
    float *to = malloc((size_t)n * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < n; i++) {
        int64_t j = i % c->head_dim, head = i - j;
        to[i] = from[j >= c->rotary_dim ? i : head + (j % 2 ? half + j / 2 : j / 2)];
    }
    return to;
}

/* Both orders of pairs compute the same bits of a pair, whatever the length of a head and the build of the
 * ops. */
static void test_rope_orders(void **state) {
    (void)state;
    static const int64_t dims[][2] = {{2, 2}, {40, 6}, {48, 30}, {80, 64}, {128, 128}, {70, 70}};
    enum { N = 7, HEADS = 3, LARGEST = N * HEADS * 128 };
    static const int32_t position[N] = {0, 1, 2, 5, 5, 6, 3};
    static const char *const builds[] = {"baseline", "avx2", "avx512"};
    float *x = ops_random(1, LARGEST, 1), *dy = ops_random(2, LARGEST, 1),
          *cosines = ops_random(3, 7 * 64, 1), *sines = ops_random(4, 7 * 64, 1);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            struct rope_case halves = {N,        HEADS, dims[i][0], dims[i][1], 0,       N,
                                       position, false, x,          dy,         cosines, sines};
            struct rope_case pairs = halves;
            float *pairs_x = interleave(&halves, x), *pairs_dy = interleave(&halves, dy);
            pairs.interleaved = true, pairs.x = pairs_x, pairs.dy = pairs_dy;
            struct ops_fixture f, g;
            ops_open(&f, 2, (enum ot_dtype)dtype);
            run_rope(&f, &halves);
            ops_check_threads(&g, run_rope, &pairs, (enum ot_dtype)dtype);
            for (int r = 0; r < f.n_results; r++) {
                float *want = interleave(&halves, f.results[r].values);
                assert_memory_equal(g.results[r].values, want, (size_t)f.results[r].n * sizeof *want);
                free(want);
            }
            for (int b = 0; b < 3; b++)
                if (ot_cpu_ops_named(builds[b]))
                    ops_check_build(run_rope, &pairs, builds[b], (enum ot_dtype)dtype);
            ops_close(&f);
            ops_close(&g);
            free(pairs_x);
            free(pairs_dy);
        }
    free(x), free(dy), free(cosines), free(sines);
}

/* ---- embedding, bias ---- */

struct embed_case {
    int64_t n, cols, vocab;
    const int32_t *tokens;
    const float *table, *dout;
};

/* A table of the ids [1, vocab - 1) alone. */
static void run_embed_part(struct ops_fixture *f, const struct embed_case *c, struct ot_embed op,
                           struct ot_embed_backward back, float scale, const char *out, const char *dtable) {
    op.partial = back.partial = true, op.first = back.first = 1;
    op.vocab = back.vocab = c->vocab - 2, op.scale = back.scale = scale;
    op.out = ops_blank_values(f, f->dtype, c->n * c->cols);
    back.dtable = ops_upload(f, OT_F32, c->table, op.vocab * c->cols);
    f->ops->embed(f->lane, &op), f->ops->embed_backward(f->lane, &back);
    ops_collect(f, out, f->dtype, op.out, c->n * c->cols);
    ops_collect(f, dtable, OT_F32, back.dtable, op.vocab * c->cols);
}

static void run_embed(struct ops_fixture *f, const void *argument) {
    const struct embed_case *c = argument;
    struct ot_embed op = {f->dtype,
                          c->n,
                          c->cols,
                          c->vocab,
                          ops_upload_ids(f, c->tokens, c->n),
                          ops_upload(f, f->dtype, c->table, c->vocab * c->cols),
                          ops_blank_values(f, f->dtype, c->n * c->cols),
                          .scale = 0};
    f->ops->embed(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, c->n * c->cols);
    op.scale = -2;
    op.out = ops_blank_values(f, f->dtype, c->n * c->cols);
    f->ops->embed(f->lane, &op);
    ops_collect(f, "scaled", f->dtype, op.out, c->n * c->cols);
    struct ot_embed_backward back = {f->dtype,
                                     c->n,
                                     c->cols,
                                     c->vocab,
                                     op.tokens,
                                     ops_upload(f, f->dtype, c->dout, c->n * c->cols),
                                     ops_upload(f, OT_F32, c->table, c->vocab * c->cols),
                                     .scale = 0};
    /* += onto the table's own numbers, so that a plain store would show. */
    f->ops->embed_backward(f->lane, &back);
    ops_collect(f, "dtable", OT_F32, back.dtable, c->vocab * c->cols);
    back.scale = -2;
    back.dtable = ops_upload(f, OT_F32, c->table, c->vocab * c->cols);
    f->ops->embed_backward(f->lane, &back);
    ops_collect(f, "scaled dtable", OT_F32, back.dtable, c->vocab * c->cols);
    run_embed_part(f, c, op, back, 0, "part", "dpart");
    run_embed_part(f, c, op, back, -2, "scaled part", "scaled dpart");
}

/* The row of id 1 is row 0. The sums begin with numbers of other rows. */
static void check_embed_part(struct ops_fixture *f, const struct embed_case *c, int64_t at) {
    int64_t id = c->tokens[at / c->cols], to = at + c->cols;
    bool has_row = id >= 1 && id < c->vocab - 1, is_in_part = at < (c->vocab - 2) * c->cols;
    float want = c->table[(id - has_row) * c->cols + at % c->cols];
    assert_true((ops_result(f, "part", NULL)[at] == want) == has_row);
    assert_true((ops_result(f, "scaled part", NULL)[at] == -2 * want) == has_row);
    want = is_in_part ? ops_result(f, "dtable", NULL)[to] - c->table[to] + c->table[at] : 0;
    check_close("dpart", is_in_part ? &ops_result(f, "dpart", NULL)[at] : &want, &want, 1, 1e-5, 1e-6);
}

static void test_embed(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    struct embed_case c = {.tokens = golden_i32(golden, "embed.tokens", NULL),
                           .table = golden_f32(golden, "embed.table", NULL),
                           .dout = golden_f32(golden, "embed.dout", NULL)};
    c.n = golden_dim(golden, "embed.tokens", 0);
    c.vocab = golden_dim(golden, "embed.table", 0);
    c.cols = golden_dim(golden, "embed.table", 1);
    const float *out = golden_f32(golden, "embed.out", NULL),
                *dtable = golden_f32(golden, "embed.dtable", NULL);
    /* Bf16 represents the inputs exactly, and the sums are fp32. */
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct ops_fixture f;
        ops_check_threads(&f, run_embed, &c, (enum ot_dtype)dtype);
        assert_memory_equal(ops_result(&f, "out", NULL), out, (size_t)(c.n * c.cols) * sizeof *out);
        for (int64_t i = 0; i < c.n * c.cols; i++)
            assert_true(ops_result(&f, "scaled", NULL)[i] == -2 * out[i]), check_embed_part(&f, &c, i);
        for (int64_t i = 0; i < c.vocab * c.cols; i++) {
            float want = dtable[i] + c.table[i];
            check_close("dtable", &ops_result(&f, "dtable", NULL)[i], &want, 1, 5e-7, 5e-7);
            want = -2 * dtable[i] + c.table[i];
            check_close("scaled dtable", &ops_result(&f, "scaled dtable", NULL)[i], &want, 1, 1e-6, 5e-7);
        }
        ops_close(&f);
    }
    golden_close(golden);
}

/* Many repeated ids over several strips of columns: the order of the ids decides the bits, the threads do
 * not. */
static void test_embed_repeats(void **state) {
    (void)state;
    enum { N = 500, COLS = 200, VOCAB = 3 };
    int32_t tokens[N];
    float *table = ops_random(1, VOCAB * COLS, 1), *dout = ops_random(2, N * COLS, 1),
          *want = malloc(VOCAB * COLS * sizeof *want);
    assert_non_null(want);
    memcpy(want, table, VOCAB * COLS * sizeof *want);
    for (int i = 0; i < N; i++) {
        tokens[i] = i * 7 % VOCAB;
        for (int j = 0; j < COLS; j++)
            want[tokens[i] * COLS + j] += dout[i * COLS + j];
    }
    struct embed_case c = {N, COLS, VOCAB, tokens, table, dout};
    struct ops_fixture f;
    ops_check_threads(&f, run_embed, &c, OT_F32);
    assert_memory_equal(ops_result(&f, "dtable", NULL), want, VOCAB * COLS * sizeof *want);
    ops_close(&f);
    free(table);
    free(dout);
    free(want);
}

struct bias_case {
    int64_t rows, cols, ld;
    const float *dy; /* [rows, ld] */
};

static void run_bias(struct ops_fixture *f, const void *argument) {
    const struct bias_case *c = argument;
    float *ones = malloc((size_t)c->cols * sizeof *ones);
    assert_non_null(ones);
    for (int64_t i = 0; i < c->cols; i++)
        ones[i] = 1;
    struct ot_bias_backward op = {f->dtype,
                                  c->rows,
                                  c->cols,
                                  c->ld,
                                  ops_upload(f, f->dtype, c->dy, c->rows * c->ld),
                                  ops_upload(f, OT_F32, ones, c->cols)};
    free(ones);
    f->ops->bias_backward(f->lane, &op);
    ops_collect(f, "dbias", OT_F32, op.dbias, c->cols);
}

static void test_bias(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    struct bias_case c = {golden_dim(golden, "bias.dy", 0), golden_dim(golden, "bias.dy", 1),
                          golden_dim(golden, "bias.dy", 1), golden_f32(golden, "bias.dy", NULL)};
    struct ops_fixture f;
    ops_check_threads(&f, run_bias, &c, OT_F32);
    check_plus_one(&f, "dbias", golden_f32(golden, "bias.dbias", NULL), 2e-6);
    ops_close(&f);
    golden_close(golden);
    /* Several blocks of rows and strips of columns, as part of wider rows. */
    float *dy = ops_random(1, 700 * 170, 1);
    c = (struct bias_case){700, 150, 170, dy};
    float want[150];
    for (int j = 0; j < 150; j++) {
        double sum = 0;
        for (int i = 0; i < 700; i++)
            sum += dy[i * 170 + j];
        want[j] = (float)sum;
    }
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        ops_check_threads(&f, run_bias, &c, (enum ot_dtype)dtype);
        check_plus_one(&f, "dbias", want, 2e-5); /* 700 terms: sqrt(700) * 2^-24 * partial sums of 26 */
        ops_close(&f);
    }
    free(dy);
}

/* ---- reduce ---- */

struct reduce_case {
    int64_t n;
    const float *x;
};

static void run_reduce(struct ops_fixture *f, const void *argument) {
    const struct reduce_case *c = argument;
    float *x = ops_upload(f, OT_F32, c->x, c->n);
    double *out = ops_blank(f, 2 * sizeof *out);
    f->ops->reduce(f->lane, &(struct ot_reduce){.n = c->n, .x = x, .out = out});
    f->ops->reduce(f->lane, &(struct ot_reduce){.n = c->n, .x = x, .out = out + 1, .squares = true});
    struct ot_reduce more = {.n = c->n, .x = x, .out = out + 1, .squares = true, .accumulate = true};
    more.rounded_dtype = f->dtype;
    more.rounded = ops_blank_values(f, f->dtype, c->n);
    f->ops->reduce(f->lane, &more);
    ops_collect(f, "rounded", f->dtype, more.rounded, c->n);
    ops_collect(f, "sum and squares", OT_F32, out, 4); /* two doubles, compared by their bits */
}

static void test_reduce(void **state) {
    (void)state;
    struct reduce_case c = {200003, NULL};
    float *x = ops_random(1, c.n, 1);
    c.x = x;
    double sum = 0, squares = 0, got[2];
    for (int64_t i = 0; i < c.n; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
    }
    struct ops_fixture f;
    ops_check_threads(&f, run_reduce, &c, OT_F32);
    memcpy(got, ops_result(&f, "sum and squares", NULL), sizeof got);
    assert_true(fabs(got[0] - sum) < 1e-9);
    assert_true(fabs(got[1] - 2 * squares) < 1e-8);
    ops_close(&f);
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        float old = x[150000];
        x[150000] = bad[i];
        ops_open(&f, 2, OT_F32);
        run_reduce(&f, &c);
        memcpy(got, ops_result(&f, "sum and squares", NULL), sizeof got);
        assert_false(isfinite(got[0]));
        assert_false(isfinite(got[1]));
        ops_close(&f);
        x[150000] = old;
    }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_golden),   cmocka_unit_test(test_norm_layouts),
        cmocka_unit_test(test_norm_constant), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_rope_orders),   cmocka_unit_test(test_embed),
        cmocka_unit_test(test_embed_repeats), cmocka_unit_test(test_bias),
        cmocka_unit_test(test_reduce),
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
