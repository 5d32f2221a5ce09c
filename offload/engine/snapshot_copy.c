/* One tile's bytes from their homes to the sink of a snapshot. */
#include <string.h>

#include "offload/engine/snapshot_state.h"

/* Where consecutive values lie: on the device, or in host memory. */
struct source {
    const char *memory;
    bool on_device;
};

static struct source in_buffer(const struct ot_snapshot_source *source, int buffer, size_t offset) {
    return (struct source){(const char *)ot_layout_at(source->layout, source->tier_memory, buffer) + offset,
                           source->layout->buffers[buffer].tier == OT_TIER_GPU};
}

/* Enqueued from the device: complete once the lane is. */
static void copy(struct ot_snapshot *snapshot, char *to, struct source from, size_t bytes) {
    if (from.on_device)
        ot_lane_copy(snapshot->lane, OT_COPY_D2H, to, from.memory, bytes);
    else
        memcpy(to, from.memory, bytes);
}

/* What of a tile is on nvme and has to be copied is read as a whole first. */
struct tile_source {
    struct ot_tile_span span;
    const char *state, *weights; /* its extents in memory; NULL: they are not on nvme */
};

/* The part's share of an array of the state. */
static void copy_state(struct ot_snapshot *snapshot, const struct tile_source *tile,
                       const struct ot_part *part, enum ot_part_array array, char *to) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[part->slab];
    enum ot_dtype dtype = source->chain->dtype;
    size_t width = ot_part_width(dtype, array);
    struct ot_tile_span home = ot_slab_part(source->chain, source->plan, part->slab, OT_TILE_GPU);
    struct source from;
    if (tile->state) {
        size_t at =
            ot_state_offset(dtype, array, tile->span.n) + (size_t)(part->first - tile->span.first) * width;
        from = (struct source){tile->state + at, false};
    } else {
        bool on_gpu = home.n > 0 && part->first < home.first + home.n;
        if (!on_gpu)
            home = ot_slab_state_off_gpu(source->chain, source->plan, part->slab);
        from = in_buffer(source, on_gpu ? b->state_gpu : b->state_host,
                         ot_state_offset(dtype, array, home.n) + (size_t)(part->first - home.first) * width);
    }
    copy(snapshot, to, from, (size_t)part->n * width);
}

static void copy_weights(struct ot_snapshot *snapshot, const struct tile_source *tile,
                         const struct ot_part *part, char *to) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[part->slab];
    size_t one = ot_part_width(source->chain->dtype, OT_PART_WEIGHTS);
    struct source from;
    if (b->weights_gpu != OT_NO_BUFFER) /* of two copies the resident one is up to date as a whole */
        from = in_buffer(source, b->weights_gpu, (size_t)part->first * one);
    else if (tile->weights)
        from = (struct source){tile->weights + (size_t)(part->first - tile->span.first) * one, false};
    else
        from = in_buffer(source, b->weights_host, (size_t)part->first * one);
    copy(snapshot, to, from, (size_t)part->n * one);
}

static int copy_part(struct ot_snapshot *snapshot, const struct tile_source *tile,
                     const struct ot_part *part) {
    const struct ot_snapshot_sink *sink = &snapshot->config.sink;
    void *memory;
    OT_TRY(sink->room(sink->context, &memory));
    for (enum ot_part_array array = OT_PART_M; array < OT_PART_ARRAYS; array++) {
        struct ot_part_place place = ot_part_find(snapshot->source.chain->dtype, part, array);
        char *to = (char *)memory + place.offset;
        if (place.width > 0 && array == OT_PART_WEIGHTS)
            copy_weights(snapshot, tile, part, to);
        else if (place.width > 0)
            copy_state(snapshot, tile, part, array, to);
    }
    OT_TRY(ot_lane_sync(snapshot->lane));
    return sink->put(sink->context, part, memory);
}

/* Reads what of the tile is on nvme into the buffer that the layout has for it. */
static int read_extents(struct ot_snapshot *snapshot, struct ot_tile_place place, bool state, bool weights,
                        struct tile_source *out) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[place.slab];
    int off_gpu = place.tile - source->plan->slabs[place.slab].tiles[OT_TILE_GPU];
    if (state && off_gpu >= 0 && b->state_nvme != OT_NO_BUFFER) {
        char *memory = snapshot->tile_memory;
        OT_TRY(ot_store_read(source->store, source->layout->buffers[b->state_nvme].first_extent + off_gpu,
                             memory));
        out->state = memory;
    }
    if (weights && b->weights_gpu == OT_NO_BUFFER && b->weights_nvme != OT_NO_BUFFER) {
        char *memory = snapshot->tile_memory + source->layout->slot_weights_offset;
        OT_TRY(ot_store_read(source->store,
                             source->layout->buffers[b->weights_nvme].first_extent + place.tile, memory));
        out->weights = memory;
    }
    return 0;
}

int ot_snapshot_copy_tile(struct ot_snapshot *snapshot, struct ot_tile_place place, int64_t *copied) {
    const struct ot_snapshot_source *source = &snapshot->source;
    struct ot_part part = {.slab = place.slab,
                           .has_state = !ot_snapshot_refers_state(snapshot, place),
                           .has_weights = !ot_snapshot_refers_weights(snapshot, place)};
    struct tile_source tile = {.span = ot_slab_span(source->chain, source->plan, place.slab, place.tile, 1)};
    if (!part.has_state && !part.has_weights)
        return 0;
    OT_TRY(read_extents(snapshot, place, part.has_state, part.has_weights, &tile));
    int64_t end = tile.span.first + tile.span.n;
    for (part.first = tile.span.first; part.first < end; part.first += part.n) {
        part.n = end - part.first < OT_PART_PARAMS ? end - part.first : OT_PART_PARAMS;
        OT_TRY(copy_part(snapshot, &tile, &part));
        *copied += (int64_t)ot_part_bytes(source->chain->dtype, &part);
    }
    return 0;
}
