/* Tasks of the comm lane and their helpers: they gather weights and exchange gradients.
 *
 * The comm lane runs in the listed order, and every rank must list the same operations in the same order. So
 * the order here follows from the chain, the shard mode, the rounds and the numbers of slots, and from
 * nothing else of the plan: not from homes, engines or tiles. With one copy (slabs.h) it also follows from
 * which weights are on the host. A plan with stages has other operations on each rank of a pipeline
 * (program_stages.c), and on the holders of a stage the same.
 *
 * A block's weights are gathered before the gradients of the block before it are exchanged: otherwise the
 * gather would wait for that block's backward.
 */
#include <limits.h>

#include "offload/plan/stages.h"
#include "offload/schedule/program.h"
#include "src/base/hash.h"

/* States of a slab's gradient sum, for tags. */
enum { SUM_NARROW = -3, SUM_RECEIVED = -4, SUM_JOINED = -5, SUM_GATHERED = -6 };

static int exchange_id(int slab, int use) {
    return slab * OT_MAX_USES + use;
}

static struct ot_tag sum_tag(int slab, int use, int what) {
    return ot_tag(OT_CONTENT_GRAD_SUM, exchange_id(slab, use), what, 0);
}

/* An operation of a slab's holders. */
static struct ot_task *holders_task(struct ot_program *p, enum ot_task_kind kind, int slab) {
    struct ot_task *task = ot_program_task(p, kind, OT_LANE_COMM);
    task->slab = slab;
    task->tick = p->tick;
    return task;
}

/* ---- weights ---- */

static void gather_slab(struct ot_program *p, int slab) {
    int tiles = ot_slab_tiles(p->chain, p->plan, slab);
    struct ot_tag tag = ot_program_weights_tag(p, slab, 0);
    struct ot_task *task = holders_task(p, OT_TASK_GATHER, slab);
    task->from = ot_program_held_weights(p, slab);
    task->to = ot_program_stored_weights(p, slab);
    ot_program_read(p, task, task->from, tag);
    ot_program_narrow(task, 0, tiles);
    ot_program_write(p, task, task->to, tag);
    if (task->from == task->to)
        ot_program_narrow(task, tiles, 1); /* only the rest: the holding is valid */
    else
        ot_program_narrow(task, 0, tiles + 1);
    p->gathered[slab] = true;
}

void ot_program_gather(struct ot_program *p, int visit) {
    const struct ot_visit *at = &p->visits[visit];
    const struct ot_block_spec *block = &p->chain->blocks[at->block];
    if (!ot_plan_is_sharded(p->plan))
        return;
    for (int u = 0; u < block->n_uses && p->rc >= 0; u++) {
        int slab = block->uses[u].slab;
        bool needed = !at->backward || block->uses[u].needed_in_backward;
        bool whole = p->gathered[slab] || ot_slab_has_one_copy(p->plan, slab);
        if (!whole && needed && ot_slab_is_own(p->plan, slab)) /* else it was borrowed as a whole */
            gather_slab(p, slab);
    }
}

static void meet(struct ot_program *p, int slab) {
    int tiles = ot_slab_tiles(p->chain, p->plan, slab), weights = p->layout->slabs[slab].weights_host;
    struct ot_tag tag = ot_program_weights_tag(p, slab, 0);
    struct ot_task *task = ot_program_task(p, OT_TASK_MEET, OT_LANE_COMM);
    task->slab = slab;
    task->to = p->layout->meeting;
    ot_program_scratch(p, task, task->to);
    ot_program_read(p, task, weights, tag);
    ot_program_narrow(task, 0, tiles);
    ot_program_write(p, task, weights, tag);
    ot_program_narrow(task, tiles, 1);
    p->met[slab] = true;
}

void ot_program_meet(struct ot_program *p, int slab) {
    if (p->met[slab])
        return;
    ot_program_stream(p, slab, p->plan->slabs[slab].tiles[OT_TILE_STREAM]);
    meet(p, slab);
}

/* After the exchange of a slab's gradients, the other ranks may update their shares of its one copy. */
static void lose_rest(struct ot_program *p, struct ot_task *task) {
    if (!ot_slab_has_one_copy(p->plan, task->slab))
        return;
    ot_program_scratch(p, task, p->layout->slabs[task->slab].weights_host);
    ot_program_narrow(task, ot_slab_tiles(p->chain, p->plan, task->slab), 1);
}

int ot_schedule_make_gather(const struct ot_chain *chain, const struct ot_plan *plan,
                            const struct ot_layout *layout, struct ot_schedule *out) {
    struct ot_program p;
    if (ot_program_open(&p, chain, plan, layout, OT_PASS_EVAL, NULL, out) < 0)
        return ot_program_close(&p);
    out->alone = true;
    for (int s = 0; s < chain->n_slabs && p.rc >= 0; s++)
        if (ot_plan_is_sharded(plan) && !ot_slab_is_streamed(plan, s) && ot_slab_is_own(plan, s))
            gather_slab(&p, s);
        else if (ot_slab_has_one_copy(plan, s))
            meet(&p, s);
    return ot_program_close(&p);
}

/* ---- gradients ---- */

