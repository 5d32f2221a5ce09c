/* Each kind of block in every placement: random plans, and plans of two ranks, give the bits of the resident
 * run. test_placement.c has more plans, of one kind of block. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* ---- kinds ---- */

struct kind {
    const char *name, *config; /* config: members of config.json, without the sizes that all kinds have */
};

#define GPT_SIZES "\"n_embd\": 24, \"n_head\": 3, \"n_layer\": 3, \"n_positions\": 64"
#define LLAMA_SIZES                                                                                          \
    "\"hidden_size\": 24, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "         \
    "\"num_hidden_layers\": 3, \"intermediate_size\": 36, \"max_position_embeddings\": 64"

static const struct kind kinds[] = {
    {"learned positions, plain MLP", "\"model_type\": \"gpt2\", " GPT_SIZES},
    {"ALiBi, norm of the embedding",
     "\"model_type\": \"bloom\", \"hidden_size\": 24, \"n_head\": 3, \"n_layer\": 3, \"seq_length\": 64"},
    {"parallel, one norm", "\"model_type\": \"falcon\", \"hidden_size\": 28, \"num_attention_heads\": 7, "
                           "\"num_hidden_layers\": 3, \"tie_word_embeddings\": false"},
    {"parallel, two norms, groups",
     "\"model_type\": \"falcon\", \"hidden_size\": 32, \"num_attention_heads\": 4, \"num_kv_heads\": 2, "
     "\"num_hidden_layers\": 3, \"new_decoder_architecture\": true"},
    {"parallel, a bias of the head, pairs of neighbours",
     "\"model_type\": \"codegen\", \"rotary_dim\": 6, \"n_embd\": 32, \"n_head\": 4, \"n_layer\": 3, "
     "\"n_positions\": 64"},
    {"norms around, caps, windows",
     "\"model_type\": \"gemma2\", \"sliding_window\": 5, \"attn_logit_softcapping\": 2.0, "
     "\"final_logit_softcapping\": 3.0, " LLAMA_SIZES},
    {"several ropes, norms of heads",
     "\"model_type\": \"gemma3_text\", \"sliding_window\": 5, \"sliding_window_pattern\": 2, " LLAMA_SIZES},
    {"norms behind, norms of all heads",
     "\"model_type\": \"olmo2\", \"tie_word_embeddings\": true, \"attention_bias\": true, " LLAMA_SIZES},
    {"layers without rope", "\"model_type\": \"smollm3\", \"no_rope_layers\": [1, 0, 1], " LLAMA_SIZES},
    {"gate and up as one, a part of a head rotates",
     "\"model_type\": \"phi3\", \"hidden_size\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
     "\"num_hidden_layers\": 3, \"intermediate_size\": 36, \"max_position_embeddings\": 64, "
     "\"partial_rotary_factor\": 0.75"},
    {"multipliers",
     "\"model_type\": \"granite\", \"embedding_multiplier\": 3.0, \"residual_multiplier\": 0.375, "
     "\"attention_multiplier\": 0.2, \"logits_scaling\": 2.5, \"tie_word_embeddings\": true, " LLAMA_SIZES},
    {"experts in all layers",
     "\"model_type\": \"mixtral\", \"num_local_experts\": 5, \"num_experts_per_tok\": 2, " LLAMA_SIZES},
    {"experts in some layers, norms of heads",
     "\"model_type\": \"qwen3_moe\", \"num_experts\": 9, \"num_experts_per_tok\": 3, "
     "\"moe_intermediate_size\": 16, \"mlp_only_layers\": [1], " LLAMA_SIZES},
    {"experts with biases, sinks, windows",
     "\"model_type\": \"gpt_oss\", \"num_local_experts\": 5, \"num_experts_per_tok\": 2, "
     "\"sliding_window\": 5, "
     "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000}, " LLAMA_SIZES},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static struct ot_model_config read_kind(const struct kind *kind) {
    struct ot_model_config config;
    struct ot_json *root;
    char text[600];
    int bytes =
        snprintf(text, sizeof text, "{\"vocab_size\": 67, \"initializer_range\": 0.1, %s}", kind->config);
    assert_true(bytes < (int)sizeof text);
    check_ok(ot_json_parse(text, (size_t)bytes, kind->name, &root));
    check_ok(ot_model_config_read(root, kind->name, &config));
    ot_json_free(root);
    return config;
}

/* ---- runs ---- */

static bool trains_norms(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return ot_module_is_norm(tensor->module);
}

/* All weights, all but the embeddings and norms, adapters with dropout, adapters with magnitudes, adapters of
 * experts too, which have neither. */
enum form { ALL, SOME, DROPOUT, DORA, EXPERTS, FORMS };

static bool trains_some(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return ot_module_is_in_layer(tensor->module) && !ot_module_is_norm(tensor->module);
}

/* The last layer has adapters of gate and up alone. */
static struct ot_lora_rank ranks_of_experts(const void *context, const char *module) {
    (void)context;
    bool down = strstr(module, "experts.down_proj") != NULL;
    bool has = ot_lora_layer_of(module) >= 0 && !(down && ot_lora_layer_of(module) == 2);
    return (struct ot_lora_rank){!has ? 0 : down ? 2 : 3, 6};
}

static const struct ot_lora dropout = {.all = {3, 6}, .dropout = 0.25f}, dora = {.all = {2, 4}, .dora = true},
                            experts = {.choose = ranks_of_experts, .lr_ratio = 3};

static int forms_of(int kind) {
    return read_kind(&kinds[kind]).n_experts > 0 ? FORMS : EXPERTS;
}

static void defaults(struct tiny_run *run, int kind, enum form form, enum ot_dtype dtype) {
    tiny_defaults(run, 3, false, dtype);
    run->config = read_kind(&kinds[kind]);
    run->regular = (struct ot_regular){.neftune = ot_model_has_pairs(&run->config) ? 0 : 2,
                                       .label_smoothing = 0.1f,
                                       .z_loss = 1e-3f,
                                       .balance = run->config.n_experts > 0 ? 0.3f : 0,
                                       .dropout = true};
    run->config.attention_drop = 0.1f;
    if (!ot_model_has_norms_after(&run->config) && run->config.n_experts == 0)
        run->config.o_drop = run->config.mlp_drop = 0.2f;
    if (form == SOME)
        run->trains = trains_some;
    if (form == DROPOUT || form == DORA) {
        bool scales = run->config.residual_scale != 0; /* DoRA is refused over these */
        run->lora = form == DROPOUT || scales ? &dropout : &dora;
        run->trains = kind % 2 ? trains_norms : NULL;
        run->encodes = form == DORA && kind % 3 == 0;
    }
    if (form == EXPERTS) {
        run->lora = &experts;
        run->encodes = kind % 2;
    }
}

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(result->loss[i]) && result->norm[i] > 0);
    assert_true(result->loss[TINY_STEPS - 1] != result->loss[0]);
}

