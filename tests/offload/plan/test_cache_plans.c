/* The home of the cache of generation: the first tier with room, or the tier that is asked for. */
#include <string.h>

#include "offload/plan/layout.h"
#include "offload/plan/plan_search.h"
#include "src/base/error.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

enum { ROWS = 100000 };

static struct ot_plan_request generation(const struct fake *f) {
    struct ot_plan_request rq = fake_request(f);
    rq.train = false;
    rq.step_sequences = 1;
    rq.cache_rows = ROWS;
    rq.cache = OT_HOME_AUTO;
    return rq;
}

static size_t cache_on(const struct ot_plan *plan, enum ot_tier tier) {
    size_t bytes = 0;
    for (int e = 0; e < plan->ledger.n; e++)
        if (plan->ledger.entries[e].tier == tier &&
            strstr(plan->ledger.entries[e].name, "key/value cache") == plan->ledger.entries[e].name)
            bytes += plan->ledger.entries[e].bytes;
    return bytes;
}

/* 12 layers: the cache has 2.3 GiB, 195 MiB a layer. */
static void the_first_home_with_room(void **state) {
    (void)state;
    static const struct {
        size_t gpu, host, nvme; /* MiB */
        enum ot_home home;
        int slots;
    } cases[] = {
        {4096, 4096, 0, OT_HOME_GPU, 0},    {4096, 64, 0, OT_HOME_GPU, 0},
        {1024, 4096, 0, OT_HOME_HOST, 2},   {1024, 4096, 64, OT_HOME_HOST, 2},
        {300, 4096, 0, OT_HOME_HOST, 1},    {1024, 1024, 4096, OT_HOME_NVME, 2},
        {300, 1024, 4096, OT_HOME_NVME, 1},
    };
    struct fake f;
    fake_open_small(&f, OT_BF16, false);
    size_t layer = 2 * (size_t)ROWS * (size_t)f.hidden * 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_plan_request rq = generation(&f);
        struct ot_plan plan;
        rq.budget_bytes[OT_TIER_GPU] = cases[i].gpu * MIB;
        rq.budget_bytes[OT_TIER_HOST] = cases[i].host * MIB;
        rq.budget_bytes[OT_TIER_NVME] = cases[i].nvme * MIB;
        check_ok(ot_plan_make(&rq, &plan));
        assert_int_equal(plan.cache, cases[i].home);
        assert_int_equal(plan.cache_slots, cases[i].slots);
        assert_int_equal(plan.host_cache_slots, cases[i].home == OT_HOME_NVME ? cases[i].slots + 1 : 0);
        for (int t = 0; t < OT_TIER_COUNT; t++) {
            size_t layers = t == (int)cases[i].home ? (size_t)f.layers
                            : t == OT_TIER_GPU      ? (size_t)plan.cache_slots
                            : t == OT_TIER_HOST     ? (size_t)plan.host_cache_slots
                                                    : 0;
            size_t bytes = cache_on(&plan, (enum ot_tier)t);
            assert_true(bytes >= layers * layer && bytes <= layers * (layer + 2 * 256 * 4096));
            assert_true(ot_ledger_total(&plan.ledger, (enum ot_tier)t) <= rq.budget_bytes[t]);
        }
        ot_plan_free(&plan);
    }
}

static void a_forced_home_is_honoured(void **state) {
    (void)state;
    struct fake f;
    fake_open_small(&f, OT_BF16, false);
    for (int home = 0; home < OT_TIER_COUNT; home++) {
        struct ot_plan_request rq = generation(&f);
        struct ot_plan plan;
        rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 34;
        rq.cache = (enum ot_home)home;
        check_ok(ot_plan_make(&rq, &plan));
        assert_int_equal(plan.cache, home);
        ot_plan_free(&plan);
        rq.budget_bytes[home] = 256 * MIB;
        check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, ot_tier_name((enum ot_tier)home));
        assert_true(plan.shortage.alone[home] > (size_t)2300 * MIB);
    }
}

/* A refusal names each tier that more of helps, whichever home the cache then has, and the amount is enough
 * and not much more than enough. */
