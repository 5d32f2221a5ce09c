/* The option table and its parser: every option, every refusal. */
#include "tests/options/option_lines.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/options/schedule_lr.h"
#include "src/options/settings.h"

#define BASE "--model m --data d.jsonl "

static void defaults_are_the_documented_ones(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, BASE);
    assert_int_equal(o.command, OT_COMMAND_TRAIN);
    assert_string_equal(o.model, "m");
    assert_string_equal(o.data.items[0], "d.jsonl");
    assert_null(o.out);
    assert_true(o.pack);
    assert_false(o.dedup || o.no_eos || o.skip_bad || o.dry_run || o.json || o.quiet || o.train_on_prompt);
    assert_true(o.eval_fraction == 0.02);
    assert_true(o.lr == 0 && o.weight_decay == 0.01 && o.beta1 == 0.9 && o.beta2 == 0.95 && o.eps == 1e-8 &&
                o.clip == 1);
    assert_int_equal(o.schedule, OT_SCHEDULE_COSINE);
    assert_true(o.warmup.steps == 0 && o.warmup.share == 0.03);
    assert_int_equal(o.home.weights, OT_HOME_AUTO);
    assert_int_equal(o.home.state, OT_HOME_AUTO);
    assert_int_equal(o.rounds, 0);
    assert_true(o.log_every.seconds == 10 && o.log_every.steps == 0);
    assert_int_equal(
        o.seq_len | o.tokens_per_step.count | o.micro_batch | o.epochs | o.steps | o.seed | o.max_rows, 0);
    assert_false(ot_options_given(&o, "clip"));
    assert_true(ot_options_given(&o, "model"));
    ot_options_free(&o);
}

static void every_option_of_train_parses(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o,
           "train --model=m --data=d --eval-data e --out o --init random --tokenizer t --template llama-3 "
           "--seq-len 1k --pack no --train-on-prompt --no-eos --skip-bad --show-sample --epochs 2 "
           "--tokens-per-step 64Ki --micro-batch 2 --seed 7 --lr 3e-4 --schedule wsd --warmup 12 "
           "--weight-decay 0.1 --beta1 0.8 --beta2 0.99 --eps 1e-6 --clip 0 --device cpu --dtype bf16 "
           "--gpu-mem 24G --host-mem 100GB --home weights=host,state=gpu --optimizer-engine gpu --slots 3 "
           "--recompute all --rounds 3 --shadow 0 --max-rows 70 --dedup --text-by line "
           "--threads 4 --eval-every 5m --log-every 20 --dry-run --json");
    assert_string_equal(o.eval_data, "e");
    assert_string_equal(o.out, "o");
    assert_string_equal(o.tokenizer, "t");
    assert_string_equal(o.template_name, "llama-3");
    assert_int_equal(o.init, OT_CHOICE_INIT_RANDOM);
    assert_int_equal(o.seq_len, 1024); /* a number of tokens, with a binary unit as for memory */
    assert_false(o.pack);
    assert_true(o.train_on_prompt && o.no_eos && o.skip_bad && o.show_sample && o.dry_run && o.json);
    assert_true(o.epochs == 2 && o.max_rows == 70 && o.text_by == 2 && o.dedup);
    assert_int_equal(o.tokens_per_step.count, 65536);
    assert_int_equal(o.micro_batch, 2);
    assert_int_equal(o.seed, 7);
    assert_true(o.lr == 3e-4 && o.weight_decay == 0.1 && o.beta1 == 0.8 && o.beta2 == 0.99 && o.eps == 1e-6);
    assert_true(o.clip == 0);
    assert_int_equal(o.schedule, OT_SCHEDULE_WSD);
    assert_int_equal(o.warmup.steps, 12);
    assert_int_equal(o.device.kind, OT_DEVICE_CPU);
    assert_int_equal(o.dtype, OT_CHOICE_DTYPE_BF16);
    assert_true(o.gpu_mem == (int64_t)24 << 30);
    assert_true(o.host_mem == 100000000000);
    assert_int_equal(o.home.weights, OT_HOME_HOST);
    assert_int_equal(o.home.state, OT_HOME_GPU);
    assert_int_equal(o.home.activations, OT_HOME_AUTO);
    assert_int_equal(o.slots, 3);
    assert_int_equal(o.recompute, OT_CHOICE_RECOMPUTE_ALL);
    assert_int_equal(o.rounds, 3);
    assert_true(ot_options_given(&o, "shadow") && o.shadow == 0);
    assert_int_equal(o.threads, 4);
    assert_true(o.optimizer_engine.share[OT_TILE_GPU] == 1);
    assert_true(o.eval_every.seconds == 300 && o.eval_every.steps == 0);
    assert_int_equal(o.log_every.steps, 20);
    ot_options_free(&o);
}

