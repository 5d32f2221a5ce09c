/* The NVMe store keeps extents on one or more disks, in one file per directory.
 *
 * An EXTENT is the unit of reads and writes: one tile's optimizer state, one tile's weights, or one boundary
 * activation. Its size is fixed when the store is opened, and is a multiple of 4 KiB. All sides of all
 * extents make one address space. The space is cut into stripes, which alternate between the directories up
 * to each directory's limit. ot_store_open makes the files and reserves their blocks. So a disk that is too
 * small is found before the first step.
 *
 * ORDER. Many disks are faster if they are read and written in order. The store starts the chunks of the
 * oldest transfer first, and the chunks of a transfer in the order of its pieces. On the disks all first
 * sides are together, then all second sides, and so on, each in extent_order. So extent_order should be the
 * order in which extents are used. If a write has a choice of sides, it takes the side on which it follows
 * the write before it.
 *
 * SIDES. Each extent has one or more sides, which are places for its content. If it has two or more, a write
 * goes to a side that does not hold the present content. The new content is valid once the write is complete.
 * Until then, and if the write fails, the old content stays readable. An extent with one side is overwritten
 * in its place: half of the space, for data that a run can do without if a write fails. It must not be read
 * during a write, and after a write that failed its content is neither the old nor the new. An extent that
 * was never written reads as zeros, without I/O.
 *
 * CHECKS. Every written chunk (at most chunk_bytes) has a CRC-32, which is kept in memory and compared when
 * the chunk is read. no_verify leaves out the comparison, and also the CRC-32 if no extent can be pinned. The
 * store checks every completion. A short transfer continues where it ended. EINTR and EAGAIN are retried for
 * about a second. Any other error ends the transfer with a sentence that names file, offset and error.
 *
 * I/O ENGINES. `uring`: for reading and for writing, one io_uring and one thread each. The thread makes its
 * ring with SINGLE_ISSUER and DEFER_TASKRUN, or with fewer flags if the kernel refuses them. Files are
 * registered, and the arena if the memlock limit allows. `pool`: threads with pread and pwrite, for
 * containers whose seccomp profile forbids io_uring. Both use O_DIRECT. If the file system refuses O_DIRECT
 * they use the page cache: data is written out at once, and dropped from the cache with the next read.
 * ot_store_describe names the ways in use.
 *
 * PINS. The present content of an extent can be pinned. Then it stays on its side, where ot_store_find_spans
 * finds it, until it is unpinned; later writes go to other sides. So an extent needs one more side for each
 * content that may be pinned at the same time (extent_sides). ot_store_link gives a file a second name, in a
 * directory of the caller on the same file system. Under that name the pinned content outlives the store:
 * when the store is closed, such a file stays, and all space that is not pinned is punched out of it.
 *
 * FILES are named offload-train.PID.N.store and locked while in use. Opening a store removes files of crashed
 * runs from its directories: files that nobody has locked. Closing the store unlinks its files.
 *
 * Threads: any thread may call ot_store_start, also from within `done`. The store has one thread for each
 * direction. It calls `done` in the order in which the transfers of its direction were started; `done` must
 * be short. The caller orders reads and writes of the same extent. With two sides, a read during a write gets
 * the content before or after the write. Both must be done before the next write of that extent is started.
 */
#ifndef OT_OFFLOAD_STORE_STORE_H
#define OT_OFFLOAD_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/store/files.h"
#include "offload/topology/topology.h"
#include "src/base/error.h"

struct ot_store;

enum { OT_STORE_MAX_SIDES = 16 };

struct ot_store_config {
    int n_dirs;
    const struct ot_store_dir *dirs;
    enum ot_io_choice engine;
    bool no_verify;
    int n_extents;
    const size_t *extent_bytes; /* bytes of each extent: multiples of OT_STORE_ALIGN */
    const int *extent_sides;    /* sides of each extent: 1..OT_STORE_MAX_SIDES; NULL: 2 */
    const int *extent_order;    /* order on the disks: every extent once; NULL: by number */
    void *arena;                /* host memory of most transfers; registered if possible; NULL: none */
    size_t arena_bytes;
    size_t chunk_bytes;                 /* bytes of one I/O; 0: 1 MiB */
    int depth;                          /* I/Os in flight in each direction; 0: 32 */
    const struct ot_topology *topology; /* for binding threads; outlives the store; NULL: do not bind */
    const struct ot_io_calls *calls;    /* test seam; NULL: system calls */
};

