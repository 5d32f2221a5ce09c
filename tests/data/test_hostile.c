/* Damaged data files of every kind: for any bytes, a load ends with rows or with a one-line error. The
 * sanitizers watch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tests/data/data_support.h"
#include "tests/support/damage.h"

enum { ROUNDS = 1500, MOST_BYTES = 4096 };

static const char *const originals[] = {
    "{\"text\": \"abc \\u00e4\\ud83d\\ude00\"}\n{\"text\": \"a\xc3\xa4\xf0\x9f\x98\x80\"}\r\n\n{\"text\": "
    "\"<|eos|>x\"}\n",
    "{\"question\": \"q?\", \"context\": \"CREATE TABLE t (a INT)\", \"answer\": \"SELECT a FROM t\"}\n"
    "{\"question\": \"r?\", \"context\": \"CREATE TABLE u (b INT)\", \"answer\": \"SELECT b FROM u\"}\n",
    "[{\"instruction\": \"i\", \"input\": \"j\", \"output\": \"o\"},\n {\"instruction\": \"k\", \"output\": "
    "\"p\"}]\n",
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}, "
    "{\"role\": \"assistant\", \"content\": \"a\"}]}\n{\"messages\": []}\n",
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"u\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}\n",
    "{\"prompt\": \"p\", \"completion\": \"a long answer that is cut\"}\n{\"prompt\": \"q\", \"completion\": "
    "\"\"}\n",
};
enum { N_ORIGINALS = sizeof originals / sizeof *originals };

/* Loads the file. The load must succeed, or fail with a one-line error. */
static int load_any(struct data_fixture *f) {
    struct ot_dataset *d;
    ot_error_clear();
    int rc = ot_dataset_open(&f->config, &d);
    if (rc < 0) {
        assert_null(d);
        assert_true(rc == -OT_E_INPUT || rc == -OT_E_USAGE);
        assert_true(strlen(ot_error_text()) > 10);
        return 0;
    }
    const struct ot_data_stats *stats = ot_dataset_stats(d);
    assert_int_equal(stats->rows, stats->kept + stats->bad + stats->untrained);
    for (int64_t i = 0; i < ot_dataset_rows(d); i++) {
        struct ot_row row = ot_dataset_row(d, i);
        assert_in_range(row.n, 2, f->config.seq_len);
        assert_in_range(row.trained, 1, row.n - 1);
        assert_false(ot_token_trained(row.tokens[0]));
    }
    ot_dataset_close(d);
    return 1;
}

static void pick_options(struct dice *dice, struct data_fixture *f) {
    static const char *const templates[] = {NULL, NULL, "llama-2", "llama-3", "alpaca"};
    f->config.seq_len = 2 + (int64_t)throw_below(dice, 60);
    f->config.skip_bad = throw_below(dice, 2);
    f->config.no_eos = throw_below(dice, 4) == 0;
    f->config.train_prompt = throw_below(dice, 4) == 0;
    f->config.chat.named = templates[throw_below(dice, 5)];
    f->config.prompt_format = throw_below(dice, 6) == 0 ? "{prompt}{question}" : NULL;
}

static void test_damaged_rows(void **state) {
    struct data_fixture *f = *state;
    int loaded = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct dice dice = {round, 0};
        char text[MOST_BYTES];
        const char *original = originals[throw_below(&dice, N_ORIGINALS)];
        size_t n = strlen(original);
        memcpy(text, original, n);
        n = damage_text(&dice, text, n, MOST_BYTES);
        pick_options(&dice, f);
        put_data(f, "data.jsonl", text, n);
        loaded += load_any(f);
    }
    assert_in_range(loaded, ROUNDS / 10, ROUNDS - ROUNDS / 10); /* both results are frequent */
}

static void test_damaged_gzip(void **state) {
    struct data_fixture *f = *state;
    for (uint64_t round = 0; round < ROUNDS / 5; round++) {
        struct dice dice = {ROUNDS + round, 0};
        char text[MOST_BYTES], path[600];
        const char *original = originals[throw_below(&dice, N_ORIGINALS)];
        snprintf(path, sizeof path, "%s/whole.gz", f->folder);
        gzFile file = gzopen(path, "wb");
        assert_true(gzwrite(file, original, (unsigned)strlen(original)) > 0);
        gzclose(file);
        FILE *in = fopen(path, "rb");
        size_t n = fread(text, 1, sizeof text, in);
        fclose(in);
        n = damage_text(&dice, text, n, MOST_BYTES);
        pick_options(&dice, f);
        put_data(f, "data.gz", text, n);
        load_any(f);
    }
}

int main(void) {
#define hostile_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {hostile_test(test_damaged_rows), hostile_test(test_damaged_gzip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
