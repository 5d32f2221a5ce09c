/* Plans the ranks of a pipeline together (plan/stages.h). If there are several, the first stands for all:
 * rank r is the rank that has stage r there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/build.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "offload/predict/bound.h"
#include "offload/predict/planner_state.h"
#include "offload/predict/simulate_ranks.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- shapes ---- */

/* A shape is all that the plan of a rank depends on. */
struct shape {
    int layers;
    bool first, last; /* it owns the first, the last block */
    /* Parameters of its slabs: the layers of an encoder-decoder are not equal, and one rank has what they
     * share. */
    int64_t trained, frozen;
    struct ot_rank_machine machine;
};

static struct shape shape_of(const struct ot_plan_request *request, const struct ot_plan *divided, int rank) {
    const struct ot_chain *chain = request->chain;
    struct ot_plan of_rank = *divided;
    of_rank.shard.rank = ot_shard_rank_of(&divided->shard, 0, rank);
    struct shape shape = {.layers = ot_plan_middle_blocks(chain, &of_rank, 1),
                          .first = ot_block_is_own(chain, &of_rank, 0),
                          .last = ot_block_is_own(chain, &of_rank, chain->n_blocks - 1),
                          .machine = ot_stages_machine(request, rank)};
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_is_own(&of_rank, s))
            *(chain->slabs[s].frozen ? &shape.frozen : &shape.trained) += chain->slabs[s].n_params;
    return shape;
}

static bool is_same(struct shape a, struct shape b) {
    return a.layers == b.layers && a.first == b.first && a.last == b.last && a.trained == b.trained &&
           a.frozen == b.frozen && a.machine.slowness == b.machine.slowness &&
           memcmp(a.machine.budget_bytes, b.machine.budget_bytes, sizeof a.machine.budget_bytes) == 0;
}

/* Finds the first rank of each rank's shape, and the rank that works most. */
static int find_shapes(struct ot_stages *st, const struct ot_plan_request *request) {
    const struct ot_chain *chain = request->chain;
    struct ot_plan divided = {.n_slabs = chain->n_slabs, .shard = request->shard};
    int rc = 0;
    divided.slabs = calloc((size_t)chain->n_slabs, sizeof *divided.slabs);
    if (!divided.slabs)
        return ot_fail(OT_E_BUDGET, "no memory to plan %d ranks", st->ranks);
    OT_TRY_GOTO(ot_stages_divide(chain, &divided), rc, out);
    st->leader = ot_block_owner(chain, &divided, chain->n_blocks - 1);
    for (int r = 0; r < st->ranks; r++)
        for (st->like[r] = 0;
             !is_same(shape_of(request, &divided, st->like[r]), shape_of(request, &divided, r));)
            st->like[r]++;
out:
    free(divided.slabs);
    return rc;
}

/* ---- the plans of all ranks ---- */

/* The plan of the searched rank belongs to the search. */
static void free_plans(struct ot_stages *st) {
    for (int r = 0; r < st->ranks; r++)
        if (r != st->searched)
            ot_plan_free(&st->plans[r]);
    memset(st->plans, 0, (size_t)st->ranks * sizeof *st->plans);
}

/* Makes the plans of the other ranks: of a settled shape by its own request, else by the request of the
 * searched rank. All have its micro-batch and rounds. */
static int make_plans(struct ot_stages *st, const struct ot_plan_request *request,
                      const struct ot_plan *plan) {
    free_plans(st);
    st->searched = ot_shard_stage(&request->shard);
    st->plans[st->searched] = *plan;
    for (int r = 0; r < st->ranks; r++) {
        struct ot_plan_request rq = *request;
        if (r == st->searched)
            continue;
        if (st->settled[st->like[r]].chain)
            rq = st->settled[st->like[r]];
        ot_stages_move(&rq, r);
        ot_plan_force_micro(&rq, plan->micro_tokens);
        rq.rounds = ot_plan_rounds(plan);
        rq.is_trial = true;
        OT_TRY(ot_plan_make(&rq, &st->plans[r]));
        st->plans[r].first_round = plan->first_round;
        st->plans[r].round_micro = plan->round_micro;
    }
    return 0;
}

uint64_t ot_stages_print(const struct ot_stages *st) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int r = 0; r < st->ranks; r++)
        hash = ot_mix(hash, (int64_t)ot_plan_print(&st->plans[r]));
    return hash;
}

