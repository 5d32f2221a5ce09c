/* Copies one tile from its home to the sink of a snapshot. */
#include <string.h>

#include "offload/engine/snapshot_state.h"

#include "src/base/minmax.h"

/* The address of consecutive values, on the device or in host memory. */
struct source {
    const char *memory;
    bool on_device;
};

static struct source in_buffer(const struct ot_snapshot_source *source, int buffer, size_t offset) {
    return (struct source){(const char *)ot_layout_at(source->layout, source->tier_memory, buffer) + offset,
                           source->layout->buffers[buffer].tier == OT_TIER_GPU};
}

/* A copy from the device is only enqueued: it is complete after ot_lane_sync. */
static void copy(struct ot_snapshot *snapshot, char *to, struct source from, size_t bytes) {
    if (from.on_device)
        ot_lane_copy(snapshot->lane, OT_COPY_D2H, to, from.memory, bytes);
    else
        memcpy(to, from.memory, bytes);
}

/* A tile whose extents on nvme have been read into host memory. */
struct tile_source {
    struct ot_tile_span span;
    const char *state, *weights; /* the extents in host memory; NULL: not on nvme */
};

/* Copies the values of a part from one array of the state. */
static void copy_state(struct ot_snapshot *snapshot, const struct tile_source *tile,
                       const struct ot_part *part, enum ot_part_array array, char *to) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[part->slab];
    struct ot_tile_span home = ot_slab_part(source->chain, source->plan, part->slab, OT_TILE_GPU);
    struct source from;
    if (tile->state) {
        struct ot_part_place place = ot_state_find(source->chain, array, tile->span.n);
        size_t at = place.offset + ot_part_run(place, part->first - tile->span.first);
        from = (struct source){tile->state + at, false};
    } else {
        bool on_gpu = home.n > 0 && part->first < home.first + home.n;
        if (!on_gpu)
            home = ot_slab_state_off_gpu(source->chain, source->plan, part->slab);
        struct ot_part_place place = ot_state_find(source->chain, array, home.n);
        from = in_buffer(source, on_gpu ? b->state_gpu : b->state_host,
                         place.offset + ot_part_run(place, part->first - home.first));
    }
    copy(snapshot, to, from, ot_part_run(ot_part_find(source->chain->dtype, part, array), part->n));
}

static void copy_weights(struct ot_snapshot *snapshot, const struct tile_source *tile,
                         const struct ot_part *part, char *to) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[part->slab];
    size_t one = ot_dtype_bytes(source->chain->dtype);
    /* if there are two copies, only the device's is always up to date */
    int home = b->weights_gpu != OT_NO_BUFFER ? b->weights_gpu : b->weights_host;
    struct source from;
    if (tile->weights)
        from = (struct source){tile->weights + (size_t)(part->first - tile->span.first) * one, false};
    else
        from = in_buffer(source, home,
                         (size_t)ot_layout_index(source->layout, source->chain, source->plan, home,
                                                 part->slab, part->first) *
                             one);
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

/* Reads the extents of the tile that are on nvme into tile_memory. */
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
    struct ot_part part = ot_part_of(source->chain, !ot_snapshot_refers_state(snapshot, place),
                                     !ot_snapshot_refers_weights(snapshot, place), 0);
    part.slab = place.slab;
    struct tile_source tile = {.span = ot_slab_span(source->chain, source->plan, place.slab, place.tile, 1)};
    if (!part.has_state && !part.has_weights)
        return 0;
    OT_TRY(read_extents(snapshot, place, part.has_state, part.has_weights, &tile));
    int64_t end = tile.span.first + tile.span.n;
    for (part.first = tile.span.first; part.first < end; part.first += part.n) {
        part.n = ot_min(end - part.first, OT_PART_PARAMS);
        OT_TRY(copy_part(snapshot, &tile, &part));
        *copied += (int64_t)ot_part_bytes(source->chain->dtype, &part);
    }
    return 0;
}
