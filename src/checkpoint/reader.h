/* Reading a checkpoint (manifest.h): opened, streamed into an engine, checked.
 *
 * open reads manifest.bin and checkpoint.json, compares their checksums and the sizes of the other files,
 * and allocates nothing that the files' sizes do not bear out. read streams every part, in file order,
 * through slots of the caller's memory, several reads ahead of the sink, and compares every checksum: what
 * reaches the sink is what was written. Parts that are larger than a slot come in pieces.
 */
#ifndef OT_CHECKPOINT_READER_H
#define OT_CHECKPOINT_READER_H

#include "src/checkpoint/manifest.h"
#include "src/checkpoint/record.h"

struct ot_checkpoint;

/* Errors: OT_E_INPUT (damaged: which file, where, and that an older checkpoint may do), OT_E_IO,
 * OT_E_BUDGET. */
int ot_checkpoint_open(const char *dir, struct ot_checkpoint **out);
void ot_checkpoint_close(struct ot_checkpoint *checkpoint); /* NULL is fine */
const char *ot_checkpoint_dir(const struct ot_checkpoint *checkpoint);
const struct ot_checkpoint_record *ot_checkpoint_record(const struct ot_checkpoint *checkpoint);
const struct ot_manifest *ot_checkpoint_manifest(const struct ot_checkpoint *checkpoint);
int64_t ot_checkpoint_bytes(const struct ot_checkpoint *checkpoint); /* that a read reads */

struct ot_checkpoint_read {
    void *memory; /* slots as the writer's (writer.h), 4 KiB aligned */
    int n_slots;  /* >= 2 */
    enum ot_io_choice io_engine;
    const struct ot_io_calls *calls; /* NULL: the system's */
    /* On the calling thread; the memory is valid during the call. An error stops the read and is returned. */
    int (*sink)(void *context, const struct ot_part *part, const void *memory);
    void *context;
    void (*progress)(void *context, int64_t bytes, int64_t total); /* NULL: none */
};
/* Errors: OT_E_INPUT (a checksum: file, offset), OT_E_IO, the sink's. */
int ot_checkpoint_read(struct ot_checkpoint *checkpoint, const struct ot_checkpoint_read *read);

#endif