void ot_program_exchange(struct ot_program *p, int slab, int use, int sum, struct ot_tag local) {
    struct ot_ring *ring = &p->exchanges[ot_slab_slot_kind(p->chain, slab)];
    struct ot_tag narrowed = sum_tag(slab, use, SUM_NARROW), received = sum_tag(slab, use, SUM_RECEIVED);
    int slot = p->rc < 0 ? -1 : ot_ring_take(ring, exchange_id(slab, use), p->schedule->n_tasks);
    if (slot < 0) {
        p->rc = p->rc < 0 ? p->rc : slot;
        return;
    }
    int place = ring->buffers[slot];
    if (p->plan->shard.narrow) {
        struct ot_task *narrow = ot_program_task(p, OT_TASK_GRAD_NARROW, OT_LANE_COMPUTE);
        narrow->slab = slab;
        narrow->from = sum;
        narrow->to = place;
        ot_program_read(p, narrow, sum, local);
        ot_program_write(p, narrow, place, narrowed);
    }
    struct ot_task *task = holders_task(p, OT_TASK_EXCHANGE, slab);
    task->from = sum;
    task->to = place;
    if (p->plan->shard.narrow) {
        ot_program_update(p, task, place, narrowed, received);
    } else {
        ot_program_read(p, task, sum, local);
        ot_program_write(p, task, place, received);
    }
    lose_rest(p, task);
}

struct ot_tag ot_program_join(struct ot_program *p, int slab, int use, int sum, struct ot_tag local) {
    struct ot_ring *ring = &p->exchanges[ot_slab_slot_kind(p->chain, slab)];
    int slot = ot_ring_find(ring, exchange_id(slab, use));
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_JOIN, OT_LANE_COMPUTE);
    task->slab = slab;
    task->from = slot < 0 ? OT_NO_BUFFER : ring->buffers[slot];
    task->to = sum;
    ot_program_read(p, task, task->from, sum_tag(slab, use, SUM_RECEIVED));
    ot_program_update(p, task, sum, local, sum_tag(slab, use, SUM_JOINED));
    if (slot >= 0) {
        ring->owner[slot] = -1;
        ring->last[slot] = p->schedule->n_tasks;
    }
    return sum_tag(slab, use, SUM_JOINED);
}

struct ot_tag ot_program_gather_sum(struct ot_program *p, int slab, int sum, struct ot_tag joined) {
    if (ot_plan_is_sharded(p->plan))
        return joined;
    struct ot_task *task = ot_program_task(p, OT_TASK_GRAD_GATHER, OT_LANE_COMM);
    task->slab = slab;
    task->to = sum;
    ot_program_update(p, task, sum, joined, sum_tag(slab, 0, SUM_GATHERED));
    return sum_tag(slab, 0, SUM_GATHERED);
}

uint32_t ot_schedule_operations(const struct ot_schedule *schedule, uint32_t crc) {
    if (schedule->stage_crc != 0)
        return ot_crc32(crc, &schedule->stage_crc, sizeof schedule->stage_crc);
    for (int i = 0; i < schedule->lane_count[OT_LANE_COMM]; i++) {
        const struct ot_task *task = &schedule->tasks[schedule->lane_tasks[OT_LANE_COMM][i]];
        int32_t operation[2] = {task->kind, task->slab};
        crc = ot_crc32(crc, operation, sizeof operation);
    }
    return crc;
}

/* ---- results ---- */

/* With stages each rank has the norms of its own slabs, and one rank of a replica has the losses: they are
 * gathered once, together. Before that the holders of a slab gather its norms. */
static void gather_stage_results(struct ot_program *p, int slab) {
    if (slab >= 0 && !ot_plan_is_sharded(p->plan))
        return;
    struct ot_task *task = holders_task(p, OT_TASK_RESULT_GATHER, slab);
    task->from = task->to = p->layout->all_results;
    if (slab < 0) {
        task->tick = INT_MAX;
        ot_program_access(p, task, task->to, true, true);
        return;
    }
    struct ot_tag tag = ot_tag(OT_CONTENT_RESULT, slab, 0, 0);
    ot_program_update(p, task, task->to, tag, tag);
    ot_program_narrow(task, slab, 1);
}

void ot_program_result_gather(struct ot_program *p, int slab) {
    int tile = slab >= 0 ? slab : p->chain->n_slabs;
    if (ot_plan_has_stages(p->plan)) {
        gather_stage_results(p, slab);
        return;
    }
    struct ot_tag tag = slab >= 0 ? ot_tag(OT_CONTENT_RESULT, slab, 0, 0) : (struct ot_tag){0};
    if (ot_shard_ranks(&p->plan->shard) == 1 || (slab >= 0 && !ot_plan_is_sharded(p->plan)))
        return;
    struct ot_task *task = ot_program_task(p, OT_TASK_RESULT_GATHER, OT_LANE_COMM);
    task->slab = slab;
    task->from = p->layout->results_gpu;
    task->to = p->layout->all_results;
    ot_program_update(p, task, task->from, tag, tag); /* it writes the rank's requests beside the losses */
    ot_program_narrow(task, tile, 1);
    ot_program_write(p, task, task->to, tag);
    ot_program_narrow(task, tile, 1);
}
