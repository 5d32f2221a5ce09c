/* GGUF files, the model files of llama.cpp: a bounded reader.
 *
 * FORMAT (version 3, all numbers little-endian):
 *   "GGUF", u32 version, u64 number of tensors, u64 number of keys
 *   keys:    string name, u32 kind, value. A string is u64 bytes, then UTF-8 without NUL. An array is u32
 *            kind of its items, u64 number, items.
 *   tensors: string name, u32 number of dimensions (1 to 4), u64 for each dimension, innermost first, u32
 *            type (blocks.h), u64 offset from the beginning of the data
 *   the data begins at the next multiple of general.alignment (default 32), as does each tensor.
 * Version 2 has the same layout. Version 1 and big-endian files are refused.
 * Source: the page docs/gguf.md of ggml.
 *
 * READING. The reader trusts nothing. Every count, length, kind, type and offset is checked against the
 * file's size before it is used; the memory that it takes is bounded by the file's size. Refused are also:
 * duplicate keys or tensors, keys that are not printable ASCII, arrays of arrays, tensors that overlap, rows
 * that are not whole blocks. A message names the file and the place.
 *
 * The file is mapped (src/base/file_io.h), and values and tensors point into the map until close. An open
 * file never changes: any number of threads may read it.
 */
#ifndef OT_GGUF_GGUF_H
#define OT_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/file_io.h"
#include "src/gguf/blocks.h"

/* Kinds of values, as numbered in the file. */
enum ot_gguf_kind {
    OT_GGUF_KIND_U8,
    OT_GGUF_KIND_I8,
    OT_GGUF_KIND_U16,
    OT_GGUF_KIND_I16,
    OT_GGUF_KIND_U32,
    OT_GGUF_KIND_I32,
    OT_GGUF_KIND_F32,
    OT_GGUF_KIND_BOOL,
    OT_GGUF_KIND_STRING,
    OT_GGUF_KIND_ARRAY,
    OT_GGUF_KIND_U64,
    OT_GGUF_KIND_I64,
    OT_GGUF_KIND_F64,
    OT_GGUF_KIND_COUNT
};

enum { OT_GGUF_MAX_DIMS = 4, OT_GGUF_DEFAULT_ALIGNMENT = 32, OT_GGUF_VERSION = 3 };

struct ot_gguf_string {
    const char *text; /* not NUL-terminated, and not checked to be UTF-8 */
    size_t bytes;
};

struct ot_gguf_value {
    const char *key; /* NUL-terminated */
    enum ot_gguf_kind kind;
    enum ot_gguf_kind item;         /* of an array */
    int64_t n;                      /* items of an array; 1 for other kinds */
    const unsigned char *data;      /* the bytes of the value or of the array's items */
    struct ot_gguf_string *strings; /* [n], if the value is a string or an array of strings */
};

struct ot_gguf_tensor {
    const char *name; /* NUL-terminated */
    const struct ot_gguf_type *type;
    int dims;
    int64_t shape[OT_GGUF_MAX_DIMS]; /* outermost first, as in PyTorch: the file's order reversed */
    int64_t count;                   /* values */
    const void *data;
    size_t bytes;
};

struct ot_gguf;

/* Errors: OT_E_IO (cannot open or read), OT_E_INPUT (the file is not valid), OT_E_BUDGET. */
int ot_gguf_open(const char *path, struct ot_gguf **out);
void ot_gguf_close(struct ot_gguf *file); /* NULL is fine */
const char *ot_gguf_path(const struct ot_gguf *file);
const struct ot_mapped_file *ot_gguf_map(const struct ot_gguf *file);

int64_t ot_gguf_tensor_count(const struct ot_gguf *file);
const struct ot_gguf_tensor *ot_gguf_tensor(const struct ot_gguf *file, int64_t index); /* sorted by name */
const struct ot_gguf_tensor *ot_gguf_find_tensor(const struct ot_gguf *file, const char *name); /* or NULL */

bool ot_gguf_string_is(struct ot_gguf_string string, const char *text);

int64_t ot_gguf_key_count(const struct ot_gguf *file);
const struct ot_gguf_value *ot_gguf_value(const struct ot_gguf *file, int64_t index);  /* sorted by key */
const struct ot_gguf_value *ot_gguf_find(const struct ot_gguf *file, const char *key); /* NULL if absent */

/* Numbers and strings of a key that are read with an error sentence. If the key is absent and not required,
 * *out keeps its value. Errors: OT_E_INPUT: the key is absent and required, has another kind, or is outside
 * of [min, max]. */
int ot_gguf_need_int(const struct ot_gguf *file, const char *key, bool required, int64_t min, int64_t max,
                     int64_t *out);
int ot_gguf_need_real(const struct ot_gguf *file, const char *key, bool required, double min, double max,
                      double *out);
int ot_gguf_need_bool(const struct ot_gguf *file, const char *key, bool required, bool *out);
int ot_gguf_need_string(const struct ot_gguf *file, const char *key, bool required,
                        struct ot_gguf_string *out);
/* An array of this kind; *out NULL: absent. Errors: as above. */
int ot_gguf_need_array(const struct ot_gguf *file, const char *key, bool required, enum ot_gguf_kind item,
                       const struct ot_gguf_value **out);

#endif
