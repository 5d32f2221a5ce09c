#include "offload/schedule/stage_times.h"

#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"

/* The visits of a rank in one direction, in their order. */
struct cursor {
    int round, block; /* of the next visit */
    bool done;
};

/* A rank at work. */
struct worker {
    struct cursor forward, backward;
    int at_work, micro; /* 0: no visit is under way; 1: a forward visit; 2: a backward visit; its next unit */
    int free_at;        /* the tick in which the unit under way ends */
    int n_forward;      /* forward units so far */
};

struct table {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    struct ot_stage_times *times;
    bool train;
    int rounds, first_trained;
    int *owners; /* [n_blocks] */
    int *before; /* [n_micro]: the last micro-batch before that one with the same place; -1: none */
};

static struct ot_round round_of(const struct table *t, int round) {
    return t->train ? ot_plan_round(t->plan, round) : (struct ot_round){0, t->times->n_micro};
}

/* The micro-batch of a place in the order of a direction. */
static int in_order(const struct table *t, int micro, bool backward) {
    return backward ? ot_plan_backward_turn(t->plan, micro) : micro;
}

static int last_block(const struct table *t) {
    return t->chain->n_blocks - 1;
}

static bool has_forward(const struct table *t, int block) {
    return !t->train || block < last_block(t); /* the last block runs backward alone */
}

/* Moves a cursor to the rank's next visit: the next own block of the round, or the first of the next round.
 * */
static void next_visit(const struct table *t, int rank, bool backward, struct cursor *c) {
    int end = backward ? t->first_trained - 1 : t->chain->n_blocks;
    while (!c->done) {
        c->block += backward ? -1 : 1;
        if (c->block == end) {
            c->block = backward ? t->chain->n_blocks : -1;
            c->done = ++c->round == t->rounds;
        } else if (t->owners[c->block] == rank && (backward || has_forward(t, c->block))) {
            return;
        }
    }
}

/* If the layers are not the same work, the first one takes FINE ticks, so that the others' fit better. */
static int unit_ticks(const struct ot_chain *chain, const struct ot_plan *plan, int block, bool backward) {
    enum { FINE = 3 };
    const struct ot_shard *shard = &plan->shard;
    int last = chain->n_blocks - 1, ticks = shard->late_layers > 0 ? FINE : 1;
    if (block == last)
        ticks *= ot_max(shard->head_layers, 1);
    else if (block >= last - shard->late_layers)
        ticks = ot_max((ticks * shard->late_percent + 50) / 100, 1);
    return backward ? ticks * OT_STAGE_BACKWARD_TICKS : ticks;
}

static int ticks_of(const struct table *t, int block, bool backward) {
    return unit_ticks(t->chain, t->plan, block, backward);
}

int ot_stage_times_crosses(const struct ot_stage_times *times, const struct ot_chain *chain,
                           const struct ot_plan *plan, int block, int micro, bool backward) {
    return ot_stage_time(times, block, micro, backward) + unit_ticks(chain, plan, block, backward) +
           times->lead - 2;
}

/* The tick from which the owner of block `reader` may read a result of (block, micro); -1: the result has
 * no tick yet. */
static int ready_at(const struct table *t, int block, int reader, int micro, bool backward) {
    int time = ot_stage_time(t->times, block, micro, backward);
    bool crosses = t->owners[block] != t->owners[reader];
    return time < 0 ? -1 : time + ticks_of(t, block, backward) + (crosses ? t->times->lead - 1 : 0);
}

/* The tick of the last unit that reads a place in which a block left an activation of the micro-batch; -1: it
 * has no tick yet. A frozen reader has no backward. Its rank may let boundaries take turns in two buffers
 * (layout.h), so the place is free when the rank's last block has read it. */
static int last_read(const struct table *t, int block, int micro) {
    int reader = t->owners[block + 1], b = last_block(t);
    if (block + 1 >= t->first_trained)
        return ot_stage_time(t->times, block + 1, micro, true);
    while (t->owners[b] != reader)
        b--;
    return ot_stage_time(t->times, b, micro, b == last_block(t));
}

/* The tick from which the place is free that forward(block, micro) writes; -1: it is not known yet. */
static int place_free_at(const struct table *t, int block, int micro) {
    return t->train && t->before[micro] >= 0 ? last_read(t, block, t->before[micro]) : 0;
}

/* True if the unit may run in the tick. */
static bool is_ready(const struct table *t, int block, int micro, bool backward, int tick) {
    int ready = 0, free_at = 0;
    if (backward && block < last_block(t))
        ready = ready_at(t, block + 1, block, micro, true);
    else if (block > 0)
        ready = ready_at(t, block - 1, block, micro, false);
    if (!backward)
        free_at = place_free_at(t, block, micro);
    return ready >= 0 && ready <= tick && free_at >= 0 && free_at <= tick;
}

static const struct cursor *visit_of(const struct worker *w) {
    return w->at_work == 2 ? &w->backward : &w->forward;
}

