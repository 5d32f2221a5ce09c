/* Stages as a program: the transfers of boundary activations and of their gradients, and those of shared
 * slabs.
 *
 * A rank's program has the units of its own blocks, each at its tick (stage_times.h). Before a unit it
 * lists the transfers of all earlier ticks: what the unit reads is among them. One TRANSFER task has
 * everything that the rank sends and receives in a tick.
 *
 * An activation on its way out waits in one of two buffers: the rank's forward units use them in turns. A
 * gradient leaves from the buffer in which backward computed it. What comes in arrives where the block will
 * read it; an activation that does not stay there goes on to its home. */
#include <stdlib.h>

#include "offload/schedule/program.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/memory.h"

/* ---- links ---- */

int ot_program_open_stages(struct ot_program *p, const struct ot_stage_times *times) {
    if (!ot_plan_has_stages(p->plan))
        return 0;
    if (!times)
        OT_TRY(ot_stage_times_make(p->chain, p->plan, p->pass, &p->own_times));
    p->times = times ? times : &p->own_times;
    p->schedule->stage_crc = p->times->crc; /* every rank has the same table */
    for (int v = 0; v < p->times->n_visits; v++) {
        struct ot_stage_visit visit = p->times->visits[v];
        bool train = p->pass == OT_PASS_TRAIN;
        if (!ot_block_is_own(p->chain, p->plan, visit.block))
            continue;
        struct ot_round round =
            train ? ot_plan_round(p->plan, visit.round) : (struct ot_round){0, p->times->n_micro};
        p->visits[p->n_visits++] = (struct ot_visit){visit.block, visit.backward, round.first, round.n};
    }
    return 0;
}

void ot_program_close_stages(struct ot_program *p) {
    ot_stage_times_free(&p->own_times);
}

uint32_t ot_schedule_link_crc(const struct ot_schedule *schedule, int peer, bool sends) {
    uint32_t crc = 0;
    for (int i = 0; i < schedule->lane_count[OT_LANE_COMM]; i++) {
        const struct ot_task *task = &schedule->tasks[schedule->lane_tasks[OT_LANE_COMM][i]];
        for (int k = 0; k < task->n_transfers; k++) {
            const struct ot_task_transfer *t = &schedule->transfers[task->first_transfer + k];
            int32_t all[] = {task->tick, (int32_t)t->kind, t->index, t->micro};
            if (t->peer == peer && t->sends == sends)
                crc = ot_crc32(crc, all, sizeof all);
        }
    }
    return crc;
}

uint32_t ot_schedule_holder_crc(const struct ot_schedule *schedule) {
    uint32_t crc = 0;
    for (int i = 0; i < schedule->lane_count[OT_LANE_COMM]; i++) {
        const struct ot_task *task = &schedule->tasks[schedule->lane_tasks[OT_LANE_COMM][i]];
        int32_t all[] = {(int32_t)task->kind, task->slab, task->tick};
        crc = ot_crc32(crc, all, sizeof all);
    }
    return crc;
}

int ot_schedule_check_ticks(const struct ot_schedule *schedule) {
    int last = -1;
    for (int i = 0; i < schedule->lane_count[OT_LANE_COMM]; i++) {
        const struct ot_task *task = &schedule->tasks[schedule->lane_tasks[OT_LANE_COMM][i]];
        if (task->kind != OT_TASK_TRANSFER)
            continue;
        if (task->tick <= last)
            return ot_fail(OT_E_INTERNAL, "schedule: the transfers of tick %d come after those of tick %d",
                           task->tick, last);
        last = task->tick;
    }
    return 0;
}

/* ---- transfers ---- */

int ot_program_stage_buffer(const struct ot_program *p, int block, int micro) {
    return p->layout->stage_buffers[p->times->buffers[block * p->times->n_micro + micro]];
}

static struct ot_task_transfer *add_transfer(struct ot_program *p) {
    struct ot_schedule *s = p->schedule;
    if (!ot_try_grow(&s->transfers, &s->transfer_capacity, (size_t)s->n_transfers + 1,
                     sizeof *s->transfers)) {
        p->rc = ot_fail(OT_E_BUDGET, "no memory for a schedule of %d transfers", s->n_transfers);
        return NULL;
    }
    return &s->transfers[s->n_transfers++];
}

