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

/* oneDNN's GEMM entries: dnnl_sgemm, and one that 2.x and 3.x export but declare in no public header. 0 is
 * success. */
typedef int (*onednn_gemm_fn)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                              const void *a, int64_t lda, const void *b, int64_t ldb, float beta, float *c,
                              int64_t ldc);

static struct {
    pthread_once_t once;
    onednn_gemm_fn onednn_f32, onednn_bf16; /* NULL: not there, or not wanted */
    void (*omp_set_num_threads)(int);
    bool one_at_a_time; /* OpenBLAS may not be called by two threads at once */
    pthread_mutex_t turn;
    enum ot_cpu_bf16 bf16_way;
    char name[64];
} blas = {.once = PTHREAD_ONCE_INIT, .turn = PTHREAD_MUTEX_INITIALIZER};

/* ---- what there is ---- */

/* Whether the environment leaves the choice to us, or makes this one. */
static bool wanted(const char *variable, const char *choice) {
    const char *wish = getenv(variable);
    return !wish || !*wish || strcmp(wish, choice) == 0;
}

static bool cpu_multiplies_bf16(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

/* The library stays open to the end: its kernels are in use by then. */
static void open_onednn(void) {
    void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    blas.onednn_f32 = (onednn_gemm_fn)dlsym(library, "dnnl_sgemm");
    if (cpu_multiplies_bf16())
        blas.onednn_bf16 = (onednn_gemm_fn)dlsym(library, "dnnl_gemm_bf16bf16f32");
    blas.omp_set_num_threads = (void (*)(int))dlsym(library, "omp_set_num_threads");
}

static enum ot_cpu_bf16 choose_bf16(void) {
    if (wanted("OFFLOAD_TRAIN_BF16", "amx") && ot_cpu_amx_open())
        return OT_CPU_BF16_AMX;
    if (wanted("OFFLOAD_TRAIN_BF16", "onednn") && blas.onednn_bf16)
        return OT_CPU_BF16_ONEDNN;
    return OT_CPU_BF16_CONVERT;
}

static void open_blas(void) {
    if (wanted("OFFLOAD_TRAIN_BLAS", "onednn"))
        open_onednn();
    openblas_set_num_threads(1);
    /* Debian's serial build (0.3.21) has no locks: two threads get wrong products. */
    blas.one_at_a_time = openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
    blas.bf16_way = choose_bf16();
    static const char *const ways[] = {"", ", oneDNN bf16", ", AMX bf16"};
    const char *single = blas.onednn_f32 ? "oneDNN" : blas.one_at_a_time ? "serial OpenBLAS" : "OpenBLAS";
    snprintf(blas.name, sizeof blas.name, "%s%s", single, ways[blas.bf16_way]);
}

enum ot_cpu_bf16 ot_cpu_blas_bf16_way(void) {
    pthread_once(&blas.once, open_blas);
    return blas.bf16_way;
}

const char *ot_cpu_blas_name(void) {
    pthread_once(&blas.once, open_blas);
    return blas.name;
}

/* ---- products ---- */

static void onednn_product(onednn_gemm_fn gemm, const struct ot_cpu_product *p) {
    /* OpenMP keeps its thread count per calling thread. */
    static _Thread_local bool single;
    if (!single && blas.omp_set_num_threads)
        blas.omp_set_num_threads(1);
    single = true;
    int rc = gemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, 1, p->a, p->lda, p->b,
                  p->ldb, p->accumulate ? 1 : 0, p->c, p->ldc);
    assert(rc == 0);
    (void)rc;
}

static void openblas_product(const struct ot_cpu_product *p) {
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

void ot_cpu_blas_f32(const struct ot_cpu_product *product) {
    pthread_once(&blas.once, open_blas);
    if (blas.onednn_f32)
        onednn_product(blas.onednn_f32, product);
    else
        openblas_product(product);
}

void ot_cpu_blas_onednn(const struct ot_cpu_product *product) {
    onednn_product(blas.onednn_bf16, product);
}
