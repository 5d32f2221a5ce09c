/* A training step as a program: forward, loss and backward, gradients to the host, decision, updates.
 *
 * With clipping, all updates wait for one decision after backward, since it needs the norm of all gradients.
 * Updates then run in the order in which the next forward needs the slabs. Without clipping each slab has its
 * own decision as soon as its gradient is complete, so its update overlaps the rest of backward. Shadows
 * (plan/shadow_updates.h) give a part of that overlap back to steps with clipping. In all
 * cases the next step updates the streamed tiles, and copies the pool's updates to slabs on the device.
 */
#include <limits.h>
#include <string.h>

#include "offload/plan/shadow_updates.h"
#include "offload/schedule/program.h"
#include "src/base/error.h"

/* ---- gradients ---- */

/* The owner of an accumulator is a use of a slab, and the depth of its tree: ot_layout_sum. */
static int use_id(int block, int use) {
    return block * OT_MAX_USES + use;
}

static struct ot_ring *grad_ring(struct ot_program *p, int slab) {
    return &p->grads[ot_slab_slot_kind(p->chain, slab)];
}

static bool is_frozen(const struct ot_program *p, int block, int use) {
    return p->chain->slabs[p->chain->blocks[block].uses[use].slab].frozen;
}

static void join_oldest(struct ot_program *p);

/* Takes a free slot. If there is none, finishes slabs whose exchange is under way, which gives slots back. */
static int take_slot(struct ot_program *p, struct ot_ring *ring, int owner) {
    int slot = ot_ring_find(ring, owner);
    while (slot < 0 && p->n_joining > 0 && ot_ring_find(ring, -1) < 0 && p->rc >= 0)
        join_oldest(p);
    if (slot < 0 && p->rc >= 0) {
        slot = ot_ring_take(ring, owner, p->schedule->n_tasks);
        p->rc = slot < 0 ? slot : 0;
    }
    return slot;
}

/* Moves a sum between its home and a slot. */
static void move_sum(struct ot_program *p, enum ot_task_kind kind, int slab, int owner, int slot) {
    bool in = kind == OT_TASK_SUM_IN;
    int home = p->layout->sums[owner];
    struct ot_tag tag = ot_tag(OT_CONTENT_GRAD_SUM, owner / OT_SHARD_WORLD_GROUPS, p->sums[owner].micro, 0);
    p->sums[owner].away = !in;
    if (p->layout->buffers[home].tier == OT_TIER_NVME) {
        ot_program_pass_sum(p, kind, slab, owner, slot, tag);
        return;
    }
    struct ot_task *task = ot_program_task(p, kind, in ? OT_LANE_H2D : OT_LANE_D2H);
    task->slab = slab;
    task->span =
        (struct ot_tile_span){0, ot_slab_pieces(p->chain, p->plan, slab), 0, p->chain->slabs[slab].n_params};
    task->from = in ? home : slot;
    task->to = in ? slot : home;
    ot_program_read(p, task, task->from, tag);
    ot_program_write(p, task, task->to, tag);
}

/* The device buffer of a sum. Brings it back from its home. */
static int accumulator(struct ot_program *p, int block, int use, int depth) {
    int slab = p->chain->blocks[block].uses[use].slab, owner = ot_layout_sum(block, use, depth);
    if (ot_slab_grad_in_place(p->chain, p->plan, slab))
        return p->layout->slabs[slab].grad_gpu;
    if (ot_slab_sum_stays(p->chain, p->plan, slab))
        return p->layout->sums[owner];
    struct ot_ring *ring = grad_ring(p, slab);
    int slot = take_slot(p, ring, owner);
    if (slot < 0)
        return OT_NO_BUFFER;
    if (p->sums[owner].away)
        move_sum(p, OT_TASK_SUM_IN, slab, owner, ring->buffers[slot]);
    return ring->buffers[slot];
}

