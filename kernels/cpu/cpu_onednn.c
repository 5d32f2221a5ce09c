#include "kernels/cpu/cpu_onednn.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/crash.h"
#include "src/base/error.h"

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

int ot_cpu_onednn_open(bool wants_bf16, struct ot_cpu_onednn *out) {
    struct opening opening = {wants_bf16, out};
    *out = (struct ot_cpu_onednn){0};
    return ot_crash_contain("oneDNN", open_all, &opening);
}

int ot_cpu_onednn_multiply(bool bf16, const struct ot_cpu_product *product) {
    int status = multiply(gemms[bf16], product);
    return status == SUCCESS ? 0 : fail(status);
}
