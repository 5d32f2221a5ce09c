/* Staging: between steps the driver reads and changes extents on nvme in slots of host memory, which are idle
 * then.
 *
 * WRITE-BEHIND. A changed extent is written back when the driver goes on to another extent, which gets the
 * next slot. The driver waits for a write only before it uses the slot again. So while a checkpoint is
 * restored, the disk always has several writes to do, and reading, checking and copying go on meanwhile. An
 * extent that is still in its slot is not read again.
 *
 * ERRORS. A write that fails is reported by the next call that needs its slot, at the latest before the next
 * step. The extent then counts as changed again: as long as it cannot be written, no step runs.
 *
 * The driver waits for a transfer at most stall_limit_seconds, because the executor's watchdog does not cover
 * these waits. */
#include <math.h>

#include "offload/engine/engine_state.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/thread.h"

void ot_engine_open_staging(struct ot_engine *en) {
    struct ot_engine_staging *staging = &en->staging;
    for (int kind = 0; kind < OT_STAGED_KINDS; kind++)
        for (int i = 0; i < OT_MOST_STAGED; i++)
            staging->slots[kind][i] = (struct ot_engine_staged){.staging = staging, .extent = -1};
    ot_cond_init(&staging->ended);
    pthread_mutex_init(&staging->mutex, NULL);
}

void ot_engine_close_staging(struct ot_engine *en) {
    pthread_cond_destroy(&en->staging.ended);
    pthread_mutex_destroy(&en->staging.mutex);
}

/* ---- transfers ---- */

static void on_ended(void *arg, const struct ot_error *error) {
    struct ot_engine_staged *staged = arg;
    struct ot_engine_staging *staging = staged->staging;
    pthread_mutex_lock(&staging->mutex);
    staged->moves = false;
    staged->error = error ? *error : (struct ot_error){0};
    pthread_cond_signal(&staging->ended);
    pthread_mutex_unlock(&staging->mutex);
}

static int fail_stuck(const struct ot_engine *en) {
    return ot_fail(
        OT_E_STALL,
        "no progress for %.0f s: an nvme transfer between steps (a disk or a driver hangs: see dmesg)",
        ceil(en->stall_limit_seconds));
}

static int start(struct ot_engine *en, bool write, int extent, struct ot_engine_staged *staged) {
    struct ot_store_piece piece = {extent, staged->memory};
    staged->moves = true;
    int rc = ot_store_start(en->store, &(struct ot_transfer){write, 1, &piece, on_ended, staged});
    if (rc < 0) /* on_ended is not called */
        staged->moves = false;
    return rc;
}

/* Waits for the slot's transfer. Returns its error, once. */
static int settle(struct ot_engine *en, struct ot_engine_staged *staged) {
    struct ot_engine_staging *staging = &en->staging;
    bool late = staging->stuck;
    int64_t until = ot_clock_ns() + (int64_t)(1e9 * ceil(en->stall_limit_seconds));
    pthread_mutex_lock(&staging->mutex);
    while (staged->moves && !late)
        late = !ot_cond_wait_until(&staging->ended, &staging->mutex, until);
    staging->stuck = staging->stuck || staged->moves;
    struct ot_error error = staged->error;
    staged->error.code = 0;
    pthread_mutex_unlock(&staging->mutex);
    return staging->stuck ? fail_stuck(en) : ot_error_load(&error);
}

static int write_back(struct ot_engine *en, struct ot_engine_staged *staged) {
    if (!staged->changed)
        return 0;
    OT_TRY(start(en, true, staged->extent, staged));
    staged->changed = false;
    return 0;
}

/* Waits until the extent in the slot is on the disk. */
static int flush(struct ot_engine *en, struct ot_engine_staged *staged) {
    OT_TRY(write_back(en, staged));
    int rc = settle(en, staged);
    staged->changed = rc < 0;
    return rc;
}

/* ---- slots ---- */

/* The memory of slot number i, which fits any extent of the kind. NULL: there is no such slot. */
static char *slot_memory(struct ot_engine *en, int kind, int slab, int i) {
    enum ot_slot_kind k = ot_slab_slot_kind(&en->chain, slab);
    bool in_tiles = kind != OT_STAGED_FROZEN && en->plan.train;
    if (i >= OT_MOST_STAGED || i >= (in_tiles ? en->plan.tile_slots : en->plan.host_weight_slots[k]))
        return NULL;
    if (!in_tiles)
        return ot_engine_at(en, en->layout.host_weight_slots[k][i]);
    size_t offset = kind == OT_STAGED_STATE ? 0 : en->layout.slot_weights_offset;
    return (char *)ot_engine_at(en, en->layout.tile_slots[i]) + offset;
}

int ot_engine_stage(struct ot_engine *en, int kind, int slab, int extent, struct ot_engine_staged **out) {
    struct ot_engine_staging *staging = &en->staging;
    struct ot_engine_staged *slots = staging->slots[kind];
    int *last = &staging->last[kind], i = 0;
    if (slots[*last].extent != extent)
        OT_TRY(write_back(en, &slots[*last]));
    while (i < OT_MOST_STAGED && slots[i].extent != extent)
        i++;
    bool is_here = i < OT_MOST_STAGED;
    if (!is_here)
        i = slot_memory(en, kind, slab, *last + 1) ? *last + 1 : 0;
    struct ot_engine_staged *staged = *out = &slots[i];
    if (!is_here || i != *last)
        OT_TRY(flush(en, staged));
    *last = i;
    if (is_here)
        return 0;
    staged->extent = -1;
    staged->memory = slot_memory(en, kind, slab, i);
    OT_TRY(start(en, false, extent, staged));
    OT_TRY(settle(en, staged));
    staged->extent = extent;
    return 0;
}

