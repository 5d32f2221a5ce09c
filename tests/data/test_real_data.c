/* Real text-to-SQL rows with a real tokenizer: the trained tokens are exactly the answer and EOS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "src/base/thread.h"
#include "src/data/packing.h"
#include "src/data/source.h"
#include "tests/data/data_support.h"

enum { LLAMA2_BOS = 1, LLAMA2_EOS = 2, LLAMA2_VOCAB = 32000 };

static struct ot_tokenizer *tokenizer;
static struct ot_pool *pool;

static int open_real(void **state) {
    (void)state;
    check_ok(ot_tokenizer_open(shared_path("tokenizers/llama2/tokenizer.json"), &tokenizer));
    check_ok(ot_pool_open(2, "data", &pool));
    return 0;
}

static int close_real(void **state) {
    (void)state;
    ot_pool_close(pool);
    ot_tokenizer_close(tokenizer);
    return 0;
}

static struct ot_dataset *load(const char *path) {
    struct ot_dataset_config config = {
        .path = path,
        .tokenizer = tokenizer,
        .specials = {.bos_id = LLAMA2_BOS, .add_bos = true, .n_eos = 1, .eos_ids = {LLAMA2_EOS}},
        .vocab_size = LLAMA2_VOCAB,
        .seq_len = 2048,
        .pool = pool};
    struct ot_dataset *d;
    check_ok(ot_dataset_open(&config, &d));
    return d;
}

/* The trained tokens of a row must decode to the answer, the other tokens to the prompt. */
static void check_sql_row(struct ot_row row, const struct ot_json *json) {
    int32_t ids[2048];
    char want[4096], *text;
    int64_t prompt = ot_row_prompt_tokens(&row);
    for (int64_t i = 0; i < row.n; i++) {
        ids[i] = ot_token_id(row.tokens[i]);
        assert_int_equal(ot_token_trained(row.tokens[i]), i >= prompt);
    }
    assert_int_equal(ids[0], LLAMA2_BOS);
    assert_int_equal(ids[row.n - 1], LLAMA2_EOS);
    check_ok(ot_tokenizer_decode(tokenizer, ids + prompt, (size_t)(row.n - prompt), true, &text, NULL));
    assert_string_equal(text, ot_json_string(ot_json_get(json, "answer"), NULL));
    free(text);
    snprintf(want, sizeof want, "%s\n-- %s\n", ot_json_string(ot_json_get(json, "context"), NULL),
             ot_json_string(ot_json_get(json, "question"), NULL));
    check_ok(ot_tokenizer_decode(tokenizer, ids, (size_t)prompt, true, &text, NULL));
    assert_string_equal(text, want);
    free(text);
}

static void test_sql_rows(void **state) {
    (void)state;
    const char *path = shared_path("sql/sql.jsonl"), *text;
    struct ot_dataset *d = load(path);
    const struct ot_data_stats *stats = ot_dataset_stats(d);
    assert_int_equal(stats->kind, OT_ROW_SQL);
    assert_int_equal(stats->kept, 4000);
    assert_int_equal(stats->truncated + stats->bad + stats->untrained + stats->straddling, 0);
    struct ot_source *source;
    size_t bytes;
    int64_t line;
    check_ok(ot_source_open(path, OT_TEXT_BY_DOCUMENT, &source));
    for (int64_t i = 0; i < ot_dataset_rows(d); i++) {
        struct ot_json *json;
        assert_int_equal(ot_source_next(source, &text, &bytes, &line), 1);
        check_ok(ot_json_parse(text, bytes, "row", &json));
        check_sql_row(ot_dataset_row(d, i), json);
        ot_json_free(json);
    }
    ot_source_close(source);
    struct ot_packing *p;
    check_ok(
        ot_packing_open(&(struct ot_packing_config){.dataset = d, .seq_len = 2048, .shuffle = true}, &p));
    int64_t fewest = (ot_packing_tokens(p) + 2047) / 2048;
    assert_in_range(ot_packing_sequences(p), fewest, fewest + 1);
    ot_packing_close(p);
    ot_dataset_close(d);
}

/* A space at the end of a prompt merges with the first word of the answer. That token does not train, and the
 * statistics count it. */
static void test_straddling(void **state) {
    (void)state;
    static const char rows[] = "{\"prompt\": \"SQL: \", \"completion\": \"SELECT 1\"}\n"
                               "{\"prompt\": \"SQL:\", \"completion\": \" SELECT 1\"}\n"
                               "{\"prompt\": \"SQL:\\n\", \"completion\": \"SELECT 1\"}\n";
    char *folder = make_folder(), path[512];
    write_file(folder, "rows.jsonl", rows, sizeof rows - 1);
    snprintf(path, sizeof path, "%s/rows.jsonl", folder);
    struct ot_dataset *d = load(path);
    assert_int_equal(ot_dataset_stats(d)->straddling, 1);
    assert_true(ot_dataset_row(d, 0).trained < ot_dataset_row(d, 1).trained);
    ot_dataset_close(d);
    remove_folder(folder);
}

int main(void) {
    skip_without_shared("tokenizers/llama2/tokenizer.json");
    skip_without_shared("sql/sql.jsonl");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sql_rows),
        cmocka_unit_test(test_straddling),
    };
    return cmocka_run_group_tests(tests, open_real, close_real);
}
