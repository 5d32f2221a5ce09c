#include "offload/rows.h"

#include <string.h>

#include "src/base/error.h"

/* ---- checks ---- */

/* Checks the ranges of inputs. */
static int check_pairs(const struct ot_micro_batch *mb, int micro) {
    if (mb->n_inputs < 1 || mb->n_inputs >= mb->n_tokens)
        return ot_fail(OT_E_INPUT, "micro-batch %d: %lld of its %lld tokens are inputs", micro,
                       (long long)mb->n_inputs, (long long)mb->n_tokens);
    for (int64_t i = 0; i < mb->n_tokens; i++) {
        int32_t first = mb->input_first[i], end = mb->input_end[i];
        bool inside = i >= mb->n_inputs || (first <= i && i < end && first == mb->row_start[i]);
        if (first < 0 || first >= end || end > mb->n_inputs || !inside ||
            (i >= mb->n_inputs && mb->row_start[i] < mb->n_inputs))
            return ot_fail(OT_E_INPUT,
                           "micro-batch %d, token %lld: the inputs of its row cannot be tokens %d to %d",
                           micro, (long long)i, first, end - 1);
    }
    return 0;
}

/* Checks that the comparisons are in order, and that each has two rows with targets. Of pairs they are
 * targets: the inputs lie elsewhere. */
static int check_comparisons(const struct ot_micro_batch *mb, int micro) {
    int32_t before = (int32_t)mb->n_inputs, least = mb->n_inputs > 0 ? 1 : 2;
    for (int64_t i = 0; i < mb->n_comparisons; i++) {
        const struct ot_comparison *c = &mb->comparisons[i];
        bool sound = before <= c->begin && c->begin + least <= c->middle && c->middle + least <= c->end &&
                     c->end <= mb->n_tokens && c->targets[0] > 0 && c->targets[1] > 0;
        if (!sound)
            return ot_fail(OT_E_INPUT, "micro-batch %d: comparison %lld cannot be of tokens %d, %d to %d",
                           micro, (long long)i, c->begin, c->middle, c->end);
        before = c->end;
    }
    return 0;
}

int ot_rows_check_tokens(const struct ot_chain *chain, int64_t most, const struct ot_micro_batch *mb,
                         int micro) {
    if (mb->n_tokens < 1 || mb->n_tokens > most)
        return ot_fail(OT_E_INPUT, "micro-batch %d has %lld tokens; the plan is for 1 to %lld", micro,
                       (long long)mb->n_tokens, (long long)most);
    for (int64_t i = 0; i < mb->n_tokens; i++) {
        if (mb->tokens[i] < 0 || mb->tokens[i] >= chain->vocab)
            return ot_fail(OT_E_INPUT,
                           "micro-batch %d, token %lld: id %d is not in the embedding of %lld rows", micro,
                           (long long)i, mb->tokens[i], (long long)chain->vocab);
        if (mb->targets[i] < -1 || mb->targets[i] >= chain->vocab)
            return ot_fail(OT_E_INPUT,
                           "micro-batch %d, token %lld: target %d is not in the embedding of %lld rows",
                           micro, (long long)i, mb->targets[i], (long long)chain->vocab);
        if (mb->position[i] < 0 || mb->position[i] >= chain->max_position)
            return ot_fail(
                OT_E_INPUT,
                "micro-batch %d, token %lld: position %d is beyond the %lld that the model was opened for",
                micro, (long long)i, mb->position[i], (long long)chain->max_position);
    }
    return 0;
}

int ot_rows_check(const struct ot_chain *chain, int64_t most, const struct ot_micro_batch *mb, int micro) {
    OT_TRY(ot_rows_check_tokens(chain, most, mb, micro));
    for (int64_t i = 0; i < mb->n_tokens; i++)
        if (mb->row_start[i] < 0 || mb->row_start[i] > i)
            return ot_fail(OT_E_INPUT, "micro-batch %d, token %lld: its row cannot start at token %d", micro,
                           (long long)i, mb->row_start[i]);
    if (chain->has_pairs)
        OT_TRY(check_pairs(mb, micro));
    return chain->compares ? check_comparisons(mb, micro) : 0;
}

/* ---- copies ---- */

void ot_rows_copy(int n_arrays, const struct ot_micro_batch *mb, int64_t past, int64_t n_tokens,
                  int32_t *arrays, int64_t stride) {
    const int32_t *from[OT_MOST_TOKEN_ARRAYS] = {mb->tokens,    mb->targets,     mb->position,
                                                 mb->row_start, mb->input_first, mb->input_end};
    bool pairs = n_arrays == OT_MOST_TOKEN_ARRAYS;
    for (int f = 0; f < n_arrays - pairs; f++) { /* key_end is made here */
        int32_t *to = arrays + f * stride;
        memcpy(to, from[f], (size_t)mb->n_tokens * sizeof *to);
        for (int64_t i = mb->n_tokens; i < n_tokens; i++)
            to[i] = f == OT_ARRAY_TARGETS ? -1 : f == OT_ARRAY_ROW_START ? (int32_t)(past + i) : from[f][0];
    }
    for (int64_t i = 0; pairs && i < n_tokens; i++)
        arrays[OT_ARRAY_KEY_END * stride + i] =
            past + i < mb->n_inputs ? arrays[OT_ARRAY_INPUT_END * stride + i] : (int32_t)(past + i + 1);
}
