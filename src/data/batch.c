#include "src/data/batch.h"

#include <limits.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/data/dataset.h"

enum { ARRAYS = 4 }; /* tokens, targets, position, row_start */

struct ot_batcher {
    struct ot_batch_config config;
    struct ot_data_position position;
    int64_t drawn_epoch;                                  /* epoch of the packing's present order */
    int64_t capacity;                                     /* most tokens of a step */
    int32_t *tokens, *targets, *row_position, *row_start; /* one allocation, at tokens */
    struct ot_micro_batch *micro;
};

static int64_t divide_up(int64_t n, int64_t by) {
    return n / by + (n % by != 0);
}

int64_t ot_batcher_steps_per_epoch(const struct ot_batcher *b) {
    return divide_up(ot_packing_sequences(b->config.packing), b->config.step_sequences);
}

int64_t ot_batcher_max_micro(const struct ot_batcher *b) {
    return divide_up(b->config.step_sequences, b->config.micro_sequences);
}

size_t ot_batcher_bytes(const struct ot_batcher *b) {
    return (size_t)b->capacity * ARRAYS * sizeof *b->tokens;
}

static int allocate(struct ot_batcher *b) {
    if (__builtin_mul_overflow(b->config.step_sequences, b->config.seq_len, &b->capacity) ||
        b->capacity > INT64_MAX / (int64_t)(ARRAYS * sizeof *b->tokens) || ot_batcher_max_micro(b) > INT_MAX)
        return ot_fail(OT_E_BUDGET,
                       "a step of %lld sequences with %lld tokens each is too large; lower --tokens-per-step",
                       (long long)b->config.step_sequences, (long long)b->config.seq_len);
    b->tokens = malloc(ot_batcher_bytes(b));
    b->micro = calloc((size_t)ot_batcher_max_micro(b), sizeof *b->micro);
    if (!b->tokens || !b->micro)
        return ot_fail(OT_E_BUDGET, "no memory for a step of %lld tokens; lower --tokens-per-step",
                       (long long)b->capacity);
    b->targets = b->tokens + b->capacity;
    b->row_position = b->targets + b->capacity;
    b->row_start = b->row_position + b->capacity;
    return 0;
}

int ot_batcher_open(const struct ot_batch_config *config, struct ot_batcher **out) {
    *out = NULL;
    int64_t sequences = ot_packing_sequences(config->packing);
    if (sequences == 0)
        return ot_fail(OT_E_INPUT, "the data has no rows to train on");
    struct ot_batcher *b = calloc(1, sizeof *b);
    if (!b)
        return ot_fail(OT_E_BUDGET, "no memory for batches");
    int rc;
    b->config = *config;
    if (b->config.step_sequences > sequences) /* a step never crosses the end of an epoch */
        b->config.step_sequences = sequences;
    OT_TRY_GOTO(allocate(b), rc, out);
    ot_packing_set_epoch(config->packing, 0);
    *out = b;
    b = NULL;
out:
    ot_batcher_close(b);
    return rc;
}

void ot_batcher_close(struct ot_batcher *b) {
    if (!b)
        return;
    free(b->tokens);
    free(b->micro);
    free(b);
}

/* Copies a row to token `at` of the step. `base`: first token of its micro-batch. */
static void put_row(struct ot_batcher *b, const struct ot_row *row, int64_t at, int64_t base) {
    for (int64_t i = 0; i < row->n; i++) {
        bool trains = i + 1 < row->n && ot_token_trained(row->tokens[i + 1]);
        b->tokens[at + i] = ot_token_id(row->tokens[i]);
        b->targets[at + i] = trains ? ot_token_id(row->tokens[i + 1]) : -1;
        b->row_position[at + i] = (int32_t)i;
        b->row_start[at + i] = (int32_t)(at - base);
    }
}

/* Fills the micro-batch of the next `sequences` sequences, beginning at token `base` of the step. */
static void put_micro(struct ot_batcher *b, int64_t sequences, int64_t base, struct ot_micro_batch *micro,
                      struct ot_step_batch *out) {
    int64_t at = base;
    for (int64_t s = 0; s < sequences; s++) {
        int64_t n_rows;
        const uint32_t *rows = ot_packing_sequence(b->config.packing, b->position.sequence + s, &n_rows);
        for (int64_t i = 0; i < n_rows; i++) {
            struct ot_row row = ot_dataset_row(b->config.dataset, rows[i]);
            put_row(b, &row, at, base);
            at += row.n;
            out->input.trained_tokens += row.trained;
        }
        out->rows += n_rows;
    }
    *micro = (struct ot_micro_batch){.n_tokens = at - base,
                                     .tokens = b->tokens + base,
                                     .targets = b->targets + base,
                                     .position = b->row_position + base,
                                     .row_start = b->row_start + base};
    b->position.sequence += sequences;
    out->sequences += sequences;
    out->tokens += at - base;
}

void ot_batcher_next(struct ot_batcher *b, struct ot_step_batch *out) {
    int64_t total = ot_packing_sequences(b->config.packing);
    if (b->position.epoch != b->drawn_epoch) {
        ot_packing_set_epoch(b->config.packing, b->position.epoch);
        b->drawn_epoch = b->position.epoch;
    }
    *out = (struct ot_step_batch){.position = b->position, .input.micro = b->micro};
    int64_t left = total - b->position.sequence;
    left = left < b->config.step_sequences ? left : b->config.step_sequences;
    for (; left > 0; left -= b->config.micro_sequences) {
        int64_t sequences = left < b->config.micro_sequences ? left : b->config.micro_sequences;
        put_micro(b, sequences, out->tokens, &b->micro[out->input.n_micro++], out);
    }
    if (b->position.sequence == total)
        b->position = (struct ot_data_position){.epoch = b->position.epoch + 1};
}

struct ot_data_position ot_batcher_position(const struct ot_batcher *b) {
    return b->position;
}

int ot_batcher_seek(struct ot_batcher *b, struct ot_data_position position) {
    int64_t total = ot_packing_sequences(b->config.packing);
    if (position.epoch < 0 || position.sequence < 0 || position.sequence >= total)
        return ot_fail(OT_E_INPUT,
                       "the data has %lld sequences an epoch, so it has no position %lld; use the data of "
                       "the earlier run",
                       (long long)total, (long long)position.sequence);
    b->position = position;
    return 0;
}
