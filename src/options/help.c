#include "src/options/help.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "src/base/error.h"

enum { COLUMNS = 96, INDENT = 30, TOPIC_INDENT = 20 };

static const struct ot_command_help commands[OT_COMMAND_COUNT] = {
    [OT_COMMAND_TRAIN] =
        {"[train] --model DIR|NAME --data FILE [options]",
         "Fine-tunes all parameters of a language model with AdamW, or adapters (--lora). Whatever does not "
         "fit on the device is streamed through it. First prints a plan with every byte of memory and the "
         "time the run will take; then trains, evaluates, and writes a Hugging Face directory with a "
         "log.jsonl. Saves checkpoints. Ctrl-C saves a checkpoint and stops; the same command then continues "
         "the run, and its result is the same to the bit. A second Ctrl-C stops at once.",
         {"offload-train --model llama-7b --data sql.jsonl",
          "offload-train --model my-llama --data chat.jsonl --template llama-3 --gpu-mem 8G --dry-run",
          "offload-train --config run.json --steps 100"}},
    [OT_COMMAND_GENERATE] =
        {"generate DIR|NAME [-p TEXT] [options]",
         "Continues a text, or answers a data row. Prints the text to stdout while it is "
         "generated. Without -p, each line of stdin is a prompt. With "
         "--chat, each line is a turn of one conversation.",
         {"offload-train generate out/llama-7b-sql -p \"Once upon a time\"",
          "offload-train generate out/llama-7b-sql --row -p '{\"question\": \"How many "
          "singers?\", \"context\": \"CREATE TABLE singer (id INT)\"}'",
          "offload-train generate out/my-chat --chat --system \"Answer in one sentence.\""}},
    [OT_COMMAND_EVAL] = {"eval DIR|NAME --data FILE [options]",
                         "Prints loss, perplexity and accuracy of a model on rows, per trained token.",
                         {"offload-train eval out/llama-7b-sql --data sql-eval.jsonl --json"}},
    [OT_COMMAND_TOKENIZE] = {"tokenize DIR|NAME [-p TEXT] [options]",
                             "Turns text into token ids, or ids back into text. Prints one line for each "
                             "text. Without -p, each line of stdin is a text.",
                             {"offload-train tokenize llama-7b -p \"Hello world\"",
                              "offload-train tokenize --tokenizer tokenizer.json --json < texts.txt"}},
    [OT_COMMAND_PROBE] =
        {"probe [options]",
         "Measures how fast this machine is at what training needs: copies to and from the device, matrix "
         "products, attention and every other kernel, and the host's memory and the optimizer's kernels for "
         "several thread counts. With --nvme it also measures the disks for several request sizes and queue "
         "depths, with some gigabytes of temporary files. Later runs use the measured rates; without them, a "
         "run measures a few seconds itself. Rates of products and attention are those of short bursts: "
         "at its power limit a GPU is slower in training, and predictions count that.",
         {"offload-train probe --nvme /mnt/a", "offload-train probe --device cuda:1 --json > probe.json"}},
    [OT_COMMAND_PLAN] =
        {"plan --model DIR|NAME [options]",
         "Says what fits where, how long a step takes and what a run costs, before you buy or download "
         "anything. Needs no data and no weights: a model's name or its config.json is enough. Predicts for "
         "this machine, which it measures, or for a machine that you describe.",
         {"offload-train plan --model llama-13b --gpu rtx4090 --host-mem 128G --nvme 1T",
          "offload-train plan --model llama-3.1-70b --gpu h200 --nvme 2T --steps 1000 --price/h 3.5 "
          "--explain",
          "offload-train plan --model llama-7b --gpu all --methods --tokens 20M --price/h "
          "rtx4090=0.4,h100=2.5",
          "offload-train plan --gpu list"}},
    [OT_COMMAND_BENCH] =
        {"bench NAME|DIR [options]",
         "Trains some real steps, with random weights and random tokens, at many points: mixes of tiers, "
         "device memory, tokens per step. Writes the measured and the predicted time of each point to "
         "bench.csv, bench.json and bench.html (a page with plots). Needs neither weights nor data. Ctrl-C "
         "ends the bench and keeps the points measured so far.",
         {"offload-train bench tinyllama-1.1b",
          "offload-train bench llama-7b --gpu-mem 12G,24G --tokens-per-step 16k,64k --nvme /mnt/a:200G "
          "--minutes 30 --out bench-7b"}},
    [OT_COMMAND_VERIFY] =
        {"verify DIR [options]",
         "Reads every byte of a checkpoint, of a run's newest checkpoint, or of a model directory. Checks "
         "structure, checksums, shapes and finite values, and prints one row for each part of the model. If "
         "the newest checkpoint of a run is damaged, looks for the newest intact one. Ends with ok, or names "
         "the damage and ends with exit code 3.",
         {"offload-train verify out/llama-7b-sql",
          "offload-train verify out/llama-7b-sql/checkpoints/step-00000120 --json"}},
    [OT_COMMAND_EXPORT] =
        {"export DIR --out MODEL [options]",
         "Makes a Hugging Face model directory from a checkpoint, or from a run's newest checkpoint. The "
         "files are those that the run would have written if it had ended at that step. With --gguf, makes a "
         "GGUF file for llama.cpp and Ollama from a checkpoint, a run or a model (help gguf). Streams the "
         "weights, so it needs little memory and no device.",
         {"offload-train export out/llama-7b-sql --best --out llama-7b-sql-best",
          "offload-train export out/llama-7b-sql --gguf q4_k_m --modelfile --out llama-7b-sql-gguf"}},
    [OT_COMMAND_MERGE] =
        {"merge BASE [ADAPTER] --out MODEL [options]",
         "Adds adapters (LoRA) to the weights of their base, and writes a Hugging Face model directory. "
         "Computes in fp32 and rounds once, to the format of the base. BASE alone may be a "
         "directory of adapters that names its base. Streams the weights, so a model of 70B "
         "parameters needs little memory.",
         {"offload-train merge out/llama-7b-sql --out llama-7b-sql-merged",
          "offload-train merge llama-7b out/llama-7b-sql --out llama-7b-sql-merged"}},
    [OT_COMMAND_QUANTIZE] =
        {"quantize DIR --to FORMAT --out MODEL [options]",
         "Makes a quantized copy of a model: GPTQ with 2, 3, 4 or 8 bits, calibrated on rows, or nf4 and "
         "int8 of bitsandbytes (help quantization). One layer at a time is in memory. Prints the error of "
         "each matrix, the perplexity before and after on held-out rows, and the time and memory of each "
         "stage.",
         {"offload-train quantize out/llama-7b-sql --to gptq:4 --data sql.jsonl --out llama-7b-gptq",
          "offload-train quantize out/llama-7b-sql --to nf4-double --out llama-7b-sql-nf4"}},
    [OT_COMMAND_COMM_TEST] =
        {"comm-test [options]",
         "Checks a communicator between ranks, and measures it. Starts ranks, or is started by a launcher, "
         "as train is (help ranks). Moves parts of many sizes with each operation, and from rank to rank, "
         "and compares every byte. Then rank 0 prints a table: the time of each operation, the bytes that "
         "a rank receives per second, and on the cpu device the share of a copy in memory.",
         {"offload-train comm-test --gpus all --comm nccl",
          "mpirun -n 4 offload-train comm-test --device cpu --comm mpi --sizes 64K,16M --json"}},
};

