/* Transfers between GPUs of one host that cannot copy from each other.
 *
 * Without peer copies the bytes go through host memory. If each rank has staging memory of its own, the host
 * copies every byte once more between the two. So the ranks map the same memory (shared_memory.h), and each
 * pins it for its GPU: the sender's GPU writes a byte there, and the receiver's GPU reads it. No processor
 * touches it. Then ot_comm_transfer goes this way. A transfer without a link, or one that is larger than the
 * link's slots, still is one of the communicator: both sides see that from its ranks and bytes.
 *
 * LINKS. A link is a pair of ranks and a direction. Each has some slots in the memory, used in turn, and two
 * counters: the slots that were filled, and those that are free again. A send waits for a free slot, copies
 * into it, and counts. A receive waits for a filled one, copies out of it, and counts. Waiting is done in
 * calls of the lane, which sleep on the counters (futex(2)), and end when the communicator breaks or at the
 * deadline. The world notices ranks that are gone.
 *
 * NO CIRCLE OF WAITS. The copies of a call wait in the order of its list, the sends first, although the
 * transfers of a call must not wait for each other (plugin.h, TRANSFERS). Slots make up for that: a send
 * completes when it has a slot. With twice as many slots as the transfers of a link in a call of either
 * rank, a rank gets its slot if the ranks would not wait in a circle anyhow: one of the sends since that
 * slot's last use belongs to an earlier call of the sender and to a later call of the receiver than the
 * slot's data. So the receiver can end the call in which it takes the data before the sender is where it is
 * now.
 */
#ifndef OT_OFFLOAD_COMM_CROSSING_H
#define OT_OFFLOAD_COMM_CROSSING_H

#include "offload/comm/comm.h"

struct ot_crossing_link {
    int from, to;      /* ranks */
    int slots;         /* at least twice the transfers on it in one call of a rank, at most 32 */
    size_t slot_bytes; /* the largest transfer */
};

/* Equal on all ranks. */
struct ot_crossing {
    struct ot_crossing_link *links; /* [n_links] each once */
    int n_links;
};

/* True if transfers of this communicator go through host memory that it copies once more. All ranks must be
 * on one host too; ot_shared_memory_map fails otherwise. */
bool ot_comm_wants_crossing(const struct ot_comm *comm);
/* Bytes of the memory: whole pages. */
size_t ot_crossing_bytes(const struct ot_crossing *crossing);
/* Lets transfers go through the memory from now on: [ot_crossing_bytes], zeros, shared by all ranks, pinned
 * by this rank. All ranks call it before their first transfer. The memory must stay until the lanes of
 * transfers are empty. Transfers with a link need no staging memory. It helps if ot_comm_wants_crossing says
 * so, and works with any communicator. Errors: OT_E_BUDGET. */
int ot_comm_cross(struct ot_comm *comm, const struct ot_crossing *crossing, void *memory);
/* Lets transfers go through the communicator again. No lane of this rank has transfers; another rank may
 * still read what this one has sent. */
void ot_comm_end_crossing(struct ot_comm *comm);

#endif
