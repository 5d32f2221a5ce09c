/* Activations that leave the device after forward and come back before backward: boundaries, and the inner
 * activations that blocks keep.
 *
 * They come back in the order in which backward needs them, as far ahead as there are slots, but not before
 * their round begins. Data on nvme also passes through slots on the host.
 */
#include <stdlib.h>

#include "offload/schedule/program.h"
#include "src/base/error.h"

/* ---- opening: the activations that backward brings back ---- */

/* The last boundaries stay in their buffers on the device. With stages that is the last one alone: the others
 * with a buffer may be those of blocks that other ranks own. */
static bool boundary_returns(const struct ot_program *p, int boundary) {
    int stay = ot_plan_has_stages(p->plan) ? 1 : p->layout->n_boundaries;
    return ot_layout_spills_boundaries(p->layout) && boundary >= 0 &&
           boundary >= ot_chain_first_trained(p->chain) - 1 && boundary < p->chain->n_blocks - 1 - stay &&
           ot_boundary_is_own(p->chain, p->plan, boundary);
}

static bool kept_returns(const struct ot_program *p, int block) {
    struct ot_kept kept = ot_plan_kept(p->chain, p->plan, block);
    return kept.level != OT_KEEP_NONE && kept.tier != OT_TIER_GPU;
}

static void add_return(struct ot_passing *passing, int index, int micro) {
    passing->returns[passing->n_returns++] = (struct ot_return){index, micro, OT_NO_BUFFER};
}

int ot_program_open_activations(struct ot_program *p) {
    const struct ot_layout *l = p->layout;
    size_t most = (size_t)p->chain->n_blocks * (size_t)p->plan->max_micro;
    p->boundaries = (struct ot_passing){.content = OT_CONTENT_BOUNDARY,
                                        .out = OT_TASK_BOUNDARY_OUT,
                                        .in = OT_TASK_BOUNDARY_IN,
                                        .homes = l->boundary_host ? l->boundary_host : l->boundary_nvme,
                                        .slots = l->activation_slots,
                                        .n_slots = p->plan->activation_slots,
                                        .host_slots = l->host_activation_slots,
                                        .n_host_slots = p->plan->host_activation_slots,
                                        .returns = calloc(most, sizeof *p->boundaries.returns)};
    p->kept = (struct ot_passing){.content = OT_CONTENT_SAVED,
                                  .out = OT_TASK_KEPT_OUT,
                                  .in = OT_TASK_KEPT_IN,
                                  .homes = l->kept,
                                  .slots = l->kept_slots,
                                  .n_slots = p->plan->kept_slots,
                                  .host_slots = l->host_kept_slots,
                                  .n_host_slots = p->plan->host_kept_slots,
                                  .returns = calloc(most, sizeof *p->kept.returns)};
    if (!p->boundaries.returns || !p->kept.returns)
        return ot_fail(OT_E_BUDGET, "no memory for the schedule of %d blocks", p->chain->n_blocks);
    for (int v = 0; v < p->n_visits && p->pass == OT_PASS_TRAIN; v++) {
        const struct ot_visit *visit = &p->visits[v];
        for (int m = visit->first_micro; visit->backward && m < visit->first_micro + visit->n_micro; m++) {
            if (boundary_returns(p, visit->block - 1))
                add_return(&p->boundaries, visit->block - 1, m);
            if (kept_returns(p, visit->block))
                add_return(&p->kept, visit->block, m);
        }
    }
    return 0;
}

void ot_program_close_activations(struct ot_program *p) {
    free(p->boundaries.returns);
    free(p->kept.returns);
}

/* ---- out and back ---- */

static int home_of(const struct ot_program *p, const struct ot_passing *passing, int index, int micro) {
    return passing->homes[index * p->layout->places + ot_plan_place(p->plan, micro)];
}

static bool is_on_nvme(const struct ot_program *p, int home) {
    return p->rc >= 0 && p->layout->buffers[home].tier == OT_TIER_NVME;
}

static int next_host_slot(struct ot_passing *passing) {
    return passing->host_slots[passing->next_host_slot++ % passing->n_host_slots];
}

