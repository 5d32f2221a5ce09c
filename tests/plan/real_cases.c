#include "tests/plan/real_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/predict/planner_ranks.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "src/session/plan_request.h"

static const char *const lines[] = {
    /* adapters over a quantised base */
    "--model llama-7b --gpu rtx3060 --ram 16G --lora --base-type nf4",
    "--model llama-7b --gpu rtx3060 --ram 32G --lora --base-type nf4",
    "--model llama-7b --gpu rtx3060 --ram 64G --lora --base-type int8 --tokens-per-step 16k",
    "--model llama-13b --gpu rtx4090 --ram 16G --lora --base-type nf4",
    "--model llama-13b --gpu rtx4090 --ram 64G --lora --base-type nf4",
    "--model mistral-7b --gpu t4 --ram 16G --lora --base-type nf4",
    "--model mistral-7b --gpu t4 --ram 64G --lora --base-type int8 --tokens-per-step 16k",
    "--model llama-3-8b --gpu rtx4090 --ram 32G --lora --base-type nf4",
    "--model llama-3-8b --gpu rtx4090 --ram 32G --lora --base-type nf4 --seq-len 8k",
    "--model llama-3-8b --gpu rtx4060ti --ram 32G --lora --base-type nf4 --tokens-per-step 16k",
    "--model llama-2-70b --gpu rtx4090 --ram 64G --lora --base-type nf4 --tokens-per-step 16k",
    "--model llama-2-70b --gpu rtx4090 --ram 64G --lora --base-type nf4 --tokens-per-step 16k --nvme 200G",
    "--model llama-2-70b --gpu a6000 --ram 128G --lora --base-type nf4 --tokens-per-step 32k",
    "--model qwen3-8b --gpu rtx3090 --ram 64G --lora --base-type nf4-double --tokens-per-step 32k",
    "--model gemma-2-9b --gpu rtx4080 --ram 64G --lora --base-type nf4 --tokens-per-step 16k",
    "--model qwen3-30b-a3b --gpu rtx4090 --ram 128G --lora --base-type nf4 --tokens-per-step 16k",
    /* adapters */
    "--model llama-7b --gpu rtx4090 --ram 64G --lora --tokens-per-step 16k",
    "--model llama-7b --gpu rtx3090 --ram 32G --lora --tokens-per-step 64k",
    "--model llama-13b --gpu rtx4090 --ram 64G --lora --tokens-per-step 32k",
    "--model llama-13b --gpu l40s --ram 128G --lora",
    "--model mistral-7b --gpu a10 --ram 64G --lora --tokens-per-step 16k",
    "--model llama-2-70b --gpu a100-80g --ram 256G --lora --tokens-per-step 32k",
    "--model llama-2-70b --gpu rtx4090 --ram 64G --lora --tokens-per-step 16k --nvme 400G",
    "--model qwen2.5-7b --gpu l4 --ram 64G --lora --tokens-per-step 16k",
    /* all parameters */
    "--model llama-7b --gpu rtx4090 --ram 128G --tokens-per-step 4k",
    "--model llama-7b --gpu rtx4090 --ram 128G --tokens-per-step 16k",
    "--model llama-7b --gpu rtx4090 --ram 128G --tokens-per-step 64k",
    "--model llama-7b --gpu rtx4090 --ram 192G --tokens-per-step 32k",
    "--model llama-7b --gpu rtx3090 --ram 128G --tokens-per-step 32k",
    "--model llama-7b --gpu rtx3080 --ram 128G --tokens-per-step 16k",
    "--model llama-7b --gpu rtx3060 --ram 128G --tokens-per-step 64k",
    "--model llama-7b --gpu rtx5090 --ram 128G --tokens-per-step 16k",
    "--model llama-3-8b --gpu rtx5090 --ram 192G --tokens-per-step 16k",
    "--model llama-3-8b --gpu rtx5090 --ram 192G --tokens-per-step 64k",
    "--model llama-3-8b --gpu rtx4090 --ram 192G --tokens-per-step 16k",
    "--model llama-3-8b --gpu rtx4090 --ram 192G --tokens-per-step 128k",
    "--model llama-13b --gpu rtx4090 --ram 256G --tokens-per-step 16k",
    "--model llama-13b --gpu rtx4090 --ram 192G --tokens-per-step 64k",
    "--model llama-13b --gpu a100-80g --ram 256G --tokens-per-step 16k",
    "--model llama-13b --gpu a100-80g --ram 256G --tokens-per-step 64k",
    "--model llama-13b --gpu h100 --ram 256G --tokens-per-step 64k",
    "--model llama-7b --gpu a100-80g --ram 128G --tokens-per-step 64k",
    "--model llama-7b --gpu a100-40g --ram 128G --tokens-per-step 32k",
    "--model llama-7b --gpu h100 --ram 128G --tokens-per-step 16k",
    "--model llama-7b --gpu h100 --ram 128G --tokens-per-step 64k",
    "--model llama-7b --gpu h200 --ram 128G --tokens-per-step 16k",
    "--model llama-7b --gpu h200 --ram 128G --tokens-per-step 64k",
    "--model llama-7b --gpu h200 --ram 128G --gpu-mem 24G --tokens-per-step 64k",
    "--model llama-7b --gpu h200 --ram 128G --gpu-mem 24G --tokens-per-step 16k",
    "--model mistral-7b --gpu a6000 --ram 128G --tokens-per-step 32k",
    "--model tinyllama-1.1b --gpu rtx3060 --ram 32G --tokens-per-step 16k",
    "--model tinyllama-1.1b --gpu rtx4090 --ram 32G --tokens-per-step 64k",
    "--model llama-3.2-1b --gpu t4 --ram 32G --tokens-per-step 16k",
    "--model gemma-2-2b --gpu rtx4080 --ram 64G --tokens-per-step 32k",
    "--model mixtral-8x7b --gpu a100-80g --ram 1T --tokens-per-step 64k",
    "--model qwen3-30b-a3b --gpu h100 --ram 512G --tokens-per-step 64k",
    "--model llama-3.1-8b --gpu rtx4090 --ram 192G --seq-len 32k --tokens-per-step 64k",
    "--model llama-3.1-8b --gpu h100 --ram 256G --seq-len 64k --tokens-per-step 128k",
    /* a disk */
    "--model llama-7b --gpu rtx4090 --ram 64G --tokens-per-step 16k --nvme 200G",
    "--model llama-7b --gpu rtx3090 --ram 32G --tokens-per-step 64k --nvme 200G",
    "--model llama-13b --gpu rtx4090 --ram 64G --tokens-per-step 16k --nvme 1T",
    "--model llama-13b --gpu rtx4090 --ram 64G --tokens-per-step 16k --nvme 216G",
    "--model llama-13b --gpu rtx4090 --ram 128G --tokens-per-step 64k --nvme 1T",
    "--model llama-2-70b --gpu h200 --ram 512G --tokens-per-step 64k --nvme 2T",
    "--model llama-2-70b --gpu rtx4090 --ram 64G --tokens-per-step 16k --nvme 2T",
    "--model llama-3-8b --gpu rtx5090 --ram 64G --tokens-per-step 32k --nvme 500G",
    /* compact state */
    "--model llama-7b --gpu rtx4090 --ram 64G --state 8bit --tokens-per-step 16k",
    "--model llama-3-8b --gpu rtx5090 --ram 96G --state 8bit --tokens-per-step 16k",
    "--model llama-13b --gpu rtx4090 --ram 128G --state 8bit --master-weights none --tokens-per-step 32k",
    "--model llama-7b --gpu rtx3090 --ram 64G --state 8bit --master-weights none --tokens-per-step 64k",
    "--model llama-13b --gpu a100-80g --ram 128G --state 16bit --tokens-per-step 64k",
    "--model llama-2-70b --gpu h200 --ram 512G --state 8bit --tokens-per-step 64k --nvme 2T",
    /* ranks */
    "--model llama-3.1-8b --gpu rtx4090 --gpus 2 --ram 256G --tokens-per-step 128k",
    "--model llama-3.1-8b --gpu rtx4090 --gpus 4 --ram 256G --tokens-per-step 128k",
    "--model llama-3.1-8b --gpu rtx4090 --gpus 2 --ram 128G --tokens-per-step 64k",
    "--model llama-7b --gpu rtx3090 --gpus 4 --ram 256G --tokens-per-step 64k",
    "--model llama-13b --gpu a100-80g --gpus 2 --ram 512G --tokens-per-step 64k",
    "--model llama-13b --gpu h100 --gpus 8 --ram 1T --tokens-per-step 128k",
    "--model llama-2-70b --gpu h100 --gpus 8 --ram 1872G --tokens-per-step 128k",
    "--model llama-7b --gpu rtx4090 --gpus 2 --ram 64G --lora --base-type nf4 --tokens-per-step 64k",
    "--model llama-3.1-8b --gpu rtx4090 --gpus 8 --ram 512G --tokens-per-step 128k",
    "--model llama-7b --gpu rtx4090 --gpus 4 --ram 256G --tokens-per-step 16k",
    "--model llama-13b --gpu rtx4090 --gpus 4 --ram 128G --tokens-per-step 16k --lora",
    /* ranks in several hosts */
    "--model llama-3.1-8b --gpu l40s --ram 256G --nodes 4 --nic 20G --tokens-per-step 32k",
    "--model llama-3.1-8b --gpu l40s --ram 256G --nodes 4 --nic 20G --tokens-per-step 128k",
    "--model llama-3.1-8b --gpu l40s --ram 256G --nodes 4 --nic 20G --tokens-per-step 128k --lora",
    "--model llama-7b --gpu rtx4090 --ram 128G --nodes 2 --nic 10G --tokens-per-step 16k",
    /* stages, and replicas of a pipeline */
    "--model qwen3-32b --gpu rtx4090 --gpus 4 --ram 1T --tokens-per-step 128k",
    "--model qwen3-32b --gpu rtx4090 --gpus 4 --ram 1T --tokens-per-step 128k --shard stages",
    "--model llama-3.1-8b --gpu rtx4090 --gpus 8 --ram 512G --tokens-per-step 128k --shard stages",
    "--model llama-3.1-8b --gpu rtx4090 --gpus 8 --ram 512G --tokens-per-step 128k --shard stages --stages 2",
    "--model llama-3.1-8b --gpu l40s --gpus 4 --nodes 2 --ram 384G --nic 20G --tokens-per-step 128k",
    "--model llama-7b --gpu h100 --gpus 2 --nodes 4 --ram 384G --nic 100G --tokens-per-step 128k",
    /* a host that is small beside the device */
    "--model llama-7b --gpu a100-80g --ram 64G --tokens-per-step 16k",
    "--model llama-7b --gpu h100 --ram 64G --tokens-per-step 16k",
};

