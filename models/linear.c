#include "models/linear.h"

#include "src/base/minmax.h"
#include "src/base/random.h"

static bool has_lora(const struct ot_linear *linear) {
    return linear->lora && linear->lora->n > 0;
}

static bool has_dora(const struct ot_linear *linear) {
    return has_lora(linear) && linear->lora->dora;
}

/* ---- dropout ---- */

static bool drops(const struct ot_block_run *run, const struct ot_linear *linear) {
    return linear->lora->drop > 0 && run->pass == OT_PASS_TRAIN;
}

bool ot_linear_doubles(const struct ot_block_run *run, const struct ot_linear *linear) {
    return has_dora(linear) && drops(run, linear);
}

/* out = (addend +) dropout(x). All are [rows, in]; addend may be NULL. of_difference: of x - addend, in place
 * of x. */
static void dropout(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                    const void *addend, bool of_difference, void *out) {
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
        .of_difference = of_difference,
    };
    ot_run_ops(run)->dropout(run->lane, &op);
}

/* The input of A: x, or dropout(x) in linear->dropped. */
static const void *input_of_a(const struct ot_block_run *run, const struct ot_linear *linear, const void *x) {
    if (!drops(run, linear))
        return x;
    dropout(run, linear, x, NULL, false, linear->dropped);
    return linear->dropped;
}

/* ---- the outputs of a unit ---- */

/* Neighbouring outputs of a unit. */
struct span {
    int64_t first, out;
    const struct ot_lora_map *map; /* of their adapter; NULL: they have none */
};

/* Goes on to the next outputs that have one adapter, or none; from a span that is zero, to the first. */
static bool next_span(const struct ot_linear *linear, struct span *span) {
    int64_t first = span->first + span->out, end = linear->out;
    const struct ot_lora_unit *lora = linear->lora;
    *span = (struct span){.first = first};
    for (int i = 0; i < lora->n; i++) {
        if (lora->maps[i].first < first)
            continue;
        span->map = lora->maps[i].first == first ? &lora->maps[i] : NULL;
        end = span->map ? first + lora->maps[i].out : lora->maps[i].first;
        break;
    }
    span->out = end - first;
    return span->out > 0;
}

/* As next_span, but joins adjacent outputs that all have adapters, or all have none. `map` is the first. */
static bool next_stretch(const struct ot_linear *linear, struct span *stretch) {
    if (!next_span(linear, stretch))
        return false;
    for (struct span next = *stretch; next_span(linear, &next) && !next.map == !stretch->map;)
        stretch->out += next.out;
    return true;
}

/* The address of element `index` of an array that may be missing. */
static const void *maybe_at(const void *array, enum ot_dtype dtype, int64_t index) {
    return array ? (const char *)array + (size_t)index * ot_dtype_bytes(dtype) : NULL;
}

/* ---- forward ---- */

/* input: of A. */
static void forward_ax(const struct ot_block_run *run, const struct ot_linear *linear, const void *input) {
    const struct ot_lora_unit *lora = linear->lora;
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
            .by_rows = ot_run_by_rows(run),
            .m = linear->rows,
            .n = rank,
            .k = linear->in,
            .a = input, /* [rows, in] */
            .lda = linear->in,
            .b = ot_run_weight(run, ot_place_behind(lora->a, first * linear->in)), /* [rank, in] */
            .ldb = linear->in,
            .c = ot_run_at(run, linear->ax, first), /* [rows, rank] */
            .ldc = lora->rank,
            .scale = scale,
        };
        ot_run_ops(run)->gemm(run->lane, &gemm);
        first += rank;
    }
}

/* y = addend + B ax, of the outputs that have adapters. addend may be y. */
static void add_adapters(const struct ot_block_run *run, const struct ot_linear *linear,
                         enum ot_dtype y_dtype, const void *addend, void *y) {
    const struct ot_lora_unit *lora = linear->lora;
    int64_t first = 0;
    for (int i = 0; i < lora->n; i++) {
        const struct ot_lora_map *map = &lora->maps[i];
        const struct ot_gemm gemm = {
            .dtype = run->dtype,
            .c_dtype = y_dtype,
            .trans_b = true,
            .by_rows = ot_run_by_rows(run),
            .m = linear->rows,
            .n = map->out,
            .k = map->rank,
            .a = ot_run_at(run, linear->ax, first), /* [rows, map->rank] */
            .lda = lora->rank,
            .b = ot_run_weight(run, map->b), /* [map->out, map->rank] */
            .ldb = map->rank,
            .addend = maybe_at(addend, y_dtype, map->first),
            .c = (char *)y + (size_t)map->first * ot_dtype_bytes(y_dtype), /* [rows, map->out] */
            .ldc = linear->out,
            .scale = linear->scale,
        };
        ot_run_ops(run)->gemm(run->lane, &gemm);
        first += map->rank;
    }
}

