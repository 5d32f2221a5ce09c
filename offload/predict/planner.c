#include "offload/predict/planner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/build.h"
#include "offload/plan/segment.h"
#include "offload/predict/bound.h"
#include "offload/predict/planner_state.h"
#include "src/base/error.h"

/* Homes that are forced on starts. STREAM_ALL: the weights of all slabs are on the host. STREAM_NOTHING: they
 * are on the device. STATE_OFF: the optimizer state is on the host. STATE_STREAMED: the device updates all of
 * it there, in tiles that pass through slots, and the weights are on the device. BOUNDARIES_OFF: activations
 * between blocks are on the host. GRADS_ON_DISK: gradients are on nvme. BOTH_ON_DISK: so are activations
 * between blocks. Each is tried on VARIED_STARTS of the fastest starts. */
enum variant {
    STREAM_ALL,
    STREAM_NOTHING,
    STATE_OFF,
    STATE_STREAMED,
    BOUNDARIES_OFF,
    GRADS_ON_DISK,
    BOTH_ON_DISK,
    VARIANTS
};

/* ---- climbing from one plan ---- */

static void allow(struct ot_search *s, double effort) {
    double least = FEWEST_TRIES * ot_planner_tasks(&s->out->plan, s->given->chain->n_blocks);
    s->effort = effort > least ? effort : least;
}

/* True if the search cannot be expected to come below its limit. hope: the share of the step that the
 * phases to come may save. */
static bool is_lost(const struct ot_search *s, double hope) {
    return s->out->prediction.step_seconds * (1 - hope) >= s->limit;
}

/* Takes over the faster of the two results, if it saves more than the share `gain`; frees the other one. */
static void take_faster(struct ot_planner_result *best, struct ot_planner_result *other, double gain) {
    if (other->prediction.step_seconds < best->prediction.step_seconds * (1 - gain)) {
        struct ot_planner_result slower = *best;
        *best = *other;
        *other = slower;
    }
    ot_plan_free(&other->plan);
}

/* Climbs from the plan of a request. Its result replaces *best if it saves more than the share `gain`. */
static int climb_from(struct ot_search *s, const struct ot_plan_request *request, double effort,
                      double gain) {
    struct ot_planner_result *best = s->out, other = {0};
    struct ot_search from = *s;
    from.out = &other;
    OT_TRY(ot_plan_make(request, &other.plan));
    other.forced = *request;
    ot_plan_force_micro(&other.forced, other.plan.micro_tokens);
    other.forced.activations = other.plan.activations;
    int rc = ot_planner_simulate(s, &other.forced, &other.plan, INFINITY, &other.prediction);
    if (rc > 0) {
        allow(&from, effort);
        rc = ot_planner_climb(&from);
    } else if (rc == 0) {
        other.prediction.step_seconds = INFINITY;
    }
    if (rc < 0)
        ot_plan_free(&other.plan);
    else
        take_faster(best, &other, gain);
    return rc;
}

/* ---- starts to climb from, and homes forced on them ---- */

/* Chooses the starts to climb from: the fastest, then the fastest of each other way. */
static int choose_seeds(const struct ot_planner_starts *starts, int most, int seeds[SEEDS]) {
    int n = 0;
    for (int i = 0; i < starts->n && n < most; i++) {
        bool new = true;
        for (int j = 0; j < n; j++)
            new = new && starts->list[i].way != starts->list[seeds[j]].way;
        if (new)
            seeds[n++] = i;
    }
    return n;
}

/* Forces one home of a start that the user has left open. The start is then in no neighbourhood of another:
 * this home leaves other room to everything else. Returns false if the user has decided. */
