/* Which rank has which blocks, if the ranks are stages. */
#include <stdlib.h>
#include <string.h>

#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

/* Owners of the blocks, as a word: one digit each. */
static void check_division(int layers, bool tied, int ranks, int turn_blocks, int head_layers,
                           const char *want) {
    struct fake f = {.layers = layers, .hidden = 64, .layer_params = 1 << 16, .edge_params = 1 << 16};
    struct ot_slab_plan slabs[MAX_LAYERS + 2];
    char got[MAX_LAYERS + 3] = {0};
    f.tied = tied;
    fake_open(&f);
    struct ot_plan plan = {
        .slabs = slabs,
        .n_slabs = f.chain.n_slabs,
        .shard = {0, ranks, OT_SHARD_STAGES, .turn_blocks = turn_blocks, .head_layers = head_layers}};
    check_ok(ot_stages_divide(&f.chain, &plan));
    for (int b = 0; b < f.chain.n_blocks; b++)
        got[b] = (char)('0' + ot_block_owner(&f.chain, &plan, b));
    assert_string_equal(got, want);
    for (int *r = &plan.shard.rank; *r < ranks; (*r)++) {
        int own = ot_plan_middle_blocks(&f.chain, &plan, 1);
        assert_int_equal(ot_shard_layers(&f.chain, &plan.shard), own);
        layers -= own;
    }
    assert_int_equal(layers, 0);
    check_ok(ot_stages_check(&f.chain, &plan.shard));
}

static void layers_are_dealt_in_turns(void **state) {
    (void)state;
    check_division(4, false, 2, 0, 0, "000111");
    check_division(5, false, 2, 0, 0, "0001111");
    check_division(5, true, 2, 0, 0, "0000110");
    check_division(5, false, 3, 0, 0, "0001222");
    check_division(6, false, 2, 1, 0, "00101011");
    check_division(7, false, 3, 1, 0, "001201202");
    check_division(7, false, 2, 2, 0, "000110111");
    check_division(7, true, 2, 2, 0, "000110010");
    check_division(4, false, 4, 0, 0, "001233");
    check_division(6, false, 4, 1, 0, "00123033");
    check_division(6, false, 2, 0, 2, "00000111"); /* a head of two layers */
    check_division(6, true, 2, 0, 2, "00011110");
    check_division(3, false, 2, 0, 9, "00001"); /* a head that is all that its rank does */
}

/* Layers by stage, if the last ones are other work: a digit each. */
static void check_work(int layers, int late, int percent, int head, bool tied, const char *want) {
    struct fake f = {.layers = layers, .hidden = 64, .layer_params = 1 << 16, .edge_params = 1 << 16};
    char got[8] = {0};
    f.tied = tied;
    fake_open(&f);
    struct ot_shard shard = {.ranks = (int)strlen(want),
                             .mode = OT_SHARD_STAGES,
                             .head_layers = head,
                             .late_layers = late,
                             .late_percent = percent};
    for (; shard.rank < shard.ranks; shard.rank++)
        got[shard.rank] = (char)('0' + ot_shard_layers(&f.chain, &shard));
    assert_string_equal(got, want);
    check_ok(ot_stages_check(&f.chain, &shard));
}

static void layers_are_divided_by_work(void **state) {
    (void)state;
    check_work(8, 4, 100, 0, false, "44");
    check_work(8, 4, 200, 0, false, "53");   /* 6 + 6 */
    check_work(8, 4, 300, 0, false, "53");   /* 7 + 9 */
    check_work(8, 4, 150, 0, false, "3221"); /* 3 + 2.5 + 3 + 1.5 */
    check_work(8, 4, 50, 0, false, "2231");  /* 2 + 2 + 1.5 + 0.5 */
    check_work(8, 4, 150, 2, false, "431");  /* 4 + 4.5 + 3.5 */
    check_work(8, 4, 150, 2, true, "233");   /* the head is at the first stage: 4 + 3.5 + 4.5 */
    check_work(4, 2, 200, 9, false, "40");   /* each rank has a layer, or the head */
    check_work(3, 1, 500, 0, false, "111");
    check_work(6, 2, 500, 0, false, "411"); /* a layer is more than the mean of 467 */
}

