/* Finds plans to begin the search with. Between plans that keep activations in different ways, or that cut
 * the step into other numbers of rounds, lie worse plans, so a search from one plan does not find the other.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/build.h"
#include "offload/plan/slabs.h"
#include "offload/plan/used_parts.h"
#include "offload/predict/bound.h"
#include "offload/predict/planner_state.h"
#include "src/base/error.h"

/* The ways to keep activations. NOTHING: all is recomputed. LEFT: on the device, in memory that other uses
 * leave free. FIRST: on the device, before other uses. OFF: activations without room there leave the device.
 * HALF_OFF: half of them do. */
enum way { NOTHING, LEFT, FIRST, OFF, HALF_OFF, WAYS };

/* Room for the starts: each number of rounds with each way and level; and for classes of starts that differ
 * in rounds alone. */
enum { MOST_STARTS = MOST_ROUNDS * 32, MOST_CLASSES = WAYS * 64 };

/* ---- rounds and ways ---- */

/* The numbers of rounds to begin with: every number up to 4, then those whose rounds are half as long, and
 * one micro-batch a round. Returns how many. */
static int list_rounds(const struct ot_plan_request *given, int micro, int rounds[MOST_ROUNDS]) {
    int n = 0;
    if (given->rounds) {
        rounds[0] = given->rounds;
        return 1;
    }
    for (int r = 1; r <= micro && n < MOST_ROUNDS - 1; r = r < 4 ? r + 1 : r % 3 ? r / 2 * 3 : r / 3 * 4)
        rounds[n++] = r;
    if (rounds[n - 1] < micro)
        rounds[n++] = micro;
    return n;
}

/* Sets the fields of a way. False: the user has decided otherwise, or the level means nothing here. */
static bool set_way(const struct ot_plan_request *given, enum way way, int level, double most_off,
                    struct ot_plan_request *out) {
    bool on_gpu = given->kept == OT_HOME_AUTO || given->kept == OT_HOME_GPU;
    if (given->keep != OT_KEEP_CHOSEN)
        return way == LEFT && level == OT_KEEP_PRODUCTS;
    if (way == NOTHING) {
        out->keep = OT_KEEP_NONE;
        return level == OT_KEEP_PRODUCTS;
    }
    out->kept_level = (enum ot_keep_level)level;
    out->kept_on = way == FIRST;
    out->kept_off = way >= OFF ? most_off : 0;
    if (way == HALF_OFF)
        out->kept_off /= 2;
    return way >= OFF ? most_off > 0 && given->kept != OT_HOME_GPU : on_gpu;
}

/* True if a plan fits that keeps activations of request->kept_off of the blocks off the device, and nothing
 * else is pushed to nvme. */
static bool has_room_off(const struct ot_search *s, const struct ot_plan_request *request) {
    size_t on_nvme = ot_ledger_total(&s->out->plan.ledger, OT_TIER_NVME);
    struct ot_plan plan;
    if (ot_plan_make(request, &plan) < 0)
        return false;
    bool fits = ot_ledger_total(&plan.ledger, OT_TIER_NVME) <= on_nvme;
    ot_plan_free(&plan);
    return fits;
}

/* The largest share of the blocks that may keep the level off the device: 0.75^k for the least k that fits.
 * 0: there is no room for a share that is worth slots of its own. */
static double find_most_off(const struct ot_search *s, const struct ot_plan_request *base, int level) {
    int low = 0, high = MOST_QUARTERS; /* `low` quarters less have no room, `high` have */
    struct ot_plan_request request = *base;
    if (!set_way(s->given, OFF, level, 1, &request))
        return 0;
    if (has_room_off(s, &request))
        return 1;
    request.kept_off = pow(0.75, high);
    if (!has_room_off(s, &request))
        return 0;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        request.kept_off = pow(0.75, middle);
        if (has_room_off(s, &request))
            high = middle;
        else
            low = middle;
    }
    return pow(0.75, high);
}

/* ---- the list ---- */

/* Makes the plan of a start and adds the start, if its step may take less than `limit`. Returns false if no
 * such plan exists. */