void ot_linear_add_adapters(const struct ot_block_run *run, const struct ot_linear *linear,
                            enum ot_dtype y_dtype, void *y) {
    if (has_lora(linear))
        add_adapters(run, linear, y_dtype, y, y);
}

/* y = x W^T (+ bias) (+ residual). residual may be y. All outputs are one product, because the bits of a
 * product of fewer outputs may differ. */
static void forward_base(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                         const void *bias, const void *residual, enum ot_dtype y_dtype, void *y) {
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = y_dtype,
        .trans_b = true,
        .by_rows = ot_run_by_rows(run),
        .m = linear->rows,
        .n = linear->out,
        .k = linear->in,
        .a = x, /* [rows, in] */
        .lda = linear->in,
        .b = linear->weight, /* [out, in] */
        .ldb = linear->in,
        .bias = bias,       /* [out] */
        .addend = residual, /* [rows, out] */
        .c = y,             /* [rows, out] */
        .ldc = linear->out,
        .scale = linear->scale,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}

/* u = product + scale B ax, where product is memory for W input, or u; and the factors. */
static void forward_u(const struct ot_block_run *run, const struct ot_linear *linear, const void *input,
                      enum ot_dtype y_dtype, void *product) {
    forward_base(run, linear, input, NULL, NULL, y_dtype, product);
    forward_ax(run, linear, input);
    add_adapters(run, linear, y_dtype, product, linear->u);
    if (!linear->has_factors)
        ot_linear_factors(run, linear);
}

void ot_linear_forward_inside(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                              enum ot_dtype y_dtype) {
    if (has_dora(linear))
        forward_u(run, linear, input_of_a(run, linear, x), y_dtype, linear->u);
    else if (has_lora(linear))
        forward_ax(run, linear, input_of_a(run, linear, x));
}

/* Computes y = factor u (- less) (+ bias) (+ residual) for the outputs in `span`. Outputs without an adapter
 * take `less` as their u too, so that their difference is zero. */
static void forward_dora(const struct ot_block_run *run, const struct ot_linear *linear, struct span span,
                         const void *less, const void *bias, enum ot_dtype y_dtype, void *y) {
    const struct ot_dora op = {
        .dtype = y_dtype,
        .rows = linear->rows,
        .cols = span.out,
        .ld = linear->out,
        .factor = span.map ? linear->factors + span.first : NULL,                 /* [span.out] */
        .u = maybe_at(span.map || !less ? linear->u : less, y_dtype, span.first), /* [rows, span.out] */
        .less = maybe_at(less, y_dtype, span.first),                              /* [rows, span.out] */
        .bias = maybe_at(bias, run->dtype, span.first),
        .addend = maybe_at(linear->residual, y_dtype, span.first),
        .y = (char *)y + (size_t)span.first * ot_dtype_bytes(y_dtype), /* [rows, span.out] */
    };
    ot_run_ops(run)->dora(run->lane, &op);
}

void ot_linear_forward_from_u(const struct ot_block_run *run, const struct ot_linear *linear,
                              enum ot_dtype y_dtype, void *y) {
    for (struct span span = {0}; next_stretch(linear, &span);)
        forward_dora(run, linear, span, NULL, linear->bias, y_dtype, y);
}

static void forward_doubled(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                            enum ot_dtype y_dtype, void *y) {
    forward_u(run, linear, input_of_a(run, linear, x), y_dtype, y);
    for (struct span s = {0}; next_stretch(linear, &s);)
        forward_dora(run, linear, s, y, NULL, y_dtype, y);
    forward_base(run, linear, x, linear->bias, y, y_dtype, y);
}

