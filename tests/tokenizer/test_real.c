/* Real tokenizers of published models: llama.cpp's test vectors, sentencepiece's rows, the ids in the models'
 * golden files, and Hugging Face's results on our own texts. */
#include "tests/tokenizer/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

static struct ot_tokenizer *open_shared(const char *relative) {
    struct ot_tokenizer *t;
    const char *path = shared_path(relative);
    assert_non_null(path);
    check_ok(ot_tokenizer_open(path, &t));
    return t;
}

static char *read_shared(const char *relative) {
    const char *path = shared_path(relative);
    assert_non_null(path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 22);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 22) - 1, file), 1, (1 << 22) - 2);
    fclose(file);
    return text;
}

static void llama2_gives_all_vectors_of_llama_cpp(void **state) {
    (void)state;
    static const char separator[] = "\n__ggml_vocab_test__\n";
    struct ot_tokenizer *t = open_shared("tokenizers/llama2/tokenizer.json");
    struct ot_token_list list = {0};
    char *inputs = read_shared("tokenizers/llama2/vectors.inp"),
         *outputs = read_shared("tokenizers/llama2/vectors.out");
    char *input = inputs, *output = outputs;
    int n_vectors = 0;
    while (input) {
        char *end = strstr(input, separator);
        check_ok(ot_tokenizer_encode(t, input, end ? (size_t)(end - input) : strlen(input), 0, &list));
        char *line_end = output + strcspn(output, "\n"), *number = output;
        for (size_t i = 0; i < list.n; i++)
            assert_int_equal(list.ids[i], strtol(number, &number, 10));
        assert_int_equal(strspn(number, " "), (size_t)(line_end - number));
        n_vectors++;
        output = *line_end ? line_end + 1 : line_end;
        input = end ? end + strlen(separator) : NULL;
    }
    assert_int_equal(n_vectors, 47);
    free(inputs);
    free(outputs);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

static void llama2_gives_all_rows_of_sentencepiece(void **state) {
    (void)state;
    static const char *const fields[] = {"question", "context", "answer"};
    struct ot_tokenizer *t = open_shared("tokenizers/llama2/tokenizer.json");
    struct ot_token_list list = {0};
    struct ot_json *golden, *row;
    check_ok(ot_json_read_file(shared_path("tokenizers/llama2/golden-sql.json"), 1 << 24, &golden));
    const struct ot_json *ids = ot_json_get(golden, "ids");
    char *rows = read_shared("sql/sql.jsonl"), *line = rows;
    assert_int_equal(ot_json_length(ids), 200);
    for (size_t i = 0; i < 200; i++) {
        char *end = strchr(line, '\n');
        check_ok(ot_json_parse(line, (size_t)(end - line), "sql.jsonl", &row));
        for (size_t k = 0; k < 3; k++) {
            size_t n;
            const struct ot_json *want = ot_json_at(ot_json_at(ids, i), k);
            const char *text = ot_json_string(ot_json_get(row, fields[k]), &n);
            check_ok(ot_tokenizer_encode(t, text, n, 0, &list));
            assert_int_equal(list.n, ot_json_length(want));
            for (size_t j = 0; j < list.n; j++)
                assert_int_equal(list.ids[j], ot_json_int(ot_json_at(want, j), -1));
        }
        ot_json_free(row);
        line = end + 1;
    }
    free(rows);
    ot_json_free(golden);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

static void check_real(const char *name, const char *relative) {
    struct corpus corpus;
    struct ot_tokenizer *t = open_shared(relative);
    corpus_open(&corpus);
    check_vectors(t, name, &corpus);
    corpus_close(&corpus);
    ot_tokenizer_close(t);
}

static void real_files_give_what_hugging_face_gives(void **state) {
    (void)state;
    check_real("llama2", "tokenizers/llama2/tokenizer.json");
    check_real("codegen", "tokenizers/codegen/tokenizer.json");
    check_real("stories260k", "models/stories260k/tokenizer.json");
    check_real("story-llama", "models/story-llama/tokenizer.json");
}

static void decode_ids(const struct ot_tokenizer *t, const struct ot_json *ids, const struct ot_json *text) {
    size_t n = ot_json_length(ids), got_n, want_n;
    int32_t *values = calloc(n + 1, sizeof *values);
    char *got;
    assert_non_null(values);
    for (size_t i = 0; i < n; i++)
        values[i] = (int32_t)ot_json_int(ot_json_at(ids, i), -1);
    check_ok(ot_tokenizer_decode(t, values, n, true, &got, &got_n));
    const char *want = ot_json_string(text, &want_n);
    assert_non_null(want);
    if (got_n != want_n || memcmp(got, want, want_n) != 0)
        fail_msg("decoded \"%s\", wanted \"%s\"", got, want);
    free(got);
    free(values);
}

static void story_llama_gives_the_ids_of_its_golden(void **state) {
    (void)state;
    struct ot_tokenizer *t = open_shared("models/story-llama/tokenizer.json");
    struct ot_token_list list = {0};
    struct ot_json *golden;
    check_ok(ot_json_read_file(shared_path("models/story-llama/golden.json"), 1 << 24, &golden));
    const struct ot_json *cases = ot_json_get(golden, "cases");
    assert_true(ot_json_length(cases) >= 3);
    for (size_t i = 0; i < ot_json_length(cases); i++) {
        const struct ot_json *c = ot_json_at(cases, i), *ids = ot_json_get(c, "ids");
        size_t n;
        const char *text = ot_json_string(ot_json_get(c, "text"), &n);
        check_ok(ot_tokenizer_encode(t, text, n, OT_TOKENIZER_ADD_SPECIAL, &list));
        assert_int_equal(list.n, ot_json_length(ids));
        for (size_t k = 0; k < list.n; k++)
            assert_int_equal(list.ids[k], ot_json_int(ot_json_at(ids, k), -1));
        decode_ids(t, ot_json_get(c, "greedy_ids"), ot_json_get(c, "greedy_text"));
    }
    ot_json_free(golden);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

/* The expected text is from the test of llama2.c: its own decoder wrote it. */
static void stories260k_decodes_its_story(void **state) {
    (void)state;
    struct ot_tokenizer *t = open_shared("models/stories260k/tokenizer.json");
    struct ot_json *expected;
    check_ok(ot_json_read_file(shared_path("models/stories260k/expected.json"), 1 << 24, &expected));
    const struct ot_json *ids = ot_json_get(expected, "greedy_from_bos_ids");
    size_t n = ot_json_length(ids), bytes, want_bytes;
    int32_t *values = calloc(n, sizeof *values);
    char *text;
    assert_non_null(values);
    for (size_t i = 0; i < n; i++)
        values[i] = (int32_t)ot_json_int(ot_json_at(ids, i), -1);
    check_ok(ot_tokenizer_decode(t, values, n, true, &text, &bytes));
    const char *want = ot_json_string(ot_json_get(expected, "greedy_text"), &want_bytes);
    assert_int_equal(bytes, want_bytes);
    assert_memory_equal(text, want, bytes);
    free(text);
    free(values);
    ot_json_free(expected);
    ot_tokenizer_close(t);
}

int main(void) {
    skip_without_shared("tokenizers/llama2/tokenizer.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama2_gives_all_vectors_of_llama_cpp),
        cmocka_unit_test(llama2_gives_all_rows_of_sentencepiece),
        cmocka_unit_test(real_files_give_what_hugging_face_gives),
        cmocka_unit_test(story_llama_gives_the_ids_of_its_golden),
        cmocka_unit_test(stories260k_decodes_its_story),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
