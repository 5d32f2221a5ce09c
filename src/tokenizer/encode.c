#include "src/tokenizer/tokenizer_state.h"

#include <pthread.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/grow.h"

/* ---- scratches ---- */

static int scratch_open(struct ot_scratch **out) {
    struct ot_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return ot_fail(OT_E_BUDGET, "no memory to tokenize");
    int rc = ot_regex_scratch_open(&s->regex);
    if (rc == 0 && !(s->cache = calloc(OT_CACHE_SLOTS, sizeof *s->cache)))
        rc = ot_fail(OT_E_BUDGET, "no memory for a word cache");
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
