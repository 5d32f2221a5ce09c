/* Adds buffers to a layout that is being made. Internal to layout_make.c, which decides what a plan needs.
 *
 * Errors: the functions return OT_NO_BUFFER or NULL. The first error stays in mk->rc (OT_E_BUDGET: a size
 * overflows, or there is no memory for the tables), and later calls have no effect. */
#ifndef OT_OFFLOAD_PLAN_LAYOUT_ADD_H
#define OT_OFFLOAD_PLAN_LAYOUT_ADD_H

#include "offload/plan/layout.h"

struct ot_layout_maker {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    struct ot_layout *layout;
    bool only_sizes; /* extents are not listed: the caller wants the ledger */
    int capacity, extent_capacity;
    int rc;
};

/* Adds a buffer that tasks use in n_tiles tiles. Returns its index. */
int ot_layout_add(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes, int n_tiles);
/* The same, for a buffer that begins with unit `first` of its slab. */
int ot_layout_add_from(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, int64_t first,
                       size_t bytes, int n_tiles);
/* Adds a buffer on nvme as a row of n extents: the last one has `last` bytes, the others `bytes`. */
int ot_layout_add_extents(struct ot_layout_maker *mk, const char *name, size_t bytes, size_t last, int n,
                          int sides);

/* Add n equal buffers. Return their indices, to be freed with free; NULL if n is 0. add_tiled: of n_tiles
 * tiles; add_held: such slots for the holdings of slabs; add_many: of one tile. */
int *ot_layout_add_tiled(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                         int n_tiles, int64_t n);
int *ot_layout_add_held(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                        int n_tiles, int64_t n);
int *ot_layout_add_many(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                        int64_t n);
/* n indices without buffers. NULL if n is 0. */
int *ot_layout_new_indices(struct ot_layout_maker *mk, int64_t n);

#endif
