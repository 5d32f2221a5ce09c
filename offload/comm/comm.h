/* The communicator of a run: moves bytes between the ranks, on a lane of the device.
 *
 * A run of W ranks has W processes with one device each. Every rank holds a share of the model
 * (plan/plan.h). The engine's `comm` lane gathers a block's weights before they are used, and exchanges its
 * gradients after. Both are operations of a communicator, which is built in (self, tcp) or a plugin
 * (plugin.h).
 *
 * The rest of offload-train sees both through this file. It opens the communicator by name, enqueues its
 * operations on a lane, and brings device memory to the host and back around an operation if the communicator
 * takes only host memory.
 *
 * A run whose ranks are stages of a pipeline sends activations from one rank to another instead: transfers.
 * If it has several pipelines, the ranks with the same stage share its slabs. They are MEMBERS of the
 * communicator, and have operations of their own, which consist of transfers: so every communicator with
 * transfers has them, and members of different stages do not wait for each other.
 *
 * WAITING. An operation waits for the other ranks. So a rank whose program differs would wait for ever: every
 * wait has a deadline, and the ranks compare their schedules before the first step (ot_comm_agree).
 *
 * FAILURE. The work of an operation fails after it was enqueued. The first failure breaks the communicator:
 * the operations behind it do nothing, and leave garbage where they should have written. A user of an
 * operation's results calls ot_comm_error first; the engine does so before each decision, so garbage never
 * changes weights. ot_comm_abort breaks the communicator on purpose, so that no thread waits any longer.
 *
 * WORLD. The communicator sets ot_world_on_loss, so that a lost rank breaks it. An operation may notice that
 * a rank is gone before the world knows why. So a run that fails with OT_E_COMM reports the error that
 * ot_world_fail returns.
 *
 * Threads: one thread at a time enqueues operations. One thread, the driver, calls the functions that wait.
 * ot_comm_error and ot_comm_abort: any thread.
 */
#ifndef OT_OFFLOAD_COMM_COMM_H
#define OT_OFFLOAD_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "offload/comm/plugin.h"
#include "offload/comm/world.h"

struct ot_comm;

struct ot_comm_config {
    /* "self", "tcp", the name of a plugin ("nccl"), or a path with a slash. NULL or "auto": self for one
     * rank, nccl if the device is a GPU and each rank of a host has its own, else tcp. */
    const char *name;
    /* The ranks and their control connections; outlives the communicator. NULL: one rank, or the ranks that a
     * plugin with control functions finds by itself. */
    struct ot_world *world;
    struct ot_device *device; /* operations use its memory; outlives the communicator */
    int device_index;         /* CUDA device ordinal; -1: the cpu device */
    const char *plugin_dirs;  /* $OFFLOAD_TRAIN_PLUGINS: folders with colons between them; NULL: none */
    double timeout_seconds;   /* limit of every wait for another rank; 0: 600 s */
};

/* Opens the communicator on all ranks. Errors: OT_E_INPUT (no such plugin, or it is not one), OT_E_COMM (it
 * could not start; the text has its reason), OT_E_BUDGET. */
int ot_comm_open(const struct ot_comm_config *config, struct ot_comm **out);
/* The same with a communicator that is linked into the program, whatever the name in `config` is. transfers:
 * NULL: it has none. */
int ot_comm_open_with(const struct ot_comm_v1 *api, const struct ot_comm_transfers_v1 *transfers,
                      const struct ot_comm_config *config, struct ot_comm **out);
/* Frees the communicator; NULL is fine. Waits for the other ranks if it is not broken. The lanes of its
 * operations are empty or closed. */
void ot_comm_close(struct ot_comm *comm);

int ot_comm_rank(const struct ot_comm *comm);
int ot_comm_ranks(const struct ot_comm *comm);
/* For people: "tcp, 4 ranks on 1 host" */
const char *ot_comm_describe(const struct ot_comm *comm);
/* Pinned host bytes that operations with parts of at most `part_bytes` need beside their operands: the ledger
 * has them. 0 if the communicator takes the device's memory. It is 64 MiB at most, because large operations
 * are done in pieces. ot_comm_open needs no such bytes; ot_comm_reserve hands them over [bytes], before the
 * first operation. The caller frees them after ot_comm_close. */
size_t ot_comm_staging_bytes(const struct ot_comm *comm, size_t part_bytes);
void ot_comm_reserve(struct ot_comm *comm, void *pinned, size_t bytes);

/* ---- operations, enqueued on a lane ---- */

