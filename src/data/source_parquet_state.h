/* Parquet: reads the rows of a file as JSON, the format of most data sets on hubs.
 *
 * A FILE ends with a footer in Thrift's compact protocol: the schema, and for each group of rows where the
 * values of each column are. A column's values lie in pages, each packed by itself; before them may be a
 * dictionary page, and then data pages hold indexes into it. A page holds repetition levels, definition
 * levels and values, in this order.
 *
 * LEVELS. The schema is a tree. A value's definition level says how many of the optional and repeated fields
 * above it are present: a lower one than the column's own means null, or an empty list. Its repetition level
 * says at which repeated field a new element begins; 0 begins a row. So a row is written by walking the
 * schema: an optional field looks at the next definition level of its first column, a list goes on while the
 * next repetition level is its own. Each column must then have the levels that the walk expects. If
 * columns disagree, the file is refused, so a wrong row never results.
 *
 * FORMATS. The reader knows data pages of both versions, the encodings PLAIN and dictionary, RLE for levels
 * and booleans, and the codecs snappy, gzip and zstd. pandas, pyarrow, Hugging Face's datasets and Spark
 * write these. Other encodings and codecs are refused by name. Texts, numbers and booleans become JSON, and
 * so do lists and structs of them. Bytes that are no text (images), INT96 and FIXED_LEN_BYTE_ARRAY become
 * null. Dates are numbers, as they are stored.
 *
 * TRUST. A file may be hostile: sizes are checked against the file and each other before they are used, the
 * schema has bounds, pages in memory at once have at most MOST_PAGE_BYTES together, and a row is bounded as
 * in other sources. Page checksums are checked where there are some.
 *
 * source_parquet_footer.c reads the footer and headers of pages, source_parquet_page.c the values of a
 * column, source_parquet.c writes rows. One thread.
 */
#ifndef OT_DATA_SOURCE_PARQUET_STATE_H
#define OT_DATA_SOURCE_PARQUET_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/data/source_state.h"

enum {
    MOST_NODES = 4096,
    MOST_DEPTH = 24,
    MOST_FOOTER_BYTES = 1 << 28,
    MOST_PAGE_BYTES = 1 << 30,
};

enum parquet_type {
    PARQUET_BOOLEAN,
    PARQUET_INT32,
    PARQUET_INT64,
    PARQUET_INT96,
    PARQUET_FLOAT,
    PARQUET_DOUBLE,
    PARQUET_BYTES,
    PARQUET_FIXED,
    PARQUET_TYPES
};
enum parquet_repetition { PARQUET_REQUIRED, PARQUET_OPTIONAL, PARQUET_REPEATED };
enum parquet_encoding {
    PARQUET_PLAIN = 0,
    PARQUET_PLAIN_DICTIONARY = 2,
    PARQUET_RLE = 3,
    PARQUET_RLE_DICTIONARY = 8
};
enum parquet_page { PARQUET_DATA, PARQUET_INDEX, PARQUET_DICTIONARY, PARQUET_DATA_V2 };

/* A field of the schema. The fields are in depth-first order: those below it follow, up to `end`. */
struct parquet_node {
    char *name;
    size_t end, leaf, leaf_end; /* leaf: its first column; leaf_end: past its last one */
    int64_t children, fixed_bytes;
    enum parquet_repetition repetition;
    enum parquet_type type;        /* of a column: no children */
    unsigned definition, repeated; /* the greatest levels of its values */
    bool is_list;                  /* it stands for the list that is its only child */
    bool is_wrapper;               /* each element of the list is its only child */
    bool is_text;
};

struct parquet_chunk { /* the values of a column in a group of rows: [begin, end) of the file */
    int64_t begin, end, values;
    int codec;
};

/* Runs and bit-packed values: levels, indexes, booleans. */
struct parquet_bits {
    const unsigned char *at, *end;
    unsigned width, bit; /* bit: of the next packed value in *at */
    uint64_t left;       /* values of the present run */
    bool is_packed;
    uint32_t value;
};

struct parquet_value {
    const unsigned char *bytes;
    size_t n;
};

struct parquet_column { /* that is being read */
    const struct parquet_node *node;
    struct parquet_chunk chunk; /* begin, values: of what is left */
    unsigned char *page, *dictionary;
    size_t page_bytes, dictionary_bytes;
    struct parquet_value *entries; /* of the dictionary */
    size_t n_entries;
    int64_t in_page; /* values left in the page */
    int encoding;
    struct parquet_bits repetitions, definitions, indexes; /* indexes: also booleans in RLE */
    const unsigned char *at, *end;                         /* PLAIN values */
    bool has_dictionary;                                   /* the page has indexes */
    bool has;                                              /* the levels of the next value are known */
    unsigned definition, repetition;
};

struct parquet_header { /* of a page */
    int64_t type, bytes, packed_bytes, values, encoding;
    int64_t definition_bytes, repetition_bytes; /* DATA_V2 */
    bool is_packed, has_crc;
    uint32_t crc;
};

struct ot_parquet {
    int64_t bytes; /* of the file up to the footer */
    struct parquet_node *nodes;
    size_t n_nodes;
    struct parquet_chunk *chunks; /* [groups][columns] */
    int64_t *group_rows;
    size_t n_chunks, chunks_capacity, n_groups, groups_capacity;
    struct parquet_column *columns;
    size_t n_columns;
    size_t group;                       /* the next one */
    int64_t rows_left, rows, rows_read; /* rows_left: of the present group */
    unsigned char *packed;
    size_t packed_capacity, page_bytes; /* page_bytes: of all pages in memory */
};

/* The file is damaged. column NULL: the footer. */
int ot_parquet_damaged(const struct ot_source *s, const struct parquet_column *column, const char *what);
/* The column has a codec or an encoding that is not read. */
int ot_parquet_refuse(const struct ot_source *s, const struct parquet_column *column, const char *what,
                      const char *name);
/* Reads bytes [at, at + n) of the file. Errors: OT_E_IO, OT_E_INPUT (the file ends before). */
int ot_parquet_read(const struct ot_source *s, void *to, size_t n, int64_t at);

/* ---- source_parquet_footer.c ---- */

/* Reads the schema and the places of the columns. Errors: OT_E_IO, OT_E_INPUT, OT_E_BUDGET. */
int ot_parquet_read_footer(struct ot_source *s);
/* Parses the header of a page. Returns its bytes; 0: it does not end here, or is damaged. */
size_t ot_parquet_parse_page(const unsigned char *bytes, size_t n, struct parquet_header *header);

/* ---- source_parquet_page.c ---- */

/* Finds the levels of the column's next value. Returns 1, or 0: the group has no more. Errors: OT_E_IO,
 * OT_E_INPUT, OT_E_BUDGET. */
int ot_parquet_peek(struct ot_source *s, struct parquet_column *column);
/* Takes the value that was peeked, which must be present. It is valid until the next peek. */
int ot_parquet_take(struct ot_source *s, struct parquet_column *column, struct parquet_value *value);
/* Frees what the column holds, and begins with its values of another group. */
void ot_parquet_column_begin(struct ot_parquet *p, struct parquet_column *column, struct parquet_chunk chunk);

#endif
