/* Encodes one word with a Unigram model. */
#include <stdlib.h>

#include "src/base/error.h"
#include "src/tokenizer/tokenizer_state.h"

static int reserve_steps(struct ot_scratch *s, size_t n) {
    if (n <= s->steps_capacity)
        return 0;
    size_t capacity = n + n / 2 + 256;
    free(s->steps); /* nothing in it is needed */
    s->steps_capacity = 0;
    s->steps = malloc(capacity * sizeof *s->steps);
    if (!s->steps)
        return ot_fail(OT_E_BUDGET, "no memory to tokenize a word of %zu bytes", n);
    s->steps_capacity = capacity;
    return 0;
}

/* Emits bytes [begin, end) of the word, which are unknown characters. They may be a token together, whose
 * score is too low for the path. */
static int put_unknown(struct ot_encoding *e, const struct ot_piece *word, size_t begin, size_t end) {
    const struct ot_unigram *unigram = &e->t->unigram;
    const char *text = word->bytes + begin;
    size_t n = end - begin;
    int32_t id = ot_vocab_find(&e->t->vocab, text, n);
    bool has_all = unigram->byte_fallback;
    if (id >= 0 && (e->t->vocab.tokens[id].flags & OT_TOKEN_MODEL))
        return ot_emit(e->out, id, ot_piece_start(word, begin));
    for (size_t i = 0; has_all && i < n; i++)
        has_all = unigram->byte_tokens[(uint8_t)text[i]] >= 0;
    if (!has_all)
        return ot_emit(e->out, unigram->unk, ot_piece_start(word, begin));
    for (size_t i = 0; i < n; i++)
        OT_TRY(ot_emit(e->out, unigram->byte_tokens[(uint8_t)text[i]], ot_piece_start(word, begin + i)));
    return 0;
}

int ot_unigram_word(struct ot_encoding *e, const struct ot_piece *word) {
    const struct ot_unigram *unigram = &e->t->unigram;
    OT_TRY(reserve_steps(e->scratch, word->n + 1));
    struct ot_unigram_step *steps = e->scratch->steps;
    OT_TRY(ot_unigram_find(unigram, word, steps));
    for (size_t begin = 0, end; begin < word->n; begin = end) {
        end = steps[begin].begin;
        if (steps[begin].id != unigram->unk) {
            OT_TRY(ot_emit(e->out, steps[begin].id, ot_piece_start(word, begin)));
            continue;
        }
        while (end < word->n && steps[end].id == unigram->unk)
            end = steps[end].begin;
        OT_TRY(put_unknown(e, word, begin, end));
    }
    return 0;
}
