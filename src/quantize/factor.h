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
#ifndef OT_QUANTIZE_FACTOR_H
#define OT_QUANTIZE_FACTOR_H

#include <stdint.h>

struct ot_pool;

/* h: [n, n], symmetric; only the upper triangle is read. On return it holds U, with zeros below the diagonal.
 * Errors: OT_E_NUMERIC (H is not positive definite, or not finite; h is then worthless), OT_E_BUDGET. */
int ot_factor_inverse(struct ot_pool *pool, int64_t n, double *h);

#endif
