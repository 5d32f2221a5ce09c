#include "offload/predict/planner_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/adamw.h"
#include "offload/plan/used_parts.h"
#include "src/base/error.h"

/* A try costs a simulation, whose time grows with the number of tasks: about 2 us each. TRIES_COST limits the
 * tasks of all tries, so that planning a 7B model takes a second. Small models get as many tries as the
 * search can use. As many again, and at least FEWEST_LATE_TRIES, are for shadows. */
enum { TRIES_COST = 400000, FEWEST_TRIES = 8, MOST_TRIES = 40, FEWEST_LATE_TRIES = 9 };
/* A share of the step's time below this is not worth a try: predictions are no better than that. */
static const double NEGLIGIBLE = 0.001;

/* The state of a search. out holds the best plan so far and the request that makes it. */
struct search {
    const struct ot_plan_request *given;
    const struct ot_costs *costs;
    int most_tries;
    struct ot_planner_result *out;
    uint64_t seen[2 * MOST_TRIES]; /* fingerprints of the plans tried: [out->tried] */
};

/* ---- trying one ---- */

static uint64_t mix(uint64_t hash, int64_t value) {
    return (hash ^ (uint64_t)value) * 0x100000001b3; /* FNV-1a, a word at a time */
}

/* A hash of the fields that the search varies. Requests that force different fields often make the same
 * plan. */
static uint64_t fingerprint(const struct ot_plan *p) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int s = 0; s < p->n_slabs; s++) {
        const struct ot_slab_plan *slab = &p->slabs[s];
        hash = mix(mix(mix(mix(hash, slab->weights), slab->state), slab->grads), slab->sums);
        for (int e = 0; e < OT_TILE_ENGINES; e++)
            hash = mix(hash, slab->tiles[e]);
    }
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        hash = mix(mix(hash, p->weight_slots[k]), p->host_weight_slots[k]);
        hash = mix(mix(mix(hash, p->grad_slots[k]), p->stage_slots[k]), p->encoded_slots[k]);
    }
    hash = mix(mix(mix(hash, p->state_slots), p->tile_slots), p->host_activation_slots);
    hash = mix(mix(hash, p->host_grad_slots), p->fetch_used);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        hash = mix(mix(hash, p->kept[t].level), p->kept[t].blocks);
    hash = mix(mix(mix(hash, p->activations), p->activation_slots), p->kept_slots);
    hash = mix(mix(mix(hash, p->first_round), p->round_micro), p->shadow_frames);
    return mix(mix(hash, p->micro_tokens), p->tile_params);
}

/* True if the plan was simulated before. If not, notes it as simulated. */
static bool was_seen(struct search *s, const struct ot_plan *plan) {
    uint64_t print = fingerprint(plan);
    for (int i = 0; i < s->out->tried; i++)
        if (s->seen[i] == print)
            return true;
    s->seen[s->out->tried++] = print;
    return false;
}

/* ot_plan_make chooses some fields by the free memory. Forces those fields of the best plan, so that a move
 * of one field changes that field alone. */
static void hold(struct ot_planner_result *best, const struct ot_plan_request *request) {
    best->forced = *request;
    best->forced.micro_sequences = best->plan.micro_tokens / request->sequence_tokens;
    best->forced.activations = best->plan.activations;
}

/* The time that a plan must beat. If the user wants used parts, a plan that takes them beats all others. */
static double time_to_beat(const struct search *s, const struct ot_plan *plan, double gain) {
    const struct ot_chain *chain = s->given->chain;
    bool wants = s->given->fetch == OT_FETCH_USED_PARTS;
    bool before = wants && ot_plan_whole_cause(chain, &s->out->plan) != OT_WHOLE_NOT;
    bool now = wants && ot_plan_whole_cause(chain, plan) != OT_WHOLE_NOT;
    return now == before ? s->out->prediction.step_seconds * (1 - gain) : now ? 0 : INFINITY;
}

/* Makes and simulates the plan of a request. The plan becomes the best if it saves more than the share `gain`
 * of the best plan's time. Returns 1 if it does, 0 if it does not or if no such plan exists, < 0 on
 * errors. */
