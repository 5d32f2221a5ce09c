/* A cache of rows: the tokens and the table of rows of a dataset, in files (--cache).
 *
 * Tokenizing a large file takes longer than the first steps of a run, and its tokens more memory than many
 * machines have. With a cache the dataset's arrays are mapped files (src/base/grow_map.h): memory stays
 * bounded, and a second start maps the files and reads no row.
 *
 * FILES. DIR/HEX/ has `key`, `head` and one file for each array. HEX is the beginning of the key's SHA-256.
 * The key is a text that lists all that the tokens depend on: the build of the program, the tokenizer,
 * templates, options, and path, size and time of each data file. So a cache of files that have changed is
 * never found. The head has the counts of the dataset, the sizes of the arrays, the checksum of the table of
 * rows, and its own. The table has a checksum of each row's tokens, which the batcher compares when it uses
 * the row (batch.h).
 *
 * MAKING. The files are made in DIR/HEX.partial, flushed, and renamed. DIR/HEX.lock is held meanwhile: other
 * processes, the ranks of a host for example, wait, and then map what the first one made. After a kill the
 * next process begins anew. A damaged cache is removed with a warning, and made again.
 */
#ifndef OT_DATA_ROW_CACHE_H
#define OT_DATA_ROW_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/grow_map.h"

struct ot_row_cache_config {
    const char *dir;  /* NULL: no cache; the arrays are memory */
    bool may_make;    /* false: only a cache that is there already is used */
    bool is_optional; /* if it cannot be made, a warning says so, and the arrays are memory */
    bool is_own;      /* other caches in dir are removed once this one is made: they are stale */
};

enum { OT_ROW_ARRAYS = 4 };
extern const char *const ot_row_array_names[OT_ROW_ARRAYS]; /* "tokens", "rows", "json", "ends" */

struct ot_row_cache; /* one that is being made */

/* Finds or begins the cache. key[key_bytes]: a text. Returns 1 if it is there: then the arrays and
 * head[head_bytes] are read, and *out is NULL. Returns 0 if the caller must fill the arrays, which are empty
 * now; *out is NULL if they are memory. Waits for a process that makes this cache. Errors: OT_E_IO,
 * OT_E_BUDGET. The caller closes the arrays also after an error. */
int ot_row_cache_open(const struct ot_row_cache_config *config, const char *key, size_t key_bytes, void *head,
                      size_t head_bytes, struct ot_grow_map arrays[OT_ROW_ARRAYS], struct ot_row_cache **out);
/* Writes head and arrays to disk, and gives the cache its name. Errors: OT_E_IO. */
int ot_row_cache_finish(struct ot_row_cache *cache, const void *head, size_t head_bytes,
                        struct ot_grow_map arrays[OT_ROW_ARRAYS]);
/* Removes what is not finished. NULL is fine. */
void ot_row_cache_close(struct ot_row_cache *cache);

#endif
