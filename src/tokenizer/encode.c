/* Turns text into ids: added tokens are cut out, the text between them is normalised, split and encoded. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/tokenizer/tokenizer_state.h"

/* ---- scratches ---- */

static int scratch_open(struct ot_scratch **out) {
    struct ot_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return ot_fail(OT_E_BUDGET, "no memory to tokenize");
    int rc = ot_regex_scratch_open(&s->regex);
    const size_t cache_bytes = OT_CACHE_SLOTS * sizeof *s->cache;
    if (rc == 0 && !(s->cache = aligned_alloc(sizeof *s->cache, cache_bytes))) /* an entry is a cache line */
        rc = ot_fail(OT_E_BUDGET, "no memory for a word cache");
    if (rc == 0)
        memset(s->cache, 0, cache_bytes);
    if (rc < 0)
        ot_scratch_close(s);
    else
        *out = s;
    return rc;
}

void ot_scratch_close(struct ot_scratch *s) {
    if (!s)
        return;
    ot_regex_scratch_close(s->regex);
    ot_text_free(&s->repaired);
    ot_text_free(&s->normal[0]);
    ot_text_free(&s->normal[1]);
    for (int i = 0; i < OT_MAX_STAGES; i++)
        ot_text_free(&s->staged[i]);
    free(s->chars);
    free(s->symbols.ids);
    free(s->symbols.begin);
    free(s->symbols.prev);
    free(s->symbols.next);
    free(s->symbols.rank);
    free(s->symbols.heap);
    free(s->steps);
    free(s->cache);
    free(s);
}

/* The spare where this thread looks first. It is mostly the thread's own last scratch, whose cache is
 * warm. */
static unsigned first_spare(void) {
    uint64_t self = (uint64_t)(uintptr_t)pthread_self();
    return (unsigned)((self * 0x9e3779b97f4a7c15u) >> 32) % OT_SPARES;
}

int ot_scratch_take(const struct ot_tokenizer *t, struct ot_scratch **out) {
    unsigned first = first_spare();
    for (unsigned i = 0; i < OT_SPARES; i++) {
        struct ot_scratch *s = atomic_exchange(&t->spares[(first + i) % OT_SPARES], NULL);
        if (s) {
            *out = s;
            return 0;
        }
    }
    return scratch_open(out);
}

/* Bytes that a scratch holds. A scratch that has met a giant text is freed instead of kept. */
static size_t scratch_bytes(const struct ot_scratch *s) {
    size_t text = s->repaired.capacity + s->normal[0].capacity + s->normal[1].capacity;
    for (int i = 0; i < OT_MAX_STAGES; i++)
        text += s->staged[i].capacity;
    return 5 * text + s->chars_capacity * sizeof *s->chars + 20 * s->symbols.capacity +
           8 * s->symbols.heap_capacity + s->steps_capacity * sizeof *s->steps;
}

void ot_scratch_give(const struct ot_tokenizer *t, struct ot_scratch *s) {
    unsigned first = first_spare();
    for (unsigned i = 0; i < OT_SPARES && scratch_bytes(s) <= OT_SCRATCH_KEPT_BYTES; i++) {
        struct ot_scratch *empty = NULL;
        if (atomic_compare_exchange_strong(&t->spares[(first + i) % OT_SPARES], &empty, s))
            return;
    }
    ot_scratch_close(s);
}

/* ---- lists ---- */

void ot_token_list_free(struct ot_token_list *list) {
    free(list->ids);
    free(list->start);
    *list = (struct ot_token_list){0};
}

void ot_token_list_clear(struct ot_token_list *list) {
    list->n = list->specials = 0;
}

int ot_token_list_add(struct ot_token_list *list, int32_t id, uint32_t start) {
    return ot_emit(list, id, start);
}

int ot_token_list_grow(struct ot_token_list *list) {
    size_t same = list->capacity, n = list->capacity + 1;
    OT_TRY(ot_grow(&list->ids, &same, n, sizeof *list->ids, "tokens"));
    return ot_grow(&list->start, &list->capacity, n, sizeof *list->start, "tokens");
}

/* ---- encoding ---- */

typedef int next_step(struct ot_encoding *e, struct ot_piece piece);

/* Cuts the added tokens of one pass out of a piece, and passes the text between them to `next`. */
static int cut_added(struct ot_encoding *e, const struct ot_trie *trie, const struct ot_piece *piece,
                     next_step *next) {
    size_t floor = 0, from = 0, begin, end;
    const struct ot_added_token *token;
    while ((token = ot_trie_next(trie, piece, e->flags, floor, &from, &begin, &end))) {
        if (floor < begin)
            OT_TRY(next(e, ot_piece_slice(piece, floor, begin)));
        /* A match whose begin is at the end of the piece is empty, because its spaces were stripped before.
         * Its offset is the end of the text. */
        OT_TRY(ot_emit(e->out, token->id, begin < piece->n ? ot_piece_start(piece, begin) : e->end));
        e->out->specials += token->special;
        floor = end;
    }
    return floor < piece->n ? next(e, ot_piece_slice(piece, floor, piece->n)) : 0;
}

static int split_piece(struct ot_encoding *e, struct ot_piece piece) {
    return ot_split(e, 0, piece);
}

static int normalize_piece(struct ot_encoding *e, struct ot_piece piece) {
    OT_TRY(ot_normalize(e->t, e->scratch, piece, &piece));
    return cut_added(e, &e->t->normalized, &piece, split_piece);
}

static int encode_text(struct ot_encoding *e, struct ot_piece piece) {
    if (ot_utf8_valid(piece.bytes, piece.n) < piece.n) {
        e->scratch->repaired.n = 0;
        OT_TRY(ot_utf8_repair(&piece, &e->scratch->repaired));
        piece = ot_text_view(&e->scratch->repaired);
    }
    return cut_added(e, &e->t->raw, &piece, normalize_piece);
}

