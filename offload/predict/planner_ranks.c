#include "offload/predict/planner_ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "offload/predict/planner_state.h"
#include "offload/predict/simulate_ranks.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* The stages of one division. */
struct stages {
    const struct ot_plan_request *request;
    const struct ot_costs *costs;
    double limit; /* a step that is not shorter is of no use */
    int ranks, tried;
    struct ot_planner_result *results; /* [ranks]; those with a plan are set */
    bool is_short;
    struct ot_shortage shortage; /* of the first rank without a plan */
};

/* A shape is all that the search for a rank's plan depends on. */
struct shape {
    int layers;
    bool first, last; /* it owns the first, the last block */
    /* Parameters of its slabs: the layers of an encoder-decoder are not equal, and one rank has what they
     * share. */
    int64_t trained, frozen;
};

static struct shape shape_of(const struct ot_chain *chain, const struct ot_plan *divided, int rank) {
    struct ot_plan of_rank = *divided;
    of_rank.shard.rank = rank;
    struct shape shape = {.layers = ot_plan_middle_blocks(chain, &of_rank, 1),
                          .first = ot_block_is_own(chain, &of_rank, 0),
                          .last = ot_block_is_own(chain, &of_rank, chain->n_blocks - 1)};
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_is_own(&of_rank, s))
            *(chain->slabs[s].frozen ? &shape.frozen : &shape.trained) += chain->slabs[s].n_params;
    return shape;
}

static bool is_same(struct shape a, struct shape b) {
    return a.layers == b.layers && a.first == b.first && a.last == b.last && a.trained == b.trained &&
           a.frozen == b.frozen;
}

/* Plans a rank: as the rank `like`, which has the same shape; or by a search (like < 0). leader: the rank
 * whose micro-batch and rounds all take; < 0: it is this one. */
static int plan_rank(struct stages *s, const struct ot_shard *shard, int rank, int like, int leader) {
    struct ot_planner_result *out = &s->results[rank];
    struct ot_plan_request rq = like >= 0 ? s->results[like].forced : *s->request;
    const struct ot_plan *lead = leader >= 0 ? &s->results[leader].plan : NULL;
    rq.shard = *shard;
    rq.shard.rank = rank;
    if (lead) {
        rq.micro_sequences = lead->micro_tokens / rq.sequence_tokens;
        rq.rounds = ot_plan_rounds(lead);
    }
    if (like >= 0) {
        *out = (struct ot_planner_result){.forced = rq};
        OT_TRY(ot_plan_make(&rq, &out->plan));
    } else {
        int rc = ot_planner_choose_from(&rq, s->costs, NULL, s->limit, out);
        s->tried += out->tried;
        if (rc < 0 && !s->is_short)
            s->shortage = out->plan.shortage;
        s->is_short = s->is_short || rc < 0;
        OT_TRY(rc);
    }
    if (!lead)
        return 0;
    out->plan.first_round = lead->first_round;
    out->plan.round_micro = lead->round_micro;
    return ot_plan_finish(rq.chain, &out->plan);
}

/* Plans all ranks, from the owner of the last block on. */
static int plan_ranks(struct stages *s, const struct ot_shard *shard) {
    const struct ot_chain *chain = s->request->chain;
    struct ot_plan divided = {.n_slabs = chain->n_slabs, .shard = *shard};
    int rc = 0;
    divided.slabs = calloc((size_t)chain->n_slabs, sizeof *divided.slabs);
    if (!divided.slabs)
        return ot_fail(OT_E_BUDGET, "no memory to plan %d ranks", s->ranks);
    OT_TRY_GOTO(ot_stages_divide(chain, &divided), rc, out);
    int leader = ot_block_owner(chain, &divided, chain->n_blocks - 1);
    OT_TRY_GOTO(plan_rank(s, shard, leader, -1, -1), rc, out);
    for (int r = 0; r < s->ranks; r++) {
        int like = r - 1; /* a rank of the same shape that is planned already */
        while (like >= 0 && !is_same(shape_of(chain, &divided, like), shape_of(chain, &divided, r)))
            like--;
        if (r != leader)
            OT_TRY_GOTO(plan_rank(s, shard, r, like, leader), rc, out);
    }
out:
    ot_plan_free(&divided);
    return rc;
}

static void free_plans(struct stages *s) {
    for (int r = 0; r < s->ranks; r++)
        ot_plan_free(&s->results[r].plan);
    memset(s->results, 0, (size_t)s->ranks * sizeof *s->results);
}

