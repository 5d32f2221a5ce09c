/* BPE of one word.
 *
 * The word becomes one-character tokens ("symbols"). Then BPE merges the adjacent pair of lowest rank (the
 * leftmost of equals) until no pair can be merged. Short runs of symbols are scanned for this pair. Long runs
 * keep a heap, so that a text without any border takes n log n time (Llama has no pre-tokenizer: a whole row
 * is one word).
 *
 * Two shortcuts save time and do not change results. First, no merge can cross a border between two symbols
 * that are adjacent in no merged token, so the word is cut there into runs. Second, the word cache keeps the
 * tokens of short runs.
 */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/tokenizer/tokenizer_state.h"

/* ---- word cache ---- */

/* The word cache: short words are looked up before the model encodes them.
 *
 * An entry has 64 bytes, and a hash has two: a new word replaces the older one. Each scratch has
 * its own cache, so no locks are used. BPE also keeps runs of symbols of longer words in it.
 */

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
    return &scratch->cache[h >> 40 & (OT_CACHE_SLOTS - 2)];
}

static inline bool is_word(const struct ot_cache_entry *entry, const uint64_t key[3], size_t n) {
    return entry->bytes == n && memcmp(entry->key, key, sizeof entry->key) == 0;
}

/* The one of the two entries that has the word; NULL: none. */
static inline const struct ot_cache_entry *ot_word_find(const struct ot_cache_entry *entries,
                                                        const uint64_t key[3], size_t n) {
    return is_word(entries, key, n) ? entries : is_word(entries + 1, key, n) ? entries + 1 : NULL;
}

/* Emits the tokens of an entry; `word` has their offsets. Errors: OT_E_BUDGET. */
static inline int ot_word_emit(struct ot_encoding *e, const struct ot_cache_entry *entry,
                               const struct ot_piece *word) {
    OT_TRY(ot_emit(e->out, entry->ids[0], ot_piece_start(word, 0)));
    for (int i = 1; i < entry->n; i++)
        OT_TRY(ot_emit(e->out, entry->ids[i], ot_piece_start(word, entry->begin[i - 1])));
    return 0;
}

/* Stores n tokens in the first of the two entries, if they fit. Token i starts at byte begin[i] - origin of
 * the word. */
static inline void ot_word_store(struct ot_cache_entry *entry, const uint64_t key[3], size_t bytes,
                                 const int32_t *ids, const uint32_t *begin, uint32_t origin, size_t n) {
    if (n == 0 || n > OT_CACHE_TOKENS)
        return;
    entry[1] = entry[0];
    memcpy(entry->key, key, sizeof entry->key);
    entry->bytes = (uint8_t)bytes;
    entry->n = (uint8_t)n;
    for (size_t i = 0; i < n; i++) {
        entry->ids[i] = ids[i];
        if (i > 0)
            entry->begin[i - 1] = (uint8_t)(begin[i] - origin);
    }
}

/* ---- bpe ---- */

enum { SCAN_LIMIT = 64 }; /* symbols; up to here scanning is faster than the heap */
static const uint32_t none = UINT32_MAX;

struct word {
    struct ot_encoding *e;
    const struct ot_piece *piece;
    bool cacheable;       /* its runs may use the cache */
    bool plain;           /* since the last cut, no symbol is <0xNN> or unk */
    bool last_is_special; /* the last symbol is <0xNN> or unk */
};

/* ---- symbols ---- */

static int grow(struct ot_symbols *s) {
    uint32_t **arrays[] = {&s->begin, &s->prev, &s->next, &s->rank};
    size_t n = s->capacity + 1;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        size_t same = s->capacity;
        OT_TRY(ot_grow(arrays[i], &same, n, sizeof **arrays[i], "characters of a word"));
    }
    return ot_grow(&s->ids, &s->capacity, n, sizeof *s->ids, "characters of a word");
}

/* ---- merging ---- */

static uint32_t rank_of(const struct ot_merges *merges, int32_t left, int32_t right) {
    const struct ot_merge *m = ot_merges_find(merges, left, right);
    return m ? m->rank : none;
}

