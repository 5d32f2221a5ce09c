/* oneDNN, opened at run time, for products of the cpu device. It is C++, and what it throws (no memory for
 * the code that it generates) would end the process: here it becomes an error.
 *
 * Threads: ot_cpu_onednn_open once, before the first product; products from any thread.
 */
#ifndef OT_KERNELS_CPU_ONEDNN_H
#define OT_KERNELS_CPU_ONEDNN_H

#include "kernels/cpu/cpu_product.h"

struct ot_cpu_onednn {
    bool f32, bf16;   /* what it multiplies here */
    char version[48]; /* and the instruction set that it takes: "2.6.0 isa 0x7" */
};

/* Makes small products, so that the library generates its code now and not within a step. *out: all false
 * where the library is not installed. Errors: OT_E_DEVICE, OT_E_BUDGET (the library is there and fails). */
int ot_cpu_onednn_open(bool wants_bf16, struct ot_cpu_onednn *out);

/* Errors: OT_E_DEVICE. The product is then not made, or made in part. */
int ot_cpu_onednn_multiply(bool bf16, const struct ot_cpu_product *product);

#endif
