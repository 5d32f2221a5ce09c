/* Several sources: their rows follow each other, each file has its own kind, and shares decide how often
 * rows are trained. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/data/mixture.h"
#include "tests/data/data_support.h"

enum { SOURCES = 3, MOST_ROWS = 400 };

struct sources {
    char paths[SOURCES][512];
    const char *list[SOURCES];
    struct ot_dataset *d;
};

/* A file of texts of `length` letters; a text longer than seq_len becomes several pieces. */
static void put_texts(struct data_fixture *f, const char *name, int n, int length) {
    char *text = malloc((size_t)n * (size_t)(length + 16) + 1);
    size_t at = 0;
    assert_non_null(text);
    for (int i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "{\"text\": \"%0*d\"}\n", length, i);
    put_data(f, name, text, at);
    free(text);
}

/* a: 40 short texts. b: 100 texts of about two pieces. c: a table of 10 rows, of another kind. */
static void open_sources(struct data_fixture *f, struct sources *s) {
    char table[1024] = "prompt,completion\n";
    for (int i = 0; i < 10; i++)
        strcat(table, "question,answer\n");
    put_texts(f, "a.jsonl", 40, 20);
    strcpy(s->paths[0], f->path);
    put_texts(f, "b.jsonl", 100, 100);
    strcpy(s->paths[1], f->path);
    put_data(f, "c.csv", table, strlen(table));
    strcpy(s->paths[2], f->path);
    for (int i = 0; i < SOURCES; i++)
        s->list[i] = s->paths[i];
    check_ok(ot_dataset_open_sources(&f->config, s->list, SOURCES, &s->d));
}

static void test_sources(void **state) {
    struct sources s;
    open_sources(*state, &s);
    const struct ot_data_stats *stats = ot_dataset_stats(s.d);
    assert_int_equal(stats->files, 3);
    assert_int_equal(stats->kept, 150);
    assert_int_equal(stats->kind, OT_ROW_TEXT);
    assert_true(stats->several_kinds);
    assert_int_equal(ot_dataset_sources(s.d), 3);
    assert_int_equal(ot_dataset_source_begin(s.d, 0), 0);
    assert_int_equal(ot_dataset_source_begin(s.d, 1), 40);
    assert_int_equal(ot_dataset_source_begin(s.d, 2), 240);
    assert_int_equal(ot_dataset_source_begin(s.d, 3), ot_dataset_rows(s.d));
    assert_int_equal(ot_dataset_row(s.d, 40).document, 40);
    assert_int_equal(ot_dataset_row(s.d, 240).document, 140);
    assert_string_equal(row_text(s.d, 240), "<256>question[answer<257>]");
    assert_string_equal(ot_dataset_file(s.d, 2), s.paths[2]);
    ot_dataset_close(s.d);
}

/* A bad row is counted with the file that has it; a directory gives the same rows as its files. */
static void test_directory(void **state) {
    struct data_fixture *f = *state;
    struct ot_dataset *d;
    char folder[512];
    put_data(f, "x.jsonl", "{\"text\": \"a\"}\n", 14);
    put_data(f, "y.jsonl", "{\"text\": \"b\"}\nbad\n{\"text\": \"c\"}\n", 33);
    snprintf(folder, sizeof folder, "%s/[xy].jsonl", f->folder);
    f->config.path = folder;
    f->config.skip_bad = true;
    check_ok(ot_dataset_open(&f->config, &d));
    assert_int_equal(ot_dataset_stats(d)->files, 2);
    assert_int_equal(ot_dataset_stats(d)->kept, 3);
    assert_false(ot_dataset_stats(d)->several_kinds);
    assert_int_equal(ot_dataset_stats(d)->first_bad.file, 1);
    assert_int_equal(ot_dataset_stats(d)->first_bad.line, 2);
    ot_dataset_close(d);
    f->config.skip_bad = false;
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, "/y.jsonl:2: ");
    snprintf(folder, sizeof folder, "%s/none*", f->folder);
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, "no file matches this pattern");
    f->config.path = f->path;
}

