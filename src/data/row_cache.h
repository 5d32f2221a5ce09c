/* A cache of rows: what a run derives from its data files, in files (--cache). That is the tokens and the
 * table of rows of a dataset, and the order of the rows (packing.h).
 *
 * Tokenizing a large file takes longer than the first steps of a run, and its tokens more memory than many
 * machines have. With a cache the arrays are mapped files (src/base/grow_map.h): memory stays bounded, and a
 * second start maps the files, and reads no row and no part of an array that it does not use.
 *
 * FILES. DIR/HEX/ has `key`, `head`, `sums` and one file for each array. HEX is the beginning of the key's
 * SHA-256. The key is a text that lists all that the arrays depend on: of a dataset, the build of the
 * program, the tokenizer, templates, options, and path, size and time of each data file. So a cache of files
 * that have changed is never found. The head has the caller's counts, the sizes of the arrays, and the
 * checksums of `sums` and of itself. `sums` has a checksum of each 4 KiB of the arrays, which are compared
 * when a part is used. Tokens have none: the table of rows has a checksum of each row's tokens. What depends
 * on a cache is a cache in its directory: DIR/HEX/HEX is the packing of a dataset, DIR/HEX/HEX/HEX one of its
 * epochs.
 *
 * MAKING. The files are made in DIR/HEX.partial, flushed, and renamed. DIR/HEX.lock is held meanwhile: other
 * processes, the ranks of a host for example, wait, and then map what the first one made. After a kill the
 * next process begins anew. A cache whose head or `sums` are damaged is removed with a warning, and made
 * again.
 */
#ifndef OT_DATA_ROW_CACHE_H
#define OT_DATA_ROW_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/grow_map.h"

struct ot_row_cache_config {
    const char *dir;     /* NULL: no cache; the arrays are memory */
    bool may_make;       /* false: only a cache that is there already is used */
    bool is_optional;    /* if it cannot be made, a warning says so, and the arrays are memory */
    bool is_own;         /* other caches in dir are removed once this one is made: they are stale */
    const char *scratch; /* without a cache, the arrays are files without names in this directory; NULL:
                          * memory */
};

enum ot_row_cache_kind {
    OT_ROW_CACHE_ROWS,    /* "tokens", "rows", "json", "ends" (dataset.h) */
    OT_ROW_CACHE_SPLIT,   /* "held" */
    OT_ROW_CACHE_MIXTURE, /* "copies" */
    OT_ROW_CACHE_PACKING, /* "ranked", "placed", "first", "groups" (packing.h) */
    OT_ROW_CACHE_EPOCH    /* "order", "packed" */
};

enum { OT_ROW_ARRAYS = 4 };
struct ot_row_arrays { /* set to zero before the first use: empty memory of the process */
    struct ot_grow_map maps[OT_ROW_ARRAYS];
    struct ot_grow_map sums; /* empty: not in a finished cache */
    char *dir;               /* DIR/HEX; NULL: not in a cache */
};

struct ot_row_cache; /* one that is being made */

/* Finds or begins the cache. key[key_bytes]: a text. Returns 1 if it is there: then the arrays and
 * head[head_bytes] are read, and *out is NULL. Returns 0 if the caller must fill the arrays, which are empty
 * now; *out is NULL if no cache is made of them. Waits for a process that makes this cache. Errors: OT_E_IO,
 * OT_E_BUDGET. The caller closes the arrays also after an error. */
int ot_row_cache_open(const struct ot_row_cache_config *config, enum ot_row_cache_kind kind, const char *key,
                      size_t key_bytes, void *head, size_t head_bytes, struct ot_row_arrays *arrays,
                      struct ot_row_cache **out);
/* Writes head and arrays to disk, and gives the cache its name. Errors: OT_E_IO. */
int ot_row_cache_finish(struct ot_row_cache *cache, const void *head, size_t head_bytes,
                        struct ot_row_arrays *arrays);
/* Removes what is not finished. NULL is fine. */
void ot_row_cache_close(struct ot_row_cache *cache);

/* All of these together: finds the arrays, or lets make() fill arrays and head. Where the disk has no room
 * for an optional cache, a warning says so, and make() is called once more for arrays in memory. key: ends
 * with a NUL. Errors: as above, and those of make(). */
int ot_row_cache_get(const struct ot_row_cache_config *config, enum ot_row_cache_kind kind, const char *key,
                     void *head, size_t head_bytes, struct ot_row_arrays *arrays,
                     int (*make)(void *context, struct ot_row_arrays *arrays), void *context);

/* Compares bytes [at, at + bytes) of an array, which is not that of tokens, with their checksums, if it is in
 * a cache. Errors: OT_E_INPUT. */
int ot_row_arrays_check(const struct ot_row_arrays *arrays, int array, size_t at, size_t bytes);
size_t ot_row_arrays_memory(const struct ot_row_arrays *arrays); /* bytes that this process alone has */
void ot_row_arrays_close(struct ot_row_arrays *arrays);          /* and sets them to zero */

#endif
