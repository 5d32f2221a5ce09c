/* One copy: ranks of one host share the weights that live in host memory.
 *
 * Without it, a rank of mode full (shard.h) holds 1/W of a slab's weights in host memory of its own. It
 * copies them to its device over its link, and the communicator brings the other shares from the other
 * devices. If GPUs cannot copy to each other (GeForce cards), the bytes of the communicator cross the same
 * links again, twice, and host memory in between. Then a slab costs a link less if each device reads all of
 * it from the host. So with shard.one_copy the weights of a slab on the host are ONE buffer, whole, in memory
 * that the processes of all ranks map (comm/shared_memory.h). A rank updates its own tiles there, as it does
 * in its own memory. A fetch copies the whole slab, and nothing is gathered. The host holds each byte once,
 * so the ledger of a rank has 1/W of the copy. (ZeRO-Infinity, arXiv 2104.07857, reads 1/W on each rank and
 * gathers the rest; MegaTrain and llmq read whole blocks from one host copy where GPUs have no peer access.)
 *
 * It applies to slabs with weights on the host, in mode full, if all ranks are on one host. All ranks apply
 * it to the same slabs: the order of their operations says so, and ranks compare it before the first step. It
 * changes no bits, because every rank computes with the same weights as before.
 *
 * READ AFTER WRITE. A rank may read a slab in step k + 1 when all ranks have written their updates of step k.
 * The task MEET orders that: once a step, before the slab's first fetch, in the comm lane, as an operation of
 * all ranks with a few bytes. A rank enters the operation after its own updates of the slab are in the shared
 * memory, and leaves it after all ranks have entered.
 *
 *   cpu tiles      UPDATE_CPU writes them there; MEET waits for it.
 *   gpu tiles      UPDATE_GPU changes the slot, STORE copies it to the shared memory; MEET waits for STORE.
 *   stream tiles   are updated in the next step, and before the slab is fetched: a tile's weights travel with
 *                  its state through the state slot, and STATE_OUT writes both; MEET waits for STATE_OUT.
 *
 * WRITE AFTER READ. A rank may write its tiles in the updates of step k when every rank has read the slab for
 * the last time in step k. That needs no operation of its own. The update needs a decision, and the decision
 * needs the slab's norm of all ranks, so it comes after the EXCHANGE of the slab's gradients (of all slabs,
 * with clipping). A rank sends its part of that exchange after its last backward of the slab in the last
 * round, and its fetches precede the passes that use them:
 *
 *   tied slabs          The exchange comes after the backward of the last use.
 *   not needed in       The last fetch is for a forward. The forward precedes the backward of the same block,
 *   backward            which computes the gradient, in the compute lane.
 *   rounds              The exchange comes after the last round; each fetch belongs to a pass of a round.
 *   skipped steps       All tasks run, and in the same order. A skipped update writes the bytes that it read.
 *   a broken            An operation that failed orders nothing. Every decision asks for its error, so
 *   communicator        nothing is updated any more. Weights that a rank still reads may be of two
 *                       versions, and are not used.
 *
 * In the schedule the EXCHANGE leaves garbage in the REST of the shared buffer (layout.h): from then on the
 * other ranks may change it, and only a MEET makes it whole. So the verifier finds a fetch after the
 * exchange, and one without a MEET.
 *
 * NO DEADLOCK. A MEET waits for tasks that come before it in each rank's program. These wait for operations
 * before the MEET alone, and the operations have one order on all ranks.
 *
 * BETWEEN STEPS. A forward pass alone, after a step or after weights were set, comes after a MEET of all
 * slabs (ot_schedule_make_gather). Further passes need none. A step after them begins with a barrier of the
 * hosts, because its streamed tiles are written, with the same bytes, before the first exchange. Snapshots,
 * ot_engine_get and the flush touch the rank's own tiles alone. A rank that sets weights must know that no
 * rank is in a pass: before the first step, or after a barrier of the caller.
 */
#ifndef OT_OFFLOAD_PLAN_ONE_COPY_H
#define OT_OFFLOAD_PLAN_ONE_COPY_H

#include "offload/plan/plan.h"

/* True if the slab's weights on the host are one copy of all ranks. */
bool ot_slab_has_one_copy(const struct ot_plan *plan, int slab);
/* True if some slab has one copy. */
bool ot_plan_has_one_copy(const struct ot_plan *plan);

#endif
