/* The batches of tiny runs (tiny_run.h). */
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* Rows of 5 to 12 tokens, one after the other. About half of the tokens are trained. */
static void fill_micro(struct tiny_batch *b, int64_t vocab, int step, int64_t first,
                       struct ot_micro_batch *mb) {
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, (uint64_t)step, 7);
    int64_t row = first, row_end = first;
    for (int64_t i = first; i < first + mb->n_tokens; i++) {
        if (i == row_end) {
            row = i;
            row_end = i + 5 + (int64_t)ot_random_below(1, stream, (uint64_t)(1000 + i), 8);
        }
        bool last = i + 1 == row_end || i + 1 == first + mb->n_tokens;
        bool trained = !last && ot_random_below(1, stream, (uint64_t)(2000 + i), 2) == 1;
        b->tokens[i] = (int32_t)ot_random_below(1, stream, (uint64_t)i, (uint64_t)vocab);
        b->targets[i] =
            trained ? (int32_t)ot_random_below(1, stream, (uint64_t)(3000 + i), (uint64_t)vocab) : -1;
        b->position[i] = (int32_t)(i - row);
        b->row_start[i] = (int32_t)(row - first);
        b->input.n_losses += trained;
    }
}

void tiny_fill_batch(struct tiny_batch *b, int64_t vocab, int step, int sequences, int64_t micro_sequences) {
    b->input = (struct ot_step_input){.micro = b->micro, .lr = 1e-2f};
    for (int64_t s = 0; s < sequences; s += micro_sequences) {
        int64_t n = sequences - s < micro_sequences ? sequences - s : micro_sequences,
                first = s * TINY_SEQUENCE;
        struct ot_micro_batch *mb = &b->micro[b->input.n_micro++];
        *mb = tiny_micro(n * TINY_SEQUENCE, b->tokens + first, b->targets + first, b->position + first,
                         b->row_start + first);
        fill_micro(b, vocab, step, first, mb);
    }
}

/* Token `at` of a part of n tokens that begins at `part`: where its row, one of three, begins and ends. */
static void find_row(int64_t part, int64_t n, int64_t at, int *row, int64_t *first, int64_t *end) {
    for (int r = 0; r < 3; r++) {
        *row = r;
        *first = part + n * (r * r + r) / 12;
        *end = part + n * ((r + 1) * (r + 2)) / 12;
        if (at < *end)
            return;
    }
}

void tiny_pair_batch(struct tiny_batch *b) {
    b->input.n_losses = 0;
    for (int m = 0; m < b->input.n_micro; m++) {
        struct ot_micro_batch *mb = &b->micro[m];
        int64_t base = mb->tokens - b->tokens, n_inputs = mb->n_tokens / 3 + m;
        mb->n_inputs = n_inputs;
        mb->input_first = b->input_first + base;
        mb->input_end = b->input_end + base;
        for (int64_t i = 0; i < mb->n_tokens; i++) {
            bool is_input = i < n_inputs;
            int row, other;
            int64_t first, end, unused;
            find_row(is_input ? 0 : n_inputs, is_input ? n_inputs : mb->n_tokens - n_inputs, i, &row, &first,
                     &end);
            b->position[base + i] = (int32_t)(i - first);
            b->row_start[base + i] = (int32_t)first;
            int64_t inside = n_inputs * (row * row + row) / 12; /* of the row's inputs, the first */
            find_row(0, n_inputs, inside, &other, &first, &unused);
            b->input_first[base + i] = (int32_t)first;
            b->input_end[base + i] = (int32_t)unused;
            if (is_input)
                b->targets[base + i] = -1;
            b->input.n_losses += b->targets[base + i] >= 0;
        }
    }
}

/* Gives the row that begins at token `first` of the micro-batch a target at least. Returns its end. */
static int32_t take_row(struct tiny_batch *b, const struct ot_micro_batch *mb, int32_t first,
                        int32_t *targets) {
    int64_t base = mb->tokens - b->tokens, i = first;
    for (*targets = 0; i < mb->n_tokens && mb->row_start[i] == first; i++)
        *targets += mb->targets[i] >= 0;
    if (*targets == 0)
        b->targets[base + first] = b->tokens[base + first];
    *targets = ot_max(*targets, 1);
    return (int32_t)i;
}

/* The last row may be a single token, which is compared with nothing. */
void tiny_compare_batch(struct tiny_batch *b) {
    struct ot_comparison *next = b->comparisons;
    for (int m = 0; m < b->input.n_micro; m++) {
        struct ot_micro_batch *mb = &b->micro[m];
        int32_t at = 0, n = (int32_t)mb->n_tokens;
        mb->comparisons = next;
        while (at < n) {
            struct ot_comparison c = {.begin = at, .good = (int32_t)(next - b->comparisons) % 3 != 0};
            c.middle = take_row(b, mb, at, &c.targets[0]);
            c.end = c.middle < n ? take_row(b, mb, c.middle, &c.targets[1]) : n;
            c.reference[0] = -4.0f * (float)c.targets[0];
            c.reference[1] = -3.75f * (float)c.targets[1];
            at = c.end;
            if (c.begin + 2 <= c.middle && c.middle + 2 <= c.end)
                *next++ = c;
        }
        mb->n_comparisons = next - mb->comparisons;
    }
    b->input.n_losses = next - b->comparisons;
    assert_true(b->input.n_losses > 0);
}

struct ot_objective tiny_objective(enum ot_objective_kind kind) {
    return (struct ot_objective){.kind = kind,
                                 .beta = 0.3,
                                 .smoothing = 0.1,
                                 .gamma = 0.5,
                                 .sft_weight = kind == OT_OBJECTIVE_DPO ? 0.2 : 0,
                                 .weights = {1.5, 0.5}};
}
