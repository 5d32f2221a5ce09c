/* SentencePiece models: the tokenizer of a model directory against the one that transformers makes of it, ids
 * against SentencePiece itself, and damaged files. */
#include "src/tokenizer/sentencepiece.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/tokenizer/corpus.h"

static char *folder;

static void model_path(const char *name, char path[512]) {
    snprintf(path, 512, "%s/tokenizers/%s.model", OT_TEST_GOLDEN, name);
}

static char *read_model(const char *name, size_t *n) {
    char path[512];
    model_path(name, path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *bytes = calloc(1, 1 << 16);
    assert_non_null(bytes);
    *n = fread(bytes, 1, 1 << 16, file);
    assert_in_range(*n, 1000, (1 << 16) - 1);
    fclose(file);
    return bytes;
}

/* Opens the tokenizer that the text describes. */
static struct ot_tokenizer *open_text(const char *text, size_t n) {
    char path[600];
    struct ot_tokenizer *t;
    write_file(folder, "tokenizer.json", text, n);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    check_ok(ot_tokenizer_open(path, &t));
    return t;
}

static struct ot_tokenizer *open_model(const char *name, const struct ot_sentencepiece_files *files) {
    struct ot_sentencepiece *model;
    char path[512], *text;
    size_t n;
    model_path(name, path);
    check_ok(ot_sentencepiece_open(path, &model));
    check_ok(ot_sentencepiece_make(model, files, "here", &text, &n));
    struct ot_tokenizer *t = open_text(text, n);
    free(text);
    ot_sentencepiece_close(model);
    return t;
}

static const char *text_of(const struct ot_json *object, const char *key) {
    const char *text = ot_json_string(ot_json_get(object, key), NULL);
    assert_non_null(text);
    return text;
}

/* A member that is null stands for a file that is absent. */
static const struct ot_json *file_of(const struct ot_json *object, const char *name) {
    const struct ot_json *value = ot_json_get(object, name);
    return ot_json_type(value) == OT_JSON_NULL ? NULL : value;
}

static void directories_give_what_transformers_gives(void **state) {
    (void)state;
    struct corpus corpus;
    struct ot_json *root = golden_json("sentencepiece.json");
    const struct ot_json *cases = ot_json_get(root, "cases");
    corpus_open(&corpus);
    assert_true(ot_json_length(cases) > 8);
    for (size_t i = 0; i < ot_json_length(cases); i++) {
        const struct ot_json *c = ot_json_at(cases, i);
        struct ot_sentencepiece_files files = {.tokenizer_config = file_of(c, "tokenizer_config.json"),
                                               .special_tokens_map = file_of(c, "special_tokens_map.json"),
                                               .added_tokens = file_of(c, "added_tokens.json"),
                                               .model_type = text_of(c, "model_type")};
        struct ot_tokenizer *t = open_model(text_of(c, "model"), &files);
        check_vectors(t, text_of(c, "name"), &corpus);
        ot_tokenizer_close(t);
    }
    corpus_close(&corpus);
    ot_json_free(root);
}

static void check_own_ids(const struct ot_json *row) {
    struct ot_json *config;
    struct ot_token_list list = {0};
    static const char other[] = "{\"tokenizer_class\": \"SomeTokenizer\"}";
    check_ok(ot_json_parse(other, strlen(other), "here", &config));
    struct ot_tokenizer *t =
        open_model(text_of(row, "model"), &(struct ot_sentencepiece_files){.tokenizer_config = config});
    const struct ot_json *texts = ot_json_get(row, "texts"), *ids = ot_json_get(row, "ids");
    assert_true(ot_json_length(texts) > 100);
    for (size_t i = 0; i < ot_json_length(texts); i++) {
        const struct ot_json *want = ot_json_at(ids, i);
        size_t n;
        const char *text = ot_json_string(ot_json_at(texts, i), &n);
        check_ok(ot_tokenizer_encode(t, text, n, OT_TOKENIZER_ADD_SPECIAL, &list));
        for (size_t k = 0; k < list.n && k < ot_json_length(want); k++)
            if (list.ids[k] != ot_json_int(ot_json_at(want, k), -1))
                fail_msg("%s: \"%s\": token %zu is %d", text_of(row, "model"), text, k, list.ids[k]);
        assert_int_equal(list.n, ot_json_length(want));
    }
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
    ot_json_free(config);
}

static void other_classes_give_what_sentencepiece_gives(void **state) {
    (void)state;
    struct ot_json *root = golden_json("sentencepiece.json");
    const struct ot_json *rows = ot_json_get(root, "others");
    assert_int_equal(ot_json_length(rows), 2);
    for (size_t i = 0; i < ot_json_length(rows); i++)
        check_own_ids(ot_json_at(rows, i));
    ot_json_free(root);
}

/* ---- damaged files ---- */

static int open_bytes(const char *bytes, size_t n) {
    char path[600];
    struct ot_sentencepiece *model = NULL;
    write_file(folder, "tokenizer.model", bytes, n);
    snprintf(path, sizeof path, "%s/tokenizer.model", folder);
    int rc = ot_sentencepiece_open(path, &model);
    assert_true((rc == 0) == (model != NULL));
    if (rc < 0)
        assert_non_null(strstr(ot_error_text(), "tokenizer.model"));
    ot_sentencepiece_close(model);
    return rc;
}

static void check_refused(const char *bytes, size_t n, const char *words) {
    int rc = open_bytes(bytes, n);
    if (rc != -OT_E_INPUT || !strstr(ot_error_text(), words))
        fail_msg("returned %d, \"%s\", wanted \"%s\"", rc, ot_error_text(), words);
    assert_null(strchr(ot_error_text(), '\n'));
}

/* Two pieces, <unk> and "a", are the least model. The string ends before the trainer's settings. */
#define LEAST                                                                                                \
    "\x0a\x09\x0a\x05<unk>\x18\x02\x0a\x03\x0a\x01"                                                          \
    "a"
#define REFUSED(bytes, words) check_refused(bytes, sizeof bytes - 1, words)

static void models_are_refused_by_name(void **state) {
    (void)state;
    assert_int_equal(open_bytes(LEAST, sizeof LEAST - 1), 0);
    assert_int_equal(open_bytes(LEAST "\x12\x02\x18\x02", sizeof LEAST - 1 + 4), 0);
    REFUSED("", "it has no pieces");
    REFUSED("\x0a\x00", "piece 0 has 0 bytes");
    REFUSED("\x0a\x03\x0a\x01"
            "a",
            "no piece stands for unknown text");
    REFUSED(LEAST "\x12\x02\x18\x03", "of type word is not supported; supported: BPE, Unigram");
    REFUSED(LEAST "\x12\x02\x18\x04", "of type char");
    REFUSED(LEAST "\x12\x02\x18\x63", "of type ?");
    REFUSED(LEAST "\x12\x03\xc0\x01\x01", "treat_whitespace_as_suffix");
    REFUSED(LEAST "\x0a\x03\x0a\x01"
                  "a",
            "pieces 1 and 2 are the same");
    REFUSED(LEAST "\x0a\x05\x0a\x01"
                  "b\x18\x02",
            "pieces 0 and 2 both stand for unknown text");
    REFUSED(LEAST "\x0a\x05\x0a\x01"
                  "b\x18\x07",
            "piece 2 has an unknown kind");
    REFUSED(LEAST "\x0a\x08\x0a\x01"
                  "b\x15\x00\x00\xc0\x7f",
            "score that is no number");
    REFUSED(LEAST "\x0a\x03\x0a\x01\xff", "piece 2 contains a NUL, or is not valid UTF-8");
    REFUSED(LEAST "\x0a\x04\x0a\x02"
                  "a\0",
            "piece 2 contains a NUL, or is not valid UTF-8");
    REFUSED(LEAST "\x0a\x7f", "not a SentencePiece model, or damaged");
    REFUSED(LEAST "\x0b", "not a SentencePiece model, or damaged");
    REFUSED("IQ== 0\nIg== 1\n", "is a vocabulary of tiktoken");
    REFUSED("{\"model\": {}}", "is JSON, not a SentencePiece model");
    char long_piece[2100] = "\x0a\x87\x10\x0a\x84\x10";
    memset(long_piece + 6, 'x', 2052);
    check_refused(long_piece, 6 + 2052, "piece 0 has 2052 bytes, must have 1 to 2048");
    struct ot_sentencepiece *model;
    check_fails(ot_sentencepiece_open("/nonexistent/tokenizer.model", &model), OT_E_IO, "/nonexistent/");
}

static int open_in_memory(const char *bytes, size_t n) {
    char path[40];
    struct ot_sentencepiece *model = NULL;
    int fd = memfd_create("tokenizer.model", MFD_CLOEXEC);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = ot_sentencepiece_open(path, &model);
    ot_sentencepiece_close(model);
    close(fd);
    return rc;
}

static void cut_and_changed_files_do_no_harm(void **state) {
    (void)state;
    size_t n;
    char *bytes = read_model("t5_unigram", &n);
    for (size_t i = 0; i < n; i += i < 600 ? 1 : 37)
        open_in_memory(bytes, i);
    for (size_t i = 0; i < n; i += i < 600 ? 1 : 53) {
        char kept = bytes[i];
        for (int k = 0; k < 3; k++) {
            bytes[i] = "\x00\x7f\xff"[k];
            int rc = open_in_memory(bytes, n);
            assert_true(rc == 0 || rc == -OT_E_INPUT);
        }
        bytes[i] = kept;
    }
    free(bytes);
}

/* ---- the files beside a model ---- */

static void check_config(const char *config, const char *map, const char *added, const char *words) {
    struct ot_json *trees[3] = {NULL, NULL, NULL};
    const char *const texts[] = {config, map, added};
    struct ot_sentencepiece *model;
    char path[512], *text = NULL;
    size_t n;
    for (size_t i = 0; i < 3; i++)
        if (texts[i])
            check_ok(ot_json_parse(texts[i], strlen(texts[i]), "here", &trees[i]));
    struct ot_sentencepiece_files files = {trees[0], trees[1], trees[2], "llama"};
    model_path("llama_bpe", path);
    check_ok(ot_sentencepiece_open(path, &model));
    int rc = ot_sentencepiece_make(model, &files, "here", &text, &n);
    if (words &&
        (rc != -OT_E_INPUT || !strstr(ot_error_text(), words) || strncmp(ot_error_text(), "here", 4) != 0))
        fail_msg("returned %d, \"%s\", wanted \"%s\"", rc, ot_error_text(), words);
    if (!words) {
        check_ok(rc);
        ot_tokenizer_close(open_text(text, n));
    }
    free(text);
    ot_sentencepiece_close(model);
    for (size_t i = 0; i < 3; i++)
        ot_json_free(trees[i]);
}

static void files_that_contradict_each_other_are_refused(void **state) {
    (void)state;
    check_config("{\"legacy\": 7}", NULL, NULL, "legacy");
    check_config("{\"extra_ids\": -1}", NULL, NULL, "extra_ids");
    check_config("{\"added_tokens_decoder\": {\"700\": {}}}", NULL, NULL,
                 "added_tokens_decoder.700 has no 'content'");
    check_config("{\"added_tokens_decoder\": {\"x\": {\"content\": \"y\"}}}", NULL, NULL,
                 "'y' has no id between 0");
    check_config("{\"added_tokens_decoder\": {\"7\": {\"content\": \"zzz\"}}}", NULL, NULL,
                 "token 'zzz' has the id 7 of piece '<0x02>'");
    check_config(
        "{\"added_tokens_decoder\": {\"700\": {\"content\": \"yy1\"}, \"0700\": {\"content\": \"zz1\"}}}",
        NULL, NULL, "have the same id 700");
    check_config(NULL, NULL, "{\"zz\": -1}", "added_tokens.json: token 'zz' has no id");
    check_config("{\"tokenizer_class\": \"SomeTokenizer\", \"add_eos_token\": true}", NULL, NULL, NULL);
    check_config("{\"bos_token\": null, \"pad_token\": null}", NULL, NULL, NULL);
    check_config("{\"bos_token\": \"\", \"eos_token\": \"\", \"tokenizer_class\": \"LLaMATokenizer\"}", "{}",
                 NULL, NULL);
    check_config("{\"added_tokens_decoder\": 5, \"additional_special_tokens\": [1, {}, \"\"]}", "[]", "[]",
                 NULL);
}

static void a_null_prefix_counts_as_absent(void **state) {
    (void)state;
    struct ot_json *config;
    struct ot_token_list with = {0}, without = {0};
    static const char json[] = "{\"add_prefix_space\": null, \"legacy\": false}";
    check_ok(ot_json_parse(json, strlen(json), "here", &config));
    struct ot_tokenizer *t =
        open_model("llama_bpe", &(struct ot_sentencepiece_files){.tokenizer_config = config});
    check_ok(ot_tokenizer_encode(t, "the", 3, 0, &without));
    check_ok(ot_tokenizer_encode(t, " the", 4, 0, &with));
    assert_int_equal(with.n, without.n);
    assert_memory_equal(with.ids, without.ids, with.n * sizeof *with.ids);
    ot_token_list_free(&with);
    ot_token_list_free(&without);
    ot_tokenizer_close(t);
    ot_json_free(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(directories_give_what_transformers_gives),
        cmocka_unit_test(other_classes_give_what_sentencepiece_gives),
        cmocka_unit_test(models_are_refused_by_name),
        cmocka_unit_test(cut_and_changed_files_do_no_harm),
        cmocka_unit_test(files_that_contradict_each_other_are_refused),
        cmocka_unit_test(a_null_prefix_counts_as_absent),
    };
    folder = make_folder();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove_folder(folder);
    return rc;
}