static int try_request(struct search *s, const struct ot_plan_request *request, double gain) {
    struct ot_planner_result *best = s->out;
    struct ot_plan plan;
    struct ot_prediction prediction;
    if (best->tried >= s->most_tries || ot_plan_make(request, &plan) < 0)
        return 0; /* the forced plan does not fit: it is no candidate */
    int rc = 0;
    if (!was_seen(s, &plan))
        rc = ot_simulate_faster(request->chain, &plan, s->costs, time_to_beat(s, &plan, gain), &prediction);
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

/* The share of tiles to stream, among the tiles whose state is not on the device, so that the device and the
 * CPU pool finish at the same time. Each moves its bytes a parameter at its rate: a streamed tile's state
 * crosses the link in both directions, its gradients and weights cross once; the pool moves AdamW's bytes. */
static double balanced_stream(const struct search *s) {
    enum { PARAMS = 1 << 20 };
    const struct ot_chain *chain = s->given->chain;
    const struct ot_rates *r = &s->costs->rates;
    double state = (double)ot_state_bytes(chain, PARAMS) / PARAMS;
    double stream = r->both_bytes / (2 * (state + (double)ot_dtype_bytes(chain->dtype)));
    double pool = r->adamw_bytes[chain->state] / ot_adamw_bytes(chain->dtype, chain->state, chain->masters);
    return stream + pool > 0 ? stream / (stream + pool) : 0.5;
}

static int try_shares_with(struct search *s, double shadows, double gpu, double stream_of_rest) {
    struct ot_plan_request request = s->out->forced;
    gpu = s->given->state != OT_HOME_AUTO ? 0 : fmin(fmax(gpu, 0), 1);
    stream_of_rest = fmin(fmax(stream_of_rest, 0), 1);
    request.shares[OT_TILE_GPU] = gpu;
    request.shares[OT_TILE_STREAM] = (1 - gpu) * stream_of_rest;
    request.shares[OT_TILE_CPU] = (1 - gpu) * (1 - stream_of_rest);
    request.shadows = shadows;
    return try_request(s, &request, 0);
}

static int try_shares(struct search *s, double gpu, double stream_of_rest) {
    return try_shares_with(s, s->out->forced.shadows, gpu, stream_of_rest);
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

/* Chooses the engines that update the tiles. Two numbers describe the choice: the device's share of all
 * tiles, and the stream's share of the rest. Starts from the best of some shares that are often good and
 * descends in this plane, with steps that halve. The first direction changes both numbers, since less state
 * on the device makes room for weights, and tiles that leave the device are better streamed than left to the
 * pool. */
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

/* Updates ahead of the decision. They give the pool more time, so it may then take tiles of the stream
 * engine. */
static int move_shadows(struct search *s) {
    static const double streamed[] = {1, 0.75, 0.5, 0.25, 0}, shadows[] = {0.5, 0.25};
    double gpu, stream;
    int taken = 0, rc;
    current_shares(s, &gpu, &stream);
    for (int i = 0; i < 5 && may_share(s); i++) {
        OT_TRY(rc = try_shares_with(s, 1, gpu, stream * streamed[i]));
        taken += rc;
    }
    struct ot_plan_request request = s->out->forced;
    request.shadows = 1;
    OT_TRY(rc = try_request(s, &request, 0));
    taken += rc;
    for (int i = 0; i < 2 && taken > 0; i++) {
        request = s->out->forced;
        request.shadows = shadows[i];
        OT_TRY(rc = try_request(s, &request, 0));
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

/* The smallest tile that is still worth a task. More tiles than ot_plan_make would make take too long to
 * order. */
enum { LEAST_TILE_PARAMS = 1 << 16 };

/* Smaller tiles let reads, updates and writes of one slab overlap; larger tiles mean fewer tasks. A tile
 * larger than every slab counts as a tile of the largest slab's size. */
static int move_tiles(struct search *s) {
    const struct ot_chain *chain = s->given->chain;
    int64_t largest = 0, all = 0, now = s->out->plan.tile_params;
    for (int i = 0; i < chain->n_slabs; i++) {
        if (chain->slabs[i].frozen)
            continue;
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

/* What blocks keep: the level, and the share of the blocks without room on the device that keep it on the
 * host or on nvme. Compares with computing everything again. */
static int move_kept(struct search *s) {
    static const double steps[] = {1, 0.5, 0.25, 0.125, -1, -0.25};
    bool level_given = s->given->keep != OT_KEEP_CHOSEN;
    int taken = 0, rc;
    for (int level = OT_KEEP_ATTENTION; level < OT_KEEP_LEVELS && !level_given; level++) {
        struct ot_plan_request request = s->out->forced;
        request.kept_level = (enum ot_keep_level)level;
        OT_TRY(rc = try_request(s, &request, 0));
        taken += rc;
    }
    for (int i = 0; i < 6 && !level_given && s->given->kept != OT_HOME_GPU; i++) {
        struct ot_plan_request request = s->out->forced;
        request.kept_off = fmin(fmax(request.kept_off + steps[i], 0), 1);
        OT_TRY(rc = try_request(s, &request, 0));
        taken += rc;
    }
    if (!level_given) {
        struct ot_plan_request request = s->out->forced;
        request.keep = OT_KEEP_NONE;
        OT_TRY(rc = try_request(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* More rounds keep less at a time, which leaves room on the device; fewer rounds fetch weights less often.
 * Tries each number twice, as move_micro does. */
static int move_rounds(struct search *s) {
    const int now = ot_plan_rounds(&s->out->plan), values[] = {2 * now, now / 2, now + 1, now - 1};
    int taken = 0;
    for (int i = 0; i < 4 && s->given->rounds == 0; i++) {
        struct ot_plan_request as_now = s->out->forced, as_ruled = *s->given;
        int rc;
        if (values[i] < 1 || values[i] > s->out->plan.max_micro)
            continue;
        as_now.rounds = as_ruled.rounds = values[i];
        as_ruled.micro_sequences = as_now.micro_sequences;
        OT_TRY(rc = try_request(s, &as_now, 0));
        taken += rc;
        OT_TRY(rc = try_request(s, &as_ruled, 0));
        taken += rc;
    }
    return taken;
}

/* Fetches what is used alone, or all. */
static int move_parts(struct search *s) {
    struct ot_plan_request request = s->out->forced;
    if (s->given->fetch != OT_FETCH_CHOSEN || ot_chain_most_parts(s->given->chain) == 0)
        return 0;
    request.fetch = s->out->plan.fetch_used ? OT_FETCH_ALL_PARTS : OT_FETCH_USED_PARTS;
    return try_request(s, &request, 0);
}

/* Tries every home for one kind of data (a field of the request), unless the user's request fixes it. */
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

static int move_kept_home(struct search *s) {
    return ot_plan_spills_kept(&s->out->plan) ? move_home(s, offsetof(struct ot_plan_request, kept)) : 0;
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

/* Another micro-batch gives other bits, so the gain must exceed OT_PLANNER_MARGIN. Tries each size twice:
 * with the best plan's other choices, and with those that ot_plan_make would make. */
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

/* True if compute waits for other lanes. If it hardly waits, moves that only shorten waits gain nothing. */
static bool waits(const struct search *s) {
    const struct ot_prediction *p = &s->out->prediction;
    double waited = p->exposed_host;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        waited += p->exposed[l];
    return waited > NEGLIGIBLE * p->step_seconds;
}

static bool recomputes(const struct search *s) {
    const struct ot_plan *plan = &s->out->plan;
    bool all = true;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        all = all && (plan->kept[t].blocks == 0 || plan->kept[t].level >= OT_KEEP_PRODUCTS);
    return !all || ot_plan_kept_blocks(plan, OT_TIER_COUNT) < s->given->chain->n_blocks - 2;
}

/* True if more free device memory could help: to save activations instead of recomputing them, or to wait
 * less. */
static bool waits_or_recomputes(const struct search *s) {
    return waits(s) || recomputes(s);
}

/* Runs rounds of all moves until a round gains nothing. */
static int search_rounds(struct search *s) {
    static const struct {
        int (*move)(struct search *);
        bool (*may_gain)(const struct search *);
    } moves[] = {{move_shares, waits_or_recomputes},
                 {move_kept, waits_or_recomputes},
                 {move_rounds, waits_or_recomputes},
                 {move_kept_home, waits_or_recomputes},
                 {move_activations, waits_or_recomputes},
                 {move_slots, waits},
                 {move_parts, waits},
                 {move_weights, waits_or_recomputes},
                 {move_state, waits}};
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

/* Another micro-batch must beat the best plan with the present one, so it is tried after the other moves.
 * Then come tile sizes: they matter less than the engines' shares, and each size has other best shares.
 * Shadows come last, because they take host memory that nothing else can use. With them less state is
 * streamed, so the link has more time for kept activations, over which shadows then lie. */
static int search(struct search *s) {
    for (int taken = 1; taken > 0;) {
        OT_TRY(search_rounds(s));
        OT_TRY(taken = move_micro(s));
    }
    for (int taken = 1; taken > 0 && waits(s);)
        OT_TRY(taken = move_tiles(s));
    int late = s->most_tries;
    s->most_tries = s->out->tried + (late < FEWEST_LATE_TRIES ? FEWEST_LATE_TRIES : late);
    bool shadows = s->given->shadows == OT_SHADOWS_CHOSEN && s->given->clip;
    for (int taken = 1; shadows && taken > 0 && waits_or_recomputes(s);) {
        int rc = 0;
        if (waits(s))
            OT_TRY(rc = move_shadows(s));
        OT_TRY(taken = move_kept(s));
        taken = taken > 0 || rc > 0;
    }
    return 0;
}

/* ---- choosing ---- */

/* The number of tries for a plan, from an estimate of a step's tasks. Each block runs each micro-batch
 * forward and backward, with copies of its boundary if activations leave the device. Each tile has an update;
 * a copy in and a copy out if it may be streamed; and a read and a write if its state is on nvme. Its
 * gradients on nvme have a copy, a write and a read. */
static int count_tries(const struct ot_plan *plan, int n_blocks) {
    int64_t passes = 2 * (int64_t)n_blocks * plan->max_micro;
    int64_t tasks = passes * (1 + plan->activations);
    for (int s = 0; s < plan->n_slabs; s++) {
        const struct ot_slab_plan *slab = &plan->slabs[s];
        int elsewhere = slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU];
        tasks += slab->tiles[OT_TILE_GPU] + elsewhere * (slab->state == OT_HOME_NVME ? 5 : 3);
        tasks += slab->grads == OT_HOME_NVME ? 3 * elsewhere : 0;
    }
    int64_t tries = TRIES_COST / (tasks + 1);
    return tries < FEWEST_TRIES ? FEWEST_TRIES : tries > MOST_TRIES ? MOST_TRIES : (int)tries;
}

/* Searches from the plan of `from`, which is the user's request with some more fields forced. start: NULL, or
 * a request for another machine; its choices are tried first. */
static int climb(const struct ot_plan_request *given, const struct ot_plan_request *from,
                 const struct ot_costs *costs, const struct ot_plan_request *start,
                 struct ot_planner_result *out) {
    const struct ot_plan_request *request = from;
    int rc;
    *out = (struct ot_planner_result){0};
    OT_TRY(ot_plan_make(request, &out->plan)); /* on failure the shortage is in out->plan */
    OT_TRY_GOTO(ot_simulate_plan(request->chain, &out->plan, costs, &out->prediction), rc, failed);
    struct search s = {.given = given,
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

/* Makes and simulates the plan of a request. If the plan fits, has no more than on_nvme bytes on nvme and is
 * faster than *seconds, takes both over. Returns 1 if the plan fits, 0 if it does not, < 0 on errors. */
static int try_keeping(const struct ot_plan_request *keeping, const struct ot_costs *costs, size_t on_nvme,
                       struct ot_plan_request *best, double *seconds) {
    struct ot_plan plan;
    struct ot_prediction prediction;
    int rc = ot_plan_make(keeping, &plan), faster = 0;
    if (rc < 0)
        return rc == -OT_E_BUDGET ? 0 : rc;
    bool fits = ot_ledger_total(&plan.ledger, OT_TIER_NVME) <= on_nvme;
    if (fits)
        faster = ot_simulate_faster(keeping->chain, &plan, costs, *seconds, &prediction);
    ot_plan_free(&plan);
    if (faster > 0) {
        *best = *keeping;
        *seconds = prediction.step_seconds;
    }
    return faster < 0 ? faster : fits;
}

/* Finds a plan to begin with in which blocks without room on the device keep activations off the device: all
 * of them in as few rounds as possible, or as many as one round allows, whichever is faster. It must push no
 * other data to nvme. Returns 1 if there is one: it is made of *best. */
static int find_keeping(const struct ot_plan_request *request, const struct ot_costs *costs,
                        const struct ot_plan *without, struct ot_plan_request *best) {
    struct ot_plan_request keeping = *request;
    size_t on_nvme = ot_ledger_total(&without->ledger, OT_TIER_NVME);
    int most = request->rounds ? 1 : without->max_micro, fits = 0;
    double seconds = INFINITY, least = on_nvme > 0 ? 1 : 0.125; /* nvme has what the host has no room for */
    if (request->shadows == OT_SHADOWS_CHOSEN && request->clip)
        keeping.shadows = 1; /* many of them lie over what the host keeps */
    keeping.kept_off = 1;
    for (int rounds = 1; rounds <= most && !fits; rounds *= 2) {
        keeping.rounds = request->rounds ? request->rounds : rounds;
        OT_TRY(fits = try_keeping(&keeping, costs, on_nvme, best, &seconds));
    }
    if (fits && keeping.rounds <= 1)
        return 1;
    keeping.rounds = request->rounds;
    fits = 0;
    for (keeping.kept_off = 0.5; keeping.kept_off >= least && !fits; keeping.kept_off /= 2)
        OT_TRY(fits = try_keeping(&keeping, costs, on_nvme, best, &seconds));
    return seconds < INFINITY;
}

/* Takes the better of two searches: from the plan that keeps activations on the device alone, and from one
 * where other blocks keep them on the host. The moves between the two pass through worse plans, because the
 * bus cannot carry both the activations and streamed state. */
int ot_planner_choose_from(const struct ot_plan_request *request, const struct ot_costs *costs,
                           const struct ot_plan_request *start, struct ot_planner_result *out) {
    struct ot_plan_request keeping;
    struct ot_planner_result other;
    int rc;
    OT_TRY(climb(request, request, costs, start, out));
    if (!request->train || request->keep != OT_KEEP_CHOSEN || request->kept == OT_HOME_GPU ||
        !recomputes(&(struct search){.given = request, .out = out}))
        return 0;
    OT_TRY_GOTO(find_keeping(request, costs, &out->plan, &keeping), rc, failed);
    if (rc == 0)
        return 0;
    OT_TRY_GOTO(climb(request, &keeping, costs, NULL, &other), rc, failed);
    int tried = out->tried + other.tried;
    double margin = other.plan.micro_tokens == out->plan.micro_tokens ? 0 : OT_PLANNER_MARGIN;
    if (other.prediction.step_seconds < (1 - margin) * out->prediction.step_seconds) {
        struct ot_planner_result worse = *out;
        *out = other;
        other = worse;
    }
    ot_plan_free(&other.plan);
    out->tried = tried;
    return 0;
failed:
    ot_plan_free(&out->plan);
    return rc;
}

int ot_planner_choose(const struct ot_plan_request *request, const struct ot_costs *costs,
                      struct ot_planner_result *out) {
    return ot_planner_choose_from(request, costs, NULL, out);
}

static int choose_in(const struct ot_plan_request *request, struct ot_shard shard,
                     const struct ot_costs *costs, struct ot_planner_result *out) {
    struct ot_plan_request in = *request;
    in.shard = shard;
    if (shard.one_copy)
        in.weights = OT_HOME_HOST;
    return ot_planner_choose(&in, costs, out);
}

/* Mode full needs the least memory, so it is tried first. Another mode, or one copy, must win clearly: more
 * of the model on each rank leaves less room for other uses, and ranks that share memory depend on each other
 * more. What does not fit, or contradicts what the user forced, drops out. */
int ot_planner_choose_shard(const struct ot_plan_request *request, const struct ot_costs *costs,
                            struct ot_shard_open open, struct ot_planner_result *out) {
    struct ot_shard tries[OT_SHARD_MODES + 1] = {request->shard};
    int n = 1;
    if (open.mode)
        tries[0].mode = OT_SHARD_FULL;
    if (open.one_copy && tries[0].mode == OT_SHARD_FULL) {
        tries[n] = tries[0];
        tries[n++].one_copy = true;
    }
    for (int mode = 0; mode < OT_SHARD_FULL && open.mode && ot_shard_ranks(&request->shard) > 1; mode++) {
        tries[n] = request->shard;
        tries[n++].mode = (enum ot_shard_mode)mode;
    }
    int found = choose_in(request, tries[0], costs, out), tried = out->tried;
    for (int i = 1; i < n; i++) {
        struct ot_planner_result other;
        int rc = choose_in(request, tries[i], costs, &other);
        tried += other.tried;
        bool wins = rc == 0 && (found < 0 || other.prediction.step_seconds <
                                                 (1 - OT_PLANNER_RESOLUTION) * out->prediction.step_seconds);
        if (wins) {
            ot_plan_free(&out->plan);
            *out = other;
            found = 0;
        } else if (rc == 0) {
            ot_plan_free(&other.plan);
        }
    }
    out->tried = tried;
    return found;
}
