/* Which file of a model's directory has the tokenizer, and what a save copies of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/files/model_dir_tokenizer.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/files/fixture.h"

static int open_folder(void **state) {
    *state = make_folder();
    faults_clear();
    write_text(*state, "config.json",
               "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], "
               "\"hidden_size\": 16, \"intermediate_size\": 16, \"num_hidden_layers\": 1, "
               "\"num_attention_heads\": 2, \"vocab_size\": 640, \"rms_norm_eps\": 1e-5, "
               "\"max_position_embeddings\": 64, \"torch_dtype\": \"float32\"}");
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

/* Copies a golden file into the folder. */
static void copy_golden(const char *folder, const char *from, const char *to) {
    char path[512];
    static char bytes[1 << 16];
    snprintf(path, sizeof path, "%s/tokenizers/%s", OT_TEST_GOLDEN, from);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_in_range(n, 1, sizeof bytes - 1);
    write_file(folder, to, bytes, n);
}

/* The number of tokens of a text, framed. -1: the directory has no tokenizer. */
static int64_t tokens_of(const struct ot_model_dir *dir, const char *text) {
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    struct ot_tokenizer *tokenizer;
    struct ot_token_list list = {0};
    if (!facts->tokenizer_path)
        return -1;
    check_ok(ot_tokenizer_open(facts->tokenizer_path, &tokenizer));
    check_ok(ot_tokenizer_encode(tokenizer, text, strlen(text), OT_TOKENIZER_ADD_SPECIAL, &list));
    int64_t n = (int64_t)list.n;
    ot_token_list_free(&list);
    ot_tokenizer_close(tokenizer);
    return n;
}

/* tokenizer_config.json has a token more than tokenizer.json: it cuts the text, and names have its id. */
static void tokens_of_the_config_are_added(void **state) {
    struct ot_model_dir *dir;
    copy_golden(*state, "gpt2.json", "tokenizer.json");
    check_ok(ot_model_dir_open(*state, &dir));
    assert_null(ot_model_dir_facts(dir)->tokenizer_file);
    int64_t before = tokens_of(dir, "<sql>");
    ot_model_dir_close(dir);
    write_text(*state, "tokenizer_config.json",
               "{\"added_tokens_decoder\": {\"459\": {\"content\": \"<sql>\", \"special\": true}}, "
               "\"eos_token\": \"<sql>\"}");
    check_ok(ot_model_dir_open(*state, &dir));
    assert_non_null(strstr(ot_model_dir_facts(dir)->tokenizer_file, "/tokenizer.json"));
    assert_int_equal(tokens_of(dir, "<sql>"), 1);
    assert_true(before > 1);
    assert_int_equal(ot_model_dir_facts(dir)->ids.eos[0], 459);
    ot_model_dir_close(dir);
}

static void wrong_tokens_of_the_config_are_named(void **state) {
    struct ot_model_dir *dir;
    copy_golden(*state, "gpt2.json", "tokenizer.json");
    write_text(*state, "tokenizer_config.json", "{\"added_tokens_decoder\": {\"459\": {}}}");
    check_ok(ot_model_dir_open(*state, &dir));
    assert_null(ot_model_dir_facts(dir)->tokenizer_path);
    assert_non_null(strstr(ot_model_dir_facts(dir)->tokenizer_missing, "added_tokens_decoder.459 must be"));
    ot_model_dir_close(dir);
}

static void a_sentencepiece_model_is_enough(void **state) {
    struct ot_model_dir *dir;
    copy_golden(*state, "llama_bpe.model", "tokenizer.model");
    write_text(
        *state, "tokenizer_config.json",
        "{\"tokenizer_class\": \"LlamaTokenizer\", \"eos_token\": \"<|end|>\", \"add_eos_token\": true}");
    check_ok(ot_model_dir_open(*state, &dir));
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    assert_true(facts->has_made_sentencepiece && !facts->tokenizer_is_made && !facts->tokenizer_missing);
    assert_string_equal(facts->sentencepiece, in_folder(*state, "tokenizer.model"));
    assert_int_equal(tokens_of(dir, ""), 2);
    assert_int_equal(facts->ids.n_eos, 1);
    assert_int_equal(facts->ids.eos[0], 620); /* follows the pieces */
    ot_model_dir_close(dir);
}