static int check_length(size_t bytes) {
    if (bytes <= OT_TOKENIZER_MAX_BYTES)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "a text of %zu bytes is too long to tokenize; split it into rows below %d bytes", bytes,
                   OT_TOKENIZER_MAX_BYTES);
}

static int encode_part(struct ot_encoding *e, const char *text, size_t begin, size_t end) {
    OT_TRY(check_length(end));
    OT_TRY(ot_scratch_take(e->t, &e->scratch));
    e->end = (uint32_t)end;
    int rc = encode_text(e, (struct ot_piece){end ? text + begin : "", end - begin, NULL, (uint32_t)begin});
    ot_scratch_give(e->t, e->scratch);
    return rc;
}

int ot_tokenizer_encode_part(const struct ot_tokenizer *t, const char *text, size_t begin, size_t end,
                             struct ot_token_list *out) {
    struct ot_encoding e = {.t = t, .out = out};
    return begin < end ? encode_part(&e, text, begin, end) : 0;
}

int ot_tokenizer_encode(const struct ot_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                        struct ot_token_list *out) {
    struct ot_encoding e = {.t = t, .out = out, .flags = flags};
    bool frame = flags & OT_TOKENIZER_ADD_SPECIAL;
    int rc = 0;
    ot_token_list_clear(out);
    for (int32_t i = 0; frame && i < t->n_before; i++)
        OT_TRY_GOTO(ot_emit(out, t->before[i], 0), rc, out);
    OT_TRY_GOTO(encode_part(&e, text, 0, bytes), rc, out);
    for (int32_t i = 0; frame && i < t->n_after; i++)
        OT_TRY_GOTO(ot_emit(out, t->after[i], e.end), rc, out);
out:
    if (rc < 0)
        out->n = 0;
    return rc;
}

/* ---- added tokens ---- */

/* Finds added tokens with a byte trie for each pass. Matches are leftmost and longest, like those of Hugging
 * Face's Aho-Corasick. */

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
        trie->starts[(uint8_t)content->text[0]] = true;
        size_t same = 0, most = i > 0 ? ot_min(trie->prefix_bytes, content->bytes) : content->bytes;
        trie->prefix = trie->tokens[0].content.text;
        while (same < most && content->text[same] == trie->prefix[same])
            same++;
        trie->prefix_bytes = same;
    }
    return 0;
}

/* The last byte of the prefix is searched: in normalised text, the mark of a space is its first one. */
static size_t next_prefix(const struct ot_trie *trie, const struct ot_piece *p, size_t i) {
    size_t before = trie->prefix_bytes - 1;
    for (; p->n - i > before; i++) {
        const char *at = memchr(p->bytes + i + before, trie->prefix[before], p->n - i - before);
        if (!at)
            break;
        i = (size_t)(at - p->bytes) - before;
        if (memcmp(p->bytes + i, trie->prefix, before) == 0)
            return i;
    }
    return p->n;
}

static size_t next_start(const struct ot_trie *trie, const struct ot_piece *p, size_t i) {
    if (trie->prefix_bytes > 0)
        return next_prefix(trie, p, i);
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

/* ---- words of Unigram ---- */

static int reserve_steps(struct ot_scratch *s, size_t n) {
    if (n <= s->steps_capacity)
        return 0;
    size_t capacity = n + n / 2 + 256;
    free(s->steps); /* nothing in it is needed */
    s->steps_capacity = 0;
    s->steps = malloc(capacity * sizeof *s->steps);
    if (!s->steps)
        return ot_fail(OT_E_BUDGET, "no memory to tokenize a word of %zu bytes", n);
    s->steps_capacity = capacity;
    return 0;
}

/* Emits bytes [begin, end) of the word, which are unknown characters. They may be a token together, whose
 * score is too low for the path. */
static int put_unknown(struct ot_encoding *e, const struct ot_piece *word, size_t begin, size_t end) {
    const struct ot_unigram *unigram = &e->t->unigram;
    const char *text = word->bytes + begin;
    size_t n = end - begin;
    int32_t id = ot_vocab_find(&e->t->vocab, text, n);
    bool has_all = unigram->byte_fallback;
    if (id >= 0 && (e->t->vocab.tokens[id].flags & OT_TOKEN_MODEL))
        return ot_emit(e->out, id, ot_piece_start(word, begin));
    for (size_t i = 0; has_all && i < n; i++)
        has_all = unigram->byte_tokens[(uint8_t)text[i]] >= 0;
    if (!has_all)
        return ot_emit(e->out, unigram->unk, ot_piece_start(word, begin));
    for (size_t i = 0; i < n; i++)
        OT_TRY(ot_emit(e->out, unigram->byte_tokens[(uint8_t)text[i]], ot_piece_start(word, begin + i)));
    return 0;
}

int ot_unigram_word(struct ot_encoding *e, const struct ot_piece *word) {
    const struct ot_unigram *unigram = &e->t->unigram;
    OT_TRY(reserve_steps(e->scratch, word->n + 1));
    struct ot_unigram_step *steps = e->scratch->steps;
    OT_TRY(ot_unigram_find(unigram, word, steps));
    for (size_t begin = 0, end; begin < word->n; begin = end) {
        end = steps[begin].begin;
        if (steps[begin].id != unigram->unk) {
            OT_TRY(ot_emit(e->out, steps[begin].id, ot_piece_start(word, begin)));
            continue;
        }
        while (end < word->n && steps[end].id == unigram->unk)
            end = steps[end].begin;
        OT_TRY(put_unknown(e, word, begin, end));
    }
    return 0;
}
