/* Finds added tokens with a byte trie for each pass. Matches are leftmost and longest, like those of Hugging
 * Face's Aho-Corasick. */
#include "src/tokenizer/tokenizer_state.h"

#include <string.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

static uint32_t hash_edge(uint64_t edge) {
    return (uint32_t)((edge * 0x9e3779b97f4a7c15u) >> 32);
}

/* The node that the edge leads to, or 0. */
static uint32_t follow(const struct ot_trie *trie, uint32_t node, uint8_t byte) {
    uint64_t edge = ((uint64_t)node << 8 | byte) + 1;
    for (uint32_t i = hash_edge(edge);; i++) {
        uint64_t found = trie->edges[i & trie->mask];
        if (found == edge)
            return trie->children[i & trie->mask];
        if (found == 0)
            return 0;
    }
}

static void add_edge(struct ot_trie *trie, uint32_t node, uint8_t byte, uint32_t child) {
    uint64_t edge = ((uint64_t)node << 8 | byte) + 1;
    uint32_t i = hash_edge(edge);
    while (trie->edges[i & trie->mask] != 0)
        i++;
    trie->edges[i & trie->mask] = edge;
    trie->children[i & trie->mask] = child;
}

int ot_trie_build(struct ot_trie *trie, struct ot_arena *arena) {
    size_t total = 1, size = 16;
    for (int32_t i = 0; i < trie->n_tokens; i++)
        total += trie->tokens[i].content.bytes;
    while (size < 2 * total)
        size *= 2;
    trie->mask = (uint32_t)size - 1;
    trie->edges = ot_arena_alloc(arena, size, sizeof *trie->edges);
    trie->children = ot_arena_alloc(arena, size, sizeof *trie->children);
    trie->token_at = ot_arena_alloc(arena, total, sizeof *trie->token_at);
    if (!trie->edges || !trie->children || !trie->token_at)
        return ot_fail(OT_E_BUDGET, "no memory for %d added tokens", trie->n_tokens);
    memset(trie->token_at, 0xff, total * sizeof *trie->token_at);
    uint32_t nodes = 1;
    int n_starts = 0;
    for (int32_t i = 0; i < trie->n_tokens; i++) {
        const struct ot_string *content = &trie->tokens[i].content;
        uint32_t node = 0;
        for (size_t k = 0; k < content->bytes; k++) {
            uint8_t byte = (uint8_t)content->text[k];
            uint32_t child = follow(trie, node, byte);
            if (!child)
                add_edge(trie, node, byte, child = nodes++);
            node = child;
        }
        trie->token_at[node] = i;
        uint8_t first = (uint8_t)content->text[0];
        n_starts += !trie->starts[first];
        trie->starts[first] = true;
        trie->only_start = n_starts == 1 ? first : -1;
    }
    return 0;
}

static size_t next_start(const struct ot_trie *trie, const struct ot_piece *p, size_t i) {
    if (trie->only_start >= 0) {
        const char *at = memchr(p->bytes + i, trie->only_start, p->n - i);
        return at ? (size_t)(at - p->bytes) : p->n;
    }
    while (i < p->n && !trie->starts[(uint8_t)p->bytes[i]])
        i++;
    return i;
}

/* The longest token at i, or -1. */
static int32_t match_at(const struct ot_trie *trie, const struct ot_piece *p, size_t i) {
    int32_t best = -1;
    uint32_t node = 0;
    while (i < p->n && (node = follow(trie, node, (uint8_t)p->bytes[i++])) != 0)
        if (trie->token_at[node] >= 0)
            best = trie->token_at[node];
    return best;
}

static bool is_single_word(const struct ot_piece *p, size_t begin, size_t end) {
    size_t length;
    return (begin == 0 || !ot_unicode_is_word(ot_utf8_decode_before(p->bytes, begin, &length))) &&
           (end == p->n || !ot_unicode_is_word(ot_utf8_decode(p->bytes + end, &length)));
}

static size_t space_before(const struct ot_piece *p, size_t begin, size_t floor) {
    size_t length;
    while (begin > floor && ot_unicode_is_space(ot_utf8_decode_before(p->bytes, begin, &length)))
        begin -= length;
    return begin;
}

static size_t space_after(const struct ot_piece *p, size_t end) {
    size_t length;
    while (end < p->n && ot_unicode_is_space(ot_utf8_decode(p->bytes + end, &length)))
        end += length;
    return end;
}

const struct ot_added_token *ot_trie_next(const struct ot_trie *trie, const struct ot_piece *piece,
                                          unsigned flags, size_t floor, size_t *from, size_t *begin,
                                          size_t *end) {
    if (trie->n_tokens == 0)
        return NULL;
    for (size_t i; (i = next_start(trie, piece, *from)) < piece->n;) {
        int32_t index = match_at(trie, piece, i);
        if (index < 0) {
            *from = i + 1;
            continue;
        }
        const struct ot_added_token *token = &trie->tokens[index];
        *begin = i;
        *end = *from = i + token->content.bytes;
        if ((flags & OT_TOKENIZER_SPECIALS_AS_TEXT) && token->special)
            continue;
        if (token->single_word && !is_single_word(piece, *begin, *end))
            continue;
        if (token->lstrip)
            *begin = floor > *begin ? floor : space_before(piece, *begin, floor);
        if (token->rstrip) /* spaces before the floor are stripped already */
            *end = space_after(piece, ot_max(*end, floor));
        if (*end < *begin) /* a token of spaces that the token before it has stripped */
            *end = *begin;
        return token;
    }
    return NULL;
}
