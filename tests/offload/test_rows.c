/* The token arrays of micro-batches: which the checks refuse, at the first token and at the last; padding;
 * and the keys that tokens of pairs see. */
#include <string.h>

#include "offload/rows.h"
#include "tests/support/check.h"

enum { N = 8, INPUTS = 4, PADDED = 11, STRIDE = 12, VOCAB = 30, POSITIONS = 6 };

/* Two rows of pairs: inputs 0 to 2 and 3, targets 4 and 5, and 6 and 7. As texts, the rows begin there too.
 * */
static int32_t tokens[N], targets[N], position[N], row_start[N], input_first[N], input_end[N];

static struct ot_micro_batch make(bool pairs) {
    static const int32_t starts[N] = {0, 0, 0, 3, 4, 4, 6, 6}, firsts[N] = {0, 0, 0, 3, 0, 0, 3, 3},
                         ends[N] = {3, 3, 3, 4, 3, 3, 4, 4};
    for (int i = 0; i < N; i++) {
        tokens[i] = VOCAB - 1 - i;
        targets[i] = i % 2 ? -1 : i;
        position[i] = i - starts[i];
    }
    memcpy(row_start, starts, sizeof row_start);
    memcpy(input_first, firsts, sizeof input_first);
    memcpy(input_end, ends, sizeof input_end);
    return (struct ot_micro_batch){.n_tokens = N,
                                   .tokens = tokens,
                                   .targets = targets,
                                   .position = position,
                                   .row_start = row_start,
                                   .n_inputs = pairs ? INPUTS : 0,
                                   .input_first = pairs ? input_first : NULL,
                                   .input_end = pairs ? input_end : NULL};
}

/* ---- checks ---- */

static const struct ot_chain texts = {.vocab = VOCAB, .max_position = POSITIONS},
                             pairs = {.vocab = VOCAB, .max_position = POSITIONS, .has_pairs = true};

static void good_ones_pass(void **state) {
    (void)state;
    struct ot_micro_batch mb = make(false);
    check_ok(ot_rows_check(&texts, N, &mb, 0));
    mb = make(true);
    check_ok(ot_rows_check(&pairs, N, &mb, 0));
    tokens[0] = 0;
    position[0] = POSITIONS - 1;
    check_ok(ot_rows_check(&pairs, N, &mb, 0));
    mb.n_tokens = 1;
    assert_int_equal(ot_rows_check(&texts, 1, &mb, 0), 0);
    const int32_t parts[] = {0, 1}, firsts[] = {0, 0}, ends[] = {1, 1};
    mb = (struct ot_micro_batch){.n_tokens = 2,
                                 .tokens = tokens,
                                 .targets = targets,
                                 .position = firsts,
                                 .row_start = parts,
                                 .n_inputs = 1,
                                 .input_first = firsts,
                                 .input_end = ends};
    assert_int_equal(ot_rows_check(&pairs, 2, &mb, 0), 0);
}

static void counts_are_checked(void **state) {
    (void)state;
    struct ot_micro_batch mb = make(true);
    check_fails(ot_rows_check(&pairs, N - 1, &mb, 5), OT_E_INPUT, "micro-batch 5 has 8 tokens");
    for (int n = 0; n <= N; n += N) {
        mb.n_inputs = n;
        check_fails(ot_rows_check(&pairs, N, &mb, 1), OT_E_INPUT, "of its 8 tokens are inputs");
        check_ok(ot_rows_check_tokens(&pairs, N, &mb, 1));
    }
    mb.n_tokens = 0;
    check_fails(ot_rows_check(&texts, N, &mb, 0), OT_E_INPUT, "has 0 tokens");
}

