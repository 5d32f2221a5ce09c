/* The cache of rows: it gives the dataset that the rows give, it is found only if nothing has changed, and a
 * damaged or unfinished one is made again. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/thread.h"
#include "tests/data/data_support.h"

enum { ROWS = 300 };

static char cache[600]; /* the directory */

static int open_all(void **state) {
    int rc = open_data_fixture(state);
    const struct data_fixture *f = *state;
    snprintf(cache, sizeof cache, "%s/cache", f->folder);
    return rc;
}

static void put_rows(struct data_fixture *f, char first) {
    char *text = malloc(ROWS * 128);
    size_t at = 0;
    assert_non_null(text);
    for (int i = 0; i < ROWS; i++)
        at += (size_t)sprintf(
            text + at, "{\"prompt\": \"%c%0*d\", \"completion\": \"%.*s\"}\n", first, 1 + i % 37, i,
            1 + i % 90,
            "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl");
    put_data(f, "data.jsonl", text, at);
    free(text);
}

static bool is_same_print(const struct ot_data_fingerprint *a, const struct ot_data_fingerprint *b) {
    return a->rows == b->rows && a->tokens == b->tokens && a->trained_tokens == b->trained_tokens &&
           a->crc == b->crc;
}

static void check_same(const struct ot_dataset *a, const struct ot_dataset *b) {
    struct ot_data_stats x = *ot_dataset_stats(a), y = *ot_dataset_stats(b);
    assert_int_equal(x.template_name != NULL, y.template_name != NULL);
    if (x.template_name)
        assert_string_equal(x.template_name, y.template_name);
    x.template_name = y.template_name = NULL;
    assert_memory_equal(&x, &y, sizeof x);
    struct ot_data_fingerprint p = ot_dataset_fingerprint(a), q = ot_dataset_fingerprint(b);
    assert_true(is_same_print(&p, &q));
    assert_int_equal(ot_dataset_sources(a), ot_dataset_sources(b));
    assert_int_equal(ot_dataset_source_begin(b, ot_dataset_sources(b)), ot_dataset_rows(b));
    for (int s = 0; s <= ot_dataset_sources(a); s++)
        assert_int_equal(ot_dataset_source_begin(a, s), ot_dataset_source_begin(b, s));
    assert_int_equal(ot_dataset_rows(a), ot_dataset_rows(b));
    for (int64_t i = 0; i < ot_dataset_rows(a); i++) {
        struct ot_row m = ot_dataset_row(a, i), n = ot_dataset_row(b, i);
        assert_true(m.n == n.n && m.trained == n.trained && m.second == n.second && m.good == n.good &&
                    m.document == n.document);
        assert_memory_equal(m.tokens, n.tokens, (size_t)m.n * sizeof *m.tokens);
        check_ok(ot_dataset_check_row(b, i));
    }
}

static struct ot_dataset *load_cached(struct data_fixture *f) {
    f->config.cache = (struct ot_row_cache_config){.dir = cache, .may_make = true};
    struct ot_dataset *d = load_data(f);
    f->config.cache = (struct ot_row_cache_config){0};
    return d;
}

/* Replaces the rows by others of the same size, and sets the file's time back. */
static void replace_unseen(struct data_fixture *f, char first) {
    struct stat before;
    assert_int_equal(stat(f->path, &before), 0);
    put_rows(f, first);
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, f->path, times, 0), 0);
}

static void test_a_cache_is_the_dataset(void **state) {
    struct data_fixture *f = *state;
    char name[700];
    put_rows(f, 'p');
    f->config.keeps_json = true;
    struct ot_dataset *memory = load_data(f), *made = load_cached(f), *found = load_cached(f);
    check_same(memory, made);
    check_same(memory, found);
    for (int64_t i = 0; i < ot_dataset_documents(memory); i++) {
        size_t a, b;
        const char *x = ot_dataset_json(memory, i, &a), *y = ot_dataset_json(found, i, &b);
        assert_int_equal(a, b);
        assert_memory_equal(x, y, a);
        assert_memory_equal(x, "{\"prompt\": \"p", 13);
        assert_memory_equal(x + a - 2, "\"}", 2);
    }
    assert_int_equal(count_caches(cache, name), 1);
    assert_true(ot_dataset_bytes(memory) > 4 * 64 * ROWS / 4);
    assert_int_equal(ot_dataset_bytes(found), 0); /* no memory of its own */
    assert_int_equal(ot_dataset_cached_bytes(found), (int64_t)ot_dataset_bytes(memory));
    assert_int_equal(ot_dataset_cached_bytes(memory), 0);
    assert_string_equal(ot_dataset_cache_dir(found), cache);
    ot_dataset_close(made);
    ot_dataset_close(found);
    replace_unseen(f, 'q'); /* no row is read again */
    found = load_cached(f);
    check_same(memory, found);
    ot_dataset_close(found);
    ot_dataset_close(memory);
}

