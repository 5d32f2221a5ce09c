/* The keys of a model: from a config to a file and back, and what is refused on either way. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "src/files/model_config.h"
#include "src/gguf/model_keys.h"
#include "tests/gguf/families.h"
#include "tests/gguf/fixture.h"

/* ---- there and back ---- */

/* Entries for the factors of RoPE and for the tensors that a config is made from: those of layer 0 and of no
 * layer, one column wide. Returns their number. */
static int64_t make_entries(const struct ot_model_config *config, const struct ot_model *model,
                            struct ot_gguf_entry *entries) {
    int64_t n = 0;
    for (const char *name; (name = ot_gguf_rope_tensor(config, (int)n)); n++) {
        entries[n] = (struct ot_gguf_entry){.rows = 1, .cols = config->rotary_dim / 2, .dims = 1};
        snprintf(entries[n].name, sizeof entries[n].name, "%s", name);
    }
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(model, i);
        if (tensor->layer > 0 || tensor->expert > 0)
            continue;
        assert_true(n < 64 && ot_gguf_name_of(config, tensor, entries[n].name));
        entries[n].rows = tensor->rows;
        entries[n].cols = 1;
        entries[n++].dims = tensor->dims;
    }
    for (int64_t i = 0; i < n; i++)
        entries[i].type = ot_gguf_type(OT_GGUF_F32);
    return n;
}

static void write_model(const struct ot_model_config *config, const char *path_folder) {
    struct ot_model_config plain = *config;
    struct ot_gguf_entry entries[64] = {0};
    struct ot_gguf_keys keys = {0};
    struct ot_gguf_writer *writer;
    struct ot_model *model;
    struct sink sink = {0};
    plain.rope.scaling = OT_ROPE_PLAIN; /* a model is not opened with wrong factors */
    check_ok(ot_model_open(&plain, OT_F32, 8, &model));
    int64_t n = make_entries(config, model, entries);
    ot_gguf_put_config(&keys, config, "tiny", ot_gguf_mixture_at(0));
    writer_open(&keys, entries, n, &sink, &writer);
    for (int64_t i = 0; i < n; i++)
        for (int64_t v = 0; v < entries[i].rows * entries[i].cols; v++) {
            bool factor = ot_gguf_is_rope_tensor(entries[i].name);
            float value = factor ? ot_gguf_rope_factor(config, entries[i].name, v) : 0;
            check_ok(ot_gguf_writer_put(writer, &value, 1));
        }
    check_ok(ot_gguf_writer_finish(writer));
    write_file(path_folder, "m.gguf", sink.bytes, sink.n);
    ot_gguf_writer_close(writer);
    ot_gguf_keys_free(&keys);
    ot_model_close(model);
    sink_free(&sink);
}

/* Writes a file of the config, and makes the config of it. */
static int read_back(const struct ot_model_config *config, struct ot_config_file *out) {
    char *folder = make_folder(), *text = NULL;
    struct ot_gguf *file;
    size_t bytes;
    check_ok(ot_gguf_check_config(config, "config"));
    write_model(config, folder);
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    int rc = ot_gguf_make_config(file, 1, 2, &text, &bytes);
    if (rc == 0) {
        struct ot_json *root;
        check_ok(ot_json_parse(text, bytes, "made", &root));
        check_ok(ot_model_config_parse(root, "made", out));
        ot_json_free(root);
    }
    free(text);
    ot_gguf_close(file);
    remove_folder(folder);
    return rc;
}

/* The keys of a config, as text. */
static char *text_of(const struct ot_model_config *config) {
    struct ot_json_writer writer = {.indent = -1};
    char *text;
    ot_json_begin_object(&writer, NULL);
    ot_model_config_put(config, &writer);
    ot_json_end_object(&writer);
    check_ok(ot_json_writer_take(&writer, &text, NULL));
    return text;
}

/* A window of 0 tokens has layers in a config that was read without layer_types. */
static void check_same(const char *name, const struct ot_model_config *config) {
    struct ot_model_config want = *config;
    struct ot_config_file got;
    check_ok(read_back(config, &got));
    char *text = text_of(config), *other = text_of(&got.config);
    if (strcmp(text, other) != 0)
        fail_msg("%s:\n%s\n%s", name, text, other);
    want.window_by_layer = want.window > 0 && want.window_by_layer;
    if (!want.window_by_layer)
        want.window_layers = (struct ot_layer_set){0};
    if (memcmp(&got.config, &want, sizeof want) != 0)
        fail_msg("%s: the config differs", name);
    assert_int_equal(got.ids.bos, 1);
    assert_int_equal(got.ids.eos[0], 2);
    free(other);
    free(text);
}

