/* The planner and the engines of the optimizer: shares in tiles, which engine gets which tiles, and requests
 * that cannot be met. */
#include <math.h>
#include <string.h>

#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

static const double engine_shares[][OT_TILE_ENGINES] = {
    {1, 0, 0},     {0, 1, 0},       {0, 0, 1},         {0.4, 0, 0.6}, {0.3, 0.7, 0},
    {0, 0.5, 0.5}, {0.2, 0.4, 0.4}, {0.9, 0.05, 0.05}, {0, 0.1, 0.9},
};
enum { ENGINE_SHARES = sizeof engine_shares / sizeof *engine_shares };

/* Shares are rounded to whole tiles. A tile is a slab here. */
static void shares_are_honoured(void **state) {
    (void)state;
    for (int mix = 0; mix < 2 * ENGINE_SHARES; mix += tests_are_brief() ? 5 : 1) {
        struct fake f;
        struct ot_plan plan;
        const double *share = engine_shares[mix / 2];
        fake_open_small(&f, OT_BF16, mix & 1);
        f.layers = 40;
        fake_open(&f);
        struct ot_plan_request rq = fake_request(&f);
        memcpy(rq.fractions, share, sizeof rq.fractions);
        rq.tile_params = 2 << 20; /* a tile for each slab */
        int made = 0;
        for (size_t gpu = 4096; gpu > 0; gpu /= 2) {
            rq.budget_bytes[OT_TIER_GPU] = gpu * MIB;
            if (!plan_or_cure(&rq, &plan))
                continue;
            made++;
            for (int e = 0; e < OT_TILE_ENGINES; e++) {
                double tiles = (double)ot_plan_count_tiles(&plan, (enum ot_tile_engine)e);
                double off = tiles - share[e] * plan.n_slabs;
                assert_true(off <= 1 && off >= -1);
            }
            assert_int_equal(plan.state_slots > 0, share[OT_TILE_STREAM] > 0);
            ot_plan_free(&plan);
        }
        assert_true(made > 2);
    }
}

/* A 70B model's layers have many tiles each. The GPU takes the first tiles of the chain. The stream and the
 * CPU pool work side by side. */
static void tiles_are_dealt_by_deadline(void **state) {
    (void)state;
    struct fake f = {.layers = 20,
                     .hidden = 8192,
                     .layer_params = 855654400,
                     .edge_params = 262144000,
                     .vocab = 32000,
                     .dtype = OT_BF16};
    struct ot_plan plan;
    fake_open(&f);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_GPU] = (size_t)200 << 30;
    rq.budget_bytes[OT_TIER_HOST] = (size_t)2000 << 30;
    memcpy(rq.fractions, (double[]){0.33, 0.17, 0.5}, sizeof rq.fractions);
    check_ok(ot_plan_make(&rq, &plan));
    int split = 0;
    for (int s = 0; s < plan.n_slabs; s++) {
        const int *tiles = plan.slabs[s].tiles;
        int shared = tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU];
        if (s > 0 && tiles[OT_TILE_GPU] > 0)
            assert_true(is_whole(&plan.slabs[s - 1], OT_TILE_GPU));
        split += tiles[OT_TILE_GPU] > 0 && shared > 0;
        double off = tiles[OT_TILE_STREAM] - shared * 0.17 / 0.67;
        assert_true(off <= 1.5 && off >= -1.5);
    }
    assert_true(split <= 1);
    for (int e = 0; e < OT_TILE_ENGINES; e++) {
        int64_t all = 0, mine = ot_plan_count_tiles(&plan, (enum ot_tile_engine)e);
        for (int of = 0; of < OT_TILE_ENGINES; of++)
            all += ot_plan_count_tiles(&plan, (enum ot_tile_engine)of);
        double off = (double)mine - rq.fractions[e] * (double)all;
        assert_true(off <= 1 && off >= -1);
    }
    ot_plan_free(&plan);
}

/* Gradients of streamed tiles wait on the device, from the first slab on, as far as memory allows. Kept
 * activations come after them. */
