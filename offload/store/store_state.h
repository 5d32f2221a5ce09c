/* The private state of the NVMe store, shared by the files of this folder. */
#ifndef OT_OFFLOAD_STORE_STORE_STATE_H
#define OT_OFFLOAD_STORE_STORE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "offload/store/store.h"

/* ---- stripes: the address space over the files ---- */

/* A zone of the address space: stripes that alternate between the files that have room. When a file is full,
 * a new zone with the other files begins. The last row of stripes in a zone may be lower. */
struct ot_store_zone {
    int64_t begin; /* address */
    int64_t base;  /* offset in each file */
    int64_t height;
    int n_files;
    int files[OT_STORE_MAX_DIRS];
};

struct ot_stripes {
    int64_t stripe_bytes;
    int n_zones;
    struct ot_store_zone zones[OT_STORE_MAX_DIRS];
};

/* Consecutive bytes of one file. */
struct ot_file_run {
    int file;
    int64_t offset;
    int64_t bytes; /* from here on */
};

/* The most bytes that the files may hold. Limits are rounded down to OT_STORE_ALIGN, and at most 2^56
 * each. */
int64_t ot_stripes_capacity(const int64_t *limits, int n);
/* Makes stripes for `bytes` addresses, at most the capacity. file_bytes[n]: the bytes that each file
 * needs. */
void ot_stripes_init(struct ot_stripes *stripes, const int64_t *limits, int n, int64_t stripe_bytes,
                     int64_t bytes, int64_t *file_bytes);
struct ot_file_run ot_stripes_locate(const struct ot_stripes *stripes, int64_t address);

/* ---- extents ---- */

enum { NO_SIDE = -1 };

struct ot_store_side {
    int64_t address;
    uint32_t *crc; /* CRC-32 of each chunk; another side may be cut into other chunks */
    int pins;      /* protected by sides_lock */
};

struct ot_store_extent {
    int64_t bytes;
    int n_sides;
    int rank; /* position in the order on the disks */
    struct ot_store_side *sides;
    int side; /* the side with the content; NO_SIDE: zeros. Protected by sides_lock */
    _Atomic bool is_being_written;
};

/* ---- one direction ---- */

struct ot_store_job;
struct ot_store_flight;

struct ot_store_lane {
    struct ot_store *store;
    bool write;
    pthread_t thread;
    bool started;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct ot_store_job *queue, **queue_end; /* started by callers, not yet taken by the thread */
    bool stopping;
    bool is_set_up; /* the I/O engine is open, or `error` has the reason */
    struct ot_error error;

    /* used only by the thread: */
    struct ot_io_engine *engine;
    bool direct[OT_STORE_MAX_DIRS];            /* true if the file has O_DIRECT, as far as this lane knows */
    struct ot_store_job *active, **active_end; /* taken, not done; oldest first */
    struct ot_store_job *cutting;              /* first job with chunks that are not started */
    struct ot_store_flight *flights;           /* [depth] */
    struct ot_store_flight **free_flights;     /* [depth] */
    int n_free;
    int next_rank, last_side; /* extent and side that follow the last started write */

    _Atomic int64_t bytes, resumed;
};

struct ot_store {
    struct ot_stripes stripes;
    int n_files;
    struct ot_store_file files[OT_STORE_MAX_DIRS];
    int fds[OT_STORE_MAX_DIRS];
    int n_extents;
    struct ot_store_extent *extents;
    int *order;                  /* [n_extents]: extents in their order on the disks */
    struct ot_store_side *sides; /* sides of all extents */
    pthread_mutex_t sides_lock;  /* protects `side` and `pins` of all extents; held only briefly */
    uint32_t *crcs;              /* NULL: no CRC-32 is kept */
    bool no_verify;              /* no comparison when a chunk is read */
    int max_spans;
    _Atomic(const struct ot_store_file *) failed_sync; /* first file that could not be flushed; NULL: none */
    size_t chunk_bytes;
    int depth;
    enum ot_io_choice engine;
    void *arena;
    size_t arena_bytes;
    struct ot_io_calls calls;
    const struct ot_topology *topology;
    struct ot_store_lane read, write;
    char *description;
};

/* Starts a direction's thread and waits until its I/O engine is open. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_store_start_lane(struct ot_store *store, bool write, struct ot_store_lane *lane);
/* ends the thread after all jobs; a zeroed lane is fine */
void ot_store_stop_lane(struct ot_store_lane *lane);
/* The chunk that begins at `offset` of a side: at most the rest of the stripe, chunk_bytes, and the
 * extent. */
struct ot_file_run ot_store_cut(const struct ot_store *store, const struct ot_store_extent *extent, int side,
                                int64_t offset);
/* Frees all space that no pin covers, in the files with wanted[i] set. Clears wanted[i] if a file refuses. */
void ot_store_punch_unpinned(struct ot_store *store, bool wanted[OT_STORE_MAX_DIRS]);

#endif