/* True if the next visit of a direction may begin in the tick. */
static bool may_begin(const struct table *t, const struct worker *w, bool backward, int tick) {
    const struct cursor *c = backward ? &w->backward : &w->forward;
    int most = ot_max(t->plan->shard.in_flight, 1);
    /* A rank whose blocks are all frozen has no backward: the places of the next rank limit it. */
    bool flies = !backward && !w->backward.done && c->round >= w->backward.round + most;
    int first = in_order(t, round_of(t, c->round).first, backward);
    return !c->done && !flies && is_ready(t, c->block, first, backward, tick);
}

/* Notes the order of visits. */
static void note_visit(const struct table *t, const struct cursor *c, bool backward) {
    t->times->visits[t->times->n_visits++] = (struct ot_stage_visit){c->block, c->round, backward};
}

/* Lets the rank of a stage run a unit in the tick, if it may. Returns false if it waits. */
static bool work(struct table *t, int stage, struct worker *w, int tick) {
    if (w->free_at > tick)
        return true;
    if (w->at_work == 0 && may_begin(t, w, true, tick))
        w->at_work = 2;
    else if (w->at_work == 0 && may_begin(t, w, false, tick))
        w->at_work = 1;
    else if (w->at_work == 0)
        return false;
    bool backward = w->at_work == 2;
    const struct cursor *c = visit_of(w);
    struct ot_round round = round_of(t, c->round);
    int micro = in_order(t, round.first + w->micro, backward);
    if (!is_ready(t, c->block, micro, backward, tick))
        return false;
    if (w->micro == 0)
        note_visit(t, c, backward);
    int unit = c->block * t->times->n_micro + micro;
    (backward ? t->times->backward : t->times->forward)[unit] = tick;
    if (!backward)
        t->times->buffers[unit] = (uint8_t)(w->n_forward++ % OT_STAGE_BUFFERS);
    w->free_at = tick + ticks_of(t, c->block, backward);
    if (++w->micro == round.n) {
        next_visit(t, stage, backward, backward ? &w->backward : &w->forward);
        w->at_work = w->micro = 0;
    }
    return true;
}

/* Lists what the units ask for often. */
static int list_facts(struct table *t) {
    int places = t->train ? ot_plan_round_places(t->plan) : 1;
    int *last = malloc((size_t)places * sizeof *last); /* the last micro-batch of each place */
    t->owners = malloc((size_t)t->chain->n_blocks * sizeof *t->owners);
    t->before = malloc((size_t)t->times->n_micro * sizeof *t->before);
    if (!last || !t->owners || !t->before) {
        free(last);
        return ot_fail(OT_E_BUDGET, "no memory for a pipeline of %d stages",
                       ot_shard_stages(&t->plan->shard));
    }
    for (int b = 0; b < t->chain->n_blocks; b++)
        t->owners[b] = ot_block_owner(t->chain, t->plan, b);
    for (int i = 0; i < places; i++)
        last[i] = -1;
    for (int m = 0; m < t->times->n_micro; m++) {
        int place = t->train ? ot_plan_place(t->plan, m) : 0;
        t->before[m] = last[place];
        last[place] = m;
    }
    free(last);
    return 0;
}

/* Gives ticks to all units, tick by tick. Some rank works at least in each LEAD-th tick: of the units
 * without a tick, the first in the order of a run on one rank waits for none of the others. */
static int fill(struct table *t) {
    int ranks = ot_shard_stages(&t->plan->shard), waited = 0;
    struct worker *workers = calloc((size_t)ranks, sizeof *workers);
    if (!workers)
        return ot_fail(OT_E_BUDGET, "no memory for a pipeline of %d stages", ranks);
    for (int r = 0; r < ranks; r++) {
        workers[r].forward = (struct cursor){.block = -1};
        workers[r].backward = (struct cursor){.block = t->chain->n_blocks, .done = !t->train};
        next_visit(t, r, false, &workers[r].forward);
        next_visit(t, r, true, &workers[r].backward);
    }
    bool done = false;
    for (int tick = 0; !done && waited <= t->times->lead; tick++) {
        bool any = false;
        done = true;
        for (int r = 0; r < ranks; r++) {
            any = work(t, r, &workers[r], tick) || any;
            done = done && workers[r].forward.done && workers[r].backward.done;
        }
        waited = any ? 0 : waited + 1;
    }
    free(workers);
    return done ? 0 : ot_fail(OT_E_INTERNAL, "schedule: the stages of the pipeline wait for each other");
}

/* What crosses after a unit, to rank `to`, unless that is the unit's rank. */
static void add(const struct table *t, int block, int to, int micro, enum ot_transfer_kind kind, int index) {
    bool backward = kind == OT_TRANSFER_GRADIENT || kind == OT_TRANSFER_SUM;
    int from = ot_block_owner(t->chain, t->plan, block);
    int time = ot_stage_time(t->times, block, micro, backward);
    int tick = ot_stage_times_crosses(t->times, t->chain, t->plan, block, micro, backward);
    if (time < 0 || from == to)
        return;
    t->times->transfers[t->times->n_transfers++] =
        (struct ot_stage_transfer){tick, from, to, kind, index, micro};
}

