/* Quantised checkpoints (scripts/golden/quantized.py, mxfp4.py) as models: every value, and every damage. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/base/thread.h"
#include "src/files/safetensors.h"
#include "tests/files/fixture.h"
#include "tests/support/golden.h"

static const char *const cases[] = {"nf4",       "nf4-double", "int8",  "gptq4",    "gptq3",
                                    "gptq4-act", "gptq3-v2",   "gptq2", "gptq8-v2", "mxfp4"};
enum { N_CASES = sizeof cases / sizeof *cases };

static int open_folder(void **state) {
    *state = make_folder();
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

static const char *case_folder(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, OT_TEST_GOLDEN "/quantized/%s", name);
    return path;
}

static void open_case(const char *path, struct ot_model_dir **dir, struct ot_model **model) {
    check_ok(ot_model_dir_open(path, dir));
    check_ok(ot_model_open(&ot_model_dir_facts(*dir)->config, OT_F32, 8, model));
}

static void check_crc(const struct ot_golden *golden, const char *name, const struct ot_tensor *tensor,
                      const float *values) {
    char key[160];
    snprintf(key, sizeof key, "%s.%s", name, tensor->name);
    uint32_t want = (uint32_t)golden_i32(golden, key, NULL)[0];
    uint32_t got = ot_crc32(0, values, (size_t)(tensor->rows * tensor->cols) * sizeof *values);
    if (got != want)
        fail_msg("%s: the values have the CRC-32 %08x, should be %08x", key, got, want);
}

/* All values, read by one thread, by several, and in pieces of odd places. */
static void check_case(const struct ot_golden *golden, const char *name) {
    struct ot_model_dir *dir;
    struct ot_model *model;
    struct ot_pool *pool;
    open_case(case_folder(name), &dir, &model);
    check_ok(ot_pool_open(3, "test", &pool));
    for (int i = 0; i < 2; i++) {
        struct params *params = params_open(model);
        check_ok(ot_model_dir_load(dir, model, i ? pool : NULL, params_sink, params));
        for (int64_t t = 0; t < ot_model_tensor_count(model); t++) {
            const struct ot_tensor *tensor = ot_model_tensor(model, t);
            float *values = params->slabs[tensor->slab] + tensor->first, part[768];
            int64_t count = tensor->rows * tensor->cols;
            check_crc(golden, name, tensor, values);
            for (int64_t first = 0; first < count; first += 768) {
                int64_t n = count - first < 768 ? count - first : 768;
                check_ok(ot_model_dir_get(dir, tensor, first, n, part));
                assert_memory_equal(part, values + first, (size_t)n * sizeof *part);
            }
        }
        params_close(params);
    }
    ot_pool_close(pool);
    ot_model_close(model);
    ot_model_dir_close(dir);
}

static void test_all_formats_have_the_values_of_their_tools(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        bool mx = strcmp(cases[i], "mxfp4") == 0;
        struct ot_golden *golden = golden_open(mx ? "quantized/crc_mxfp4.bin" : "quantized/crc.bin");
        check_case(golden, cases[i]);
        golden_close(golden);
    }
}

/* A result has plain weights, all of one dtype, and its config says nothing of quantization. */
static void test_result_of_quantized_base_is_plain(void **state) {
    for (int i = 0; i < N_CASES; i++) {
        struct ot_model_dir *dir, *again;
        struct ot_model *model;
        struct ot_safetensors *file;
        struct ot_json *config;
        const char *out = in_folder(*state, cases[i]);
        open_case(case_folder(cases[i]), &dir, &model);
        enum ot_dtype dtype = ot_model_dir_facts(dir)->dtype;
        assert_int_equal(dtype, strncmp(cases[i], "gptq", 4) == 0 ? OT_F16 : OT_BF16);
        struct params *params = params_open(model), *saved = params_open(model);
        check_ok(ot_model_dir_load(dir, model, NULL, params_sink, params));
        struct ot_model_save save = {.out = out, .model = model, .base = dir, .dtype = OT_F32};
        check_ok(ot_model_dir_save(&save, params_source, params));
        check_ok(ot_model_dir_open(out, &again));
        check_ok(ot_model_dir_load(again, model, NULL, params_sink, saved));
        params_check_equal(saved, params);
        check_ok(ot_safetensors_open(in_folder(out, "model.safetensors"), &file));
        assert_int_equal(ot_safetensors_count(file), ot_model_tensor_count(model));
        for (int64_t t = 0; t < ot_safetensors_count(file); t++)
            assert_string_equal(ot_safetensors_at(file, t)->dtype_name, "F32");
        check_ok(ot_json_read_file(in_folder(out, "config.json"), 1 << 20, &config));
        assert_null(ot_json_get(config, "quantization_config"));
        ot_json_free(config);
        ot_safetensors_close(file);
        params_close(saved);
        params_close(params);
        ot_model_dir_close(again);
        ot_model_close(model);
        ot_model_dir_close(dir);
    }
}

