/* The packing and its epochs in a cache: a later start finds them and makes nothing, the order is that of a
 * packing in memory, and what is damaged or not finished is found or made again. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/hash.h"
#include "src/data/packing.h"
#include "tests/data/data_support.h"

enum { ROWS = 2000, EPOCHS = 3 };

static char cache[600], rows_dir[700]; /* the directory of caches, and that of the rows */
static struct ot_dataset *rows;

static int open_all(void **state) {
    static int lengths[ROWS];
    int rc = open_data_fixture(state);
    struct data_fixture *f = *state;
    for (int i = 0; i < ROWS; i++)
        lengths[i] = 3 + (int)(mix_bits((uint64_t)i) % 62);
    put_lengths(f, lengths, ROWS);
    snprintf(cache, sizeof cache, "%s/cache", f->folder);
    f->config.cache = (struct ot_row_cache_config){.dir = cache, .may_make = true};
    rows = load_data(f);
    assert_int_equal(count_caches(cache, rows_dir), 1);
    return rc;
}

static int close_all(void **state) {
    ot_dataset_close(rows);
    return close_data_fixture(state);
}

static struct ot_packing_config memory_config(void) {
    return (struct ot_packing_config){.dataset = rows, .seq_len = 64, .shuffle = true, .seed = 3};
}

static struct ot_packing_config cached_config(void) {
    struct ot_packing_config config = memory_config();
    config.cache = ot_dataset_keeps(rows);
    return config;
}

/* The checksum of the order of an epoch. Negative: an error. */
static int64_t take_print(struct ot_packing *p, int64_t epoch) {
    uint32_t crc = 0;
    OT_TRY(ot_packing_set_epoch(p, epoch));
    for (int64_t s = 0; s < ot_packing_sequences(p); s++) {
        int64_t n;
        OT_TRY(ot_packing_check(p, s));
        const uint32_t *list = ot_packing_sequence(p, s, &n);
        crc = ot_crc32(ot_crc32(crc, &n, sizeof n), list, (size_t)n * sizeof *list);
    }
    return crc;
}

/* The same of a packing that is opened and closed. */
static int64_t print_of(const struct ot_packing_config *config, int64_t epoch) {
    struct ot_packing *p;
    OT_TRY(ot_packing_open(config, &p));
    int64_t print = take_print(p, epoch);
    ot_packing_close(p);
    return print;
}

static void check_same(const struct ot_packing *a, const struct ot_packing *b) {
    assert_int_equal(ot_packing_sequences(a), ot_packing_sequences(b));
    assert_int_equal(ot_packing_rows(a), ot_packing_rows(b));
    assert_int_equal(ot_packing_tokens(a), ot_packing_tokens(b));
    assert_int_equal(ot_packing_trained_tokens(a), ot_packing_trained_tokens(b));
    assert_true(ot_packing_fill(a) == ot_packing_fill(b));
}

static void test_the_order_is_that_of_memory(void **state) {
    (void)state;
    bool held_out[ROWS];
    for (int i = 0; i < ROWS; i++)
        held_out[i] = i % 7 == 0;
    for (int kind = 0; kind < 8; kind++) {
        struct ot_packing_config config = memory_config();
        config.one_row = kind & 1;
        config.shuffle = kind & 2;
        config.held_out = kind & 4 ? held_out : NULL;
        config.key = kind & 4 ? "some" : NULL;
        struct ot_packing *memory, *kept;
        check_ok(ot_packing_open(&config, &memory));
        config.cache = ot_dataset_keeps(rows);
        for (int start = 0; start < 2; start++) {
            check_ok(ot_packing_open(&config, &kept));
            check_same(memory, kept);
            for (int64_t epoch = 0; epoch < EPOCHS; epoch++)
                assert_int_equal(take_print(memory, epoch), take_print(kept, epoch));
            assert_int_equal(ot_packing_bytes(kept), 0);
            ot_packing_close(kept);
        }
        assert_true(ot_packing_bytes(memory) > 16 * (size_t)ot_packing_rows(memory));
        ot_packing_close(memory);
    }
}