static bool add_start(struct ot_search *s, const struct ot_plan_request *request, int way, double limit,
                      struct ot_planner_seen *seen, struct ot_planner_starts *out) {
    struct ot_plan plan;
    if (ot_plan_make(request, &plan) < 0)
        return false; /* it does not fit, or contradicts the user's choices */
    double least = ot_plan_least_seconds(request->chain, &plan, s->costs);
    bool same = request->micro_sequences == 0 ||
                ot_plan_pass_tokens(&plan) == request->micro_sequences * request->sequence_tokens;
    if (same && least < limit && !ot_planner_was_seen(seen, &plan)) {
        out->list[out->n] = (struct ot_planner_start){*request, out->n, 0, way, least, INFINITY};
        out->n++;
    }
    ot_plan_free(&plan);
    return true;
}

/* The starts take turns by way and number of rounds, so that each of these is tried. */
static int by_turn(const void *a, const void *b) {
    const struct ot_planner_start *x = a, *y = b;
    if (x->turn != y->turn)
        return x->turn - y->turn;
    if (x->least != y->least)
        return x->least < y->least ? -1 : 1;
    return x->number - y->number;
}

static int by_least(const void *a, const void *b) {
    const struct ot_planner_start *x = a, *y = b;
    if (x->least != y->least)
        return x->least < y->least ? -1 : 1;
    return x->number - y->number;
}

static int by_seconds(const void *a, const void *b) {
    const struct ot_planner_start *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return by_least(a, b);
}

/* ---- the fastest of the list ---- */

/* Starts of one class have the same way and the same number of rounds. */
static int class_of(const struct ot_planner_start *start) {
    int rounds = start->request.rounds;
    return start->way * MOST_CLASSES / WAYS +
           (rounds < MOST_CLASSES / WAYS ? rounds : MOST_CLASSES / WAYS - 1);
}

/* The starts with the lowest bounds are simulated first: they may be so fast that the bounds of the others
 * rule them out. */
static int simulate_starts(struct ot_search *s, double limit, struct ot_planner_starts *starts) {
    double best = limit, rest = s->effort / 2;
    int turns[MOST_CLASSES] = {0}, simulated = 0;
    if (starts->n > 0)
        qsort(starts->list, (size_t)starts->n, sizeof *starts->list, by_least);
    for (int i = 0; i < starts->n; i++)
        starts->list[i].turn = turns[class_of(&starts->list[i])]++;
    if (starts->n > 0)
        qsort(starts->list, (size_t)starts->n, sizeof *starts->list, by_turn);
    for (int i = 0; i < starts->n; i++) {
        struct ot_planner_start *start = &starts->list[i];
        struct ot_planner_result made;
        double most = fmin(best * (1 + OT_PLANNER_NEAR), limit);
        if (start->least >= best || simulated == MOST_SIMULATED || s->effort < rest)
            continue;
        simulated++;
        int rc = ot_planner_make(s, &start->request, most, &made);
        if (rc < 0)
            return rc;
        if (rc == 0)
            continue;
        start->seconds = made.prediction.step_seconds;
        best = fmin(best, start->seconds);
        ot_plan_free(&made.plan);
    }
    if (starts->n > 0)
        qsort(starts->list, (size_t)starts->n, sizeof *starts->list, by_seconds);
    starts->all = starts->n;
    starts->n = 0;
    while (starts->n < starts->all && starts->list[starts->n].seconds < best * (1 + OT_PLANNER_NEAR))
        starts->n++;
    return 0;
}

/* ---- all starts ---- */

/* True if enough tiles have their state off the device that the choice of engines matters. */
static bool has_updates_elsewhere(const struct ot_search *s) {
    const struct ot_plan *plan = &s->out->plan;
    int64_t elsewhere = ot_plan_count_tiles(plan, OT_TILE_STREAM) + ot_plan_count_tiles(plan, OT_TILE_CPU);
    return elsewhere > FEW_TILES;
}

/* Adds the starts with these rounds and this level: with the engines as ot_plan_make chooses; and with the
 * pool and the stream engine in balance, and on the device only the state that does not fit the host. */
