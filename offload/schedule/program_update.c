/* Decisions and updates as a program: the tasks of the three tile engines of plan.h, and the flush. */
#include "offload/plan/shadow_updates.h"
#include "offload/schedule/program.h"
#include "src/base/error.h"

/* ---- decisions ---- */

void ot_program_result_out(struct ot_program *p, int slab) {
    struct ot_task *task = ot_program_task(p, OT_TASK_RESULT_OUT, OT_LANE_D2H);
    bool sent = ot_plan_sends_norms(p->plan) && !ot_plan_has_stages(p->plan); /* of all slabs */
    int first = slab >= 0 ? slab : sent ? p->chain->n_slabs : 0;
    int last = slab >= 0 ? slab : p->chain->n_slabs;
    task->slab = slab;
    task->from = p->layout->all_results;
    task->to = p->layout->results_host[0];
    for (int side = 0; side < 2; side++) {
        ot_program_access(p, task, side ? task->to : task->from, side == 0, side == 1);
        ot_program_last(task)->parity = side == 1;
        ot_program_narrow(task, first, last - first + 1);
    }
}

void ot_program_decide(struct ot_program *p, int slab) {
    struct ot_task *task = ot_program_task(p, OT_TASK_DECIDE, OT_LANE_CPU);
    task->slab = slab;
    task->deadline = -1;
    task->from = p->layout->results_host[0];
    task->to = p->layout->params_host[0];
    ot_program_access(p, task, task->from, true, false)->parity = true;
    if (slab >= 0)
        ot_program_narrow(task, slab, 1);
    ot_program_update(p, task, p->layout->control, (struct ot_tag){0}, (struct ot_tag){0});
    if (slab < 0 && !p->plan->clip)
        return; /* every slab has its decision: this task only ends the step */
    ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_PARAMS, 0, 0, 0));
    ot_program_last(task)->parity = true;
    if (slab >= 0)
        ot_program_narrow(task, slab, 1);
}

void ot_program_params_in(struct ot_program *p, int slab) {
    const int *tiles = p->plan->slabs[slab].tiles;
    struct ot_tag tag = ot_tag(OT_CONTENT_PARAMS, 0, 0, 0);
    if (tiles[OT_TILE_GPU] + tiles[OT_TILE_STREAM] == 0)
        return;
    struct ot_task *task = ot_program_task(p, OT_TASK_PARAMS_IN, OT_LANE_H2D);
    task->slab = slab;
    task->from = p->layout->params_host[0];
    task->to = p->layout->params_gpu;
    ot_program_read(p, task, task->from, tag);
    ot_program_last(task)->parity = true;
    ot_program_narrow(task, slab, 1);
    ot_program_write(p, task, task->to, tag);
    ot_program_narrow(task, slab, 1);
}

/* ---- state off the device, updated by the pool ---- */

/* Appends a task of the pool on a tile, which reads the tile's gradients. slot: the tile's host slot, or
 * OT_NO_BUFFER. */
static struct ot_task *pool_task(struct ot_program *p, enum ot_task_kind kind, int slab, int tile, int slot) {
    struct ot_task *task = ot_program_tile_task(p, kind, OT_LANE_CPU, slab, tile);
    task->deadline = slab; /* slabs are numbered in the order in which forward needs them */
    task->frame = ot_layout_frame(p->layout, p->plan, slab, tile);
    task->from = ot_program_tile_grads(p, task, slot, 0);
    return task;
}

/* Shadows are not ordered with the decision: an access to its params, or to the control of decisions, would
 * make the decision wait for shadows (engine/shadow.c). */
static void shadow_tile(struct ot_program *p, int slab, int tile) {
    struct ot_tag shadow = ot_tag(OT_CONTENT_SHADOW, slab, tile, 0);
    struct ot_task *task = pool_task(p, OT_TASK_SHADOW, slab, tile, OT_NO_BUFFER);
    int n_norms = 1;
    while (slab + n_norms < p->chain->n_slabs && p->finished[slab + n_norms])
        n_norms++;
    ot_program_access(p, task, p->layout->results_host[0], true, false)->parity = true;
    ot_program_narrow(task, slab, n_norms);
    task->to = ot_program_tile_weights(p, task, OT_NO_BUFFER, true, true,
                                       ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 0), shadow);
    ot_program_tile_state(p, task, OT_NO_BUFFER, true, true, ot_tag(OT_CONTENT_STATE, slab, tile, 0), shadow);
    ot_program_write(p, task, p->layout->frames[task->frame].buffer, shadow);
    ot_program_narrow(task, p->layout->frames[task->frame].tile, 1);
    task->n_norms = n_norms;
}

