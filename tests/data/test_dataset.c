/* Loading whole files: batches, threads, layouts, bad rows at any place, and --show-sample. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "src/base/thread.h"
#include "tests/data/data_support.h"

enum { ROWS = 9000 }; /* more than two batches of the loader */

/* Makes rows of many lengths. Row `bad` (-1: none) is broken, and some rows have nothing to train on. */
static char *make_rows(int bad, size_t *bytes) {
    char *text = malloc(ROWS * 128);
    assert_non_null(text);
    *bytes = 0;
    for (int i = 0; i < ROWS; i++)
        *bytes += (size_t)sprintf(text + *bytes, "{\"prompt\": \"%0*d\", \"completion\": \"%.*s\"%s\n",
                                  1 + i % 37, i, i % 11, "abcdefghijk", i == bad ? "" : "}");
    return text;
}

static bool same(const struct ot_dataset *a, const struct ot_dataset *b) {
    if (ot_dataset_rows(a) != ot_dataset_rows(b) ||
        memcmp(ot_dataset_stats(a), ot_dataset_stats(b), sizeof(struct ot_data_stats)) != 0)
        return false;
    for (int64_t i = 0; i < ot_dataset_rows(a); i++) {
        struct ot_row x = ot_dataset_row(a, i), y = ot_dataset_row(b, i);
        if (x.n != y.n || x.document != y.document ||
            memcmp(x.tokens, y.tokens, (size_t)x.n * sizeof *x.tokens) != 0)
            return false;
    }
    return true;
}

static void test_threads(void **state) {
    struct data_fixture *f = *state;
    size_t bytes;
    char *text = make_rows(-1, &bytes);
    put_data(f, "data.jsonl", text, bytes);
    struct ot_dataset *two = load_data(f);
    assert_int_equal(ot_dataset_stats(two)->rows, ROWS);
    assert_int_equal(ot_dataset_stats(two)->untrained, (ROWS + 10) / 11);
    for (int threads = tests_are_for_races() ? 5 : 1; threads <= 5; threads += 2) {
        struct ot_pool *pool;
        check_ok(ot_pool_open(threads, "data", &pool));
        struct ot_dataset_config config = f->config;
        config.pool = pool;
        struct ot_dataset *d;
        check_ok(ot_dataset_open(&config, &d));
        assert_true(same(d, two));
        assert_int_equal(ot_dataset_fingerprint(d).crc, ot_dataset_fingerprint(two).crc);
        ot_dataset_close(d);
        ot_pool_close(pool);
    }
    ot_dataset_close(two);
    free(text);
}

static struct ot_data_fingerprint print_of(struct data_fixture *f, const char *text) {
    struct ot_dataset *d = load_text(f, text);
    struct ot_data_fingerprint print = ot_dataset_fingerprint(d);
    ot_dataset_close(d);
    return print;
}

/* A change of a token, a trained mark, an end of a row or the order changes the fingerprint. The layout of
 * the file does not. */
static void test_print(void **state) {
    struct data_fixture *f = *state;
#define PAIR(p, c) "{\"prompt\": \"" p "\", \"completion\": \"" c "\"}\n"
    static const char *const others[] = {
        PAIR("ab", "cd") PAIR("ef", "gx"), /* another token */
        PAIR("ef", "gh") PAIR("ab", "cd"), /* another order */
        PAIR("abc", "d") PAIR("ef", "gh"), /* another trained mark */
        PAIR("ab", "cd"),                  /* one row less */
        PAIR("ab", "c") PAIR("def", "gh"), /* another end of a row */
    };
    struct ot_data_fingerprint print = print_of(f, PAIR("ab", "cd") PAIR("ef", "gh"));
    assert_int_equal(print.rows, 2);
    assert_int_equal(print.tokens, 2 * (1 + 4 + 1));
    assert_int_equal(print.trained_tokens, 2 * (2 + 1));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_not_equal(print_of(f, others[i]).crc, print.crc);
    struct ot_data_fingerprint again =
        print_of(f, "{\"completion\": \"cd\", \"prompt\": \"ab\"}\n\n" PAIR("ef", "gh"));
    assert_true(again.rows == print.rows && again.tokens == print.tokens && again.crc == print.crc &&
                again.trained_tokens == print.trained_tokens);
#undef PAIR
}

