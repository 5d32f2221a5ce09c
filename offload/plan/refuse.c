/* Words the error of a request that has no plan: which tier is short, and by how much. It names no option,
 * because the caller words the cure. */
#include <stdio.h>

#include "offload/plan/build.h"
#include "src/base/error.h"

enum { SIZE_BYTES = 32 };
static const size_t MIB = (size_t)1 << 20, BIG = (size_t)10 << 30;

/* Writes a size in the unit that suits `of`: MiB below 10 GiB, otherwise GiB. Rounds a need up to a tenth and
 * a budget down, so that a shortage never reads as zero. */
static const char *size_text(size_t bytes, size_t of, bool up, char text[SIZE_BYTES]) {
    size_t unit = of >= BIG ? MIB << 10 : MIB;
    double tenths = (double)(bytes / unit * 10 + (bytes % unit * 10 + (up ? unit - 1 : 0)) / unit);
    snprintf(text, SIZE_BYTES, "%.1f %s", tenths / 10, of >= BIG ? "GiB" : "MiB");
    return text;
}

/* "27.4 GiB of gpu memory, but the budget is 22.7 GiB, short by 4.7 GiB" */
static int put(char *line, size_t bytes, const struct ot_plan_request *rq, enum ot_tier tier, size_t need) {
    static const char *const what[] = {"gpu memory", "host memory", "space on nvme"};
    char needs[SIZE_BYTES], has[SIZE_BYTES], lacks[SIZE_BYTES];
    size_t have = rq->budget_bytes[tier], lack = need > have ? need - have : 0;
    return snprintf(line, bytes, "%s of %s, but the budget is %s, short by %s",
                    size_text(need, need, true, needs), what[tier], size_text(have, need, false, has),
                    size_text(lack, need, true, lacks));
}

static int refuse_together(const struct ot_plan_request *rq, const size_t together[OT_TIER_COUNT]) {
    char lines[OT_TIER_COUNT][200] = {"", "", ""};
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (together[t] > rq->budget_bytes[t])
            put(lines[t], sizeof lines[t], rq, (enum ot_tier)t, together[t]);
    const char *gpu = lines[OT_TIER_GPU], *host = lines[OT_TIER_HOST], *nvme = lines[OT_TIER_NVME];
    return ot_fail(OT_E_BUDGET,
                   "gpu and host memory: the smallest plan for steps of %lld sequences of %lld tokens needs "
                   "%s%s%s%s%s",
                   (long long)rq->step_sequences, (long long)rq->sequence_tokens, gpu,
                   *gpu && *host ? ", and " : "", host, (*gpu || *host) && *nvme ? ", and " : "", nvme);
}

int ot_plan_refuse(const struct ot_plan_request *rq, const struct ot_shortage *shortage) {
    const size_t *alone = shortage->alone;
    char gpu[200], host[200], nvme[200];
    put(gpu, sizeof gpu, rq, OT_TIER_GPU, alone[OT_TIER_GPU]);
    put(host, sizeof host, rq, OT_TIER_HOST, alone[OT_TIER_HOST]);
    put(nvme, sizeof nvme, rq, OT_TIER_NVME, alone[OT_TIER_NVME]);
    if (alone[OT_TIER_NVME] && rq->budget_bytes[OT_TIER_NVME] == 0)
        return ot_fail(OT_E_BUDGET, "nvme: no disk is given, but the plan needs %s", nvme);
    if (alone[OT_TIER_NVME])
        return ot_fail(OT_E_BUDGET,
                       "nvme: the part of the model that does not fit gpu and host memory needs %s", nvme);
    if (alone[OT_TIER_GPU] && alone[OT_TIER_HOST])
        return ot_fail(OT_E_BUDGET,
                       "gpu or host memory: the smallest plan for %lld-token sequences needs %s, or %s",
                       (long long)rq->sequence_tokens, gpu, host);
    if (alone[OT_TIER_GPU])
        return ot_fail(OT_E_BUDGET, "gpu memory: the smallest plan for %lld-token sequences needs %s",
                       (long long)rq->sequence_tokens, gpu);
    if (alone[OT_TIER_HOST])
        return ot_fail(OT_E_BUDGET,
                       "host memory: the part of the model that does not fit gpu memory needs %s", host);
    return refuse_together(rq, shortage->together);
}
