/* The context of the plugin `nccl`, shared by its files. The comment at the top of nccl.c explains it. */
#ifndef OT_OFFLOAD_COMM_PLUGINS_NCCL_STATE_H
#define OT_OFFLOAD_COMM_PLUGINS_NCCL_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/comm/plugin.h"
#include "offload/comm/plugins/breakage.h"
#include "offload/comm/plugins/nccl_library.h"

enum ot_nccl_op_kind {
    OT_NCCL_ALL_GATHER,
    OT_NCCL_ALL_TO_ALL,
    OT_NCCL_BROADCAST,
    OT_NCCL_SEND,
    OT_NCCL_RECEIVE
};

/* An operation that waits for the end of its group. */
struct ot_nccl_op {
    enum ot_nccl_op_kind kind;
    const void *send;
    void *receive;
    size_t bytes;
    int root; /* of a broadcast; the other rank of a send or receive */
};

/* Events around one launch on the stream. */
struct ot_nccl_launch {
    struct CUevent_st *begin, *end;
    int64_t began_ns; /* the time at which `begin` was first seen reached; 0: not yet */
};
enum { OT_NCCL_LAUNCHES = 64 };

struct ot_nccl_context {
    struct ot_breakage breakage;
    struct ot_nccl nccl;
    struct ot_cuda_driver cuda;
    struct CUctx_st *cuda_context; /* the device's primary context; NULL: not retained */
    int cuda_device;
    int rank, ranks;
    double timeout_seconds;
    void *host;
    void (*log)(void *host, int level, const char *text);

    /* Held inside NCCL. */
    pthread_mutex_t calls;
    struct ot_nccl_comm *comm; /* NULL: not open, or aborted */

    /* The helper, a thread that watches work on the stream, and makes the calls that may hang. */
    pthread_t helper;
    bool has_helper; /* used by open and close */
    pthread_mutex_t helper_mutex;
    pthread_cond_t helper_changed;
    bool must_helper_end, is_helper_done;

    /* used by the thread of the operations */
    struct ot_nccl_op *ops;
    size_t n_ops, ops_capacity;
    bool is_grouping;

    /* The launches that the stream has not completed, oldest first, in a ring. */
    pthread_mutex_t launches_mutex;
    struct ot_nccl_launch launches[OT_NCCL_LAUNCHES];
    size_t first_launch, n_launches;
};

/* ---- nccl_calls.c ---- */

/* Makes the device's context current on the calling thread, until leave. */
void ot_nccl_enter(struct ot_nccl_context *c);
void ot_nccl_leave(struct ot_nccl_context *c);
/* Locks `calls`. Fails, without the lock, if the communicator is broken. Returns an OT_COMM_ code. */
int ot_nccl_lock(struct ot_nccl_context *c);
void ot_nccl_unlock(struct ot_nccl_context *c);
/* Records that a call has failed, with NCCL's reason, and begins to abort. Needs the lock. Returns the code
 * of the communicator's first failure. */
int ot_nccl_fail(struct ot_nccl_context *c, const char *call, int result);
/* Starts the helper, before the communicator is opened. Returns an OT_COMM_ code. */
int ot_nccl_start_helper(struct ot_nccl_context *c);
/* Begins to abort the communicator, whose breakage is recorded. Does not wait. Returns its code. */
int ot_nccl_abort(struct ot_nccl_context *c);
/* Waits until NCCL has finished the last call: only then its work is on the stream. Returns an OT_COMM_ code;
 * fails at the deadline. */
int ot_nccl_settle(struct ot_nccl_context *c, const char *what);
/* The communicator's state without waiting, as an OT_COMM_ code. */
int ot_nccl_check(struct ot_nccl_context *c);
/* Ends the communicator: with the others, or by itself if it is broken. False: NCCL hangs, and the helper
 * still uses the context, which must stay. */
bool ot_nccl_end(struct ot_nccl_context *c);

/* ---- nccl_launches.c ---- */

/* Errors of events are ignored: without them a launch has no deadline. */
void ot_nccl_launches_open(struct ot_nccl_context *c);
void ot_nccl_launches_close(struct ot_nccl_context *c);
/* Called before and after the calls that put work on the stream. */
struct ot_nccl_launch *ot_nccl_launch_begin(struct ot_nccl_context *c, void *stream);
void ot_nccl_launch_end(struct ot_nccl_context *c, struct ot_nccl_launch *launch, void *stream);
/* Seconds for which the oldest launch has been running; 0 if none is. */
double ot_nccl_launches_seconds(struct ot_nccl_context *c);

#endif
