/* Rows of encoder-decoders: input and target, their end tokens, what is cut, and the arrays of a micro-batch.
 * Tokens are bytes; EOS is 257. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/config.h"
#include "src/data/batch.h"
#include "tests/data/data_support.h"

static void check_row(struct data_fixture *f, const char *row, const char *want, int64_t n_inputs) {
    struct ot_dataset *d = load_text(f, row);
    assert_int_equal(ot_dataset_rows(d), 1);
    assert_true(ot_dataset_has_pairs(d));
    assert_string_equal(row_text(d, 0), want);
    struct ot_row first = ot_dataset_row(d, 0);
    assert_int_equal(ot_row_prompt_tokens(&first), n_inputs);
    assert_int_equal(first.trained, first.n - n_inputs);
    ot_dataset_close(d);
}

/* Both parts end; a text that ends already gets no second end; the fixture's BOS is in neither. */
static void test_kinds(void **state) {
    struct data_fixture *f = *state;
    f->config.pairs = true;
    check_row(f, "{\"input\": \"ab\", \"target\": \"c\"}", "ab<257>[c<257>]", 3);
    check_row(f, "{\"prompt\": \"p:\", \"completion\": \"c\"}", "p:<257>[c<257>]", 3);
    check_row(f, "{\"question\": \"q?\", \"context\": \"T\", \"answer\": \"A\"}", "T\n-- q?\n<257>[A<257>]",
              9);
    check_row(f, "{\"input\": \"\", \"target\": \"c\"}", "<257>[c<257>]", 1);
    f->config.prompt_format = "Q {q}:";
    check_row(f, "{\"q\": \"x\", \"target\": \"y\"}", "Q x:<257>[y<257>]", 5);
    f->config.prompt_format = NULL;
    f->config.columns = "input=source,target=sink";
    check_row(f, "{\"source\": \"s\", \"sink\": \"t\"}", "s<257>[t<257>]", 2);
    f->config.columns = NULL;
    f->config.no_eos = true; /* of the target alone: an encoder's input always ends */
    check_row(f, "{\"input\": \"ab\", \"target\": \"c\"}", "ab<257>[c]", 3);
    f->config.no_eos = false;
    f->config.pairs = false; /* a decoder reads such rows as prompt and completion */
    struct ot_dataset *d = load_text(f, "{\"input\": \"ab\", \"target\": \"c\"}");
    assert_string_equal(row_text(d, 0), "<256>ab[c<257>]");
    assert_false(ot_dataset_has_pairs(d));
    ot_dataset_close(d);
}

static void test_what_is_cut(void **state) {
    struct data_fixture *f = *state;
    f->config.pairs = true;
    f->config.seq_len = 8;
    check_row(f, "{\"input\": \"abcd\", \"target\": \"12\"}", "abcd<257>[12<257>]", 5);
    check_row(f, "{\"input\": \"abcdefgh\", \"target\": \"12\"}", "abcd<257>[12<257>]", 5);
    check_row(f, "{\"input\": \"abcdefgh\", \"target\": \"123456\"}", "<257>[123456<257>]", 1);
    check_row(f, "{\"input\": \"abcdefgh\", \"target\": \"1234567\"}", "<257>[1234567]", 1);
    check_row(f, "{\"input\": \"\", \"target\": \"1234567890\"}", "<257>[1234567]", 1);
    struct ot_dataset *d = load_text(f, "{\"input\": \"abcdefgh\", \"target\": \"12\"}\n"
                                        "{\"input\": \"a\", \"target\": \"1\"}");
    assert_int_equal(ot_dataset_stats(d)->truncated, 1);
    assert_int_equal(ot_dataset_stats(d)->longest_whole, 12);
    ot_dataset_close(d);
    f->config.seq_len = 64;
}

static void check_refused(struct data_fixture *f, const char *text, int code, const char *words) {
    struct ot_dataset *d;
    put_text(f, text);
    check_fails(ot_dataset_open(&f->config, &d), code, words);
    assert_null(d);
}

