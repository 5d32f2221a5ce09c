/* Topics about what goes in: rows, models, and the environment. */
#include <stddef.h>

#include "src/options/topics.h"

static const struct ot_topic_block rows[] = {
    {NULL, "--data and --eval-data take JSON lines (.jsonl), the same with gzip (.jsonl.gz), or one JSON "
           "array of rows (.json). The shape of the first good row fixes the shape of the file; other "
           "fields are ignored. Shapes, in the order in which they are tried:"},
    {"messages", "{\"messages\": [{\"role\": \"user\", \"content\": \"..\"}, ..]}: each assistant turn "
                 "trains. Roles: system or developer; user or human; assistant, gpt, chatgpt or model."},
    {"conversations", "{\"conversations\": [{\"from\": \"human\", \"value\": \"..\"}, ..]}: the same."},
    {"instruction, output", "The output trains, behind the instruction and an optional input, in the "
                            "alpaca template."},
    {"question, context, answer", "Text-to-SQL: the answer trains, behind context and question."},
    {"prompt, completion", "Or prompt, response: the completion trains, directly behind the prompt."},
    {"text", "All of it trains. A text longer than --seq-len becomes several pieces."},
    {NULL, "Rows of instruction, prompt, messages and conversations may have system; rows of instruction "
           "and prompt may have history, pairs of strings, which become turns before the prompt. Tools "
           "and their calls are refused by name."},
    {NULL, "A row of each kind:"},
    {"", "{\"question\": \"How many singers are there?\", \"context\": \"CREATE TABLE singer (id INT)\",\n"
         " \"answer\": \"SELECT count(*) FROM singer\"}\n"
         "{\"instruction\": \"Translate to French.\", \"input\": \"Good morning\", \"output\": \"Bonjour\"}\n"
         "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}"},
    {"--columns", "For rows whose fields have other names, such as "
                  "question=query,context=schema,answer=sql: our name first."},
    {"--prompt-format", "Your own prompt around a row's fields, such as 'Q: {question}\\nA: '. The answer "
                        "follows: the field answer, completion, response or output. {{ and }} are braces."},
    {"--template", "The chat template of the rows: --help lists the names. Without it, conversations are "
                   "written as the model's own template writes them, to the last space, where it is one "
                   "of those (Llama 2 and 3.x, Qwen2, Qwen2.5 and Qwen3, Mistral v1 to v3, Zephyr, "
                   "ChatML). For another one, --template says which format to use. The result keeps the "
                   "format: generate and eval use it too."},
    {"details", "Llama 3.2's template writes the date; rows always have 26 Jul 2024. Qwen3's empty block "
                "of thoughts trains with the answer."},
    {"--train-on-prompt", "Prompts count in the loss too. Without it only answers do."},
    {"--no-eos", "Rows do not end with the end-of-text token. Without it they do, and it trains."},
    {"--pack", "yes (default): several rows share a sequence of --seq-len tokens. They never see each "
               "other: attention and positions begin anew with each row. no: one row a sequence."},
    {"--seq-len", "A row that is longer loses the oldest part of its prompt, and only if the answer alone "
                  "is too long, the answer's end. A line counts such rows."},
    {"--eval-fraction", "This share of --data is held out for evaluation (default: 2%), unless "
                        "--eval-data has rows of its own."},
    {"--skip-bad", "Rows that cannot be read are counted and left out. Without it the first such row ends "
                   "the run with its file and line."},
    {"--show-sample", "Prints a row as the model will see it, with the trained tokens marked. Look at it "
                      "before a long run."},
};
const struct ot_topic ot_topic_rows = OT_TOPIC("rows", "Training rows: shapes, templates, packing", rows);

