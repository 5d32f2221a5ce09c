/* What a layout's users ask it: addresses, the ledger, and to free it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/layout.h"

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

static bool is_entry(const struct ot_ledger_entry *entry, const struct ot_buffer *b) {
    return entry->tier == b->tier && (entry->name == b->name || strcmp(entry->name, b->name) == 0);
}

/* All sides of a buffer on nvme but one. */
static size_t spare_of(const struct ot_layout *layout, const struct ot_buffer *b) {
    if (b->tier != OT_TIER_NVME || b->n_tiles == 0)
        return 0;
    return b->reserved - b->reserved / (size_t)layout->extent_sides[b->first_extent];
}

void ot_layout_ledger(const struct ot_layout *layout, struct ot_ledger *out) {
    int e = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < layout->n_buffers; i++) {
        const struct ot_buffer *b = &layout->buffers[i];
        if (e == out->n || !is_entry(&out->entries[e], b)) /* most buffers have the name of the one before */
            for (e = 0; e < out->n && !is_entry(&out->entries[e], b);)
                e++;
        assert(e < OT_LEDGER_MAX); /* a layout has fewer names than that */
        if (e == out->n)
            out->entries[out->n++] = (struct ot_ledger_entry){b->tier, b->name, 0, 0};
        out->entries[e].bytes += b->reserved;
        out->entries[e].spare_bytes += spare_of(layout, b);
    }
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
