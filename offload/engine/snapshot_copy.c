/* Copies one tile from its home to the sink of a snapshot. */
#include <string.h>

#include "offload/engine/engine_state.h"
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

/* Copies the values of a segment from one array of the state. */
static void copy_state(struct ot_snapshot *snapshot, const struct tile_source *tile,
                       const struct ot_segment *segment, enum ot_segment_array array, char *to) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[segment->slab];
    struct ot_tile_span home = ot_slab_engine_tiles(source->chain, source->plan, segment->slab, OT_TILE_GPU);
    struct source from;
    if (tile->state) {
        struct ot_segment_values values = ot_state_find(source->chain, array, tile->span.n);
        size_t at = values.offset + ot_segment_value_bytes(values, segment->first - tile->span.first);
        from = (struct source){tile->state + at, false};
    } else {
        bool on_gpu = home.n > 0 && segment->first < home.first + home.n;
        if (!on_gpu)
            home = ot_slab_state_off_gpu(source->chain, source->plan, segment->slab);
        struct ot_segment_values values = ot_state_find(source->chain, array, home.n);
        from = in_buffer(source, on_gpu ? b->state_gpu : b->state_host,
                         values.offset + ot_segment_value_bytes(values, segment->first - home.first));
    }
    copy(snapshot, to, from,
         ot_segment_value_bytes(ot_segment_find(source->chain->dtype, segment, array), segment->n));
}

static void copy_weights(struct ot_snapshot *snapshot, const struct tile_source *tile,
                         const struct ot_segment *segment, char *to) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[segment->slab];
    size_t one = ot_dtype_bytes(source->chain->dtype);
    /* if there are two copies, only the device's is always up to date */
    int home = b->weights_gpu != OT_NO_BUFFER ? b->weights_gpu : b->weights_host;
    struct source from;
    if (tile->weights)
        from = (struct source){tile->weights + (size_t)(segment->first - tile->span.first) * one, false};
    else
        from = in_buffer(source, home,
                         (size_t)ot_layout_index(source->layout, source->chain, source->plan, home,
                                                 segment->slab, segment->first) *
                             one);
    copy(snapshot, to, from, (size_t)segment->n * one);
}

static int copy_segment(struct ot_snapshot *snapshot, const struct tile_source *tile,
                        const struct ot_segment *segment) {
    const struct ot_snapshot_sink *sink = &snapshot->config.sink;
    void *memory;
    OT_TRY(sink->room(sink->context, &memory));
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_ARRAYS; array++) {
        struct ot_segment_values values = ot_segment_find(snapshot->source.chain->dtype, segment, array);
        char *to = (char *)memory + values.offset;
        if (values.width > 0 && array == OT_SEGMENT_WEIGHTS)
            copy_weights(snapshot, tile, segment, to);
        else if (values.width > 0)
            copy_state(snapshot, tile, segment, array, to);
    }
    OT_TRY(ot_lane_sync(snapshot->lane));
    return sink->put(sink->context, segment, memory);
}

/* Reads the extents of the tile that are on nvme into tile_memory. */
static int read_extents(struct ot_snapshot *snapshot, struct ot_tile_id id, bool state, bool weights,
                        struct tile_source *out) {
    const struct ot_snapshot_source *source = &snapshot->source;
    const struct ot_slab_buffers *b = &source->layout->slabs[id.slab];
    int off_gpu = id.tile - source->plan->slabs[id.slab].tiles[OT_TILE_GPU];
    if (state && off_gpu >= 0 && b->state_nvme != OT_NO_BUFFER) {
        char *memory = snapshot->tile_memory;
        OT_TRY(ot_store_read(source->store, source->layout->buffers[b->state_nvme].first_extent + off_gpu,
                             memory));
        out->state = memory;
    }
    if (weights && b->weights_gpu == OT_NO_BUFFER && b->weights_nvme != OT_NO_BUFFER) {
        char *memory = snapshot->tile_memory + source->layout->slot_weights_offset;
        OT_TRY(ot_store_read(source->store, source->layout->buffers[b->weights_nvme].first_extent + id.tile,
                             memory));
        out->weights = memory;
    }
    return 0;
}