static void the_other_commands_parse(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, "generate out/m -p Once_upon --temperature 0.8 --top-p 90% --seed 3 --max-new-tokens 64 "
               "--no-special -q");
    assert_int_equal(o.command, OT_COMMAND_GENERATE);
    assert_string_equal(o.model, "out/m");
    assert_string_equal(o.prompt, "Once upon");
    assert_true(o.temperature == 0.8 && o.top_p == 0.9 && o.quiet && o.no_special);
    assert_int_equal(o.max_new_tokens, 64);
    ot_options_free(&o);
    accept(&o, "generate m --row --prompt={} --template chatml");
    assert_true(o.row);
    ot_options_free(&o);
    accept(&o, "generate m -p -1"); /* a value may begin with one dash */
    assert_string_equal(o.prompt, "-1");
    ot_options_free(&o);
    accept(&o, "eval m --data d --json --seq-len 64 --micro-batch 4");
    assert_int_equal(o.command, OT_COMMAND_EVAL);
    assert_true(o.json);
    ot_options_free(&o);
    accept(&o, "tokenize --tokenizer t.json --decode");
    assert_int_equal(o.command, OT_COMMAND_TOKENIZE);
    assert_true(o.decode);
    ot_options_free(&o);
    accept(&o, "verify out/a --json");
    assert_int_equal(o.command, OT_COMMAND_VERIFY);
    assert_string_equal(o.dir, "out/a");
    assert_null(o.model);
    ot_options_free(&o);
    accept(&o, "export --dir out/a --out b --model m --tokenizer t -q");
    assert_int_equal(o.command, OT_COMMAND_EXPORT);
    assert_string_equal(o.dir, "out/a");
    assert_string_equal(o.out, "b");
    assert_string_equal(o.model, "m");
    assert_string_equal(o.tokenizer, "t");
    ot_options_free(&o);
}

static void units_and_homes(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, BASE "--gpu-mem 64m --host-mem 1.5GiB --steps 500k --warmup 2.5% --eval-fraction 10% --home "
                    "gpu --log-every 1h");
    assert_true(o.gpu_mem == 64 << 20);
    assert_true(o.host_mem == (int64_t)3 << 29);
    assert_int_equal(o.steps, 500000);
    assert_true(o.warmup.steps == 0 && o.warmup.share == 0.025);
    assert_true(o.eval_fraction == 0.1);
    assert_int_equal(o.home.weights, OT_HOME_GPU);
    assert_int_equal(o.home.activations, OT_HOME_GPU);
    assert_true(o.log_every.seconds == 3600);
    ot_options_free(&o);
    accept(&o, BASE "--steps 1e3 --warmup 0 --tokens-per-step 2Mi");
    assert_int_equal(o.steps, 1000);
    assert_true(o.warmup.steps == 0 && o.warmup.share == 0);
    assert_int_equal(o.tokens_per_step.count, 2 << 20);
    ot_options_free(&o);
}

