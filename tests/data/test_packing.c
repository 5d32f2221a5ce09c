/* Packing: every row exactly once an epoch, no sequence too long, few sequences not full, and an order that
 * depends on the seed and the epoch alone. */
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "src/data/packing.h"
#include "tests/data/data_support.h"

enum { ROWS = 1500, SEQ_LEN = 256 };

/* Lengths like those of text-to-SQL data: most rows short, some as long as a sequence. */
static struct ot_dataset *load_mixture(struct data_fixture *f, uint64_t seed) {
    static int lengths[ROWS];
    for (int i = 0; i < ROWS; i++) {
        double u = ot_random_unit(seed, ot_random_stream(OT_RANDOM_TEST, 0, 0), (uint64_t)i);
        lengths[i] = 3 + (int)(u * u * (SEQ_LEN - 3) + 0.5);
    }
    f->config.seq_len = SEQ_LEN;
    put_lengths(f, lengths, ROWS);
    return load_data(f);
}

static struct ot_packing *open_packing(const struct ot_packing_config *config) {
    struct ot_packing *p;
    check_ok(ot_packing_open(config, &p));
    check_ok(ot_packing_set_epoch(p, 0));
    return p;
}

/* Every row appears as often as `copies` says; NULL: once. No sequence is longer than seq_len. */
static void check_epoch(const struct ot_packing *p, const struct ot_dataset *d, const uint16_t *copies) {
    uint16_t seen[ROWS] = {0};
    int64_t rows = 0, tokens = 0, trained = 0;
    for (int64_t s = 0; s < ot_packing_sequences(p); s++) {
        int64_t n, length = 0;
        const uint32_t *list = ot_packing_sequence(p, s, &n);
        assert_true(n > 0);
        for (int64_t i = 0; i < n; i++) {
            struct ot_row row = ot_dataset_row(d, list[i]);
            seen[list[i]]++;
            length += row.n;
            trained += row.trained;
        }
        assert_in_range(length, 1, SEQ_LEN);
        rows += n;
        tokens += length;
    }
    int64_t wanted = 0;
    for (int64_t i = 0; i < ot_dataset_rows(d); i++) {
        assert_int_equal(seen[i], copies ? copies[i] : 1);
        wanted += seen[i];
    }
    assert_int_equal(rows, wanted);
    assert_int_equal(rows, ot_packing_rows(p));
    assert_int_equal(tokens, ot_packing_tokens(p));
    assert_int_equal(trained, ot_packing_trained_tokens(p));
}

/* Lists the order of an epoch as one array of row numbers, with -1 between sequences. */
static int64_t list_epoch(const struct ot_packing *p, int64_t *out) {
    int64_t at = 0;
    for (int64_t s = 0; s < ot_packing_sequences(p); s++) {
        int64_t n;
        const uint32_t *rows = ot_packing_sequence(p, s, &n);
        for (int64_t i = 0; i < n; i++)
            out[at++] = rows[i];
        out[at++] = -1;
    }
    return at;
}

static void test_each_row_once(void **state) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct ot_dataset *d = load_mixture(*state, seed);
        for (int one_row = 0; one_row < 2; one_row++) {
            struct ot_packing *p = open_packing(&(struct ot_packing_config){
                .dataset = d, .seq_len = SEQ_LEN, .one_row = one_row, .shuffle = true, .seed = seed});
            int64_t sequences = ot_packing_sequences(p);
            for (int epoch = 0; epoch < 3; epoch++) {
                check_ok(ot_packing_set_epoch(p, epoch));
                check_epoch(p, d, NULL);
                /* So the number of steps is known before the epoch. */
                assert_int_equal(ot_packing_sequences(p), sequences);
            }
            assert_true(one_row ? sequences == ROWS : ot_packing_fill(p) > 0.99);
            double places = (double)(sequences * SEQ_LEN);
            assert_true(ot_packing_fill(p) == (double)ot_packing_tokens(p) / places);
            ot_packing_close(p);
        }
        ot_dataset_close(d);
    }
}

static void test_order(void **state) {
    static int64_t first[2 * ROWS], other[2 * ROWS];
    struct ot_dataset *d = load_mixture(*state, 1);
    struct ot_packing_config config = {.dataset = d, .seq_len = SEQ_LEN, .shuffle = true, .seed = 5};
    struct ot_packing *p = open_packing(&config), *q = open_packing(&config);
    check_ok(ot_packing_set_epoch(p, 2));
    int64_t n = list_epoch(p, first);
    check_ok(ot_packing_set_epoch(q, 7)); /* the position before does not matter */
    assert_int_equal(list_epoch(q, other), n);
    assert_memory_not_equal(first, other, (size_t)n * sizeof *first);
    check_ok(ot_packing_set_epoch(q, 2));
    assert_int_equal(list_epoch(q, other), n);
    assert_memory_equal(first, other, (size_t)n * sizeof *first);
    ot_packing_close(q);
    config.seed = 6;
    q = open_packing(&config);
    check_ok(ot_packing_set_epoch(q, 2));
    list_epoch(q, other);
    assert_memory_not_equal(first, other, (size_t)n * sizeof *first);
    ot_packing_close(q);
    ot_packing_close(p);
    ot_dataset_close(d);
}