static bool set_variant(const struct ot_plan_request *given, enum variant variant,
                        struct ot_plan_request *request) {
    switch (variant) {
    case STREAM_ALL:
        request->weights = OT_HOME_HOST;
        return given->weights == OT_HOME_AUTO;
    case STREAM_NOTHING:
        request->weights = OT_HOME_GPU;
        return given->weights == OT_HOME_AUTO && given->streamed == 0;
    case STATE_OFF:
        request->state = OT_HOME_HOST;
        return given->state == OT_HOME_AUTO && !ot_plan_has_fractions(given->fractions);
    case STATE_STREAMED:
        request->weights = OT_HOME_GPU;
        memcpy(request->fractions, (double[OT_TILE_ENGINES]){[OT_TILE_STREAM] = 1},
               sizeof request->fractions);
        return given->weights == OT_HOME_AUTO && given->streamed == 0 && given->state == OT_HOME_AUTO &&
               !ot_plan_has_fractions(given->fractions);
    case BOUNDARIES_OFF:
        request->activations = OT_HOME_HOST;
        return given->activations == OT_HOME_AUTO;
    case GRADS_ON_DISK:
        request->grads = OT_HOME_NVME;
        return given->grads == OT_HOME_AUTO && given->budget_bytes[OT_TIER_NVME] > 0;
    case BOTH_ON_DISK:
        request->activations = request->grads = OT_HOME_NVME;
        return given->activations == OT_HOME_AUTO && given->grads == OT_HOME_AUTO &&
               given->budget_bytes[OT_TIER_NVME] > 0;
    case VARIANTS:
        break;
    }
    return false;
}

/* Climbs from the fastest of the starts with each home forced. */
static int climb_variants(struct ot_search *s, const struct ot_planner_starts *starts) {
    for (enum variant v = 0; v < VARIANTS && !is_lost(s, HOPE_CLIMBED); v++) {
        struct ot_plan_request best_start = {0};
        double best = starts->all > 0 ? VARIANT_NEAR * starts->list[0].seconds : 0;
        if (s->stages) /* plans of all stages take long */
            best = (1 + OT_PLANNER_NEAR) * s->out->prediction.step_seconds;
        allow(s, VARIANT_EFFORT);
        for (int i = 0; i < starts->all && i < VARIED_STARTS; i++) {
            struct ot_plan_request request = starts->list[i].request;
            struct ot_planner_result made;
            int rc = 0;
            if (set_variant(s->given, v, &request))
                OT_TRY(rc = ot_planner_make(s, &request, best, &made));
            if (rc == 0)
                continue;
            best = made.prediction.step_seconds;
            best_start = request;
            ot_plan_free(&made.plan);
        }
        if (best_start.chain)
            OT_TRY(climb_from(s, &best_start, VARIANT_EFFORT, 0));
    }
    return 0;
}

/* ---- a search with one micro-batch ---- */

/* Climbs from the best plan so far and from the starts. */
static int climb(struct ot_search *s) {
    struct ot_planner_starts starts;
    int seeds[SEEDS], rc = 0;
    double now = s->out->prediction.step_seconds;
    allow(s, CLIMB_EFFORT);
    OT_TRY(ot_planner_find_starts(s, s->out->forced.micro_sequences, now * (1 + OT_PLANNER_NEAR), &starts));
    double best = starts.n > 0 ? fmin(starts.list[0].seconds, now) : now;
    if (best * (1 - HOPE_STARTS) >= s->limit)
        goto out;
    int n = choose_seeds(&starts, s->stages ? STAGE_SEEDS : SEEDS, seeds);
    for (int i = 0; i < n && (i == 0 || !is_lost(s, HOPE_STARTS)); i++)
        OT_TRY_GOTO(climb_from(s, &starts.list[seeds[i]].request, CLIMB_EFFORT / (i > 0 ? 4 : 2), 0), rc,
                    out);
    if (n > 0)
        OT_TRY_GOTO(climb_variants(s, &starts), rc, out);
    if (n == 0) {
        allow(s, CLIMB_EFFORT);
        OT_TRY_GOTO(ot_planner_climb(s), rc, out);
    }
    allow(s, SHAKE_EFFORT);
    if (!is_lost(s, HOPE_VARIED))
        rc = ot_planner_shake(s);
out:
    free(starts.list);
    return rc < 0 ? rc : 0;
}

