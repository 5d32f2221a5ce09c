/* A forward pass alone (evaluation, generation), and the parts of a program that training uses too. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "offload/schedule/program.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- opening: the order of the blocks, and the streamed slabs that they need ---- */

static void add_visits(struct ot_program *p, int first_micro, int n_micro) {
    int n = p->chain->n_blocks;
    bool train = p->pass == OT_PASS_TRAIN;
    for (int b = 0; b < (train ? n - 1 : n); b++) /* the last block's backward includes its forward */
        p->visits[p->n_visits++] = (struct ot_visit){b, false, first_micro, n_micro};
    for (int b = n - 1; train && b >= ot_chain_first_trained(p->chain); b--)
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

/* The limit is the number of slots in the rings of all kinds: further needs find no slot. */
enum { MOST_LOOKED_AT = OT_SLOT_KINDS * OT_PLAN_MAX_SLOTS };
static int find_look_ahead(const struct ot_chain *chain) {
    bool has[OT_SLOT_KINDS] = {false};
    int n = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        has[ot_slab_slot_kind(chain, s)] = true;
    for (int k = 0; k < OT_SLOT_KINDS; k++)
        n += has[k] ? OT_PLAN_MAX_SLOTS : 0;
    return n;
}

int ot_program_open(struct ot_program *p, const struct ot_chain *chain, const struct ot_plan *plan,
                    const struct ot_layout *layout, enum ot_pass pass, const struct ot_stage_times *times,
                    struct ot_schedule *out) {
    bool train = pass == OT_PASS_TRAIN;
    int n_rounds = train ? ot_plan_rounds(plan) : 1;
    int n_forward = pass == OT_PASS_EVAL ? ot_plan_sections(plan) : 1; /* prompts set their own */
    size_t rounds = (size_t)n_rounds, n = (size_t)chain->n_blocks;
    memset(out, 0, sizeof *out);
    *p = (struct ot_program){.chain = chain, .plan = plan, .layout = layout, .schedule = out, .pass = pass};
    p->visits = calloc(2 * n * rounds, sizeof *p->visits);
    p->needs = calloc(2 * n * rounds * OT_MAX_USES, sizeof *p->needs);
    p->uses_left = calloc((size_t)chain->n_slabs, sizeof *p->uses_left);
    p->deferred = calloc((size_t)chain->n_slabs, sizeof *p->deferred);
    p->streamed = calloc((size_t)chain->n_slabs, sizeof *p->streamed);
    p->uploaded = calloc((size_t)chain->n_slabs, sizeof *p->uploaded);
    p->gathered = calloc((size_t)chain->n_slabs, sizeof *p->gathered);
    p->met = calloc((size_t)chain->n_slabs, sizeof *p->met);
    p->finished = calloc((size_t)chain->n_slabs, sizeof *p->finished);
    p->in_slot = calloc((size_t)chain->n_slabs, sizeof *p->in_slot);
    p->in_host_slot = calloc((size_t)chain->n_slabs, sizeof *p->in_host_slot);
    p->decoded = calloc((size_t)chain->n_slabs, sizeof *p->decoded);
    p->chosen = calloc(n, sizeof *p->chosen);
    p->halves = calloc((size_t)layout->places, sizeof *p->halves);
    p->joining = calloc((size_t)chain->n_slabs, sizeof *p->joining);
    p->sums = calloc((size_t)ot_layout_sum(chain->n_blocks, 0, 0), sizeof *p->sums);
    p->prepared = p->tick = -1;
    p->look_ahead = find_look_ahead(chain);
    if (!p->visits || !p->needs || !p->uses_left || !p->deferred || !p->streamed || !p->uploaded ||
        !p->gathered || !p->met || !p->finished || !p->in_slot || !p->in_host_slot || !p->decoded ||
        !p->chosen || !p->halves || !p->joining || !p->sums)
        return p->rc = ot_fail(OT_E_BUDGET, "no memory for the schedule of %d blocks", chain->n_blocks);
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        OT_TRY(p->rc = ot_ring_open(&p->weights[k], layout->weight_slots[k], plan->weight_slots[k]));
        OT_TRY(p->rc = ot_ring_open(&p->encoded[k], layout->encoded_slots[k], plan->encoded_slots[k]));
        OT_TRY(p->rc = ot_ring_open(&p->grads[k], layout->grad_slots[k], plan->grad_slots[k]));
        OT_TRY(p->rc = ot_ring_open(&p->grads_out[k], layout->grad_out_slots[k], plan->grad_out_slots[k]));
        OT_TRY(p->rc = ot_ring_open(&p->exchanges[k], layout->exchange_slots[k], plan->exchange_slots[k]));
        OT_TRY(p->rc = ot_ring_open(&p->host_weights[k], layout->host_weight_slots[k],
                                    plan->host_weight_slots[k]));
    }
    OT_TRY(p->rc = ot_program_open_stages(p, times));
    for (int r = 0; r < n_rounds && !ot_plan_has_stages(plan); r++) {
        struct ot_round round = train ? ot_plan_round(plan, r) : (struct ot_round){0, n_forward};
        add_visits(p, round.first, round.n);
    }
    for (int v = 0; v < p->n_visits; v++)
        add_needs(p, v);
    OT_TRY(p->rc = ot_program_open_activations(p));
    for (int s = 0; s < chain->n_slabs; s++) {
        p->uses_left[s] = ot_slab_uses(chain, s);
        /* Other passes come after a flush, so nothing is pending, and whole weights are whole. */
        p->streamed[s] = train ? 0 : plan->slabs[s].tiles[OT_TILE_STREAM];
        bool same = !train || chain->slabs[s].frozen; /* no rank has updated it since */
        p->gathered[s] = same && !ot_slab_is_streamed(plan, s);
        p->met[s] = same;
        p->finished[s] = chain->slabs[s].frozen;
    }
    return 0;
}

