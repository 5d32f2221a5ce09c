#include "offload/predict/planner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

/* Simulating is what a try costs: about tasks x (1 + tasks / 3000), since the order of n tasks takes n^2
 * bits. So much in all that a plan for 70B takes less than a second; small models get as many tries as the
 * search can use. */
enum { TRIES_COST = 1600000, TASKS_OF_ORDER = 3000, FEWEST_TRIES = 6, MOST_TRIES = 64 };
/* Of the step: what is not worth a try, since predictions are no better. */
static const double NEGLIGIBLE = 0.001;

/* The search: what was asked for, and the best so far with the request that makes it. */
struct search {
    const struct ot_plan_request *given;
    const struct ot_costs *costs;
    int most_tries;
    struct ot_planner_result *out;
    uint64_t seen[MOST_TRIES]; /* [out->tried] */
};

/* ---- trying one ---- */

static uint64_t mix(uint64_t hash, int64_t value) {
    return (hash ^ (uint64_t)value) * 0x100000001b3; /* FNV-1a, a word at a time */
}

/* Of what the search varies: forced in different ways, requests often make the same plan. */
static uint64_t fingerprint(const struct ot_plan *p) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int s = 0; s < p->n_slabs; s++) {
        const struct ot_slab_plan *slab = &p->slabs[s];
        hash = mix(mix(mix(hash, slab->weights), slab->state), slab->grads);
        for (int e = 0; e < OT_TILE_ENGINES; e++)
            hash = mix(hash, slab->tiles[e]);
    }
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        hash = mix(mix(hash, p->weight_slots[k]), p->host_weight_slots[k]);
        hash = mix(mix(hash, p->grad_slots[k]), p->stage_slots[k]);
    }
    hash = mix(mix(mix(hash, p->state_slots), p->tile_slots), p->host_activation_slots);
    hash = mix(mix(mix(hash, p->activations), p->activation_slots), p->kept_blocks);
    return mix(mix(hash, p->micro_tokens), p->tile_params);
}

/* Whether the plan was simulated before; from now on it was. */
static bool was_seen(struct search *s, const struct ot_plan *plan) {
    uint64_t print = fingerprint(plan);
    for (int i = 0; i < s->out->tried; i++)
        if (s->seen[i] == print)
            return true;
    s->seen[s->out->tried++] = print;
    return false;
}

/* Of the rule's own choices those that move with memory are held, so that a move of one thing is of that
 * alone. */
static void hold(struct ot_planner_result *best, const struct ot_plan_request *request) {
    best->forced = *request;
    best->forced.micro_sequences = best->plan.micro_tokens / request->sequence_tokens;
    best->forced.activations = best->plan.activations;
}

/* Makes and simulates the plan of a request and takes it where it is faster than the best by more than `gain`
 * of its time. 1: taken, 0: not, or there is no such plan; < 0: an error. */
static int try_request(struct search *s, const struct ot_plan_request *request, double gain) {
    struct ot_planner_result *best = s->out;
    struct ot_plan plan;
    struct ot_prediction prediction;
    if (best->tried >= s->most_tries || ot_plan_make(request, &plan) < 0)
        return 0; /* forced too far: what does not fit is no candidate */
    int rc = 0;
    if (!was_seen(s, &plan)) {
        rc = ot_simulate_plan(request->chain, &plan, s->costs, &prediction);
        if (rc == 0 && prediction.step_seconds < best->prediction.step_seconds * (1 - gain))
            rc = 1;
    }
    if (rc > 0) {
        struct ot_plan before = best->plan;
        best->plan = plan;
        best->prediction = prediction;
        hold(best, request);
        plan = before;
    }
    ot_plan_free(&plan);
    return rc;
}

/* ---- moves: each tries values of one field near the best plan's ---- */

/* Of the tiles that the device does not hold, the share that goes through it where neither engine waits for
 * the other: both move their bytes at their rate. A streamed tile crosses the link in both ways with its
 * state and once with gradients and weights; the pool's bytes are AdamW's. */