/* Merges, with a scan for the lowest rank after each merge. rank[i] is the rank of the pair (i, i + 1), which
 * may be known. */
static void merge_by_scan(const struct ot_merges *merges, bool has_ranks, struct ot_symbols *s) {
    size_t n = s->n;
    for (size_t i = 0; i + 1 < n && !has_ranks; i++)
        s->rank[i] = rank_of(merges, s->ids[i], s->ids[i + 1]);
    while (n > 1) {
        uint32_t least = none;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            if (s->rank[i] < least) {
                least = s->rank[i];
                at = i;
            }
        }
        if (least == none)
            break;
        s->ids[at] = ot_merges_find(merges, s->ids[at], s->ids[at + 1])->id;
        n--;
        for (size_t i = at + 1; i < n; i++) {
            s->ids[i] = s->ids[i + 1];
            s->begin[i] = s->begin[i + 1];
            s->rank[i] = s->rank[i + 1];
        }
        if (at + 1 < n)
            s->rank[at] = rank_of(merges, s->ids[at], s->ids[at + 1]);
        if (at > 0)
            s->rank[at - 1] = rank_of(merges, s->ids[at - 1], s->ids[at]);
    }
    s->n = n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t key = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (key <= heap[child])
            break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

static int heap_push(struct ot_symbols *s, uint32_t rank, uint32_t at) {
    OT_TRY(ot_grow(&s->heap, &s->heap_capacity, s->heap_n + 1, sizeof *s->heap, "merges of a word"));
    uint64_t key = (uint64_t)rank << 32 | at;
    size_t i = s->heap_n++;
    for (; i > 0 && s->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = key;
    return 0;
}

/* Sets the rank of the pair that starts at `at`, and adds the pair to the heap. */
static int rank_pair(const struct ot_merges *merges, struct ot_symbols *s, uint32_t at) {
    uint32_t right = s->next[at];
    s->rank[at] = right == none ? none : rank_of(merges, s->ids[at], s->ids[right]);
    return s->rank[at] == none ? 0 : heap_push(s, s->rank[at], at);
}

/* Merges with a heap of (rank, position). An entry is stale, and skipped, if the pair at its position has
 * another rank by now. */
static int merge_by_heap(const struct ot_merges *merges, struct ot_symbols *s) {
    s->heap_n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        s->prev[i] = i ? i - 1 : none;
        s->next[i] = i + 1 < s->n ? i + 1 : none;
    }
    for (uint32_t i = 0; i < s->n; i++)
        OT_TRY(rank_pair(merges, s, i));
    while (s->heap_n > 0) {
        uint32_t rank = (uint32_t)(s->heap[0] >> 32), at = (uint32_t)s->heap[0];
        s->heap[0] = s->heap[--s->heap_n];
        if (s->heap_n > 0)
            sift_down(s->heap, s->heap_n, 0);
        if (s->rank[at] != rank)
            continue;
        uint32_t right = s->next[at], after = s->next[right];
        s->ids[at] = ot_merges_find(merges, s->ids[at], s->ids[right])->id;
        s->rank[right] = none;
        s->next[at] = after;
        if (after != none)
            s->prev[after] = at;
        OT_TRY(rank_pair(merges, s, at));
        if (s->prev[at] != none)
            OT_TRY(rank_pair(merges, s, s->prev[at]));
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != none; i = s->next[i]) {
        s->ids[kept] = s->ids[i];
        s->begin[kept++] = s->begin[i];
    }
    s->n = kept;
    return 0;
}

/* ---- words ---- */

/* Merges the symbols and emits them. */
static __attribute__((noinline)) int finish_run(struct ot_encoding *e, const struct ot_piece *piece,
                                                bool has_ranks) {
    struct ot_symbols *s = &e->scratch->symbols;
    const struct ot_merges *merges = &e->t->bpe.merges;
    if (s->n <= SCAN_LIMIT)
        merge_by_scan(merges, has_ranks, s);
    else
        OT_TRY(merge_by_heap(merges, s));
    for (size_t i = 0; i < s->n; i++)
        OT_TRY(ot_emit(e->out, s->ids[i], ot_piece_start(piece, s->begin[i])));
    return 0;
}