/* Files that are found are not made: their times stay. */
static void test_a_later_start_makes_nothing(void **state) {
    (void)state;
    char packing[700], epoch[700], other[700], path[800];
    struct ot_packing_config config = cached_config();
    struct stat before, after;
    int64_t print = print_of(&config, 1);
    assert_int_equal(count_caches(rows_dir, packing), 1);
    assert_int_equal(count_caches(packing, epoch), 1);
    snprintf(path, sizeof path, "%s/order", epoch);
    assert_int_equal(stat(path, &before), 0);
    uint16_t none[ROWS] = {0};
    config.copies = none; /* rows are not even counted: only the key says what the numbers are */
    assert_int_equal(print_of(&config, 1), print);
    config.copies = NULL;
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_true(after.st_mtim.tv_sec == before.st_mtim.tv_sec &&
                after.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    assert_int_not_equal(print_of(&config, 2), print); /* one epoch is kept, the last one */
    assert_int_equal(count_caches(packing, other), 1);
    assert_string_not_equal(other, epoch);
    assert_int_equal(print_of(&config, 1), print);
    config.cache.may_make = false;
    assert_int_equal(print_of(&config, 1), print);
    int64_t third = print_of(&config, 3);
    assert_int_equal(count_caches(packing, other), 1);
    assert_string_equal(other, epoch);
    config.cache.may_make = true;
    assert_int_equal(print_of(&config, 3), third);
}

static void test_all_that_the_order_depends_on_is_in_the_key(void **state) {
    (void)state;
    char name[700];
    int n = 0;
#define WITH(change)                                                                                         \
    do {                                                                                                     \
        struct ot_packing_config config = cached_config();                                                   \
        config.change;                                                                                       \
        const struct ot_packing_config memory = {.dataset = rows,                                            \
                                                 .seq_len = config.seq_len,                                  \
                                                 .one_row = config.one_row,                                  \
                                                 .shuffle = config.shuffle,                                  \
                                                 .seed = config.seed};                                       \
        assert_int_equal(print_of(&config, 0), print_of(&memory, 0));                                        \
        assert_int_equal(count_caches(rows_dir, name), ++n);                                                 \
    } while (0)
    WITH(seed = 3);
    WITH(seed = 4);
    WITH(seq_len = 65);
    WITH(one_row = true);
    WITH(shuffle = false);
    WITH(takes_held_out = true);
    WITH(key = "a mixture");
#undef WITH
}

static void test_damage_is_found_or_made_again(void **state) {
    (void)state;
    char packing[700], epoch[700], path[800];
    const struct ot_packing_config config = cached_config();
    int64_t print = print_of(&config, 0), next = print_of(&config, 1);
    assert_int_equal(print_of(&config, 0), print);
    assert_int_equal(count_caches(rows_dir, packing), 1);
    static const char *const whole[] = {"key", "head", "sums"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(count_caches(packing, epoch), 1);
        flip_bit(epoch, whole[i], 0);
        assert_int_equal(print_of(&config, 0), print);
        flip_bit(packing, whole[i], -2);
        assert_int_equal(print_of(&config, 0), print);
    }
    assert_int_equal(count_caches(packing, epoch), 1);
    static const struct {
        const char *name;
        bool of_epoch, when_drawn; /* found when the next epoch is drawn */
    } arrays[] = {{"order", true, false},  {"packed", true, false}, {"first", false, false},
                  {"ranked", false, true}, {"placed", false, true}, {"groups", false, true}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const char *dir = arrays[i].of_epoch ? epoch : packing;
        snprintf(path, sizeof path, "/%s: damaged; remove the file", arrays[i].name);
        flip_bit(dir, arrays[i].name, arrays[i].when_drawn ? 40 : -6);
        if (arrays[i].when_drawn)
            assert_int_equal(print_of(&config, 0), print);
        check_fails((int)print_of(&config, arrays[i].when_drawn), OT_E_INPUT, path);
        snprintf(path, sizeof path, "%s/%s", dir, arrays[i].name);
        assert_int_equal(i % 2 ? truncate(path, 10) : unlink(path), 0);
        assert_int_equal(print_of(&config, 1), next);
        assert_int_equal(print_of(&config, 0), print);
        assert_int_equal(count_caches(packing, epoch), 1);
    }
}

static void test_the_table_is_checked_before_it_is_used(void **state) {
    struct data_fixture *f = *state;
    const struct ot_packing_config config = cached_config();
    flip_bit(rows_dir, "rows", -20);
    ot_dataset_close(rows);
    rows = load_data(f);
    struct ot_packing_config again = config;
    again.dataset = rows;
    again.cache = ot_dataset_keeps(rows);
    check_fails((int)print_of(&again, 0), OT_E_INPUT, "/rows: damaged; remove the file");
}

/* Draws the epoch in a process that ends by a signal when it makes a file larger than 4 KiB. */
static void draw_and_die(const struct ot_packing_config *config, bool opens_before, int64_t epoch) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct ot_packing *p;
        if (opens_before && ot_packing_open(config, &p) < 0)
            _exit(2);
        signal(SIGXFSZ, SIG_DFL);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, RLIM_INFINITY});
        _exit(opens_before ? ot_packing_set_epoch(p, epoch) < 0 : print_of(config, epoch) < 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
}

static int count_partial(const char *in) {
    int n = 0;
    DIR *dir = opendir(in);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strstr(entry->d_name, ".partial") != NULL;
    closedir(dir);
    return n;
}

