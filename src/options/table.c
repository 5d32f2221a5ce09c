/* The option table, joined from its parts in the order of --help; and its part for reports and single
 * commands. */
#include "src/options/table.h"

#include <stdio.h>

static const struct ot_option_list *const lists[] = {&ot_options_of_train, &ot_options_of_commands};

const struct ot_option *ot_option_at(int index) {
    if (index < 0)
        return NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (index < lists[i]->n)
            return &lists[i]->options[index];
        index -= lists[i]->n;
    }
    return NULL;
}

const char *ot_option_section_title(enum ot_option_section section) {
    static const char *const titles[OT_SECTION_COUNT] = {
        [OT_SECTION_INPUT] = "Input and output",
        [OT_SECTION_DATA] = "Rows",
        [OT_SECTION_STEP] = "Length and batches",
        [OT_SECTION_OPTIMIZER] = "Optimizer",
        [OT_SECTION_MEMORY] = "Memory and machine",
        [OT_SECTION_RANKS] = "Several GPUs and hosts",
        [OT_SECTION_SAFETY] = "Checkpoints and safety",
        [OT_SECTION_DESCRIBED] = "A described machine, and what a run costs",
        [OT_SECTION_TEXT] = "Text",
        [OT_SECTION_REPORT] = "Evaluation and reports",
    };
    return titles[section];
}

const char *ot_command_name(enum ot_command command) {
    static const char *const names[OT_COMMAND_COUNT] = {"train",  "generate", "eval",     "tokenize",
                                                        "probe",  "plan",     "bench",    "verify",
                                                        "export", "merge",    "quantize", "comm-test"};
    return names[command];
}

const char *ot_command_list(unsigned commands, char list[OT_COMMAND_LIST_BYTES]) {
    int used = 0;
    list[0] = '\0';
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        if (commands & (1u << c))
            used += snprintf(list + used, (size_t)(OT_COMMAND_LIST_BYTES - used), "%s%s", used ? ", " : "",
                             ot_command_name((enum ot_command)c));
    return list;
}

/* ---- reports and single commands ---- */

#define FASTEST_BYTES 1e13 /* per second; faster than every existing link and memory */

