/* The engine pads micro-batches to few shapes (offload/engine/engine.h). A run with padding has the bits of a
 * run without it: losses, norms, weights and state. So padding tokens have no loss and no gradient. The
 * emulated library adds along k in order. So zeros at the end of a sum change no bit of it; on a GPU, another
 * shape may also have another algorithm. */
#include "tests/offload/tiny_run.h"

#include "kernels/device.h"
#include "tests/support/check.h"

static void (*model_backward)(const void *context, int block, const struct ot_block_run *run);
static int64_t least_tokens, most_tokens; /* of the micro-batches of a run */

static void note_tokens(const void *context, int block, const struct ot_block_run *run) {
    int64_t n = run->batch.n_tokens;
    least_tokens = n < least_tokens ? n : least_tokens;
    most_tokens = n > most_tokens ? n : most_tokens;
    model_backward(context, block, run);
}

static void watch(struct ot_chain *chain) {
    model_backward = chain->backward;
    chain->backward = note_tokens;
}

/* Trains with a plan for micro-batches of micro_tokens, which all must have `padded` tokens on the device. */
static void train(struct tiny_run *run, int64_t micro_tokens, int64_t padded, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    run->plan.micro_tokens = micro_tokens;
    tiny_finish(run);
    run->change_chain = watch;
    least_tokens = INT64_MAX;
    most_tokens = 0;
    tiny_train(run, result);
    ot_plan_free(&run->plan);
    assert_int_equal(least_tokens, padded);
    assert_int_equal(most_tokens, padded);
}

/* A plan for exactly as many tokens as the micro-batches have leaves no room for padding. */
static void padding_changes_no_bit(void **state) {
    (void)state;
    const struct {
        enum ot_dtype dtype;
        int64_t sequences, micro_tokens, padded;
    } cases[] = {{OT_F16, 1, 300, 128}, {OT_F32, 6, 200, 200}, {OT_BF16, 6, 256, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tiny_run run;
        struct tiny_result plain, padded;
        int64_t n = cases[i].sequences * TINY_SEQUENCE;
        tiny_defaults(&run, 2, i % 2 == 1, cases[i].dtype);
        run.micro_sequences = cases[i].sequences;
        run.evals = true;
        train(&run, n, n, &plain);
        train(&run, cases[i].micro_tokens, cases[i].padded, &padded);
        tiny_same(&plain, &padded, "padding");
        tiny_result_free(&plain);
        tiny_result_free(&padded);
    }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(padding_changes_no_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
