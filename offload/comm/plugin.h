/* The communicator plugin interface of offload-train, version 1.
 *
 * Ranks train one model together; each rank is one process with one device. A communicator moves bytes
 * between ranks. It never adds numbers: offload-train adds gradients with its own kernels, in the order of
 * the ranks. So the bits of a run depend on no communicator, algorithm or topology.
 *
 * A PLUGIN is a shared object that exports the symbol `ot_comm_plugin_v1`. offload-train finds it by name
 * (`--comm nccl`: libot-comm-nccl.so beside the program, then in the folders of $OFFLOAD_TRAIN_PLUGINS) or by
 * path (`--comm ./my-plugin.so`). This header includes only standard headers, so a plugin can be compiled
 * without the rest of offload-train. skeleton.c is a plugin to begin with. `offload-train comm-test --comm X`
 * checks a plugin and measures it.
 *
 * THE INTERFACE IS FROZEN. The structs below never change. A later version is a new symbol with new structs.
 * Each struct begins with its size, so that both sides can check the version that they were compiled with.
 * A later addition is a symbol of its own, which a plugin may lack: offload-train loads the plugin all the
 * same, and says what it lacks when a run needs that. There is one: `ot_comm_plugin_transfers_v1` (TRANSFERS
 * below).
 *
 * MEMORY. A plugin says with `capabilities` which memory its operations take:
 *
 *   OT_COMM_TAKES_HOST     host memory. The operation gets stream = NULL, works on the calling thread, and
 *                          returns when it is complete.
 *   OT_COMM_TAKES_DEVICE   device memory. The operation gets the device's stream (CUDA: a cudaStream_t),
 *                          enqueues its work there and returns. The work is complete when the stream has
 *                          reached it.
 *   OT_COMM_TAKES_PINNED   with a stream, host memory that the device can reach is allowed too.
 *
 * At least one of the first two is needed. If a plugin takes only host memory, offload-train copies device
 * memory to the host and back around each operation.
 *
 * SIZES. A part has any number of bytes, none too. A plugin whose library has a limit works in pieces.
 *
 * ORDER. Every rank calls the same operations in the same order with the same sizes. offload-train checks
 * this before the first step, from the schedules of all ranks. Operations do not overlap: one thread at a
 * time calls them, always with the same stream. The calls between group_begin and group_end may run together;
 * they use different memory.
 *
 * TRANSFERS (the symbol `ot_comm_plugin_transfers_v1`) carry bytes from one rank to one other. Ranks that
 * are stages of a pipeline hand activations on with them. A call of `transfer` has a list of sends and
 * receives, each with one other rank. Their memory does not overlap, except that several sends may have the
 * same. The rules:
 *
 *   matching   The nth send of rank a to rank b, counted over all calls, belongs to the nth receive of rank b
 *              from rank a. Inside a call, the order of the list counts. Two ranks agree on the order of what
 *              they share: transfers in each direction, and operations of all ranks. There is no other order:
 *              a rank takes no part in the transfers of others, and does not count them.
 *   progress   All transfers of a call advance at the same time, and each completes as soon as the other
 *              rank does its half, whatever the others of the call wait for. So ranks in a ring, each of
 *              which sends to the next and receives from the previous in one call, never wait in a circle.
 *              Over separate calls they do: a send may wait until the other rank receives. It may also
 *              complete before, which a program must not rely on.
 *   end        A call is complete when all of its transfers are; then the memory of its sends may change.
 *   sizes      Both halves have the same number of bytes, which may be 0. A plugin that sees a difference
 *              fails with a sentence that names the other rank. One whose library does not tell may hang
 *              until its deadline.
 *
 * Memory, stream, thread, deadline and failure are those of the other operations. `transfer` is never called
 * between group_begin and group_end. After a failure the received memory has any content.
 *
 * CONTROL. all_gather_host and barrier are small, blocking, and may run at the same time as operations, on
 * another thread. A plugin that has both (OT_COMM_HAS_CONTROL) can work where offload-train cannot connect
 * the ranks itself, as under mpirun on several hosts. Without them offload-train uses its own connections.
 *
 * FAILURE. A function returns OT_COMM_OK or an error code. After an error in an operation, or after abort,
 * the communicator is broken: every later operation fails at once, and only poll_error, abort and close
 * are called. An operation that waits longer than the deadline for another rank fails with
 * OT_COMM_TIMED_OUT. abort makes every waiting operation return soon, also one on another thread. No function
 * may end the process.
 *
 * Work on a stream fails, or hangs, after the call has returned. So offload-train watches it, if there are
 * several ranks: it calls poll_error 20 times a second, and calls abort when poll_error tells an error, or
 * when the stream has been at one operation, or one group, for a second longer than the deadline. After abort
 * the stream goes on. So a plugin needs no thread of its own for that.
 */
#ifndef OT_OFFLOAD_COMM_PLUGIN_H
#define OT_OFFLOAD_COMM_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OT_COMM_ABI_V1 = 1 };

enum { /* return codes */
       OT_COMM_OK = 0,
       OT_COMM_FAILED = -1,    /* a call of the library or the system failed, or a rank is gone */
       OT_COMM_TIMED_OUT = -2, /* a rank did not arrive before the deadline */
       OT_COMM_ABORTED = -3,
       OT_COMM_UNSUPPORTED = -4 /* this plugin cannot work here: no library, no device, wrong version */
};