int ot_snapshot_copy_tile(struct ot_snapshot *snapshot, struct ot_tile_id id, int64_t *copied) {
    const struct ot_snapshot_source *source = &snapshot->source;
    struct ot_segment segment = ot_segment_of(source->chain, !ot_snapshot_refers_state(snapshot, id),
                                              !ot_snapshot_refers_weights(snapshot, id), 0);
    segment.slab = id.slab;
    if (snapshot->config.weights_alone) {
        segment.lacks_moments = true;
        segment.state = OT_STATE_F32;
    }
    struct tile_source tile = {.span = ot_slab_span(source->chain, source->plan, id.slab, id.tile, 1)};
    if (!segment.has_state && !segment.has_weights)
        return 0;
    bool wants_state = !segment.lacks_moments ||
                       ot_segment_find(source->chain->dtype, &segment, OT_SEGMENT_MASTER_REST).width > 0;
    OT_TRY(read_extents(snapshot, id, segment.has_state && wants_state, segment.has_weights, &tile));
    int64_t end = tile.span.first + tile.span.n;
    for (segment.first = tile.span.first; segment.first < end; segment.first += segment.n) {
        segment.n = ot_min(end - segment.first, OT_SEGMENT_PARAMS);
        OT_TRY(copy_segment(snapshot, &tile, &segment));
        *copied += (int64_t)ot_segment_bytes(source->chain->dtype, &segment);
    }
    return 0;
}

/* ---- take snapshot ---- */

/* The engine's functions for snapshots (engine.h). */

static void note_progress(void *context) {
    struct ot_engine *en = context;
    ot_executor_note_progress(en->executor);
}

int ot_engine_open_snapshot(struct ot_engine *en) {
    struct ot_snapshot_source source = {.chain = &en->chain,
                                        .plan = &en->plan,
                                        .layout = &en->layout,
                                        .tier_memory = en->tier_memory,
                                        .device = en->device,
                                        .store = en->store,
                                        .note_progress = note_progress,
                                        .context = en};
    return ot_snapshot_open(&source, &en->snapshot);
}

int ot_engine_snapshot(struct ot_engine *en, const struct ot_snapshot_config *config) {
    bool at_rest = en->submitted == en->collected && !en->behind;
    if (!en->snapshot || ot_snapshot_is_under_way(en->snapshot) ||
        (!at_rest && !(ot_engine_is_stuck(en) && ot_engine_is_consistent(en))))
        return ot_fail(
            OT_E_INTERNAL,
            "cannot begin a snapshot: the engine is not drained, does not train, or has one under way");
    OT_TRY(ot_engine_unstage(en));
    if (ot_engine_is_stuck(en))
        ot_engine_undo_shadows(en);
    return ot_snapshot_begin(en->snapshot, config);
}

bool ot_engine_snapshot_busy(const struct ot_engine *en) {
    return ot_snapshot_busy(en->snapshot);
}

double ot_engine_snapshot_seconds(const struct ot_engine *en) {
    return ot_snapshot_seconds(en->snapshot);
}

void ot_engine_snapshot_give_up(struct ot_engine *en) {
    ot_snapshot_give_up(en->snapshot);
}

int ot_engine_snapshot_finish(struct ot_engine *en, struct ot_pins **pins) {
    return ot_snapshot_finish(en->snapshot, pins);
}

void ot_engine_release(struct ot_engine *en, struct ot_pins *pins) {
    ot_pins_release(en->store, pins);
}

struct ot_store *ot_engine_store(const struct ot_engine *en) {
    return en->store;
}

void *ot_engine_snapshot_slots(const struct ot_engine *en, int *n) {
    *n = en->plan.snapshot_slots;
    return *n > 0 ? ot_engine_at(en, en->layout.snapshot_slots) : NULL;
}