void ot_program_shadow(struct ot_program *p, int slab) {
    struct ot_tile_span span = ot_slab_engine_tiles(p->chain, p->plan, slab, OT_TILE_CPU);
    for (int tile = span.first_tile; tile < span.first_tile + span.n_tiles; tile++)
        if (ot_layout_frame(p->layout, p->plan, slab, tile) >= 0)
            shadow_tile(p, slab, tile);
}

static void update_tile_on_cpu(struct ot_program *p, int slab, int tile) {
    int slot = ot_program_tile_in(p, slab, tile, OT_TILE_CPU, 0);
    struct ot_task *task = pool_task(p, OT_TASK_UPDATE_CPU, slab, tile, slot);
    struct ot_tag weights = ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 0),
                  state = ot_tag(OT_CONTENT_STATE, slab, tile, 0);
    if (task->frame >= 0) {
        weights = state = ot_tag(OT_CONTENT_SHADOW, slab, tile, 0);
        ot_program_read(p, task, p->layout->frames[task->frame].buffer, state);
        ot_program_narrow(task, p->layout->frames[task->frame].tile, 1);
    }
    ot_program_read(p, task, p->layout->params_host[0], ot_tag(OT_CONTENT_PARAMS, 0, 0, 0));
    ot_program_last(task)->parity = true;
    ot_program_narrow(task, slab, 1);
    task->to =
        ot_program_tile_weights(p, task, slot, true, true, weights, ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 1));
    ot_program_tile_state(p, task, slot, true, true, state, ot_tag(OT_CONTENT_STATE, slab, tile, 1));
    ot_program_tile_out(p, slab, tile, OT_TILE_CPU, slot, 1);
}

void ot_program_update_cpu(struct ot_program *p, int slab) {
    struct ot_tile_span span = ot_slab_engine_tiles(p->chain, p->plan, slab, OT_TILE_CPU);
    for (int i = 0; i < span.n_tiles; i++)
        update_tile_on_cpu(p, slab, span.first_tile + i);
}

/* Copies updated weights to their home. version: version of the weights, relative to the step. */
static void bring_home(struct ot_program *p, enum ot_task_kind kind, int slab, struct ot_tile_span span,
                       int from, int to, int version) {
    struct ot_task *task = ot_program_task(p, kind, kind == OT_TASK_UPLOAD ? OT_LANE_H2D : OT_LANE_D2H);
    struct ot_tag tag = ot_tag(OT_CONTENT_WEIGHTS, slab, 0, version);
    task->slab = slab;
    task->span = span;
    task->from = from;
    task->to = to;
    ot_program_read(p, task, from, tag);
    ot_program_narrow(task, span.first_tile, span.n_tiles);
    ot_program_write(p, task, to, tag);
    ot_program_narrow(task, span.first_tile, span.n_tiles);
}

/* Upload happens in the next step, just before the slab's use. h2d runs in order: an upload at the end of
 * this step would make the next step's first blocks wait for the last blocks' updates. */
void ot_program_upload(struct ot_program *p, int slab) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    struct ot_tile_span span = ot_slab_engine_tiles(p->chain, p->plan, slab, OT_TILE_CPU);
    if (span.n_tiles == 0 || b->weights_gpu == OT_NO_BUFFER || p->uploaded[slab])
        return;
    bring_home(p, OT_TASK_UPLOAD, slab, span, b->weights_host, b->weights_gpu, 0);
    p->uploaded[slab] = true;
}

/* ---- state on the device ---- */

/* Copies weights that the device updated to their home: to the host in one task, to nvme tile by tile through
 * slots. */
