/* When the stages of a pipeline compute, and when activations cross between them (plan/stages.h).
 *
 * Every rank computes the same table, for all ranks, from the chain, the owners of its blocks, and the
 * rounds; from nothing else of the plan. A simulation of all ranks makes it once. A UNIT is a micro-batch in
 * a block, forward or backward. A VISIT is the units of a round in a block. Units take ticks of a common
 * clock: forward 1, backward BACKWARD_TICKS, and the last block as many times that as it is layers
 * (shard.head_layers). Where the layers of a decoder are other work than the encoder's (shard.late_layers),
 * these take 3 times that, and the decoder's in proportion. A rank runs one visit after the other, and the
 * units of a visit in their order. A unit begins when what it reads is there:
 *
 *   forward(b, m)    forward(b - 1, m)
 *   backward(b, m)   backward(b + 1, m)
 *   backward of the last block, which includes its forward: forward(b - 1, m)
 *
 * A result that another rank reads crosses in the tick after its unit, and the reader begins one tick later:
 * LEAD is 2. So the device computes while activations cross. A round of few micro-batches would wait for
 * that, and has lead 1: an activation crosses in the last tick of its unit.
 *
 * Shared slabs (plan/stages.h) cross in the ticks of results: the weights with micro-batch 0 of the block
 * that uses them before the reader's first block does, the gradient sum of a use with the last micro-batch.
 * So they need no ticks of their own: between that block and the reader, or between the use and the owner's
 * first block, the boundary or its gradient crosses at least once.
 *
 * The order of a rank's visits: forward visits are in the order of a run on one rank, and so are backward
 * visits. When a visit has ended, the rank begins the next backward visit if it may, else the next forward
 * visit if it may. The forward visits of a round wait until fewer than shard.in_flight earlier rounds are
 * incomplete on the rank. With one round in flight the order is that of a run on one rank. With more, and
 * contiguous stages, the rounds flow as the micro-batches of a 1F1B pipeline do (PipeDream-Flush, arXiv
 * 2006.09503): after a start, a rank alternates between a round forward and a round backward.
 *
 * With several rounds, a place for an activation is written again in the next round, but not before its last
 * reader. The reader's rank may be behind, if the blocks before it are frozen and have no backward. Then the
 * place must wait until that rank has run the earlier micro-batch through all of its blocks, because its
 * boundaries may share buffers.
 *
 * The table is not a prediction of time, but an order. TRANSFERS that cross
 * in one tick are one operation of each rank in it: all of its sends and receives advance together.
 *
 * NO DEADLOCK. The ranks' operations of a tick wait for each other, and for units and operations before them
 * in each rank's program. Those have earlier ticks. So by induction over the ticks every operation begins.
 * That needs three things, which ranks check before the first step (ot_schedule_links): each rank's
 * operations are in the order of the ticks; both halves of a transfer have one tick; on each link the sent
 * activations are those that the other side receives, in one order.
 *
 * If a stage has several holders, their own operations come between transfers. Such an operation counts in
 * the tick of the transfers that the rank lists before it, after these, and after its operations before. All
 * holders of a stage list the same operations in the same places, which they check too. So it has one place
 * in the order of all operations, and the induction goes over these places.
 */
#ifndef OT_OFFLOAD_SCHEDULE_STAGE_TIMES_H
#define OT_OFFLOAD_SCHEDULE_STAGE_TIMES_H

#include "offload/plan/stages.h"

/* Bytes on their way from one rank to another. */
struct ot_stage_transfer {
    int tick;
    int from, to; /* ranks */
    enum ot_transfer_kind kind;
    /* The boundary; WEIGHTS: the slab; SUM: the use, block * OT_MAX_USES + its number in the block. */
    int index;
    int micro; /* WEIGHTS, SUM: the micro-batch with which it crosses */
};

struct ot_stage_times {
    int n_blocks, n_micro, lead;
    int *forward, *backward; /* [n_blocks][n_micro]: ticks in which units begin; -1: there is no such unit */
    uint8_t *buffers;        /* [n_blocks][n_micro]: the buffer (stages.h) of an activation on its way */
    int n_visits;            /* of all ranks, in order; a visit is of the rank that owns the block */
    struct ot_stage_visit {
        int block, round;
        bool backward;
    } * visits;
    int n_transfers;
    struct ot_stage_transfer *transfers; /* in the order of their ticks; of one tick: by index */
    uint32_t crc;                        /* a fingerprint of the transfers */
};

/* Backward computes the block again, and costs twice its forward. */
enum { OT_STAGE_BACKWARD_TICKS = 3 };

/* Computes the table of a training step, or of a forward pass alone over the micro-batches of a pass. Free it
 * with ot_stage_times_free, also after an error. Errors: OT_E_BUDGET (no memory). */
int ot_stage_times_make(const struct ot_chain *chain, const struct ot_plan *plan, enum ot_pass pass,
                        struct ot_stage_times *out);
void ot_stage_times_free(struct ot_stage_times *times);

/* The tick in which the result of a unit crosses, if another rank reads it. */
int ot_stage_times_crosses(const struct ot_stage_times *times, const struct ot_chain *chain,
                           const struct ot_plan *plan, int block, int micro, bool backward);

static inline int ot_stage_time(const struct ot_stage_times *times, int block, int micro, bool backward) {
    return (backward ? times->backward : times->forward)[block * times->n_micro + micro];
}

#endif
