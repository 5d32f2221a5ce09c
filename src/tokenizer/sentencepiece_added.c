/* The added tokens of a SentencePiece model: its control and user-defined pieces, and tokens of the files
 * next to it. A token that several of them name has the id of its piece, and the settings that were read
 * last. */
#include "src/base/memory.h"
#include "src/tokenizer/sentencepiece_make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

static struct ot_sentencepiece_added *find(const struct ot_sentencepiece_maker *m, const char *text,
                                           size_t bytes) {
    for (size_t i = 0; i < m->n_added; i++)
        if (m->added[i].bytes == bytes && memcmp(m->added[i].text, text, bytes) == 0)
            return &m->added[i];
    return NULL;
}

/* A list of files that other programs wrote has a few hundred tokens; the search above is plain. */
enum { MOST_ADDED = 20000 };

/* The id of a new token: of its piece, else the given one, else (id < 0) the next. */
static int choose_id(struct ot_sentencepiece_maker *m, struct ot_sentencepiece_added *token) {
    int32_t piece = ot_vocab_find(&m->model->vocab, token->text, token->bytes);
    if (piece >= 0) {
        token->id = piece;
        return 0;
    }
    token->id = token->id >= 0 ? token->id : (int32_t)m->next_id;
    const struct ot_token *taken = ot_vocab_token(&m->model->vocab, token->id);
    if (taken)
        return ot_fail(OT_E_INPUT,
                       "%s: token '%.60s' has the id %d of piece '%.60s' of the SentencePiece model",
                       m->where, token->text, token->id, taken->text);
    for (size_t i = 0; i < m->n_added; i++)
        if (m->added[i].id == token->id)
            return ot_fail(OT_E_INPUT, "%s: tokens '%.60s' and '%.60s' have the same id %d", m->where,
                           m->added[i].text, token->text, token->id);
    if (token->id >= m->next_id)
        m->next_id = (int64_t)token->id + 1;
    return 0;
}

/* Adds a token. If it is there already, it gets the new settings and keeps its id. */
static int put(struct ot_sentencepiece_maker *m, struct ot_sentencepiece_added token) {
    struct ot_sentencepiece_added *known = find(m, token.text, token.bytes);
    if (known) {
        token.id = known->id;
        *known = token;
        return 0;
    }
    OT_TRY(choose_id(m, &token));
    if (m->n_added == MOST_ADDED || m->next_id > OT_VOCAB_MAX_ID)
        return ot_fail(OT_E_INPUT, "%s: more than %d added tokens, or an id above %d", m->where, MOST_ADDED,
                       OT_VOCAB_MAX_ID);
    OT_TRY(ot_grow(&m->added, &m->added_capacity, m->n_added + 1, sizeof *m->added, "added tokens"));
    m->added[m->n_added++] = token;
    return 0;
}

/* ---- pieces ---- */

static bool is_turn(const struct ot_token *piece) {
    return strcmp(piece->text, "<start_of_turn>") == 0 || strcmp(piece->text, "<end_of_turn>") == 0;
}

static int put_pieces(struct ot_sentencepiece_maker *m) {
    for (int32_t id = 0; id < m->model->vocab.n; id++) {
        const struct ot_token *piece = &m->model->vocab.tokens[id];
        enum ot_sentencepiece_kind kind = m->model->pieces[id].kind;
        bool special = kind == OT_PIECE_CONTROL || (m->class == OT_CLASS_GEMMA && is_turn(piece));
        if (kind != OT_PIECE_CONTROL && (kind != OT_PIECE_USER_DEFINED || m->class == OT_CLASS_OTHER))
            continue;
        OT_TRY(put(m, (struct ot_sentencepiece_added){
                          .text = piece->text, .bytes = piece->bytes, .id = id, .special = special}));
    }
    return 0;
}

/* T5's sentinels, in falling order after the pieces. */
static int put_extra_ids(struct ot_sentencepiece_maker *m) {
    for (int64_t i = m->extra_ids - 1; m->class == OT_CLASS_T5 && i >= 0; i--) {
        char name[40];
        size_t n = (size_t)snprintf(name, sizeof name, "<extra_id_%lld>", (long long)i);
        const char *text = ot_arena_strdup(m->arena, name, n);
        if (!text)
            return ot_fail(OT_E_BUDGET, "no memory for the added tokens");
        OT_TRY(put(m, (struct ot_sentencepiece_added){.text = text, .bytes = n, .id = -1, .special = true}));
    }
    return 0;
}

