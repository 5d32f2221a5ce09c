/* Arena: many small allocations with one lifetime (names, tables, parsed rows). Not thread-safe. The memory
 * is zeroed and aligned to 16 bytes. */
#ifndef OT_BASE_ARENA_H
#define OT_BASE_ARENA_H

#include <stddef.h>

struct ot_arena;

int ot_arena_open(struct ot_arena **out);
void ot_arena_close(struct ot_arena *arena); /* frees everything; NULL is fine */
/* Returns NULL after OT_E_BUDGET: out of memory, or count * size overflows. */
void *ot_arena_alloc(struct ot_arena *arena, size_t count, size_t size);
char *ot_arena_strdup(struct ot_arena *arena, const char *text, size_t bytes); /* adds the NUL */
size_t ot_arena_bytes(const struct ot_arena *arena);

#endif