typedef int put_symbols(struct word *w, size_t begin, size_t end);

/* Emits the tokens of a run of n symbols, bytes [begin, end) of the piece. Calls `put` if they are needed and
 * not in the scratch yet, with the ranks of their pairs; NULL: they are. */
static int end_run(struct word *w, size_t n, size_t begin, size_t end, put_symbols *put) {
    struct ot_symbols *s = &w->e->scratch->symbols;
    bool is_cached = n >= 3 && w->cacheable && w->plain && end - begin <= OT_CACHE_KEY;
    struct ot_piece run = ot_piece_slice(w->piece, begin, end);
    struct ot_cache_entry *entry = NULL;
    uint64_t key[3];
    if (is_cached) {
        ot_word_key(run.bytes, run.n, key);
        entry = ot_word_entry(w->e->scratch, key, run.n);
        const struct ot_cache_entry *found = ot_word_find(entry, key, run.n);
        if (found)
            return ot_word_emit(w->e, found, &run);
    }
    if (put)
        OT_TRY(put(w, begin, end));
    OT_TRY(finish_run(w->e, w->piece, put != NULL));
    if (is_cached)
        ot_word_store(entry, key, run.n, s->ids, s->begin, (uint32_t)begin, s->n);
    s->n = 0;
    return 0;
}

/* Ends the run of symbols before byte `end` of the piece, and emits its tokens. */
static int cut(struct word *w, size_t end) {
    struct ot_symbols *s = &w->e->scratch->symbols;
    int rc = s->n ? end_run(w, s->n, s->begin[0], end, NULL) : 0;
    s->n = 0; /* also after an error, and where the cache had the run */
    w->plain = true;
    return rc;
}

/* True if a merge may cross the border between the last symbol (left) and this one (right). */
static bool may_join(const struct word *w, int32_t left, int32_t right, bool is_special) {
    const struct ot_bpe *bpe = &w->e->t->bpe;
    if (is_special || w->last_is_special)
        return bpe->special_merges;
    uint32_t bit = ot_bpe_pair_bit(left, right);
    return bpe->pairs[bit / 64] >> bit % 64 & 1;
}

/* Appends a symbol that starts at byte `begin` of the piece. If no merge can cross the border before it, cuts
 * there first. */
static int put_symbol(struct word *w, int32_t id, size_t begin, bool is_special) {
    struct ot_symbols *s = &w->e->scratch->symbols;
    if (s->n > 0 && !may_join(w, s->ids[s->n - 1], id, is_special))
        OT_TRY(cut(w, begin));
    if (s->n == s->capacity)
        OT_TRY(grow(s));
    s->ids[s->n] = id;
    s->begin[s->n++] = (uint32_t)begin;
    w->last_is_special = is_special;
    w->plain &= !is_special;
    return 0;
}

/* Unknown characters that wait to become one unk token. */
struct unknown {
    bool waits;
    size_t begin;
};

static int flush_unknown(struct word *w, struct unknown *u) {
    if (!u->waits)
        return 0;
    u->waits = false;
    return put_symbol(w, w->e->t->bpe.unk, u->begin, true);
}

/* Handles a character without a token. `text` is its UTF-8, at byte `begin` of the piece. */
static int put_unknown(struct word *w, struct unknown *u, const char *text, size_t n, size_t begin) {
    const struct ot_bpe *bpe = &w->e->t->bpe;
    bool has_all = bpe->byte_fallback;
    for (size_t i = 0; has_all && i < n; i++)
        has_all = bpe->byte_tokens[(uint8_t)text[i]] >= 0;
    if (has_all) {
        /* A waiting unk comes after these bytes, as in Hugging Face. At byte level all of them come from one
         * byte of the piece. */
        for (size_t i = 0; i < n; i++)
            OT_TRY(
                put_symbol(w, bpe->byte_tokens[(uint8_t)text[i]], bpe->byte_level ? begin : begin + i, true));
        return 0;
    }
    if (bpe->unk < 0) {
        w->plain = false;
        return 0;
    }
    if (u->waits && bpe->fuse_unk)
        return 0;
    OT_TRY(flush_unknown(w, u));
    *u = (struct unknown){true, begin};
    return 0;
}