double ot_stages_tasks(const struct ot_stages *st, const struct ot_chain *chain) {
    double tasks = 0;
    for (int r = 0; r < st->ranks; r++)
        tasks += ot_planner_tasks(&st->plans[r], ot_plan_middle_blocks(chain, &st->plans[r], 0) + 1);
    return tasks;
}

/* The costs of a rank. They share `blocks` with those of the search; do not free them. */
static struct ot_costs costs_of(const struct ot_stages *st, int rank) {
    return ot_costs_slowed(st->costs, st->slowness ? st->slowness[rank] : 1);
}

bool ot_stages_make(struct ot_stages *st, const struct ot_plan_request *request, const struct ot_plan *plan,
                    double limit) {
    struct ot_costs searched = costs_of(st, ot_shard_stage(&request->shard));
    if (ot_plan_least_seconds(request->chain, plan, &searched) >= limit || make_plans(st, request, plan) < 0)
        return false;
    for (int r = 0; r < st->ranks; r++) {
        struct ot_costs costs = costs_of(st, r);
        if (ot_plan_least_seconds(request->chain, &st->plans[r], &costs) >= limit)
            return false;
    }
    return true;
}

int ot_stages_simulate(struct ot_stages *st, const struct ot_chain *chain, double limit,
                       struct ot_prediction *out) {
    int rc = ot_simulate_ranks(chain, st->plans, st->ranks, st->costs, st->slowness, limit, st->predictions);
    if (rc <= 0)
        return rc;
    *out = st->predictions[st->searched];
    for (int r = 0; r < st->ranks; r++)
        for (int l = 0; l < OT_LANE_COUNT; l++)
            out->exposed[l] = ot_max(out->exposed[l], st->predictions[r].exposed[l]);
    return rc;
}

/* ---- a search ---- */

/* In flight, a round for each rank is a better start than the fewest rounds. */
int ot_stages_settle(const struct ot_stages *st, struct ot_plan_request *request, struct ot_plan *short_of) {
    for (int pass = 0; pass < 2; pass++) {
        int64_t micro = INT64_MAX;
        int rounds = 0;
        for (int r = 0; r < st->ranks; r++) {
            struct ot_plan_request rq = *request;
            struct ot_plan plan;
            if (st->like[r] != r)
                continue;
            ot_stages_move(&rq, r);
            int rc = ot_plan_make(&rq, &plan);
            if (rc < 0)
                *short_of = plan;
            OT_TRY(rc);
            micro = ot_min(micro, plan.micro_tokens);
            rounds = ot_max(rounds, ot_plan_rounds(&plan));
            ot_plan_free(&plan);
        }
        ot_plan_force_micro(request, micro);
        if (pass == 0 && request->rounds == 0 && request->shard.in_flight > 1)
            request->rounds =
                ot_min(request->shard.in_flight, ot_candidate_micro(request, request->micro_sequences));
        if (pass == 1 && rounds > 1)
            request->rounds = rounds;
    }
    return 0;
}

/* Climbs from the plan of one shape, while the other shapes keep theirs. */
static int refine_shape(struct ot_search *s, int rank) {
    struct ot_stages *st = s->stages;
    struct ot_plan_request given = *s->given;
    struct ot_planner_result *best = s->out, own = {.forced = st->settled[rank]};
    struct ot_search of_rank = *s;
    struct ot_costs costs = costs_of(st, rank);
    ot_stages_move(&given, rank);
    ot_stages_move(&own.forced, rank);
    given.micro_sequences = own.forced.micro_sequences;
    given.sections = own.forced.sections;
    given.rounds = own.forced.rounds;
    OT_TRY(ot_plan_make(&own.forced, &own.plan));
    own.prediction = best->prediction;
    of_rank.given = &given;
    of_rank.costs = &costs;
    of_rank.out = &own;
    of_rank.effort = REFINE_EFFORT;
    st->settled[rank].chain = NULL;
    int rc = ot_planner_climb(&of_rank);
    best->prediction.step_seconds = own.prediction.step_seconds;
    st->settled[rank] = own.forced;
    ot_plan_free(&own.plan);
    return rc;
}

int ot_stages_refine(struct ot_search *s) {
    struct ot_stages *st = s->stages;
    struct ot_plan_request all = s->out->forced;
    all.rounds = ot_plan_rounds(&s->out->plan);
    for (int r = 0; r < st->ranks; r++)
        if (st->like[r] == r)
            st->settled[r] = all;
    for (int r = 0; r < st->ranks; r++)
        if (st->like[r] == r && r != st->like[st->leader] && ot_planner_may_gain(s))
            OT_TRY(refine_shape(s, r));
    return 0;
}

