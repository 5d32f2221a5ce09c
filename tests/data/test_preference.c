/* Rows of objectives that compare answers: both answers of a row, the prompt that they share, what is cut,
 * the other answers of KTO, and the comparisons of a micro-batch. Tokens are bytes; BOS is 256, EOS is 257.
 * */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/data/batch.h"
#include "tests/data/data_support.h"

/* The tokens of both answers. */
static void check_row(struct data_fixture *f, const char *row, const char *chosen, const char *rejected) {
    char want[512];
    snprintf(want, sizeof want, "%s%s", chosen, rejected);
    struct ot_dataset *d = load_text(f, row);
    assert_int_equal(ot_dataset_rows(d), 1);
    assert_true(ot_dataset_compares(d));
    assert_string_equal(row_text(d, 0), want);
    struct ot_row both = ot_dataset_row(d, 0);
    struct ot_row first = {.tokens = both.tokens, .n = both.second};
    assert_int_equal(ot_token_id(both.tokens[both.second]), 256); /* the second answer begins with BOS too */
    assert_int_equal(ot_row_prompt_tokens(&first), ot_row_prompt_tokens(&both));
    ot_dataset_close(d);
}

static void test_prompts(void **state) {
    struct data_fixture *f = *state;
    f->config.objective = OT_OBJECTIVE_DPO;
    check_row(f, "{\"prompt\": \"p:\", \"chosen\": \"a\", \"rejected\": \"bc\"}", "<256>p:[a<257>]",
              "<256>p:[bc<257>]");
    check_row(f, "{\"question\": \"q?\", \"context\": \"T\", \"chosen\": \"A\", \"rejected\": \"B\"}",
              "<256>T\n-- q?\n[A<257>]", "<256>T\n-- q?\n[B<257>]");
    check_row(f, "{\"input\": \"i\", \"chosen\": \"A\", \"rejected\": \"B\"}", "<256>i[A<257>]",
              "<256>i[B<257>]");
    /* what both begin with, before a space and at the border of a character */
    check_row(f, "{\"chosen\": \"say yes\", \"rejected\": \"say no\"}", "<256>say[ yes<257>]",
              "<256>say[ no<257>]");
    check_row(f, "{\"chosen\": \"x\\u00e4\", \"rejected\": \"x\\u00f6\"}", "<256>x[\xc3\xa4<257>]",
              "<256>x[\xc3\xb6<257>]");
    check_row(f, "{\"chosen\": \"xy\", \"rejected\": \"xyz\", \"prompt\": null}", "<256>x[y<257>]",
              "<256>x[yz<257>]");
    f->config.columns = "prompt=ask,chosen=good,rejected=bad";
    check_row(f, "{\"ask\": \"p:\", \"good\": \"a\", \"bad\": \"b\"}", "<256>p:[a<257>]", "<256>p:[b<257>]");
    f->config.columns = NULL;
}

/* Turns: with a prompt, with what both begin with, and single turns after a conversation. */
static void test_turns(void **state) {
    struct data_fixture *f = *state;
    f->config.objective = OT_OBJECTIVE_SIMPO;
    f->config.chat.named = "alpaca";
#define ASK        "{\"role\": \"user\", \"content\": \"q\"}"
#define SAYS(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
    static const char *const rows[] = {
        "{\"prompt\": [" ASK "], \"chosen\": [" SAYS("a") "], \"rejected\": [" SAYS("b") "]}",
        "{\"chosen\": [" ASK ", " SAYS("a") "], \"rejected\": [" ASK ", " SAYS("b") "]}",
        "{\"prompt\": \"q\", \"chosen\": [" ASK ", " SAYS("a") "], \"rejected\": [" ASK ", " SAYS("b") "]}",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}], \"chosen\": {\"from\": \"gpt\", "
        "\"value\": \"a\"}, \"rejected\": {\"from\": \"gpt\", \"value\": \"b\"}}",
        "{\"instruction\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}",
    };
    struct ot_dataset *first = load_text(f, rows[0]);
    assert_non_null(strstr(row_text(first, 0), "q\n"));
    assert_non_null(strstr(row_text(first, 0), "[a<257>]"));
    assert_non_null(strstr(row_text(first, 0), "[b<257>]"));
    for (size_t i = 1; i < sizeof rows / sizeof *rows; i++) {
        struct ot_dataset *d = load_text(f, rows[i]);
        char *want = strdup(row_text(first, 0));
        assert_string_equal(row_text(d, 0), want);
        free(want);
        ot_dataset_close(d);
    }
    ot_dataset_close(first);
    f->config.chat.named = NULL;
}