static void absurd_values_are_refused(void **state) {
    (void)state;
    static const char *const lines[] = {
        "--lr 5",
        "--lr -1",
        "--lr nan",
        "--lr inf",
        "--lr 1e-5x",
        "--lr 0x1p-3",
        "--lr 1e999",
        "--lr ''",
        "--lr 1,5",
        "--lr _1",
        "--steps 0",
        "--steps -3",
        "--steps 1.5",
        "--steps 1e30",
        "--steps 99999999999999999999",
        "--epochs 0",
        "--seq-len 1",
        "--seq-len 1e9",
        "--tokens-per-step 1T",
        "--micro-batch 0",
        "--seed -1",
        "--beta1 1",
        "--beta2 1.5",
        "--eps 0",
        "--weight-decay 2",
        "--clip -1",
        "--gpu-mem 0",
        "--gpu-mem 12",
        "--gpu-mem 12X",
        "--gpu-mem -4G",
        "--gpu-mem 9999P",
        "--host-mem G",
        "--threads 0",
        "--threads 1000000",
        "--slots 9",
        "--slots 0",
        "--warmup -1",
        "--warmup 101%",
        "--warmup 0.03",
        "--eval-fraction 51%",
        "--eval-every 0",
        "--eval-every 5x",
        "--log-every 0s",
        "--pack maybe",
        "--device tpu",
        "--dtype int8",
        "--schedule cosin",
        "--home weights",
        "--home weights=disk",
        "--home lungs=gpu",
        "--home weights=gpu,weights=host",
        "--home weights=gpu,",
        "--init zero",
        "--optimizer-engine tpu",
        "--optimizer-engine=",
        "--out=",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[128];
        snprintf(line, sizeof line, BASE "%s", lines[i]);
        refuse(line, "must be");
    }
    refuse("generate m --temperature 1 --top-p 0", "--top-p 0: must be a share from 1e-06 to 1");
    refuse("generate m --max-new-tokens 2000000", "must be a whole number from 1 to 1000000");
    refuse("generate m --max-new-tokens 0", "--max-new-tokens must be at least 1.");
    refuse(BASE "--epochs 0", "--epochs must be at least 1.");
    refuse(BASE "--seq-len 0.5", "--seq-len must be at least 8.");
}

static void engines_are_one_or_shares(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double gpu, stream, cpu;
    } good[] = {
        {"auto", 0, 0, 0},
        {"stream", 0, 1, 0},
        {"cpu:0.6,gpu:0.4", 0.4, 0, 0.6},
        {"cpu:0.25,gpu:0.25,stream:0.5", 0.25, 0.5, 0.25},
        {"gpu:30%,cpu:70%", 0.3, 0, 0.7},
        {"cpu:1", 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct ot_options o;
        char line[128];
        snprintf(line, sizeof line, BASE "--optimizer-threads 2 --optimizer-engine %s", good[i].text);
        if (good[i].cpu == 0 && good[i].stream > 0)
            refuse(line, "--optimizer-threads has no effect");
        snprintf(line, sizeof line, BASE "--optimizer-engine %s", good[i].text);
        accept(&o, line);
        const double *share = o.optimizer_engine.share;
        assert_true(share[OT_TILE_GPU] == good[i].gpu && share[OT_TILE_STREAM] == good[i].stream &&
                    fabs(share[OT_TILE_CPU] - good[i].cpu) < 1e-15);
        ot_options_free(&o);
    }
    refuse(BASE "--optimizer-engine cpu:0.6,disk:0.4", "'disk:0.4' is not an engine");
    refuse(BASE "--optimizer-engine cpu:0.6,auto:0.4", "'auto:0.4' is not an engine");
    refuse(BASE "--optimizer-engine cpu:0.6,gpu:x", "'gpu:x' needs a share");
    refuse(BASE "--optimizer-engine cpu:1,gpu:0", "'gpu:0' needs a share above 0");
    refuse(BASE "--optimizer-engine cpu:1.5", "'cpu:1.5' needs a share above 0 and at most 1");
    refuse(BASE "--optimizer-engine cpu:-0.5", "'cpu:-0.5' needs a share");
    refuse(BASE "--optimizer-engine cpu:", "'cpu:' needs a share");
    refuse(BASE "--optimizer-engine cpu:0.500000000000000000000000001,gpu:0.5", "needs a share");
    refuse(BASE "--optimizer-engine cpu:0.5,cpu:0.5", "'cpu:0.5' gives the same engine a second share");
    refuse(BASE "--optimizer-engine cpu:0.5,gpu:0.4", "'gpu:0.4' does not make the shares add up to 1");
    refuse(BASE "--optimizer-engine cpu:0.5,gpu:0.5,", "'gpu:0.5' ends in a comma");
    refuse(BASE "--optimizer-engine cpu,gpu", "'gpu' does not make the shares add up to 1");
    refuse(BASE "--optimizer-engine ,", "'' is not an engine");
    refuse(BASE "--optimizer-engine gpu --home state=host",
           "--optimizer-engine and --home contradict each other: gpu updates state");
    refuse(BASE "--optimizer-engine cpu --home gpu",
           "cpu updates state that lives on the host, not on the gpu; use one of them");
    refuse(BASE "--optimizer-engine gpu:0.5,stream:0.5 --home state=gpu", "stream updates state");
    refuse("eval m --data d --optimizer-engine cpu", "--optimizer-engine has no effect with eval");
}