/* Replaces the leader's result by that of a rank: by the settled request of its shape, if there is one. */
static int finish(struct ot_stages *st, int rank, struct ot_planner_result *out) {
    const struct ot_plan_request *settled = &st->settled[st->like[rank]];
    struct ot_plan_request request = settled->chain ? *settled : out->forced;
    int tried = out->tried;
    ot_stages_move(&request, rank);
    request.rounds = ot_plan_rounds(&out->plan);
    ot_plan_free(&out->plan);
    *out = (struct ot_planner_result){.forced = request, .tried = tried};
    OT_TRY(ot_plan_make(&request, &out->plan));
    int rc = make_plans(st, &request, &out->plan);
    if (rc == 0)
        rc = ot_stages_simulate(st, request.chain, INFINITY, &out->prediction);
    out->prediction = st->predictions[rank];
    if (rc < 0)
        ot_plan_free(&out->plan);
    return ot_min(rc, 0);
}

/* The ranks of the first replica stand for those of the others, whose last shares may be shorter. */
static int move_to_replica(int rank, struct ot_planner_result *out) {
    if (rank == out->forced.shard.rank)
        return 0;
    out->forced.shard.rank = rank;
    ot_plan_free(&out->plan);
    return ot_plan_make(&out->forced, &out->plan);
}

static void close_stages(struct ot_stages *st) {
    if (st->plans)
        free_plans(st);
    free(st->like);
    free(st->settled);
    free(st->plans);
    free(st->predictions);
    free(st->slowness);
}

/* Lists the slowness of the stages, if they are unlike. */
static int find_slowness(struct ot_stages *st, const struct ot_plan_request *request) {
    double own = ot_stages_machine(request, ot_shard_stage(&request->shard)).slowness;
    if (!request->machines)
        return 0;
    st->slowness = calloc((size_t)st->ranks, sizeof *st->slowness);
    if (!st->slowness)
        return ot_fail(OT_E_BUDGET, "no memory to plan %d ranks", st->ranks);
    for (int r = 0; r < st->ranks; r++)
        st->slowness[r] = ot_stages_machine(request, r).slowness / own;
    return 0;
}

static int choose(const struct ot_plan_request *request, const struct ot_costs *costs,
                  const struct ot_plan_request *start, double limit, struct ot_planner_result *out) {
    size_t n = (size_t)ot_shard_stages(&request->shard);
    struct ot_stages st = {.ranks = ot_shard_stages(&request->shard),
                           .like = calloc(n, sizeof *st.like),
                           .settled = calloc(n, sizeof *st.settled),
                           .plans = calloc(n, sizeof *st.plans),
                           .predictions = calloc(n, sizeof *st.predictions),
                           .costs = costs};
    struct ot_plan_memo *memo = request->memo ? NULL : ot_plan_memo_open();
    struct ot_plan_request of_leader = *request;
    int rc = st.like && st.settled && st.plans && st.predictions
                 ? find_shapes(&st, request)
                 : ot_fail(OT_E_BUDGET, "no memory to plan %d ranks", st.ranks);
    if (rc == 0)
        rc = find_slowness(&st, request);
    struct ot_costs leaders = costs_of(&st, st.leader);
    *out = (struct ot_planner_result){.forced = *request};
    ot_stages_move(&of_leader, st.leader);
    of_leader.memo = memo ? memo : request->memo;
    if (rc == 0)
        rc = ot_planner_search(&of_leader, &leaders, start, &st, limit, out);
    if (rc == 0)
        rc = finish(&st, ot_shard_stage(&request->shard), out);
    if (rc == 0)
        rc = move_to_replica(request->shard.rank, out);
    out->forced.memo = request->memo;
    out->forced.is_trial = request->is_trial;
    ot_plan_memo_close(memo);
    close_stages(&st);
    return rc;
}