/* Goes on after an error, so that one call learns the result of every write. */
int ot_engine_unstage(struct ot_engine *en) {
    struct ot_error first = {0};
    if (!en->store)
        return 0;
    for (int kind = 0; kind < OT_STAGED_KINDS; kind++)
        for (int i = 0; i < OT_MOST_STAGED; i++) {
            struct ot_engine_staged *staged = &en->staging.slots[kind][i];
            int rc = flush(en, staged);
            if (rc < 0 && first.code == 0)
                ot_error_save(&first, rc);
            staged->extent = rc < 0 ? staged->extent : -1;
        }
    return ot_error_load(&first);
}

/* ---- fetch ---- */

/* Fetches and decodings of slabs by their parts (plan/used_parts.h), and the choice of parts on its way. */

static int32_t *choice_at(const struct ot_engine *en, int32_t *choices, int block) {
    return choices + (size_t)block * (size_t)en->layout.most_parts;
}

/* Host array: the parts of the slab's block that the micro-batches of the round have chosen. */
static const int32_t *choice_of(const struct ot_engine *en, const struct ot_task *task, int64_t step) {
    return choice_at(en, ot_engine_at_parity(en, en->layout.used_host[0], step),
                     ot_slab_block(&en->chain, task->slab));
}

struct ot_run_walk ot_engine_walk(const struct ot_engine *en, const struct ot_task *task, int64_t step) {
    return ot_run_walk(&en->chain.slabs[task->slab], task->fetched,
                       ot_fetched_has_used(task->fetched) ? choice_of(en, task, step) : NULL);
}

int32_t *ot_engine_choice(const struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    int32_t *used = choice_at(en, ot_engine_at(en, en->layout.used_gpu), task->block);
    if (task->first)
        ot_lane_fill(lane, used, 0, (size_t)ot_block_parts(&en->chain, task->block) * sizeof *used);
    return used;
}

void ot_engine_choice_out(struct ot_engine *en, const struct ot_task *task, int64_t step,
                          struct ot_lane *lane) {
    ot_lane_copy(lane, OT_COPY_D2H, choice_at(en, ot_engine_at_parity(en, task->to, step), task->block),
                 choice_at(en, ot_engine_at(en, task->from), task->block),
                 (size_t)ot_block_parts(&en->chain, task->block) * sizeof(int32_t));
}

/* Test seam: fills memory that will hold only chosen parts with NaNs of every dtype. A read of another part
 * then shows. item: the bytes of a parameter or of a unit. */
static void poison(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane,
                   const struct ot_piece_array *pieces, size_t item) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    for (int a = 0; a < slab->n_pieces; a++)
        ot_lane_fill(lane, (char *)ot_engine_at(en, task->to) + (size_t)pieces[a].first * item, 0xff,
                     (size_t)(slab->n_parts * pieces[a].each) * item);
}

/* Only the h2d lane's thread counts. */
static void count(struct ot_engine *en, const struct ot_task *task, const int32_t *used, size_t bytes) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    struct ot_engine_fetches *fetches = &en->fetches;
    fetches->bytes += (int64_t)bytes;
    if (!used)
        return;
    int n_used = 0;
    for (int p = 0; p < slab->n_parts; p++)
        n_used += used[p] != 0;
    fetches->parts += slab->n_parts;
    fetches->used += n_used;
    fetches->left_bytes +=
        (int64_t)ot_slab_bytes(&en->chain, task->slab, ot_slab_part_units(slab)) * (slab->n_parts - n_used);
}

void ot_engine_fetch(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    int slab = task->slab;
    size_t bytes = ot_slab_bytes(&en->chain, slab, task->span.n);
    if (task->fetched == OT_FETCH_ALL) {
        ot_lane_copy(lane, OT_COPY_H2D, ot_engine_at_unit(en, task->to, slab, task->span.first),
                     ot_engine_at_unit(en, task->from, slab, task->span.first), bytes);
        count(en, task, NULL, bytes);
        return;
    }
    struct ot_run_walk walk = ot_engine_walk(en, task, step);
    const struct ot_slab_spec *spec = &en->chain.slabs[slab];
    if (en->poisons_parts)
        poison(en, task, lane, spec->encoded_bytes > 0 ? spec->encoded : spec->pieces,
               ot_slab_bytes(&en->chain, slab, 1));
    bytes = 0;
    for (int64_t first, n; ot_run_next(&walk, &first, &n);) {
        size_t run = ot_slab_bytes(&en->chain, slab, n);
        ot_lane_copy(lane, OT_COPY_H2D, ot_engine_at_unit(en, task->to, slab, first),
                     ot_engine_at_unit(en, task->from, slab, first), run);
        bytes += run;
    }
    count(en, task, walk.used, bytes);
}

void ot_engine_decode_slab(struct ot_engine *en, const struct ot_task *task, int64_t step,
                           struct ot_lane *lane) {
    const struct ot_slab_decoding what = {
        .encoded = ot_engine_at(en, task->from),
        .weights = ot_engine_at(en, task->to),
        .dense = ot_fetched_has_dense(task->fetched),
        .parts = task->fetched != OT_FETCH_DENSE,
        .used = ot_fetched_has_used(task->fetched) ? choice_of(en, task, step) : NULL,
    };
    if (en->poisons_parts && task->fetched != OT_FETCH_ALL)
        poison(en, task, lane, en->chain.slabs[task->slab].pieces, ot_dtype_bytes(en->chain.dtype));
    en->chain.decode(en->chain.context, task->slab, lane, &what);
}

void ot_engine_get_fetches(const struct ot_engine *en, struct ot_engine_fetches *out) {
    *out = en->fetches;
}
