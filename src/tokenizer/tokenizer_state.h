/* The state of an open tokenizer. Private to src/tokenizer.
 *
 * load*.c fill in a struct ot_tokenizer. After that only `spares` changes: the scratches that wait for the
 * next call. Encoding is depth first: each piece passes through all remaining stages before the next piece is
 * cut off. So there are no lists of pieces, and working memory depends only on the longest piece.
 *
 *   text -> [added tokens, raw] -> normalisers -> [added tokens, normalised] -> splitters -> model -> ids
 */
#ifndef OT_TOKENIZER_TOKENIZER_STATE_H
#define OT_TOKENIZER_TOKENIZER_STATE_H

#include <stdatomic.h>

#include "src/tokenizer/charsmap.h"
#include "src/tokenizer/regex_match.h"
#include "src/tokenizer/text.h"
#include "src/tokenizer/tokenizer.h"
#include "src/tokenizer/unigram.h"
#include "src/tokenizer/vocab.h"

struct ot_arena;
struct ot_json;

struct ot_string {
    const char *text; /* in the tokenizer's arena */
    size_t bytes;
};

/* ---- patterns to find in a piece ---- */

enum ot_pattern_kind {
    OT_PATTERN_LITERAL,
    OT_PATTERN_REGEX,
    OT_PATTERN_CLASS, /* each character of a class is one match */
    /* Runs of word characters, and runs of characters that are neither word nor space. */
    OT_PATTERN_WHITESPACE
};

struct ot_pattern {
    enum ot_pattern_kind kind;
    struct ot_string literal;
    struct ot_regex *regex;
    bool (*is_member)(uint32_t code_point);
};

/* The state of a search for all matches of a pattern in a piece, from left to right. Zero it first. */
struct ot_finder {
    size_t from;
    size_t last_end; /* if has_last: end of the last match; an empty match there is skipped */
    bool has_last;
};

/* Returns 1 and the next match, 0 at the end, or an error. */
int ot_pattern_next(const struct ot_pattern *pattern, struct ot_regex_scratch *scratch,
                    const struct ot_piece *piece, struct ot_finder *finder, size_t *begin, size_t *end);

/* ---- normalisers ---- */

enum ot_normalizer_kind {
    OT_NORMALIZE_PREPEND,
    OT_NORMALIZE_REPLACE,
    OT_NORMALIZE_UNICODE, /* NFC, NFD, NFKC, NFKD */
    OT_NORMALIZE_LOWERCASE,
    OT_NORMALIZE_STRIP,
    OT_NORMALIZE_STRIP_ACCENTS, /* removes combining marks */
    OT_NORMALIZE_NMT,           /* removes control characters; other blanks become spaces */
    OT_NORMALIZE_SPELL_BYTES,   /* writes each byte as a character of the byte-level alphabet */
    OT_NORMALIZE_CHARSMAP
};

struct ot_normalizer {
    enum ot_normalizer_kind kind;
    struct ot_pattern pattern; /* replace */
    struct ot_string content;  /* replace, prepend */
    struct ot_charsmap charsmap;
    bool compose, compatible; /* Unicode forms: C, K */
    bool left, right;         /* strip */
};

/* ---- pre-tokenizers ---- */

/* A ByteLevel of the file becomes two stages: a split, and a stage that writes each byte as a character. If
 * that second stage is the last of all, as usual, and the model is BPE, it is left out: the bytes stay, and
 * BPE looks them up by value. */
enum ot_splitter_kind { OT_SPLIT_PATTERN, OT_SPLIT_BYTE_LEVEL, OT_SPLIT_SPELL_BYTES, OT_SPLIT_METASPACE };
enum ot_behavior { OT_REMOVED, OT_ISOLATED, OT_MERGED_WITH_PREVIOUS, OT_MERGED_WITH_NEXT, OT_CONTIGUOUS };
enum ot_prepend { OT_PREPEND_FIRST, OT_PREPEND_ALWAYS, OT_PREPEND_NEVER };

struct ot_splitter {
    enum ot_splitter_kind kind;
    struct ot_pattern pattern; /* ByteLevel: the GPT-2 regex; Metaspace: its mark */
    enum ot_behavior behavior;
    bool invert;
    bool splits;             /* ByteLevel's use_regex, Metaspace's split; true for patterns */
    bool add_prefix_space;   /* ByteLevel */
    enum ot_prepend prepend; /* Metaspace */
};

/* ---- added tokens ---- */

struct ot_added_token {
    struct ot_string content; /* text to match; already normalised in the `normalized` trie */
    int32_t id;
    bool single_word, lstrip, rstrip, special;
};

/* A trie over the added tokens of one pass (raw or normalised text). Node 0 is the root. */
struct ot_trie {
    struct ot_added_token *tokens;
    int32_t n_tokens;
    uint64_t *edges;    /* hash table: (node << 8 | byte) + 1, 0: empty */
    uint32_t *children; /* parallel to edges: the node that the edge leads to */
    uint32_t mask;
    int32_t *token_at;  /* by node: index of the token that ends there, or -1 */
    bool starts[256];   /* bytes that start a token */
    const char *prefix; /* the bytes with which all tokens begin */
    size_t prefix_bytes;
};

