/* A model's directory: which files are found in it, loading into the slabs of a model, and saving from
 * them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/block.h"
#include "src/base/json.h"
#include "src/base/thread.h"
#include "src/files/safetensors.h"
#include "tests/files/fixture.h"

static int open_folder(void **state) {
    *state = make_folder();
    faults_clear();
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

static struct ot_model *make_model(bool tied) {
    struct ot_model_config config = tiny_config(tied);
    struct ot_model *model;
    check_ok(ot_model_open(&config, OT_F32, config.max_position, &model));
    return model;
}

/* Saves the tiny values as FOLDER/NAME, without a base model. */
static const char *save_tiny(const char *folder, const char *name, const struct ot_model *model,
                             enum ot_dtype dtype, int64_t shard_bytes) {
    const char *out = in_folder(folder, name);
    struct params *params = params_open(model);
    struct ot_model_save save = {.out = out,
                                 .model = model,
                                 .dtype = dtype,
                                 .ids = {.bos = 1, .n_eos = 1, .eos = {2}},
                                 .shard_bytes = shard_bytes,
                                 .calls = &faulty_calls};
    params_fill(params);
    check_ok(ot_model_dir_save(&save, params_source, params));
    params_close(params);
    return out;
}

static void check_loads(const char *path, const struct ot_model *model, struct ot_pool *pool) {
    struct ot_model_dir *dir;
    struct params *got = params_open(model), *want = params_open(model);
    params_fill(want);
    check_ok(ot_model_dir_open(path, &dir));
    check_ok(ot_model_dir_check(dir, model));
    check_ok(ot_model_dir_load(dir, model, pool, params_sink, got));
    for (int s = 0; s < ot_model_chain(model)->n_slabs; s++)
        assert_int_equal(got->next[s], ot_model_chain(model)->slabs[s].n_params);
    params_check_equal(got, want);
    ot_model_dir_close(dir);
    params_close(got);
    params_close(want);
}

/* ---- round trips ---- */

static void test_saves_and_loads_each_dtype_and_sharding(void **state) {
    static const int64_t shards[] = {0, 3000, 1};
    struct ot_pool *pool;
    check_ok(ot_pool_open(2, "test", &pool));
    for (int tied = 0; tied < 2; tied++) {
        struct ot_model *model = make_model(tied);
        for (int dtype = 0; dtype < 3; dtype++)
            for (int s = 0; s < 3; s++) {
                struct ot_model_dir *dir;
                const char *path = save_tiny(*state, "m", model, (enum ot_dtype)dtype, shards[s]);
                check_loads(path, model, s == 1 ? pool : NULL);
                check_ok(ot_model_dir_open(path, &dir));
                const struct ot_model_facts *facts = ot_model_dir_facts(dir);
                assert_int_equal(facts->dtype, dtype);
                assert_int_equal(facts->config.tied, tied);
                assert_int_equal(facts->ids.bos, 1);
                assert_int_equal(facts->ids.eos[0], 2);
                assert_int_equal(facts->weight_bytes, ot_model_param_count(&facts->config) *
                                                          (int64_t)ot_dtype_bytes((enum ot_dtype)dtype));
                assert_true(shards[s] == 0 ? facts->n_shards == 1 : facts->n_shards > 1);
                assert_int_equal(file_exists(path, "model.safetensors.index.json"), shards[s] != 0);
                ot_model_dir_close(dir);
            }
        ot_model_close(model);
    }
    ot_pool_close(pool);
}

/* Tensors longer than a chunk, so that read-ahead, parts and chunks have borders inside a tensor. */
static void test_loads_tensors_of_many_chunks(void **state) {
    struct ot_model_config config = tiny_config(true);
    struct ot_model *model;
    struct ot_pool *pool;
    config.vocab = (1 << 16) * 2 + 5; /* x 16 = 2 Mi and 80 values */
    check_ok(ot_model_open(&config, OT_F32, config.max_position, &model));
    check_ok(ot_pool_open(2, "test", &pool));
    const char *path = save_tiny(*state, "m", model, OT_BF16, 0);
    check_loads(path, model, pool);
    check_loads(path, model, NULL);
    ot_pool_close(pool);
    ot_model_close(model);
}

