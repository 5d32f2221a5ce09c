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
static char *copy(struct ot_snapshot *snapshot, char *to, struct source from, size_t bytes) {
    if (from.on_device)
        ot_lane_copy(snapshot->lane, OT_COPY_D2H, to, from.memory, bytes);
    else
        memcpy(to, from.memory, bytes);
    return to + bytes;
}

/* What of a tile is on nvme and has to be copied is read as a whole first. */
struct tile_source {
    struct ot_tile_span span;
    const char *state, *weights; /* its extents in memory; NULL: they are not on nvme */
};

/* n values of `bytes` each of the state, from parameter `first` of the slab on; `offset` as in layout.h. */
static char *copy_state(struct ot_snapshot *snapshot, const struct tile_source *tile, int slab, int64_t first,
                        int64_t n, size_t (*offset)(int64_t n_params), size_t bytes, char *to) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[slab];
    struct ot_tile_span home = ot_slab_part(source->chain, source->plan, slab, OT_TILE_GPU);
    struct source from;
    if (tile->state) {
        from = (struct source){
            tile->state + offset(tile->span.n) + (size_t)(first - tile->span.first) * bytes, false};
        return copy(snapshot, to, from, (size_t)n * bytes);
    }
    int buffer = b->state_gpu;
    if (home.n == 0 || first >= home.first + home.n) {
        home = ot_slab_state_off_gpu(source->chain, source->plan, slab);
        buffer = b->state_host;
    }
    from = in_buffer(source, buffer, offset(home.n) + (size_t)(first - home.first) * bytes);
    return copy(snapshot, to, from, (size_t)n * bytes);
}

static void copy_weights(struct ot_snapshot *snapshot, const struct tile_source *tile, int slab,
                         int64_t first, int64_t n, char *to) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[slab];
    size_t one = ot_dtype_bytes(source->chain->dtype);
    struct source from;
    if (b->weights_gpu != OT_NO_BUFFER) /* of two copies the resident one is up to date as a whole */
        from = in_buffer(source, b->weights_gpu, (size_t)first * one);
    else if (tile->weights)
        from = (struct source){tile->weights + (size_t)(first - tile->span.first) * one, false};
    else
        from = in_buffer(source, b->weights_host, (size_t)first * one);
    copy(snapshot, to, from, (size_t)n * one);
}

static int copy_part(struct ot_snapshot *snapshot, const struct tile_source *tile,
                     const struct ot_part *part) {
    const struct ot_snapshot_sink *sink = &snapshot->config.sink;
    enum ot_dtype dtype = snapshot->source.chain->dtype;
    void *memory;
    OT_TRY(sink->room(sink->context, &memory));
    char *to = memory;
    if (part->has_state) {
        to = copy_state(snapshot, tile, part->slab, part->first, part->n, ot_state_m_offset, 4, to);
        to = copy_state(snapshot, tile, part->slab, part->first, part->n, ot_state_v_offset, 4, to);
        size_t rest = ot_state_rest_bytes(dtype);
        if (rest > 0)
            to = copy_state(snapshot, tile, part->slab, part->first, part->n, ot_state_rest_offset, rest, to);
    }
    if (part->has_weights)
        copy_weights(snapshot, tile, part->slab, part->first, part->n, to);
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
