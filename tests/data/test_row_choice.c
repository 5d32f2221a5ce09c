/* The rows that a dataset takes: the first ones of each source (--max-rows), and of equal rows the first one
 * (--dedup). Tokens are bytes; BOS is 256, EOS is 257. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/data/row_set.h"
#include "tests/data/data_support.h"

/* Texts of all rows, with a '|' behind each. */
static void check_rows(struct data_fixture *f, const char *want) {
    char got[4096] = "";
    struct ot_dataset *d = load_data(f);
    for (int64_t i = 0; i < ot_dataset_rows(d); i++)
        strcat(strcat(got, row_text(d, i)), "|");
    ot_dataset_close(d);
    assert_string_equal(got, want);
}

/* ---- the first rows ---- */

/* Rows that are bad, or that train nothing, do not count; rows behind the last one are not even read. */
static void test_first_rows(void **state) {
    struct data_fixture *f = *state;
    struct ot_dataset *d;
    put_text(f,
             "{\"prompt\": \"a\", \"completion\": \"1\"}\n{\"prompt\": \"b\", \"completion\": \"\"}\n"
             "{\"prompt\": \"c\", \"completion\": \"2\"}\nbad\n{\"prompt\": \"d\", \"completion\": \"3\"}\n");
    f->config.max_rows = 2;
    check_rows(f, "<256>a[1<257>]|<256>c[2<257>]|");
    f->config.max_rows = 3;
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, "data.jsonl:4: ");
    f->config.skip_bad = true;
    d = load_data(f);
    assert_int_equal(ot_dataset_stats(d)->rows, 5);
    assert_int_equal(ot_dataset_stats(d)->kept, 3);
    assert_int_equal(ot_dataset_stats(d)->bad, 1);
    assert_int_equal(ot_dataset_stats(d)->untrained, 1);
    assert_true(ot_dataset_stats(d)->reached_max);
    ot_dataset_close(d);
    f->config.max_rows = 4;
    d = load_data(f);
    assert_int_equal(ot_dataset_stats(d)->kept, 3);
    assert_false(ot_dataset_stats(d)->reached_max);
    ot_dataset_close(d);
}

/* More rows than a batch has; a document in several pieces is one row. */
static void test_many_rows(void **state) {
    enum { ROWS = 9000 };
    static int lengths[ROWS];
    struct data_fixture *f = *state;
    for (int i = 0; i < ROWS; i++)
        lengths[i] = i == 4100 ? 200 : 5;
    put_lengths(f, lengths, ROWS);
    static const int64_t most[] = {1, 4095, 4096, 4097, 4101, 8999, 9000};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        f->config.max_rows = most[i];
        struct ot_dataset *d = load_data(f);
        assert_int_equal(ot_dataset_documents(d), most[i]);
        assert_int_equal(ot_dataset_stats(d)->rows, most[i]);
        assert_int_equal(ot_dataset_rows(d), most[i] + (most[i] > 4100 ? 3 : 0));
        ot_dataset_close(d);
    }
}

/* Each source has its own count. A directory is one source, and its other files are not opened. */
static void test_first_rows_of_sources(void **state) {
    struct data_fixture *f = *state;
    char one[512], both[512];
    struct ot_dataset *d;
    put_data(f, "z.jsonl", "{\"text\": \"u\"}\n{\"text\": \"v\"}\n{\"text\": \"w\"}\n", 42);
    snprintf(one, sizeof one, "%s", f->path);
    put_data(f, "x.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", 28);
    put_data(f, "y.jsonl", "\1\2\3\4", 4);
    snprintf(both, sizeof both, "%s/[xy].jsonl", f->folder);
    const char *const paths[] = {both, one};
    f->config.max_rows = 2;
    check_ok(ot_dataset_open_sources(&f->config, paths, 2, &d));
    assert_int_equal(ot_dataset_rows(d), 4);
    assert_int_equal(ot_dataset_source_begin(d, 1), 2);
    assert_string_equal(row_text(d, 1), "<256>[b<257>]");
    assert_string_equal(row_text(d, 2), "<256>[u<257>]");
    assert_string_equal(row_text(d, 3), "<256>[v<257>]");
    assert_true(ot_dataset_stats(d)->reached_max);
    ot_dataset_close(d);
    f->config.max_rows = 3;
    check_fails(ot_dataset_open_sources(&f->config, paths, 2, &d), OT_E_INPUT,
                "y.jsonl: this is a binary file");
}

