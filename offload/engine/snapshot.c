#include "offload/engine/snapshot.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "offload/engine/snapshot_state.h"
#include "src/base/clock.h"
#include "src/base/thread.h"

/* ---- tiles ---- */

struct ot_tile_id ot_snapshot_tile(const struct ot_snapshot *sn, int number) {
    int slab = sn->source.chain->n_slabs - 1;
    while (sn->first_tile[slab] > number)
        slab--;
    return (struct ot_tile_id){slab, number - sn->first_tile[slab]};
}

static bool is_off_gpu(const struct ot_plan *plan, struct ot_tile_id id) {
    return id.tile >= plan->slabs[id.slab].tiles[OT_TILE_GPU];
}

bool ot_snapshot_refers_state(const struct ot_snapshot *sn, struct ot_tile_id id) {
    return sn->refers && is_off_gpu(sn->source.plan, id) &&
           sn->source.layout->slabs[id.slab].state_nvme != OT_NO_BUFFER;
}

bool ot_snapshot_refers_weights(const struct ot_snapshot *sn, struct ot_tile_id id) {
    const struct ot_slab_buffers *b = &sn->source.layout->slabs[id.slab];
    return sn->refers && b->weights_gpu == OT_NO_BUFFER && b->weights_nvme != OT_NO_BUFFER;
}

/* Sorts the tiles in the order of the next updates. First the tiles that the step itself updates. With
 * clipping their slabs come in the order in which the next forward needs them, without clipping in the order
 * in which backward finishes their gradients. Then the tiles of the stream engine, which the step after
 * updates. */
static void make_order(struct ot_snapshot *sn) {
    const struct ot_snapshot_source *source = &sn->source;
    int n = 0;
    for (int streamed = 0; streamed < 2; streamed++)
        for (int i = 0; i < source->chain->n_slabs; i++) {
            int slab = source->plan->clip || streamed ? i : source->chain->n_slabs - 1 - i;
            struct ot_tile_span span =
                ot_slab_engine_tiles(source->chain, source->plan, slab, OT_TILE_STREAM);
            int tiles = ot_slab_trained_tiles(source->chain, source->plan, slab);
            for (int t = 0; t < tiles; t++)
                if ((t >= span.first_tile && t < span.first_tile + span.n_tiles) == streamed)
                    sn->order[n++] = sn->first_tile[slab] + t;
        }
    assert(n == sn->n_tiles);
}

/* ---- opening and closing, with the engine ---- */

static int open_tiles(struct ot_snapshot *sn) {
    const struct ot_snapshot_source *source = &sn->source;
    sn->first_tile = calloc((size_t)source->chain->n_slabs, sizeof *sn->first_tile);
    if (!sn->first_tile)
        return ot_fail(OT_E_BUDGET, "no memory for a snapshot");
    for (int s = 0; s < source->chain->n_slabs; s++) {
        sn->first_tile[s] = sn->n_tiles;
        sn->n_tiles += ot_slab_trained_tiles(source->chain, source->plan, s);
    }
    sn->order = calloc((size_t)sn->n_tiles + 1, sizeof *sn->order);
    sn->taken = calloc((size_t)sn->n_tiles + 1, sizeof *sn->taken);
    sn->wanted = calloc((size_t)sn->n_tiles + 1, sizeof *sn->wanted);
    if (!sn->order || !sn->taken || !sn->wanted)
        return ot_fail(OT_E_BUDGET, "no memory for a snapshot of %d tiles", sn->n_tiles);
    if (source->store) {
        sn->spans = calloc((size_t)ot_store_max_spans(source->store) + 1, sizeof *sn->spans);
        if (!sn->spans)
            return ot_fail(OT_E_BUDGET, "no memory for a snapshot");
    }
    make_order(sn);
    return 0;
}

int ot_snapshot_open(const struct ot_snapshot_source *source, struct ot_snapshot **out) {
    struct ot_snapshot *sn = *out = calloc(1, sizeof *sn);
    if (!sn)
        return ot_fail(OT_E_BUDGET, "no memory for a snapshot");
    sn->source = *source;
    if (source->layout->snapshot_tile != OT_NO_BUFFER)
        sn->tile_memory = ot_layout_at(source->layout, source->tier_memory, source->layout->snapshot_tile);
    pthread_mutex_init(&sn->mutex, NULL);
    ot_cond_init(&sn->changed);
    OT_TRY(ot_lane_open(source->device, "snapshot", &sn->lane));
    return open_tiles(sn);
}

static void hurry(struct ot_snapshot *sn, bool cancel) {
    pthread_mutex_lock(&sn->mutex);
    sn->hurry = true;
    sn->cancel = sn->cancel || cancel;
    pthread_cond_broadcast(&sn->changed);
    pthread_mutex_unlock(&sn->mutex);
}

static void join(struct ot_snapshot *sn) {
    pthread_join(sn->thread, NULL);
    sn->under_way = false;
}

void ot_snapshot_cancel(struct ot_snapshot *sn) {
    if (!ot_snapshot_is_under_way(sn))
        return;
    hurry(sn, true);
    join(sn);
}

