/* Slots of memory, written to one file by a thread of their own: how a checkpoint's state.bin comes to be
 * while the snapshot copies the next part.
 *
 * The thread has an I/O engine (offload/store/io_engine.h). It cuts each slot into chunks of at most 1 MiB,
 * takes the CRC-32 of each, and keeps all slots that were started under way at once. Short writes, EINTR and
 * EAGAIN are taken up again, and what O_DIRECT refuses is written without; anything else is the first
 * failure, after which slots are no longer written, and which every call returns.
 *
 * Threads: one owner, besides the thread itself.
 */
#ifndef OT_CHECKPOINT_SLOT_WRITER_H
#define OT_CHECKPOINT_SLOT_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/store/io_engine.h"

enum { OT_SLOT_CHUNK_BYTES = 1 << 20, OT_SLOT_MAX_CHUNKS = 4 };

struct ot_slot_chunk { /* of the thread */
    struct ot_slot *slot;
    struct ot_io_chunk io;
};

struct ot_slot {
    void *memory;
    /* Set by the owner: where to write how much (a multiple of 4 KiB, at most OT_SLOT_MAX_CHUNKS chunks), and
     * a number of his own. */
    int64_t offset;
    size_t bytes;
    int64_t tag;
    /* When it was written; chunks follow each other. */
    int n_chunks;
    uint32_t crc[OT_SLOT_MAX_CHUNKS];

    struct ot_slot *next;
    int in_flight;
    struct ot_slot_chunk chunks[OT_SLOT_MAX_CHUNKS];
};

struct ot_slot_writer;

struct ot_slot_writer_config {
    int fd;           /* stays the owner's */
    const char *path; /* for sentences; outlives the writer */
    bool direct;      /* O_DIRECT; else what is written is dropped from the page cache */
    void *memory;     /* n_slots of slot_bytes; outlives the writer */
    size_t slot_bytes;
    int n_slots;
    enum ot_io_choice io_engine;
    const struct ot_io_calls *calls;
};

/* Starts the thread and waits until its engine is open. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_slot_writer_open(const struct ot_slot_writer_config *config, struct ot_slot_writer **out);
/* Drops what is not under way yet, and waits for the rest. NULL is fine. */
void ot_slot_writer_close(struct ot_slot_writer *writer);
/* Waits for a slot that is free: one that was written, or never used (n_chunks 0). Errors: OT_E_IO. */
int ot_slot_writer_take(struct ot_slot_writer *writer, struct ot_slot **out);
/* Gives a slot that was taken to the thread. */
void ot_slot_writer_start(struct ot_slot_writer *writer, struct ot_slot *slot);
/* Waits until everything that was started is written. Errors: OT_E_IO. */
int ot_slot_writer_wait(struct ot_slot_writer *writer);
struct ot_slot *ot_slot_writer_at(struct ot_slot_writer *writer, int index);

#endif