/* The same rows as lines, as a JSON array, and compressed. */
static void test_layouts(void **state) {
    struct data_fixture *f = *state;
    size_t bytes;
    char *text = make_rows(-1, &bytes), path[600];
    put_data(f, "data.jsonl", text, bytes);
    struct ot_dataset *lines = load_data(f);
    snprintf(path, sizeof path, "%s/data.jsonl.gz", f->folder);
    gzFile file = gzopen(path, "wb1");
    assert_int_equal(gzwrite(file, text, (unsigned)bytes), bytes);
    gzclose(file);
    f->config.path = path;
    struct ot_dataset *packed = load_data(f);
    assert_true(same(packed, lines));
    f->config.path = f->path;
    char *array = malloc(bytes + 2);
    assert_non_null(array);
    array[0] = '[';
    memcpy(array + 1, text, bytes);
    for (size_t i = 1; i < bytes; i++)
        if (array[i] == '\n')
            array[i] = ',';
    array[bytes] = ']';
    put_data(f, "data.json", array, bytes + 1);
    struct ot_dataset *listed = load_data(f);
    assert_true(same(listed, lines));
    ot_dataset_close(listed);
    ot_dataset_close(packed);
    ot_dataset_close(lines);
    free(array);
    free(text);
}

/* The error names the first bad row, wherever it is and whichever thread found it. */
static void test_first_bad_row(void **state) {
    struct data_fixture *f = *state;
    static const int places[] = {0, 17, 4095, 4096, 8999};
    for (size_t i = 0; i < sizeof places / sizeof *places; i += tests_are_for_races() ? 3 : 1) {
        size_t bytes;
        char *text = make_rows(places[i], &bytes), words[64];
        text[bytes - 2] = '!'; /* the last row is broken in every case */
        put_data(f, "data.jsonl", text, bytes);
        snprintf(words, sizeof words, "data.jsonl:%d: ", places[i] + 1);
        struct ot_dataset *d;
        check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, words);
        struct ot_dataset_config config = f->config;
        config.skip_bad = true;
        check_ok(ot_dataset_open(&config, &d));
        assert_int_equal(ot_dataset_stats(d)->first_bad.line, places[i] + 1);
        assert_int_equal(ot_dataset_stats(d)->bad, places[i] == ROWS - 1 ? 1 : 2);
        ot_dataset_close(d);
        free(text);
    }
}

/* Two bad rows of one batch, which different threads find, often the later one first. */
static void test_first_of_two_bad_rows(void **state) {
    struct data_fixture *f = *state;
    size_t bytes;
    char *text = make_rows(40, &bytes);
    char *late = strstr(text, "3999\", "); /* the end of row 3999's prompt; rows are numbered from 0 */
    assert_non_null(late);
    *strchr(late, '}') = ' ';
    put_data(f, "data.jsonl", text, bytes);
    for (int threads = tests_are_for_races() ? 4 : 2; threads <= 4; threads += tests_are_brief() ? 2 : 1) {
        struct ot_dataset_config config = f->config;
        struct ot_dataset *d;
        check_ok(ot_pool_open(threads, "data", &config.pool));
        for (int i = 0; i < (tests_are_brief() ? 2 : 5); i++) {
            config.skip_bad = false;
            check_fails(ot_dataset_open(&config, &d), OT_E_INPUT, "data.jsonl:41: ");
            config.skip_bad = true;
            check_ok(ot_dataset_open(&config, &d));
            assert_int_equal(ot_dataset_stats(d)->first_bad.line, 41);
            assert_int_equal(ot_dataset_stats(d)->bad, 2);
            ot_dataset_close(d);
        }
        ot_pool_close(config.pool);
    }
    free(text);
}

static void test_damaged_file(void **state) {
    struct data_fixture *f = *state;
    size_t bytes;
    char *text = make_rows(-1, &bytes), path[600];
    snprintf(path, sizeof path, "%s/whole.gz", f->folder);
    gzFile file = gzopen(path, "wb");
    assert_int_equal(gzwrite(file, text, (unsigned)bytes), bytes);
    gzclose(file);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    size_t n = fread(text, 1, bytes, in);
    fclose(in);
    put_data(f, "cut.gz", text, n / 2);
    f->config.skip_bad = true; /* the option skips bad rows; it does not skip missing files */
    struct ot_dataset *d;
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, "cut.gz: the gzip stream ends");
    free(text);
}

/* Writes a row with `letters` bytes in `key`, between two short rows. */
static void put_huge_row(struct data_fixture *f, const char *key, size_t letters) {
    char *text = malloc(letters + 128);
    assert_non_null(text);
    size_t at = (size_t)sprintf(text, "{\"text\": \"one\"}\n{\"text\": \"\", \"%s\": \"", key);
    memset(text + at, 'x', letters);
    at += letters;
    at += (size_t)sprintf(text + at, "\"}\n{\"text\": \"two\"}\n");
    put_data(f, "data.jsonl", text, at);
    free(text);
}

