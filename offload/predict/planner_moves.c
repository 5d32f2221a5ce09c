/* The moves of the search: each tries values of one choice near the best plan's. */
#include <math.h>
#include <string.h>

#include "kernels/adamw.h"
#include "offload/plan/slabs.h"
#include "offload/plan/used_parts.h"
#include "offload/predict/bound.h"
#include "offload/predict/planner_state.h"
#include "src/base/error.h"
#include "src/base/random.h"

/* ---- engines of the tiles, and shadows ---- */

/* The share of tiles to stream, among the tiles whose state is not on the device, so that the device and the
 * CPU pool finish at the same time. Each moves its bytes a parameter at its rate: a streamed tile's state
 * crosses the link in both directions, its gradients and weights cross once; the pool moves AdamW's bytes. */
double ot_planner_balance(const struct ot_search *s) {
    enum { PARAMS = 1 << 20 };
    const struct ot_chain *chain = s->given->chain;
    const struct ot_rates *r = &s->costs->rates;
    double state = (double)ot_state_bytes(chain, PARAMS) / PARAMS;
    double stream = r->both_bytes / (2 * (state + (double)ot_dtype_bytes(chain->dtype)));
    double pool = r->adamw_bytes[chain->state] / ot_adamw_bytes(chain->dtype, chain->state, chain->masters);
    return stream + pool > 0 ? stream / (stream + pool) : 0.5;
}

void ot_planner_set_fractions(const struct ot_search *s, double gpu, double stream_of_rest,
                              struct ot_plan_request *request) {
    gpu = s->given->state != OT_HOME_AUTO ? 0 : fmin(fmax(gpu, 0), 1);
    stream_of_rest = fmin(fmax(stream_of_rest, 0), 1);
    request->fractions[OT_TILE_GPU] = gpu;
    request->fractions[OT_TILE_STREAM] = (1 - gpu) * stream_of_rest;
    request->fractions[OT_TILE_CPU] = (1 - gpu) * (1 - stream_of_rest);
}

static int try_fractions_with(struct ot_search *s, double shadows, double gpu, double stream_of_rest) {
    struct ot_plan_request request = s->out->forced;
    ot_planner_set_fractions(s, gpu, stream_of_rest, &request);
    request.shadows = shadows;
    return ot_planner_try(s, &request, 0);
}

static int try_fractions(struct ot_search *s, double gpu, double stream_of_rest) {
    return try_fractions_with(s, s->out->forced.shadows, gpu, stream_of_rest);
}

void ot_planner_get_fractions(const struct ot_search *s, double *gpu, double *stream_of_rest) {
    double n[OT_TILE_ENGINES], all = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        all += n[e] = (double)ot_plan_count_tiles(&s->out->plan, (enum ot_tile_engine)e);
    double rest = n[OT_TILE_STREAM] + n[OT_TILE_CPU];
    *gpu = all > 0 ? n[OT_TILE_GPU] / all : 0;
    *stream_of_rest = rest > 0 ? n[OT_TILE_STREAM] / rest : 0;
}

bool ot_planner_may_split(const struct ot_search *s) {
    const double *fractions = s->given->fractions;
    return s->given->state != OT_HOME_GPU &&
           fractions[OT_TILE_GPU] + fractions[OT_TILE_STREAM] + fractions[OT_TILE_CPU] == 0;
}

/* Chooses the engines that update the tiles. Two numbers describe the choice: the device's share of all
 * tiles, and the stream's share of the rest. Starts from the best of some fractions that are often good and
 * descends in this plane, with steps that halve. The first direction changes both numbers, since less state
 * on the device makes room for weights, and tiles that leave the device are better streamed than left to the
 * pool. */
static int move_fractions(struct ot_search *s) {
    static const struct { int gpu, stream; } ways[] = {{-1, 1}, {0, 1}, {0, -1}, {-1, 0}, {1, 0}, {1, -1}};
    double gpu, stream, balance = ot_planner_balance(s);
    int taken = 0;
    if (!ot_planner_may_split(s))
        return 0;
    ot_planner_get_fractions(s, &gpu, &stream);
    const double starts[][2] = {{gpu, balance}, {gpu / 2, balance}, {0, balance}, {0, 0}, {gpu, 1}};
    for (int i = 0; i < 5; i++) {
        int rc;
        OT_TRY(rc = try_fractions(s, starts[i][0], starts[i][1]));
        taken += rc;
    }
    for (double step = 0.2; step > 0.04;) {
        int better = 0;
        for (int i = 0; i < 6 && !better; i++) {
            ot_planner_get_fractions(s, &gpu, &stream);
            OT_TRY(better = try_fractions(s, gpu + step * ways[i].gpu / 2, stream + step * ways[i].stream));
        }
        step = better ? step : step / 2;
        taken += better;
    }
    return taken;
}