void ot_linear_forward(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                       enum ot_dtype y_dtype, void *y) {
    if (has_dora(linear) && drops(run, linear)) {
        forward_doubled(run, linear, x, y_dtype, y);
    } else if (has_dora(linear)) {
        ot_linear_forward_inside(run, linear, x, y_dtype);
        ot_linear_forward_from_u(run, linear, y_dtype, y);
    } else {
        forward_base(run, linear, x, linear->bias, linear->residual, y_dtype, y);
        ot_linear_forward_inside(run, linear, x, y_dtype);
        ot_linear_add_adapters(run, linear, y_dtype, y);
    }
}

/* ---- DoRA ---- */

size_t ot_linear_products_bytes(const struct ot_lora_unit *lora) {
    size_t most = 0;
    for (int i = 0; lora->dora && i < lora->n; i++) {
        size_t rank = (size_t)lora->maps[i].rank, elems = ((size_t)lora->maps[i].out + rank) * rank;
        most = ot_max(elems, most);
    }
    return most * sizeof(float);
}

/* out = left A^T in fp32. left: [rows, in], W or A. a: [rank, in]. */
static void times_a(const struct ot_block_run *run, const struct ot_linear *linear, int64_t rows,
                    const void *left, const void *a, int64_t rank, float *out) {
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = OT_F32,
        .trans_b = true,
        .m = rows,
        .n = rank,
        .k = linear->in,
        .a = left, /* [rows, in] */
        .lda = linear->in,
        .b = a, /* [rank, in] */
        .ldb = linear->in,
        .c = out, /* [rows, rank] */
        .ldc = rank,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}

void ot_linear_factors(const struct ot_block_run *run, const struct ot_linear *linear) {
    const struct ot_lora_unit *lora = linear->lora;
    int64_t first = 0;
    for (int i = 0; has_dora(linear) && i < lora->n; i++) {
        const struct ot_lora_map *map = &lora->maps[i];
        const void *weight = ot_run_at(run, linear->weight, map->first * linear->in);
        const void *a = ot_run_weight(run, ot_place_behind(lora->a, first * linear->in));
        float *cross = linear->products, *gram = cross + map->out * map->rank;
        times_a(run, linear, map->out, weight, a, map->rank, cross);
        times_a(run, linear, map->rank, a, a, map->rank, gram);
        const struct ot_dora_factors op = {
            .dtype = run->dtype,
            .rows = map->out,
            .cols = linear->in,
            .rank = map->rank,
            .scale = map->scale,
            .weight = weight,                          /* [map->out, in] */
            .b = ot_run_weight(run, map->b),           /* [map->out, map->rank] */
            .change = ot_run_weight(run, map->change), /* [map->out] */
            .cross = cross,                            /* [map->out, map->rank] */
            .gram = gram,                              /* [map->rank, map->rank] */
            .factor = linear->factors + map->first,
            .inverse = linear->factors + linear->out + map->first,
        };
        ot_run_ops(run)->dora_factors(run->lane, &op);
        first += map->rank;
    }
}

void ot_linear_backward_u(const struct ot_block_run *run, const struct ot_linear *linear,
                          enum ot_dtype u_dtype, const void *dy, int64_t ld_dy, void *du) {
    for (struct span span = {0}; next_span(linear, &span);) {
        const struct ot_dora_backward op = {
            .dtype = run->dtype,
            .u_dtype = u_dtype,
            .rows = linear->rows,
            .cols = span.out,
            .ld = linear->out,
            .ld_dy = ld_dy,
            .factor = span.map ? linear->factors + span.first : NULL, /* [span.out] */
            .inverse = linear->factors + linear->out + span.first,
            .dy = ot_run_at(run, dy, span.first),          /* [rows, span.out] */
            .u = maybe_at(linear->u, u_dtype, span.first), /* [rows, span.out] */
            .du = du ? ot_run_at(run, du, span.first) : NULL,
            .dchange = span.map && linear->u ? ot_run_grad(run, span.map->change) : NULL, /* [span.out] */
        };
        ot_run_ops(run)->dora_backward(run->lane, &op);
    }
}

/* ---- backward ---- */

