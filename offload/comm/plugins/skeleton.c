/* A communicator plugin to begin with: complete, and right for one rank.
 *
 *     cc -std=c17 -O2 -shared -fPIC -I PREFIX/include/offload-train -o my-comm.so skeleton.c
 *     offload-train comm-test --comm ./my-comm.so
 *
 * plugin.h has the rules. This file shows where a real plugin does its work. With one rank there is nobody to
 * wait for, so each hook's comment describes its work with more ranks, and `open` refuses them. Copy the
 * file, put your library's calls into the hooks, and run comm-test with 2, 3, 4 and 8 ranks.
 *
 * Needs nothing but the C library. */
#include <plugin.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The state of an open communicator. A process may open several communicators, so nothing here is global. */
struct skeleton {
    int rank;
    /* The error that broke the communicator, or OT_COMM_OK. poll_error and abort may run on any thread while
     * an operation runs on another. */
    atomic_int broken;
    /* The functions that offload-train gave, which stay valid until close returns. */
    void *host;
    void (*log)(void *host, int level, const char *text);
};

/* Connects this rank to all others.
 *
 * Inputs: host->rank and host->ranks (-1 and 0 if nobody knows them; a plugin with OT_COMM_HAS_CONTROL must
 * then find out and tell them in `facts`), host->device, host->timeout_seconds. host->exchange gathers a few
 * bytes of every rank: use it to agree on addresses or on an id. Every rank must call it equally often, also
 * a rank that has failed meanwhile, because the others wait for it. Copy what you need: `host` itself is gone
 * when this function returns.
 *
 * Outputs: *facts, *context. After a failure: a sentence in `why`, and everything is freed again.
 *
 * Returns OT_COMM_UNSUPPORTED if the plugin cannot work on this machine, OT_COMM_TIMED_OUT if a rank did not
 * come before the deadline, OT_COMM_FAILED otherwise. */
static int skeleton_open(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context,
                         char *why, size_t why_bytes) {
    /* A later offload-train may pass a longer struct. It never passes a shorter one. */
    if (host->struct_size < sizeof *host || facts->struct_size < sizeof *facts) {
        snprintf(why, why_bytes, "the plugin was compiled with another plugin.h than offload-train");
        return OT_COMM_UNSUPPORTED;
    }
    /* A real plugin with OT_COMM_HAS_CONTROL asks its library here. */
    int32_t rank = host->rank < 0 ? 0 : host->rank, ranks = host->rank < 0 ? 1 : host->ranks;
    if (ranks != 1) {
        snprintf(why, why_bytes, "the skeleton connects nobody: it has 1 rank, not %d", (int)ranks);
        return OT_COMM_UNSUPPORTED;
    }
    struct skeleton *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(why, why_bytes, "no memory");
        return OT_COMM_FAILED;
    }
    s->rank = rank;
    s->host = host->host;
    s->log = host->log;
    atomic_init(&s->broken, OT_COMM_OK);

    facts->rank = facts->local_rank = rank;
    facts->ranks = facts->local_ranks = ranks;
    snprintf(facts->description, sizeof facts->description, "skeleton, %d rank", (int)ranks);
    *context = s;
    s->log(s->host, OT_COMM_LOG_DEBUG, "skeleton: open");
    return OT_COMM_OK;
}

/* Frees everything that open and later calls have taken.
 *
 * broken = 0: every rank calls this after its last operation. Say goodbye to the other ranks here, and wait
 * for them no longer than the deadline. broken = 1: other ranks may be gone; wait for nobody. */
static void skeleton_close(void *context, int broken) {
    struct skeleton *s = context;
    s->log(s->host, OT_COMM_LOG_DEBUG, broken ? "skeleton: close, broken" : "skeleton: close");
    free(s);
}

/* Each operation begins like this: a broken communicator does nothing. */
static int check(struct skeleton *s) {
    return atomic_load(&s->broken);
}

/* all = [ranks][part_bytes]: sends `part` to every other rank, and receives the part of rank r at
 * all + r * part_bytes.
 *
 * This plugin takes host memory, so `stream` is NULL and the work is done when the function returns. A plugin
 * that takes device memory enqueues the work on `stream` and returns. While the function waits for another
 * rank it looks at `broken` and at the deadline, and sleeps in between. When the deadline passes it sets
 * `broken` and returns OT_COMM_TIMED_OUT. */