static void add_ways(struct ot_search *s, int rounds, int64_t micro, int level, double limit,
                     struct ot_planner_seen *seen, struct ot_planner_starts *out) {
    struct ot_plan_request base = *s->given;
    base.rounds = rounds;
    base.micro_sequences = micro;
    base.sections = ot_plan_sections(&s->out->plan); /* sequences in sections: micro is 1 */
    base.key_groups = ot_plan_key_groups(&s->out->plan);
    base.is_trial = true;
    base.tile_params = s->tile_params;
    if (s->given->shadows == OT_SHADOWS_CHOSEN && s->given->clip)
        base.shadows = 1; /* they take only host memory that is left */
    double most_off = find_most_off(s, &base, level);
    for (enum way way = NOTHING; way < WAYS; way++) {
        struct ot_plan_request request = base;
        if (!set_way(s->given, way, level, most_off, &request))
            continue;
        add_start(s, &request, way, limit, seen, out);
        if (!ot_planner_may_split(s) || !has_updates_elsewhere(s))
            continue;
        bool fits = false;
        for (double gpu = 0; gpu < 1 && !fits; gpu += GPU_SHARE_STEP) {
            ot_planner_set_fractions(s, gpu, ot_planner_balance(s), &request);
            fits = add_start(s, &request, way, limit, seen, out);
        }
    }
}

int ot_planner_find_starts(struct ot_search *s, int64_t micro, double limit, struct ot_planner_starts *out) {
    static const enum ot_keep_level levels[] = {OT_KEEP_PRODUCTS, OT_KEEP_ATTENTION, OT_KEEP_ALL};
    struct ot_planner_seen *seen = calloc(1, sizeof *seen); /* these are not simulated yet */
    int rounds[MOST_ROUNDS], rc;
    int64_t sequences = micro > 0 ? micro : ot_plan_micro_sequences(&s->out->plan, s->given->sequence_tokens);
    int64_t tokens = sequences * s->given->sequence_tokens;
    int n_micro = ot_candidate_micro(s->given, sequences), n = list_rounds(s->given, n_micro, rounds);
    *out = (struct ot_planner_starts){.list = malloc(MOST_STARTS * sizeof *out->list)};
    if (!out->list || !seen) {
        rc = ot_fail(OT_E_BUDGET, "no memory to choose a plan");
        goto out;
    }
    for (int r = 0; r < n; r++)
        for (int l = 0; l < 3; l++)
            if (ot_least_compute_seconds(s->given->chain, &s->given->shard, s->costs, tokens, n_micro,
                                         levels[l]) < limit)
                add_ways(s, rounds[r], micro, levels[l], limit, seen, out);
    rc = simulate_starts(s, limit, out);
out:
    free(seen);
    if (rc < 0) {
        free(out->list);
        *out = (struct ot_planner_starts){0};
    }
    return rc;
}

/* ---- planner try ---- */

/* Tries one plan: makes it, compares it with earlier plans, and simulates it if it may be faster. */

/* ---- plans that were tried before ---- */

static int64_t bits_of(double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A hash of the request's fields that the search varies. */
static uint64_t print_request(const struct ot_plan_request *rq) {
    uint64_t hash = 0xcbf29ce484222325;
    hash = ot_mix(ot_mix(ot_mix(ot_mix(hash, rq->weights), rq->state), rq->grads), rq->sums);
    hash = ot_mix(ot_mix(ot_mix(ot_mix(hash, rq->activations), rq->keep), rq->kept), rq->kept_level);
    hash = ot_mix(ot_mix(ot_mix(hash, bits_of(rq->kept_off)), bits_of(rq->kept_on)), bits_of(rq->streamed));
    hash = ot_mix(ot_mix(ot_mix(hash, bits_of(rq->shadows)), rq->fetch), rq->rounds);
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        hash = ot_mix(hash, bits_of(rq->fractions[e]));
    hash = ot_mix(hash, rq->shard.rank); /* of stages */
    hash = ot_mix(ot_mix(hash, rq->micro_sequences), rq->sections);
    return ot_mix(ot_mix(hash, rq->tile_params), rq->slots);
}

/* Notes the hash. Returns true if it was noted before. */
static bool was_noted(uint64_t prints[OT_PLANNER_MOST_SEEN], int *n, uint64_t print) {
    for (int i = 0; i < *n; i++)
        if (prints[i] == print)
            return true;
    if (*n < OT_PLANNER_MOST_SEEN)
        prints[(*n)++] = print;
    return false;
}

/* Requests that force different fields often make the same plan. */
bool ot_planner_was_seen(struct ot_planner_seen *seen, const struct ot_plan *plan) {
    return was_noted(seen->plans, &seen->n, ot_plan_print(plan));
}

/* ---- one plan ---- */

/* Each block runs each micro-batch forward and backward, with copies of its boundary if activations leave the
 * device or kept ones do, and each round fetches its weights. Each tile has an update; a copy in and a copy
 * out if it may be streamed; and a read and a write if its state is on nvme. Its gradients on nvme have a
 * copy, a write and a read. */
double ot_planner_tasks(const struct ot_plan *plan, int n_blocks) {
    double tasks = 2.0 * n_blocks * (plan->max_micro * (1 + plan->activations) + 2 * ot_plan_rounds(plan));
    if (ot_plan_spills_kept(plan))
        tasks += 2.0 * n_blocks * plan->max_micro;
    for (int s = 0; s < plan->n_slabs; s++) {
        const struct ot_slab_plan *slab = &plan->slabs[s];
        int elsewhere = slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU];
        tasks += slab->tiles[OT_TILE_GPU] + elsewhere * (slab->state == OT_HOME_NVME ? 5 : 3);
        tasks += slab->grads == OT_HOME_NVME ? 3 * elsewhere : 0;
    }
    return tasks + 1;
}