/* ---- files ---- */

static bool flag(const struct ot_json *value, const char *key, bool fallback) {
    return ot_json_bool(ot_json_get(value, key), fallback);
}

bool ot_added_token_read(const struct ot_json *value, bool special, struct ot_sentencepiece_added *out) {
    const struct ot_json *content = ot_json_get(value, "content");
    *out = (struct ot_sentencepiece_added){.id = -1, .special = flag(value, "special", special)};
    out->text = ot_json_string(content ? content : value, &out->bytes);
    out->normalized = content && flag(value, "normalized", !out->special);
    out->lstrip = flag(value, "lstrip", false);
    out->rstrip = flag(value, "rstrip", false);
    out->single_word = flag(value, "single_word", false);
    return out->text && out->bytes > 0;
}

void ot_added_token_put(struct ot_json_writer *w, const struct ot_sentencepiece_added *token) {
    ot_json_begin_object(w, NULL);
    ot_json_put_int(w, "id", token->id);
    ot_json_put_string(w, "content", token->text, token->bytes);
    ot_json_put_bool(w, "single_word", token->single_word);
    ot_json_put_bool(w, "lstrip", token->lstrip);
    ot_json_put_bool(w, "rstrip", token->rstrip);
    ot_json_put_bool(w, "normalized", token->normalized);
    ot_json_put_bool(w, "special", token->special);
    ot_json_end_object(w);
}

static int read_id(const struct ot_sentencepiece_maker *m, const char *file, const char *text, int64_t id,
                   int32_t *out) {
    if (id < 0 || id > OT_VOCAB_MAX_ID)
        return ot_fail(OT_E_INPUT, "%s: %s: token '%.60s' has no id between 0 and %d", m->where, file, text,
                       OT_VOCAB_MAX_ID);
    *out = (int32_t)id;
    return 0;
}

/* The key added_tokens_decoder of tokenizer_config.json: {"32000": {"content": ..}}. */
static int put_decoder(struct ot_sentencepiece_maker *m, const struct ot_json *decoder) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(decoder, &cursor, &key, &value)) {
        struct ot_sentencepiece_added token;
        char *end;
        long long id = strtoll(key, &end, 10);
        if (!ot_added_token_read(value, false, &token))
            return ot_fail(OT_E_INPUT,
                           "%s: tokenizer_config.json: added_tokens_decoder.%.40s has no 'content'", m->where,
                           key);
        OT_TRY(read_id(m, "tokenizer_config.json", token.text, *key && !*end ? id : -1, &token.id));
        OT_TRY(put(m, token));
    }
    return 0;
}

const char *const OT_SPECIAL_NAMES[OT_N_SPECIAL_NAMES] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                          "pad_token", "cls_token", "mask_token"};
enum { NAMES = OT_N_SPECIAL_NAMES, BOS = 0, EOS = 1 };

/* The token of one name; NULL: none. The older special_tokens_map.json counts more than
 * tokenizer_config.json. */
static const struct ot_json *named(const struct ot_sentencepiece_maker *m, const char *name) {
    const struct ot_json *config = m->files->tokenizer_config, *value = NULL;
    if (!ot_json_get(config, "added_tokens_decoder"))
        value = ot_json_get(m->files->special_tokens_map, name);
    return value ? value : ot_json_get(config, name);
}

/* The text of one name if no file has it, or if it is null there. */
static const char *usual(const struct ot_sentencepiece_maker *m, int name) {
    static const char *const llama[NAMES] = {"<s>", "</s>", "<unk>"};
    static const char *const t5[NAMES] = {NULL, "</s>", "<unk>", NULL, "<pad>"};
    static const char *const gemma[NAMES] = {"<bos>", "<eos>", "<unk>", NULL, "<pad>"};
    switch (m->class) {
    case OT_CLASS_LLAMA:
        return llama[name];
    case OT_CLASS_T5:
        return t5[name];
    case OT_CLASS_GEMMA:
        return gemma[name];
    case OT_CLASS_OTHER:
        break;
    }
    return name == BOS   ? m->model->bos
           : name == EOS ? m->model->eos
           : name == 2   ? m->model->vocab.tokens[m->model->unk].text
                         : NULL;
}

