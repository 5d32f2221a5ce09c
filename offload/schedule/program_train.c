/* A training step as a program: forward, loss and backward, gradients out, the decision, updates.
 *
 * With clipping everything after backward waits for one decision (the global norm), then updates run in the
 * order in which the next forward needs the slabs. Without clipping each slab has a decision of its own,
 * taken as soon as its gradient is complete, so that updates overlap the rest of backward. In either case
 * streamed tiles have their turn in the next step, and resident slabs get there what the pool has updated.
 */
#include "offload/schedule/program.h"
#include "src/base/error.h"

/* ---- boundaries that do not live on the device ---- */

static void boundary_out(struct ot_program *p, int boundary, int micro) {
    int home = ot_program_boundary_home(p, boundary, micro);
    struct ot_task *task = ot_program_task(p, OT_TASK_BOUNDARY_OUT, OT_LANE_D2H);
    struct ot_tag tag = ot_tag(OT_CONTENT_BOUNDARY, boundary, micro, 0);
    task->block = boundary;
    task->micro = micro;
    task->from = ot_layout_boundary(p->layout, p->plan, boundary, micro);
    task->to = home;
    ot_program_read(p, task, task->from, tag);
    ot_program_write(p, task, task->to, tag);
    ot_program_boundary_write(p, boundary, micro, home);
}

static void boundary_in(struct ot_program *p, struct ot_return *back) {
    int i =
        (int)(back - p->returns) % p->plan->activation_slots; /* used in order, so the oldest is free first */
    int home = ot_program_boundary_read(p, back->boundary, back->micro);
    struct ot_task *task = ot_program_task(p, OT_TASK_BOUNDARY_IN, OT_LANE_H2D);
    struct ot_tag tag = ot_tag(OT_CONTENT_BOUNDARY, back->boundary, back->micro, 0);
    task->block = back->boundary;
    task->micro = back->micro;
    task->from = home;
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

/* Just before it is used: the h2d lane is in order, and this waits for the step before. */
static void scale_in(struct ot_program *p) {
    struct ot_task *task = ot_program_task(p, OT_TASK_SCALE_IN, OT_LANE_H2D);
    task->from = p->layout->control;
    task->to = p->layout->loss_scale;
    ot_program_read(p, task, task->from, (struct ot_tag){0});
    ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_SCALE, 0, 0, 0));
}

static void backward(struct ot_program *p, int block, int micro) {
    const struct ot_layout *layout = p->layout;
    const struct ot_block_spec *spec = &p->chain->blocks[block];
    int last = p->chain->n_blocks - 1;
    int x = block > 0 ? boundary_for_backward(p, block - 1, micro) : OT_NO_BUFFER;
    int grads[OT_MAX_USES];
    for (int u = 0; u < spec->n_uses; u++)
        grads[u] = accumulator(p, block, u);
    bool scales = block == last && layout->loss_scale != OT_NO_BUFFER;
    if (scales && micro == 0)
        scale_in(p);
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
        ot_program_narrow(task, p->chain->n_slabs, 1);
    }
    if (scales)
        ot_program_read(p, task, layout->loss_scale, ot_tag(OT_CONTENT_SCALE, 0, 0, 0));
}

/* Of the sum of all uses. In fp32 training nothing rounds it on: it is the finished gradient. */
static struct ot_tag sum_tag(const struct ot_program *p, int slab) {
    return p->chain->dtype == OT_F32 ? ot_tag(OT_CONTENT_GRAD, slab, 0, 0)
                                     : ot_tag(OT_CONTENT_GRAD_SUM, slab, -1, 0);
}

/* The fp32 copy that tests compare with other implementations. */
static void keep_grad(struct ot_program *p, int slab, int sum) {
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_KEEP, OT_LANE_D2H);
    task->slab = slab;
    task->from = sum;
    task->to = p->layout->slabs[slab].kept_grad;
    ot_program_read(p, task, sum, sum_tag(p, slab));
    ot_program_write(p, task, task->to, sum_tag(p, slab));
}

/* The slot in which what leaves for the host is rounded; fp32 leaves from where it was summed. */
static int stage_for(struct ot_program *p, int slab) {
    struct ot_ring *stages = &p->stages[ot_slab_slot_kind(p->chain, slab)];
    if (p->layout->slabs[slab].grad_host == OT_NO_BUFFER || p->chain->dtype == OT_F32)
        return OT_NO_BUFFER;
    int stage = ot_ring_victim(stages, NULL, 0);
    stages->last[stage] = p->schedule->n_tasks;
    return stages->buffers[stage];
}

/* Joins the uses, takes the squared norm, rounds to the storage dtype: what waits on the device, and what
 * leaves for the host. Returns the buffer that the latter leaves from. */
