/* The run of a block that every caller begins with. */
#include "offload/block.h"
#include "tests/support/check.h"

enum { BLOCKS = 4, STRIDE = 10, TOKENS = 7, INPUTS = 3 };

static char memory[64];

static struct ot_block_run make(const struct ot_chain *chain, int block) {
    const struct ot_block_caller caller = {.chain = chain,
                                           .lane = (struct ot_lane *)(void *)memory,
                                           .pass = OT_PASS_EVAL,
                                           .constants = memory + 1,
                                           .x = memory + 2,
                                           .y = memory + 3,
                                           .work = memory + 4,
                                           .scratch = memory + 5,
                                           .token_loss = (float *)(void *)(memory + 8),
                                           .logits = (float *)(void *)(memory + 12)};
    static const int32_t arrays[OT_MOST_TOKEN_ARRAYS * STRIDE];
    struct ot_block_run run = ot_block_run_make(&caller, block, arrays, STRIDE, TOKENS, INPUTS);
    assert_ptr_equal(run.batch.tokens, arrays);
    assert_ptr_equal(run.batch.targets, arrays + STRIDE);
    assert_ptr_equal(run.batch.position, arrays + 2 * STRIDE);
    assert_ptr_equal(run.batch.row_start, arrays + 3 * STRIDE);
    assert_ptr_equal(run.batch.input_first, chain->has_pairs ? arrays + 4 * STRIDE : NULL);
    assert_ptr_equal(run.batch.input_end, chain->has_pairs ? arrays + 5 * STRIDE : NULL);
    assert_ptr_equal(run.batch.key_end, chain->has_pairs ? arrays + 6 * STRIDE : NULL);
    assert_int_equal(run.batch.n_tokens, TOKENS);
    assert_int_equal(run.batch.n_inputs, INPUTS);
    assert_ptr_equal(run.lane, caller.lane);
    assert_ptr_equal(run.constants, caller.constants);
    assert_ptr_equal(run.work, caller.work);
    assert_ptr_equal(run.scratch, caller.scratch);
    assert_ptr_equal(run.token_loss, caller.token_loss);
    assert_ptr_equal(run.logits, caller.logits);
    assert_int_equal(run.dtype, chain->dtype);
    assert_int_equal(run.pass, OT_PASS_EVAL);
    return run;
}

static void each_block_has_its_boundaries(void **state) {
    (void)state;
    for (int pairs = 0; pairs < 2; pairs++) {
        const struct ot_chain chain = {.dtype = OT_F16, .n_blocks = BLOCKS, .has_pairs = pairs};
        for (int block = 0; block < BLOCKS; block++) {
            struct ot_block_run run = make(&chain, block);
            assert_ptr_equal(run.x, block == 0 ? NULL : memory + 2);
            assert_ptr_equal(run.y, block == BLOCKS - 1 ? NULL : memory + 3);
        }
    }
}

static void what_differs_is_left_out(void **state) {
    (void)state;
    const struct ot_chain chain = {.dtype = OT_BF16, .n_blocks = BLOCKS};
    struct ot_block_run run = make(&chain, 1);
    for (int u = 0; u < OT_MAX_USES; u++)
        assert_true(!run.weights[u] && !run.grads[u]);
    assert_true(!run.saved && !run.dxy && !run.used && !run.first && !run.batch.loss_scale);
    assert_int_equal(run.saved_level, OT_KEEP_NONE);
    assert_int_equal(run.half, OT_HALF_BOTH);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_block_has_its_boundaries),
                                       cmocka_unit_test(what_differs_is_left_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
