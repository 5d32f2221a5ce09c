#include "src/quantize/stages.h"

#include "src/base/clock.h"
#include "src/machine/process_peak.h"

const char *ot_stage_name(enum ot_stage stage) {
    static const char *const names[OT_STAGES] = {"read", "forward", "hessian", "solve", "write"};
    return names[stage];
}

void ot_stages_begin(struct ot_stages *stages, enum ot_stage first) {
    *stages = (struct ot_stages){.now = first, .began = ot_clock_seconds()};
    ot_process_forget_peak();
}

static void end_present(struct ot_stages *stages) {
    double now = ot_clock_seconds();
    int64_t peak = ot_process_peak();
    stages->seconds[stages->now] += now - stages->began;
    stages->began = now;
    if (peak > stages->peak_bytes[stages->now])
        stages->peak_bytes[stages->now] = peak;
}

void ot_stages_enter(struct ot_stages *stages, enum ot_stage stage) {
    if (stage == stages->now)
        return;
    end_present(stages);
    stages->now = stage;
    ot_process_forget_peak();
}

void ot_stages_move(struct ot_stages *stages, enum ot_stage to, double seconds) {
    stages->seconds[to] += seconds;
    stages->seconds[stages->now] -= seconds;
    int64_t peak = ot_process_peak();
    if (peak > stages->peak_bytes[to])
        stages->peak_bytes[to] = peak;
}

double ot_stages_end(struct ot_stages *stages) {
    double sum = 0;
    end_present(stages);
    for (int i = 0; i < OT_STAGES; i++)
        sum += stages->seconds[i];
    return sum;
}
