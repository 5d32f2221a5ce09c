/* Calibration measures the cost of the chain's blocks on the present device, before the engine takes its
 * memory. It times three blocks on random numbers: the first, a middle one (which stands for all layers) and
 * the last. Of a chain with pairs it times two middle ones, which stand for the layers of the encoder and for
 * those of the decoder. For each it times forward, and backward at each level of kept activations and once
 * more as the first of a sum, which overwrites the gradients.
 *
 * Each call is timed at two micro-batch sizes, and a line goes through both times. The sizes alternate, the
 * median of several rounds is used, and there are more rounds if the rounds differ much (rates.h).
 * Calibration takes seconds, within a limit, and less for a run that is short. It holds one block at a time,
 * so it needs less memory than a plan.
 *
 * If the time does not allow the plan's micro-batch, smaller ones are measured. If their rows are shorter
 * than a sequence, the missing work of attention is added from the estimate. The device tunes its kernels
 * first, as it does in training. Copies are measured if the rates lack them (rates.h).
 *
 * LOAD. The calls have pauses between them, in which the host fills buffers. So the device is at its highest
 * clock. In training it computes without pauses. If its clock falls then (ot_device_slows_under_load), a
 * middle block's forward and backward run at last for up to two seconds back to back. Their time, beside the
 * time of the same calls after a pause, is a factor for all costs of blocks. Tasks that move bytes (copies,
 * updates, decoding) have no factor: the clock of the memory does not fall.
 *
 * The decoding of encoded slabs is measured too (rates.h).
 *
 * Call it from one thread. Nothing else may use the device meanwhile.
 */
#ifndef OT_OFFLOAD_PREDICT_CALIBRATE_H
#define OT_OFFLOAD_PREDICT_CALIBRATE_H

#include "offload/predict/costs.h"

struct ot_calibration {
    const struct ot_chain *chain;
    struct ot_device *device;
    const struct ot_rates *rates;
    int64_t micro_tokens, sequence_tokens; /* the larger micro-batch, in rows of sequence_tokens */
    /* Device memory that it may use; blocks that need more are estimated. */
    size_t device_bytes;
    /* Time for the measurements of blocks; up to twice as long on a busy machine. The load takes as long
     * again, and at most two seconds. */
    double seconds;
    /* Tokens that the run computes on this device; 0: unknown. The time is at most a tenth of the run's, as
     * the rates estimate it, but not below a tenth of a second. */
    int64_t run_tokens;
};

/* Fills in *out; out->is_measured says whether the middle blocks were measured. Free with ot_costs_free.
 * Blocks until the measurements are done. Errors: OT_E_BUDGET, OT_E_DEVICE, OT_E_USAGE (as
 * ot_costs_estimate). */
int ot_calibrate(const struct ot_calibration *calibration, struct ot_costs *out);

#endif