static void a_refusal_says_what_is_enough(void **state) {
    (void)state;
    struct fake f;
    int named = 0;
    fake_open_small(&f, OT_BF16, false);
    for (size_t gpu = 50; gpu <= 1600; gpu *= 2)
        for (size_t host = 50; host <= 1600; host *= 2) {
            struct ot_plan_request rq = generation(&f);
            struct ot_plan plan;
            rq.budget_bytes[OT_TIER_GPU] = gpu * MIB;
            rq.budget_bytes[OT_TIER_HOST] = host * MIB;
            assert_false(plan_or_cure(&rq, &plan));
            const struct ot_shortage shortage = plan.shortage;
            for (int t = 0; t <= OT_TIER_HOST; t++) {
                struct ot_plan_request less = rq, plenty = rq;
                less.budget_bytes[t] = shortage.alone[t] - MIB;
                plenty.budget_bytes[t] = (size_t)1 << 34;
                assert_int_equal(ot_plan_make(&plenty, &plan) == 0, shortage.alone[t] > 0);
                ot_plan_free(&plan);
                if (shortage.alone[t] == 0)
                    continue;
                check_fails(ot_plan_make(&less, &plan), OT_E_BUDGET, "short by");
                named++;
            }
        }
    assert_true(named > 20);
}

/* On nvme k and v of a block have 256 extents each, or fewer of a page: the least that are whole pages. */
static void extents_are_small(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 1023, 1024, 1025, 2047, 2048, 99999, 131072, 131073};
    struct fake f;
    fake_open_small(&f, OT_BF16, false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ot_plan_request rq = generation(&f);
        struct ot_plan plan;
        struct ot_layout layout;
        size_t bytes = (size_t)(rows[i] * f.hidden) * 2, extent = 4096;
        rq.cache_rows = rows[i];
        rq.cache = OT_HOME_NVME;
        rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 34;
        while (extent * 256 < bytes)
            extent += 4096;
        size_t each = (bytes + extent - 1) / extent;
        check_ok(ot_plan_make(&rq, &plan));
        check_ok(ot_layout_make(&f.chain, &plan, &layout));
        assert_int_equal(layout.cache_extent_bytes, extent);
        assert_int_equal(layout.cache_bytes, each * extent);
        assert_int_equal(layout.n_extents, 2 * each * (size_t)f.layers);
        assert_int_equal(layout.buffers[layout.host_cache_slots[0]].bytes, 2 * each * extent);
        ot_layout_free(&layout);
        ot_plan_free(&plan);
    }
}

static void senseless_caches_are_refused(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = generation(&f);
    rq.cache_rows = -1;
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "texts of -1 tokens");
    rq.cache_rows = (int64_t)1 << 40;
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "tokens have no keys and values");
    rq.cache_rows = INT32_MAX;
    f.chain.kv_elems = INT64_MAX / INT32_MAX / 16;
    check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "more than any machine has");
    f.chain.kv_elems = f.hidden;
    rq.cache_rows = 1;
    check_ok(ot_plan_make(&rq, &plan));
    assert_int_equal(plan.cache, OT_HOME_GPU);
    ot_plan_free(&plan);
    rq.cache_rows = 10;
    rq.cache = OT_HOME_HOST;
    check_ok(ot_plan_make(&rq, &plan));
    plan.cache_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE,
                "the cache lives on the host, but there is no slot");
    plan.cache = OT_HOME_NVME;
    plan.cache_slots = 1;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE,
                "the cache lives on the nvme, but there is no slot");
    plan.host_cache_slots = 1;
    check_ok(ot_plan_finish(&f.chain, &plan));
    plan.cache = OT_HOME_AUTO;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE, "have no home");
    plan.cache = OT_HOME_GPU;
    plan.cache_rows = -1;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE, "-1 tokens have no home");
    ot_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_home_with_room),      cmocka_unit_test(a_forced_home_is_honoured),
        cmocka_unit_test(a_refusal_says_what_is_enough), cmocka_unit_test(extents_are_small),
        cmocka_unit_test(senseless_caches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