static void test_huge_line(void **state) {
    struct data_fixture *f = *state;
    put_huge_row(f, "ignored", (tests_are_brief() ? 5u : 50u) << 20);
    struct ot_dataset *d = load_data(f);
    assert_int_equal(ot_dataset_rows(d), 2); /* the text of the huge row is empty */
    ot_dataset_close(d);
    /* As text the row has 50 million tokens and needs 1.5 GB while it is made, which is too much for every
     * run. */
    size_t letters = getenv("OT_TEST_SLOW") ? 50u << 20 : 2u << 20;
    put_huge_row(f, "text", letters);
    f->config.seq_len = 1 << 16;
    d = load_data(f);
    assert_int_equal(ot_dataset_documents(d), 3);
    assert_int_equal(ot_dataset_stats(d)->trained_tokens, (int64_t)letters + 1 + 4 + 4);
    assert_int_equal(ot_dataset_stats(d)->longest, 1 << 16);
    assert_in_range(ot_dataset_bytes(d), 4 * letters, 4 * letters + (1 << 20));
    ot_dataset_close(d);
}

static void count_progress(void *context, int64_t bytes_read, int64_t bytes_total) {
    int64_t *last = context;
    assert_in_range(bytes_read, *last, bytes_total);
    *last = bytes_read;
}

static void test_progress(void **state) {
    struct data_fixture *f = *state;
    size_t bytes;
    int64_t last = 0;
    char *text = make_rows(-1, &bytes);
    put_data(f, "data.jsonl", text, bytes);
    f->config.progress = count_progress;
    f->config.progress_context = &last;
    ot_dataset_close(load_data(f));
    assert_int_equal(last, bytes);
    free(text);
}

static void test_prompt_tokens(void **state) {
    struct ot_dataset *d = load_text(*state, "{\"prompt\": \"abc\", \"completion\": \"d\"}\n");
    struct ot_row row = ot_dataset_row(d, 0);
    assert_int_equal(ot_row_prompt_tokens(&row), 4); /* BOS counts too */
    ot_dataset_close(d);
}

static void check_shown(struct data_fixture *f, int64_t index, bool ansi, const char *words) {
    char *text;
    check_ok(ot_dataset_show_sample(&f->config, index, ansi, &text));
    if (!strstr(text, words))
        fail_msg("\"%s\" does not contain \"%s\"", text, words);
    free(text);
}

static void test_show_sample(void **state) {
    struct data_fixture *f = *state;
    put_text(f, "{\"prompt\": \"ab\\n\", \"completion\": \"c\\u001bd\"}\n{\"prompt\": \"p\", \"completion\": "
                "\"\"}\n");
    check_shown(f, 0, false, "data.jsonl:1: kind prompt, 8 tokens, 4 trained");
    check_shown(f, 0, false, "<|bos|>ab\n[c\\x1bd<|eos|>]\n"); /* no escape sequence reaches the terminal */
    check_shown(f, 0, false, "     0      256       -  <|bos|>\n     1       97       -  a\n");
    check_shown(f, 0, false, "     4       99     yes  c\n");
    check_shown(f, 0, true, "ab\n\x1b[4;32mc\\x1bd<|eos|>\x1b[0m\n");
    check_shown(f, 1, false, "data.jsonl:2: kind prompt, dropped: nothing in this row trains");
    char *text;
    check_fails(ot_dataset_show_sample(&f->config, 2, false, &text), OT_E_USAGE,
                "no row 3: the file has 2 rows");
    put_text(f, "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
                "\"content\": \"a\"}]}");
    check_shown(f, 0, false, "kind messages, template zephyr, ");
    f->config.seq_len = 4;
    put_text(f, "{\"text\": \"abcdef\"}\n{\"prompt\": \"x\"}\n");
    check_shown(f, 0, false,
                "<|bos|>[abc]\n---- next piece ----\nc[def]\n---- next piece ----\nf[<|eos|>]\n");
    check_fails(ot_dataset_show_sample(&f->config, 1, false, &text), OT_E_INPUT,
                "data.jsonl:2: key 'text' is missing");
}

int main(void) {
#define dataset_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        dataset_test(test_threads),
        dataset_test(test_print),
        dataset_test(test_layouts),
        dataset_test(test_first_bad_row),
        dataset_test(test_first_of_two_bad_rows),
        dataset_test(test_damaged_file),
        dataset_test(test_huge_line),
        dataset_test(test_progress),
        dataset_test(test_prompt_tokens),
        dataset_test(test_show_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
