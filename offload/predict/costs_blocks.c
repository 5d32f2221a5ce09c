/* The FLOPs and the time of the tasks that run blocks. */
#include <math.h>

#include "offload/plan/used_parts.h"
#include "offload/predict/costs_state.h"

/* The share of a block's forward that a half takes. A token multiplies with the dense parameters and with its
 * chosen parts, so these give the share of the products after the choice. */
static double half_share(const struct ot_cost_context *c, const struct ot_task *task) {
    const struct ot_block_spec *block = &c->chain->blocks[task->block];
    double dense = 0, chosen = 0, parts = ot_block_used_parts(c->chain, task->block, 1);
    for (int u = 0; u < block->n_uses; u++) {
        const struct ot_slab_spec *slab = &c->chain->slabs[block->uses[u].slab];
        double part = (double)ot_slab_part_params(slab);
        dense += (double)slab->n_params - part * slab->n_parts;
        chosen += slab->n_parts > 0 ? part * parts : 0;
    }
    double after = chosen / (dense + chosen);
    return task->half == OT_HALF_CHOOSE ? 1 - after : after;
}

/* FLOPs of a sequence's attention up to the end of a number of sections. */
static double attention_up_to(const struct ot_cost_context *c, const struct ot_task *task,
                              enum ot_work_kind kind, int64_t sections) {
    int64_t n = sections * c->plan->micro_tokens;
    return n == 0 ? 0
                  : ot_costs_work_of(c->chain, task->block, kind, task->saved_level, n, n).attention_flops;
}

/* Adds what a section's attention takes beyond that of the sequence's mean section: late sections see more
 * keys. */
static void add_section(const struct ot_cost_context *c, const struct ot_task *task, enum ot_work_kind kind,
                        double mean_flops, struct ot_task_cost *cost) {
    int sections = ot_plan_sections(c->plan), section = task->micro % sections;
    double rate = ot_costs_attention_rate(&c->costs->rates, c->chain, kind);
    if (sections == 1 || task->keys == OT_NO_BUFFER || mean_flops == 0 || !(rate > 0))
        return;
    double more =
        attention_up_to(c, task, kind, section + 1) - attention_up_to(c, task, kind, section) - mean_flops;
    cost->flops += more;
    cost->seconds += more / rate;
}

static void add_work(const struct ot_cost_context *c, const struct ot_task *task, enum ot_work_kind kind,
                     struct ot_task_cost *cost) {
    const struct ot_block_cost *block = &c->costs->blocks[task->block];
    int64_t n = c->plan->micro_tokens;
    struct ot_block_work work = ot_costs_work_of(c->chain, task->block, kind, task->saved_level, n,
                                                 ot_costs_row_of(c->costs, c->plan));
    cost->flops += work.product_flops + work.attention_flops;
    cost->seconds += ot_line_at(kind == OT_WORK_FORWARD    ? block->forward
                                : kind == OT_WORK_BACKWARD ? block->backward
                                                           : block->recompute[task->saved_level],
                                n);
    add_section(c, task, kind, work.attention_flops, cost);
}

/* The share of a forward's time that its keys take is that of their work. */
static void add_keys(const struct ot_cost_context *c, const struct ot_task *task, struct ot_task_cost *cost) {
    struct ot_task_cost whole = {0};
    struct ot_block_work keys = ot_costs_work_of(c->chain, task->block, OT_WORK_KEYS, OT_KEEP_NONE,
                                                 c->plan->micro_tokens, ot_costs_row_of(c->costs, c->plan));
    add_work(c, task, OT_WORK_FORWARD, &whole);
    cost->flops += keys.product_flops;
    cost->seconds += whole.flops > 0 ? whole.seconds * keys.product_flops / whole.flops : 0;
}

static void add_half(const struct ot_cost_context *c, const struct ot_task *task, struct ot_task_cost *cost) {
    struct ot_task_cost whole = {0};
    double share = half_share(c, task);
    add_work(c, task, OT_WORK_FORWARD, &whole);
    cost->flops += share * whole.flops;
    cost->seconds += share * whole.seconds;
}

