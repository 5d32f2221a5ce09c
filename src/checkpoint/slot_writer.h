/* Writes slots of memory to a file on a thread of its own. It writes a checkpoint's state.bin while the
 * snapshot copies the next segment.
 *
 * The thread has an I/O engine (offload/store/io_engine.h). It cuts each slot into chunks of at most 1 MiB
 * and takes the CRC-32 of each chunk. All slots that were started are in flight at once. Short writes, EINTR
 * and EAGAIN are retried; if O_DIRECT is refused, the chunk is written without it. Any other error is the
 * first failure: from then on no slot is written, and every call returns that failure.
 *
 * Threads: one owner calls these functions; the writer's thread works for it.
 */
#ifndef OT_CHECKPOINT_SLOT_WRITER_H
#define OT_CHECKPOINT_SLOT_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/store/io_engine.h"

enum { OT_SLOT_CHUNK_BYTES = 1 << 20, OT_SLOT_MAX_CHUNKS = 4 };

struct ot_slot_chunk { /* used by the writer's thread only */
    struct ot_slot *slot;
    struct ot_io_chunk io;
};

struct ot_slot {
    void *memory;
    /* Set by the owner: where to write, how much (a multiple of 4 KiB, at most OT_SLOT_MAX_CHUNKS chunks),
     * and a number for the owner's own use. */
    int64_t offset;
    size_t bytes;
    int64_t tag;
    /* Valid once the slot was written. Chunks are in the order of the bytes. */
    int n_chunks;
    uint32_t crc[OT_SLOT_MAX_CHUNKS];

    struct ot_slot *next;
    int in_flight;
    struct ot_slot_chunk chunks[OT_SLOT_MAX_CHUNKS];
};

struct ot_slot_writer;

struct ot_slot_writer_config {
    int fd;           /* the owner closes it */
    const char *path; /* for error messages; outlives the writer */
    bool direct;      /* fd has O_DIRECT; if not, written data is dropped from the page cache */
    void *memory;     /* n_slots slots of slot_bytes; outlives the writer */
    size_t slot_bytes;
    int n_slots;
    enum ot_io_choice io_engine;
    const struct ot_io_calls *calls;
};

/* Starts the thread and waits until its I/O engine is open. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_slot_writer_open(const struct ot_slot_writer_config *config, struct ot_slot_writer **out);
/* Drops slots that the thread has not begun, and waits for the rest. NULL is fine. */
void ot_slot_writer_close(struct ot_slot_writer *writer);
/* Waits for a free slot: a slot that was written, or a slot that was never used (n_chunks is 0). Errors:
 * OT_E_IO. */
int ot_slot_writer_take(struct ot_slot_writer *writer, struct ot_slot **out);
/* Queues a slot that ot_slot_writer_take returned for writing. */
void ot_slot_writer_start(struct ot_slot_writer *writer, struct ot_slot *slot);
/* Waits until every slot that was started is written. Errors: OT_E_IO. */
int ot_slot_writer_wait(struct ot_slot_writer *writer);
struct ot_slot *ot_slot_writer_at(struct ot_slot_writer *writer, int index);

#endif