/* Returns false if this micro-batch cannot save OT_PLANNER_MARGIN: its computing alone takes too long. */
static bool may_gain_with(const struct ot_search *s, int64_t micro) {
    int64_t tokens = micro * s->given->sequence_tokens;
    int n_micro = ot_candidate_micro(s->given, micro);
    return ot_least_compute_seconds(s->given->chain, &s->given->shard, s->costs, tokens, n_micro,
                                    OT_KEEP_ALL) < s->out->prediction.step_seconds * (1 - OT_PLANNER_MARGIN);
}

/* Tries other micro-batches. They give other bits, so their gain must exceed OT_PLANNER_MARGIN. */
static int climb_micro(struct ot_search *s) {
    bool open = s->given->micro_sequences == 0 && ot_plan_sections(&s->out->plan) == 1;
    for (int taken = 1; taken > 0 && open;) {
        const int64_t now = s->out->forced.micro_sequences, values[] = {now / 2, 2 * now, now / 4, 4 * now};
        taken = 0;
        for (int i = 0; i < 4 && !taken; i++) {
            struct ot_planner_starts starts;
            int rc = 0;
            if (values[i] < 1 || values[i] > s->given->step_sequences || !may_gain_with(s, values[i]))
                continue;
            allow(s, MICRO_EFFORT);
            OT_TRY(ot_planner_find_starts(s, values[i], s->out->prediction.step_seconds, &starts));
            if (starts.n > 0)
                rc = climb_from(s, &starts.list[0].request, MICRO_EFFORT, OT_PLANNER_MARGIN);
            free(starts.list);
            OT_TRY(rc);
            taken = s->out->forced.micro_sequences != now;
        }
    }
    return 0;
}

/* ---- the whole search ---- */

/* Tries the choices of a plan for another machine or step. */
static int try_start(struct ot_search *s, const struct ot_plan_request *start) {
    struct ot_plan_request here = *start;
    memcpy(here.budget_bytes, s->given->budget_bytes, sizeof here.budget_bytes);
    here.memo = s->given->memo;
    here.shard = s->given->shard;
    here.step_sequences = s->given->step_sequences;
    return ot_planner_try(s, &here, 0);
}

/* Tiles for the search: with a thousand of them, a plan is simulated in a fraction of the time, and takes
 * nearly as long a step. Beside a disk, slots for such tiles must stay small on the host. */
static int64_t choose_tile(const struct ot_plan_request *given, const struct ot_plan *plan) {
    int64_t params = 0, tile = plan->tile_params;
    size_t room = given->budget_bytes[OT_TIER_HOST] / SLOTS_SHARE;
    bool disk = given->budget_bytes[OT_TIER_NVME] > 0;
    for (int i = 0; i < given->chain->n_slabs; i++)
        params += given->chain->slabs[i].frozen ? 0 : given->chain->slabs[i].n_params;
    while (given->tile_params == 0 && params / tile > MOST_SEARCH_TILES &&
           (!disk || ot_state_bytes(given->chain, 2 * tile) < room))
        tile *= 2;
    return tile;
}

static int search(struct ot_search *s, const struct ot_plan_request *start) {
    allow(s, CLIMB_EFFORT);
    if (start)
        OT_TRY(try_start(s, start));
    if (is_lost(s, start ? HOPE_CLIMBED : HOPE_FIRST))
        return 0;
    if (s->stages || ot_planner_may_gain(s)) {
        OT_TRY(climb(s));
        allow(s, LATE_EFFORT);
    }
    if (is_lost(s, HOPE_VARIED))
        return 0;
    if (!ot_planner_may_gain(s))
        OT_TRY(ot_planner_keep_all(s));
    OT_TRY(climb_micro(s));
    allow(s, LATE_EFFORT);
    OT_TRY(ot_planner_fill(s));
    allow(s, LATE_EFFORT);
    OT_TRY(ot_planner_climb_late(s));
    if (!s->stages)
        return 0;
    allow(s, VARIANT_EFFORT); /* other tiles have other best fractions */
    OT_TRY(ot_planner_climb(s));
    return ot_stages_refine(s);
}

