#include "offload/plan/layout_add.h"

#include <stdlib.h>

#include "offload/store/store.h"
#include "src/base/error.h"

/* Alignment of buffers: 256 bytes for a device's vector loads, 4 KiB for disks and page tables. BUFFER_LIMIT:
 * the most buffers of a layout. */
enum { GPU_ALIGN = 256, HOST_ALIGN = 4096, BUFFER_LIMIT = 1 << 22 };

static bool make_room_for_buffers(struct ot_layout_maker *mk, int64_t n) {
    struct ot_layout *layout = mk->layout;
    int capacity = mk->capacity ? mk->capacity : 256;
    while (capacity < layout->n_buffers + n)
        capacity *= 2;
    if (capacity == mk->capacity)
        return true;
    struct ot_buffer *grown = realloc(layout->buffers, (size_t)capacity * sizeof *grown);
    if (!grown)
        return false;
    layout->buffers = grown;
    mk->capacity = capacity;
    return true;
}

static int fail(struct ot_layout_maker *mk, int rc) {
    mk->rc = rc;
    return OT_NO_BUFFER;
}

static int add_row(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes, int n_tiles,
                   int sides, int64_t n) {
    struct ot_layout *layout = mk->layout;
    size_t align = tier == OT_TIER_GPU ? GPU_ALIGN : HOST_ALIGN, all;
    size_t rounded = (bytes + align - 1) / align * align * (size_t)sides;
    int first = layout->n_buffers;
    if (mk->rc < 0 || n == 0)
        return OT_NO_BUFFER;
    if (n > BUFFER_LIMIT - first || (!mk->sizes && !make_room_for_buffers(mk, n)))
        return fail(mk, ot_fail(OT_E_BUDGET, "no memory for the plan's %d buffers", first));
    if (bytes > SIZE_MAX / 4 / OT_STORE_MAX_SIDES || __builtin_mul_overflow(rounded, (size_t)n, &all) ||
        all > SIZE_MAX / 4 || layout->tier_bytes[tier] > SIZE_MAX / 4)
        return fail(mk, ot_fail(OT_E_BUDGET,
                                "%s: %zu bytes are more than any machine has; lower the sequence length or "
                                "the micro-batch",
                                name, bytes));
    struct ot_buffer buffer = {.tier = tier,
                               .name = name,
                               .bytes = bytes,
                               .reserved = rounded,
                               .offset = layout->tier_bytes[tier],
                               .n_tiles = n_tiles,
                               .sides = sides};
    layout->n_buffers += (int)n;
    layout->tier_bytes[tier] += all;
    if (mk->sizes) {
        ot_layout_add_to_ledger(mk->sizes, &mk->entry, &buffer, n);
        return OT_NO_BUFFER;
    }
    for (int64_t i = 0; i < n; i++, buffer.offset += rounded)
        layout->buffers[first + i] = buffer;
    return first;
}

int ot_layout_add_row(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                      int n_tiles, int64_t n) {
    return add_row(mk, tier, name, bytes, n_tiles, 1, n);
}

int ot_layout_add(struct ot_layout_maker *mk, enum ot_tier tier, const char *name, size_t bytes,
                  int n_tiles) {
    return add_row(mk, tier, name, bytes, n_tiles, 1, 1);
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
    int buffer = add_row(mk, OT_TIER_NVME, name, sum, n, sides, 1);
    if (buffer == OT_NO_BUFFER)
        return OT_NO_BUFFER;
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
    int *indices = mk->sizes ? NULL : ot_layout_new_indices(mk, n);
    int first = n > 0 ? add_row(mk, tier, name, bytes, n_tiles, 1, n) : OT_NO_BUFFER;
    for (int64_t i = 0; indices && first != OT_NO_BUFFER && i < n; i++)
        indices[i] = first + (int)i;
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
