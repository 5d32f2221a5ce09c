/* The ranks of a run, as a session sees them: which share of the machine and of the model this rank has, and
 * how it talks with the others. With one rank these functions do nothing.
 *
 * The command opens the world (offload/comm/world.h) before it opens the session, and sets
 * session->ranks.world.
 */
#ifndef OT_SESSION_SESSION_RANKS_H
#define OT_SESSION_SESSION_RANKS_H

#include "offload/comm/comm.h"
#include "src/session/session.h"

/* If no GPU was asked for, and this host has one for each of its ranks, this rank takes its own. */
void ot_session_ranks_choose_gpu(struct ot_settings *settings, const struct ot_world *world);
/* Leaves this rank its share of the host's free memory and cores. */
void ot_session_ranks_share_machine(const struct ot_world *world, struct ot_machine *machine);

/* Opens session->ranks.comm on the session's device, and sets session->ranks.shard from the options.
 * Errors: as ot_comm_open; OT_E_USAGE. */
int ot_session_ranks_open(struct ot_session *session);
/* Finds out whether the ranks can have one copy of the weights in RAM, if the options ask for it or leave it
 * open: sets session->ranks.may_one_copy or shard.one_copy. Likewise session->ranks.crosses, if transfers
 * would need it. All ranks call it, after they have compared their options. Errors: OT_E_USAGE, OT_E_IO: the
 * options ask for one copy, and it is not possible; OT_E_COMM. */
int ot_session_ranks_find_sharing(struct ot_session *session);
/* With --shard auto, finds out what a run may choose: stages have the bits of one rank, and the other modes
 * those of W. A new run may choose: sets session->ranks.may_stages. A run that goes on keeps the bits with
 * which it began: resumed_ranks 1 becomes stages, if the model can be divided; more ranks stay without
 * stages, but for a run in replicas of a pipeline (resumed_stages > 0), which goes on with as many replicas
 * if these divide the ranks. With --deterministic world all bits are the same, and the choice is always
 * open. Errors: OT_E_BUDGET. */
int ot_session_ranks_find_division(struct ot_session *session, int resumed_ranks, int resumed_stages);
/* Lists the machines of all ranks in the request, if some are unlike, for plans with stages. seconds: the
 * time of this rank for some work, the same on all. Errors: OT_E_COMM. */
int ot_session_ranks_compare(struct ot_session *session, double seconds, struct ot_plan_request *request);
/* Before speeds are measured: sets session->ranks.shard.layers, if equally many layers do not fit on stages
 * whose memory is unlike. Errors: OT_E_COMM. */
int ot_session_ranks_divide(struct ot_session *session, const struct ot_plan_request *request);
/* Logs, on rank 0, how the layers are divided among ranks that are unlike. */
void ot_session_ranks_tell_layers(const struct ot_session *session, const struct ot_shard *shard);
/* Writes an object for people: the numbers of ranks and hosts, the shard mode, the communicator. Writes
 * nothing with one rank. */
void ot_session_ranks_put_json(const struct ot_session *session, const char *key, struct ot_json_writer *w);
bool ot_is_rank0(const struct ot_session *session); /* rank 0, or the only rank: it prints and writes */

/* Lowers each value to the least that any rank has. Errors: OT_E_COMM. */
enum { OT_SESSION_RANKS_MOST_VALUES = 16 };
int ot_session_ranks_find_least(struct ot_session *session, int64_t *values, int n);
/* The same among the holders of this rank's slabs (plan/plan.h). All ranks call it. */
int ot_session_ranks_find_least_of_holders(struct ot_session *session, const struct ot_shard *shard,
                                           int64_t *values, int n);
/* Hands rank 0's text to all ranks: *text is freed and replaced. Errors: OT_E_COMM, OT_E_BUDGET. */
int ot_session_ranks_tell(struct ot_session *session, char **text);
/* Sets *value to rank 0's on all ranks: for decisions by a clock or a disk. Errors: OT_E_COMM. */
int ot_session_ranks_choose(struct ot_session *session, int *value);
/* rc: 0, or the error of this rank. Returns 0 if all ranks have 0. Else all ranks get the error of the first
 * rank that has one; its sentence names the rank. Errors: OT_E_COMM too. With one rank it returns rc. */
int ot_session_ranks_agree(struct ot_session *session, int rc);
/* With --trace: hands the traces of the other ranks to rank 0, into session->ranks.traces. Errors: OT_E_COMM,
 * OT_E_BUDGET. */
int ot_session_ranks_gather_traces(struct ot_session *session);
void ot_session_ranks_free_traces(struct ot_session_ranks *ranks);
/* Hands n bytes of rank `from` to all ranks. The other ranks get *bytes, which the caller frees. Errors:
 * OT_E_COMM, OT_E_BUDGET. */
int ot_session_ranks_hand(struct ot_session *session, int from, unsigned char **bytes, size_t *n);

#endif