struct mixed {
    uint16_t copies[MOST_ROWS];
    struct ot_mixture_part parts[SOURCES];
};

static int mix(const struct sources *s, const double shares[SOURCES], bool by_tokens, const bool *held_out,
               uint64_t seed, struct mixed *out) {
    struct ot_mixture_source sources[SOURCES];
    for (int i = 0; i < SOURCES; i++)
        sources[i] = (struct ot_mixture_source){.path = (char *)s->list[i], .share = shares[i]};
    const struct ot_mixture_config config = {
        .dataset = s->d, .sources = sources, .held_out = held_out, .by_tokens = by_tokens, .seed = seed};
    memset(out, 0, sizeof *out);
    int rc = ot_mixture_make(&config, out->copies, out->parts);
    assert_int_equal(out->copies[ot_dataset_rows(s->d)], 0); /* past the last row */
    return rc;
}

/* What the copies say of a source must be what its part says. Pieces of a document have equal copies. */
static void check_part(const struct sources *s, const struct mixed *m, int source, int64_t unique,
                       int64_t trained) {
    int64_t documents = 0, copies = 0, last = -1;
    for (int64_t i = ot_dataset_source_begin(s->d, source); i < ot_dataset_source_begin(s->d, source + 1);
         i++) {
        struct ot_row row = ot_dataset_row(s->d, i);
        if (row.document == last) {
            assert_int_equal(m->copies[i], m->copies[i - 1]);
            continue;
        }
        last = row.document;
        documents += m->copies[i] > 0;
        copies += m->copies[i];
    }
    assert_int_equal(documents, unique);
    assert_int_equal(copies, trained);
    assert_int_equal(m->parts[source].unique, unique);
    assert_int_equal(m->parts[source].trained, trained);
}

static void test_shares(void **state) {
    struct sources s;
    open_sources(*state, &s);
    struct mixed m, again, other;
    check_ok(mix(&s, (double[]){0.5, 0.3, 0.2}, false, NULL, 1, &m)); /* of 150 rows: 75, 45 and 30 */
    check_part(&s, &m, 0, 40, 75);
    check_part(&s, &m, 1, 45, 45);
    check_part(&s, &m, 2, 10, 30);
    assert_int_equal(m.parts[1].documents, 100);
    assert_true(fabs(m.parts[0].share - 0.5) < 1e-12);
    check_ok(mix(&s, (double[]){5, 3, 2}, false, NULL, 1, &again)); /* shares are relative */
    assert_memory_equal(m.copies, again.copies, sizeof m.copies);
    check_ok(mix(&s, (double[]){5, 3, 2}, false, NULL, 2, &other));
    assert_memory_not_equal(m.copies, other.copies, sizeof m.copies);
    check_part(&s, &other, 1, 45, 45);
    ot_dataset_close(s.d);
}

static void test_shares_of_tokens(void **state) {
    struct sources s;
    open_sources(*state, &s);
    struct mixed m;
    int64_t all = ot_dataset_stats(s.d)->tokens, tokens = 0;
    check_ok(mix(&s, (double[]){1, 1, 2}, true, NULL, 1, &m));
    for (int64_t i = 0; i < 40; i++)
        tokens += m.copies[i] * ot_dataset_row(s.d, i).n;
    assert_in_range(tokens, all / 4 - 11, all / 4 + 11); /* within half a row of 22 tokens */
    ot_dataset_close(s.d);
}