/* ---- damage ---- */

/* Copies a case and makes one change: replaces the first `from` of a file by `to`, of the same length in
 * model.safetensors. */
static const char *changed(const char *folder, const char *name, const char *file, const char *from,
                           const char *to) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        size_t bytes, from_bytes = strlen(from), to_bytes = strlen(to);
        char *text = read_text(case_folder(name), files[i], &bytes);
        if (strcmp(file, files[i]) == 0) {
            char *at = memmem(text, bytes, from, from_bytes), *more = malloc(bytes + to_bytes);
            assert_non_null(at);
            assert_non_null(more);
            memcpy(more, text, (size_t)(at - text));
            memcpy(more + (at - text), to, to_bytes);
            memcpy(more + (at - text) + to_bytes, at + from_bytes, bytes - (size_t)(at - text) - from_bytes);
            write_file(folder, files[i], more, bytes - from_bytes + to_bytes);
            free(more);
        } else {
            write_file(folder, files[i], text, bytes);
        }
        free(text);
    }
    return folder;
}

/* Opens and loads the changed model, which must fail at either step. */
static void refuses(void **state, const char *name, const char *file, const char *from, const char *to,
                    const char *words) {
    struct ot_model_dir *dir;
    struct ot_model *model;
    int rc = ot_model_dir_open(changed(*state, name, file, from, to), &dir);
    if (rc == 0) {
        check_ok(ot_model_open(&ot_model_dir_facts(dir)->config, OT_F32, 8, &model));
        struct params *params = params_open(model);
        rc = ot_model_dir_load(dir, model, NULL, params_sink, params);
        params_close(params);
        ot_model_close(model);
        ot_model_dir_close(dir);
    }
    check_failure(rc, OT_E_INPUT, words, from, __FILE__, __LINE__);
}