static void test_configs_come_back(void **state) {
    struct ot_model_config config;
    const char *name;
    (void)state;
    for (int i = 0; family_form(i, &name, &config); i++)
        check_same(name, &config);
}

/* llama.cpp has all presets but those of a family that it lacks. */
static void test_presets_come_back(void **state) {
    const struct ot_preset *preset;
    int n = 0, lacking = 0;
    (void)state;
    for (int i = 0; (preset = ot_preset_at(i)); i++) {
        char *text = text_of(&preset->config);
        struct ot_model_config config = config_of(text); /* numbers as config.json has them */
        free(text);
        if (ot_gguf_architecture(config.family)->name)
            check_same(preset->name, &config);
        else
            lacking++;
        n++;
    }
    assert_true(n - lacking >= 40);
}

/* The scaling of Llama 3.1 (factor 8) and 3.2 (factor 32), and of a model whose longest wavelength is
 * blended. */
static void test_llama3_scaling_comes_back(void **state) {
    static const struct {
        double theta, factor, original;
        int64_t head_dim;
    } cases[] = {{5e5, 8, 8192, 128}, {5e5, 32, 8192, 64}, {1e4, 8, 64, 8}, {1e4, 4, 16384, 8}};
    struct ot_model_config config = family_named("llama");
    struct ot_config_file got;
    (void)state;
    config.rope.scaling = OT_ROPE_LLAMA3;
    config.rope.low_freq_factor = 1;
    config.rope.high_freq_factor = 4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config.rope.theta = cases[i].theta;
        config.head_dim = config.rotary_dim = cases[i].head_dim;
        config.rope.factor = cases[i].factor;
        config.rope.original_max_position = cases[i].original;
        check_same("llama3", &config);
    }
    config.rope.high_freq_factor = 3.5;
    config.rope.original_max_position = 1000;
    check_fails(read_back(&config, &got), OT_E_INPUT, "are not those of Llama 3's RoPE scaling");
}

/* Of a family with several forms, the file's keys and tensors choose: a mistral3 that does not scale q by the
 * position is computed as a mistral. */
static void test_the_file_chooses_among_families(void **state) {
    struct ot_model_config config = family_named("ministral3");
    struct ot_config_file got;
    (void)state;
    config.q_scale_beta = 0;
    check_ok(read_back(&config, &got));
    assert_int_equal(got.config.family, OT_FAMILY_MISTRAL);
    assert_int_equal(got.config.rope.scaling, OT_ROPE_YARN);
    assert_true(got.config.rope.beta_fast == 16 && got.config.rope.attention_factor == 1);
    config = family_named("olmo3");
    config.window = 0;
    config.window_by_layer = false;
    config.local_rope_theta = 1e4; /* of no layer */
    check_ok(read_back(&config, &got));
    assert_int_equal(got.config.family, OT_FAMILY_OLMO2);
}

/* ---- models that llama.cpp lacks ---- */

static void refuse_model(const struct ot_model_config *config, const char *words) {
    check_fails(ot_gguf_check_config(config, "m"), OT_E_INPUT, words);
}

/* A form with one number changed. */
#define REFUSE(form, change, words)                                                                          \
    do {                                                                                                     \
        struct ot_model_config c = family_named(form);                                                       \
        change;                                                                                              \
        refuse_model(&c, words);                                                                             \
    } while (0)