/* True if half the micro-batch may be worth another search: there are few to fill the pipeline with. */
static bool may_halve(const struct ot_plan_request *request, const struct ot_planner_result *result,
                      double limit) {
    double micro = result->plan.max_micro, others = ot_shard_stages(&request->shard) - 1;
    double least = result->prediction.step_seconds * micro / (micro + others); /* no stage ever waits */
    bool may = result->forced.micro_sequences > 1 ||
               ot_plan_may_choose_sections(request, 2 * ot_plan_sections(&result->plan));
    return request->micro_sequences == 0 && request->sections == 0 && may &&
           result->plan.max_micro <= FEW_MICRO * ot_shard_stages(&request->shard) &&
           least * (1 - HOPE_STARTS) < limit;
}

/* Each stage alone may fit in fewer rounds than all do together, since they have one micro-batch and one
 * number of rounds. So a refusal is tried again in 2, 4, 8 .. rounds, which need less of the device.
 * Before that, the layers of unlike ranks are divided by the memory of each. */
static int choose_rounds(const struct ot_plan_request *request, const struct ot_costs *costs, double limit,
                         struct ot_planner_result *out) {
    struct ot_plan_request more = *request;
    struct ot_error why;
    int rc = choose(request, costs, NULL, limit, out), most = request->rounds > 0 ? 0 : MOST_TRIED_ROUNDS;
    if (rc != -OT_E_BUDGET)
        return rc;
    struct ot_shortage shortage = out->plan.shortage;
    ot_error_save(&why, rc);
    if (ot_stages_deal_by_room(&more))
        rc = choose(&more, costs, NULL, limit, out);
    for (more.rounds = 2; more.rounds <= most && rc == -OT_E_BUDGET; more.rounds *= 2)
        rc = choose(&more, costs, NULL, limit, out);
    if (rc == 0)
        return 0;
    *out = (struct ot_planner_result){.forced = *request, .plan.shortage = shortage};
    return ot_error_load(&why);
}

/* The tokens of a smaller micro-batch to try: half of it, or so many sections of its one sequence that there
 * are FEW_MICRO micro-batches for each stage, or twice as many sections as now. */
static int64_t smaller_micro(const struct ot_plan_request *request, const struct ot_planner_result *result) {
    int64_t sections = 2 * ot_plan_sections(&result->plan);
    int64_t sequences = result->plan.max_micro / ot_plan_sections(&result->plan);
    int64_t enough = (int64_t)FEW_MICRO * ot_shard_stages(&request->shard);
    if (result->forced.micro_sequences > 1)
        return result->forced.micro_sequences / 2 * request->sequence_tokens;
    while (sequences * sections < enough && ot_plan_may_choose_sections(request, 2 * sections))
        sections *= 2;
    return ot_plan_section_tokens(request, sections);
}

/* Searches with a smaller micro-batch, from the plan of *out in another number of rounds. Returns 1 if that
 * gains enough, with the result in *out; 0 if it does not, or has no plan. */
static int halve(const struct ot_plan_request *request, const struct ot_costs *costs, int rounds,
                 double limit, struct ot_planner_result *out) {
    struct ot_plan_request half = *request, start = out->forced;
    struct ot_planner_result other;
    double most = out->prediction.step_seconds * (1 - OT_PLANNER_MARGIN);
    int64_t micro = smaller_micro(request, out);
    memcpy(half.shard.layers, out->forced.shard.layers, sizeof half.shard.layers);
    ot_plan_force_micro(&half, micro);
    ot_plan_force_micro(&start, micro);
    start.rounds = rounds;
    int rc = choose(&half, costs, &start, fmin(limit, most), &other);
    out->tried += other.tried;
    if (rc < 0 || other.prediction.step_seconds >= most) {
        ot_plan_free(&other.plan);
        return rc == -OT_E_BUDGET || rc == -OT_E_USAGE ? 0 : rc;
    }
    other.tried = out->tried;
    ot_plan_free(&out->plan);
    *out = other;
    return 1;
}

/* Half the micro-batch in twice the rounds needs half the memory of a round; in as many rounds, it fetches
 * weights no more often. */
int ot_stages_choose(const struct ot_plan_request *request, const struct ot_costs *costs, double limit,
                     struct ot_planner_result *out) {
    OT_TRY(choose_rounds(request, costs, limit, out));
    while (may_halve(request, out, limit)) {
        int rounds = ot_plan_rounds(&out->plan);
        bool open = request->rounds == 0 && rounds > 1;
        int rc = halve(request, costs, open ? 2 * rounds : rounds, limit, out);
        if (rc == 0 && open)
            rc = halve(request, costs, rounds, limit, out);
        if (rc <= 0)
            return rc;
    }
    return 0;
}
