/* Writes a checkpoint (manifest.h) while training goes on. It is the sink of a snapshot
 * (offload/engine/snapshot.h).
 *
 * Open makes PARENT/step-N.partial, locks it with flock, reserves disk space for state.bin and writes
 * checkpoint.json. The snapshot's thread copies segments into slots of the caller's memory. The writer's own
 * thread (slot_writer.h) takes their checksums and keeps up to n_slots of them in flight, with O_DIRECT if
 * the file system has it. `end` waits for these writes, flushes state.bin, links and flushes the store's
 * files that segments refer to, writes manifest.bin, flushes the directory, renames it and flushes the
 * parent. The rename makes the checkpoint visible as a whole. Record and manifest are decoded before they are
 * written, so that every checkpoint can be read again. After the first failure all calls do nothing, and
 * close removes the written files.
 *
 * An existing checkpoint of the same step, whole or not, is removed just before the rename, when the new one
 * is complete. If the process ends between the removal and the rename, ot_checkpoint_tidy (catalog.h) does
 * the rename.
 *
 * SEVERAL RANKS. Rank 0 opens its writer first. The others open theirs in the same directory, after that, and
 * write files of their own names (joins). `end` then only makes this rank's files durable. When all ranks are
 * there, each tells its segments (share), rank 0 adds them to its own (add), and only then writes
 * manifest.bin and renames the directory (seal). Rank 0 alone removes a directory that is not complete.
 *
 * SEVERAL DIRECTORIES. If hosts keep the segments of their own ranks, the first rank of each directory makes
 * it. After rank 0 has added all segments, it hands its manifest (share) to these ranks, which take and seal
 * it. So checkpoint.json and manifest.bin are the same everywhere, and no two files have the same name.
 *
 * Every system call that may fail because of a full or broken disk goes through struct ot_io_calls, so that
 * tests can make it fail or end the process there.
 */
#ifndef OT_CHECKPOINT_WRITER_H
#define OT_CHECKPOINT_WRITER_H

#include "src/checkpoint/manifest.h"
#include "src/checkpoint/record.h"

struct ot_checkpoint_writer;

struct ot_checkpoint_writer_config {
    const char *parent;                        /* the directory of checkpoints; must exist */
    const struct ot_chain *chain;              /* slabs and dtype; outlives the writer */
    const struct ot_checkpoint_record *record; /* read only during open */
    /* n_slots slots of ot_segment_slot_bytes each, aligned to 4 KiB; outlives the writer. */
    void *memory;
    int n_slots; /* >= 2 */
    enum ot_io_choice io_engine;
    int64_t state_bytes; /* expected size of state.bin: reserved before anything is written */
    /* On the file system of `parent`; segments may refer to it. NULL: all are copied. */
    struct ot_store *store;
    const struct ot_io_calls *calls; /* NULL: the system's */
    int rank, ranks;                 /* ranks that write this checkpoint; ranks 0 counts as 1 */
    bool joins;                      /* another rank has made the directory, and removes it */
    /* checkpoint.json, as rank 0 has encoded it, for ranks that keep their segments in several directories.
     * Read only during open. NULL: the encoded `record`. */
    const char *record_text;
    size_t record_bytes;
};

/* Bytes of state.bin if every segment of the chain is copied by one rank. */
int64_t ot_checkpoint_state_bytes(const struct ot_chain *chain);
/* True if files of a store's directory can be hard-linked into `parent` (same file system and mount).
 * `parent` need not exist yet: its nearest existing ancestor counts. */
bool ot_checkpoint_can_refer(const char *parent, const char *store_dir);

/* Errors: OT_E_IO (if space is short, the message says how much), OT_E_INPUT (another process is saving this
 * step, or a file or link has that name), OT_E_BUDGET. */
int ot_checkpoint_writer_open(const struct ot_checkpoint_writer_config *config,
                              struct ot_checkpoint_writer **out);
struct ot_snapshot_sink ot_checkpoint_writer_sink(struct ot_checkpoint_writer *writer);
/* After the snapshot has finished: bytes that were written to state.bin, and bytes referred to in the store;
 * of all ranks that were added. */
void ot_checkpoint_writer_count(const struct ot_checkpoint_writer *writer, int64_t *written,
                                int64_t *referred);
/* Several ranks, after the snapshot has finished without an error. Share: the segments of this rank, encoded
 * for add; the caller frees the bytes. Errors: OT_E_BUDGET. */
int ot_checkpoint_writer_share(const struct ot_checkpoint_writer *writer, unsigned char **bytes, size_t *n);
/* Rank 0: adds the segments of another rank. Errors: OT_E_INPUT, OT_E_INTERNAL, OT_E_BUDGET. */
int ot_checkpoint_writer_add(struct ot_checkpoint_writer *writer, const unsigned char *bytes, size_t n);
/* The first rank of another directory: takes the manifest of all segments that rank 0 has shared. Errors:
 * OT_E_INPUT, OT_E_BUDGET. */
int ot_checkpoint_writer_take(struct ot_checkpoint_writer *writer, const unsigned char *bytes, size_t n);
/* Completes the checkpoint, with the segments of all ranks, in this rank's directory. Errors: OT_E_IO;
 * OT_E_INTERNAL (segments are missing). */
int ot_checkpoint_writer_seal(struct ot_checkpoint_writer *writer);
/* Removes the written files unless the checkpoint is complete. Waits for writes that are in flight. NULL is
 * fine. */
void ot_checkpoint_writer_close(struct ot_checkpoint_writer *writer);

#endif
