/* Damaged model directories: for any bytes in config, index or header, opening and loading succeed or fail
 * with a one-line error that names the directory. The sanitizers watch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/files/fixture.h"
#include "tests/support/damage.h"

enum { ROUNDS = 1500, MOST_BYTES = 1 << 16 };

struct original {
    const char *name;
    char *text;
    size_t bytes;
};

/* Writes a model in two shards, and reads every file that opening a model reads. */
static void make_originals(const char *folder, struct original *files, size_t n) {
    struct ot_model_config config = tiny_config(false);
    struct ot_model *model;
    check_ok(ot_model_open(&config, OT_F32, config.max_position, &model));
    struct params *params = params_open(model);
    struct ot_model_save save = {.out = in_folder(folder, "good"),
                                 .model = model,
                                 .dtype = OT_F32,
                                 .ids = {.bos = 1, .n_eos = 1, .eos = {2}},
                                 .shard_bytes = 12000};
    params_fill(params);
    check_ok(ot_model_dir_save(&save, params_source, params));
    params_close(params);
    ot_model_close(model);
    write_text(save.out, "tokenizer_config.json",
               "{\"eos_token\": {\"content\": \"<end>\"}, \"bos_token\": \"<s>\"}");
    write_text(
        save.out, "tokenizer.json",
        "{\"added_tokens\": [{\"id\": 7, \"content\": \"<end>\"}], \"model\": {\"vocab\": {\"<s>\": 5}}}");
    for (size_t i = 0; i < n; i++) {
        files[i].text = read_text(save.out, files[i].name, &files[i].bytes);
        assert_in_range(files[i].bytes, 10, MOST_BYTES / 2);
    }
}

/* Damages the header of a safetensors file. Most times it then corrects the length of the header. */
static size_t damage_header(struct dice *dice, char *text, size_t n) {
    static char copy[MOST_BYTES];
    uint64_t header = 0;
    for (int i = 0; i < 8; i++)
        header |= (uint64_t)(unsigned char)text[i] << (8 * i);
    memcpy(copy, text + 8, header);
    size_t length = damage_text(dice, copy, header, MOST_BYTES / 2), data = n - 8 - header;
    memmove(text + 8 + length, text + 8 + header, data);
    memcpy(text + 8, copy, length);
    uint64_t said = throw_below(dice, 8) ? length : length + 1 - throw_below(dice, 3);
    for (int i = 0; i < 8; i++)
        text[i] = (char)(unsigned char)(said >> (8 * i));
    return 8 + length + data;
}

static int take_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    (void)slab, (void)first;
    *(float *)context += values[0] + values[n - 1];
    return 0;
}

static int load(const char *folder) {
    struct ot_model_dir *dir;
    struct ot_model *model = NULL;
    float sum = 0;
    OT_TRY(ot_model_dir_open(folder, &dir));
    int rc = ot_model_open(&ot_model_dir_facts(dir)->config, OT_F32, 16, &model);
    if (rc == 0)
        rc = ot_model_dir_load(dir, model, NULL, take_values, &sum);
    ot_model_close(model);
    ot_model_dir_close(dir);
    return rc;
}

static void test_damaged_models(void **state) {
    (void)state;
    static struct original files[] = {{.name = "config.json"},
                                      {.name = "generation_config.json"},
                                      {.name = "tokenizer_config.json"},
                                      {.name = "tokenizer.json"},
                                      {.name = "model.safetensors.index.json"},
                                      {.name = "model-00001-of-00002.safetensors"}};
    enum { N = sizeof files / sizeof *files };
    static char text[MOST_BYTES];
    char *folder = make_folder();
    int loaded = 0;
    make_originals(folder, files, N);
    const char *good = in_folder(folder, "good");
    check_ok(load(good));
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct dice dice = {round, 0};
        size_t chosen = throw_below(&dice, N), n = files[chosen].bytes;
        memcpy(text, files[chosen].text, n);
        n = chosen == N - 1 ? damage_header(&dice, text, n) : damage_text(&dice, text, n, MOST_BYTES);
        write_file(good, files[chosen].name, text, n);
        ot_error_clear();
        int rc = load(good);
        loaded += rc == 0;
        bool said = (rc == -OT_E_INPUT || rc == -OT_E_IO) && strstr(ot_error_text(), good);
        if (rc < 0 && !said)
            fail_msg("round %llu: returned %d: %s", (unsigned long long)round, rc, ot_error_text());
        write_file(good, files[chosen].name, files[chosen].text, files[chosen].bytes);
    }
    assert_in_range(loaded, ROUNDS / 20, ROUNDS - ROUNDS / 4); /* both results are frequent */
    for (size_t i = 0; i < N; i++)
        free(files[i].text);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_damaged_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