/* ---- runs of common characters ---- */

enum { UNCOMMON = -1, AT_END = -2 };

/* The place of the character at byte i in the tables of common characters, or one of the above. The piece is
 * valid UTF-8. */
static inline int common_at(const struct ot_bpe *bpe, const struct ot_piece *piece, size_t i,
                            size_t *length) {
    const unsigned char *at = (const unsigned char *)piece->bytes + i;
    *length = 1;
    if (i >= piece->n)
        return AT_END;
    if (*at < 0x80)
        return bpe->common[*at] >= 0 ? *at : UNCOMMON;
    *length = 3;
    return *at == 0xe2 && at[1] == 0x96 && at[2] == 0x81 && bpe->common[OT_COMMON - 1] >= 0 ? OT_COMMON - 1
                                                                                            : UNCOMMON;
}

static int put_common(struct word *w, size_t begin, size_t end) {
    const struct ot_bpe *bpe = &w->e->t->bpe;
    struct ot_symbols *s = &w->e->scratch->symbols;
    size_t length;
    for (size_t i = begin, last = 0; i < end; i += length) {
        int place = common_at(bpe, w->piece, i, &length);
        if (s->n == s->capacity)
            OT_TRY(grow(s));
        if (i > begin)
            s->rank[s->n - 1] = bpe->common_merges[last][place].rank;
        last = (size_t)place;
        s->ids[s->n] = bpe->common[place];
        s->begin[s->n++] = (uint32_t)i;
    }
    w->last_is_special = false;
    return 0;
}

/* Emits the run of two common characters at byte `begin`. */
static int emit_two(struct word *w, unsigned first, unsigned second, size_t begin) {
    const struct ot_bpe *bpe = &w->e->t->bpe;
    const struct ot_common_merge *merge = &bpe->common_merges[first][second];
    if (merge->rank != none)
        return ot_emit(w->e->out, merge->id, ot_piece_start(w->piece, begin));
    size_t behind = begin + (first == OT_COMMON - 1 ? 3 : 1);
    OT_TRY(ot_emit(w->e->out, bpe->common[first], ot_piece_start(w->piece, begin)));
    return ot_emit(w->e->out, bpe->common[second], ot_piece_start(w->piece, behind));
}

/* Emits the runs of common characters from byte `begin` on, where there are no symbols yet. If a character
 * follows that is not common and may join the last run, this run becomes symbols instead. *end: the
 * byte behind the last character taken, of which there is at least one. */
static int take_common(struct word *w, size_t begin, size_t *end) {
    const struct ot_bpe *bpe = &w->e->t->bpe;
    const struct ot_piece *piece = w->piece;
    size_t length, i = begin;
    int place = common_at(bpe, piece, begin, &length);
    while (place >= 0) {
        size_t run = i, n = 0;
        unsigned first = (unsigned)place, last, next;
        do {
            last = (unsigned)place;
            i += length;
            n++;
            place = common_at(bpe, piece, i, &length);
            next = (unsigned)place;
        } while (place >= 0 && (bpe->common_pairs[last][next / 64] >> next % 64 & 1));
        if (place == UNCOMMON) {
            *end = i;
            return put_common(w, run, i);
        }
        if (n == 1)
            OT_TRY(ot_emit(w->e->out, bpe->common[last], ot_piece_start(piece, run)));
        else if (n == 2)
            OT_TRY(emit_two(w, first, last, run));
        else
            OT_TRY(end_run(w, n, run, i, put_common));
    }
    *end = i;
    return 0;
}

