/* Memory: arrays that grow, which the caller frees with free(), and arenas.
 *
 *     struct list { struct item *items; size_t n, capacity; } list = {0};
 *     OT_TRY(ot_grow(&list.items, &list.capacity, list.n + 1, sizeof *list.items, "items"));
 *     list.items[list.n++] = item;
 */
#ifndef OT_BASE_MEMORY_H
#define OT_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* ot_grow calls these where there is no room. */
bool ot_array_reallocate(void *array, size_t *capacity, size_t needed, size_t each);
int ot_array_fail(size_t needed, const char *what);

/* ot_grow without an error: false where ot_grow fails. */
static inline bool ot_try_grow(void *array, size_t *capacity, size_t needed, size_t each) {
    return needed <= *capacity || ot_array_reallocate(array, capacity, needed, each);
}

/* Reallocates the array for at least `needed` elements of `each` bytes, if its capacity is smaller. `array`
 * is the address of the pointer to the elements, which may be NULL with a capacity of 0. The new capacity is
 * half as large again as the old one, or more, so that n appends copy O(n) elements. It depends on `capacity`
 * and `needed` alone: arrays of one length share a capacity, and all but the last grow with a copy of it. New
 * elements are not initialised. Errors: OT_E_BUDGET, "no memory for <needed> <what>": there is none, or the
 * bytes do not fit in a size_t. Then the array is unchanged. */
static inline int ot_grow(void *array, size_t *capacity, size_t needed, size_t each, const char *what) {
    return ot_try_grow(array, capacity, needed, each) ? 0 : ot_array_fail(needed, what);
}

/* ---- arena ---- */

/* Arena: many small allocations with one lifetime (names, tables, parsed rows). Not thread-safe. The memory
 * is zeroed and aligned to 16 bytes. */

struct ot_arena;

int ot_arena_open(struct ot_arena **out);
void ot_arena_close(struct ot_arena *arena); /* frees everything; NULL is fine */
/* Ends all pieces, and keeps memory for as many: a next document of this size is one allocation, or none. */
void ot_arena_clear(struct ot_arena *arena);
/* Returns NULL after OT_E_BUDGET: out of memory, or count * size overflows. */
void *ot_arena_alloc(struct ot_arena *arena, size_t count, size_t size);
char *ot_arena_strdup(struct ot_arena *arena, const char *text, size_t bytes); /* adds the NUL */
size_t ot_arena_bytes(const struct ot_arena *arena);

#endif
