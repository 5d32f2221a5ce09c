/* Options of other programs, options that are given twice, and options that agree. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "src/base/error.h"
#include "src/options/help.h"
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
        {BASE "--report-to wandb", "--tensorboard DIR writes event files"},
        {BASE "--max-grad-norm 1", "its name here is --clip ("},
        {BASE "--bf16", "use --dtype bf16 instead"},
        {BASE "--num-train-epochs 3", "its name here is --epochs ("},
        {BASE "--gradient-checkpointing", "use --recompute all instead"},
        {BASE "--overwrite-output-dir", "use --resume never"},
        {BASE "--zero-stage 2", "use --shard instead"},
        {BASE "--ds-config ds.json", "its name here is --deepspeed ("},
        {BASE "--llama-factory a.yaml", "its name here is --llamafactory ("},
        {BASE "--cpu-offload", "its name here is --home ("},
        {BASE "--max-samples 100", "its name here is --max-rows ("},
        {BASE "--dataset-exact-deduplication", "its name here is --dedup ("},
        {BASE "--sample-by paragraph", "its name here is --text-by ("},
        {BASE "--val-set-size 0.1", "its name here is --eval-fraction ("},
        {BASE "--finetuning-type lora", "--lora trains adapters"},
        {BASE "--stage sft", "--objective says what is learned"},
        {BASE "--patience 3", "its name here is --stop-early ("},
        {BASE "--early-stopping-threshold 0.1", "its name here is --stop-early ("},
        {BASE "--metric-for-best-model loss", "its name here is --eval-metric ("},
        {BASE "--greater-is-better", "not needed: --eval-metric accuracy takes the highest"},
        {BASE "--evaluation-strategy steps", "not needed: --eval-every"},
        {BASE "--mask-history", "all answers of a conversation are trained"},
        {BASE "--fsdp full", "use --shard instead"},
        {BASE "--dropout 0.1", "for adapters: --lora dropout=0.05 (offload-train train"},
        {BASE "--lora-dropout 0.1", "--lora-dropout; its name here is --lora"},
        {BASE "--load-best-model-at-end", "not needed: --result best is the default"},
        {"generate m --interactive", "--interactive; its name here is --chat (offload-train"},
        {BASE "--interactive", "--interactive; its name here is --chat; --chat belongs to generate (offload"},
        {"generate m --system-prompt x", "its name here is --system ("},
        {"eval m --batch-size 8",
         "2048 tokens are 16k; --tokens-per-step belongs to train, plan, bench (off"},
        {"generate m --max-tokens 5", "its name here is --max-new-tokens ("},
        {"generate m --stop x", "not available: an end-of-text token or --max-new-tokens ends the text"},
        {"generate m --top-k 5", "not available: use --temperature and --top-p for sampling"},
        {"generate m --n-gpu-layers 5", "not needed: --gpu-mem"},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        refuse(answers[i][0], answers[i][1]);
}

/* True if `word`, of n bytes, is one of `words`, which have spaces between them. */
static bool has_word(const char *words, const char *word, size_t n) {
    for (size_t length; words && *words; words += length + (words[length] == ' ')) {
        length = strcspn(words, " ");
        if (length == n && memcmp(words, word, n) == 0)
            return true;
    }
    return false;
}

/* Returns the number of options that an answer names: each exists. */
static int check_answer(const struct ot_topic_block *foreign) {
    int found = 0;
    for (const char *at = foreign->text; (at = strstr(at, "--")); found++) {
        size_t n = strspn(at += 2, "abcdefghijklmnopqrstuvwxyz0123456789-/");
        if (ot_option_find(at, n, OT_COMMAND_TRAIN) < 0)
            fail_msg("the answer to --%s names --%.*s, which is no option", foreign->term, (int)n, at);
    }
    return found;
}

/* A name of another program is no option of ours and has one answer. If an option lists the name too, for
 * guesses, the answer names this option. */
static void check_name(int index, const char *name, size_t n) {
    const struct ot_option *option;
    char spelled[80];
    for (int other = 0; other < ot_elsewhere->n_blocks; other++)
        if (other != index && has_word(ot_elsewhere->blocks[other].term, name, n))
            fail_msg("--%.*s has two answers", (int)n, name);
    for (int i = 0; (option = ot_option_at(i)); i++) {
        if (has_word(option->name, name, n))
            fail_msg("--%.*s is an option, so nobody sees the answer", (int)n, name);
        int length = snprintf(spelled, sizeof spelled, "--%s", option->name);
        const char *found = strstr(ot_elsewhere->blocks[index].text, spelled);
        bool is_named = found && !isalpha((unsigned char)found[length]) && found[length] != '-';
        if (has_word(option->elsewhere, name, n) && !is_named)
            fail_msg("--%.*s is a name of %s, which the answer does not name", (int)n, name, spelled);
    }
}

static void answers_agree_with_the_option_table(void **state) {
    (void)state;
    int found = 0;
    for (int i = 0; i < ot_elsewhere->n_blocks; i++) {
        found += check_answer(&ot_elsewhere->blocks[i]);
        for (const char *name = ot_elsewhere->blocks[i].term; *name;) {
            size_t n = strcspn(name, " ");
            assert_true(n > 0);
            check_name(i, name, n);
            name += n + (name[n] == ' ');
        }
    }
    assert_true(found > 20);
}

/* As users of PyTorch and of llama.cpp write them. */
static void choices_have_other_spellings(void **state) {
    (void)state;
    static const struct {
        const char *word;
        int dtype;
    } words[] = {{"BF16", OT_CHOICE_DTYPE_BF16},
                 {"bfloat16", OT_CHOICE_DTYPE_BF16},

                 {"Float16", OT_CHOICE_DTYPE_FP16},
                 {"float32", OT_CHOICE_DTYPE_FP32}};
    struct ot_options o;
    char line[100];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(line, sizeof line, "--model m --data d.jsonl --dtype %s", words[i].word);
        accept(&o, line);
        assert_int_equal(o.dtype, words[i].dtype);
        ot_options_free(&o);
    }
    refuse("--model m --data d.jsonl --dtype float8", "--dtype float8: must be one of auto|bf16|fp32|fp16");
    refuse("--model m --data d.jsonl --schedule half", "--schedule half: must be one of ");
}

/* As Python programs spell them. (accept and refuse read '_' as a space.) */
static void underscores_are_dashes(void **state) {
    (void)state;
    char *all[] = {"--model", "m", "--data", "d", "--gpu_mem", "1G", "--seq_len=128", "--show_sample"};
    char *others[][3] = {{"train", "--gpu_mem", "1X"},
                         {"train", "--gpu-_mem", "1G"},
                         {"train", "--gpu_me", "1G"},
                         {"eval", "--log_every", "5"}};
    static const char *const why[] = {"--gpu-mem 1X", "unknown option --gpu-_mem", "unknown option --gpu_me",
                                      "--log-every"};
    struct ot_options o;
    assert_int_equal(ot_options_parse(8, all, &o), 0);
    assert_true(o.gpu_mem == 1 << 30 && o.seq_len == 128 && o.show_sample);
    ot_options_free(&o);
    for (int i = 0; i < 4; i++) {
        check_fails(ot_options_parse(3, others[i], &o), OT_E_USAGE, why[i]);
        ot_options_free(&o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_have_other_spellings),
        cmocka_unit_test(underscores_are_dashes),
        cmocka_unit_test(agreement_and_repetition_are_accepted),
        cmocka_unit_test(options_of_other_programs_are_answered),
        cmocka_unit_test(answers_agree_with_the_option_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