int ot_program_close(struct ot_program *p) {
    int rc = p->rc;
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        ot_ring_close(&p->weights[k]);
        ot_ring_close(&p->encoded[k]);
        ot_ring_close(&p->grads[k]);
        ot_ring_close(&p->grads_out[k]);
        ot_ring_close(&p->host_weights[k]);
        ot_ring_close(&p->exchanges[k]);
    }
    free(p->visits);
    free(p->needs);
    ot_program_close_activations(p);
    ot_program_close_stages(p);
    free(p->uses_left);
    free(p->deferred);
    free(p->streamed);
    free(p->uploaded);
    free(p->gathered);
    free(p->met);
    free(p->finished);
    free(p->in_slot);
    free(p->in_host_slot);
    free(p->decoded);
    free(p->chosen);
    free(p->halves);
    free(p->joining);
    free(p->sums);
    if (rc >= 0 && !p->schedule->is_draft)
        rc = ot_schedule_link(p->schedule, p->layout);
    if (rc < 0)
        ot_schedule_free(p->schedule);
    return rc;
}

/* ---- weights ---- */

struct ot_tag ot_program_weights_tag(const struct ot_program *p, int slab, int version) {
    return p->chain->slabs[slab].frozen ? ot_tag(OT_CONTENT_FROZEN, slab, 0, 0)
                                        : ot_tag(OT_CONTENT_WEIGHTS, slab, 0, version);
}

struct ot_tile_span ot_program_whole(const struct ot_program *p, int slab) {
    if (ot_slab_has_one_copy(p->plan, slab))
        return (struct ot_tile_span){.n_tiles = ot_slab_used_tiles(p->chain, p->plan, slab),
                                     .n = ot_slab_units(p->chain, slab)};
    return ot_slab_span(p->chain, p->plan, slab, 0, ot_slab_tiles(p->chain, p->plan, slab));
}

/* Adds the accesses of the moved tiles in [first, end), which all have one version. */
static void move_tiles(struct ot_program *p, struct ot_task *task, int places[2], int first, int end,
                       int version) {
    struct ot_tag tag = ot_program_weights_tag(p, task->slab, version);
    int from = ot_max(first, task->span.first_tile);
    int to = task->span.first_tile + task->span.n_tiles;
    to = ot_min(end, to);
    if (from >= to)
        return;
    ot_program_read(p, task, places[0], tag);
    ot_program_narrow(task, from, to - from);
    ot_program_write(p, task, places[1], tag);
    ot_program_narrow(task, from, to - from);
}

