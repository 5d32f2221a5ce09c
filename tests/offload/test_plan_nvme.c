/* The third tier in plans: what goes to the disks when the host has no room, in which order, and what is said
 * when they have none either. */
#include "offload/layout.h"
#include "offload/store.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

static int count_state(const struct ot_plan *plan) {
    int n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += plan->slabs[s].state == OT_HOME_NVME;
    return n;
}

static int count_weights_on(const struct ot_plan *plan, enum ot_home home) {
    int n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += plan->slabs[s].weights == home;
    return n;
}

static void all_budgets_are_used_or_cured(void **state) {
    (void)state;
    for (int mix = 0; mix < 4; mix++) {
        struct fake f;
        int made = 0, refused = 0, spilled = 0;
        fake_open_small(&f, mix & 1 ? OT_BF16 : OT_F32, mix & 2);
        struct ot_plan_request rq = fake_request(&f);
        for (size_t gpu = 20; gpu <= 320; gpu += 100)
            for (size_t host = 0; host <= 240; host += 60)
                for (size_t nvme = 0; nvme <= 600; nvme += 200) {
                    struct ot_plan plan;
                    rq.budget_bytes[OT_TIER_GPU] = gpu * MIB;
                    rq.budget_bytes[OT_TIER_HOST] = host * MIB;
                    rq.budget_bytes[OT_TIER_NVME] = nvme * MIB;
                    bool planned = plan_or_cure(&rq, &plan);
                    made += planned;
                    refused += !planned;
                    if (!planned)
                        continue;
                    spilled += ot_ledger_total(&plan.ledger, OT_TIER_NVME) > 0;
                    ot_plan_free(&plan);
                }
        assert_true(made > 10 && refused > 10 && spilled > 10);
    }
}

/* State before boundaries before weights, the last slabs first; and never more than the host asks for. */
static void what_goes_first(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    int64_t before[4] = {0};
    int steps = 0;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.weights = OT_HOME_AUTO;
    rq.recompute = 1;
    rq.slots = 1;
    rq.budget_bytes[OT_TIER_GPU] = 60 * MIB;
    rq.budget_bytes[OT_TIER_NVME] = (size_t)4 << 30;
    for (size_t host = 400; host > 0 && plan_or_cure(&rq, &plan); host--, steps++) {
        int n = f.chain.n_slabs, on_nvme = count_state(&plan),
            weights = count_weights_on(&plan, OT_HOME_NVME);
        int64_t now[4] = {on_nvme, plan.activations == OT_HOME_NVME, weights,
                          (int64_t)ot_ledger_total(&plan.ledger, OT_TIER_NVME)};
        for (int s = 0; s < n; s++) {
            assert_int_equal(plan.slabs[s].state == OT_HOME_NVME, s >= n - on_nvme);
            assert_true(plan.slabs[s].weights != OT_HOME_NVME || s >= n - weights);
        }
        assert_true(plan.activations != OT_HOME_NVME || on_nvme == n);
        assert_true(weights == 0 || (on_nvme == n && plan.activations != OT_HOME_HOST));
        for (int i = 0; i < 4; i++) {
            assert_true(now[i] >= before[i]);
            before[i] = now[i];
        }
        rq.budget_bytes[OT_TIER_HOST] = (host - 1) * MIB;
        rq.micro_sequences =
            plan.micro_tokens / rq.sequence_tokens; /* as it is: less memory, not less work */
        rq.activations = plan.activations == OT_HOME_GPU ? OT_HOME_GPU : OT_HOME_AUTO;
        ot_plan_free(&plan);
    }
    assert_true(steps > 50 && before[0] > 0 && before[2] > 0);
}

static void nothing_goes_there_without_need(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.weights = rq.state = OT_HOME_HOST;
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    check_ok(ot_plan_make(&rq, &plan));
    assert_int_equal(ot_ledger_total(&plan.ledger, OT_TIER_NVME), 0);
    assert_int_equal(plan.tile_slots + plan.host_weight_slots[0] + plan.host_weight_slots[1], 0);
    ot_plan_free(&plan);
}

static void forced_homes_are_honoured_or_refused(void **state) {
    (void)state;
    for (int mix = 0; mix < 27; mix++) {
        static const enum ot_home homes[3] = {OT_HOME_GPU, OT_HOME_HOST, OT_HOME_NVME};
        struct fake f;
        struct ot_plan plan;
        fake_open_small(&f, mix & 1 ? OT_BF16 : OT_F32, mix & 2);
        struct ot_plan_request rq = fake_request(&f);
        rq.weights = homes[mix % 3];
        rq.state = homes[mix / 3 % 3];
        rq.activations = homes[mix / 9];
        bool nvme = rq.weights == OT_HOME_NVME || rq.state == OT_HOME_NVME || rq.activations == OT_HOME_NVME;
        if (nvme)
            check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "nvme: no disk is given");
        rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
        check_ok(ot_plan_make(&rq, &plan));
        check_fits(&rq, &plan);
        assert_int_equal(count_weights_on(&plan, rq.weights), plan.n_slabs);
        assert_int_equal(count_state(&plan), rq.state == OT_HOME_NVME ? plan.n_slabs : 0);
        assert_int_equal(plan.activations, rq.activations);
        assert_int_equal(ot_ledger_total(&plan.ledger, OT_TIER_NVME) > 0, nvme);
        ot_plan_free(&plan);
    }
}