/* Each answer with its prompt has half of seq_len, and both prompts lose as many tokens. */
static void test_what_is_cut(void **state) {
    struct data_fixture *f = *state;
    f->config.objective = OT_OBJECTIVE_DPO;
    f->config.seq_len = 16;
    check_row(f, "{\"prompt\": \"abcd\", \"chosen\": \"12\", \"rejected\": \"3\"}", "<256>abcd[12<257>]",
              "<256>abcd[3<257>]");
    check_row(f, "{\"prompt\": \"abcdef\", \"chosen\": \"12\", \"rejected\": \"3\"}", "<256>cdef[12<257>]",
              "<256>cdef[3<257>]");
    check_row(f, "{\"prompt\": \"abcdef\", \"chosen\": \"1\", \"rejected\": \"234567\"}", "<256>[1<257>]",
              "<256>[234567<257>]");
    struct ot_dataset *d = load_text(f, "{\"prompt\": \"ab\", \"chosen\": \"1\", \"rejected\": \"\"}\n"
                                        "{\"prompt\": \"ab\", \"chosen\": \"1\", \"rejected\": \"2\"}");
    assert_int_equal(ot_dataset_rows(d), 1); /* nothing trains in an empty answer */
    assert_int_equal(ot_dataset_stats(d)->untrained, 1);
    assert_int_equal(ot_dataset_stats(d)->trained_tokens, 4);
    ot_dataset_close(d);
    f->config.seq_len = 64;
}

static void check_refused(struct data_fixture *f, const char *row, const char *words) {
    struct ot_dataset *d = NULL;
    put_text(f, row);
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, words);
    assert_null(d);
}

static void test_faults(void **state) {
    struct data_fixture *f = *state;
    f->config.objective = OT_OBJECTIVE_DPO;
    check_refused(f, "{\"prompt\": \"p\", \"completion\": \"c\"}", ":1: key 'chosen' is missing");
    check_refused(f, "{\"prompt\": \"p\", \"chosen\": \"c\"}", ":1: key 'rejected' is missing");
    check_refused(f, "{\"chosen\": \"a\", \"rejected\": \"b\"}", "begin differently");
    check_refused(f,
                  "{\"chosen\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                  "\"content\": \"a\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"r\"}, {\"role\": "
                  "\"assistant\", \"content\": \"a\"}]}",
                  "begin differently");
    check_refused(f, "{\"chosen\": \"same\", \"rejected\": \"same\"}", "are equal");
    check_refused(f, "{\"chosen\": \"a\", \"rejected\": []}", "must both be texts or both be lists of turns");
    check_refused(f, "{\"prompt\": \"p\", \"chosen\": 1, \"rejected\": 2}",
                  "key 'completion' must be a string");
    check_refused(f, "{\"prompt\": \"p\", \"chosen\": \"\\ud800\", \"rejected\": \"b\"}", "surrogate");
    check_refused(f, "[1]", "expected a row");
    f->config.objective = OT_OBJECTIVE_KTO;
    check_refused(f, "{\"prompt\": \"p\", \"completion\": \"c\"}", "but it is missing");
    check_refused(f, "{\"prompt\": \"p\", \"completion\": \"c\", \"label\": 1}", "but it is an integer");
    check_refused(f, "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"d\"}", "--objective dpo");
    check_refused(f, "{\"prompt\": \"p\", \"completion\": \"c\", \"label\": true}", "two rows or more");
    f->config.objective = OT_OBJECTIVE_SFT;
    check_refused(f, "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"d\"}", "give --objective dpo");
    check_refused(f, "{\"prompt\": \"p\", \"completion\": \"c\", \"label\": false}", "--objective kto");
}