static void test_all_kinds_of_rows(void **state) {
    struct data_fixture *f = *state;
    char name[700];
    put_text(f, "{\"prompt\": \"a\", \"completion\": \"bc\", \"label\": true}\n"
                "{\"prompt\": \"de\", \"completion\": \"fgh\", \"label\": false}\n"
                "{\"prompt\": \"ij\", \"completion\": \"k\", \"label\": true}\n");
    f->config.objective = OT_OBJECTIVE_KTO;
    struct ot_dataset *memory = load_data(f), *made = load_cached(f), *found = load_cached(f);
    assert_true(ot_dataset_row(found, 0).second > 0);
    check_same(memory, made);
    check_same(memory, found);
    ot_dataset_close(memory);
    ot_dataset_close(made);
    ot_dataset_close(found);
    put_text(f, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                "{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
    f->config.objective = OT_OBJECTIVE_SFT;
    f->config.chat.named = "chatml";
    memory = load_data(f), made = load_cached(f), found = load_cached(f);
    assert_string_equal(ot_dataset_stats(found)->template_name, "chatml");
    check_same(memory, made);
    check_same(memory, found);
    ot_dataset_close(memory);
    ot_dataset_close(made);
    ot_dataset_close(found);
    assert_int_equal(count_caches(cache, name), 2);
}

static void test_all_that_tokens_depend_on_is_in_the_key(void **state) {
    struct data_fixture *f = *state;
    char name[700];
    put_rows(f, 'p');
    const struct ot_dataset_config base = f->config;
    int n = 0;
#define WITH(change)                                                                                         \
    do {                                                                                                     \
        f->config = base;                                                                                    \
        f->config.change;                                                                                    \
        ot_dataset_close(load_cached(f));                                                                    \
        assert_int_equal(count_caches(cache, name), ++n);                                                    \
    } while (0)
    WITH(vocab_size = base.vocab_size);
    WITH(vocab_size = base.vocab_size + 1);
    WITH(seq_len = 60);
    WITH(no_eos = true);
    WITH(train_prompt = true);
    WITH(skip_bad = true);
    WITH(dedup = true);
    WITH(max_rows = 9);
    WITH(keeps_json = true);
    WITH(pairs = true);
    WITH(text_by = OT_TEXT_BY_LINE);
    WITH(columns = "prompt=prompt");
    WITH(prompt_format = "{prompt}!");
    WITH(chat.recorded = "chatml");
    WITH(chat.of_model = NULL);
    WITH(specials.add_bos = false);
    WITH(specials.bos_id = 255);
    WITH(specials.eos_ids[0] = 254);
#undef WITH
    f->config = base;
    ot_dataset_close(load_cached(f)); /* the first one */
    assert_int_equal(count_caches(cache, name), n);
}

static void test_changed_files_are_read_again(void **state) {
    struct data_fixture *f = *state;
    char first[720], second[720];
    put_rows(f, 'p');
    ot_dataset_close(load_cached(f));
    assert_int_equal(count_caches(cache, first), 1);
    put_rows(f, 'q'); /* the same size, another time */
    struct ot_dataset *memory = load_data(f), *cached = load_cached(f);
    check_same(memory, cached);
    ot_dataset_close(cached);
    assert_int_equal(count_caches(cache, second), 2);
    put_rows(f, 'r');
    f->config.cache = (struct ot_row_cache_config){.dir = cache, .may_make = true, .is_own = true};
    ot_dataset_close(load_data(f)); /* removes the stale ones */
    assert_int_equal(count_caches(cache, second), 1);
    assert_string_not_equal(first, second);
    strcat(first, ".lock");
    strcat(second, ".lock");
    assert_true(access(first, F_OK) < 0 && access(second, F_OK) == 0);
    ot_dataset_close(memory);
}

/* Each file of a directory counts. */
static void test_a_directory_is_all_its_files(void **state) {
    struct data_fixture *f = *state;
    char name[720], dir[600];
    snprintf(dir, sizeof dir, "%s/rows", f->folder);
    assert_int_equal(mkdir(dir, 0777), 0);
    static const char *const names[] = {"rows/a.jsonl", "rows/b.jsonl", "rows/c.jsonl"};
    put_data(f, names[0], "{\"text\": \"ab\"}\n", 15);
    for (int changed = 0; changed < 3; changed++) { /* a second file, a third one, another second one */
        put_data(f, names[changed == 1 ? 2 : 1],
                 changed == 2 ? "{\"text\": \"ef\"}\n" : "{\"text\": \"cd\"}\n", 15);
        f->config.path = dir;
        struct ot_dataset *memory = load_data(f), *made = load_cached(f);
        check_same(memory, made);
        ot_dataset_close(memory);
        ot_dataset_close(made);
        assert_int_equal(count_caches(cache, name), changed + 1);
    }
}

static void test_nothing_is_made_without_leave(void **state) {
    struct data_fixture *f = *state;
    char name[700];
    put_rows(f, 'p');
    f->config.cache = (struct ot_row_cache_config){.dir = cache};
    struct ot_dataset *memory = load_data(f);
    assert_null(ot_dataset_cache_dir(memory));
    assert_int_equal(count_caches(cache, name), 0);
    ot_dataset_close(load_cached(f));
    f->config.cache = (struct ot_row_cache_config){.dir = cache};
    struct ot_dataset *found = load_data(f); /* but one that is there is used */
    assert_non_null(ot_dataset_cache_dir(found));
    check_same(memory, found);
    ot_dataset_close(found);
    ot_dataset_close(memory);
}

static void test_damage_is_found(void **state) {
    struct data_fixture *f = *state;
    char dir[700], path[800];
    put_rows(f, 'p');
    struct ot_dataset *memory = load_data(f), *d;
    ot_dataset_close(load_cached(f));
    assert_int_equal(count_caches(cache, dir), 1);
    static const struct {
        const char *name;
        long at;
    } places[] = {{"head", 0}, {"head", 20}, {"head", -1}, {"head", -40},
                  {"sums", 0}, {"sums", -1}, {"key", 3}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        flip_bit(dir, places[i].name, places[i].at);
        d = load_cached(f);
        check_same(memory, d); /* made again */
        ot_dataset_close(d);
    }
    static const char *const cut[] = {"tokens", "rows", "sums", "head"};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, cut[i]);
        assert_int_equal(truncate(path, 10), 0);
        d = load_cached(f);
        check_same(memory, d);
        ot_dataset_close(d);
    }
    flip_bit(dir, "tokens", -3); /* the last row: found when it is used */
    d = load_cached(f);
    int64_t last = ot_dataset_rows(d) - 1;
    check_ok(ot_dataset_check_row(d, 0));
    check_fails(ot_dataset_check_row(d, last), OT_E_INPUT, "/tokens: damaged at row ");
    ot_dataset_close(d);
    flip_bit(dir, "rows", -5); /* so is the table */
    d = load_cached(f);
    check_ok(ot_dataset_check_row(d, 0));
    check_ok(ot_dataset_check_table(d, 0, 1));
    check_fails(ot_dataset_check_row(d, last), OT_E_INPUT, "/rows: damaged; remove the file");
    check_fails(ot_dataset_check_table(d, 0, last + 1), OT_E_INPUT, "/rows: damaged; remove the file");
    ot_dataset_close(d);
    snprintf(path, sizeof path, "%s/rows", dir);
    assert_int_equal(unlink(path), 0);
    d = load_cached(f);
    check_same(memory, d);
    ot_dataset_close(d);
    ot_dataset_close(memory);
}

