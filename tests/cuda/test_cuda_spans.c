/* Attention over spans of keys on the cuda device against the cpu device, forward and backward. The kernels
 * with ordinary arithmetic have the same bits, in every dtype. The kernels on tensor cores
 * (kernels/cuda/attention_spans.cuh) stay within bounds.
 *
 * Bounds. u = 2^-24, v = the error of one rounding to the storage type; see test_cuda_attention.c and
 * test_cuda_attention_backward.c, which derive the same for causal attention. Here both devices compute out
 * and the softmax on their own. With the error e of the scores of a query:
 *   - log(sum exp(score)) is off by l = e + (keys + 8) u. A weight w = exp(score - log(sum)) is off by
 *     w (e + l + 8 u) on each device, and the cuda device rounds it to the storage type: v.
 *   - out = sum w value is off by b: the errors of the weights times |value|, and of sums over the keys.
 *   - delta = dout.out is off by sum |dout| (b + 2 v |out|), because the devices have stored different out,
 *     and by the rounding of the sum.
 *   - ds = w (dout.value - delta) is off by |ds| times the error of w, and by w times the errors of the two
 *     products. The cuda device rounds ds before dq and dk: v. dbias takes it unrounded.
 *
 * In every case on tensor cores, q and dout of queries with empty spans are NaN, and so are keys that no
 * query sees. */
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/spans_fixture.h"

enum { OUT, LSE, DQ, DK, DV, DBIAS, BOUNDS };

/* True if the tensor cores compute this case, on any card with bf16 (kernels/cuda/attention.h). */
static bool is_tiled(const struct spans_shape *s, enum ot_dtype dtype, int shift) {
    return dtype != OT_F32 && (s->head_dim == 64 || s->head_dim == 128) && s->pad % 8 == 0 &&
           shift % 8 == 0 && s->reach <= 256;
}

/* ---- bounds ---- */

struct reference {
    const struct spans_case *c;
    enum ot_dtype dtype;
    double *bounds[BOUNDS]; /* layouts of the results; LSE: [heads, n] */
    double *score, *error;  /* [n_keys], of one query and head */
    double *out, *out_error;
};

static double *zeros(int64_t n) {
    return spans_memory(n, sizeof(double));
}

static int64_t bound_elems(const struct spans_shape *s, int bound) {
    int64_t ld = spans_width(s) + s->pad;
    return bound == LSE                 ? s->heads * s->n
           : bound == DBIAS             ? s->buckets * s->heads
           : bound == DK || bound == DV ? s->n_keys * ld
                                        : s->n * ld;
}

static const float *row_of(const struct spans_case *c, int input, int64_t token, int64_t head) {
    return c->in[input] + token * spans_width(&c->shape) + head * c->shape.head_dim;
}

static int64_t place(const struct spans_case *c, int64_t token, int64_t head) {
    return token * (spans_width(&c->shape) + c->shape.pad) + head * c->shape.head_dim;
}

struct dots {
    double value, absolute;
};

static struct dots dot(const float *x, const float *y, int64_t n) {
    struct dots sum = {0, 0};
    for (int64_t d = 0; d < n; d++) {
        sum.value += (double)x[d] * y[d];
        sum.absolute += fabs((double)x[d] * y[d]);
    }
    return sum;
}

/* The place of dbias that belongs to a pair. */
static int64_t bias_place(const struct spans_case *c, int64_t query, int64_t key, int64_t head) {
    const struct spans_shape *s = &c->shape;
    int64_t distance = key - (query + s->n_keys - s->n);
    distance = distance < -s->reach ? -s->reach : distance > s->reach ? s->reach : distance;
    return c->bucket_of[s->reach + distance] * s->heads + head;
}

static void find_scores(struct reference *r, int64_t query, int64_t head) {
    const struct spans_case *c = r->c;
    const struct spans_shape *s = &c->shape;
    for (int64_t key = c->key_first[query]; key < c->key_end[query]; key++) {
        struct dots qk = dot(row_of(c, SPANS_Q, query, head), row_of(c, SPANS_K, key, head), s->head_dim);
        double bias = s->buckets ? c->bias[bias_place(c, query, key, head)] : 0;
        r->score[key] = s->scale * qk.value + bias;
        r->error[key] = 0x1p-24 * ((double)(s->head_dim + 2) * fabs((double)s->scale) * qk.absolute +
                                   6 * (fabs(r->score[key]) + fabs(bias)));
    }
}

