#include "kernels/cpu/cpu_blas.h"

#include <assert.h>
#include <cblas.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* oneDNN's GEMM entry (exported by 2.x and 3.x, declared in no public header); 0 is success. */
typedef int (*bf16_gemm_fn)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                            const void *a, int64_t lda, const void *b, int64_t ldb, float beta, float *c,
                            int64_t ldc);

static struct {
    pthread_once_t once;
    bool one_at_a_time; /* OpenBLAS may not be called by two threads at once */
    pthread_mutex_t turn;
    bf16_gemm_fn bf16_gemm;
    void (*omp_set_num_threads)(int);
} blas = {.once = PTHREAD_ONCE_INIT, .turn = PTHREAD_MUTEX_INITIALIZER};

static bool cpu_multiplies_bf16(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

static void open_onednn(void) {
    const char *choice = getenv("OFFLOAD_TRAIN_BF16");
    if ((choice && strcmp(choice, "openblas") == 0) || !cpu_multiplies_bf16())
        return;
    void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    /* Kept open to the end: its kernels are in use by then. */
    blas.bf16_gemm = (bf16_gemm_fn)dlsym(library, "dnnl_gemm_bf16bf16f32");
    blas.omp_set_num_threads = (void (*)(int))dlsym(library, "omp_set_num_threads");
}

static void blas_open(void) {
    openblas_set_num_threads(1);
    /* Debian's serial build (0.3.21) gives wrong products when two threads call it: it is compiled without
     * locks. */
    blas.one_at_a_time = openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
    open_onednn();
}

void ot_cpu_blas_f32(const struct ot_cpu_product *p) {
    pthread_once(&blas.once, blas_open);
    assert(p->m <= INT_MAX && p->n <= INT_MAX && p->k <= INT_MAX);
    assert(p->lda <= INT_MAX && p->ldb <= INT_MAX && p->ldc <= INT_MAX);
    if (blas.one_at_a_time)
        pthread_mutex_lock(&blas.turn);
    cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans,
                (int)p->m, (int)p->n, (int)p->k, p->alpha, p->a, (int)p->lda, p->b, (int)p->ldb, p->beta,
                p->c, (int)p->ldc);
    if (blas.one_at_a_time)
        pthread_mutex_unlock(&blas.turn);
}

bool ot_cpu_blas_has_bf16(void) {
    pthread_once(&blas.once, blas_open);
    return blas.bf16_gemm != NULL;
}

void ot_cpu_blas_bf16(const struct ot_cpu_product *p) {
    /* OpenMP keeps its thread count per calling thread. */
    static _Thread_local bool single;
    if (!single && blas.omp_set_num_threads)
        blas.omp_set_num_threads(1);
    single = true;
    int rc = blas.bf16_gemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, p->alpha, p->a,
                            p->lda, p->b, p->ldb, p->beta, p->c, p->ldc);
    assert(rc == 0);
    (void)rc;
}

const char *ot_cpu_blas_name(void) {
    bool native = ot_cpu_blas_has_bf16();
    if (blas.one_at_a_time)
        return native ? "serial OpenBLAS, oneDNN bf16" : "serial OpenBLAS";
    return native ? "OpenBLAS, oneDNN bf16" : "OpenBLAS";
}
