/* Topics about what goes in: rows, models, and the environment. */
#include <stddef.h>

#include "src/options/topics.h"

static const struct ot_topic_block rows[] = {
    {NULL,
     "--data and --eval-data take a file of JSON lines (.jsonl), the same compressed with gzip "
     "(.jsonl.gz), or one JSON array of rows (.json). The first good row fixes the shape of all rows "
     "in the file. Preferences (chosen, rejected) and rows not to be learned (label: false) are errors; "
     "other fields are ignored. The program tries the shapes in this order:"},
    {"messages", "{\"messages\": [{\"role\": \"user\", \"content\": \"..\"}, ..]}: each assistant turn "
                 "trains, but not with \"weight\": 0, \"train\": false or \"loss\": false. Roles: system, "
                 "developer; user, human; assistant, gpt, chatgpt, model; tool, function, ipython. A content "
                 "is text or a list of text parts. tool_calls, reasoning_content, name and other keys go to "
                 "the model's own template."},
    {"conversations",
     "{\"conversations\": [{\"from\": \"human\", \"value\": \"..\"}, ..]}: the same, with other names, and "
     "function_call and observation for tools. Or conversation."},
    {"instruction, output", "The output trains, after instruction and optional input (alpaca template)."},
    {"question, context, answer", "Text-to-SQL: the answer trains. Context and question come before it."},
    {"prompt, completion", "Or prompt, response: the completion trains, directly after the prompt. "
                           "Or lists of turns: those of the completion train."},
    {"input, target", "For T5, which takes the three kinds above too. The target trains. A row that is too "
                      "long loses the end of its input (help models)."},
    {"text", "The whole text trains. A text longer than --seq-len is cut into pieces."},
    {NULL, "Rows with instruction, prompt, messages or conversations may have a field system. Rows with "
           "instruction or prompt may have a field history: pairs of strings, which become turns before the "
           "prompt. Rows with turns may have tools (or functions), a list or its JSON, and "
           "chat_template_kwargs, variables of the template. What a template has no place for is an error."},
    {NULL, "Examples of rows:"},
    {"", "{\"question\": \"How many singers are there?\", \"context\": \"CREATE TABLE singer (id INT)\",\n"
         " \"answer\": \"SELECT count(*) FROM singer\"}\n"
         "{\"instruction\": \"Translate to French.\", \"input\": \"Good morning\", \"output\": \"Bonjour\"}\n"
         "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}"},
    {"--columns", "Names of fields in your rows that differ from ours, such as question=query,answer=sql: "
                  "our name first."},
    {"--prompt-format",
     "Your own prompt with the fields of a row, such as 'Q: {question}\\nA: '. The answer follows it: the "
     "field answer, completion, response, output or target. Write {{ and }} for braces."},
    {"--template",
     "A built-in chat template for the rows; --help lists the names. Without it, the model's own template "
     "writes conversations. The trained model keeps the format (help templates)."},
    {"--train-on-prompt", "Prompts count in the loss too. Without this option only answers count."},
    {"--no-eos", "Rows do not end with the end-of-text token. Else each does, and learns it."},
    {"--pack", "yes (default): several rows share a sequence of --seq-len tokens. Attention never crosses "
               "from one row to another, and positions start at 0 in each row. no: one row per sequence."},
    {"--seq-len", "A longer row loses the oldest part of its prompt. If the answer alone is too long, it "
                  "also loses the end of the answer. stderr counts them."},
    {"--eval-fraction", "This share of --data is held out for evaluation (default: 2%), unless "
                        "--eval-data has rows of its own."},
    {"--skip-bad", "Rows that cannot be read are skipped and counted. Without it, the first such row ends "
                   "the run; the error names file and line."},
    {"--show-sample",
     "Prints one row as the model will see it, with the trained tokens marked. Check it before a long run."},
};
const struct ot_topic ot_topic_rows = OT_TOPIC("rows", "Training rows: shapes, templates, packing", rows);

