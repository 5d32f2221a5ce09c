/* RoPE, the embedding forward and backward, and the bias gradient on the cuda device against the cpu device.
 * For all but the bias gradient, both devices do the same arithmetic in the same order, so the test compares
 * bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/support/check.h"

/* Whole numbers in [0, below) that depend on the seed. */
static int32_t *random_ids(uint64_t seed, int64_t n, int32_t below) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)ot_random_below(seed, 0, (uint64_t)i, (uint64_t)below);
    return ids;
}

/* ---- rope ---- */

struct rope_shape {
    int64_t n, heads, head_dim, rotary_dim, pad, positions;
    int shift;
    bool interleaved;
};

static void rotate(struct ops_fixture *f, const struct rope_shape *s, const int32_t *position, bool inverse,
                   const char *name) {
    int64_t ld = s->heads * s->head_dim + s->pad, half = s->rotary_dim / 2;
    float *x = ops_random(1, s->n * ld, 1),
          *cosines = malloc((size_t)(s->positions * half) * sizeof *cosines),
          *sines = malloc((size_t)(s->positions * half) * sizeof *sines);
    assert_true(x && cosines && sines);
    for (int64_t i = 0; i < s->positions * half; i++) {
        double angle = (double)(i / half) * pow(10000, -(double)(i % half) / (double)half);
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
    struct ot_rope op = {.dtype = f->dtype,
                         .n = s->n,
                         .heads = s->heads,
                         .head_dim = s->head_dim,
                         .rotary_dim = s->rotary_dim,
                         .ld = ld,
                         .max_position = s->positions,
                         .inverse = inverse,
                         .interleaved = s->interleaved};
    op.position = ops_upload_ids(f, position, s->n);
    op.cos_table = ops_upload(f, OT_F32, cosines, s->positions * half);
    op.sin_table = ops_upload(f, OT_F32, sines, s->positions * half);
    op.x = ops_upload(f, f->dtype, x, s->n * ld);
    f->ops->rope(f->lane, &op);
    ops_collect(f, name, f->dtype, op.x, s->n * ld);
    free(x);
    free(cosines);
    free(sines);
}

static void run_rope(struct ops_fixture *f, const void *argument) {
    const struct rope_shape *s = argument;
    int32_t *position = random_ids(7, s->n, (int32_t)s->positions);
    rotate(f, s, position, false, "forward");
    rotate(f, s, position, true, "inverse");
    free(position);
}

static void test_rope(void **state) {
    (void)state;
    static const struct rope_shape shapes[] = {
        {33, 4, 64, 64, 0, 50, 0, false},  {9, 3, 128, 128, 8, 20, 0, false},
        {17, 2, 80, 32, 16, 64, 0, false}, /* rotates a part of each head */
        {70, 1, 16, 16, 0, 100, 0, false}, /* more tokens in a block than the block has threads for packs */
        {5, 40, 128, 128, 0, 6, 0, false}, /* more work in a token than a block has threads */
        {21, 3, 20, 20, 0, 30, 0, false},  {8, 2, 64, 64, 3, 10, 0, false},
        {8, 2, 64, 64, 0, 10, 1, false}, /* no packs */
        {4, 5, 6, 2, 0, 5, 0, false},      {8, 2, 64, 64, 0, 10, 2, false},
        {8, 2, 64, 64, 0, 10, 4, false}, /* half the alignment of packs, in fp32 and 16 bits */
        {8, 2, 64, 64, 2, 10, 0, false},   {8, 2, 64, 64, 4, 10, 0, false},
    };
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            struct rope_shape shape = shapes[i / 2];
            struct cuda_pair p;
            shape.interleaved = i % 2;
            cuda_run(&p, run_rope, &shape, (enum ot_dtype)dtype, shape.shift);
            cuda_check_bits(&p, "forward");
            cuda_check_bits(&p, "inverse");
            cuda_close(&p);
        }
}

/* ---- embedding ---- */

/* More tokens are sorted in pieces, which takes the emulator seconds: for them no table of some ids alone. */
enum { ONE_SORT = 8192 };

struct embed_shape {
    int64_t n, cols, vocab;
    const int32_t *tokens;
};

static void run_embed(struct ops_fixture *f, const void *argument) {
    const struct embed_shape *s = argument;
    float *table = ops_random(1, s->vocab * s->cols, 1), *dout = ops_random(2, s->n * s->cols, 1);
    int32_t *tokens = ops_upload_ids(f, s->tokens, s->n);
    struct ot_embed op = {f->dtype,
                          s->n,
                          s->cols,
                          s->vocab,
                          tokens,
                          ops_upload(f, f->dtype, table, s->vocab * s->cols),
                          ops_blank_values(f, f->dtype, s->n * s->cols),
                          .scale = 0};
    f->ops->embed(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, s->n * s->cols);
    op.scale = 0.3f;
    op.out = ops_blank_values(f, f->dtype, s->n * s->cols);
    f->ops->embed(f->lane, &op);
    ops_collect(f, "scaled", f->dtype, op.out, s->n * s->cols);
    struct ot_embed_backward back = {f->dtype,
                                     s->n,
                                     s->cols,
                                     s->vocab,
                                     tokens,
                                     ops_upload(f, f->dtype, dout, s->n * s->cols),
                                     ops_upload(f, OT_F32, table, s->vocab * s->cols),
                                     .scale = 0};
    /* += onto the table's own numbers, so that a plain store would show. */
    f->ops->embed_backward(f->lane, &back);
    ops_collect(f, "dtable", OT_F32, back.dtable, s->vocab * s->cols);
    back.scale = 0.3f;
    f->ops->embed_backward(f->lane, &back);
    ops_collect(f, "scaled dtable", OT_F32, back.dtable, s->vocab * s->cols);
    if (s->n <= ONE_SORT) {
        op.partial = back.partial = true;
        op.first = back.first = s->vocab / 3;
        op.vocab = back.vocab = (s->vocab + 1) / 2;
        for (int scaled = 0; scaled < 2; scaled++) { /* over the results above */
            op.scale = back.scale = scaled ? 1.7f : 0;
            f->ops->embed(f->lane, &op);
            f->ops->embed_backward(f->lane, &back);
        }
        ops_collect(f, "part", f->dtype, op.out, s->n * s->cols);
        ops_collect(f, "dpart", OT_F32, back.dtable, s->vocab * s->cols);
    }
    free(table);
    free(dout);
}