const struct ot_command_help *ot_help_of_command(enum ot_command command) {
    return &commands[command];
}

const char *ot_help_value(const struct ot_option *option) {
    return option->type == OT_OPTION_YES_NO ? "yes|no"
           : option->argument               ? option->argument
           : option->choices                ? option->choices
                                            : "";
}

const char *const ot_help_units =
    "For tokens and memory, k, M and G are powers of 1024 (16k tokens = 16,384; 24G = 24 GiB, but 24GB is "
    "decimal). For steps, rows and rates they are powers of 1000.";

/* Prints the words of `text` from `column` on, wrapped at COLUMNS. Indents each new line. Returns the column
 * reached. */
static int print_wrapped(FILE *out, const char *text, int column, int indent) {
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word > COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, (size_t)word, out);
        column += word;
        text += word + (text[word] == ' ');
    }
    return column;
}

static void print_option(FILE *out, const struct ot_option *option) {
    char head[128], letter[8] = "    ";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    const char *value = ot_help_value(option);
    int column = snprintf(head, sizeof head, "  %s--%s%s%s", letter, option->name, *value ? " " : "", value);
    fputs(head, out);
    if (column + 2 > INDENT)
        fprintf(out, "\n%*s", INDENT, "");
    else
        fprintf(out, "%*s", INDENT - column, "");
    char note[256] = "";
    if (option->fallback || option->chosen)
        snprintf(note, sizeof note, " (default: %s)", option->fallback ? option->fallback : option->chosen);
    column = print_wrapped(out, option->help, INDENT, INDENT);
    if (*note)
        print_wrapped(out, note + 1, column, INDENT);
    fputc('\n', out);
}

const struct ot_topic *ot_topic_find(const char *name) {
    for (int i = 0; i < ot_topic_count; i++)
        if (strcmp(ot_topics[i].name, name) == 0)
            return &ot_topics[i];
    return NULL;
}