static void release_accumulator(struct ot_program *p, int slab, int owner) {
    struct ot_ring *ring = grad_ring(p, slab);
    int slot = ot_ring_find(ring, owner);
    if (slot < 0)
        return;
    ring->owner[slot] = -1;
    ring->last[slot] = p->schedule->n_tasks;
}

/* Places of a group for micro-batches. */
static int group_places(const struct ot_program *p) {
    return p->plan->max_micro / ot_shard_own_groups(&p->plan->shard);
}

/* Sends a block's sums away after its backward, in a round that is not the last. */
static void send_sums(struct ot_program *p, int block) {
    const struct ot_block_spec *spec = &p->chain->blocks[block];
    for (int u = 0; u < spec->n_uses; u++) {
        int slab = spec->uses[u].slab;
        struct ot_ring *ring = grad_ring(p, slab);
        for (int depth = 0; depth < ot_shard_accumulators(&p->plan->shard); depth++) {
            int owner = ot_layout_sum(block, u, depth), slot = ot_ring_find(ring, owner);
            if (slot < 0)
                continue;
            move_sum(p, OT_TASK_SUM_OUT, slab, owner, ring->buffers[slot]);
            release_accumulator(p, slab, owner);
        }
    }
}

/* Brings back the sums that the next block needs first, if there are free slots. */
static void return_sums(struct ot_program *p, int block, int micro) {
    const struct ot_block_spec *spec = &p->chain->blocks[block];
    int depth = ot_shard_accumulator(micro / group_places(p));
    for (int u = 0; u < spec->n_uses; u++)
        if (p->sums[ot_layout_sum(block, u, depth)].away &&
            ot_ring_find(grad_ring(p, spec->uses[u].slab), -1) >= 0)
            accumulator(p, block, u, depth);
}

int ot_program_sum(struct ot_program *p, int use) {
    return accumulator(p, use / OT_MAX_USES, use % OT_MAX_USES, 0);
}

void ot_program_pass_on_sum(struct ot_program *p, int use, bool sends) {
    int block = use / OT_MAX_USES, number = use % OT_MAX_USES;
    int slab = p->chain->blocks[block].uses[number].slab, sum = ot_layout_sum(block, number, 0);
    if (sends)
        release_accumulator(p, slab, sum);
    else
        p->uses_left[slab]--;
}

/* Adds one sum to another. */
static void merge(struct ot_program *p, int slab, int to, struct ot_tag before, int from, struct ot_tag added,
                  struct ot_tag after) {
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_MERGE, OT_LANE_COMPUTE);
    task->slab = slab;
    task->from = from;
    task->to = to;
    ot_program_read(p, task, from, added);
    ot_program_update(p, task, to, before, after);
}

/* After the last turn of a group: adds up the subtrees that are complete now. */
static void merge_groups(struct ot_program *p, int block, int turn) {
    int places = group_places(p), group = turn / places, depth = ot_shard_accumulator(group);
    const struct ot_block_spec *spec = &p->chain->blocks[block];
    if ((turn + 1) % places != 0)
        return;
    for (int i = 0; i < ot_shard_merges(group); i++, depth--)
        for (int u = 0; u < spec->n_uses && p->rc >= 0; u++) {
            if (is_frozen(p, block, u))
                continue;
            int slab = spec->uses[u].slab, id = use_id(block, u);
            int first = turn + 1 - (places << i), to = accumulator(p, block, u, depth - 1);
            merge(p, slab, to, ot_tag(OT_CONTENT_GRAD_SUM, id, first, 0), accumulator(p, block, u, depth),
                  ot_tag(OT_CONTENT_GRAD_SUM, id, turn + 1, 0), ot_tag(OT_CONTENT_GRAD_SUM, id, turn + 1, 0));
            release_accumulator(p, slab, ot_layout_sum(block, u, depth));
            p->sums[ot_layout_sum(block, u, depth - 1)].micro = turn + 1;
        }
}

/* This task is appended just before its use: it waits for the previous step's decision, and the h2d lane runs
 * in order, so an earlier place would delay other copies. */
