/* The engine's use of nvme: opening the store, tasks of the nvme lanes, and extents in host memory between
 * steps. */
#include <math.h>
#include <stdlib.h>

#include "offload/engine/engine_state.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/thread.h"

/* ---- opening ---- */

static int open_pieces(struct ot_engine *en) {
    int most = 1;
    for (int s = 0; s < en->chain.n_slabs; s++) {
        int tiles = ot_slab_tiles(&en->chain, &en->plan, s);
        most = tiles > most ? tiles : most;
    }
    en->slab_pieces = malloc((size_t)most * sizeof *en->slab_pieces);
    return en->slab_pieces ? 0 : ot_fail(OT_E_BUDGET, "no memory for slabs of %d tiles", most);
}

int ot_engine_open_store(struct ot_engine *en, const struct ot_store_config *config) {
    for (int kind = 0; kind < OT_STAGED_KINDS; kind++)
        en->staged[kind].extent = -1;
    if (en->layout.n_extents == 0)
        return 0;
    if (!config || config->n_dirs < 1)
        return ot_fail(OT_E_INTERNAL, "the plan keeps %d extents on nvme, but there is no directory for them",
                       en->layout.n_extents);
    int *order;
    OT_TRY(open_pieces(en));
    OT_TRY(ot_layout_order(&en->chain, &en->plan, &en->layout, &order));
    struct ot_store_config own = *config;
    own.n_extents = en->layout.n_extents;
    own.extent_bytes = en->layout.extent_bytes;
    own.extent_sides = en->layout.extent_sides;
    own.extent_order = order;
    own.arena = en->tier_memory[OT_TIER_HOST];
    own.arena_bytes = en->layout.tier_bytes[OT_TIER_HOST];
    int rc = ot_store_open(&own, &en->store);
    free(order);
    OT_TRY(rc);
    ot_cond_init(&en->wait.ended);
    pthread_mutex_init(&en->wait.mutex, NULL);
    return 0;
}

void ot_engine_close_store(struct ot_engine *en) {
    if (!en->store)
        return;
    ot_store_close(en->store);
    pthread_cond_destroy(&en->wait.ended);
    pthread_mutex_destroy(&en->wait.mutex);
}

/* ---- tasks ---- */

static int extent_of(const struct ot_engine *en, int buffer, int tile) {
    return en->layout.buffers[buffer].first_extent + tile;
}

/* Lists the tiles of a slab's span, with their addresses in a slot for the whole slab. */
static int slab_pieces(struct ot_engine *en, const struct ot_task *task, struct ot_store_piece *pieces) {
    for (int i = 0; i < task->span.n_tiles; i++) {
        int tile = task->span.first_tile + i;
        int64_t first = ot_slab_span(&en->chain, &en->plan, task->slab, tile, 1).first;
        int64_t index = ot_layout_index(&en->layout, &en->chain, &en->plan, task->to, task->slab, first);
        pieces[i].extent = extent_of(en, task->from, tile);
        pieces[i].memory =
            (char *)ot_engine_at(en, task->to) + (size_t)index * ot_dtype_bytes(en->chain.dtype);
    }
    return task->span.n_tiles;
}

/* Lists the parts of a tile that the task moves, with their addresses in the tile's slot. */
static int tile_pieces(struct ot_engine *en, const struct ot_task *task, struct ot_store_piece *pieces) {
    char *slot = ot_engine_at(en, task->stage);
    int n = 0, off_gpu = task->tile - en->plan.slabs[task->slab].tiles[OT_TILE_GPU];
    if (task->state != OT_NO_BUFFER)
        pieces[n++] = (struct ot_store_piece){extent_of(en, task->state, off_gpu), slot};
    if (task->weights[0] != OT_NO_BUFFER)
        pieces[n++] = (struct ot_store_piece){extent_of(en, task->weights[0], task->tile),
                                              slot + en->layout.slot_weights_offset};
    if (task->grads[0] != OT_NO_BUFFER)
        pieces[n++] = (struct ot_store_piece){extent_of(en, task->grads[0], off_gpu),
                                              slot + en->layout.slot_grads_offset};
    return n;
}

/* The one extent that the task moves to or from a slot: that of its access to the buffer on nvme. */
static struct ot_store_piece only_piece(const struct ot_engine *en, const struct ot_task *task) {
    bool write = task->kind == OT_TASK_NVME_WRITE;
    int nvme = write ? task->to : task->from, host = write ? task->from : task->to, extent = 0;
    for (int a = 0; a < task->n_accesses; a++)
        if (task->accesses[a].buffer == nvme)
            extent = task->accesses[a].first_tile;
    return (struct ot_store_piece){extent_of(en, nvme, extent), ot_engine_at(en, host)};
}

