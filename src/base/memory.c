#include "src/base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

/* The least capacity, so that small arrays are not reallocated often. */
enum { LEAST = 32 };

bool ot_array_reallocate(void *array, size_t *capacity, size_t needed, size_t each) {
    size_t most = SIZE_MAX / each;
    if (needed > most)
        return false;
    size_t wanted = *capacity <= most / 3 * 2 ? *capacity + *capacity / 2 : most;
    wanted = ot_max(ot_max(wanted, needed), LEAST);
    void *old, *grown;
    memcpy(&old, array, sizeof old); /* the pointer has another type than void * */
    grown = realloc(old, wanted * each);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

int ot_array_fail(size_t needed, const char *what) {
    return ot_fail(OT_E_BUDGET, "no memory for %zu %s", needed, what);
}

/* ---- arena ---- */

enum { ALIGN = 16, FIRST_BLOCK_BYTES = 4096, LARGEST_BLOCK_BYTES = 1 << 20 };

struct block {
    struct block *next;
    size_t bytes, used;
    _Alignas(ALIGN) unsigned char data[];
};

struct ot_arena {
    struct block *blocks; /* the first chunk is the one in use */
    size_t next_bytes, total_bytes;
};

int ot_arena_open(struct ot_arena **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory for an arena");
    (*out)->next_bytes = FIRST_BLOCK_BYTES;
    return 0;
}

void ot_arena_close(struct ot_arena *arena) {
    if (!arena)
        return;
    for (struct block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(arena);
}

void ot_arena_clear(struct ot_arena *arena) {
    struct block *first = arena->blocks;
    if (first && !first->next && first->bytes <= LARGEST_BLOCK_BYTES) {
        memset(first->data, 0, first->used);
        first->used = 0;
        return;
    }
    for (struct block *next; first; first = next) {
        next = first->next;
        free(first);
    }
    /* All pieces fit into such a chunk, and none is large for it. */
    arena->next_bytes = ot_max(arena->next_bytes, ot_min(8 * arena->total_bytes, LARGEST_BLOCK_BYTES));
    arena->blocks = NULL;
    arena->total_bytes = 0;
}

/* Each chunk is twice as large as the one before, up to a limit, so that few small names need little memory
 * and millions need few calls. An allocation too large for a chunk gets its own, behind the chunk in use, so
 * the rest of that chunk is not lost. */
static struct block *add_block(struct ot_arena *arena, size_t bytes) {
    bool is_large = bytes > arena->next_bytes / 4;
    size_t capacity = is_large ? bytes : arena->next_bytes;
    struct block *block = calloc(1, sizeof *block + capacity);
    if (!block)
        return NULL;
    block->bytes = capacity;
    arena->total_bytes += sizeof *block + capacity;
    if (is_large && arena->blocks) {
        block->next = arena->blocks->next;
        arena->blocks->next = block;
    } else {
        block->next = arena->blocks;
        arena->blocks = block;
    }
    if (!is_large && arena->next_bytes < LARGEST_BLOCK_BYTES)
        arena->next_bytes *= 2;
    return block;
}

void *ot_arena_alloc(struct ot_arena *arena, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) {
        ot_fail(OT_E_BUDGET, "no memory for %zu items of %zu bytes", count, size);
        return NULL;
    }
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct block *block = arena->blocks;
    if (!block || block->bytes - block->used < bytes)
        block = add_block(arena, bytes);
    if (!block) {
        ot_fail(OT_E_BUDGET, "no memory for %zu bytes", bytes);
        return NULL;
    }
    void *piece = block->data + block->used;
    block->used += bytes;
    return piece;
}

char *ot_arena_strdup(struct ot_arena *arena, const char *text, size_t bytes) {
    char *copy = ot_arena_alloc(arena, bytes + 1, 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

size_t ot_arena_bytes(const struct ot_arena *arena) {
    return arena->total_bytes;
}