static void check_embed(const struct embed_shape *s, enum ot_dtype dtype, int shift) {
    struct cuda_pair p;
    cuda_run(&p, run_embed, s, dtype, shift);
    cuda_check_bits(&p, "out");
    cuda_check_bits(&p, "scaled");
    cuda_check_bits(&p, "dtable");
    cuda_check_bits(&p, "scaled dtable");
    if (s->n <= ONE_SORT) {
        cuda_check_bits(&p, "part");
        cuda_check_bits(&p, "dpart");
    }
    cuda_close(&p);
}

static void test_embed(void **state) {
    (void)state;
    static const struct embed_shape shapes[] = {
        {300, 64, 40, NULL}, {129, 1032, 1000, NULL}, {200, 30, 7, NULL}, {128, 8, 1, NULL},
        {1, 5, 3, NULL},     {70, 64, 9, NULL},       {70, 64, 9, NULL}};
    static const int shifts[] = {0, 1, 0, 1, 0, 2, 4}; /* the last two: half the alignment of packs */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct embed_shape shape = shapes[i];
        int32_t *tokens = random_ids(i, shape.n, (int32_t)shape.vocab);
        /* One id takes a fifth of all tokens; the last id is among them. */
        for (int64_t t = 0; t < shape.n; t += 5)
            tokens[t] = (int32_t)shape.vocab - 1;
        shape.tokens = tokens;
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_embed(&shape, (enum ot_dtype)dtype, shifts[i]);
        free(tokens);
    }
}

/* More tokens than one sort takes. The tokens of an id, in several pieces, are still added in order. */
static void test_embed_pieces(void **state) {
    (void)state;
    struct embed_shape shape = {ONE_SORT + 300, 2, 500, NULL};
    int32_t *tokens = random_ids(3, shape.n, (int32_t)shape.vocab);
    shape.tokens = tokens;
    check_embed(&shape, OT_F32, 0);
    free(tokens);
}

/* ---- bias ---- */

struct bias_shape {
    int64_t rows, cols, ld;
    int shift;
};

static void run_bias(struct ops_fixture *f, const void *argument) {
    const struct bias_shape *s = argument;
    float *dy = ops_random(1, s->rows * s->ld, 1), *bias = ops_random(2, s->cols, 1);
    for (int64_t i = 0; i < s->rows * s->ld; i++)
        if (i % s->ld >= s->cols)
            dy[i] = NAN;
    struct ot_bias_backward op = {f->dtype,
                                  s->rows,
                                  s->cols,
                                  s->ld,
                                  ops_upload(f, f->dtype, dy, s->rows * s->ld),
                                  ops_upload(f, OT_F32, bias, s->cols)};
    f->ops->bias_backward(f->lane, &op);
    ops_collect(f, "dbias", OT_F32, op.dbias, s->cols);
    free(dy);
    free(bias);
}

/* The bound of each sum's error on either device: every term goes through at most as many additions as there
 * are rows. */
static double *bias_bounds(const struct bias_shape *s) {
    float *dy = ops_random(1, s->rows * s->ld, 1), *bias = ops_random(2, s->cols, 1);
    double *each = calloc((size_t)s->cols, sizeof *each);
    assert_non_null(each);
    for (int64_t col = 0; col < s->cols; col++) {
        double sum = fabs((double)bias[col]);
        for (int64_t row = 0; row < s->rows; row++)
            sum += fabs((double)dy[row * s->ld + col]);
        each[col] = 2 * (double)s->rows * 0x1p-24 * sum;
    }
    free(dy);
    free(bias);
    return each;
}

static void test_bias(void **state) {
    (void)state;
    static const struct bias_shape shapes[] = {
        {1, 1, 1, 0},     {100, 300, 304, 0},
        {65, 72, 75, 0},  {200, 33, 40, 1}, /* one chunk, two chunks, four chunks */
        {2100, 9, 9, 0},                    /* more chunks than a group has */
        {17000, 4, 4, 0},                   /* chunks that are longer than the shortest chunk */
        {65, 72, 72, 2},  {65, 72, 72, 4},
        {65, 72, 74, 0},  {65, 72, 76, 0}, /* half the alignment of packs */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        double *each = bias_bounds(&shapes[i]);
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            struct cuda_pair p;
            cuda_run(&p, run_bias, &shapes[i], (enum ot_dtype)dtype, shapes[i].shift);
            cuda_check_close(&p, "dbias", &(struct cuda_bound){.each = each});
            cuda_close(&p);
        }
        free(each);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_embed_pieces),
        cmocka_unit_test(test_bias),
    };
    cuda_skip_without_device();
    return cmocka_run_group_tests_name("cuda_rows", tests, NULL, NULL);
}
