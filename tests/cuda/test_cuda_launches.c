/* Counts the kernels that a training step starts on the GPU, with those of matrix products. The CPU takes
 * about 3 us to start one. A step is bound by that if its kernels take less time. */
#include "tests/emu/emu_faults.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* Micro-batches of tiny_train, which cuts a step into micro-batches of 1 or of 6 sequences. */
enum { MANY_MICRO = 20, FEW_MICRO = 4 };

static int64_t count_kernels(int layers, int64_t micro_sequences, enum ot_keep_level keep) {
    struct tiny_run run;
    struct tiny_result result;
    tiny_defaults(&run, layers, false, OT_BF16);
    run.micro_sequences = micro_sequences;
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 1);
    if (keep > OT_KEEP_NONE)
        run.plan.kept[OT_TIER_GPU] = (struct ot_kept_blocks){keep, layers};
    tiny_finish(&run);
    int64_t before = ot_emu_usage().launches;
    tiny_train(&run, &result);
    tiny_result_free(&result);
    ot_plan_free(&run.plan);
    return ot_emu_usage().launches - before;
}

/* Kernels of one layer and of all other blocks, for a micro-batch and for a step. */
struct starts {
    int64_t layer_micro, layer_step, rest_micro, rest_step;
};

static struct starts measure(enum ot_keep_level keep) {
    int64_t many[2], few[2];
    for (int i = 0; i < 2; i++) {
        many[i] = count_kernels(1 + i, 1, keep);
        few[i] = count_kernels(1 + i, 6, keep);
    }
    struct starts s;
    s.layer_micro = (many[1] - many[0] - few[1] + few[0]) / (MANY_MICRO - FEW_MICRO);
    s.layer_step = (few[1] - few[0] - FEW_MICRO * s.layer_micro) / TINY_STEPS;
    s.rest_micro = (many[0] - few[0]) / (MANY_MICRO - FEW_MICRO) - s.layer_micro;
    s.rest_step = (few[0] - FEW_MICRO * (s.layer_micro + s.rest_micro)) / TINY_STEPS - s.layer_step;
    return s;
}

/* tests/bench/README.md says what these numbers mean for a step of a real model. */
static void a_step_starts_few_kernels(void **state) {
    (void)state;
    const struct starts recompute = measure(OT_KEEP_NONE), kept = measure(OT_KEEP_ALL);
    const struct starts *both[] = {&recompute, &kept};
    assert_in_range(recompute.layer_micro, 1, 38);
    assert_in_range(kept.layer_micro, 1, 29);
    for (int i = 0; i < 2; i++) {
        assert_in_range(both[i]->layer_step, 1, 9);
        assert_in_range(both[i]->rest_micro, 1, 15);
        assert_in_range(both[i]->rest_step, 1, 15);
    }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_starts_few_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
