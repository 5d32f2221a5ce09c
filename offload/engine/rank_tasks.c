/* Tasks that move bytes between ranks, and the sums around them (plan/plan.h). */
#include <assert.h>
#include <stdlib.h>

#include "offload/comm/comm.h"
#include "offload/comm/crossing.h"
#include "offload/comm/shared_memory.h"
#include "offload/engine/engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* In units (plan/slabs.h). */
static int64_t share_of(const struct ot_engine *en, const struct ot_task *task) {
    return ot_shard_share(&en->plan.shard, ot_slab_units(&en->chain, task->slab));
}

/* The ranks that share the slabs of this rank. */
static struct ot_comm_members holders_of(const struct ot_engine *en) {
    const struct ot_shard *shard = &en->plan.shard;
    return (struct ot_comm_members){ot_shard_rank_of(shard, 0, ot_shard_stage(shard)),
                                    ot_shard_holders(shard)};
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
    c.received = narrow ? place + (size_t)ot_shard_holders(shard) * c.part_bytes : place;
    c.own = c.sent + (size_t)ot_shard_holder(shard) * c.part_bytes;
    return c;
}

static void gather(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    int slab = task->slab;
    struct ot_shard_range held = ot_slab_holding(&en->chain, &en->plan, slab);
    int64_t at = ot_layout_index(&en->layout, &en->chain, &en->plan, task->from, slab, held.first);
    const char *part = (char *)ot_engine_at(en, task->from) + ot_slab_bytes(&en->chain, slab, at);
    ot_comm_members_gather(en->comm, lane, holders_of(en), part, ot_engine_at(en, task->to),
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
    ot_comm_members_exchange(en->comm, lane, holders_of(en), c.sent, c.received, c.part_bytes);
}

static void grad_join(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_shard *shard = &en->plan.shard;
    struct crossing c = crossing_of(en, task, task->to, task->from);
    struct ot_shard_range own = ot_shard_own(shard, en->chain.slabs[task->slab].n_params);
    en->ops->join(lane, &(struct ot_join){.dtype = c.dtype,
                                          .n = own.n,
                                          .n_parts = ot_shard_holders(shard),
                                          .own = ot_shard_holder(shard),
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
    if (ot_plan_has_stages(&en->plan) && task->slab >= 0) {
        ot_comm_members_gather(en->comm, lane, holders_of(en), own + ot_shard_holder(&en->plan.shard) * n,
                               own, (size_t)n * sizeof *own);
        return;
    }
    if (ot_plan_has_stages(&en->plan)) { /* the whole part of the rank, in its place */
        own = ot_engine_results(en, task->from, 0);
        ot_comm_all_gather(en->comm, lane, own, ot_engine_at(en, task->to),
                           ot_engine_stage_results(en) * sizeof *own);
        return;
    }
    ot_comm_all_gather(en->comm, lane, own, ot_engine_results(en, task->to, task->slab),
                       (size_t)n * sizeof *own);
}

/* ---- stages ---- */

static const struct ot_schedule *schedule_of(const struct ot_engine *en) {
    return en->pass == OT_PASS_TRAIN ? &en->train : en->pass == OT_PASS_EVAL ? &en->eval : &en->decode;
}

/* A micro-batch that the step leaves empty has nothing to transfer, on both sides. */
static void transfer(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    const struct ot_task_transfer *halves = schedule_of(en)->transfers + task->first_transfer;
    struct ot_comm_transfer_v1 list[OT_TASK_MAX_ACCESSES];
    int n = 0;
    for (int i = 0; i < task->n_transfers; i++) {
        size_t bytes = ot_stages_transfer_bytes(&en->chain, halves[i].kind, halves[i].index,
                                                en->steps[step & 1].micro_tokens[halves[i].micro]);
        if (bytes > 0)
            list[n++] = (struct ot_comm_transfer_v1){halves[i].peer, halves[i].sends,
                                                     ot_engine_at(en, halves[i].buffer), bytes};
    }
    ot_comm_transfer(en->comm, lane, list, n);
}

void ot_engine_run_rank_task(struct ot_engine *en, const struct ot_task *task, int64_t step,
                             struct ot_lane *lane) {
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
    case OT_TASK_TRANSFER:
        transfer(en, task, step, lane);
        break;
    default:
        assert(!"a task of the ranks");
    }
}

/* ---- calls of transfers ---- */

/* The link of a half of a transfer; NULL: there is none. */
static const struct ot_crossing_link *link_of(const struct ot_engine *en, const struct ot_crossing *crossing,
                                              const struct ot_task_transfer *half) {
    int own = en->plan.shard.rank, from = half->sends ? own : half->peer, to = half->sends ? half->peer : own;
    for (int i = 0; i < crossing->n_links; i++)
        if (crossing->links[i].from == from && crossing->links[i].to == to)
            return &crossing->links[i];
    return NULL;
}

static int check_call(const struct ot_engine *en, const struct ot_task_transfer *halves, int n,
                      const struct ot_crossing *crossing) {
    size_t all = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes =
            ot_stages_transfer_bytes(&en->chain, halves[i].kind, halves[i].index, en->plan.micro_tokens);
        const struct ot_crossing_link *link = link_of(en, crossing, &halves[i]);
        int on_link = 0;
        for (int k = 0; k < n; k++)
            on_link += halves[k].peer == halves[i].peer && halves[k].sends == halves[i].sends;
        if (en->plan.crosses && (!link || link->slots < 2 * on_link || link->slot_bytes < bytes))
            return ot_fail(OT_E_INTERNAL, "plan: no slots for %d transfers of %zu bytes with rank %d",
                           on_link, bytes, halves[i].peer);
        all += bytes;
    }
    size_t needed = en->plan.crosses ? 0 : ot_comm_transfer_staging_bytes(en->comm, all);
    if (needed > en->plan.staging_bytes)
        return ot_fail(OT_E_INTERNAL, "plan: %zu bytes cross between stages at once, with room for %zu",
                       needed, en->plan.staging_bytes);
    return 0;
}

int ot_engine_check_transfers(const struct ot_engine *en, const struct ot_schedule *schedule) {
    struct ot_crossing crossing = {0};
    int rc = 0;
    if (en->plan.crosses)
        OT_TRY(ot_stages_list_links(&en->chain, &en->plan, &crossing));
    for (int i = 0; i < schedule->n_tasks && rc == 0; i++) {
        const struct ot_task *task = &schedule->tasks[i];
        rc = check_call(en, schedule->transfers + task->first_transfer, task->n_transfers, &crossing);
    }
    free(crossing.links);
    return rc;
}

/* ---- shared memory ---- */

static const char NAME[] = "memory that ranks share";

/* Lets transfers go through the memory. */
static int cross(struct ot_engine *en) {
    struct ot_crossing crossing;
    if (en->layout.crossing == OT_NO_BUFFER)
        return 0;
    OT_TRY(ot_stages_list_links(&en->chain, &en->plan, &crossing));
    int rc = ot_comm_cross(en->comm, &crossing, ot_engine_at(en, en->layout.crossing));
    free(crossing.links);
    en->crosses = rc == 0;
    return rc;
}

/* A rank's part of the pages comes from the memory that is near its device. All ranks place their parts
 * before one pins them: pinning makes pages resident, wherever they are. */
int ot_engine_open_shared(struct ot_engine *en, void *given) {
    size_t bytes = en->layout.shared_bytes, part = bytes / (size_t)ot_shard_ranks(&en->plan.shard);
    void *memory = given;
    if (bytes == 0)
        return 0;
    if (!given)
        OT_TRY(ot_shared_memory_map(en->comm, bytes, &memory));
    en->shared_is_mapped = !given;
    en->tier_memory[OT_MEMORY_SHARED] = memory;
    OT_TRY(ot_device_place(en->device, (char *)memory + (size_t)en->plan.shard.rank * part, part, NAME));
    OT_TRY(ot_comm_barrier(en->comm));
    OT_TRY(ot_device_pin(en->device, memory, bytes, part, NAME));
    en->shared_is_pinned = true;
    return cross(en);
}

/* A step begins with updates of streamed tiles. After a flush these are none, but they write the bytes that
 * are there. */
int ot_engine_leave_one_copy(struct ot_engine *en) {
    if (!en->one_copy_is_read)
        return 0;
    en->one_copy_is_read = false;
    return ot_comm_barrier(en->comm);
}

void ot_engine_close_shared(struct ot_engine *en) {
    size_t bytes = en->layout.shared_bytes;
    void *memory = en->tier_memory[OT_MEMORY_SHARED];
    if (en->crosses)
        ot_comm_end_crossing(en->comm);
    if (en->shared_is_pinned)
        ot_device_unpin(en->device, memory, bytes, bytes / (size_t)ot_shard_ranks(&en->plan.shard));
    if (en->shared_is_mapped)
        ot_shared_memory_unmap(memory, bytes);
}

/* ---- gather to rank0 ---- */

/* Brings the holdings of a slab together on rank 0.
 *
 * The ranks gather equal pieces of their shares in device memory that holds nothing between steps. Rank 0
 * copies each gathered piece to the host. */

/* The most parameters of a share in one gathering: 4 MiB of each rank. More would not be faster. */
enum { MOST_PIECE = 1 << 20 };

struct gathering {
    enum ot_slab_kind kind;
    int slab;
    float *values; /* NULL on ranks other than 0 */
    int64_t share, piece;
    float *own;                    /* [piece]: this rank's, on the host */
    float *staging;                /* [ranks][piece], on the device */
    struct ot_shard_range holding; /* this rank's */
};

/* The ranks may have different plans, so the piece is the largest that fits on every rank. */
static int choose_piece(struct ot_engine *en, struct gathering *c) {
    int64_t all[OT_MAX_RANKS];
    int ranks = ot_shard_ranks(&en->plan.shard);
    int64_t fits = (int64_t)(en->layout.idle_bytes / sizeof(float)) / ranks;
    OT_TRY(ot_comm_all_gather_host(en->comm, &fits, sizeof fits, all));
    c->piece = ot_min(c->share, MOST_PIECE);
    for (int r = 0; r < ranks; r++)
        c->piece = ot_min(all[r], c->piece);
    c->piece -= c->piece % OT_SHARD_ALIGN_PARAMS;
    return c->piece > 0 ? 0 : ot_fail(OT_E_BUDGET, "no device memory to gather the model in");
}

/* Parameters of a share of `held` parameters that are in the piece at `at`. */
static int64_t part_of(const struct gathering *c, int64_t held, int64_t at) {
    int64_t left = held - at;
    return left < 0 ? 0 : ot_min(left, c->piece);
}

/* Stages: an owner sends the piece of its share to rank 0. */
static int send_piece(struct ot_engine *en, const struct gathering *c, int holder, int64_t at) {
    struct ot_shard of_owner = en->plan.shard;
    int rank = of_owner.rank, owner = ot_shard_rank_of(&of_owner, holder, en->plan.slabs[c->slab].owner);
    of_owner.rank = owner;
    struct ot_shard_range held = ot_shard_own(&of_owner, en->chain.slabs[c->slab].n_params);
    int64_t n = part_of(c, held.n, at), first = held.first + at;
    size_t bytes = (size_t)n * sizeof(float);
    int crosses = owner != 0 && (rank == 0 || rank == owner) && n > 0;
    if (rank == owner && n > 0) {
        OT_TRY(ot_engine_get(en, c->kind, c->slab, first, n, c->own));
        ot_lane_copy(en->lane, OT_COPY_H2D, c->staging, c->own, bytes);
    }
    ot_comm_transfer(
        en->comm, en->lane,
        &(struct ot_comm_transfer_v1){rank == owner ? 0 : owner, rank == owner, c->staging, bytes}, crosses);
    if (c->values && n > 0)
        ot_lane_copy(en->lane, OT_COPY_D2H, c->values + first, c->staging, bytes);
    OT_TRY(ot_lane_sync(en->lane));
    return ot_comm_error(en->comm);
}

/* Stages: all owners send their pieces, one after the other. */
static int send_pieces(struct ot_engine *en, const struct gathering *c, int64_t at) {
    for (int holder = 0; holder < ot_shard_holders(&en->plan.shard); holder++)
        OT_TRY(send_piece(en, c, holder, at));
    return 0;
}

/* Copies the parts of all ranks from the staging to their places in `values`, once the lane is there. */
static void take_piece(struct ot_engine *en, const struct gathering *c, int64_t at) {
    struct ot_shard shard = en->plan.shard;
    for (shard.rank = 0; shard.rank < ot_shard_ranks(&shard); shard.rank++) {
        struct ot_shard_range held = ot_shard_own(&shard, en->chain.slabs[c->slab].n_params);
        int64_t n = part_of(c, held.n, at);
        if (n > 0)
            ot_lane_copy(en->lane, OT_COPY_D2H, c->values + held.first + at,
                         c->staging + shard.rank * c->piece, (size_t)n * sizeof(float));
    }
}

static int gather_piece(struct ot_engine *en, const struct gathering *c, int64_t at) {
    float *place = c->staging + en->plan.shard.rank * c->piece;
    int64_t n = part_of(c, c->holding.n, at);
    if (n > 0) {
        OT_TRY(ot_engine_get(en, c->kind, c->slab, c->holding.first + at, n, c->own));
        ot_lane_copy(en->lane, OT_COPY_H2D, place, c->own, (size_t)n * sizeof(float));
    }
    ot_comm_all_gather(en->comm, en->lane, place, c->staging, (size_t)c->piece * sizeof(float));
    if (c->values)
        take_piece(en, c, at);
    OT_TRY(ot_lane_sync(en->lane));
    return ot_comm_error(en->comm);
}

int ot_engine_gather_to_rank0(struct ot_engine *en, enum ot_slab_kind kind, int slab, float *values) {
    int64_t n_params = en->chain.slabs[slab].n_params;
    bool stages = ot_plan_has_stages(&en->plan);
    if (!en->comm || (!ot_plan_is_sharded(&en->plan) && !stages)) /* rank 0 holds everything */
        return values ? ot_engine_get(en, kind, slab, 0, n_params, values) : 0;
    struct gathering c = {.kind = kind,
                          .slab = slab,
                          .values = en->plan.shard.rank == 0 ? values : NULL,
                          .share = ot_shard_share(&en->plan.shard, n_params),
                          .staging = (float *)(void *)(en->tier_memory[OT_TIER_GPU] + en->layout.idle_offset),
                          .holding = ot_slab_holding(&en->chain, &en->plan, slab)};
    OT_TRY(choose_piece(en, &c));
    c.own = malloc((size_t)c.piece * sizeof *c.own);
    if (!c.own)
        return ot_fail(OT_E_BUDGET, "no memory to gather %lld parameters", (long long)c.piece);
    int rc = 0;
    for (int64_t at = 0; rc == 0 && at < c.share; at += c.piece)
        rc = stages ? send_pieces(en, &c, at) : gather_piece(en, &c, at);
    free(c.own);
    return rc;
}
