/* A training step as a program: forward, loss and backward, gradients out, the decision, updates.
 *
 * With clipping everything after backward waits for one decision (the global norm), then updates run in the
 * order in which the next forward needs the slabs. Without clipping each slab has a decision of its own,
 * taken as soon as its gradient is complete, so that updates overlap the rest of backward.
 */
#include "offload/program.h"
#include "src/base/error.h"

/* ---- boundaries that live on the host ---- */

static void boundary_out(struct ot_program *p, int boundary, int micro) {
    struct ot_task *task = ot_program_task(p, OT_TASK_BOUNDARY_OUT, OT_LANE_D2H);
    struct ot_tag tag = ot_tag(OT_CONTENT_BOUNDARY, boundary, micro, 0);
    task->block = boundary;
    task->micro = micro;
    task->from = ot_layout_boundary(p->layout, p->plan, boundary, micro);
    task->to = p->layout->boundary_host[boundary * p->plan->max_micro + micro];
    ot_program_read(p, task, task->from, tag);
    ot_program_write(p, task, task->to, tag);
}

static void boundary_in(struct ot_program *p, struct ot_return *back) {
    int i =
        (int)(back - p->returns) % p->plan->activation_slots; /* used in order, so the oldest is free first */
    struct ot_task *task = ot_program_task(p, OT_TASK_BOUNDARY_IN, OT_LANE_H2D);
    struct ot_tag tag = ot_tag(OT_CONTENT_BOUNDARY, back->boundary, back->micro, 0);
    task->block = back->boundary;
    task->micro = back->micro;
    task->from = p->layout->boundary_host[back->boundary * p->plan->max_micro + back->micro];
    task->to = p->layout->activation_slots[i];
    back->slot = i;
    ot_program_read(p, task, task->from, tag);
    ot_program_write(p, task, task->to, tag);
}

/* The buffer with the boundary that a backward reads, which it uses up. Fetches ahead as far as slots
 * allow. */
static int boundary_for_backward(struct ot_program *p, int boundary, int micro) {
    struct ot_return *next = &p->returns[p->next_return];
    if (p->next_return == p->n_returns || next->boundary != boundary || next->micro != micro)
        return ot_layout_boundary(p->layout, p->plan, boundary, micro);
    for (int i = 0; i < p->plan->activation_slots && p->next_return + i < p->n_returns; i++) {
        if (p->plan->order == OT_ORDER_MICRO && next[i].micro != micro)
            break; /* not even computed yet */
        if (next[i].slot < 0)
            boundary_in(p, &next[i]);
    }
    p->next_return++;
    return p->layout->activation_slots[next->slot];
}

/* ---- gradients ---- */

/* Accumulators are owned by (block, use). */
static int use_id(int block, int use) {
    return block * OT_MAX_USES + use;
}

static int accumulator(struct ot_program *p, int block, int use) {
    int slab = p->chain->blocks[block].uses[use].slab;
    struct ot_ring *ring = &p->grads[ot_slab_slot_kind(p->chain, slab)];
    if (ot_slab_grad_in_place(p->chain, p->plan, slab))
        return p->layout->slabs[slab].grad_gpu;
    int slot = ot_ring_find(ring, use_id(block, use));
    if (slot < 0 && p->rc >= 0) {
        slot = ot_ring_take(ring, use_id(block, use), p->schedule->n_tasks);
        p->rc = slot < 0 ? slot : 0;
    }
    return slot < 0 ? OT_NO_BUFFER : ring->buffers[slot];
}

static void release_accumulators(struct ot_program *p, int slab) {
    struct ot_ring *ring = &p->grads[ot_slab_slot_kind(p->chain, slab)];
    for (int b = 0; b < p->chain->n_blocks; b++)
        for (int u = 0; u < p->chain->blocks[b].n_uses; u++) {
            int slot = p->chain->blocks[b].uses[u].slab == slab ? ot_ring_find(ring, use_id(b, u)) : -1;
            if (slot >= 0) {
                ring->owner[slot] = -1;
                ring->last[slot] = p->schedule->n_tasks;
            }
        }
}

