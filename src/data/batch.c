#include "src/data/batch.h"

#include <limits.h>
#include <stdlib.h>

#include "models/config.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/data/dataset.h"

enum { ARRAYS = 4, ARRAYS_OF_PAIRS = 6 }; /* tokens, targets, position, row_start; ranges of inputs */

struct ot_batcher {
    struct ot_batch_config config;
    struct ot_data_position position;
    int64_t capacity;                                     /* most tokens of a step */
    int32_t *tokens, *targets, *row_position, *row_start; /* one allocation, at tokens */
    int32_t *input_first, *input_end;                     /* of pairs; in the same */
    struct ot_comparison *comparisons; /* of the step; NULL: the dataset compares nothing */
    struct ot_micro_batch *micro;
};

static size_t n_arrays(const struct ot_batcher *b) {
    return ot_dataset_has_pairs(b->config.dataset) ? ARRAYS_OF_PAIRS : ARRAYS;
}

static int64_t divide_up(int64_t n, int64_t by) {
    return n / by + (n % by != 0);
}

int64_t ot_batcher_steps_per_epoch(const struct ot_batcher *b) {
    return divide_up(ot_packing_sequences(b->config.packing), b->config.step_sequences);
}

int64_t ot_batcher_max_micro(const struct ot_batcher *b) {
    return divide_up(b->config.step_sequences, b->config.micro_sequences);
}

static size_t array_bytes(const struct ot_batcher *b) {
    return (size_t)b->capacity * n_arrays(b) * sizeof *b->tokens;
}

static size_t comparison_bytes(const struct ot_batcher *b) {
    bool compares = ot_dataset_compares(b->config.dataset);
    return compares ? (size_t)(b->capacity / OT_COMPARISON_TOKENS) * sizeof *b->comparisons : 0;
}

size_t ot_batcher_bytes(const struct ot_batcher *b) {
    return array_bytes(b) + comparison_bytes(b);
}

static int allocate(struct ot_batcher *b) {
    if (__builtin_mul_overflow(b->config.step_sequences, b->config.seq_len, &b->capacity) ||
        b->capacity > INT64_MAX / (int64_t)(n_arrays(b) * sizeof *b->tokens) ||
        ot_batcher_max_micro(b) > INT_MAX)
        return ot_fail(OT_E_BUDGET,
                       "a step of %lld sequences with %lld tokens each is too large; lower --tokens-per-step",
                       (long long)b->config.step_sequences, (long long)b->config.seq_len);
    b->tokens = malloc(array_bytes(b));
    b->micro = calloc((size_t)ot_batcher_max_micro(b), sizeof *b->micro);
    b->comparisons = comparison_bytes(b) > 0 ? malloc(comparison_bytes(b)) : NULL;
    if (!b->tokens || !b->micro || (comparison_bytes(b) > 0 && !b->comparisons))
        return ot_fail(OT_E_BUDGET, "no memory for a step of %lld tokens; lower --tokens-per-step",
                       (long long)b->capacity);
    b->targets = b->tokens + b->capacity;
    b->row_position = b->targets + b->capacity;
    b->row_start = b->row_position + b->capacity;
    if (n_arrays(b) == ARRAYS_OF_PAIRS) {
        b->input_first = b->row_start + b->capacity;
        b->input_end = b->input_first + b->capacity;
    }
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
    OT_TRY_GOTO(ot_batcher_seek(b, config->position), rc, out);
    OT_TRY_GOTO(ot_packing_set_epoch(config->packing, b->position.epoch), rc, out);
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
    free(b->comparisons);
    free(b);
}

/* A micro-batch that is being filled. */
struct filling {
    int64_t base, at; /* its first token in the step, and the next one */
    int64_t inputs;   /* of pairs, while targets are put: the first input of the next row */
    int64_t rows, trained;
    int64_t comparisons; /* of the step so far */
};

