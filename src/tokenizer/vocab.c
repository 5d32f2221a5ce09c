#include "src/tokenizer/vocab.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"

/* Slots for `count` entries. The table is at most half full, so that searches are short and always end at an
 * empty bucket. */
static uint32_t table_size(int64_t count) {
    uint32_t size = 16;
    while ((int64_t)size < 2 * count)
        size *= 2;
    return size;
}

static uint32_t hash_text(const char *text, size_t bytes) {
    uint64_t h = bytes * 0x9e3779b97f4a7c15u, word;
    for (; bytes >= 8; text += 8, bytes -= 8) {
        memcpy(&word, text, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, text, bytes);
    h = (h ^ word) * 0xff51afd7ed558ccdu;
    h ^= h >> 29;
    return (uint32_t)((h * 0x9e3779b97f4a7c15u) >> 32);
}

int ot_vocab_open(struct ot_vocab *vocab, struct ot_arena *arena, int64_t count, int64_t max_id) {
    uint32_t size = table_size(count);
    vocab->tokens = ot_arena_alloc(arena, (size_t)max_id + 1, sizeof *vocab->tokens);
    vocab->buckets = ot_arena_alloc(arena, size, sizeof *vocab->buckets);
    if (!vocab->tokens || !vocab->buckets)
        return ot_fail(OT_E_BUDGET, "no memory for a vocabulary of %lld tokens", (long long)count);
    memset(vocab->buckets, 0xff, size * sizeof *vocab->buckets);
    vocab->mask = size - 1;
    vocab->n = (int32_t)max_id + 1;
    return 0;
}

int ot_vocab_add(struct ot_vocab *vocab, struct ot_arena *arena, const char *text, size_t bytes, int32_t id,
                 uint32_t flags) {
    char *copy = ot_arena_strdup(arena, text, bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for a vocabulary");
    vocab->tokens[id] = (struct ot_token){copy, (uint32_t)bytes, flags};
    uint32_t i = hash_text(text, bytes);
    while (vocab->buckets[i & vocab->mask] >= 0)
        i++;
    vocab->buckets[i & vocab->mask] = id;
    return 0;
}

int32_t ot_vocab_find(const struct ot_vocab *vocab, const char *text, size_t bytes) {
    for (uint32_t i = hash_text(text, bytes);; i++) {
        int32_t id = vocab->buckets[i & vocab->mask];
        if (id < 0)
            return -1;
        const struct ot_token *token = &vocab->tokens[id];
        if (token->bytes == bytes && memcmp(token->text, text, bytes) == 0)
            return id;
    }
}

int ot_merges_open(struct ot_merges *merges, struct ot_arena *arena, int64_t count) {
    uint32_t size = table_size(count);
    merges->buckets = ot_arena_alloc(arena, size, sizeof *merges->buckets);
    if (!merges->buckets)
        return ot_fail(OT_E_BUDGET, "no memory for %lld merges", (long long)count);
    memset(merges->buckets, 0xff, size * sizeof *merges->buckets);
    merges->mask = size - 1;
    return 0;
}

void ot_merges_add(struct ot_merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    uint64_t pair = ot_merge_pair(left, right);
    uint32_t i = ot_merge_hash(pair);
    while (merges->buckets[i & merges->mask].pair != UINT64_MAX &&
           merges->buckets[i & merges->mask].pair != pair)
        i++;
    merges->buckets[i & merges->mask] = (struct ot_merge){pair, rank, id};
}
