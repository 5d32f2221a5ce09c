/* Forward alone (evaluation, generation), and the pieces of a program that training uses as well. */
#include <stdlib.h>
#include <string.h>

#include "offload/schedule/program.h"
#include "src/base/error.h"

/* ---- opening: which blocks run when, and which streamed slabs they need ---- */

static void add_visits(struct ot_program *p, int first_micro, int n_micro) {
    int n = p->chain->n_blocks;
    bool train = p->pass == OT_PASS_TRAIN;
    for (int b = 0; b < (train ? n - 1 : n); b++) /* the last block's forward is fused into its backward */
        p->visits[p->n_visits++] = (struct ot_visit){b, false, first_micro, n_micro};
    for (int b = n - 1; train && b >= 0; b--)
        p->visits[p->n_visits++] = (struct ot_visit){b, true, first_micro, n_micro};
}

static void add_needs(struct ot_program *p, int v) {
    const struct ot_visit *visit = &p->visits[v];
    const struct ot_block_spec *block = &p->chain->blocks[visit->block];
    for (int u = 0; u < block->n_uses; u++)
        if (ot_slab_is_streamed(p->plan, block->uses[u].slab) &&
            (!visit->backward || block->uses[u].needed_in_backward))
            p->needs[p->n_needs++] = (struct ot_need){block->uses[u].slab, v};
}

/* Boundaries whose home is not the device come back for backward; the newest two are still on the device (see
 * ot_layout). */
static void add_returns(struct ot_program *p) {
    if (!ot_layout_spills_boundaries(p->layout))
        return;
    for (int v = 0; v < p->n_visits; v++) {
        const struct ot_visit *visit = &p->visits[v];
        int boundary = visit->block - 1;
        if (!visit->backward || boundary < 0 || boundary >= p->chain->n_blocks - 1 - p->layout->n_boundaries)
            continue;
        for (int m = visit->first_micro; m < visit->first_micro + visit->n_micro; m++)
            p->returns[p->n_returns++] = (struct ot_return){boundary, m, -1};
    }
}

int ot_program_open(struct ot_program *p, const struct ot_chain *chain, const struct ot_plan *plan,
                    const struct ot_layout *layout, enum ot_pass pass, struct ot_schedule *out) {
    bool train = pass == OT_PASS_TRAIN, micro_major = train && plan->order == OT_ORDER_MICRO;
    size_t rounds = micro_major ? (size_t)plan->max_micro : 1, n = (size_t)chain->n_blocks;
    memset(p, 0, sizeof *p);
    memset(out, 0, sizeof *out);
    *p = (struct ot_program){.chain = chain, .plan = plan, .layout = layout, .schedule = out, .pass = pass};
    p->visits = calloc(2 * n * rounds, sizeof *p->visits);
    p->needs = calloc(2 * n * rounds * OT_MAX_USES, sizeof *p->needs);
    p->returns = calloc(n * (size_t)plan->max_micro, sizeof *p->returns);
    p->uses_left = calloc((size_t)chain->n_slabs, sizeof *p->uses_left);
    p->deferred = calloc((size_t)chain->n_slabs, sizeof *p->deferred);
    p->streamed = calloc((size_t)chain->n_slabs, sizeof *p->streamed);
    p->uploaded = calloc((size_t)chain->n_slabs, sizeof *p->uploaded);
    if (!p->visits || !p->needs || !p->returns || !p->uses_left || !p->deferred || !p->streamed ||
        !p->uploaded)
        return p->rc = ot_fail(OT_E_BUDGET, "no memory for the schedule of %d blocks", chain->n_blocks);
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        OT_TRY(p->rc = ot_ring_open(&p->weights[k], layout->weight_slots[k], plan->weight_slots[k]));
        OT_TRY(p->rc = ot_ring_open(&p->grads[k], layout->grad_slots[k], plan->grad_slots[k]));
        OT_TRY(p->rc = ot_ring_open(&p->stages[k], layout->stage_slots[k], plan->stage_slots[k]));
        OT_TRY(p->rc = ot_ring_open(&p->host_weights[k], layout->host_weight_slots[k],
                                    plan->host_weight_slots[k]));
    }
    for (size_t r = 0; r < rounds; r++)
        add_visits(p, (int)r, micro_major || !train ? 1 : plan->max_micro);
    for (int v = 0; v < p->n_visits; v++)
        add_needs(p, v);
    if (train)
        add_returns(p);
    for (int s = 0; s < chain->n_slabs; s++) {
        p->uses_left[s] = ot_slab_uses(chain, s);
        p->streamed[s] =
            train ? 0 : plan->slabs[s].tiles[OT_TILE_STREAM]; /* a flush comes before the others */
    }
    return 0;
}

