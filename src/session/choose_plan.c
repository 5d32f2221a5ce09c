/* Makes a session's plan: the plan that fits, or the plan that the forecast says is fastest. */
#include <string.h>

#include "models/encoded.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/session/device.h"
#include "src/session/open.h"
#include "src/session/plan_request.h"
#include "src/session/session_ranks.h"
#include "src/session/weights.h"

static struct ot_plan_request make_request(const struct ot_session *s, const struct ot_session_need *need) {
    struct ot_plan_request request = ot_plan_request_of(s->options);
    request.chain = ot_model_chain(s->model.built);
    memcpy(request.budget_bytes, s->machine.budget_bytes, sizeof request.budget_bytes);
    request.sequence_tokens = need->sequence_tokens;
    /* Without training there is no step to divide: each rank has the micro-batch that one rank would have. */
    request.step_sequences = need->step_sequences * (need->train ? 1 : ot_shard_groups(&s->ranks.shard));
    request.micro_sequences = need->micro_sequences;
    request.sections = need->sections;
    request.train = need->train;
    request.clip = need->clip;
    request.pass_tokens = need->cache_tokens ? 1 : 0; /* generation */
    request.cache_rows = s->plan.cache_tokens;
    request.extra_device_bytes = (int64_t)s->machine.workspace_bytes;
    request.extra_host_bytes = need->host_bytes + (int64_t)ot_slab_encoder_bytes(s->model.built) +
                               (need->gathers ? ot_gather_bytes(s) : 0);
    request.texts = s->plan.texts;
    request.snapshot_slots = need->snapshot_slots;
    request.pinned_contents = need->pinned_contents;
    request.shard = s->ranks.shard;
    request.weights = s->ranks.shard.one_copy ? OT_HOME_HOST : request.weights;
    request.staging_bytes = s->ranks.comm ? ot_comm_staging_bytes(s->ranks.comm, SIZE_MAX) : 0;
    request.crosses = s->ranks.crosses;
    return request;
}

/* The ranks must list the same operations. These follow from the micro-batch, the rounds and the numbers of
 * slots. So all ranks take the micro-batch and the rounds that are the least of all ranks, and the slots that
 * are the least of the ranks which share their slabs. */
static int agree(struct ot_session *s, struct ot_plan_request *request) {
    struct ot_plan *plan = &s->plan.chosen;
    int64_t micro = plan->micro_tokens;
    int *const fields[] = {&plan->first_round, &plan->round_micro,
                           /* of sums that are exchanged: */
                           &plan->grad_slots[OT_SLOT_LAYER], &plan->grad_slots[OT_SLOT_EDGE],
                           /* of weights that are gathered: */
                           &plan->weight_slots[OT_SLOT_LAYER], &plan->weight_slots[OT_SLOT_EDGE],
                           &plan->weight_slots[OT_SLOT_FROZEN_LAYER],
                           &plan->weight_slots[OT_SLOT_FROZEN_EDGE], &plan->weight_slots[OT_SLOT_SHARED],
                           &plan->encoded_slots[OT_SLOT_FROZEN_LAYER],
                           &plan->encoded_slots[OT_SLOT_FROZEN_EDGE]};
    enum { FIELDS = sizeof fields / sizeof *fields, ROUND_FIELDS = 2, SUM_FIELDS = 2 };
    int64_t values[1 + FIELDS] = {micro};
    for (int i = 0; i < FIELDS; i++)
        values[1 + i] = *fields[i];
    int64_t *slots = values + 1 + ROUND_FIELDS;
    OT_TRY(ot_session_ranks_find_least(s, values, 1 + ROUND_FIELDS));
    OT_TRY(ot_session_ranks_find_least_of_holders(s, &plan->shard, slots, FIELDS - ROUND_FIELDS));
    if (values[0] != micro) {
        ot_plan_force_micro(request, values[0]);
        ot_plan_free(plan);
        OT_TRY(ot_plan_make(request, plan));
    }
    int n = ot_plan_is_sharded(plan)  ? FIELDS
            : ot_plan_exchanges(plan) ? ROUND_FIELDS + SUM_FIELDS
                                      : ROUND_FIELDS;
    for (int i = 0; i < n; i++)
        *fields[i] = (int)values[1 + i];
    return ot_plan_finish(request->chain, plan);
}

static int try_plan(struct ot_session *s, const struct ot_plan_request *request) {
    struct ot_planner_result chosen = {0};
    if (!s->plan.costs || !request->train)
        return ot_plan_make(request, &s->plan.chosen);
    int rc = ot_planner_choose(request, s->plan.costs, &chosen);
    s->plan.chosen = chosen.plan;
    s->plan.prediction = chosen.prediction;
    return rc;
}

/* If the plan does not fit, checkpoints are copied, which needs less on nvme. */
static int make_plan(struct ot_session *s, struct ot_plan_request *request) {
    int rc = try_plan(s, request);
    if (rc != -OT_E_BUDGET || request->pinned_contents == 0)
        return rc;
    request->pinned_contents = 0;
    return try_plan(s, request);
}