/* Both sides of what was homed there: twice the bytes that the host would have held. */
static void disks_hold_two_sides(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan host, nvme;
    size_t bytes[2] = {0};
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.state = OT_HOME_HOST;
    check_ok(ot_plan_make(&rq, &host));
    rq.state = OT_HOME_NVME;
    check_ok(ot_plan_make(&rq, &nvme));
    for (int i = 0; i < host.ledger.n; i++)
        if (host.ledger.entries[i].tier == OT_TIER_HOST &&
            strcmp(host.ledger.entries[i].name, "optimizer state") == 0)
            bytes[0] += host.ledger.entries[i].bytes;
    bytes[1] = ot_ledger_total(&nvme.ledger, OT_TIER_NVME);
    assert_int_equal(bytes[1], 2 * bytes[0]);
    ot_plan_free(&host);
    ot_plan_free(&nvme);
}

static size_t bytes_on_nvme(const struct ot_plan *plan, const char *name) {
    for (int i = 0; i < plan->ledger.n; i++)
        if (plan->ledger.entries[i].tier == OT_TIER_NVME && strcmp(plan->ledger.entries[i].name, name) == 0)
            return plan->ledger.entries[i].bytes;
    return 0;
}

/* A side more for each content of state and weights that is to be kept; boundaries have two. */
static void kept_contents_take_sides(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    struct ot_layout layout;
    size_t bytes[3] = {0};
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.weights = rq.state = rq.activations = OT_HOME_NVME;
    for (rq.kept_contents = 0; rq.kept_contents <= OT_PLAN_MAX_KEPT_CONTENTS; rq.kept_contents++) {
        static const char *const names[3] = {"weights", "optimizer state", "activations"};
        check_ok(ot_plan_make(&rq, &plan));
        check_ok(ot_layout_make(&f.chain, &plan, &layout));
        check_fits(&rq, &plan);
        assert_int_equal(layout.tier_bytes[OT_TIER_NVME], ot_ledger_total(&plan.ledger, OT_TIER_NVME));
        assert_int_equal(ot_store_bytes(layout.extent_bytes, layout.extent_sides, layout.n_extents),
                         layout.tier_bytes[OT_TIER_NVME]);
        for (int i = 0; i < 3; i++) {
            size_t sides = i < 2 ? 2 + (size_t)rq.kept_contents : 2;
            if (rq.kept_contents == 0)
                bytes[i] = bytes_on_nvme(&plan, names[i]) / 2;
            assert_true(bytes[i] > 0);
            assert_int_equal(bytes_on_nvme(&plan, names[i]), sides * bytes[i]);
        }
        ot_layout_free(&layout);
        ot_plan_free(&plan);
    }
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "15 contents to be kept on nvme; give 0 to 14");
    rq.kept_contents = -1;
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "-1 contents to be kept on nvme");
}

/* What the disks have no room for with kept contents is refused by the amount that they take. */
static void kept_contents_count_against_the_budget(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.weights = rq.state = OT_HOME_NVME;
    check_ok(ot_plan_make(&rq, &plan));
    rq.budget_bytes[OT_TIER_NVME] = ot_ledger_total(&plan.ledger, OT_TIER_NVME);
    ot_plan_free(&plan);
    check_ok(ot_plan_make(&rq, &plan));
    ot_plan_free(&plan);
    rq.kept_contents = 1;
    assert_false(plan_or_cure(&rq, &plan)); /* which checks that what the sentence says to give is enough */
    rq.budget_bytes[OT_TIER_NVME] = rq.budget_bytes[OT_TIER_NVME] / 2 * 3;
    check_ok(ot_plan_make(&rq, &plan));
    assert_int_equal(ot_ledger_total(&plan.ledger, OT_TIER_NVME), rq.budget_bytes[OT_TIER_NVME]);
    ot_plan_free(&plan);
}

/* Slots for reading ahead are as many as memory allows, up to half of the tiles. */
static void slots_grow_with_memory(void **state) {
    (void)state;
    struct fake f;
    int before = 0, grown = 0;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.state = OT_HOME_NVME;
    rq.tile_params = 16 * OT_SLAB_ALIGN_PARAMS;
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    for (size_t host = 60; host <= 400; host += 20) {
        struct ot_plan plan;
        rq.budget_bytes[OT_TIER_HOST] = host * MIB;
        if (ot_plan_make(&rq, &plan) < 0)
            continue;
        check_fits(&rq, &plan);
        assert_true(plan.tile_slots >= before && plan.tile_slots <= ot_plan_passing_tiles(&plan) / 2);
        grown += plan.tile_slots > before;
        before = plan.tile_slots;
        ot_plan_free(&plan);
    }
    assert_true(grown > 2);
}

static void contradictions_are_seen(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.weights = rq.state = rq.activations = OT_HOME_NVME;
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    check_ok(ot_plan_make(&rq, &plan));
    struct ot_plan broken = plan;
    broken.tile_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "no slot for them");
    broken = plan;
    broken.host_activation_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "no slot of the host");
    broken = plan;
    broken.host_weight_slots[OT_SLOT_LAYER] = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "weights on nvme pass through");
    plan.slabs[0].state = OT_HOME_GPU;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE, "lives on the host or on nvme");
    ot_plan_free(&plan);
    rq.tile_params = 1000;
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "tiles of 1000");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_budgets_are_used_or_cured),
        cmocka_unit_test(what_goes_first),
        cmocka_unit_test(nothing_goes_there_without_need),
        cmocka_unit_test(forced_homes_are_honoured_or_refused),
        cmocka_unit_test(disks_hold_two_sides),
        cmocka_unit_test(kept_contents_take_sides),
        cmocka_unit_test(kept_contents_count_against_the_budget),
        cmocka_unit_test(slots_grow_with_memory),
        cmocka_unit_test(contradictions_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
