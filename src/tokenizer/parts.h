/* The parts of an open tokenizer, for the files of this folder alone.
 *
 * load*.c fill a struct ot_tokenizer; afterwards it is constant but for `spares`, the scratches that wait for
 * the next call. Encoding goes depth first: each piece runs through the remaining stages before the next
 * piece is cut, so that no list of pieces is ever built and working memory depends on the longest piece.
 *
 *   text -> [added tokens, raw] -> normalisers -> [added tokens, normalised] -> splitters -> BPE -> ids
 */
#ifndef OT_TOKENIZER_PARTS_H
#define OT_TOKENIZER_PARTS_H

#include <stdatomic.h>

#include "src/tokenizer/regex.h"
#include "src/tokenizer/text.h"
#include "src/tokenizer/tokenizer.h"
#include "src/tokenizer/vocab.h"

struct ot_arena;
struct ot_json;

struct ot_string {
    const char *text; /* in the tokenizer's arena */
    size_t bytes;
};

/* ---- what to look for in a piece ---- */

enum ot_pattern_kind {
    OT_PATTERN_LITERAL,
    OT_PATTERN_REGEX,
    OT_PATTERN_CLASS,     /* each character of a class is one match */
    OT_PATTERN_WHITESPACE /* runs of word characters, and of characters that are neither word nor space */
};

struct ot_pattern {
    enum ot_pattern_kind kind;
    struct ot_string literal;
    struct ot_regex *regex;
    bool (*is_member)(uint32_t code_point);
};

/* Walks over the matches of a pattern in a piece, from left to right. Zero it first. */
struct ot_finder {
    size_t from;
    size_t last_end; /* end of the last match, where has_last: an empty match there is not taken again */
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
    OT_NORMALIZE_STRIP
};

struct ot_normalizer {
    enum ot_normalizer_kind kind;
    struct ot_pattern pattern; /* replace */
    struct ot_string content;  /* replace, prepend */
    bool compose, compatible;  /* Unicode forms: C, K */
    bool left, right;          /* strip */
};

/* ---- pre-tokenizers ---- */

/* A ByteLevel of the file becomes two stages: its split, and the spelling of bytes as characters. As the last
 * stage of all (the rule) the spelling is left out: the bytes stay, and BPE looks them up by value. */
enum ot_splitter_kind { OT_SPLIT_PATTERN, OT_SPLIT_BYTE_LEVEL, OT_SPLIT_SPELL_BYTES, OT_SPLIT_METASPACE };
enum ot_behavior { OT_REMOVED, OT_ISOLATED, OT_MERGED_WITH_PREVIOUS, OT_MERGED_WITH_NEXT, OT_CONTIGUOUS };
enum ot_prepend { OT_PREPEND_FIRST, OT_PREPEND_ALWAYS, OT_PREPEND_NEVER };

struct ot_splitter {
    enum ot_splitter_kind kind;
    struct ot_pattern pattern; /* of ByteLevel: the GPT-2 regex; of Metaspace: its mark */
    enum ot_behavior behavior;
    bool invert;
    bool splits;             /* ByteLevel's use_regex, Metaspace's split; true for patterns */
    bool add_prefix_space;   /* ByteLevel */
    enum ot_prepend prepend; /* Metaspace */
};

/* ---- added tokens ---- */

struct ot_added_token {
    struct ot_string content; /* what to match: normalised where `normalized` */
    int32_t id;
    bool single_word, lstrip, rstrip, special;
};

/* A trie over the contents of one pass. Node 0 is the root. */
struct ot_trie {
    struct ot_added_token *tokens;
    int32_t n_tokens;
    uint64_t *edges;    /* hash table: (node << 8 | byte) + 1, 0: empty */
    uint32_t *children; /* beside edges: the node an edge leads to */
    uint32_t mask;
    int32_t *token_at; /* by node: index of the token that ends here, or -1 */
    bool starts[256];  /* bytes that start a token */
    int only_start;    /* the one such byte, or -1 */
};

int ot_trie_build(struct ot_trie *trie, struct ot_arena *arena);
/* The next added token at or after *from, leftmost and longest: sets the range that it takes (spaces that it
 * strips included) and moves *from behind the match itself. floor: where the last range ended. NULL: none. */
const struct ot_added_token *ot_trie_next(const struct ot_trie *trie, const struct ot_piece *piece,
                                          unsigned flags, size_t floor, size_t *from, size_t *begin,
                                          size_t *end);

/* ---- BPE ---- */

enum { OT_PAIR_BITS = 1 << 18 };

struct ot_bpe {
    struct ot_vocab vocab;
    struct ot_merges merges;
    int32_t **pages;           /* by code point >> 8: ids of the 256 one-character tokens, -1: none */
    int32_t byte_symbols[256]; /* byte-level: id of the byte's character */
    int32_t byte_tokens[256];  /* fallback: id of <0xNN>, or -1 */
    int32_t unk;               /* -1: none, unknown characters vanish */
    bool byte_fallback, fuse_unk, ignore_merges;
    bool spaced_merges;  /* some "a b" merge has more spaces than the one between a and b */
    bool byte_level;     /* pieces are raw bytes, each standing for its character */
    bool special_merges; /* some merge has <0xNN> or unk as a part */
    uint64_t *pairs;     /* bitmap by hash: two one-character tokens that stand side by side in some merge */
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
    size_t start, stop;        /* strip: at most so many at each end */
    bool drop_first;           /* Metaspace: marks of the first token vanish */
};

