/* The schedules of the tiny model's runs (tiny_run.h), and the mutation that all tests of schedules make. */
#ifndef OT_TESTS_TINY_SCHEDULE_H
#define OT_TESTS_TINY_SCHEDULE_H

#include "offload/schedule/schedule.h"
#include "tests/offload/tiny_run.h"

struct tiny_schedule {
    struct tiny_run run; /* with its plan */
    struct ot_model *model;
    struct ot_layout layout;
    struct ot_schedule schedule, flush;
};

/* Makes the training step and the flush of made->run. Fails the test if there are none. */
void tiny_schedule_make(struct tiny_schedule *made);
/* Frees everything, and the run's plan. */
void tiny_schedule_free(struct tiny_schedule *made);
/* Removes each edge in turn. Fails the test if the verifier accepts a schedule without it. Returns the number
 * of edges. */
int tiny_schedule_drop_edges(const struct tiny_schedule *made, struct ot_schedule *schedule);

#endif
