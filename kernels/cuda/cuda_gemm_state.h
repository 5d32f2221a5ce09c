/* Declarations that the files of the GEMM (cuda_gemm.h) share: a shape, its plan, and the table of all plans.
 * (A plan here is the library's descriptors and algorithm for one shape, not the plan of a run.)
 *
 *   cuda_gemm.c        opens the library; enqueues bias and product
 *   cuda_gemm_plan.c   shape -> descriptors and algorithm, kept in a hash table
 *   gemm_plain.cu      computes shapes for which the library has no algorithm
 *   cuda_gemm_tune.c   measures the proposals for each plan; gemm_plain.cu has its kernels
 *   cuda_gemm_cache.c  the file that stores the results of tuning
 */
#ifndef OT_KERNELS_CUDA_GEMM_STATE_H
#define OT_KERNELS_CUDA_GEMM_STATE_H

#include <stdbool.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/cuda_gemm_cache.h"

enum {
    OT_GEMM_ALIGNMENT = 16, /* a key holds addresses modulo this */
    OT_GEMM_PROPOSALS = 16, /* algorithms that the heuristic returns at most */
};

struct ot_gemm_plan {
    struct ot_gemm_key key;
    struct ot_cublaslt_desc *desc;
    struct ot_cublaslt_layout *a, *b, *c; /* for cuBLASLt's A and B: our B and A */
    struct ot_cublaslt_algo algo;
    bool is_plain;    /* the library has no algorithm that starts: the plain kernel computes this shape */
    bool is_tuned;    /* in this run or in an earlier one */
    bool is_unsteady; /* its algorithm does not repeat its own bits: no choice is stored */
};

struct ot_cuda_gemm {
    struct ot_cublaslt lt;
    struct ot_cublaslt_context *context;
    struct ot_cublaslt_pref *pref;
    char name[32];
    char *cache_path;           /* NULL: choices are not stored */
    int64_t proof_elems;        /* for tests of tuning */
    char identity[256];         /* GPU, driver, library and workspace that the choices are valid for */
    struct ot_gemm_plan *plans; /* in the order in which shapes were met */
    size_t n_plans, capacity;
    uint32_t *slots;                /* hash table: index of a plan + 1, or 0 */
    size_t n_slots;                 /* a power of two */
    struct ot_gemm_choice *choices; /* read from the file; sorted by key */
    size_t n_choices;
};

/* ---- cuda_gemm.c ---- */

/* Enqueues op with the plan's algorithm. Errors: OT_E_DEVICE. */
int ot_gemm_plan_run(struct ot_cuda_gemm *gemm, const struct ot_gemm_plan *plan, const struct ot_gemm *op,
                     const struct ot_cuda_stream *on);

/* ---- cuda_gemm_plan.c ---- */

/* Finds the plan for op's shape, or makes it. *out is valid until the next call. Errors: OT_E_DEVICE,
 * OT_E_BUDGET. */
int ot_gemm_plan_find(struct ot_cuda_gemm *gemm, const struct ot_gemm *op, struct ot_gemm_plan **out);
/* Returns the algorithms that obey the rules of cuda_gemm.h, in the heuristic's order; *n is 0 if there is
 * none. Errors: OT_E_DEVICE. */
int ot_gemm_plan_propose(struct ot_cuda_gemm *gemm, const struct ot_gemm_plan *plan,
                         struct ot_cublaslt_algo proposals[OT_GEMM_PROPOSALS], int *n);
/* Makes the plain kernel compute this plan's products from now on, and logs a warning. why: "has no
 * algorithm". */
void ot_gemm_plan_give_up(const struct ot_cuda_gemm *gemm, struct ot_gemm_plan *plan, const char *why);
void ot_gemm_plans_free(struct ot_cuda_gemm *gemm);
/* The shape for messages: "bf16 [16384,4096] = [16384,11008] [11008,4096]". */
struct ot_gemm_text {
    char text[160];
};
struct ot_gemm_text ot_gemm_key_text(const struct ot_gemm_key *key);
/* Records the library's error for this product; returns -OT_E_DEVICE, or 0 for success. */
int ot_gemm_check(const struct ot_cuda_gemm *gemm, int status, const char *what,
                  const struct ot_gemm_key *key);

#endif
