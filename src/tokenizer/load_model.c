/* Reads a BPE model (the vocabulary, the merges, and tables that make merging fast), or a Unigram model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/tokenizer/tokenizer_state.h"

/* Counts the model's and the added tokens, and finds their largest id. */
static int measure(const char *where, const struct ot_json *vocab, const struct ot_json *added,
                   int64_t *count, int64_t *max_id) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(vocab, &cursor, &key, &value)) {
        OT_TRY(ot_load_note_id(where, key, value, max_id));
        if (strlen(key) > OT_TOKEN_MAX_BYTES)
            return ot_fail(OT_E_INPUT, "%s: token '%.100s...' is longer than %d bytes", where, key,
                           OT_TOKEN_MAX_BYTES);
        ++*count;
    }
    if (*count == 0)
        return ot_fail(OT_E_INPUT, "%s: model.vocab is empty", where);
    return ot_load_measure_added(where, added, count, max_id);
}

static int load_vocab(struct ot_tokenizer *t, const char *where, const struct ot_json *vocab,
                      const struct ot_json *added) {
    struct ot_vocab *v = &t->vocab;
    int64_t count = 0, max_id = 0;
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    OT_TRY(measure(where, vocab, added, &count, &max_id));
    OT_TRY(ot_vocab_open(v, t->arena, count, max_id));
    while (ot_json_next(vocab, &cursor, &key, &value)) {
        int32_t id = (int32_t)ot_json_int(value, 0);
        if (v->tokens[id].text)
            return ot_fail(OT_E_INPUT, "%s: tokens '%.100s' and '%.100s' have the same id %d", where,
                           v->tokens[id].text, key, id);
        if (ot_vocab_find(v, key, strlen(key)) >= 0)
            return ot_fail(OT_E_INPUT, "%s: token '%.100s' is twice in model.vocab", where, key);
        OT_TRY(ot_vocab_add(v, t->arena, key, strlen(key), id, OT_TOKEN_MODEL));
    }
    return 0;
}

/* ---- symbols ---- */

/* Fills the pages of one-character tokens. Pages without tokens share one empty page. */
static int index_characters(struct ot_tokenizer *t) {
    struct ot_bpe *bpe = &t->bpe;
    int32_t *empty = ot_arena_alloc(t->arena, 256, sizeof *empty);
    int32_t **pages = ot_arena_alloc(t->arena, OT_PAGES, sizeof *pages);
    if (!empty || !pages)
        return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
    memset(empty, 0xff, 256 * sizeof *empty);
    for (int i = 0; i < OT_PAGES; i++)
        pages[i] = empty;
    for (int32_t id = 0; id < t->vocab.n; id++) {
        const struct ot_token *token = &t->vocab.tokens[id];
        size_t length;
        if (!token->text || token->bytes == 0 || token->bytes > 4)
            continue;
        uint32_t cp = ot_utf8_decode(token->text, &length);
        if (length != token->bytes)
            continue;
        if (pages[cp >> 8] == empty) {
            int32_t *page = ot_arena_alloc(t->arena, 256, sizeof *page);
            if (!page)
                return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
            pages[cp >> 8] = memcpy(page, empty, 256 * sizeof *page);
        }
        pages[cp >> 8][cp & 255] = id;
    }
    bpe->pages = pages;
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        bpe->byte_symbols[byte] = ot_bpe_symbol(bpe, ot_byte_level_char((uint8_t)byte));
        bpe->byte_tokens[byte] = ot_vocab_find(&t->vocab, name, (size_t)n);
    }
    return 0;
}

/* Notes which characters are adjacent in a token that a merge makes. */
static void note_pairs(struct ot_bpe *bpe, const struct ot_token *token) {
    int32_t left = -1;
    size_t length;
    for (size_t i = 0; i < token->bytes; i += length) {
        int32_t right = ot_bpe_symbol(bpe, ot_utf8_decode(token->text + i, &length));
        if (left >= 0 && right >= 0) {
            uint32_t bit = ot_bpe_pair_bit(left, right);
            bpe->pairs[bit / 64] |= (uint64_t)1 << bit % 64;
        }
        left = right;
    }
}

static bool is_special_part(const struct ot_tokenizer *t, int32_t id) {
    const struct ot_token *token = &t->vocab.tokens[id];
    unsigned byte;
    return id == t->bpe.unk || (token->bytes == 6 && sscanf(token->text, "<0x%2X>", &byte) == 1 &&
                                t->bpe.byte_tokens[byte & 255] == id);
}

/* ---- merges ---- */

