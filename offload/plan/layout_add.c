#include "offload/plan/layout_add.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/layout.h"
#include "offload/plan/stages.h"
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
    n *= 1 + mk->others;
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

int ot_layout_add_shared(struct ot_layout_maker *mk, const char *name, size_t bytes, int n_tiles) {
    struct ot_layout *layout = mk->layout;
    int buffer = ot_layout_add(mk, OT_TIER_HOST, name, bytes, n_tiles);
    if (buffer == OT_NO_BUFFER)
        return OT_NO_BUFFER;
    struct ot_buffer *b = &layout->buffers[buffer];
    layout->tier_bytes[OT_TIER_HOST] -= b->reserved; /* it is not in the rank's own memory */
    b->is_shared = true;
    b->offset = layout->shared_bytes;
    layout->shared_bytes += (size_t)ot_shard_ranks(&mk->plan->shard) * b->reserved;
    return buffer;
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

/* ---- layout order ---- */

/* The order in which a step uses the extents of a layout. The store places them on the disks in that order.
 */

struct order {
    int *extents, n;
};

static void put_tile(struct order *order, const struct ot_layout *layout, int buffer, int tile) {
    if (buffer != OT_NO_BUFFER)
        order->extents[order->n++] = layout->buffers[buffer].first_extent + tile;
}

/* Orders the extents of a slab. The host reads and writes the state and the weights of its tiles together, so
 * the two extents of a tile are neighbours, in the order of the tile's transfer (engine/nvme.c). The device
 * has the weights of its tiles already: it reads and writes their state alone, and forward and backward read
 * their weights alone. */
static void order_slab(const struct ot_chain *chain, const struct ot_plan *plan,
                       const struct ot_layout *layout, int s, struct order *order) {
    const struct ot_slab_buffers *b = &layout->slabs[s];
    const int *tiles = plan->slabs[s].tiles;
    int n = ot_slab_tiles(chain, plan, s);
    int first_state = plan->train ? tiles[OT_TILE_GPU] : n; /* the first tile with a state extent */
    int first_pair = plan->train ? n - tiles[OT_TILE_CPU] : n;
    for (int t = 0; t < first_pair; t++)
        put_tile(order, layout, b->weights_nvme, t);
    for (int t = first_state; t < first_pair; t++)
        put_tile(order, layout, b->state_nvme, t - first_state);
    for (int t = first_pair; t < n; t++) {
        put_tile(order, layout, b->state_nvme, t - first_state);
        put_tile(order, layout, b->weights_nvme, t);
    }
}

static void put_all(struct order *order, const struct ot_layout *layout, int buffer) {
    bool is_on_nvme = buffer != OT_NO_BUFFER && layout->buffers[buffer].tier == OT_TIER_NVME;
    for (int t = 0; is_on_nvme && t < layout->buffers[buffer].n_tiles; t++)
        put_tile(order, layout, buffer, t);
}

/* Backward finishes the gradients of the last slab first, and sums leave and come back in that order. They
 * lie apart from the state, in the order in which they are written, because updates read much more state. */
static void order_gradients(const struct ot_chain *chain, const struct ot_layout *layout,
                            struct order *order) {
    for (int s = chain->n_slabs - 1; s >= 0; s--)
        put_all(order, layout, layout->slabs[s].grad_nvme);
    for (int b = chain->n_blocks - 1; layout->sums && b >= 0; b--)
        for (int i = ot_layout_sum(b, 0, 0); i < ot_layout_sum(b + 1, 0, 0); i++)
            put_all(order, layout, layout->sums[i]);
}

/* Slab numbers are the order in which forward needs the slabs, and in which they are updated. Activations
 * come last, in the order in which they are written. */
int ot_layout_order(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_layout *layout,
                    int **extents) {
    struct order order = {calloc((size_t)layout->n_extents + 1, sizeof *order.extents), 0};
    *extents = order.extents;
    if (!order.extents)
        return ot_fail(OT_E_BUDGET, "no memory for a plan with %d extents", layout->n_extents);
    for (int s = 0; s < chain->n_slabs; s++)
        order_slab(chain, plan, layout, s, &order);
    order_gradients(chain, layout, &order);
    int64_t boundaries = (int64_t)(chain->n_blocks - 1) * layout->places;
    for (int64_t i = 0; layout->boundary_nvme && i < boundaries; i++)
        put_all(&order, layout, layout->boundary_nvme[i]);
    for (int64_t i = 0; layout->kept && i < (int64_t)chain->n_blocks * layout->places; i++)
        put_all(&order, layout, layout->kept[i]);
    for (int b = 0; layout->cache && b < chain->n_blocks; b++)
        put_all(&order, layout, layout->cache[b]);
    assert(order.n == layout->n_extents);
    return 0;
}

/* ---- layout use ---- */

/* Finds addresses in a layout, reads its ledger, and frees it. */

void ot_layout_free(struct ot_layout *layout) {
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        free(layout->weight_slots[k]);
        free(layout->grad_slots[k]);
        free(layout->grad_out_slots[k]);
        free(layout->host_weight_slots[k]);
        free(layout->exchange_slots[k]);
        free(layout->encoded_slots[k]);
    }
    free(layout->boundary_gpu);
    free(layout->boundary_host);
    free(layout->boundary_nvme);
    free(layout->host_activation_slots);
    free(layout->tile_slots);
    free(layout->host_grad_slots);
    free(layout->frames);
    free(layout->first_frame);
    free(layout->extent_bytes);
    free(layout->extent_sides);
    free(layout->activation_slots);
    free(layout->stage_buffers);
    free(layout->state_slots);
    free(layout->boundary_grad);
    free(layout->kept);
    free(layout->kept_slots);
    free(layout->host_kept_slots);
    free(layout->sums);
    free(layout->cache);
    free(layout->cache_slots);
    free(layout->host_cache_slots);
    free(layout->slabs);
    free(layout->buffers);
    memset(layout, 0, sizeof *layout);
}

