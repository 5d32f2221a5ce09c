#include "kernels/cpu/cpu_blas.h"

#include <assert.h>
#include <cblas.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_amx.h"
#include "kernels/cpu/cpu_product.h"
#include "src/base/error.h"
#include "src/base/signals.h"

/* ---- oneDNN ---- */

/* oneDNN, opened at run time, for products of the cpu device. oneDNN is C++. An exception (no memory for
 * generated code) would end the process; here it becomes an error.
 *
 * Threads: call cpu_onednn_open once, before the first product. Any thread may compute products.
 */

struct ot_cpu_onednn {
    bool f32, bf16;   /* the kinds of products that it can compute here */
    char version[48]; /* version and the instruction set that it uses: "2.6.0 isa 0x7" */
};

/* The type of the GEMM functions: dnnl_sgemm, and one that oneDNN 2.x and 3.x export but do not declare in a
 * public header. The result is a dnnl_status_t. */
typedef int (*gemm_fn)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                       const void *a, int64_t lda, const void *b, int64_t ldb, float beta, float *c,
                       int64_t ldc);
enum { SUCCESS = 0, OUT_OF_MEMORY = 1, UNIMPLEMENTED = 3, THREW = -1 };

static gemm_fn gemms[2]; /* fp32, bf16 */
static void (*omp_threads)(int);

/* on_terminate jumps here while this thread runs a product; NULL otherwise. */
static _Thread_local jmp_buf *caller;

/* std::terminate calls this for an exception that nobody catches. The stack is not unwound, so oneDNN's
 * resources leak. That does not matter: the run ends with an error. */
static void on_terminate(void) {
    if (caller)
        longjmp(*caller, 1);
    abort();
}

static int call(gemm_fn gemm, const struct ot_cpu_product *p) {
    jmp_buf here;
    int status;
    caller = &here;
    if (setjmp(here) == 0)
        status = gemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, 1, p->a, p->lda, p->b,
                      p->ldb, p->accumulate ? 1 : 0, p->c, p->ldc);
    else
        status = THREW;
    caller = NULL;
    return status;
}

static const char cure[] = "set OFFLOAD_TRAIN_BLAS=openblas in the environment to run without it";

static int fail(int status) {
    if (status == THREW || status == OUT_OF_MEMORY)
        return ot_fail(OT_E_DEVICE, "oneDNN has no memory for a matrix product; %s", cure);
    return ot_fail(OT_E_DEVICE, "oneDNN cannot multiply matrices (status %d); %s", status, cure);
}

static int multiply(gemm_fn gemm, const struct ot_cpu_product *product) {
    /* OpenMP stores its number of threads per calling thread. */
    static _Thread_local bool single;
    if (!single && omp_threads)
        omp_threads(1);
    single = true;
    return call(gemm, product);
}

/* Runs each variant for which oneDNN generates its own code. Returns the first status that is not SUCCESS. */
static int try_all(gemm_fn gemm) {
    enum { N = 48 };
    static float a[N * N], b[N * N], c[N * N]; /* zeros in both dtypes */
    for (int variant = 0; variant < 8; variant++) {
        struct ot_cpu_product product = {variant & 1, variant & 2, variant & 4, N, N, N, a, b, c, N, N, N};
        int status = multiply(gemm, &product);
        if (status != SUCCESS)
            return status;
    }
    return SUCCESS;
}

/* *out is NULL if oneDNN is not installed. */
static int open_library(void **out) {
    *out = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    const char *why = *out ? NULL : dlerror();
    if (why && strstr(why, "No such file")) {
        *out = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
        why = *out ? NULL : dlerror();
    }
    if (!why || strstr(why, "No such file"))
        return 0;
    return ot_fail(OT_E_DEVICE, "oneDNN cannot be loaded: %s; %s", why, cure);
}

/* The first members of oneDNN's dnnl_version_t. */
struct version {
    int major, minor, patch;
};