/* ---- the order that every run has had ---- */

enum { MOST_PACKED = 3 * ROWS };

struct plain { /* a packing, written as plainly as can be; ranks: of rows by falling length */
    uint32_t rows[MOST_PACKED], sequence_of[MOST_PACKED], order[MOST_PACKED];
    uint32_t n, n_sequences;
    int left[SEQ_LEN + 1], first[SEQ_LEN + 1]; /* by length */
};

static int plain_longest(const struct plain *p, int limit) {
    while (limit > 0 && p->left[limit] == 0)
        limit--;
    return limit;
}

static int plain_choice(const struct plain *p, int room) {
    int longest = plain_longest(p, room), a = plain_longest(p, room - 1);
    for (int tries = 0; tries < 256 && longest < room && 2 * a >= room; tries++) {
        if (p->left[room - a] > (2 * a == room))
            return a;
        a = plain_longest(p, a - 1);
    }
    return longest;
}

static void plain_pack(struct plain *p, const struct ot_packing_config *c) {
    *p = (struct plain){0};
    for (int length = SEQ_LEN; length > 0; length--) {
        p->first[length] = (int)p->n;
        for (int64_t i = 0; i < ot_dataset_rows(c->dataset); i++)
            for (int copy = 0; ot_dataset_row(c->dataset, i).n == length && copy < c->copies[i]; copy++) {
                p->rows[p->n++] = (uint32_t)i;
                p->left[length]++;
            }
    }
    for (; plain_longest(p, SEQ_LEN) > 0; p->n_sequences++)
        for (int room = SEQ_LEN, length; (length = plain_choice(p, room)) > 0; room -= length) {
            p->left[length]--;
            p->sequence_of[p->first[length]++] = p->n_sequences;
        }
}

static void plain_shuffle(uint32_t *items, uint32_t n, uint64_t seed, int64_t epoch, uint64_t what,
                          uint64_t first) {
    uint64_t stream = ot_random_stream(OT_RANDOM_SHUFFLE, (uint64_t)epoch, what);
    for (uint32_t i = n; i > 1; i--) {
        uint64_t k = ot_random_below(seed, stream, first + i - 1, i);
        uint32_t item = items[i - 1];
        items[i - 1] = items[k];
        items[k] = item;
    }
}

static int64_t plain_epoch(struct plain *p, const struct ot_packing_config *c, int64_t epoch, int64_t *out) {
    int64_t at = 0;
    plain_pack(p, c);
    for (uint32_t i = 0, n; i < p->n; i += n) {
        int64_t length = ot_dataset_row(c->dataset, p->rows[i]).n;
        for (n = 1; i + n < p->n && ot_dataset_row(c->dataset, p->rows[i + n]).n == length;)
            n++;
        plain_shuffle(p->rows + i, n, c->seed, epoch, 0, i);
    }
    for (uint32_t s = 0; s < p->n_sequences; s++)
        p->order[s] = s;
    plain_shuffle(p->order, p->n_sequences, c->seed, epoch, 1, 0);
    for (uint32_t s = 0; s < p->n_sequences; s++) {
        for (uint32_t i = 0; i < p->n; i++)
            if (p->sequence_of[i] == p->order[s])
                out[at++] = p->rows[i];
        out[at++] = -1;
    }
    return at;
}

static void test_the_order_is_that_of_every_version(void **state) {
    static int64_t wanted[2 * MOST_PACKED], got[2 * MOST_PACKED];
    static struct plain plain;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct ot_dataset *d = load_mixture(*state, seed);
        uint16_t copies[ROWS];
        for (int i = 0; i < ROWS; i++)
            copies[i] = (uint16_t)(seed == 1 ? 1 : mix_bits((uint64_t)i + seed) % 4);
        struct ot_packing_config config = {
            .dataset = d, .copies = copies, .seq_len = SEQ_LEN, .shuffle = true, .seed = 7 * seed};
        struct ot_packing *p = open_packing(&config);
        for (int64_t epoch = 0; epoch < 4; epoch += 3) {
            check_ok(ot_packing_set_epoch(p, epoch));
            int64_t n = plain_epoch(&plain, &config, epoch, wanted);
            assert_int_equal(list_epoch(p, got), n);
            assert_memory_equal(wanted, got, (size_t)n * sizeof *got);
        }
        ot_packing_close(p);
        ot_dataset_close(d);
    }
}

