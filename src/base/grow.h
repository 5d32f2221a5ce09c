/* Arrays that grow. The caller frees them with free().
 *
 *     struct list { struct item *items; size_t n, capacity; } list = {0};
 *     OT_TRY(ot_grow(&list.items, &list.capacity, list.n + 1, sizeof *list.items, "items"));
 *     list.items[list.n++] = item;
 */
#ifndef OT_BASE_GROW_H
#define OT_BASE_GROW_H

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

#endif
