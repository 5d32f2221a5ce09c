/* Safetensors files: a reader that maps a file, and a writer that streams values.
 *
 * FORMAT. 8 bytes little-endian header length, a JSON header {NAME: {dtype, shape, data_offsets}}, then the
 * data. The reader trusts nothing: before it returns a tensor, it checks the header's length, every offset,
 * dtype x shape = bytes, duplicate names, overlaps, holes and bytes after the last tensor against the size
 * of the file.
 *
 * READING. The file is mapped read-only and stays mapped until close; tensors point into the map. Callers
 * fetch a range before they touch it (src/base/file_io.h says why). An open file never changes: any
 * number of threads may read it.
 *
 * WRITING. The names and shapes of the tensors are declared first; they decide the shards, the headers and
 * the exact number of bytes. Values follow as fp32 in the declared order and are rounded to nearest even, so
 * the writer holds a buffer and never a whole tensor. A raw tensor, of any dtype, follows as bytes. A single
 * shard is STEM.safetensors; several are STEM-0000i-of-0000N.safetensors with STEM.safetensors.index.json.
 * One thread writes.
 */
#ifndef OT_FILES_SAFETENSORS_H
#define OT_FILES_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/dtype.h"
#include "src/base/file_io.h"

struct ot_arena;
struct ot_out_dir;

enum { OT_SAFETENSORS_MAX_DIMS = 8 };

struct ot_safetensor {
    const char *name;       /* NUL-terminated; open refuses names that contain a NUL */
    const char *dtype_name; /* as in the file: "BF16", "I64" */
    bool readable;          /* F32, F16 or BF16; `dtype` says which */
    enum ot_dtype dtype;
    int dims;
    int64_t shape[OT_SAFETENSORS_MAX_DIMS];
    int64_t count;    /* product of the shape; 1 for a scalar */
    const void *data; /* may have any alignment */
    size_t bytes;
};

struct ot_safetensors;

/* Errors: OT_E_IO (cannot open or map), OT_E_INPUT (the header is invalid; the message names the file and
 * the tensor), OT_E_BUDGET. */
int ot_safetensors_open(const char *path, struct ot_safetensors **out);
void ot_safetensors_close(struct ot_safetensors *file); /* NULL is fine */
const char *ot_safetensors_path(const struct ot_safetensors *file);
/* The map that tensors point into, to fetch and release ranges of it. */
const struct ot_mapped_file *ot_safetensors_map(const struct ot_safetensors *file);
int64_t ot_safetensors_count(const struct ot_safetensors *file);
/* Tensors are sorted by name. */
const struct ot_safetensor *ot_safetensors_at(const struct ot_safetensors *file, int64_t index);
/* NULL if the file has no such tensor. */
const struct ot_safetensor *ot_safetensors_find(const struct ot_safetensors *file, const char *name);

/* Writes "[512, 64]" (with 0 dims: "[]") and returns `text`. */
enum { OT_SHAPE_TEXT_BYTES = 192 };
const char *ot_shape_text(const int64_t *shape, int dims, char text[OT_SHAPE_TEXT_BYTES]);

/* ---- for readers of other formats, whose tensors are used like those of a safetensors file ---- */

/* Sets dtype_name, readable and dtype by the name of a dtype in safetensors. Returns the bits of a value; 0:
 * the name is unknown. */
int ot_safetensor_set_dtype(struct ot_safetensor *tensor, const char *name);
/* Makes an open file of tensors in any order, and takes over the map and the arena, which are then empty.
 * After an error the caller still has both. Errors: OT_E_INPUT (two tensors have the same name),
 * OT_E_BUDGET. */
int ot_safetensors_adopt(struct ot_mapped_file *map, struct ot_arena **arena, struct ot_safetensor *tensors,
                         int64_t count, struct ot_safetensors **out);

/* ---- values ---- */

/* Converts n values of a readable dtype, from any address, to fp32, exactly. Returns the index of the first
 * value that is not finite, or -1. */
int64_t ot_safetensors_convert(enum ot_dtype dtype, const void *data, int64_t n, float *values);

/* ---- writing ---- */

#define OT_SHARD_BYTES INT64_C(5000000000) /* transformers' "5GB" */

struct ot_safetensors_entry {
    const char *name; /* borrowed until close */
    int dims;         /* 0..4 */
    int64_t shape[4];
    enum ot_dtype dtype;
    /* NULL, or the name in the file of another dtype, whose items have item_bytes bytes: a raw tensor. */
    const char *raw;
    int item_bytes;
};

struct ot_safetensors_writer;

/* Writes into `dir` (out_dir.h), which must outlive the writer, as must `stem`, such as "model". A tensor
 * larger than shard_bytes gets a shard of its own. Errors: OT_E_BUDGET, OT_E_IO. */
int ot_safetensors_writer_open(struct ot_out_dir *dir, const char *stem,
                               const struct ot_safetensors_entry *entries, int64_t n, int64_t shard_bytes,
                               struct ot_safetensors_writer **out);
/* Bytes of all files that the writer will write: shards with their headers, and the index. */
int64_t ot_safetensors_writer_bytes(const struct ot_safetensors_writer *writer);
/* Writes the next n values in the order of the entries. A call may span tensors and shards. Errors:
 * OT_E_IO. */
int ot_safetensors_writer_put(struct ot_safetensors_writer *writer, const float *values, int64_t n);
/* Writes the next entry, which is raw, as a whole. Errors: OT_E_IO. */
int ot_safetensors_writer_put_raw(struct ot_safetensors_writer *writer, const void *data);
/* Call after all values: closes the last shard and writes the index. Errors: OT_E_IO, OT_E_BUDGET;
 * OT_E_INTERNAL if values are missing. */
int ot_safetensors_writer_finish(struct ot_safetensors_writer *writer);
void ot_safetensors_writer_close(struct ot_safetensors_writer *writer); /* NULL is fine */

#endif
