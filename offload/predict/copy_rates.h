/* Measures how fast the present device copies from and to pinned memory, one way and both ways at once, in
 * pieces about as large as a tile. */
#ifndef OT_OFFLOAD_PREDICT_COPY_RATES_H
#define OT_OFFLOAD_PREDICT_COPY_RATES_H

#include <stddef.h>

#include "offload/predict/rates.h"

struct ot_device;

/* Sets the copy rates of *rates; does nothing if all three are known. device_bytes: the device memory that it
 * may use. Works for about 0.2 seconds, with lanes of its own. Errors: OT_E_BUDGET, OT_E_DEVICE. */
int ot_copy_rates_measure(struct ot_device *device, size_t device_bytes, struct ot_rates *rates);

#endif