static int by_tick(const void *a, const void *b) {
    const struct ot_stage_transfer *x = a, *y = b;
    int keys[][2] = {
        {x->tick, y->tick}, {x->index, y->index}, {x->micro, y->micro}, {(int)x->kind, (int)y->kind}};
    for (int i = 0; i < 4; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

/* True if the rank owns a block before block `end` that uses the slab. */
static bool uses_before(const struct table *t, int slab, int rank, int end) {
    for (int b = 0; b < end; b++)
        for (int u = 0; u < t->chain->blocks[b].n_uses; u++)
            if (t->chain->blocks[b].uses[u].slab == slab && ot_block_owner(t->chain, t->plan, b) == rank)
                return true;
    return false;
}

/* Lists the weights of a shared slab, to the rank of each block that is the first of its rank to use them,
 * and the gradient sums. */
static void list_shared(const struct table *t, int slab) {
    int owner = t->plan->slabs[slab].owner, before = -1;
    for (int b = 0; b <= last_block(t); b++)
        for (int u = 0; u < t->chain->blocks[b].n_uses; u++) {
            if (t->chain->blocks[b].uses[u].slab != slab)
                continue;
            int rank = ot_block_owner(t->chain, t->plan, b);
            if (rank != owner && !uses_before(t, slab, rank, b))
                add(t, before, rank, 0, OT_TRANSFER_WEIGHTS, slab);
            if (t->train && !t->chain->slabs[slab].frozen)
                add(t, b, owner, in_order(t, t->times->n_micro - 1, true), OT_TRANSFER_SUM,
                    b * OT_MAX_USES + u);
            before = b;
        }
}

/* Backward of block b reads the activation of block b - 1, and leaves that activation's gradient. */
static void list_transfers(const struct table *t) {
    for (int b = 0; b < last_block(t); b++)
        for (int m = 0; m < t->times->n_micro; m++) {
            add(t, b, ot_block_owner(t->chain, t->plan, b + 1), m, OT_TRANSFER_BOUNDARY, b);
            if (b >= t->first_trained)
                add(t, b + 1, ot_block_owner(t->chain, t->plan, b), m, OT_TRANSFER_GRADIENT, b);
        }
    for (int s = 0; s < t->chain->n_slabs; s++)
        if (t->chain->slabs[s].shared)
            list_shared(t, s);
    qsort(t->times->transfers, (size_t)t->times->n_transfers, sizeof *t->times->transfers, by_tick);
}

static uint32_t hash_transfers(const struct ot_stage_times *times) {
    uint32_t crc = 0;
    for (int i = 0; i < times->n_transfers; i++) {
        const struct ot_stage_transfer *t = &times->transfers[i];
        int32_t all[] = {t->tick, t->from, t->to, (int32_t)t->kind, t->index, t->micro};
        crc = ot_crc32(crc, all, sizeof all);
    }
    return crc;
}

int ot_stage_times_make(const struct ot_chain *chain, const struct ot_plan *plan, enum ot_pass pass,
                        struct ot_stage_times *out) {
    bool train = pass == OT_PASS_TRAIN;
    int n_micro = train ? plan->max_micro : pass == OT_PASS_EVAL ? ot_plan_sections(plan) : 1;
    int places = train ? ot_plan_round_places(plan) : n_micro;
    size_t units = (size_t)chain->n_blocks * (size_t)n_micro;
    size_t most = 2 * units + 2 * OT_MAX_USES * (size_t)chain->n_blocks; /* transfers */
    *out = (struct ot_stage_times){.n_blocks = chain->n_blocks,
                                   .n_micro = n_micro,
                                   .lead = places >= 2 * ot_shard_stages(&plan->shard) ? 2 : 1,
                                   .forward = malloc(units * sizeof *out->forward),
                                   .backward = malloc(units * sizeof *out->backward),
                                   .buffers = calloc(units, sizeof *out->buffers),
                                   .visits = calloc(2 * units, sizeof *out->visits),
                                   .transfers = calloc(most, sizeof *out->transfers)};
    struct table t = {.chain = chain,
                      .plan = plan,
                      .times = out,
                      .train = train,
                      .rounds = train ? ot_plan_rounds(plan) : 1,
                      .first_trained = ot_chain_first_trained(chain)};
    if (!out->forward || !out->backward || !out->buffers || !out->visits || !out->transfers)
        return ot_fail(OT_E_BUDGET, "no memory for the times of %zu units", units);
    memset(out->forward, 0xff, units * sizeof *out->forward);
    memset(out->backward, 0xff, units * sizeof *out->backward);
    int rc = list_facts(&t);
    if (rc == 0)
        rc = fill(&t);
    free(t.owners);
    free(t.before);
    OT_TRY(rc);
    list_transfers(&t);
    out->crc = hash_transfers(out);
    return 0;
}

void ot_stage_times_free(struct ot_stage_times *times) {
    free(times->forward);
    free(times->backward);
    free(times->buffers);
    free(times->visits);
    free(times->transfers);
    *times = (struct ot_stage_times){0};
}