/* to = scale a^T b in fp32, or to += if the layer adds. a is [rows, m], b is [rows, n]. */
static void params_gemm(const struct ot_block_run *run, const struct ot_linear *linear, float scale,
                        int64_t m, const void *a, int64_t lda, int64_t n, const void *b, int64_t ldb,
                        float *to) {
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
        .c = to, /* [m, n] */
        .ldc = n,
        .scale = scale,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}

void ot_linear_backward_b(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                          int64_t ld_dy) {
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
            .a = dout, /* [rows, map->out] */
            .lda = ld_dy,
            .b = ot_run_weight(run, map->b), /* [map->out, map->rank] */
            .ldb = map->rank,
            .c = ot_run_at(run, linear->dax, first), /* [rows, map->rank] */
            .ldc = lora->rank,
            .scale = map->scale * (linear->scale != 0 ? linear->scale : 1),
        };
        ot_run_ops(run)->gemm(run->lane, &dax);
        params_gemm(run, linear, linear->scale, map->out, dout, ld_dy, map->rank,
                    ot_run_at(run, linear->ax, first), lora->rank, ot_run_grad(run, map->b));
        first += map->rank;
    }
}

/* dax; the gradients of A and B. */
static void lora_params(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                        const void *dy, int64_t ld_dy) {
    const struct ot_lora_unit *lora = linear->lora;
    ot_linear_backward_b(run, linear, dy, ld_dy);
    params_gemm(run, linear, 0, lora->rank, linear->dax, lora->rank, linear->in, input_of_a(run, linear, x),
                linear->in, ot_run_grad(run, lora->a));
}

/* The gradient of the products' result: of y, or with DoRA of u. */
struct product_gradient {
    const void *dy;
    int64_t ld;
};

static struct product_gradient product_gradient(const struct ot_linear *linear, const void *dy,
                                                int64_t ld_dy) {
    bool of_u = has_dora(linear) && linear->u;
    return (struct product_gradient){of_u ? linear->u : dy, of_u ? linear->out : ld_dy};
}

void ot_linear_backward_params(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                               const void *dy, int64_t ld_dy) {
    const struct product_gradient d = product_gradient(linear, dy, ld_dy);
    if (d.dy != dy)
        ot_linear_backward_u(run, linear, run->dtype, dy, ld_dy, linear->u);
    if (linear->dweight)
        params_gemm(run, linear, linear->scale, linear->out, d.dy, d.ld, linear->in, x, linear->in,
                    linear->dweight);
    if (has_lora(linear))
        lora_params(run, linear, x, d.dy, d.ld);
    if (!linear->dbias)
        return;
    const struct ot_bias_backward bias = {
        .dtype = run->dtype,
        .rows = linear->rows,
        .cols = linear->out,
        .ld = ld_dy,
        .dy = dy,               /* [rows, out] */
        .dbias = linear->dbias, /* [out] */
    };
    ot_run_ops(run)->bias_backward(run->lane, &bias);
}

/* dx = scale dy W, or dx += dy W. dy is [rows, k], W is [k, in]. */
static void input_gemm(const struct ot_block_run *run, const struct ot_linear *linear, float scale, int64_t k,
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
        .c = dx, /* [rows, in] */
        .ldc = linear->in,
        .scale = scale,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}

void ot_linear_backward_base(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                             int64_t ld_dy, void *dx) {
    input_gemm(run, linear, linear->scale, linear->out, dy, ld_dy, linear->weight, false, dx);
}

void ot_linear_backward_input(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                              int64_t ld_dy, void *dx) {
    const struct product_gradient d = product_gradient(linear, dy, ld_dy);
    bool through_dropout = has_lora(linear) && drops(run, linear);
    bool doubles = ot_linear_doubles(run, linear);
    if (doubles && linear->u)
        ot_linear_backward_base(run, linear, dy, ld_dy, dx);
    input_gemm(run, linear, linear->scale, linear->out, d.dy, d.ld, linear->weight, false,
               doubles ? linear->dropped : dx);
    if (!has_lora(linear))
        return;
    input_gemm(run, linear, 0, linear->lora->rank, linear->dax, linear->lora->rank,
               ot_run_weight(run, linear->lora->a), doubles || !through_dropout,
               through_dropout ? linear->dropped : dx);
    if (through_dropout)
        dropout(run, linear, linear->dropped, dx, doubles, dx);
}
