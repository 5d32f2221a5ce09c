/* GPTQ (Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
 * Pre-trained Transformers", arXiv 2210.17323): rounds a matrix W to codes so that its products W x change
 * little on the inputs x of calibration. H is the mean of x x^T.
 *
 *     H += damping * mean of H's diagonal, on the diagonal;  U^T U = H^-1, U upper triangular
 *     for each column i:  q = round(W[:, i]);  e = (W[:, i] - q) / U[i, i];  W[:, j] -= e U[i, j] for j > i
 *
 * The errors of a block of 128 columns are applied to the columns behind it as one product, as in the paper.
 * ACT ORDER: columns are taken in descending order of H's diagonal, so that those that matter most are
 * rounded while the others can still make up for it (the option desc_act of AutoGPTQ).
 *
 * ROUNDING. A group of columns of a row, in the order in which they are taken, has a scale s and a zero point
 * z, found when its first column is taken, from the weights as they are then:
 *
 *     symmetric:  s = 2 max|w| / (2^b - 1), z = 2^(b - 1);   else  lo = min(0, w), hi = max(0, w),
 *     s = (hi - lo) / (2^b - 1), z = round(-lo / s);         code = round(w / s) + z, within 0 .. 2^b - 1
 *
 * This is AutoGPTQ's quantizer, but s is rounded to fp16, as it is stored, before any code is chosen. So the
 * errors that later columns and layers make up for are those of the file.
 *
 * A column whose input is always 0 has weights of 0.
 *
 * WITHOUT A HESSIAN each weight becomes the nearest code, in the order of the columns: for matrices that no
 * or too few rows of calibration reach.
 */
#ifndef OT_QUANTIZE_GPTQ_H
#define OT_QUANTIZE_GPTQ_H

#include <stdbool.h>
#include <stdint.h>

struct ot_pool;

struct ot_gptq_config {
    int bits;           /* 2, 3, 4 or 8 */
    int64_t group_size; /* -1: all columns */
    bool act_order, symmetric;
    double damping;
};

struct ot_gptq {
    const struct ot_gptq_config *config;
    int64_t rows, cols;
    const float *hessian; /* [cols, cols]; NULL: rounds to nearest */
    float *weights;       /* [rows, cols]; on return the values of the codes, exactly */
    /* Results, in memory of the caller. */
    uint8_t *codes; /* [rows, cols] */
    float *scales;  /* [groups, rows]; each is an fp16 number */
    uint8_t *zeros; /* [groups, rows] */
    int32_t *index; /* [cols]: the group of each column */
    /* For each row, in fp64: the square error of its outputs, with the damped H, and their mean square;
     * without a Hessian, the sums of squares of the weights' errors and of the weights. */
    double *error, *power;
};

int64_t ot_gptq_groups(const struct ot_gptq_config *config, int64_t cols);
/* The memory that the call below allocates while it runs. */
int64_t ot_gptq_bytes(int64_t rows, int64_t cols, int threads);
/* Errors: OT_E_NUMERIC (the inputs of calibration are not finite, or H is singular without damping),
 * OT_E_INPUT (weights too large for scales in fp16), OT_E_BUDGET. The bits depend on neither the number of
 * threads nor on timing. */
int ot_gptq_run(struct ot_pool *pool, const struct ot_gptq *job);

/* ---- factor ---- */

/* The factor that GPTQ needs of a Hessian: the upper triangular U with U^T U = H^-1.
 *
 * The textbook way is Cholesky of H, the inverse, and Cholesky of the inverse: 4/3 n^3 multiplications and
 * additions. Here H = R R^T with R upper triangular (Cholesky from the last row up), and U = R^-1: 2/3 n^3,
 * and the inverse of H, which has the square of R's condition number, is never formed.
 *
 * fp64: with the usual damping of 1 % of the mean diagonal, condition numbers of 1e6 and more are common,
 * which leave fp32 one digit. Blocked, so that nearly all work is products of tiles (OpenBLAS, which the cpu
 * device links anyway; its LAPACK would use threads of its own, and is not in every build of it). The pool
 * shares the tiles; the order of all sums depends on n alone, so the bits do not depend on the number of
 * threads.
 */

struct ot_pool;

/* h: [n, n], symmetric; only the upper triangle is read. On return it holds U, with zeros below the diagonal.
 * Errors: OT_E_NUMERIC (H is not positive definite, or not finite; h is then worthless), OT_E_BUDGET. */
int ot_factor_inverse(struct ot_pool *pool, int64_t n, double *h);

#endif
