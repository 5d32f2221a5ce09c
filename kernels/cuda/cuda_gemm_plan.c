/* Plans of products: the descriptors and the algorithm of cuBLASLt for each shape, in a hash table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_gemm_state.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/log.h"

_Static_assert(sizeof(struct ot_gemm_key) == 6 * 8 + 16, "compared as bytes: no padding");

/* ---- shapes ---- */

/* The common alignment of both addresses; the second may be NULL. */
static uint8_t alignment_of(const void *address, const void *other) {
    uintptr_t bits = (uintptr_t)address | (uintptr_t)other | OT_GEMM_ALIGNMENT;
    return (uint8_t)(bits & -bits);
}

static struct ot_gemm_key make_key(const struct ot_gemm *op) {
    return (struct ot_gemm_key){.m = op->m,
                                .n = op->n,
                                .k = op->k,
                                .lda = op->lda,
                                .ldb = op->ldb,
                                .ldc = op->ldc,
                                .dtype = (uint8_t)op->dtype,
                                .c_dtype = (uint8_t)op->c_dtype,
                                .trans_a = op->trans_a,
                                .trans_b = op->trans_b,
                                .bias = op->bias != NULL,
                                .align_a = alignment_of(op->a, NULL),
                                .align_b = alignment_of(op->b, NULL),
                                .align_c = alignment_of(op->c, op->addend)};
}

static size_t hash_of(const struct ot_gemm_key *key) {
    uint64_t hash = ot_fnv64(OT_FNV64, key, sizeof *key);
    return (size_t)(hash ^ hash >> 32);
}

struct ot_gemm_text ot_gemm_key_text(const struct ot_gemm_key *key) {
    struct ot_gemm_text out;
    snprintf(out.text, sizeof out.text, "%s [%lld,%lld] = [%lld,%lld]%s [%lld,%lld]%s%s",
             ot_dtype_name(key->dtype), (long long)key->m, (long long)key->n,
             (long long)(key->trans_a ? key->k : key->m), (long long)(key->trans_a ? key->m : key->k),
             key->trans_a ? "^T" : "", (long long)(key->trans_b ? key->n : key->k),
             (long long)(key->trans_b ? key->k : key->n), key->trans_b ? "^T" : "",
             key->bias ? " + bias" : "");
    return out;
}

int ot_gemm_check(const struct ot_cuda_gemm *gemm, int status, const char *what,
                  const struct ot_gemm_key *key) {
    if (status == OT_CUBLASLT_SUCCESS)
        return 0;
    return ot_fail(OT_E_DEVICE, "%s cannot %s for the product %s: %s", gemm->name, what,
                   ot_gemm_key_text(key).text, gemm->lt.get_status_string(status));
}

/* ---- descriptors ---- */

static int type_of(uint8_t dtype) {
    static const int types[] = {
        [OT_F32] = OT_CUBLASLT_R_32F, [OT_BF16] = OT_CUBLASLT_R_16BF, [OT_F16] = OT_CUBLASLT_R_16F};
    return types[dtype];
}

static int create_layout(const struct ot_cuda_gemm *gemm, uint8_t dtype, int64_t rows, int64_t cols,
                         int64_t ld, struct ot_cublaslt_layout **out) {
    return gemm->lt.layout_create(out, type_of(dtype), (uint64_t)rows, (uint64_t)cols, ld);
}

static int set_int(const struct ot_cuda_gemm *gemm, struct ot_cublaslt_desc *desc, int attribute, int value) {
    return gemm->lt.desc_set(desc, attribute, &value, sizeof value);
}

