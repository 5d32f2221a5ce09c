/* The engine's use of nvme while steps run: opening the store, and tasks of the nvme lanes. staging.c has the
 * use between steps. */
#include <stdlib.h>

#include "offload/engine/engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- opening ---- */

static int open_pieces(struct ot_engine *en) {
    int most = 1;
    for (int s = 0; s < en->chain.n_slabs; s++) {
        int tiles = ot_slab_tiles(&en->chain, &en->plan, s);
        most = ot_max(tiles, most);
    }
    en->slab_pieces = malloc((size_t)most * sizeof *en->slab_pieces);
    if (!en->slab_pieces)
        return ot_fail(OT_E_BUDGET, "no memory for slabs of %d tiles", most);
    const struct ot_layout *layout = &en->layout;
    size_t extents = layout->cache_extent_bytes ? 2 * layout->cache_bytes / layout->cache_extent_bytes : 0;
    for (int write = 0; write < 2 && extents > 0; write++) {
        en->cache_pieces[write] = malloc(extents * sizeof *en->cache_pieces[write]);
        if (!en->cache_pieces[write])
            return ot_fail(OT_E_BUDGET, "no memory for a cache of %zu extents", extents);
    }
    return 0;
}

int ot_engine_open_store(struct ot_engine *en, const struct ot_store_config *config) {
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
    ot_engine_open_staging(en);
    return 0;
}

void ot_engine_close_store(struct ot_engine *en) {
    if (!en->store)
        return;
    ot_store_close(en->store);
    ot_engine_close_staging(en);
}

/* ---- tasks ---- */

static int extent_of(const struct ot_engine *en, int buffer, int tile) {
    return en->layout.buffers[buffer].first_extent + tile;
}

/* Lists the tiles of a slab's span that contain bytes that the task needs, with their addresses in a slot for
 * the whole slab. An extent is read as a whole. */
static int slab_pieces(struct ot_engine *en, const struct ot_task *task, int64_t step,
                       struct ot_store_piece *pieces) {
    struct ot_run_walk walk = ot_engine_walk(en, task, step);
    int64_t first = task->span.first, n = task->span.n;
    int n_pieces = 0;
    bool more = task->fetched == OT_FETCH_ALL || ot_run_next(&walk, &first, &n);
    for (int i = 0; i < task->span.n_tiles; i++) {
        int tile = task->span.first_tile + i;
        struct ot_tile_span at = ot_slab_span(&en->chain, &en->plan, task->slab, tile, 1);
        while (more && first + n <= at.first)
            more = ot_run_next(&walk, &first, &n);
        if (!more || first >= at.first + at.n)
            continue;
        pieces[n_pieces].extent = extent_of(en, task->from, tile);
        pieces[n_pieces++].memory = ot_engine_at_unit(en, task->to, task->slab, at.first);
    }
    return n_pieces;
}

/* Lists the parts of a tile that the task moves, with their addresses in the tile's slot. */
static int tile_pieces(struct ot_engine *en, const struct ot_task *task, struct ot_store_piece *pieces) {
    char *slot = ot_engine_at(en, task->via);
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

/* The one extent that the task moves to or from a slot, from its access to the buffer on nvme. */
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
    bool activations = task->block >= 0 && task->cache == OT_NO_BUFFER;
    if (activations && en->steps[step & 1].micro_tokens[task->micro] == 0) { /* no such micro-batch */
        done(arg, NULL);
        return;
    }
    if (task->cache != OT_NO_BUFFER) {
        n = ot_engine_cache_pieces(en, task, step, pieces = en->cache_pieces[write]);
    } else if (task->via != OT_NO_BUFFER) {
        n = tile_pieces(en, task, few);
    } else if (activations || task->tile >= 0) {
        few[0] = only_piece(en, task);
        n = 1;
    } else {
        n = slab_pieces(en, task, step, pieces = en->slab_pieces);
    }
    if (n == 0) { /* no row is filled; or no part is chosen: the round has no micro-batch, or is given up */
        done(arg, NULL);
        return;
    }
    int rc = ot_store_start(en->store, &(struct ot_transfer){write, n, pieces, done, arg});
    if (rc < 0) {
        struct ot_error error;
        ot_error_save(&error, rc);
        done(arg, &error);
    }
}

/* ---- asking ---- */

const char *ot_engine_describe_store(const struct ot_engine *en) {
    return en->store ? ot_store_describe(en->store) : NULL;
}

void ot_engine_store_usage(const struct ot_engine *en, struct ot_store_usage *out) {
    *out = (struct ot_store_usage){0};
    if (en->store)
        ot_store_usage(en->store, out);
}
