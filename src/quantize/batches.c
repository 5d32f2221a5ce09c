#include "src/quantize/batches.h"

#include <stdlib.h>

#include "offload/rows.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/data/batch.h"
#include "src/data/dataset.h"

/* arrays: of each sequence, with room for `room` tokens each. */
static int fill(struct ot_batcher *batcher, int arrays, int64_t room, int64_t multiple,
                struct ot_sequences *out) {
    for (int64_t i = 0; i < out->n; i++) {
        struct ot_step_batch batch;
        ot_batcher_next(batcher, &batch);
        const struct ot_micro_batch *micro = &batch.input.micro[0];
        int64_t padded = (micro->n_tokens + multiple - 1) / multiple * multiple;
        int32_t *memory = out->memory + i * arrays * room;
        ot_rows_copy(arrays, micro, 0, padded, memory, room);
        out->list[i] = (struct ot_sequence){.n_tokens = padded,
                                            .n_rows = micro->n_tokens,
                                            .n_inputs = micro->n_inputs,
                                            .first = out->tokens,
                                            .arrays = memory,
                                            .stride = room};
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
    int arrays = ot_token_arrays(ot_dataset_has_pairs(dataset));
    struct ot_batcher *batcher;
    *out = (struct ot_sequences){.n = ot_min(n, most)};
    out->list = calloc((size_t)out->n, sizeof *out->list);
    out->memory = malloc((size_t)(out->n * arrays * room) * sizeof *out->memory);
    if (!out->list || !out->memory)
        return ot_fail(OT_E_BUDGET, "no memory for %lld sequences of tokens", (long long)out->n);
    OT_TRY(ot_batcher_open(&config, &batcher));
    int rc = fill(batcher, arrays, room, multiple, out);
    ot_batcher_close(batcher);
    return rc;
}

void ot_sequences_free(struct ot_sequences *sequences) {
    free(sequences->list);
    free(sequences->memory);
    *sequences = (struct ot_sequences){0};
}
