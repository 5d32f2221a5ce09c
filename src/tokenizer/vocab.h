/* The vocabulary and the merges, as open-addressing hash tables in an arena. One thread fills them while it
 * reads a tokenizer. After that they never change, and any thread may read them.
 */
#ifndef OT_TOKENIZER_VOCAB_H
#define OT_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_arena;

/* Limits for files. Ids index an array, so the limit bounds its size; the largest real vocabularies have 2^18
 * tokens. */
enum { OT_VOCAB_MAX_ID = (1 << 24) - 1, OT_TOKEN_MAX_BYTES = 2048 };

enum ot_token_flags { OT_TOKEN_MODEL = 1, OT_TOKEN_ADDED = 2, OT_TOKEN_SPECIAL = 4 };

struct ot_token {
    const char *text; /* NULL: no token has this id */
    uint32_t bytes;
    uint32_t flags;
};

struct ot_vocab {
    struct ot_token *tokens; /* [n], by id */
    int32_t n;               /* one more than the largest id */
    int32_t *buckets;        /* hash table of ids; -1: empty */
    uint32_t mask;
};

/* Makes room for ids from 0 to max_id and for `count` tokens. The arena owns the memory. Errors: OT_E_BUDGET
 * (no memory). */
int ot_vocab_open(struct ot_vocab *vocab, struct ot_arena *arena, int64_t count, int64_t max_id);
/* Adds a token and copies its text into the arena. The caller has checked that no token has this text or this
 * id. Errors: OT_E_BUDGET (no memory). */
int ot_vocab_add(struct ot_vocab *vocab, struct ot_arena *arena, const char *text, size_t bytes, int32_t id,
                 uint32_t flags);
int32_t ot_vocab_find(const struct ot_vocab *vocab, const char *text, size_t bytes); /* -1: none */

static inline const struct ot_token *ot_vocab_token(const struct ot_vocab *vocab, int32_t id) {
    return id >= 0 && id < vocab->n && vocab->tokens[id].text ? &vocab->tokens[id] : NULL;
}

/* A pair of adjacent tokens that BPE merges into one. In a word, the pair with the lowest rank is merged
 * first. */
struct ot_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: empty */
    uint32_t rank;
    int32_t id;
};

struct ot_merges {
    struct ot_merge *buckets;
    uint32_t mask;
};

static inline uint64_t ot_merge_pair(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline uint32_t ot_merge_hash(uint64_t pair) {
    pair *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(pair >> 32);
}

int ot_merges_open(struct ot_merges *merges, struct ot_arena *arena, int64_t count);
/* Adds a merge. If the file names a pair twice, the later rank counts, as in Hugging Face. */
void ot_merges_add(struct ot_merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t id);

static inline const struct ot_merge *ot_merges_find(const struct ot_merges *merges, int32_t left,
                                                    int32_t right) {
    uint64_t pair = ot_merge_pair(left, right);
    for (uint32_t i = ot_merge_hash(pair);; i++) {
        const struct ot_merge *m = &merges->buckets[i & merges->mask];
        if (m->pair == pair)
            return m;
        if (m->pair == UINT64_MAX)
            return NULL;
    }
}

#endif
