/* oneDNN, opened at run time, for products of the cpu device. oneDNN is C++. An exception (no memory for
 * generated code) would end the process; here it becomes an error.
 *
 * Threads: call ot_cpu_onednn_open once, before the first product. Any thread may compute products.
 */
#ifndef OT_KERNELS_CPU_ONEDNN_H
#define OT_KERNELS_CPU_ONEDNN_H

#include "kernels/cpu/cpu_product.h"

struct ot_cpu_onednn {
    bool f32, bf16;   /* the kinds of products that it can compute here */
    char version[48]; /* version and the instruction set that it uses: "2.6.0 isa 0x7" */
};

/* Computes small products, so that the library generates its code now and not inside a step. If the library
 * is not installed, the members of *out are false. OT_E_DEVICE, OT_E_BUDGET: the library is installed but
 * fails. */
int ot_cpu_onednn_open(bool wants_bf16, struct ot_cpu_onednn *out);

/* OT_E_DEVICE: the product was not computed, or only in part. */
int ot_cpu_onednn_multiply(bool bf16, const struct ot_cpu_product *product);

#endif