/* True if a run of common characters begins at byte i: the one before it cannot be joined. */
static int begins_common(struct word *w, const struct unknown *unknown, size_t i) {
    struct ot_symbols *s = &w->e->scratch->symbols;
    const struct ot_bpe *bpe = &w->e->t->bpe;
    size_t length;
    int place = bpe->byte_level || unknown->waits ? -1 : common_at(bpe, w->piece, i, &length);
    if (place < 0 || (s->n > 0 && may_join(w, s->ids[s->n - 1], bpe->common[place], false)))
        return 0;
    OT_TRY(cut(w, i));
    return 1;
}

static int symbolize(struct word *w) {
    const struct ot_bpe *bpe = &w->e->t->bpe;
    const struct ot_piece *piece = w->piece;
    struct unknown unknown = {0};
    size_t length = 1;
    for (size_t i = 0; i < piece->n; i += length) {
        int32_t id;
        int is_common = begins_common(w, &unknown, i);
        OT_TRY(is_common);
        if (is_common) {
            size_t end = 0;
            OT_TRY(take_common(w, i, &end));
            length = end - i;
            continue;
        }
        length = 1;
        if (bpe->byte_level) {
            id = bpe->byte_symbols[(uint8_t)piece->bytes[i]];
        } else {
            id = ot_bpe_symbol(bpe, ot_utf8_decode(piece->bytes + i, &length));
        }
        if (id >= 0) {
            OT_TRY(flush_unknown(w, &unknown));
            OT_TRY(put_symbol(w, id, i, false));
        } else if (bpe->byte_level) {
            char spelled[4];
            size_t n = ot_utf8_encode(ot_byte_level_char((uint8_t)piece->bytes[i]), spelled);
            OT_TRY(put_unknown(w, &unknown, spelled, n, i));
        } else {
            OT_TRY(put_unknown(w, &unknown, piece->bytes + i, length, i));
        }
    }
    OT_TRY(flush_unknown(w, &unknown));
    return cut(w, piece->n);
}

/* The model's token for the whole word, or -1. */
static int32_t whole_word(const struct ot_bpe *bpe, const struct ot_vocab *vocab,
                          const struct ot_piece *word) {
    char spelled[2 * OT_TOKEN_MAX_BYTES];
    const char *text = word->bytes;
    size_t n = word->n;
    if (n > OT_TOKEN_MAX_BYTES)
        return -1;
    if (bpe->byte_level) {
        n = 0;
        for (size_t i = 0; i < word->n; i++)
            n += ot_utf8_encode(ot_byte_level_char((uint8_t)word->bytes[i]), spelled + n);
        text = spelled;
    }
    int32_t id = ot_vocab_find(vocab, text, n);
    return id >= 0 && (vocab->tokens[id].flags & OT_TOKEN_MODEL) ? id : -1;
}

static int bpe_word(struct ot_encoding *e, const struct ot_piece *word) {
    const struct ot_bpe *bpe = &e->t->bpe;
    int32_t id = bpe->ignore_merges ? whole_word(bpe, &e->t->vocab, word) : -1;
    if (id >= 0)
        return ot_emit(e->out, id, ot_piece_start(word, 0));
    /* The caller caches short words as a whole. With ignore_merges, runs must not be cached: the cache would
     * treat a run as a word, and a word may have another token. */
    bool cacheable = word->n > OT_CACHE_KEY && !bpe->ignore_merges;
    struct word w = {.e = e, .piece = word, .cacheable = cacheable, .plain = true};
    e->scratch->symbols.n = 0;
    return symbolize(&w);
}

/* ---- words: from the cache, or encoded by the model ---- */

static int ask_model(struct ot_encoding *e, const struct ot_piece *word) {
    return e->t->model == OT_MODEL_UNIGRAM ? ot_unigram_word(e, word) : bpe_word(e, word);
}

int ot_encode_word(struct ot_encoding *e, const struct ot_piece *word) {
    if (word->n > OT_CACHE_KEY)
        return ask_model(e, word);
    uint64_t key[3];
    ot_word_key(word->bytes, word->n, key);
    struct ot_cache_entry *entry = ot_word_entry(e->scratch, key, word->n);
    const struct ot_cache_entry *found = ot_word_find(entry, key, word->n);
    if (found)
        return ot_word_emit(e, found, word);
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