int ot_program_close(struct ot_program *p) {
    int rc = p->rc;
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        ot_ring_close(&p->weights[k]);
        ot_ring_close(&p->grads[k]);
        ot_ring_close(&p->stages[k]);
        ot_ring_close(&p->host_weights[k]);
    }
    free(p->visits);
    free(p->needs);
    free(p->returns);
    free(p->uses_left);
    free(p->deferred);
    free(p->streamed);
    free(p->uploaded);
    if (rc >= 0)
        rc = ot_schedule_link(p->schedule, p->layout);
    if (rc < 0)
        ot_schedule_free(p->schedule);
    return rc;
}

/* ---- weights ---- */

struct ot_tile_span ot_program_whole(const struct ot_program *p, int slab) {
    return ot_slab_span(p->chain, p->plan, slab, 0, ot_slab_tiles(p->chain, p->plan, slab));
}

/* Some of the moved tiles, all of one version. */
static void move_tiles(struct ot_program *p, struct ot_task *task, int places[2], int first, int end,
                       int version) {
    struct ot_tag tag = ot_tag(OT_CONTENT_WEIGHTS, task->slab, 0, version);
    int from = first > task->span.first_tile ? first : task->span.first_tile;
    int to = task->span.first_tile + task->span.n_tiles;
    to = end < to ? end : to;
    if (from >= to)
        return;
    ot_program_read(p, task, places[0], tag);
    ot_program_narrow(task, from, to - from);
    ot_program_write(p, task, places[1], tag);
    ot_program_narrow(task, from, to - from);
}

void ot_program_move_weights(struct ot_program *p, struct ot_task *task, int from, int to) {
    int slab = task->slab, places[2] = {from, to};
    struct ot_tile_span stream = ot_slab_part(p->chain, p->plan, slab, OT_TILE_STREAM);
    int pending = stream.first_tile + p->streamed[slab], end = stream.first_tile + stream.n_tiles;
    move_tiles(p, task, places, 0, pending, 0);
    move_tiles(p, task, places, pending, end, -1);
    move_tiles(p, task, places, end, task->span.first_tile + task->span.n_tiles, 0);
}

void ot_program_fetch(struct ot_program *p, int slab, int slot, struct ot_tile_span span) {
    struct ot_ring *ring = &p->weights[ot_slab_slot_kind(p->chain, slab)];
    int from = ot_program_weights_on_host(p, slab, span);
    struct ot_task *task = ot_program_task(p, OT_TASK_FETCH, OT_LANE_H2D);
    task->slab = slab;
    task->span = span;
    task->from = from;
    task->to = ring->buffers[slot];
    ot_program_move_weights(p, task, task->from, task->to);
    ring->owner[slot] = slab;
    ring->last[slot] = p->schedule->n_tasks;
}

/* Needs looked at: the rings of both kinds hold no more, so whoever looks further finds them blocked. */
enum { LOOK_AHEAD = OT_SLOT_KINDS * OT_PLAN_MAX_SLOTS };

/* Emits the fetch of need `i` unless its slab is there. False: every slot is held by something needed at or
 * before it. */
static bool fetch_need(struct ot_program *p, int i) {
    int slab = p->needs[i].slab, needed[LOOK_AHEAD], n_needed = 0;
    struct ot_ring *ring = &p->weights[ot_slab_slot_kind(p->chain, slab)];
    if (ot_ring_find(ring, slab) >= 0)
        return true;
    for (int j = p->next_need; j < i; j++)
        needed[n_needed++] = p->needs[j].slab;
    int slot = ot_ring_victim(ring, needed, n_needed);
    if (slot < 0)
        return false;
    ot_program_fetch(p, slab, slot, ot_program_whole(p, slab));
    return true;
}

void ot_program_fetch_ahead(struct ot_program *p, int visit) {
    bool blocked[OT_SLOT_KINDS] = {false};
    while (p->next_need < p->n_needs && p->needs[p->next_need].visit < visit)
        p->next_need++;
    for (int i = p->next_need; i < p->n_needs && i < p->next_need + LOOK_AHEAD && p->rc >= 0; i++) {
        enum ot_slot_kind kind = ot_slab_slot_kind(p->chain, p->needs[i].slab);
        if (!blocked[kind])
            blocked[kind] = !fetch_need(p, i);
        if (blocked[kind] && p->needs[i].visit == visit)
            p->rc = ot_fail_cause(OT_E_USAGE, OT_CAUSE_WEIGHT_SLOTS,
                                  "plan: block '%s' needs more weight slots at once than there are",
                                  p->chain->blocks[p->visits[visit].block].name);
    }
}