/* Copies a row, or one of its answers, to the next tokens. Returns its number of targets. */
static int32_t put_text(struct ot_batcher *b, const uint32_t *tokens, int64_t n, struct filling *f) {
    int32_t targets = 0;
    for (int64_t i = 0; i < n; i++) {
        bool trains = i + 1 < n && ot_token_trained(tokens[i + 1]);
        b->tokens[f->at + i] = ot_token_id(tokens[i]);
        b->targets[f->at + i] = trains ? ot_token_id(tokens[i + 1]) : -1;
        b->row_position[f->at + i] = (int32_t)i;
        b->row_start[f->at + i] = (int32_t)(f->at - f->base);
        targets += trains;
    }
    f->at += n;
    return targets;
}

static void put_row(struct ot_batcher *b, uint32_t number, const struct ot_row *row, struct filling *f) {
    (void)number;
    put_text(b, row->tokens, row->n, f);
    f->rows++;
    f->trained += row->trained;
}

/* An answer of a row that compares two, with its prompt; of another row, the row. */
static struct ot_row answer_of(const struct ot_row *row, int answer) {
    struct ot_row out = {.tokens = row->tokens, .n = row->n};
    if (row->second > 0 && answer == 0)
        out.n = row->second;
    if (answer == 1) {
        out.tokens += row->second;
        out.n -= row->second;
    }
    return out;
}

/* Puts both answers. put_answer returns the number of an answer's targets. */
static void put_answers(struct ot_batcher *b, uint32_t number, const struct ot_row *row, struct filling *f,
                        int32_t (*put_answer)(struct ot_batcher *, const struct ot_row *, struct filling *)) {
    struct ot_comparison *c = &b->comparisons[f->comparisons++];
    const float *references = b->config.references ? b->config.references + 2 * (size_t)number : NULL;
    *c = (struct ot_comparison){.begin = (int32_t)(f->at - f->base), .good = row->good};
    int32_t *const ends[] = {&c->middle, &c->end};
    for (int i = 0; i < 2; i++) {
        struct ot_row answer = answer_of(row, i);
        c->targets[i] = put_answer(b, &answer, f);
        *ends[i] = (int32_t)(f->at - f->base);
        c->reference[i] = references ? references[i] : 0;
    }
    f->rows++;
    f->trained += row->trained;
}

static int32_t put_whole(struct ot_batcher *b, const struct ot_row *answer, struct filling *f) {
    return put_text(b, answer->tokens, answer->n, f);
}

static void put_comparison(struct ot_batcher *b, uint32_t number, const struct ot_row *row,
                           struct filling *f) {
    put_answers(b, number, row, f, put_whole);
}

/* ---- pairs ---- */

/* Copies n tokens of one part of a row. inputs, n_inputs: where the row's inputs are. */
static void put_part(struct ot_batcher *b, int64_t n, int64_t inputs, int64_t n_inputs, struct filling *f) {
    for (int64_t i = f->at; i < f->at + n; i++) {
        b->row_position[i] = (int32_t)(i - f->at);
        b->row_start[i] = (int32_t)(f->at - f->base);
        b->input_first[i] = (int32_t)(inputs - f->base);
        b->input_end[i] = (int32_t)(inputs - f->base + n_inputs);
    }
    f->at += n;
}

/* The inputs of a row; of both answers, if it compares two. */
static void put_inputs(struct ot_batcher *b, uint32_t number, const struct ot_row *row, struct filling *f) {
    (void)number;
    for (int answer = 0; answer <= (row->second > 0); answer++) {
        const struct ot_row part = answer_of(row, answer);
        int64_t n = ot_row_prompt_tokens(&part);
        for (int64_t i = 0; i < n; i++) {
            b->tokens[f->at + i] = ot_token_id(part.tokens[i]);
            b->targets[f->at + i] = -1;
        }
        put_part(b, n, f->at, n, f);
    }
}

/* The targets of one input. Returns their number. */
static int32_t put_target(struct ot_batcher *b, const struct ot_row *row, struct filling *f) {
    int64_t n_inputs = ot_row_prompt_tokens(row), n = row->n - n_inputs;
    for (int64_t i = 0; i < n; i++) {
        b->tokens[f->at + i] = i == 0 ? OT_PAIR_START_ID : ot_token_id(row->tokens[n_inputs + i - 1]);
        b->targets[f->at + i] = ot_token_id(row->tokens[n_inputs + i]);
    }
    put_part(b, n, f->inputs, n_inputs, f);
    f->inputs += n_inputs;
    return (int32_t)n;
}

