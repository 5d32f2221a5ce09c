/* Writes the parts of a tokenizer.json that both makers of one need: of a SentencePiece model
 * (sentencepiece_make.c) and of a GGUF file (src/gguf/vocab_read.c). */
#ifndef OT_TOKENIZER_MAKE_JSON_H
#define OT_TOKENIZER_MAKE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/json.h"
#include "src/tokenizer/sentencepiece.h"

/* ---- stages: normalizers, pre-tokenizers, decoders. key: NULL in a list ---- */

/* Begins an object with a "type". The caller ends it. */
void ot_make_begin(struct ot_json_writer *w, const char *key, const char *type);
/* A Sequence; items: the key of its list. */
void ot_make_begin_list(struct ot_json_writer *w, const char *key, const char *items);
void ot_make_end_list(struct ot_json_writer *w);
void ot_make_bare(struct ot_json_writer *w, const char *key, const char *type); /* only the type */
void ot_make_prepend(struct ot_json_writer *w, const char *text);
/* kind of the pattern: "String" or "Regex". */
void ot_make_replace(struct ot_json_writer *w, const char *kind, const char *pattern, const char *content);
void ot_make_split(struct ot_json_writer *w, const char *key, const char *kind, const char *pattern,
                   const char *behavior);
void ot_make_metaspace(struct ot_json_writer *w, const char *key, const char *prepend_scheme, bool split);
/* The normalizers of T5: the table of replacements (NULL: none) and, if merge_spaces, one space for several
 * and none at the end. Errors: OT_E_BUDGET. */
int ot_make_t5_normalizer(struct ot_json_writer *w, const void *charsmap, size_t bytes, bool merge_spaces);
/* A table of replacements; NULL: writes nothing. Errors: OT_E_BUDGET. */
int ot_make_charsmap(struct ot_json_writer *w, const void *charsmap, size_t bytes);
/* The decoder of SentencePiece's BPE. prefix: a text got a space in front. */
void ot_make_bpe_decoder(struct ot_json_writer *w, bool prefix);

/* The post-processor that puts bos before a text and eos behind it. The tokens' texts end with NUL; NULL: no
 * such token. pair: also the template of two texts. */
void ot_make_post_processor(struct ot_json_writer *w, const struct ot_sentencepiece_added *bos,
                            const struct ot_sentencepiece_added *eos, bool pair);

/* An item of a Unigram model's "vocab". */
void ot_make_scored(struct ot_json_writer *w, const char *text, size_t bytes, double score);

/* ---- merges of a BPE model whose tokens have scores ---- */

/* The work to find them grows with the square of a token's length. No token of a real file is nearly that
 * long. */
enum { OT_MAX_MERGED_BYTES = 512 };

struct ot_scored_merge {
    float score;         /* of the token that it makes */
    int64_t left, right; /* ids */
    int64_t left_length, right_length;
    int64_t order; /* decides between merges that are equal in score and lengths: the least first */
};

struct ot_scored_merges { /* zero it first; free(all) at the end */
    struct ot_scored_merge *all;
    size_t n, capacity;
};

/* Errors: OT_E_BUDGET. */
int ot_scored_merges_add(struct ot_scored_merges *list, struct ot_scored_merge merge);
/* The best score first; then the longer left side, then the longer right side, as in transformers. */
void ot_scored_merges_sort(struct ot_scored_merges *list);
/* An item of "merges". */
void ot_make_merge(struct ot_json_writer *w, const char *left, size_t left_bytes, const char *right,
                   size_t right_bytes);

#endif