int ot_trie_build(struct ot_trie *trie, struct ot_arena *arena);
/* Finds the next added token at or after *from: the leftmost, and of these the longest. Sets [*begin, *end)
 * to its range, including spaces that it strips, and moves *from behind the match without those spaces.
 * floor: end of the last range. Returns NULL if there is none. */
const struct ot_added_token *ot_trie_next(const struct ot_trie *trie, const struct ot_piece *piece,
                                          unsigned flags, size_t floor, size_t *from, size_t *begin,
                                          size_t *end);

/* ---- BPE ---- */

enum { OT_PAIR_BITS = 1 << 18 };
/* The common characters: those of ASCII by their code, and behind them the mark that stands for a space. */
enum { OT_COMMON = 129, OT_COMMON_MARK = 0x2581 };

struct ot_bpe {
    struct ot_merges merges;
    int32_t **pages;           /* by code point >> 8: ids of 256 one-character tokens; -1: no token */
    int32_t byte_symbols[256]; /* byte-level: id of the byte's character */
    int32_t byte_tokens[256];  /* fallback: id of <0xNN>, or -1 */
    int32_t unk;               /* -1: none, unknown characters give no token */
    bool byte_fallback, fuse_unk, ignore_merges;
    bool spaced_merges;  /* some merge "a b" has other spaces than the one between a and b */
    bool byte_level;     /* pieces are raw bytes; each byte stands for its character */
    bool special_merges; /* some merge has <0xNN> or unk as a member */
    /* Bitmap by hash: pairs of one-character tokens that are adjacent in a merged token. */
    uint64_t *pairs;
    /* The same for common characters alone, in few cache lines: ids, or -1; by left character, the bits of
     * the right ones; and the merges of two, with rank UINT32_MAX for none. */
    int32_t common[OT_COMMON];
    uint64_t common_pairs[OT_COMMON][3];
    struct ot_common_merge {
        uint32_t rank;
        int32_t id;
    } common_merges[OT_COMMON][OT_COMMON];
};

enum { OT_PAGES = 0x1100 };

static inline int32_t ot_bpe_symbol(const struct ot_bpe *bpe, uint32_t code_point) {
    return bpe->pages[code_point >> 8][code_point & 255];
}

static inline uint32_t ot_bpe_pair_bit(int32_t left, int32_t right) {
    return ot_merge_hash(ot_merge_pair(left, right)) & (OT_PAIR_BITS - 1);
}

/* ---- decoders ---- */

enum ot_decoder_kind {
    OT_DECODE_REPLACE,
    OT_DECODE_BYTE_FALLBACK,
    OT_DECODE_FUSE,
    OT_DECODE_STRIP,
    OT_DECODE_BYTE_LEVEL,
    OT_DECODE_METASPACE
};

struct ot_decoder {
    enum ot_decoder_kind kind;
    struct ot_pattern pattern; /* replace */
    struct ot_string content;  /* replace: the new text; strip, Metaspace: the character */
    size_t start, stop;        /* strip: limits of characters at the start and at the end */
    bool drop_first;           /* Metaspace: removes the marks of the first token */
};

/* ---- the tokenizer ---- */

struct ot_scratch;
/* Bounds of hostile files. Normalizers together make at most OT_GROWTH * n + OT_GROWTH_BYTES bytes of n.
 * (Unicode's longest decomposition has 18, and a mark in front some.) Decoders may make as much of the
 * tokens' texts. Splitters double a text at most eight times: a ByteLevel that does so takes two of
 * OT_MAX_STAGES. */
enum { OT_GROWTH = 64, OT_GROWTH_BYTES = 256 };

enum { OT_MAX_STAGES = 16, OT_SPARES = 64, OT_SCRATCH_KEPT_BYTES = 16 << 20 };
enum ot_model_kind { OT_MODEL_BPE, OT_MODEL_UNIGRAM };

struct ot_tokenizer {
    uint32_t crc; /* of the file */
    struct ot_arena *arena;
    struct ot_vocab vocab;
    enum ot_model_kind model;
    struct ot_bpe bpe;
    struct ot_unigram unigram;
    struct ot_trie raw, normalized; /* added tokens, matched in raw and in normalised text */
    struct ot_string *decoded;      /* by id: text that an added token decodes to, if not its own text */
    struct ot_normalizer normalizers[OT_MAX_STAGES];
    struct ot_splitter splitters[OT_MAX_STAGES];
    struct ot_decoder decoders[OT_MAX_STAGES];
    int n_normalizers, n_splitters, n_decoders;
    bool has_decoder;        /* without one, tokens are joined by spaces */
    int32_t *before, *after; /* tokens that the post-processor puts around a text */
    int32_t n_before, n_after;
    int n_processors;  /* those that add tokens */
    bool has_template; /* before and after come from a template: nothing can be put around them */
    _Atomic(struct ot_scratch *) *spares; /* [OT_SPARES]: scratches that no call uses, or NULL */
};