static void put_targets(struct ot_batcher *b, uint32_t number, const struct ot_row *row, struct filling *f) {
    if (row->second > 0) {
        put_answers(b, number, row, f, put_target);
        return;
    }
    put_target(b, row, f);
    f->rows++;
    f->trained += row->trained;
}

/* Compares the next `sequences` sequences and their rows with their checksums, if they are in a cache. */
static int check_rows(const struct ot_batcher *b, int64_t sequences) {
    for (int64_t s = 0; s < sequences; s++) {
        int64_t n_rows;
        OT_TRY(ot_packing_check(b->config.packing, b->position.sequence + s));
        const uint32_t *rows = ot_packing_sequence(b->config.packing, b->position.sequence + s, &n_rows);
        for (int64_t i = 0; i < n_rows; i++)
            OT_TRY(ot_dataset_check_row(b->config.dataset, rows[i]));
    }
    return 0;
}

/* Calls put for each row of the next `sequences` sequences, in order. */
static void for_each_row(struct ot_batcher *b, int64_t sequences, struct filling *f,
                         void (*put)(struct ot_batcher *, uint32_t, const struct ot_row *,
                                     struct filling *)) {
    for (int64_t s = 0; s < sequences; s++) {
        int64_t n_rows;
        const uint32_t *rows = ot_packing_sequence(b->config.packing, b->position.sequence + s, &n_rows);
        for (int64_t i = 0; i < n_rows; i++) {
            struct ot_row row = ot_dataset_row(b->config.dataset, rows[i]);
            put(b, rows[i], &row, f);
        }
    }
}

/* Fills the micro-batch of the next `sequences` sequences, beginning at token `base` of the step. */
static void put_micro(struct ot_batcher *b, int64_t sequences, int64_t base, struct ot_micro_batch *micro,
                      struct ot_step_batch *out) {
    int64_t before = b->comparisons ? out->rows : 0;
    struct filling f = {.base = base, .at = base, .inputs = base, .comparisons = before};
    bool pairs = ot_dataset_has_pairs(b->config.dataset);
    if (pairs)
        for_each_row(b, sequences, &f, put_inputs);
    int64_t n_inputs = f.at - base;
    for_each_row(b, sequences, &f, pairs ? put_targets : b->comparisons ? put_comparison : put_row);
    *micro = (struct ot_micro_batch){.n_tokens = f.at - base,
                                     .tokens = b->tokens + base,
                                     .targets = b->targets + base,
                                     .position = b->row_position + base,
                                     .row_start = b->row_start + base,
                                     .n_inputs = n_inputs,
                                     .input_first = pairs ? b->input_first + base : NULL,
                                     .input_end = pairs ? b->input_end + base : NULL,
                                     .n_comparisons = f.comparisons - before,
                                     .comparisons = b->comparisons ? b->comparisons + before : NULL};
    b->position.sequence += sequences;
    out->sequences += sequences;
    out->rows += f.rows;
    out->tokens += f.at - base;
    out->trained_tokens += f.trained;
    out->input.n_losses += b->comparisons ? f.comparisons - before : f.trained;
}

int ot_batcher_next(struct ot_batcher *b, struct ot_step_batch *out) {
    int64_t total = ot_packing_sequences(b->config.packing);
    OT_TRY(ot_packing_set_epoch(b->config.packing, b->position.epoch));
    *out = (struct ot_step_batch){.position = b->position, .input.micro = b->micro};
    int64_t left = total - b->position.sequence;
    left = ot_min(left, b->config.step_sequences);
    OT_TRY(check_rows(b, left));
    for (; left > 0; left -= b->config.micro_sequences) {
        int64_t sequences = ot_min(left, b->config.micro_sequences);
        put_micro(b, sequences, out->tokens, &b->micro[out->input.n_micro++], out);
    }
    if (b->position.sequence == total)
        b->position = (struct ot_data_position){.epoch = b->position.epoch + 1};
    return 0;
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