static void nvme_is_directories_with_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text, *path;
        int64_t bytes;
    } good[] = {
        {"/mnt/a", "/mnt/a", 0},
        {"/mnt/a:500G", "/mnt/a", (int64_t)500 << 30},
        {"/mnt/a:64MB", "/mnt/a", 64000000},
        {"/mnt/a:1.5t", "/mnt/a", (int64_t)1536 << 30},
        {"/mnt/a:2097152", "/mnt/a", 2 << 20},
        {"/mnt/a:b", "/mnt/a:b", 0},
        {"/mnt/a:5X", "/mnt/a:5X", 0},
        {"/mnt/a:", "/mnt/a:", 0},
        {"/mnt/a:5G/", "/mnt/a:5G/", 0},
        {"/mnt/a:b:5G", "/mnt/a:b", (int64_t)5 << 30},
        {"/mnt/a:5G:6G", "/mnt/a:5G", (int64_t)6 << 30},
        {"relative:8M", "relative", 8 << 20},
    };
    struct ot_options o;
    char line[2048];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(line, sizeof line, BASE "--nvme=%s", good[i].text);
        accept(&o, line);
        assert_int_equal(o.nvme.n, 1);
        assert_string_equal(o.nvme.dirs[0].path, good[i].path);
        assert_int_equal(o.nvme.dirs[0].bytes, good[i].bytes);
        ot_options_free(&o);
    }
    accept(&o, "eval m --data d --nvme /mnt/a:1G --nvme /mnt/b --io-engine pool --no-io-verify");
    assert_int_equal(o.nvme.n, 2);
    assert_string_equal(o.nvme.dirs[1].path, "/mnt/b");
    assert_int_equal(o.io_engine, OT_IO_POOL);
    assert_true(o.no_io_verify);
    ot_options_free(&o);
    accept(&o, BASE "--nvme /a --home grads=nvme,sums=host");
    assert_int_equal(o.home.grads, OT_HOME_NVME);
    assert_int_equal(o.home.sums, OT_HOME_HOST);
    assert_int_equal(o.home.state, OT_HOME_AUTO);
    accept(&o, BASE "--nvme /a --home state=nvme,activations=host");
    assert_int_equal(o.home.state, OT_HOME_NVME);
    assert_int_equal(o.home.activations, OT_HOME_HOST);
    assert_int_equal(o.home.weights, OT_HOME_AUTO);
    ot_options_free(&o);
    static const char *const bad[] = {"--nvme=",       "--nvme /a:0", "--nvme /a:12",
                                      "--nvme /a:-4G", "--nvme :4G",  "--nvme /a:9999P:2000T"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(line, sizeof line, BASE "%s", bad[i]);
        refuse(line, "must be DIR or DIR:SIZE");
    }
    refuse(BASE "--nvme /a --nvme /a:1G", "/a is given twice");
    refuse(BASE "--home nvme", "--home weights=nvme needs --nvme DIR");
    refuse(BASE "--home state=nvme", "--home state=nvme needs --nvme DIR");
    refuse(BASE "--home activations=nvme", "--home activations=nvme needs --nvme DIR");
    refuse(BASE "--home grads=nvme", "--home grads=nvme needs --nvme DIR");
    refuse(BASE "--home sums=nvme", "--home sums=nvme needs --nvme DIR");
    refuse(BASE "--shadow 1G --clip 0", "--shadow has no effect with --clip 0");
    refuse("eval m --data d --io-engine uring", "--io-engine has no effect without --nvme");
    refuse(BASE "--no-io-verify", "--no-io-verify has no effect without --nvme");
    refuse("tokenize m --nvme /a", "--nvme has no effect with tokenize");
    int used = snprintf(line, sizeof line, BASE);
    for (int i = 0; i <= OT_NVME_MAX_DIRS; i++)
        used += snprintf(line + used, sizeof line - (size_t)used, " --nvme /%d", i);
    refuse(line, "more than 16 directories");
}

