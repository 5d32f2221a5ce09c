/* Reads a checkpoint (manifest.h): opens it, streams it into an engine, checks it, returns its weights.
 *
 * OPEN reads manifest.bin and checkpoint.json, compares their checksums, and compares the record's step with
 * the directory's name. It opens the other files of the directory (regular files only, no symbolic links),
 * holds them open and compares their sizes. It allocates no more memory than these sizes justify.
 *
 * READ streams every segment through slots of the caller's memory, with an I/O engine. Up to n_slots segments
 * are read ahead, in the order in which they lie in the files. Every checksum is compared. A segment reaches
 * the sink only after the checksums of all its bytes were found right. A segment that is larger than a slot
 * (a whole tile of the NVMe store) arrives in pieces; some pieces reach the sink before the segment's last
 * checksum is known. So use what the sink received only after the read has succeeded.
 *
 * MASTER returns the fp32 weights of any range. It reads and checks only the spans with master weights,
 * many of them ahead of the caller.
 *
 * One thread uses a checkpoint; a read may have threads of its own. The checkpoint may be removed meanwhile:
 * open files stay readable.
 */
#ifndef OT_CHECKPOINT_READER_H
#define OT_CHECKPOINT_READER_H

#include "src/checkpoint/manifest.h"
#include "src/checkpoint/record.h"

struct ot_checkpoint;

/* Files of other hosts need not be here if the run kept its segments on several hosts (record->hosts).
 * Errors: OT_E_INPUT (damaged: the message names the file and the place; the caller adds which older
 * checkpoint is whole), OT_E_IO, OT_E_BUDGET. */
int ot_checkpoint_open(const char *dir, struct ot_checkpoint **out);
void ot_checkpoint_close(struct ot_checkpoint *checkpoint); /* NULL is fine */
const char *ot_checkpoint_dir(const struct ot_checkpoint *checkpoint);
const struct ot_checkpoint_record *ot_checkpoint_record(const struct ot_checkpoint *checkpoint);
const struct ot_manifest *ot_checkpoint_manifest(const struct ot_checkpoint *checkpoint);
int64_t ot_checkpoint_bytes(const struct ot_checkpoint *checkpoint); /* of all files, here or not */
/* file: index in the manifest. False: another host has it. */
bool ot_checkpoint_has_file(const struct ot_checkpoint *checkpoint, int file);
/* 0 if all files are here. Else OT_E_INPUT: names a missing file, its rank and host, and the cure. */
int ot_checkpoint_check_whole(const struct ot_checkpoint *checkpoint);

enum { OT_READ_MOST_THREADS = 16 };

struct ot_checkpoint_read {
    void *memory; /* n_slots slots, as in writer.h; aligned to 4 KiB */
    int n_slots;  /* >= 2 */
    enum ot_io_choice io_engine;
    const struct ot_io_calls *calls; /* NULL: the system's */
    /* Threads for checksums and the sink, at most OT_READ_MOST_THREADS. 0: the calling thread does it all. */
    int threads;
    /* Several threads may call it at the same time, for different parameters. `memory` is valid during the
     * call. An error stops the read and is returned. The other functions are called one at a time. */
    int (*sink)(void *context, const struct ot_segment *segment, const void *memory);
    void *context;
    /* False: the sink has no use for the segment, so it is neither read nor checked. NULL: all are read. */
    bool (*wants)(void *context, const struct ot_segment *segment);
    bool skips_missing; /* segments that other hosts have are not read. False: they are an error */
    void (*progress)(void *context, int64_t bytes, int64_t total); /* NULL: none */
    /* Some data of the segment is damaged or unreadable; the error record says which. Return 0 to go on
     * without the rest of that segment. NULL: the first damage ends the read. */
    int (*damaged)(void *context, const struct ot_segment *segment, int file, int rc);
};
/* Errors: OT_E_INPUT (a checksum differs: the message names file and offset; another host has a segment),
 * OT_E_IO, errors of the sink. */
int ot_checkpoint_read(struct ot_checkpoint *checkpoint, const struct ot_checkpoint_read *read);

/* ---- the weights, in any order ---- */

struct ot_checkpoint_master;

/* The checkpoint must outlive the master. The master reads ahead of ranges that ascend, with many reads in
 * flight; a range that does not ascend makes it begin anew there. Nobody else reads the checkpoint meanwhile.
 * calls NULL: the system's. Errors: OT_E_BUDGET, OT_E_IO. */
int ot_checkpoint_master_open(struct ot_checkpoint *checkpoint, enum ot_io_choice io_engine,
                              const struct ot_io_calls *calls, struct ot_checkpoint_master **out);
void ot_checkpoint_master_close(struct ot_checkpoint_master *master); /* NULL is fine */
/* Returns the fp32 values of parameters [first, first + n) of a slab, as ot_engine_get returned them when the
 * checkpoint was made. Errors: OT_E_INPUT (a checksum differs; no such parameters), OT_E_IO, OT_E_BUDGET. */
int ot_checkpoint_master_get(struct ot_checkpoint_master *master, int slab, int64_t first, int64_t n,
                             float *values);

#endif