/* Reserves the space and starts the threads. Copies the config. Errors: OT_E_IO (a directory, the space, or
 * the requested I/O engine is refused), OT_E_BUDGET (limits too small: by how much; or no memory). */
int ot_store_open(const struct ot_store_config *config, struct ot_store **out);
/* Waits for transfers in flight and unlinks the files. Files with a second name keep their pinned content.
 * NULL is fine. */
void ot_store_close(struct ot_store *store);
/* Bytes that ot_store_open reserves on the disks for such extents, with all sides. */
size_t ot_store_bytes(const size_t *extent_bytes, const int *extent_sides, int n_extents);
/* A description for people: "uring (DEFER_TASKRUN, registered buffers), O_DIRECT, 2 x 1 MiB x 32, CRC-32".
 * The numbers are directions, bytes of an I/O, I/Os in flight. It has the reason for each fallback. Valid
 * until the store is closed. */
const char *ot_store_describe(const struct ot_store *store);

struct ot_store_piece {
    int extent;
    void *memory; /* as many bytes as the extent; OT_STORE_ALIGN-aligned */
};

struct ot_transfer {
    bool write;
    int n_pieces;
    const struct ot_store_piece *pieces; /* copied; the pieces' memory must stay valid until `done` */
    /* Called once at the end. error: NULL, or the first error; valid during the call. */
    void (*done)(void *arg, const struct ot_error *error);
    void *arg;
};

/* Queues the transfer behind earlier ones of its direction. Does not wait for I/O. Errors: OT_E_BUDGET (then
 * `done` is not called). */
int ot_store_start(struct ot_store *store, const struct ot_transfer *transfer);
/* Transfers one extent and waits for the end. Errors: OT_E_IO, OT_E_BUDGET; OT_E_INTERNAL: a write to an
 * extent whose sides are all pinned. */
int ot_store_read(struct ot_store *store, int extent, void *memory);
int ot_store_write(struct ot_store *store, int extent, const void *memory);

/* ---- pins ---- */

struct ot_store_pin {
    int extent, side; /* side -1: the extent was never written, its content is zeros */
};
/* Consecutive bytes of a file. The content of an extent is its spans, one after the other. */
struct ot_store_span {
    int file;
    int64_t offset, bytes;
    uint32_t crc; /* CRC-32 of these bytes */
};

/* Pins the present content of an extent. A write that is under way is not part of it. The same content may be
 * pinned several times. Any thread may call the functions for pins. */
struct ot_store_pin ot_store_pin_extent(struct ot_store *store, int extent);
void ot_store_unpin(struct ot_store *store, struct ot_store_pin pin);
/* Finds the bytes of a pinned content. Fills in at most `most` spans and returns their number, at most
 * ot_store_max_spans. 0: the content is zeros. */
int ot_store_find_spans(const struct ot_store *store, struct ot_store_pin pin, struct ot_store_span *spans,
                        int most);
/* The largest number of spans of an extent. 0: the store keeps no CRC-32, so spans cannot be found
 * (no_verify, and no extent has more than two sides). */
int ot_store_max_spans(const struct ot_store *store);
/* Flushes the files: on return, all writes that were complete before the call are on the disks. Errors:
 * OT_E_IO. After the first error every call fails, because the system reports lost data only once. */
int ot_store_sync(struct ot_store *store);
int ot_store_file_count(const struct ot_store *store);
/* True if every file still has its name, so that it can get a second one. A file without a name can still be
 * read. */
bool ot_store_has_names(const struct ot_store *store);
/* Gives a file a second name. Errors: OT_E_IO (another file system; the name exists). */
int ot_store_link(struct ot_store *store, int file, int dir_fd, const char *name);

struct ot_store_usage {
    int64_t file_bytes;                /* reserved on the disks */
    int64_t read_bytes, written_bytes; /* since the store was opened */
    int64_t resumed;                   /* I/Os that were continued after a short transfer, EAGAIN or EINTR */
};
void ot_store_usage(const struct ot_store *store, struct ot_store_usage *out);

#endif