static void test_refuses_maps_that_llama_cpp_lacks(void **state) {
    (void)state;
    REFUSE("llama", c.act = OT_ACT_RELU, "m: llama.cpp computes models of type llama with one activation");
    REFUSE("gemma", c.act = OT_ACT_GELU_ERF, "computes models of type gemma with one activation");
    REFUSE("qwen3", c.qkv_bias = c.out_bias = true, "no bias of o_proj for models of type qwen3");
    REFUSE("falcon", c.qkv_bias = c.out_bias = c.mlp_bias = true, "no bias of o_proj");
    REFUSE("smollm3", c.mlp_bias = true, "no biases of the MLP for models of type smollm3");
    REFUSE("qwen2", c.head_dim = 4, "attention that is wider or narrower than the model");
    REFUSE("olmo2", c.tied = true, "no tied embedding for models of type olmo2");
    REFUSE("gemma2", c.tied = false, "no output matrix of its own for models of type gemma2");
    REFUSE("falcon", c.residual = OT_SEQUENTIAL, "parallel_attn false");
    REFUSE("falcon", c.positions = OT_POSITIONS_ALIBI, "no ALiBi for models of type falcon");
}

static void test_refuses_attention_that_llama_cpp_lacks(void **state) {
    (void)state;
    REFUSE("qwen2", c.window = 16, "no sliding window for models of type qwen2");
    REFUSE("ministral3", c.window = 16, "no sliding window for models of type ministral3");
    REFUSE("gemma2", c.window = 0, "no form without sliding window");
    REFUSE("gemma2", c.attention_scale = 0.3, "query_pre_attn_scalar other than head_dim");
    REFUSE("gemma2", c.attention_softcap = 0, "no form without attn_logit_softcapping");
    REFUSE("gemma3", c.attention_softcap = 50, "no attn_logit_softcapping for models of type gemma3_text");
    REFUSE("smollm3", ot_layer_set_add(&c.no_rope, 1), "no_rope_layers other than each fourth");
}

static void test_refuses_forms_of_t5_that_llama_cpp_lacks(void **state) {
    (void)state;
    REFUSE("t5", c.act = OT_ACT_GELU_TANH, "no feed_forward_proj other than relu and gated-gelu");
    REFUSE("t5_gated", c.act = OT_ACT_SILU, "no feed_forward_proj other than relu and gated-gelu");
    REFUSE("t5", c.position_distance = 64, "no relative_attention_max_distance other than 128");
    REFUSE("t5", c.n_encoder_layers = 10, "no decoder with more layers than the encoder");
    REFUSE("t5", c.logit_divisor = 0, "no key for the scale of the logits for models of type t5");
    REFUSE("t5_gated", c.logit_divisor = sqrt(32.0), "no key for the scale of the logits");
}

static void test_refuses_ropes_that_llama_cpp_lacks(void **state) {
    (void)state;
    REFUSE("llama", c.rope.scaling = OT_ROPE_DYNAMIC, "cannot be written as GGUF");
    REFUSE("qwen2", c.rope.scaling = OT_ROPE_LLAMA3,
           "no rope_scaling of type llama3 for models of type qwen2");
    REFUSE("phi3", c.rope.scaling = OT_ROPE_LLAMA3, "no rope_scaling of type llama3");
    REFUSE("smollm3", c.rope.scaling = OT_ROPE_LONGROPE, "no rope_scaling of type longrope");
    REFUSE("gemma3", c.rope.scaling = OT_ROPE_YARN, "no rope_scaling of type yarn");
    REFUSE("llama_yarn", c.rope.beta_fast = 16, "other than 32 and 1");
    REFUSE("llama_yarn", c.rope.keeps_fractions = true, "no YaRN with truncate false");
    REFUSE("olmo3", c.local_rope_theta = 1e4, "rope_theta that layers with a window have alone");
}

static void test_refuses_experts_that_llama_cpp_lacks(void **state) {
    (void)state;
    REFUSE("qwen3_moe", ot_layer_set_add(&c.dense_layers, 3),
           "m: llama.cpp has no layers without experts for models of type qwen3_moe");
    REFUSE("qwen3_moe", c.router_over_all = true, "no norm_topk_prob false");
    REFUSE("qwen3_moe", c.window = 16, "no sliding window for models of type qwen3_moe");
    REFUSE("qwen3_moe", c.qkv_bias = c.out_bias = true, "no bias of o_proj");
    REFUSE("gpt_oss", c.qkv_bias = c.out_bias = false, "no attention without biases");
    REFUSE("gpt_oss", c.glu_limit = 6, "no swiglu_limit other than 7");
    REFUSE("gpt_oss", c.glu_alpha = 1.5f, "swiglu_alpha other than 1.702");
    REFUSE("gpt_oss", c.window = 0, "no form without sliding window");
    REFUSE("gpt_oss", c.tied = true, "no tied embedding");
    REFUSE("gpt_oss", c.rope.keeps_fractions = false, "m: GGUF cannot say truncate of YaRN");
    REFUSE("gpt_oss", c.rope.beta_fast = 16, "other than 32 and 1");
}

