#include "offload/schedule/stage_times.h"

#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* The next unit of a rank, in the order of its program. */
struct cursor {
    int round, block, micro; /* micro: in its round */
    bool backward, done;
    int time; /* the tick of the unit before */
};

struct table {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    struct ot_stage_times *times;
    bool train;
    int rounds, first_trained;
};

static struct ot_round round_of(const struct table *t, int round) {
    return t->train ? ot_plan_round(t->plan, round) : (struct ot_round){0, 1};
}

static int last_block(const struct table *t) {
    return t->chain->n_blocks - 1;
}

/* Moves a cursor to the first unit of the next visit of its rank: forward visits in the order of the chain,
 * then backward visits in the opposite order. */
static void next_visit(const struct table *t, int rank, struct cursor *c) {
    c->micro = 0;
    while (!c->done) {
        c->block += c->backward ? -1 : 1;
        if (!c->backward && c->block > last_block(t) - t->train) { /* the last block runs backward alone */
            c->backward = t->train;
            c->done = !t->train;
        }
        if (c->backward && c->block < t->first_trained) {
            *c = (struct cursor){.round = c->round + 1, .block = -1, .time = c->time};
            c->done = c->round == t->rounds;
            continue;
        }
        if (!c->done && ot_block_owner(t->chain, t->plan, c->block) == rank)
            return;
    }
}

/* The tick from which a result of (block, micro) may be read by the owner of another block; -1: it has no
 * tick yet. */
static int ready_at(const struct table *t, int block, int reader, int micro, bool backward) {
    int time = ot_stage_time(t->times, block, micro, backward);
    bool crosses = ot_block_owner(t->chain, t->plan, block) != ot_block_owner(t->chain, t->plan, reader);
    return time < 0 ? -1 : time + (crosses ? t->times->lead : 1);
}

/* The tick of the last unit that reads the place of the activation that forward(block, micro) writes, in an
 * earlier round; 0: none; -1: it has no tick yet. */
static int place_free_at(const struct table *t, int block, int micro) {
    const struct ot_plan *plan = t->plan;
    int before = micro - 1;
    while (before >= 0 && ot_plan_place(plan, before) != ot_plan_place(plan, micro))
        before--;
    if (!t->train || before < 0 || block == last_block(t))
        return 0;
    bool backward = block + 1 >= t->first_trained;
    return ot_stage_time(t->times, block + 1, before, backward);
}

/* The tick in which a rank's next unit begins; -1: something that it needs has no tick yet. */
static int time_of(const struct table *t, const struct cursor *c, int micro) {
    int ready = 0, free_at = 0;
    if (c->backward && c->block < last_block(t))
        ready = ready_at(t, c->block + 1, c->block, micro, true);
    else if (c->block > 0)
        ready = ready_at(t, c->block - 1, c->block, micro, false);
    if (!c->backward)
        free_at = place_free_at(t, c->block, micro);
    if (ready < 0 || free_at < 0)
        return -1;
    int time = ot_max(c->time + 1, ready);
    return ot_max(time, free_at);
}

/* Gives ticks to the rank's units, as far as it can. Returns false if it can give none. */
static bool advance(const struct table *t, int rank, struct cursor *c) {
    bool any = false;
    while (!c->done) {
        struct ot_round round = round_of(t, c->round);
        int micro = round.first + c->micro, time = time_of(t, c, micro);
        if (time < 0)
            break;
        (c->backward ? t->times->backward : t->times->forward)[c->block * t->times->n_micro + micro] = time;
        c->time = time;
        any = true;
        if (++c->micro == round.n)
            next_visit(t, rank, c);
    }
    return any;
}

/* Gives ticks to all units. Each pass over the ranks gives at least one: of the units without a tick, the
 * first in the order of a run on one rank needs none of the others. */
static int fill(const struct table *t) {
    int ranks = t->plan->shard.ranks;
    struct cursor *cursors = calloc((size_t)ranks, sizeof *cursors);
    if (!cursors)
        return ot_fail(OT_E_BUDGET, "no memory for a pipeline of %d stages", ranks);
    for (int r = 0; r < ranks; r++) {
        cursors[r] = (struct cursor){.block = -1, .time = -1};
        next_visit(t, r, &cursors[r]);
    }
    for (bool any = true; any;) {
        any = false;
        for (int r = 0; r < ranks; r++)
            any = advance(t, r, &cursors[r]) || any;
    }
    free(cursors);
    return 0;
}

static void add(const struct table *t, int from_block, int to_block, bool gradient, int micro) {
    int from = ot_block_owner(t->chain, t->plan, from_block),
        to = ot_block_owner(t->chain, t->plan, to_block);
    int time = ot_stage_time(t->times, from_block, micro, gradient);
    if (time < 0 || from == to)
        return;
    t->times->transfers[t->times->n_transfers++] = (struct ot_stage_transfer){
        time + t->times->lead - 1, from, to, gradient, from_block < to_block ? from_block : to_block, micro};
}

static int by_tick(const void *a, const void *b) {
    const struct ot_stage_transfer *x = a, *y = b;
    int keys[][2] = {
        {x->tick, y->tick}, {x->boundary, y->boundary}, {x->micro, y->micro}, {x->gradient, y->gradient}};
    for (int i = 0; i < 4; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

/* Backward of block b reads the activation of block b - 1, and leaves that activation's gradient. */
static void list_transfers(const struct table *t) {
    for (int b = 0; b < last_block(t); b++)
        for (int m = 0; m < t->times->n_micro; m++) {
            add(t, b, b + 1, false, m);
            if (b >= t->first_trained)
                add(t, b + 1, b, true, m);
        }
    qsort(t->times->transfers, (size_t)t->times->n_transfers, sizeof *t->times->transfers, by_tick);
}

int ot_stage_times_make(const struct ot_chain *chain, const struct ot_plan *plan, bool train,
                        struct ot_stage_times *out) {
    int n_micro = train ? plan->max_micro : 1, places = train ? ot_plan_round_places(plan) : 1;
    size_t units = (size_t)chain->n_blocks * (size_t)n_micro;
    *out = (struct ot_stage_times){.n_blocks = chain->n_blocks,
                                   .n_micro = n_micro,
                                   .lead = places >= 2 * plan->shard.ranks ? 2 : 1,
                                   .forward = malloc(units * sizeof *out->forward),
                                   .backward = malloc(units * sizeof *out->backward),
                                   .transfers = calloc(2 * units, sizeof *out->transfers)};
    struct table t = {.chain = chain,
                      .plan = plan,
                      .times = out,
                      .train = train,
                      .rounds = train ? ot_plan_rounds(plan) : 1,
                      .first_trained = ot_chain_first_trained(chain)};
    if (!out->forward || !out->backward || !out->transfers)
        return ot_fail(OT_E_BUDGET, "no memory for the times of %zu units", units);
    memset(out->forward, 0xff, units * sizeof *out->forward);
    memset(out->backward, 0xff, units * sizeof *out->backward);
    OT_TRY(fill(&t));
    list_transfers(&t);
    return 0;
}

void ot_stage_times_free(struct ot_stage_times *times) {
    free(times->forward);
    free(times->backward);
    free(times->transfers);
    *times = (struct ot_stage_times){0};
}
