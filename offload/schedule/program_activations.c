/* Activations that leave the device after forward and come back before backward: boundaries, and the inner
 * activations that blocks keep. With boundaries_pass (plan.h) boundaries come back before the next block's
 * forward too, and their gradients leave and come back.
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
    if (p->plan->boundaries_pass)
        return boundary >= 0 && boundary < p->chain->n_blocks - 1;
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

/* Lists the activations that a backward visit brings back, in its order (ot_program_needs_keys). */
static void add_returns(struct ot_program *p, const struct ot_visit *visit) {
    int block = visit->block, end = visit->first_micro + visit->n_micro;
    for (int turn = visit->first_micro; turn < end; turn++) {
        int micro = ot_plan_backward_turn(p->plan, turn);
        for (int m = turn; m < micro && ot_program_needs_keys(p, block, turn); m++)
            if (boundary_returns(p, block - 1))
                add_return(&p->boundaries, block - 1, m);
        if (boundary_returns(p, block - 1))
            add_return(&p->boundaries, block - 1, micro);
        if (kept_returns(p, block))
            add_return(&p->kept, block, micro);
    }
}

/* Lists what boundaries_pass brings back besides: inputs of forward, and gradients of boundaries. */
static void add_passing(struct ot_program *p, const struct ot_visit *visit) {
    int end = visit->first_micro + visit->n_micro, last = p->chain->n_blocks - 1;
    for (int m = visit->first_micro; m < end; m++) {
        if (!visit->backward && visit->block > 0)
            add_return(&p->boundaries, visit->block - 1, m);
        if (visit->backward && visit->block < last)
            add_return(&p->boundary_grads, visit->block, ot_plan_backward_turn(p->plan, m));
    }
}

/* The pass has homes for boundaries that leave the device. */
static bool passes(const struct ot_program *p) {
    return p->plan->boundaries_pass && p->pass != OT_PASS_DECODE;
}

static struct ot_passing passing_boundaries(const struct ot_program *p, enum ot_content content,
                                            size_t most) {
    const struct ot_layout *l = p->layout;
    size_t homes = (size_t)p->chain->n_blocks * (size_t)l->places;
    return (struct ot_passing){.content = content,
                               .out = OT_TASK_BOUNDARY_OUT,
                               .in = OT_TASK_BOUNDARY_IN,
                               .homes = l->boundary_host ? l->boundary_host : l->boundary_nvme,
                               .slots =
                                   content == OT_CONTENT_BOUNDARY ? l->activation_slots : l->boundary_grad,
                               .n_slots = p->plan->activation_slots,
                               .host_slots = l->host_activation_slots,
                               .n_host_slots = p->plan->host_activation_slots,
                               .sent = p->plan->boundaries_pass ? calloc(homes, sizeof(int)) : NULL,
                               .returns = calloc(most, sizeof(struct ot_return))};
}

int ot_program_open_activations(struct ot_program *p) {
    const struct ot_layout *l = p->layout;
    size_t most = 3 * (size_t)p->chain->n_blocks * (size_t)p->plan->max_micro;
    p->boundaries = passing_boundaries(p, OT_CONTENT_BOUNDARY, most);
    p->boundary_grads = passing_boundaries(p, OT_CONTENT_BOUNDARY_GRAD, most);
    p->kept = (struct ot_passing){.content = OT_CONTENT_SAVED,
                                  .out = OT_TASK_KEPT_OUT,
                                  .in = OT_TASK_KEPT_IN,
                                  .homes = l->kept,
                                  .slots = l->kept_slots,
                                  .n_slots = p->plan->kept_slots,
                                  .host_slots = l->host_kept_slots,
                                  .n_host_slots = p->plan->host_kept_slots,
                                  .returns = calloc(most, sizeof *p->kept.returns)};
    bool lacks_sent = p->plan->boundaries_pass && (!p->boundaries.sent || !p->boundary_grads.sent);
    if (!p->boundaries.returns || !p->boundary_grads.returns || !p->kept.returns || lacks_sent)
        return ot_fail(OT_E_BUDGET, "no memory for the schedule of %d blocks", p->chain->n_blocks);
    for (int v = 0; v < p->n_visits; v++) {
        if (p->visits[v].backward)
            add_returns(p, &p->visits[v]);
        if (passes(p))
            add_passing(p, &p->visits[v]);
    }
    return 0;
}

void ot_program_close_activations(struct ot_program *p) {
    free(p->boundaries.returns);
    free(p->boundaries.sent);
    free(p->boundary_grads.returns);
    free(p->boundary_grads.sent);
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
    if (passing->sent)
        passing->sent[index * p->layout->places + ot_plan_place(p->plan, micro)] = micro + 1;
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

/* True if an activation of this round is at its home by now. */
static bool may_bring(const struct ot_program *p, const struct ot_passing *passing,
                      const struct ot_return *back, int round) {
    int home = back->index * p->layout->places + ot_plan_place(p->plan, back->micro);
    return passing->sent ? passing->sent[home] == back->micro + 1
                         : ot_plan_round_first(p->plan, back->micro) == round;
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
    if (passing->content == OT_CONTENT_BOUNDARY && !passing->sent &&
        (passing->next_return == 0 || ot_plan_round_first(p->plan, next[-1].micro) != round))
        passing->next_slot = 0;
    for (int i = 0; i < passing->n_slots && i < left && !(mixes && next[i].index != index); i++) {
        if (!may_bring(p, passing, &next[i], round))
            break; /* not computed yet */
        if (next[i].slot == OT_NO_BUFFER)
            bring(p, passing, &next[i]);
    }
    passing->next_return++;
    return next->slot;
}

/* ---- boundaries ---- */

/* The buffer of a result on its way to its home. */
static int out_buffer(const struct ot_program *p, int number) {
    return p->layout->stage_buffers[number % OT_STAGE_BUFFERS];
}

int ot_program_place_boundary(struct ot_program *p, int boundary, int micro) {
    return passes(p) ? out_buffer(p, p->next_out++) : ot_layout_boundary(p->layout, p->plan, boundary, micro);
}

void ot_program_send_boundary(struct ot_program *p, int boundary, int micro) {
    if (boundary_returns(p, boundary) && (passes(p) || p->pass == OT_PASS_TRAIN))
        send(p, &p->boundaries, boundary, micro,
             passes(p) ? out_buffer(p, p->next_out - 1)
                       : ot_layout_boundary(p->layout, p->plan, boundary, micro));
}

int ot_program_find_boundary(struct ot_program *p, int boundary, int micro) {
    int slot = find_back(p, &p->boundaries, boundary, micro);
    return slot == OT_NO_BUFFER ? ot_layout_boundary(p->layout, p->plan, boundary, micro) : slot;
}

int ot_program_find_input(struct ot_program *p, int boundary, int micro) {
    return passes(p) ? ot_program_find_boundary(p, boundary, micro)
                     : ot_layout_boundary(p->layout, p->plan, boundary, micro);
}

int ot_program_find_boundary_grad(struct ot_program *p, int block, int micro) {
    struct ot_passing *grads = &p->boundary_grads;
    if (!passes(p))
        return p->layout->boundary_grad[ot_plan_place(p->plan, micro)];
    return block < p->chain->n_blocks - 1 ? find_back(p, grads, block, micro)
                                          : grads->slots[grads->next_slot++ % grads->n_slots];
}

void ot_program_send_boundary_grad(struct ot_program *p, int boundary, int micro, int from) {
    if (passes(p) && boundary >= ot_chain_first_trained(p->chain))
        send(p, &p->boundary_grads, boundary, micro, from);
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