/* Ranks that share slabs have all layers, and one rank is not divided. */
static void what_is_no_division(void **state) {
    (void)state;
    static const bool divided[] = {false, true, true, true}; /* by mode */
    struct fake f = {.layers = 5, .hidden = 64, .layer_params = 1 << 16, .edge_params = 1 << 16};
    fake_open(&f);
    for (int ranks = 0; ranks < 4; ranks++)
        for (int mode = 0; mode <= OT_SHARD_STAGES; mode++) {
            struct ot_plan plan = {.shard = {.ranks = ranks, .mode = (enum ot_shard_mode)mode}};
            assert_int_equal(ot_plan_is_divided(&plan), ranks > 1 && divided[mode]);
            if (ranks > 1 && mode == OT_SHARD_STAGES)
                continue;
            assert_int_equal(ot_shard_layers(&f.chain, &plan.shard), 5);
            assert_int_equal(ot_plan_middle_blocks(&f.chain, &plan, 1), 5);
            assert_int_equal(ot_plan_middle_blocks(&f.chain, &plan, 4), 2);
            assert_int_equal(ot_plan_middle_blocks(&f.chain, &plan, 6), 0);
            assert_int_equal(ot_plan_middle_blocks(&f.chain, &plan, 7), 0);
        }
    f.chain.n_blocks = 2;
    assert_int_equal(ot_shard_layers(&f.chain, &(struct ot_shard){0}), 0);
}

static void chains_that_cannot_be_divided(void **state) {
    (void)state;
    struct fake f = {.layers = 4, .hidden = 64, .layer_params = 1 << 16, .edge_params = 1 << 16};
    struct ot_slab_plan slabs[MAX_LAYERS + 2];
    fake_open(&f);
    struct ot_plan plan = {
        .slabs = slabs, .n_slabs = f.chain.n_slabs, .shard = {0, 5, OT_SHARD_STAGES, .turn_blocks = 1}};
    check_fails(ot_stages_divide(&f.chain, &plan), OT_E_USAGE,
                "the model has 4 layers, too few for a stage on each of 5 ranks");
    check_fails(ot_stages_check(&f.chain, &plan.shard), OT_E_USAGE, "too few for a stage");
    plan.shard.ranks = 2;
    check_ok(ot_stages_divide(&f.chain, &plan));
    f.blocks[4].uses[f.blocks[4].n_uses++] = f.blocks[1].uses[0];
    check_fails(ot_stages_divide(&f.chain, &plan), OT_E_USAGE,
                "the blocks of several ranks use slab, so the model cannot be divided into stages");
}

/* The owner of a shared slab is the rank of the first block that uses it. */
static void shared_slabs_have_one_owner(void **state) {
    (void)state;
    struct fake f = {.layers = 4, .hidden = 64, .layer_params = 1 << 16, .edge_params = 1 << 16};
    struct ot_slab_plan slabs[MAX_LAYERS + 2];
    fake_open(&f);
    int shared = f.chain.n_slabs++;
    f.slabs[shared] = (struct ot_slab_spec){.name = "biases", .n_params = 2048, .shared = true};
    for (int b = 2; b < 5; b++) { /* the shared slab comes first, as in a T5 */
        f.blocks[b].uses[f.blocks[b].n_uses++] = f.blocks[b].uses[0];
        f.blocks[b].uses[0] = (struct ot_block_use){shared, true};
    }
    struct ot_plan plan = {
        .slabs = slabs, .n_slabs = f.chain.n_slabs, .shard = {0, 3, OT_SHARD_STAGES, .turn_blocks = 1}};
    check_ok(ot_stages_divide(&f.chain, &plan));
    assert_int_equal(ot_slab_first_user(&f.chain, shared), 2);
    assert_int_equal(slabs[shared].owner, ot_block_owner(&f.chain, &plan, 2));
    assert_int_equal(slabs[shared].owner, 1);
    for (int *r = &plan.shard.rank; *r < 3; (*r)++) {
        assert_int_equal(ot_slab_is_borrowed(&f.chain, &plan, shared), *r != 1);
        assert_false(ot_slab_is_borrowed(&f.chain, &plan, 1));
        assert_int_equal(ot_slab_is_here(&f.chain, &plan, 1), ot_slab_is_own(&plan, 1));
    }
    f.slabs[shared].encoded_bytes = OT_ENCODED_ALIGN;
    check_fails(ot_stages_divide(&f.chain, &plan), OT_E_USAGE, "the blocks of several ranks use biases");
}