static void test_damaged_json_is_found(void **state) {
    struct data_fixture *f = *state;
    char dir[700];
    put_rows(f, 'p');
    f->config.keeps_json = true;
    ot_dataset_close(load_cached(f));
    assert_int_equal(count_caches(cache, dir), 1);
    for (int i = 0; i < 2; i++) {
        struct ot_dataset *d = load_cached(f);
        const int64_t last = ot_dataset_documents(d) - 1;
        for (int64_t document = 0; document <= last; document++)
            check_ok(ot_dataset_check_json(d, document));
        ot_dataset_close(d);
        flip_bit(dir, i ? "ends" : "json", -3);
        d = load_cached(f);
        if (i == 0) /* the ends are one block */
            check_ok(ot_dataset_check_json(d, 0));
        check_fails(ot_dataset_check_json(d, last), OT_E_INPUT, i ? "/ends: damaged" : "/json: damaged");
        ot_dataset_close(d);
        flip_bit(dir, i ? "ends" : "json", -3);
    }
    f->config.keeps_json = false;
    struct ot_dataset *none = load_cached(f);
    check_ok(ot_dataset_check_json(none, 0));
    ot_dataset_close(none);
}

static void test_what_was_not_finished_is_made_again(void **state) {
    struct data_fixture *f = *state;
    char dir[700], partial[800];
    put_rows(f, 'p');
    ot_dataset_close(load_cached(f));
    assert_int_equal(count_caches(cache, dir), 1);
    snprintf(partial, sizeof partial, "%s.partial", dir);
    assert_int_equal(rename(dir, partial), 0);
    struct ot_dataset *memory = load_data(f), *d = load_cached(f);
    check_same(memory, d);
    assert_int_equal(access(partial, F_OK), -1);
    ot_dataset_close(d);
    ot_dataset_close(memory);
    put_text(f,
             "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": 1}\n"); /* an error while it is made */
    f->config.cache = (struct ot_row_cache_config){.dir = cache, .may_make = true};
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, "data.jsonl:2");
    assert_int_equal(count_caches(cache, dir), 1);
    int left = 0;
    DIR *all = opendir(cache);
    for (struct dirent *entry; (entry = readdir(all));)
        left += strstr(entry->d_name, ".partial") != NULL;
    closedir(all);
    assert_int_equal(left, 0);
}