static const struct ot_topic_block models[] = {
    {NULL, "--model takes a directory with config.json, a GGUF file (help gguf), a preset's name, or a hub "
           "id (org/name). Names are searched in $OFFLOAD_MODELS, then in the Hugging Face cache. Nothing is "
           "downloaded: if the model is missing, the error shows the command that downloads it."},
    {"families",
     "Llama (1, 2, 3.x, and what has its form: Yi, Vicuna, CodeLlama, SmolLM2, Falcon3, DeepSeek distills), "
     "Mistral, Ministral and Ministral 3, Qwen2, Qwen2.5, Qwen3, Phi-3 and Phi-4, Gemma 1, 2 and 3 (text), "
     "OLMo 2 and 3, SmolLM3, Granite 3, GPT-2, BLOOM, Falcon, CodeGen and CodeGen2; mixtures of experts: "
     "Mixtral, Qwen3-MoE and gpt-oss; and the encoder-decoders T5, T5 v1.1 and flan-t5 (below). For any "
     "other architecture, the error names it."},
    {"experts", "A mixture of experts trains with the loss of its rows alone, as transformers does unless "
                "output_router_logits is true: the loss that balances experts is not computed."},
    {"rope scaling",
     "linear, dynamic, llama3, yarn, longrope, proportional, as config.json says. dynamic and "
     "longrope look at --seq-len, not at the rows of each batch, so that a row has the same "
     "result whatever it is packed with."},
    {"encoder-decoders",
     "A T5 learns rows with input and target (help rows). Both get the end-of-text token, and a row is as "
     "long as both together. generate -p encodes the prompt and writes the answer. Adapters may be of all "
     "its maps and its head (--lora targets=q,v is PEFT's choice), but not of its embedding. quantize "
     "makes nf4 and int8 of them. Not for them: GPTQ, --chat, and, without adapters, one result for every "
     "number of ranks. The dropout of a config.json is ignored, as for the other models."},
    {"presets", "llama-7b, llama-13b, llama-2-7b, llama-2-13b, llama-2-70b, llama-3-8b, llama-3.1-8b, "
                "llama-3.1-70b, llama-3.2-1b, tinyllama-1.1b, mistral-7b, ministral-8b, qwen2.5-0.5b, "
                "qwen2.5-7b, qwen3-0.6b, qwen3-8b, phi-3-mini-4k, phi-4, gemma-2b, gemma-7b, gemma-2-2b, "
                "gemma-2-9b, gemma-2-27b, gemma-3-1b, olmo-2-1b, olmo-2-7b, olmo-3-7b, smollm3-3b, "
                "granite-3.3-2b, granite-3.3-8b, gpt2, gpt2-xl, bloom-560m, bloom-1b1, bloom-7b1, "
                "falcon-7b, falcon-40b, falcon3-7b, codegen-350m, codegen2-1b, mixtral-8x7b, "
                "qwen3-30b-a3b, qwen3-235b-a22b, gpt-oss-20b, gpt-oss-120b, yi-6b, vicuna-7b, "
                "codellama-7b, deepseek-r1-distill-qwen-7b, deepseek-r1-distill-llama-8b, t5-small, "
                "t5-base, flan-t5-base; and two tiny ones "
                "of this program, tiny-sql and tiny-test. Case and hyphens do not matter, and a hub id is a "
                "name too: Llama-3.1-8B, llama13b, Qwen/Qwen3-8B."},
    {"weights",
     "safetensors in fp32, fp16 or bf16, one file or shards; or a GGUF file. The trained model has the same "
     "dtype. --init random makes random weights from --seed instead."},
    {"quantized weights",
     "GPTQ (2, 3, 4 or 8 bits; formats gptq and gptq_v2), bitsandbytes (nf4 and int8) and MXFP4 (gpt-oss) "
     "are decoded exactly as they are read. The result has plain weights, in the dtype of the others "
     "(usually fp16 or bf16)."},
    {"tokenizers",
     "Hugging Face tokenizer.json of type BPE or Unigram; for any other type or part, the error names it. "
     "Without tokenizer.json, a SentencePiece model (tokenizer.model, spiece.model) is read as transformers "
     "reads it: Llama 1 and 2, Mistral, T5, Gemma. --tokenizer names another file, of either kind. The tiny "
     "presets have a built-in byte-level tokenizer."},
    {"training",
     "All parameters are trained, with AdamW, or those that --train and --freeze select. Frozen "
     "ones need no gradients and no optimizer state, stay exactly as they were, and are in no "
     "checkpoint: to resume, the run needs the model with which it began. --lora trains adapters, "
     "and --base-type quantises what is frozen (help lora)."},
};
const struct ot_topic ot_topic_models = OT_TOPIC("models", "Models, presets and tokenizers", models);

