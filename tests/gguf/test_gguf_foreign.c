/* Files that llama.cpp's package wrote (scripts/golden/gguf_files.py): opened and loaded as models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/thread.h"
#include "src/files/model_dir.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/gguf/fixture.h"

struct loaded {
    const struct ot_model *model;
    int64_t checked;
};

/* The place of a tensor in the sorted list of names. */
static int64_t place_of(const struct ot_model *model, const char *name) {
    int64_t place = 0;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        place += strcmp(ot_model_tensor(model, i)->name, name) < 0;
    return place;
}

static int check_sink(void *context, int slab, int64_t first, int64_t n, const float *values) {
    struct loaded *loaded = context;
    for (int64_t i = 0; i < ot_model_tensor_count(loaded->model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(loaded->model, i);
        int64_t count = tensor->rows * tensor->cols, at = first - tensor->first;
        if (tensor->slab != slab || at < 0 || at >= count)
            continue;
        int64_t place = place_of(loaded->model, tensor->name);
        for (int64_t k = 0; k < n; k++) {
            float want = (float)(((at + k) * 37 + 11 * place) % 256 - 128) / 64;
            if (values[k] != want)
                fail_msg("%s[%d] is %g, should be %g", tensor->name, (int)(at + k), (double)values[k],
                         (double)want);
        }
        loaded->checked += n;
    }
    return 0;
}

static struct ot_model_dir *open_model(const char *name, struct ot_model **model) {
    char path[256];
    struct ot_model_dir *dir;
    snprintf(path, sizeof path, OT_TEST_GOLDEN "/gguf/%s", name);
    check_ok(ot_model_dir_open(path, &dir));
    check_ok(ot_model_open(&ot_model_dir_facts(dir)->config, OT_F32, 8, model));
    return dir;
}

static void check_values(const struct ot_model_dir *dir, const struct ot_model *model) {
    struct ot_pool *pool;
    check_ok(ot_pool_open(2, "test", &pool));
    for (int i = 0; i < 2; i++) {
        struct loaded loaded = {.model = model};
        check_ok(ot_model_dir_load(dir, model, i ? pool : NULL, check_sink, &loaded));
        assert_int_equal(loaded.checked, ot_model_param_count(ot_model_get_config(model)));
    }
    ot_pool_close(pool);
}

static void check_ids(const struct ot_model_dir *dir, const char *text, const int32_t *ids, int64_t n) {
    struct ot_tokenizer *tokenizer;
    struct ot_token_list list = {0};
    check_ok(ot_tokenizer_open(ot_model_dir_facts(dir)->tokenizer_path, &tokenizer));
    check_ok(ot_tokenizer_encode(tokenizer, text, strlen(text), OT_TOKENIZER_ADD_SPECIAL, &list));
    assert_int_equal(list.n, n);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(list.ids[i], ids[i]);
    ot_token_list_free(&list);
    ot_tokenizer_close(tokenizer);
}

/* <s> the cat h: U+2581 the, U+2581 cat, U+2581, h */
static void test_a_llama_of_sentencepiece(void **state) {
    static const int32_t ids[] = {1, 267, 270, 259, 261};
    struct ot_model *model;
    struct ot_model_dir *dir = open_model("spm.gguf", &model);
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    (void)state;
    assert_int_equal(facts->config.family, OT_FAMILY_LLAMA);
    assert_false(facts->config.tied);
    assert_true(facts->ids.bos == 1 && facts->ids.n_eos == 1 && facts->ids.eos[0] == 2);
    check_values(dir, model);
    check_ids(dir, "the cat h", ids, 5);
    ot_model_close(model);
    ot_model_dir_close(dir);
}

static void test_a_qwen2_of_version_2(void **state) {
    static const int32_t ids[] = {257, 32, 260, 261}; /* the, U+0120, cat, end */
    struct ot_model *model;
    struct ot_model_dir *dir = open_model("bpe.gguf", &model);
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    (void)state;
    assert_int_equal(facts->config.family, OT_FAMILY_QWEN2);
    assert_true(facts->config.tied && facts->config.qkv_bias);
    assert_int_equal(facts->dtype, OT_F16);
    assert_int_equal(facts->config.vocab, 272);
    check_values(dir, model);
    check_ids(dir, "the cat<|endoftext|>", ids, 4);
    ot_model_close(model);
    ot_model_dir_close(dir);
}

/* A save from such a base is a whole directory. */
static int no_values(void *context, int slab, int64_t first, int64_t n, float *values) {
    (void)context, (void)slab, (void)first;
    memset(values, 0, (size_t)n * sizeof *values);
    return 0;
}

static void test_a_save_from_it_is_whole(void **state) {
    struct ot_model *model;
    struct ot_model_dir *dir = open_model("bpe.gguf", &model), *saved;
    char *folder = make_folder(), out[256];
    (void)state;
    snprintf(out, sizeof out, "%s/out", folder);
    struct ot_model_save save = {.out = out, .model = model, .base = dir, .dtype = OT_BF16};
    check_ok(ot_model_dir_save(&save, no_values, NULL));
    check_ok(ot_model_dir_open(out, &saved));
    assert_int_equal(ot_model_dir_facts(saved)->dtype, OT_BF16);
    assert_memory_equal(&ot_model_dir_facts(saved)->config, &ot_model_dir_facts(dir)->config,
                        sizeof ot_model_dir_facts(dir)->config);
    assert_non_null(ot_model_dir_facts(saved)->tokenizer_path);
    ot_model_dir_close(saved);
    ot_model_dir_close(dir);
    ot_model_close(model);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_llama_of_sentencepiece),
        cmocka_unit_test(test_a_qwen2_of_version_2),
        cmocka_unit_test(test_a_save_from_it_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
