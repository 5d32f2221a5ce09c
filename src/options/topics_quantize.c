/* The topic about quantized models. */
#include "src/options/topics.h"

#include <stddef.h>

static const struct ot_topic_block quantize[] = {
    {NULL, "quantize makes a smaller copy of a model, for serving or as a base of QLoRA: the matrices of all "
           "layers in 2 to 8 bits. Embeddings, the head, norms and biases stay as they are."},
    {"", "offload-train quantize out/llama-7b-sql --to gptq:4 --data sql.jsonl --out llama-7b-sql-gptq\n"
         "offload-train eval llama-7b-sql-gptq --data sql-eval.jsonl\n"
         "offload-train quantize out/llama-7b-sql --to nf4-double --out llama-7b-sql-nf4"},
    {"gptq:4, gptq:8", "GPTQ with 4.1 or 8.1 bits a weight (groups of 128): the codes are chosen so that the "
                       "outputs change little on rows of --data. transformers, GPTQModel, vLLM and others "
                       "read the result."},
    {"gptq:3, gptq:2", "The same with 3.1 or 2.1 bits. Use --symmetric no, and a smaller --group-size."},
    {"nf4, nf4-double", "bitsandbytes with 4.5 or 4.13 bits a weight. transformers reads the result without "
                        "quantizing anything. --data only measures the perplexity."},
    {"int8", "bitsandbytes with 8 bits a weight, and a scale for each row."},
    {"T5", "In nf4, nf4-double and int8. The maps wo stay plain too, as transformers keeps them."},
    {"mxfp4",
     "gpt-oss alone: its experts with 4.25 bits a weight, in the form of its published files. All else "
     "stays plain, and no other family is read so. --data only measures the perplexity."},
    {"--data", "Rows as for training, best those that the model was trained on, or rows like those that it "
               "will see. A share is held out (--eval-fraction, --eval-data) for the perplexity before and "
               "after."},
    {"errors",
     "A row for each layer has the error of each matrix: with GPTQ of its outputs on the calibration "
     "rows, else of its weights; as a share of their size."},
    {"memory",
     "One layer at a time is in memory, on the device in --dtype, on the host in fp32. The "
     "activations of all rows wait in RAM: --calibration-rows x --seq-len x width x bytes of "
     "--dtype; so --dtype bf16 halves them. GPTQ needs 12 bytes for each pair of inputs of the "
     "widest matrix: 1.5 GB for 7B, 10 GB for 70B. Experts have a Hessian each; as many are on the device at "
     "once as take the bytes of a layer. The table at the end says what each stage took."},
    {"formats", "--symmetric yes writes checkpoint_format gptq, no writes gptq_v2. The description is in "
                "config.json, of GPTQ also in quantize_config.json."},
    {"as a base", "--model takes these directories, and those of other programs in the same formats. Their "
                  "weights are decoded exactly."},
    {"experts",
     "GPTQ calibrates each expert of a mixtral or qwen3_moe on the tokens that the router sends to "
     "it. An expert that gets less than 0.5 % of them is rounded to nearest, as in GPTQModel; the "
     "report counts such experts, and more or longer rows make them fewer. The router stays plain. "
     "vLLM reads the result, and GPTQModel that of a qwen3_moe. transformers 5 alone does not: there "
     "the experts of a layer are one parameter and no linear maps. So bitsandbytes leaves the experts "
     "plain too, which are nearly all bytes, and nf4 and int8 are refused. --base-type nf4 or int8 "
     "stores frozen experts in these formats while a run lasts."},
    {"Ctrl-C", "Stops; --out stays as it was. There is nothing to resume."},
};
const struct ot_topic ot_topic_quantize =
    OT_TOPIC("quantization", "Smaller models: GPTQ, nf4, int8 and MXFP4", quantize);