/* The largest Gemma 2 has heads of 128 elements, but llama.cpp scales as if they were hidden / n_heads. */
static void test_the_largest_gemmas_are_scaled_by_their_width(void **state) {
    struct ot_model_config config = family_named("gemma2");
    (void)state;
    assert_true(ot_gguf_attention_scale(&config) == 1 / sqrt(12.0));
    config.n_layers = 46;
    assert_true(ot_gguf_attention_scale(&config) == 1 / sqrt(8.0));
    config = family_named("gemma3");
    config.n_layers = 62;
    assert_true(ot_gguf_attention_scale(&config) == 1 / sqrt(8.0));
    config = family_named("gemma");
    assert_true(ot_gguf_attention_scale(&config) == 0);
}

static void test_families_that_llama_cpp_lacks_are_named(void **state) {
    struct ot_model_config config = {.family = OT_FAMILY_CODEGEN};
    (void)state;
    refuse_model(&config, "m: llama.cpp has no models of type codegen");
    refuse_model(&config, "export without --gguf");
    config.family = OT_FAMILY_MINISTRAL;
    refuse_model(&config, "no models of type ministral,");
    for (int i = 0; i < OT_FAMILY_COUNT; i++) {
        const char *name = ot_gguf_architecture((enum ot_family)i)->name;
        assert_true(!name || strstr(ot_gguf_known_architectures, name));
    }
}

/* ---- wrong keys ---- */

/* n_factors: values of rope_freqs.weight; 0: there is no such tensor. */
static void refuse_config(const char *folder, const struct ot_gguf_keys *keys, int64_t n_factors,
                          const char *words) {
    const struct ot_gguf_type *type = ot_gguf_type(OT_GGUF_F32);
    struct ot_gguf_entry entries[] = {
        {.name = "token_embd.weight", .type = type, .dims = 2, .rows = 4, .cols = 32},
        {.name = OT_GGUF_ROPE_FREQS, .type = type, .dims = 1, .rows = 1, .cols = n_factors}};
    struct ot_gguf_writer *writer;
    struct sink sink = {0};
    struct ot_gguf *file;
    float zeros[128 + 8] = {0};
    char *text = NULL;
    size_t bytes;
    writer_open(keys, entries, n_factors ? 2 : 1, &sink, &writer);
    check_ok(ot_gguf_writer_put(writer, zeros, 128 + n_factors));
    check_ok(ot_gguf_writer_finish(writer));
    write_file(folder, "m.gguf", sink.bytes, sink.n);
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    check_fails(ot_gguf_make_config(file, -1, -1, &text, &bytes), OT_E_INPUT, words);
    assert_null(text);
    ot_gguf_close(file);
    ot_gguf_writer_close(writer);
    sink_free(&sink);
}

struct wrong_key {
    const char *architecture, *key; /* the key without the architecture; it replaces a right one */
    const char *text;               /* NULL: the number is its value */
    uint32_t number;
    int64_t n_factors; /* of rope_freqs.weight */
    const char *words;
};

/* The keys of a model of 8 layers, 8 heads of one element, with the wrong key. */
static void put_wrong_keys(struct ot_gguf_keys *keys, const struct wrong_key *wrong) {
    static const char *const counts[] = {"block_count",          "context_length",
                                         "embedding_length",     "feed_forward_length",
                                         "attention.head_count", "attention.key_length"};
    char key[96];
    ot_gguf_put_text(keys, "general.architecture", wrong->architecture);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        snprintf(key, sizeof key, "%s.%s", wrong->architecture, counts[i]);
        if (strcmp(wrong->key, counts[i]) != 0)
            ot_gguf_put_u32(keys, key, 8);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", wrong->architecture);
    if (strcmp(wrong->key, "attention.layer_norm_rms_epsilon") != 0)
        ot_gguf_put_f32(keys, key, 1e-5f);
    snprintf(key, sizeof key, "%s.%s", wrong->architecture, wrong->key);
    if (wrong->text)
        ot_gguf_put_text(keys, key, wrong->text);
    else
        ot_gguf_put_u32(keys, key, wrong->number);
}

