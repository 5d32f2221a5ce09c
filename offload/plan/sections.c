/* Sections of a sequence, and key groups (slabs.h): which there may be, and when a plan has them. The search
 * (search.c) is given both, the home of the cache of generation, and the home of kept activations if all
 * blocks must keep them. */
#include <string.h>

#include "offload/plan/build.h"
#include "offload/plan/used_parts.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

int64_t ot_plan_section_tokens(const struct ot_plan_request *rq, int64_t sections) {
    int64_t align = rq->chain->section_align, each = (rq->sequence_tokens + sections - 1) / sections;
    return (each + align - 1) / align * align;
}

bool ot_plan_may_cut(const struct ot_plan_request *rq, int sections) {
    return sections <= 1 ||
           (rq->chain->section_align > 0 && !rq->chain->compares && rq->micro_sequences <= 1 &&
            (sections - 1) * ot_plan_section_tokens(rq, sections) < rq->sequence_tokens);
}

bool ot_plan_may_choose_sections(const struct ot_plan_request *rq, int64_t sections) {
    return rq->sequence_tokens / sections >= OT_SECTION_LEAST_TOKENS && ot_plan_may_cut(rq, (int)sections) &&
           ot_candidate_micro(rq, 1) * sections <= ot_chain_most_micro(rq->chain);
}

void ot_plan_force_micro(struct ot_plan_request *rq, int64_t micro_tokens) {
    int64_t sequence = rq->sequence_tokens;
    rq->micro_sequences = ot_max(micro_tokens / sequence, 1);
    rq->sections = (int)((sequence + micro_tokens - 1) / micro_tokens); /* 1 of several sequences */
}

/* ---- what a search does not choose by itself ---- */

/* If every block must keep activations, tries the device as their home, then the host, then nvme. */
static int make_cut(const struct ot_plan_request *rq, struct ot_plan *out) {
    if (rq->kept != OT_HOME_AUTO || rq->keep <= OT_KEEP_NONE)
        return ot_plan_make_settled(rq, out);
    int rc = -OT_E_BUDGET;
    bool nvme = rq->budget_bytes[OT_TIER_NVME] > 0;
    for (int home = OT_HOME_GPU; home <= (nvme ? OT_HOME_NVME : OT_HOME_HOST) && rc == -OT_E_BUDGET; home++) {
        struct ot_plan_request there = *rq;
        there.kept = (enum ot_home)home;
        rc = ot_plan_make_settled(&there, out);
    }
    return rc;
}

/* True if boundaries may pass (plan.h), which takes the least of the device. */
static bool may_pass(const struct ot_plan_request *rq) {
    return rq->train && rq->shard.mode != OT_SHARD_STAGES && rq->activations != OT_HOME_GPU &&
           !(ot_plan_fetches_used(rq) && ot_chain_most_parts(rq->chain) > 0);
}

/* In the given number of sections: without passing boundaries, then with them. */
static int make_sections(const struct ot_plan_request *rq, struct ot_plan *out) {
    struct ot_plan_request passing = *rq;
    int rc = make_cut(rq, out);
    passing.boundaries_pass = true;
    return rc == -OT_E_BUDGET && rq->sections > 1 && may_pass(rq) ? make_cut(&passing, out) : rc;
}

/* ---- key groups ---- */

/* The bytes of the device that would be enough. SIZE_MAX: unknown. */
static size_t missing(const struct ot_shortage *s) {
    size_t most = ot_max(s->alone[OT_TIER_GPU], s->together[OT_TIER_GPU]);
    return most > 0 ? most : SIZE_MAX;
}

/* True if groups of keys may help a request that was refused: the device is short. */
static bool may_group(const struct ot_plan_request *rq, const struct ot_plan *refused) {
    bool is_short = rq->is_trial || (missing(&refused->shortage) != SIZE_MAX &&
                                     missing(&refused->shortage) > rq->budget_bytes[OT_TIER_GPU]);
    return is_short && rq->key_groups == 0 && rq->chain->key_heads > OT_KEY_SLOTS &&
           !(ot_plan_fetches_used(rq) && ot_chain_most_parts(rq->chain) > 0);
}