/* all = [ranks][part_bytes] in device memory. Fills in every part with the part of that rank. part: device
 * memory, at its place in `all` or outside of it. */
void ot_comm_all_gather(struct ot_comm *comm, struct ot_lane *lane, const void *part, void *all,
                        size_t part_bytes);
/* send, receive = [ranks][part_bytes] in device memory, not overlapping. Part r of `send` goes to rank r,
 * which gets it as part `rank` of its `receive`. A rank's own part is not copied. */
void ot_comm_all_to_all(struct ot_comm *comm, struct ot_lane *lane, const void *send, void *receive,
                        size_t part_bytes);
/* Some of the ranks: n consecutive ones. This rank is one of them. */
struct ot_comm_members {
    int first, n;
};
/* The same two operations among members: `all`, `send` and `receive` are [members.n][part_bytes], in the
 * order of the members. If all ranks are members, these are the operations above. Otherwise they are
 * transfers: the members call them in one order with their other transfers, and ranks that are no members
 * take no part. Not inside a group. */
void ot_comm_members_gather(struct ot_comm *comm, struct ot_lane *lane, struct ot_comm_members members,
                            const void *part, void *all, size_t part_bytes);
void ot_comm_members_exchange(struct ot_comm *comm, struct ot_lane *lane, struct ot_comm_members members,
                              const void *send, void *receive, size_t part_bytes);
/* memory = [bytes] in device memory. Copies the memory of rank `root` to all ranks. */
void ot_comm_broadcast(struct ot_comm *comm, struct ot_lane *lane, void *memory, size_t bytes, int root);
/* The most transfers of one call. */
enum { OT_COMM_MOST_TRANSFERS = 2 * OT_MAX_RANKS };
/* Sends device memory to other ranks, and receives from others: all transfers of the list advance at the
 * same time, and both halves of each have the same size (plugin.h, TRANSFERS). The list [n] is copied; none
 * is fine. Not inside a group. A communicator without transfers breaks: see ot_comm_need_transfers. */
void ot_comm_transfer(struct ot_comm *comm, struct ot_lane *lane, const struct ot_comm_transfer_v1 *transfers,
                      int n);
/* Fails if the communicator has no transfers, with a sentence for a run that needs them. The answer is the
 * same on all ranks. Errors: OT_E_USAGE. */
int ot_comm_need_transfers(const struct ot_comm *comm);
/* Like ot_comm_staging_bytes, for calls whose transfers have at most `call_bytes` bytes together. Transfers
 * are not done in pieces, because each must advance by itself. Both kinds of operations use the same memory,
 * so ot_comm_reserve gets the larger number. 0 during a crossing (crossing.h). */
size_t ot_comm_transfer_staging_bytes(const struct ot_comm *comm, size_t call_bytes);
/* The operations between the two calls use different memory and may run together. The communicator may delay
 * them until the end of the group. */
void ot_comm_group_begin(struct ot_comm *comm, struct ot_lane *lane);
void ot_comm_group_end(struct ot_comm *comm, struct ot_lane *lane);

/* ---- waiting ---- */

/* These functions use the control connections, so operations may run on a lane at the same time. */

/* all = [ranks][bytes] on the host. Errors: OT_E_COMM. */
int ot_comm_all_gather_host(struct ot_comm *comm, const void *mine, size_t bytes, void *all);
/* Copies the host memory of rank `root` to all ranks, any number of bytes. It is meant for megabytes: rank 0
 * passes everything on. Errors: OT_E_COMM. */
int ot_comm_broadcast_host(struct ot_comm *comm, void *memory, size_t bytes, int root);
int ot_comm_barrier(struct ot_comm *comm); /* Errors: OT_E_COMM */
/* Compares a text of all ranks (at most OT_COMM_MOST_CONTROL_BYTES with its end). If they differ, fails on
 * every rank with one sentence that names the ranks which differ from rank 0, and the texts: "WHAT differs:
 * rank 0 has A, ranks 2 and 3 have B". Errors: OT_E_USAGE (they differ), OT_E_COMM. */
int ot_comm_agree(struct ot_comm *comm, const char *what, const char *text);

/* Returns 0, or the error that broke the communicator (OT_E_COMM), on every call. Also finds lost ranks and
 * errors of work on a stream. Does not wait. */
int ot_comm_error(struct ot_comm *comm);
/* Breaks the communicator: every operation and wait returns soon. The calling thread's error stays. */
void ot_comm_abort(struct ot_comm *comm);

#endif
