/* Encodes words: takes the tokens of a short word from the cache, else lets the model encode it. */
#include "src/base/error.h"
#include "src/tokenizer/word_cache.h"

static int ask_model(struct ot_encoding *e, const struct ot_piece *word) {
    return e->t->model == OT_MODEL_UNIGRAM ? ot_unigram_word(e, word) : ot_bpe_word(e, word);
}

int ot_encode_word(struct ot_encoding *e, const struct ot_piece *word) {
    if (word->n > OT_CACHE_KEY)
        return ask_model(e, word);
    uint64_t key[3];
    ot_word_key(word->bytes, word->n, key);
    struct ot_cache_entry *entry = ot_word_entry(e->scratch, key, word->n);
    if (ot_word_is(entry, key, word->n))
        return ot_word_emit(e, entry, word);
    /* Encodes with offsets in the word, which the cache can store, and adds the word's own offset
     * afterwards. */
    size_t first = e->out->n;
    struct ot_piece local = {word->bytes, word->n, NULL, 0};
    OT_TRY(ask_model(e, &local));
    if (e->out->n == first) /* no tokens to store, and out->ids may be NULL */
        return 0;
    ot_word_store(entry, key, word->n, e->out->ids + first, e->out->start + first, 0, e->out->n - first);
    for (size_t i = first; i < e->out->n; i++)
        e->out->start[i] = ot_piece_start(word, e->out->start[i]);
    return 0;
}
