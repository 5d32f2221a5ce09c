/* Batches: the arrays that the engine reads, and the position from which a resumed run goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "src/data/batch.h"
#include "tests/data/data_support.h"

enum { ROWS = 300, SEQ_LEN = 96 };

struct feed {
    struct ot_dataset *dataset;
    struct ot_packing *packing;
    struct ot_batcher *batcher;
};

static void put_questions(struct data_fixture *f) {
    size_t capacity = ROWS * 256;
    char *text = malloc(capacity);
    assert_non_null(text);
    size_t at = 0;
    for (int i = 0; i < ROWS; i++) {
        int p = 1 + (int)ot_random_below(1, ot_random_stream(OT_RANDOM_TEST, 0, 1), (uint64_t)i, 40);
        int c = 1 + (int)ot_random_below(1, ot_random_stream(OT_RANDOM_TEST, 0, 2), (uint64_t)i, 30);
        at += (size_t)snprintf(text + at, capacity - at, "{\"prompt\": \"%0*d\", \"completion\": \"%0*d\"}\n",
                               p, i, c, i);
    }
    put_data(f, "data.jsonl", text, at);
    free(text);
}

/* Writes texts of 1 to 400 bytes, so that some become several rows. */
static void put_texts(struct data_fixture *f) {
    size_t capacity = ROWS * 512, at = 0;
    char *text = malloc(capacity);
    assert_non_null(text);
    for (int i = 0; i < ROWS; i++) {
        int n = 1 + (int)ot_random_below(1, ot_random_stream(OT_RANDOM_TEST, 0, 3), (uint64_t)i, 400);
        at += (size_t)snprintf(text + at, capacity - at, "{\"text\": \"%0*d\"}\n", n, i);
    }
    put_data(f, "data.jsonl", text, at);
    free(text);
}

static void open_feed_of(struct data_fixture *f, bool one_row, int step, int micro, struct feed *feed) {
    f->config.seq_len = SEQ_LEN;
    feed->dataset = load_data(f);
    check_ok(ot_packing_open(
        &(struct ot_packing_config){
            .dataset = feed->dataset, .seq_len = SEQ_LEN, .one_row = one_row, .shuffle = true, .seed = 9},
        &feed->packing));
    check_ok(ot_batcher_open(&(struct ot_batch_config){.packing = feed->packing,
                                                       .dataset = feed->dataset,
                                                       .seq_len = SEQ_LEN,
                                                       .step_sequences = step,
                                                       .micro_sequences = micro},
                             &feed->batcher));
}

static void open_feed(struct data_fixture *f, bool one_row, int step, int micro, struct feed *feed) {
    put_questions(f);
    open_feed_of(f, one_row, step, micro, feed);
}

static void close_feed(struct feed *feed) {
    ot_batcher_close(feed->batcher);
    ot_packing_close(feed->packing);
    ot_dataset_close(feed->dataset);
}

/* Finds the row that consists of exactly these tokens; -1 if there is none. */
static int64_t find_row(const struct ot_dataset *d, const int32_t *tokens, const int32_t *targets,
                        int64_t n) {
    for (int64_t r = 0; r < ot_dataset_rows(d); r++) {
        struct ot_row row = ot_dataset_row(d, r);
        int64_t i = 0;
        while (row.n == n && i < n) {
            bool trains = i + 1 < n && ot_token_trained(row.tokens[i + 1]);
            int32_t target = trains ? ot_token_id(row.tokens[i + 1]) : -1;
            if (tokens[i] != ot_token_id(row.tokens[i]) || targets[i] != target)
                break;
            i++;
        }
        if (row.n == n && i == n)
            return r;
    }
    return -1;
}

/* The arrays must describe whole, isolated rows with the right targets. Counts the rows in seen[]. */
static void check_micro(const struct feed *feed, const struct ot_micro_batch *micro, int *seen,
                        int64_t *trained) {
    assert_true(micro->n_tokens > 0);
    for (int64_t i = 0, next; i < micro->n_tokens; i = next) {
        for (next = i; next < micro->n_tokens && micro->row_start[next] == i; next++)
            assert_int_equal(micro->position[next], next - i);
        assert_true(next > i);
        int64_t row = find_row(feed->dataset, micro->tokens + i, micro->targets + i, next - i);
        assert_true(row >= 0);
        seen[row]++;
    }
    for (int64_t i = 0; i < micro->n_tokens; i++)
        *trained += micro->targets[i] >= 0;
}