static void backward(struct ot_program *p, int block, int micro) {
    const struct ot_layout *layout = p->layout;
    const struct ot_block_spec *spec = &p->chain->blocks[block];
    int last = p->chain->n_blocks - 1;
    int x = block > 0 ? boundary_for_backward(p, block - 1, micro) : OT_NO_BUFFER;
    int grads[OT_MAX_USES];
    for (int u = 0; u < spec->n_uses; u++)
        grads[u] = accumulator(p, block, u);
    struct ot_task *task = ot_program_task(p, OT_TASK_BACKWARD, OT_LANE_COMPUTE);
    task->block = block;
    task->micro = micro;
    task->first = micro == 0;
    ot_program_block_inputs(p, task, spec->n_uses);
    if (block > 0) {
        task->x = x;
        ot_program_read(p, task, x, ot_tag(OT_CONTENT_BOUNDARY, block - 1, micro, 0));
    }
    task->dxy = layout->boundary_grad[micro];
    if (block == last)
        ot_program_write(p, task, task->dxy, ot_tag(OT_CONTENT_BOUNDARY_GRAD, block - 1, micro, 0));
    else
        ot_program_update(p, task, task->dxy, ot_tag(OT_CONTENT_BOUNDARY_GRAD, block, micro, 0),
                          ot_tag(OT_CONTENT_BOUNDARY_GRAD, block - 1, micro, 0));
    for (int u = 0; u < spec->n_uses; u++) {
        struct ot_tag sum = ot_tag(OT_CONTENT_GRAD_SUM, use_id(block, u), micro, 0), more = sum;
        more.micro++;
        task->grads[u] = grads[u];
        ot_program_update(p, task, grads[u], task->first ? (struct ot_tag){0} : sum, more);
    }
    int kept = ot_layout_saved(layout, p->chain, p->plan, block, micro);
    task->saved_valid = kept != OT_NO_BUFFER;
    task->saved = task->saved_valid ? kept : layout->saved_scratch;
    ot_program_update(p, task, task->saved,
                      task->saved_valid ? ot_tag(OT_CONTENT_SAVED, block, micro, 0) : (struct ot_tag){0},
                      (struct ot_tag){0});
    if (block == last) {
        ot_program_scratch(p, task, layout->token_loss);
        ot_program_write(p, task, layout->results_gpu,
                         ot_tag(OT_CONTENT_RESULT, p->chain->n_slabs, micro, 0));
        ot_program_last(task)->first_tile = p->chain->n_slabs;
        ot_program_last(task)->n_tiles = 1;
    }
}

/* The fp32 copy that tests compare with other implementations. */
static void keep_grad(struct ot_program *p, int slab, int sum) {
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_KEEP, OT_LANE_D2H);
    task->slab = slab;
    task->from = sum;
    task->to = p->layout->slabs[slab].kept_grad;
    ot_program_read(p, task, sum, ot_tag(OT_CONTENT_GRAD_SUM, slab, -1, 0));
    ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_GRAD_SUM, slab, -1, 0));
}

/* Joins the uses, takes the squared norm, rounds to the storage dtype. Returns where the finished gradient
 * lies. */
static int finish_grad(struct ot_program *p, int slab) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    struct ot_ring *stages = &p->stages[ot_slab_slot_kind(p->chain, slab)];
    bool stays = p->plan->slabs[slab].state == OT_HOME_GPU;
    int stage = -1, n = 0, sums[OT_MAX_USES], ids[OT_MAX_USES];
    for (int block = 0; block < p->chain->n_blocks; block++)
        for (int u = 0; u < p->chain->blocks[block].n_uses; u++)
            if (p->chain->blocks[block].uses[u].slab == slab && n < OT_MAX_USES) {
                sums[n] = accumulator(p, block, u);
                ids[n++] = use_id(block, u);
            }
    if (!stays && stages->count > 0) {
        stage = ot_ring_victim(stages, NULL, 0);
        stages->last[stage] = p->schedule->n_tasks;
    }
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_FINISH, OT_LANE_COMPUTE);
    task->slab = slab;
    task->n_uses = n;
    task->from = sums[0];
    task->to = stays ? b->grad_gpu : stage >= 0 ? stages->buffers[stage] : sums[0];
    for (int i = 0; i < n; i++) {
        struct ot_tag all = ot_tag(OT_CONTENT_GRAD_SUM, ids[i], p->plan->max_micro, 0);
        task->grads[i] = sums[i];
        if (i == 0)
            ot_program_update(
                p, task, sums[0], all,
                ot_tag(task->to == sums[0] && !p->plan->keep_grads ? OT_CONTENT_GRAD : OT_CONTENT_GRAD_SUM,
                       slab, task->to == sums[0] && !p->plan->keep_grads ? 0 : -1, 0));
        else
            ot_program_read(p, task, sums[i], all);
    }
    if (task->to != sums[0])
        ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
    ot_program_write(p, task, p->layout->results_gpu, ot_tag(OT_CONTENT_RESULT, slab, 0, 0));
    ot_program_last(task)->first_tile = slab;
    ot_program_last(task)->n_tiles = 1;
    return task->to;
}

/* Tag of a finished gradient: the sum itself where nothing was rounded and the test seam reads it as well. */
static struct ot_tag grad_tag(const struct ot_program *p, int slab, bool is_sum) {
    bool sum = is_sum && p->plan->keep_grads;
    return ot_tag(sum ? OT_CONTENT_GRAD_SUM : OT_CONTENT_GRAD, slab, sum ? -1 : 0, 0);
}

