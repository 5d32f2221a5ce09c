/* The option table: input and output, rows, batches, the optimizer, the machine, ranks, checkpoints. */
#include "offload/comm/world.h"
#include "src/options/schedule_lr.h"
#include "src/options/table.h"

static const struct ot_option table[] = {
    /* ---- input and output ---- */
    {"model", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(model), MODELS | TOKENIZE | PLAN | BENCH | QUANTIZE,
     .help = "A Hugging Face model directory, a GGUF file, a preset such as llama-7b or tinyllama-1.1b, or "
             "a hub id. Names are searched in $OFFLOAD_MODELS, then in the Hugging Face cache. Nothing is "
             "downloaded.",
     .argument = "DIR|NAME", .on_resume = OT_RESUME_CONTENT,
     .elsewhere = "model-name-or-path base-model pretrained checkpoint"},
    {"data", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(data), TRAIN | EVAL | PLAN | QUANTIZE,
     .help = "File of rows to train on or to evaluate: .jsonl, .jsonl.gz or .json. Each row has text; "
             "prompt and completion or response; instruction, input, output; messages or conversations; "
             "question, context, answer; or input, target.",
     .argument = "FILE", .on_resume = OT_RESUME_CONTENT, .elsewhere = "dataset train-data train-file input"},
    {"eval-data", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(eval_data), TRAIN | QUANTIZE,
     .help = "File of rows for evaluation, instead of a share of --data.", .argument = "FILE",
     .on_resume = OT_RESUME_CONTENT, .elsewhere = "validation-data eval-file validation-file"},
    {"out", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(out), TRAIN,
     .help = "Directory of the trained model: a Hugging Face directory with a log.jsonl.", .argument = "DIR",
     .chosen = "out/MODEL-DATA, from their names", .on_resume = OT_RESUME_FREE,
     .elsewhere = "output output-dir save-dir"},
    {"init", OT_OPTION_CHOICE, OT_SECTION_INPUT, FIELD(init), TRAIN,
     .help = "Start from the model's weight files, or from random weights made from --seed. With random, a "
             "preset without a tokenizer needs --tokenizer.",
     .choices = "files|random", .fallback = "files", .on_resume = OT_RESUME_SAME,
     .elsewhere = "from-scratch"},
    {"train", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(train), TRAIN | PLAN | BENCH,
     .help = "Train only these tensors; the others are frozen, and need no gradients and no optimizer "
             "state. embeddings, head, norms, biases, layers:8-11, first:4, last:4, or a name with "
             "wildcards, like '*.q_proj.*'.",
     .argument = "WHAT,..", .chosen = "all parameters", .on_resume = OT_RESUME_SAME,
     .elsewhere = "trainable-layers train-layers unfreeze trainable freeze-except"},
    {"freeze", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(freeze), TRAIN | PLAN | BENCH,
     .help = "Train all tensors but these, or all of --train but these. As --train.", .argument = "WHAT,..",
     .on_resume = OT_RESUME_SAME,
     .elsewhere = "freeze-layers freeze-embeddings freeze-modules freeze-trainable-layers"},
    {"lora", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(lora), TRAIN | PLAN | BENCH,
     .help = "Train low-rank adapters (LoRA), and of the model itself only what --train names. The result "
             "is a directory for PEFT. Settings: r=16,alpha=32,dropout=0.05,rslora,dora,lr-ratio=16 and "
             "targets=q_proj,v_proj (default: all-linear), r:NAME=8,alpha:NAME=16; see help lora.",
     .argument = "[r=16,..]", .bare = "r=16", .on_resume = OT_RESUME_SAME,
     .elsewhere = "lora-r lora-rank lora-alpha lora-dropout lora-target-modules use-lora peft use-peft "
                  "qlora lora-target rank-pattern loraplus-lr-ratio target-parameters "
                  "lora-target-parameters"},
    {"rope-scaling", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(rope_scaling), MODELS | PLAN | BENCH,
     .help = "Stretch the model's context to N times its positions, for a longer --seq-len: yarn:4, "
             "linear:2 or dynamic:4. The result's config.json has it. Only for models whose config has no "
             "rope scaling.",
     .argument = "TYPE:N", .on_resume = OT_RESUME_SAME,
     .elsewhere = "rope-scaling-type rope-factor rope-scaling-factor rope-freq-scale yarn-orig-ctx"},
    {"adapter", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(adapter), MODELS,
     .help = "Directory of adapters (PEFT) over --model: train goes on from them, generate and eval use "
             "them. --model DIR with such a directory finds the base by itself.",
     .argument = "DIR", .on_resume = OT_RESUME_SAME,
     .elsewhere = "adapter-name-or-path lora-path adapters lora-modules peft-model"},
    {"base-type", OT_OPTION_CHOICE, OT_SECTION_INPUT, FIELD(base_type), MODELS | PLAN | BENCH,
     .help = "Format of the layers' frozen matrices on all tiers: int8 (8 bits a weight), nf4 (4.5) or "
             "nf4-double (4.13), as in bitsandbytes and QLoRA; mxfp4 (4.25), as in gpt-oss. They are "
             "decoded before each use, so the run trains over the decoded weights; its result has the exact "
             "ones (help lora). auto: as --dtype. eval and generate: of all matrices of the layers.",
     .choices = "auto|bf16|fp16|int8|nf4|nf4-double|mxfp4", .fallback = "auto", .on_resume = OT_RESUME_SAME,
     .elsewhere = "bnb-4bit-quant-type quant-type base-dtype quantize quantization quantization-bit bits"},
    {"tokenizer", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(tokenizer),
     MODELS | TOKENIZE | PLAN | MERGE | QUANTIZE, .help = "Hugging Face tokenizer.json (BPE).",
     .argument = "FILE", .chosen = "tokenizer.json of the model", .on_resume = OT_RESUME_CONTENT,
     .elsewhere = "tokenizer-path tokenizer-file"},
    {"config", OT_OPTION_TEXT, OT_SECTION_INPUT, FIELD(config), OT_FOR_ALL,
     .help = "JSON file with an object that has option names as keys. The command line wins over it. The "
             "run.json of an earlier run is such a file.",
     .argument = "FILE", .on_resume = OT_RESUME_FREE, .elsewhere = "config-file"},

    /* ---- data ---- */
    {"template", OT_OPTION_TEXT, OT_SECTION_DATA, FIELD(template_name), MODELS | PLAN | QUANTIZE,
     .help = "Built-in chat template for rows: llama-2, llama-3, llama-3.1 (and 3.2, 3.3), chatml, qwen2, "
             "qwen2.5, qwen3, mistral, mistral-v0 to mistral-v3, mistral-tekken, zephyr or alpaca. Without "
             "--template, train renders the model's own template; generate and eval use the template of the "
             "run that made the model (help templates).",
     .argument = "NAME", .chosen = "from the fields of the rows", .on_resume = OT_RESUME_SAME,
     .elsewhere = "chat-template"},
    {"prompt-format", OT_OPTION_TEXT, OT_SECTION_DATA, FIELD(prompt_format), MODELS | PLAN | QUANTIZE,
     .help = "Your own prompt with the fields of a row, such as 'Q: {question}\\nA: '. The answer follows "
             "it.",
     .argument = "TEXT", .on_resume = OT_RESUME_SAME, .elsewhere = "prompt-template"},
    {"columns", OT_OPTION_TEXT, OT_SECTION_DATA, FIELD(columns), MODELS | PLAN | QUANTIZE,
     .help = "Names of the fields in your rows, such as question=query,context=schema,answer=sql: our name "
             "first.",
     .argument = "OURS=THEIRS,..", .on_resume = OT_RESUME_SAME,
     .elsewhere = "column-names dataset-text-field prompt-column response-column field-map"},
    {"seq-len", OT_OPTION_COUNT, OT_SECTION_DATA, FIELD(seq_len), TRAIN | EVAL | PLAN | BENCH | QUANTIZE,
     .help = "Length of a sequence. Longer rows lose the beginning of their prompt.", .argument = "TOKENS",
     .min = 8, .max = 1 << 20, .of_tokens = true, .chosen = "2048, or the model's maximum if that is less",
     .on_resume = OT_RESUME_SAME,
     .elsewhere = "max-length max-seq-length max-seq-len block-size cutoff-len context-length"},
    {"pack", OT_OPTION_YES_NO, OT_SECTION_DATA, FIELD(pack), TRAIN | EVAL | PLAN | QUANTIZE,
     .help = "yes: put several rows into one sequence; attention never crosses from one row to another. no: "
             "one row per sequence.",
     .fallback = "yes", .on_resume = OT_RESUME_SAME, .elsewhere = "packing sample-packing"},
    {"train-on-prompt", OT_OPTION_FLAG, OT_SECTION_DATA, FIELD(train_on_prompt),
     TRAIN | EVAL | PLAN | QUANTIZE,
     .help = "Count the tokens of prompts in the loss too, not only those of answers.",
     .on_resume = OT_RESUME_SAME, .elsewhere = "train-on-inputs train-on-input"},
    {"no-eos", OT_OPTION_FLAG, OT_SECTION_DATA, FIELD(no_eos), TRAIN | EVAL | PLAN | QUANTIZE,
     .help = "Do not end rows with the end-of-text token.", .on_resume = OT_RESUME_SAME},
    {"skip-bad", OT_OPTION_FLAG, OT_SECTION_DATA, FIELD(skip_bad), TRAIN | EVAL | PLAN | QUANTIZE,
     .help = "Skip and count rows that cannot be read, instead of stopping at the first one.",
     .on_resume = OT_RESUME_SAME},
    {"eval-fraction", OT_OPTION_SHARE, OT_SECTION_DATA, FIELD(eval_fraction), TRAIN | PLAN | QUANTIZE,
     .help = "Share of --data that is held out for evaluation, chosen by --seed. 0: train on all rows.",
     .argument = "SHARE", .min = 0, .max = 0.5, .fallback = "2%", .on_resume = OT_RESUME_SAME,
     .elsewhere = "eval-split validation-split val-size val-set-size test-size eval-size"},
    {"show-sample", OT_OPTION_FLAG, OT_SECTION_DATA, FIELD(show_sample), TRAIN | EVAL,
     .help = "Print one row as the model will see it, with the trained tokens marked.",
     .on_resume = OT_RESUME_FREE},

    /* ---- step ---- */
    {"epochs", OT_OPTION_COUNT, OT_SECTION_STEP, FIELD(epochs), TRAIN | PLAN,
     .help = "Passes over the training rows.", .argument = "N", .min = 1, .max = 1e6, .chosen = "3",
     .on_resume = OT_RESUME_LENGTH, .elsewhere = "num-epochs num-train-epochs"},
    {"steps", OT_OPTION_COUNT, OT_SECTION_STEP, FIELD(steps), TRAIN | PLAN,
     .help = "Optimizer steps, instead of --epochs.", .argument = "N", .min = 1, .max = MANY,
     .on_resume = OT_RESUME_LENGTH, .elsewhere = "max-steps num-steps iterations max-iters"},
    {"tokens-per-step", OT_OPTION_STEP, OT_SECTION_STEP, FIELD(tokens_per_step), TRAIN | PLAN,
     .help = "Tokens of one optimizer step, rounded down to whole sequences; 16k is 16,384. auto:8k..64k: "
             "the fewest within these bounds that reach the best predicted rate.",
     .argument = "TOKENS", .min = 8, .max = MANY, .of_tokens = true,
     .chosen = "64k, or less if an epoch would have fewer than 50 steps", .on_resume = OT_RESUME_SAME,
     .elsewhere = "batch-size train-batch-size global-batch-size batch-tokens total-batch-size"},
    {"micro-batch", OT_OPTION_COUNT, OT_SECTION_STEP, FIELD(micro_batch), TRAIN | EVAL | PLAN,
     .help = "Sequences computed at once. Changes speed and memory, not the tokens of a step.",
     .argument = "SEQUENCES", .min = 1, .max = 1 << 20, .chosen = "from the memory budget",
     .on_resume = OT_RESUME_SAME,
     .elsewhere = "micro-batch-size per-device-train-batch-size train-micro-batch-size-per-gpu"},
    {"seed", OT_OPTION_COUNT, OT_SECTION_STEP, FIELD(seed), TRAIN | GENERATE | BENCH | PLAN | QUANTIZE,
     .help = "Random seed for row order, eval split, random weights and sampling.", .argument = "N", .min = 0,
     .max = 9007199254740992.0, .fallback = "0", .on_resume = OT_RESUME_SAME, .elsewhere = "random-seed"},

    /* ---- optimizer ---- */
    {"lr", OT_OPTION_REAL, OT_SECTION_OPTIMIZER, FIELD(lr), TRAIN, .help = "Peak learning rate of AdamW.",
     .argument = "RATE", .min = 0, .max = 1,
     .chosen = "3e-5 * sqrt(1e9 / parameters), within 1e-5 and 1e-3; with --init random 10 times that, "
               "at most 3e-3",
     .on_resume = OT_RESUME_SAME, .elsewhere = "learning-rate max-lr"},
    {"schedule", OT_OPTION_CHOICE, OT_SECTION_OPTIMIZER, FIELD(schedule), TRAIN,
     .help = "Learning rate after warm-up: linear falls to 0, cosine falls to 10 %, wsd stays at the peak "
             "and falls to 0 in the last 20 % of the steps.",
     .choices = "constant|linear|cosine|wsd", .fallback = "cosine", .on_resume = OT_RESUME_SAME,
     .elsewhere = "lr-scheduler lr-scheduler-type lr-schedule scheduler"},
    {"warmup", OT_OPTION_WARMUP, OT_SECTION_OPTIMIZER, FIELD(warmup), TRAIN,
     .help = "Number of steps in which the learning rate rises, or with a percent sign their share of all "
             "steps.",
     .argument = "STEPS|SHARE", .min = 0, .max = MANY, .fallback = "3%", .on_resume = OT_RESUME_SAME,
     .elsewhere = "warmup-steps warmup-ratio num-warmup-steps"},
    {"weight-decay", OT_OPTION_REAL, OT_SECTION_OPTIMIZER, FIELD(weight_decay), TRAIN,
     .help = "Decoupled weight decay. It is not applied to norms and biases.", .argument = "X", .min = 0,
     .max = 1, .fallback = "0.01", .on_resume = OT_RESUME_SAME, .elsewhere = "wd decay"},
    {"beta1", OT_OPTION_REAL, OT_SECTION_OPTIMIZER, FIELD(beta1), TRAIN,
     .help = "Decay of AdamW's running mean of the gradient.", .argument = "X", .min = 0, .max = 0.9999999,
     .fallback = "0.9", .on_resume = OT_RESUME_SAME, .elsewhere = "adam-beta1"},
    {"beta2", OT_OPTION_REAL, OT_SECTION_OPTIMIZER, FIELD(beta2), TRAIN,
     .help = "Decay of AdamW's running mean of the squared gradient.", .argument = "X", .min = 0,
     .max = 0.9999999, .fallback = "0.95", .on_resume = OT_RESUME_SAME, .elsewhere = "adam-beta2"},
    {"state", OT_OPTION_CHOICE, OT_SECTION_OPTIMIZER, FIELD(state), TRAIN | PLAN,
     .help = "Format of AdamW's two running means: 8, 4 or 2.1 bytes a parameter. fp32 is exact. 16bit and "
             "8bit need less memory and move fewer bytes, but round the means stochastically, so results "
             "differ a little. The master weights stay exact (--master-weights). Where the means live is "
             "--home state=.",
     .choices = "fp32|16bit|8bit", .fallback = "fp32", .on_resume = OT_RESUME_CONVERT,
     .elsewhere = "optim-bits adam8bit adamw-8bit adamw8bit optimizer-bits optimizer-state"},
    {"master-weights", OT_OPTION_CHOICE, OT_SECTION_OPTIMIZER, FIELD(master_weights), TRAIN | PLAN,
     .help = "fp32: exact. none: bf16 weights without fp32 masters, rounded stochastically in each update. "
             "This takes 2 bytes a parameter less, and training is less exact. Needs --dtype bf16. It is "
             "for comparison with programs that train so.",
     .choices = "fp32|none", .fallback = "fp32", .on_resume = OT_RESUME_CONVERT,
     .elsewhere = "masters use-master-weights keep-master-weights master-params stochastic-rounding"},
    {"eps", OT_OPTION_REAL, OT_SECTION_OPTIMIZER, FIELD(eps), TRAIN, .help = "AdamW's epsilon.",
     .argument = "X", .min = 1e-12, .max = 1e-2, .fallback = "1e-8", .on_resume = OT_RESUME_SAME,
     .elsewhere = "adam-epsilon epsilon"},
    {"clip", OT_OPTION_REAL, OT_SECTION_OPTIMIZER, FIELD(clip), TRAIN | PLAN,
     .help = "Largest allowed norm of the whole gradient; a larger gradient is scaled down to it. 0 turns "
             "clipping off.",
     .argument = "NORM", .min = 0, .max = MANY, .fallback = "1.0", .on_resume = OT_RESUME_SAME,
     .elsewhere = "max-grad-norm gradient-clipping grad-clip clip-norm"},

    /* ---- memory and machine ---- */
    {"device", OT_OPTION_DEVICE, OT_SECTION_MEMORY, FIELD(device),
     MODELS | PROBE | PLAN | BENCH | COMM_TEST | QUANTIZE,
     .help = "Device that computes the model. auto is the first GPU, or the cpu device if this build can "
             "use no GPU. The memory of the cpu device is a part of RAM with a fixed size (--gpu-mem).",
     .argument = "auto|cpu|cuda[:N]", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "accelerator gpu"},
    {"dtype", OT_OPTION_CHOICE, OT_SECTION_MEMORY, FIELD(dtype), MODELS | PROBE | PLAN | BENCH | QUANTIZE,
     .help = "Format of weights and activations on the device. auto is bf16 on a GPU (fp16 on a GPU without "
             "bf16), and fp32 on the cpu device. Training keeps exact fp32 masters (--master-weights). fp16 "
             "uses a dynamic loss scale.",
     .choices = "auto|bf16|fp32|fp16", .fallback = "auto", .on_resume = OT_RESUME_SAME,
     .elsewhere = "precision mixed-precision torch-dtype bf16 fp32 fp16"},
    {"cublaslt", OT_OPTION_TEXT, OT_SECTION_MEMORY, FIELD(cublaslt),
     MODELS | PROBE | BENCH | COMM_TEST | QUANTIZE,
     .help = "The libcublasLt.so of CUDA 12 or 13 that computes matrix products on a GPU. Another version "
             "may give other bits.",
     .argument = "FILE",
     .chosen = "$OFFLOAD_TRAIN_CUBLASLT, else that of the loader, of a CUDA toolkit or of a Python "
               "package",
     .on_resume = OT_RESUME_FREE, .elsewhere = "cublas blas cuda-home"},
    {"gpu-mem", OT_OPTION_BYTES, OT_SECTION_MEMORY, FIELD(gpu_mem),
     MODELS | PROBE | PLAN | COMM_TEST | QUANTIZE,
     .help = "Device memory that the program may use, such as 24G. Data that does not fit is streamed. If "
             "you ask for more than is free, the program warns and tries. If you ask for more than the GPU "
             "has, it uses all of it.",
     .argument = "BYTES", .min = K * K, .max = K * K * K * K * K,
     .chosen = "the free GPU memory less a reserve; cpu device: half of the free RAM",
     .on_resume = OT_RESUME_FREE, .elsewhere = "gpu-memory device-mem max-gpu-memory vram"},
    {"host-mem", OT_OPTION_BYTES, OT_SECTION_MEMORY, FIELD(host_mem),
     MODELS | PROBE | PLAN | BENCH | COMM_TEST | QUANTIZE,
     .help = "Pinned host memory that the program may use. The default respects the limits of a container. "
             "If you ask for more than is free, the program warns and tries.",
     .argument = "BYTES", .min = K * K, .max = K * K * K * K * K,
     .chosen = "free RAM less --gpu-mem (on the cpu device) and a reserve of 10 %",
     .on_resume = OT_RESUME_FREE, .elsewhere = "cpu-mem host-memory cpu-memory ram"},
    {"nvme", OT_OPTION_NVME, OT_SECTION_MEMORY, FIELD(nvme), MODELS | PROBE | PLAN | BENCH,
     .help = "Directory on a local disk for what fits neither in GPU memory nor in RAM, such as "
             "/mnt/a:500G. Without SIZE, the program may use the free space less a reserve. You may give "
             "several --nvme; they are used in parallel.",
     .argument = "DIR[:SIZE]", .min = K * K, .max = K * K * K * K * K, .on_resume = OT_RESUME_FREE,
     .elsewhere = "nvme-path nvme-dir offload-dir offload-folder swap-dir"},
    {"io-engine", OT_OPTION_CHOICE, OT_SECTION_MEMORY, FIELD(io_engine), MODELS | PROBE | BENCH,
     .help = "How the program reads and writes --nvme and checkpoints: with io_uring (uring) or with "
             "threads (pool). auto uses threads if the system refuses io_uring; uring ends with an error "
             "then.",
     .choices = "auto|uring|pool", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "aio ioengine"},
    {"no-io-verify", OT_OPTION_FLAG, OT_SECTION_MEMORY, FIELD(no_io_verify), MODELS | PROBE | BENCH,
     .help = "Do not check the checksums of data that is read back from --nvme.",
     .on_resume = OT_RESUME_FREE},
    {"home", OT_OPTION_HOMES, OT_SECTION_MEMORY, FIELD(home), TRAIN | PLAN,
     .help = "Force the tier on which weights, state (of the optimizer), activations (between layers), kept "
             "(activations inside layers), grads (that wait for their update) and sums (of gradients, "
             "between rounds) live between uses: gpu, host, nvme or auto for each. It does not change the "
             "result of a run.",
     .argument = "WHAT=TIER,..", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "offload offload-optimizer offload-param cpu-offload"},
    {"optimizer-engine", OT_OPTION_ENGINES, OT_SECTION_MEMORY, FIELD(optimizer_engine), TRAIN | PLAN,
     .help = "Where weights are updated: gpu (their state lives on the GPU), cpu, stream (their state lives "
             "in RAM or on disk and comes to the GPU for the update), or shares of these. auto: gpu as far "
             "as memory allows, then the mix of cpu and stream that is predicted to be fastest. All give "
             "the same result.",
     .argument = "ENGINE|ENGINE:SHARE,..", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "offload-optimizer-device"},
    {"slots", OT_OPTION_COUNT, OT_SECTION_MEMORY, FIELD(slots), TRAIN | PLAN,
     .help = "Number of GPU buffers for streamed weights.", .argument = "N", .min = 1,
     .max = OT_PLAN_MAX_SLOTS, .chosen = "from the memory budget", .on_resume = OT_RESUME_FREE,
     .elsewhere = "buffer-count"},
    {"fetch-experts", OT_OPTION_CHOICE, OT_SECTION_MEMORY, FIELD(fetch_experts), MODELS | PLAN,
     .help = "Which experts of a layer are copied to the GPU, if the layer lives in RAM or on disk, and "
             "decoded, if it is quantised: used: the experts that the tokens at hand have chosen, once they "
             "are known; all: the whole layer, ahead of its use. auto: used for generation, if a token "
             "chooses at most half of them; in training, the faster one by prediction. It does not change "
             "the result.",
     .choices = "auto|used|all", .fallback = "auto", .on_resume = OT_RESUME_FREE},
    {"recompute", OT_OPTION_CHOICE, OT_SECTION_MEMORY, FIELD(recompute), TRAIN | PLAN,
     .help = "What backward computes again inside a layer: all; products: everything but attention; "
             "elementwise: norms and activation functions alone; none. What is not computed again is kept. "
             "auto: the fastest for each layer. It does not change the result of a run.",
     .choices = "auto|all|products|elementwise|none", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "gradient-checkpointing activation-checkpointing"},
    {"rounds", OT_OPTION_COUNT, OT_SECTION_MEMORY, FIELD(rounds), TRAIN | PLAN,
     .help = "Number of rounds in a step. A round is a part of the micro-batches that goes forward and "
             "backward through all layers. More rounds keep fewer activations and fetch weights more often; "
             "the result is the same.",
     .argument = "N", .min = 1, .max = 65536, .chosen = "by the planner", .on_resume = OT_RESUME_FREE},
    {"shadow", OT_OPTION_BYTES, OT_SECTION_MEMORY, FIELD(shadow), TRAIN | PLAN,
     .help = "Host memory for updates that the CPU makes during backward, before the norm of the step is "
             "known, such as 8G. It keeps the old values, for the case that the step is clipped or skipped. "
             "The memory of activations that are kept on the host is used too. 0: no such updates. It does "
             "not change the result of a run.",
     .argument = "BYTES", .min = 0, .max = K * K * K * K * K,
     .chosen = "by the planner, from host memory that is left", .on_resume = OT_RESUME_FREE,
     .elsewhere = "speculative-updates"},
    {"threads", OT_OPTION_COUNT, OT_SECTION_MEMORY, FIELD(threads), OT_FOR_ALL & ~(VERIFY | EXPORT),
     .help = "Number of CPU threads for computing and tokenizing.", .argument = "N", .min = 1, .max = 1024,
     .chosen = "the cores that this process may use", .on_resume = OT_RESUME_FREE,
     .elsewhere = "num-threads n-threads workers"},
    {"optimizer-threads", OT_OPTION_COUNT, OT_SECTION_MEMORY, FIELD(optimizer_threads), TRAIN | BENCH,
     .help = "Number of CPU threads that update weights whose optimizer state lives in RAM.", .argument = "N",
     .min = 1, .max = 1024, .chosen = "the same as --threads", .on_resume = OT_RESUME_FREE},

    /* ---- several GPUs and hosts ---- */
    {"gpus", OT_OPTION_TEXT, OT_SECTION_RANKS, FIELD(gpus), TRAIN | COMM_TEST | PROBE | PLAN,
     .help = "Number of GPUs of this host that train together. The program starts one process (a rank) for "
             "each. With --device cpu, the number of ranks. plan: GPUs of each described host.",
     .argument = "N|all", .takes_number = true, .chosen = "1, or what the launcher says",
     .on_resume = OT_RESUME_FREE, .elsewhere = "num-gpus nproc-per-node devices num-devices n-gpus"},
    {"nodes", OT_OPTION_COUNT, OT_SECTION_RANKS, FIELD(nodes), TRAIN | COMM_TEST | PROBE | PLAN,
     .help = "Number of hosts that train together, without a launcher. Start the same command on each, with "
             "its own --node-rank, and with --master.",
     .argument = "N", .min = 1, .max = OT_MAX_RANKS, .chosen = "1, or what the launcher says",
     .on_resume = OT_RESUME_FREE, .elsewhere = "nnodes num-nodes"},
    {"node-rank", OT_OPTION_COUNT, OT_SECTION_RANKS, FIELD(node_rank), TRAIN | COMM_TEST | PROBE,
     .help = "Number of this host among --nodes, from 0. Host 0 writes the result.", .argument = "N",
     .min = 0, .max = OT_MAX_RANKS - 1, .on_resume = OT_RESUME_FREE, .elsewhere = "machine-rank"},
    {"master", OT_OPTION_TEXT, OT_SECTION_RANKS, FIELD(master), TRAIN | COMM_TEST | PROBE,
     .help = "Where rank 0 listens for the other ranks. :PORT replaces only the port that a launcher "
             "suggests. If HOST is an IP address or localhost, rank 0 listens there alone.",
     .argument = "HOST[:PORT]", .chosen = "what the launcher says; port 29600", .on_resume = OT_RESUME_FREE,
     .elsewhere = "master-addr master-port main-process-ip main-process-port rdzv-endpoint"},
    {"comm", OT_OPTION_TEXT, OT_SECTION_RANKS, FIELD(comm), TRAIN | COMM_TEST | PROBE,
     .help = "How ranks exchange data. self is for one rank, and tcp for ranks on CPUs; both are built in. "
             "NAME is a plugin: libot-comm-NAME.so beside the program or in a folder of "
             "$OFFLOAD_TRAIN_PLUGINS. FILE is the path of a plugin. auto is self for one rank, nccl if each "
             "rank has a GPU of its own, and else tcp.",
     .argument = "auto|self|tcp|NAME|FILE", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "backend communicator dist-backend"},
    {"comm-timeout", OT_OPTION_TIME, OT_SECTION_RANKS, FIELD(comm_timeout), TRAIN | COMM_TEST | PROBE,
     .help = "The longest wait for another rank. Then the run ends and says which rank did not come.",
     .argument = "TIME", .min = 1, .max = MANY, .fallback = "10m", .on_resume = OT_RESUME_FREE,
     .elsewhere = "ddp-timeout timeout"},
    {"shard", OT_OPTION_CHOICE, OT_SECTION_RANKS, FIELD(shard), TRAIN | PLAN,
     .help = "What each of W ranks holds. none: everything (as DDP). state: 1/W of optimizer state and "
             "gradients, and all weights in GPU memory (as ZeRO-2). full: 1/W of everything (as ZeRO-3, "
             "FSDP). auto is which of these three the planner predicts to be fastest, or full with "
             "--no-forecast. Their bits are the same. stages: whole layers (a pipeline): activations "
             "cross between ranks, weights do not. Its bits are those of one GPU, so it must be asked "
             "for.",
     .choices = "auto|none|state|full|stages", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "zero-stage fsdp sharding-strategy zero"},
    {"share-weights", OT_OPTION_CHOICE, OT_SECTION_RANKS, FIELD(share_weights), TRAIN | PLAN,
     .help = "Whether the ranks of a host keep one copy of all weights in RAM together, which each GPU "
             "reads whole. Otherwise each GPU reads its part, and gathers the others from the other GPUs. "
             "It needs --shard full, and all ranks on one host, not in containers of their own. auto is "
             "what the planner predicts to be faster (usually yes if the GPUs cannot copy to each other), "
             "or no with --no-forecast. The bits are the same.",
     .choices = "auto|yes|no", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "shared-weights share-memory"},
    {"exchange", OT_OPTION_CHOICE, OT_SECTION_RANKS, FIELD(exchange), TRAIN | PLAN,
     .help = "Format in which gradient sums cross between ranks. dtype is that of --dtype: half of the "
             "bytes, but each rank's sum is rounded before the sums are added in fp32.",
     .choices = "fp32|dtype", .fallback = "fp32", .on_resume = OT_RESUME_SAME,
     .elsewhere = "grad-reduce-dtype communication-data-type"},
    {"deterministic", OT_OPTION_CHOICE, OT_SECTION_RANKS, FIELD(deterministic), TRAIN | PLAN,
     .help = "run: the same bits in every run with the same number of ranks. world: the same bits with 1, "
             "2, 4 and 8 ranks, so that a run may go on with another number. It needs up to four gradient "
             "sums of a layer on the device instead of one.",
     .choices = "run|world", .fallback = "run", .on_resume = OT_RESUME_SAME},
    {"save-local", OT_OPTION_FLAG, OT_SECTION_RANKS, FIELD(save_local), TRAIN,
     .help = "For hosts without a shared directory: each host keeps the checkpoint parts of its own ranks "
             "in its --out, and the run continues only with the same ranks on the same hosts (help "
             "checkpoints). The model is written on the host of rank 0.",
     .on_resume = OT_RESUME_FREE, .elsewhere = "save-on-each-node use-node-local-storage"},
    {"sizes", OT_OPTION_SIZES, OT_SECTION_RANKS, FIELD(sizes), COMM_TEST,
     .help = "The sizes that are measured: bytes of the part that one rank sends to another.",
     .argument = "BYTES,..", .min = 1, .max = K * K * K * K, .fallback = "64K,1M,16M",
     .elsewhere = "size bytes"},

    /* ---- checkpoints, resuming, and limits that end a run that goes wrong ---- */
    {"save-every", OT_OPTION_EVERY, OT_SECTION_SAFETY, FIELD(save_every), TRAIN,
     .help = "Save a checkpoint after this many steps, after this time, or after each epoch. Training "
             "continues meanwhile. never: save only when the run is stopped or gets SIGUSR1.",
     .argument = "STEPS|TIME|epoch|never", .choices = "epoch|never", .min = 1, .max = MANY, .fallback = "30m",
     .on_resume = OT_RESUME_FREE,
     .elsewhere = "save-steps save-interval save-strategy checkpoint-every checkpoint-interval"},
    {"keep", OT_OPTION_COUNT, OT_SECTION_SAFETY, FIELD(keep), TRAIN,
     .help = "Number of newest checkpoints to keep. The checkpoint with the best evaluation, which is saved "
             "at once, is kept too. An old checkpoint is deleted only when a newer one is complete.",
     .argument = "N", .min = 1, .max = 10000, .fallback = "1", .on_resume = OT_RESUME_FREE,
     .elsewhere = "save-total-limit keep-last keep-checkpoints max-checkpoints"},
    {"resume", OT_OPTION_TEXT, OT_SECTION_SAFETY, FIELD(resume), TRAIN,
     .help = "auto: continue from the newest checkpoint in --out, if there is one. DIR: continue from this "
             "checkpoint, or from the newest of this output directory. never: start from the beginning. A "
             "resumed run keeps the recorded options that fix the result. A finished run is only verified, "
             "unless you use never.",
     .argument = "auto|DIR|never", .fallback = "auto", .on_resume = OT_RESUME_FREE,
     .elsewhere = "resume-from-checkpoint resume-from load-checkpoint continue restart"},
    {"exact", OT_OPTION_FLAG, OT_SECTION_SAFETY, FIELD(exact), TRAIN,
     .help = "Resume only if the result stays equal, bit for bit, to that of an uninterrupted run. Bits "
             "depend on seed, rows, options and micro-batch, and on the device: the GPU model and cuBLASLt, "
             "or the CPU's instruction set and its library of matrix products (oneDNN, OpenBLAS). Without "
             "--exact, another device is only a warning.",
     .on_resume = OT_RESUME_FREE, .elsewhere = "deterministic reproducible strict-resume"},
    {"grace", OT_OPTION_TIME, OT_SECTION_SAFETY, FIELD(grace), TRAIN,
     .help = "Time to save after SIGTERM or Ctrl-C, such as 30s. The run saves only what it can write in "
             "this time.",
     .argument = "TIME", .min = 1, .max = MANY, .chosen = "no limit", .on_resume = OT_RESUME_FREE,
     .elsewhere = "grace-period preemption-grace"},
    {"stall-limit", OT_OPTION_TIME, OT_SECTION_SAFETY, FIELD(stall_limit), TRAIN,
     .help = "End the run if no task makes progress for this long, and name the task that hangs.",
     .argument = "TIME", .min = 1, .max = MANY, .fallback = "10m", .on_resume = OT_RESUME_FREE,
     .elsewhere = "watchdog hang-timeout timeout ddp-timeout"},
    {"max-shard-size", OT_OPTION_BYTES, OT_SECTION_SAFETY, FIELD(max_shard_size),
     TRAIN | EXPORT | MERGE | QUANTIZE,
     .help = "Size limit of each weight file of the result, such as 2G. A tensor that is larger gets its "
             "own file.",
     .argument = "BYTES", .min = K * K, .max = K * K * K * K * K, .chosen = "5000000000, as in transformers",
     .on_resume = OT_RESUME_FREE, .elsewhere = "shard-size max-file-size"},
    {"max-skips", OT_OPTION_COUNT, OT_SECTION_SAFETY, FIELD(max_skips), TRAIN,
     .help = "End the run after this many skipped steps in a row. A step is skipped if its gradient is not "
             "finite or its loss is a spike.",
     .argument = "N", .min = 1, .max = MANY, .fallback = "20", .on_resume = OT_RESUME_FREE,
     .elsewhere = "max-skipped-steps"},
    {"skip-spikes", OT_OPTION_REAL, OT_SECTION_SAFETY, FIELD(skip_spikes), TRAIN,
     .help = "Skip a step if its loss is more than X standard deviations above the running mean. 0: skip "
             "none.",
     .argument = "X", .min = 0, .max = 1000, .fallback = "0", .on_resume = OT_RESUME_SAME,
     .elsewhere = "spike-threshold loss-spike skip-spike"},
};

_Static_assert(OT_SCHEDULE_CONSTANT == 0 && OT_SCHEDULE_LINEAR == 1 && OT_SCHEDULE_COSINE == 2 &&
                   OT_SCHEDULE_WSD == 3,
               "the choices of --schedule are in the order of the enum");
_Static_assert(OT_IO_AUTO == 0 && OT_IO_URING == 1 && OT_IO_POOL == 2,
               "the choices of --io-engine are in the order of the enum");

const struct ot_option_list ot_options_of_train = OT_OPTION_LIST(table);