void ot_program_move_weights(struct ot_program *p, struct ot_task *task, int from, int to) {
    int slab = task->slab, places[2] = {from, to};
    struct ot_tile_span stream = ot_slab_engine_tiles(p->chain, p->plan, slab, OT_TILE_STREAM);
    int pending = stream.first_tile + p->streamed[slab], end = stream.first_tile + stream.n_tiles;
    move_tiles(p, task, places, 0, pending, 0);
    move_tiles(p, task, places, pending, end, -1);
    move_tiles(p, task, places, end, task->span.first_tile + task->span.n_tiles, 0);
}

struct ot_ring *ot_program_fetch_ring(struct ot_program *p, int slab) {
    enum ot_slot_kind kind = ot_slab_slot_kind(p->chain, slab);
    return ot_slab_is_encoded(p->chain, slab) ? &p->encoded[kind] : &p->weights[kind];
}

void ot_program_fetch(struct ot_program *p, int slab, int slot, struct ot_tile_span span,
                      enum ot_fetched fetched) {
    struct ot_ring *ring = ot_program_fetch_ring(p, slab);
    if (ring->owner[slot] >= 0)
        p->gathered[ring->owner[slot]] = false;
    if (ot_slab_has_one_copy(p->plan, slab) && span.n_tiles == ot_program_whole(p, slab).n_tiles)
        ot_program_meet(p, slab);
    if (!ot_slab_is_resident(p->plan, slab)) { /* else the gather fills in the slot */
        int from = ot_program_weights_on_host(p, slab, span, fetched);
        struct ot_task *task = ot_program_task(p, OT_TASK_FETCH, OT_LANE_H2D);
        task->slab = slab;
        task->span = span;
        task->from = from;
        task->to = ring->buffers[slot];
        if (fetched == OT_FETCH_ALL)
            ot_program_move_weights(p, task, task->from, task->to);
        else
            ot_program_move_parts(p, task, fetched);
    }
    ring->owner[slot] = slab;
    ring->last[slot] = p->schedule->n_tasks;
}

int ot_program_spare_slot(struct ot_program *p, struct ot_ring *ring) {
    const struct ot_visit *visit = p->prepared > p->visit ? &p->visits[p->prepared] : NULL;
    const struct ot_block_spec *block = visit ? &p->chain->blocks[visit->block] : NULL;
    int needed[OT_MAX_USES], n = 0;
    for (int u = 0; block && u < block->n_uses; u++)
        needed[n++] = block->uses[u].slab;
    int slot = ot_ring_victim(ring, needed, n);
    if (slot < 0 && p->rc >= 0)
        p->rc = ot_fail_cause(OT_E_USAGE, OT_CAUSE_WEIGHT_SLOTS,
                              "plan: an update needs one weight slot more than there are");
    return slot;
}

/* Appends the fetch of need `i`, unless its slab is in a slot. Returns false if an earlier need holds every
 * slot, or if it is too early. */
static bool fetch_need(struct ot_program *p, int i) {
    int slab = p->needs[i].slab, needed[MOST_LOOKED_AT], n_needed = 0;
    struct ot_ring *ring = ot_program_fetch_ring(p, slab);
    if (ot_ring_find(ring, slab) >= 0)
        return true;
    for (int j = p->next_need; j < i; j++)
        needed[n_needed++] = p->needs[j].slab;
    int slot = ot_ring_victim(ring, needed, n_needed);
    if (slot < 0 || !ot_program_may_fetch(p, slab, p->needs[i].visit))
        return false;
    ot_program_fetch(p, slab, slot, ot_program_whole(p, slab),
                     ot_program_fetched(p, slab, p->needs[i].visit));
    return true;
}

int ot_program_next_meeting(const struct ot_program *p) {
    for (int i = p->next_need; i < p->n_needs && i < p->next_need + p->look_ahead; i++)
        if (ot_slab_has_one_copy(p->plan, p->needs[i].slab) && !p->met[p->needs[i].slab])
            return p->needs[i].slab;
    return -1;
}

