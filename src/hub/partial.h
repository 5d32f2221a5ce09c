/* A file that is downloaded in chunks: what is there survives the end of the process.
 *
 * The file BLOB.offload-train.incomplete has the size of the whole file, and behind it a table: how many
 * bytes of each chunk are there. The bytes of a chunk come in order, and are written before the table
 * counts them. So the process may end at any moment. After a power loss the table may count bytes that are
 * not there: the hash of the whole file then tells. At the end the table is cut off and the file renamed.
 *
 *     data [bytes]  "OTPART1\n"  chunk_bytes: u64  n_chunks: u64  done: u32 [n_chunks]     (little-endian)
 *
 * Other programs name their unfinished files in another way, so nobody else continues this one. The caller
 * holds the lock of the blob. A chunk belongs to one thread; several threads may have a chunk each.
 */
#ifndef OT_HUB_PARTIAL_H
#define OT_HUB_PARTIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_partial {
    char *path;
    int fd; /* valid if path is not NULL */
    int64_t bytes, chunk_bytes;
    size_t n_chunks;
    uint32_t *done; /* [n_chunks] bytes */
};

/* Opens what an earlier process left, or a new file. Its folder must exist. Errors: OT_E_IO, OT_E_BUDGET.
 * On an error the caller still calls close. */
int ot_partial_open(const char *blob, int64_t bytes, bool takes_ranges, struct ot_partial *out);
void ot_partial_close(struct ot_partial *partial); /* zeroed is fine; the file stays */
/* Forgets all that is there. Errors: OT_E_IO. */
int ot_partial_restart(struct ot_partial *partial);

int64_t ot_partial_size_of(const struct ot_partial *partial, size_t chunk);
int64_t ot_partial_here(const struct ot_partial *partial); /* bytes that are there */
/* The space that the unfinished file of a blob has on the disk; 0: there is none. */
int64_t ot_partial_space(const char *blob);
/* Writes the next bytes of a chunk, at most those that it lacks. Errors: OT_E_IO. */
int ot_partial_put(struct ot_partial *partial, size_t chunk, const void *data, size_t bytes);
/* Flushes the whole file and renames it. Errors: OT_E_IO. */
int ot_partial_finish(struct ot_partial *partial, const char *blob);

#endif