void ot_snapshot_close(struct ot_snapshot *sn) {
    if (!sn)
        return;
    ot_lane_close(sn->lane);
    pthread_cond_destroy(&sn->changed);
    pthread_mutex_destroy(&sn->mutex);
    free(sn->pins);
    free(sn->spans);
    free(sn->first_tile);
    free(sn->order);
    free(sn->taken);
    free(sn->wanted);
    free(sn);
}

/* ---- the gate ---- */

void ot_snapshot_wait_copied(struct ot_snapshot *sn, int slab, struct ot_tile_span span) {
    if (!sn || !atomic_load(&sn->gates_closed))
        return;
    int first = sn->first_tile[slab] + span.first_tile;
    pthread_mutex_lock(&sn->mutex);
    for (int t = first; t < first + span.n_tiles; t++) {
        if (sn->taken[t])
            continue;
        sn->wanted[t] = true;
        sn->n_wanted++;
        pthread_cond_broadcast(&sn->changed);
        while (!sn->taken[t])
            pthread_cond_wait(&sn->changed, &sn->mutex);
        sn->n_wanted--;
    }
    pthread_mutex_unlock(&sn->mutex);
}

bool ot_snapshot_is_copied(struct ot_snapshot *sn, int slab, struct ot_tile_span span) {
    if (!sn || !atomic_load(&sn->gates_closed))
        return true;
    bool copied = true;
    pthread_mutex_lock(&sn->mutex);
    for (int t = span.first_tile; t < span.first_tile + span.n_tiles; t++)
        copied = copied && sn->taken[sn->first_tile[slab] + t];
    pthread_mutex_unlock(&sn->mutex);
    return copied;
}

/* ---- the thread ---- */

/* Returns the next tile: first the tiles that tasks wait for, then in order. -1: no tile is left, or the
 * driver has cancelled the snapshot. *at: position in the order. */
static int next_tile(struct ot_snapshot *sn, int *at) {
    int found = -1;
    pthread_mutex_lock(&sn->mutex);
    while (*at < sn->n_tiles && sn->taken[sn->order[*at]])
        ++*at;
    for (int i = *at; i < sn->n_tiles && sn->n_wanted > 0 && found < 0; i++)
        if (!sn->taken[sn->order[i]] && sn->wanted[sn->order[i]])
            found = sn->order[i];
    if (found < 0 && *at < sn->n_tiles)
        found = sn->order[*at];
    bool cancelled = sn->cancel;
    pthread_mutex_unlock(&sn->mutex);
    return cancelled ? -1 : found;
}

static void take(struct ot_snapshot *sn, int tile) {
    pthread_mutex_lock(&sn->mutex);
    sn->taken[tile] = true;
    pthread_cond_broadcast(&sn->changed);
    pthread_mutex_unlock(&sn->mutex);
    sn->source.note_progress(sn->source.context);
}

static void take_all(struct ot_snapshot *sn) {
    pthread_mutex_lock(&sn->mutex);
    memset(sn->taken, true, (size_t)sn->n_tiles * sizeof *sn->taken);
    pthread_cond_broadcast(&sn->changed);
    pthread_mutex_unlock(&sn->mutex);
    atomic_store(&sn->gates_closed, false);
}

/* Sleeps until the pace allows the bytes copied so far. Ends early if a task waits or the driver is in a
 * hurry. */
static void keep_pace(struct ot_snapshot *sn, double since, int64_t bytes) {
    if (sn->config.bytes_per_second <= 0)
        return;
    double due = since + (double)bytes / sn->config.bytes_per_second;
    double began = ot_clock_seconds();
    bool late = false;
    pthread_mutex_lock(&sn->mutex);
    while (!late && sn->n_wanted == 0 && !sn->hurry && ot_clock_seconds() < due)
        late = !ot_cond_wait_until(&sn->changed, &sn->mutex, (int64_t)(1e9 * due));
    pthread_mutex_unlock(&sn->mutex);
    sn->slept += ot_clock_seconds() - began;
}

static int refer(struct ot_snapshot *sn, struct ot_tile_id id, bool state, struct ot_store_pin pin) {
    const struct ot_snapshot_source *source = &sn->source;
    const struct ot_snapshot_sink *sink = &sn->config.sink;
    struct ot_tile_span span = ot_slab_span(source->chain, source->plan, id.slab, id.tile, 1);
    struct ot_segment segment = ot_segment_of(source->chain, state, !state, span.n);
    segment.slab = id.slab;
    segment.first = span.first;
    int n = ot_store_find_spans(source->store, pin, sn->spans, ot_store_max_spans(source->store));
    return sink->refer(sink->context, &segment, sn->spans, n);
}

/* Gives the pinned extents to the sink, in the order in which pin_all pinned them. */
static int refer_all(struct ot_snapshot *sn) {
    int at = 0;
    for (int t = 0; t < sn->n_tiles && sn->refers; t++) {
        struct ot_tile_id id = ot_snapshot_tile(sn, t);
        if (ot_snapshot_refers_state(sn, id))
            OT_TRY(refer(sn, id, true, sn->pins->pins[at++]));
        if (ot_snapshot_refers_weights(sn, id))
            OT_TRY(refer(sn, id, false, sn->pins->pins[at++]));
    }
    return 0;
}