static void contradictions_and_idle_options_are_refused(void **state) {
    (void)state;
    refuse(BASE "--steps 5 --epochs 2", "--steps and --epochs contradict");
    refuse(BASE "--eval-data e --eval-fraction 5%", "--eval-data and --eval-fraction contradict");
    refuse(BASE "--template chatml --prompt-format x", "--template and --prompt-format contradict");
    refuse(BASE "--quiet --log-every 5", "--quiet and --log-every contradict");
    refuse(BASE "--no-forecast --explain", "--no-forecast and --explain contradict");
    refuse(BASE "--steps 10 --warmup 11", "--warmup 11 is longer than the run (--steps 10)");
    refuse(BASE "--seq-len 512 --tokens-per-step 256", "less than one sequence (--seq-len 512)");
    refuse(BASE "--eval-fraction 0 --eval-every 5", "--eval-every has no effect");
    refuse(BASE "--home weights=gpu --slots 2", "--slots has no effect");
    refuse(BASE "--temperature 1", "--temperature has no effect with train; it belongs to generate");
    refuse("eval m --data d --lr 1e-5", "--lr has no effect with eval; it belongs to train");
    refuse("generate m --top-p 0.5", "--top-p has no effect without --temperature");
    refuse("generate m --seed 5", "--seed has no effect without --temperature");
    refuse("generate m --seed 5 --temperature 0", "no effect with --temperature 0");
    refuse("generate m --template chatml", "--template has no effect without --row");
    refuse("generate m --row --no-special", "contradict");
    refuse("tokenize m --tokenizer t", "--model and --tokenizer contradict");
    refuse(BASE "--json=1", "--json takes no value");
    refuse(BASE "--lr", "--lr needs a value");
    refuse(BASE "--lr --steps 4", "--lr needs a value");
    refuse("--model m", "train needs --data");
    refuse("--data d", "train needs --model");
    refuse("", "train needs --model");
    refuse("eval m", "eval needs --data");
    refuse("tokenize", "tokenize needs --model");
    refuse(BASE "stray", "unexpected argument 'stray'");
    refuse("eval m n --data d", "unexpected argument 'n'");
    refuse(BASE "-", "unexpected argument '-'");
}

