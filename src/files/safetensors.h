/* Safetensors files: a reader that maps them, and a writer that streams them.
 *
 * FORMAT. 8 bytes little-endian header length, a JSON header {NAME: {dtype, shape, data_offsets}}, then the
 * data. Nothing of it is believed: the header's length, every offset, dtype x shape = bytes, names that come
 * twice, overlaps, holes and bytes after the last tensor are checked against the size of the file before a
 * tensor is handed out.
 *
 * READING. The file is mapped read-only and stays mapped until closed; tensors point into the map. A file
 * that shrinks or a disk that fails after open would be a SIGBUS at the first touch, so whoever reads data
 * calls ot_safetensors_fetch() on the range first: it brings the pages in and turns both into an error. Only
 * a file truncated in the moment between fetch and use can still hit; replacing a file by rename, as every
 * downloader does, cannot. An open file is immutable: any number of threads may read it.
 *
 * WRITING. The tensors' names and shapes are declared first; that fixes the shards, the headers and the exact
 * number of bytes. Values follow as fp32 in the declared order and are rounded to nearest even as they pass,
 * so the writer holds one buffer, never a tensor. One shard is model.safetensors; more are
 * model-0000i-of-0000N.safetensors with model.safetensors.index.json. One thread writes.
 */
#ifndef OT_FILES_SAFETENSORS_H
#define OT_FILES_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/dtype.h"

struct ot_out_dir;

enum { OT_SAFETENSORS_MAX_DIMS = 8 };

struct ot_safetensor {
    const char *name;       /* NUL-terminated; names with a NUL inside are refused at open */
    const char *dtype_name; /* as the file says: "BF16", "I64" */
    bool readable;          /* F32, F16 or BF16: `dtype` says which */
    enum ot_dtype dtype;
    int dims;
    int64_t shape[OT_SAFETENSORS_MAX_DIMS];
    int64_t count;    /* product of the shape; 1 for a scalar */
    const void *data; /* not aligned to more than a byte */
    size_t bytes;
};

struct ot_safetensors;

/* Errors: OT_E_IO (cannot open or map), OT_E_INPUT (the header lies; the sentence names the file and the
 * tensor). */
int ot_safetensors_open(const char *path, struct ot_safetensors **out);
void ot_safetensors_close(struct ot_safetensors *file); /* NULL is fine */
const char *ot_safetensors_path(const struct ot_safetensors *file);
int64_t ot_safetensors_count(const struct ot_safetensors *file);
/* Sorted by name. */
const struct ot_safetensor *ot_safetensors_at(const struct ot_safetensors *file, int64_t index);
/* NULL if there is none. */
const struct ot_safetensor *ot_safetensors_find(const struct ot_safetensors *file, const char *name);

/* Writes "[512, 64]" (dims 0: "[]") and returns text. */
enum { OT_SHAPE_TEXT_BYTES = 192 };
const char *ot_shape_text(const int64_t *shape, int dims, char text[OT_SHAPE_TEXT_BYTES]);

/* data .. data + bytes lie inside one tensor. Blocks until they are in memory. Errors: OT_E_IO. */
int ot_safetensors_fetch(const struct ot_safetensors *file, const void *data, size_t bytes);
/* Starts reading ahead; returns at once. Hints cannot fail. */
void ot_safetensors_prefetch(const struct ot_safetensors *file, const void *data, size_t bytes);
/* Takes the range out of this process's memory again (the page cache may keep it). */
void ot_safetensors_release(const struct ot_safetensors *file, const void *data, size_t bytes);

/* n values of a readable dtype, from any address, to fp32, exactly. Returns the index of the first that is
 * not finite, or -1. */
int64_t ot_safetensors_convert(enum ot_dtype dtype, const void *data, int64_t n, float *values);

/* ---- writing ---- */

#define OT_SHARD_BYTES INT64_C(5000000000) /* what Hugging Face's "5GB" means */

struct ot_safetensors_entry {
    const char *name; /* borrowed until close */
    int dims;         /* 0..2 */
    int64_t shape[2];
    enum ot_dtype dtype;
};

struct ot_safetensors_writer;

/* Writes into `dir` (out_dir.h), which outlives the writer. A tensor larger than shard_bytes has a shard of
 * its own. Errors: OT_E_BUDGET, OT_E_IO. */
int ot_safetensors_writer_open(struct ot_out_dir *dir, const struct ot_safetensors_entry *entries, int64_t n,
                               int64_t shard_bytes, struct ot_safetensors_writer **out);
/* Bytes of everything that the writer will leave: shards with their headers, and the index. */
int64_t ot_safetensors_writer_bytes(const struct ot_safetensors_writer *writer);
int ot_safetensors_writer_shards(const struct ot_safetensors_writer *writer);
/* The next n values in the order of entries; a call may span tensors and shards. Errors: OT_E_IO. */
int ot_safetensors_writer_put(struct ot_safetensors_writer *writer, const float *values, int64_t n);
/* All values were put: closes the last shard and writes the index. Errors: OT_E_IO; OT_E_INTERNAL when values
 * lack. */
int ot_safetensors_writer_finish(struct ot_safetensors_writer *writer);
void ot_safetensors_writer_close(struct ot_safetensors_writer *writer); /* NULL is fine */

#endif