static void test_output_of_a_preset_is_whole(void **state) {
    struct ot_model *model = make_model(false);
    const char *path = save_tiny(*state, "m", model, OT_BF16, 0);
    char *config = read_text(path, "config.json", NULL),
         *generation = read_text(path, "generation_config.json", NULL);
    assert_non_null(strstr(config, "\"torch_dtype\": \"bfloat16\""));
    assert_non_null(strstr(config, "\"LlamaForCausalLM\""));
    assert_non_null(strstr(generation, "\"eos_token_id\": 2"));
    free(config);
    free(generation);
    assert_int_equal(count_entries(path), 4);
    ot_model_close(model);
}

/* ---- names, shapes, extras ---- */

static int load_edited(const char *folder, bool tied, const struct edit *edit) {
    struct ot_model *model = make_model(tied);
    struct ot_model_dir *dir;
    struct params *got = params_open(model), *want = params_open(model);
    write_text(folder, "config.json", tiny_config_text(tied, ""));
    write_model(folder, model, edit);
    params_fill(want);
    check_ok(ot_model_dir_open(folder, &dir));
    int rc = ot_model_dir_load(dir, model, NULL, params_sink, got);
    if (rc == 0)
        params_check_equal(got, want);
    else if (!edit->bad_value)
        assert_int_equal(got->calls, 0); /* fails before the first value is delivered */
    ot_model_dir_close(dir);
    params_close(got);
    params_close(want);
    ot_model_close(model);
    return rc;
}