void ot_program_fetch_ahead(struct ot_program *p, int visit) {
    bool blocked[2][OT_SLOT_KINDS] = {{false}};
    while (p->next_need < p->n_needs && p->needs[p->next_need].visit < visit)
        p->next_need++;
    for (int i = p->next_need; i < p->n_needs && i < p->next_need + p->look_ahead && p->rc >= 0; i++) {
        int slab = p->needs[i].slab;
        bool *is_blocked = &blocked[ot_slab_is_encoded(p->chain, slab)][ot_slab_slot_kind(p->chain, slab)];
        if (!*is_blocked)
            *is_blocked = !fetch_need(p, i);
        if (*is_blocked && p->needs[i].visit == visit)
            p->rc = ot_fail_cause(OT_E_USAGE, OT_CAUSE_WEIGHT_SLOTS,
                                  "plan: block '%s' needs more weight slots at once than there are",
                                  p->chain->blocks[p->visits[visit].block].name);
    }
}

/* Returns the buffer of the slab's slot. OT_NO_BUFFER: no slot has it. */
static int find_slot(struct ot_program *p, struct ot_ring *ring, int slab) {
    int slot = ot_ring_find(ring, slab);
    if (slot < 0)
        return OT_NO_BUFFER;
    ring->last[slot] = p->schedule->n_tasks;
    return ring->buffers[slot];
}

int ot_program_stored_weights(struct ot_program *p, int slab) {
    return ot_slab_is_streamed(p->plan, slab) ? find_slot(p, ot_program_fetch_ring(p, slab), slab)
                                              : p->layout->slabs[slab].weights_gpu;
}

int ot_program_weights(struct ot_program *p, int slab) {
    return ot_slab_is_encoded(p->chain, slab)
               ? find_slot(p, &p->weights[ot_slab_slot_kind(p->chain, slab)], slab)
               : ot_program_stored_weights(p, slab);
}

int ot_program_held_weights(struct ot_program *p, int slab) {
    return ot_slab_is_resident(p->plan, slab) ? p->layout->slabs[slab].weights_gpu
                                              : ot_program_stored_weights(p, slab);
}

static struct ot_task *decode_task(struct ot_program *p, int slab, int to) {
    int from = ot_program_stored_weights(p, slab);
    struct ot_task *task = ot_program_task(p, OT_TASK_DECODE, OT_LANE_COMPUTE);
    task->slab = slab;
    task->from = from;
    task->to = to;
    return task;
}

void ot_program_decode_used(struct ot_program *p, int slab) {
    int to = ot_program_weights(p, slab);
    ot_program_decode_parts(p, decode_task(p, slab, to), OT_FETCH_USED);
}

/* needed: the slabs whose slots must stay. */
static void decode_slab(struct ot_program *p, int slab, int visit, const int *needed, int n_needed) {
    struct ot_ring *ring = &p->weights[ot_slab_slot_kind(p->chain, slab)];
    if (ot_ring_find(ring, slab) >= 0)
        return;
    int slot = ot_ring_victim(ring, needed, n_needed);
    if (slot < 0) {
        p->rc = ot_fail_cause(OT_E_USAGE, OT_CAUSE_WEIGHT_SLOTS,
                              "plan: there is no weight slot into which '%s' could be decoded",
                              p->chain->slabs[slab].name);
        return;
    }
    struct ot_task *task = decode_task(p, slab, ring->buffers[slot]);
    enum ot_fetched fetched = ot_program_fetched(p, slab, visit);
    if (fetched == OT_FETCH_ALL) {
        ot_program_read(p, task, task->from, ot_program_weights_tag(p, slab, 0));
        ot_program_narrow(task, 0, ot_slab_used_tiles(p->chain, p->plan, slab));
        ot_program_write(p, task, task->to, ot_tag(OT_CONTENT_DECODED, slab, 0, 0));
    } else {
        ot_program_decode_parts(p, task, fetched);
    }
    ring->owner[slot] = slab;
    ring->last[slot] = p->schedule->n_tasks;
}