static void scale_in(struct ot_program *p) {
    struct ot_task *task = ot_program_task(p, OT_TASK_SCALE_IN, OT_LANE_H2D);
    task->from = p->layout->control;
    task->to = p->layout->loss_scale;
    ot_program_read(p, task, task->from, (struct ot_tag){0});
    ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_SCALE, 0, 0, 0));
}

/* Backward of a block whose keys come in groups. */
static void backward_groups(struct ot_program *p, int block, int turn, int depth,
                            struct ot_backward_buffers buffers) {
    int micro = ot_plan_backward_turn(p->plan, turn);
    ot_program_backward_groups(p, block, micro, &buffers);
    for (int u = 0; u < p->chain->blocks[block].n_uses; u++)
        p->sums[ot_layout_sum(block, u, depth)].micro = turn + 1;
    ot_program_send_boundary_grad(p, block - 1, micro, buffers.dxy);
}

static void backward(struct ot_program *p, int block, int turn) {
    int micro = ot_plan_backward_turn(p->plan, turn);
    const struct ot_layout *layout = p->layout;
    const struct ot_block_spec *spec = &p->chain->blocks[block];
    int last = p->chain->n_blocks - 1;
    int x = block > 0 ? ot_program_find_boundary(p, block - 1, micro) : OT_NO_BUFFER;
    int dxy = ot_program_find_boundary_grad(p, block, micro);
    int saved = ot_program_find_kept(p, block, micro);
    int grads[OT_MAX_USES], depth = ot_shard_accumulator(turn / group_places(p));
    for (int u = 0; u < spec->n_uses; u++)
        grads[u] = is_frozen(p, block, u) ? OT_NO_BUFFER : accumulator(p, block, u, depth);
    if (ot_program_has_groups(p, block)) {
        struct ot_backward_buffers buffers = {turn, x, dxy, saved, {0}, turn % group_places(p) == 0};
        memcpy(buffers.grads, grads, sizeof grads);
        backward_groups(p, block, turn, depth, buffers);
        return;
    }
    bool scales = block == last && layout->loss_scale != OT_NO_BUFFER;
    if (scales && turn == 0)
        scale_in(p);
    struct ot_task *task = ot_program_task(p, OT_TASK_BACKWARD, OT_LANE_COMPUTE);
    task->block = block;
    task->micro = micro;
    task->first = turn % group_places(p) == 0;
    ot_program_block_inputs(p, task, spec->n_uses);
    if (block > 0) {
        task->x = x;
        ot_program_read(p, task, x, ot_tag(OT_CONTENT_BOUNDARY, block - 1, micro, 0));
    }
    task->dxy = dxy;
    if (block == last)
        ot_program_write(p, task, task->dxy, ot_tag(OT_CONTENT_BOUNDARY_GRAD, block - 1, micro, 0));
    else
        ot_program_update(p, task, task->dxy, ot_tag(OT_CONTENT_BOUNDARY_GRAD, block, micro, 0),
                          ot_tag(OT_CONTENT_BOUNDARY_GRAD, block - 1, micro, 0));
    for (int u = 0; u < spec->n_uses; u++) {
        if (is_frozen(p, block, u))
            continue;
        struct ot_tag sum = ot_tag(OT_CONTENT_GRAD_SUM, use_id(block, u), turn, 0), more = sum;
        more.micro++;
        task->grads[u] = grads[u];
        ot_program_update(p, task, grads[u], task->first ? (struct ot_tag){0} : sum, more);
        p->sums[ot_layout_sum(block, u, depth)].micro = more.micro;
    }
    ot_program_use_keys(p, task, turn);
    if (saved != OT_NO_BUFFER) {
        task->saved = saved;
        task->saved_level = ot_plan_kept(p->chain, p->plan, block).level;
        ot_program_update(p, task, saved, ot_tag(OT_CONTENT_SAVED, block, micro, 0), (struct ot_tag){0});
    }
    if (block == last) {
        ot_program_scratch(p, task, layout->token_loss);
        if (layout->token_weights != OT_NO_BUFFER) {
            ot_program_scratch(p, task, layout->token_weights);
            ot_program_scratch(p, task, layout->answers);
        }
        ot_program_write(p, task, layout->results_gpu,
                         ot_tag(OT_CONTENT_RESULT, p->chain->n_slabs, micro, 0));
        ot_program_narrow(task, p->chain->n_slabs, 1);
    }
    if (scales)
        ot_program_read(p, task, layout->loss_scale, ot_tag(OT_CONTENT_SCALE, 0, 0, 0));
    ot_program_send_boundary_grad(p, block - 1, micro, dxy);
}

