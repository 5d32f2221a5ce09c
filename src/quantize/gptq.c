#include "src/quantize/gptq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_blas.h"
#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

enum { BLOCK = 128, CHUNK_ROWS = 64 };

struct run {
    const struct ot_gptq *job;
    struct ot_pool *pool;
    int64_t rows, cols, group_size;
    int32_t *order;   /* [cols]: the column that is taken in each place */
    double *factor;   /* [cols, cols] in this order */
    float *upper;     /* [BLOCK, cols]: rows of U of the present block, from the block's first column on */
    float *errors;    /* [rows, BLOCK], negated */
    float *scratch;   /* [threads, CHUNK_ROWS, cols] */
    int64_t begin, n; /* the present block */
};

int64_t ot_gptq_groups(const struct ot_gptq_config *config, int64_t cols) {
    return config->group_size < 0 ? 1 : (cols + config->group_size - 1) / config->group_size;
}

int64_t ot_gptq_bytes(int64_t rows, int64_t cols, int threads) {
    return cols * cols * (int64_t)sizeof(double) + 2 * BLOCK * cols * (int64_t)sizeof(double) +
           (rows * BLOCK + threads * CHUNK_ROWS * cols) * (int64_t)sizeof(float);
}

/* ---- the order of the columns, and H in this order ---- */

struct ranked {
    float value;
    int32_t column;
};

/* Descending; of equal ones the lower column first. */
static int compare_ranked(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->value != y->value)
        return x->value > y->value ? -1 : 1;
    return x->column < y->column ? -1 : 1;
}

static int find_order(struct run *r) {
    const float *h = r->job->hessian;
    struct ranked *ranked = malloc((size_t)r->cols * sizeof *ranked);
    if (!ranked)
        return ot_fail(OT_E_BUDGET, "no memory to sort %lld columns", (long long)r->cols);
    for (int64_t i = 0; i < r->cols; i++)
        ranked[i] = (struct ranked){h[i * r->cols + i], (int32_t)i};
    if (r->job->config->act_order)
        qsort(ranked, (size_t)r->cols, sizeof *ranked, compare_ranked);
    for (int64_t i = 0; i < r->cols; i++) {
        r->order[i] = ranked[i].column;
        r->job->index[r->order[i]] = (int32_t)(i / r->group_size);
    }
    free(ranked);
    return 0;
}

static bool is_dead(const struct run *r, int64_t column) {
    return r->job->hessian[column * r->cols + column] == 0;
}

/* begin, end: rows of H in the order. */
static void order_hessian(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct run *r = context;
    (void)chunk, (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *row = r->job->hessian + r->order[i] * r->cols;
        for (int64_t j = i; j < r->cols; j++)
            r->factor[i * r->cols + j] = (double)row[r->order[j]];
    }
}

static int factor_hessian(struct run *r) {
    double sum = 0;
    ot_pool_run(r->pool, r->cols, 16, order_hessian, r);
    for (int64_t i = 0; i < r->cols; i++) {
        double *diagonal = &r->factor[i * r->cols + i];
        *diagonal = is_dead(r, r->order[i]) ? 1 : *diagonal;
        sum += *diagonal;
    }
    if (!isfinite(sum))
        return ot_fail(OT_E_NUMERIC, "the inputs of the calibration rows are not finite numbers");
    for (int64_t i = 0; i < r->cols; i++)
        r->factor[i * r->cols + i] += r->job->config->damping * sum / (double)r->cols;
    return ot_factor_inverse(r->pool, r->cols, r->factor);
}

/* ---- rows: between the columns' order and GPTQ's order ---- */

/* Clears the weights of dead columns, and computes the power of the outputs. begin, end: rows. */
static void measure_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct run *r = context;
    float *product = r->scratch + worker * CHUNK_ROWS * r->cols;
    (void)chunk;
    for (int64_t row = begin; row < end; row++)
        for (int64_t c = 0; c < r->cols; c++)
            if (is_dead(r, c))
                r->job->weights[row * r->cols + c] = 0;
    const struct ot_cpu_product times_h = {.m = end - begin,
                                           .n = r->cols,
                                           .k = r->cols,
                                           .a = r->job->weights + begin * r->cols,
                                           .b = r->job->hessian,
                                           .c = product,
                                           .lda = r->cols,
                                           .ldb = r->cols,
                                           .ldc = r->cols};
    ot_cpu_blas_f32(&times_h);
    for (int64_t row = begin; row < end; row++) {
        const float *weights = r->job->weights + row * r->cols, *out = product + (row - begin) * r->cols;
        double sum = 0;
        for (int64_t c = 0; c < r->cols; c++)
            sum += (double)weights[c] * (double)out[c];
        r->job->power[row] = sum;
        r->job->error[row] = 0;
    }
}