/* Tries twice as many rounds in flight, as long as they are faster. */
static int add_rounds(struct ot_search *s, struct ot_plan_request first) {
    int rc = 1;
    s->effort = CLIMB_EFFORT;
    while (rc > 0 && 2 * first.rounds * ot_plan_sections(&s->out->plan) <= s->out->plan.max_micro) {
        first.rounds *= 2;
        OT_TRY(rc = ot_planner_try(s, &first, 0));
    }
    return 0;
}

/* Makes and simulates the plan to begin with. On failure the shortage is in out->plan. */
static int make_first(struct ot_search *s) {
    struct ot_planner_result *out = s->out;
    struct ot_plan_request first = *s->given;
    if (s->stages)
        OT_TRY(ot_stages_settle(s->stages, &first, &out->plan));
    OT_TRY(ot_plan_make(&first, &out->plan));
    out->forced.rounds = first.rounds;
    ot_plan_force_micro(&out->forced, out->plan.micro_tokens);
    out->forced.key_groups = ot_plan_key_groups(&out->plan);
    out->forced.activations = out->plan.activations;
    int rc = ot_planner_simulate(s, &first, &out->plan, INFINITY, &out->prediction);
    if (rc == 0)
        rc = ot_fail(OT_E_BUDGET, "the stages have no plans with one micro-batch and the same rounds");
    if (rc > 0 && s->stages && first.shard.in_flight > 1 && s->given->rounds == 0)
        rc = add_rounds(s, first);
    if (rc < 0)
        ot_plan_free(&out->plan);
    return rc;
}

int ot_planner_search(const struct ot_plan_request *request, const struct ot_costs *costs,
                      const struct ot_plan_request *start, struct ot_stages *stages, double limit,
                      struct ot_planner_result *out) {
    struct ot_planner_seen *seen = calloc(1, sizeof *seen);
    struct ot_plan_memo *memo = request->memo ? NULL : ot_plan_memo_open();
    struct ot_plan_request given = *request;
    struct ot_search s = {
        .given = &given, .costs = costs, .out = out, .stages = stages, .limit = limit, .seen = seen};
    int rc = 0;
    given.memo = memo ? memo : request->memo;
    *out = (struct ot_planner_result){.forced = given};
    if (!seen) {
        rc = ot_fail(OT_E_BUDGET, "no memory to choose a plan");
        goto out;
    }
    OT_TRY_GOTO(make_first(&s), rc, out);
    ot_planner_was_seen(seen, &out->plan);
    out->forced.tile_params = out->plan.tile_params; /* it may be small, because memory is short */
    s.tile_params = choose_tile(&given, &out->plan);
    OT_TRY_GOTO(search(&s, start), rc, failed);
    out->tried = seen->n;
    out->forced.is_trial = request->is_trial;
    goto out;
failed:
    ot_plan_free(&out->plan);
out:
    out->forced.memo = request->memo;
    ot_plan_memo_close(memo);
    free(seen);
    return rc < 0 ? rc : 0;
}

int ot_planner_choose_from(const struct ot_plan_request *request, const struct ot_costs *costs,
                           const struct ot_plan_request *start, double limit, struct ot_planner_result *out) {
    return ot_planner_search(request, costs, start, NULL, limit, out);
}

int ot_planner_choose(const struct ot_plan_request *request, const struct ot_costs *costs,
                      struct ot_planner_result *out) {
    bool stages = request->shard.mode == OT_SHARD_STAGES && request->shard.ranks > 1;
    int rc = stages ? ot_stages_choose(request, costs, INFINITY, out) : -OT_E_BUDGET;
    if (rc != -OT_E_BUDGET)
        return rc; /* else another rank may have more room than this one */
    return ot_planner_choose_from(request, costs, NULL, INFINITY, out);
}