int ot_planner_simulate(struct ot_search *s, const struct ot_plan_request *request,
                        const struct ot_plan *plan, double limit, struct ot_prediction *out) {
    if (!s->stages)
        return ot_simulate_faster(request->chain, plan, s->costs, limit, out);
    return ot_stages_make(s->stages, request, plan, limit)
               ? ot_stages_simulate(s->stages, request->chain, limit, out)
               : 0;
}

/* Simulates the plan, unless it was tried before or has too much work. As ot_planner_simulate. */
static int simulate_new(struct ot_search *s, const struct ot_plan_request *request,
                        const struct ot_plan *plan, double limit, struct ot_prediction *out) {
    struct ot_stages *st = s->stages;
    bool new = st || !ot_planner_was_seen(s->seen, plan);
    if (!new || ot_plan_least_seconds(request->chain, plan, s->costs) >= limit)
        return 0;
    if (!st) {
        s->effort -= ot_planner_tasks(plan, request->chain->n_blocks);
        return ot_planner_simulate(s, request, plan, limit, out);
    }
    s->effort -= MAKING_TASKS * request->chain->n_slabs * (st->ranks - 1);
    if (!ot_stages_make(st, request, plan, limit) ||
        was_noted(s->seen->plans, &s->seen->n, ot_stages_print(st)))
        return 0;
    s->effort -= ot_stages_tasks(st, request->chain);
    return ot_stages_simulate(st, request->chain, limit, out);
}

int ot_planner_make(struct ot_search *s, const struct ot_plan_request *request, double limit,
                    struct ot_planner_result *out) {
    *out = (struct ot_planner_result){.forced = *request};
    s->effort -= MAKING_TASKS * request->chain->n_slabs;
    struct ot_plan_request trial = *request;
    trial.is_trial = true;
    if (s->effort < 0 || was_noted(s->seen->requests, &s->seen->n_requests, print_request(&trial)))
        return 0;
    if (ot_plan_make(&trial, &out->plan) < 0)
        return 0; /* the forced plan does not fit: it is no candidate */
    /* ot_plan_make chooses some fields by the free memory. Forces those fields, so that a move of one field
     * changes that field alone. */
    ot_plan_force_micro(&out->forced, out->plan.micro_tokens);
    out->forced.activations = out->plan.activations;
    int rc = simulate_new(s, &trial, &out->plan, limit, &out->prediction);
    if (rc <= 0)
        ot_plan_free(&out->plan);
    return rc;
}

/* The time that a plan must beat. If the user wants used parts, a plan that takes them beats all others. */
static bool takes_wanted_parts(const struct ot_search *s, const struct ot_plan *plan) {
    return s->given->fetch != OT_FETCH_USED_PARTS ||
           ot_plan_whole_cause(s->given->chain, plan) == OT_WHOLE_NOT;
}

int ot_planner_try(struct ot_search *s, const struct ot_plan_request *request, double gain) {
    struct ot_planner_result *best = s->out, made;
    bool wanted = takes_wanted_parts(s, &best->plan);
    double limit = wanted ? best->prediction.step_seconds * (1 - gain) : INFINITY;
    int rc = ot_planner_make(s, request, limit, &made);
    if (rc <= 0)
        return rc;
    bool now = takes_wanted_parts(s, &made.plan);
    bool better =
        now == wanted ? made.prediction.step_seconds < best->prediction.step_seconds * (1 - gain) : now;
    if (better) {
        struct ot_planner_result before = *best;
        *best = made;
        made = before;
    }
    ot_plan_free(&made.plan);
    return better;
}
