#include "src/quantize/stage_times.h"

#include "src/base/clock.h"
#include "src/machine/process_peak.h"

const char *ot_stage_name(enum ot_stage stage) {
    static const char *const names[OT_STAGES] = {"read", "forward", "hessian", "solve", "write"};
    return names[stage];
}

void ot_stage_times_begin(struct ot_stage_times *stages, enum ot_stage first) {
    *stages = (struct ot_stage_times){.now = first, .began = ot_clock_seconds()};
    ot_process_forget_peak();
}

static void end_present(struct ot_stage_times *stages) {
    double now = ot_clock_seconds();
    int64_t peak = ot_process_peak();
    stages->seconds[stages->now] += now - stages->began;
    stages->began = now;
    if (peak > stages->peak_bytes[stages->now])
        stages->peak_bytes[stages->now] = peak;
}

void ot_stage_times_enter(struct ot_stage_times *stages, enum ot_stage stage) {
    if (stage == stages->now)
        return;
    end_present(stages);
    stages->now = stage;
    ot_process_forget_peak();
}

void ot_stage_times_move(struct ot_stage_times *stages, enum ot_stage to, double seconds) {
    stages->seconds[to] += seconds;
    stages->seconds[stages->now] -= seconds;
    int64_t peak = ot_process_peak();
    if (peak > stages->peak_bytes[to])
        stages->peak_bytes[to] = peak;
}

double ot_stage_times_end(struct ot_stage_times *stages) {
    double sum = 0;
    end_present(stages);
    for (int i = 0; i < OT_STAGES; i++)
        sum += stages->seconds[i];
    return sum;
}