static const struct ot_topic_block models[] = {
    {NULL, "--model takes a directory with config.json, a preset's name, or a hub id (org/name). Names "
           "are looked up in $OFFLOAD_MODELS, then in the Hugging Face cache. Nothing is downloaded: a "
           "model that is missing is an error with the command that gets it."},
    {"families", "Llama (1, 2, 3, and 3.1 or later with its rope scaling), Mistral (with sliding window), "
                 "Qwen2, Qwen2.5, Qwen3. Other architectures are refused by name."},
    {"presets", "llama-7b, llama-13b, llama-2-7b, llama-2-13b, llama-2-70b, llama-3-8b, llama-3.1-8b, "
                "llama-3.1-70b, llama-3.2-1b, tinyllama-1.1b, mistral-7b, qwen2.5-0.5b, qwen2.5-7b, "
                "qwen3-0.6b, qwen3-8b; and two tiny ones of this program, tiny-sql and tiny-test."},
    {"weights", "safetensors in fp32, fp16 or bf16, one file or shards. The result is in the same dtype. "
                "--init random makes random weights from --seed instead."},
    {"tokenizers", "Hugging Face tokenizer.json of type BPE; other types are refused by name. --tokenizer "
                   "names another file; the tiny presets have byte-level tokenizers built in."},
    {"training", "All parameters are trained, with AdamW. There are no adapters (LoRA), no frozen layers "
                 "and no quantized weights."},
};
const struct ot_topic ot_topic_models = OT_TOPIC("models", "Models, presets and tokenizers", models);

static const struct ot_topic_block environment[] = {
    {NULL, "No environment variable changes an option. These say where things are, or choose among "
           "kernels for a comparison."},
    {"OFFLOAD_MODELS", "A directory with model directories, in which --model looks for names first."},
    {"HF_HUB_CACHE", "The Hugging Face cache, where --model looks next. If it is not set: $HF_HOME/hub, "
                     "$XDG_CACHE_HOME/huggingface/hub, $HOME/.cache/huggingface/hub."},
    {"HF_HOME", "See HF_HUB_CACHE."},
    {"XDG_CACHE_HOME", "Measured rates and the GPU's choices of kernels are kept in "
                       "$XDG_CACHE_HOME/offload-train. If it is not set: $HOME/.cache/offload-train."},
    {"HOME", "For the caches above, and a place for a checkpoint if no better place works (help "
             "checkpoints)."},
    {"TMPDIR", "The last place for such a checkpoint. If it is not set: /tmp."},
    {"CUDA_VISIBLE_DEVICES", "The driver's own: which GPUs the program sees. Errors mention it where it "
                             "hides all of them."},
    {"OFFLOAD_TRAIN_CUBLASLT", "The libcublasLt.so to use, if --cublaslt is not given."},
    {"CUDA_HOME, CUDA_PATH", "CUDA toolkits in which libcublasLt is looked for, after the loader's own "
                             "search (LD_LIBRARY_PATH)."},
    {"VIRTUAL_ENV, CONDA_PREFIX", "Python environments in which it is looked for next."},
    {"PATH", "The python3 that it finds: its packages are looked through likewise."},
    {"OFFLOAD_TRAIN_KERNEL_CHECKS", "off: fast GPU kernels are trusted without their first check (help "
                                    "gpu)."},
    {"OFFLOAD_TRAIN_ADAMW", "The CPU kernel of AdamW: scalar, avx2 or avx512. Without it the fastest one "
                            "is used. All give the same bits."},
    {"OFFLOAD_TRAIN_BLAS", "Who computes fp32 matrix products on the cpu device: onednn (if its library "
                           "is there), or any other word, such as openblas, for OpenBLAS. This changes "
                           "bits."},
    {"OFFLOAD_TRAIN_BF16", "How the cpu device multiplies bf16: amx, onednn, or any other word, such as "
                           "convert, for conversion to fp32. Without it the first of these that the CPU "
                           "has is used. This changes bits."},
    {"HWLOC_HIDE_ERRORS, HWLOC_PLUGINS_PATH", "hwloc's own; the program sets them (2, and empty) where "
                                              "they are not set, to have no messages and no plugins."},
    {"OPENBLAS_NUM_THREADS", "Has no effect: the program sets it to 1 and uses threads of its own "
                             "(--threads)."},
};
const struct ot_topic ot_topic_environment = OT_TOPIC("environment", "Environment variables", environment);
