/* Plain loops in place of the OpenBLAS functions that kernels/cpu calls. Test programs that are sent to a GPU
 * machine are linked with this file: they need matrix products for small reference values only, and OpenBLAS
 * would add 30 MB. */
#include <assert.h>
#include <cblas.h>

void openblas_set_num_threads(int threads) {
    (void)threads;
}

/* Any value except OPENBLAS_SEQUENTIAL: it means that several threads may call at the same time. */
int openblas_get_parallel(void) {
    return OPENBLAS_THREAD;
}

char *openblas_get_config(void) {
    static char config[] = "plain 1 loops";
    return config;
}

char *openblas_get_corename(void) {
    static char name[] = "any";
    return name;
}

static float dot(const float *x, blasint x_step, const float *y, blasint n) {
    float sum = 0;
    for (blasint i = 0; i < n; i++)
        sum += x[i * (long)x_step] * y[i];
    return sum;
}

/* Computes one row of C. x is the row of op(A); its elements are x_step apart. */
static void add_row(const float *x, blasint x_step, const float *b, blasint ldb, CBLAS_TRANSPOSE trans_b,
                    blasint n, blasint k, float alpha, float *row) {
    if (trans_b == CblasTrans) {
        for (blasint j = 0; j < n; j++)
            row[j] += alpha * dot(x, x_step, b + j * (long)ldb, k);
        return;
    }
    for (blasint p = 0; p < k; p++) {
        float scale = alpha * x[p * (long)x_step];
        for (blasint j = 0; j < n; j++)
            row[j] += scale * b[p * (long)ldb + j];
    }
}

void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, blasint m, blasint n,
                 blasint k, float alpha, const float *a, blasint lda, const float *b, blasint ldb, float beta,
                 float *c, blasint ldc) {
    assert(order == CblasRowMajor);
    (void)order;
    for (blasint i = 0; i < m; i++) {
        float *row = c + i * (long)ldc;
        for (blasint j = 0; j < n; j++)
            row[j] = beta == 0 ? 0 : beta * row[j];
        if (trans_a == CblasTrans)
            add_row(a + i, lda, b, ldb, trans_b, n, k, alpha, row);
        else
            add_row(a + i * (long)lda, 1, b, ldb, trans_b, n, k, alpha, row);
    }
}

void cblas_dgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, blasint m, blasint n,
                 blasint k, double alpha, const double *a, blasint lda, const double *b, blasint ldb,
                 double beta, double *c, blasint ldc) {
    assert(order == CblasRowMajor && trans_a == CblasNoTrans);
    (void)order, (void)trans_a;
    long b_row = trans_b == CblasTrans ? 1 : ldb, b_col = trans_b == CblasTrans ? ldb : 1;
    for (blasint i = 0; i < m; i++)
        for (blasint j = 0; j < n; j++) {
            double sum = 0;
            for (blasint p = 0; p < k; p++)
                sum += a[i * (long)lda + p] * b[p * b_row + j * b_col];
            c[i * (long)ldc + j] = alpha * sum + (beta == 0 ? 0 : beta * c[i * (long)ldc + j]);
        }
}