static const struct ot_topic_block gguf[] = {
    {NULL, "A GGUF file holds a whole model for llama.cpp, Ollama and programs that build on them: weights, "
           "config, tokenizer and chat template. export makes one from a checkpoint, from a run (its result, "
           "or its newest checkpoint if that is not older), from a model directory, or from another GGUF "
           "file:"},
    {"", "offload-train export out/llama-7b-sql --gguf q4_k_m --modelfile --out llama-7b-sql-gguf\n"
         "ollama create llama-7b-sql -f llama-7b-sql-gguf/Modelfile\n"
         "offload-train eval llama-7b-sql-gguf/llama-7b-sql-Q4_K_M.gguf --data sql.jsonl"},
    {"f32, f16, bf16", "Plain types. Vectors, such as norms and biases, are f32 in every file. f16 stores at "
                       "most 65504; a larger weight is an error that names it."},
    {"q8_0", "8 bits a weight, and a scale for 32 weights: 8.5 bits. Nearly the quality of f16."},
    {"q6_k", "6.6 bits a weight."},
    {"q4_k_m", "4.5 bits a weight, 6.6 in the matrices where it matters most (the output, and attn_v and "
               "ffn_down of some layers), as llama.cpp mixes them. The usual choice."},
    {"q4_0", "4.5 bits a weight, simpler and less exact than q4_k_m."},
    {"widths", "q6_k and q4_k_m need rows of a multiple of 256 weights. As in llama.cpp, other matrices get "
               "q8_0 or q5_0 (a multiple of 32), or f16."},
    {"families",
     "All families of this program but codegen and ministral, which llama.cpp lacks. It computes mistral, "
     "mixtral and phi3 without a sliding window and the logits of the first T5s without their divisor, and "
     "approximates the gelu of falcon and the YaRN of gpt_oss. A form of a family that it lacks is refused "
     "by name: the error says what it is."},
    {"experts",
     "Those of a layer are one tensor; their router is f32. Experts that the base has in MXFP4 (gpt_oss) "
     "stay so in a file of any type, unless the run trained them: no type has their values in fewer bytes."},
    {"tokenizers",
     "Those of Llama 1 to 3, Mistral (and tekken), Qwen, GPT-2, GPT-4o, BLOOM, SmolLM, StarCoder and T5. For "
     "any other tokenizer the error says what llama.cpp does not know. A BPE of SentencePiece needs its 256 "
     "byte tokens: without them llama.cpp aborts at a character that is not in the vocabulary. Its scores "
     "are exact if tokenizer.model is there."},
    {"--modelfile", "Also writes a Modelfile, which names the file for 'ollama create'. Ollama takes the "
                    "tokenizer from the GGUF file, and its prompt format if it knows the chat template."},
    {"adapters",
     "export of a directory of adapters, or of a run with --lora, writes the adapters alone, as f32, "
     "f16, bf16 or q8_0; llama.cpp adds them to a file of the base (llama-cli -m BASE --lora FILE). Of "
     "experts, gate and up have an adapter each there, with the same A."},
    {"as a base",
     "--model FILE.gguf trains, evaluates and generates from a GGUF file of the types above "
     "and of all these families, also in Q5_0 and MXFP4. Its weights are decoded exactly, and training "
     "continues in fp32 masters as always; the result is a Hugging Face directory in bf16, or in the file's "
     "own dtype if that is f32 or f16."},
};
const struct ot_topic ot_topic_gguf = OT_TOPIC("gguf", "Files for llama.cpp and Ollama", gguf);

