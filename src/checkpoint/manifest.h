/* The manifest of a checkpoint: where each parameter's data is stored, with a CRC-32 of all that data.
 *
 * A CHECKPOINT is a directory, OUT/checkpoints/step-00000120:
 *
 *   checkpoint.json   the run's options and its position (record.h)
 *   state.bin         segments (offload/engine/snapshot.h), each padded to 4 KiB with zeros
 *   nvme-0.store ...  hard links to the NVMe store's files, for segments that were not copied
 *   state-3.bin, nvme-3-0.store ...   the same of rank 3, if several ranks saved it
 *   manifest.bin      this file, written last. A directory without a valid manifest is not a checkpoint.
 *
 * The writer makes it under the name step-00000120.partial and renames it once all its data is on the disk.
 *
 * FILE. Little-endian, fixed width: magic "OTCKPT\r\n"; u32 format; u32 dtype (enum ot_dtype); u32 slabs,
 * files, segments, spans; u64 bytes and u32 CRC-32 of checkpoint.json; then for each slab u64 parameters (0:
 * it is frozen, so it has no segments); for each file u16 length of its name, the name, u64 its size (for
 * .store files: the least size it must have); for each segment u32 slab, u64 first, u64 n, u8 flags (1:
 * state, 2: weights; with state 4 times the enum ot_state_format of its moments, 16 if the weights have no
 * masters, and 32 if the state lacks the moments), u32 number of spans (0: all zeros); for each span u32
 * file, u64 offset, u32 bytes, u32 CRC-32; last u32 CRC-32 of all bytes before it. The spans are in the order
 * of the segments.
 *
 * The decoder trusts nothing. It checks every count against the bytes of the file before it allocates memory.
 * A manifest that it accepts is consistent: file names are plain and differ; spans are aligned to 4 KiB, lie
 * within their files and do not overlap; the spans of a segment add up to the segment's padded size; all
 * states have one format, and all or none have masters, or moments; compact states are of whole groups; the
 * segments cover every parameter's state exactly once and every parameter's weights exactly once. */
#ifndef OT_CHECKPOINT_MANIFEST_H
#define OT_CHECKPOINT_MANIFEST_H

#include "offload/block.h"
#include "offload/engine/snapshot.h"

#define OT_MANIFEST_NAME "manifest.bin"
#define OT_RECORD_NAME   "checkpoint.json"
#define OT_STATE_NAME    "state.bin"

enum { OT_MANIFEST_MAX_BYTES = 256 << 20, OT_SPAN_MAX_BYTES = 64 << 20, OT_MANIFEST_MAX_FILES = 2048 };

struct ot_manifest_file {
    char *name; /* owned */
    int64_t bytes;
};
struct ot_manifest_segment {
    struct ot_segment segment;
    int64_t first_span;
    int n_spans; /* 0: all zeros. Otherwise the spans add up to ot_segment_padded_bytes */
};
struct ot_manifest {
    enum ot_dtype dtype;
    int n_slabs, n_files;
    int64_t n_segments, n_spans;
    int64_t *slab_params; /* 0: the slab is frozen, and has no segments. Owned, like the arrays below */
    struct ot_manifest_file *files;
    struct ot_manifest_segment *segments; /* first_span: the sum of n_spans of those before it */
    struct ot_store_span *spans;          /* file: index into files */
    int64_t record_bytes;
    uint32_t record_crc;
};

void ot_manifest_free(struct ot_manifest *manifest);
/* A segment with state. All have its format, its masters, and moments if it has them. Zeros: there is
 * none. */
struct ot_segment ot_manifest_state(const struct ot_manifest *manifest);
/* The parameters of a slab that checkpoints hold: none of a frozen slab, which comes from the base model. */
static inline int64_t ot_manifest_params_of(const struct ot_slab_spec *slab) {
    return slab->frozen ? 0 : slab->n_params;
}
/* 0 if the checkpoint is of a model with these slabs. Else OT_E_INPUT: names the slab that differs, and
 * `where`. */
int ot_manifest_check_model(const struct ot_manifest *manifest, const struct ot_chain *chain,
                            const char *where);
/* The caller frees the bytes. Errors: OT_E_BUDGET (no memory, or more than OT_MANIFEST_MAX_BYTES). */
int ot_manifest_encode(const struct ot_manifest *manifest, unsigned char **bytes, size_t *n);
/* where: the path of the file, for error messages. Errors: OT_E_INPUT (the message names the fault and the
 * byte), OT_E_BUDGET. */
int ot_manifest_decode(const unsigned char *bytes, size_t n, const char *where, struct ot_manifest *out);

/* ---- several ranks ---- */

/* Decodes the manifest of one rank's segments, which cover only that rank's holding. Errors: as
 * ot_manifest_decode. */
int ot_manifest_decode_share(const unsigned char *bytes, size_t n, const char *where,
                             struct ot_manifest *out);
/* Moves all files, segments and spans of `share` behind those of `whole`, and frees `share`. Errors:
 * OT_E_INTERNAL (they are of different models, or have a file of the same name), OT_E_BUDGET. After an error
 * `whole` is as before. */
int ot_manifest_merge(struct ot_manifest *whole, struct ot_manifest *share);

#endif