void ot_program_decode(struct ot_program *p, int visit) {
    const struct ot_visit *at = &p->visits[visit];
    const struct ot_block_spec *block = &p->chain->blocks[at->block];
    int needed[OT_MAX_USES], n = 0;
    for (int u = 0; u < block->n_uses; u++)
        if (!at->backward || block->uses[u].needed_in_backward)
            needed[n++] = block->uses[u].slab;
    for (int i = 0; i < n && p->rc >= 0; i++)
        if (ot_slab_is_encoded(p->chain, needed[i]))
            decode_slab(p, needed[i], visit, needed, n);
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

/* Adds the accesses of every call of a block: weights of its uses, token arrays, constants, work and
 * scratch. */
void ot_program_block_inputs(struct ot_program *p, struct ot_task *task, int n_uses) {
    ot_program_block_reads(p, task, n_uses);
    ot_program_scratch(p, task, p->layout->work);
    ot_program_scratch(p, task, p->layout->scratch);
}

void ot_program_block_reads(struct ot_program *p, struct ot_task *task, int n_uses) {
    const struct ot_block_spec *block = &p->chain->blocks[task->block];
    bool backward = task->kind == OT_TASK_BACKWARD || task->kind == OT_TASK_KEYS;
    for (int u = 0; u < n_uses; u++) {
        if (backward && !block->uses[u].needed_in_backward)
            continue;
        int slab = block->uses[u].slab;
        bool encoded = ot_slab_is_encoded(p->chain, slab);
        task->weights[u] = ot_program_weights(p, slab);
        ot_program_read(p, task, task->weights[u],
                        ot_slab_takes_used(p->chain, p->plan, slab) ? ot_program_used_tag(p, task, slab)
                        : encoded                                   ? ot_tag(OT_CONTENT_DECODED, slab, 0, 0)
                                                                    : ot_program_weights_tag(p, slab, 0));
        if (!encoded)
            ot_program_narrow(task, 0, ot_slab_used_tiles(p->chain, p->plan, slab));
    }
    ot_program_read(p, task, p->layout->batch_gpu[0], ot_tag(OT_CONTENT_BATCH, 0, 0, 0));
    ot_program_last(task)->parity = true;
    ot_program_read(p, task, p->layout->constants, ot_tag(OT_CONTENT_CONSTANTS, 0, 0, 0));
}

/* The place of `saved`, which both halves of a forward use. */
static int place_saved(struct ot_program *p, int block, int micro, enum ot_half half) {
    int *place = &p->halves[ot_plan_place(p->plan, micro)];
    if (half != OT_HALF_REST)
        *place = ot_program_place_kept(p, block, micro);
    return *place;
}

/* Adds the access to the results of one half of a forward, or of both. */
static void write_half(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag whole) {
    struct ot_tag half = ot_tag(OT_CONTENT_HALF, task->block, task->micro, 0);
    if (task->half == OT_HALF_REST)
        ot_program_update(p, task, buffer, half, whole);
    else
        ot_program_write(p, task, buffer, task->half == OT_HALF_BOTH ? whole : half);
}

void ot_program_forward(struct ot_program *p, int block, int micro, enum ot_half half) {
    const struct ot_layout *layout = p->layout;
    if (ot_program_has_groups(p, block)) {
        ot_program_forward_groups(p, block, micro);
        return;
    }
    int saved = place_saved(p, block, micro, half);
    int x = block > 0 ? ot_program_find_input(p, block - 1, micro) : OT_NO_BUFFER;
    struct ot_task *task = ot_program_task(p, OT_TASK_FORWARD, OT_LANE_COMPUTE);
    bool last = block == p->chain->n_blocks - 1;
    task->block = block;
    task->micro = micro;
    task->half = half;
    ot_program_block_inputs(p, task, p->chain->blocks[block].n_uses);
    if (half == OT_HALF_CHOOSE)
        ot_program_note_choice(p, task);
    if (block > 0) {
        task->x = x;
        ot_program_read(p, task, task->x, ot_tag(OT_CONTENT_BOUNDARY, block - 1, micro, 0));
    }
    if (!last) {
        task->y = ot_boundary_is_own(p->chain, p->plan, block) ? ot_program_place_boundary(p, block, micro)
                                                               : ot_program_stage_buffer(p, block, micro);
        write_half(p, task, task->y, ot_tag(OT_CONTENT_BOUNDARY, block, micro, 0));
    } else {
        task->y = p->pass == OT_PASS_DECODE ? layout->logits : layout->token_loss;
        if (micro == 0 || p->pass == OT_PASS_DECODE)
            ot_program_write(p, task, task->y, ot_tag(OT_CONTENT_LOSS, 0, 0, 0));
        else
            ot_program_update(p, task, task->y, ot_tag(OT_CONTENT_LOSS, 0, micro - 1, 0),
                              ot_tag(OT_CONTENT_LOSS, 0, micro, 0));
    }
    if (half != OT_HALF_REST)
        ot_program_add_keys(p, task);
    ot_program_use_cache(p, task);
    if (saved == OT_NO_BUFFER)
        return;
    task->saved = saved;
    task->saved_level = ot_plan_kept(p->chain, p->plan, block).level;
    write_half(p, task, saved, ot_tag(OT_CONTENT_SAVED, block, micro, 0));
    if (half != OT_HALF_CHOOSE && p->pass == OT_PASS_TRAIN)
        ot_program_send_kept(p, block, micro, saved);
}

/* n_micro: one, the sections of one sequence, or without stages the prompts of several texts. */
static int make_forward(const struct ot_chain *chain, const struct ot_plan *plan,
                        const struct ot_layout *layout, enum ot_pass pass, int n_micro,
                        struct ot_schedule *out) {
    struct ot_program p;
    if (ot_program_open(&p, chain, plan, layout, pass, NULL, out) < 0)
        return ot_program_close(&p);
    for (int v = 0; v < p.n_visits; v++)
        p.visits[v].n_micro = n_micro;
    ot_program_batch_in(&p);
    for (int v = 0; v < p.n_visits && p.rc >= 0; v++) {
        ot_program_fetch_ahead(&p, v);
        ot_program_bring_caches(&p);
        ot_program_gather(&p, v);
        ot_program_decode(&p, v);
        enum ot_half half = ot_program_choose(&p, &p.visits[v]);
        for (int m = 0; m < n_micro && p.rc >= 0; m++) {
            ot_program_transfer_for(&p, p.visits[v].block, m, false);
            ot_program_forward(&p, p.visits[v].block, m, half);
            ot_program_send_boundary(&p, p.visits[v].block, m);
        }
        ot_program_send_cache(&p, p.visits[v].block);
    }
    ot_program_transfer_before(&p, INT_MAX);
    if (!ot_block_is_own(chain, plan, chain->n_blocks - 1))
        return ot_program_close(&p);
    struct ot_task *task = ot_program_task(&p, OT_TASK_LOSS_OUT, OT_LANE_D2H);
    task->from = pass == OT_PASS_DECODE ? layout->logits : layout->token_loss;
    task->to = layout->results_host[0];
    int last = pass == OT_PASS_DECODE ? 0 : n_micro - 1;
    ot_program_read(&p, task, task->from, ot_tag(OT_CONTENT_LOSS, 0, last, 0));
    ot_program_write(&p, task, task->to, ot_tag(OT_CONTENT_LOSS, 0, 0, 0));
    ot_program_last(task)->parity = true;
    return ot_program_close(&p);
}

int ot_schedule_make_forward(const struct ot_chain *chain, const struct ot_plan *plan,
                             const struct ot_layout *layout, enum ot_pass pass, struct ot_schedule *out) {
    int n_micro = pass == OT_PASS_EVAL ? ot_plan_sections(plan) : 1;
    return make_forward(chain, plan, layout, pass, n_micro, out);
}

int ot_schedule_prompts(const struct ot_plan *plan) {
    return ot_plan_has_stages(plan) || plan->boundaries_pass || plan->cache_rows == 0
               ? 1
               : ot_min(ot_plan_round(plan, 0).n, ot_max(plan->texts, OT_MOST_PIECES));
}

int ot_schedule_make_prompts(const struct ot_chain *chain, const struct ot_plan *plan,
                             const struct ot_layout *layout, struct ot_schedule *out) {
    return make_forward(chain, plan, layout, OT_PASS_DECODE, ot_schedule_prompts(plan), out);
}
