/* bf16 products on Intel's AMX tiles (Sapphire Rapids and later), on the calling thread, from operands packed
 * into panels. A panel is 32 rows of A, or 32 columns of B, with all of k. The last panel is filled up with
 * zeros. The caller packs each operand once, with as many threads as it likes, for all tiles of C that use
 * it. Any thread may call.
 *
 * Why not a library: the GEMM entry of oneDNN 2.6, which distributions ship, packs again for every tile of C.
 * It reaches two thirds of this code's rate on weight gradients (tests/bench/bench_ops.c).
 */
#ifndef OT_KERNELS_CPU_AMX_H
#define OT_KERNELS_CPU_AMX_H

#include <stdbool.h>

#include "kernels/cpu/cpu_product.h"

/* True if CPU, Linux and this build support AMX. Asks Linux for the tile registers. */
bool ot_cpu_amx_open(void);

/* The functions below may be called only after ot_cpu_amx_open returned true. */

enum { OT_CPU_AMX_PANEL = 32 };
int64_t ot_cpu_amx_panel_elems(int64_t k); /* in bf16 elements; panels must be 64-byte aligned */
void ot_cpu_amx_pack_a(const struct ot_cpu_product *product, int64_t row, uint16_t *panel);
void ot_cpu_amx_pack_b(const struct ot_cpu_product *product, int64_t col, uint16_t *panel);

/* a and b point to the panels of the product's first row and column; the next panels follow. lda is 0 if a is
 * packed. Otherwise a is the matrix itself, and m and k are multiples of 32. trans_* and ldb are not used. */
void ot_cpu_amx_multiply(const struct ot_cpu_product *packed);

#endif
