#include "offload/predict/planner_ranks.h"

#include <math.h>
#include <stdio.h>

#include "offload/plan/stages.h"
#include "offload/predict/planner_state.h"
#include "src/base/error.h"

static double work_of(const struct ot_costs *costs, int block) {
    return costs->blocks[block].forward.per_token + costs->blocks[block].backward.per_token;
}

/* Sets the work of the last block, in layers, and that of a decoder's layers. */
static void set_work(const struct ot_chain *chain, const struct ot_costs *costs, struct ot_shard *stages) {
    static const double ALIKE = 0.1; /* estimates of equal layers are equal, measured ones nearly */
    int last = chain->n_blocks - 2, late = 0;
    double first = last > 0 ? work_of(costs, 1) : 0;
    stages->head_layers = stages->late_layers = stages->late_percent = 0;
    if (first <= 0)
        return;
    double end = work_of(costs, last);
    stages->head_layers = (int)lround(costs->blocks[last + 1].backward.per_token / first);
    while (late < last && fabs(work_of(costs, last - late) - end) < ALIKE * end)
        late++;
    if (!chain->has_pairs || late == last)
        return;
    stages->late_layers = late;
    stages->late_percent = (int)lround(100 * end / first);
}

static bool is_refusal(int rc) {
    return rc == -OT_E_BUDGET || rc == -OT_E_USAGE;
}

/* ---- the contest ---- */

/* A way to divide the work. It must save the share `handicap` of the step of a way without one. Stages are
 * compared with each other first, and shares with each other; then the best stages with the best shares. */
struct entrant {
    struct ot_shard shard;
    double handicap;
    double first; /* the score of its first plan, its step / (1 - handicap); INFINITY: it has no plan */
    bool is_over;
};

/* First, first with one copy, the other modes, and for each number of stages two divisions. */
enum { MOST_NUMBERS = 4, MOST_ENTRANTS = 2 + OT_SHARD_MODES + 2 * MOST_NUMBERS };

struct contest {
    const struct ot_plan_request *request;
    const struct ot_costs *costs;
    struct ot_shard_choice *choice;
    struct entrant entrants[MOST_ENTRANTS];
    int n, tried;
    /* The best stages have the second place, the best shares the first; their steps, which are INFINITY
     * before there is a plan; and the handicap of the best shares. */
    struct ot_planner_result results[2];
    double steps[2], handicap;
    struct ot_planner_result *out;
};

static bool is_stages(const struct entrant *e) {
    return e->shard.mode == OT_SHARD_STAGES;
}

static void add(struct contest *c, struct ot_shard shard, double handicap) {
    c->entrants[c->n++] = (struct entrant){.shard = shard, .handicap = handicap, .first = INFINITY};
}

/* Turns of one layer, and one turn for each rank, in rounds that flow behind each other. A pipeline needs a
 * round for each rank in flight, and as many again because activations take their time to cross. */
static void add_stages(struct contest *c, int number, double handicap) {
    struct ot_plan_request request = *c->request;
    struct ot_shard *stages = &request.shard;
    stages->mode = OT_SHARD_STAGES;
    stages->stages = number;
    set_work(request.chain, c->costs, stages);
    for (stages->turn_blocks = 1; stages->turn_blocks >= 0; stages->turn_blocks--) {
        stages->in_flight = stages->turn_blocks == 1 ? 0 : 2 * ot_shard_stages(stages);
        ot_stages_deal_by_speed(&request);
        add(c, *stages, handicap);
    }
}

/* True if the stages divide the ranks, and `world` allows the number of replicas. */
static bool divides(const struct ot_shard *shard) {
    int holders = ot_shard_holders(shard);
    return holders * ot_shard_stages(shard) == shard->ranks &&
           (!shard->world || OT_SHARD_WORLD_GROUPS % holders == 0);
}

/* Adds one stage for each rank, and replicas of 2 stages, of 4 stages, and of one stage for each host. The
 * last ones keep gradients inside hosts. Other numbers of stages lie between these. */
