/* The merges of a SentencePiece model of type BPE. */
#include "src/base/grow.h"
#include "src/tokenizer/sentencepiece_make.h"

#include <stdlib.h>

#include "src/base/error.h"

/* The work grows with the square of a piece's length. No piece of a real model is nearly that long. */
enum { MAX_MERGED_BYTES = 512 };

struct merge {
    float score;
    int32_t id, left, right;
    int32_t left_chars, right_chars;
};

struct merges {
    struct merge *all;
    size_t n, capacity;
};

/* The best score first; then the longer left side, then the longer right side, as transformers orders them;
 * then the piece with the lower id. */
static int by_rank(const void *a, const void *b) {
    const struct merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_chars != y->left_chars)
        return x->left_chars > y->left_chars ? -1 : 1;
    if (x->right_chars != y->right_chars)
        return x->right_chars > y->right_chars ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int add(struct merges *list, struct merge merge) {
    OT_TRY(ot_grow(&list->all, &list->capacity, list->n + 1, sizeof *list->all, "merges"));
    list->all[list->n++] = merge;
    return 0;
}

static int32_t find(const struct ot_sentencepiece_maker *m, const char *text, size_t n) {
    int32_t id = ot_vocab_find(&m->model->vocab, text, n);
    return id >= 0 && ot_sentencepiece_merges(m, id) ? id : -1;
}

/* All pairs of pieces that make piece `id`. */
static int find_pairs(const struct ot_sentencepiece_maker *m, int32_t id, struct merges *list) {
    const struct ot_token *piece = &m->model->vocab.tokens[id];
    int32_t chars = 0, before = 0;
    if (piece->bytes > MAX_MERGED_BYTES)
        return ot_fail(OT_E_INPUT,
                       "%s: piece %d of the SentencePiece model has %u bytes, must have at most %d", m->where,
                       id, piece->bytes, MAX_MERGED_BYTES);
    for (uint32_t i = 0; i < piece->bytes; i++)
        chars += ((unsigned char)piece->text[i] & 0xc0) != 0x80;
    for (uint32_t at = 1; at < piece->bytes; at++) {
        if (((unsigned char)piece->text[at] & 0xc0) == 0x80) /* within a character */
            continue;
        before++;
        int32_t left = find(m, piece->text, at);
        int32_t right = left < 0 ? -1 : find(m, piece->text + at, piece->bytes - at);
        if (right >= 0)
            OT_TRY(add(list,
                       (struct merge){m->model->pieces[id].score, id, left, right, before, chars - before}));
    }
    return 0;
}

static void put_token(struct ot_sentencepiece_maker *m, int32_t id) {
    const struct ot_token *piece = &m->model->vocab.tokens[id];
    ot_json_put_string(&m->w, NULL, piece->text, piece->bytes);
}

int ot_sentencepiece_put_merges(struct ot_sentencepiece_maker *m) {
    struct merges list = {0};
    int rc = 0;
    for (int32_t id = 0; id < m->model->vocab.n && rc == 0; id++)
        if (ot_sentencepiece_merges(m, id))
            rc = find_pairs(m, id, &list);
    if (rc == 0 && list.n > 0)
        qsort(list.all, list.n, sizeof *list.all, by_rank);
    ot_json_begin_array(&m->w, "merges");
    for (size_t i = 0; i < list.n && rc == 0; i++) {
        ot_json_begin_array(&m->w, NULL);
        put_token(m, list.all[i].left);
        put_token(m, list.all[i].right);
        ot_json_end_array(&m->w);
    }
    ot_json_end_array(&m->w);
    free(list.all);
    return rc;
}
