/* The world: the ranks of a run, and the connections that control them.
 * Rank 0 listens on a TCP port; every other rank connects to it and stays connected until the run ends. These
 * connections carry little: the handshake, small gathers, signs of life, and the reason when a rank fails.
 * The communicator (comm.h) moves the data.
 *
 * HANDSHAKE. Both sides send a magic number, the version of the protocol and of the program, the run's id,
 * the number of ranks and their rank. Whatever does not match is refused in one sentence that names the rank
 * and both values. A rank of another run that finds this port does no harm. All of it happens before the
 * deadline, and rank 0 says which ranks are missing when that passes.
 *
 * SECRET. With a secret, both sides first prove that they know it: each answers a random number of the other
 * with an HMAC-SHA-256 of it and of the hello. The secret itself is never sent. A process without it can
 * neither join nor end the run. Later messages are neither encrypted nor signed: the secret keeps strangers
 * out, not somebody who can change packets on their way.
 *
 * FAILURES BEFORE ALL ARE CONNECTED. A rank that ends before it has opened its world says why to rank 0
 * (ot_world_tell). Rank 0, if it ends while ranks are missing, stays some seconds to tell them. A cause with
 * OT_E_USAGE is OT_E_USAGE on all ranks: ranks that do not match, or one with an option that is wrong. So the
 * exit code does not depend on which rank hears first. All other causes are OT_E_COMM on the other ranks.
 *
 * SIGNS OF LIFE. A thread of each rank sends a sign every second, and expects one from the other end. A rank
 * is lost if its connection closes without a goodbye, or if it was silent for silence_seconds. Then rank 0
 * tells the others, and every rank breaks off: the world calls `on_loss`, and every wait returns the same
 * sentence ("rank 3 (host b, process 4711) is lost: it was silent for 30 s"). A rank that fails by itself
 * says why before it closes (ot_world_fail), so that the sentence is the true reason.
 *
 * The sign is sent by a thread of its own, so a rank that computes for a long time is not lost. A process
 * that is stopped, or a machine that does not answer, is.
 *
 * STATES of a world, and the function of each transition. `weight` only grows (enum ot_world_weight):
 *
 *   CONNECTING  ot_world_open, until all ranks are introduced
 *     introduce          to WHOLE
 *     ot_world_propose   the deadline, a refused rank: to BROKEN, and ot_world_open fails
 *   WHOLE       no reason is known
 *     ot_world_propose   with a rank's own reason: to BROKEN at once (decide). With less, a lost connection
 *                        or a consequence: to UNDECIDED, but a loss on a rank other than 0 breaks its world
 *                        at once, because it has lost rank 0
 *   UNDECIDED   decide_ns is set: a better reason may still come
 *     ot_world_propose   a heavier reason takes the place of the present one
 *     watch_time         the time is over: decide, and to BROKEN
 *   BROKEN      `broken` has the reason, for good. Rank 0 has sent it to all; on_loss breaks the communicator
 *               (comm.h), so operations on lanes end; every gather, and ot_world_error, return the reason
 *   CLOSED      ot_world_close: from any state. A connection that ends after a goodbye is no loss
 *
 * From a broken world to the end of the run: ot_comm_error fails, ot_engine_decide refuses the step
 * (engine/decide.c), the loop gets OT_E_COMM and saves nothing new (train_loop.c:save_at_failure), rank 0
 * names the last checkpoint, and ot_world_fail gives each rank the sentence to report.
 *
 * INVARIANTS, with the tests that hold them (tests/offload/comm/test_world.c, if no other file is named):
 *
 *   1. A loss is found in bounded time, whether the process is killed, is stopped, or only ends early.
 *      (a_killed_rank_ends_all, a_stopped_rank_ends_all, a_rank_that_ends_early_is_named)
 *   2. All ranks report one reason, the heaviest that came in time. (the_true_reason_wins,
 *      a_loss_wins_over_its_consequence, a_consequence_does_not_win_over_the_loss_before_it)
 *   3. A broken world stays broken, with the same reason, and on_loss is called once.
 *      (on_loss_is_called_once_also_if_set_later)
 *   4. No wait outlives the world, or its own deadline. (a_late_rank_breaks_the_world,
 *      the_deadline_names_the_missing_ranks in test_rendezvous.c, test_killed_rank in test_comm_failure.c)
 *   5. Garbage from a broken operation changes no weight: the engine asks ot_comm_error before each decision.
 *      (failing_operations in tests/offload/engine/test_engine_ranks.c;
 *      test_a_killed_rank_ends_all_and_the_same_command_goes_on in tests/resume/test_resume_ranks.py)
 *   6. A pause of this process is no loss of the others. (a_pause_of_all_is_no_loss)
 */
