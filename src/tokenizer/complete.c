/* Finds added tokens that the files next to tokenizer.json have, but tokenizer.json lacks. transformers adds
 * them when it loads a tokenizer, so they cut texts there.
 *
 * In this order: those of added_tokens_decoder in tokenizer_config.json, by number, or without that key those
 * of added_tokens.json; the special tokens by their names; the other special tokens. A token that
 * tokenizer.json adds too gets the settings of added_tokens_decoder. A new one has the id of its text in the
 * vocabulary, else the next free id: the number in added_tokens_decoder does not count, as in transformers.
 */
#include "src/base/memory.h"
#include "src/tokenizer/new_tokens.h"
#include "src/tokenizer/sentencepiece_make.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

/* Real files add a few hundred tokens; searches here are plain. */
enum { MOST_ADDED = 20000 };

struct list {
    struct ot_sentencepiece_added *tokens;
    size_t n, capacity;
};

struct completion {
    const struct ot_json *tokenizer;
    const struct ot_sentencepiece_files *files;
    struct list added; /* of tokenizer.json, then the new ones */
    struct list wanted;
    bool has_decoder; /* there is the key added_tokens_decoder */
    bool changed;
};

/* ---- lists ---- */

static int append(struct list *list, const struct ot_sentencepiece_added *token) {
    if (list->n == MOST_ADDED)
        return ot_fail(OT_E_INPUT, "more than %d added tokens", MOST_ADDED);
    OT_TRY(ot_grow(&list->tokens, &list->capacity, list->n + 1, sizeof *list->tokens, "added tokens"));
    list->tokens[list->n++] = *token;
    return 0;
}

static struct ot_sentencepiece_added *find(const struct list *list,
                                           const struct ot_sentencepiece_added *token) {
    for (size_t i = 0; i < list->n; i++)
        if (list->tokens[i].bytes == token->bytes &&
            memcmp(list->tokens[i].text, token->text, token->bytes) == 0)
            return &list->tokens[i];
    return NULL;
}

static bool same_settings(const struct ot_sentencepiece_added *a, const struct ot_sentencepiece_added *b) {
    return a->special == b->special && a->normalized == b->normalized && a->lstrip == b->lstrip &&
           a->rstrip == b->rstrip && a->single_word == b->single_word;
}

static int by_id(const void *a, const void *b) {
    const struct ot_sentencepiece_added *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* ---- tokens of the files ---- */

static int list_added(struct completion *c) {
    const struct ot_json *array = ot_json_get(c->tokenizer, "added_tokens");
    for (size_t i = 0; i < ot_json_length(array); i++) {
        struct ot_sentencepiece_added token;
        if (!ot_added_token_read(ot_json_at(array, i), false, &token))
            continue;
        token.id = (int32_t)ot_json_int(ot_json_get(ot_json_at(array, i), "id"), -1);
        OT_TRY(append(&c->added, &token));
    }
    return 0;
}

static int want_decoder(struct completion *c, const struct ot_json *decoder) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(decoder, &cursor, &key, &value)) {
        struct ot_sentencepiece_added token;
        char *end;
        long long number = strtoll(key, &end, 10);
        if (!ot_json_get(value, "content") || *end || end == key || number < 0 || number > OT_VOCAB_MAX_ID)
            return ot_fail(
                OT_E_INPUT,
                "tokenizer_config.json: added_tokens_decoder.%.40s must be a token with 'content', "
                "under its id",
                key);
        if (!ot_added_token_read(value, false, &token))
            continue;
        token.id = (int32_t)number;
        OT_TRY(append(&c->wanted, &token));
    }
    if (c->wanted.n > 0)
        qsort(c->wanted.tokens, c->wanted.n, sizeof *c->wanted.tokens, by_id);
    return 0;
}

/* The tokens of added_tokens.json, {"[PAD]": 32000}, that tokenizer.json has not. */
static int want_older(struct completion *c) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(c->files->added_tokens, &cursor, &key, &value)) {
        struct ot_sentencepiece_added token = {.text = key, .bytes = strlen(key), .normalized = true};
        int64_t id = ot_json_int(value, -1);
        if (id < 0 || id > OT_VOCAB_MAX_ID)
            return ot_fail(OT_E_INPUT, "added_tokens.json: token '%.60s' has no id between 0 and %d", key,
                           OT_VOCAB_MAX_ID);
        token.id = (int32_t)id;
        if (token.bytes > 0 && !find(&c->added, &token))
            OT_TRY(append(&c->wanted, &token));
    }
    if (c->wanted.n > 0)
        qsort(c->wanted.tokens, c->wanted.n, sizeof *c->wanted.tokens, by_id);
    return 0;
}

/* A special token. Where a new token has its text, that one becomes special: of added_tokens.json, which says
 * no settings, always; of added_tokens_decoder, if the special token has a name. */
static int want_special(struct completion *c, const struct ot_json *value, bool is_named) {
    struct ot_sentencepiece_added token;
    if (!ot_added_token_read(value, true, &token))
        return 0;
    struct ot_sentencepiece_added *wanted = find(&c->wanted, &token), *known = find(&c->added, &token);
    bool is_new = wanted && !(known && same_settings(known, wanted));
    if (is_new && (is_named || !c->has_decoder))
        wanted->special = true;
    if (is_new && !c->has_decoder)
        wanted->normalized = false;
    token.special = token.special || is_named;
    return wanted || known ? 0 : append(&c->wanted, &token);
}