static double balanced_stream(const struct search *s) {
    enum { STREAM_BYTES = 24, POOL_BYTES = 26 };
    const struct ot_rates *r = &s->costs->rates;
    double stream = r->both_bytes / STREAM_BYTES, pool = r->adamw_bytes / POOL_BYTES;
    return stream + pool > 0 ? stream / (stream + pool) : 0.5;
}

static int try_shares(struct search *s, double gpu, double stream_of_rest) {
    struct ot_plan_request request = s->out->forced;
    gpu = s->given->state != OT_HOME_AUTO ? 0 : fmin(fmax(gpu, 0), 1);
    stream_of_rest = fmin(fmax(stream_of_rest, 0), 1);
    request.shares[OT_TILE_GPU] = gpu;
    request.shares[OT_TILE_STREAM] = (1 - gpu) * stream_of_rest;
    request.shares[OT_TILE_CPU] = (1 - gpu) * (1 - stream_of_rest);
    return try_request(s, &request, 0);
}

static void current_shares(const struct search *s, double *gpu, double *stream_of_rest) {
    double n[OT_TILE_ENGINES], all = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        all += n[e] = (double)ot_plan_count_tiles(&s->out->plan, (enum ot_tile_engine)e);
    double rest = n[OT_TILE_STREAM] + n[OT_TILE_CPU];
    *gpu = all > 0 ? n[OT_TILE_GPU] / all : 0;
    *stream_of_rest = rest > 0 ? n[OT_TILE_STREAM] / rest : 0;
}

static bool may_share(const struct search *s) {
    const double *shares = s->given->shares;
    return s->given->state != OT_HOME_GPU &&
           shares[OT_TILE_GPU] + shares[OT_TILE_STREAM] + shares[OT_TILE_CPU] == 0;
}

/* Who updates what: from the best of some shares that are often good, downhill in the plane of the device's
 * share and the stream's part of the rest, with steps that halve. Less state on the device makes room for
 * weights, and what leaves it is rather streamed than left to the pool: so the first ways go aslant. */
static int move_shares(struct search *s) {
    static const struct { int gpu, stream; } ways[] = {{-1, 1}, {0, 1}, {0, -1}, {-1, 0}, {1, 0}, {1, -1}};
    double gpu, stream, balance = balanced_stream(s);
    int taken = 0;
    if (!may_share(s))
        return 0;
    current_shares(s, &gpu, &stream);
    const double starts[][2] = {{gpu, balance}, {gpu / 2, balance}, {0, balance}, {0, 0}, {gpu, 1}};
    for (int i = 0; i < 5; i++) {
        int rc;
        OT_TRY(rc = try_shares(s, starts[i][0], starts[i][1]));
        taken += rc;
    }
    for (double step = 0.2; step > 0.04;) {
        int better = 0;
        for (int i = 0; i < 6 && !better; i++) {
            current_shares(s, &gpu, &stream);
            OT_TRY(better = try_shares(s, gpu + step * ways[i].gpu / 2, stream + step * ways[i].stream));
        }
        step = better ? step : step / 2;
        taken += better;
    }
    return taken;
}