static void test_other_methods_are_refused_by_name(void **state) {
    static const struct {
        const char *from, *to, *words;
    } rows[] = {
        {"\"gptq\"", "\"awq\"", "quant_method 'awq' cannot be read; use the model that it was made from"},
        {"\"gptq\"", "\"fp8\"", "quant_method 'fp8'"},
        {"\"gptq\"", "7", "quant_method"},
        {"\"gptq\"", "\"bitsandbytes\", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"fp4\"",
         "type 'fp4'"},
        {"\"bits\": 4", "\"bits\": 5", "GPTQ weights of 5 bits"},
        {"\"bits\": 4", "\"bits\": 64", "bits"},
        {"\"bits\": 4", "\"more\": 4", "bits"},
        {"\"bits\": 4", "\"bits\": 8", "qweight is I32 [36, 64], but should be I32 [72, 64]"},
        {"\"group_size\": 32", "\"group_size\": 0", "group_size is 0"},
        {"\"desc_act\"", "\"checkpoint_format\": \"marlin\", \"desc_act\"", "checkpoint_format 'marlin'"},
        {"\"desc_act\"", "\"pack_dtype\": \"int8\", \"desc_act\"", "pack_dtype 'int8'"},
        {"\"desc_act\"", "\"is_marlin_format\": true, \"desc_act\"", "marlin"},
        {"\"desc_act\"", "\"dynamic\": {\"+:.*\": {\"bits\": 8}}, \"desc_act\"", "dynamic '+:.*'"},
        {"\"quantization_config\": {", "\"quantization_config\": 3, \"x\": {", "an integer, not an object"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuses(state, "gptq4", "config.json", rows[i].from, rows[i].to, rows[i].words);
}

static void test_damaged_tensors_are_refused(void **state) {
    static const struct {
        const char *name, *from, *to, *words;
    } rows[] = {
        {"gptq4", "q_proj.scales", "q_proj.scalez",
         "q_proj.qweight has no model.layers.0.self_attn.q_proj.sc"},
        {"gptq4", "q_proj.qzeros", "q_proj.qzeroz", "q_proj.qzeros beside it"},
        {"gptq4", "q_proj.qweight", "q_proj.qweighs", "q_proj.weight is missing"},
        {"gptq4", "v_proj.qzeros\":{\"dtype\":\"I32\",\"shape\":[2,4]",
         "v_proj.qzeros\":{\"dtype\":\"I32\",\"shape\":[4,2]", "v_proj.qzeros is I32 [4, 2], but should be"},
        {"gptq4", "v_proj.scales\":{\"dtype\":\"F16\",\"shape\":[2,32]",
         "v_proj.scales\":{\"dtype\":\"F16\",\"shape\":[32,2]",
         "qzeros is I32 [2, 4], but should be I32 [32, 4]"},
        {"gptq2", "\"I32\"", "\"U32\"", "U32"},
        {"nf4", "q_proj.weight.absmax", "q_proj.weight.absmay", "q_proj.weight.absmax beside it"},
        {"nf4", "q_proj.weight.quant_map", "q_proj.weight.quant_mop", "quant_map beside it"},
        {"nf4", "q_proj.weight.quant_state", "q_proj.weight.quant_stats", "weight has the shape [2048, 1]"},
        {"nf4", "\"blocksize\": 64", "\"blocksize\": 32", "blocks of 32 values"},
        {"nf4", "\"blocksize\": 64", "\"blocksize\": -4", "blocksize"},
        {"nf4", "\"shape\": [", "\"shape\": 7", "expected"},
        {"nf4", "\"shape\": [64", "\"shape\": [-4", "has no weights"},
        {"nf4", "\"shape\": [64", "\"shape\": [96", "but should be U8"},
        {"nf4-double", "nested_offset", "nested_offsex", "nested_offset"},
        {"nf4-double", "\"nested_blocksize\": 256", "\"nested_blocksize\": 512",
         "blocks of 64 values and 512 scales"},
        {"nf4-double", "q_proj.weight.nested_quant_map", "q_proj.weight.nested_quant_mop",
         "nested_quant_map beside it"},
        {"mxfp4", "0.mlp.experts.down_proj_scales", "0.mlp.experts.down_proj_scalez",
         "experts.down_proj is missing"},
        {"mxfp4", "down_proj_blocks\":{\"dtype\":\"U8\",\"shape\":[3,64,1,16]",
         "down_proj_blocks\":{\"dtype\":\"U8\",\"shape\":[3,64,2,8 ]", "should be U8 [3, 64, 2, 16]"},
        {"mxfp4", "down_proj_scales\":{\"dtype\":\"U8\",\"shape\":[3,64,1]",
         "down_proj_scales\":{\"dtype\":\"U8\",\"shape\":[64,3,1]", "should be U8 [3, 64, 1]"},
        {"mxfp4", "down_proj_scales\":{\"dtype\":\"U8\"", "down_proj_scales\":{\"dtype\":\"I8\"",
         "should be U8 [3, 64, 1]"},
        {"int8", "q_proj.SCB", "q_proj.SCX", "q_proj.weight is stored as I8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuses(state, rows[i].name, "model.safetensors", rows[i].from, rows[i].to, rows[i].words);
}

/* Copies a case, and overwrites the first bytes of a tensor's data. */
static void overwrite(const char *folder, const char *name, const char *tensor, const void *data, size_t n) {
    struct ot_safetensors *file;
    size_t bytes;
    char *text = read_text(case_folder(name), "model.safetensors", &bytes);
    changed(folder, name, "config.json", "{", "{");
    check_ok(ot_safetensors_open(in_folder(folder, "model.safetensors"), &file));
    const struct ot_safetensor *found = ot_safetensors_find(file, tensor);
    assert_non_null(found);
    memcpy(text + ((const char *)found->data - ot_safetensors_map(file)->data), data, n);
    ot_safetensors_close(file);
    write_file(folder, "model.safetensors", text, bytes);
    free(text);
}

static void test_damaged_numbers_are_refused(void **state) {
    static const struct {
        const char *name, *tensor;
        uint32_t word;
        size_t bytes;
        const char *words;
    } rows[] = {
        {"gptq4", "model.layers.0.mlp.up_proj.g_idx", 2, 4, "column 0 is in group 2, but there are 2 groups"},
        {"gptq4", "model.layers.0.mlp.up_proj.g_idx", 0xffffffff, 4, "column 0 is in group -1"},
        {"gptq4", "model.layers.0.mlp.up_proj.scales", 0x7e00, 2, "up_proj.weight holds nan"},
        {"gptq4-act", "model.layers.0.mlp.up_proj.bias", 0x3c00, 2, "up_proj.bias is not part of the model"},
        {"nf4", "model.layers.0.mlp.up_proj.weight.absmax", 0x7fc00000, 4, "up_proj.weight holds nan"},
        {"nf4-double", "model.layers.0.mlp.up_proj.weight.nested_absmax", 0x7f800000, 4,
         "up_proj.weight holds"},
        {"mxfp4", "model.layers.0.mlp.experts.gate_up_proj_scales", 255, 1,
         "at element 0, which is no number"},
        {"mxfp4", "model.layers.1.mlp.experts.down_proj_scales", 0xfefefe, 3, "down_proj holds"},
        {"int8", "model.layers.0.mlp.up_proj.SCB", 0x7fc00000, 4, "up_proj.weight holds nan"},
        /* Finite, and far beyond any weight: not a loss that is not finite, but damage. */
        {"nf4", "model.layers.0.mlp.up_proj.weight.absmax", 0x7f000000, 4,
         "has the scale 1.70141e+38 at element 0"},
        {"nf4", "model.layers.0.mlp.up_proj.weight.absmax", 0xbf800000, 4, "has the scale -1 at element 0"},
        {"nf4", "model.layers.0.mlp.up_proj.weight.quant_map", 0x7f000000, 4,
         "quant_map has 1.70141e+38 at element 0"},
        {"nf4", "model.layers.0.mlp.up_proj.weight.quant_map", 0x7fc00000, 4,
         "quant_map has nan at element 0"},
        {"nf4-double", "model.layers.0.mlp.up_proj.weight.nested_absmax", 0x7f000000, 4,
         "nested_absmax has the scale"},
        {"nf4-double", "model.layers.0.mlp.up_proj.weight.nested_quant_map", 0xc0000000, 4,
         "nested_quant_map has -2 at element 0"},
        {"int8", "model.layers.0.mlp.up_proj.SCB", 0x7f000000, 4, "SCB has the scale 1.70141e+38"},
        {"int8", "model.layers.0.mlp.up_proj.weight_format", 1, 1, "is in the order of a card's kernel"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ot_model_dir *dir;
        struct ot_model *model;
        overwrite(*state, rows[i].name, rows[i].tensor, &rows[i].word, rows[i].bytes);
        int rc = ot_model_dir_open(*state, &dir);
        if (rc == 0) {
            check_ok(ot_model_open(&ot_model_dir_facts(dir)->config, OT_F32, 8, &model));
            struct params *params = params_open(model);
            rc = ot_model_dir_load(dir, model, NULL, params_sink, params);
            params_close(params);
            ot_model_close(model);
            ot_model_dir_close(dir);
        }
        check_failure(rc, OT_E_INPUT, rows[i].words, rows[i].tensor, __FILE__, __LINE__);
    }
}

/* AutoGPTQ wrote the description beside config.json. */
static void test_description_beside_config_is_read(void **state) {
    struct ot_model_dir *dir;
    struct ot_model *model;
    changed(*state, "gptq4", "config.json", "\"quantization_config\"", "\"other\"");
    check_fails((ot_model_dir_open(*state, &dir),
                 ot_model_open(&ot_model_dir_facts(dir)->config, OT_F32, 8, &model),
                 ot_model_dir_check(dir, model)),
                OT_E_INPUT, "missing from the weights");
    ot_model_close(model);
    ot_model_dir_close(dir);
    write_text(*state, "quantize_config.json", "{\"bits\": 4, \"group_size\": 32, \"desc_act\": false}");
    open_case(*state, &dir, &model);
    check_ok(ot_model_dir_check(dir, model));
    assert_null(ot_model_dir_facts(dir)->left_out);
    ot_model_close(model);
    ot_model_dir_close(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_formats_have_the_values_of_their_tools),
        cmocka_unit_test_setup_teardown(test_result_of_quantized_base_is_plain, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_other_methods_are_refused_by_name, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_damaged_tensors_are_refused, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_damaged_numbers_are_refused, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_description_beside_config_is_read, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