/* The byte-level alphabet of GPT-2: a printable character for each byte. */
uint32_t ot_byte_level_char(uint8_t byte);
int ot_byte_level_byte(uint32_t code_point); /* -1: not in the alphabet */

/* Loading. The first of these calls the second or the third; then call the others in this order. `where`
 * names the file in messages. */
int ot_load_model(struct ot_tokenizer *t, const char *where, const struct ot_json *model,
                  const struct ot_json *added);
int ot_load_stages(struct ot_tokenizer *t, const char *where, const struct ot_json *root);
int ot_load_decoders(struct ot_tokenizer *t, const char *where, const struct ot_json *decoder);
int ot_load_post_processor(struct ot_tokenizer *t, const char *where, const struct ot_json *processor);
/* Repairs files with a known damage (see load.c). */
int ot_load_repair(struct ot_tokenizer *t);
int ot_load_added(struct ot_tokenizer *t, const char *where, const struct ot_json *added);
/* Checks the id of a token, and raises *max_id to it. */
int ot_load_note_id(const char *where, const char *token, const struct ot_json *value, int64_t *max_id);
/* Counts the added tokens, and raises *max_id to their largest id. */
int ot_load_measure_added(const char *where, const struct ot_json *added, int64_t *count, int64_t *max_id);
/* Copies a string value into the arena. */
int ot_load_string(struct ot_tokenizer *t, const struct ot_json *value, struct ot_string *out);
/* {"String": ".."} or {"Regex": ".."} */
int ot_load_pattern(struct ot_tokenizer *t, const char *where, const struct ot_json *value,
                    struct ot_pattern *out);
void ot_pattern_free(struct ot_pattern *pattern);

/* ---- working memory of a call ---- */

struct ot_normal_char {
    uint32_t code_point;
    int32_t change; /* 1 - number of original characters that it replaces; 1: inserted */
    int class;      /* canonical combining class */
    uint32_t order; /* its place in its run of non-starters */
};

/* The word cache (bpe.c). */
enum { OT_CACHE_KEY = 24, OT_CACHE_TOKENS = 7, OT_CACHE_SLOTS = 1 << 14 };

struct ot_cache_entry {
    uint64_t key[3];
    uint8_t bytes;                      /* length of the word; 0: empty */
    uint8_t n;                          /* number of tokens */
    uint8_t begin[OT_CACHE_TOKENS - 1]; /* first bytes of tokens 1, 2 ..; token 0 starts at 0 */
    int32_t ids[OT_CACHE_TOKENS];
    uint32_t pad;
};

struct ot_symbols { /* symbols of the word being merged; arrays of `capacity` */
    int32_t *ids;
    uint32_t *begin, *prev, *next, *rank;
    uint64_t *heap;
    size_t n, capacity, heap_n, heap_capacity;
};

struct ot_scratch {
    struct ot_regex_scratch *regex;
    struct ot_text repaired;              /* the text with U+FFFD for invalid bytes */
    struct ot_text normal[2];             /* normalisers write from one to the other */
    struct ot_text staged[OT_MAX_STAGES]; /* by splitter: the piece that it has rewritten */
    struct ot_normal_char *chars;         /* for Unicode normalisation */
    size_t n_chars, chars_capacity;
    struct ot_symbols symbols;
    struct ot_unigram_step *steps; /* of the best paths through a word */
    size_t steps_capacity;
    struct ot_cache_entry *cache;
};

int ot_scratch_take(const struct ot_tokenizer *t, struct ot_scratch **out);
void ot_scratch_give(const struct ot_tokenizer *t, struct ot_scratch *scratch);
void ot_scratch_close(struct ot_scratch *scratch);

/* One encode call. */
struct ot_encoding {
    const struct ot_tokenizer *t;
    struct ot_scratch *scratch;
    struct ot_token_list *out;
    unsigned flags;
    uint32_t end; /* length of the original text */
};

int ot_token_list_grow(struct ot_token_list *list);

static inline int ot_emit(struct ot_token_list *list, int32_t id, uint32_t start) {
    if (list->n == list->capacity) {
        int rc = ot_token_list_grow(list);
        if (rc < 0)
            return rc;
    }
    list->ids[list->n] = id;
    list->start[list->n++] = start;
    return 0;
}

/* Runs all normalisers. *out is `in` itself, or a view of scratch->normal that is valid until the next
 * call. */
int ot_normalize(const struct ot_tokenizer *t, struct ot_scratch *scratch, struct ot_piece in,
                 struct ot_piece *out);
int ot_normalize_unicode(const struct ot_normalizer *normalizer, struct ot_scratch *scratch,
                         const struct ot_piece *in, struct ot_text *out);
/* Appends each byte of the piece as its character of the byte-level alphabet. */
int ot_text_spell_bytes(const struct ot_piece *in, struct ot_text *out);
/* Runs splitters `stage` and later, then the model, on one piece. */
int ot_split(struct ot_encoding *e, int stage, struct ot_piece piece);
/* Appends the tokens of one word, from the cache or from the model. */
int ot_encode_word(struct ot_encoding *e, const struct ot_piece *word);
int ot_unigram_word(struct ot_encoding *e, const struct ot_piece *word);

#endif
