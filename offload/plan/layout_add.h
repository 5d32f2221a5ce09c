/* Adds buffers to a layout that is being made. Internal to layout_make.c and layout_activations.c, which
 * decide the buffers of a plan.
 *
 * Errors: the functions return OT_NO_BUFFER or NULL. The first error stays in mk->rc (OT_E_BUDGET: a size
 * overflows, or there is no memory for the tables), and later calls have no effect. */
#ifndef OT_OFFLOAD_PLAN_LAYOUT_ADD_H
#define OT_OFFLOAD_PLAN_LAYOUT_ADD_H

#include "offload/plan/layout.h"
#include "offload/store/store.h"

/* Sides of an extent that is never pinned: one holds the present content, the next content is written to the
 * other. */
enum { OT_LEAST_SIDES = 2 };
/* Rounded up to whole blocks of the store: the last tile of a share may have any size. */
static inline size_t ot_layout_pages(size_t bytes) {
    return (bytes + OT_STORE_ALIGN - 1) / OT_STORE_ALIGN * OT_STORE_ALIGN;
}

struct ot_layout_maker {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    struct ot_layout *layout;
    /* NULL, or: the sizes of buffers are added up here, and no buffer or extent is listed. Then the functions
     * return OT_NO_BUFFER or NULL without an error. */
    struct ot_ledger *sizes;
    int entry;  /* the entry of `sizes` that the buffer before belongs to */
    int others; /* `sizes`: each buffer stands for so many others too */
    int capacity, extent_capacity;
    int rc;
};

/* Adds n buffers like b to the ledger. *entry: 0 at first; the entry of the buffer before. */
void ot_layout_add_to_ledger(struct ot_ledger *ledger, int *entry, const struct ot_buffer *b, int64_t n);

/* Adds a buffer that tasks use in n_tiles tiles. Returns its index. */
int ot_layout_add(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes, int n_tiles);
/* Adds a buffer to the memory that the ranks share: `bytes` for each rank. */
int ot_layout_add_shared(struct ot_layout_maker *mk, const char *name, size_t bytes, int n_tiles);
/* The same, for a buffer that begins with unit `first` of its slab. */
int ot_layout_add_from(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, int64_t first,
                       size_t bytes, int n_tiles);
/* Adds n equal buffers, one behind the other. Returns the index of the first one. */
int ot_layout_add_row(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                      int n_tiles, int64_t n);
/* Adds a buffer on nvme as a row of n extents: the last one has `last` bytes, the others `bytes`. */
int ot_layout_add_extents(struct ot_layout_maker *mk, const char *name, size_t bytes, size_t last, int n,
                          int sides);

/* Add n equal buffers. Return their indices, to be freed with free; NULL if n is 0. add_tiled: n_tiles tiles
 * each; add_held: such slots for the holdings of slabs; add_many: one tile each. */
int *ot_layout_add_tiled(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                         int n_tiles, int64_t n);
int *ot_layout_add_held(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                        int n_tiles, int64_t n);
int *ot_layout_add_many(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                        int64_t n);
/* n indices without buffers. NULL if n is 0. */
int *ot_layout_new_indices(struct ot_layout_maker *mk, int64_t n);

/* layout_activations.c. kept: the inner activations that blocks keep for backward. frames: of shadows
 * (shadow_updates.h), after kept. cache: of generation, at its homes; and the slots that it passes through.
 */
void ot_layout_add_boundaries(struct ot_layout_maker *mk);
void ot_layout_add_kept(struct ot_layout_maker *mk);
void ot_layout_add_frames(struct ot_layout_maker *mk);
void ot_layout_add_cache(struct ot_layout_maker *mk);
void ot_layout_add_cache_slots(struct ot_layout_maker *mk);

#endif