int ot_program_weights(struct ot_program *p, int slab) {
    if (!ot_slab_is_streamed(p->plan, slab))
        return p->layout->slabs[slab].weights_gpu;
    struct ot_ring *ring = &p->weights[ot_slab_slot_kind(p->chain, slab)];
    int slot = ot_ring_find(ring, slab);
    if (slot < 0)
        return OT_NO_BUFFER;
    ring->last[slot] = p->schedule->n_tasks;
    return ring->buffers[slot];
}

/* ---- blocks ---- */

void ot_program_batch_in(struct ot_program *p) {
    struct ot_task *task = ot_program_task(p, OT_TASK_BATCH_IN, OT_LANE_H2D);
    struct ot_tag tag = ot_tag(OT_CONTENT_BATCH, 0, 0, 0);
    task->from = p->layout->batch_host[0];
    task->to = p->layout->batch_gpu[0];
    ot_program_read(p, task, task->from, tag);
    ot_program_last(task)->parity = true;
    ot_program_write(p, task, task->to, tag);
    ot_program_last(task)->parity = true;
}

/* Weights of the uses, token arrays, tables and scratch: what every call of a block touches. */
void ot_program_block_inputs(struct ot_program *p, struct ot_task *task, int n_uses) {
    const struct ot_block_spec *block = &p->chain->blocks[task->block];
    bool backward = task->kind == OT_TASK_BACKWARD;
    for (int u = 0; u < n_uses; u++) {
        if (backward && !block->uses[u].needed_in_backward)
            continue;
        int slab = block->uses[u].slab;
        task->weights[u] = ot_program_weights(p, slab);
        ot_program_read(p, task, task->weights[u], ot_tag(OT_CONTENT_WEIGHTS, slab, 0, 0));
        ot_program_narrow(task, 0, ot_slab_tiles(p->chain, p->plan, slab));
    }
    ot_program_read(p, task, p->layout->batch_gpu[0], ot_tag(OT_CONTENT_BATCH, 0, 0, 0));
    ot_program_last(task)->parity = true;
    ot_program_read(p, task, p->layout->constants, ot_tag(OT_CONTENT_CONSTANTS, 0, 0, 0));
    ot_program_scratch(p, task, p->layout->scratch);
}

void ot_program_forward(struct ot_program *p, int block, int micro) {
    const struct ot_layout *layout = p->layout;
    struct ot_task *task = ot_program_task(p, OT_TASK_FORWARD, OT_LANE_COMPUTE);
    bool last = block == p->chain->n_blocks - 1;
    task->block = block;
    task->micro = micro;
    ot_program_block_inputs(p, task, p->chain->blocks[block].n_uses);
    if (block > 0) {
        task->x = ot_layout_boundary(layout, p->plan, block - 1, micro);
        ot_program_read(p, task, task->x, ot_tag(OT_CONTENT_BOUNDARY, block - 1, micro, 0));
    }
    if (!last) {
        task->y = ot_layout_boundary(layout, p->plan, block, micro);
        ot_program_write(p, task, task->y, ot_tag(OT_CONTENT_BOUNDARY, block, micro, 0));
    } else {
        task->y = p->pass == OT_PASS_DECODE ? layout->logits : layout->token_loss;
        ot_program_write(p, task, task->y, ot_tag(OT_CONTENT_LOSS, 0, 0, 0));
    }
    int kept =
        p->pass == OT_PASS_TRAIN ? ot_layout_saved(layout, p->chain, p->plan, block, micro) : OT_NO_BUFFER;
    task->saved = kept != OT_NO_BUFFER ? kept : layout->saved_scratch;
    ot_program_write(p, task, task->saved, ot_tag(OT_CONTENT_SAVED, block, micro, 0));
}

int ot_schedule_make_forward(const struct ot_chain *chain, const struct ot_plan *plan,
                             const struct ot_layout *layout, enum ot_pass pass, struct ot_schedule *out) {
    struct ot_program p;
    if (ot_program_open(&p, chain, plan, layout, pass, out) < 0)
        return ot_program_close(&p);
    ot_program_batch_in(&p);
    for (int v = 0; v < p.n_visits && p.rc >= 0; v++) {
        ot_program_fetch_ahead(&p, v);
        ot_program_forward(&p, p.visits[v].block, 0);
    }
    struct ot_task *task = ot_program_task(&p, OT_TASK_LOSS_OUT, OT_LANE_D2H);
    task->from = pass == OT_PASS_DECODE ? layout->logits : layout->token_loss;
    task->to = layout->results_host[0];
    ot_program_read(&p, task, task->from, ot_tag(OT_CONTENT_LOSS, 0, 0, 0));
    ot_program_write(&p, task, task->to, ot_tag(OT_CONTENT_LOSS, 0, 0, 0));
    ot_program_last(task)->parity = true;
    return ot_program_close(&p);
}
