#include "src/data/row_set.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"

enum { FIRST_CAPACITY = 1024 };

struct ot_row_hash ot_row_hash(const uint32_t *tokens, size_t n, size_t second, bool good) {
    const uint64_t answers[] = {second, good};
    uint8_t digest[OT_SHA256_BYTES];
    struct ot_sha256 sha;
    struct ot_row_hash hash;
    ot_sha256_begin(&sha);
    ot_sha256_add(&sha, answers, sizeof answers);
    ot_sha256_add(&sha, tokens, n * sizeof *tokens);
    ot_sha256_end(&sha, digest);
    memcpy(&hash, digest, sizeof hash);
    return hash;
}

/* The slot that has the hash, or the empty one where it belongs. */
static struct ot_row_hash *find(const struct ot_row_set *set, const struct ot_row_hash *hash) {
    for (size_t i = (size_t)hash->half[0];; i++) {
        struct ot_row_hash *slot = &set->slots[i & (set->capacity - 1)];
        bool is_empty = slot->half[0] == 0 && slot->half[1] == 0;
        if (is_empty || memcmp(slot, hash, sizeof *slot) == 0)
            return slot;
    }
}

static int grow(struct ot_row_set *set) {
    struct ot_row_set larger = {.n = set->n, .capacity = set->capacity ? 2 * set->capacity : FIRST_CAPACITY};
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return ot_fail(OT_E_BUDGET, "no memory to find equal rows among %zu", set->n);
    for (size_t i = 0; i < set->capacity; i++)
        if (set->slots[i].half[0] != 0 || set->slots[i].half[1] != 0)
            *find(&larger, &set->slots[i]) = set->slots[i];
    free(set->slots);
    *set = larger;
    return 0;
}

int ot_row_set_add(struct ot_row_set *set, const struct ot_row_hash *hash) {
    if (4 * (set->n + 1) > 3 * set->capacity)
        OT_TRY(grow(set));
    struct ot_row_hash *slot = find(set, hash);
    if (memcmp(slot, hash, sizeof *slot) == 0)
        return 0;
    *slot = *hash;
    set->n++;
    return 1;
}

void ot_row_set_free(struct ot_row_set *set) {
    free(set->slots);
    *set = (struct ot_row_set){0};
}
