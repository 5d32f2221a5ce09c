/* Measures how fast a chain decodes its encoded slabs (offload/block.h) on the present device.
 *
 * The rate counts the bytes that decoding reads and writes, as the cost of a decode task does (costs.c). The
 * largest encoded slab, which is a layer's, is measured. On a GPU memory limits decoding, so the rate is
 * about that of any kernel. On the cpu device arithmetic limits it, and the rate is several times lower.
 */
#ifndef OT_OFFLOAD_PREDICT_DECODE_RATE_H
#define OT_OFFLOAD_PREDICT_DECODE_RATE_H

#include "offload/block.h"

/* device_bytes: the device memory that it may use. seconds: about how long it may take. *rate: bytes/s; 0
 * if no slab is encoded, or the largest one does not fit into the memory. Errors: OT_E_BUDGET,
 * OT_E_DEVICE. */
int ot_decode_rate_measure(const struct ot_chain *chain, struct ot_device *device, size_t device_bytes,
                           double seconds, double *rate);

#endif
