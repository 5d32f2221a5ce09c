/* Shuffling in blocks: the order is that of the plain loop, whatever the blocks. */
#include "src/base/random.h"
#include "src/data/shuffle.h"
#include "tests/data/data_support.h"

enum { MOST = 3000 };

/* The loop of Fisher and Yates, as short as it can be. */
static void shuffle_plainly(const struct ot_shuffle *how, uint32_t *items, uint32_t n) {
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)ot_random_below(how->seed, how->stream, how->first + i - 1, i);
        uint32_t item = items[i - 1];
        items[i - 1] = items[k];
        items[k] = item;
    }
}

static void check_shuffle(const struct ot_shuffle *how, uint32_t n) {
    uint32_t plain[MOST + 1], blocks[MOST + 1];
    for (uint32_t i = 0; i <= n; i++)
        plain[i] = blocks[i] = 7 * i + 1;
    shuffle_plainly(how, plain, n);
    check_ok(ot_shuffle(how, blocks, n));
    assert_memory_equal(plain, blocks, (n + 1) * sizeof *plain); /* and the item behind them */
}

static void test_blocks_keep_the_order(void **state) {
    const struct data_fixture *f = *state;
    static const uint32_t sizes[] = {0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 100, 255, 256, 257};
    static const uint32_t blocks[] = {1, 2, 3, 16, 100, 1000};
    for (uint64_t seed = 0; seed < 3; seed++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t j = 0; j < sizeof blocks / sizeof *blocks; j++)
                check_shuffle(&(struct ot_shuffle){.seed = seed,
                                                   .stream = 5 + seed,
                                                   .first = 1000 * seed,
                                                   .scratch = f->folder,
                                                   .block = blocks[j]},
                              sizes[i]);
    check_shuffle(&(struct ot_shuffle){.seed = 9, .scratch = f->folder, .block = 128}, MOST);
    check_shuffle(&(struct ot_shuffle){.seed = 9, .block = 128}, MOST); /* without lists */
}

static uint32_t many[MOST];

static int shuffle_many(void *how) {
    return ot_shuffle(how, many, MOST);
}

static void test_lists_need_a_disk(void **state) {
    const struct data_fixture *f = *state;
    struct ot_shuffle how = {.scratch = "/proc/none", .block = 100};
    check_fails(shuffle_many(&how), OT_E_IO, "/proc/none");
    check_ok(ot_shuffle(&how, many, 100)); /* one block needs none */
    how.scratch = f->folder;
    assert_int_equal(with_small_files(1 << 13, shuffle_many, &how), -OT_E_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_blocks_keep_the_order, open_data_fixture, close_data_fixture),
        cmocka_unit_test_setup_teardown(test_lists_need_a_disk, open_data_fixture, close_data_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