/* ---- planner explain ---- */

/* Explains a plan: the limit of its step, and the effect of another machine or step. */

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

/* A "what if" question: a request and costs, with one property changed. */
struct question {
    const char *what;
    const struct ot_plan_request *request;
    const struct ot_costs *costs;
    bool is_more_memory;
};

/* True if a plan that was found with more memory would also fit the given budgets. */
static bool fits_without(const struct ot_plan *plan, const struct ot_plan_request *given) {
    size_t extra[OT_TIER_COUNT] = {
        [OT_TIER_GPU] = (size_t)given->extra_device_bytes, [OT_TIER_HOST] = (size_t)given->extra_host_bytes};
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (ot_ledger_total(&plan->ledger, (enum ot_tier)t) + extra[t] > given->budget_bytes[t])
            return false;
    return true;
}

/* Runs the planner again, starting from the chosen plan. If the step is longer with the larger machine, the
 * order of tasks happened to become worse: the present plan would be kept, so the gain is 0. */
static int ask(const struct question *q, const struct ot_plan_request *given,
               const struct ot_planner_result *chosen, struct ot_explanation *out) {
    struct ot_planner_result with;
    int rc = ot_planner_choose_from(q->request, q->costs, &chosen->forced, INFINITY, &with);
    if (rc == -OT_E_BUDGET || rc == -OT_E_USAGE)
        return 0; /* twice the tokens may not fit: then there is no answer */
    OT_TRY(rc);
    bool is_noise = q->is_more_memory && fits_without(&with.plan, given);
    bool is_longer = q->request->step_sequences > given->step_sequences;
    ot_plan_free(&with.plan);
    double tokens = (double)(q->request->step_sequences * q->request->sequence_tokens);
    double now = (double)(given->step_sequences * given->sequence_tokens) / chosen->prediction.step_seconds;
    double step = with.prediction.step_seconds, gain = tokens / step / now - 1;
    if (is_noise || fabs(gain) < OT_PLANNER_RESOLUTION || (gain < 0 && !is_longer)) {
        gain = 0;
        step = tokens / now;
    }
    out->ifs[out->n_ifs++] = (struct ot_what_if){q->what, step, tokens / step, gain, is_longer};
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

static int ask_all(const struct ot_plan_request *request, const struct ot_costs *costs,
                   const struct ot_planner_result *chosen, struct ot_explanation *out) {
    struct ot_plan_request longer = *request;
    struct ot_costs changed = *costs; /* shares `blocks` with the caller's costs; do not free */
    struct ot_rates *r = &changed.rates;
    *out = (struct ot_explanation){0};
    ot_planner_find_bound(&chosen->prediction, out);
    if (request->shard.mode == OT_SHARD_STAGES) /* one rank alone answers nothing */
        return 0;
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
    ot_rates_scale_memory(r, 2);
    OT_TRY(ask(&(struct question){"twice the host memory's rate", request, &changed, false}, request, chosen,
               out));
    *r = costs->rates;
    longer.step_sequences *= 2;
    return ask(&(struct question){"twice the tokens, half the steps", &longer, costs, false}, request, chosen,
               out);
}

/* The questions have much the same plans, so their searches share a memo. */
int ot_planner_explain(const struct ot_plan_request *request, const struct ot_costs *costs,
                       const struct ot_planner_result *chosen, struct ot_explanation *out) {
    struct ot_plan_memo *memo = request->memo ? NULL : ot_plan_memo_open();
    struct ot_plan_request given = *request;
    given.memo = memo ? memo : request->memo;
    int rc = ask_all(&given, costs, chosen, out);
    ot_plan_memo_close(memo);
    return rc;
}
