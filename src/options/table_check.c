/* The option table: the input of verify and export, and the output of export. */
#include "src/options/table.h"

static const struct ot_option table[] = {
    {.name = "dir",
     .type = OT_OPTION_TEXT,
     .argument = "DIR",
     .commands = VERIFY,
     .section = OT_SECTION_INPUT,
     .field = FIELD(dir),
     .help =
         "A checkpoint, the --out directory of a run with checkpoints, a Hugging Face model directory, or "
         "a GGUF file. May also be given without --dir, right after verify.",
     .elsewhere = "checkpoint path"},
    {.name = "dir",
     .type = OT_OPTION_TEXT,
     .argument = "DIR",
     .commands = EXPORT,
     .section = OT_SECTION_INPUT,
     .field = FIELD(dir),
     .help = "A checkpoint, or the --out directory of a run (then its newest checkpoint). With --gguf also a "
             "model directory or a GGUF file. May also be given without --dir, right after export.",
     .elsewhere = "checkpoint path"},
    {.name = "out",
     .type = OT_OPTION_TEXT,
     .argument = "MODEL",
     .commands = EXPORT,
     .section = OT_SECTION_INPUT,
     .field = FIELD(out),
     .help = "Directory of the exported model. It must be new, empty, or an earlier output of this program.",
     .elsewhere = "output output-dir save-dir"},
    {.name = "gguf",
     .type = OT_OPTION_CHOICE,
     .choices = "f32|f16|bf16|q8_0|q6_k|q4_k_m|q4_0",
     .commands = EXPORT,
     .section = OT_SECTION_INPUT,
     .field = FIELD(gguf),
     .help =
         "Export a GGUF file for llama.cpp and Ollama instead, with tokenizer and chat template; the word "
         "is the type of its weights. bf16 and f16 keep the quality; q8_0 and q4_k_m take a half and a "
         "third of their size.",
     .elsewhere = "outtype quantize quantization-method format"},
    {.name = "modelfile",
     .type = OT_OPTION_FLAG,
     .commands = EXPORT,
     .section = OT_SECTION_INPUT,
     .field = FIELD(modelfile),
     .help = "Write a Modelfile beside the GGUF file, for 'ollama create NAME -f Modelfile'."},
    {.name = "model",
     .type = OT_OPTION_TEXT,
     .argument = "DIR|NAME",
     .chosen = "the run's --model",
     .commands = EXPORT,
     .section = OT_SECTION_INPUT,
     .field = FIELD(model),
     .help = "The model that the run started from, if it has moved. Its config and tokenizer are copied.",
     .elsewhere = "model-name-or-path base-model pretrained"},
    {.name = "tokenizer",
     .type = OT_OPTION_TEXT,
     .argument = "FILE",
     .chosen = "the run's --tokenizer, if it had one",
     .commands = EXPORT,
     .section = OT_SECTION_INPUT,
     .field = FIELD(tokenizer),
     .help = "The tokenizer.json that the run used, if it has moved.",
     .elsewhere = "tokenizer-path tokenizer-file"},
};

const struct ot_option_list ot_options_of_check = OT_OPTION_LIST(table);