static int want_specials(struct completion *c) {
    static const char *const others[] = {"additional_special_tokens", "extra_special_tokens"};
    const struct ot_json *config = c->files->tokenizer_config,
                         *map = c->has_decoder ? NULL : c->files->special_tokens_map;
    for (int i = 0; i < OT_N_SPECIAL_NAMES; i++) {
        const struct ot_json *value = ot_json_get(map, OT_SPECIAL_NAMES[i]);
        OT_TRY(want_special(c, value ? value : ot_json_get(config, OT_SPECIAL_NAMES[i]), true));
    }
    for (size_t k = 0; k < 2; k++)
        for (size_t file = 0; file < 2; file++) {
            const struct ot_json *list = ot_json_get(file ? map : config, others[k]);
            for (size_t i = 0; i < ot_json_length(list); i++)
                OT_TRY(want_special(c, ot_json_at(list, i), false));
        }
    return 0;
}

/* ---- ids ---- */

/* A BPE model maps tokens to ids; in a Unigram model, ids are places in a list. -1: the text is not in it. */
static int64_t vocab_id(const struct ot_json *vocab, const struct ot_sentencepiece_added *token) {
    size_t bytes;
    if (ot_json_type(vocab) == OT_JSON_OBJECT)
        return memchr(token->text, 0, token->bytes) ? -1 : ot_json_int(ot_json_get(vocab, token->text), -1);
    for (size_t i = 0; i < ot_json_length(vocab); i++) {
        const char *text = ot_json_string(ot_json_at(ot_json_at(vocab, i), 0), &bytes);
        if (text && bytes == token->bytes && memcmp(text, token->text, bytes) == 0)
            return (int64_t)i;
    }
    return -1;
}

static int64_t vocab_size(const struct ot_json *vocab) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    int64_t n = 0;
    while (ot_json_next(vocab, &cursor, &key, &value))
        n++;
    return n > 0 ? n : (int64_t)ot_json_length(vocab);
}

static int add_wanted(struct completion *c) {
    const struct ot_json *vocab = ot_json_get(ot_json_get(c->tokenizer, "model"), "vocab");
    int64_t next = vocab_size(vocab);
    for (size_t i = 0; i < c->added.n; i++)
        next = c->added.tokens[i].id >= next ? (int64_t)c->added.tokens[i].id + 1 : next;
    for (size_t i = 0; i < c->wanted.n; i++) {
        struct ot_sentencepiece_added token = c->wanted.tokens[i], *known = find(&c->added, &token);
        if (known && same_settings(known, &token))
            continue;
        c->changed = true;
        int64_t id = known ? known->id : vocab_id(vocab, &token);
        token.id = (int32_t)(id >= 0 ? id : next++);
        if (next > OT_VOCAB_MAX_ID)
            return ot_fail(OT_E_INPUT, "added token '%.60s' has no id up to %d", token.text, OT_VOCAB_MAX_ID);
        if (known)
            *known = token;
        else
            OT_TRY(append(&c->added, &token));
    }
    return 0;
}

/* ---- writing ---- */

static int write_text(const struct completion *c, char **text, size_t *bytes) {
    struct ot_json_writer w = {.indent = -1};
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    ot_json_begin_object(&w, NULL);
    ot_json_begin_array(&w, "added_tokens");
    for (size_t i = 0; i < c->added.n; i++)
        ot_added_token_put(&w, &c->added.tokens[i]);
    ot_json_end_array(&w);
    while (ot_json_next(c->tokenizer, &cursor, &key, &value))
        if (strcmp(key, "added_tokens") != 0)
            ot_json_put_value(&w, key, value);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

/* Adds what is wanted, and frees the lists. Writes the text if anything changed. rc: of earlier steps. */
static int finish(struct completion *c, int rc, char **text, size_t *bytes) {
    if (rc >= 0)
        rc = add_wanted(c);
    if (rc >= 0 && c->changed)
        rc = write_text(c, text, bytes);
    free(c->added.tokens);
    free(c->wanted.tokens);
    return rc;
}

int ot_tokenizer_complete_text(const struct ot_json *tokenizer, const struct ot_sentencepiece_files *files,
                               char **text, size_t *bytes) {
    const struct ot_json *decoder = ot_json_get(files->tokenizer_config, "added_tokens_decoder");
    struct completion c = {.tokenizer = tokenizer, .files = files, .has_decoder = decoder != NULL};
    int rc = 0;
    *text = NULL;
    OT_TRY_GOTO(list_added(&c), rc, out);
    OT_TRY_GOTO(decoder ? want_decoder(&c, decoder) : want_older(&c), rc, out);
    OT_TRY_GOTO(want_specials(&c), rc, out);
out:
    return finish(&c, rc, text, bytes);
}

int ot_new_tokens_add(const struct ot_json *tokenizer, const struct ot_new_tokens *tokens, char **text,
                      size_t *bytes) {
    struct completion c = {.tokenizer = tokenizer};
    int rc = 0;
    *text = NULL;
    OT_TRY_GOTO(list_added(&c), rc, out);
    for (size_t i = 0; i < tokens->n; i++) {
        const struct ot_new_token *t = &tokens->items[i];
        struct ot_sentencepiece_added token = {
            .text = t->text, .bytes = t->bytes, .special = t->special, .normalized = !t->special};
        if (!find(&c.added, &token) || t->special)
            OT_TRY_GOTO(append(&c.wanted, &token), rc, out);
    }
out:
    return finish(&c, rc, text, bytes);
}
