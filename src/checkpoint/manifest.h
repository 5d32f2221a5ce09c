/* The manifest of a checkpoint: which parameters lie where, with a CRC-32 of every byte that counts.
 *
 * A CHECKPOINT is a directory, OUT/checkpoints/step-00000120:
 *
 *   checkpoint.json   what it is a checkpoint of, and where the run was (record.h)
 *   state.bin         parts (offload/engine/snapshot.h), each padded to 4 KiB with zeros
 *   nvme-0.store ...  second names of the NVMe store's files, where parts lie that were not copied
 *   manifest.bin      this; written last. A directory without a valid one is not a checkpoint.
 *
 * It is made under the name step-00000120.partial and renamed when everything in it is on the disk.
 *
 * FILE. Little-endian, fixed width: magic "OTCKPT\r\n"; u32 format; u32 dtype (enum ot_dtype); u32 slabs,
 * files, parts, spans; u64 bytes and u32 CRC-32 of checkpoint.json; then for each slab u64 parameters; for
 * each file u16 length of its name, the name, u64 its size (of .store files: the least it must have); for
 * each part u32 slab, u64 first, u64 n, u8 flags (1: state, 2: weights), u32 number of spans (0: zeros); for
 * each span u32 file, u64 offset, u32 bytes, u32 CRC-32; last u32 CRC-32 of all before. The spans come in the
 * order of the parts.
 *
 * Decoding trusts nothing: every count is checked against the bytes that are there before anything is
 * allocated. What it accepts is whole: names are plain file names and differ; spans are blocks of 4 KiB
 * within their files that do not overlap; those of a part are as long as the part, padded; and parts cover
 * every parameter once with its state and once with its weights.
 */
#ifndef OT_CHECKPOINT_MANIFEST_H
#define OT_CHECKPOINT_MANIFEST_H

#include "offload/engine/snapshot.h"

#define OT_MANIFEST_NAME "manifest.bin"
#define OT_RECORD_NAME   "checkpoint.json"
#define OT_STATE_NAME    "state.bin"

enum { OT_MANIFEST_MAX_BYTES = 256 << 20, OT_SPAN_MAX_BYTES = 64 << 20, OT_MANIFEST_MAX_FILES = 64 };

struct ot_manifest_file {
    char *name; /* owned */
    int64_t bytes;
};
struct ot_manifest_part {
    struct ot_part part;
    int64_t first_span;
    int n_spans; /* 0: zeros. Else together ot_part_padded_bytes */
};
struct ot_manifest {
    enum ot_dtype dtype;
    int n_slabs, n_files;
    int64_t n_parts, n_spans;
    int64_t *slab_params; /* owned, as are the others */
    struct ot_manifest_file *files;
    struct ot_manifest_part *parts; /* first_span: the sum of n_spans of those before it */
    struct ot_store_span *spans;    /* file: index into files */
    int64_t record_bytes;
    uint32_t record_crc;
};

void ot_manifest_free(struct ot_manifest *manifest);
/* The caller frees the bytes. Errors: OT_E_BUDGET (no memory, or larger than what is read again). */
int ot_manifest_encode(const struct ot_manifest *manifest, unsigned char **bytes, size_t *n);
/* where: the file, for sentences. Errors: OT_E_INPUT (which says what is wrong at which byte),
 * OT_E_BUDGET. */
int ot_manifest_decode(const unsigned char *bytes, size_t n, const char *where, struct ot_manifest *out);

#endif