/* A row's second answer is the next row's, after this row's prompt; the last row's is that of the first. */
static void test_kto(void **state) {
    struct data_fixture *f = *state;
    f->config.objective = OT_OBJECTIVE_KTO;
    struct ot_dataset *d = load_text(f, "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}\n"
                                        "{\"prompt\": \"qq\", \"completion\": \"b\", \"kto_tag\": false}\n"
                                        "{\"prompt\": \"r\", \"completion\": \"cccc\", \"label\": true}");
    assert_string_equal(row_text(d, 0), "<256>p[a<257>]<256>p[b<257>]");
    assert_string_equal(row_text(d, 1), "<256>qq[b<257>]<256>qq[cccc<257>]");
    assert_string_equal(row_text(d, 2), "<256>r[cccc<257>]<256>r[a<257>]");
    assert_int_equal(ot_dataset_stats(d)->good, 2);
    assert_int_equal(ot_dataset_stats(d)->longest, 13);
    assert_int_equal(ot_dataset_stats(d)->tokens, 8 + 13 + 11);
    for (int i = 0; i < 3; i++) {
        struct ot_row row = ot_dataset_row(d, i);
        assert_int_equal(row.good, i != 1);
        assert_int_equal(row.trained, row.second - 2 - (i == 1)); /* of its own answer */
    }
    struct ot_data_fingerprint print = ot_dataset_fingerprint(d), other;
    ot_dataset_close(d);
    d = load_text(f, "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}\n"
                     "{\"prompt\": \"qq\", \"completion\": \"b\", \"kto_tag\": true}\n"
                     "{\"prompt\": \"r\", \"completion\": \"cccc\", \"label\": true}");
    other = ot_dataset_fingerprint(d);
    assert_true(print.tokens == other.tokens && print.crc != other.crc); /* a label is part of the rows */
    ot_dataset_close(d);
}

/* Comparisons have the places, targets and references of their rows; a step's losses are its comparisons. */
static void test_batches(void **state) {
    struct data_fixture *f = *state;
    static const float references[] = {-1, -2, -3, -4, -5, -6};
    f->config.objective = OT_OBJECTIVE_DPO;
    f->config.seq_len = 20;
    struct ot_dataset *d = load_text(f, "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"bc\"}\n"
                                        "{\"prompt\": \"qq\", \"chosen\": \"d\", \"rejected\": \"e\"}\n"
                                        "{\"prompt\": \"r\", \"chosen\": \"fg\", \"rejected\": \"hij\"}");
    struct ot_packing *packing;
    struct ot_batcher *batcher;
    struct ot_step_batch batch;
    struct ot_packing_config packs = {.dataset = d, .seq_len = 20, .one_row = true};
    check_ok(ot_packing_open(&packs, &packing));
    struct ot_batch_config config = {.packing = packing,
                                     .dataset = d,
                                     .seq_len = 20,
                                     .step_sequences = 3,
                                     .micro_sequences = 2,
                                     .references = references};
    check_ok(ot_batcher_open(&config, &batcher));
    check_ok(ot_batcher_next(batcher, &batch));
    assert_int_equal(batch.input.n_losses, 3);
    assert_int_equal(batch.trained_tokens, 5 + 4 + 7);
    const struct ot_micro_batch *mb = batch.input.micro;
    assert_int_equal(mb[0].n_comparisons, 2);
    assert_int_equal(mb[1].n_comparisons, 1);
    assert_memory_equal(&mb[0].comparisons[0], (&(struct ot_comparison){0, 4, 9, {2, 3}, {-1, -2}, 1}),
                        sizeof(struct ot_comparison));
    assert_memory_equal(&mb[0].comparisons[1], (&(struct ot_comparison){9, 14, 19, {2, 2}, {-3, -4}, 1}),
                        sizeof(struct ot_comparison));
    assert_memory_equal(&mb[1].comparisons[0], (&(struct ot_comparison){0, 5, 11, {3, 4}, {-5, -6}, 1}),
                        sizeof(struct ot_comparison));
    assert_int_equal(mb[0].row_start[5], 4); /* the rejected answer is a row of its own */
    assert_int_equal(mb[0].position[5], 1);
    assert_int_equal(mb[0].targets[3], -1);
    assert_int_equal(mb[0].targets[1], 'a');
    assert_int_equal(mb[0].targets[5], 'b');
    ot_batcher_close(batcher);
    ot_packing_close(packing);
    ot_dataset_close(d);
    f->config.seq_len = 64;
}

