#include "src/options/cure.h"

#include <stdio.h>

static const char *const cures[OT_CAUSE_COUNT] = {
    [OT_CAUSE_NO_DRIVER] = "in a container, start it with --gpus all; without a GPU, use --device cpu",
    [OT_CAUSE_NO_GPU] = "use --device cpu to run without a GPU",
    [OT_CAUSE_GPU_BUSY] = "wait until it is free, or choose another GPU with --device cuda:N",
    [OT_CAUSE_DEVICE_BUDGET] = "raise --gpu-mem, or lower --micro-batch or --seq-len",
    [OT_CAUSE_DEVICE_MEMORY] = "lower --gpu-mem or --micro-batch",
    [OT_CAUSE_PINNED_MEMORY] = "lower --host-mem, or raise the system's limit on locked memory (ulimit -l)",
    [OT_CAUSE_UNCLIPPED] = "start again with --clip 1.0",
    [OT_CAUSE_UNCLIPPED_FP16] = "use --clip 1.0 or --dtype bf16",
    [OT_CAUSE_MICRO_BATCHES] = "lower --tokens-per-step, or raise --micro-batch",
    [OT_CAUSE_STEP_TOKENS] = "lower --tokens-per-step",
    [OT_CAUSE_OPTIMIZER_SHARE] = "raise the engine's share in --optimizer-engine, or leave that engine out",
    [OT_CAUSE_WEIGHT_SLOTS] = "use --slots 2",
    [OT_CAUSE_WORLD_RANKS] = "use --deterministic run, or another number of --gpus",
    [OT_CAUSE_SMALL_SHARES] = "use --shard none, or lower --gpus",
    [OT_CAUSE_STATE_SHARDS] = "use --shard full, or leave out --home weights",
    [OT_CAUSE_SLOTS_IN_USE] = "raise --slots",
};

const char *ot_cure_text(void) {
    enum { CURE_BYTES = 128 };
    static _Thread_local char text[OT_ERROR_TEXT_BYTES + CURE_BYTES];
    const char *cure = cures[ot_error_cause()];
    snprintf(text, sizeof text, cure ? "%s; %s" : "%s", ot_error_text(), cure);
    return text;
}
