/* NCCL and the CUDA driver, as far as the plugin `nccl` uses them. Both are opened when a communicator is
 * opened, so the plugin itself needs neither to be built nor to be loaded. The declarations are ours. They
 * follow nccl.h of NCCL 2.18 and later, and cuda.h of CUDA 11 and later, whose ABIs are stable.
 *
 * Neither library is ever closed: both have threads of their own. */
#ifndef OT_OFFLOAD_COMM_PLUGINS_NCCL_LIBRARY_H
#define OT_OFFLOAD_COMM_PLUGINS_NCCL_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

/* ---- NCCL ---- */

enum { /* ncclResult_t */
       OT_NCCL_SUCCESS = 0,
       OT_NCCL_CUDA_ERROR = 1,
       OT_NCCL_SYSTEM_ERROR = 2,
       OT_NCCL_INTERNAL_ERROR = 3,
       OT_NCCL_INVALID_ARGUMENT = 4,
       OT_NCCL_INVALID_USAGE = 5,
       OT_NCCL_REMOTE_ERROR = 6,
       OT_NCCL_IN_PROGRESS = 7
};
enum { OT_NCCL_INT8 = 0 }; /* ncclDataType_t */

/* ncclGetVersion: 10000 * major + 100 * minor + patch. 2.18 is the first version with which a nonblocking
 * communicator, its finalization and the config struct all work. */
enum { OT_NCCL_OLDEST = 21800 };

struct ot_nccl_id { /* ncclUniqueId, passed by value */
    char bytes[128];
};

/* ncclConfig_t as it was in 2.17. Newer libraries read `size` bytes, and give every field that is newer than
 * `version` its default. */
struct ot_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};
enum { OT_NCCL_CONFIG_VERSION = 21700 };
#define OT_NCCL_CONFIG_MAGIC 0xcafebeefu

struct ot_nccl_comm; /* ncclComm_t points to it */
struct CUstream_st;  /* cudaStream_t and CUstream point to it */

/* Functions return an ncclResult_t. */
struct ot_nccl {
    int (*get_version)(int *version);
    const char *(*get_error_string)(int result);
    /* describes the last error of any communicator; may be "" */
    const char *(*get_last_error)(struct ot_nccl_comm *comm);
    int (*get_unique_id)(struct ot_nccl_id *id);
    int (*init)(struct ot_nccl_comm **comm, int ranks, struct ot_nccl_id id, int rank,
                struct ot_nccl_config *config);
    int (*finalize)(struct ot_nccl_comm *comm);
    int (*destroy)(struct ot_nccl_comm *comm);
    int (*abort)(struct ot_nccl_comm *comm);
    int (*get_async_error)(struct ot_nccl_comm *comm, int *result);
    int (*all_gather)(const void *send, void *receive, size_t n, int type, struct ot_nccl_comm *comm,
                      struct CUstream_st *stream);
    int (*broadcast)(const void *send, void *receive, size_t n, int type, int root, struct ot_nccl_comm *comm,
                     struct CUstream_st *stream);
    int (*send)(const void *memory, size_t n, int type, int peer, struct ot_nccl_comm *comm,
                struct CUstream_st *stream);
    int (*receive)(void *memory, size_t n, int type, int peer, struct ot_nccl_comm *comm,
                   struct CUstream_st *stream);
    int (*group_start)(void);
    int (*group_end)(void);
};

/* ---- the CUDA driver ---- */

enum { OT_CUDA_SUCCESS = 0, OT_CUDA_NOT_READY = 600 }; /* CUresult */
enum { OT_CUDA_EVENT_NO_TIMING = 2 };                  /* CU_EVENT_DISABLE_TIMING */
struct ot_cuda_uuid {
    unsigned char bytes[16];
};
struct CUctx_st; /* CUcontext points to it */
struct CUevent_st;

/* Functions return a CUresult. */
struct ot_cuda_driver {
    int (*init)(unsigned flags);
    int (*get_device)(int *device, int ordinal);
    int (*get_uuid)(struct ot_cuda_uuid *uuid, int device);
    int (*retain_context)(struct CUctx_st **context, int device);
    int (*release_context)(int device);
    int (*push_context)(struct CUctx_st *context);
    int (*pop_context)(struct CUctx_st **context);
    int (*event_create)(struct CUevent_st **event, unsigned flags);
    int (*event_destroy)(struct CUevent_st *event);
    int (*event_record)(struct CUevent_st *event, struct CUstream_st *stream);
    int (*event_query)(struct CUevent_st *event);
};

/* Opens libcuda.so.1, or writes to `why` why it cannot. Returns an OT_COMM_ code. */
int ot_cuda_driver_open(struct ot_cuda_driver *out, char *why, size_t why_bytes);
/* Opens the library that $OFFLOAD_TRAIN_NCCL names, or else the libnccl.so.2 of the loader's path, or else
 * the one beside the program. version: as ncclGetVersion has it. Returns an OT_COMM_ code. */
int ot_nccl_open(struct ot_nccl *out, int *version, char *why, size_t why_bytes);
/* Writes a version for people ("2.27.3"). Returns text. */
enum { OT_NCCL_VERSION_BYTES = 40 };
const char *ot_nccl_version_text(int version, char text[OT_NCCL_VERSION_BYTES]);

#endif
