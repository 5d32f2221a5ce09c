#include "offload/plan/layout_add.h"

#include <stdlib.h>

#include "offload/store/store.h"
#include "src/base/error.h"

/* Alignment of buffers: 256 bytes for a device's vector loads, 4 KiB for disks and page tables. BUFFER_LIMIT:
 * the most buffers of a layout. */
enum { GPU_ALIGN = 256, HOST_ALIGN = 4096, BUFFER_LIMIT = 1 << 22 };

static int add_sides(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                     int n_tiles, int sides) {
    struct ot_layout *layout = mk->layout;
    if (mk->rc < 0)
        return OT_NO_BUFFER;
    if (layout->n_buffers == mk->capacity) {
        int capacity = mk->capacity ? mk->capacity * 2 : 256;
        struct ot_buffer *grown =
            capacity > BUFFER_LIMIT ? NULL : realloc(layout->buffers, (size_t)capacity * sizeof *grown);
        if (!grown) {
            mk->rc = ot_fail(OT_E_BUDGET, "no memory for the plan's %d buffers", layout->n_buffers);
            return OT_NO_BUFFER;
        }
        layout->buffers = grown;
        mk->capacity = capacity;
    }
    size_t align = tier == OT_TIER_GPU ? GPU_ALIGN : HOST_ALIGN;
    size_t rounded = (bytes + align - 1) / align * align * (size_t)sides;
    if (bytes > SIZE_MAX / 4 / OT_STORE_MAX_SIDES || layout->tier_bytes[tier] > SIZE_MAX / 4) {
        mk->rc = ot_fail(
            OT_E_BUDGET,
            "%s: %zu bytes are more than any machine has; lower the sequence length or the micro-batch", name,
            bytes);
        return OT_NO_BUFFER;
    }
    layout->buffers[layout->n_buffers] = (struct ot_buffer){.tier = tier,
                                                            .name = name,
                                                            .bytes = bytes,
                                                            .reserved = rounded,
                                                            .offset = layout->tier_bytes[tier],
                                                            .n_tiles = n_tiles};
    layout->tier_bytes[tier] += rounded;
    return layout->n_buffers++;
}

int ot_layout_add(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                  int n_tiles) {
    return add_sides(mk, tier, name, bytes, n_tiles, 1);
}

static bool make_room_for_extents(struct ot_layout_maker *mk, int n) {
    struct ot_layout *layout = mk->layout;
    while (layout->n_extents + n > mk->extent_capacity) {
        int capacity = mk->extent_capacity ? mk->extent_capacity * 2 : 256;
        size_t *bytes = realloc(layout->extent_bytes, (size_t)capacity * sizeof *bytes);
        layout->extent_bytes = bytes ? bytes : layout->extent_bytes;
        int *sides = realloc(layout->extent_sides, (size_t)capacity * sizeof *sides);
        layout->extent_sides = sides ? sides : layout->extent_sides;
        if (!bytes || !sides)
            return false;
        mk->extent_capacity = capacity;
    }
    return true;
}

int ot_layout_add_extents(struct ot_layout_maker *mk, const char *name, size_t bytes, size_t last, int n,
                          int sides) {
    struct ot_layout *layout = mk->layout;
    size_t sum = n > 0 ? bytes * (size_t)(n - 1) + last : 0;
    int buffer = add_sides(mk, OT_TIER_NVME, name, sum, n, sides);
    if (buffer == OT_NO_BUFFER || mk->only_sizes)
        return buffer;
    if (!make_room_for_extents(mk, n)) {
        mk->rc = ot_fail(OT_E_BUDGET, "no memory for a plan with %d extents", layout->n_extents);
        return OT_NO_BUFFER;
    }
    layout->buffers[buffer].first_extent = layout->n_extents;
    for (int i = 0; i < n; i++) {
        layout->extent_bytes[layout->n_extents] = i < n - 1 ? bytes : last;
        layout->extent_sides[layout->n_extents++] = sides;
    }
    return buffer;
}

int *ot_layout_new_indices(struct ot_layout_maker *mk, int64_t n) {
    if (n == 0)
        return NULL;
    int *indices = n > 0 && n < BUFFER_LIMIT ? malloc((size_t)n * sizeof *indices) : NULL;
    if (!indices) {
        if (mk->rc >= 0)
            mk->rc = ot_fail(OT_E_BUDGET, "no memory for a plan with %lld buffers of a kind", (long long)n);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++)
        indices[i] = OT_NO_BUFFER;
    return indices;
}

int *ot_layout_add_tiled(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                         int n_tiles, int64_t n) {
    int *indices = ot_layout_new_indices(mk, n);
    for (int64_t i = 0; indices && i < n; i++)
        indices[i] = ot_layout_add(mk, tier, name, bytes, n_tiles);
    return indices;
}

int *ot_layout_add_held(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                        int n_tiles, int64_t n) {
    int *indices = ot_layout_add_tiled(mk, tier, name, bytes, n_tiles, n);
    for (int64_t i = 0; indices && i < n && indices[i] != OT_NO_BUFFER; i++)
        mk->layout->buffers[indices[i]].first_param = OT_HELD_PARAM;
    return indices;
}

int *ot_layout_add_many(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                        int64_t n) {
    return ot_layout_add_tiled(mk, tier, name, bytes, 1, n);
}

int ot_layout_add_from(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, int64_t first,
                       size_t bytes, int n_tiles) {
    int buffer = ot_layout_add(mk, tier, name, bytes, n_tiles);
    if (buffer != OT_NO_BUFFER)
        mk->layout->buffers[buffer].first_param = first;
    return buffer;
}
