/* Tunes the plans of products: times the algorithms that add in the same order, and takes the fastest. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_gemm_state.h"
#include "kernels/cuda/gemm_plain.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"

/* The time of a proposal is the shortest of some rounds. A round runs products for some milliseconds. So one
 * disturbed round does not count, and a round is long compared with the half microsecond of the events. */
enum { ROUNDS = 3, MOST_REPEATS = 50 };
static const double round_seconds = 2e-3;

enum { MEMORY_ALIGNMENT = 256 };                       /* as that of the device's allocations */
enum { SEED_A = 1, SEED_B, SEED_BIAS, SEED_C, SEEDS }; /* seeds of the first round of operands */

/* Equal elements that prove the same order of additions: cuda_gemm.h gives the reasons. LEAST_K: sums of few
 * terms have few different orders, so they prove too little. */
enum { PROOF_ELEMS_F32 = 1 << 12, PROOF_ELEMS_HALF = 1 << 22, MOST_PROOFS = 16, LEAST_K = 64 };

struct tuner {
    struct ot_cuda_gemm *gemm;
    const struct ot_cuda_stream *on;
    char *memory;
    size_t bytes;
    cudaEvent_t begin, end;
    uint32_t *differ_seen; /* pinned */
    /* in `memory`, for the current plan: */
    uint32_t *differ;
    struct ot_gemm op; /* proposals write c */
    void *first_c;     /* the first algorithm writes here */
    int64_t c_elems;
};

/* ---- operands ---- */

/* Takes memory for a matrix, at an address that is divisible by `alignment` and by no more. NULL: too little
 * memory; `used` still counts the bytes. */