/* ---- equal rows ---- */

static void test_equal_rows(void **state) {
    struct data_fixture *f = *state;
    static const char text[] = "{\"prompt\": \"ab\", \"completion\": \"c\"}\n"
                               "{\"prompt\": \"ab\", \"completion\": \"d\"}\n"
                               "{\"completion\": \"c\", \"prompt\": \"ab\", \"id\": 3}\n"
                               "{\"prompt\": \"a\", \"completion\": \"bc\"}\n" /* its marks differ */
                               "{\"prompt\": \"ab\", \"completion\": \"d\"}\n"
                               "{\"prompt\": \"x\", \"completion\": \"y\"}\n";
    put_text(f, text);
    f->config.dedup = f->config.keeps_json = true;
    check_rows(f, "<256>ab[c<257>]|<256>ab[d<257>]|<256>a[bc<257>]|<256>x[y<257>]|");
    struct ot_dataset *d = load_data(f);
    size_t bytes;
    assert_int_equal(ot_dataset_stats(d)->rows, 6);
    assert_int_equal(ot_dataset_stats(d)->kept, 4);
    assert_int_equal(ot_dataset_stats(d)->duplicates, 2);
    assert_memory_equal(ot_dataset_json(d, 2, &bytes), "{\"prompt\": \"a\", ", 15);
    struct ot_data_fingerprint print = ot_dataset_fingerprint(d);
    ot_dataset_close(d);
    f->config.dedup = false;
    d = load_text(
        f, "{\"prompt\": \"ab\", \"completion\": \"c\"}\n{\"prompt\": \"ab\", \"completion\": \"d\"}\n"
           "{\"prompt\": \"a\", \"completion\": \"bc\"}\n{\"prompt\": \"x\", \"completion\": \"y\"}\n");
    struct ot_data_fingerprint by_hand = ot_dataset_fingerprint(d);
    assert_memory_equal(&print, &by_hand, offsetof(struct ot_data_fingerprint, crc) + sizeof print.crc);
    assert_int_equal(ot_dataset_stats(d)->duplicates, 0);
    ot_dataset_close(d);
    put_text(f, text);
    f->config.dedup = true;
    f->config.max_rows = 3; /* duplicates do not count */
    check_rows(f, "<256>ab[c<257>]|<256>ab[d<257>]|<256>a[bc<257>]|");
}

/* Rows are equal by what is trained: after the cut, in other files, and as pieces of a document. */
static void test_equal_rows_of_sources(void **state) {
    struct data_fixture *f = *state;
    char one[512], text[512], tail[200];
    struct ot_dataset *d;
    memset(tail, 'e', sizeof tail);
    snprintf(text, sizeof text, "{\"text\": \"%.150s\"}\n{\"text\": \"%.151s\"}\n", tail, tail);
    put_data(f, "one.jsonl", text, strlen(text));
    snprintf(one, sizeof one, "%s", f->path);
    snprintf(text, sizeof text, "{\"text\": \"%.151s\"}\n{\"text\": \"%.152s\"}\n{\"text\": \"%.150s\"}\n",
             tail, tail, tail);
    put_data(f, "two.jsonl", text, strlen(text));
    const char *const paths[] = {one, f->path};
    f->config.dedup = true;
    check_ok(ot_dataset_open_sources(&f->config, paths, 2, &d));
    assert_int_equal(ot_dataset_documents(d), 3);
    assert_int_equal(ot_dataset_stats(d)->duplicates, 2);
    assert_int_equal(ot_dataset_stats(d)->split, 3);
    ot_dataset_close(d);
    snprintf(text, sizeof text,
             "{\"prompt\": \"1%.100s\", \"completion\": \"a\"}\n{\"prompt\": \"2%.100s\", \"completion\": "
             "\"a\"}\n",
             tail, tail);
    d = load_text(f, text);
    assert_int_equal(ot_dataset_documents(d), 1);
    assert_int_equal(ot_dataset_stats(d)->duplicates, 1);
    assert_int_equal(ot_dataset_stats(d)->truncated, 1);
    ot_dataset_close(d);
}