/* The effects of one pair on the bounds of the gradients. */
static void bound_pair(struct reference *r, int64_t query, int64_t head, int64_t key, double lse,
                       double lse_error) {
    const struct spans_case *c = r->c;
    const struct spans_shape *s = &c->shape;
    const float *q = row_of(c, SPANS_Q, query, head), *dout = row_of(c, SPANS_DOUT, query, head);
    const float *k = row_of(c, SPANS_K, key, head), *value = row_of(c, SPANS_V, key, head);
    const double u = 0x1p-24, v = cuda_unit_roundoff(r->dtype), tiny = r->dtype == OT_F16 ? 0x1p-25 : 0;
    const double terms = (double)(s->n + s->n_keys + 2), scale = fabs((double)s->scale);
    struct dots dp = dot(dout, value, s->head_dim);
    double delta = 0, delta_error = 0, p = exp(r->score[key] - lse);
    for (int64_t d = 0; d < s->head_dim; d++) {
        double y = fabs((double)dout[d]);
        delta += dout[d] * r->out[d];
        delta_error += y * (r->out_error[d] + 2 * (v * (fabs(r->out[d]) + r->out_error[d]) + tiny));
        delta_error += (double)(s->head_dim + 2) * u * y * fabs(r->out[d]);
    }
    double of_p = 2 * (r->error[key] + lse_error + 8 * u), p_error = p * of_p;
    double ds = fabs(p * (dp.value - delta));
    double ds_error = ds * (of_p + 12 * u) +
                      (p + p_error) * (2 * u * (double)(s->head_dim + 2) * dp.absolute + delta_error);
    if (s->buckets)
        r->bounds[DBIAS][bias_place(c, query, key, head)] +=
            ds_error + 4 * (terms + 400) * u * (ds + ds_error) + 8 * u;
    p_error += v * (p + p_error) + tiny + 3 * terms * u * (p + p_error);
    ds_error += v * (ds + ds_error) + tiny + 3 * terms * u * (ds + ds_error);
    for (int64_t d = 0; d < s->head_dim; d++) {
        r->bounds[DQ][place(c, query, head) + d] += scale * ds_error * fabs((double)k[d]);
        r->bounds[DK][place(c, key, head) + d] += scale * ds_error * fabs((double)q[d]);
        r->bounds[DV][place(c, key, head) + d] += p_error * fabs((double)dout[d]);
    }
}

static void bound_query(struct reference *r, int64_t query, int64_t head) {
    const struct spans_case *c = r->c;
    const struct spans_shape *s = &c->shape;
    const double u = 0x1p-24, v = cuda_unit_roundoff(r->dtype), tiny = r->dtype == OT_F16 ? 0x1p-25 : 0;
    int64_t first = c->key_first[query], end = c->key_end[query], at = place(c, query, head);
    double most = -INFINITY, error = 0, sum = 0;
    find_scores(r, query, head);
    for (int64_t key = first; key < end; key++) {
        most = fmax(most, r->score[key]);
        error = fmax(error, r->error[key]);
    }
    for (int64_t key = first; key < end; key++)
        sum += exp(r->score[key] - most);
    double lse = most + log(sum), lse_error = error + (double)(end - first + 8) * u + 4 * u * fabs(lse);
    r->bounds[LSE][head * s->n + query] = 2 * lse_error;
    for (int64_t d = 0; d < s->head_dim; d++) {
        double weighed = 0, absolute = 0;
        r->out[d] = 0;
        for (int64_t key = first; key < end; key++) {
            double value = row_of(c, SPANS_V, key, head)[d], w = exp(r->score[key] - lse);
            r->out[d] += w * value;
            weighed += w * fabs(value);
            absolute += fabs(value);
        }
        r->out_error[d] = weighed * (v + 2 * (error + lse_error) + 4 * (double)(end - first + 8) * u);
        r->out_error[d] += tiny * absolute;
        r->bounds[OUT][at + d] = r->out_error[d];
    }
    for (int64_t key = first; s->backward && key < end; key++)
        bound_pair(r, query, head, key, lse, lse_error);
}