const char *real_case_line(int i) {
    return i < (int)(sizeof lines / sizeof *lines) ? lines[i] : NULL;
}

static uint64_t below(uint64_t number, uint64_t which, uint64_t n) {
    return (uint64_t)(ot_random_unit(number, 33, which) * (double)n);
}

/* gpus: 0: one GPU, or sometimes two. */
static void draw_case(uint64_t number, int gpus, char line[REAL_CASE_BYTES]) {
    static const char *const models[] = {"llama-7b",       "llama-13b",  "llama-3-8b", "mistral-7b",
                                         "tinyllama-1.1b", "qwen2.5-7b", "gemma-2-9b", "llama-2-70b"};
    static const char *const cards[] = {"t4",       "rtx3060", "rtx3080", "rtx3090", "rtx4060ti",
                                        "rtx4090",  "rtx5090", "a6000",   "l40s",    "a100-40g",
                                        "a100-80g", "h100",    "h200"};
    static const char *const ways[] = {"",
                                       "",
                                       "--lora",
                                       "--lora --base-type int8",
                                       "--lora --base-type nf4",
                                       "--state 8bit",
                                       "--state 8bit --master-weights none"};
    static const char *const nvme[] = {"", "", "", "--nvme 300G", "--nvme 2T"};
    int rams = 16 << below(number, 2, 5), tokens = 4 << below(number, 3, 6);
    if (gpus == 0)
        gpus = below(number, 6, 5) > 3 ? 2 : 1;
    snprintf(line, REAL_CASE_BYTES, "--model %s --gpu %s --ram %dG --tokens-per-step %dk %s %s --gpus %d",
             models[below(number, 0, 8)], cards[below(number, 1, 13)], rams, tokens,
             ways[below(number, 4, 7)], nvme[below(number, 5, 5)], gpus);
}

