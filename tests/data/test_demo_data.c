/* scripts/demo-data: the answers run in SQLite, the same seed gives the same bytes, the evaluation rows
 * are not in the training rows, and the rows load as text-to-SQL rows of the length that the demo's plan
 * assumes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "src/data/source.h"
#include "tests/data/data_support.h"

enum { TRAIN_ROWS = 400, EVAL_ROWS = 40 };

static int run_script(const char *arguments) {
    char command[2048];
    snprintf(command, sizeof command, "python3 '%s' %s > /dev/null 2>&1", OT_TEST_DEMO_DATA, arguments);
    return system(command);
}

static void make_demo(struct data_fixture *f, const char *name, int seed) {
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "--out '%s/%s' --rows %d --eval-rows %d --seed %d", f->folder, name,
             TRAIN_ROWS, EVAL_ROWS, seed);
    assert_int_equal(run_script(arguments), 0);
}

static void point_at(struct data_fixture *f, const char *name) {
    snprintf(f->path, sizeof f->path, "%s/%s", f->folder, name);
}

/* Reads all answers of a file. */
static int read_answers(struct data_fixture *f, const char *name, char answers[][160]) {
    struct ot_source *source;
    const char *text;
    size_t bytes;
    int64_t line;
    int n = 0;
    point_at(f, name);
    check_ok(ot_source_open(f->path, OT_TEXT_BY_DOCUMENT, &source));
    while (ot_source_next(source, &text, &bytes, &line) == 1) {
        struct ot_json *row;
        check_ok(ot_json_parse(text, bytes, name, &row));
        snprintf(answers[n++], 160, "%s", ot_json_string(ot_json_get(row, "answer"), NULL));
        ot_json_free(row);
    }
    ot_source_close(source);
    return n;
}

static void test_rows(void **state) {
    struct data_fixture *f = *state;
    static char train[TRAIN_ROWS][160], eval[EVAL_ROWS][160];
    char arguments[1200];
    make_demo(f, "demo", 1);
    snprintf(arguments, sizeof arguments, "--check '%s/demo/train.jsonl' '%s/demo/eval.jsonl'", f->folder,
             f->folder);
    assert_int_equal(run_script(arguments), 0);
    assert_int_equal(read_answers(f, "demo/train.jsonl", train), TRAIN_ROWS);
    assert_int_equal(read_answers(f, "demo/eval.jsonl", eval), EVAL_ROWS);
    for (int i = 0; i < EVAL_ROWS; i++)
        for (int k = 0; k < TRAIN_ROWS; k++)
            assert_string_not_equal(eval[i], train[k]);
    point_at(f, "demo/train.jsonl");
    f->config.seq_len = 256;
    struct ot_dataset *d = load_data(f);
    assert_int_equal(ot_dataset_stats(d)->kind, OT_ROW_SQL);
    assert_int_equal(ot_dataset_stats(d)->kept, TRAIN_ROWS);
    assert_int_equal(ot_dataset_stats(d)->truncated, 0);
    assert_in_range(ot_dataset_stats(d)->tokens / TRAIN_ROWS, 100, 170);
    ot_dataset_close(d);
}

static void test_seed(void **state) {
    struct data_fixture *f = *state;
    static char first[TRAIN_ROWS][160], again[TRAIN_ROWS][160], other[TRAIN_ROWS][160];
    make_demo(f, "first", 1);
    make_demo(f, "again", 1);
    make_demo(f, "other", 2);
    read_answers(f, "first/train.jsonl", first);
    read_answers(f, "again/train.jsonl", again);
    read_answers(f, "other/train.jsonl", other);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
}

/* The script's own check can fail: on a column that is not in the context, and on a file that has no rows. */
static void test_check(void **state) {
    struct data_fixture *f = *state;
    char arguments[600];
    put_text(
        f,
        "{\"question\": \"q\", \"context\": \"CREATE TABLE t (a INT)\", \"answer\": \"SELECT b FROM t\"}\n");
    snprintf(arguments, sizeof arguments, "--check '%s'", f->path);
    assert_int_not_equal(run_script(arguments), 0);
    put_text(f, "oops\n");
    assert_int_not_equal(run_script(arguments), 0);
    assert_int_not_equal(run_script("--rows 0"), 0);
}

int main(void) {
    if (system("python3 -c 'import sqlite3' > /dev/null 2>&1") != 0) {
        fprintf(stderr, "SKIP: python3 with sqlite3 is absent\n");
        return 77;
    }
#define demo_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {demo_test(test_rows), demo_test(test_seed), demo_test(test_check)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
