/* Declarations that trace.c, trace_summary.c and trace.c share. Private to offload/predict. */
#ifndef OT_OFFLOAD_PREDICT_TRACE_STATE_H
#define OT_OFFLOAD_PREDICT_TRACE_STATE_H

#include "offload/predict/trace.h"
#include "src/base/minmax.h"

struct ot_traced_step {
    const struct ot_schedule *schedule;
    int64_t step;
    struct ot_task_span *spans; /* [n_tasks] */
};

struct ot_trace {
    const struct ot_chain *chain;
    int64_t max_spans, n_spans, left_out;
    bool is_paused;
    int n;
    size_t capacity;
    struct ot_traced_step *steps;
};

static inline bool ot_trace_is_training(const struct ot_schedule *schedule) {
    return schedule->lane_count[OT_LANE_CPU] > 0;
}

/* The time at which the first task of the step began. */
static inline double ot_traced_step_begin(const struct ot_traced_step *step) {
    double first = step->spans[0].begin;
    for (int i = 1; i < step->schedule->n_tasks; i++)
        first = ot_min(step->spans[i].begin, first);
    return first;
}

#endif
