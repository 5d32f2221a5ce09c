#include "kernels/cpu/cpu_blas.h"

#include <assert.h>
#include <cblas.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_amx.h"

/* oneDNN's GEMM entry (exported by 2.x and 3.x, declared in no public header); 0 is success. */
typedef int (*onednn_gemm_fn)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                              const void *a, int64_t lda, const void *b, int64_t ldb, float beta, float *c,
                              int64_t ldc);

static struct {
    pthread_once_t once;
    bool one_at_a_time; /* OpenBLAS may not be called by two threads at once */
    pthread_mutex_t turn;
    enum ot_cpu_bf16 bf16_way;
    onednn_gemm_fn onednn;
    void (*omp_set_num_threads)(int);
    char name[64];
} blas = {.once = PTHREAD_ONCE_INIT, .turn = PTHREAD_MUTEX_INITIALIZER};

static bool open_onednn(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx512bf16"))
        return false; /* it would convert as well */
#endif
    void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    /* Kept open to the end: its kernels are in use by then. */
    blas.onednn = (onednn_gemm_fn)dlsym(library, "dnnl_gemm_bf16bf16f32");
    blas.omp_set_num_threads = (void (*)(int))dlsym(library, "omp_set_num_threads");
    return blas.onednn != NULL;
}

static enum ot_cpu_bf16 choose_bf16(void) {
    const char *wish = getenv("OFFLOAD_TRAIN_BF16");
    bool any = !wish || !*wish;
    if ((any || strcmp(wish, "amx") == 0) && ot_cpu_amx_open())
        return OT_CPU_BF16_AMX;
    if ((any || strcmp(wish, "onednn") == 0) && open_onednn())
        return OT_CPU_BF16_ONEDNN;
    return OT_CPU_BF16_CONVERT;
}

static void open_blas(void) {
    openblas_set_num_threads(1);
    /* Debian's serial build (0.3.21) has no locks: two threads get wrong products. */
    blas.one_at_a_time = openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
    blas.bf16_way = choose_bf16();
    static const char *const ways[] = {"", ", oneDNN bf16", ", AMX bf16"};
    snprintf(blas.name, sizeof blas.name, "%sOpenBLAS%s", blas.one_at_a_time ? "serial " : "",
             ways[blas.bf16_way]);
}

void ot_cpu_blas_f32(const struct ot_cpu_product *p) {
    pthread_once(&blas.once, open_blas);
    assert(p->m <= INT_MAX && p->n <= INT_MAX && p->k <= INT_MAX);
    assert(p->lda <= INT_MAX && p->ldb <= INT_MAX && p->ldc <= INT_MAX);
    if (blas.one_at_a_time)
        pthread_mutex_lock(&blas.turn);
    cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans,
                (int)p->m, (int)p->n, (int)p->k, 1, p->a, (int)p->lda, p->b, (int)p->ldb,
                p->accumulate ? 1 : 0, p->c, (int)p->ldc);
    if (blas.one_at_a_time)
        pthread_mutex_unlock(&blas.turn);
}

enum ot_cpu_bf16 ot_cpu_blas_bf16_way(void) {
    pthread_once(&blas.once, open_blas);
    return blas.bf16_way;
}

void ot_cpu_blas_onednn(const struct ot_cpu_product *p) {
    /* OpenMP keeps its thread count per calling thread. */
    static _Thread_local bool single;
    if (!single && blas.omp_set_num_threads)
        blas.omp_set_num_threads(1);
    single = true;
    int rc = blas.onednn(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, 1, p->a, p->lda,
                         p->b, p->ldb, p->accumulate ? 1 : 0, p->c, p->ldc);
    assert(rc == 0);
    (void)rc;
}

const char *ot_cpu_blas_name(void) {
    pthread_once(&blas.once, open_blas);
    return blas.name;
}
