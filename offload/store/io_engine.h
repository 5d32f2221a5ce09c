/* I/O engines: two ways to move blocks between memory and open files, behind one interface. Both call the
 * system through the seam of src/base/file_io.h.
 *
 * An I/O engine has a queue of I/Os, each for a range of one file. It begins them in the order in which they
 * were submitted, because many disks read ahead and are slower out of order. An engine belongs to the thread
 * that opened it: only that thread submits, reaps and closes. Results are those of io_uring: bytes moved, or
 * -errno. A chunk (struct ot_io_chunk) is an I/O that is repeated until all its bytes have been moved.
 *
 * `uring` makes a ring with SINGLE_ISSUER and DEFER_TASKRUN. If the kernel refuses these flags it tries
 * COOP_TASKRUN, then no flags. It registers the files, and the arena in parts of at most 1 GiB (the kernel's
 * limit of one buffer) if the memlock limit allows. It works without either. `pool` has as many threads as
 * I/Os may be in flight (at most 64), each in one pread or pwrite.
 */
#ifndef OT_OFFLOAD_STORE_IO_ENGINE_H
#define OT_OFFLOAD_STORE_IO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "src/base/file_io.h"

enum ot_io_choice { OT_IO_AUTO, OT_IO_URING, OT_IO_POOL };
const char *ot_io_choice_name(enum ot_io_choice choice); /* "auto", "uring", "pool" */

struct ot_io_request {
    bool write;
    int file; /* index into the engine's files */
    void *memory;
    size_t bytes;
    off_t offset;
    void *owner; /* returned with the result */
};

struct ot_io_result {
    void *owner;
    int64_t result; /* bytes, or -errno */
};

struct ot_io_engine;

struct ot_io_engine_config {
    enum ot_io_choice choice; /* auto: uring, or the pool if io_uring is refused */
    int n_files;
    const int *files; /* descriptors; the caller keeps them and the array while the engine is open */
    int depth;        /* most I/Os in flight */
    void *arena;      /* memory to register; NULL: none */
    size_t arena_bytes;
    const struct ot_io_calls *calls; /* NULL: system calls */
};

/* Opens an engine on the thread that will use it. Errors: OT_E_IO: refused, with the reason; OT_E_BUDGET. */
int ot_io_engine_open(const struct ot_io_engine_config *config, struct ot_io_engine **out);
/* Waits for I/Os in flight and closes the engine. NULL is fine. */
void ot_io_engine_close(struct ot_io_engine *engine);
/* Starts n I/Os. Together with those in flight they must not exceed the depth. Errors: OT_E_IO. */
int ot_io_engine_submit(struct ot_io_engine *engine, const struct ot_io_request *requests, int n);
/* Waits for at least one result of the I/Os in flight. Takes at most `most` results and returns their number.
 * Errors: OT_E_IO: the engine is broken; the caller can only close it. */
int ot_io_engine_reap(struct ot_io_engine *engine, struct ot_io_result *results, int most);
enum ot_io_choice ot_io_engine_choice(const struct ot_io_engine *engine); /* uring or pool */
/* A note for people: "DEFER_TASKRUN, registered buffers", the reason of each fallback, and the reason why it
 * is not uring. */
const char *ot_io_engine_note(const struct ot_io_engine *engine);

/* ---- chunks ---- */

/* A range of a file whose I/O is repeated if it was short, interrupted (EINTR) or refused for the moment
 * (EAGAIN). It is also repeated without O_DIRECT if the file system refuses the transfer with it (some always
 * do, some want blocks of more than 4 KiB). */
struct ot_io_chunk {
    struct ot_io_request request; /* the whole range */
    /* True if the file has O_DIRECT: one flag for all chunks of a file, used only by the engine's thread. A
     * refusal clears the flag and switches O_DIRECT off. NULL: the engine leaves O_DIRECT and the page cache
     * alone. */
    bool *direct;
    /* private: */
    bool was_direct; /* the flag when the chunk was submitted */
    size_t moved;    /* bytes moved so far */
    int tries;       /* tries since the last progress */
};

enum ot_io_end { OT_IO_WHOLE, OT_IO_AGAIN, OT_IO_FAILED };

/* The part of the chunk that has not been moved yet. */
struct ot_io_request ot_io_chunk_rest(const struct ot_io_chunk *chunk);
/* Submits that part. Errors: as ot_io_engine_submit. */
int ot_io_chunk_start(struct ot_io_engine *engine, struct ot_io_chunk *chunk);
/* Adds a result to the chunk. OT_IO_AGAIN: start it again. OT_IO_FAILED: an error, the end of the file, or
 * about a second without progress (this function sleeps between such tries). */
enum ot_io_end ot_io_chunk_end(struct ot_io_engine *engine, struct ot_io_chunk *chunk, int64_t result);
/* Returns OT_E_IO with a sentence for a chunk that failed with this result. place: ", or use another ..." if
 * the user has a choice; else "". */
int ot_io_chunk_fail(const struct ot_io_chunk *chunk, int64_t result, const char *path, const char *place);
/* Without O_DIRECT: starts writing out the chunk's range from the page cache, and drops written pages.
 * Otherwise the cache would fill up with data that is used once. */
void ot_io_chunk_drop_cache(const struct ot_io_engine *engine, const struct ot_io_chunk *chunk);

#endif