static void gradients_wait_where_there_is_room(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    int before = MAX_LAYERS, changes = 0;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.fractions[OT_TILE_STREAM] = 1;
    rq.weights = OT_HOME_HOST;
    rq.micro_sequences = 4;
    for (rq.budget_bytes[OT_TIER_GPU] = 400 * MIB; plan_or_cure(&rq, &plan);
         rq.budget_bytes[OT_TIER_GPU] -= MIB) {
        int waiting = 0;
        for (int s = 0; s < plan.n_slabs; s++)
            waiting += plan.slabs[s].grads == OT_HOME_GPU;
        for (int s = 0; s < plan.n_slabs; s++)
            assert_int_equal(plan.slabs[s].grads == OT_HOME_GPU, s < waiting);
        if (waiting < plan.n_slabs)
            assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_COUNT), 0);
        changes += waiting < before && plan.weight_slots[OT_SLOT_LAYER] == 3;
        before = waiting;
        ot_plan_free(&plan);
    }
    assert_true(changes > f.layers / 2);
}

static void impossible_engines_are_named(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    static const struct {
        double share[OT_TILE_ENGINES];
        enum ot_home state;
        const char *words;
    } bad[] = {
        {{0.5, 0, 0.4}, OT_HOME_AUTO, "add up to 0.9"},
        {{1, 1, 0}, OT_HOME_AUTO, "add up to 2"},
        {{1.5, -0.5, 0}, OT_HOME_AUTO, "gpu cannot have a share of 1.5"},
        {{1, -0.5, 0.5}, OT_HOME_AUTO, "stream cannot have a share of -0.5"},
        {{NAN, 0, 0}, OT_HOME_AUTO, "gpu cannot have a share"},
        {{1, 0, 0}, OT_HOME_HOST, "gpu updates state that lives on the gpu, not on the host"},
        {{0, 1, 0}, OT_HOME_GPU, "stream updates state that lives on the host, not on the gpu"},
        {{0.5, 0, 0.5}, OT_HOME_GPU, "cpu updates state"},
        {{0.5, 0, 0.5}, OT_HOME_HOST, "gpu updates state"},
        {{0.99, 0, 0.01}, OT_HOME_AUTO, "a share of 0.01 for cpu is less than one of this model's 14 tiles"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ot_plan_request rq = fake_request(&f);
        memcpy(rq.fractions, bad[i].share, sizeof rq.fractions);
        rq.state = bad[i].state;
        check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, bad[i].words);
        assert_null(plan.slabs);
    }
    struct ot_plan_request rq = fake_request(&f);
    rq.fractions[OT_TILE_STREAM] = 1;
    check_ok(ot_plan_make(&rq, &plan));
    plan.slabs[3].tiles[OT_TILE_CPU]++;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE, "do not add up to the 1 tiles of slab");
    plan.slabs[3].tiles[OT_TILE_CPU]--;
    plan.state_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE, "no slot for it");
    plan.state_slots = OT_PLAN_MAX_STATE_SLOTS + 1;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE, "65 slots for streamed state");
    ot_plan_free(&plan);
}

/* Slabs that must pass through the device have enough slots to overlap with computing, if memory allows. */
static void what_passes_through_overlaps(void **state) {
    (void)state;
    for (int forced = 0; forced < 4; forced++) {
        struct fake f;
        struct ot_plan plan;
        fake_open_small(&f, OT_BF16, false);
        struct ot_plan_request rq = fake_request(&f);
        bool weights = forced != 1, streams = forced > 0;
        rq.weights = weights ? OT_HOME_HOST : OT_HOME_AUTO;
        rq.state = OT_HOME_HOST;
        rq.activations = forced == 3 ? OT_HOME_HOST : OT_HOME_AUTO;
        rq.fractions[OT_TILE_STREAM] = streams;
        check_ok(ot_plan_make(&rq, &plan));
        check_fits(&rq, &plan);
        assert_int_equal(plan.weight_slots[OT_SLOT_LAYER], weights ? 3 : 0);
        assert_int_equal(plan.state_slots, streams ? 3 : 0);
        assert_int_equal(plan.activation_slots, forced == 3 ? 3 : 0);
        ot_plan_free(&plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_honoured),
        cmocka_unit_test(tiles_are_dealt_by_deadline),
        cmocka_unit_test(gradients_wait_where_there_is_room),
        cmocka_unit_test(what_passes_through_overlaps),
        cmocka_unit_test(impossible_engines_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