static const struct ot_topic_block lora[] = {
    {NULL,
     "--lora trains low-rank adapters (LoRA) beside the linear maps of a model, and leaves its own weights "
     "as they are: y = W x + alpha / r * B A x. Only the adapters have gradients, fp32 masters and "
     "optimizer state, so a 7B model needs little more than the memory of its weights, which may be "
     "streamed from RAM or NVMe as always, with the same bits."},
    {"", "offload-train --model llama-7b --data sql.jsonl --lora r=16,targets=q_proj,v_proj\n"
         "offload-train eval out/llama-7b-sql --data sql.jsonl\n"
         "offload-train merge out/llama-7b-sql --out llama-7b-sql-merged"},
    {"r", "Rank of the adapters; 16 if it is not given."},
    {"alpha", "Their scale is alpha / r. If it is not given: twice the rank."},
    {"dropout",
     "Share of the inputs that A does not see in a step; 0 if it is not given. Which ones, depends "
     "on --seed and not on the plan or on the number of GPUs."},
    {"rslora", "Scale alpha / sqrt(r)."},
    {"dora",
     "Also trains the magnitude of each row of W (DoRA). With dropout, as in PEFT, W also multiplies the "
     "inputs with dropout, so a step takes up to twice as long."},
    {"lr-ratio",
     "The learning rate of B, as a multiple of --lr, which A has (LoRA+; 16 is usual); 1 if it is not given. "
     "Files of adapters do not have it, so a run that goes on from them gives it again."},
    {"targets",
     "all-linear (all linear maps of the layers, if it is not given), or names with commas between them: "
     "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head, embed_tokens. A name may "
     "begin earlier, as layers.3.mlp.up_proj."},
    {"experts",
     "In a mixture of experts, all-linear is attention alone, and the experts are named: "
     "targets=all-linear,experts.gate_up_proj,experts.down_proj (target_parameters of PEFT). Each expert "
     "has an A and a B; gate and up share an A. There is neither dropout nor dora for them."},
    {"r:NAME, alpha:NAME", "Rank and alpha of the modules with this name, such as r:down_proj=64."},
    {"--train",
     "With --lora: tensors of the model itself that are trained too, such as norms or embeddings. PEFT "
     "calls them modules_to_save."},
    {"--lr", "The default grows as fewer parameters are trained: about 1e-4 to 3e-4 for adapters."},
    {"--base-type",
     "nf4, nf4-double, mxfp4 or int8 stores the frozen matrices of the layers in 4.5, 4.13, 4.25 or 8 bits "
     "a weight (QLoRA), with the arithmetic of bitsandbytes (mxfp4: of OCP Microscaling; of a mixture of "
     "experts it stores the experts alone, so gpt-oss in MXFP4 keeps its exact numbers), "
     "also where --train or --freeze froze them. They have this type on every tier and on the bus, and are "
     "decoded on the device before each use. The embedding, the head, norms and biases stay in --dtype. "
     "The run trains the function of the decoded weights, and its losses are of that function: eval and "
     "generate compute it with the same --base-type, and without it use the base's exact weights, as merge "
     "does. So eval with and without --base-type tells what quantising costs."},
    {"result",
     "A directory for PEFT (Hugging Face): adapter_config.json and adapter_model.safetensors, in fp32, "
     "with the name or the path of the base. generate, eval and train take it as --model and find the base "
     "by that name; if it has moved, give the base as --model and the directory as --adapter. Adapters "
     "that PEFT wrote work in the same way. Kinds that this program does not have (biases, PiSSA's first "
     "values) are refused by name."},
    {"merge",
     "Adds adapters to the weights of their base, in fp32 with one rounding, and writes a whole model. "
     "The weights are streamed, so it needs little memory."},
};
const struct ot_topic ot_topic_lora = OT_TOPIC("lora", "Adapters", lora);