/* A process that is killed leaves what the next one makes anew. */
static void test_what_was_not_finished_is_made_again(void **state) {
    (void)state;
    char packing[700], epoch[700];
    const struct ot_packing_config config = cached_config(), plain = memory_config();
    draw_and_die(&config, false, 0);
    assert_int_equal(count_caches(rows_dir, packing), 0);
    assert_int_equal(count_partial(rows_dir), 1);
    assert_int_equal(print_of(&config, 0), print_of(&plain, 0));
    assert_int_equal(count_caches(rows_dir, packing), 1);
    assert_int_equal(count_partial(rows_dir), 0);
    draw_and_die(&config, true, 5);
    assert_int_equal(count_caches(packing, epoch), 1); /* that of epoch 0 */
    assert_int_equal(count_partial(packing), 1);
    assert_int_equal(print_of(&config, 0), print_of(&plain, 0));
    assert_int_equal(print_of(&config, 5), print_of(&plain, 5));
    assert_int_equal(count_caches(packing, epoch), 1);
    assert_int_equal(count_partial(packing), 0);
}

struct printing {
    struct ot_packing_config config;
    int64_t print;
};

static int print_again(void *context) {
    struct printing *printing = context;
    printing->print = print_of(&printing->config, 0);
    return printing->print < 0 ? (int)printing->print : 0;
}

static void test_a_full_disk(void **state) {
    (void)state;
    char name[700];
    const struct ot_packing_config plain = memory_config();
    const int64_t print = print_of(&plain, 0);
    struct printing printing = {cached_config(), 0};
    assert_int_equal(with_small_files(4096, print_again, &printing), -OT_E_IO);
    assert_int_equal(count_caches(rows_dir, name), 0);
    printing.config.cache.is_optional = true;
    check_ok(with_small_files(4096, print_again, &printing));
    assert_int_equal(printing.print, print);
    assert_int_equal(count_caches(rows_dir, name), 0);
    check_ok(print_again(&printing)); /* now there is room */
    assert_int_equal(printing.print, print);
    assert_int_equal(count_caches(rows_dir, name), 1);
}

static void test_processes_share_one_order(void **state) {
    (void)state;
    char packing[700], epoch[700];
    const struct ot_packing_config plain = memory_config(), config = cached_config();
    const int64_t first = print_of(&plain, 0), second = print_of(&plain, 1);
    for (int i = 0; i < 4; i++) {
        if (fork() > 0)
            continue;
        struct ot_packing *p;
        if (ot_packing_open(&config, &p) < 0)
            _exit(2);
        _exit(take_print(p, 0) != first || take_print(p, 1) != second);
    }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_caches(rows_dir, packing), 1);
    assert_int_equal(count_caches(packing, epoch), 1);
}

/* The order goes with its rows: a cache that is made again, or removed as stale, leaves none. */
static void test_stale_rows_take_their_order_along(void **state) {
    struct data_fixture *f = *state;
    char name[700], packing[700], epoch[700];
    const struct ot_packing_config config = cached_config();
    print_of(&config, 0);
    assert_int_equal(count_caches(rows_dir, packing), 1);
    assert_int_equal(count_caches(packing, epoch), 1);
    flip_bit(rows_dir, "head", 9);
    ot_dataset_close(rows);
    rows = load_data(f);
    assert_int_equal(count_caches(cache, name), 1);
    assert_int_equal(count_caches(rows_dir, packing), 0);
    struct ot_packing_config again = memory_config();
    again.cache = ot_dataset_keeps(rows);
    print_of(&again, 0);
    assert_int_equal(count_caches(rows_dir, packing), 1);
    strcat(packing, ".partial"); /* that of a process that was killed */
    assert_int_equal(mkdir(packing, 0777), 0);
    write_file(packing, "placed", "x", 1);
    put_text(f, "{\"text\": \"other rows\"}\n");
    f->config.cache.is_own = true;
    struct ot_dataset *other = load_data(f);
    assert_int_equal(count_caches(cache, name), 1);
    assert_string_not_equal(name, rows_dir);
    assert_true(access(rows_dir, F_OK) < 0);
    ot_dataset_close(other);
}

#define PACKING_TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void) {
    const struct CMUnitTest tests[] = {
        PACKING_TEST(test_the_order_is_that_of_memory),
        PACKING_TEST(test_a_later_start_makes_nothing),
        PACKING_TEST(test_all_that_the_order_depends_on_is_in_the_key),
        PACKING_TEST(test_damage_is_found_or_made_again),
        PACKING_TEST(test_the_table_is_checked_before_it_is_used),
        PACKING_TEST(test_what_was_not_finished_is_made_again),
        PACKING_TEST(test_a_full_disk),
        PACKING_TEST(test_processes_share_one_order),
        PACKING_TEST(test_stale_rows_take_their_order_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