void real_case_draw(uint64_t number, char line[REAL_CASE_BYTES]) {
    draw_case(number, 0, line);
}

void real_case_draw_ranks(uint64_t number, char line[REAL_CASE_BYTES]) {
    draw_case(number, 2 << below(number, 7, 3), line);
}

int real_case_open(const char *line, struct real_case *out) {
    enum { MOST_WORDS = 32 };
    char text[REAL_CASE_BYTES], *words[MOST_WORDS] = {"plan"}, *rest = text, *word;
    int n = 1;
    *out = (struct real_case){.plan_case = calloc(1, sizeof *out->plan_case)};
    if (!out->plan_case)
        return ot_fail(OT_E_BUDGET, "no memory for a case");
    snprintf(text, sizeof text, "%s", line);
    while (n < MOST_WORDS && (word = strtok_r(rest, " ", &rest)))
        words[n++] = word;
    OT_TRY(ot_options_parse(n, words, &out->options));
    return ot_plan_case_open(&out->options, out->options.model, out->options.gpu, out->plan_case);
}

void real_case_close(struct real_case *real) {
    if (real->plan_case)
        ot_plan_case_close(real->plan_case);
    free(real->plan_case);
    ot_options_free(&real->options);
}

int real_case_choose(const struct real_case *real, const struct ot_plan_request *request,
                     struct ot_planner_result *result) {
    const struct ot_plan_case *c = real->plan_case;
    bool several = request->shard.ranks > 1, one_copy = request->shard.one_copy;
    bool one_host = request->shard.ranks == c->machine.described.local_ranks;
    bool any_mode = several && c->options->shard == OT_CHOICE_SHARD_AUTO && !one_copy;
    struct ot_shard_open open = {.mode = any_mode,
                                 .stages = any_mode && !real->without_stages,
                                 .one_copy = several && one_host && ot_plan_request_may_one_copy(c->options)};
    return ot_planner_choose_shard(request, &c->costs, open, result, NULL);
}