/* ---- bits ---- */

static void check_plans(struct tiny_run *run, const char *kind, int form, int count) {
    struct tiny_result resident, other;
    char what[160];
    train_resident(run, &resident);
    for (int i = 0; i < count; i++) {
        tiny_plan(run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
        tiny_randomise(run, (uint64_t)(100 * form + i + 1));
        snprintf(what, sizeof what, "%s, form %d, random plan %d", kind, form, i);
        run->device_threads = 1 + i % 2;
        tiny_train(run, &other);
        tiny_same(&resident, &other, what);
        tiny_result_free(&other);
        ot_plan_free(&run->plan);
    }
    run->device_threads = 1;
    tiny_result_free(&resident);
}

static void any_plan_has_the_bits_of_the_resident_run(void **state) {
    (void)state;
    int count = getenv("OT_TEST_SLOW") ? 12 : 1;
    for (int kind = 0; kind < KINDS; kind++)
        for (int form = tests_are_few() ? (kind + 2) % forms_of(kind) : 0; form < forms_of(kind);
             form += tests_are_few() ? FORMS : 1) {
            struct tiny_run run;
            defaults(&run, kind, (enum form)form, (kind + form) % 3 ? OT_F32 : OT_BF16);
            check_plans(&run, kinds[kind].name, form, count);
        }
}

/* Stages have the bits of one rank. */
static void two_ranks_have_the_bits_of_unsharded_ranks(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct tiny_run run;
        struct tiny_result whole, other;
        enum ot_shard_mode mode = (enum ot_shard_mode)(1 + kind % OT_SHARD_STAGES);
        defaults(&run, kind, kind % 2 ? ALL : forms_of(kind) == FORMS ? EXPERTS : DROPOUT, OT_F32);
        run.micro_sequences = 1;
        struct tiny_world w = {.ranks = mode == OT_SHARD_STAGES ? 1 : 2, .slots = 2};
        tiny_train_ranks(&run, &w, &whole);
        w.ranks = 2;
        w.mode = mode;
        w.weights = mode == OT_SHARD_STATE ? OT_HOME_GPU : OT_HOME_HOST;
        w.state = OT_HOME_HOST;
        tiny_train_ranks(&run, &w, &other);
        tiny_same(&whole, &other, kinds[kind].name);
        tiny_result_free(&whole);
        tiny_result_free(&other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_has_the_bits_of_the_resident_run),
        cmocka_unit_test(two_ranks_have_the_bits_of_unsharded_ranks),
    };
    tiny_skip_without_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