/* Makes a plan to generate. If there is no room, a pass has fewer micro-batches. Only then the cache leaves
 * the device, because each token has to wait for it. Ranks need equally many micro-batches, so theirs stay.
 */
static int make_generation(struct ot_session *s, struct ot_plan_request *request) {
    const enum ot_home homes[2] = {OT_HOME_GPU, request->cache};
    const int64_t most = request->step_sequences;
    int rc = -OT_E_BUDGET;
    for (int i = request->cache != OT_HOME_AUTO; i < 2 && rc == -OT_E_BUDGET; i++) {
        request->cache = homes[i];
        request->step_sequences = most;
        rc = make_plan(s, request);
        while (rc == -OT_E_BUDGET && request->step_sequences > 1 && !s->ranks.comm) {
            request->step_sequences /= 2;
            rc = make_plan(s, request);
        }
    }
    return rc;
}

static int refuse(const struct ot_session *s, const struct ot_plan_request *request) {
    size_t most[OT_TIER_COUNT];
    ot_session_most_bytes(s, most);
    struct ot_cure cure = {.options = s->options,
                           .request = request,
                           .most_gpu_bytes = most[OT_TIER_GPU],
                           .most_host_bytes = most[OT_TIER_HOST],
                           .shared = s->options->device.kind == OT_DEVICE_CPU ? &s->machine.limits : NULL};
    return ot_plan_cure(&cure, &s->plan.chosen.shortage);
}

/* The cache of generation, and the texts that grow side by side. Texts of a pass have logits on the device,
 * in fp32. All ranks choose alike, because they generate together. */
static int find_cache(struct ot_session *s, const struct ot_session_need *need) {
    enum { MOST_TEXTS = 64, CACHE_FRACTION = 8, LOGITS_FRACTION = 32 };
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    size_t budget = s->machine.budget_bytes[OT_TIER_GPU];
    int64_t room = (int64_t)(budget / CACHE_FRACTION / ot_engine_kv_bytes(chain, 1));
    int64_t texts = (int64_t)(budget / LOGITS_FRACTION / ((size_t)chain->vocab * sizeof(float)));
    int64_t values[] = {need->cache_tokens, 1};
    if (need->texts > 0) {
        values[1] = ot_min(need->texts, MOST_TEXTS);
        values[1] = ot_max(ot_min(values[1], texts), 1);
        room = ot_min(room, values[1] * need->longest_text);
        values[0] = ot_max(need->longest_text, ot_min(need->cache_tokens, room));
    }
    if (need->texts > 0 && s->ranks.comm)
        OT_TRY(ot_session_ranks_find_least(s, values, 2));
    s->plan.cache_tokens = values[0];
    s->plan.texts = (int)values[1];
    return 0;
}

/* Fixes the fields that plans of all step sizes share. */
static int open_model(struct ot_session *s, const struct ot_session_need *need) {
    if (s->model.built)
        return 0;
    OT_TRY(ot_plan_request_model(s->options, &s->model.config, s->model.dtype, need->max_position,
                                 &s->model.built));
    if (s->options->init == OT_CHOICE_INIT_FILES)
        OT_TRY(ot_model_dir_check(s->model.dir, s->model.built));
    if (need->cache_tokens)
        OT_TRY(find_cache(s, need));
    OT_TRY(ot_session_ranks_find_sharing(s));
    if (!need->train)
        return 0;
    OT_TRY(ot_session_ranks_find_division(s, need->resumed_ranks, need->resumed_stages));
    struct ot_plan_request request = make_request(s, need);
    return ot_session_ranks_divide(s, &request);
}

/* ---- ranks that do not train ---- */

/* A way to divide a model that is not trained. All ways have the same bits. */
struct way {
    enum ot_shard_mode mode;
    bool one_copy;
    bool on_device; /* if all weights of the rank stay on its device, and its cache of generation */
    bool answers;   /* with --shard auto: only for generation, whose passes compute little */
    const char *what;
};

/* The first way that all ranks have memory for is taken. If a rank's layers stay on its device, they follow
 * each other, so that few activations cross between ranks. If they are streamed, the ranks take turns: a rank
 * fetches its next layer while the others compute. */
static const struct way ways[] = {
    {OT_SHARD_NONE, false, true, false, "each rank has all weights on its device"},
    {OT_SHARD_STAGES, false, true, true, "each rank has its layers on its device"},
    {OT_SHARD_NONE, false, false, false, "each rank streams all weights from memory of its own"},
    {OT_SHARD_STATE, false, true, false, "each rank has all weights on its device"},
    {OT_SHARD_FULL, true, false, false, "the ranks stream weights from one copy in RAM"},
    {OT_SHARD_FULL, false, false, false, "each rank has a part of the weights, and gathers the others"},
    {OT_SHARD_STAGES, false, false, false, "each rank streams its layers"},
};
enum { WAYS = sizeof ways / sizeof *ways };