/* The buffer that a half of a transfer reads or writes, and the meaning of its bytes. */
static int buffer_of(struct ot_program *p, const struct ot_stage_transfer *t, bool sends,
                     struct ot_tag *tag) {
    switch (t->kind) {
    case OT_TRANSFER_BOUNDARY:
        *tag = ot_tag(OT_CONTENT_BOUNDARY, t->index, t->micro, 0);
        return sends ? ot_program_stage_buffer(p, t->index, t->micro)
                     : ot_layout_boundary(p->layout, p->plan, t->index, t->micro);
    case OT_TRANSFER_GRADIENT:
        *tag = ot_tag(OT_CONTENT_BOUNDARY_GRAD, t->index, t->micro, 0);
        return p->layout->boundary_grad[ot_plan_place(p->plan, t->micro)];
    case OT_TRANSFER_WEIGHTS:
        *tag = ot_program_weights_tag(p, t->index, 0);
        return ot_program_weights(p, t->index);
    case OT_TRANSFER_SUM:
    default:
        *tag = ot_tag(OT_CONTENT_GRAD_SUM, t->index, t->micro + 1, 0);
        return ot_program_sum(p, t->index);
    }
}

/* Adds one half of a transfer to the task. A sum that has left is no longer needed here. */
static void add_half(struct ot_program *p, struct ot_task *task, const struct ot_stage_transfer *t) {
    const struct ot_shard *shard = &p->plan->shard;
    bool sends = t->from == ot_shard_stage(shard);
    int peer = ot_shard_rank_of(shard, ot_shard_holder(shard), sends ? t->to : t->from);
    struct ot_tag tag;
    int buffer = buffer_of(p, t, sends, &tag);
    if (buffer == OT_NO_BUFFER && p->rc >= 0)
        p->rc = ot_fail_cause(OT_E_USAGE, OT_CAUSE_WEIGHT_SLOTS,
                              "plan: no slot has the weights of '%s' when another rank borrows them",
                              p->chain->slabs[t->index].name);
    struct ot_task_transfer *half = p->rc >= 0 ? add_transfer(p) : NULL;
    if (!half)
        return;
    *half = (struct ot_task_transfer){peer, sends, t->kind, t->index, t->micro, buffer};
    task->n_transfers++;
    if (sends)
        ot_program_read(p, task, buffer, tag);
    else
        ot_program_write(p, task, buffer, tag);
    if (t->kind == OT_TRANSFER_WEIGHTS)
        ot_program_narrow(task, 0, ot_slab_used_tiles(p->chain, p->plan, t->index));
    if (t->kind == OT_TRANSFER_SUM)
        ot_program_pass_on_sum(p, t->index, sends);
}

/* Lists the transfers [first, end) of one tick, as far as this rank takes part. An activation that its blocks
 * read goes on to its home. */
static void transfer(struct ot_program *p, const struct ot_stage_transfer *first,
                     const struct ot_stage_transfer *end) {
    struct ot_task *task = NULL;
    int stage = ot_shard_stage(&p->plan->shard);
    for (const struct ot_stage_transfer *t = first; t < end; t++) {
        if (t->from != stage && t->to != stage)
            continue;
        if (!task) {
            task = ot_program_task(p, OT_TASK_TRANSFER, OT_LANE_COMM);
            task->tick = t->tick;
            task->first_transfer = p->schedule->n_transfers;
        }
        add_half(p, task, t);
    }
    for (const struct ot_stage_transfer *t = first; t < end && p->rc >= 0; t++)
        if (t->kind == OT_TRANSFER_BOUNDARY && p->pass == OT_PASS_TRAIN)
            ot_program_send_boundary(p, t->index, t->micro);
}

void ot_program_transfer_before(struct ot_program *p, int tick) {
    if (!p->times)
        return;
    const struct ot_stage_transfer *all = p->times->transfers, *end = all + p->times->n_transfers;
    while (p->next_transfer < p->times->n_transfers && all[p->next_transfer].tick < tick && p->rc >= 0) {
        const struct ot_stage_transfer *first = &all[p->next_transfer], *next = first;
        while (next < end && next->tick == first->tick)
            next++;
        transfer(p, first, next);
        p->tick = first->tick;
        p->next_transfer += (int)(next - first);
    }
}

void ot_program_transfer_results(struct ot_program *p, int block, int micro, bool backward) {
    if (p->times)
        ot_program_transfer_before(
            p, ot_stage_times_crosses(p->times, p->chain, p->plan, block, micro, backward) + 1);
}

void ot_program_transfer_for(struct ot_program *p, int block, int micro, bool backward) {
    if (p->times)
        ot_program_transfer_before(p, ot_stage_time(p->times, block, micro, backward));
}