/* Updates ahead of the decision. They give the pool more time, so it may then take tiles of the stream
 * engine. */
static int move_shadows(struct ot_search *s) {
    static const double streamed[] = {1, 0.75, 0.5, 0.25, 0}, shadows[] = {0.5, 0.25};
    double gpu, stream;
    int taken = 0, rc;
    ot_planner_get_fractions(s, &gpu, &stream);
    for (int i = 0; i < 5 && ot_planner_may_split(s); i++) {
        OT_TRY(rc = try_fractions_with(s, 1, gpu, stream * streamed[i]));
        taken += rc;
    }
    struct ot_plan_request request = s->out->forced;
    request.shadows = 1;
    OT_TRY(rc = ot_planner_try(s, &request, 0));
    taken += rc;
    for (int i = 0; i < 2 && taken > 0; i++) {
        request = s->out->forced;
        request.shadows = shadows[i];
        OT_TRY(rc = ot_planner_try(s, &request, 0));
    }
    return taken;
}

/* ---- slots and tiles ---- */

static int move_slots(struct ot_search *s) {
    static const int values[] = {2, 3, 4, 6, OT_PLAN_MAX_SLOTS};
    int taken = 0;
    for (int i = 0; i < 5 && s->given->slots == 0; i++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        request.slots = values[i];
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* Smaller tiles let reads, updates and writes of one slab overlap; larger tiles mean fewer tasks. With larger
 * tiles, fewer tiles of nvme pass through the host at a time. A tile larger than every slab counts as a tile
 * of the largest slab's size. */
static int move_tiles(struct ot_search *s) {
    const struct ot_chain *chain = s->given->chain;
    int64_t largest = 0, all = 0, now = s->out->plan.tile_params;
    for (int i = 0; i < chain->n_slabs; i++) {
        if (chain->slabs[i].frozen)
            continue;
        all += chain->slabs[i].n_params;
        largest = chain->slabs[i].n_params > largest ? chain->slabs[i].n_params : largest;
    }
    now = now < largest ? now : largest;
    const struct {
        int64_t params;
        bool few;
    } values[] = {{now / 2, false}, {now / 4, false}, {2 * now, false}, {2 * now, true}};
    int taken = 0;
    for (int i = 0; i < 4 && s->given->tile_params == 0; i++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        request.tile_params = values[i].params / OT_SLAB_ALIGN_PARAMS * OT_SLAB_ALIGN_PARAMS;
        if (request.tile_params < LEAST_TILE_PARAMS || all / request.tile_params > OT_PLAN_MAX_TILE_SLOTS)
            continue;
        if (values[i].few && (s->given->slots > 0 || ot_plan_passing_tiles(&s->out->plan) == 0))
            continue;
        request.slots = values[i].few ? 1 : request.slots;
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* Tries state on the device in the place of a slot. Either alone gains nothing: the slots leave no room for
 * state, and fewer of them hide less. */
static int move_state_for_slot(struct ot_search *s) {
    struct ot_plan_request request = s->out->forced;
    double gpu, stream;
    request.slots = s->out->plan.weight_slots[0] - 1;
    request.state = s->given->state;
    if (request.slots < 1 || s->given->slots > 0 || !ot_planner_may_split(s))
        return 0;
    ot_planner_get_fractions(s, &gpu, &stream);
    ot_planner_set_fractions(s, gpu + 0.125, stream, &request);
    return ot_planner_try(s, &request, 0);
}

/* ---- kept activations ---- */

/* Tries other levels that blocks keep, and other fractions of the blocks without room on the device that keep
 * their level on the host or on nvme. Compares with computing everything again. */
static int move_kept(struct ot_search *s) {
    static const double steps[] = {1, 0.5, 0.25, 0.125, -1, -0.25};
    bool level_given = s->given->keep != OT_KEEP_CHOSEN;
    int taken = 0, rc;
    for (int level = OT_KEEP_ATTENTION; level < OT_KEEP_LEVELS && !level_given; level++) {
        struct ot_plan_request request = s->out->forced;
        request.kept_level = (enum ot_keep_level)level;
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    for (int i = 0; i < 6 && !level_given && s->given->kept != OT_HOME_GPU; i++) {
        struct ot_plan_request request = s->out->forced;
        request.kept_off = fmin(fmax(request.kept_off + steps[i], 0), 1);
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    if (!level_given) {
        struct ot_plan_request request = s->out->forced;
        request.keep = OT_KEEP_NONE;
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* Tries other numbers of blocks that keep activations on the device before slabs become resident. */
static int move_kept_on(struct ot_search *s) {
    static const double steps[] = {1, 0.5, 0.25, 0.125, -0.125, -0.25, -1};
    bool may =
        s->given->keep == OT_KEEP_CHOSEN && (s->given->kept == OT_HOME_AUTO || s->given->kept == OT_HOME_GPU);
    int taken = 0, rc;
    for (int i = 0; i < 7 && may; i++) {
        struct ot_plan_request request = s->out->forced;
        request.kept_on = fmin(fmax(request.kept_on + steps[i], 0), 1);
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* ---- weights, rounds, used parts ---- */

/* Tries other numbers of streamed slabs, even if there is room for them. */
static int move_streamed(struct ot_search *s) {
    static const double steps[] = {1, 0.5, 0.25, 0.125, -0.125, -0.25, -1};
    int taken = 0, rc;
    for (int i = 0; i < 7 && s->given->weights == OT_HOME_AUTO; i++) {
        struct ot_plan_request request = s->out->forced;
        request.streamed = fmin(fmax(request.streamed + steps[i], 0), 1);
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* More rounds keep less at a time, which leaves room on the device; fewer rounds fetch weights less often. */
static int move_rounds(struct ot_search *s) {
    const int now = ot_plan_rounds(&s->out->plan), values[] = {2 * now, now / 2, now + 1, now - 1};
    int taken = 0;
    for (int i = 0; i < 4 && s->given->rounds == 0; i++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        if (values[i] < 1 || values[i] > s->out->plan.max_micro)
            continue;
        request.rounds = values[i];
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken;
}

/* Tries to fetch only used parts, or all parts. */
static int move_parts(struct ot_search *s) {
    struct ot_plan_request request = s->out->forced;
    if (s->given->fetch != OT_FETCH_CHOSEN || ot_chain_most_parts(s->given->chain) == 0)
        return 0;
    request.fetch = s->out->plan.fetch_used ? OT_FETCH_ALL_PARTS : OT_FETCH_USED_PARTS;
    return ot_planner_try(s, &request, 0);
}

/* ---- homes ---- */

/* Tries every home for one kind of data (a field of the request), unless the user's request fixes it. */
static int move_home(struct ot_search *s, size_t field) {
    enum ot_home given = *(const enum ot_home *)((const char *)s->given + field);
    int tiers = s->given->budget_bytes[OT_TIER_NVME] > 0 ? OT_TIER_COUNT : OT_TIER_NVME, taken = 0;
    for (int tier = 0; tier < tiers && given == OT_HOME_AUTO; tier++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        *(enum ot_home *)((char *)&request + field) = (enum ot_home)tier;
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken;
}

static int move_kept_home(struct ot_search *s) {
    return ot_plan_spills_kept(&s->out->plan) ? move_home(s, offsetof(struct ot_plan_request, kept)) : 0;
}

static int move_activations(struct ot_search *s) {
    return move_home(s, offsetof(struct ot_plan_request, activations));
}

static int move_weights(struct ot_search *s) {
    return move_home(s, offsetof(struct ot_plan_request, weights));
}

static int move_state(struct ot_search *s) {
    return move_home(s, offsetof(struct ot_plan_request, state));
}

/* Moves the home of the sums between rounds. */
static int move_sums(struct ot_search *s) {
    return ot_plan_rounds(&s->out->plan) > 1 ? move_home(s, offsetof(struct ot_plan_request, sums)) : 0;
}

static int move_grads(struct ot_search *s) {
    return move_home(s, offsetof(struct ot_plan_request, grads));
}

/* ---- climbing: all moves ---- */

/* True if compute waits for other lanes. If it hardly waits, moves that only shorten waits gain nothing. A
 * stage always waits for other stages, for which its own lanes can do nothing. */
static bool waits(const struct ot_search *s) {
    const struct ot_prediction *p = &s->out->prediction;
    double waited = s->stages ? 0 : p->exposed_host;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        waited += s->stages && l == OT_LANE_COMM ? 0 : p->exposed[l];
    return waited > NEGLIGIBLE * p->step_seconds;
}

/* True if more free device memory could help: to save activations instead of recomputing them, or to wait
 * less. */
bool ot_planner_may_gain(const struct ot_search *s) {
    return waits(s) || ot_plan_repeats_products(s->given->chain, &s->out->plan);
}

static bool may_move_rounds(const struct ot_search *s) {
    return s->stages || ot_planner_may_gain(s);
}

/* Runs passes over all moves until a pass gains nothing. */
int ot_planner_climb(struct ot_search *s) {
    static const struct {
        int (*move)(struct ot_search *);
        bool (*may_gain)(const struct ot_search *);
    } moves[] = {{move_fractions, ot_planner_may_gain},
                 {move_kept, ot_planner_may_gain},
                 {move_kept_on, ot_planner_may_gain},
                 {move_streamed, ot_planner_may_gain},
                 {move_rounds, may_move_rounds},
                 {move_sums, ot_planner_may_gain},
                 {move_kept_home, ot_planner_may_gain},
                 {move_activations, ot_planner_may_gain},
                 {move_slots, waits},
                 {move_parts, waits},
                 {move_weights, ot_planner_may_gain},
                 {move_state, waits},
                 {move_grads, waits}};
    for (int taken = 1; taken > 0 && s->effort > 0;) {
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

int ot_planner_keep_all(struct ot_search *s) {
    const struct ot_planner_result *best = s->out;
    double repeated = ot_plan_repeated_seconds(s->given->chain, &best->plan, s->costs);
    int taken = 0;
    if (repeated <= NEGLIGIBLE * best->prediction.step_seconds || s->given->keep != OT_KEEP_CHOSEN)
        return 0;
    for (int way = 0; way < 3; way++) {
        struct ot_plan_request request = best->forced;
        int rc;
        request.kept_level = OT_KEEP_ALL;
        request.kept_on = way == 1;
        if (way == 2 && s->given->slots == 0)
            request.slots = OT_PLAN_MAX_SLOTS; /* what leaves the device needs time to return */
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken > 0 ? ot_planner_climb(s) : 0;
}

/* Finds the most state, from the device's present share on, that fits the device with the request. */
static void find_most_state(struct ot_search *s, struct ot_plan_request *request) {
    double low, high = 1, stream;
    ot_planner_get_fractions(s, &low, &stream);
    while (high - low > FINEST_SHARE) {
        struct ot_plan made;
        double middle = (low + high) / 2;
        ot_planner_set_fractions(s, middle, stream, request);
        s->effort -= MAKING_TASKS * s->out->plan.n_slabs;
        bool fits = ot_plan_make(request, &made) >= 0;
        if (fits)
            ot_plan_free(&made);
        *(fits ? &low : &high) = middle;
    }
    ot_planner_set_fractions(s, low, stream, request);
}

/* True if some state is on nvme, and the weights have one home. */
static bool may_fill(const struct ot_search *s) {
    const struct ot_plan *plan = &s->out->plan;
    for (int i = 1; i < plan->n_slabs; i++)
        if (plan->slabs[i].weights != plan->slabs[0].weights)
            return false;
    return ot_planner_may_split(s) && s->given->state == OT_HOME_AUTO && ot_plan_passing_tiles(plan) > 0;
}

/* The most state that fits may lie between the steps of move_fractions. Also tries the fewest slots, and no
 * kept activations on the host, which leave more room for state. */
int ot_planner_fill(struct ot_search *s) {
    int taken = 0;
    for (int few = 0; few < 2 && may_fill(s); few++) {
        struct ot_plan_request request = s->out->forced;
        int rc;
        request.is_trial = true;
        request.weights = s->out->plan.slabs[0].weights;
        if (few) {
            request.slots = s->given->slots ? s->given->slots : 1;
            request.kept_off = s->given->kept_off;
        }
        find_most_state(s, &request);
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        taken += rc;
    }
    return taken > 0 ? ot_planner_climb(s) : 0;
}

/* Tile sizes come after the other moves: they matter less than the engines' fractions, and each size has
 * other best fractions. Shadows come last, because they take host memory that nothing else can use. With them
 * less state is streamed, so the link has more time for kept activations, over which shadows then lie. */
int ot_planner_climb_late(struct ot_search *s) {
    bool shadows = s->given->shadows == OT_SHADOWS_CHOSEN && s->given->clip;
    for (int taken = 1; taken > 0 && waits(s);)
        OT_TRY(taken = move_tiles(s));
    for (int taken = 1; shadows && taken > 0 && ot_planner_may_gain(s);) {
        int rc = 0;
        if (waits(s))
            OT_TRY(rc = move_shadows(s));
        OT_TRY(taken = move_kept(s));
        taken = taken > 0 || rc > 0;
    }
    int rc = 0;
    if (waits(s))
        OT_TRY(rc = move_state_for_slot(s));
    return rc > 0 ? ot_planner_climb(s) : 0;
}

/* ---- planner shake ---- */

/* Changes several choices of the best plan at a time. A move of one choice often gains nothing alone: less
 * state on the device is worse, and more kept activations do not fit, but both together may be better. */

/* A number in [0, 1), the same for the same search. */
static double draw(uint64_t number, uint64_t which) {
    return ot_random_unit(7, number, which);
}

/* A step up or down, of 1/32 to 1/2. */
static double draw_step(uint64_t number, uint64_t which) {
    double unit = draw(number, which);
    double size = exp2(-1 - 4 * draw(number, which + 50));
    return unit < 0.5 ? -size : size;
}

static double clamp(double share) {
    return fmin(fmax(share, 0), 1);
}

/* Changes one choice that the user has left open. */
static void change(const struct ot_search *s, int choice, uint64_t number, uint64_t which,
                   struct ot_plan_request *request) {
    const struct ot_plan_request *given = s->given;
    double step = draw_step(number, which), gpu, stream;
    bool keeps = given->keep == OT_KEEP_CHOSEN;
    switch (choice) {
    case 0:
    case 1:
        ot_planner_get_fractions(s, &gpu, &stream);
        if (ot_planner_may_split(s))
            ot_planner_set_fractions(s, choice == 0 ? gpu + step / 2 : gpu,
                                     choice == 0 ? stream : stream + step, request);
        break;
    case 2:
        request->kept_off = keeps && given->kept != OT_HOME_GPU ? clamp(request->kept_off + step) : 0;
        break;
    case 3:
        request->kept_on = keeps ? clamp(request->kept_on + step) : 0;
        break;
    case 4:
        request->streamed = given->weights == OT_HOME_AUTO ? clamp(request->streamed + step) : 0;
        break;
    case 5:
        request->slots = given->slots ? given->slots : 2 + (int)(draw(number, which + 100) * 4);
        break;
    case 6:
        request->kept_level =
            keeps ? (enum ot_keep_level)(1 + (int)(draw(number, which + 100) * 3)) : request->kept_level;
        request->keep = given->keep;
        break;
    case 7:
        if (given->activations == OT_HOME_AUTO)
            request->activations = draw(number, which + 100) < 0.5 ? OT_HOME_GPU : OT_HOME_HOST;
        break;
    default:
        if (given->rounds == 0)
            request->rounds = (int)fmax(1, lround(ot_plan_rounds(&s->out->plan) * exp2(3 * step)));
        break;
    }
}

int ot_planner_shake(struct ot_search *s) {
    enum { CHOICES = 9 };
    int idle = 0;
    for (uint64_t number = 0; number < MOST_DRAWS && idle < IDLE_DRAWS && s->effort > 0; number++) {
        struct ot_plan_request request = s->out->forced;
        int n = 1 + (int)(draw(number, 0) * 3), rc;
        if (!ot_planner_may_gain(s))
            return 0;
        for (int i = 0; i < n; i++)
            change(s, (int)(draw(number, 1 + (uint64_t)i) * CHOICES), number, 10 + (uint64_t)i, &request);
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        idle = rc > 0 ? 0 : idle + 1;
    }
    return 0;
}
