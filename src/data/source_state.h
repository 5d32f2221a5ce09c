/* Inside of source*.c: a file that is being read. */
#ifndef OT_DATA_SOURCE_STATE_H
#define OT_DATA_SOURCE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zlib.h>

#include "src/data/source.h"

enum layout { LAYOUT_LINES, LAYOUT_ARRAY, LAYOUT_TABLE, LAYOUT_TEXT, LAYOUT_PARQUET };

struct ot_parquet;

struct ot_source {
    char *path;
    int fd;
    int64_t total, bytes_read;
    enum { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD } packing;
    unsigned char *packed; /* compressed bytes; [packed_begin, packed_end) are read but not used yet */
    size_t packed_begin, packed_end;
    bool in_member; /* a gzip member or a zstd frame has begun and not ended */
    z_stream gzip;
    struct ZSTD_DCtx_s *zstd;

    enum layout layout;
    enum ot_text_by text_by; /* LAYOUT_TEXT */
    bool in_array, ended;    /* in_array: '[' was read. ended: ']' or the end of the file was read */
    int64_t line;            /* of the next byte, from 1 */

    unsigned char *buffer; /* [begin, end) is read but not used yet */
    size_t begin, end;
    unsigned buffer_bytes; /* at most the size of a small file */

    char *row;
    size_t row_bytes, row_capacity;

    /* LAYOUT_TABLE */
    char separator;
    char **columns; /* names of the header */
    size_t n_columns, columns_capacity;
    char *field; /* the field, or the line of a text, that is being read */
    size_t field_bytes, field_capacity;

    struct ot_parquet *parquet; /* LAYOUT_PARQUET */
};

/* ---- source_bytes.c ---- */

/* Fills the buffer for the first time. A file that begins like gzip or zstd is unpacked. */
int ot_source_bytes_begin(struct ot_source *s);
void ot_source_bytes_end(struct ot_source *s); /* also after an error; frees the buffers */
/* Reads packed bytes if none is at hand. Returns 1, or 0 at the end of the file. */
int ot_source_read_packed(struct ot_source *s);
/* The packed file ends too early. kind: "gzip" or "zstd". */
int ot_source_is_cut(const struct ot_source *s, const char *kind);
int ot_source_is_damaged(const struct ot_source *s, const char *kind, const char *reason);
int ot_source_no_memory(const struct ot_source *s);
/* Looks at the next byte without consuming it; *byte is -1 at the end of the file. Errors: as
 * ot_source_next. */
int ot_source_peek(struct ot_source *s, int *byte);

/* ---- source.c ---- */

/* Appends to the row that began on `line`. Errors: OT_E_INPUT (too long), OT_E_BUDGET. */
int ot_source_append(struct ot_source *s, int64_t line, const void *bytes, size_t n);

/* ---- source_zstd.c; source_no_zstd.c, if this build has no libzstd ---- */

/* Errors: OT_E_BUDGET, OT_E_USAGE (no libzstd). */
int ot_source_zstd_begin(struct ot_source *s);
void ot_source_zstd_end(struct ot_source *s); /* also if it has not begun */
/* Fills the empty buffer. Returns the bytes, or 0 at the end of the file. */
int64_t ot_source_zstd_unpack(struct ot_source *s);
/* Unpacks one frame to exactly `bytes`. Returns 1, or 0 if it is damaged. Errors: OT_E_USAGE. */
int ot_source_zstd_unpack_block(const struct ot_source *s, const void *from, size_t n, void *to,
                                size_t bytes);

/* ---- source_parquet.c ---- */

/* Reads the footer of a Parquet file. Errors: OT_E_IO, OT_E_INPUT (also if the file is packed or a pipe),
 * OT_E_BUDGET. */
int ot_source_parquet_begin(struct ot_source *s);
void ot_source_parquet_end(struct ot_source *s); /* also if it has not begun */
/* Reads the next row; s->line is its number, from 1. Returns 1, or 0 at the end. Errors: OT_E_IO, OT_E_INPUT,
 * OT_E_USAGE (no library for its packing), OT_E_BUDGET. */
int ot_source_take_parquet(struct ot_source *s);

/* ---- source_table.c ---- */

/* The separator of a header line such as question,answer; '\0' if it is none. */
char ot_source_header_separator(const char *line, size_t bytes);
/* True for the bytes of a field's name without quotes. */
bool ot_source_is_name_byte(int byte);
/* Appends a JSON string, with its quotes. */
int ot_source_append_string(struct ot_source *s, int64_t line, const char *bytes, size_t n);
/* Reads the header of a table. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_source_table_begin(struct ot_source *s, char separator);
void ot_source_table_end(struct ot_source *s); /* frees the names */
/* Reads a record of a table as a JSON object with the names of the header. Returns 0 at the end of the file,
 * else 1 and the line where the record begins. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_source_take_record(struct ot_source *s, int64_t *line);
/* Reads the next row of a text as {"text": ".."}. Returns and errors: as ot_source_take_record. */
int ot_source_take_text(struct ot_source *s, int64_t *line);

#endif