/* The tag of the finished sum. In fp32 no rounding follows: the sum is the finished gradient. */
static struct ot_tag sum_tag(const struct ot_program *p, int slab) {
    return p->chain->dtype == OT_F32 ? ot_tag(OT_CONTENT_GRAD, slab, 0, 0)
                                     : ot_tag(OT_CONTENT_GRAD_SUM, slab, -1, 0);
}

/* The gradient sums of a slab: one for each use, in the order of the blocks. */
struct sums {
    int n, ids[OT_MAX_USES]; /* accumulators */
    int buffers[OT_MAX_USES];
    struct ot_tag tags[OT_MAX_USES];
};

/* most: the most uses to return. */
static struct sums sums_of(struct ot_program *p, int slab, int most) {
    struct sums sums = {0};
    for (int b = 0; b < p->chain->n_blocks; b++)
        for (int u = 0; u < p->chain->blocks[b].n_uses && sums.n < most; u++) {
            if (p->chain->blocks[b].uses[u].slab != slab)
                continue;
            sums.ids[sums.n] = ot_layout_sum(b, u, 0);
            sums.buffers[sums.n] = accumulator(p, b, u, 0);
            sums.tags[sums.n++] = ot_tag(OT_CONTENT_GRAD_SUM, use_id(b, u), p->plan->max_micro, 0);
        }
    return sums;
}

/* The tag of the sum over the uses of a tied slab. */
static struct ot_tag tied_tag(int slab) {
    return ot_tag(OT_CONTENT_GRAD_SUM, slab, -2, 0);
}

/* Adds up the uses of a slab, into the buffer of the first. */
static void merge_uses(struct ot_program *p, int slab, struct sums *sums) {
    for (int i = 1; i < sums->n && p->rc >= 0; i++) {
        merge(p, slab, sums->buffers[0], sums->tags[0], sums->buffers[i], sums->tags[i], tied_tag(slab));
        release_accumulator(p, slab, sums->ids[i]);
        sums->tags[0] = tied_tag(slab);
    }
    sums->n = 1;
}

/* The sum over all uses of a slab, in the buffer of the first. It takes one use after the other, because a
 * shared slab has many. */
static struct sums merged_uses(struct ot_program *p, int slab) {
    struct sums sum = sums_of(p, slab, 1);
    bool first = true;
    for (int b = 0; b < p->chain->n_blocks && p->rc >= 0; b++)
        for (int u = 0; u < p->chain->blocks[b].n_uses && p->rc >= 0; u++) {
            if (p->chain->blocks[b].uses[u].slab != slab)
                continue;
            if (!first) {
                merge(p, slab, sum.buffers[0], sum.tags[0], accumulator(p, b, u, 0),
                      ot_tag(OT_CONTENT_GRAD_SUM, use_id(b, u), p->plan->max_micro, 0), tied_tag(slab));
                release_accumulator(p, slab, ot_layout_sum(b, u, 0));
                sum.tags[0] = tied_tag(slab);
            }
            first = false;
        }
    return sum;
}

/* Copies the fp32 gradient to the host, where tests compare it with other implementations. */
static void keep_grad(struct ot_program *p, int slab, int sum) {
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_KEEP, OT_LANE_D2H);
    task->slab = slab;
    task->from = sum;
    task->to = p->layout->slabs[slab].kept_grad;
    ot_program_read(p, task, sum, sum_tag(p, slab));
    ot_program_write(p, task, task->to, sum_tag(p, slab));
}