void ot_engine_start_task(void *context, const struct ot_task *task, int64_t step, ot_task_done_fn done,
                          void *arg) {
    struct ot_engine *en = context;
    struct ot_store_piece few[3], *pieces = few;
    bool write = task->kind == OT_TASK_NVME_WRITE;
    int n;
    if (task->block >= 0 && en->steps[step & 1].micro_tokens[task->micro] == 0) { /* no such micro-batch */
        done(arg, NULL);
        return;
    }
    if (task->stage != OT_NO_BUFFER) {
        n = tile_pieces(en, task, few);
    } else if (task->block >= 0 || task->tile >= 0) {
        few[0] = only_piece(en, task);
        n = 1;
    } else {
        n = slab_pieces(en, task, pieces = en->slab_pieces);
    }
    int rc = ot_store_start(en->store, &(struct ot_transfer){write, n, pieces, done, arg});
    if (rc < 0) {
        struct ot_error error;
        ot_error_save(&error, rc);
        done(arg, &error);
    }
}

/* ---- between steps ---- */

static void on_ended(void *arg, const struct ot_error *error) {
    struct ot_engine_wait *wait = arg;
    pthread_mutex_lock(&wait->mutex);
    wait->done = true;
    wait->error = error ? *error : (struct ot_error){0};
    pthread_cond_signal(&wait->ended);
    pthread_mutex_unlock(&wait->mutex);
}

static int fail_stuck(const struct ot_engine *en) {
    return ot_fail(
        OT_E_STALL,
        "no progress for %.0f s: an nvme transfer between steps (a disk or a driver hangs: see dmesg)",
        ceil(en->stall_limit_seconds));
}

/* Moves one extent and waits for it, at most stall_limit_seconds: the executor's watchdog does not cover this
 * wait. */
static int transfer(struct ot_engine *en, bool write, int extent, void *memory) {
    struct ot_engine_wait *wait = &en->wait;
    struct ot_store_piece piece = {extent, memory};
    bool late = false;
    if (en->stuck) /* the transfer that hangs still uses `wait` */
        return fail_stuck(en);
    wait->done = false;
    OT_TRY(ot_store_start(en->store, &(struct ot_transfer){write, 1, &piece, on_ended, wait}));
    int64_t until = ot_clock_ns() + (int64_t)(1e9 * ceil(en->stall_limit_seconds));
    pthread_mutex_lock(&wait->mutex);
    while (!wait->done && !late)
        late = !ot_cond_wait_until(&wait->ended, &wait->mutex, until);
    en->stuck = !wait->done;
    struct ot_error error = wait->error;
    pthread_mutex_unlock(&wait->mutex);
    return en->stuck ? fail_stuck(en) : ot_error_load(&error);
}

static int write_back(struct ot_engine *en, struct ot_engine_staged *staged) {
    if (staged->changed)
        OT_TRY(transfer(en, true, staged->extent, staged->memory));
    staged->changed = false;
    return 0;
}

/* A slot that fits any extent of the kind. */
static char *staging_memory(struct ot_engine *en, int kind, int slab) {
    if (kind == OT_STAGED_STATE)
        return ot_engine_at(en, en->layout.tile_slots[0]);
    if (en->plan.train)
        return (char *)ot_engine_at(en, en->layout.tile_slots[0]) + en->layout.slot_weights_offset;
    return ot_engine_at(en, en->layout.host_weight_slots[ot_slab_slot_kind(&en->chain, slab)][0]);
}

int ot_engine_stage(struct ot_engine *en, int kind, int slab, int extent, struct ot_engine_staged **out) {
    struct ot_engine_staged *staged = *out = &en->staged[kind];
    if (staged->extent == extent)
        return 0;
    OT_TRY(write_back(en, staged));
    *staged = (struct ot_engine_staged){.extent = -1, .memory = staging_memory(en, kind, slab)};
    OT_TRY(transfer(en, false, extent, staged->memory));
    staged->extent = extent;
    return 0;
}

int ot_engine_unstage(struct ot_engine *en) {
    for (int kind = 0; kind < OT_STAGED_KINDS; kind++) {
        OT_TRY(write_back(en, &en->staged[kind]));
        en->staged[kind].extent = -1;
    }
    return 0;
}

const char *ot_engine_describe_store(const struct ot_engine *en) {
    return en->store ? ot_store_describe(en->store) : NULL;
}

void ot_engine_store_usage(const struct ot_engine *en, struct ot_store_usage *out) {
    *out = (struct ot_store_usage){0};
    if (en->store)
        ot_store_usage(en->store, out);
}
