/* Blocks keep their inner activations on the device, then on the host, then on nvme, counted from the last
 * middle block. */
#include "offload/plan/slabs.h"

#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

enum { LAYERS = 5, BLOCKS = LAYERS + 2 };

static void open_five(struct fake *f, struct ot_plan *plan) {
    *f = (struct fake){.layers = LAYERS,
                       .hidden = 64,
                       .layer_params = 1 << 14,
                       .edge_params = 1 << 14,
                       .vocab = 64,
                       .dtype = OT_BF16};
    fake_open(f);
    *plan = (struct ot_plan){.train = true, .kept_slots = 1, .host_kept_slots = 1};
}

static void set_kept(struct ot_plan *plan, int gpu, int host, int nvme) {
    plan->kept[OT_TIER_GPU] = (struct ot_kept_blocks){OT_KEEP_ALL, gpu};
    plan->kept[OT_TIER_HOST] = (struct ot_kept_blocks){OT_KEEP_ATTENTION, host};
    plan->kept[OT_TIER_NVME] = (struct ot_kept_blocks){OT_KEEP_PRODUCTS, nvme};
}

static void check_blocks(const struct fake *f, const struct ot_plan *plan,
                         const struct ot_kept want[BLOCKS]) {
    for (int b = 0; b < BLOCKS; b++) {
        struct ot_kept at = ot_plan_kept(&f->chain, plan, b);
        assert_int_equal(at.level, want[b].level);
        assert_int_equal(at.tier, want[b].tier);
    }
}

static void the_last_blocks_keep_on_the_device(void **state) {
    (void)state;
    const struct ot_kept none = {OT_KEEP_NONE, OT_TIER_GPU}, gpu = {OT_KEEP_ALL, OT_TIER_GPU},
                         host = {OT_KEEP_ATTENTION, OT_TIER_HOST}, nvme = {OT_KEEP_PRODUCTS, OT_TIER_NVME};
    struct fake f;
    struct ot_plan plan;
    open_five(&f, &plan);
    check_blocks(&f, &plan, (struct ot_kept[BLOCKS]){none, none, none, none, none, none, none});
    set_kept(&plan, 2, 1, 1);
    check_blocks(&f, &plan, (struct ot_kept[BLOCKS]){none, none, nvme, host, gpu, gpu, none});
    set_kept(&plan, 1, 1, 3);
    check_blocks(&f, &plan, (struct ot_kept[BLOCKS]){none, nvme, nvme, nvme, host, gpu, none});
    /* Backward ends at the first trained block, so those before it keep nothing. */
    f.slabs[0].frozen = f.slabs[1].frozen = f.slabs[2].frozen = true;
    check_blocks(&f, &plan, (struct ot_kept[BLOCKS]){none, none, none, nvme, host, gpu, none});
    plan.train = false;
    check_blocks(&f, &plan, (struct ot_kept[BLOCKS]){none, none, none, none, none, none, none});
}

static void blocks_are_counted_by_tier(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    open_five(&f, &plan);
    set_kept(&plan, 2, 1, 4);
    assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_GPU), 2);
    assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_HOST), 1);
    assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_NVME), 4);
    assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_COUNT), 7);
    plan.kept[OT_TIER_HOST].level = OT_KEEP_NONE; /* such blocks keep nothing */
    assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_HOST), 0);
    assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_COUNT), 6);
}

static void kept_activations_leave_the_device(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    open_five(&f, &plan);
    for (int mix = 0; mix < 8; mix++) {
        set_kept(&plan, mix & 1, mix >> 1 & 1, mix >> 2);
        assert_int_equal(ot_plan_spills_kept(&plan), mix > 1);
    }
}

/* Backward computes no product again only if all middle blocks keep them, on whatever tier. */
static void products_are_repeated_unless_all_blocks_keep_them(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    open_five(&f, &plan);
    assert_true(ot_plan_repeats_products(&f.chain, &plan));
    set_kept(&plan, 3, 0, 2); /* no block keeps the level of the host, which is too low */
    assert_false(ot_plan_repeats_products(&f.chain, &plan));
    set_kept(&plan, 3, 1, 1);
    assert_true(ot_plan_repeats_products(&f.chain, &plan));
    set_kept(&plan, 3, 0, 1); /* one block keeps nothing */
    assert_true(ot_plan_repeats_products(&f.chain, &plan));
    set_kept(&plan, 5, 0, 0);
    assert_false(ot_plan_repeats_products(&f.chain, &plan));
    plan.kept[OT_TIER_GPU].level = OT_KEEP_ATTENTION;
    assert_true(ot_plan_repeats_products(&f.chain, &plan));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_blocks_keep_on_the_device),
        cmocka_unit_test(blocks_are_counted_by_tier),
        cmocka_unit_test(kept_activations_leave_the_device),
        cmocka_unit_test(products_are_repeated_unless_all_blocks_keep_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