static const struct ot_topic_block environment[] = {
    {NULL, "No environment variable changes an option. These variables name folders and files, or choose "
           "kernels for comparisons."},
    {"OFFLOAD_MODELS", "A directory that contains model directories. --model searches for names here first."},
    {"HF_HUB_CACHE", "The Hugging Face cache; --model searches here next. If it is not set: $HF_HOME/hub, "
                     "$XDG_CACHE_HOME/huggingface/hub, $HOME/.cache/huggingface/hub."},
    {"HF_HOME", "See HF_HUB_CACHE."},
    {"XDG_CACHE_HOME", "The program keeps measured rates and its choices of GPU kernels in "
                       "$XDG_CACHE_HOME/offload-train. If it is not set: $HOME/.cache/offload-train."},
    {"HOME", "For the caches above, and as a place for a rescued checkpoint if better places fail (help "
             "checkpoints)."},
    {"TMPDIR", "The last place for a rescued checkpoint. If it is not set: /tmp."},
    {"CUDA_VISIBLE_DEVICES", "A variable of the CUDA driver: the GPUs that the program can see. If it hides "
                             "all GPUs, the error mentions it."},
    {"OFFLOAD_TRAIN_CUBLASLT", "The libcublasLt.so to use, if --cublaslt is not given."},
    {"OFFLOAD_TRAIN_PLUGINS", "Folders with colons between them. --comm NAME searches libot-comm-NAME.so "
                              "beside the program first, and then here."},
    {"OFFLOAD_TRAIN_SECRET", "A secret of all ranks of a run, so that nobody else can join (help ranks)."},
    {"OFFLOAD_TRAIN_NCCL", "The libnccl.so for --comm nccl. Without it, the loader searches for one."},
    {"CUDA_HOME, CUDA_PATH", "CUDA toolkits. The program searches them for libcublasLt after the search of "
                             "the loader (LD_LIBRARY_PATH)."},
    {"VIRTUAL_ENV, CONDA_PREFIX", "Python environments, which the program searches for libcublasLt next."},
    {"PATH", "The packages of its python3 are searched for libcublasLt too."},
    {"OFFLOAD_TRAIN_KERNEL_CHECKS",
     "on, the default; or off: the program does not check fast GPU kernels before their first use (help "
     "gpu)."},
    {"OFFLOAD_TRAIN_KERNELS",
     "The GPU kernels of attention and products: auto, the default; tiled (without our kernels for "
     "compute capability 9.0); or plain (no tensor cores and no libcublasLt: much slower). It is for a GPU "
     "on which a fast kernel hangs or is wrong. This changes bits, and checkpoints record it."},
    {"OFFLOAD_TRAIN_ADAMW", "The CPU kernel of AdamW: scalar, avx2 or avx512. Without it, the fastest one is "
                            "used. All give the same bits."},
    {"OFFLOAD_TRAIN_BLAS",
     "The library for fp32 matrix products on the cpu device: onednn (if it is installed), or any other "
     "word, such as openblas, for OpenBLAS. This changes bits."},
    {"OFFLOAD_TRAIN_BF16",
     "How the cpu device multiplies bf16: amx, onednn, or any other word, such as convert, for conversion to "
     "fp32. Without it, the program uses the first of these that the CPU supports. This changes bits."},
    {"HWLOC_HIDE_ERRORS, HWLOC_PLUGINS_PATH",
     "Variables of hwloc. If they are not set, the program sets them (to 2, and empty), to avoid hwloc's "
     "messages and plugins."},
    {"OPENBLAS_NUM_THREADS", "Has no effect: the program sets it to 1 and uses its own threads (--threads)."},
    {NULL, "The variables of launchers (torchrun, mpirun, Slurm, Kubeflow) are in: help launchers."},
};
const struct ot_topic ot_topic_environment = OT_TOPIC("environment", "Environment variables", environment);