int64_t ot_layout_index(const struct ot_layout *layout, const struct ot_chain *chain,
                        const struct ot_plan *plan, int buffer, int slab, int64_t first) {
    int64_t begin = layout->buffers[buffer].first_param;
    return first - (begin == OT_HELD_PARAM ? ot_slab_holding(chain, plan, slab).first : begin);
}

/* Finds the entry of the buffer's tier and name; ledger->n: none. Most buffers have the entry of the one
 * before, or a name at the same address as their entry, so texts are compared last. */
static int find_entry(const struct ot_ledger *ledger, int before, const struct ot_buffer *b) {
    const struct ot_ledger_entry *list = ledger->entries;
    if (before < ledger->n && list[before].tier == b->tier && list[before].name == b->name)
        return before;
    for (int e = 0; e < ledger->n; e++)
        if (list[e].tier == b->tier && list[e].name == b->name)
            return e;
    for (int e = 0; e < ledger->n; e++)
        if (list[e].tier == b->tier && strcmp(list[e].name, b->name) == 0)
            return e;
    return ledger->n;
}

/* The bytes of all sides of a buffer except one. */
static size_t spare_of(const struct ot_buffer *b) {
    return b->reserved - b->reserved / (size_t)b->sides;
}

void ot_layout_add_to_ledger(struct ot_ledger *ledger, int *entry, const struct ot_buffer *b, int64_t n) {
    int e = find_entry(ledger, *entry, b);
    assert(e < OT_LEDGER_MAX); /* a layout has fewer names */
    if (e == ledger->n)
        ledger->entries[ledger->n++] = (struct ot_ledger_entry){b->tier, b->name, 0, 0};
    ledger->entries[e].bytes += b->reserved * (size_t)n;
    ledger->entries[e].spare_bytes += spare_of(b) * (size_t)n;
    *entry = e;
}

void ot_layout_ledger(const struct ot_layout *layout, struct ot_ledger *out) {
    int entry = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < layout->n_buffers; i++)
        ot_layout_add_to_ledger(out, &entry, &layout->buffers[i], 1);
}

int ot_layout_frame(const struct ot_layout *layout, const struct ot_plan *plan, int slab, int tile) {
    const int *tiles = plan->slabs[slab].tiles;
    int64_t all = tiles[OT_TILE_CPU], i = tile - tiles[OT_TILE_GPU] - tiles[OT_TILE_STREAM];
    if (!layout->frames)
        return -1;
    int64_t first = layout->first_frame[slab], frames = layout->first_frame[slab + 1] - first;
    int64_t before = i * frames / all; /* spread evenly over the tiles */
    return (i + 1) * frames / all > before ? (int)(first + before) : -1;
}

int ot_layout_boundary(const struct ot_layout *layout, const struct ot_plan *plan, int boundary, int micro) {
    if (plan->boundaries_pass)
        return layout->stage_buffers[boundary % OT_STAGE_BUFFERS];
    return layout
        ->boundary_gpu[boundary % layout->n_boundaries * layout->places + ot_plan_place(plan, micro)];
}
