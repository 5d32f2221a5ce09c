/* Added tokens that files beside a tokenizer.json have, against transformers
 * (scripts/golden/added_tokens.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "src/tokenizer/sentencepiece.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/support/check.h"

static struct ot_json *read_golden(const char *name) {
    char path[512];
    struct ot_json *root;
    snprintf(path, sizeof path, "%s/tokenizers/%s", OT_TEST_GOLDEN, name);
    check_ok(ot_json_read_file(path, 1 << 20, &root));
    return root;
}

/* A tree as text. The caller frees it. */
static char *text_of(const struct ot_json *value, size_t *bytes) {
    struct ot_json_writer w = {.indent = -1};
    char *text;
    ot_json_put_value(&w, NULL, value);
    check_ok(ot_json_writer_take(&w, &text, bytes));
    return text;
}

static void check_added(const char *name, const struct ot_json *got, const struct ot_json *want) {
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    size_t n = ot_json_length(got), n_want = 0;
    void *cursor = NULL;
    const char *id;
    struct ot_json *token;
    for (; ot_json_next(want, &cursor, &id, &token); n_want++) {
        const struct ot_json *found = NULL;
        for (size_t i = 0; i < n && !found; i++)
            if (ot_json_int(ot_json_get(ot_json_at(got, i), "id"), -1) == atoi(id))
                found = ot_json_at(got, i);
        if (!found)
            fail_msg("%s: no added token has the id %s", name, id);
        assert_string_equal(ot_json_string(ot_json_get(found, "content"), NULL),
                            ot_json_string(ot_json_get(token, "content"), NULL));
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            if (ot_json_bool(ot_json_get(found, flags[i]), false) !=
                ot_json_bool(ot_json_get(token, flags[i]), false))
                fail_msg("%s: token %s differs in '%s'", name, id, flags[i]);
    }
    assert_int_equal(n, n_want);
}

static void check_ids(const char *name, const char *tokenizer_text, size_t tokenizer_bytes,
                      const struct ot_json *golden) {
    char *folder = make_folder(), path[512];
    struct ot_tokenizer *tokenizer;
    struct ot_token_list list = {0};
    const struct ot_json *ids = ot_json_get(golden, "ids");
    size_t bytes;
    const char *text = ot_json_string(ot_json_get(golden, "text"), &bytes);
    write_file(folder, "tokenizer.json", tokenizer_text, tokenizer_bytes);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    check_ok(ot_tokenizer_open(path, &tokenizer));
    check_ok(ot_tokenizer_encode(tokenizer, text, bytes, 0, &list));
    assert_int_equal(list.n, ot_json_length(ids));
    for (size_t i = 0; i < list.n; i++)
        if (list.ids[i] != ot_json_int(ot_json_at(ids, i), -1))
            fail_msg("%s: token %zu is %d, wanted %lld", name, i, list.ids[i],
                     (long long)ot_json_int(ot_json_at(ids, i), -1));
    ot_token_list_free(&list);
    ot_tokenizer_close(tokenizer);
    remove_folder(folder);
}

static void check_case(const char *name, const struct ot_json *golden) {
    struct ot_json *tokenizer = read_golden(ot_json_string(ot_json_get(golden, "tokenizer"), NULL)), *made;
    const struct ot_json *given = ot_json_get(golden, "files");
    struct ot_sentencepiece_files files = {.tokenizer_config = ot_json_get(given, "tokenizer_config.json"),
                                           .special_tokens_map =
                                               ot_json_get(given, "special_tokens_map.json"),
                                           .added_tokens = ot_json_get(given, "added_tokens.json")};
    char *text;
    size_t bytes;
    check_ok(ot_tokenizer_complete_text(tokenizer, &files, &text, &bytes));
    assert_true(!text == (strcmp(name, "nothing") == 0));
    if (!text)
        text = text_of(tokenizer, &bytes);
    check_ok(ot_json_parse(text, bytes, name, &made));
    check_added(name, ot_json_get(made, "added_tokens"), ot_json_get(golden, "added"));
    check_ids(name, text, bytes, golden);
    ot_json_free(made);
    ot_json_free(tokenizer);
    free(text);
}

static void test_cases(void **state) {
    (void)state;
    struct ot_json *root = read_golden("completed.json"), *golden;
    void *cursor = NULL;
    const char *name;
    int n = 0;
    for (; ot_json_next(root, &cursor, &name, &golden); n++)
        check_case(name, golden);
    assert_true(n >= 10);
    ot_json_free(root);
}

static void test_wrong_files(void **state) {
    (void)state;
    static const char *const decoders[] = {"{\"7\": {}}",
                                           "{\"x\": {\"content\": \"y\"}}",
                                           "{\"-1\": {\"content\": \"y\"}}",
                                           "{\"1a\": {\"content\": \"y\"}}",
                                           "{\"7\": \"y\"}",
                                           "{\"\": {\"content\": \"y\"}}"};
    struct ot_json *tokenizer = read_golden("gpt2.json");
    for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++) {
        char config[128], *text;
        size_t bytes;
        struct ot_json *root;
        snprintf(config, sizeof config, "{\"added_tokens_decoder\": %s}", decoders[i]);
        check_ok(ot_json_parse(config, strlen(config), "config", &root));
        struct ot_sentencepiece_files files = {.tokenizer_config = root};
        check_fails(ot_tokenizer_complete_text(tokenizer, &files, &text, &bytes), OT_E_INPUT,
                    "added_tokens_decoder.");
        assert_null(text);
        ot_json_free(root);
    }
    static const char *const ids[] = {"\"7\"", "-1", "16777216", "1.5", "null"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char added[64], *text;
        size_t bytes;
        struct ot_json *root;
        snprintf(added, sizeof added, "{\"x\": 5000, \"y\": %s}", ids[i]);
        check_ok(ot_json_parse(added, strlen(added), "added", &root));
        struct ot_sentencepiece_files files = {.added_tokens = root};
        check_fails(ot_tokenizer_complete_text(tokenizer, &files, &text, &bytes), OT_E_INPUT,
                    "added_tokens.json: token 'y' has no id between 0 and");
        assert_null(text);
        ot_json_free(root);
    }
    ot_json_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_wrong_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
