/* Checks a request for a plan. */
#include <math.h>
#include <stdint.h>

#include "offload/plan/build.h"
#include "src/base/error.h"

int ot_plan_check_fractions(const double fractions[OT_TILE_ENGINES], enum ot_home state) {
    double sum = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++) {
        const char *name = ot_tile_engine_name((enum ot_tile_engine)e);
        if (!(fractions[e] >= 0 && fractions[e] <= 1))
            return ot_fail(OT_E_USAGE, "%s cannot have a share of %g: give 0 to 1", name, fractions[e]);
        enum ot_home home = e == OT_TILE_GPU ? OT_HOME_GPU : OT_HOME_HOST;
        bool elsewhere = state != OT_HOME_AUTO && (state == OT_HOME_GPU) != (home == OT_HOME_GPU);
        if (fractions[e] > 0 && elsewhere)
            return ot_fail(OT_E_USAGE, "%s updates state that lives on the %s, not on the %s", name,
                           ot_tier_name((enum ot_tier)home), ot_tier_name((enum ot_tier)state));
        sum += fractions[e];
    }
    if (ot_plan_has_fractions(fractions) && fabs(sum - 1) > 1e-6)
        return ot_fail(OT_E_USAGE, "the shares add up to %g, not to 1", sum);
    return 0;
}

int ot_plan_check_counts(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    int64_t counts[OT_TILE_ENGINES], total = ot_plan_all_tiles(rq->chain, plan);
    ot_plan_count_fractions(rq, total, counts);
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        if (rq->fractions[e] > 0 && counts[e] == 0)
            return ot_fail_cause(OT_E_USAGE, OT_CAUSE_OPTIMIZER_SHARE,
                                 "a share of %g for %s is less than one of this model's %lld tiles",
                                 rq->fractions[e], ot_tile_engine_name((enum ot_tile_engine)e),
                                 (long long)total);
    return 0;
}

int ot_plan_check_request(const struct ot_plan_request *rq) {
    if (rq->sequence_tokens < 1 || rq->step_sequences < 1 || rq->micro_sequences < 0)
        return ot_fail(OT_E_USAGE, "a step of %lld sequences of %lld tokens, or its micro-batch, is empty",
                       (long long)rq->step_sequences, (long long)rq->sequence_tokens);
    if (rq->step_sequences > INT32_MAX / rq->sequence_tokens)
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STEP_TOKENS,
                             "%lld sequences of %lld tokens are more than 2^31 tokens a step",
                             (long long)rq->step_sequences, (long long)rq->sequence_tokens);
    if (rq->slots < 0 || rq->slots > OT_PLAN_MAX_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d weight slots of each kind; give 1 to %d", rq->slots,
                       OT_PLAN_MAX_SLOTS);
    if (rq->tile_params < 0 || rq->tile_params % OT_SLAB_ALIGN_PARAMS != 0)
        return ot_fail(OT_E_USAGE, "plan: the %lld parameters of a tile are not a multiple of %d",
                       (long long)rq->tile_params, OT_SLAB_ALIGN_PARAMS);
    if (rq->extra_device_bytes < 0 || rq->extra_host_bytes < 0)
        return ot_fail(OT_E_USAGE,
                       "plan: cannot reserve %lld bytes of device memory and %lld bytes of host memory",
                       (long long)rq->extra_device_bytes, (long long)rq->extra_host_bytes);
    OT_TRY(ot_shard_check(&rq->shard));
    return ot_plan_check_fractions(rq->fractions, rq->state);
}