static void store_weights(struct ot_program *p, int slab, struct ot_tile_span span, int weights) {
    struct ot_tag tag = ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 1);
    if (!ot_slab_weights_pass(p->plan, slab)) {
        bring_home(p, OT_TASK_STORE, slab, span, weights, p->layout->slabs[slab].weights_host, 1);
        return;
    }
    for (int tile = span.first_tile; tile < span.first_tile + span.n_tiles && p->rc >= 0; tile++) {
        int slot = ot_program_tile_in(p, slab, tile, OT_TILE_GPU, 0);
        struct ot_task *task = ot_program_tile_task(p, OT_TASK_STORE, OT_LANE_D2H, slab, tile);
        task->from = weights;
        ot_program_read(p, task, weights, tag);
        ot_program_narrow(task, tile, 1);
        task->to = ot_program_tile_weights(p, task, slot, false, true, tag, tag);
        ot_program_tile_out(p, slab, tile, OT_TILE_GPU, slot, 1);
    }
}

void ot_program_update_gpu(struct ot_program *p, int slab) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    struct ot_ring *ring = &p->weights[ot_slab_slot_kind(p->chain, slab)];
    struct ot_tile_span span = ot_slab_engine_tiles(p->chain, p->plan, slab, OT_TILE_GPU);
    int slot = -1;
    if (span.n_tiles == 0)
        return;
    if (!ot_slab_is_resident(p->plan, slab)) {
        slot = ot_ring_find(ring, slab);
        if (slot < 0 && (slot = ot_program_spare_slot(p, ring)) < 0)
            return;
        /* a slot with the used parts lacks the other parts, which are updated too */
        if (ring->owner[slot] != slab || ot_slab_fetches_used(p->chain, p->plan, slab))
            ot_program_fetch(p, slab, slot, span, OT_FETCH_ALL);
    }
    int weights = ot_program_held_weights(p, slab);
    struct ot_task *task = ot_program_task(p, OT_TASK_UPDATE_GPU, OT_LANE_COMPUTE);
    task->slab = slab;
    task->span = span;
    task->from = b->grad_gpu;
    task->to = weights;
    task->state = b->state_gpu;
    ot_program_read(p, task, p->layout->params_gpu, ot_tag(OT_CONTENT_PARAMS, 0, 0, 0));
    ot_program_narrow(task, slab, 1);
    ot_program_read(p, task, b->grad_gpu, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
    ot_program_update(p, task, weights, ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 0),
                      ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 1));
    ot_program_narrow(task, span.first_tile, span.n_tiles);
    ot_program_update(p, task, b->state_gpu, ot_tag(OT_CONTENT_STATE, slab, 0, 0),
                      ot_tag(OT_CONTENT_STATE, slab, 0, 1));
    if (slot < 0)
        return;
    ring->owner[slot] = -1; /* the slot now holds the next step's weights: this step must not find them */
    store_weights(p, slab, span, weights);
}

/* ---- state off the device, streamed through the device ----
 *
 * The weights of a streamed tile are in the slot of their slab. With one copy they travel with the state. */

/* home: the tile's host slot, or OT_NO_BUFFER. */
static void state_in(struct ot_program *p, int slab, int tile, int home, int slot) {
    struct ot_tag tag = ot_tag(OT_CONTENT_STATE, slab, tile, -1);
    struct ot_task *task = ot_program_tile_task(p, OT_TASK_STATE_IN, OT_LANE_H2D, slab, tile);
    task->to = slot;
    ot_program_tile_state(p, task, home, true, false, tag, tag);
    ot_program_write(p, task, slot, tag);
    if (ot_slab_has_one_copy(p->plan, slab)) {
        task->weights[0] = p->layout->slabs[slab].weights_host;
        ot_program_read(p, task, task->weights[0], ot_tag(OT_CONTENT_WEIGHTS, slab, 0, -1));
        ot_program_narrow(task, tile, 1);
    }
    if (p->plan->slabs[slab].grads != OT_HOME_GPU)
        task->from = ot_program_tile_grads(p, task, home, -1);
}