static int copy_all(struct ot_snapshot *sn) {
    double since = ot_clock_seconds();
    int64_t copied = 0;
    int at = 0, tile;
    while ((tile = next_tile(sn, &at)) >= 0) {
        OT_TRY(ot_snapshot_copy_tile(sn, ot_snapshot_tile(sn, tile), &copied));
        take(sn, tile);
        keep_pace(sn, since, copied);
    }
    if (at < sn->n_tiles)
        return ot_fail(OT_E_INTERNAL, "the snapshot was cancelled");
    atomic_store(&sn->gates_closed, false);
    return 0;
}

static void *snapshot_main(void *arg) {
    struct ot_snapshot *sn = arg;
    const struct ot_snapshot_sink *sink = &sn->config.sink;
    double began = ot_clock_seconds();
    int rc = copy_all(sn);
    take_all(sn); /* also after an error, so that no task waits for the snapshot */
    if (rc == 0)
        rc = refer_all(sn);
    if (rc == 0)
        rc = sink->end(sink->context);
    ot_error_save(&sn->error, rc);
    sn->seconds = ot_clock_seconds() - began - sn->slept;
    atomic_store(&sn->ended, true);
    return NULL;
}

/* ---- the driver ---- */

static void pin(struct ot_snapshot *sn, int extent) {
    sn->pins->pins[sn->pins->n++] = ot_store_pin_extent(sn->source.store, extent);
}

static int pin_all(struct ot_snapshot *sn) {
    const struct ot_layout *layout = sn->source.layout;
    sn->pins = calloc(1, sizeof *sn->pins + 2 * (size_t)sn->n_tiles * sizeof *sn->pins->pins);
    if (!sn->pins)
        return ot_fail(OT_E_BUDGET, "no memory for a snapshot of %d tiles", sn->n_tiles);
    for (int t = 0; t < sn->n_tiles; t++) {
        struct ot_tile_id id = ot_snapshot_tile(sn, t);
        const struct ot_slab_buffers *b = &layout->slabs[id.slab];
        bool state = ot_snapshot_refers_state(sn, id), weights = ot_snapshot_refers_weights(sn, id);
        if (state)
            pin(sn, layout->buffers[b->state_nvme].first_extent + id.tile -
                        sn->source.plan->slabs[id.slab].tiles[OT_TILE_GPU]);
        if (weights)
            pin(sn, layout->buffers[b->weights_nvme].first_extent + id.tile);
        sn->taken[t] = state && weights;
    }
    return 0;
}

int ot_snapshot_begin(struct ot_snapshot *sn, const struct ot_snapshot_config *config) {
    assert(!sn->under_way);
    sn->config = *config;
    sn->refers = sn->source.store && sn->source.plan->pinned_contents > 0 && config->sink.refer &&
                 !config->weights_alone;
    sn->hurry = sn->cancel = false;
    sn->slept = 0;
    sn->error.code = 0;
    memset(sn->taken, false, (size_t)sn->n_tiles * sizeof *sn->taken);
    memset(sn->wanted, false, (size_t)sn->n_tiles * sizeof *sn->wanted);
    if (sn->refers)
        OT_TRY(pin_all(sn));
    atomic_store(&sn->ended, false);
    atomic_store(&sn->gates_closed, true);
    int error = ot_thread_start(&sn->thread, "snapshot", snapshot_main, sn);
    sn->under_way = error == 0;
    if (error == 0)
        return 0;
    atomic_store(&sn->gates_closed, false);
    ot_pins_release(sn->source.store, sn->pins);
    sn->pins = NULL;
    return ot_fail_errno(OT_E_IO, error, "cannot start the thread of a snapshot");
}

bool ot_snapshot_is_under_way(const struct ot_snapshot *sn) {
    return sn && sn->under_way;
}

bool ot_snapshot_busy(const struct ot_snapshot *sn) {
    return ot_snapshot_is_under_way(sn) && !atomic_load(&sn->ended);
}

double ot_snapshot_seconds(const struct ot_snapshot *sn) {
    return sn ? sn->seconds : 0;
}

void ot_snapshot_give_up(struct ot_snapshot *sn) {
    if (ot_snapshot_is_under_way(sn))
        hurry(sn, true);
}

int ot_snapshot_finish(struct ot_snapshot *sn, struct ot_pins **pins) {
    *pins = NULL;
    if (!ot_snapshot_is_under_way(sn))
        return 0;
    hurry(sn, false);
    join(sn);
    *pins = sn->pins;
    sn->pins = NULL;
    if (sn->error.code == 0)
        return 0;
    ot_pins_release(sn->source.store, *pins);
    *pins = NULL;
    return ot_error_load(&sn->error);
}

void ot_pins_free(struct ot_pins *pins) {
    free(pins);
}

void ot_pins_release(struct ot_store *store, struct ot_pins *pins) {
    for (int i = 0; pins && i < pins->n; i++)
        ot_store_unpin(store, pins->pins[i]);
    free(pins);
}