/* ---- phases ---- */

/* The share of the work apart from attention that a phase takes, of one kind of a section's work. Backward's
 * is halved: MIDDLE has the MLP and attention's projection, END has q, k and v. */
static double rest_share(const struct ot_cost_context *c, const struct ot_task *task, enum ot_work_kind kind,
                         double rest_flops) {
    enum ot_phase phase = task->phase;
    if (kind == OT_WORK_RECOMPUTE)
        return phase == OT_PHASE_BEGIN;
    if (kind == OT_WORK_BACKWARD)
        return phase == OT_PHASE_MIDDLE || phase == OT_PHASE_END ? 0.5 : 0;
    struct ot_block_work keys = ot_costs_work_of(c->chain, task->block, OT_WORK_KEYS, OT_KEEP_NONE,
                                                 c->plan->micro_tokens, ot_costs_row_of(c->costs, c->plan));
    double begin = rest_flops > 0 ? keys.product_flops / rest_flops : 0;
    return phase == OT_PHASE_BEGIN ? begin : phase == OT_PHASE_END ? 1 - begin : 0;
}

/* Adds the part of a section's work that a phase takes: the phases of its groups have its attention. */
static void add_phase(const struct ot_cost_context *c, const struct ot_task *task, enum ot_work_kind kind,
                      struct ot_task_cost *cost) {
    struct ot_task_cost all = {0};
    int64_t section = task->micro % ot_plan_sections(c->plan);
    double rate = ot_costs_attention_rate(&c->costs->rates, c->chain, kind);
    enum ot_phase attends = kind == OT_WORK_BACKWARD ? OT_PHASE_ATTEND_BACK : OT_PHASE_ATTEND;
    add_work(c, task, kind, &all);
    double flops = attention_up_to(c, task, kind, section + 1) - attention_up_to(c, task, kind, section);
    double seconds = rate > 0 ? fmin(flops / rate, all.seconds) : 0;
    double group = task->phase == attends ? 1.0 / ot_plan_key_groups(c->plan) : 0;
    double rest = rest_share(c, task, kind, all.flops - flops);
    cost->flops += group * flops + rest * (all.flops - flops);
    cost->seconds += group * seconds + rest * (all.seconds - seconds);
}

/* ---- a block's task ---- */

static void add_backward(const struct ot_cost_context *c, const struct ot_task *task,
                         struct ot_task_cost *cost) {
    if (c->chain->compares && task->block == c->chain->n_blocks - 1)
        add_work(c, task, OT_WORK_FORWARD, cost);
    bool whole = task->phase == OT_PHASE_WHOLE;
    (whole ? add_work : add_phase)(c, task, OT_WORK_BACKWARD, cost);
    (whole ? add_work : add_phase)(c, task, OT_WORK_RECOMPUTE, cost);
    /* `first` was measured with other micro-batches, so it may exceed a small one's time. */
    if (task->first && task->phase <= OT_PHASE_BEGIN)
        cost->seconds = fmax(cost->seconds + c->costs->blocks[task->block].first, 0);
}

void ot_costs_add_block(const struct ot_cost_context *c, const struct ot_task *task,
                        struct ot_task_cost *cost) {
    bool whole = task->phase == OT_PHASE_WHOLE;
    if (task->kind == OT_TASK_FORWARD && task->half != OT_HALF_BOTH)
        add_half(c, task, cost);
    else if (task->kind == OT_TASK_FORWARD)
        (whole ? add_work : add_phase)(c, task, OT_WORK_FORWARD, cost);
    else if (task->kind == OT_TASK_KEYS && task->phase <= OT_PHASE_BEGIN)
        add_keys(c, task, cost);
    else if (task->kind == OT_TASK_BACKWARD)
        add_backward(c, task, cost);
}