/* A row shares its sequence with other rows in another epoch: the rows are packed anew. */
static void test_company_changes(void **state) {
    static int64_t company[ROWS];
    struct ot_dataset *d = load_mixture(*state, 1);
    struct ot_packing *p = open_packing(
        &(struct ot_packing_config){.dataset = d, .seq_len = SEQ_LEN, .shuffle = true, .seed = 1});
    int changed = 0, shared = 0;
    for (int epoch = 0; epoch < 2; epoch++) {
        check_ok(ot_packing_set_epoch(p, epoch));
        for (int64_t s = 0; s < ot_packing_sequences(p); s++) {
            int64_t n;
            const uint32_t *rows = ot_packing_sequence(p, s, &n);
            for (int64_t i = 0; i < n && n > 1; i++) {
                int64_t neighbour = rows[(i + 1) % n];
                shared += epoch == 1;
                changed += epoch == 1 && company[rows[i]] != neighbour;
                company[rows[i]] = neighbour;
            }
        }
    }
    assert_true(shared > ROWS / 2);
    assert_true(changed > shared / 2);
    ot_packing_close(p);
    ot_dataset_close(d);
}

static void test_file_order(void **state) {
    struct ot_dataset *d = load_mixture(*state, 1);
    struct ot_packing *p =
        open_packing(&(struct ot_packing_config){.dataset = d, .seq_len = SEQ_LEN, .one_row = true});
    check_ok(ot_packing_set_epoch(p, 3));
    for (int64_t s = 0; s < ROWS; s++) {
        int64_t n;
        assert_int_equal(ot_packing_sequence(p, s, &n)[0], s);
        assert_int_equal(n, 1);
    }
    ot_packing_close(p);
    ot_dataset_close(d);
}

static void test_split(void **state) {
    bool eval[ROWS], again[ROWS], other[ROWS];
    struct ot_dataset *d = load_mixture(*state, 1);
    assert_int_equal(ot_split_rows(d, 0.02, INT64_MAX, 1, eval), ROWS / 50);
    assert_int_equal(ot_split_rows(d, 0.02, INT64_MAX, 1, again), ROWS / 50);
    assert_memory_equal(eval, again, sizeof eval);
    assert_int_equal(ot_split_rows(d, 0.02, INT64_MAX, 2, other), ROWS / 50);
    assert_memory_not_equal(eval, other, sizeof eval);
    assert_int_equal(ot_split_rows(d, 0.02, 3, 1, other), 3);
    assert_int_equal(ot_split_rows(d, 0, INT64_MAX, 1, other), 0);
    assert_int_equal(ot_split_rows(d, 1, INT64_MAX, 1, other),
                     ROWS - 1); /* at least one row is left to train on */
    uint16_t copies[ROWS];
    for (int i = 0; i < ROWS; i++)
        copies[i] = eval[i];
    struct ot_packing_config config = {
        .dataset = d, .copies = copies, .seq_len = SEQ_LEN, .shuffle = true, .seed = 1};
    struct ot_packing *p = open_packing(&config);
    assert_int_equal(ot_packing_rows(p), ROWS / 50);
    check_epoch(p, d, copies);
    ot_packing_close(p);
    memset(copies, 0, sizeof copies);
    p = open_packing(&config); /* no row */
    assert_int_equal(ot_packing_sequences(p), 0);
    ot_packing_close(p);
    ot_dataset_close(d);
}

static void test_copies(void **state) {
    uint16_t copies[ROWS];
    struct ot_dataset *d = load_mixture(*state, 1);
    for (int i = 0; i < ROWS; i++)
        copies[i] = (uint16_t)(i * 7 % 4);
    for (int one_row = 0; one_row < 2; one_row++) {
        struct ot_packing *p = open_packing(&(struct ot_packing_config){.dataset = d,
                                                                        .copies = copies,
                                                                        .seq_len = SEQ_LEN,
                                                                        .one_row = one_row,
                                                                        .shuffle = true,
                                                                        .seed = 1});
        for (int epoch = 0; epoch < 2; epoch++) {
            check_ok(ot_packing_set_epoch(p, epoch));
            check_epoch(p, d, copies);
        }
        ot_packing_close(p);
    }
    ot_dataset_close(d);
}

/* All pieces of a document are on the same side of the split. */
static void test_split_keeps_documents(void **state) {
    struct data_fixture *f = *state;
    int lengths[200];
    bool eval[2000];
    for (int i = 0; i < 200; i++)
        lengths[i] = 3 + i;
    f->config.seq_len = 16;
    put_lengths(f, lengths, 200);
    struct ot_dataset *d = load_data(f);
    assert_in_range(ot_dataset_rows(d), 1000, 2000);
    assert_int_equal(ot_split_rows(d, 0.3, INT64_MAX, 1, eval), 60);
    for (int64_t i = 1; i < ot_dataset_rows(d); i++)
        if (ot_dataset_row(d, i).document == ot_dataset_row(d, i - 1).document)
            assert_int_equal(eval[i], eval[i - 1]);
    ot_dataset_close(d);
}

int main(void) {
#define packing_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        packing_test(test_each_row_once),
        packing_test(test_order),
        packing_test(test_the_order_is_that_of_every_version),
        packing_test(test_company_changes),
        packing_test(test_file_order),
        packing_test(test_split),
        packing_test(test_copies),
        packing_test(test_split_keeps_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