static int move_slots(struct search *s) {
    static const int values[] = {2, 3, 4, 6, OT_PLAN_MAX_SLOTS};
    int taken = 0;
    for (int i = 0; i < 5 && s->given->slots == 0; i++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        request.slots = values[i];
        OT_TRY(rc = try_request(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* A tile this small is still worth its task; more tiles than the rule makes take too long to order. */
enum { LEAST_TILE_PARAMS = 1 << 16 };

/* Smaller tiles let reads, updates and writes of one slab overlap; larger ones are fewer. One that is larger
 * than every slab is as good as one of the largest's size. */
static int move_tiles(struct search *s) {
    const struct ot_chain *chain = s->given->chain;
    int64_t largest = 0, all = 0, now = s->out->plan.tile_params;
    for (int i = 0; i < chain->n_slabs; i++) {
        all += chain->slabs[i].n_params;
        largest = chain->slabs[i].n_params > largest ? chain->slabs[i].n_params : largest;
    }
    now = now < largest ? now : largest;
    const int64_t values[] = {now / 2, now / 4, 2 * now};
    int taken = 0;
    for (int i = 0; i < 3 && s->given->tile_params == 0; i++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        request.tile_params = values[i] / OT_SLAB_ALIGN_PARAMS * OT_SLAB_ALIGN_PARAMS;
        if (request.tile_params < LEAST_TILE_PARAMS || all / request.tile_params > OT_PLAN_MAX_TILE_SLOTS)
            continue;
        OT_TRY(rc = try_request(s, &request, 0));
        taken += rc;
    }
    return taken;
}

static int move_recompute(struct search *s) {
    int taken = 0;
    for (int value = -1; value <= 1 && s->given->recompute < 0; value++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        request.recompute = value;
        OT_TRY(rc = try_request(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* Every home of one kind of bytes that the given request leaves open. */
static int move_home(struct search *s, size_t field) {
    enum ot_home given = *(const enum ot_home *)((const char *)s->given + field);
    int tiers = s->given->budget_bytes[OT_TIER_NVME] > 0 ? OT_TIER_COUNT : OT_TIER_NVME, taken = 0;
    for (int tier = 0; tier < tiers && given == OT_HOME_AUTO; tier++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        *(enum ot_home *)((char *)&request + field) = (enum ot_home)tier;
        OT_TRY(rc = try_request(s, &request, 0));
        taken += rc;
    }
    return taken;
}

static int move_activations(struct search *s) {
    return move_home(s, offsetof(struct ot_plan_request, activations));
}

static int move_weights(struct search *s) {
    return move_home(s, offsetof(struct ot_plan_request, weights));
}

static int move_state(struct search *s) {
    return move_home(s, offsetof(struct ot_plan_request, state));
}

/* Other bits than the rule's: only for a gain that is worth it. Each size as the best plan is otherwise, and
 * as the rule would go about it. */
static int move_micro(struct search *s) {
    const int64_t now = s->out->forced.micro_sequences, values[] = {now / 2, 2 * now, now / 4, 4 * now};
    int taken = 0;
    for (int i = 0; i < 4 && s->given->micro_sequences == 0; i++) {
        struct ot_plan_request as_now = s->out->forced, as_ruled = *s->given;
        int rc;
        if (values[i] < 1 || values[i] > s->given->step_sequences)
            continue;
        as_now.micro_sequences = as_ruled.micro_sequences = values[i];
        OT_TRY(rc = try_request(s, &as_now, OT_PLANNER_MARGIN));
        taken += rc;
        OT_TRY(rc = try_request(s, &as_ruled, OT_PLANNER_MARGIN));
        taken += rc;
    }
    return taken;
}

/* A move of what compute waits for, once it hardly waits, gains nothing. */
static bool waits(const struct search *s) {
    const struct ot_prediction *p = &s->out->prediction;
    double waited = p->exposed_host;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        waited += p->exposed[l];
    return waited > NEGLIGIBLE * p->step_seconds;
}

static bool recomputes(const struct search *s) {
    return s->out->plan.kept_blocks < s->given->chain->n_blocks - 2;
}

/* What leaves the device makes room there: to keep what would be computed again, or to wait less. */
static bool waits_or_recomputes(const struct search *s) {
    return waits(s) || recomputes(s);
}

/* Rounds of all moves until one gains nothing. */
static int search_rounds(struct search *s) {
    static const struct {
        int (*move)(struct search *);
        bool (*may_gain)(const struct search *);
    } moves[] = {{move_shares, waits_or_recomputes},      {move_recompute, waits_or_recomputes},
                 {move_activations, waits_or_recomputes}, {move_slots, waits},
                 {move_weights, waits_or_recomputes},     {move_state, waits}};
    for (int taken = 1; taken > 0;) {
        taken = 0;
        for (size_t m = 0; m < sizeof moves / sizeof *moves; m++) {
            int rc = 0;
            if (moves[m].may_gain(s))
                OT_TRY(rc = moves[m].move(s));
            taken += rc;
        }
    }
    return 0;
}

/* Another micro-batch has to beat the best that the rule's can do. Tiles come last: their size matters less
 * than what they are shared out among, and each size has other best shares. */
static int search(struct search *s) {
    for (int taken = 1; taken > 0;) {
        OT_TRY(search_rounds(s));
        OT_TRY(taken = move_micro(s));
    }
    for (int taken = 1; taken > 0 && waits(s);)
        OT_TRY(taken = move_tiles(s));
    return 0;
}

/* ---- choosing ---- */

/* About the tasks of a step: each block passes each micro-batch both ways, with its boundary copied where it
 * does not stay; each tile is updated, with a copy in and out where it may be streamed, and a read and a
 * write more where nvme has its state. */
static int count_tries(const struct ot_plan *plan, int n_blocks) {
    int64_t passes = 2 * (int64_t)n_blocks * plan->max_micro;
    int64_t tasks = passes * (1 + plan->activations);
    for (int s = 0; s < plan->n_slabs; s++) {
        const struct ot_slab_plan *slab = &plan->slabs[s];
        int elsewhere = slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU];
        tasks += slab->tiles[OT_TILE_GPU] + elsewhere * (slab->state == OT_HOME_NVME ? 5 : 3);
    }
    int64_t tries = TRIES_COST / (tasks + tasks * tasks / TASKS_OF_ORDER + 1);
    return tries < FEWEST_TRIES ? FEWEST_TRIES : tries > MOST_TRIES ? MOST_TRIES : (int)tries;
}

/* start: NULL, or a request of another machine whose choices are tried first. */
static int choose(const struct ot_plan_request *request, const struct ot_costs *costs,
                  const struct ot_plan_request *start, struct ot_planner_result *out) {
    int rc;
    *out = (struct ot_planner_result){0};
    OT_TRY(ot_plan_make(request, &out->plan)); /* a shortage stays in out->plan */
    OT_TRY_GOTO(ot_simulate_plan(request->chain, &out->plan, costs, &out->prediction), rc, failed);
    struct search s = {.given = request,
                       .costs = costs,
                       .most_tries = count_tries(&out->plan, request->chain->n_blocks),
                       .out = out};
    was_seen(&s, &out->plan);
    hold(out, request);
    if (start) {
        struct ot_plan_request here = *start;
        memcpy(here.budget_bytes, request->budget_bytes, sizeof here.budget_bytes);
        here.step_sequences = request->step_sequences;
        OT_TRY_GOTO(try_request(&s, &here, 0), rc, failed);
    }
    OT_TRY_GOTO(search(&s), rc, failed);
    return 0;
failed:
    ot_plan_free(&out->plan);
    return rc;
}

int ot_planner_choose(const struct ot_plan_request *request, const struct ot_costs *costs,
                      struct ot_planner_result *out) {
    return choose(request, costs, NULL, out);
}

/* ---- explaining ---- */

static const char TWICE_THE_TOKENS[] = "twice the tokens a step";

void ot_planner_find_bound(const struct ot_prediction *p, struct ot_explanation *out) {
    double parts[OT_LANE_COUNT];
    int first = OT_LANE_COMPUTE, second;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        parts[l] = l == OT_LANE_COMPUTE ? p->busy[l] : p->exposed[l];
    for (int l = 0; l < OT_LANE_COUNT; l++)
        first = parts[l] > parts[first] ? l : first;
    second = first;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (l != first && parts[l] > 0 && (second == first || parts[l] > parts[second]))
            second = l;
    out->bound = (enum ot_lane_id)first;
    out->second = (enum ot_lane_id)second;
    if (p->step_seconds > 0) {
        out->bound_share = parts[first] / p->step_seconds;
        out->second_share = second == first ? 0 : parts[second] / p->step_seconds;
    }
}

/* A question: the request and the costs with one thing changed. */
struct question {
    const char *what;
    const struct ot_plan_request *request;
    const struct ot_costs *costs;
    bool is_more_memory;
};

/* Whether a plan that was found with more memory would have fitted without it. */
static bool fits_without(const struct ot_plan *plan, const struct ot_plan_request *given) {
    size_t extra[OT_TIER_COUNT] = {
        [OT_TIER_GPU] = (size_t)given->extra_device_bytes, [OT_TIER_HOST] = (size_t)given->extra_host_bytes};
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (ot_ledger_total(&plan->ledger, (enum ot_tier)t) + extra[t] > given->budget_bytes[t])
            return false;
    return true;
}

/* The planner once more, from the chosen plan on. Where the step comes out longer all the same, a list
 * schedule was disturbed by having more: one would go on as now. */
static int ask(const struct question *q, const struct ot_plan_request *given,
               const struct ot_planner_result *chosen, struct ot_explanation *out) {
    struct ot_planner_result with;
    int rc = choose(q->request, q->costs, &chosen->forced, &with);
    if (rc == -OT_E_BUDGET || rc == -OT_E_USAGE)
        return 0; /* twice the tokens may not fit: no answer, then */
    OT_TRY(rc);
    bool is_noise = q->is_more_memory && fits_without(&with.plan, given);
    ot_plan_free(&with.plan);
    double tokens = (double)(q->request->step_sequences * q->request->sequence_tokens);
    double now = (double)(given->step_sequences * given->sequence_tokens) / chosen->prediction.step_seconds;
    double step = with.prediction.step_seconds, gain = tokens / step / now - 1;
    if (is_noise || fabs(gain) < OT_PLANNER_RESOLUTION || (gain < 0 && q->what != TWICE_THE_TOKENS)) {
        gain = 0;
        step = tokens / now;
    }
    out->ifs[out->n_ifs++] = (struct ot_what_if){q->what, step, tokens / step, gain};
    return 0;
}

static int ask_for_memory(const struct ot_plan_request *request, const struct ot_costs *costs,
                          const struct ot_planner_result *chosen, struct ot_explanation *out) {
    static const char *const what[OT_TIER_COUNT] = {"1 GiB more gpu memory", "1 GiB more host memory",
                                                    "1 GiB more on nvme"};
    for (int tier = 0; tier < OT_TIER_COUNT; tier++) {
        struct ot_plan_request more = *request;
        if (more.budget_bytes[tier] == 0)
            continue;
        more.budget_bytes[tier] += (size_t)1 << 30;
        OT_TRY(ask(&(struct question){what[tier], &more, costs, true}, request, chosen, out));
    }
    return 0;
}

int ot_planner_explain(const struct ot_plan_request *request, const struct ot_costs *costs,
                       const struct ot_planner_result *chosen, struct ot_explanation *out) {
    struct ot_plan_request longer = *request;
    struct ot_costs changed = *costs; /* its blocks stay the caller's */
    struct ot_rates *r = &changed.rates;
    *out = (struct ot_explanation){0};
    ot_planner_find_bound(&chosen->prediction, out);
    OT_TRY(ask_for_memory(request, costs, chosen, out));
    if (r->h2d_bytes > 0) {
        r->h2d_bytes *= 2, r->d2h_bytes *= 2, r->both_bytes *= 2;
        OT_TRY(
            ask(&(struct question){"twice the link's rate", request, &changed, false}, request, chosen, out));
        *r = costs->rates;
    }
    if (request->budget_bytes[OT_TIER_NVME] > 0) {
        r->nvme_read_bytes *= 2, r->nvme_write_bytes *= 2, r->nvme_mixed_bytes *= 2;
        OT_TRY(
            ask(&(struct question){"twice the disks' rate", request, &changed, false}, request, chosen, out));
        *r = costs->rates;
    }
    r->triad_bytes *= 2, r->adamw_bytes *= 2;
    OT_TRY(ask(&(struct question){"twice the host memory's rate", request, &changed, false}, request, chosen,
               out));
    *r = costs->rates;
    longer.step_sequences *= 2;
    return ask(&(struct question){TWICE_THE_TOKENS, &longer, costs, false}, request, chosen, out);
}