/* True if finished gradients of the slab leave the device. */
static bool grads_leave(const struct ot_program *p, int slab) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    return b->grad_host != OT_NO_BUFFER || b->grad_nvme != OT_NO_BUFFER;
}

/* The slot for the rounded gradients that leave the device. fp32 gradients need none: they are copied from
 * the sum. */
static int slot_out_for(struct ot_program *p, int slab) {
    struct ot_ring *slots = &p->grads_out[ot_slab_slot_kind(p->chain, slab)];
    if (!grads_leave(p, slab) || p->chain->dtype == OT_F32)
        return OT_NO_BUFFER;
    int slot = ot_ring_victim(slots, NULL, 0);
    slots->last[slot] = p->schedule->n_tasks;
    return slots->buffers[slot];
}

/* Takes the squared norm of a complete sum and rounds it to the storage dtype: into one buffer for tiles that
 * wait on the device, and into a slot for the other tiles. Returns the buffer from which these leave. */
static int finish_grad(struct ot_program *p, int slab, int sum, struct ot_tag complete) {
    int out = slot_out_for(p, slab);
    int norms = ot_plan_is_sharded(p->plan) ? p->layout->results_gpu : p->layout->all_results;
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_FINISH, OT_LANE_COMPUTE);
    task->slab = slab;
    task->from = sum;
    task->to = p->layout->slabs[slab].grad_gpu;
    task->via = out;
    task->state = norms;
    ot_program_update(p, task, sum, complete, sum_tag(p, slab));
    if (task->to != OT_NO_BUFFER && task->to != sum)
        ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
    if (out != OT_NO_BUFFER)
        ot_program_write(p, task, out, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
    ot_program_write(p, task, norms, ot_tag(OT_CONTENT_RESULT, slab, 0, 0));
    ot_program_narrow(task, slab, 1);
    if (p->plan->keep_grads)
        keep_grad(p, slab, sum);
    return out != OT_NO_BUFFER ? out : sum;
}