static void order_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct run *r = context;
    float *copy = r->scratch + worker * CHUNK_ROWS * r->cols;
    (void)chunk;
    for (int64_t row = begin; row < end; row++) {
        float *weights = r->job->weights + row * r->cols;
        memcpy(copy, weights, (size_t)r->cols * sizeof *copy);
        for (int64_t i = 0; i < r->cols; i++)
            weights[i] = copy[r->order[i]];
    }
}

/* Puts the codes back into the columns' order, and makes the values of them. */
static void decode_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct run *r = context;
    uint8_t *copy = (uint8_t *)(r->scratch + worker * CHUNK_ROWS * r->cols);
    (void)chunk;
    for (int64_t row = begin; row < end; row++) {
        uint8_t *codes = r->job->codes + row * r->cols;
        float *weights = r->job->weights + row * r->cols;
        memcpy(copy, codes, (size_t)r->cols);
        for (int64_t i = 0; i < r->cols; i++) {
            int64_t at = i / r->group_size * r->rows + row;
            codes[r->order[i]] = copy[i];
            weights[r->order[i]] = r->job->scales[at] * ((float)copy[i] - (float)r->job->zeros[at]);
        }
    }
}

/* ---- rounding ---- */

struct grid {
    float scale, zero, most; /* codes are 0 .. most */
};

/* A scale of 0 in fp16 would make infinite codes of weights that are not 0. */
static float scale_in_f16(float scale) {
    float stored = ot_f16_to_f32(ot_f16_from_f32(scale));
    return stored > 0 || isnan(stored) ? stored : 0x1p-24f;
}

static struct grid find_grid(const struct ot_gptq_config *config, const float *w, int64_t n) {
    float lo = 0, hi = 0, most = (float)((1 << config->bits) - 1);
    for (int64_t i = 0; i < n; i++) {
        lo = fminf(lo, w[i]);
        hi = fmaxf(hi, w[i]);
    }
    if (config->symmetric) {
        hi = fmaxf(hi, -lo);
        lo = -hi;
    }
    if (lo == 0 && hi == 0) {
        lo = -1;
        hi = 1;
    }
    float scale = scale_in_f16((hi - lo) / most);
    float zero = config->symmetric ? (most + 1) / 2 : fminf(rintf(-lo / scale), most);
    return (struct grid){scale, zero, most};
}

static float round_to(const struct grid *grid, float w) {
    float code = rintf(w / grid->scale) + grid->zero;
    return code > 0 ? fminf(code, grid->most) : 0; /* 0 for a NaN too */
}

/* The columns of the present block of one row. */
static void take_row(const struct run *r, int64_t row) {
    const struct ot_gptq *job = r->job;
    float *weights = job->weights + row * r->cols, *errors = r->errors + row * BLOCK;
    double sum = 0;
    for (int64_t i = 0; i < r->n; i++) {
        int64_t column = r->begin + i, group = column / r->group_size, at = group * r->rows + row;
        const float *upper = r->upper + i * r->cols;
        struct grid grid = {job->scales[at], (float)job->zeros[at], (float)((1 << job->config->bits) - 1)};
        if (column % r->group_size == 0) {
            int64_t left = r->cols - column, n = ot_min(left, r->group_size);
            grid = find_grid(job->config, weights + column, n);
            job->scales[at] = grid.scale;
            job->zeros[at] = (uint8_t)grid.zero;
        }
        float code = round_to(&grid, weights[column]);
        float error = (weights[column] - grid.scale * (code - grid.zero)) / upper[i];
        job->codes[row * r->cols + column] = (uint8_t)code;
        errors[i] = -error;
        sum += (double)error * (double)error;
        for (int64_t j = i + 1; j < r->n; j++)
            weights[r->begin + j] -= error * upper[j];
    }
    job->error[row] += sum;
}

