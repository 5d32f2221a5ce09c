/* Tasks that move bytes between ranks, and the sums around them (plan/shard.h). */
#include <assert.h>

#include "offload/comm/comm.h"
#include "offload/engine/engine_state.h"

/* In units (plan/slabs.h). */
static int64_t share_of(const struct ot_engine *en, const struct ot_task *task) {
    return ot_shard_share(&en->plan.shard, ot_slab_units(&en->chain, task->slab));
}

/* Gradients between ranks: the sent ones, the received ones, and this rank's own part. */
struct crossing {
    enum ot_dtype dtype;
    size_t part_bytes;
    char *sent, *received;
    const void *own;
};

static struct crossing crossing_of(const struct ot_engine *en, const struct ot_task *task, int sum,
                                   int slot) {
    const struct ot_shard *shard = &en->plan.shard;
    bool narrow = shard->narrow;
    struct crossing c = {.dtype = narrow ? en->chain.dtype : OT_F32};
    c.part_bytes = (size_t)share_of(en, task) * ot_dtype_bytes(c.dtype);
    char *place = ot_engine_at(en, slot);
    c.sent = narrow ? place : (char *)ot_engine_at(en, sum);
    c.received = narrow ? place + (size_t)ot_shard_ranks(shard) * c.part_bytes : place;
    c.own = c.sent + (size_t)shard->rank * c.part_bytes;
    return c;
}

static void gather(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    int slab = task->slab;
    struct ot_shard_range held = ot_slab_holding(&en->chain, &en->plan, slab);
    int64_t at = ot_layout_index(&en->layout, &en->chain, &en->plan, task->from, slab, held.first);
    const char *part = (char *)ot_engine_at(en, task->from) + ot_slab_bytes(&en->chain, slab, at);
    ot_comm_all_gather(en->comm, lane, part, ot_engine_at(en, task->to),
                       ot_slab_bytes(&en->chain, slab, share_of(en, task)));
}

/* A barrier: every rank enters it when its own updates are complete. The bytes mean nothing. */
static void meet(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    char *all = ot_engine_at(en, task->to);
    ot_comm_all_gather(en->comm, lane, all + en->plan.shard.rank * OT_MEETING_BYTES, all, OT_MEETING_BYTES);
}

static void grad_narrow(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    en->ops->cast(lane, &(struct ot_cast){.from = OT_F32,
                                          .to = en->chain.dtype,
                                          .n = en->chain.slabs[task->slab].n_params,
                                          .src = ot_engine_at(en, task->from),
                                          .dst = ot_engine_at(en, task->to)});
}

static void exchange(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    struct crossing c = crossing_of(en, task, task->from, task->to);
    ot_comm_all_to_all(en->comm, lane, c.sent, c.received, c.part_bytes);
}

static void grad_join(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_shard *shard = &en->plan.shard;
    struct crossing c = crossing_of(en, task, task->to, task->from);
    struct ot_shard_range own = ot_shard_own(shard, en->chain.slabs[task->slab].n_params);
    en->ops->join(lane, &(struct ot_join){.dtype = c.dtype,
                                          .n = own.n,
                                          .n_parts = ot_shard_ranks(shard),
                                          .own = shard->rank,
                                          .parts = c.received,
                                          .stride = share_of(en, task),
                                          .own_part = c.own,
                                          .out = (float *)ot_engine_at(en, task->to) + own.first,
                                          .tree = shard->world});
}

static void grad_gather(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    size_t bytes = (size_t)share_of(en, task) * sizeof(float);
    char *all = ot_engine_at(en, task->to);
    ot_comm_all_gather(en->comm, lane, all + (size_t)en->plan.shard.rank * bytes, all, bytes);
}

/* Adds this rank's requests behind its losses. The lane's thread runs this after every task of the step
 * that gives up has been enqueued. So a rank that gave up any of them says so. */
static void result_gather(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    double *own = ot_engine_results(en, task->from, task->slab);
    int n = task->slab >= 0 ? en->layout.own_norms : en->layout.own_results;
    if (task->slab < 0)
        ot_lane_fill(lane, own + n - 1, (int)ot_engine_requests(en), sizeof *own);
    ot_comm_all_gather(en->comm, lane, own, ot_engine_results(en, task->to, task->slab),
                       (size_t)n * sizeof *own);
}

void ot_engine_run_rank_task(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    switch (task->kind) {
    case OT_TASK_GATHER:
        gather(en, task, lane);
        break;
    case OT_TASK_MEET:
        meet(en, task, lane);
        break;
    case OT_TASK_GRAD_NARROW:
        grad_narrow(en, task, lane);
        break;
    case OT_TASK_EXCHANGE:
        exchange(en, task, lane);
        break;
    case OT_TASK_GRAD_JOIN:
        grad_join(en, task, lane);
        break;
    case OT_TASK_GRAD_GATHER:
        grad_gather(en, task, lane);
        break;
    case OT_TASK_RESULT_GATHER:
        result_gather(en, task, lane);
        break;
    default:
        assert(!"a task of the ranks");
    }
}
