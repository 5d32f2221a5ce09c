/* Reads a Unigram model: the tokens with their scores; a token's id is its place in the list. */
#include "src/tokenizer/tokenizer_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/json.h"

static int load_token(struct ot_tokenizer *t, const char *where, int32_t id, const struct ot_json *item) {
    const struct ot_json *score = ot_json_at(item, 1);
    size_t bytes;
    const char *text = ot_json_string(ot_json_at(item, 0), &bytes);
    bool is_number = ot_json_type(score) == OT_JSON_INT || ot_json_type(score) == OT_JSON_REAL;
    if (!text || !is_number || ot_json_length(item) != 2 || !isfinite(ot_json_real(score, 0)))
        return ot_fail(OT_E_INPUT, "%s: model.vocab[%d] must be [\"token\", score]", where, id);
    if (bytes > OT_TOKEN_MAX_BYTES)
        return ot_fail(OT_E_INPUT, "%s: token '%.100s...' is longer than %d bytes", where, text,
                       OT_TOKEN_MAX_BYTES);
    int32_t known = ot_vocab_find(&t->vocab, text, bytes);
    if (known >= 0)
        return ot_fail(OT_E_INPUT, "%s: model.vocab[%d] and model.vocab[%d] are the same token '%.100s'",
                       where, known, id, text);
    t->unigram.scores[id] = ot_json_real(score, 0);
    return ot_vocab_add(&t->vocab, t->arena, text, bytes, id, OT_TOKEN_MODEL);
}

static int load_tokens(struct ot_tokenizer *t, const char *where, const struct ot_json *vocab,
                       const struct ot_json *added) {
    size_t n = ot_json_length(vocab);
    int64_t count = (int64_t)n, max_id = count - 1;
    double least = INFINITY;
    if (ot_json_type(vocab) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: model.vocab must be an array, not %s", where,
                       ot_json_type_name(ot_json_type(vocab)));
    if (n == 0)
        return ot_fail(OT_E_INPUT, "%s: model.vocab is empty", where);
    if (max_id > OT_VOCAB_MAX_ID)
        return ot_fail(OT_E_INPUT, "%s: model.vocab has more than %d tokens", where, OT_VOCAB_MAX_ID + 1);
    OT_TRY(ot_load_measure_added(where, added, &count, &max_id));
    OT_TRY(ot_vocab_open(&t->vocab, t->arena, count, max_id));
    t->unigram.scores = ot_arena_alloc(t->arena, n, sizeof *t->unigram.scores);
    if (!t->unigram.scores)
        return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
    for (size_t i = 0; i < n; i++) {
        OT_TRY(load_token(t, where, (int32_t)i, ot_json_at(vocab, i)));
        least = fmin(least, t->unigram.scores[i]);
    }
    t->unigram.unknown_score = least - 10;
    return 0;
}

/* Finds the byte tokens. If one is missing, none is used. */
static void find_bytes(struct ot_tokenizer *t) {
    struct ot_unigram *unigram = &t->unigram;
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        unigram->byte_tokens[byte] = ot_vocab_find(&t->vocab, name, (size_t)n);
    }
}

int ot_load_unigram(struct ot_tokenizer *t, const char *where, const struct ot_json *model,
                    const struct ot_json *added) {
    int64_t unk = -1, n = (int64_t)ot_json_length(ot_json_get(model, "vocab"));
    OT_TRY(ot_json_need_bool(model, where, "byte_fallback", false, &t->unigram.byte_fallback));
    OT_TRY(load_tokens(t, where, ot_json_get(model, "vocab"), added));
    OT_TRY(ot_json_need_int(model, where, "unk_id", false, 0, n - 1, &unk));
    t->unigram.unk = (int32_t)unk;
    find_bytes(t);
    return ot_unigram_build(&t->unigram, t->arena, &t->vocab);
}