/* Held-out rows are not trained, and do not count as what a source has. */
static void test_held_out(void **state) {
    struct sources s;
    open_sources(*state, &s);
    struct mixed m;
    bool held_out[MOST_ROWS] = {false};
    for (int i = 0; i < 20; i++)
        held_out[i] = true;
    check_ok(mix(&s, (double[]){40, 80, 10}, false, held_out, 1, &m)); /* of 130 rows */
    check_part(&s, &m, 0, 20, 40);
    check_part(&s, &m, 1, 80, 80);
    check_part(&s, &m, 2, 10, 10);
    for (int i = 0; i < 40; i++)
        assert_int_equal(m.copies[i], i < 20 ? 0 : 2);
    for (int i = 20; i < 40; i++)
        held_out[i] = true;
    check_fails(mix(&s, (double[]){1, 1, 1}, false, held_out, 1, &m), OT_E_INPUT,
                "a.jsonl: no row of it is left");
    memset(held_out, 0, sizeof held_out);
    memset(held_out + 241, 1, 9); /* one row is left of c: 141 rows, almost all of them c */
    check_ok(mix(&s, (double[]){1, 1, 1e5}, false, held_out, 1, &m));
    check_part(&s, &m, 2, 1, 141);
    ot_dataset_close(s.d);
}

/* A share cannot repeat a row without end. */
static void test_too_many_copies(void **state) {
    struct data_fixture *f = *state;
    struct sources s = {0};
    put_texts(f, "a.jsonl", 1200, 2);
    strcpy(s.paths[0], f->path);
    put_texts(f, "b.jsonl", 1, 2);
    const char *list[] = {s.paths[0], f->path};
    check_ok(ot_dataset_open_sources(&f->config, list, 2, &s.d));
    struct ot_mixture_source sources[] = {{.path = s.paths[0], .share = 1}, {.path = f->path, .share = 4}};
    const struct ot_mixture_config config = {.dataset = s.d, .sources = sources, .seed = 1};
    uint16_t copies[1201];
    struct ot_mixture_part parts[2];
    check_ok(ot_mixture_make(&config, copies, parts)); /* 961 times */
    assert_int_equal(copies[1200], 961);
    sources[1].share = 6;
    check_fails(
        ot_mixture_make(&config, copies, parts), OT_E_USAGE,
        "b.jsonl:6: this share would train each of its 1 rows 1029 times an epoch; the limit is 1000");
    ot_dataset_close(s.d);
}

static void test_parse(void **state) {
    struct data_fixture *f = *state;
    struct ot_mixture_source source;
    static const struct {
        const char *text, *path;
        double share;
    } cases[] = {{"a.jsonl", "a.jsonl", 0},
                 {"a.jsonl:0.7", "a.jsonl", 0.7},
                 {"a:b:3", "a:b", 3},
                 {"a.jsonl:", "a.jsonl:", 0},
                 {"a:x", "a:x", 0},
                 {"a:1x", "a:1x", 0},
                 {"hf:data/a", "hf:data/a", 0},
                 {"-:0.5", "-", 0.5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_ok(ot_mixture_parse(cases[i].text, &source));
        assert_string_equal(source.path, cases[i].path);
        assert_true(source.share == cases[i].share);
        free(source.path);
    }
    check_fails(ot_mixture_parse("a:0", &source), OT_E_USAGE, "--data a:0: a share must be above 0");
    check_fails(ot_mixture_parse("a:-1", &source), OT_E_USAGE, "a share must be above 0");
    check_fails(ot_mixture_parse("a:nan", &source), OT_E_USAGE, "a share must be above 0");
    check_fails(ot_mixture_parse("a:inf", &source), OT_E_USAGE, "a share must be above 0");
    put_data(f, "x:0.5", "{}", 2); /* exists as it is */
    check_ok(ot_mixture_parse(f->path, &source));
    assert_string_equal(source.path, f->path);
    assert_true(source.share == 0);
    free(source.path);
}

int main(void) {
#define mixture_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        mixture_test(test_sources),          mixture_test(test_directory), mixture_test(test_shares),
        mixture_test(test_shares_of_tokens), mixture_test(test_held_out),  mixture_test(test_parse),
        mixture_test(test_too_many_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