/* The config that is made of a file with this key. */
static struct ot_model_config config_with(const struct wrong_key *key) {
    const struct ot_gguf_entry entry = {
        .name = "token_embd.weight", .type = ot_gguf_type(OT_GGUF_F32), .dims = 2, .rows = 4, .cols = 8};
    struct ot_gguf_entry entries[1] = {entry};
    struct ot_gguf_keys keys = {0};
    struct ot_gguf_writer *writer;
    struct sink sink = {0};
    struct ot_gguf *file;
    struct ot_config_file config;
    struct ot_json *root;
    float zeros[32] = {0};
    char *text = NULL;
    size_t bytes;
    char *folder = make_folder();
    put_wrong_keys(&keys, key);
    writer_open(&keys, entries, 1, &sink, &writer);
    check_ok(ot_gguf_writer_put(writer, zeros, 32));
    check_ok(ot_gguf_writer_finish(writer));
    write_file(folder, "theta.gguf", sink.bytes, sink.n);
    check_ok(ot_gguf_open(file_in(folder, "theta.gguf"), &file));
    check_ok(ot_gguf_make_config(file, -1, -1, &text, &bytes));
    check_ok(ot_json_parse(text, bytes, "made", &root));
    check_ok(ot_model_config_parse(root, "made", &config));
    remove_folder(folder);
    ot_json_free(root);
    free(text);
    ot_gguf_close(file);
    ot_gguf_writer_close(writer);
    ot_gguf_keys_free(&keys);
    sink_free(&sink);
    return config.config;
}

/* Without rope.freq_base, theta is llama.cpp's default. The least theta is 1. */
static void test_theta(void **state) {
    static const struct wrong_key none = {.architecture = "llama", .key = "vocab_size", .number = 4};
    static const struct wrong_key least = {.architecture = "llama", .key = "rope.freq_base", .number = 1};
    (void)state;
    assert_true(config_with(&none).rope.theta == 1e4);
    assert_true(config_with(&least).rope.theta == 1);
}

/* Without a list, the layers with a window are llama.cpp's: all but each second, or each sixth. */
static void test_windows_by_default(void **state) {
    static const struct wrong_key windows[] = {
        {.architecture = "gemma2", .key = "attention.sliding_window", .number = 4},
        {.architecture = "gemma3", .key = "attention.sliding_window", .number = 4}};
    static const int64_t periods[] = {2, 6};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ot_model_config config = config_with(&windows[i]);
        assert_int_equal(config.n_layers, 8);
        for (int64_t l = 0; l < 8; l++)
            assert_int_equal(ot_model_layer_window(&config, l), (l + 1) % periods[i] != 0 ? 4 : 0);
    }
}