static void test_what_is_refused(void **state) {
    struct data_fixture *f = *state;
    f->config.pairs = true;
    check_refused(f, "{\"text\": \"ab\"}", OT_E_USAGE, "rows of kind 'text' have none");
    check_refused(f,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
                  "\"content\": \"a\"}]}",
                  OT_E_USAGE, "rows of kind 'messages' have none");
    check_refused(f, "{\"input\": \"a\", \"target\": 3}", OT_E_INPUT, "key 'target' must be a string");
    check_refused(f, "{\"input\": \"a\", \"target\": \"b\"}\n{\"input\": \"a\"}", OT_E_INPUT,
                  "data.jsonl:2: key 'target' is missing");
    f->config.chat.named = "zephyr";
    check_refused(f, "{\"prompt\": \"a\", \"completion\": \"b\", \"history\": [[\"x\", \"y\"]]}", OT_E_INPUT,
                  "the row has several answers");
    f->config.chat.named = NULL;
    f->config.train_prompt = true;
    check_refused(f, "{\"input\": \"a\", \"target\": \"b\"}", OT_E_USAGE, "no losses of its input");
    f->config.train_prompt = false;
    f->config.pairs = false;
}

/* The inputs of all rows, then their targets behind the start token. */
static void check_micro(const struct ot_micro_batch *micro) {
    int64_t row = -1;
    assert_true(micro->n_inputs > 0 && micro->n_inputs < micro->n_tokens);
    for (int64_t i = 0; i < micro->n_tokens; i++) {
        int32_t first = micro->input_first[i], end = micro->input_end[i], start = micro->row_start[i];
        bool begins = micro->position[i] == 0;
        assert_int_equal(micro->position[i], i - start);
        assert_true(first >= 0 && first < end && end <= micro->n_inputs);
        assert_int_equal(micro->tokens[end - 1], 257);
        if (i < micro->n_inputs) {
            assert_true(start == first && i < end && micro->targets[i] == -1);
            continue;
        }
        assert_true(start >= micro->n_inputs);
        if (begins) { /* rows of both parts have one order: letter b of row i has the target B */
            assert_true(first > row);
            row = first;
            assert_int_equal(micro->tokens[i], OT_PAIR_START_ID);
            assert_int_equal(micro->targets[i], micro->tokens[first] - 'a' + 'A');
        } else {
            assert_int_equal(micro->tokens[i], micro->targets[i - 1]);
        }
    }
    assert_int_equal(micro->targets[micro->n_tokens - 1], 257);
}

/* Row i has the letter i and `inputs` digits, and its target the letter and `targets` digits; 0: numbers that
 * differ from row to row. Returns the least number of tokens of a step but for the last. */
static int64_t check_batches(struct data_fixture *f, int inputs, int targets, int64_t seq_len) {
    struct ot_packing *packing;
    struct ot_batcher *batcher;
    struct ot_step_batch step;
    char text[26 * 64];
    int64_t rows = 0, trained = 0, least = INT64_MAX;
    size_t at = 0;
    for (int i = 0; i < 26; i++)
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "{\"input\": \"%c%0*d\", \"target\": \"%c%0*d\"}\n", 'a' + i,
                               inputs ? inputs : 1 + i % 7, i, 'A' + i, targets ? targets : 1 + i % 5, i);
    f->config.pairs = true;
    struct ot_dataset *d = load_text(f, text);
    check_ok(ot_packing_open(
        &(struct ot_packing_config){.dataset = d, .seq_len = seq_len, .shuffle = true, .seed = 5}, &packing));
    check_ok(ot_batcher_open(
        &(struct ot_batch_config){
            .packing = packing, .dataset = d, .seq_len = seq_len, .step_sequences = 3, .micro_sequences = 2},
        &batcher));
    for (int64_t s = ot_batcher_steps_per_epoch(batcher); s > 0; s--) {
        check_ok(ot_batcher_next(batcher, &step));
        for (int m = 0; m < step.input.n_micro; m++)
            check_micro(&step.input.micro[m]);
        rows += step.rows;
        trained += step.input.n_losses;
        if (s > 1 && step.tokens < least)
            least = step.tokens;
    }
    assert_int_equal(rows, 26);
    assert_int_equal(trained, ot_dataset_stats(d)->trained_tokens);
    ot_batcher_close(batcher);
    ot_packing_close(packing);
    ot_dataset_close(d);
    f->config.pairs = false;
    return least;
}

static void test_batches(void **state) {
    struct data_fixture *f = *state;
    assert_true(check_batches(f, 0, 0, 64) <= 3 * 64);
    /* Two rows of 4 + 4 tokens fill a sequence to its last token. */
    assert_int_equal(check_batches(f, 2, 2, 16), 3 * 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_what_is_cut),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_batches),
    };
    return cmocka_run_group_tests(tests, open_data_fixture, close_data_fixture);
}