static void unknown_names_get_the_nearest_spelling(void **state) {
    (void)state;
    refuse(BASE "--lrr 1", "did you mean --lr?");
    refuse(BASE "--epoch 1", "did you mean --epochs?");
    refuse(BASE "--lenght 1", "unknown option --lenght (");
    refuse(BASE "--wramup 3", "did you mean --warmup?");
    refuse(BASE "--learning-rte 1", "did you mean --lr?");
    refuse(BASE "--max-grad-norms 1", "did you mean --clip?");
    refuse(BASE "--gpu_mem 1G", "did you mean --gpu-mem?");
    refuse(BASE "--zzzzzzzzzzzz", "unknown option --zzzzzzzzzzzz (offload-train train --help");
    refuse(BASE "--foo 3", "unknown option --foo (");
    refuse(BASE "-x 3", "unknown option -x");
    refuse(BASE "--", "unknown option --");
    refuse("tarin " BASE, "unknown command 'tarin'; did you mean train? (offload-train help");
    refuse("verfy out/m", "unknown command 'verfy'; did you mean verify?");
    refuse("verify", "verify needs a directory, such as offload-train verify out/my-run");
    refuse("verify a b", "unexpected argument 'b'");
    refuse("verify a --model b", "--model has no effect with verify");
    refuse("verify a --checkpoint b", "unknown option --checkpoint; its name here is --dir (");
    refuse("verify a --threads 2", "--threads has no effect with verify");
    refuse("export a", "export needs --out");
    refuse("export --out b", "export needs a directory");
    refuse("train a --data b --dir c", "no effect with train; it belongs to verify, export, watch, report");
    refuse("zzzzzzz m",
           "the commands are train, generate, eval, tokenize, probe, plan, bench, verify, export, "
           "merge, quantize, comm-test, download, migrate, watch and report");
    char line[600] = BASE "--";
    memset(line + strlen(line), 'q', 400);
    refuse(line, "unknown option --qqq");
}

static void nearest_name_counts_a_swap_as_one(void **state) {
    (void)state;
    static const char *const names[] = {"train", "eval", "tokenize"};
    assert_string_equal(ot_nearest_name("tarin", names, 3), "train");
    assert_string_equal(ot_nearest_name("evla", names, 3), "eval");
    assert_string_equal(ot_nearest_name("tokenise", names, 3), "tokenize");
    assert_null(ot_nearest_name("export", names, 3));
    assert_null(ot_nearest_name("", names, 3));
}

/* ---- the config file ---- */

static char *config_folder;

static const char *config_line(const char *text, const char *more) {
    static char line[2048];
    write_file(config_folder, "run.json", text, strlen(text));
    snprintf(line, sizeof line, "--config %s/run.json %s", config_folder, more);
    return line;
}

static int make_config_folder(void **state) {
    (void)state;
    config_folder = make_folder();
    return 0;
}

static int remove_config_folder(void **state) {
    (void)state;
    remove_folder(config_folder);
    return 0;
}

static void config_file_sets_what_the_command_line_does_not(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, config_line(
                   "{\"model\": \"m\", \"data\": \"d\", \"lr\": 1e-5, \"steps\": 20, \"gpu-mem\": \"64M\", "
                   "\"pack\": false, \"skip-bad\": true, \"json\": false, \"warmup\": \"5%\", \"clip\": 2, "
                   "\"out\": null, \"host-mem\": 4194304}",
                   "--lr 2e-5"));
    assert_true(o.lr == 2e-5 && o.clip == 2);
    assert_int_equal(o.steps, 20);
    assert_true(o.gpu_mem == 64 << 20 && o.host_mem == 4 << 20);
    assert_false(o.pack);
    assert_true(o.skip_bad);
    assert_false(o.json);
    assert_null(o.out);
    assert_true(o.warmup.share == 0.05);
    ot_options_free(&o);
    accept(&o, config_line("{\"nvme\": [\"/a:1G\", \"/b:c\"]}", BASE "--home state=nvme"));
    assert_int_equal(o.nvme.n, 2);
    assert_int_equal(o.nvme.dirs[0].bytes, 1 << 30);
    assert_string_equal(o.nvme.dirs[1].path, "/b:c");
    ot_options_free(&o);
    accept(&o, config_line("{\"nvme\": [\"/a:1G\", \"/b\"]}", BASE "--nvme /c --nvme /d:2G"));
    assert_int_equal(o.nvme.n, 2);
    assert_string_equal(o.nvme.dirs[0].path, "/c");
    ot_options_free(&o);
    accept(&o, config_line("{\"nvme\": \"/a\", \"io-engine\": \"pool\"}", BASE));
    assert_int_equal(o.nvme.n, 1);
    ot_options_free(&o);
    accept(&o, config_line("{\"gpus\": 4}", BASE));
    assert_string_equal(o.gpus, "4");
    ot_options_free(&o);
    accept(&o, config_line("{\"gpus\": \"all\"}", BASE));
    assert_string_equal(o.gpus, "all");
    ot_options_free(&o);
    accept(&o, config_line("{\"nvme\": []}", BASE));
    assert_false(ot_options_given(&o, "nvme"));
    ot_options_free(&o);
    /* ... and the command line replaces an option of the file that contradicts it. */
    accept(&o, config_line("{\"epochs\": 3, \"eval-fraction\": 0.1}", BASE "--steps 7 --eval-data e"));
    assert_int_equal(o.steps, 7);
    assert_int_equal(o.epochs, 0);
    assert_false(ot_options_given(&o, "eval-fraction"));
    ot_options_free(&o);
}

