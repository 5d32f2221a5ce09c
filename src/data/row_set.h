/* The rows that a dataset has read so far, by their hashes, to find rows that are equal (--dedup).
 *
 * A hash has 128 bits of SHA-256. Among a billion rows, the probability that two unequal rows share a hash is
 * below 1e-20, and nobody can make such rows on purpose. The table has 16 bytes a slot and is 3/8 to 3/4
 * full: 22 to 43 bytes a row, and 64 at most while it grows.
 */
#ifndef OT_DATA_ROW_SET_H
#define OT_DATA_ROW_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_row_hash {
    uint64_t half[2]; /* both 0: an empty slot */
};

/* The hash of a row: its tokens with their marks, where its second answer begins, and the label of KTO. Any
 * thread may call it. */
struct ot_row_hash ot_row_hash(const uint32_t *tokens, size_t n, size_t second, bool good);

struct ot_row_set { /* set to zero before the first use */
    struct ot_row_hash *slots;
    size_t n, capacity; /* capacity: a power of two, or 0 */
};

/* Returns 1 if the hash is new and now in the set, 0 if it was there. Errors: OT_E_BUDGET. */
int ot_row_set_add(struct ot_row_set *set, const struct ot_row_hash *hash);
void ot_row_set_free(struct ot_row_set *set);

#endif