static int simulate(struct stages *s) {
    struct ot_plan *plans = calloc((size_t)s->ranks, sizeof *plans);
    struct ot_prediction *predictions = calloc((size_t)s->ranks, sizeof *predictions);
    int rc = plans && predictions ? 0 : ot_fail(OT_E_BUDGET, "no memory to simulate %d ranks", s->ranks);
    for (int r = 0; rc == 0 && r < s->ranks; r++)
        plans[r] = s->results[r].plan;
    if (rc == 0)
        rc = ot_simulate_ranks(s->request->chain, plans, s->ranks, s->costs, predictions);
    for (int r = 0; rc == 0 && r < s->ranks; r++)
        s->results[r].prediction = predictions[r];
    free(plans);
    free(predictions);
    return rc;
}

/* The work of the last block, in layers. */
static int head_layers(const struct ot_chain *chain, const struct ot_costs *costs) {
    const struct ot_block_cost *layer = &costs->blocks[1], *head = &costs->blocks[costs->n_blocks - 1];
    double one = layer->forward.per_token + layer->backward.per_token;
    return chain->n_blocks > 2 && one > 0 ? (int)lround(head->backward.per_token / one) : 0;
}

/* Plans and simulates all ranks with a division, rounds and micro-batch that are set in the request. Keeps
 * the result in *out if its tokens a second are more than those of *out by the share `margin`. */
static int try_division(struct stages *s, const struct ot_plan_request *division, double margin,
                        struct ot_planner_result *out) {
    int own = s->request->shard.rank, rc;
    s->request = division;
    rc = plan_ranks(s, &division->shard);
    if (rc == 0)
        rc = simulate(s);
    struct ot_planner_result *result = &s->results[own];
    const struct ot_prediction *a = &result->prediction, *b = &out->prediction;
    bool wins = rc == 0 && (b->step_seconds == 0 ||
                            a->tokens / a->step_seconds > (1 + margin) * b->tokens / b->step_seconds);
    if (wins) {
        ot_plan_free(&out->plan);
        *out = *result;
        result->plan = (struct ot_plan){0};
    }
    free_plans(s);
    return rc;
}

static bool is_refusal(int rc) {
    return rc == -OT_E_BUDGET || rc == -OT_E_USAGE;
}

/* Contiguous stages, with rounds that flow behind each other. A pipeline needs a round for each rank in
 * flight, and as many again because activations take their time to cross. Twice as many rounds in a step
 * halve the time in which the pipeline fills and drains; still more move too much. Returns 1 if *out has a
 * plan, 0 if it has none, < 0 on errors. */
static int try_rounds(struct stages *s, const struct ot_plan_request *base, int64_t micro, double margin,
                      struct ot_planner_result *out) {
    int64_t n = (base->step_sequences + micro - 1) / micro;
    int flying = 2 * s->ranks, first = base->rounds ? base->rounds : flying;
    int last = base->rounds ? base->rounds : 2 * flying;
    for (int rounds = first; rounds <= last && rounds <= n; rounds *= 2) {
        struct ot_plan_request division = *base;
        division.micro_sequences = micro;
        division.shard.turn_blocks = 0;
        division.shard.in_flight = flying;
        division.rounds = rounds;
        int rc = try_division(s, &division, margin, out);
        if (rc < 0 && !is_refusal(rc))
            return rc;
    }
    return out->plan.slabs != NULL;
}

/* Same as ot_planner_choose_from, for the rank of request->shard. Also chooses the division. The prediction
 * is that of this rank among all. Smaller micro-batches fill a pipeline sooner, but they change the bits. */
static int choose_stages(const struct ot_plan_request *request, const struct ot_costs *costs, double limit,
                         struct ot_planner_result *out) {
    int ranks = request->shard.ranks;
    struct stages s = {.request = request,
                       .limit = limit,
                       .costs = costs,
                       .ranks = ranks,
                       .results = calloc((size_t)ranks, sizeof *s.results)};
    struct ot_plan_request base = *request;
    *out = (struct ot_planner_result){.forced = *request};
    if (!s.results)
        return ot_fail(OT_E_BUDGET, "no memory to plan %d ranks", ranks);
    base.shard.head_layers = head_layers(request->chain, costs);
    base.shard.in_flight = 0;
    base.shard.turn_blocks = 1;
    int rc = try_division(&s, &base, 0, out), refusal = rc;
    int64_t micro = ot_max(out->forced.micro_sequences, 1);
    if (rc == 0 || is_refusal(rc))
        rc = try_rounds(&s, &base, micro, 0, out);
    while (rc >= 0 && micro > 1 && request->micro_sequences == 0 &&
           request->step_sequences / micro < 2 * ranks) {
        micro /= 2;
        rc = try_rounds(&s, &base, micro, OT_PLANNER_MARGIN, out);
    }
    out->tried = s.tried;
    if (rc <= 0)
        out->plan.shortage = s.shortage;
    free(s.results);
    return rc == 0 ? refusal : ot_min(rc, 0);
}

/* ---- modes of several ranks ---- */

