/* Rounds: a step's micro-batches are cut into rounds of consecutive ones. A round goes forward and backward
 * through all blocks, layer by layer, before the next round begins. Backward's inputs (boundary activations,
 * kept activations) then exist for the micro-batches of one round, not of the whole step. The price is
 * traffic: weights cross the bus twice a round instead of twice a step, and gradient sums that do not stay on
 * the device leave it after each round and come back in the next: 4 bytes a parameter each way, in fp32.
 * (Layer-major order in rounds: "horizontal" and "vertical" order are its two ends, one micro-batch a round
 * and one round a step.)
 *
 * A round of T tokens computes for 6 N T / R seconds, with N parameters at R FLOP/s. Its weights take 4 N / B
 * seconds on a bus of B bytes/s, its sums 4 N / B in each direction. So it hides its transfers from about T =
 * R / B tokens on, as a whole step does without rounds.
 *
 * Micro-batches keep their order, and a sum comes back as it left. So the bits do not depend on rounds.
 *
 * The first round may be longer or shorter than the others: the updates of the step before run under its
 * forward. The planner makes all rounds equally long. Kept activations have as many places as the longest
 * round has micro-batches, so a longer first round needs as much memory as longer rounds throughout.
 */
#ifndef OT_OFFLOAD_PLAN_ROUNDS_H
#define OT_OFFLOAD_PLAN_ROUNDS_H

#include "offload/plan/plan.h"

struct ot_round {
    int first, n; /* micro-batches of the rank */
};

/* The number of rounds of a full step; 1 or more. */
int ot_plan_rounds(const struct ot_plan *plan);
struct ot_round ot_plan_round(const struct ot_plan *plan, int round);
/* The most micro-batches of a round. */
int ot_plan_round_places(const struct ot_plan *plan);
/* The place of a micro-batch in its round, counted from 0. */
int ot_plan_place(const struct ot_plan *plan, int micro);
/* Cuts the step into rounds of equal length, except for the last. There are fewer rounds if there are fewer
 * micro-batches. */
void ot_plan_set_rounds(struct ot_plan *plan, int rounds);

#endif