static int set_epilogue(const struct ot_cuda_gemm *gemm, struct ot_gemm_plan *plan) {
    /* The heuristic derives the alignment of the bias from its address. Each product sets its own bias later.
     * So the heuristic gets an address that has the promised alignment and no more. */
    static const _Alignas(2 * OT_GEMM_ALIGNMENT) char place[2 * OT_GEMM_ALIGNMENT];
    const void *bias = place + OT_GEMM_ALIGNMENT;
    int status = set_int(gemm, plan->desc, OT_CUBLASLT_DESC_EPILOGUE, OT_CUBLASLT_EPILOGUE_BIAS);
    if (status == OT_CUBLASLT_SUCCESS)
        status = set_int(gemm, plan->desc, OT_CUBLASLT_DESC_BIAS_DATA_TYPE, type_of(plan->key.c_dtype));
    if (status == OT_CUBLASLT_SUCCESS)
        status = gemm->lt.desc_set(plan->desc, OT_CUBLASLT_DESC_BIAS_POINTER, &bias, sizeof bias);
    return status;
}

/* C^T[n,m] = op(B)^T[n,k] op(A)^T[k,m], column-major. A row-major matrix, read column-major, is its own
 * transpose. So cuBLASLt transposes exactly the matrices that we transpose. */
static int create_descriptors(const struct ot_cuda_gemm *gemm, struct ot_gemm_plan *plan) {
    const struct ot_gemm_key *key = &plan->key;
    int compute = key->dtype == OT_F32 ? OT_CUBLASLT_COMPUTE_32F_PEDANTIC : OT_CUBLASLT_COMPUTE_32F;
    int status = gemm->lt.desc_create(&plan->desc, compute, OT_CUBLASLT_R_32F);
    if (status == OT_CUBLASLT_SUCCESS)
        status = set_int(gemm, plan->desc, OT_CUBLASLT_DESC_TRANSA,
                         key->trans_b ? OT_CUBLASLT_OP_T : OT_CUBLASLT_OP_N);
    if (status == OT_CUBLASLT_SUCCESS)
        status = set_int(gemm, plan->desc, OT_CUBLASLT_DESC_TRANSB,
                         key->trans_a ? OT_CUBLASLT_OP_T : OT_CUBLASLT_OP_N);
    if (status == OT_CUBLASLT_SUCCESS && key->bias)
        status = set_epilogue(gemm, plan);
    if (status == OT_CUBLASLT_SUCCESS)
        status = create_layout(gemm, key->dtype, key->trans_b ? key->k : key->n,
                               key->trans_b ? key->n : key->k, key->ldb, &plan->a);
    if (status == OT_CUBLASLT_SUCCESS)
        status = create_layout(gemm, key->dtype, key->trans_a ? key->m : key->k,
                               key->trans_a ? key->k : key->m, key->lda, &plan->b);
    if (status == OT_CUBLASLT_SUCCESS)
        status = create_layout(gemm, key->c_dtype, key->n, key->m, key->ldc, &plan->c);
    return ot_gemm_check(gemm, status, "describe matrices", key);
}

static void destroy_descriptors(const struct ot_cuda_gemm *gemm, struct ot_gemm_plan *plan) {
    if (plan->c)
        gemm->lt.layout_destroy(plan->c);
    if (plan->b)
        gemm->lt.layout_destroy(plan->b);
    if (plan->a)
        gemm->lt.layout_destroy(plan->a);
    if (plan->desc)
        gemm->lt.desc_destroy(plan->desc);
}

/* ---- algorithms ---- */

/* The allowed ways to add partial sums along k. With a bias, k may not be split: cuBLASLt 13.1 then rounds
 * the sum to two bytes before it adds the bias (seen on an H200 for rows that are 4- or 8-byte aligned), and
 * the contract allows one rounding only. NONE has no bit, because it is always allowed. */
static uint32_t reductions_of(const struct ot_gemm_key *key) {
    return key->bias ? OT_CUBLASLT_REDUCTION_NONE : OT_CUBLASLT_REDUCTION_COMPUTE_TYPE;
}