static void check_kept(struct data_fixture *f, const char *text, int64_t kept, int64_t duplicates) {
    struct ot_dataset *d = load_text(f, text);
    assert_int_equal(ot_dataset_documents(d), kept);
    assert_int_equal(ot_dataset_stats(d)->duplicates, duplicates);
    ot_dataset_close(d);
}

/* Both answers count, and for KTO the label. */
static void test_equal_preferences(void **state) {
    struct data_fixture *f = *state;
    f->config.dedup = true;
    f->config.objective = OT_OBJECTIVE_DPO;
    check_kept(f,
               "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n"
               "{\"prompt\": \"p\", \"chosen\": \"b\", \"rejected\": \"a\"}\n"
               "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"c\"}\n"
               "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n",
               3, 1);
    f->config.objective = OT_OBJECTIVE_KTO;
    check_kept(f,
               "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}\n"
               "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": false}\n"
               "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}\n",
               2, 1);
}

/* A row of a later batch equals rows of the first one. */
static void test_equal_rows_of_batches(void **state) {
    enum { ROWS = 5000, BYTES = 24 };
    struct data_fixture *f = *state;
    char *text = malloc(2 * ROWS * BYTES + 1);
    size_t at = 0;
    assert_non_null(text);
    for (int i = 0; i < 2 * ROWS; i++)
        at += (size_t)sprintf(text + at, "{\"text\": \"%d\"}\n", i % ROWS);
    put_data(f, "data.jsonl", text, at);
    free(text);
    f->config.dedup = true;
    struct ot_dataset *d = load_data(f);
    assert_int_equal(ot_dataset_documents(d), ROWS);
    assert_int_equal(ot_dataset_stats(d)->duplicates, ROWS);
    assert_string_equal(row_text(d, ROWS - 1), "<256>[4999<257>]");
    ot_dataset_close(d);
}

/* ---- the set ---- */

static void test_hashes(void **state) {
    static const uint32_t tokens[] = {1, 2, 3, 4, 5};
    struct ot_row_hash a = ot_row_hash(tokens, 4, 2, true), b;
    (void)state;
    b = ot_row_hash(tokens, 4, 2, true);
    assert_memory_equal(&a, &b, sizeof a);
    const struct ot_row_hash others[] = {ot_row_hash(tokens, 3, 2, true), ot_row_hash(tokens, 5, 2, true),
                                         ot_row_hash(tokens + 1, 4, 2, true), ot_row_hash(tokens, 4, 1, true),
                                         ot_row_hash(tokens, 4, 2, false)};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_true(others[i].half[0] != a.half[0]);
        assert_true(others[i].half[1] != a.half[1]);
    }
}

/* Hashes that differ in one half, and that want the same slot. */
static void test_set(void **state) {
    enum { MANY = 3000 };
    const struct ot_row_hash one = {{1, 0}}; /* nearly empty */
    struct ot_row_set set = {0};
    (void)state;
    assert_int_equal(ot_row_set_add(&set, &one), 1);
    assert_int_equal(ot_row_set_add(&set, &one), 0);
    for (int again = 0; again < 2; again++)
        for (uint64_t i = 0; i < MANY; i++) {
            const struct ot_row_hash low = {{i / 3, i}}, high = {{i << 40, 7}};
            if (i > 0)
                assert_int_equal(ot_row_set_add(&set, &low), again == 0);
            assert_int_equal(ot_row_set_add(&set, &high), again == 0);
        }
    assert_int_equal(ot_row_set_add(&set, &one), 0);
    assert_int_equal(set.n, 2 * MANY);
    assert_int_equal(set.capacity, 8192); /* 6,000 of 8,192 slots: at most 3/4 are in use */
    ot_row_set_free(&set);
    assert_null(set.slots);
}

int main(void) {
#define choice_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        choice_test(test_first_rows),
        choice_test(test_many_rows),
        choice_test(test_first_rows_of_sources),
        choice_test(test_equal_rows),
        choice_test(test_equal_rows_of_sources),
        choice_test(test_equal_preferences),
        choice_test(test_equal_rows_of_batches),
        cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