/* Takes the block of some rows, then applies its errors to the columns behind it. */
static void take_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct run *r = context;
    int64_t behind = r->begin + r->n;
    (void)chunk, (void)worker;
    for (int64_t row = begin; row < end; row++)
        take_row(r, row);
    if (behind == r->cols)
        return;
    const struct ot_cpu_product update = {.accumulate = true,
                                          .m = end - begin,
                                          .n = r->cols - behind,
                                          .k = r->n,
                                          .a = r->errors + begin * BLOCK,
                                          .b = r->upper + r->n,
                                          .c = r->job->weights + begin * r->cols + behind,
                                          .lda = BLOCK,
                                          .ldb = r->cols,
                                          .ldc = r->cols};
    ot_cpu_blas_f32(&update);
}

static void take_all(struct run *r) {
    for (r->begin = 0; r->begin < r->cols; r->begin += BLOCK) {
        r->n = ot_min(r->cols - r->begin, BLOCK);
        for (int64_t i = 0; i < r->n; i++)
            for (int64_t j = i; j < r->cols - r->begin; j++)
                r->upper[i * r->cols + j] = (float)r->factor[(r->begin + i) * r->cols + r->begin + j];
        ot_pool_run(r->pool, r->rows, CHUNK_ROWS, take_rows, r);
    }
}

/* ---- without a Hessian ---- */

/* begin, end: rows. */
static void round_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct run *r = context;
    const struct ot_gptq *job = r->job;
    (void)chunk, (void)worker;
    for (int64_t row = begin; row < end; row++) {
        struct grid grid = {0};
        job->error[row] = job->power[row] = 0;
        for (int64_t c = 0; c < r->cols; c++) {
            float *weight = job->weights + row * r->cols + c;
            int64_t left = r->cols - c, at = c / r->group_size * r->rows + row;
            if (c % r->group_size == 0) {
                grid = find_grid(job->config, weight, ot_min(left, r->group_size));
                job->scales[at] = grid.scale;
                job->zeros[at] = (uint8_t)grid.zero;
            }
            float code = round_to(&grid, *weight), value = grid.scale * (code - grid.zero);
            double lost = (double)*weight - (double)value;
            job->codes[row * r->cols + c] = (uint8_t)code;
            job->error[row] += lost * lost;
            job->power[row] += (double)*weight * (double)*weight;
            *weight = value;
        }
    }
}

/* ---- the matrix ---- */

static int check_results(const struct run *r) {
    int64_t groups = ot_gptq_groups(r->job->config, r->cols);
    for (int64_t i = 0; i < groups * r->rows; i++)
        if (!isfinite(r->job->scales[i]))
            return ot_fail(OT_E_INPUT, "the weights of row %lld are too large for scales in fp16",
                           (long long)(i % r->rows));
    for (int64_t row = 0; row < r->rows; row++)
        if (!isfinite(r->job->error[row]))
            return ot_fail(OT_E_NUMERIC, "the errors of row %lld are not finite numbers", (long long)row);
    return ot_cpu_blas_error();
}

static int round_all(struct run *r) {
    for (int64_t c = 0; c < r->cols; c++)
        r->job->index[c] = (int32_t)(c / r->group_size);
    ot_pool_run(r->pool, r->rows, CHUNK_ROWS, round_rows, r);
    return check_results(r);
}

static int run_all(struct run *r) {
    OT_TRY(ot_cpu_blas_open());
    OT_TRY(find_order(r));
    ot_pool_run(r->pool, r->rows, CHUNK_ROWS, measure_rows, r);
    OT_TRY(factor_hessian(r));
    ot_pool_run(r->pool, r->rows, CHUNK_ROWS, order_rows, r);
    take_all(r);
    ot_pool_run(r->pool, r->rows, CHUNK_ROWS, decode_rows, r);
    return check_results(r);
}