static void add_all_stages(struct contest *c, double handicap) {
    const struct ot_shard *shard = &c->request->shard;
    int of_host = c->costs->rates.host_ranks;
    const int numbers[MOST_NUMBERS] = {0, 2, 4, of_host > 0 ? shard->ranks / of_host : 0};
    for (int i = 0; i < MOST_NUMBERS; i++) {
        struct ot_shard stages = *shard;
        stages.mode = OT_SHARD_STAGES;
        stages.stages = numbers[i];
        bool is_new = i == 0 || (numbers[i] > 1 && numbers[i] < shard->ranks);
        for (int k = 1; k < i; k++)
            is_new = is_new && numbers[k] != numbers[i];
        if (is_new && (i == 0 || divides(&stages)))
            add_stages(c, numbers[i], handicap);
    }
}

/* Mode full needs the least memory, so it has no handicap. Another mode, or one copy, must win clearly: more
 * of the model on each rank leaves less room for other uses, and ranks that share memory depend on each other
 * more. */
static void list_entrants(struct contest *c, struct ot_shard_open open) {
    struct ot_shard shard = c->request->shard;
    bool several = ot_shard_ranks(&shard) > 1, modes = open.mode && several;
    if (open.mode)
        shard.mode = OT_SHARD_FULL;
    if (shard.mode == OT_SHARD_STAGES && several)
        add_stages(c, shard.stages, 0);
    else
        add(c, shard, 0);
    shard.one_copy = true;
    if (open.one_copy && shard.mode == OT_SHARD_FULL)
        add(c, shard, OT_PLANNER_RESOLUTION);
    shard = c->request->shard;
    for (int mode = 0; mode < OT_SHARD_FULL && modes; mode++) {
        shard.mode = (enum ot_shard_mode)mode;
        add(c, shard, OT_PLANNER_RESOLUTION);
    }
    if (open.stages && several)
        add_all_stages(c, shard.world ? OT_PLANNER_RESOLUTION : OT_PLANNER_MARGIN);
}

/* Searches the plan of an entrant. limit 0: its first plan. */
static int search(struct contest *c, const struct entrant *e, double limit, struct ot_planner_result *out) {
    struct ot_plan_request in = *c->request;
    in.shard = e->shard;
    if (in.shard.one_copy)
        in.weights = OT_HOME_HOST;
    int rc = in.shard.mode == OT_SHARD_STAGES && in.shard.ranks > 1
                 ? ot_stages_choose(&in, c->costs, limit, out)
                 : ot_planner_choose_from(&in, c->costs, NULL, limit, out);
    c->tried += out->tried;
    return rc;
}

/* Makes the first plan of each entrant. *why is the error of the first one, whose shortage is in
 * out->plan. */
static int try_first_plans(struct contest *c, struct ot_error *why) {
    struct ot_shard_choice *choice = c->choice;
    for (int i = 0; i < c->n; i++) {
        struct entrant *e = &c->entrants[i];
        struct ot_planner_result made;
        int rc = search(c, e, 0, &made);
        if (i == 0)
            ot_error_save(why, rc);
        if (i == 0 && rc < 0)
            c->out->plan.shortage = made.plan.shortage;
        if (rc < 0 && !is_refusal(rc))
            return rc;
        if (rc < 0 && is_stages(e) && !*choice->no_stages)
            snprintf(choice->no_stages, sizeof choice->no_stages, "%s",
                     rc == -OT_E_BUDGET ? "they need more memory" : ot_error_text());
        if (rc < 0)
            continue;
        e->first = made.prediction.step_seconds / (1 - e->handicap);
        ot_plan_free(&made.plan);
    }
    for (int i = 0; i < c->n; i++)
        if (is_stages(&c->entrants[i]) && isfinite(c->entrants[i].first))
            *choice->no_stages = '\0';
    return 0;
}