static int finish_grad(struct ot_program *p, int slab) {
    int n = 0, sums[OT_MAX_USES], ids[OT_MAX_USES];
    for (int block = 0; block < p->chain->n_blocks; block++)
        for (int u = 0; u < p->chain->blocks[block].n_uses; u++)
            if (p->chain->blocks[block].uses[u].slab == slab && n < OT_MAX_USES) {
                sums[n] = accumulator(p, block, u);
                ids[n++] = use_id(block, u);
            }
    int stage = stage_for(p, slab);
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_FINISH, OT_LANE_COMPUTE);
    task->slab = slab;
    task->n_uses = n;
    task->from = sums[0];
    task->to = p->layout->slabs[slab].grad_gpu;
    task->stage = stage;
    for (int i = 0; i < n; i++) {
        struct ot_tag all = ot_tag(OT_CONTENT_GRAD_SUM, ids[i], p->plan->max_micro, 0);
        task->grads[i] = sums[i];
        if (i == 0)
            ot_program_update(p, task, sums[0], all, sum_tag(p, slab));
        else
            ot_program_read(p, task, sums[i], all);
    }
    if (task->to != OT_NO_BUFFER && task->to != sums[0])
        ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
    if (stage != OT_NO_BUFFER)
        ot_program_write(p, task, stage, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
    ot_program_write(p, task, p->layout->results_gpu, ot_tag(OT_CONTENT_RESULT, slab, 0, 0));
    ot_program_narrow(task, slab, 1);
    if (p->plan->keep_grads)
        keep_grad(p, slab, sums[0]);
    return stage != OT_NO_BUFFER ? stage : sums[0];
}

/* from: the stage, or the sum. */
static void grad_out(struct ot_program *p, int slab, int from) {
    struct ot_tile_span waiting = ot_slab_waiting_on_gpu(p->chain, p->plan, slab);
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_OUT, OT_LANE_D2H);
    task->slab = slab;
    task->span = ot_slab_span(p->chain, p->plan, slab, waiting.n_tiles,
                              ot_slab_tiles(p->chain, p->plan, slab) - waiting.n_tiles);
    task->from = from;
    task->to = p->layout->slabs[slab].grad_host;
    ot_program_read(p, task, from, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
    ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
}

/* ---- the step ---- */

/* Device updates wait for a decision that takes a trip to the host: the next block's backward goes first. */
static void flush_deferred(struct ot_program *p) {
    for (int i = 0; i < p->n_deferred; i++) {
        ot_program_params_in(p, p->deferred[i]);
        ot_program_update_gpu(p, p->deferred[i]);
    }
    p->n_deferred = 0;
}

static void complete_slab(struct ot_program *p, int slab) {
    const int *tiles = p->plan->slabs[slab].tiles;
    int leaves = finish_grad(p, slab);
    if (p->layout->slabs[slab].grad_host != OT_NO_BUFFER)
        grad_out(p, slab, leaves);
    release_accumulators(p, slab);
    if (p->plan->clip)
        return;
    ot_program_result_out(p, slab);
    ot_program_decide(p, slab);
    if (tiles[OT_TILE_GPU] + tiles[OT_TILE_STREAM] > 0)
        p->deferred[p->n_deferred++] = slab;
    ot_program_update_cpu(p, slab);
}

/* ---- at use: what the step before left to be done ---- */

static void upload(struct ot_program *p, const struct ot_visit *visit) {
    const struct ot_block_spec *block = &p->chain->blocks[visit->block];
    for (int u = 0; u < block->n_uses; u++)
        ot_program_upload(p, block->uses[u].slab);
}

/* What the visit uses must be up to date when it starts. */
static void stream_rest(struct ot_program *p, const struct ot_visit *visit) {
    const struct ot_block_spec *block = &p->chain->blocks[visit->block];
    for (int u = 0; u < block->n_uses; u++)
        ot_program_stream(p, block->uses[u].slab, p->plan->slabs[block->uses[u].slab].tiles[OT_TILE_STREAM]);
}

/* And most of it is: between the micro-batches of the visit before, as far as slots let its weights be there
 * already. Meanwhile h2d brings the state of the tiles after. done: of the visit's micro-batches. */
static void stream_ahead(struct ot_program *p, int v, int done) {
    if (v + 1 == p->n_visits)
        return;
    const struct ot_block_spec *next = &p->chain->blocks[p->visits[v + 1].block];
    for (int u = 0; u < next->n_uses; u++) {
        int slab = next->uses[u].slab, tiles = p->plan->slabs[slab].tiles[OT_TILE_STREAM];
        if (tiles > 0 && ot_program_weights(p, slab) != OT_NO_BUFFER)
            ot_program_stream(p, slab, tiles * done / p->visits[v].n_micro);
    }
}

static void forward(struct ot_program *p, int block, int micro) {
    ot_program_forward(p, block, micro);
    if (ot_layout_spills_boundaries(p->layout) && block < p->chain->n_blocks - 1 - p->layout->n_boundaries)
        boundary_out(p, block, micro);
}

static void run_visit(struct ot_program *p, int v) {
    const struct ot_visit *visit = &p->visits[v];
    int end = visit->first_micro + visit->n_micro;
    upload(p, visit);
    ot_program_fetch_ahead(p, v);
    stream_rest(p, visit);
    for (int m = visit->first_micro; m < end && p->rc >= 0; m++) {
        if (visit->backward)
            backward(p, visit->block, m);
        else
            forward(p, visit->block, m);
        stream_ahead(p, v, m + 1 - visit->first_micro);
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
    ot_program_result_out(&p, -1);
    ot_program_decide(&p, -1);
    for (int s = 0; plan->clip && s < chain->n_slabs; s++)
        ot_program_params_in(&p, s);
    for (int s = 0; plan->clip && s < chain->n_slabs && p.rc >= 0; s++) {
        ot_program_update_gpu(&p, s);
        ot_program_update_cpu(&p, s);
    }
    return ot_program_close(&p);
}
