/* Options of other programs (transformers' Trainer, axolotl, torchtune, DeepSpeed, llama.cpp) that a user may
 * type here. If only the name differs, the name is in the `elsewhere` field of our option. */
#include <string.h>
#include <strings.h>

#include "src/options/options.h"

const struct ot_foreign_option ot_foreign_options[] = {
    /* ---- training ---- */
    {"load-in-4bit use-4bit",
     "use --base-type nf4 instead (to train: with --lora, --train or --freeze); quantize has --to nf4"},
    {"load-in-8bit use-8bit",
     "use --base-type int8 instead (to train: with --lora, --train or --freeze); quantize has --to int8"},
    {"bnb-4bit-use-double-quant double-quant use-nested-quant", "use --base-type nf4-double instead"},
    {"bnb-4bit-compute-dtype compute-dtype", "use --dtype instead"},
    {"fp8", "not available: weights are fp32, bf16 or fp16 (--dtype); frozen ones also have other types "
            "(--base-type)"},
    {"report-to wandb wandb-project run-name tensorboard logging-dir mlflow",
     "not available: OUT/log.jsonl has every step, and --json writes the same records to stdout"},
    {"batch-size train-batch-size global-batch-size total-batch-size",
     "use --tokens-per-step instead; it counts tokens: 8 sequences of 2048 tokens are 16k"},
    {"gradient-accumulation-steps gradient-accumulation grad-accum accumulate-grad-batches",
     "not needed: --tokens-per-step sets the whole step, --micro-batch the sequences computed at once"},
    {"bf16", "use --dtype bf16 instead"},
    {"fp16", "use --dtype fp16 instead"},
    {"fp32 no-amp", "use --dtype fp32 instead"},
    {"gradient-checkpointing activation-checkpointing", "use --recompute all instead"},
    {"optim optimizer", "not needed: the optimizer is AdamW; --state 8bit stores its state in 8 bits"},
    {"momentum nesterov", "not available: the optimizer is AdamW (--beta1, --beta2)"},
    {"zero-stage fsdp zero deepspeed deepspeed-config ds-config",
     "use --shard instead, with --gpus or --nodes: state is ZeRO-2, full is ZeRO-3 and FSDP; --home says "
     "where weights and optimizer state live"},
    {"tensor-parallel-size tensor-model-parallel-size",
     "not available: each GPU computes whole layers (--gpus N)"},
    {"pipeline-parallel-size pipeline-model-parallel-size num-stages pp",
     "use --shard stages, with --gpus or --nodes: each rank owns whole layers"},
    {"world-size", "not needed: the launcher says it, or --nodes and --gpus"},
    {"push-to-hub hub-model-id hub-token token",
     "not available: upload the --out directory with 'hf upload'"},
    {"flash-attention use-flash-attn attn-implementation flash-attn xformers",
     "not needed: attention never stores its full score matrix"},
    {"dataloader-num-workers num-workers num-proc preprocessing-num-workers",
     "not needed: the threads of --threads read the rows"},
    {"overwrite-output-dir overwrite",
     "use --resume never: it starts from the beginning and replaces the result of an earlier run"},
    {"do-train do-eval", "not needed: the train command trains, and --eval-every says when to evaluate"},
    {"streaming dataset-name dataset-config-name dataset-split",
     "not available: --data takes a .jsonl or .json file on this machine"},
    {"neftune-noise-alpha label-smoothing label-smoothing-factor",
     "not available: the loss is plain cross-entropy"},
    {"dropout attention-dropout hidden-dropout",
     "not available for the model itself; its adapters have it: --lora dropout=0.05"},
    {"ema", "not available: no averages of weights are kept"},
    {"load-best-model-at-end",
     "not needed: --result best is the default, so --out gets the model of the best "
     "evaluation (--eval-every)"},
    {"greater-is-better", "not needed: --eval-metric accuracy takes the highest, loss the lowest"},
    {"compute-metrics", "not available: evaluations (--eval-every) tell the loss and the token accuracy"},
    {"finetuning-type tuning-type train-type",
     "not needed: all parameters train; --lora trains adapters, --train and --freeze choose parameters"},
    {"stage dpo grpo ppo orpo kto ipo simpo reward-model rlhf pref-loss rl",
     "not needed for supervised fine-tuning, which train does; preferences and rewards are not available"},
    {"evaluation-strategy eval-strategy logging-strategy",
     "not needed: --eval-every, --log-every and --save-every take a number of steps, a time or an epoch"},
    {"mask-history train-on-last-turn last-turn-only",
     "not available: all answers of a conversation are trained; \"train\": false on a turn leaves it out"},
    {"compile torch-compile", "not needed: the kernels are compiled into the program"},
    {"trust-remote-code", "not available: the program never runs code from a model"},
    /* ---- generating ---- */
    {"top-k min-p typical-p repetition-penalty repeat-penalty presence-penalty frequency-penalty",
     "not available: use --temperature and --top-p for sampling"},
    {"num-beams beams beam-size", "not available: --temperature 0 always takes the most likely token"},
    {"stop stop-sequence stop-words stop-strings reverse-prompt",
     "not available: an end-of-text token or --max-new-tokens ends the text"},
    {"do-sample", "use --temperature above 0 instead"},
    {"n-gpu-layers ngl gpu-layers", "not needed: --gpu-mem sets how much GPU memory the program may use"},
    {"ctx-size n-ctx context-size", "not needed: the text may be as long as the model's maximum length"},
    {"num-return-sequences n", "not available: each prompt gets one text; another --seed makes another text"},
    {"host port serve server", "not available: the program prints text and has no server"},
};
const int ot_foreign_option_count = sizeof ot_foreign_options / sizeof *ot_foreign_options;

/* True if `word` is one of `names`. Ignores case and reads '_' as '-'. */
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

const char *ot_option_foreign(const char *word) {
    for (int i = 0; i < ot_foreign_option_count; i++)
        if (has_name(ot_foreign_options[i].names, word))
            return ot_foreign_options[i].answer;
    return NULL;
}

const struct ot_option *ot_option_called(const char *word, enum ot_command command) {
    const struct ot_option *option, *found = NULL;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (option->elsewhere && has_name(option->elsewhere, word) &&
            (!found || (!(found->commands & (1u << command)) && (option->commands & (1u << command)))))
            found = option;
    return found;
}