struct merge_text {
    const char *left, *right;
    size_t left_bytes, right_bytes;
};

/* The id of left + right, or -1. */
static int32_t find_joined(const struct ot_vocab *vocab, const struct merge_text *m) {
    char local[256];
    size_t n = m->left_bytes + m->right_bytes;
    char *joined = n <= sizeof local ? local : malloc(n);
    if (!joined)
        return -1;
    memcpy(joined, m->left, m->left_bytes);
    memcpy(joined + m->left_bytes, m->right, m->right_bytes);
    int32_t id = ot_vocab_find(vocab, joined, n);
    if (joined != local)
        free(joined);
    return id;
}

static bool is_known(const struct ot_vocab *vocab, const struct merge_text *m) {
    return ot_vocab_find(vocab, m->left, m->left_bytes) >= 0 &&
           ot_vocab_find(vocab, m->right, m->right_bytes) >= 0 && find_joined(vocab, m) >= 0;
}

/* Splits "a b" into a and b. Tokens may contain spaces (a Llama-2 file in use does). Then the border is the
 * space for which a, b and ab are tokens of the vocabulary. */
static bool split_merge(const struct ot_vocab *vocab, const char *text, size_t n, struct merge_text *m) {
    for (const char *space = text; (space = memchr(space, ' ', n - (size_t)(space - text))); space++) {
        size_t left = (size_t)(space - text);
        *m = (struct merge_text){text, space + 1, left, n - left - 1};
        if (!memchr(space + 1, ' ', n - left - 1) && !memchr(text, ' ', left))
            return true; /* the only space; the caller checks the tokens */
        if (is_known(vocab, m))
            return true;
    }
    return false;
}

static bool read_merge(const struct ot_vocab *vocab, const struct ot_json *value, struct merge_text *m) {
    if (ot_json_type(value) == OT_JSON_ARRAY && ot_json_length(value) == 2) {
        m->left = ot_json_string(ot_json_at(value, 0), &m->left_bytes);
        m->right = ot_json_string(ot_json_at(value, 1), &m->right_bytes);
        return m->left && m->right;
    }
    size_t n;
    const char *text = ot_json_string(value, &n);
    return text && split_merge(vocab, text, n, m);
}

static bool has_more_spaces(const struct ot_json *value) {
    size_t n;
    const char *text = ot_json_string(value, &n), *first = text ? memchr(text, ' ', n) : NULL;
    return first && memchr(first + 1, ' ', n - (size_t)(first + 1 - text));
}

static int load_merge(struct ot_tokenizer *t, const char *where, size_t index, const struct ot_json *value,
                      uint32_t rank) {
    struct ot_bpe *bpe = &t->bpe;
    struct merge_text m;
    if (!read_merge(&t->vocab, value, &m))
        return ot_fail(OT_E_INPUT, "%s: model.merges[%zu] must be \"a b\" or [\"a\", \"b\"]", where, index);
    int32_t left = ot_vocab_find(&t->vocab, m.left, m.left_bytes);
    int32_t right = ot_vocab_find(&t->vocab, m.right, m.right_bytes);
    int32_t joined = find_joined(&t->vocab, &m);
    if (left < 0 || right < 0 || joined < 0)
        return ot_fail(
            OT_E_INPUT, "%s: model.merges[%zu] ('%.*s' and '%.*s') needs a token that model.vocab lacks",
            where, index, (int)ot_min(m.left_bytes, 80), m.left, (int)ot_min(m.right_bytes, 80), m.right);
    bpe->special_merges |= is_special_part(t, left) || is_special_part(t, right);
    bpe->spaced_merges |= has_more_spaces(value);
    note_pairs(bpe, &t->vocab.tokens[joined]);
    ot_merges_add(&bpe->merges, left, right, rank, joined);
    return 0;
}

static int load_merges(struct ot_tokenizer *t, const char *where, const struct ot_json *merges) {
    size_t n = ot_json_length(merges);
    uint32_t rank = 0;
    if (ot_json_type(merges) != OT_JSON_ARRAY || n > INT32_MAX)
        return ot_fail(OT_E_INPUT, "%s: model.merges must be an array, not %s", where,
                       ot_json_type_name(ot_json_type(merges)));
    OT_TRY(ot_merges_open(&t->bpe.merges, t->arena, (int64_t)n));
    t->bpe.pairs = ot_arena_alloc(t->arena, OT_PAIR_BITS / 64, sizeof *t->bpe.pairs);
    if (!t->bpe.pairs)
        return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
    for (size_t i = 0; i < n; i++) {
        const struct ot_json *value = ot_json_at(merges, i);
        const char *text = ot_json_string(value, NULL);
        if (text && strncmp(text, "#version", 8) == 0) /* first line of a copied merges.txt */
            continue;
        OT_TRY(load_merge(t, where, i, value, rank++));
    }
    return 0;
}