static void refuse_config(const char *text, int code, const char *words) {
    struct ot_options o;
    check_fails(parse(&o, config_line(text, BASE)), code, words);
    ot_options_free(&o);
}

static void hostile_config_files_are_refused(void **state) {
    (void)state;
    refuse_config("{\"learning-rate\": 1}", OT_E_USAGE,
                  "run.json: unknown option learning-rate; its name here is lr (");
    refuse_config("{\"lr\": \"fast\"}", OT_E_USAGE, "run.json: lr fast: must be a number");
    refuse_config("{\"lr\": true}", OT_E_USAGE, "lr: ");
    refuse_config("{\"lr\": [1]}", OT_E_USAGE, "lr: ");
    refuse_config("{\"lr\": {\"a\": 1}}", OT_E_USAGE, "lr: ");
    refuse_config("{\"out\": 5}", OT_E_USAGE, "out: an integer is not a valid value of this option");
    refuse_config("{\"nvme\": [[\"/a\"]]}", OT_E_USAGE, "nvme: an array is not");
    refuse_config("{\"nvme\": [\"/a\", true]}", OT_E_USAGE, "nvme: ");
    refuse_config("{\"nvme\": [\"/a\", \"/a\"]}", OT_E_USAGE, "nvme: /a is given twice");
    refuse_config("{\"nvme\": [], \"no-io-verify\": true}", OT_E_USAGE, "no effect without --nvme");
    refuse_config("{\"pack\": 1}", OT_E_USAGE, "pack: ");
    refuse_config("{\"gpus\": 1.5}", OT_E_USAGE, "gpus: a number is not a valid value");
    refuse_config("{\"out\": 4}", OT_E_USAGE, "out: an integer is not a valid value");
    refuse_config("{\"steps\": 1.5}", OT_E_USAGE, "steps 1.5: must be a whole number");
    refuse_config("{\"steps\": 99999999999999999}", OT_E_USAGE, "must be a whole number");
    refuse_config("{\"temperature\": 1}", OT_E_USAGE, "temperature has no effect with train");
    refuse_config("{\"config\": \"x\"}", OT_E_USAGE, "config works only on the command line");
    refuse_config("{\"help\": true}", OT_E_USAGE, "help works only on the command line");
    refuse_config("{\"out\": \"a\\u0000b\"}", OT_E_USAGE, "out: a NUL character");
    refuse_config("{\"steps\": 5, \"epochs\": 5}", OT_E_USAGE, "contradict");
    refuse_config("[1]", OT_E_USAGE, "must be a JSON object");
    refuse_config("3", OT_E_USAGE, "must be a JSON object");
    refuse_config("{\"lr\": 1e-5", OT_E_INPUT, "run.json");
    refuse_config("", OT_E_INPUT, "run.json");
    struct ot_options o;
    check_fails(parse(&o, BASE "--config /nowhere/run.json"), OT_E_IO, "/nowhere/run.json");
    ot_options_free(&o);
}