struct opening {
    struct data_fixture *f;
    struct ot_dataset *d;
};

static int open_again(void *context) {
    struct opening *opening = context;
    return ot_dataset_open(&opening->f->config, &opening->d);
}

static void test_without_room_an_optional_cache_is_memory(void **state) {
    struct data_fixture *f = *state;
    struct opening opening = {f, NULL};
    put_rows(f, 'p');
    struct ot_dataset *memory = load_data(f);
    f->config.cache = (struct ot_row_cache_config){.dir = cache, .may_make = true};
    assert_int_equal(with_small_files(1 << 14, open_again, &opening), -OT_E_IO);
    f->config.cache.is_optional = true;
    check_ok(with_small_files(1 << 14, open_again, &opening));
    check_same(memory, opening.d);
    assert_null(ot_dataset_cache_dir(opening.d));
    ot_dataset_close(opening.d);
    f->config.cache.dir = "/proc/none"; /* no directory can be made there */
    check_ok(open_again(&opening));
    ot_dataset_close(opening.d);
    f->config.cache.is_optional = false;
    check_fails(open_again(&opening), OT_E_IO, "cannot make and lock");
    ot_dataset_close(memory);
}

/* Several processes, as the ranks of a host: one makes the cache, all have the same rows. */
static void test_processes_share_one_cache(void **state) {
    struct data_fixture *f = *state;
    char name[700];
    put_rows(f, 'p');
    struct ot_data_fingerprint print;
    struct ot_dataset *memory = load_data(f);
    print = ot_dataset_fingerprint(memory);
    f->config.pool = NULL; /* the threads of the pool are not in the children */
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child > 0)
            continue;
        struct ot_dataset *d;
        struct ot_pool *pool;
        f->config.cache = (struct ot_row_cache_config){.dir = cache, .may_make = true};
        if (ot_pool_open(1, "child", &pool) < 0)
            _exit(2);
        f->config.pool = pool;
        if (ot_dataset_open(&f->config, &d) < 0)
            _exit(3);
        struct ot_data_fingerprint mine = ot_dataset_fingerprint(d);
        _exit(!is_same_print(&mine, &print));
    }
    for (int i = 0; i < 3; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_caches(cache, name), 1);
    ot_dataset_close(memory);
}

#define CACHE_TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_data_fixture)

int main(void) {
    const struct CMUnitTest tests[] = {
        CACHE_TEST(test_a_cache_is_the_dataset),
        CACHE_TEST(test_all_kinds_of_rows),
        CACHE_TEST(test_all_that_tokens_depend_on_is_in_the_key),
        CACHE_TEST(test_changed_files_are_read_again),
        CACHE_TEST(test_a_directory_is_all_its_files),
        CACHE_TEST(test_nothing_is_made_without_leave),
        CACHE_TEST(test_damage_is_found),
        CACHE_TEST(test_damaged_json_is_found),
        CACHE_TEST(test_what_was_not_finished_is_made_again),
        CACHE_TEST(test_without_room_an_optional_cache_is_memory),
        CACHE_TEST(test_processes_share_one_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