static void *cut(const struct tuner *t, size_t *used, uint8_t dtype, int64_t elems, uint8_t alignment) {
    size_t offset = alignment < OT_GEMM_ALIGNMENT ? alignment : 0;
    size_t bytes = (size_t)elems * ot_dtype_bytes(dtype) + offset;
    size_t begin = *used;
    *used += (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
    return *used <= t->bytes ? t->memory + begin + offset : NULL;
}

/* Lays out the plan's operands and two results. False: the memory is too small. */
static bool lay_out(struct tuner *t, const struct ot_gemm_key *key) {
    size_t used = 0;
    t->c_elems = key->m * key->ldc;
    t->differ = cut(t, &used, OT_F32, 1, OT_GEMM_ALIGNMENT);
    t->op = (struct ot_gemm){
        .dtype = key->dtype,
        .c_dtype = key->c_dtype,
        .trans_a = key->trans_a,
        .trans_b = key->trans_b,
        .m = key->m,
        .n = key->n,
        .k = key->k,
        .lda = key->lda,
        .ldb = key->ldb,
        .ldc = key->ldc,
        .a = cut(t, &used, key->dtype, (key->trans_a ? key->k : key->m) * key->lda, key->align_a),
        .b = cut(t, &used, key->dtype, (key->trans_b ? key->n : key->k) * key->ldb, key->align_b),
        .bias = key->bias ? cut(t, &used, key->dtype, key->n, OT_GEMM_ALIGNMENT) : NULL,
        .c = cut(t, &used, key->c_dtype, t->c_elems, key->align_c)};
    t->first_c = cut(t, &used, key->c_dtype, t->c_elems, key->align_c);
    return used <= t->bytes;
}

static int fill(const struct tuner *t, uint8_t dtype, const void *to, int64_t elems, uint32_t seed) {
    return ot_cuda_check(ot_cuda_gemm_fill(dtype, (void *)(uintptr_t)to, elems, seed, t->on),
                         "fill operands to tune with");
}

static int fill_operands(const struct tuner *t, const struct ot_gemm_key *key, uint32_t round) {
    uint32_t seed = round * SEEDS;
    OT_TRY(fill(t, key->dtype, t->op.a, (key->trans_a ? key->k : key->m) * key->lda, seed + SEED_A));
    OT_TRY(fill(t, key->dtype, t->op.b, (key->trans_b ? key->n : key->k) * key->ldb, seed + SEED_B));
    return key->bias ? fill(t, key->dtype, t->op.bias, key->n, seed + SEED_BIAS) : 0;
}

/* The number of rounds of operands that prove equal bits; 0: more than MOST_PROOFS, or k is too small. */
static uint32_t proofs_needed(const struct tuner *t, const struct ot_gemm_key *key) {
    int64_t elems = t->gemm->proof_elems;
    if (elems == 0 && key->k < LEAST_K)
        return 0;
    if (elems == 0)
        elems = key->c_dtype == OT_F32 ? PROOF_ELEMS_F32 : PROOF_ELEMS_HALF;
    int64_t rounds = (elems + key->m * key->n - 1) / (key->m * key->n);
    return rounds <= MOST_PROOFS ? (uint32_t)rounds : 0;
}

/* ---- one proposal ---- */

/* Computes into c. A product into fp32 also adds to c, as that of a weight's gradient does: the addition is
 * the same for all proposals. The old content of c is the same each time, because compare() also reads the
 * padding. */
static int compute(const struct tuner *t, const struct ot_gemm_plan *plan, void *c) {
    struct ot_gemm op = t->op;
    op.c = c;
    op.addend = op.c_dtype == OT_F32 ? c : NULL;
    OT_TRY(fill(t, plan->key.c_dtype, c, t->c_elems, SEED_C));
    return ot_gemm_plan_run(t->gemm, plan, &op, t->on);
}

/* 1: op.c and first_c have the same bits. 0: they differ. */
static int compare(const struct tuner *t) {
    cudaStream_t stream = t->on->stream;
    OT_TRY(ot_cuda_check(cudaMemsetAsync(t->differ, 0, sizeof *t->differ, stream), "clear a count"));
    int64_t words = t->c_elems * (int64_t)ot_dtype_bytes(t->op.c_dtype) / 2;
    OT_TRY(
        ot_cuda_check(ot_cuda_gemm_compare(t->op.c, t->first_c, words, t->differ, t->on), "compare results"));
    OT_TRY(ot_cuda_check(
        cudaMemcpyAsync(t->differ_seen, t->differ, sizeof *t->differ, cudaMemcpyDeviceToHost, stream),
        "read a count"));
    OT_TRY(ot_cuda_check(cudaStreamSynchronize(stream), "tune matrix products"));
    return *t->differ_seen == 0;
}

/* 1: both have the same bits in all rounds of operands. 0: they differ, or the second does not start. */
static int have_same_bits(const struct tuner *t, const struct ot_gemm_plan *first,
                          const struct ot_gemm_plan *second, uint32_t rounds) {
    for (uint32_t round = 0; round < rounds; round++) {
        OT_TRY(fill_operands(t, &first->key, round));
        OT_TRY(compute(t, first, t->first_c));
        if (compute(t, second, t->op.c) < 0)
            return 0; /* the heuristic may propose algorithms that do not start */
        int same = compare(t);
        if (same <= 0)
            return same;
    }
    return 1;
}

/* Measures `repeats` products in a row; seconds of one product. */
static int time_round(const struct tuner *t, const struct ot_gemm_plan *plan, int repeats, double *seconds) {
    float milliseconds;
    OT_TRY(ot_cuda_check(cudaEventRecord(t->begin, t->on->stream), "record an event"));
    for (int i = 0; i < repeats; i++)
        OT_TRY(ot_gemm_plan_run(t->gemm, plan, &t->op, t->on));
    OT_TRY(ot_cuda_check(cudaEventRecord(t->end, t->on->stream), "record an event"));
    OT_TRY(ot_cuda_check(cudaEventSynchronize(t->end), "tune matrix products"));
    OT_TRY(ot_cuda_check(cudaEventElapsedTime(&milliseconds, t->begin, t->end), "read a time"));
    *seconds = milliseconds * 1e-3 / repeats;
    return 0;
}

static int time_plan(const struct tuner *t, const struct ot_gemm_plan *plan, double *seconds) {
    OT_TRY(time_round(t, plan, 1, seconds));
    int repeats =
        *seconds * MOST_REPEATS > round_seconds ? 1 + (int)(round_seconds / *seconds) : MOST_REPEATS;
    for (int i = 0; i < ROUNDS; i++) {
        double round;
        OT_TRY(time_round(t, plan, repeats, &round));
        *seconds = ot_min(round, *seconds);
    }
    return 0;
}

/* ---- one plan ---- */

/* Puts the fastest algorithm into the plan. */
static int tune_plan(const struct tuner *t, struct ot_gemm_plan *plan, struct ot_device_tuning *out) {
    struct ot_cublaslt_algo proposals[OT_GEMM_PROPOSALS];
    int n;
    uint32_t proofs = proofs_needed(t, &plan->key);
    double first = 0, best = 0;
    plan->is_tuned = true;
    if (proofs == 0)
        return 0;
    OT_TRY(ot_gemm_plan_propose(t->gemm, plan, proposals, &n));
    struct ot_gemm_plan heuristic = *plan, trial = *plan;
    heuristic.algo = proposals[0];
    for (int i = 0; i < n; i++) {
        double seconds;
        trial.algo = proposals[i];
        int same = have_same_bits(t, &heuristic, &trial, proofs);
        OT_TRY(same);
        if (!same && i == 0) {
            plan->is_unsteady = true;
            ot_log(OT_LOG_WARN,
                   "%s gives different bits for equal operands of the product %s: this run may not repeat "
                   "bit for bit; another libcublasLt, named in OFFLOAD_TRAIN_CUBLASLT, may help",
                   t->gemm->name, ot_gemm_key_text(&plan->key).text);
            return 0;
        }
        if (!same)
            continue;
        OT_TRY(time_plan(t, &trial, &seconds));
        if (i == 0)
            first = best = seconds;
        if (seconds <= best) {
            best = seconds;
            plan->algo = trial.algo;
        }
    }
    out->timed++;
    out->replaced += memcmp(&plan->algo, &proposals[0], sizeof plan->algo) != 0;
    out->before += first;
    out->after += best;
    return 0;
}

/* ---- storing the choices ---- */

static bool is_tuned_now(const struct ot_cuda_gemm *gemm, const struct ot_gemm_key *key) {
    for (size_t i = 0; i < gemm->n_plans; i++)
        if (gemm->plans[i].is_tuned && memcmp(&gemm->plans[i].key, key, sizeof *key) == 0)
            return true;
    return false;
}

static bool is_worth_keeping(const struct ot_gemm_plan *plan) {
    return plan->is_tuned && !plan->is_plain && !plan->is_unsteady;
}

/* Writes the plans of this run, and the file's choices for shapes that this run did not tune. */
static int write_choices(const struct ot_cuda_gemm *gemm) {
    struct ot_gemm_choice *choices = calloc(gemm->n_plans + gemm->n_choices, sizeof *choices);
    size_t n = 0;
    if (!choices)
        return ot_fail(OT_E_BUDGET, "no host memory for %s", gemm->cache_path);
    for (size_t i = 0; i < gemm->n_plans; i++)
        if (is_worth_keeping(&gemm->plans[i]))
            choices[n++] = (struct ot_gemm_choice){gemm->plans[i].key, gemm->plans[i].algo};
    for (size_t i = 0; i < gemm->n_choices; i++)
        if (!is_tuned_now(gemm, &gemm->choices[i].key))
            choices[n++] = gemm->choices[i];
    int rc = ot_gemm_cache_write(gemm->cache_path, gemm->identity, choices, n);
    free(choices);
    return rc;
}

static int open_tuner(struct tuner *t) {
    void *seen = NULL;
    OT_TRY(ot_cuda_check(cudaHostAlloc(&seen, sizeof *t->differ_seen, cudaHostAllocPortable),
                         "pin host memory"));
    t->differ_seen = seen;
    OT_TRY(ot_cuda_check(cudaEventCreate(&t->begin), "create an event"));
    return ot_cuda_check(cudaEventCreate(&t->end), "create an event");
}

static void close_tuner(struct tuner *t) {
    if (t->end)
        cudaEventDestroy(t->end);
    if (t->begin)
        cudaEventDestroy(t->begin);
    if (t->differ_seen)
        cudaFreeHost(t->differ_seen);
}

int ot_cuda_gemm_tune(struct ot_cuda_gemm *gemm, const struct ot_cuda_stream *on, void *memory, size_t bytes,
                      double seconds, struct ot_device_tuning *out) {
    struct tuner t = {.gemm = gemm, .on = on, .memory = memory, .bytes = bytes};
    double end = ot_clock_seconds() + seconds;
    *out = (struct ot_device_tuning){0};
    int rc = open_tuner(&t);
    for (size_t i = 0; i < gemm->n_plans && rc >= 0; i++) {
        struct ot_gemm_plan *plan = &gemm->plans[i];
        if (plan->is_tuned)
            continue;
        out->shapes++;
        if (ot_clock_seconds() < end && lay_out(&t, &plan->key))
            rc = tune_plan(&t, plan, out);
    }
    /* If the file cannot be written, the next run has to tune again; nothing else is lost. */
    if (rc >= 0 && out->timed > 0 && gemm->cache_path)
        out->is_kept = write_choices(gemm) >= 0;
    close_tuner(&t);
    return rc;
}
