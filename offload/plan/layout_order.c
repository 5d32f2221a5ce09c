/* The order in which a step uses the extents of a layout. The store places them on the disks in that order.
 */
#include "offload/plan/layout.h"

#include <assert.h>
#include <stdlib.h>

#include "src/base/error.h"

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
    assert(order.n == layout->n_extents);
    return 0;
}
