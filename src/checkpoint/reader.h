/* Reading a checkpoint (manifest.h): opened, streamed into an engine, checked, asked for its weights.
 *
 * OPEN reads manifest.bin and checkpoint.json, compares their checksums, and the record's step with the
 * directory's name, opens the other files inside the directory (no symbolic links, nothing but files), holds
 * them open, compares their sizes, and allocates nothing that those do not bear out.
 *
 * READ streams every part through slots of the caller's memory, by an I/O engine, as many reads ahead of the
 * sink as there are slots, in the order in which parts lie in the files. Every byte is read once and every
 * checksum compared. A part reaches the sink when all its bytes have been found to be what was written. One
 * that is larger than a slot (a whole tile of the NVMe store) comes in pieces, some of which reach the sink
 * before the last of its checksums is known: only what a read that succeeded has delivered counts.
 *
 * MASTER gives the fp32 weights of any range, with the checksums of what it reads for them.
 *
 * One thread uses a checkpoint. It may be removed meanwhile: what is open stays readable.
 */
#ifndef OT_CHECKPOINT_READER_H
#define OT_CHECKPOINT_READER_H

#include "src/checkpoint/manifest.h"
#include "src/checkpoint/record.h"

struct ot_checkpoint;

/* Errors: OT_E_INPUT (damaged: which file, and where; which older one is whole is the caller's to say),
 * OT_E_IO, OT_E_BUDGET. */
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
    /* Something of the part is damaged or cannot be read; the error record says what. 0 goes on, without the
     * rest of that part. NULL: the first damage ends the read. */
    int (*damaged)(void *context, const struct ot_part *part, int file, int rc);
};
/* Errors: OT_E_INPUT (a checksum: file, offset), OT_E_IO, the sink's. */
int ot_checkpoint_read(struct ot_checkpoint *checkpoint, const struct ot_checkpoint_read *read);

/* ---- the weights, in any order ---- */

struct ot_checkpoint_master;

/* The checkpoint outlives it. It holds a few spans in memory, and is fastest where ranges ascend. Errors:
 * OT_E_BUDGET. */
int ot_checkpoint_master_open(struct ot_checkpoint *checkpoint, struct ot_checkpoint_master **out);
void ot_checkpoint_master_close(struct ot_checkpoint_master *master); /* NULL is fine */
/* fp32 values of parameters [first, first + n) of a slab: what ot_engine_get gave then. Errors: OT_E_INPUT
 * (a checksum; no such parameters), OT_E_IO. */
int ot_checkpoint_master_get(struct ot_checkpoint_master *master, int slab, int64_t first, int64_t n,
                             float *values);

#endif