static struct reference make_reference(const struct spans_case *c, enum ot_dtype dtype) {
    const struct spans_shape *s = &c->shape;
    struct reference r = {.c = c, .dtype = dtype};
    for (int bound = 0; bound < BOUNDS; bound++)
        r.bounds[bound] = zeros(bound_elems(s, bound));
    r.score = zeros(s->n_keys);
    r.error = zeros(s->n_keys);
    r.out = zeros(s->head_dim);
    r.out_error = zeros(s->head_dim);
    for (int64_t query = 0; query < s->n; query++)
        for (int64_t head = 0; c->key_first[query] < c->key_end[query] && head < s->heads; head++)
            bound_query(&r, query, head);
    return r;
}

static void free_reference(struct reference *r) {
    for (int bound = 0; bound < BOUNDS; bound++)
        free(r->bounds[bound]);
    free(r->score);
    free(r->error);
    free(r->out);
    free(r->out_error);
}

/* ---- checks ---- */

/* The weight of a pair is exp(score - first) second, with the two numbers of its query. The kernels on
 * tensor cores have 1 as the second number, which shows that they have run. */
static void check_softmax(const struct cuda_pair *p, const struct reference *r) {
    const struct spans_case *c = r->c;
    const float *cuda = ops_result(&p->cuda, "softmax", NULL), *cpu = ops_result(&p->cpu, "softmax", NULL);
    for (int64_t i = 0; i < c->shape.n * c->shape.heads; i++, cuda += 2, cpu += 2) {
        int64_t query = i % c->shape.n;
        bool empty = c->key_end[query] <= c->key_first[query];
        assert_float_equal(cuda[1], empty ? 0 : 1, 0);
        double got = empty ? cuda[0] : (double)cuda[0], want = empty ? cpu[0] : cpu[0] - log((double)cpu[1]);
        if (!(fabs(got - want) <= r->bounds[LSE][i] + 0x1p-24 * fabs(want)))
            fail_msg("query %lld: log(sum exp(score)) is %.9g, not %.9g", (long long)query, got, want);
    }
}

static void check_tiled(const struct cuda_pair *p, const struct spans_case *c, enum ot_dtype dtype) {
    struct reference r = make_reference(c, dtype);
    static const int bounds[SPANS_RESULTS] = {OUT, LSE, DQ, DK, DV, DBIAS};
    for (int i = 0; i < spans_result_count(&c->shape); i++)
        if (bounds[i] != LSE)
            cuda_check_close(p, spans_results[i], &(struct cuda_bound){.each = r.bounds[bounds[i]]});
    check_softmax(p, &r);
    free_reference(&r);
}

/* Fills tokens with NaN that have no part in the attention. */
static void spoil(struct spans_case *c) {
    const struct spans_shape *s = &c->shape;
    int64_t width = spans_width(s);
    bool *seen = spans_memory(s->n_keys, sizeof *seen);
    for (int64_t i = 0; i < s->n; i++) {
        bool empty = c->key_end[i] <= c->key_first[i];
        for (int64_t key = c->key_first[i]; key < c->key_end[i]; key++)
            seen[key] = true;
        for (int64_t d = 0; empty && d < width; d++)
            c->in[SPANS_Q][i * width + d] = c->in[SPANS_DOUT][i * width + d] = NAN;
    }
    for (int64_t i = 0; i < s->n_keys * width; i++)
        if (!seen[i / width])
            c->in[SPANS_K][i] = c->in[SPANS_V][i] = NAN;
    free(seen);
}

static void check_shape(const struct spans_shape *s, enum ot_dtype dtype, int shift) {
    struct spans_case c = spans_make(s);
    struct cuda_pair p;
    bool tiled = is_tiled(s, dtype, shift);
    if (tiled)
        spoil(&c);
    cuda_run(&p, spans_run, &c, dtype, shift);
    if (tiled)
        check_tiled(&p, &c, dtype);
    for (int i = 0; !tiled && i < spans_result_count(s); i++)
        cuda_check_bits(&p, spans_results[i]);
    cuda_close(&p);
    spans_free(&c);
}

