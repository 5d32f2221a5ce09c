/* The Unigram model: each token has a score (a log probability), and a word becomes the tokens with the
 * greatest sum of scores. Private to src/tokenizer.
 *
 * Encoding is Viterbi's algorithm, as Hugging Face has it. For each place of the word it keeps the best path
 * that ends there; of equal paths, the one found first stays. A character that is no token itself may be
 * unknown: this costs the least score of all tokens, less 10. Neighbours that are unknown become one token.
 * With byte_fallback they become byte tokens <0xNN> instead, if all of them exist.
 *
 * Scores are doubles, added from left to right, so sums have the same bits as Hugging Face's.
 *
 * The tokens are in a trie over bytes, a double array: the child of a node by a byte is at base + byte, and
 * its `parent` tells if it is really this node's child. A step reads one place of memory. Working memory is
 * 16 bytes for each byte of the word.
 */
#ifndef OT_TOKENIZER_UNIGRAM_H
#define OT_TOKENIZER_UNIGRAM_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

struct ot_arena;
struct ot_piece;
struct ot_vocab;

struct ot_unigram_node {
    uint32_t base;   /* 0: no children */
    uint32_t parent; /* UINT32_MAX: no node is here */
    int32_t id;      /* of the token that ends here; -1: none */
};

struct ot_unigram {
    struct ot_unigram_node *nodes; /* [n_nodes]; node 0 is the root */
    size_t n_nodes;                /* 256 more than the greatest base */
    double *scores;                /* [vocab.n], by id */
    double unknown_score;
    int32_t unk; /* -1: none; then an unknown character is an error */
    int32_t byte_tokens[256];
    bool byte_fallback;
};

/* The best path that ends at one byte of the word; after ot_unigram_find, the token that begins at this
 * byte. */
struct ot_unigram_step {
    double score;
    uint32_t begin; /* where its last token begins (UINT32_MAX: no path ends here); then: where it ends */
    int32_t id;     /* of its last token; then: of the token */
};

/* Builds the trie of the model's tokens in `vocab`. Errors: OT_E_BUDGET (no memory). */
int ot_unigram_build(struct ot_unigram *unigram, struct ot_arena *arena, const struct ot_vocab *vocab);
/* Finds the best path through the word: steps[0] is its first token, steps[steps[0].begin] the next one.
 * steps has word->n + 1 items. Errors: OT_E_INPUT (an unknown character, and no unk). */
int ot_unigram_find(const struct ot_unigram *unigram, const struct ot_piece *word,
                    struct ot_unigram_step *steps);

#endif
