/* The inside of the NVMe store, shared by the files of this folder. */
#ifndef OT_OFFLOAD_STORE_STORE_STATE_H
#define OT_OFFLOAD_STORE_STORE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "offload/store/store.h"

/* ---- stripes: the address space over the files ---- */

/* As long as a file has room, stripes go on to it in turn. Each time that one is full a new zone begins,
 * which the others make up. Within a zone the last row of stripes may be a low one. */
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

struct ot_place {
    int file;
    int64_t offset;
    int64_t run; /* bytes from here on that follow each other */
};

/* The most that the files may hold; limits count in units of OT_STORE_ALIGN and are at most 2^56 each. */
int64_t ot_stripes_capacity(const int64_t *limits, int n);
/* For `bytes` addresses, at most the capacity; file_bytes[n] is what that takes of each. */
void ot_stripes_init(struct ot_stripes *stripes, const int64_t *limits, int n, int64_t stripe_bytes,
                     int64_t bytes, int64_t *file_bytes);
struct ot_place ot_stripes_locate(const struct ot_stripes *stripes, int64_t address);

/* ---- extents ---- */

enum { NO_SIDE = -1 };

struct ot_store_side {
    int64_t address;
    uint32_t *crc; /* of each chunk; the cuts are those of the side */
    int pins;      /* under the store's lock */
};

struct ot_store_extent {
    int64_t bytes;
    int n_sides;
    int rank; /* in the order on the disks */
    struct ot_store_side *sides;
    int side; /* that holds the content; NO_SIDE: zeros. Under the store's lock */
    _Atomic bool is_being_written;
};

/* ---- one direction ---- */

struct ot_store_job;
struct ot_store_slot;

struct ot_store_lane {
    struct ot_store *store;
    bool write;
    pthread_t thread;
    bool started;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct ot_store_job *queue, **queue_end; /* started by callers, not seen by the thread */
    bool stopping;
    bool is_set_up; /* the engine is open, or failed to: */
    struct ot_error error;

    /* the thread's own */
    struct ot_io_engine *engine;
    bool direct[OT_STORE_MAX_DIRS];            /* the files have O_DIRECT, as far as this lane knows */
    struct ot_store_job *active, **active_end; /* seen, not done, oldest first */
    struct ot_store_job *cutting;              /* the first with chunks that are not started */
    struct ot_store_slot *slots;               /* [depth] */
    struct ot_store_slot **free_slots;         /* [depth] */
    int n_free;
    int next_rank, last_side; /* where the write that was started last would be followed */

    _Atomic int64_t bytes, resumed;
};

struct ot_store {
    struct ot_stripes stripes;
    int n_files;
    struct ot_store_file files[OT_STORE_MAX_DIRS];
    int fds[OT_STORE_MAX_DIRS];
    int n_extents;
    struct ot_store_extent *extents;
    int *order;                  /* [n_extents]: extents as they lie on the disks */
    struct ot_store_side *sides; /* of all extents */
    pthread_mutex_t sides_lock;  /* which side holds what, and pins: held for moments */
    uint32_t *crcs;              /* NULL: none are kept */
    bool no_verify;              /* when reading */
    int max_spans;
    _Atomic(const struct ot_store_file *) failed_sync; /* NULL: none */
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

/* Starts the thread and waits until its engine is open. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_store_start_lane(struct ot_store *store, bool write, struct ot_store_lane *lane);
void ot_store_stop_lane(struct ot_store_lane *lane); /* after all jobs; zeroed is fine */
/* The chunk that begins there: at most a stripe, at most chunk_bytes, within the extent. */
struct ot_place ot_store_cut(const struct ot_store *store, const struct ot_store_extent *extent, int side,
                             int64_t offset);
/* Of the files wanted[n_files], frees all space that no pin covers. */
void ot_store_punch_unpinned(struct ot_store *store, bool wanted[OT_STORE_MAX_DIRS]);

#endif