/* ---- tests ---- */

static void test_shapes(void **state) {
    (void)state;
    for (int i = 0; i < SPANS_SHAPES; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_shape(&spans_shapes[i], (enum ot_dtype)dtype, i % 2);
}

/* Random numbers of tokens, heads, elements and buckets, and random kinds. */
static void test_random_shapes(void **state) {
    (void)state;
    for (uint64_t i = 0; i < (tests_are_brief() ? 4 : 12); i++) {
        uint64_t draw = 0;
#define DRAW(below) (int64_t) ot_random_below(8, i, draw++, below)
        struct spans_shape s = {.kind = (enum spans_kind)DRAW(6), .n = 1 + DRAW(100), .backward = true};
        s.n_keys = s.kind == SPANS_OTHER || s.kind == SPANS_RANDOM ? 1 + DRAW(100) : s.n;
        s.heads = 1 + DRAW(3);
        s.head_dim = 1 + DRAW(OT_SPAN_MOST_DIM);
        s.row = 1 + DRAW((uint64_t)s.n);
        s.buckets = DRAW(2) ? 1 + DRAW(OT_SPAN_MOST_BUCKETS) : 0;
        s.reach = DRAW(60);
        s.pad = DRAW(4);
        s.scale = (float)(1 + DRAW(8)) / 8;
#undef DRAW
        check_shape(&s, (enum ot_dtype)(i % 3), (int)(i % 2));
    }
}

/* Rows that straddle blocks and tiles, several in a block, longer than tiles; empty spans; keys of other
 * tokens than the queries; a run for each query; caches; scales that are not positive; biases whose reach
 * is longer and shorter than the rows; buckets in any number. */
static void test_tensor_cores(void **state) {
    (void)state;
    static const struct spans_shape shapes[] = {
        {SPANS_ENCODER, 131, 131, 2, 64, 57, 32, 20, .pad = 8, .scale = 1, .backward = true},
        {SPANS_ENCODER, 330, 330, 1, 64, 320, 32, 128, .scale = 1, .backward = true},
        {SPANS_ENCODER, 190, 190, 1, 64, 95, 32, 20, .scale = 1, .backward = true}, /* spans of 63 keys */
        {SPANS_DECODER, 200, 200, 2, 64, 150, 32, 128, .scale = 1, .backward = true},
        {SPANS_CROSS, 150, 150, 2, 64, 41, .scale = 0.5f, .backward = true},
        {SPANS_OTHER, 77, 140, 2, 64, 30, .pad = 8, .scale = -0.4f, .backward = true},
        {SPANS_OTHER, 140, 77, 1, 64, 90, 7, 256, .scale = -0.4f, .backward = true},
        {SPANS_RANDOM, 50, 70, 1, 64, 50, 256, 30, .scale = 0.7f, .backward = true},
        {SPANS_CACHE, 37, 70, 2, 64, 37, 32, 128, .scale = 1, .backward = true},
        {SPANS_CACHE, 1, 99, 3, 64, 1, 32, 50, .scale = 1},
        {SPANS_ENCODER, 1, 1, 1, 64, 1, .scale = 1, .backward = true},
        {SPANS_OTHER, 0, 40, 2, 64, 1, 4, 4, .scale = 1, .backward = true},
        {SPANS_NONE, 35, 0, 2, 64, 1, 4, 4, .scale = 1, .backward = true},
        {SPANS_NONE, 35, 100, 1, 64, 1, 4, 4, .scale = 1, .backward = true},
        {SPANS_NONE, 35, 100, 1, 128, 1, 4, 4, .scale = 1, .backward = true},
        {SPANS_DECODER, 164, 164, 1, 128, 79, 5, 7, .scale = 0.3f, .backward = true},
        {SPANS_RANDOM, 20, 101, 1, 128, 20, 3, 0, .scale = 0.7f, .backward = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int dtype = OT_BF16; dtype <= OT_F16; dtype++)
            check_shape(&shapes[i], (enum ot_dtype)dtype, 0);
}

/* out of a row has the same bits alone and behind another row, on tensor cores. */
static void test_rows_have_no_place(void **state) {
    (void)state;
    static const struct spans_shape both = {SPANS_ENCODER, 174, 174, 2, 64, 87, 32, 20, .scale = 1};
    struct spans_shape one = both;
    one.n = one.n_keys = both.row;
    struct spans_case packed = spans_make(&both), alone = spans_make(&one);
    int64_t width = spans_width(&both), elems = both.row * width;
    memcpy(alone.bias, packed.bias, (size_t)(both.buckets * both.heads) * sizeof(float));
    memcpy(alone.bucket_of, packed.bucket_of, (size_t)(2 * both.reach + 1) * sizeof(int32_t));
    for (int input = 0; input < SPANS_INPUTS; input++)
        memcpy(alone.in[input], packed.in[input] + elems, (size_t)elems * sizeof(float));
    struct cuda_pair p, a;
    cuda_run(&p, spans_run, &packed, OT_BF16, 0);
    cuda_run(&a, spans_run, &alone, OT_BF16, 0);
    assert_memory_equal(ops_result(&p.cuda, "out", NULL) + elems, ops_result(&a.cuda, "out", NULL),
                        (size_t)elems * sizeof(float));
    cuda_close(&p);
    cuda_close(&a);
    spans_free(&packed);
    spans_free(&alone);
}

/* One row in the middle is all NaN, and so is the last target of another. Both devices let them reach the
 * same results. (tests/kernels/test_ops_spans.c shows for the cpu device that no other row is reached.) */
static void test_nans(void **state) {
    (void)state;
    static const struct spans_shape shapes[] = {
        {SPANS_ENCODER, 100, 100, 2, 24, 37, .scale = 1, .backward = true},
        {SPANS_DECODER, 100, 100, 2, 70, 37, 32, 20, .scale = 1, .backward = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct spans_case c = spans_make(&shapes[i]);
        int64_t width = spans_width(&shapes[i]), row = shapes[i].row;
        for (int input = 0; input < SPANS_INPUTS; input++)
            for (int64_t token = 0; token < shapes[i].n; token++)
                for (int64_t d = 0; (token / row == 1 || token == row - 1) && d < width; d++)
                    c.in[input][token * width + d] = NAN;
        struct cuda_pair p;
        cuda_run(&p, spans_run, &c, OT_BF16, 0);
        for (int result = 0; result < spans_result_count(&shapes[i]); result++)
            cuda_check_bits(&p, spans_results[result]);
        assert_true(isfinite(ops_result(&p.cuda, "dv", NULL)[0])); /* row 0 has a result */
        cuda_close(&p);
        spans_free(&c);
    }
}

/* On tensor cores a NaN reaches no out of another row, though its row shares blocks and warps with them. */
static void test_nans_on_tensor_cores(void **state) {
    (void)state;
    static const struct spans_shape s = {SPANS_ENCODER, 100, 100, 2, 64, 37, .scale = 1};
    struct spans_case c = spans_make(&s);
    int64_t width = spans_width(&s);
    for (int input = 0; input < SPANS_INPUTS; input++)
        for (int64_t i = s.row * width; i < 2 * s.row * width; i++)
            c.in[input][i] = NAN;
    struct cuda_pair p;
    cuda_run(&p, spans_run, &c, OT_BF16, 0);
    const float *out = ops_result(&p.cuda, "out", NULL);
    for (int64_t i = 0; i < s.n * width; i++)
        assert_int_equal(isnan(out[i]) != 0, i / width / s.row == 1 && c.key_end[i / width] > 0);
    cuda_close(&p);
    spans_free(&c);
}

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_tensor_cores), cmocka_unit_test(test_rows_have_no_place),
        cmocka_unit_test(test_nans),         cmocka_unit_test(test_nans_on_tensor_cores)};
    return cmocka_run_group_tests_name("spans of keys on the cuda device", tests, NULL, NULL);
}