/* ---- model ---- */

/* Refuses settings that would change ids silently. */
static int refuse_unsupported(const char *where, const struct ot_json *model) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    size_t bytes;
    if (ot_json_real(ot_json_get(model, "dropout"), 0) != 0)
        return ot_fail(OT_E_INPUT, "%s: model.dropout is not supported; supported: null", where);
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++)
        if (ot_json_string(ot_json_get(model, affixes[i]), &bytes) && bytes > 0)
            return ot_fail(OT_E_INPUT, "%s: model.%s is not supported; supported: null", where, affixes[i]);
    return 0;
}

static void note_common(struct ot_bpe *bpe) {
    for (uint32_t i = 0; i < OT_COMMON; i++)
        bpe->common[i] = ot_bpe_symbol(bpe, i < 0x80 ? i : OT_COMMON_MARK);
    for (int left = 0; left < OT_COMMON; left++)
        for (int right = 0; right < OT_COMMON; right++) {
            const struct ot_merge *merge =
                ot_merges_find(&bpe->merges, bpe->common[left], bpe->common[right]);
            bpe->common_merges[left][right] = merge ? (struct ot_common_merge){merge->rank, merge->id}
                                                    : (struct ot_common_merge){UINT32_MAX, -1};
            uint32_t bit = ot_bpe_pair_bit(bpe->common[left], bpe->common[right]);
            bpe->common_pairs[left][right / 64] |= (bpe->pairs[bit / 64] >> bit % 64 & 1) << right % 64;
        }
}

static int load_bpe(struct ot_tokenizer *t, const char *where, const struct ot_json *model,
                    const struct ot_json *added) {
    struct ot_bpe *bpe = &t->bpe;
    OT_TRY(refuse_unsupported(where, model));
    OT_TRY(ot_json_need_bool(model, where, "byte_fallback", false, &bpe->byte_fallback));
    OT_TRY(ot_json_need_bool(model, where, "fuse_unk", false, &bpe->fuse_unk));
    OT_TRY(ot_json_need_bool(model, where, "ignore_merges", false, &bpe->ignore_merges));
    const struct ot_json *vocab = ot_json_get(model, "vocab");
    if (ot_json_type(vocab) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: model.vocab must be an object, not %s", where,
                       ot_json_type_name(ot_json_type(vocab)));
    OT_TRY(load_vocab(t, where, vocab, added));
    OT_TRY(index_characters(t));
    /* A file may name an unk that the vocabulary lacks: if its alphabet is complete, unk is never needed. */
    size_t bytes;
    const char *unk = ot_json_string(ot_json_get(model, "unk_token"), &bytes);
    bpe->unk = unk ? ot_vocab_find(&t->vocab, unk, bytes) : -1;
    OT_TRY(load_merges(t, where, ot_json_get(model, "merges")));
    note_common(bpe);
    return 0;
}

/* ---- Unigram: a token's id is its place in the list ---- */

static int load_token(struct ot_tokenizer *t, const char *where, int32_t id, const struct ot_json *item) {
    const struct ot_json *score = ot_json_at(item, 1);
    size_t bytes;
    const char *text = ot_json_string(ot_json_at(item, 0), &bytes);
    bool is_number = ot_json_type(score) == OT_JSON_INT || ot_json_type(score) == OT_JSON_REAL;
    if (!text || !is_number || ot_json_length(item) != 2 || !isfinite(ot_json_real(score, 0)))
        return ot_fail(OT_E_INPUT, "%s: model.vocab[%d] must be [\"token\", score]", where, id);
    if (bytes > OT_TOKEN_MAX_BYTES)
        return ot_fail(OT_E_INPUT, "%s: token '%.100s...' is longer than %d bytes", where, text,
                       OT_TOKEN_MAX_BYTES);
    int32_t known = ot_vocab_find(&t->vocab, text, bytes);
    if (known >= 0)
        return ot_fail(OT_E_INPUT, "%s: model.vocab[%d] and model.vocab[%d] are the same token '%.100s'",
                       where, known, id, text);
    t->unigram.scores[id] = ot_json_real(score, 0);
    return ot_vocab_add(&t->vocab, t->arena, text, bytes, id, OT_TOKEN_MODEL);
}

