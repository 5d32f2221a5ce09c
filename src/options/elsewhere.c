/* Options of other programs (transformers' Trainer, axolotl, torchtune, DeepSpeed, llama.cpp) that a user may
 * type here: what takes their place, or that nothing does. A name that differs in spelling alone stands in
 * `elsewhere` of our option. */
#include <string.h>
#include <strings.h>

#include "src/options/options.h"

struct foreign {
    const char *names; /* separated by spaces */
    const char *answer;
};

static const struct foreign train[] = {
    {"lora lora-r lora-rank lora-alpha lora-dropout lora-target-modules use-lora peft use-peft qlora adapter "
     "freeze freeze-layers",
     "not available: all parameters are trained"},
    {"load-in-4bit load-in-8bit quantize quantization bits fp8 use-4bit",
     "not available: weights are fp32, bf16 or fp16 (--dtype)"},
    {"report-to wandb wandb-project run-name tensorboard logging-dir mlflow",
     "not available: OUT/log.jsonl has every step, and --json writes the same records to stdout"},
    {"batch-size train-batch-size global-batch-size total-batch-size",
     "--tokens-per-step takes its place: it counts tokens, so 8 sequences of 2048 are 16k"},
    {"gradient-accumulation-steps gradient-accumulation grad-accum accumulate-grad-batches",
     "not needed: --tokens-per-step is the whole step, and --micro-batch what is computed at once"},
    {"bf16", "--dtype bf16 takes its place"},
    {"fp16", "--dtype fp16 takes its place"},
    {"fp32 no-amp", "--dtype fp32 takes its place"},
    {"gradient-checkpointing activation-checkpointing", "--recompute all takes its place"},
    {"optim optimizer", "not available: the optimizer is AdamW"},
    {"momentum nesterov", "not available: the optimizer is AdamW (--beta1, --beta2)"},
    {"zero-stage fsdp zero deepspeed-config",
     "not available: --home says where weights and optimizer state live"},
    {"nproc-per-node nnodes gpus num-gpus world-size local-rank tensor-parallel-size pipeline-parallel-size "
     "devices",
     "not available: a run uses one GPU (--device cuda:N)"},
    {"push-to-hub hub-model-id hub-token token", "not available: --out is a directory for 'hf upload'"},
    {"flash-attention use-flash-attn attn-implementation flash-attn xformers",
     "not needed: attention never stores its scores"},
    {"dataloader-num-workers num-workers num-proc preprocessing-num-workers",
     "not needed: --threads read the rows"},
    {"overwrite-output-dir overwrite",
     "--resume never begins anew and replaces the result of an earlier run"},
    {"do-train do-eval", "not needed: train trains, and --eval-every says when to evaluate"},
    {"streaming dataset-name dataset-config-name dataset-split",
     "not available: --data is a file of JSON lines on this machine"},
    {"neftune-noise-alpha label-smoothing label-smoothing-factor dropout ema",
     "not available: the loss is plain cross-entropy"},
    {"early-stopping early-stopping-patience load-best-model-at-end",
     "not available: the checkpoint with the best evaluation stays (--eval-every), and export makes a model "
     "of "
     "it"},
    {"compile torch-compile", "not needed: the kernels are compiled into the program"},
    {"trust-remote-code", "not available: no code of a model is run"},
};

static const struct foreign generate[] = {
    {"top-k min-p typical-p repetition-penalty repeat-penalty presence-penalty frequency-penalty",
     "not available: --temperature and --top-p draw"},
    {"num-beams beams beam-size", "not available: --temperature 0 takes the likeliest token each time"},
    {"stop stop-sequence stop-words stop-strings reverse-prompt",
     "not available: an end-of-text token or --max-new-tokens ends the text"},
    {"do-sample", "--temperature above 0 takes its place"},
    {"n-gpu-layers ngl gpu-layers", "not needed: --gpu-mem says how much of the GPU may be used"},
    {"ctx-size n-ctx context-size", "not needed: the model's positions bound the text"},
    {"chat interactive conversation system-prompt system",
     "not available: --row answers one data row, with messages if it has them"},
    {"num-return-sequences n", "not available: each run gives one text; --seed draws another"},
    {"host port serve server", "not available: it prints text and serves nothing"},
};

/* As spelled, but for case and '_' for '-'. */
static bool has_name(const char *names, const char *word) {
    for (size_t length; *names; names += length + (names[length] == ' ')) {
        length = strcspn(names, " ");
        size_t same = 0;
        while (same < length &&
               (strncasecmp(names + same, word + same, 1) == 0 || (names[same] == '-' && word[same] == '_')))
            same++;
        if (same == length && !word[length])
            return true;
    }
    return false;
}

static const char *find_in(const struct foreign *table, size_t n, const char *word) {
    for (size_t i = 0; i < n; i++)
        if (has_name(table[i].names, word))
            return table[i].answer;
    return NULL;
}

const char *ot_option_foreign(const char *word, enum ot_command command) {
    bool writes = command == OT_COMMAND_GENERATE;
    const char *answer = writes ? find_in(generate, sizeof generate / sizeof *generate, word) : NULL;
    if (!answer)
        answer = find_in(train, sizeof train / sizeof *train, word);
    return answer || writes ? answer : find_in(generate, sizeof generate / sizeof *generate, word);
}

const struct ot_option *ot_option_called(const char *word, enum ot_command command) {
    const struct ot_option *option, *found = NULL;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (option->elsewhere && has_name(option->elsewhere, word) &&
            (!found || (!(found->commands & (1u << command)) && (option->commands & (1u << command)))))
            found = option;
    return found;
}