static void test_finds_tensors_under_other_names(void **state) {
    static const struct edit edits[] = {
        {0},
        {.rename_from = "model.", .rename_to = ""},
        {.rename_from = "model.", .rename_to = "transformer."},
        {.rename_from = "lm_head", .rename_to = "model.lm_head"},
        {.more = "model.layers.0.self_attn.rotary_emb.inv_freq h.0.attn.masked_bias"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        check_ok(load_edited(*state, false, &edits[i]));
    /* Tied embeddings: both names are accepted, and a second copy is ignored. */
    struct edit head = {.rename_from = "model.embed_tokens", .rename_to = "lm_head"},
                both = {.copy = "lm_head.weight"};
    check_ok(load_edited(*state, true, &head));
    check_ok(load_edited(*state, true, &both));
}

static void test_refuses_wrong_tensors_by_name(void **state) {
    static const struct {
        bool tied;
        struct edit edit;
        const char *words;
    } cases[] = {
        {false,
         {.drop = "model.layers.1.mlp.up_proj.weight"},
         "tensor model.layers.1.mlp.up_proj.weight is missing from the weights (missing tensors: 1)"},
        {false, {.drop = "lm_head.weight"}, "config.json needs tie_word_embeddings true"},
        {true, {.drop = "model.embed_tokens.weight"}, "model.embed_tokens.weight is missing"},
        {false,
         {.more = "model.layers.0.self_attn.q_proj.bias"},
         "model.layers.0.self_attn.q_proj.bias is not part"},
        {false, {.more = "model.layers.2.x model.layers.3.x"}, "(such tensors: 2)"},
        {false, {.more = "norm.weight"}, "norm.weight is not part"},
        {false,
         {.odd_shape = "model.layers.0.self_attn.k_proj.weight"},
         "k_proj.weight has the shape [9, 16], but by config.json it should be [8, 16]"},
        {false, {.odd_dtype = "model.norm.weight"}, "model.norm.weight is stored as I32"},
        {false, {.bad_value = "model.layers.1.input_layernorm.weight"}, "input_layernorm.weight holds"},
        {false, {.rename_from = "model.layers", .rename_to = "model.blocks"}, "model.layers.0."},
        {true,
         {.copy = "lm_head.weight", .copy_differs = true},
         "lm_head.weight differs from model.embed_tokens"},
        {true, {.copy = "model.lm_head.weight", .copy_differs = true}, "tie_word_embeddings"},
        {true, {.more = "lm_head.weight"}, "lm_head.weight differs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_fails(load_edited(*state, cases[i].tied, &cases[i].edit), OT_E_INPUT, cases[i].words);
}

static void test_errors_of_workers_and_sinks(void **state) {
    struct ot_model *model = make_model(false);
    struct ot_model_dir *dir;
    struct ot_pool *pool;
    struct edit bad = {.bad_value = "model.layers.0.mlp.down_proj.weight"}, none = {0};
    struct params *params = params_open(model);
    check_ok(ot_pool_open(2, "test", &pool));
    write_text(*state, "config.json", tiny_config_text(false, ""));
    write_model(*state, model, &bad);
    check_ok(ot_model_dir_open(*state, &dir));
    check_fails(ot_model_dir_load(dir, model, pool, params_sink, params), OT_E_INPUT,
                "down_proj.weight holds nan at element 3");
    params_close(params);
    ot_model_dir_close(dir);
    write_model(*state, model, &none);
    check_ok(ot_model_dir_open(*state, &dir));
    params = params_open(model);
    params->stop_at = 5;
    check_fails(ot_model_dir_load(dir, model, pool, params_sink, params), OT_E_DEVICE, "the sink had enough");
    assert_int_equal(params->calls, 5);
    params_close(params);
    /* The file is truncated while it is open. */
    params = params_open(model);
    assert_int_equal(truncate(in_folder(*state, "model.safetensors"), 100), 0);
    check_fails(ot_model_dir_load(dir, model, pool, params_sink, params), OT_E_IO,
                "model.safetensors: the file was cut from");
    params_close(params);
    ot_model_dir_close(dir);
    ot_pool_close(pool);
    ot_model_close(model);
}

/* ---- the directory ---- */

static void test_refuses_broken_directories(void **state) {
    struct ot_model_dir *dir;
    check_fails(ot_model_dir_open(*state, &dir), OT_E_IO, "config.json");
    write_text(*state, "config.json", "{\"model_type\": ");
    check_fails(ot_model_dir_open(*state, &dir), OT_E_INPUT, "config.json: byte");
    char *big = malloc(OT_CONFIG_MAX_BYTES + 2);
    assert_non_null(big);
    memset(big, ' ', OT_CONFIG_MAX_BYTES + 2);
    write_file(*state, "config.json", big, OT_CONFIG_MAX_BYTES + 2);
    free(big);
    check_fails(ot_model_dir_open(*state, &dir), OT_E_INPUT, "config.json: the file is larger than");
    write_text(*state, "config.json", tiny_config_text(false, ""));
    write_text(*state, "generation_config.json", "{\"eos_token_id\": 1000}");
    check_fails(ot_model_dir_open(*state, &dir), OT_E_INPUT, "generation_config.json: eos_token_id");
    assert_int_equal(unlink(in_folder(*state, "generation_config.json")), 0);
    write_text(*state, "model.safetensors", "rubbish, truly");
    check_fails(ot_model_dir_open(*state, &dir), OT_E_INPUT, "model.safetensors");
    char *path = malloc(5000);
    assert_non_null(path);
    memset(path, 'x', 4999);
    path[4999] = '\0';
    check_fails(ot_model_dir_open(path, &dir), OT_E_INPUT, "the path is too long");
    free(path);
}

static void test_directories_without_weights(void **state) {
    struct ot_model *model = make_model(false);
    struct ot_model_dir *dir;
    write_text(*state, "config.json", tiny_config_text(false, ", \"torch_dtype\": \"float16\""));
    check_ok(ot_model_dir_open(*state, &dir));
    assert_false(ot_model_dir_facts(dir)->has_weights);
    assert_int_equal(ot_model_dir_facts(dir)->dtype, OT_F16);
    check_fails(ot_model_dir_check(dir, model), OT_E_INPUT, "has neither model.safetensors nor");
    ot_model_dir_close(dir);
    write_text(*state, "pytorch_model.bin", "");
    check_fails(ot_model_dir_open(*state, &dir), OT_E_INPUT, "pytorch_model.bin: does not end with the");
    ot_model_close(model);
}

static void test_refuses_bad_indexes(void **state) {
    static const struct {
        const char *index;
        int code;
        const char *words;
    } cases[] = {
        {"{}", OT_E_INPUT, "'weight_map' must be an object"},
        {"{\"weight_map\": []}", OT_E_INPUT, "'weight_map' must be an object"},
        {"{\"weight_map\": {\"a\": 5}}", OT_E_INPUT, "tensor a must name a file"},
        {"{\"weight_map\": {\"a\": \"../secret.safetensors\"}}", OT_E_INPUT, "'../secret.safetensors' is"},
        {"{\"weight_map\": {\"a\": \"/etc/x.safetensors\"}}", OT_E_INPUT, "is not the name"},
        {"{\"weight_map\": {\"a\": \"..safetensors\"}}", OT_E_INPUT, "is not the name"},
        {"{\"weight_map\": {\"a\": \"pipe.safetensors\"}}", OT_E_INPUT, "pipe.safetensors: not a regular"},
        {"{\"weight_map\": {\"a\": \"one.bin\"}}", OT_E_INPUT, "'one.bin' is not the name"},
        {"{\"weight_map\": {\"a\": \"absent.safetensors\"}}", OT_E_IO, "absent.safetensors: cannot open"},
        {"{\"weight_map\": {\"b\": \"one.safetensors\"}}", OT_E_INPUT,
         "says that tensor b is in one.safetensors"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\"}}", OT_E_INPUT, "holds tensor c"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\", \"c\": \"two.safetensors\"}}", OT_E_INPUT,
         "holds tensor c"},
    };
    const char *one = "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                      "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    write_text(*state, "config.json", tiny_config_text(false, ""));
    write_raw_safetensors(*state, "one.safetensors", one, NULL, 0);
    write_raw_safetensors(*state, "two.safetensors",
                          "{\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", NULL, 0);
    /* No process ever writes to it. */
    assert_int_equal(mkfifo(in_folder(*state, "pipe.safetensors"), 0600), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_model_dir *dir;
        write_text(*state, "model.safetensors.index.json", cases[i].index);
        check_fails(ot_model_dir_open(*state, &dir), cases[i].code, cases[i].words);
    }
}

static void test_token_ids_by_precedence(void **state) {
    static const struct {
        const char *config, *tokenizer_config, *generation;
        int32_t bos;
        int n_eos;
        int32_t eos;
    } cases[] = {
        {"", NULL, NULL, -1, 0, 0},
        {", \"bos_token_id\": 1, \"eos_token_id\": 2", NULL, NULL, 1, 1, 2},
        {", \"bos_token_id\": 1, \"eos_token_id\": 2", "{\"eos_token\": \"<end>\"}", NULL, 1, 1, 7},
        {", \"eos_token_id\": 2", "{\"eos_token\": {\"content\": \"<end>\"}, \"bos_token\": \"word\"}", NULL,
         5, 1, 7},
        {", \"eos_token_id\": 2", "{\"eos_token\": \"unknown\"}", NULL, -1, 1, 8}, /* a new token */
        {", \"eos_token_id\": 2", "{\"eos_token\": \"<end>\"}", "{\"eos_token_id\": 9, \"bos_token_id\": 8}",
         8, 1, 9},
        {", \"eos_token_id\": 2", "{\"eos_token\": \"<end>\"}", "{\"eos_token_id\": [9, 7]}", -1, 2, 7},
        {", \"eos_token_id\": [2, 7]", "{\"eos_token\": \"<end>\"}", "{}", -1, 2, 7},
        {", \"eos_token_id\": [2, 7]", NULL, "{\"temperature\": 0.6}", -1, 2, 2},
    };
    write_text(
        *state, "tokenizer.json",
        "{\"added_tokens\": [{\"id\": 7, \"content\": \"<end>\"}], \"model\": {\"vocab\": {\"word\": 5}}}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_model_dir *dir;
        unlink(in_folder(*state, "tokenizer_config.json"));
        unlink(in_folder(*state, "generation_config.json"));
        write_text(*state, "config.json", tiny_config_text(false, cases[i].config));
        if (cases[i].tokenizer_config)
            write_text(*state, "tokenizer_config.json", cases[i].tokenizer_config);
        if (cases[i].generation)
            write_text(*state, "generation_config.json", cases[i].generation);
        check_ok(ot_model_dir_open(*state, &dir));
        const struct ot_token_ids *ids = &ot_model_dir_facts(dir)->ids;
        assert_int_equal(ids->bos, cases[i].bos);
        assert_int_equal(ids->n_eos, cases[i].n_eos);
        assert_int_equal(ids->eos[0], cases[i].eos);
        ot_model_dir_close(dir);
    }
    struct ot_model_dir *dir;
    write_text(*state, "tokenizer.json", "{\"added_tokens\": [{\"id\": 24, \"content\": \"<end>\"}]}");
    write_text(*state, "tokenizer_config.json", "{\"eos_token\": \"<end>\", \"chat_template\": \"x\"}");
    check_fails(ot_model_dir_open(*state, &dir), OT_E_INPUT, "must be below the model's vocab_size 24");
    assert_int_equal(unlink(in_folder(*state, "tokenizer.json")), 0);
    check_ok(ot_model_dir_open(*state, &dir));
    assert_true(ot_model_dir_facts(dir)->has_chat_template);
    assert_null(ot_model_dir_facts(dir)->tokenizer_path);
    ot_model_dir_close(dir);
}

/* ---- saving ---- */

static void test_saves_beside_a_base(void **state) {
    struct ot_model *model = make_model(true);
    struct ot_model_dir *base;
    struct params *params = params_open(model);
    struct edit none = {0};
    const char *from = in_folder(*state, "base"), *out = in_folder(*state, "out");
    const char *config =
        tiny_config_text(true, ", \"x_unknown\": [1, {\"y\": 0.1}], \"torch_dtype\": \"float32\"");
    assert_int_equal(mkdir(from, 0777), 0);
    write_text(from, "config.json", config);
    write_text(from, "generation_config.json", "{\"eos_token_id\": 2, \"temperature\": 0.6}");
    write_text(from, "tokenizer.json", "{\"added_tokens\": []}");
    write_text(from, "tokenizer_config.json", "{}");
    write_text(from, "chat_template.jinja", "{{ x }}");
    write_text(from, "README.md", "not copied");
    write_model(from, model, &none);
    params_fill(params);
    check_ok(ot_model_dir_open(from, &base));
    /* The user removes the base model while the run trains. The save does not need it any more. */
    assert_int_equal(rename(in_folder(from, "README.md"), in_folder(*state, "README.md")), 0);
    remove_folder(strdup(from));
    struct ot_extra_file extra[] = {{.name = "tokenizer_config.json", .text = "{\"a\": 1}", .bytes = 8},
                                    {.name = "copied.txt", .path = in_folder(*state, "README.md")}};
    struct ot_model_save save = {
        .out = out, .model = model, .base = base, .dtype = OT_F32, .calls = &faulty_calls};
    check_ok(ot_model_dir_save(&save, params_source, params));
    char *text = read_text(out, "config.json", NULL);
    assert_string_equal(text, config); /* the config is copied unchanged */
    free(text);
    save.dtype = OT_BF16;
    save.ids = (struct ot_token_ids){.bos = -1, .n_eos = 1, .eos = {3}};
    save.extra = extra;
    save.n_extra = 2;
    check_ok(ot_model_dir_save(&save, params_source, params));
    struct ot_json *root;
    check_ok(ot_json_read_file(in_folder(out, "config.json"), 1 << 20, &root));
    assert_string_equal(ot_json_string(ot_json_get(root, "torch_dtype"), NULL), "bfloat16");
    assert_int_equal(ot_json_int(ot_json_get(root, "eos_token_id"), -1), 3);
    assert_int_equal(ot_json_length(ot_json_get(root, "x_unknown")), 2);
    ot_json_free(root);
    text = read_text(out, "generation_config.json", NULL);
    assert_non_null(strstr(text, "\"eos_token_id\": 3"));
    assert_non_null(strstr(text, "\"temperature\": 0.6"));
    free(text);
    text = read_text(out, "tokenizer_config.json", NULL);
    assert_string_equal(text, "{\"a\": 1}");
    free(text);
    text = read_text(out, "copied.txt", NULL);
    assert_string_equal(text, "not copied");
    free(text);
    assert_true(file_exists(out, "chat_template.jinja") && file_exists(out, "tokenizer.json"));
    assert_int_equal(count_entries(out), 8);
    check_loads(out, model, NULL);
    ot_model_dir_close(base);
    params_close(params);
    ot_model_close(model);
}

static void test_saves_no_tied_head(void **state) {
    struct ot_model *model = make_model(true);
    struct ot_safetensors *file;
    const char *path = save_tiny(*state, "m", model, OT_F32, 0);
    check_ok(ot_safetensors_open(in_folder(path, "model.safetensors"), &file));
    assert_null(ot_safetensors_find(file, "lm_head.weight"));
    assert_non_null(ot_safetensors_find(file, "model.embed_tokens.weight"));
    ot_safetensors_close(file);
    ot_model_close(model);
}

static void test_failed_saves_leave_the_old_output(void **state) {
    struct ot_model *model = make_model(false);
    const char *out = save_tiny(*state, "m", model, OT_F32, 0);
    struct params *params = params_open(model);
    struct ot_model_save save = {.out = out, .model = model, .dtype = OT_F32, .calls = &faulty_calls};
    int64_t bytes;
    check_ok(ot_model_dir_save_bytes(&save, &bytes));
    for (int64_t room = 0; room < 20000; room += 1999) {
        faults.write_bytes = room;
        check_fails(ot_model_dir_save(&save, params_source, params), OT_E_IO, "No space left on device");
    }
    faults_clear();
    faults.fail_fsync = true;
    check_fails(ot_model_dir_save(&save, params_source, params), OT_E_IO, "cannot flush");
    faults_clear();
    faults.fail_reserve = true;
    check_fails(ot_model_dir_save(&save, params_source, params), OT_E_IO, "cannot reserve disk space");
    faults_clear();
    faults.free_bytes = bytes - 1;
    check_fails(ot_model_dir_save(&save, params_source, params), OT_E_IO, "are free there");
    faults_clear();
    params->stop_at = params->calls + 3;
    check_fails(ot_model_dir_save(&save, params_source, params), OT_E_DEVICE, "the source ran dry");
    check_loads(out, model, NULL);
    assert_int_equal(count_entries(*state), 1);
    params_close(params);
    ot_model_close(model);
}

static void test_probe_tries_and_leaves_nothing(void **state) {
    struct ot_model *model = make_model(false);
    struct ot_model_save save = {
        .out = in_folder(*state, "a/b"), .model = model, .dtype = OT_F32, .calls = &faulty_calls};
    int64_t bytes;
    check_ok(ot_model_dir_save_bytes(&save, &bytes));
    assert_true(bytes > ot_model_param_count(ot_model_get_config(model)) * 4);
    faults.free_bytes = bytes;
    check_ok(ot_model_dir_save_try(&save));
    assert_int_equal(count_entries(*state), 0);
    faults.free_bytes = bytes - 1;
    check_fails(ot_model_dir_save_try(&save), OT_E_IO, "are free there");
    faults_clear();
    faults.write_bytes = 100;
    check_fails(ot_model_dir_save_try(&save), OT_E_IO, "cannot write: No space left");
    assert_int_equal(count_entries(*state), 0);
    write_text(*state, "a", "in the way");
    check_fails(ot_model_dir_save_try(&save), OT_E_IO, "Not a directory");
    save.out = *state; /* the folder is neither empty nor an output of ours */
    check_fails(ot_model_dir_save_try(&save), OT_E_INPUT, "not an earlier output");
    if (geteuid() != 0) {
        assert_int_equal(mkdir(in_folder(*state, "locked"), 0500), 0);
        save.out = in_folder(*state, "locked/out");
        check_fails(ot_model_dir_save_try(&save), OT_E_IO, "Permission denied");
    }
    save.out = "/proc/offload-train-out";
    check_fails(ot_model_dir_save_try(&save), OT_E_IO, "cannot make this directory");
    ot_model_close(model);
}

/* ---- real models ---- */

static void test_real_models(void **state) {
    static const struct {
        const char *path, *embedding;
        int32_t bos, eos;
    } models[] = {{"models/stories260k", "model.embed_tokens.weight", 1, 2},
                  {"models/story-llama", "lm_head.weight", 1, 2}};
    if (!shared_path("models")) {
        print_message("SKIP: real models are absent\n");
        skip();
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct ot_model_dir *dir, *again;
        struct ot_model *model;
        struct ot_safetensors *file;
        const char *path = shared_path(models[i].path), *out = in_folder(*state, i == 0 ? "s" : "t");
        assert_non_null(path);
        check_ok(ot_model_dir_open(path, &dir));
        const struct ot_model_facts *facts = ot_model_dir_facts(dir);
        assert_int_equal(facts->ids.bos, models[i].bos);
        assert_int_equal(facts->ids.eos[0], models[i].eos);
        assert_int_equal(facts->dtype, OT_F32);
        assert_non_null(facts->tokenizer_path);
        check_ok(ot_model_open(&facts->config, OT_F32, 64, &model));
        struct params *loaded = params_open(model), *reloaded = params_open(model);
        check_ok(ot_model_dir_load(dir, model, NULL, params_sink, loaded));
        /* The loaded values are those of the file, and a save of them loads as the same values. */
        check_ok(ot_safetensors_open(in_folder(path, "model.safetensors"), &file));
        const struct ot_safetensor *embedding = ot_safetensors_find(file, models[i].embedding);
        assert_memory_equal(loaded->slabs[0] + ot_model_tensor(model, 0)->first, embedding->data,
                            embedding->bytes);
        ot_safetensors_close(file);
        struct ot_model_save save = {.out = out, .model = model, .base = dir, .dtype = OT_F32};
        check_ok(ot_model_dir_save(&save, params_source, loaded));
        check_ok(ot_model_dir_open(out, &again));
        check_ok(ot_model_dir_load(again, model, NULL, params_sink, reloaded));
        params_check_equal(reloaded, loaded);
        ot_model_dir_close(again);
        ot_model_dir_close(dir);
        params_close(loaded);
        params_close(reloaded);
        ot_model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_saves_and_loads_each_dtype_and_sharding, open_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(test_loads_tensors_of_many_chunks, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_output_of_a_preset_is_whole, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_finds_tensors_under_other_names, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_wrong_tensors_by_name, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_errors_of_workers_and_sinks, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_broken_directories, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_directories_without_weights, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_bad_indexes, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_token_ids_by_precedence, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_saves_beside_a_base, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_saves_no_tied_head, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_failed_saves_leave_the_old_output, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_probe_tries_and_leaves_nothing, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_real_models, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
