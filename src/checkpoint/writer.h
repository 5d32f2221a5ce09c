/* Writing a checkpoint (manifest.h) while training goes on: the sink of a snapshot
 * (offload/engine/snapshot.h).
 *
 * open makes PARENT/step-N.partial, holds it by flock, reserves the space of state.bin and writes
 * checkpoint.json. Parts come on the snapshot's thread into slots of the caller's memory; a thread of the
 * writer's own (slot_writer.h) checksums them and keeps as many of them under way as there are slots, through
 * O_DIRECT where the file system has it. `end` waits for them, flushes state.bin, links and flushes the
 * store's files that parts were referred to in, writes manifest.bin, flushes the directory, renames it and
 * flushes the parent: the checkpoint is there, as a whole, from that moment on. Record and manifest are
 * decoded before they are written, so that no checkpoint is made that could not be read. On the first failure
 * everything else does nothing, and close removes what was written.
 *
 * A checkpoint of that step which is there already, whole or not, gives way just before the rename, when the
 * new one lacks nothing but its name. Where that is cut short, ot_checkpoint_tidy (catalog.h) gives it.
 *
 * Every call to the system that may fail with a full or broken disk goes through struct ot_io_calls,
 * so that tests can make it fail or end the process there.
 */
#ifndef OT_CHECKPOINT_WRITER_H
#define OT_CHECKPOINT_WRITER_H

#include "src/checkpoint/manifest.h"
#include "src/checkpoint/record.h"

struct ot_checkpoint_writer;

struct ot_checkpoint_writer_config {
    const char *parent;                        /* the directory of checkpoints; exists */
    const struct ot_chain *chain;              /* slabs and dtype; outlives the writer */
    const struct ot_checkpoint_record *record; /* read during open only */
    /* Slots of ot_part_slot_bytes each, 4 KiB aligned; outlives the writer. */
    void *memory;
    int n_slots; /* >= 2 */
    enum ot_io_choice io_engine;
    int64_t state_bytes;    /* that will be put, as far as is known: reserved before anything is written */
    struct ot_store *store; /* what parts may refer to, in the same file system as parent; NULL: nothing */
    const struct ot_io_calls *calls; /* NULL: the system's */
};

/* What state.bin takes for a chain of which nothing is referred to. */
int64_t ot_checkpoint_state_bytes(const struct ot_chain *chain);
/* Whether a store's directory and the parent, which may not be there yet, share a file system, so that files
 * can be linked. */
bool ot_checkpoint_can_refer(const char *parent, const char *store_dir);

/* Errors: OT_E_IO (naming the shortfall where there is one), OT_E_INPUT (in use by another process, or
 * something else has that name), OT_E_BUDGET. */
int ot_checkpoint_writer_open(const struct ot_checkpoint_writer_config *config,
                              struct ot_checkpoint_writer **out);
struct ot_snapshot_sink ot_checkpoint_writer_sink(struct ot_checkpoint_writer *writer);
/* When the snapshot is finished: bytes that were written, and that were referred to. */
void ot_checkpoint_writer_count(const struct ot_checkpoint_writer *writer, int64_t *written,
                                int64_t *referred);
/* Removes what was written unless the checkpoint is complete; waits for what is under way. NULL is fine. */
void ot_checkpoint_writer_close(struct ot_checkpoint_writer *writer);

#endif