/* In a batch of an encoder-decoder the inputs of all answers come first, and a comparison is of targets. Both
 * inputs of a row lose as many tokens before their last one. */
static void test_batches_of_pairs(void **state) {
    struct data_fixture *f = *state;
    f->config.objective = OT_OBJECTIVE_DPO;
    f->config.pairs = true;
    f->config.seq_len = 20;
    struct ot_dataset *d =
        load_text(f, "{\"prompt\": \"pq\", \"chosen\": \"a\", \"rejected\": \"bc\"}\n"
                     "{\"prompt\": \"uvwxyz\", \"chosen\": \"d\", \"rejected\": \"efgh\"}");
    assert_string_equal(row_text(d, 0), "pq<257>[a<257>]pq<257>[bc<257>]");
    assert_string_equal(row_text(d, 1), "uvwx<257>[d<257>]uvwx<257>[efgh<257>]");
    struct ot_packing *packing;
    struct ot_batcher *batcher;
    struct ot_step_batch batch;
    struct ot_packing_config packs = {.dataset = d, .seq_len = 20, .one_row = true};
    check_ok(ot_packing_open(&packs, &packing));
    static const float references[] = {-1, -2, -3, -4};
    struct ot_batch_config config = {.packing = packing,
                                     .dataset = d,
                                     .seq_len = 20,
                                     .step_sequences = 2,
                                     .micro_sequences = 2,
                                     .references = references};
    check_ok(ot_batcher_open(&config, &batcher));
    check_ok(ot_batcher_next(batcher, &batch));
    const struct ot_micro_batch *mb = batch.input.micro;
    assert_int_equal(batch.trained_tokens, 2 + 3 + 2 + 5);
    assert_int_equal(mb->n_inputs, 3 + 3 + 5 + 5);
    assert_int_equal(mb->n_tokens, 16 + 2 + 3 + 2 + 5);
    assert_memory_equal(&mb->comparisons[0], (&(struct ot_comparison){16, 18, 21, {2, 3}, {-1, -2}, 1}),
                        sizeof(struct ot_comparison));
    assert_memory_equal(&mb->comparisons[1], (&(struct ot_comparison){21, 23, 28, {2, 5}, {-3, -4}, 1}),
                        sizeof(struct ot_comparison));
    static const int32_t want[][5] = {
        /* token, then its target, row_start, and the inputs that it sees */
        {4, -1, 3, 3, 6},    {10, -1, 6, 6, 11},   {16, 'a', 16, 0, 3},   {18, 'b', 18, 3, 6},
        {20, 257, 18, 3, 6}, {21, 'd', 21, 6, 11}, {23, 'e', 23, 11, 16}, {27, 257, 23, 11, 16},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int32_t at = want[i][0];
        assert_int_equal(mb->targets[at], want[i][1]);
        assert_int_equal(mb->row_start[at], want[i][2]);
        assert_int_equal(mb->input_first[at], want[i][3]);
        assert_int_equal(mb->input_end[at], want[i][4]);
    }
    assert_int_equal(mb->tokens[18], 0); /* the decoder's start token */
    ot_batcher_close(batcher);
    ot_packing_close(packing);
    ot_dataset_close(d);
    f->config.seq_len = 64;
    f->config.pairs = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_what_is_cut),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_kto),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_batches_of_pairs),
    };
    return cmocka_run_group_tests(tests, open_data_fixture, close_data_fixture);
}