#ifndef OT_OFFLOAD_COMM_WORLD_H
#define OT_OFFLOAD_COMM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/error.h"

struct ot_world;

enum { OT_MAX_RANKS = 64 };

/* A rank's launch parameters, from its launcher. */
struct ot_ranks {
    int rank, ranks;             /* number and total; 0 and 1 without a launcher */
    int local_rank, local_ranks; /* on this host; -1, 0: not known, so ot_world_open counts */
    char address[256];           /* host name or IP address of rank 0; "": not known, or one rank */
    bool is_bound; /* the user named the address: rank 0 listens there alone (if an IP address, localhost) */
    int port;      /* rank 0 listens on it */
    char run_id[128]; /* equal on all ranks of a run, different between runs; "": not known */
};

struct ot_world_config {
    struct ot_ranks ranks;
    double timeout_seconds;  /* limit of the handshake, and of every wait; 0: 600 s */
    double silence_seconds;  /* a rank is lost after this silence; 0: 30 s */
    double linger_seconds;   /* wait for unconnected ranks, to tell them why the run ends; 0: 10 s */
    const char *secret;      /* NULL, "": none. Valid until the world is closed */
    const char *secret_name; /* name of the setting, for sentences; NULL: "secret" */
    /* A listening socket that rank 0 was given by its parent (local ranks); -1: none. ot_world_open closes
     * it, also if it fails. */
    int listener;
    /* Called once on the thread of the world, when a rank (or this one) is lost or has failed. NULL: nothing
     * to break off. ot_world_on_loss sets it later. */
    void (*on_loss)(void *context);
    void *context;
};

/* Connects the ranks. With one rank nothing is opened. Errors: OT_E_COMM (the deadline has passed, or a
 * handshake broke off), OT_E_USAGE (impossible ranks, or ranks that do not match), OT_E_IO, OT_E_BUDGET. If a
 * rank of this run (with the same run id) does not match, or is lost, the call fails on all ranks. Rank 0
 * drops all other connections with a line in the log, and waits on. */
int ot_world_open(const struct ot_world_config *config, struct ot_world **out);
/* Replaces ot_world_open on a rank that has already failed: tells the others, who fail with "NAME: WHY".
 * Waits for them for linger_seconds at most. Does nothing with one rank, and reports no errors. */
void ot_world_tell(const struct ot_world_config *config, const struct ot_error *why);
/* Says goodbye and waits, at most for 5 seconds (1 if a rank is lost), until the others have said it too.
 * NULL is fine. */
void ot_world_close(struct ot_world *world);
/* Sets on_loss. If the world is broken and has called no on_loss yet, it calls this one soon. When the
 * function returns, the old on_loss is not running and will not be called. So on_loss must not call this
 * function. Any thread. */
void ot_world_on_loss(struct ot_world *world, void (*on_loss)(void *context), void *context);

/* The ranks, with local ranks that the launcher did not know. */
const struct ot_ranks *ot_world_ranks(const struct ot_world *world);
/* The number of hosts, and the name of a rank for people: "rank 3 (host b, process 4711)". Valid until the
 * world is closed. */
int ot_world_hosts(const struct ot_world *world);
const char *ot_world_name(const struct ot_world *world, int rank);

/* A set of ranks for people: "rank 3", "ranks 2 and 5", "ranks 1, 2 and 3". Bit r: rank r. Returns text. */
enum { OT_RANK_LIST_BYTES = 256 };
const char *ot_rank_list(uint64_t ranks, char text[OT_RANK_LIST_BYTES]);

/* Gathers `bytes` bytes of every rank (at most OT_COMM_MOST_CONTROL_BYTES; 0: a barrier): all =
 * [ranks][bytes]. All ranks call it in the same order, one thread at a time. A rank that comes too late, or
 * with another size, breaks the world. Errors: OT_E_COMM, or OT_E_USAGE: the world is broken. */
int ot_world_all_gather(struct ot_world *world, const void *mine, size_t bytes, void *all);

/* Tells all ranks that this rank ends, and why. The others then fail with "NAME: WHY". Returns -why->code
 * with the sentence to report. If why->code is OT_E_COMM, this rank probably failed because another rank did:
 * the call waits until rank 0 knows the true reason, usually 0.5 s and at most 3 s, and returns it. */
int ot_world_fail(struct ot_world *world, const struct ot_error *why);
/* 0, or OT_E_COMM or OT_E_USAGE: a rank is lost or has failed. Does not wait. A loss shows here after the 0.5
 * s in which rank 0 waits for a better reason. Any thread. */
int ot_world_error(struct ot_world *world);

#endif