/* isa: a dnnl_cpu_isa_t, printed as oneDNN's own number. */
static void describe(void *library, struct ot_cpu_onednn *out) {
    const struct version *(*version)(void) = (const struct version *(*)(void))dlsym(library, "dnnl_version");
    int (*isa)(void) = (int (*)(void))dlsym(library, "dnnl_get_effective_cpu_isa");
    const struct version *is = version ? version() : NULL;
    snprintf(out->version, sizeof out->version, "%d.%d.%d isa 0x%x", is ? is->major : 0, is ? is->minor : 0,
             is ? is->patch : 0, isa ? (unsigned)isa() : 0);
}

struct opening {
    bool wants_bf16;
    struct ot_cpu_onednn *out;
};

static int open_all(void *context) {
    const struct opening *opening = context;
    static const char *const names[] = {"dnnl_sgemm", "dnnl_gemm_bf16bf16f32"};
    void *library;
    OT_TRY(open_library(&library));
    if (!library)
        return 0;
    /* The library stays open until the process ends, because its kernels are in use. */
    omp_threads = (void (*)(int))dlsym(library, "omp_set_num_threads");
    void (*set_terminate)(void (*)(void)) =
        (void (*)(void (*)(void)))dlsym(library, "_ZSt13set_terminatePFvvE");
    if (set_terminate)
        set_terminate(on_terminate);
    for (int bf16 = 0; bf16 <= opening->wants_bf16; bf16++) {
        gemm_fn gemm = (gemm_fn)dlsym(library, names[bf16]);
        int status = gemm ? try_all(gemm) : UNIMPLEMENTED;
        /* UNIMPLEMENTED: on this CPU, or because of ONEDNN_MAX_CPU_ISA */
        if (status != SUCCESS && status != UNIMPLEMENTED)
            return fail(status);
        gemms[bf16] = status == SUCCESS ? gemm : NULL;
    }
    describe(library, opening->out);
    opening->out->f32 = gemms[0];
    opening->out->bf16 = gemms[1];
    return 0;
}

/* Computes small products, so that the library generates its code now and not inside a step. If the library
 * is not installed, the members of *out are false. OT_E_DEVICE, OT_E_BUDGET: the library is installed but
 * fails. */
static int cpu_onednn_open(bool wants_bf16, struct ot_cpu_onednn *out) {
    struct opening opening = {wants_bf16, out};
    *out = (struct ot_cpu_onednn){0};
    return ot_crash_contain("oneDNN", open_all, &opening);
}

/* OT_E_DEVICE: the product was not computed, or only in part. */
static int cpu_onednn_multiply(bool bf16, const struct ot_cpu_product *product) {
    int status = multiply(gemms[bf16], product);
    return status == SUCCESS ? 0 : fail(status);
}

/* ---- cpu blas ---- */

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

/* The kernels of OpenBLAS for the vector instructions of this CPU; NULL: OpenBLAS chooses. For a CPU that is
 * younger than itself, OpenBLAS takes kernels without AVX: 13 instead of 105 GFLOP/s on a Xeon of 2023. */
static const char *openblas_kernels(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

/* OpenBLAS starts its threads before main, and this program never uses them. If no thread can be started,
 * OpenBLAS kills the process or keeps it from ending. If OpenBLAS is linked statically, this function runs
 * before its constructor. */
__attribute__((constructor(101))) static void configure_openblas(void) {
    const char *kernels = openblas_kernels();
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    if (kernels)
        setenv("OPENBLAS_CORETYPE", kernels, 0);
}

/* True if the environment variable is not set or names this choice. */
static bool wanted(const char *variable, const char *choice) {
    const char *forced = getenv(variable);
    return !forced || !*forced || strcmp(forced, choice) == 0;
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
        ot_error_save(&blas.open_error, cpu_onednn_open(cpu_multiplies_bf16(), &blas.onednn));
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
    int rc = cpu_onednn_multiply(bf16, p);
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