static bool is_open(const struct ot_session *s, const struct way *way, bool generates) {
    const struct ot_options *o = s->options;
    if (way->one_copy)
        return s->ranks.shard.one_copy || s->ranks.may_one_copy;
    if (s->ranks.shard.one_copy)
        return false;
    return o->shard == OT_CHOICE_SHARD_AUTO ? way->mode != OT_SHARD_STATE && (generates || !way->answers)
                                            : way->mode == ot_plan_request_mode(o);
}

static bool is_on_device(const struct ot_plan *plan) {
    bool all = plan->cache == OT_HOME_GPU;
    for (int i = 0; i < plan->n_slabs; i++)
        all = all && ot_slab_is_resident(plan, i);
    return all;
}

/* True if this rank has memory for the way. */
static bool has_room(const struct ot_session *s, const struct ot_session_need *need, const struct way *way) {
    struct ot_plan_request request = make_request(s, need);
    struct ot_plan plan;
    bool divides = way->mode != OT_SHARD_STAGES ||
                   (ot_comm_need_transfers(s->ranks.comm) == 0 &&
                    ot_stages_check(ot_model_chain(s->model.built), &s->ranks.shard) == 0);
    request.is_trial = true;
    if (!divides || ot_plan_make(&request, &plan) < 0)
        return false;
    bool fits = !way->on_device || is_on_device(&plan);
    ot_plan_free(&plan);
    return fits;
}

/* Sets session->ranks.shard. If there is no way, it stays, and its plan is refused with a cure. */
static int choose_way(struct ot_session *s, const struct ot_session_need *need) {
    const struct ot_shard before = s->ranks.shard;
    for (int i = 0; i < WAYS; i++) {
        int64_t fits = is_open(s, &ways[i], need->cache_tokens > 0);
        if (!fits)
            continue;
        s->ranks.shard.mode = ways[i].mode;
        s->ranks.shard.one_copy = ways[i].one_copy;
        s->ranks.shard.turn_blocks = ways[i].on_device ? 0 : before.turn_blocks;
        fits = has_room(s, need, &ways[i]);
        OT_TRY(ot_session_ranks_find_least(s, &fits, 1));
        if (fits) {
            ot_log(OT_LOG_INFO, "shard   %s: %s", ot_shard_mode_name(ways[i].mode), ways[i].what);
            return 0;
        }
        s->ranks.shard = before;
    }
    return 0;
}

int ot_session_plan(struct ot_session *s, const struct ot_session_need *need) {
    OT_TRY(open_model(s, need));
    if (s->ranks.comm && !need->train)
        OT_TRY(choose_way(s, need));
    struct ot_plan_request request = make_request(s, need);
    bool generates = !need->train && need->micro_sequences == 1 && request.cache_rows > 0;
    int rc = generates ? make_generation(s, &request) : make_plan(s, &request);
    if (rc == -OT_E_BUDGET)
        return refuse(s, &request);
    OT_TRY(rc);
    if (s->ranks.comm)
        OT_TRY(agree(s, &request));
    const struct ot_plan *plan = &s->plan.chosen;
    if (!need->train && plan->cache != OT_HOME_GPU)
        ot_log(OT_LOG_INFO, "cache   the keys and values of %lld tokens are on %s",
               (long long)plan->cache_rows, ot_tier_name((enum ot_tier)plan->cache));
    return ot_session_check_free(s);
}

/* The ranks agree where one of them may have no plan: they must measure and choose together. */
int ot_session_predict(struct ot_session *s, const struct ot_session_need *need,
                       const struct ot_forecast_rows *rows, struct ot_prediction *prediction) {
    OT_TRY(open_model(s, need));
    struct ot_plan_request request = make_request(s, need);
    const struct ot_shard shard = s->ranks.shard;
    int rc;
    OT_TRY_GOTO(ot_session_ranks_agree(s, make_plan(s, &request)), rc, out);
    request.cache = s->plan.chosen.cache; /* the planner only compares training steps */
    OT_TRY_GOTO(ot_forecast_measure(s, &request, rows), rc, out);
    rc = ot_forecast_predict(s, &request, rows, prediction);
    if (rc == 0 || rc == -OT_E_BUDGET)
        rc = ot_session_ranks_agree(s, rc);
out:
    s->ranks.shard = shard;
    ot_plan_free(&s->plan.chosen);
    return rc;
}

int ot_session_forecast(struct ot_session *s, const struct ot_session_need *need,
                        const struct ot_forecast_rows *rows) {
    struct ot_plan_request request = make_request(s, need);
    request.pinned_contents = s->plan.chosen.pinned_contents;
    request.cache = s->plan.chosen.cache;
    OT_TRY(ot_forecast_make(s, &request, rows));
    if (s->ranks.comm)
        OT_TRY(agree(s, &request));
    return ot_session_check_free(s);
}
