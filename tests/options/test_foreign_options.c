/* Options of other programs, options that are given twice, and options that agree. */
#include <stdbool.h>

#include "src/base/error.h"
#include "tests/options/option_lines.h"

#define BASE "--model m --data d.jsonl "

/* Options that agree are accepted. Of an option given twice, the last value counts. */
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

/* The answer is our option or "not available", never the option with the nearest spelling. */
static void options_of_other_programs_are_answered(void **state) {
    (void)state;
    static const char *const answers[][2] = {
        {BASE "--lora-rank 8", "--lora-rank; its name here is --lora"},
        {BASE "--freeze-layers 2", "--freeze-layers; its name here is --freeze"},
        {BASE "--LoRA-r 8", "--LoRA-r; its name here is --lora"},
        {BASE "--learning-rate 1e-5", "unknown option --learning-rate; its name here is --lr ("},
        {BASE "--batch-size 8", "use --tokens-per-step instead; it counts tokens"},
        {BASE "--gradient-accumulation-steps 4", "not needed: --tokens-per-step sets the whole step"},
        {BASE "--report-to wandb", "not available: OUT/log.jsonl has every step"},
        {BASE "--max-grad-norm 1", "its name here is --clip ("},
        {BASE "--bf16", "use --dtype bf16 instead"},
        {BASE "--num-train-epochs 3", "its name here is --epochs ("},
        {BASE "--gradient-checkpointing", "use --recompute all instead"},
        {BASE "--overwrite-output-dir", "use --resume never"},
        {BASE "--zero-stage 2", "use --shard instead"},
        {BASE "--fsdp full", "use --shard instead"},
        {BASE "--dropout 0.1", "not available: all activations are used"},
        {BASE "--load-best-model-at-end", "export OUT --best turns it into a model"},
        {"generate m --interactive", "use --chat instead"},
        {"generate m --system-prompt x", "use --chat of the generate command, with --system TEXT"},
        {"generate m --max-tokens 5", "its name here is --max-new-tokens ("},
        {"generate m --stop x", "not available: an end-of-text token or --max-new-tokens ends the text"},
        {"generate m --top-k 5", "not available: use --temperature and --top-p for sampling"},
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