/* Tells the heuristic about this product. Other limits hold for all products (cuda_gemm.c). */
static int set_preferences(const struct ot_cuda_gemm *gemm, const struct ot_gemm_key *key) {
    uint32_t reductions = reductions_of(key);
    const struct {
        int attribute;
        uint32_t bytes;
    } alignments[] = {{OT_CUBLASLT_PREF_MIN_ALIGNMENT_A_BYTES, key->align_b},
                      {OT_CUBLASLT_PREF_MIN_ALIGNMENT_B_BYTES, key->align_a},
                      {OT_CUBLASLT_PREF_MIN_ALIGNMENT_C_BYTES, key->align_c},
                      {OT_CUBLASLT_PREF_MIN_ALIGNMENT_D_BYTES, key->align_c}};
    int status =
        gemm->lt.pref_set(gemm->pref, OT_CUBLASLT_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments && status == OT_CUBLASLT_SUCCESS; i++)
        status = gemm->lt.pref_set(gemm->pref, alignments[i].attribute, &alignments[i].bytes,
                                   sizeof alignments[i].bytes);
    return status;
}

/* The preferences demand the same rules. The result is checked too, because the bits depend on it. */
static bool keeps_rules(const struct ot_cuda_gemm *gemm, const struct ot_gemm_key *key,
                        const struct ot_cublaslt_heuristic *proposal) {
    uint32_t reduction;
    size_t written;
    return proposal->state == OT_CUBLASLT_SUCCESS &&
           proposal->workspace_bytes <= OT_CUDA_GEMM_WORKSPACE_BYTES &&
           gemm->lt.algo_config_get(&proposal->algo, OT_CUBLASLT_CONFIG_REDUCTION_SCHEME, &reduction,
                                    sizeof reduction, &written) == OT_CUBLASLT_SUCCESS &&
           (reduction == OT_CUBLASLT_REDUCTION_NONE || reduction == reductions_of(key));
}

int ot_gemm_plan_propose(struct ot_cuda_gemm *gemm, const struct ot_gemm_plan *plan,
                         struct ot_cublaslt_algo proposals[OT_GEMM_PROPOSALS], int *n) {
    struct ot_cublaslt_heuristic found[OT_GEMM_PROPOSALS] = {0};
    int n_found = 0;
    int status = set_preferences(gemm, &plan->key);
    if (status == OT_CUBLASLT_SUCCESS)
        status = gemm->lt.get_heuristic(gemm->context, plan->desc, plan->a, plan->b, plan->c, plan->c,
                                        gemm->pref, OT_GEMM_PROPOSALS, found, &n_found);
    *n = 0;
    if (status == OT_CUBLASLT_NOT_SUPPORTED) /* newer libraries return this status if there is no algorithm */
        return 0;
    OT_TRY(ot_gemm_check(gemm, status, "find an algorithm", &plan->key));
    for (int i = 0; i < n_found; i++)
        if (keeps_rules(gemm, &plan->key, &found[i]))
            proposals[(*n)++] = found[i].algo;
    return 0;
}

void ot_gemm_plan_give_up(const struct ot_cuda_gemm *gemm, struct ot_gemm_plan *plan, const char *why) {
    plan->is_plain = plan->is_tuned = true;
    ot_log(OT_LOG_WARN, "%s %s for the product %s: the plain kernel computes it and is slow", gemm->name, why,
           ot_gemm_key_text(&plan->key).text);
}

/* Takes the choice of an earlier run, if the library accepts it here. */
static bool take_cached(struct ot_cuda_gemm *gemm, struct ot_gemm_plan *plan) {
    const struct ot_gemm_choice *choice = ot_gemm_cache_find(gemm->choices, gemm->n_choices, &plan->key);
    struct ot_cublaslt_heuristic checked = {0};
    if (!choice)
        return false;
    checked.algo = choice->algo;
    if (gemm->lt.algo_check(gemm->context, plan->desc, plan->a, plan->b, plan->c, plan->c, &choice->algo,
                            &checked) != OT_CUBLASLT_SUCCESS ||
        !keeps_rules(gemm, &plan->key, &checked))
        return false;
    plan->algo = choice->algo;
    plan->is_tuned = true;
    return true;
}

