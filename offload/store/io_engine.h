/* I/O engines: the two ways to move blocks between memory and open files, behind one interface. Both reach
 * the system through the seam of src/base/io_calls.h.
 *
 * An engine has a queue of I/Os, each a range of one file, and begins them in the order in which they were
 * submitted: many disks read ahead, and are slower out of order. An engine belongs to the thread that opened
 * it, which alone submits, reaps and closes. Results are as io_uring's: bytes moved, or -errno. A chunk
 * (struct ot_io_chunk) is an I/O that is begun again until all of it has been moved.
 *
 * `uring` makes a ring with SINGLE_ISSUER and DEFER_TASKRUN, with COOP_TASKRUN where the kernel refuses that,
 * then plain. Files are registered, and the arena in parts of at most 1 GiB (the kernel's limit for one
 * buffer) where the memlock limit allows it: neither is required. `pool` has as many threads as I/Os may be
 * in flight (at most 64), each in one pread or pwrite.
 */
#ifndef OT_OFFLOAD_STORE_IO_ENGINE_H
#define OT_OFFLOAD_STORE_IO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "src/base/io_calls.h"

enum ot_io_choice { OT_IO_AUTO, OT_IO_URING, OT_IO_POOL };
const char *ot_io_choice_name(enum ot_io_choice choice); /* "auto", "uring", "pool" */

struct ot_io_request {
    bool write;
    int file; /* index into the engine's files */
    void *memory;
    size_t bytes;
    off_t offset;
    void *owner; /* comes back with the result */
};

struct ot_io_result {
    void *owner;
    int64_t result; /* bytes, or -errno */
};

struct ot_io_engine;

struct ot_io_engine_config {
    enum ot_io_choice choice; /* auto: uring, or the pool where io_uring is refused */
    int n_files;
    const int *files; /* descriptors; the caller keeps them and the array while the engine is open */
    int depth;        /* I/Os in flight at most */
    void *arena;      /* to be registered; NULL: none */
    size_t arena_bytes;
    const struct ot_io_calls *calls; /* NULL: the system's */
};

/* On the thread that will use it. Errors: OT_E_IO: refused, with the reason; OT_E_BUDGET. */
int ot_io_engine_open(const struct ot_io_engine_config *config, struct ot_io_engine **out);
/* Best when nothing is in flight; otherwise what is in flight is waited for. NULL is fine. */
void ot_io_engine_close(struct ot_io_engine *engine);
/* Starts them; with those in flight they must not exceed the depth. Errors: OT_E_IO. */
int ot_io_engine_submit(struct ot_io_engine *engine, const struct ot_io_request *requests, int n);
/* Waits for at least one result of what is in flight; takes at most `most` and returns their number. Errors:
 * OT_E_IO: the engine is broken, all that can be done is to close it. */
int ot_io_engine_reap(struct ot_io_engine *engine, struct ot_io_result *results, int most);
enum ot_io_choice ot_io_engine_choice(const struct ot_io_engine *engine); /* what it is: uring or pool */
/* "DEFER_TASKRUN, registered buffers" or why not, and why not uring; for people. */
const char *ot_io_engine_note(const struct ot_io_engine *engine);

/* ---- chunks ---- */

/* A range of a file that is begun again where its I/O was short, interrupted (EINTR) or refused for now
 * (EAGAIN), and where a file system refuses O_DIRECT with the transfer (some do, or want more than 4 KiB). */
struct ot_io_chunk {
    struct ot_io_request request; /* all of it */
    /* Whether its file has O_DIRECT: one flag for all chunks of a file, of the engine's thread. A refusal
     * clears it, and O_DIRECT with it. NULL: O_DIRECT and the page cache are not the engine's affair. */
    bool *direct;
    /* private: */
    bool was_direct; /* when it was submitted */
    size_t moved;    /* of its bytes */
    int tries;       /* since the last progress */
};

enum ot_io_end { OT_IO_WHOLE, OT_IO_AGAIN, OT_IO_FAILED };

/* What has not been moved yet. */
struct ot_io_request ot_io_chunk_rest(const struct ot_io_chunk *chunk);
/* Submits the rest. Errors: as ot_io_engine_submit. */
int ot_io_chunk_start(struct ot_io_engine *engine, struct ot_io_chunk *chunk);
/* Counts a result in. OT_IO_AGAIN: to be started again. OT_IO_FAILED: an error, the end of the file, or no
 * progress for about a second, of which this sleeps the most. */
enum ot_io_end ot_io_chunk_end(struct ot_io_engine *engine, struct ot_io_chunk *chunk, int64_t result);
/* Fails with OT_E_IO and a sentence for a chunk that has failed with this result. place: ", or use another
 * ...", where there is a choice; else "". */
int ot_io_chunk_fail(const struct ot_io_chunk *chunk, int64_t result, const char *path, const char *place);
/* Without O_DIRECT: starts to write out what the page cache has of the chunk, and drops what is written. The
 * cache would fill up with what is used once. */
void ot_io_chunk_drop_cache(const struct ot_io_engine *engine, const struct ot_io_chunk *chunk);

#endif