static void test_refuses_wrong_model_keys(void **state) {
    static const struct wrong_key cases[] = {
        {"gemma4", "a", "b", 0, 0, "general.architecture 'gemma4' is not supported; known: bloom, falcon,"},
        {"llama", "expert_count", NULL, 8, 0, "the key llama.expert_used_count is missing"},
        {"llama", "expert_count", NULL, 1025, 0, "llama.expert_count is 1025, must be from 1 to 1024"},
        {"qwen3", "expert_count", NULL, 8, 0,
         "qwen3.expert_count is 8; experts of this architecture are not"},
        {"qwen3moe", "a", "b", 0, 0, "the key qwen3moe.expert_count is missing"},
        {"qwen3moe", "expert_count", NULL, 0, 0, "qwen3moe.expert_count is 0, must be from 1 to 1024"},
        {"gpt-oss", "expert_count", "8", 0, 0, "gpt-oss.expert_count is a string"},
        {"llama", "block_count", "two", 0, 0, "llama.block_count is a string, not a whole number"},
        {"smollm3", "block_count", NULL, 1025, 0, "smollm3.block_count"},
        {"llama", "rope.scaling.type", "su", 0, 0, "llama.rope.scaling.type 'su' is not supported"},
        {"gemma3", "rope.scaling.type", "yarn", 0, 0, "gemma3.rope.scaling.type 'yarn' is not supported"},
        {"phi3", "rope.scaling.type", "longrope", 0, 0, "tensor rope_factors_short.weight must have"},
        {"llama", "rope.freq_base", NULL, 0, 0, "llama.rope.freq_base is 0"},
        {"llama", "rope.dimension_count", NULL, 4, 0, "RoPE rotates 4 of each head's 8 elements"},
        {"phi3", "rope.dimension_count", NULL, 16, 0, "RoPE rotates 16 of each head's 8 elements"},
        {"llama", "attention.key_length", NULL, 16, 4, "one for each pair of a head's 16 elements"},
        {"llama", "attention.key_length", NULL, 8, 4, "are not those of Llama 3's RoPE scaling"},
        {"qwen3", "attention.layer_norm_rms_epsilon", "x", 0, 0, "is a string"},
        {"gpt2", "a", "b", 0, 0, "the key gpt2.attention.layer_norm_epsilon is missing"},
        {"granite", "a", "b", 0, 0, "the key granite.logit_scale is missing"},
        {"gemma2", "attention.sliding_window_pattern", "x", 0, 0, "is a string, not a whole number"},
        {"t5", "a", "b", 0, 0, "the key t5.attention.relative_buckets_count is missing"},
        {"t5", "attention.relative_buckets_count", NULL, 300, 0, "t5.attention.relative_buckets_count"},
        {"t5", "decoder_block_count", NULL, 0, 0, "t5.decoder_block_count"},
        {"t5", "decoder_start_token_id", NULL, 2, 0, "t5.decoder_start_token_id is 2; only 0 is supported"},
        {"t5encoder", "a", "b", 0, 0, "general.architecture 't5encoder' is not supported; known: bloom,"},
    };
    char *folder = make_folder();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_gguf_keys keys = {0};
        put_wrong_keys(&keys, &cases[i]);
        refuse_config(folder, &keys, cases[i].n_factors, cases[i].words);
        ot_gguf_keys_free(&keys);
    }
    remove_folder(folder);
}

/* A factor that would make frequencies infinite. */
static void test_refuses_factors_that_are_not_positive(void **state) {
    struct ot_model_config config = family_named("phi3");
    struct ot_config_file got;
    (void)state;
    config.rope.long_factors[1] = 0;
    check_fails(read_back(&config, &got), OT_E_INPUT, "value 1 of tensor rope_factors_long.weight is 0");
}

static void test_refuses_a_wrong_list_of_windows(void **state) {
    const struct wrong_key right = {"gemma2", "a", "b", 0, 0, NULL};
    char *folder = make_folder();
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct ot_gguf_keys keys = {0};
        put_wrong_keys(&keys, &right);
        ot_gguf_put_array(&keys, "gemma2.attention.sliding_window_pattern",
                          i ? OT_GGUF_KIND_I32 : OT_GGUF_KIND_BOOL, 2);
        for (int n = 0; n < 2; n++)
            i ? ot_gguf_put_i32_item(&keys, 1) : ot_gguf_put_bool_item(&keys, true);
        refuse_config(folder, &keys, 0,
                      i ? "whose items are each" : "has 2 items, but the model has 8 layers");
        ot_gguf_keys_free(&keys);
    }
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configs_come_back),
        cmocka_unit_test(test_presets_come_back),
        cmocka_unit_test(test_llama3_scaling_comes_back),
        cmocka_unit_test(test_the_file_chooses_among_families),
        cmocka_unit_test(test_refuses_maps_that_llama_cpp_lacks),
        cmocka_unit_test(test_refuses_attention_that_llama_cpp_lacks),
        cmocka_unit_test(test_refuses_forms_of_t5_that_llama_cpp_lacks),
        cmocka_unit_test(test_refuses_ropes_that_llama_cpp_lacks),
        cmocka_unit_test(test_refuses_experts_that_llama_cpp_lacks),
        cmocka_unit_test(test_the_largest_gemmas_are_scaled_by_their_width),
        cmocka_unit_test(test_families_that_llama_cpp_lacks_are_named),
        cmocka_unit_test(test_theta),
        cmocka_unit_test(test_windows_by_default),
        cmocka_unit_test(test_refuses_wrong_model_keys),
        cmocka_unit_test(test_refuses_factors_that_are_not_positive),
        cmocka_unit_test(test_refuses_a_wrong_list_of_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