/* weights: OT_NO_BUFFER: they are in the slot. */
static void update_streamed(struct ot_program *p, int slab, int tile, int slot, int weights) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    struct ot_task *task = ot_program_tile_task(p, OT_TASK_UPDATE_STREAM, OT_LANE_COMPUTE, slab, tile);
    task->to = weights;
    task->state = slot;
    ot_program_read(p, task, p->layout->params_gpu, ot_tag(OT_CONTENT_PARAMS, 0, 0, -1));
    ot_program_narrow(task, slab, 1);
    if (weights != OT_NO_BUFFER) {
        ot_program_update(p, task, weights, ot_tag(OT_CONTENT_WEIGHTS, slab, 0, -1),
                          ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 0));
        ot_program_narrow(task, tile, 1);
    }
    ot_program_update(p, task, slot, ot_tag(OT_CONTENT_STATE, slab, tile, -1),
                      ot_tag(OT_CONTENT_STATE, slab, tile, 0));
    if (p->plan->slabs[slab].grads != OT_HOME_GPU)
        return; /* the gradients are in the slot */
    task->from = b->grad_gpu;
    ot_program_read(p, task, b->grad_gpu, ot_tag(OT_CONTENT_GRAD, slab, 0, -1));
}

static void state_out(struct ot_program *p, int slab, int tile, int home, int slot, int weights) {
    struct ot_tag state = ot_tag(OT_CONTENT_STATE, slab, tile, 0),
                  tag = ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 0);
    struct ot_task *task = ot_program_tile_task(p, OT_TASK_STATE_OUT, OT_LANE_D2H, slab, tile);
    task->from = slot;
    ot_program_read(p, task, slot, state);
    ot_program_tile_state(p, task, home, false, true, state, state);
    if (!ot_slab_is_resident(p->plan, slab)) {
        task->weights[0] = weights;
        if (weights != OT_NO_BUFFER) {
            ot_program_read(p, task, weights, tag);
            ot_program_narrow(task, tile, 1);
        }
        task->to = ot_program_tile_weights(p, task, home, false, true, tag, tag);
    }
    ot_program_tile_out(p, slab, tile, OT_TILE_STREAM, home, 0);
}

void ot_program_stream(struct ot_program *p, int slab, int upto) {
    int first = ot_slab_engine_tiles(p->chain, p->plan, slab, OT_TILE_STREAM).first_tile;
    for (; p->streamed[slab] < upto && p->rc >= 0; p->streamed[slab]++) {
        int tile = first + p->streamed[slab];
        int weights = ot_slab_has_one_copy(p->plan, slab) ? OT_NO_BUFFER : ot_program_held_weights(p, slab);
        int slot = p->layout->state_slots[p->next_state_slot++ % p->plan->state_slots];
        int home = ot_program_tile_in(p, slab, tile, OT_TILE_STREAM, -1);
        state_in(p, slab, tile, home, slot);
        update_streamed(p, slab, tile, slot, weights);
        state_out(p, slab, tile, home, slot, weights);
        ot_program_forget_weights(p, slab);
    }
}

static void flush_slab(struct ot_program *p, int slab) {
    struct ot_ring *ring = &p->weights[ot_slab_slot_kind(p->chain, slab)];
    struct ot_tile_span span = ot_slab_engine_tiles(p->chain, p->plan, slab, OT_TILE_STREAM);
    ot_program_upload(p, slab);
    if (span.n_tiles == 0)
        return;
    if (!ot_slab_is_resident(p->plan, slab) && !ot_slab_has_one_copy(p->plan, slab))
        ot_program_fetch(p, slab, ot_ring_victim(ring, NULL, 0), span, OT_FETCH_ALL);
    ot_program_stream(p, slab, span.n_tiles);
}

int ot_schedule_make_flush(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, struct ot_schedule *out) {
    struct ot_program p;
    if (ot_program_open(&p, chain, plan, layout, OT_PASS_TRAIN, NULL, out) < 0)
        return ot_program_close(&p);
    out->alone = true;
    for (int s = 0; s < chain->n_slabs && p.rc >= 0; s++)
        flush_slab(&p, s);
    return ot_program_close(&p);
}