static int skeleton_all_gather(void *context, const void *part, void *all, size_t part_bytes, void *stream) {
    struct skeleton *s = context;
    char *own = (char *)all + (size_t)s->rank * part_bytes;
    (void)stream;
    if (check(s) != OT_COMM_OK)
        return check(s);
    if (part != own) /* it may lie at its place already */
        memcpy(own, part, part_bytes);
    return OT_COMM_OK;
}

/* send, receive = [ranks][part_bytes]: sends part r of `send` to rank r, and receives the part of rank r at
 * receive + r * part_bytes. The own part is not copied: offload-train uses it where it is. With one rank
 * nothing is left to do. */
static int skeleton_all_to_all(void *context, const void *send, void *receive, size_t part_bytes,
                               void *stream) {
    (void)send, (void)receive, (void)part_bytes, (void)stream;
    return check(context);
}

/* Rank `root` sends its memory to all others, which receive it in theirs. */
static int skeleton_broadcast(void *context, void *memory, size_t bytes, int32_t root, void *stream) {
    (void)memory, (void)bytes, (void)root, (void)stream;
    return check(context);
}

/* Operations between begin and end use different memory, so a plugin may start them together, and wait for
 * all of them in group_end. This one does each at once. A plugin without groups leaves both out of its table
 * (NULL). */
static int skeleton_group_begin(void *context) {
    return check(context);
}

/* Starts the operations that were delayed since group_begin, on the same stream. Without a stream, waits for
 * them. */
static int skeleton_group_end(void *context, void *stream) {
    (void)stream;
    return check(context);
}

/* Sends to other ranks and receives from others: every entry of the list at the same time, in both
 * directions. A rank that is waited for may be in an earlier call, and what comes from it may belong to a
 * later one. With one rank the list is empty. A plugin without transfers leaves out this function and its
 * table. */
static int skeleton_transfer(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n,
                             void *stream) {
    (void)transfers, (void)stream;
    return n > 0 ? OT_COMM_UNSUPPORTED : check(context);
}

/* Gathers a few bytes of every rank on the host, at most OT_COMM_MOST_CONTROL_BYTES. It may run on another
 * thread at the same time as an operation, so a real plugin has a second connection or communicator for it.
 * A plugin that leaves out this function and the next one does not set OT_COMM_HAS_CONTROL; offload-train
 * then uses its own connections. */
static int skeleton_all_gather_host(void *context, const void *mine, size_t bytes, void *all) {
    struct skeleton *s = context;
    if (check(s) == OT_COMM_OK)
        memcpy((char *)all + (size_t)s->rank * bytes, mine, bytes);
    return check(s);
}

/* Returns when every rank has called it. */
static int skeleton_barrier(void *context) {
    return check(context);
}

/* Tells whether the communicator is broken. Must not wait. If a library reports failures of work on a stream
 * later, ask it here. Name the rank that failed, if it is known: the user reads the sentence. */
static int skeleton_poll_error(void *context, char *why, size_t why_bytes) {
    int code = check(context);
    if (code != OT_COMM_OK)
        snprintf(why, why_bytes, code == OT_COMM_ABORTED ? "the run was ended" : "the communicator failed");
    return code;
}

/* Breaks the communicator: makes every operation that waits return soon, also on another thread. May be
 * called again, and after a failure; the first reason stays. */
static void skeleton_abort(void *context) {
    struct skeleton *s = context;
    int ok = OT_COMM_OK;
    atomic_compare_exchange_strong(&s->broken, &ok, OT_COMM_ABORTED);
}

/* What was added to the interface later. A plugin need not export it. */
const struct ot_comm_transfers_v1 ot_comm_plugin_transfers_v1 = {
    .abi = OT_COMM_TRANSFERS_V1,
    .struct_size = sizeof(struct ot_comm_transfers_v1),
    .transfer = skeleton_transfer,
};

/* The only symbol that a plugin needs to export. */
const struct ot_comm_v1 ot_comm_plugin_v1 = {
    .abi = OT_COMM_ABI_V1,
    .struct_size = sizeof(struct ot_comm_v1),
    .name = "skeleton",
    .capabilities = OT_COMM_TAKES_HOST | OT_COMM_HAS_CONTROL,
    .open = skeleton_open,
    .close = skeleton_close,
    .all_gather = skeleton_all_gather,
    .all_to_all = skeleton_all_to_all,
    .broadcast = skeleton_broadcast,
    .group_begin = skeleton_group_begin,
    .group_end = skeleton_group_end,
    .all_gather_host = skeleton_all_gather_host,
    .barrier = skeleton_barrier,
    .poll_error = skeleton_poll_error,
    .abort = skeleton_abort,
};