enum { /* bits of `capabilities` */
       OT_COMM_TAKES_HOST = 1 << 0,
       OT_COMM_TAKES_DEVICE = 1 << 1,
       OT_COMM_TAKES_PINNED = 1 << 2,
       OT_COMM_HAS_CONTROL = 1 << 3
};

enum { OT_COMM_LOG_ERROR, OT_COMM_LOG_WARN, OT_COMM_LOG_INFO, OT_COMM_LOG_DEBUG };

/* The bytes that one rank may pass to exchange and all_gather_host. */
enum { OT_COMM_MOST_CONTROL_BYTES = 65536 };

/* offload-train's data and functions for a plugin. Valid until `open` returns; the functions and `host` are
 * valid until `close` returns. */
struct ot_comm_host_v1 {
    uint32_t struct_size;
    /* The rank of this process among all, and on its host. -1, 0: unknown, so the plugin must find out (only
     * if it has OT_COMM_HAS_CONTROL). */
    int32_t rank, ranks;
    int32_t local_rank, local_ranks;
    int32_t device;         /* CUDA device ordinal of this rank; -1: the device is the CPU */
    double timeout_seconds; /* the deadline of every wait for another rank */
    const char *run_id;     /* equal on all ranks of a run, different between runs */
    void *host;             /* first argument of the functions below */
    /* Writes a line to the log. Any thread. */
    void (*log)(void *host, int level, const char *text);
    /* Gathers `bytes` bytes of every rank: all = [ranks][bytes]. A plugin may use it inside `open`, to agree
     * on addresses or an id. NULL: offload-train has no connections of its own. Returns an error code. */
    int (*exchange)(void *host, const void *mine, size_t bytes, void *all);
    /* The IP address of this host on the way to rank 0, for plugins that connect the ranks themselves. NULL:
     * not known. */
    const char *address;
};

/* The facts that an open plugin reports. */
struct ot_comm_facts_v1 {
    uint32_t struct_size;
    int32_t rank, ranks, local_rank, local_ranks; /* as given, or as found */
    char description[128];                        /* for people: "NCCL 2.27.3, 4 ranks" */
};

struct ot_comm_v1 {
    uint32_t abi; /* OT_COMM_ABI_V1 */
    uint32_t struct_size;
    const char *name;
    uint32_t capabilities;

    /* Connects all ranks. *context: opaque, given to every other function. Writes a sentence to `why` if it
     * fails. */
    int (*open)(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context, char *why,
                size_t why_bytes);
    /* Frees everything. broken: the communicator has failed or was aborted, so nobody waits for other ranks.
     * Otherwise every rank calls close, after its last operation is complete. It returns before the deadline
     * in any case. */
    void (*close)(void *context, int broken);

    /* all = [ranks][part_bytes]. Fills in every part with the part of that rank. part: this rank's part,
     * either all + rank * part_bytes or memory outside of `all`. */
    int (*all_gather)(void *context, const void *part, void *all, size_t part_bytes, void *stream);
    /* send, receive = [ranks][part_bytes], not overlapping. Part r of `send` goes to rank r, which gets it as
     * part `rank` of its `receive`. A rank's own part is not copied: its place in `receive` stays as it is.
     */
    int (*all_to_all)(void *context, const void *send, void *receive, size_t part_bytes, void *stream);
    /* Copies the memory of rank `root` to all ranks. */
    int (*broadcast)(void *context, void *memory, size_t bytes, int32_t root, void *stream);
    /* Both NULL, or neither. Operations between the two calls may be delayed until group_end. */
    int (*group_begin)(void *context);
    int (*group_end)(void *context, void *stream);

    /* Both NULL, or neither (OT_COMM_HAS_CONTROL). all = [ranks][bytes]. */
    int (*all_gather_host)(void *context, const void *mine, size_t bytes, void *all);
    int (*barrier)(void *context);

    /* Tells whether the communicator is broken, without waiting, and writes a sentence that names the rank
     * if it is known. Any thread. */
    int (*poll_error)(void *context, char *why, size_t why_bytes);
    /* Breaks the communicator. Any thread; may be called again. Does not wait for other ranks. */
    void (*abort)(void *context);
};

/* The symbol that a plugin exports. */
extern const struct ot_comm_v1 ot_comm_plugin_v1;

/* ---- added later: transfers from one rank to one other ---- */

enum { OT_COMM_TRANSFERS_V1 = 1 };

struct ot_comm_transfer_v1 {
    int32_t rank;    /* the other rank; never the own one */
    int32_t is_send; /* 1: this rank sends to the other, 0: it receives */
    void *memory;    /* a send only reads it */
    size_t bytes;
};

struct ot_comm_transfers_v1 {
    uint32_t abi; /* OT_COMM_TRANSFERS_V1 */
    uint32_t struct_size;
    /* Does all transfers of the list [n], which is valid during the call. context: of ot_comm_v1.open. */
    int (*transfer)(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n, void *stream);
};

/* The symbol that a plugin with transfers exports too. */
extern const struct ot_comm_transfers_v1 ot_comm_plugin_transfers_v1;

#ifdef __cplusplus
}
#endif

#endif