static void grad_out(struct ot_program *p, int slab, int from, bool is_sum) {
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_OUT, OT_LANE_D2H);
    task->slab = slab;
    task->from = from;
    task->to = p->layout->slabs[slab].grad_host;
    ot_program_read(p, task, from, grad_tag(p, slab, is_sum));
    ot_program_write(p, task, task->to, grad_tag(p, slab, is_sum));
}

/* ---- decisions and updates ---- */

/* slab < 0: all norms and the losses. With a decision per slab, what was decided before is not read again. */
static void result_out(struct ot_program *p, int slab) {
    struct ot_task *task = ot_program_task(p, OT_TASK_RESULT_OUT, OT_LANE_D2H);
    int first = slab >= 0 ? slab : p->plan->clip ? 0 : p->chain->n_slabs;
    int last = slab >= 0 ? slab : p->chain->n_slabs;
    task->slab = slab;
    task->from = p->layout->results_gpu;
    task->to = p->layout->results_host[0];
    for (int side = 0; side < 2; side++) {
        ot_program_access(p, task, side ? task->to : task->from, side == 0, side == 1);
        ot_program_last(task)->parity = side == 1;
        ot_program_last(task)->first_tile = first;
        ot_program_last(task)->n_tiles = last - first + 1;
    }
}

static void decide(struct ot_program *p, int slab) {
    struct ot_task *task = ot_program_task(p, OT_TASK_DECIDE, OT_LANE_CPU);
    task->slab = slab;
    task->deadline = -1;
    task->from = p->layout->results_host[0];
    task->to = p->layout->params_host[0];
    ot_program_access(p, task, task->from, true, false)->parity = true;
    if (slab >= 0) {
        ot_program_last(task)->first_tile = slab;
        ot_program_last(task)->n_tiles = 1;
    }
    ot_program_update(p, task, p->layout->control, (struct ot_tag){0}, (struct ot_tag){0});
    if (slab < 0 && !p->plan->clip)
        return; /* every slab has been decided: this only closes the step */
    ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_PARAMS, 0, 0, 0));
    ot_program_last(task)->parity = true;
    if (slab >= 0) {
        ot_program_last(task)->first_tile = slab;
        ot_program_last(task)->n_tiles = 1;
    }
}

static void narrow(struct ot_task *task, int tile) {
    ot_program_last(task)->first_tile = tile;
    ot_program_last(task)->n_tiles = 1;
}

static void params_in(struct ot_program *p, int slab) {
    struct ot_task *task = ot_program_task(p, OT_TASK_PARAMS_IN, OT_LANE_H2D);
    struct ot_tag tag = ot_tag(OT_CONTENT_PARAMS, 0, 0, 0);
    task->slab = slab;
    task->from = p->layout->params_host[0];
    task->to = p->layout->params_gpu;
    ot_program_read(p, task, task->from, tag);
    ot_program_last(task)->parity = true;
    narrow(task, slab);
    ot_program_write(p, task, task->to, tag);
    narrow(task, slab);
}

static void update_on_cpu(struct ot_program *p, int slab) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    bool is_sum = p->chain->dtype == OT_F32;
    for (int tile = 0; tile < ot_slab_tiles(p->chain, p->plan, slab); tile++) {
        struct ot_task *task = ot_program_task(p, OT_TASK_UPDATE_CPU, OT_LANE_CPU);
        task->slab = slab;
        task->tile = tile;
        task->deadline = slab; /* slabs are numbered in the order in which forward needs them */
        task->from = b->grad_host;
        task->to = b->weights_host;
        task->state = b->state_host;
        ot_program_read(p, task, p->layout->params_host[0], ot_tag(OT_CONTENT_PARAMS, 0, 0, 0));
        ot_program_last(task)->parity = true;
        narrow(task, slab);
        ot_program_read(p, task, b->grad_host, grad_tag(p, slab, is_sum));
        ot_program_update(p, task, b->weights_host, ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 0),
                          ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 1));
        narrow(task, tile);
        ot_program_update(p, task, b->state_host, ot_tag(OT_CONTENT_STATE, slab, 0, 0),
                          ot_tag(OT_CONTENT_STATE, slab, 0, 1));
        narrow(task, tile);
    }
    if (b->weights_gpu == OT_NO_BUFFER)
        return;
    struct ot_task *task = ot_program_task(p, OT_TASK_UPLOAD, OT_LANE_H2D);
    task->slab = slab;
    task->from = b->weights_host;
    task->to = b->weights_gpu;
    ot_program_read(p, task, task->from, ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 1));
    ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 1));
}

