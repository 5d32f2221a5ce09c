/* Measures how fast a chain decodes its encoded slabs (offload/block.h) on the present device.
 *
 * The rate counts the bytes that decoding reads and writes, as the cost of a decode task does (costs.c). It
 * is that of the largest encoded slab, which is a layer's. On a GPU decoding is limited by memory, so the
 * rate is about that of any kernel; on the cpu device it is limited by arithmetic, and several times less.
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