int ot_gptq_run(struct ot_pool *pool, const struct ot_gptq *job) {
    struct run r = {.job = job, .pool = pool, .rows = job->rows, .cols = job->cols};
    size_t rows = (size_t)job->rows, cols = (size_t)job->cols;
    r.group_size = job->config->group_size < 0 ? job->cols : job->config->group_size;
    if (!job->hessian)
        return round_all(&r);
    r.order = malloc(cols * sizeof *r.order);
    r.factor = malloc(cols * cols * sizeof *r.factor);
    r.upper = malloc(BLOCK * cols * sizeof *r.upper);
    r.errors = malloc(rows * BLOCK * sizeof *r.errors);
    r.scratch = malloc((size_t)ot_pool_threads(pool) * CHUNK_ROWS * cols * sizeof *r.scratch);
    int rc = r.order && r.factor && r.upper && r.errors && r.scratch
                 ? run_all(&r)
                 : ot_fail(OT_E_BUDGET, "no memory to quantize a matrix of %lld x %lld", (long long)job->rows,
                           (long long)job->cols);
    free(r.order);
    free(r.factor);
    free(r.upper);
    free(r.errors);
    free(r.scratch);
    return rc;
}

/* ---- factor ---- */

enum { TILE = 128 };

struct factor {
    struct ot_pool *pool;
    int64_t n, tiles;
    double *h;
    double *panel;   /* [n, TILE] */
    double *inverse; /* [TILE, TILE]: of the tile of R on the diagonal */
    int64_t at;      /* the present tile */
};

static int64_t begin_of(int64_t tile) {
    return tile * TILE;
}

static int64_t rows_of(const struct factor *f, int64_t tile) {
    return ot_min(f->n - begin_of(tile), TILE);
}

static double *tile_at(const struct factor *f, int64_t row, int64_t col) {
    return f->h + begin_of(row) * f->n + begin_of(col);
}

/* ---- one tile ---- */

/* a = r r^T, in the upper triangle. The lower one becomes 0. */
static int factor_tile(double *a, int64_t n, int64_t ld) {
    for (int64_t j = n - 1; j >= 0; j--) {
        double sum = a[j * ld + j];
        for (int64_t k = j + 1; k < n; k++)
            sum -= a[j * ld + k] * a[j * ld + k];
        if (!(sum > 0) || !isfinite(sum))
            return ot_fail(OT_E_NUMERIC, "the Hessian is not positive definite");
        double root = sqrt(sum);
        a[j * ld + j] = root;
        for (int64_t i = 0; i < j; i++) {
            double value = a[i * ld + j];
            for (int64_t k = j + 1; k < n; k++)
                value -= a[i * ld + k] * a[j * ld + k];
            a[i * ld + j] = value / root;
            a[j * ld + i] = 0;
        }
    }
    return 0;
}

/* out [TILE, TILE] = r^-1 for an upper triangular r. */
static void invert_tile(const double *r, int64_t n, int64_t ld, double *out) {
    memset(out, 0, sizeof(double) * TILE * TILE);
    for (int64_t j = 0; j < n; j++) {
        out[j * TILE + j] = 1 / r[j * ld + j];
        for (int64_t i = j - 1; i >= 0; i--) {
            double sum = 0;
            for (int64_t k = i + 1; k <= j; k++)
                sum += r[i * ld + k] * out[k * TILE + j];
            out[i * TILE + j] = -sum / r[i * ld + i];
        }
    }
}

static void copy_tile(const double *from, int64_t ld_from, double *to, int64_t ld_to, int64_t rows,
                      int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * ld_to, from + i * ld_from, (size_t)cols * sizeof *to);
}

/* ---- H = R R^T ---- */

/* R[row, at] = H[row, at] inverse^T; it is kept in the panel too. */
static void solve_panel(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct factor *f = context;
    (void)chunk, (void)worker;
    int64_t cols = rows_of(f, f->at);
    for (int64_t row = begin; row < end; row++) {
        double *tile = tile_at(f, row, f->at), *panel = f->panel + begin_of(row) * TILE;
        const struct ot_cpu_product_f64 product = {.trans_b = true,
                                                   .m = rows_of(f, row),
                                                   .n = cols,
                                                   .k = cols,
                                                   .a = tile,
                                                   .lda = f->n,
                                                   .b = f->inverse,
                                                   .ldb = TILE,
                                                   .c = panel,
                                                   .ldc = TILE};
        ot_cpu_blas_f64(&product);
        copy_tile(panel, TILE, tile, f->n, rows_of(f, row), cols);
    }
}

