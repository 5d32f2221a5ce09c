/* The learning rate is a pure function of the step. It has no state, so a checkpoint need not keep any.
 *
 * Warm-up: the rate is peak * step / warmup, so step 1 already trains and step `warmup` has the peak. After
 * warm-up:
 *
 *   constant   stays at the peak
 *   linear     falls to 0 after the last step
 *   cosine     half a cosine to 10 % of the peak at the last step (Hoffmann et al., "Training Compute-Optimal
 *              Large Language Models", 2022, section B: the common floor)
 *   wsd        stays at the peak, then falls linearly to 0 over the last 20 % (Hu et al., "MiniCPM", 2024:
 *              10 % suffices; Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
 *              Durations", 2024: 20 %)
 *
 * A run that went on with another warm-up (--resume-with) has a schedule that begins after step `first`, as
 * if that were step 0, and lasts for the rest of the run.
 */
#ifndef OT_OPTIONS_SCHEDULE_LR_H
#define OT_OPTIONS_SCHEDULE_LR_H

#include <stdint.h>

enum ot_schedule_kind { OT_SCHEDULE_CONSTANT, OT_SCHEDULE_LINEAR, OT_SCHEDULE_COSINE, OT_SCHEDULE_WSD };

struct ot_lr_schedule {
    enum ot_schedule_kind kind;
    double peak;
    int64_t warmup, steps; /* of the whole run; warmup <= steps - first */
    int64_t first;         /* steps before the schedule begins */
};

double ot_lr_at(const struct ot_lr_schedule *schedule, int64_t step); /* step counts from 1 */

#endif
