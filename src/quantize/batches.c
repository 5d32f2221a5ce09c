#include "src/quantize/batches.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/data/batch.h"
#include "src/data/dataset.h"

enum { FIELDS = 4, FIELDS_OF_PAIRS = 7 };

static int n_fields(const struct ot_dataset *dataset) {
    return ot_dataset_has_pairs(dataset) ? FIELDS_OF_PAIRS : FIELDS;
}

/* Copies the fields that only pairs have. */
static void put_pairs(const struct ot_micro_batch *micro, int64_t room, int64_t padded, int32_t *memory,
                      struct ot_sequence *out) {
    int32_t *input_first = memory, *input_end = memory + room, *key_end = memory + 2 * room;
    for (int64_t i = 0; i < padded; i++) {
        int64_t from = i < micro->n_tokens ? i : 0;
        input_first[i] = micro->input_first[from];
        input_end[i] = micro->input_end[from];
        key_end[i] = i < micro->n_inputs ? input_end[i] : (int32_t)(i + 1);
    }
    out->n_inputs = micro->n_inputs;
    out->input_first = input_first;
    out->input_end = input_end;
    out->key_end = key_end;
}

static void put_sequence(const struct ot_micro_batch *micro, int64_t room, int64_t padded, int32_t *memory,
                         struct ot_sequence *out) {
    const int32_t *fields[FIELDS] = {micro->tokens, micro->targets, micro->position, micro->row_start};
    int32_t *copy[FIELDS];
    for (int f = 0; f < FIELDS; f++) {
        copy[f] = memory + f * room;
        memcpy(copy[f], fields[f], (size_t)micro->n_tokens * sizeof(int32_t));
    }
    for (int64_t i = micro->n_tokens; i < padded; i++) {
        copy[0][i] = micro->tokens[0];
        copy[1][i] = -1;
        copy[2][i] = micro->position[0];
        copy[3][i] = (int32_t)i;
    }
    *out = (struct ot_sequence){.n_tokens = padded,
                                .n_rows = micro->n_tokens,
                                .tokens = copy[0],
                                .targets = copy[1],
                                .position = copy[2],
                                .row_start = copy[3]};
    if (micro->input_first)
        put_pairs(micro, room, padded, memory + FIELDS * room, out);
}

/* room: of each sequence, in `memory`. */
static int fill(struct ot_batcher *batcher, int fields, int64_t room, int64_t multiple,
                struct ot_sequences *out) {
    for (int64_t i = 0; i < out->n; i++) {
        struct ot_step_batch batch;
        ot_batcher_next(batcher, &batch);
        const struct ot_micro_batch *micro = &batch.input.micro[0];
        int64_t padded = (micro->n_tokens + multiple - 1) / multiple * multiple;
        put_sequence(micro, room, padded, out->memory + i * fields * room, &out->list[i]);
        out->list[i].first = out->tokens;
        out->tokens += padded;
        out->row_tokens += micro->n_tokens;
        out->most_tokens = ot_max(padded, out->most_tokens);
    }
    return 0;
}

int ot_sequences_open(struct ot_packing *packing, const struct ot_dataset *dataset, int64_t seq_len,
                      int64_t most, int64_t multiple, struct ot_sequences *out) {
    const struct ot_batch_config config = {.packing = packing,
                                           .dataset = dataset,
                                           .seq_len = seq_len,
                                           .step_sequences = 1,
                                           .micro_sequences = 1};
    int64_t n = ot_packing_sequences(packing), room = (seq_len + multiple - 1) / multiple * multiple;
    int fields = n_fields(dataset);
    struct ot_batcher *batcher;
    *out = (struct ot_sequences){.n = ot_min(n, most)};
    out->list = calloc((size_t)out->n, sizeof *out->list);
    out->memory = malloc((size_t)(out->n * fields * room) * sizeof *out->memory);
    if (!out->list || !out->memory)
        return ot_fail(OT_E_BUDGET, "no memory for %lld sequences of tokens", (long long)out->n);
    OT_TRY(ot_batcher_open(&config, &batcher));
    int rc = fill(batcher, fields, room, multiple, out);
    ot_batcher_close(batcher);
    return rc;
}

void ot_sequences_free(struct ot_sequences *sequences) {
    free(sequences->list);
    free(sequences->memory);
    *sequences = (struct ot_sequences){0};
}
