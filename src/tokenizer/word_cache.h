/* The word cache: short words are looked up before the model encodes them. Private to src/tokenizer.
 *
 * An entry has 64 bytes, and a hash has one entry: a new word replaces the word before it. Each scratch has
 * its own cache, so no locks are used. BPE also keeps runs of symbols of longer words in it.
 */
#ifndef OT_TOKENIZER_WORD_CACHE_H
#define OT_TOKENIZER_WORD_CACHE_H

#include <string.h>

#include "src/tokenizer/tokenizer_state.h"

/* A key of three words for a text of at most OT_CACHE_KEY bytes. Texts of equal length have equal keys only
 * if they are equal. Does not read beyond the text. */
static inline void ot_word_key(const char *text, size_t n, uint64_t key[3]) {
    key[0] = key[1] = key[2] = 0;
    if (n >= 8) {
        memcpy(&key[0], text, 8);
        if (n > 16)
            memcpy(&key[1], text + 8, 8);
        memcpy(&key[2], text + n - 8, 8);
    } else if (n >= 4) {
        uint32_t head, tail;
        memcpy(&head, text, 4);
        memcpy(&tail, text + n - 4, 4);
        key[0] = (uint64_t)head << 32 | tail;
    } else {
        key[0] =
            (uint64_t)(uint8_t)text[0] << 16 | (uint64_t)(uint8_t)text[n / 2] << 8 | (uint8_t)text[n - 1];
    }
}

static inline struct ot_cache_entry *ot_word_entry(struct ot_scratch *scratch, const uint64_t key[3],
                                                   size_t n) {
    uint64_t h = (key[0] ^ n) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32 ^ key[1]) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 32 ^ key[2]) * 0x9e3779b97f4a7c15u;
    return &scratch->cache[h >> 40 & (OT_CACHE_SLOTS - 1)];
}

static inline bool ot_word_is(const struct ot_cache_entry *entry, const uint64_t key[3], size_t n) {
    return entry->bytes == n && memcmp(entry->key, key, sizeof entry->key) == 0;
}

/* Emits the tokens of an entry; `word` has their offsets. Errors: OT_E_BUDGET. */
static inline int ot_word_emit(struct ot_encoding *e, const struct ot_cache_entry *entry,
                               const struct ot_piece *word) {
    OT_TRY(ot_emit(e->out, entry->ids[0], ot_piece_start(word, 0)));
    for (int i = 1; i < entry->n; i++)
        OT_TRY(ot_emit(e->out, entry->ids[i], ot_piece_start(word, entry->begin[i - 1])));
    return 0;
}

/* Stores n tokens in the entry, if they fit. Token i starts at byte begin[i] - origin of the word. */
static inline void ot_word_store(struct ot_cache_entry *entry, const uint64_t key[3], size_t bytes,
                                 const int32_t *ids, const uint32_t *begin, uint32_t origin, size_t n) {
    if (n == 0 || n > OT_CACHE_TOKENS)
        return;
    memcpy(entry->key, key, sizeof entry->key);
    entry->bytes = (uint8_t)bytes;
    entry->n = (uint8_t)n;
    for (size_t i = 0; i < n; i++) {
        entry->ids[i] = ids[i];
        if (i > 0)
            entry->begin[i - 1] = (uint8_t)(begin[i] - origin);
    }
}

#endif