static void update_on_gpu(struct ot_program *p, int slab) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    struct ot_tag before = ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 0),
                  after = ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 1);
    struct ot_ring *ring = &p->weights[ot_slab_slot_kind(p->chain, slab)];
    int slot = -1;
    params_in(p, slab);
    if (ot_slab_is_streamed(p->plan, slab)) {
        slot = ot_ring_find(ring, slab);
        if (slot < 0)
            ot_program_fetch(p, slab, slot = ot_ring_victim(ring, NULL, 0));
    }
    int weights = ot_program_weights(p, slab);
    struct ot_task *task = ot_program_task(p, OT_TASK_UPDATE_GPU, OT_LANE_COMPUTE);
    task->slab = slab;
    task->from = b->grad_gpu;
    task->to = weights;
    task->state = b->state_gpu;
    ot_program_read(p, task, p->layout->params_gpu, ot_tag(OT_CONTENT_PARAMS, 0, 0, 0));
    narrow(task, slab);
    ot_program_read(p, task, b->grad_gpu, grad_tag(p, slab, ot_slab_grad_in_place(p->chain, p->plan, slab)));
    ot_program_update(p, task, weights, before, after);
    ot_program_update(p, task, b->state_gpu, ot_tag(OT_CONTENT_STATE, slab, 0, 0),
                      ot_tag(OT_CONTENT_STATE, slab, 0, 1));
    if (slot < 0)
        return;
    ring->owner[slot] = -1; /* the slot's weights belong to the next step: this one must not find them */
    task = ot_program_task(p, OT_TASK_STORE, OT_LANE_D2H);
    task->slab = slab;
    task->from = weights;
    task->to = b->weights_host;
    ot_program_read(p, task, weights, after);
    ot_program_write(p, task, task->to, after);
}

static void update(struct ot_program *p, int slab) {
    if (p->plan->slabs[slab].state == OT_HOME_HOST)
        update_on_cpu(p, slab);
    else
        update_on_gpu(p, slab);
}

/* Device updates wait for a decision that takes a trip to the host: the next block's backward goes first. */
static void flush_deferred(struct ot_program *p) {
    for (int i = 0; i < p->n_deferred; i++)
        update_on_gpu(p, p->deferred[i]);
    p->n_deferred = 0;
}

static void complete_slab(struct ot_program *p, int slab) {
    bool stays = p->plan->slabs[slab].state == OT_HOME_GPU;
    int finished = finish_grad(p, slab);
    /* In place, or fp32 on its way to the host: what is finished is the sum. */
    bool is_sum = p->chain->dtype == OT_F32 && (!stays || ot_slab_grad_in_place(p->chain, p->plan, slab));
    if (p->plan->keep_grads)
        keep_grad(p, slab, p->schedule->tasks[p->schedule->n_tasks - 1].from);
    if (!stays)
        grad_out(p, slab, finished, is_sum);
    release_accumulators(p, slab);
    if (p->plan->clip)
        return;
    result_out(p, slab);
    decide(p, slab);
    if (stays)
        p->deferred[p->n_deferred++] = slab;
    else
        update_on_cpu(p, slab);
}

static void run_visit(struct ot_program *p, int v) {
    const struct ot_visit *visit = &p->visits[v];
    int end = visit->first_micro + visit->n_micro;
    ot_program_fetch_ahead(p, v);
    for (int m = visit->first_micro; m < end && p->rc >= 0; m++) {
        if (visit->backward) {
            backward(p, visit->block, m);
            continue;
        }
        ot_program_forward(p, visit->block, m);
        if (p->layout->boundary_host && visit->block < p->chain->n_blocks - 1 - p->layout->n_boundaries)
            boundary_out(p, visit->block, m);
    }
    if (!visit->backward || end != p->plan->max_micro)
        return;
    flush_deferred(p);
    const struct ot_block_spec *block = &p->chain->blocks[visit->block];
    for (int u = 0; u < block->n_uses && p->rc >= 0; u++)
        if (--p->uses_left[block->uses[u].slab] == 0)
            complete_slab(p, block->uses[u].slab);
}

int ot_schedule_make_train(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, struct ot_schedule *out) {
    struct ot_program p;
    if (ot_program_open(&p, chain, plan, layout, OT_PASS_TRAIN, out) < 0)
        return ot_program_close(&p);
    ot_program_batch_in(&p);
    for (int v = 0; v < p.n_visits && p.rc >= 0; v++)
        run_visit(&p, v);
    flush_deferred(&p);
    result_out(&p, -1);
    decide(&p, -1);
    for (int s = 0; plan->clip && s < chain->n_slabs && p.rc >= 0; s++)
        update(&p, s);
    return ot_program_close(&p);
}