/* Reads the token of one name. False: there is none. */
static bool read_named(const struct ot_sentencepiece_maker *m, int name, struct ot_sentencepiece_added *out) {
    const struct ot_json *value = named(m, OT_SPECIAL_NAMES[name]);
    if (value && ot_added_token_read(value, true, out))
        return true;
    const char *text = usual(m, name);
    *out = (struct ot_sentencepiece_added){
        .text = text, .bytes = text ? strlen(text) : 0, .id = -1, .special = true};
    return text;
}

static bool is_named_special(const struct ot_sentencepiece_maker *m, const char *text, size_t bytes) {
    const struct ot_json *lists[] = {ot_json_get(m->files->special_tokens_map, "additional_special_tokens"),
                                     ot_json_get(m->files->tokenizer_config, "additional_special_tokens")};
    struct ot_sentencepiece_added token;
    for (int i = 0; i < NAMES; i++)
        if (read_named(m, i, &token) && token.bytes == bytes && memcmp(token.text, text, bytes) == 0)
            return true;
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < ot_json_length(lists[k]); i++)
            if (ot_added_token_read(ot_json_at(lists[k], i), true, &token) && token.bytes == bytes &&
                memcmp(token.text, text, bytes) == 0)
                return true;
    return false;
}

static int by_id(const void *a, const void *b) {
    const struct ot_sentencepiece_added *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* added_tokens.json: {"[PAD]": 32000}. */
static int put_older(struct ot_sentencepiece_maker *m) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(m->files->added_tokens, &cursor, &key, &value)) {
        struct ot_sentencepiece_added token = {.text = key, .bytes = strlen(key)};
        OT_TRY(read_id(m, "added_tokens.json", key, ot_json_int(value, -1), &token.id));
        token.special = is_named_special(m, key, token.bytes);
        token.normalized = !token.special;
        if (token.bytes > 0)
            OT_TRY(put(m, token));
    }
    return 0;
}

/* A special token whose settings no file gives keeps those that it has. */
static int put_special(struct ot_sentencepiece_maker *m, const struct ot_json *value,
                       struct ot_sentencepiece_added token) {
    struct ot_sentencepiece_added *known = find(m, token.text, token.bytes);
    if (known && ot_json_type(value) != OT_JSON_OBJECT) {
        known->special = true;
        return 0;
    }
    token.special = true;
    return put(m, token);
}

static int put_specials(struct ot_sentencepiece_maker *m) {
    const struct ot_json *config = m->files->tokenizer_config;
    const struct ot_json *lists[] = {ot_json_get(config, "additional_special_tokens"), NULL};
    struct ot_sentencepiece_added token;
    if (!ot_json_get(config, "added_tokens_decoder"))
        lists[1] = ot_json_get(m->files->special_tokens_map, "additional_special_tokens");
    for (int i = 0; i < NAMES; i++)
        if (read_named(m, i, &token))
            OT_TRY(put_special(m, named(m, OT_SPECIAL_NAMES[i]), token));
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < ot_json_length(lists[k]); i++)
            if (ot_added_token_read(ot_json_at(lists[k], i), true, &token))
                OT_TRY(put_special(m, ot_json_at(lists[k], i), token));
    return 0;
}

int ot_sentencepiece_find_added(struct ot_sentencepiece_maker *m) {
    const struct ot_json *decoder = ot_json_get(m->files->tokenizer_config, "added_tokens_decoder");
    struct ot_sentencepiece_added token;
    m->next_id = m->model->vocab.n;
    OT_TRY(put_pieces(m));
    OT_TRY(put_extra_ids(m));
    if (decoder)
        OT_TRY(put_decoder(m, decoder));
    else
        OT_TRY(put_older(m));
    OT_TRY(put_specials(m));
    qsort(m->added, m->n_added, sizeof *m->added, by_id);
    m->bos = read_named(m, BOS, &token) ? find(m, token.text, token.bytes) : NULL;
    m->eos = read_named(m, EOS, &token) ? find(m, token.text, token.bytes) : NULL;
    return 0;
}