/* The links of two replicas of three stages: each with its neighbours, and with the other holder. */
static void links_of_replicas(void **state) {
    (void)state;
    struct fake f = {.layers = 3, .hidden = 64, .layer_params = 1 << 16, .edge_params = 1 << 16};
    struct ot_slab_plan slabs[MAX_LAYERS + 2];
    fake_open(&f);
    int shared = f.chain.n_slabs++;
    f.slabs[shared] = (struct ot_slab_spec){.name = "biases", .n_params = 1 << 20, .shared = true};
    for (int b = 1; b < 4; b += 2) /* the first layer and the last */
        f.blocks[b].uses[f.blocks[b].n_uses++] = (struct ot_block_use){shared, true};
    struct ot_plan plan = {.slabs = slabs,
                           .n_slabs = f.chain.n_slabs,
                           .shard = {0, 6, OT_SHARD_STAGES, .stages = 3},
                           .micro_tokens = 32,
                           .train = true,
                           .staging_bytes = 12 * 4096};
    size_t boundary = ot_chain_boundary_bytes(&f.chain, 32), biases = sizeof(float) << 20;
    const struct ot_crossing_link want[] = {
        {0, 1, 2, 4096},   {0, 2, 2, boundary}, {0, 4, 4, biases}, {1, 0, 2, 4096},     {1, 3, 2, boundary},
        {1, 5, 4, biases}, {2, 0, 2, boundary}, {2, 3, 2, 4096},   {2, 4, 2, boundary}, {3, 1, 2, boundary},
        {3, 2, 2, 4096},   {3, 5, 2, boundary}, {4, 0, 4, biases}, {4, 2, 2, boundary}, {4, 5, 2, 4096},
        {5, 1, 4, biases}, {5, 3, 2, boundary}, {5, 4, 2, 4096}};
    struct ot_crossing got;
    check_ok(ot_stages_divide(&f.chain, &plan));
    for (int *r = &plan.shard.rank; *r < 6; (*r)++) {
        check_ok(ot_stages_list_links(&f.chain, &plan, &got));
        assert_int_equal(got.n_links, sizeof want / sizeof *want);
        for (int i = 0; i < got.n_links; i++) {
            assert_int_equal(got.links[i].from, want[i].from);
            assert_int_equal(got.links[i].to, want[i].to);
            assert_int_equal(got.links[i].slots, want[i].slots);
            assert_int_equal(got.links[i].slot_bytes, want[i].slot_bytes);
        }
        free(got.links);
    }
    plan.train = false; /* no gradients */
    plan.staging_bytes = 0;
    check_ok(ot_stages_list_links(&f.chain, &plan, &got));
    assert_int_equal(got.n_links, 6);
    free(got.links);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_dealt_in_turns),   cmocka_unit_test(layers_are_divided_by_work),
        cmocka_unit_test(what_is_no_division),         cmocka_unit_test(chains_that_cannot_be_divided),
        cmocka_unit_test(shared_slabs_have_one_owner), cmocka_unit_test(links_of_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