static void move(struct ot_program *p, const struct ot_passing *passing, enum ot_task_kind kind,
                 enum ot_lane_id lane, int index, int micro, int from, int to) {
    struct ot_task *task = ot_program_task(p, kind, lane);
    struct ot_tag tag = ot_tag(passing->content, index, micro, 0);
    task->block = index;
    task->micro = micro;
    task->from = from;
    task->to = to;
    if (passing->content == OT_CONTENT_SAVED)
        task->saved_level = ot_plan_kept(p->chain, p->plan, index).level;
    ot_program_read(p, task, from, tag);
    ot_program_write(p, task, to, tag);
}

static void send(struct ot_program *p, struct ot_passing *passing, int index, int micro, int from) {
    int home = home_of(p, passing, index, micro);
    bool nvme = is_on_nvme(p, home);
    int to = nvme ? next_host_slot(passing) : home;
    move(p, passing, passing->out, OT_LANE_D2H, index, micro, from, to);
    if (nvme)
        move(p, passing, OT_TASK_NVME_WRITE, OT_LANE_NVME_WRITE, index, micro, to, home);
}

static void bring(struct ot_program *p, struct ot_passing *passing, struct ot_return *back) {
    int home = home_of(p, passing, back->index, back->micro), from = home;
    back->slot = passing->slots[passing->next_slot++ % passing->n_slots];
    if (is_on_nvme(p, home)) {
        from = next_host_slot(passing);
        move(p, passing, OT_TASK_NVME_READ, OT_LANE_NVME_READ, back->index, back->micro, home, from);
    }
    move(p, passing, passing->in, OT_LANE_H2D, back->index, back->micro, from, back->slot);
}

/* Copies an activation and the next ones back, as far as slots allow. Returns its slot. OT_NO_BUFFER: it did
 * not leave. With several rounds in flight, a forward visit may come before the next backward visit, and
 * takes slots of kept activations: those that are brought back must be of this visit. */
static int find_back(struct ot_program *p, struct ot_passing *passing, int index, int micro) {
    struct ot_return *next = &passing->returns[passing->next_return];
    int left = passing->n_returns - passing->next_return;
    if (left == 0 || next->index != index || next->micro != micro)
        return OT_NO_BUFFER;
    bool mixes = passing->content == OT_CONTENT_SAVED && p->plan->shard.in_flight > 1;
    int round = ot_plan_round_first(p->plan, micro);
    /* The slots of boundaries are listed in the order in which a round's backward may use them. */
    if (passing->content == OT_CONTENT_BOUNDARY &&
        (passing->next_return == 0 || ot_plan_round_first(p->plan, next[-1].micro) != round))
        passing->next_slot = 0;
    for (int i = 0; i < passing->n_slots && i < left && !(mixes && next[i].index != index); i++) {
        if (ot_plan_round_first(p->plan, next[i].micro) != round)
            break; /* not computed yet */
        if (next[i].slot == OT_NO_BUFFER)
            bring(p, passing, &next[i]);
    }
    passing->next_return++;
    return next->slot;
}

/* ---- boundaries ---- */

void ot_program_send_boundary(struct ot_program *p, int boundary, int micro) {
    if (boundary_returns(p, boundary))
        send(p, &p->boundaries, boundary, micro, ot_layout_boundary(p->layout, p->plan, boundary, micro));
}

int ot_program_find_boundary(struct ot_program *p, int boundary, int micro) {
    int slot = find_back(p, &p->boundaries, boundary, micro);
    return slot == OT_NO_BUFFER ? ot_layout_boundary(p->layout, p->plan, boundary, micro) : slot;
}

/* ---- kept activations ---- */

int ot_program_place_kept(struct ot_program *p, int block, int micro) {
    if (ot_plan_kept(p->chain, p->plan, block).level == OT_KEEP_NONE)
        return OT_NO_BUFFER;
    if (kept_returns(p, block))
        return p->kept.slots[p->kept.next_slot++ % p->kept.n_slots];
    return home_of(p, &p->kept, block, micro);
}

void ot_program_send_kept(struct ot_program *p, int block, int micro, int from) {
    if (kept_returns(p, block))
        send(p, &p->kept, block, micro, from);
}

int ot_program_find_kept(struct ot_program *p, int block, int micro) {
    int slot = find_back(p, &p->kept, block, micro);
    if (slot != OT_NO_BUFFER || ot_plan_kept(p->chain, p->plan, block).level == OT_KEEP_NONE)
        return slot;
    return home_of(p, &p->kept, block, micro);
}
