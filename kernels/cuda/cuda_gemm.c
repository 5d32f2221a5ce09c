#include "kernels/cuda/cuda_gemm.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_gemm_state.h"
#include "kernels/cuda/gemm_plain.h"
#include "src/base/error.h"

/* ---- opening ---- */

/* Sets the limits that all products give the heuristic. Each product adds its own (cuda_gemm_plan.c). */
static int create_preferences(struct ot_cuda_gemm *gemm) {
    uint64_t workspace = OT_CUDA_GEMM_WORKSPACE_BYTES;
    int status = gemm->lt.pref_create(&gemm->pref);
    if (status == OT_CUBLASLT_SUCCESS)
        status =
            gemm->lt.pref_set(gemm->pref, OT_CUBLASLT_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    return status;
}

static int start_library(struct ot_cuda_gemm *gemm) {
    int status = gemm->lt.create(&gemm->context);
    if (status == OT_CUBLASLT_SUCCESS)
        status = create_preferences(gemm);
    if (status == OT_CUBLASLT_SUCCESS)
        return 0;
    return ot_fail(OT_E_DEVICE, "%s does not start on this GPU: %s%s", gemm->name,
                   gemm->lt.get_status_string(status),
                   status == OT_CUBLASLT_ALLOC_FAILED || status == OT_CUBLASLT_NOT_INITIALIZED
                       ? "; is its memory in use by another program?"
                       : "");
}

static int read_choices(struct ot_cuda_gemm *gemm, const struct ot_cuda_gemm_config *config) {
    snprintf(gemm->identity, sizeof gemm->identity, "%s, %d SMs, sm_%d, driver %d, %s, workspace %d",
             config->gpu, config->sm_count, config->arch, config->driver_version, gemm->name,
             OT_CUDA_GEMM_WORKSPACE_BYTES);
    if (!config->cache_folder)
        return 0;
    OT_TRY(ot_gemm_cache_path(config->cache_folder, gemm->identity, &gemm->cache_path));
    return ot_gemm_cache_read(gemm->cache_path, gemm->identity, &gemm->choices, &gemm->n_choices);
}

int ot_cuda_gemm_open(const struct ot_cuda_gemm_config *config, struct ot_cuda_gemm **out) {
    *out = NULL;
    struct ot_cuda_gemm *gemm = calloc(1, sizeof *gemm);
    if (!gemm)
        return ot_fail(OT_E_BUDGET, "no host memory for the matrix products of the GPU");
    int rc;
    OT_TRY_GOTO(ot_cublaslt_open(config->library, config->driver_version, &gemm->lt), rc, out);
    snprintf(gemm->name, sizeof gemm->name, "cuBLASLt %d.%d.%d", gemm->lt.major, gemm->lt.minor,
             gemm->lt.patch);
    OT_TRY_GOTO(start_library(gemm), rc, out);
    gemm->proof_elems = config->proof_elems;
    OT_TRY_GOTO(read_choices(gemm, config), rc, out);
    *out = gemm;
    return 0;
out:
    ot_cuda_gemm_close(gemm);
    return rc;
}

void ot_cuda_gemm_close(struct ot_cuda_gemm *gemm) {
    if (!gemm)
        return;
    ot_gemm_plans_free(gemm);
    if (gemm->pref)
        gemm->lt.pref_destroy(gemm->pref);
    if (gemm->context)
        gemm->lt.destroy(gemm->context);
    free(gemm->choices);
    free(gemm->cache_path);
    free(gemm);
}

const char *ot_cuda_gemm_name(const struct ot_cuda_gemm *gemm) {
    return gemm->name;
}

/* ---- products ---- */

static bool copies_bias(const struct ot_gemm *op) {
    return op->bias && (op->c_dtype != op->dtype || (uintptr_t)op->bias % OT_GEMM_ALIGNMENT != 0);
}

/* Puts the bias where the epilogue needs it, in the dtype of C. */
static int place_bias(const struct ot_gemm *op, const struct ot_cuda_stream *on, const void **out) {
    *out = op->bias;
    if (!copies_bias(op))
        return 0;
    size_t bytes = (size_t)op->n * ot_dtype_bytes(op->c_dtype);
    if (bytes > OT_CUDA_GEMM_BIAS_BYTES)
        return ot_fail(OT_E_DEVICE, "a bias of %lld elements does not fit the device's scratch",
                       (long long)op->n);
    void *place = (char *)on->scratch + OT_CUDA_GEMM_WORKSPACE_BYTES;
    *out = place;
    if (op->c_dtype == op->dtype)
        return ot_cuda_check(cudaMemcpyAsync(place, op->bias, bytes, cudaMemcpyDeviceToDevice, on->stream),
                             "copy a bias");
    const struct ot_cast cast = {
        .from = op->dtype, .to = op->c_dtype, .n = op->n, .src = op->bias, .dst = place};
    return ot_cuda_check(ot_cuda_cast(&cast, on), "convert a bias");
}

/* *status: the library's status; success if the plain kernel computes the product. */
static int start(struct ot_cuda_gemm *gemm, const struct ot_gemm_plan *plan, const struct ot_gemm *op,
                 const struct ot_cuda_stream *on, int *status) {
    static const float zero = 0, one = 1;
    const void *bias, *addend = op->addend ? op->addend : op->c;
    const float *scale = op->scale != 0 ? &op->scale : &one;
    *status = OT_CUBLASLT_SUCCESS;
    if (plan->is_plain)
        return ot_cuda_check(ot_cuda_gemm_plain(op, on), "compute the product %s",
                             ot_gemm_key_text(&plan->key).text);
    OT_TRY(place_bias(op, on, &bias));
    if (bias)
        *status = gemm->lt.desc_set(plan->desc, OT_CUBLASLT_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (*status == OT_CUBLASLT_SUCCESS)
        *status = gemm->lt.matmul(gemm->context, plan->desc, scale, op->b, plan->a, op->a, plan->b,
                                  op->addend ? &one : &zero, addend, plan->c, op->c, plan->c, &plan->algo,
                                  on->scratch, OT_CUDA_GEMM_WORKSPACE_BYTES, on->stream);
    return ot_gemm_check(gemm, *status, "start a kernel", &plan->key);
}

int ot_gemm_plan_run(struct ot_cuda_gemm *gemm, const struct ot_gemm_plan *plan, const struct ot_gemm *op,
                     const struct ot_cuda_stream *on) {
    int status;
    return start(gemm, plan, op, on, &status);
}

/* True if the library refused an algorithm that it had proposed itself, and computed nothing. */
static bool is_refusal(int status) {
    return status == OT_CUBLASLT_NOT_SUPPORTED || status == OT_CUBLASLT_ARCH_MISMATCH ||
           status == OT_CUBLASLT_INVALID_VALUE;
}

int ot_cuda_gemm(struct ot_cuda_gemm *gemm, const struct ot_gemm *op, const struct ot_cuda_stream *on) {
    assert(op->m >= 1 && op->n >= 1 && op->k >= 1);
    assert(op->c_dtype == OT_F32 || op->c_dtype == op->dtype);
    assert(on->scratch_bytes >= OT_CUDA_GEMM_SCRATCH_BYTES);
    struct ot_gemm_plan *plan;
    int status;
    OT_TRY(ot_gemm_plan_find(gemm, op, &plan));
    int rc = start(gemm, plan, op, on, &status);
    if (rc >= 0 || !is_refusal(status))
        return rc;
    ot_gemm_plan_give_up(gemm, plan, "cannot start its algorithm");
    return start(gemm, plan, op, on, &status);
}