/* Comparisons of two rows of texts, and of the targets of two pairs. */
static void comparisons_are_checked(void **state) {
    (void)state;
    static const struct {
        bool of_pairs, is_good;
        struct ot_comparison comparisons[2];
    } cases[] = {
        {false, true, {{0, 4, 8, {1, 1}, {0, 0}, 1}}},
        {false, true, {{0, 2, 4, {1, 1}, {0, 0}, 1}, {4, 6, 8, {1, 1}, {0, 0}, 1}}},
        {true, true, {{4, 6, 8, {1, 1}, {0, 0}, 1}}},
        {true, true, {{4, 5, 6, {1, 1}, {0, 0}, 1}, {6, 7, 8, {1, 1}, {0, 0}, 1}}},
        {false, false, {{0, 1, 4, {1, 1}, {0, 0}, 1}}},
        {false, false, {{0, 2, 3, {1, 1}, {0, 0}, 1}}},
        {true, false, {{3, 5, 8, {1, 1}, {0, 0}, 1}}},
        {true, false, {{4, 4, 8, {1, 1}, {0, 0}, 1}}},
        {true, false, {{4, 6, 6, {1, 1}, {0, 0}, 1}}},
        {true, false, {{4, 6, 9, {1, 1}, {0, 0}, 1}}},
        {true, false, {{4, 6, 8, {0, 1}, {0, 0}, 1}}},
        {true, false, {{4, 6, 8, {1, 0}, {0, 0}, 1}}},
        {false, false, {{0, 2, 4, {1, 1}, {0, 0}, 1}, {3, 5, 7, {1, 1}, {0, 0}, 1}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_chain chain = cases[i].of_pairs ? pairs : texts;
        struct ot_micro_batch mb = make(cases[i].of_pairs);
        chain.compares = true;
        mb.comparisons = cases[i].comparisons;
        mb.n_comparisons = cases[i].comparisons[1].end > 0 ? 2 : 1;
        int rc = ot_rows_check(&chain, N, &mb, 3);
        if (cases[i].is_good)
            check_ok(rc);
        else
            check_fails(rc, OT_E_INPUT, "micro-batch 3: comparison");
    }
    struct ot_chain chain = pairs; /* the inputs of pairs are checked too */
    struct ot_micro_batch mb = make(true);
    chain.compares = true;
    mb.n_inputs = N;
    check_fails(ot_rows_check(&chain, N, &mb, 1), OT_E_INPUT, "of its 8 tokens are inputs");
}

/* A wrong number in a field of a token. words: of the message. */
static void check_wrong(int32_t *field, int token, int32_t wrong, const char *words) {
    const struct ot_micro_batch mb = make(true);
    field[token] = wrong;
    check_fails(ot_rows_check(&pairs, N, &mb, 0), OT_E_INPUT, words);
}

static void fields_are_checked(void **state) {
    (void)state;
    for (int token = 0; token < N; token += N - 1) {
        check_wrong(tokens, token, -1, "id -1 is not");
        check_wrong(tokens, token, VOCAB, "id 30 is not");
        check_wrong(targets, token, -2, "target -2 is not");
        check_wrong(targets, token, VOCAB, "target 30 is not");
        check_wrong(position, token, -1, "position -1 is");
        check_wrong(position, token, POSITIONS, "position 6 is");
        check_wrong(row_start, token, -1, "cannot start at token -1");
        check_wrong(row_start, token, token + 1, "cannot start at token");
        check_wrong(input_first, token, -1, "cannot be tokens -1 to");
        check_wrong(input_first, token, input_end[token], "the inputs of its row");
        check_wrong(input_end, token, INPUTS + 1, "to 4");
    }
    check_wrong(input_first, 2, 1, "the inputs of its row"); /* not where the row begins */
    check_wrong(input_end, 2, 2, "the inputs of its row");   /* before the token */
    check_wrong(row_start, INPUTS, INPUTS - 1, "the inputs of its row");
}

/* ---- copies ---- */

static void check_copy(bool has_pairs, int64_t past) {
    const struct ot_micro_batch mb = make(has_pairs);
    const int32_t *const from[] = {tokens, targets, position, row_start, input_first, input_end};
    int32_t arrays[OT_MOST_TOKEN_ARRAYS * STRIDE];
    int n = ot_token_arrays(has_pairs);
    memset(arrays, 0x55, sizeof arrays);
    ot_rows_copy(n, &mb, past, PADDED, arrays, STRIDE);
    for (int f = 0; f < OT_MOST_TOKEN_ARRAYS; f++)
        for (int i = 0; i < STRIDE; i++) {
            bool past_inputs = past + i >= mb.n_inputs;
            int32_t end = i < N ? input_end[i] : input_end[0];
            int32_t want = f >= n || i >= PADDED     ? 0x55555555 /* not written */
                           : f == OT_ARRAY_KEY_END   ? (past_inputs ? (int32_t)past + i + 1 : end)
                           : i < N                   ? from[f][i]
                           : f == OT_ARRAY_TARGETS   ? -1
                           : f == OT_ARRAY_ROW_START ? (int32_t)past + i
                                                     : from[f][0];
            assert_int_equal(arrays[f * STRIDE + i], want);
        }
}

static void copies_are_padded(void **state) {
    (void)state;
    check_copy(false, 0);
    check_copy(false, 5);
    check_copy(true, 0);
    check_copy(true, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(good_ones_pass), cmocka_unit_test(counts_are_checked),
                                       cmocka_unit_test(comparisons_are_checked),
                                       cmocka_unit_test(fields_are_checked),
                                       cmocka_unit_test(copies_are_padded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
