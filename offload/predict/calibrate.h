/* Calibration: what the chain's own blocks cost on the device that is there, measured before the engine takes
 * its memory: one block of each kind (the first, a middle one, the last), forward, backward with what forward
 * kept, and with recomputation, on random numbers, at two sizes of micro-batch, so that a line goes through
 * them. The sizes take turns, the median of several rounds counts, and there are more rounds where they lie
 * apart (repeats.h). Takes seconds and is bounded; less memory than a plan needs, since it holds one block.
 *
 * Where the time does not allow micro-batches as large as the plan's, smaller ones are measured; what rows
 * shorter than a sequence save of attention is added by the estimate. The device tunes itself before, as it
 * does in training. Copies are measured where the rates lack them, in pieces about as large as a tile.
 *
 * One thread; the device is the calibration's alone while it runs.
 */
#ifndef OT_OFFLOAD_PREDICT_CALIBRATE_H
#define OT_OFFLOAD_PREDICT_CALIBRATE_H

#include "offload/predict/costs.h"

struct ot_calibration {
    const struct ot_chain *chain;
    struct ot_device *device;
    const struct ot_rates *rates;
    int64_t micro_tokens, sequence_tokens; /* the larger size; rows of sequence_tokens each */
    size_t device_bytes;                   /* that may be used; blocks that need more are estimated */
    double seconds;                        /* for all of it; on a busy machine twice as much */
};

/* out: is_measured says whether the middle blocks are. Free with ot_costs_free. Errors: OT_E_BUDGET,
 * OT_E_DEVICE, OT_E_USAGE (as ot_costs_estimate). */
int ot_calibrate(const struct ot_calibration *calibration, struct ot_costs *out);

#endif