/* The entrant with the best first plan among those that were not searched; NULL: none is left. */
static struct entrant *find_next(struct contest *c) {
    struct entrant *next = NULL;
    for (int i = 0; i < c->n; i++)
        if (!c->entrants[i].is_over && isfinite(c->entrants[i].first) &&
            (!next || c->entrants[i].first < next->first))
            next = &c->entrants[i];
    return next;
}

/* A step that is not shorter does not become the result. */
static double limit_of(const struct contest *c, const struct entrant *e) {
    const double *steps = c->steps;
    if (is_stages(e))
        return fmin(steps[1], (1 - e->handicap) * steps[0]);
    double limit = (1 - e->handicap) / (1 - c->handicap) * steps[0];
    for (int i = 0; i < c->n; i++)
        if (is_stages(&c->entrants[i]))
            limit = fmin(limit, steps[1] / (1 - c->entrants[i].handicap));
    return limit;
}

/* Searches an entrant's plan. */
static int enter(struct contest *c, struct entrant *e) {
    struct ot_planner_result made, *best = &c->results[is_stages(e)];
    double *step = &c->choice->step_seconds[e->shard.mode];
    double limit = limit_of(c, e);
    e->is_over = true;
    /* a search with a limit may end before the last phases, in which plans with one copy gain */
    OT_TRY(search(c, e, e->shard.one_copy ? INFINITY : limit, &made));
    double seconds = made.prediction.step_seconds;
    *step = *step == 0 ? seconds : fmin(*step, seconds);
    if (seconds < limit) {
        ot_plan_free(&best->plan);
        *best = made;
        c->steps[is_stages(e)] = seconds;
        c->handicap = is_stages(e) ? c->handicap : e->handicap;
    } else {
        ot_plan_free(&made.plan);
    }
    return 0;
}

/* Stages become the result only if they were below the limit that the best shares set, and later shares only
 * if they were below the limit of the stages. */
static void take_best(struct contest *c) {
    bool stages = false;
    for (int i = 0; i < c->n; i++)
        if (is_stages(&c->entrants[i]))
            stages = c->steps[1] < (1 - c->entrants[i].handicap) * c->steps[0];
    *c->out = c->results[stages];
    ot_plan_free(&c->results[!stages].plan);
    c->choice->step_seconds[c->out->plan.shard.mode] = c->out->prediction.step_seconds;
}

/* A mode that is slower by this share of the step is not told; but mode full always is. */
static const double TOLD = 0.25;

int ot_planner_choose_shard(const struct ot_plan_request *request, const struct ot_costs *costs,
                            struct ot_shard_open open, struct ot_planner_result *out,
                            struct ot_shard_choice *choice) {
    struct ot_shard_choice unused;
    struct contest c = {.request = request,
                        .costs = costs,
                        .choice = choice ? choice : &unused,
                        .steps = {INFINITY, INFINITY},
                        .out = out};
    double *steps = c.choice->step_seconds;
    struct entrant *next;
    struct ot_error why;
    int rc = 0;
    *c.choice = (struct ot_shard_choice){0};
    *out = (struct ot_planner_result){.forced = *request};
    list_entrants(&c, open);
    if (c.n == 1) {
        rc = search(&c, c.entrants, INFINITY, out);
        steps[c.entrants->shard.mode] = rc < 0 ? 0 : out->prediction.step_seconds;
        return rc;
    }
    OT_TRY(try_first_plans(&c, &why));
    while (rc == 0 && (next = find_next(&c)))
        rc = enter(&c, next);
    if (rc == 0 && isinf(c.steps[0]) && isinf(c.steps[1])) {
        out->forced.shard = c.entrants[0].shard;
        return ot_error_load(&why);
    }
    if (rc == 0)
        take_best(&c);
    for (int i = 0; i < 2 && rc < 0; i++)
        ot_plan_free(&c.results[i].plan);
    out->tried = c.tried;
    for (int mode = 0; mode <= OT_SHARD_STAGES; mode++)
        if (mode != OT_SHARD_FULL && steps[mode] > (1 + TOLD) * out->prediction.step_seconds)
            steps[mode] = 0;
    return rc;
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
