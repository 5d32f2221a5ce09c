/* What users of other programs type, and what is said twice or agrees. */
#include <stdbool.h>

#include "src/base/error.h"
#include "tests/options/option_lines.h"

#define BASE "--model m --data d.jsonl "

/* What agrees is no contradiction, and of what is said twice the last counts. */
static void agreement_and_repetition_are_accepted(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, BASE "--no-save --save-every never --resume never");
    assert_true(o.no_save);
    ot_options_free(&o);
    accept(&o, BASE "--eval-data e --eval-fraction 0");
    assert_string_equal(o.eval_data, "e");
    ot_options_free(&o);
    accept(&o, BASE "--lr 1e-4 --steps 3 --lr 1e-5");
    assert_true(o.lr == 1e-5 && o.steps == 3);
    ot_options_free(&o);
    accept(&o, "verify a --dir b");
    assert_string_equal(o.dir, "b");
    ot_options_free(&o);
    refuse(BASE "--no-save --save-every 5", "--no-save and --save-every contradict");
    refuse(BASE "--no-save --resume auto", "--no-save and --resume contradict");
}

/* The answer is ours or "not available", never the nearest spelling. */
static void options_of_other_programs_are_answered(void **state) {
    (void)state;
    static const char *const answers[][2] = {
        {BASE "--lora", "--lora: not available: all parameters are trained"},
        {BASE "--LoRA-r 8", "--LoRA-r: not available: all parameters are trained"},
        {BASE "--learning-rate 1e-5", "unknown option --learning-rate; here it is --lr ("},
        {BASE "--batch-size 8", "--tokens-per-step takes its place: it counts tokens"},
        {BASE "--gradient-accumulation-steps 4", "not needed: --tokens-per-step is the whole step"},
        {BASE "--report-to wandb", "not available: OUT/log.jsonl has every step"},
        {BASE "--max-grad-norm 1", "here it is --clip ("},
        {BASE "--bf16", "--dtype bf16 takes its place"},
        {BASE "--num-train-epochs 3", "here it is --epochs ("},
        {BASE "--gradient-checkpointing", "--recompute all takes its place"},
        {BASE "--overwrite-output-dir", "--resume never begins anew"},
        {"generate m --max-tokens 5", "here it is --max-new-tokens ("},
        {"generate m --stop x", "not available: an end-of-text token or --max-new-tokens ends the text"},
        {"generate m --top-k 5", "not available: --temperature and --top-p draw"},
        {"generate m --n-gpu-layers 5", "not needed: --gpu-mem"},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        refuse(answers[i][0], answers[i][1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agreement_and_repetition_are_accepted),
        cmocka_unit_test(options_of_other_programs_are_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