/* from: the slot of gradients on their way out, or the sum in fp32. */
static void grad_out(struct ot_program *p, int slab, int from) {
    if (p->layout->slabs[slab].grad_nvme != OT_NO_BUFFER) {
        ot_program_grads_to_nvme(p, slab, from);
        return;
    }
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

/* Appends the deferred device updates. They wait for a decision on the host, so the next block's backward
 * goes first. */
static void flush_deferred(struct ot_program *p) {
    for (int i = 0; i < p->n_deferred; i++) {
        ot_program_params_in(p, p->deferred[i]);
        ot_program_update_gpu(p, p->deferred[i]);
    }
    p->n_deferred = 0;
}

/* sums: one complete sum. */
static void finish_slab(struct ot_program *p, int slab, const struct sums *sums) {
    const int *tiles = p->plan->slabs[slab].tiles;
    int leaves = finish_grad(p, slab, sums->buffers[0], sums->tags[0]);
    if (grads_leave(p, slab))
        grad_out(p, slab, leaves);
    release_accumulator(p, slab, sums->ids[0]);
    ot_program_result_gather(p, slab);
    p->finished[slab] = true;
    if (ot_plan_sends_norms(p->plan))
        ot_program_result_out(p, slab);
    if (p->plan->clip) {
        ot_program_shadow(p, slab);
        return;
    }
    ot_program_decide(p, slab);
    if (tiles[OT_TILE_GPU] + tiles[OT_TILE_STREAM] > 0)
        p->deferred[p->n_deferred++] = slab;
    ot_program_update_cpu(p, slab);
}

/* With `world` the ranks join each use by itself: the sum over the uses must not depend on the number of
 * ranks. Otherwise a rank adds up its uses first, so that they cross once. */
static bool joins_uses(const struct ot_program *p) {
    return p->plan->shard.world;
}

/* Joins the sums of all ranks, of the slab whose exchange began first. */
static void join_oldest(struct ot_program *p) {
    int slab = p->joining[0];
    for (int i = 1; i < p->n_joining; i++)
        p->joining[i - 1] = p->joining[i];
    p->n_joining--;
    struct sums sums = sums_of(p, slab, joins_uses(p) ? OT_MAX_USES : 1);
    if (!joins_uses(p) && ot_slab_uses(p->chain, slab) > 1)
        sums.tags[0] = tied_tag(slab);
    for (int i = 0; i < sums.n; i++)
        sums.tags[i] = ot_program_join(p, slab, i, sums.buffers[i], sums.tags[i]);
    merge_uses(p, slab, &sums);
    sums.tags[0] = ot_program_gather_sum(p, slab, sums.buffers[0], sums.tags[0]);
    finish_slab(p, slab, &sums);
}

/* Called when a slab has the gradients of all its uses. Several ranks exchange them now and join them after
 * the next block's backward, so that the device computes meanwhile. */
static void complete_slab(struct ot_program *p, int slab) {
    bool alone = !ot_plan_exchanges(p->plan);
    struct sums sums = alone || !joins_uses(p) ? merged_uses(p, slab) : sums_of(p, slab, OT_MAX_USES);
    if (alone) {
        finish_slab(p, slab, &sums);
        return;
    }
    struct ot_ring *ring = &p->exchanges[ot_slab_slot_kind(p->chain, slab)];
    while (p->n_joining > 0 && ot_ring_find(ring, -1) < 0 && p->rc >= 0)
        join_oldest(p);
    for (int i = 0; i < sums.n && p->rc >= 0; i++)
        ot_program_exchange(p, slab, i, sums.buffers[i], sums.tags[i]);
    p->joining[p->n_joining++] = slab;
}

/* ---- before a visit: work that the previous step left ---- */

static void upload(struct ot_program *p, const struct ot_visit *visit) {
    const struct ot_block_spec *block = &p->chain->blocks[visit->block];
    for (int u = 0; u < block->n_uses; u++)
        ot_program_upload(p, block->uses[u].slab);
}

/* Finishes the updates of all streamed tiles that the visit uses. */
static void stream_rest(struct ot_program *p, const struct ot_visit *visit) {
    const struct ot_block_spec *block = &p->chain->blocks[visit->block];
    for (int u = 0; u < block->n_uses; u++)
        ot_program_stream(p, block->uses[u].slab, p->plan->slabs[block->uses[u].slab].tiles[OT_TILE_STREAM]);
}

/* Updates streamed tiles of the next visit between the micro-batches of visit v, if a slot holds their
 * weights already. Meanwhile h2d copies the state of the following tiles. Also updates tiles of the next slab
 * with one copy, because its tiles are updated before the fetch. done: finished micro-batches of visit v. */
static void stream_ahead(struct ot_program *p, int v, int done) {
    if (v + 1 == p->n_visits)
        return;
    const struct ot_block_spec *next = &p->chain->blocks[p->visits[v + 1].block];
    for (int u = 0; u < next->n_uses; u++) {
        int slab = next->uses[u].slab, tiles = p->plan->slabs[slab].tiles[OT_TILE_STREAM];
        if (tiles > 0 && ot_program_weights(p, slab) != OT_NO_BUFFER)
            ot_program_stream(p, slab, tiles * done / p->visits[v].n_micro);
    }
    int slab = ot_program_next_meeting(p);
    if (slab >= 0)
        ot_program_stream(p, slab, p->plan->slabs[slab].tiles[OT_TILE_STREAM] * done / p->visits[v].n_micro);
}

/* Brings the weights of a visit to the device. */
static void prepare(struct ot_program *p, int v) {
    const struct ot_visit *visit = &p->visits[v];
    upload(p, visit);
    ot_program_fetch_ahead(p, v);
    stream_rest(p, visit);
    ot_program_gather(p, v);
    ot_program_decode(p, v);
    p->prepared = v;
}

/* With several ranks the weights of a visit are gathered during the visit before, if there is a slot. */
static bool prepares_ahead(const struct ot_program *p) {
    for (int k = 0; k < OT_SLOT_KINDS; k++)
        if (!ot_slot_kind_is_edge((enum ot_slot_kind)k) &&
            (p->plan->encoded_slots[k] > 0 ? p->plan->encoded_slots[k] : p->plan->weight_slots[k]) == 1)
            return false;
    return ot_plan_is_sharded(p->plan);
}

static void run_forward(struct ot_program *p, int block, int micro, enum ot_half half) {
    ot_program_transfer_for(p, block, micro, false);
    ot_program_forward(p, block, micro, half);
    ot_program_send_boundary(p, block, micro);
}

static void run_backward(struct ot_program *p, int block, int turn) {
    if (ot_program_needs_keys(p, block, turn))
        ot_program_compute_keys(p, block, turn);
    ot_program_transfer_for(p, block, ot_plan_backward_turn(p->plan, turn), true);
    backward(p, block, turn);
    merge_groups(p, block, turn);
}

static void run_visit(struct ot_program *p, int v) {
    const struct ot_visit *visit = &p->visits[v];
    int end = visit->first_micro + visit->n_micro, joining = p->n_joining;
    p->visit = v;
    if (p->prepared < v)
        prepare(p, v);
    enum ot_half half = visit->backward ? OT_HALF_BOTH : ot_program_choose(p, visit);
    for (int m = visit->first_micro; m < end && p->rc >= 0; m++) {
        if (visit->backward)
            run_backward(p, visit->block, m);
        else
            run_forward(p, visit->block, m, half);
        stream_ahead(p, v, m + 1 - visit->first_micro);
        if (m == visit->first_micro + visit->n_micro / 2 && v + 1 < p->n_visits && p->visits[v + 1].backward)
            return_sums(p, p->visits[v + 1].block, p->visits[v + 1].first_micro);
    }
    if (ot_plan_exchanges(p->plan))
        ot_program_transfer_results(p, visit->block,
                                    visit->backward ? ot_plan_backward_turn(p->plan, end - 1) : end - 1,
                                    visit->backward);
    if (prepares_ahead(p) && v + 1 < p->n_visits)
        prepare(p, v + 1);
    if (visit->backward && end != p->plan->max_micro)
        send_sums(p, visit->block);
    if (!visit->backward || end != p->plan->max_micro)
        return;
    flush_deferred(p);
    for (; joining > 0 && p->n_joining > 0 && p->rc >= 0; joining--)
        join_oldest(p);
    const struct ot_block_spec *block = &p->chain->blocks[visit->block];
    for (int u = 0; u < block->n_uses && p->rc >= 0; u++)
        if (!is_frozen(p, visit->block, u) && --p->uses_left[block->uses[u].slab] == 0)
            complete_slab(p, block->uses[u].slab);
}

static int make(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_layout *layout,
                const struct ot_stage_times *times, bool is_draft, struct ot_schedule *out) {
    struct ot_program p;
    if (ot_program_open(&p, chain, plan, layout, OT_PASS_TRAIN, times, out) < 0)
        return ot_program_close(&p);
    out->is_draft = is_draft;
    ot_program_batch_in(&p);
    for (int v = 0; v < p.n_visits && p.rc >= 0; v++)
        run_visit(&p, v);
    while (p.n_joining > 0 && p.rc >= 0)
        join_oldest(&p);
    flush_deferred(&p);
    ot_program_transfer_before(&p, INT_MAX);
    ot_program_result_gather(&p, -1);
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

int ot_schedule_make_train(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, struct ot_schedule *out) {
    return make(chain, plan, layout, NULL, false, out);
}

int ot_schedule_make_draft(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, const struct ot_stage_times *times,
                           struct ot_schedule *out) {
    return make(chain, plan, layout, times, true, out);
}