/* Prints the items of topic exit-codes whose term is a number. */
static void print_exit_codes(FILE *out) {
    const struct ot_topic *codes = ot_topic_find("exit-codes");
    fputs("\nExit codes:\n", out);
    for (int i = 0; i < codes->n_blocks; i++) {
        const struct ot_topic_block *block = &codes->blocks[i];
        if (block->term && isdigit((unsigned char)*block->term))
            fprintf(out, "  %-2s %s\n", block->term, block->text);
    }
}

enum { TOPIC_NAMES_BYTES = 512 };
static const char *list_topics(char names[TOPIC_NAMES_BYTES]) {
    int used = 0;
    for (int i = 0; i < ot_topic_count; i++)
        used += snprintf(names + used, (size_t)(TOPIC_NAMES_BYTES - used), "%s%s", i ? ", " : "",
                         ot_topics[i].name);
    return names;
}

void ot_help_print(FILE *out, enum ot_command command) {
    char names[TOPIC_NAMES_BYTES];
    const struct ot_command_help *help = &commands[command];
    fprintf(out, "Usage: offload-train %s\n\n", help->usage);
    print_wrapped(out, help->what, 0, 0);
    fputs("\n", out);
    if (command == OT_COMMAND_TRAIN) {
        fputs("\nOther commands (offload-train COMMAND --help tells more):\n", out);
        for (int c = 1; c < OT_COMMAND_COUNT; c++)
            fprintf(out, "  %s\n", commands[c].usage);
        fputs("  help [TOPIC]\n", out);
    }
    for (int section = 0; section < OT_SECTION_COUNT; section++) {
        bool titled = false;
        const struct ot_option *option;
        for (int i = 0; (option = ot_option_at(i)); i++) {
            if ((int)option->section != section || !(option->commands & (1u << command)))
                continue;
            if (!titled)
                fprintf(out, "\n%s:\n", ot_option_section_title((enum ot_option_section)section));
            titled = true;
            print_option(out, option);
        }
    }
    fputs("\nUnits:", out);
    print_wrapped(out, ot_help_units, 6, 0);
    fputc('\n', out);
    fputs("\nExamples:\n", out);
    for (int i = 0; i < 4 && help->examples[i]; i++)
        fprintf(out, "  %s\n", help->examples[i]);
    print_exit_codes(out);
    fputs("\nMore, with offload-train help TOPIC:\n  ", out);
    print_wrapped(out, list_topics(names), 2, 2);
    fputc('\n', out);
}

static void print_lines(FILE *out, const char *lines) {
    for (size_t n; *lines; lines += n + (lines[n] == '\n')) {
        n = strcspn(lines, "\n");
        fprintf(out, "%s%.*s\n", n ? "  " : "", (int)n, lines);
    }
}

static void print_block(FILE *out, const struct ot_topic_block *block) {
    if (!block->term) {
        print_wrapped(out, block->text, 0, 0);
        fputc('\n', out);
    } else if (!*block->term) {
        print_lines(out, block->text);
    } else {
        int column = fprintf(out, "  %s", block->term);
        fprintf(out, "%s%*s", column + 2 > TOPIC_INDENT ? "\n" : "",
                column + 2 > TOPIC_INDENT ? TOPIC_INDENT : TOPIC_INDENT - column, "");
        print_wrapped(out, block->text, TOPIC_INDENT, TOPIC_INDENT);
        fputc('\n', out);
    }
}

static void print_topic(FILE *out, const struct ot_topic *topic) {
    fprintf(out, "%s\n", topic->title);
    for (int i = 0; i < topic->n_blocks; i++) {
        bool is_item = topic->blocks[i].term && *topic->blocks[i].term;
        if (!is_item || i == 0 || !topic->blocks[i - 1].term || !*topic->blocks[i - 1].term)
            fputc('\n', out);
        print_block(out, &topic->blocks[i]);
    }
}

static int refuse_topic(const char *name) {
    char names[TOPIC_NAMES_BYTES];
    return ot_fail(OT_E_USAGE, "no help topic '%.60s'; the topics are %s; each command has help too", name,
                   list_topics(names));
}

int ot_help_print_topic(FILE *out, const char *name) {
    const struct ot_topic *topic = name ? ot_topic_find(name) : NULL;
    if (topic) {
        print_topic(out, topic);
        return 0;
    }
    for (int c = 0; name && c < OT_COMMAND_COUNT; c++)
        if (strcmp(name, ot_command_name((enum ot_command)c)) == 0) {
            ot_help_print(out, (enum ot_command)c);
            return 0;
        }
    if (name)
        return refuse_topic(name);
    fputs("Usage: offload-train help TOPIC|COMMAND\n\nTopics:\n", out);
    for (int i = 0; i < ot_topic_count; i++)
        fprintf(out, "  %-13s %s\n", ot_topics[i].name, ot_topics[i].title);
    fputs("\nCommands:\n", out);
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        fprintf(out, "  %s\n", commands[c].usage);
    return 0;
}