/* True if the library may round twice: rows that are not 16-byte aligned, a bias and a two-byte result. Then
 * cuBLASLt 13.1 rounds the product and the addend before it adds the bias (seen on an H200). The presence of
 * an addend is no part of a shape. Models whose sizes are multiples of 8 have no such product. */
static bool may_round_twice(const struct ot_gemm_key *key) {
    uint64_t in_bytes = ot_dtype_bytes(key->dtype), out_bytes = ot_dtype_bytes(key->c_dtype);
    uint64_t places = (uint64_t)key->lda * in_bytes | (uint64_t)key->ldb * in_bytes |
                      (uint64_t)key->ldc * out_bytes | key->align_a | key->align_b | key->align_c;
    return key->bias && key->c_dtype != OT_F32 && places % OT_GEMM_ALIGNMENT != 0;
}

static int choose_algorithm(struct ot_cuda_gemm *gemm, struct ot_gemm_plan *plan) {
    if (may_round_twice(&plan->key)) {
        ot_gemm_plan_give_up(gemm, plan, "rounds twice");
        return 0;
    }
    if (take_cached(gemm, plan))
        return 0;
    struct ot_cublaslt_algo proposals[OT_GEMM_PROPOSALS];
    int n;
    OT_TRY(ot_gemm_plan_propose(gemm, plan, proposals, &n));
    if (n > 0) {
        plan->algo = proposals[0];
        return 0;
    }
    ot_gemm_plan_give_up(gemm, plan, "has no algorithm");
    return 0;
}

/* ---- the table ---- */

static size_t find_slot(const struct ot_cuda_gemm *gemm, const struct ot_gemm_key *key) {
    size_t slot = hash_of(key) & (gemm->n_slots - 1);
    while (gemm->slots[slot] && memcmp(&gemm->plans[gemm->slots[slot] - 1].key, key, sizeof *key) != 0)
        slot = (slot + 1) & (gemm->n_slots - 1);
    return slot;
}

/* Makes room for one more plan. There are four times as many slots as plans, so that searches stay short. */
static int grow_table(struct ot_cuda_gemm *gemm) {
    if (gemm->n_plans < gemm->capacity)
        return 0;
    size_t capacity = gemm->capacity ? gemm->capacity * 2 : 64;
    struct ot_gemm_plan *plans = realloc(gemm->plans, capacity * sizeof *plans);
    if (plans)
        gemm->plans = plans;
    uint32_t *slots = calloc(capacity * 4, sizeof *slots);
    if (!plans || !slots) {
        free(slots);
        return ot_fail(OT_E_BUDGET, "no host memory for the plans of matrix products");
    }
    free(gemm->slots);
    gemm->slots = slots;
    gemm->n_slots = capacity * 4;
    gemm->capacity = capacity;
    for (size_t i = 0; i < gemm->n_plans; i++)
        slots[find_slot(gemm, &plans[i].key)] = (uint32_t)i + 1;
    return 0;
}

int ot_gemm_plan_find(struct ot_cuda_gemm *gemm, const struct ot_gemm *op, struct ot_gemm_plan **out) {
    struct ot_gemm_key key = make_key(op);
    OT_TRY(grow_table(gemm));
    size_t slot = find_slot(gemm, &key);
    if (gemm->slots[slot] == 0) {
        struct ot_gemm_plan plan = {.key = key};
        int rc = create_descriptors(gemm, &plan);
        if (rc >= 0)
            rc = choose_algorithm(gemm, &plan);
        if (rc < 0) {
            destroy_descriptors(gemm, &plan);
            return rc;
        }
        gemm->plans[gemm->n_plans] = plan;
        gemm->slots[slot] = (uint32_t)++gemm->n_plans;
    }
    *out = &gemm->plans[gemm->slots[slot] - 1];
    return 0;
}

void ot_gemm_plans_free(struct ot_cuda_gemm *gemm) {
    for (size_t i = 0; i < gemm->n_plans; i++)
        destroy_descriptors(gemm, &gemm->plans[i]);
    free(gemm->plans);
    free(gemm->slots);
}
