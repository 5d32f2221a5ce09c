/* Private declarations of the communicator. Included inside this folder alone. */
#ifndef OT_OFFLOAD_COMM_COMM_STATE_H
#define OT_OFFLOAD_COMM_COMM_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/device.h"
#include "offload/comm/comm.h"
#include "offload/comm/plugin.h"
#include "src/base/error.h"

enum ot_comm_kind {
    OT_COMM_GATHER,
    OT_COMM_EXCHANGE,
    OT_COMM_BROADCAST,
    OT_COMM_BEGIN,
    OT_COMM_END,
    /* A call of ot_comm_transfer is one operation for each half, which adds it to a list, and one that does
     * the list. So an operation has no list of its own. */
    OT_COMM_SEND,
    OT_COMM_RECEIVE,
    OT_COMM_TRANSFER,
    /* of transfers through a crossing */
    OT_COMM_AWAIT_FREE,
    OT_COMM_FILLED,
    OT_COMM_AWAIT_FILLED,
    OT_COMM_FREED
};

/* One call of the communicator's functions, inside ot_lane_call. */
struct ot_comm_operation {
    struct ot_comm *comm;
    enum ot_comm_kind kind;
    const void *from; /* the part, or the data to send */
    void *to;         /* the parts, the received data, or the memory of a broadcast or transfer */
    size_t bytes;     /* size of a part, a broadcast or a transfer */
    int root;         /* of a broadcast; the other rank of a transfer; a link of a crossing */
};

/* An operation is written before its command is enqueued, so one more may be in use than a lane holds
 * commands. */
enum { OT_COMM_OPERATIONS = OT_LANE_MOST_COMMANDS + 1 };

/* monitor.c */
struct ot_comm_monitor {
    pthread_t thread;
    bool is_running;          /* set by open and close */
    _Atomic int64_t since_ns; /* time at which the stream reached its present operation; 0: none */
    pthread_mutex_t mutex;    /* guards `must_end` */
    pthread_cond_t changed;
    bool must_end;
};

struct ot_comm {
    const struct ot_comm_v1 *api;
    const struct ot_comm_transfers_v1 *transfers; /* NULL: it has none */
    void *library;                                /* from dlopen; NULL: built in */
    void *context;
    bool is_open;
    struct ot_world *world; /* NULL: none */
    struct ot_device *device;
    bool on_stream; /* operations are enqueued on the device's stream; otherwise a lane calls them */
    bool is_staged; /* device memory is copied to the host and back around each operation */
    int rank, ranks;
    double timeout_seconds;
    char description[192];
    char *staging;
    size_t staging_bytes;
    size_t n_operations; /* enqueued so far; the index in the ring is the count modulo OT_COMM_OPERATIONS */
    struct ot_comm_operation operations[OT_COMM_OPERATIONS];
    struct ot_comm_transfer_v1 listed[OT_COMM_MOST_TRANSFERS]; /* used by the lane's thread alone */
    size_t n_listed;
    struct ot_comm_crossing *crossing; /* NULL: none */
    bool is_grouping;                  /* on a stream: group_begin was enqueued, and group_end was not */
    struct ot_comm_monitor monitor;

    atomic_bool is_broken;
    pthread_mutex_t mutex; /* guards `error` */
    struct ot_error error; /* the first one */
};

/* ---- comm.c ---- */

/* Keeps the error `rc` of the calling thread if it is the first one, and breaks the communicator. Returns the
 * first error. */
int ot_comm_break(struct ot_comm *comm, int rc);
/* Breaks the communicator because the call `what` returned a code of plugin.h. */
void ot_comm_break_by_code(struct ot_comm *comm, const char *what, int code);

/* ---- operations.c ---- */

/* Copies the operation, and enqueues it: on the stream, or as a call of the lane. */
void ot_comm_enqueue(struct ot_comm *comm, struct ot_lane *lane, const struct ot_comm_operation *op);

/* ---- crossing.c ---- */

/* The transfers of a call that have a link, one after the other, the sends first. Puts the other transfers,
 * in their order, into `others` [n], and returns their number. */
int ot_comm_crossing_enqueue(struct ot_comm *comm, struct ot_lane *lane,
                             const struct ot_comm_transfer_v1 *transfers, int n,
                             struct ot_comm_transfer_v1 *others);
/* Waits or counts, in a call of the lane. Breaks the communicator if that fails. */
void ot_comm_crossing_run(const struct ot_comm_operation *op);
void ot_comm_crossing_free(struct ot_comm_crossing *crossing); /* NULL is fine */

/* ---- monitor.c ---- */

/* Watches the operations if they are on a stream and there are other ranks. Errors: OT_E_COMM. */
int ot_comm_monitor_start(struct ot_comm *comm);
void ot_comm_monitor_stop(struct ot_comm *comm);
/* Surround an operation, or a group of them, on the lane. */
void ot_comm_monitor_begin(struct ot_comm *comm, struct ot_lane *lane);
void ot_comm_monitor_end(struct ot_comm *comm, struct ot_lane *lane);

/* ---- find.c ---- */

/* The result of ot_comm_find. */
struct ot_comm_found {
    const struct ot_comm_v1 *api;
    const struct ot_comm_transfers_v1 *transfers; /* NULL: it has none */
    void *library;                                /* NULL: built in; else the handle for dlclose */
};

/* Finds the communicator of the configuration among those that are built in and the plugins. Errors: see
 * ot_comm_open. */
int ot_comm_find(const struct ot_comm_config *config, struct ot_comm_found *out);
/* Checks the versions of the structs and their required members. path: their origin, for the sentence.
 * Errors: OT_E_INPUT. */
int ot_comm_check(const struct ot_comm_found *found, const char *path);

/* ---- built in ---- */

extern const struct ot_comm_v1 ot_comm_self;
extern const struct ot_comm_transfers_v1 ot_comm_self_transfers;

#endif