static void t5_has_another_name_and_class(void **state) {
    struct ot_model_dir *dir;
    copy_golden(*state, "t5_unigram.model", "spiece.model");
    write_text(*state, "tokenizer_config.json",
               "{\"tokenizer_class\": \"T5Tokenizer\", \"eos_token\": \"</s>\"}");
    check_ok(ot_model_dir_open(*state, &dir));
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    assert_true(facts->has_made_sentencepiece);
    assert_int_equal(tokens_of(dir, ""), 1);
    assert_int_equal(facts->ids.eos[0], 1);
    ot_model_dir_close(dir);
}

static void tokenizer_json_comes_first(void **state) {
    struct ot_model_dir *dir;
    copy_golden(*state, "llama_bpe.model", "tokenizer.model");
    copy_golden(*state, "unigram_ties.json", "tokenizer.json");
    write_text(*state, "tokenizer_config.json", "{\"bos_token\": \"th\"}"); /* a token of the list */
    check_ok(ot_model_dir_open(*state, &dir));
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    assert_false(facts->has_made_sentencepiece);
    assert_non_null(facts->sentencepiece);
    assert_string_equal(facts->tokenizer_file, in_folder(*state, "tokenizer.json"));
    assert_int_equal(facts->ids.bos, 7);
    ot_model_dir_close(dir);
}

static void other_formats_are_named(void **state) {
    static const struct {
        const char *name, *text, *words;
    } cases[] = {
        {"tokenizer.model", "IQ== 0\nIg== 1\n", "is a vocabulary of tiktoken"},
        {"tokenizer.model", "damaged", "tokenizer.model: not a SentencePiece model"},
        {"tekken.json", "{\"config\": {}}", "has Mistral's tekken.json"},
        {"vocab.json", "{}", "has vocab.json but no tokenizer.json; load the tokenizer with transformers"},
        {"vocab.txt", "[UNK]\n", "WordPiece"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_model_dir *dir;
        write_text(*state, cases[i].name, cases[i].text);
        check_ok(ot_model_dir_open(*state, &dir));
        const struct ot_model_facts *facts = ot_model_dir_facts(dir);
        assert_null(facts->tokenizer_path);
        assert_non_null(facts->tokenizer_missing);
        if (!strstr(facts->tokenizer_missing, cases[i].words) ||
            strncmp(facts->tokenizer_missing, *state, strlen(*state)) != 0)
            fail_msg("%s: \"%s\"", cases[i].name, facts->tokenizer_missing);
        ot_model_dir_close(dir);
        unlink(in_folder(*state, cases[i].name));
    }
}

static bool has_file(const char *folder, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void a_save_copies_the_files_as_they_are(void **state) {
    struct ot_model_dir *base, *saved;
    struct ot_model *model;
    copy_golden(*state, "llama_bpe.model", "tokenizer.model");
    write_text(*state, "added_tokens.json", "{\"[PAD]\": 620}");
    check_ok(ot_model_dir_open(*state, &base));
    check_ok(ot_model_open(&ot_model_dir_facts(base)->config, OT_F32, 64, &model));
    struct params *params = params_open(model);
    params_fill(params);
    struct ot_model_save save = {
        .out = in_folder(*state, "saved"), .model = model, .base = base, .calls = &faulty_calls};
    check_ok(ot_model_dir_save(&save, params_source, params));
    assert_true(has_file(save.out, "tokenizer.model") && has_file(save.out, "added_tokens.json"));
    assert_false(has_file(save.out, "tokenizer.json"));
    check_ok(ot_model_dir_open(save.out, &saved));
    assert_int_equal(tokens_of(saved, "the river [PAD]"), tokens_of(base, "the river [PAD]"));
    ot_model_dir_close(saved);
    ot_model_dir_close(base);
    params_close(params);
    ot_model_close(model);
}

static void names_of_models(void **state) {
    (void)state;
    static const char *const yes[] = {"tokenizer.model", "a/spiece.model", "a.model.v3"};
    static const char *const no[] = {"tokenizer.json", "a.model/tokenizer.json", ".model", "a.models",
                                     "x.model.json"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        assert_true(ot_tokenizer_is_model(yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        assert_false(ot_tokenizer_is_model(no[i]));
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, open_folder, drop_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(tokens_of_the_config_are_added),      IN_FOLDER(wrong_tokens_of_the_config_are_named),
        IN_FOLDER(a_sentencepiece_model_is_enough),     IN_FOLDER(t5_has_another_name_and_class),
        IN_FOLDER(tokenizer_json_comes_first),          IN_FOLDER(other_formats_are_named),
        IN_FOLDER(a_save_copies_the_files_as_they_are), cmocka_unit_test(names_of_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