/* H[row, cols from row on] -= R[row, at] R[cols, at]^T, for columns before `at`. */
static void update_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct factor *f = context;
    (void)chunk, (void)worker;
    for (int64_t row = begin; row < end; row++) {
        const struct ot_cpu_product_f64 product = {.trans_b = true,
                                                   .subtract = true,
                                                   .m = rows_of(f, row),
                                                   .n = begin_of(f->at) - begin_of(row),
                                                   .k = rows_of(f, f->at),
                                                   .a = f->panel + begin_of(row) * TILE,
                                                   .lda = TILE,
                                                   .b = f->panel + begin_of(row) * TILE,
                                                   .ldb = TILE,
                                                   .c = tile_at(f, row, row),
                                                   .ldc = f->n};
        ot_cpu_blas_f64(&product);
    }
}

static int factor_all(struct factor *f) {
    for (f->at = f->tiles - 1; f->at >= 0; f->at--) {
        double *diagonal = tile_at(f, f->at, f->at);
        OT_TRY(factor_tile(diagonal, rows_of(f, f->at), f->n));
        invert_tile(diagonal, rows_of(f, f->at), f->n, f->inverse);
        ot_pool_run(f->pool, f->at, 1, solve_panel, f);
        ot_pool_run(f->pool, f->at, 1, update_rows, f);
    }
    return 0;
}

/* ---- U = R^-1 ---- */

/* panel[row] = R[row, at] inverse */
static void scale_panel(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct factor *f = context;
    (void)chunk, (void)worker;
    int64_t cols = rows_of(f, f->at);
    for (int64_t row = begin; row < end; row++) {
        double *tile = tile_at(f, row, f->at);
        const struct ot_cpu_product_f64 product = {.m = rows_of(f, row),
                                                   .n = cols,
                                                   .k = cols,
                                                   .a = tile,
                                                   .lda = f->n,
                                                   .b = f->inverse,
                                                   .ldb = TILE,
                                                   .c = f->panel + begin_of(row) * TILE,
                                                   .ldc = TILE};
        ot_cpu_blas_f64(&product);
        for (int64_t i = 0; i < rows_of(f, row); i++)
            memset(tile + i * f->n, 0, (size_t)cols * sizeof *tile);
    }
}

/* U[row, at] = -U[row, row..at) panel[row..at) */
static void invert_panel(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct factor *f = context;
    (void)chunk, (void)worker;
    for (int64_t row = begin; row < end; row++) {
        const struct ot_cpu_product_f64 product = {.subtract = true,
                                                   .m = rows_of(f, row),
                                                   .n = rows_of(f, f->at),
                                                   .k = begin_of(f->at) - begin_of(row),
                                                   .a = tile_at(f, row, row),
                                                   .lda = f->n,
                                                   .b = f->panel + begin_of(row) * TILE,
                                                   .ldb = TILE,
                                                   .c = tile_at(f, row, f->at),
                                                   .ldc = f->n};
        ot_cpu_blas_f64(&product);
    }
}

static void clear_below(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct factor *f = context;
    (void)chunk, (void)worker;
    for (int64_t row = begin; row < end; row++)
        memset(f->h + row * f->n, 0, (size_t)row * sizeof *f->h);
}

static void invert_all(struct factor *f) {
    ot_pool_run(f->pool, f->n, TILE, clear_below, f);
    for (f->at = 0; f->at < f->tiles; f->at++) {
        double *diagonal = tile_at(f, f->at, f->at);
        invert_tile(diagonal, rows_of(f, f->at), f->n, f->inverse);
        ot_pool_run(f->pool, f->at, 1, scale_panel, f);
        ot_pool_run(f->pool, f->at, 1, invert_panel, f);
        copy_tile(f->inverse, TILE, diagonal, f->n, rows_of(f, f->at), rows_of(f, f->at));
    }
}

int ot_factor_inverse(struct ot_pool *pool, int64_t n, double *h) {
    struct factor f = {.pool = pool, .n = n, .tiles = ot_chunk_count(n, TILE), .h = h};
    int rc = ot_cpu_blas_open();
    f.panel = malloc((size_t)ot_max(n, TILE) * TILE * sizeof *f.panel);
    f.inverse = malloc(sizeof *f.inverse * TILE * TILE);
    if (rc == 0)
        rc = f.panel && f.inverse
                 ? factor_all(&f)
                 : ot_fail(OT_E_BUDGET, "no memory to factor a Hessian of %lld columns", (long long)n);
    if (rc == 0)
        invert_all(&f);
    free(f.panel);
    free(f.inverse);
    return rc;
}