bool real_case_force(const struct real_case *real, int i, char name[REAL_CASE_NAME_BYTES],
                     struct ot_plan_request *request) {
    static const int rounds[] = {1, 2, 3, 4, 6, 8, 16, 32};
    static const char *const levels[] = {"all", "products", "elementwise", "none"};
    static const char *const what[] = {"weights", "state", "activations", "kept", "grads", "sums"};
    static const double fractions[][OT_TILE_ENGINES] = {{1, 0, 0},     {0, 1, 0},         {0, 0, 1},
                                                        {0, 0.5, 0.5}, {0.25, 0.25, 0.5}, {0.1, 0.4, 0.5}};
    *request = real->plan_case->request;
    enum ot_home *homes[] = {&request->weights, &request->state, &request->activations,
                             &request->kept,    &request->grads, &request->sums};
    if (i < 8) {
        snprintf(name, REAL_CASE_NAME_BYTES, "--rounds %d", request->rounds = rounds[i]);
        return true;
    }
    if ((i -= 8) < 4) {
        request->keep = i;
        snprintf(name, REAL_CASE_NAME_BYTES, "--recompute %s", levels[i]);
        return true;
    }
    if ((i -= 4) < 18) {
        *homes[i / 3] = (enum ot_home)(i % 3);
        snprintf(name, REAL_CASE_NAME_BYTES, "--home %s=%s", what[i / 3],
                 ot_tier_name((enum ot_tier)(i % 3)));
        return true;
    }
    if ((i -= 18) < 6) {
        memcpy(request->fractions, fractions[i], sizeof request->fractions);
        snprintf(name, REAL_CASE_NAME_BYTES, "--optimizer-engine gpu:%g,stream:%g,cpu:%g", fractions[i][0],
                 fractions[i][1], fractions[i][2]);
        return true;
    }
    if ((i -= 6) < 4) {
        snprintf(name, REAL_CASE_NAME_BYTES, "--slots %d", request->slots = i + 1);
        return true;
    }
    if ((i -= 4) < 4) {
        request->micro_sequences = 1 << i;
        snprintf(name, REAL_CASE_NAME_BYTES, "--micro-batch %d", 1 << i);
        return request->micro_sequences <= request->step_sequences;
    }
    return false;
}
