/* Writes GGUF files (gguf.h has the format) as a stream.
 *
 * The keys are collected in memory (struct ot_gguf_keys). The tensors are declared before the first value:
 * names, shapes and types decide the header and the exact number of bytes. Values follow as fp32, in the
 * declared order of pieces. The writer holds about a million values, whole rows of one piece, encodes them on
 * the pool and passes the bytes on, with their place in the file. So a model of any size is written in a few
 * tens of megabytes of memory, and the bytes do not depend on the number of threads.
 *
 * Pieces. A piece is rows of a tensor that come one after the other. A model's tensors may come in another
 * order than the file's: the experts of a layer as gate, up, gate, up, ..., or gate and up as alternate
 * rows of one matrix. The file has all gates in one tensor, and all ups in another. Gate and up of an adapter
 * share an A, which the file has for each.
 *
 * Rows of heads. llama.cpp's RoPE of the architecture llama rotates neighbouring rows of a head, Hugging
 * Face's rotates row j with row j + half. So row p * half + j of each head is stored as row 2 j + p
 * (ot_gguf_row_of_head). A tensor that says head_rows gets its rows in the order of Hugging Face and stores
 * them in llama.cpp's.
 */
#ifndef OT_GGUF_WRITER_H
#define OT_GGUF_WRITER_H

#include "src/base/text.h"
#include "src/gguf/gguf.h"

struct ot_pool;

/* ---- keys ---- */

/* Zero it first; ot_gguf_keys_free at the end. A failed allocation is reported when the writer is opened.
 * Keys must differ. */
struct ot_gguf_keys {
    struct ot_string_builder out;
    int64_t n;
};
void ot_gguf_put_u32(struct ot_gguf_keys *keys, const char *key, uint32_t value);
void ot_gguf_put_f32(struct ot_gguf_keys *keys, const char *key, float value);
void ot_gguf_put_bool(struct ot_gguf_keys *keys, const char *key, bool value);
void ot_gguf_put_string(struct ot_gguf_keys *keys, const char *key, const char *text, size_t bytes);
void ot_gguf_put_text(struct ot_gguf_keys *keys, const char *key, const char *text); /* NUL-terminated */
/* Begins an array of n strings, i32, f32 or bools; exactly n calls for its items follow. */
void ot_gguf_put_array(struct ot_gguf_keys *keys, const char *key, enum ot_gguf_kind item, int64_t n);
void ot_gguf_put_string_item(struct ot_gguf_keys *keys, const char *text, size_t bytes);
void ot_gguf_put_i32_item(struct ot_gguf_keys *keys, int32_t value);
void ot_gguf_put_f32_item(struct ot_gguf_keys *keys, float value);
void ot_gguf_put_bytes(struct ot_gguf_keys *keys, const char *key, const void *bytes, size_t n); /* u8 */
void ot_gguf_put_bool_item(struct ot_gguf_keys *keys, bool value);
void ot_gguf_keys_free(struct ot_gguf_keys *keys);
/* Appends the number's low bytes (at most 8), little-endian. */
void ot_gguf_append_number(struct ot_string_builder *out, uint64_t value, int bytes);

/* ---- tensors ---- */

enum { OT_GGUF_NAME_BYTES = 64 };

struct ot_gguf_entry {
    char name[OT_GGUF_NAME_BYTES];
    const struct ot_gguf_type *type; /* with an encoder; cols must be a multiple of its block */
    int dims;                        /* 1 or 2; a vector has the shape [rows * cols] */
    int64_t rows, cols;              /* at least 1 */
    int64_t head_rows;               /* 0: rows stay in order; else even, and rows is a multiple of it */
    int64_t parts; /* > 0: the number of experts, whose matrices or vectors follow each other */
};

/* Rows of an entry, in the order in which they come. The pieces of an entry are all its rows. */
struct ot_gguf_piece {
    int64_t entry, first_row;
    int64_t rows;    /* that come */
    bool alternates; /* one row of this entry, one of the next, and so on; both have the same type and cols */
    bool twice; /* each row is one of this entry and one of the next; both have the same type and shape */
};

/* The row of a head in which llama.cpp has row `row` of Hugging Face; head_rows is even. */
int64_t ot_gguf_row_of_head(int64_t row, int64_t head_rows);

/* Gets bytes of the file and where they begin in it. All calls together have every byte of the file once. An
 * error ends the write and is returned. */
typedef int (*ot_gguf_put)(void *context, int64_t at, const void *data, size_t bytes);

struct ot_gguf_writer;

/* The contents of a file; both lists are borrowed until close. */
struct ot_gguf_tensors {
    const struct ot_gguf_entry *entries;
    int64_t n_entries;
    const struct ot_gguf_piece *pieces;
    int64_t n_pieces;
};

/* pool NULL: the calling thread encodes. Errors: OT_E_BUDGET. */
int ot_gguf_writer_open(const struct ot_gguf_keys *keys, const struct ot_gguf_tensors *tensors,
                        struct ot_pool *pool, ot_gguf_put put, void *context, struct ot_gguf_writer **out);
int64_t ot_gguf_writer_bytes(const struct ot_gguf_writer *writer); /* of the whole file */
/* Writes the next n values in the order of the pieces. A call may span pieces. The first call writes the
 * header. Errors: OT_E_INPUT (a value is not finite, or too large for the type; the message names the
 * tensor), OT_E_BUDGET, and those of put. */
int ot_gguf_writer_put(struct ot_gguf_writer *writer, const float *values, int64_t n);
/* Call after all values. Errors: OT_E_INTERNAL if values are missing. */
int ot_gguf_writer_finish(struct ot_gguf_writer *writer);
void ot_gguf_writer_close(struct ot_gguf_writer *writer); /* NULL is fine */

#endif