/* The next larger number of equal groups; 0: there is none. OT_KEY_SLOTS groups save no memory. */
static int next_groups(const struct ot_plan_request *rq, int groups) {
    int64_t heads = rq->chain->key_heads;
    int most = ot_chain_most_key_groups(rq->chain, ot_candidate_micro(rq, 1) * rq->sections);
    for (groups = ot_max(groups, OT_KEY_SLOTS) + 1; groups <= ot_min(most, heads); groups++)
        if (heads % groups == 0)
            return groups;
    return 0;
}

/* In the given number of sections: if the most groups fit, then the fewest that do. Boundaries pass where
 * they may, because a row that needs groups has no room for them. Leaves the least shortage. */
static int make_groups(const struct ot_plan_request *rq, struct ot_plan *out) {
    struct ot_plan_request cut = *rq;
    struct ot_shortage before = out->shortage;
    int rc, most = 0;
    for (int groups = next_groups(rq, 0); groups > 0 && rq->sections > 1; groups = next_groups(rq, groups))
        most = groups;
    if (most == 0)
        return -OT_E_BUDGET;
    cut.boundaries_pass = may_pass(rq);
    cut.key_groups = most;
    rc = make_cut(&cut, out);
    if (rc < 0 && missing(&before) < missing(&out->shortage))
        out->shortage = before;
    for (int groups = next_groups(rq, 0); rc == 0 && groups < most; groups = next_groups(rq, groups)) {
        struct ot_plan fewer;
        cut.key_groups = groups;
        int fits = make_cut(&cut, &fewer);
        if (fits < 0)
            continue;
        ot_plan_free(out);
        *out = fewer;
        break;
    }
    return rc;
}

/* ---- the plan ---- */

/* In as many sections as the request says, or in 1, 2, 4, .. until a plan fits. */
static int try_sections(const struct ot_plan_request *rq,
                        int (*make)(const struct ot_plan_request *, struct ot_plan *), struct ot_plan *out) {
    struct ot_plan_request cut = *rq;
    cut.sections = ot_max(rq->sections, 1);
    int rc = make(&cut, out);
    for (cut.sections = 2;
         rc == -OT_E_BUDGET && rq->sections == 0 && ot_plan_may_choose_sections(rq, cut.sections);
         cut.sections *= 2)
        rc = make(&cut, out);
    return rc;
}

/* With the given home of the cache: in the fewest sections that fit, or else with key groups too. */
static int make_with_cache(const struct ot_plan_request *rq, struct ot_plan *out) {
    int rc = try_sections(rq, make_sections, out);
    if (rc != -OT_E_BUDGET || !may_group(rq, out))
        return rc;
    rc = try_sections(rq, make_groups, out);
    return rc == -OT_E_BUDGET && !rq->is_trial ? ot_plan_refuse(rq, &out->shortage) : rc;
}

/* Adds a way to make a plan: less of a tier may be enough with it. Returns false if memory is not short, but
 * something else is wrong. */
static bool add_way(struct ot_shortage *all, const struct ot_shortage *way) {
    bool alone = false, together = false;
    memcpy(all->together, way->together, sizeof all->together);
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        if (way->alone[t] && (!all->alone[t] || way->alone[t] < all->alone[t]))
            all->alone[t] = way->alone[t];
        alone = alone || all->alone[t];
        together = together || all->together[t];
    }
    if (alone)
        memset(all->together, 0, sizeof all->together);
    return alone || together;
}

int ot_plan_make(const struct ot_plan_request *rq, struct ot_plan *out) {
    struct ot_plan_request there = *rq;
    struct ot_shortage shortage = {0};
    enum ot_home last = rq->budget_bytes[OT_TIER_NVME] > 0 ? OT_HOME_NVME : OT_HOME_HOST;
    bool is_short = false;
    int rc = -OT_E_BUDGET;
    if (rq->cache != OT_HOME_AUTO || rq->cache_rows == 0)
        return make_with_cache(rq, out);
    for (int home = OT_HOME_GPU; home <= (int)last && rc == -OT_E_BUDGET; home++) {
        there.cache = (enum ot_home)home;
        rc = make_with_cache(&there, out);
        is_short = add_way(&shortage, &out->shortage);
    }
    if (rc != -OT_E_BUDGET || rq->is_trial || !is_short)
        return rc;
    out->shortage = shortage;
    return ot_plan_refuse(rq, &shortage);
}
