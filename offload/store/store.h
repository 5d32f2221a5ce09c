/* The NVMe store: extents on one or several disks, in one file a directory.
 *
 * An EXTENT is what is read and written as a whole: one tile's optimizer state, one tile's weights, one
 * boundary activation. Its size is fixed when the store is opened, a multiple of 4 KiB. All sides of all
 * extents make one address space, which is cut into stripes that take turns on the directories as far as each
 * one's limit goes. The files are made and their blocks reserved before ot_store_open returns, so a disk that
 * is too small is found out before the first step.
 *
 * ORDER. Many disks are faster in order. The store starts the chunks of the oldest transfer first, each
 * transfer's in the order of its pieces. First sides lie together, so do second ones and so on, each in
 * extent_order: callers should give the order in which extents are used. A write goes to the side that lets
 * it follow the write before it, where there is a choice.
 *
 * SIDES. Each extent has two places or more. A write goes to one that does not hold the present content, and
 * counts from when it is complete: until then, and if it fails, the content before it stays readable. An
 * extent that was never written reads as zeros, without I/O.
 *
 * CHECKS. Every chunk that is written (at most `chunk_bytes`) has a CRC-32, kept in memory, and compared
 * when it is read. no_verify leaves that out, and where nothing can be pinned the CRC-32 as well. Every
 * completion is looked at: a short transfer is taken up where it ended, EINTR and EAGAIN are tried again for
 * about a second, anything else ends the transfer with a sentence that names file, offset and error.
 *
 * ENGINES. `uring`: one io_uring and one thread for each of reading and writing, made in that thread with
 * SINGLE_ISSUER and DEFER_TASKRUN, then with less where the kernel wants less; files registered, and the
 * arena where the memlock limit allows. `pool`: threads with pread and pwrite, for containers whose seccomp
 * forbids io_uring. Both through O_DIRECT, or buffered (written out at once, dropped from the page cache
 * with the next read) where the file system refuses it. What is in use: ot_store_describe.
 *
 * PINS. The present content of an extent can be pinned: it then stays where it is, and where
 * ot_store_find_spans says, whatever is written later, until it is let go. An extent needs a side more for
 * each content that may be pinned at a time (extent_sides). With ot_store_link a file gets a second name, in
 * a directory of the caller's on the same file system, under which the pinned content outlives the store:
 * when the store is closed, what is not pinned is punched out of a file that has such a name, and the file
 * stays.
 *
 * FILES are named offload-train.PID.N.store and locked while in use; opening a store removes those in its
 * directories that nobody holds, what a crash has left. They are unlinked when the store is closed.
 *
 * Threads: ot_store_start may be called by any thread, `done` included; `done` is called on a thread of the
 * store, one for each direction, in the order in which the transfers of that direction were started, and
 * must be short. Reads and writes of one extent are the caller's to order: a read beside a write sees the
 * content before it or after it; before the next write of that extent is started, both must be done.
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
    const size_t *extent_bytes; /* multiples of OT_STORE_ALIGN */
    const int *extent_sides;    /* 2..OT_STORE_MAX_SIDES; NULL: 2 for each */
    const int *extent_order;    /* on the disks: every extent once; NULL: as they are numbered */
    void *arena; /* host memory that transfers use most; registered where possible. NULL: none */
    size_t arena_bytes;
    size_t chunk_bytes;                 /* of one I/O; 0: 1 MiB */
    int depth;                          /* I/Os in flight each way; 0: 32 */
    const struct ot_topology *topology; /* where threads are bound; outlives the store; NULL: nowhere */
    const struct ot_io_calls *calls;    /* test seam; NULL: the system's */
};

/* Reserves the space and starts the threads. Everything is copied. Errors: OT_E_IO (a directory, the space,
 * an engine that was asked for by name and is refused), OT_E_BUDGET (limits too small: by how much). */
int ot_store_open(const struct ot_store_config *config, struct ot_store **out);
/* Waits for what is in flight; unlinks the files, and leaves what is pinned in those that have other names.
 * NULL is fine. */
void ot_store_close(struct ot_store *store);
/* What ot_store_open reserves on the disks for such extents, all sides. */
size_t ot_store_bytes(const size_t *extent_bytes, const int *extent_sides, int n_extents);
/* "uring (DEFER_TASKRUN, registered buffers), O_DIRECT, 2 x 1 MiB x 32, CRC-32", for people: both ways, bytes
 * of an I/O, I/Os in flight; with the reason where something was fallen back from. Valid until closed. */
const char *ot_store_describe(const struct ot_store *store);

struct ot_store_piece {
    int extent;
    void *memory; /* the extent's bytes; OT_STORE_ALIGN-aligned */
};

struct ot_transfer {
    bool write;
    int n_pieces;
    const struct ot_store_piece *pieces; /* copied; the memory stays the caller's until done */
    /* error: NULL, or what went wrong first; valid during the call. */
    void (*done)(void *arg, const struct ot_error *error);
    void *arg;
};

/* Queues the transfer behind earlier ones of its direction; does not block on I/O. Errors: OT_E_BUDGET (then
 * done is not called). */
int ot_store_start(struct ot_store *store, const struct ot_transfer *transfer);
/* The same, waiting for the end. Errors: as the transfer failed: OT_E_IO; OT_E_INTERNAL: a write to an extent
 * all of whose sides are pinned. */
int ot_store_read(struct ot_store *store, int extent, void *memory);
int ot_store_write(struct ot_store *store, int extent, const void *memory);

/* ---- pins ---- */

struct ot_store_pin {
    int extent, side; /* side -1: never written, zeros */
};
/* Consecutive bytes of a file; an extent's content is its spans end to end. */
struct ot_store_span {
    int file;
    int64_t offset, bytes;
    uint32_t crc; /* CRC-32 of these bytes */
};

/* Of the present content: a write that is under way is not part of it. It may be pinned several times. Any
 * thread, as all of these. */
struct ot_store_pin ot_store_pin_extent(struct ot_store *store, int extent);
void ot_store_unpin(struct ot_store *store, struct ot_store_pin pin);
/* Fills in at most `most` spans and returns how many there are: at most ot_store_max_spans. 0: zeros. */
int ot_store_find_spans(const struct ot_store *store, struct ot_store_pin pin, struct ot_store_span *spans,
                        int most);
/* Of any extent. 0: none can be found, with no_verify and no more than two sides each. */
int ot_store_max_spans(const struct ot_store *store);
/* What was complete before the call is on the disks when it returns. Errors: OT_E_IO, and from then on
 * always: what the system has lost it reports once. */
int ot_store_sync(struct ot_store *store);
int ot_store_file_count(const struct ot_store *store);
/* Whether every file still has its name, so that it can get a second one; what has none can still be read. */
bool ot_store_has_names(const struct ot_store *store);
/* A second name for a file. Errors: OT_E_IO (another file system; the name is taken). */
int ot_store_link(struct ot_store *store, int file, int dir_fd, const char *name);

struct ot_store_usage {
    int64_t file_bytes;                /* reserved on the disks */
    int64_t read_bytes, written_bytes; /* since the store was opened */
    int64_t resumed;                   /* short transfers and EAGAIN/EINTR that were taken up again */
};
void ot_store_usage(const struct ot_store *store, struct ot_store_usage *out);

#endif