static const struct ot_option table[] = {
    /* ---- plan: a machine that the user describes, and the cost of a run on it ---- */
    {"gpu", OT_OPTION_TEXT, OT_SECTION_DESCRIBED, FIELD(gpu), PLAN, .argument = "CARD,..|CLASS|list",
     .elsewhere = "card gpu-type machine"},
    {"ram", OT_OPTION_BYTES, OT_SECTION_DESCRIBED, FIELD(ram), PLAN, .argument = "BYTES", .min = K * K * K,
     .max = K * K * K * K * K,
     .chosen = "64G with a workstation GPU, twice the GPU's memory with a server GPU",
     .elsewhere = "memory system-memory installed-ram"},
    {"minimum", OT_OPTION_FLAG, OT_SECTION_DESCRIBED, FIELD(minimum), PLAN, .elsewhere = "min requirements"},
    {"sweep", OT_OPTION_CHOICE, OT_SECTION_DESCRIBED, FIELD(sweep), PLAN, .choices = "none|tokens-per-step",
     .fallback = "none"},
    {"methods", OT_OPTION_FLAG, OT_SECTION_DESCRIBED, FIELD(methods), PLAN, .elsewhere = "compare-methods"},
    {"markdown", OT_OPTION_FLAG, OT_SECTION_DESCRIBED, FIELD(markdown), PLAN,
     .on_resume = OT_RESUME_NOT_TRAIN},
    {"host-bw", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(host_bw), PLAN, .argument = "BYTES/S", .min = 1e6,
     .max = FASTEST_BYTES, .chosen = "a usual value for machines with this GPU",
     .elsewhere = "memory-bandwidth host-bandwidth ram-bw"},
    {"pcie", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(pcie), PLAN, .argument = "BYTES/S", .min = 1e6,
     .max = FASTEST_BYTES,
     .chosen = "from the PCIe generation and lanes of the GPU; half of it for each of a workstation's "
               "two",
     .elsewhere = "link pcie-bw"},
    {"p2p", OT_OPTION_CHOICE, OT_SECTION_DESCRIBED, FIELD(p2p), PLAN, .choices = "auto|yes|no",
     .fallback = "auto", .elsewhere = "peer-to-peer peer-access"},
    {"nic", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(nic), PLAN, .argument = "BITS/S", .min = 1e6,
     .max = FASTEST_BYTES, .chosen = "25G", .elsewhere = "network network-bw bandwidth"},
    {"nvme-read", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(nvme_read), PLAN, .argument = "BYTES/S",
     .min = 1e6, .max = FASTEST_BYTES, .chosen = "6GB"},
    {"nvme-write", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(nvme_write), PLAN, .argument = "BYTES/S",
     .min = 1e6, .max = FASTEST_BYTES, .chosen = "2.5GB"},
    {"tokens", OT_OPTION_COUNT, OT_SECTION_DESCRIBED, FIELD(tokens), PLAN, .argument = "N", .min = 1,
     .max = 1e13, .of_tokens = true, .elsewhere = "num-tokens dataset-tokens"},
    {"rows", OT_OPTION_COUNT, OT_SECTION_DESCRIBED, FIELD(rows), PLAN, .argument = "N", .min = 1, .max = 1e12,
     .elsewhere = "num-rows samples"},
    {"price/h", OT_OPTION_TEXT, OT_SECTION_DESCRIBED, FIELD(price), PLAN,
     .argument = "MONEY|CARD=MONEY,..|FILE", .takes_number = true, .takes_real = true,
     .elsewhere = "price cost price-per-hour"},
    {"within", OT_OPTION_TIME, OT_SECTION_DESCRIBED, FIELD(within), PLAN, .argument = "TIME", .min = 1,
     .max = 1e10, .chosen = "no limit", .elsewhere = "deadline max-hours time-limit"},
    {"sort", OT_OPTION_CHOICE, OT_SECTION_DESCRIBED, FIELD(sort), PLAN, .choices = "auto|price|time|none",
     .fallback = "auto", .elsewhere = "order sort-by"},

    /* ---- text ---- */
    {"prompt", OT_OPTION_TEXT, OT_SECTION_TEXT, FIELD(prompt), GENERATE | TOKENIZE, .argument = "TEXT",
     .letter = 'p', .chosen = "one prompt per line of stdin"},
    {"row", OT_OPTION_FLAG, OT_SECTION_TEXT, FIELD(row), GENERATE, .on_resume = OT_RESUME_NOT_TRAIN},
    {"chat", OT_OPTION_FLAG, OT_SECTION_TEXT, FIELD(chat), GENERATE, .elsewhere = "conversation interactive"},
    {"system", OT_OPTION_TEXT, OT_SECTION_TEXT, FIELD(system), GENERATE, .argument = "TEXT",
     .elsewhere = "system-prompt sys"},
    {"max-new-tokens", OT_OPTION_COUNT, OT_SECTION_TEXT, FIELD(max_new_tokens), GENERATE, .argument = "N",
     .min = 1, .max = 1e6, .of_tokens = true, .fallback = "256",
     .elsewhere = "max-tokens n-predict num-predict"},
    {"temperature", OT_OPTION_REAL, OT_SECTION_TEXT, FIELD(temperature), GENERATE, .argument = "X", .min = 0,
     .max = 100, .fallback = "0", .elsewhere = "temp"},
    {"top-p", OT_OPTION_SHARE, OT_SECTION_TEXT, FIELD(top_p), GENERATE, .argument = "SHARE", .min = 1e-6,
     .max = 1, .fallback = "1", .elsewhere = "nucleus"},
    {"decode", OT_OPTION_FLAG, OT_SECTION_TEXT, FIELD(decode), TOKENIZE, .elsewhere = "detokenize"},
    {"no-special", OT_OPTION_FLAG, OT_SECTION_TEXT, FIELD(no_special), GENERATE | TOKENIZE,
     .elsewhere = "no-special-tokens skip-special-tokens no-bos"},

    /* ---- evaluation and reports ---- */
    {"eval-every", OT_OPTION_EVERY, OT_SECTION_REPORT, FIELD(eval_every), TRAIN,
     .argument = "STEPS|TIME|epoch", .choices = "epoch", .min = 1, .max = MANY, .chosen = "epoch",
     .on_resume = OT_RESUME_FREE, .elsewhere = "eval-steps"},
    {"eval-metric", OT_OPTION_CHOICE, OT_SECTION_REPORT, FIELD(eval_metric), TRAIN,
     .choices = "loss|accuracy", .fallback = "loss", .on_resume = OT_RESUME_SAME,
     .elsewhere = "metric-for-best-model"},
    {"stop-early", OT_OPTION_PATIENCE, OT_SECTION_REPORT, FIELD(stop_early), TRAIN,
     .argument = "PATIENCE[,DELTA]", .min = 1, .max = MANY, .chosen = "run to the last step",
     .on_resume = OT_RESUME_CONVERT,
     .elsewhere = "early-stopping early-stopping-patience early-stopping-threshold patience"},
    {"result", OT_OPTION_CHOICE, OT_SECTION_REPORT, FIELD(result), TRAIN, .choices = "best|last",
     .chosen = "best; last without evaluations and with --save-every never", .on_resume = OT_RESUME_CONVERT},
    {"log-every", OT_OPTION_EVERY, OT_SECTION_REPORT, FIELD(log_every), TRAIN, .argument = "STEPS|TIME",
     .min = 1, .max = MANY, .fallback = "10s", .on_resume = OT_RESUME_FREE,
     .elsewhere = "logging-steps log-interval log-steps"},
    {"trace", OT_OPTION_TEXT, OT_SECTION_REPORT, FIELD(trace), TRAIN | PLAN, .argument = "FILE",
     .on_resume = OT_RESUME_FREE, .elsewhere = "profile profiler timeline"},
    {"force", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(force), TRAIN | PLAN, .on_resume = OT_RESUME_FREE},
    {"no-save", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(no_save), TRAIN, .on_resume = OT_RESUME_FREE},
    {"dry-run", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(dry_run), TRAIN, .on_resume = OT_RESUME_FREE,
     .elsewhere = "plan"},
    {"explain", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(explain), TRAIN | PLAN, .on_resume = OT_RESUME_FREE},
    {"no-forecast", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(no_forecast), TRAIN, .on_resume = OT_RESUME_FREE,
     .elsewhere = "no-plan no-probe"},
    {"json", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(json), OT_FOR_ALL, .on_resume = OT_RESUME_FREE},
    {"quiet", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(quiet),
     MODELS | PROBE | PLAN | BENCH | VERIFY | EXPORT | COMM_TEST | QUANTIZE, .letter = 'q',
     .on_resume = OT_RESUME_FREE, .elsewhere = "silent"},
    {"help", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(help), OT_FOR_ALL, .letter = 'h',
     .on_resume = OT_RESUME_FREE},
    {"version", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(version), OT_FOR_ALL, .on_resume = OT_RESUME_FREE},

    /* ---- bench: options that only bench has, or that mean something else in train ---- */
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), BENCH, .argument = "DIR",
     .chosen = "out/MODEL-bench"},
    {"tokens-per-step", OT_OPTION_COUNTS, OT_SECTION_STEP, FIELD(step_tokens_list), BENCH,
     .argument = "TOKENS,..", .min = 8, .max = MANY, .of_tokens = true,
     .chosen = "two sizes with steps short enough for --minutes"},
    {"micro-batch", OT_OPTION_COUNTS, OT_SECTION_STEP, FIELD(micro_batch_list), BENCH,
     .argument = "SEQUENCES,..", .min = 1, .max = 1 << 20, .chosen = "as train chooses it, and also 1"},
    {"mix", OT_OPTION_TEXT, OT_SECTION_MEMORY, FIELD(mix), BENCH, .argument = "NAME,..", .chosen = "all"},
    {"minutes", OT_OPTION_REAL, OT_SECTION_STEP, FIELD(minutes), BENCH, .argument = "MINUTES", .min = 0.01,
     .max = 10080, .fallback = "5", .elsewhere = "time duration timeout"},
    {"time-per-point", OT_OPTION_REAL, OT_SECTION_STEP, FIELD(time_per_point), BENCH, .argument = "SECONDS",
     .min = 0.1, .max = 86400, .chosen = "from the time that is left of --minutes, about 10 at most",
     .elsewhere = "seconds-per-point"},
    {"gpu-mem", OT_OPTION_SIZES, OT_SECTION_MEMORY, FIELD(gpu_mem_list), BENCH, .argument = "BYTES,..",
     .min = K * K, .max = K * K * K * K * K,
     .chosen = "all of it, and five sizes from the smallest that works to all resident",
     .elsewhere = "gpu-memory device-mem max-gpu-memory vram"},

    /* ---- verify, export and merge: input, and output of export and merge ---- */
    {"dir", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(dir), VERIFY, .argument = "DIR",
     .elsewhere = "checkpoint path"},
    {"dir", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(dir), EXPORT, .argument = "DIR",
     .elsewhere = "checkpoint path"},
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), EXPORT, .argument = "MODEL",
     .elsewhere = "output output-dir save-dir"},
    {"best", OT_OPTION_FLAG, OT_SECTION_INPUT, FIELD(best), EXPORT, .on_resume = OT_RESUME_NOT_TRAIN},
    {"gguf", OT_OPTION_CHOICE, OT_SECTION_INPUT, FIELD(gguf), EXPORT,
     .choices = "f32|f16|bf16|q8_0|q6_k|q4_k_m|q4_0",
     .elsewhere = "outtype quantize quantization-method format"},
    {"modelfile", OT_OPTION_FLAG, OT_SECTION_INPUT, FIELD(modelfile), EXPORT,
     .on_resume = OT_RESUME_NOT_TRAIN},
    {"model", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(model), EXPORT, .argument = "DIR|NAME",
     .chosen = "the run's --model", .elsewhere = "model-name-or-path base-model pretrained"},
    {"tokenizer", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(tokenizer), EXPORT, .argument = "FILE",
     .chosen = "the run's --tokenizer, if it had one", .elsewhere = "tokenizer-path tokenizer-file"},
    {"model", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(model), MERGE, .argument = "BASE",
     .elsewhere = "model-name-or-path base-model pretrained base"},
    {"adapter", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(adapter), MERGE, .argument = "DIR",
     .elsewhere = "adapter-name-or-path lora-path adapters lora peft-model"},
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), MERGE, .argument = "MODEL",
     .elsewhere = "output output-dir save-dir export-dir"},

    /* ---- quantize: output and methods ---- */
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), QUANTIZE, .argument = "DIR",
     .elsewhere = "output output-dir save-dir"},
    {"to", OT_OPTION_CHOICE, OT_SECTION_INPUT, FIELD(to), QUANTIZE,
     .choices = "gptq:4|gptq:8|gptq:3|gptq:2|nf4|nf4-double|int8|mxfp4",
     .elsewhere = "bits wbits quant-method method load-in-4bit load-in-8bit"},
    {"group-size", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(group_size), QUANTIZE, .argument = "N|none",
     .takes_number = true, .fallback = "128", .elsewhere = "groupsize"},
    {"act-order", OT_OPTION_FLAG, OT_SECTION_INPUT, FIELD(act_order), QUANTIZE,
     .elsewhere = "desc-act actorder"},
    {"damping", OT_OPTION_SHARE, OT_SECTION_INPUT, FIELD(damping), QUANTIZE, .argument = "SHARE", .min = 0,
     .max = 1, .fallback = "1%", .elsewhere = "damp-percent percdamp"},
    {"symmetric", OT_OPTION_YES_NO, OT_SECTION_INPUT, FIELD(symmetric), QUANTIZE, .fallback = "yes",
     .elsewhere = "sym"},
    {"calibration-rows", OT_OPTION_COUNT, OT_SECTION_DATA, FIELD(calibration_rows), QUANTIZE, .argument = "N",
     .min = 1, .max = 1e6, .fallback = "128",
     .elsewhere = "nsamples n-samples num-samples calibration-samples"},
};

const struct ot_option_list ot_options_of_commands = OT_OPTION_LIST(table);