static void the_record_repeats_the_run(void **state) {
    (void)state;
    struct ot_options o, again;
    accept(&o, BASE
           "--eval-data e --lr 3e-4 --warmup 4% --home state=host --gpu-mem 64M --skip-bad --log-every 5 "
           "--schedule linear --seed 9 --optimizer-engine cpu:0.3,stream:0.7 --nvme /a:b --nvme /c:1G "
           "--no-io-verify");
    struct ot_settings settings = {o};
    ot_settings_choose_count(&settings, "epochs", 3);
    ot_settings_choose_count(&settings, "micro-batch", 4);
    ot_settings_choose_text(&settings, "out", "out/x");
    ot_settings_choose_real(&settings, "weight-decay", 0.25);
    ot_settings_choose_word(&settings, "dtype", OT_CHOICE_DTYPE_FP32);
    struct ot_json_writer w = {.indent = -1}, w_again = {.indent = -1};
    char *text, *text_again;
    ot_options_put_json(&settings.in_effect, NULL, &w);
    check_ok(ot_json_writer_take(&w, &text, NULL));
    accept(&again, config_line(text, ""));
    assert_int_equal(again.epochs, 3);
    assert_int_equal(again.micro_batch, 4);
    assert_int_equal(again.dtype, OT_CHOICE_DTYPE_FP32);
    assert_int_equal(again.home.state, OT_HOME_HOST);
    assert_true(again.optimizer_engine.share[OT_TILE_STREAM] == 0.7);
    assert_true(again.warmup.share == o.warmup.share && again.lr == o.lr && again.weight_decay == 0.25);
    assert_string_equal(again.out, "out/x");
    assert_true(again.nvme.n == 2 && again.nvme.dirs[1].bytes == 1 << 30 && again.no_io_verify);
    assert_string_equal(again.nvme.dirs[0].path, "/a:b");
    ot_options_put_json(&again, NULL, &w_again);
    check_ok(ot_json_writer_take(&w_again, &text_again, NULL));
    assert_string_equal(text, text_again);
    free(text);
    free(text_again);
    ot_options_free(&o);
    ot_options_free(&again);
}

/* The record leaves out defaults that have nothing to act on: --config would refuse them. */
static void the_record_leaves_out_what_has_no_effect(void **state) {
    (void)state;
    struct ot_options o, again;
    struct ot_json_writer w = {.indent = -1};
    char *text;
    accept(&o, BASE);
    ot_options_put_json(&o, NULL, &w);
    check_ok(ot_json_writer_take(&w, &text, NULL));
    assert_null(strstr(text, "io-verify"));
    accept(&again, config_line(text, ""));
    free(text);
    ot_options_free(&o);
    ot_options_free(&again);
}

static void help_and_version_end_the_parsing(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, "--help --nonsense");
    assert_true(o.help);
    ot_options_free(&o);
    accept(&o, "eval -h");
    assert_true(o.help);
    assert_int_equal(o.command, OT_COMMAND_EVAL);
    ot_options_free(&o);
    accept(&o, "--version");
    assert_true(o.version);
    ot_options_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_documented_ones),
        cmocka_unit_test(every_option_of_train_parses),
        cmocka_unit_test(the_other_commands_parse),
        cmocka_unit_test(units_and_homes),
        cmocka_unit_test(engines_are_one_or_shares),
        cmocka_unit_test(absurd_values_are_refused),
        cmocka_unit_test(nvme_is_directories_with_sizes),
        cmocka_unit_test(contradictions_and_idle_options_are_refused),
        cmocka_unit_test(unknown_names_get_the_nearest_spelling),
        cmocka_unit_test(nearest_name_counts_a_swap_as_one),
        cmocka_unit_test_setup_teardown(config_file_sets_what_the_command_line_does_not, make_config_folder,
                                        remove_config_folder),
        cmocka_unit_test_setup_teardown(hostile_config_files_are_refused, make_config_folder,
                                        remove_config_folder),
        cmocka_unit_test_setup_teardown(the_record_repeats_the_run, make_config_folder, remove_config_folder),
        cmocka_unit_test_setup_teardown(the_record_leaves_out_what_has_no_effect, make_config_folder,
                                        remove_config_folder),
        cmocka_unit_test(help_and_version_end_the_parsing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
