/* Finds addresses in a layout, reads its ledger, and frees it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/layout.h"
#include "offload/plan/layout_add.h"

void ot_layout_free(struct ot_layout *layout) {
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        free(layout->weight_slots[k]);
        free(layout->grad_slots[k]);
        free(layout->stage_slots[k]);
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
    free(layout->state_slots);
    free(layout->boundary_grad);
    free(layout->kept);
    free(layout->kept_slots);
    free(layout->host_kept_slots);
    free(layout->sums);
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
    return layout
        ->boundary_gpu[boundary % layout->n_boundaries * layout->places + ot_plan_place(plan, micro)];
}
