#include "src/quantize/factor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_blas.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/pool.h"

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
            double rest = a[i * ld + j];
            for (int64_t k = j + 1; k < n; k++)
                rest -= a[i * ld + k] * a[j * ld + k];
            a[i * ld + j] = rest / root;
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
