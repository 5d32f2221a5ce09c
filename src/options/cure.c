#include "src/options/cure.h"

#include <stdio.h>

static const char *const cures[OT_CAUSE_COUNT] = {
    [OT_CAUSE_NO_DRIVER] = "in a container: start it with --gpus all; --device cpu runs without a GPU",
    [OT_CAUSE_NO_GPU] = "--device cpu runs without one",
    [OT_CAUSE_GPU_BUSY] = "wait, or choose another with --device cuda:N",
    [OT_CAUSE_DEVICE_BUDGET] = "raise --gpu-mem, or lower --micro-batch or --seq-len",
    [OT_CAUSE_DEVICE_MEMORY] = "give less with --gpu-mem, or lower --micro-batch",
    [OT_CAUSE_PINNED_MEMORY] = "give less with --host-mem, or raise the limit",
    [OT_CAUSE_UNCLIPPED] = "start again with --clip 1.0",
    [OT_CAUSE_UNCLIPPED_FP16] = "give --clip 1.0, or --dtype bf16",
    [OT_CAUSE_MICRO_BATCHES] = "lower --tokens-per-step, or raise --micro-batch",
    [OT_CAUSE_STEP_TOKENS] = "lower --tokens-per-step",
    [OT_CAUSE_OPTIMIZER_SHARE] = "give the engine more in --optimizer-engine, or leave it out",
    [OT_CAUSE_WEIGHT_SLOTS] = "give --slots 2",
    [OT_CAUSE_SLOTS_IN_USE] = "give more slots, or use --order layer",
};

const char *ot_cure_text(void) {
    enum { CURE_BYTES = 128 };
    static _Thread_local char text[OT_ERROR_TEXT_BYTES + CURE_BYTES];
    const char *cure = cures[ot_error_cause()];
    snprintf(text, sizeof text, cure ? "%s; %s" : "%s", ot_error_text(), cure);
    return text;
}