/* ---- the whole ---- */

struct ot_scratch;
enum { OT_MAX_STAGES = 16, OT_SPARES = 64, OT_SCRATCH_KEPT_BYTES = 16 << 20 };

struct ot_tokenizer {
    struct ot_arena *arena;
    struct ot_bpe bpe;
    struct ot_trie raw, normalized; /* added tokens of the two passes */
    struct ot_string *decoded;      /* by id: what an added token decodes to where that is not its text */
    struct ot_normalizer normalizers[OT_MAX_STAGES];
    struct ot_splitter splitters[OT_MAX_STAGES];
    struct ot_decoder decoders[OT_MAX_STAGES];
    int n_normalizers, n_splitters, n_decoders;
    bool has_decoder;        /* without one, tokens are joined by spaces */
    int32_t *before, *after; /* what the post-processor puts around a text */
    int32_t n_before, n_after;
    _Atomic(struct ot_scratch *) *spares; /* [OT_SPARES], each NULL or a scratch nobody uses */
};

/* The byte-level alphabet of GPT-2: a printable character for each byte. */
uint32_t ot_byte_level_char(uint8_t byte);
int ot_byte_level_byte(uint32_t code_point); /* -1: not in the alphabet */

/* Loading, in this order. `where` names the file. */
int ot_load_model(struct ot_tokenizer *t, const char *where, const struct ot_json *model,
                  const struct ot_json *added);
int ot_load_stages(struct ot_tokenizer *t, const char *where, const struct ot_json *root);
int ot_load_decoders(struct ot_tokenizer *t, const char *where, const struct ot_json *decoder);
int ot_load_post_processor(struct ot_tokenizer *t, const char *where, const struct ot_json *processor);
/* Undoes a known damage of files: see load_repair.c. After the stages. */
int ot_load_repair(struct ot_tokenizer *t);
int ot_load_added(struct ot_tokenizer *t, const char *where, const struct ot_json *added);
/* Copies a string value into the arena. */
int ot_load_string(struct ot_tokenizer *t, const struct ot_json *value, struct ot_string *out);
/* {"String": ".."} or {"Regex": ".."} */
int ot_load_pattern(struct ot_tokenizer *t, const char *where, const struct ot_json *value,
                    struct ot_pattern *out);
void ot_pattern_free(struct ot_pattern *pattern);

/* ---- one call's working memory ---- */

struct ot_normal_char {
    uint32_t code_point;
    int32_t change; /* how many original characters it takes over, less one; above 0: none */
    int class;      /* canonical combining class */
    uint32_t order; /* where it stood in its run of non-starters */
};

/* A word cache: words that fit are looked up before they are merged. 64 bytes an entry, one per slot. */
enum { OT_CACHE_KEY = 24, OT_CACHE_TOKENS = 7, OT_CACHE_SLOTS = 1 << 13 };

struct ot_cache_entry {
    uint64_t key[3];
    uint8_t bytes;                      /* of the key; 0: empty */
    uint8_t n;                          /* tokens */
    uint8_t begin[OT_CACHE_TOKENS - 1]; /* where tokens 1.. start; token 0 starts at 0 */
    int32_t ids[OT_CACHE_TOKENS];
    uint32_t pad;
};

struct ot_symbols { /* of the word being merged; arrays of `capacity` */
    int32_t *ids;
    uint32_t *begin, *prev, *next, *rank;
    uint64_t *heap;
    size_t n, capacity, heap_n, heap_capacity;
};

struct ot_scratch {
    struct ot_regex_scratch *regex;
    struct ot_text repaired;              /* the text with U+FFFD for invalid bytes */
    struct ot_text normal[2];             /* normalisers write from one to the other */
    struct ot_text staged[OT_MAX_STAGES]; /* by splitter: its rewritten piece */
    struct ot_normal_char *chars;         /* of Unicode normalisation */
    size_t n_chars, chars_capacity;
    struct ot_symbols symbols;
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

/* Runs all normalisers; *out is the input itself or a view of scratch->normal. */
int ot_normalize(const struct ot_tokenizer *t, struct ot_scratch *scratch, struct ot_piece in,
                 struct ot_piece *out);
int ot_normalize_unicode(const struct ot_normalizer *normalizer, struct ot_scratch *scratch,
                         const struct ot_piece *in, struct ot_text *out);
/* Runs splitters from number `stage` on, then BPE, for one piece. */
int ot_split(struct ot_encoding *e, int stage, struct ot_piece piece);
/* Appends the tokens of one word. */
int ot_bpe_word(struct ot_encoding *e, const struct ot_piece *word);

#endif
