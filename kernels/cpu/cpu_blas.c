#include "kernels/cpu/cpu_blas.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_amx.h"
#include "kernels/cpu/cpu_onednn.h"
#include "src/base/error.h"

static struct {
    pthread_once_t once;
    struct ot_cpu_onednn onednn; /* members are false if oneDNN is not installed or not wanted */
    struct ot_error open_error;  /* code 0: no error */
    bool one_at_a_time;          /* two threads must not call OpenBLAS at once */
    pthread_mutex_t turn;
    enum ot_cpu_bf16 bf16_way;
    char name[64], arithmetic[160];
    /* The first failed product. A product has no lane to report to, so its lane asks. */
    pthread_mutex_t lock;
    atomic_bool has_failed;
    struct ot_error failure;
} blas = {.once = PTHREAD_ONCE_INIT, .turn = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- choice of the libraries ---- */

/* OpenBLAS starts its threads before main, and this program never uses them. If no thread can be started,
 * OpenBLAS kills the process or keeps it from ending. If OpenBLAS is linked statically, this function runs
 * before its constructor. */
__attribute__((constructor(101))) static void start_no_threads(void) {
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
}

/* True if the environment variable is not set or names this choice. */
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

static enum ot_cpu_bf16 choose_bf16(void) {
    if (wanted("OFFLOAD_TRAIN_BF16", "amx") && ot_cpu_amx_open())
        return OT_CPU_BF16_AMX;
    if (wanted("OFFLOAD_TRAIN_BF16", "onednn") && blas.onednn.bf16)
        return OT_CPU_BF16_ONEDNN;
    return OT_CPU_BF16_CONVERT;
}

/* The configuration text "OpenBLAS 0.3.21 NO_LAPACKE ..." begins with name and version. */
static void describe_arithmetic(void) {
    static const char *const ways[] = {", bf16 converted", ", bf16 by it", ", AMX bf16"};
    const char *config = openblas_get_config();
    size_t version = strcspn(config, " ");
    version += config[version] == ' ' ? 1 + strcspn(config + version + 1, " ") : 0;
    if (blas.onednn.f32)
        snprintf(blas.arithmetic, sizeof blas.arithmetic, "oneDNN %s%s", blas.onednn.version,
                 ways[blas.bf16_way]);
    else
        snprintf(blas.arithmetic, sizeof blas.arithmetic, "%.*s %.40s%s", (int)version, config,
                 openblas_get_corename(), ways[blas.bf16_way]);
}

static void open_blas(void) {
    if (wanted("OFFLOAD_TRAIN_BLAS", "onednn"))
        ot_error_save(&blas.open_error, ot_cpu_onednn_open(cpu_multiplies_bf16(), &blas.onednn));
    openblas_set_num_threads(1);
    /* Debian's serial build (0.3.21) has no locks: two threads get wrong products. */
    blas.one_at_a_time = openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
    blas.bf16_way = choose_bf16();
    static const char *const ways[] = {"", ", oneDNN bf16", ", AMX bf16"};
    const char *single = blas.onednn.f32 ? "oneDNN" : blas.one_at_a_time ? "serial OpenBLAS" : "OpenBLAS";
    snprintf(blas.name, sizeof blas.name, "%s%s", single, ways[blas.bf16_way]);
    describe_arithmetic();
}

int ot_cpu_blas_open(void) {
    pthread_once(&blas.once, open_blas);
    return ot_error_load(&blas.open_error);
}

enum ot_cpu_bf16 ot_cpu_blas_bf16_way(void) {
    pthread_once(&blas.once, open_blas);
    return blas.bf16_way;
}

const char *ot_cpu_blas_name(void) {
    pthread_once(&blas.once, open_blas);
    return blas.name;
}

const char *ot_cpu_blas_arithmetic(void) {
    pthread_once(&blas.once, open_blas);
    return blas.arithmetic;
}

/* ---- products ---- */

static void onednn_product(bool bf16, const struct ot_cpu_product *p) {
    int rc = ot_cpu_onednn_multiply(bf16, p);
    if (rc == 0)
        return;
    pthread_mutex_lock(&blas.lock);
    if (!atomic_load(&blas.has_failed))
        ot_error_save(&blas.failure, rc);
    atomic_store(&blas.has_failed, true);
    pthread_mutex_unlock(&blas.lock);
}

int ot_cpu_blas_error(void) {
    return atomic_load(&blas.has_failed) ? ot_error_load(&blas.failure) : 0;
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
    if (blas.onednn.f32)
        onednn_product(false, product);
    else
        openblas_product(product);
}

void ot_cpu_blas_f64(const struct ot_cpu_product_f64 *p) {
    pthread_once(&blas.once, open_blas);
    assert(p->m <= INT_MAX && p->n <= INT_MAX && p->k <= INT_MAX);
    assert(p->lda <= INT_MAX && p->ldb <= INT_MAX && p->ldc <= INT_MAX);
    if (blas.one_at_a_time)
        pthread_mutex_lock(&blas.turn);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n,
                (int)p->k, p->subtract ? -1 : 1, p->a, (int)p->lda, p->b, (int)p->ldb, p->subtract ? 1 : 0,
                p->c, (int)p->ldc);
    if (blas.one_at_a_time)
        pthread_mutex_unlock(&blas.turn);
}

void ot_cpu_blas_onednn(const struct ot_cpu_product *product) {
    onednn_product(true, product);
}