static int load_tokens(struct ot_tokenizer *t, const char *where, const struct ot_json *vocab,
                       const struct ot_json *added) {
    size_t n = ot_json_length(vocab);
    int64_t count = (int64_t)n, max_id = count - 1;
    double least = INFINITY;
    if (ot_json_type(vocab) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: model.vocab must be an array, not %s", where,
                       ot_json_type_name(ot_json_type(vocab)));
    if (n == 0)
        return ot_fail(OT_E_INPUT, "%s: model.vocab is empty", where);
    if (max_id > OT_VOCAB_MAX_ID)
        return ot_fail(OT_E_INPUT, "%s: model.vocab has more than %d tokens", where, OT_VOCAB_MAX_ID + 1);
    OT_TRY(ot_load_measure_added(where, added, &count, &max_id));
    OT_TRY(ot_vocab_open(&t->vocab, t->arena, count, max_id));
    t->unigram.scores = ot_arena_alloc(t->arena, n, sizeof *t->unigram.scores);
    if (!t->unigram.scores)
        return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
    for (size_t i = 0; i < n; i++) {
        OT_TRY(load_token(t, where, (int32_t)i, ot_json_at(vocab, i)));
        least = fmin(least, t->unigram.scores[i]);
    }
    t->unigram.unknown_score = least - 10;
    return 0;
}

/* Finds the byte tokens. If one is missing, none is used. */
static void find_bytes(struct ot_tokenizer *t) {
    struct ot_unigram *unigram = &t->unigram;
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        unigram->byte_tokens[byte] = ot_vocab_find(&t->vocab, name, (size_t)n);
    }
}

static int load_unigram(struct ot_tokenizer *t, const char *where, const struct ot_json *model,
                        const struct ot_json *added) {
    int64_t unk = -1, n = (int64_t)ot_json_length(ot_json_get(model, "vocab"));
    OT_TRY(ot_json_need_bool(model, where, "byte_fallback", false, &t->unigram.byte_fallback));
    OT_TRY(load_tokens(t, where, ot_json_get(model, "vocab"), added));
    OT_TRY(ot_json_need_int(model, where, "unk_id", false, 0, n - 1, &unk));
    t->unigram.unk = (int32_t)unk;
    find_bytes(t);
    return ot_unigram_build(&t->unigram, t->arena, &t->vocab);
}

/* ---- the kind of the model, and the keys that both kinds share ---- */

int ot_load_note_id(const char *where, const char *token, const struct ot_json *value, int64_t *max_id) {
    int64_t id = ot_json_int(value, -1);
    if (ot_json_type(value) != OT_JSON_INT || id < 0 || id > OT_VOCAB_MAX_ID)
        return ot_fail(OT_E_INPUT, "%s: token '%.100s' has no id between 0 and %d", where, token,
                       OT_VOCAB_MAX_ID);
    *max_id = ot_max(id, *max_id);
    return 0;
}

int ot_load_measure_added(const char *where, const struct ot_json *added, int64_t *count, int64_t *max_id) {
    for (size_t i = 0; i < ot_json_length(added); i++, ++*count) {
        const char *content = ot_json_string(ot_json_get(ot_json_at(added, i), "content"), NULL);
        if (!content)
            return ot_fail(OT_E_INPUT, "%s: added_tokens[%zu] has no string 'content'", where, i);
        OT_TRY(ot_load_note_id(where, content, ot_json_get(ot_json_at(added, i), "id"), max_id));
    }
    return 0;
}

/* Some older files, like T5's, have no type. */
static const char *type_of(const struct ot_json *model) {
    if (ot_json_get(model, "type"))
        return ot_json_string(ot_json_get(model, "type"), NULL);
    return ot_json_type(ot_json_get(model, "vocab")) == OT_JSON_ARRAY ? "Unigram" : "BPE";
}

int ot_load_model(struct ot_tokenizer *t, const char *where, const struct ot_json *model,
                  const struct ot_json *added) {
    if (ot_json_type(model) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: not a tokenizer.json: 'model' must be an object, not %s", where,
                       ot_json_type_name(ot_json_type(model)));
    const char *type = type_of(model);
    if (type && strcmp(type, "BPE") == 0) {
        t->model = OT_MODEL_BPE;
        return load_bpe(t, where, model, added);
    }
    if (type && strcmp(type, "Unigram") == 0) {
        t->model = OT_MODEL_UNIGRAM;
        return load_unigram(t, where, model, added);
    }
    return ot_fail(OT_E_INPUT, "%s: model.type '%s' is not supported; supported: BPE, Unigram", where,
                   type ? type : "(not a string)");
}
