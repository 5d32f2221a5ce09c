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
    {"gpu", OT_OPTION_TEXT, OT_SECTION_DESCRIBED, FIELD(gpu), PLAN,
     .help = "Predict for a machine with this GPU, such as rtx4090 or h200, or for a rented machine, such "
             "as a3-highgpu-1g or p5.48xlarge, from data sheets alone. list shows all known names. Several "
             "names, separated by commas, are compared; so are several --model names. So are classes: all "
             "(GPUs), rented (machines), or all GPUs sold with so much memory, such as 24g or 80g. Without "
             "--gpu, this machine is measured.",
     .argument = "CARD,..|CLASS|list", .elsewhere = "card gpu-type machine"},
    {"ram", OT_OPTION_BYTES, OT_SECTION_DESCRIBED, FIELD(ram), PLAN,
     .help = "RAM of the described machine, such as 64G. The program pins nine tenths of it; to set the "
             "pinned part itself, use --host-mem.",
     .argument = "BYTES", .min = K * K * K, .max = K * K * K * K * K,
     .chosen = "64G with a workstation GPU, twice the GPU's memory with a server GPU",
     .elsewhere = "memory system-memory installed-ram"},
    {"minimum", OT_OPTION_FLAG, OT_SECTION_DESCRIBED, FIELD(minimum), PLAN,
     .help = "Print the smallest GPU, RAM and disk that can train the model: with all data in GPU memory, "
             "with RAM, and with RAM and a disk.",
     .elsewhere = "min requirements"},
    {"sweep", OT_OPTION_CHOICE, OT_SECTION_DESCRIBED, FIELD(sweep), PLAN,
     .help = "Print a table of predictions for steps of 2k to 256k tokens, to help you choose "
             "--tokens-per-step.",
     .choices = "none|tokens-per-step", .fallback = "none"},
    {"methods", OT_OPTION_FLAG, OT_SECTION_DESCRIBED, FIELD(methods), PLAN,
     .help = "Compare the ways to train the model: all parameters, adapters (--lora; r=16 if it is not "
             "given), and adapters over a base in int8 and NF4 (QLoRA).",
     .elsewhere = "compare-methods"},
    {"markdown", OT_OPTION_FLAG, OT_SECTION_DESCRIBED, FIELD(markdown), PLAN,
     .help = "Print the table of a comparison, of --methods, --minimum or --sweep as Markdown."},
    {"host-bw", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(host_bw), PLAN,
     .help = "Memory bandwidth of the described host, all cores together (STREAM triad), such as 60GB.",
     .argument = "BYTES/S", .min = 1e6, .max = FASTEST_BYTES,
     .chosen = "a usual value for machines with this GPU",
     .elsewhere = "memory-bandwidth host-bandwidth ram-bw"},
    {"pcie", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(pcie), PLAN,
     .help = "Bandwidth of the link between the described host and its GPU, in each direction, such as 25GB "
             "(PCIe 4.0 x16) or 12GB (3.0 x16, 4.0 x8). With several GPUs: that of each while all copy, so "
             "GPUs behind one switch divide its link.",
     .argument = "BYTES/S", .min = 1e6, .max = FASTEST_BYTES,
     .chosen = "from the PCIe generation and lanes of the GPU; half of it for each of a workstation's "
               "two",
     .elsewhere = "link pcie-bw"},
    {"p2p", OT_OPTION_CHOICE, OT_SECTION_DESCRIBED, FIELD(p2p), PLAN,
     .help = "Whether the GPUs of a described host copy to each other. Without it, what ranks exchange goes "
             "through RAM. auto: no for GeForce cards, whose driver does not allow it, and yes for others.",
     .choices = "auto|yes|no", .fallback = "auto", .elsewhere = "peer-to-peer peer-access"},
    {"nic", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(nic), PLAN,
     .help = "Network of each described host, in bits per second and in each direction: 25G is 25 Gbit/s.",
     .argument = "BITS/S", .min = 1e6, .max = FASTEST_BYTES, .chosen = "25G",
     .elsewhere = "network network-bw bandwidth"},
    {"nvme-read", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(nvme_read), PLAN,
     .help = "Read rate of all disks of --nvme together, for disks that are not measured (--nvme 500G, "
             "without a directory).",
     .argument = "BYTES/S", .min = 1e6, .max = FASTEST_BYTES, .chosen = "6GB"},
    {"nvme-write", OT_OPTION_RATE, OT_SECTION_DESCRIBED, FIELD(nvme_write), PLAN,
     .help = "Sustained write rate of all disks of --nvme together, after their caches are full.",
     .argument = "BYTES/S", .min = 1e6, .max = FASTEST_BYTES, .chosen = "2.5GB"},
    {"tokens", OT_OPTION_COUNT, OT_SECTION_DESCRIBED, FIELD(tokens), PLAN,
     .help = "Tokens of the data, packed into full sequences. Together with --epochs this is the length of "
             "the run.",
     .argument = "N", .min = 1, .max = 1e13, .of_tokens = true, .elsewhere = "num-tokens dataset-tokens"},
    {"rows", OT_OPTION_COUNT, OT_SECTION_DESCRIBED, FIELD(rows), PLAN,
     .help = "Rows of the data, instead of --tokens. Each row counts as one sequence; packed rows need "
             "fewer.",
     .argument = "N", .min = 1, .max = 1e12, .elsewhere = "num-rows samples"},
    {"price/h", OT_OPTION_TEXT, OT_SECTION_DESCRIBED, FIELD(price), PLAN,
     .help = "Price of the machine per hour, in your currency; or a price for each GPU or rented machine, "
             "such as rtx4090=0.4,h100=2.5; or a file with one such price on each line. The plan then "
             "prints the price of the run, and of a million tokens.",
     .argument = "MONEY|CARD=MONEY,..|FILE", .takes_number = true, .takes_real = true,
     .elsewhere = "price cost price-per-hour"},
    {"within", OT_OPTION_TIME, OT_SECTION_DESCRIBED, FIELD(within), PLAN,
     .help = "In a comparison: the longest time that the run may take, such as 24h. Slower machines come "
             "last.",
     .argument = "TIME", .min = 1, .max = 1e10, .chosen = "no limit",
     .elsewhere = "deadline max-hours time-limit"},
    {"sort", OT_OPTION_CHOICE, OT_SECTION_DESCRIBED, FIELD(sort), PLAN,
     .help = "Order of a comparison: by the price of the run (without its length, of a million tokens), by "
             "time, or as the machines were named (none). auto: if --gpu has a class or --price/h names "
             "machines, by price where prices are known and else by time; otherwise none.",
     .choices = "auto|price|time|none", .fallback = "auto", .elsewhere = "order sort-by"},

    /* ---- text ---- */
    {"prompt", OT_OPTION_TEXT, OT_SECTION_TEXT, FIELD(prompt), GENERATE | TOKENIZE,
     .help = "generate: the text to continue; the tokenizer's start token is put before it. tokenize: the "
             "text to tokenize.",
     .argument = "TEXT", .letter = 'p', .chosen = "one prompt per line of stdin"},
    {"row", OT_OPTION_FLAG, OT_SECTION_TEXT, FIELD(row), GENERATE,
     .help = "The prompt is a data row as JSON. The row is formatted as in training, and its answer is "
             "generated."},
    {"chat", OT_OPTION_FLAG, OT_SECTION_TEXT, FIELD(chat), GENERATE,
     .help = "A conversation: each line of stdin is a turn, and the model remembers the turns before it. "
             "Ctrl-C stops an answer, /reset begins a new conversation, /exit or Ctrl-D ends.",
     .elsewhere = "conversation interactive"},
    {"system", OT_OPTION_TEXT, OT_SECTION_TEXT, FIELD(system), GENERATE,
     .help = "The system turn that begins the conversation of --chat.", .argument = "TEXT",
     .elsewhere = "system-prompt sys"},
    {"max-new-tokens", OT_OPTION_COUNT, OT_SECTION_TEXT, FIELD(max_new_tokens), GENERATE,
     .help = "Stop after this many tokens (--chat: 1024), or at the end-of-text token if it comes first.",
     .argument = "N", .min = 1, .max = 1e6, .of_tokens = true, .fallback = "256",
     .elsewhere = "max-tokens n-predict num-predict"},
    {"temperature", OT_OPTION_REAL, OT_SECTION_TEXT, FIELD(temperature), GENERATE,
     .help = "0: always take the most likely token (greedy). Above 0: sample, with random numbers from "
             "--seed.",
     .argument = "X", .min = 0, .max = 100, .fallback = "0", .elsewhere = "temp"},
    {"top-p", OT_OPTION_SHARE, OT_SECTION_TEXT, FIELD(top_p), GENERATE,
     .help = "Sample only from the most likely tokens that together have this probability.",
     .argument = "SHARE", .min = 1e-6, .max = 1, .fallback = "1", .elsewhere = "nucleus"},
    {"decode", OT_OPTION_FLAG, OT_SECTION_TEXT, FIELD(decode), TOKENIZE,
     .help = "Turn ids back into text. The ids are separated by spaces or commas, or are a JSON array.",
     .elsewhere = "detokenize"},
    {"no-special", OT_OPTION_FLAG, OT_SECTION_TEXT, FIELD(no_special), GENERATE | TOKENIZE,
     .help = "Do not add the tokenizer's start and end tokens. With --decode: leave special tokens out of "
             "the text.",
     .elsewhere = "no-special-tokens skip-special-tokens no-bos"},

    /* ---- evaluation and reports ---- */
    {"eval-every", OT_OPTION_EVERY, OT_SECTION_REPORT, FIELD(eval_every), TRAIN,
     .help = "Evaluate after this many steps, after this time (such as 10m), or after each epoch; and "
             "always at the end.",
     .argument = "STEPS|TIME|epoch", .choices = "epoch", .min = 1, .max = MANY, .chosen = "epoch",
     .on_resume = OT_RESUME_FREE, .elsewhere = "eval-steps"},
    {"eval-metric", OT_OPTION_CHOICE, OT_SECTION_REPORT, FIELD(eval_metric), TRAIN,
     .help = "What makes an evaluation the best one: the lowest loss, or the highest accuracy, the share of "
             "trained tokens that the model finds most likely.",
     .choices = "loss|accuracy", .fallback = "loss", .on_resume = OT_RESUME_SAME,
     .elsewhere = "metric-for-best-model"},
    {"stop-early", OT_OPTION_PATIENCE, OT_SECTION_REPORT, FIELD(stop_early), TRAIN,
     .help = "End the run after this many evaluations in a row that are not better than the best one before "
             "them, or not by more than DELTA (in loss; 0.01 is 1 % of accuracy). The schedule of learning "
             "rates stays that of the whole run.",
     .argument = "PATIENCE[,DELTA]", .min = 1, .max = MANY, .chosen = "run to the last step",
     .on_resume = OT_RESUME_CONVERT,
     .elsewhere = "early-stopping early-stopping-patience early-stopping-threshold patience"},
    {"result", OT_OPTION_CHOICE, OT_SECTION_REPORT, FIELD(result), TRAIN,
     .help = "Model in --out at the end: of the best evaluation, or of the last step. The other state stays "
             "as a checkpoint, and export makes a model of it.",
     .choices = "best|last", .chosen = "best; last without evaluations and with --save-every never",
     .on_resume = OT_RESUME_CONVERT},
    {"log-every", OT_OPTION_EVERY, OT_SECTION_REPORT, FIELD(log_every), TRAIN,
     .help = "Print a line of progress after this many steps or after this time. log.jsonl always has every "
             "step.",
     .argument = "STEPS|TIME", .min = 1, .max = MANY, .fallback = "10s", .on_resume = OT_RESUME_FREE,
     .elsewhere = "logging-steps log-interval log-steps"},
    {"trace", OT_OPTION_TEXT, OT_SECTION_REPORT, FIELD(trace), TRAIN | PLAN,
     .help = "Write a timeline of the tasks of the first steps, one row per lane, with the predicted steps "
             "below, for Perfetto or chrome://tracing. The summary then says what the compute lane waited "
             "for.",
     .argument = "FILE", .on_resume = OT_RESUME_FREE, .elsewhere = "profile profiler timeline"},
    {"force", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(force), TRAIN | PLAN,
     .help = "Allow --trace to replace a file that this program did not write.", .on_resume = OT_RESUME_FREE},
    {"no-save", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(no_save), TRAIN,
     .help = "Train without saving anything, for measurements: no model, no checkpoint, no log.jsonl. "
             "--json prints the log to stdout.",
     .on_resume = OT_RESUME_FREE},
    {"dry-run", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(dry_run), TRAIN,
     .help = "Read all inputs, print the plan and the predicted time, and stop. Nothing is written to --out.",
     .on_resume = OT_RESUME_FREE, .elsewhere = "plan"},
    {"explain", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(explain), TRAIN | PLAN,
     .help = "Say what limits the speed of a step, and how much 1 GiB more on each tier, or a faster link, "
             "disk or memory would gain.",
     .on_resume = OT_RESUME_FREE},
    {"no-forecast", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(no_forecast), TRAIN,
     .help = "Do not measure or predict before step 1. The plan follows from the memory budgets alone, so "
             "the micro-batch, and with it the bits of the result, does not depend on measured rates.",
     .on_resume = OT_RESUME_FREE, .elsewhere = "no-plan no-probe"},
    {"json", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(json), OT_FOR_ALL,
     .help = "Print results to stdout as JSON. train prints one object per line; eval, probe, plan, bench, "
             "verify, export, merge, quantize and comm-test print one object; generate prints one object "
             "per text; tokenize prints one array or string per text.",
     .on_resume = OT_RESUME_FREE},
    {"quiet", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(quiet),
     MODELS | PROBE | PLAN | BENCH | VERIFY | EXPORT | COMM_TEST | QUANTIZE,
     .help = "Print only warnings and errors on stderr, no progress and no tables.", .letter = 'q',
     .on_resume = OT_RESUME_FREE, .elsewhere = "silent"},
    {"help", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(help), OT_FOR_ALL, .help = "Print this help and stop.",
     .letter = 'h', .on_resume = OT_RESUME_FREE},
    {"version", OT_OPTION_FLAG, OT_SECTION_REPORT, FIELD(version), OT_FOR_ALL,
     .help = "Print the version and stop.", .on_resume = OT_RESUME_FREE},

    /* ---- bench: options that only bench has, or that mean something else in train ---- */
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), BENCH,
     .help = "Directory for bench.csv, bench.json and bench.html. The files of an earlier bench are never "
             "overwritten.",
     .argument = "DIR", .chosen = "out/MODEL-bench"},
    {"tokens-per-step", OT_OPTION_COUNTS, OT_SECTION_STEP, FIELD(step_tokens_list), BENCH,
     .help = "Tokens of one optimizer step; each value is rounded down to whole sequences.",
     .argument = "TOKENS,..", .min = 8, .max = MANY, .of_tokens = true,
     .chosen = "two sizes with steps short enough for --minutes"},
    {"micro-batch", OT_OPTION_COUNTS, OT_SECTION_STEP, FIELD(micro_batch_list), BENCH,
     .help = "Sequences computed at once.", .argument = "SEQUENCES,..", .min = 1, .max = 1 << 20,
     .chosen = "as train chooses it, and also 1"},
    {"mix", OT_OPTION_TEXT, OT_SECTION_MEMORY, FIELD(mix), BENCH,
     .help = "Mixes of tiers to measure, in the given order: 'all gpu', 'state host', 'weights+state host', "
             "'state nvme', 'weights+state nvme', 'planned'. Without --gpu-mem, each mix may use all device "
             "memory.",
     .argument = "NAME,..", .chosen = "all"},
    {"minutes", OT_OPTION_REAL, OT_SECTION_STEP, FIELD(minutes), BENCH,
     .help = "Time limit of the whole bench. Points that would take longer are skipped and listed.",
     .argument = "MINUTES", .min = 0.01, .max = 10080, .fallback = "5", .elsewhere = "time duration timeout"},
    {"time-per-point", OT_OPTION_REAL, OT_SECTION_STEP, FIELD(time_per_point), BENCH,
     .help = "Time limit of one point. Points whose steps take longer are skipped and listed.",
     .argument = "SECONDS", .min = 0.1, .max = 86400,
     .chosen = "from the time that is left of --minutes, about 10 at most", .elsewhere = "seconds-per-point"},
    {"gpu-mem", OT_OPTION_SIZES, OT_SECTION_MEMORY, FIELD(gpu_mem_list), BENCH,
     .help = "Device memory that the program may use. Every mix of tiers runs with each size.",
     .argument = "BYTES,..", .min = K * K, .max = K * K * K * K * K,
     .chosen = "all of it, and five sizes from the smallest that works to all resident",
     .elsewhere = "gpu-memory device-mem max-gpu-memory vram"},

    /* ---- verify, export and merge: input, and output of export and merge ---- */
    {"dir", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(dir), VERIFY,
     .help = "A checkpoint, the --out directory of a run with checkpoints, a Hugging Face model directory, "
             "or a GGUF file. May also be given without --dir, right after verify.",
     .argument = "DIR", .elsewhere = "checkpoint path"},
    {"dir", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(dir), EXPORT,
     .help = "A checkpoint, or the --out directory of a run (then its newest checkpoint). With --gguf also "
             "a model directory, adapters or a GGUF file. May also be given without --dir, right after "
             "export.",
     .argument = "DIR", .elsewhere = "checkpoint path"},
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), EXPORT,
     .help = "Directory of the exported model. It must be new, empty, or an earlier output of this program.",
     .argument = "MODEL", .elsewhere = "output output-dir save-dir"},
    {"best", OT_OPTION_FLAG, OT_SECTION_INPUT, FIELD(best), EXPORT,
     .help = "Export the run's checkpoint with the best evaluation instead of its newest."},
    {"gguf", OT_OPTION_CHOICE, OT_SECTION_INPUT, FIELD(gguf), EXPORT,
     .help = "Export a GGUF file for llama.cpp and Ollama instead, with tokenizer and chat template; the "
             "word is the type of its weights. bf16 and f16 keep the quality; q8_0 and q4_k_m take a half "
             "and a third of their size.",
     .choices = "f32|f16|bf16|q8_0|q6_k|q4_k_m|q4_0",
     .elsewhere = "outtype quantize quantization-method format"},
    {"modelfile", OT_OPTION_FLAG, OT_SECTION_INPUT, FIELD(modelfile), EXPORT,
     .help = "Write a Modelfile beside the GGUF file, for 'ollama create NAME -f Modelfile'."},
    {"model", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(model), EXPORT,
     .help = "The model that the run started from, if it has moved. Its config and tokenizer are copied.",
     .argument = "DIR|NAME", .chosen = "the run's --model",
     .elsewhere = "model-name-or-path base-model pretrained"},
    {"tokenizer", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(tokenizer), EXPORT,
     .help = "The tokenizer.json or SentencePiece model that the run used, if it has moved.",
     .argument = "FILE", .chosen = "the run's --tokenizer, if it had one",
     .elsewhere = "tokenizer-path tokenizer-file"},
    {"model", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(model), MERGE,
     .help = "The base of the adapters, as --model of train; or a directory of adapters that names its "
             "base. May also be given without --model, right after merge.",
     .argument = "BASE", .elsewhere = "model-name-or-path base-model pretrained base"},
    {"adapter", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(adapter), MERGE,
     .help = "Directory of adapters (PEFT). May also be given without --adapter, right after the base.",
     .argument = "DIR", .elsewhere = "adapter-name-or-path lora-path adapters lora peft-model"},
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), MERGE,
     .help = "Directory of the merged model. It must be new, empty, or an earlier output of this program.",
     .argument = "MODEL", .elsewhere = "output output-dir save-dir export-dir"},

    /* ---- quantize: output and methods ---- */
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), QUANTIZE,
     .help = "Directory of the quantized model. It must be new, empty, or an earlier output of this program.",
     .argument = "DIR", .elsewhere = "output output-dir save-dir"},
    {"to", OT_OPTION_CHOICE, OT_SECTION_INPUT, FIELD(to), QUANTIZE,
     .help = "The format. gptq:BITS is calibrated on rows, for serving; nf4, nf4-double and int8 are those "
             "of bitsandbytes, mxfp4 is that of gpt-oss; they need no rows (help quantization).",
     .choices = "gptq:4|gptq:8|gptq:3|gptq:2|nf4|nf4-double|int8|mxfp4",
     .elsewhere = "bits wbits quant-method method load-in-4bit load-in-8bit"},
    {"group-size", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(group_size), QUANTIZE,
     .help = "GPTQ: the inputs that share a scale: 16, 32, 64, 128, 256, 512, 1024, or none: all of a row.",
     .argument = "N|none", .takes_number = true, .fallback = "128", .elsewhere = "groupsize"},
    {"act-order", OT_OPTION_FLAG, OT_SECTION_INPUT, FIELD(act_order), QUANTIZE,
     .help = "GPTQ: quantize the inputs with the largest activations first. Better, but slower to serve.",
     .elsewhere = "desc-act actorder"},
    {"damping", OT_OPTION_SHARE, OT_SECTION_INPUT, FIELD(damping), QUANTIZE,
     .help = "GPTQ: what is added to the diagonal of each Hessian, as a share of its mean.",
     .argument = "SHARE", .min = 0, .max = 1, .fallback = "1%", .elsewhere = "damp-percent percdamp"},
    {"symmetric", OT_OPTION_YES_NO, OT_SECTION_INPUT, FIELD(symmetric), QUANTIZE,
     .help = "GPTQ: yes: all groups have the same zero point, which every program reads. no: each has its "
             "own, which is better with 2 and 3 bits; the file then has checkpoint_format gptq_v2.",
     .fallback = "yes", .elsewhere = "sym"},
    {"calibration-rows", OT_OPTION_COUNT, OT_SECTION_DATA, FIELD(calibration_rows), QUANTIZE,
     .help = "GPTQ calibrates on so many sequences of --seq-len tokens. The perplexity is of at most as "
             "many held-out sequences.",
     .argument = "N", .min = 1, .max = 1e6, .fallback = "128",
     .elsewhere = "nsamples n-samples num-samples calibration-samples"},
};

const struct ot_option_list ot_options_of_commands = OT_OPTION_LIST(table);