static int choose_in(const struct ot_plan_request *request, struct ot_shard shard,
                     const struct ot_costs *costs, double limit, struct ot_planner_result *out) {
    struct ot_plan_request in = *request;
    in.shard = shard;
    if (shard.mode == OT_SHARD_STAGES && shard.ranks > 1)
        return choose_stages(&in, costs, limit, out);
    if (shard.one_copy)
        in.weights = OT_HOME_HOST;
    return ot_planner_choose_from(&in, costs, NULL, limit, out);
}

struct contest {
    const struct ot_plan_request *request;
    const struct ot_costs *costs;
    struct ot_shard_choice *choice;
    struct ot_planner_result *best; /* has a plan, unless rc < 0 */
    int rc, tried;
};

/* Plans a shard. It becomes the best if its step is shorter than `limit`. A search gives up plans that are
 * slower than search_limit, so their step is not that of the best plan. Returns the result of the search. */
static int enter(struct contest *c, struct ot_shard shard, double limit, double search_limit) {
    struct ot_planner_result other;
    double *step = &c->choice->step_seconds[shard.mode];
    int rc = choose_in(c->request, shard, c->costs, search_limit, &other);
    c->tried += other.tried;
    if (rc < 0)
        return rc;
    if (other.prediction.step_seconds < search_limit && (*step == 0 || other.prediction.step_seconds < *step))
        *step = other.prediction.step_seconds;
    if (other.prediction.step_seconds < limit) {
        ot_plan_free(&c->best->plan);
        *c->best = other;
        c->rc = 0;
    } else {
        ot_plan_free(&other.plan);
    }
    return 0;
}

static double limit_of(const struct contest *c, double margin) {
    return c->rc < 0 ? INFINITY : (1 - margin) * c->best->prediction.step_seconds;
}

/* Stages that are slower by this share of the step are given up; a nearer step is told. */
static const double TOLD = 0.25;

/* Errors: those that are no refusal. */
static int enter_stages(struct contest *c) {
    struct ot_shard stages = c->request->shard;
    double margin = stages.world ? OT_PLANNER_RESOLUTION : OT_PLANNER_MARGIN;
    stages.mode = OT_SHARD_STAGES;
    int rc = enter(c, stages, limit_of(c, margin), limit_of(c, -TOLD));
    if (rc < 0)
        snprintf(c->choice->no_stages, sizeof c->choice->no_stages, "%s",
                 rc == -OT_E_BUDGET ? "they need more memory" : ot_error_text());
    return rc == 0 || is_refusal(rc) ? 0 : rc;
}

/* Mode full needs the least memory, so it is tried first. Another mode, or one copy, must win clearly: more
 * of the model on each rank leaves less room for other uses, and ranks that share memory depend on each other
 * more. Modes that do not fit, or that contradict the user's choices, are dropped. */
int ot_planner_choose_shard(const struct ot_plan_request *request, const struct ot_costs *costs,
                            struct ot_shard_open open, struct ot_planner_result *out,
                            struct ot_shard_choice *choice) {
    struct ot_shard_choice unused;
    struct contest c = {request, costs, choice ? choice : &unused, out, -OT_E_BUDGET, 0};
    struct ot_shard first = request->shard, other;
    bool several = ot_shard_ranks(&request->shard) > 1;
    struct ot_error why;
    *c.choice = (struct ot_shard_choice){0};
    if (open.mode)
        first.mode = OT_SHARD_FULL;
    c.rc = choose_in(request, first, costs, INFINITY, out);
    c.tried = out->tried;
    ot_error_save(&why, c.rc);
    if (c.rc == 0)
        c.choice->step_seconds[first.mode] = out->prediction.step_seconds;
    other = first;
    other.one_copy = true;
    double limit = limit_of(&c, OT_PLANNER_RESOLUTION);
    if (open.one_copy && first.mode == OT_SHARD_FULL)
        enter(&c, other, limit, limit);
    for (int mode = 0; mode < OT_SHARD_FULL && open.mode && several; mode++) {
        other = request->shard;
        other.mode = (enum ot_shard_mode)mode;
        limit = limit_of(&c, OT_PLANNER_RESOLUTION);
        enter(&c, other, limit, limit);
    }
    int rc = open.stages && several ? enter_stages(&c) : 0;
    out->tried = c.tried;
    if (rc < 0)
        ot_plan_free(&out->plan);
    return rc < 0 ? rc : c.rc < 0 ? ot_error_load(&why) : 0;
}

int ot_shard_runner_up(const struct ot_shard_choice *choice, enum ot_shard_mode chosen) {
    int best = -1;
    for (int mode = 0; mode <= OT_SHARD_STAGES; mode++) {
        double step = choice->step_seconds[mode];
        if (mode != (int)chosen && step > 0 && (best < 0 || step < choice->step_seconds[best]))
            best = mode;
    }
    return best;
}