/* All rows of this data differ, and an epoch must show each exactly once. */
static void check_epoch(struct feed *feed, int step_sequences, int micro_sequences) {
    int seen[ROWS] = {0};
    int64_t steps = ot_batcher_steps_per_epoch(feed->batcher), sequences = 0, trained = 0;
    for (int64_t k = 0; k < steps; k++) {
        struct ot_step_batch batch;
        int64_t step_trained = 0, tokens = 0;
        check_ok(ot_batcher_next(feed->batcher, &batch));
        assert_int_equal(batch.position.sequence, sequences);
        assert_int_equal(batch.sequences,
                         k + 1 < steps || ot_packing_sequences(feed->packing) % step_sequences == 0
                             ? step_sequences
                             : ot_packing_sequences(feed->packing) % step_sequences);
        assert_int_equal(batch.input.n_micro, (batch.sequences + micro_sequences - 1) / micro_sequences);
        for (int m = 0; m < batch.input.n_micro; m++) {
            assert_in_range(batch.input.micro[m].n_tokens, 1, micro_sequences * SEQ_LEN);
            check_micro(feed, &batch.input.micro[m], seen, &step_trained);
            tokens += batch.input.micro[m].n_tokens;
        }
        assert_int_equal(batch.input.n_losses, step_trained);
        assert_int_equal(batch.tokens, tokens);
        trained += step_trained;
        sequences += batch.sequences;
    }
    for (int i = 0; i < ROWS; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(sequences, ot_packing_sequences(feed->packing));
    assert_int_equal(trained, ot_dataset_stats(feed->dataset)->trained_tokens);
}

static void test_epochs(void **state) {
    static const struct {
        bool one_row;
        int step, micro;
    } shapes[] = {{false, 8, 2}, {false, 7, 3}, {false, 1, 1}, {false, 4, 4},
                  {false, 5, 9}, {true, 16, 4}, {true, 7, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct feed feed;
        open_feed(*state, shapes[i].one_row, shapes[i].step, shapes[i].micro, &feed);
        for (int epoch = 0; epoch < 2; epoch++) {
            assert_int_equal(ot_batcher_position(feed.batcher).epoch, epoch);
            assert_int_equal(ot_batcher_position(feed.batcher).sequence, 0);
            check_epoch(&feed, shapes[i].step, shapes[i].micro);
        }
        close_feed(&feed);
    }
}

static uint64_t hash_step(const struct ot_step_batch *batch) {
    uint64_t hash = 1469598103934665603u;
    for (int m = 0; m < batch->input.n_micro; m++) {
        const struct ot_micro_batch *micro = &batch->input.micro[m];
        const int32_t *arrays[] = {micro->tokens, micro->targets, micro->position, micro->row_start};
        for (int a = 0; a < 4; a++)
            for (int64_t i = 0; i < micro->n_tokens; i++)
                hash = (hash ^ (uint32_t)arrays[a][i]) * 1099511628211u;
    }
    return hash;
}

/* Every version of the program makes the same batches of the same file, because a resumed run needs that. */
static void test_batches_are_those_of_other_versions(void **state) {
    static const struct {
        void (*put)(struct data_fixture *f);
        uint32_t crc;
        uint64_t hash;
    } kinds[] = {{put_questions, 0x4e27791d, 0x37e59fc586459a7c},
                 {put_texts, 0x8d078b61, 0xd4d3fb7d7bdf5f6a}};
    for (int i = 0; i < 2; i++) {
        struct feed feed;
        uint64_t hash = 0;
        kinds[i].put(*state);
        open_feed_of(*state, false, 7, 2, &feed);
        for (int64_t k = 2 * ot_batcher_steps_per_epoch(feed.batcher); k > 0; k--) {
            struct ot_step_batch batch;
            check_ok(ot_batcher_next(feed.batcher, &batch));
            hash = 31 * hash + hash_step(&batch);
        }
        assert_true(ot_dataset_fingerprint(feed.dataset).crc == kinds[i].crc);
        assert_true(hash == kinds[i].hash);
        close_feed(&feed);
    }
}

/* Going on from any saved position gives the same batches as never stopping, also from one epoch to the
 * next. */
static void test_seek(void **state) {
    enum { STEPS = 60 };
    struct feed feed;
    struct ot_step_batch batch;
    struct ot_data_position positions[STEPS];
    uint64_t hashes[STEPS];
    open_feed(*state, false, 7, 2, &feed);
    assert_true(ot_batcher_steps_per_epoch(feed.batcher) < STEPS / 2);
    for (int k = 0; k < STEPS; k++) {
        positions[k] = ot_batcher_position(feed.batcher);
        check_ok(ot_batcher_next(feed.batcher, &batch));
        hashes[k] = hash_step(&batch);
    }
    close_feed(&feed);
    open_feed(*state, false, 7, 2, &feed);
    for (int k = STEPS - 1; k >= 0; k -= 3) {
        check_ok(ot_batcher_seek(feed.batcher, positions[k]));
        for (int i = k; i < k + 3 && i < STEPS; i++) {
            check_ok(ot_batcher_next(feed.batcher, &batch));
            assert_true(hash_step(&batch) == hashes[i]);
        }
    }
    int64_t sequences = ot_packing_sequences(feed.packing);
    check_fails(ot_batcher_seek(feed.batcher, (struct ot_data_position){0, sequences}), OT_E_INPUT,
                "no position");
    check_fails(ot_batcher_seek(feed.batcher, (struct ot_data_position){-1, 0}), OT_E_INPUT, "no position");
    check_fails(ot_batcher_seek(feed.batcher, (struct ot_data_position){0, -1}), OT_E_INPUT, "no position");
    close_feed(&feed);
}

/* The size of micro-batches changes only where a step is cut: the rows and their order stay the same. */
static void test_micro_cut(void **state) {
    static const int cuts[] = {1, 3, 8};
    int32_t *reference = malloc(8 * SEQ_LEN * sizeof *reference);
    assert_non_null(reference);
    for (int c = 0; c < 3; c++) {
        struct feed feed;
        struct ot_step_batch batch;
        open_feed(*state, false, 8, cuts[c], &feed);
        assert_int_equal(ot_batcher_max_micro(feed.batcher), (8 + cuts[c] - 1) / cuts[c]);
        check_ok(ot_batcher_next(feed.batcher, &batch));
        int64_t at = 0;
        for (int m = 0; m < batch.input.n_micro; m++)
            for (int64_t i = 0; i < batch.input.micro[m].n_tokens; i++, at++) {
                if (c == 0)
                    reference[at] = batch.input.micro[m].tokens[i];
                assert_int_equal(reference[at], batch.input.micro[m].tokens[i]);
            }
        assert_int_equal(at, batch.tokens);
        close_feed(&feed);
    }
    free(reference);
}

static void test_edges(void **state) {
    struct feed feed;
    struct ot_step_batch batch;
    struct ot_batcher *b;
    open_feed(*state, false, 1000000, 1, &feed); /* more than the data has, so an epoch is one step */
    assert_int_equal(ot_batcher_steps_per_epoch(feed.batcher), 1);
    check_ok(ot_batcher_next(feed.batcher, &batch));
    assert_int_equal(batch.sequences, ot_packing_sequences(feed.packing));
    assert_int_equal(ot_batcher_position(feed.batcher).epoch, 1);
    uint16_t *none = calloc((size_t)ot_dataset_rows(feed.dataset), sizeof *none);
    struct ot_packing *empty;
    check_ok(ot_packing_open(
        &(struct ot_packing_config){.dataset = feed.dataset, .copies = none, .seq_len = SEQ_LEN}, &empty));
    check_fails(ot_batcher_open(&(struct ot_batch_config){.packing = empty,
                                                          .dataset = feed.dataset,
                                                          .seq_len = SEQ_LEN,
                                                          .step_sequences = 1,
                                                          .micro_sequences = 1},
                                &b),
                OT_E_INPUT, "no rows");
    ot_packing_close(empty);
    free(none);
    close_feed(&feed);
}

int main(void) {
#define batch_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        batch_test(test_epochs), batch_test(test_batches_are_those_of_other_versions),
        batch_test(test_seek),   batch_test(test_micro_cut),
        batch_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
