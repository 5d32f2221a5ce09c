/* Reads a tokenizer.json, part by part in the order in which the parts need each other, and answers queries
 * about an open tokenizer. `truncation` and `padding` are ignored: they concern batches, and src/data makes
 * its own.
 */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/tokenizer/tokenizer_state.h"

int ot_load_string(struct ot_tokenizer *t, const struct ot_json *value, struct ot_string *out) {
    size_t bytes;
    const char *text = ot_json_string(value, &bytes);
    out->text = ot_arena_strdup(t->arena, text, bytes);
    out->bytes = bytes;
    return out->text ? 0 : ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
}

/* Refuses an empty literal: it would match between all characters, which no file intends. */
int ot_load_pattern(struct ot_tokenizer *t, const char *where, const struct ot_json *value,
                    struct ot_pattern *out) {
    const struct ot_json *literal = ot_json_get(value, "String"), *regex = ot_json_get(value, "Regex");
    const struct ot_json *given = literal ? literal : regex;
    size_t bytes;
    const char *text = ot_json_string(given, &bytes);
    if (!text || bytes == 0)
        return ot_fail(OT_E_INPUT,
                       "%s.pattern must be {\"String\": \"...\"} or {\"Regex\": \"...\"} and not empty",
                       where);
    if (literal) {
        out->kind = OT_PATTERN_LITERAL;
        return ot_load_string(t, literal, &out->literal);
    }
    out->kind = OT_PATTERN_REGEX;
    return ot_regex_open(text, bytes, where, &out->regex);
}

static int load_root(struct ot_tokenizer *t, const char *where, const struct ot_json *root) {
    if (ot_json_type(root) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: not a tokenizer.json: the top must be an object, not %s", where,
                       ot_json_type_name(ot_json_type(root)));
    const char *version = ot_json_string(ot_json_get(root, "version"), NULL);
    if (version && strcmp(version, "1.0") != 0)
        return ot_fail(OT_E_INPUT, "%s: version '%s' is not supported; supported: 1.0", where, version);
    const struct ot_json *added = ot_json_get(root, "added_tokens");
    OT_TRY(ot_load_model(t, where, ot_json_get(root, "model"), added));
    OT_TRY(ot_load_stages(t, where, root));
    OT_TRY(ot_load_repair(t));
    OT_TRY(ot_load_decoders(t, where, ot_json_get(root, "decoder")));
    OT_TRY(ot_load_added(t, where, added)); /* needs the normalisers */
    return ot_load_post_processor(t, where, ot_json_get(root, "post_processor"));
}

int ot_tokenizer_open(const char *path, struct ot_tokenizer **out) {
    struct ot_json *root = NULL;
    char *text = NULL;
    size_t bytes;
    int rc = 0;
    struct ot_tokenizer *t = calloc(1, sizeof *t);
    if (!t || !(t->spares = calloc(OT_SPARES, sizeof *t->spares)))
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory to read %s", path), rc, out);
    OT_TRY_GOTO(ot_arena_open(&t->arena), rc, out);
    OT_TRY_GOTO(ot_read_file(path, OT_TOKENIZER_MAX_FILE_BYTES, &text, &bytes), rc, out);
    t->crc = ot_crc32(0, text, bytes);
    OT_TRY_GOTO(ot_json_parse(text, bytes, path, &root), rc, out);
    OT_TRY_GOTO(load_root(t, path, root), rc, out);
    *out = t;
    t = NULL;
out:
    ot_json_free(root);
    free(text);
    ot_tokenizer_close(t);
    return rc;
}

void ot_tokenizer_close(struct ot_tokenizer *t) {
    if (!t)
        return;
    for (int i = 0; t->spares && i < OT_SPARES; i++)
        ot_scratch_close(atomic_load(&t->spares[i]));
    free(t->spares);
    for (int i = 0; i < t->n_normalizers; i++)
        ot_pattern_free(&t->normalizers[i].pattern);
    for (int i = 0; i < t->n_splitters; i++)
        ot_pattern_free(&t->splitters[i].pattern);
    for (int i = 0; i < t->n_decoders; i++)
        ot_pattern_free(&t->decoders[i].pattern);
    ot_arena_close(t->arena);
    free(t);
}

uint32_t ot_tokenizer_crc(const struct ot_tokenizer *t) {
    return t->crc;
}

int32_t ot_tokenizer_vocab_size(const struct ot_tokenizer *t) {
    return t->vocab.n;
}

int32_t ot_tokenizer_find(const struct ot_tokenizer *t, const char *token, size_t bytes) {
    return ot_vocab_find(&t->vocab, token, bytes);
}

const char *ot_tokenizer_token(const struct ot_tokenizer *t, int32_t id, size_t *bytes) {
    const struct ot_token *token = ot_vocab_token(&t->vocab, id);
    if (!token)
        return NULL;
    if (bytes)
        *bytes = token->bytes;
    return token->text;
}

bool ot_tokenizer_is_special(const struct ot_tokenizer *t, int32_t id) {
    const struct ot_token *token = ot_vocab_token(&t->vocab, id);
    return token && (token->flags & OT_TOKEN_SPECIAL);
}

/* ---- added tokens ---- */

/* Reads "added_tokens": tokens that are cut out of a text before any other stage. */

/* After a failed match the search goes back to the next byte, so long contents cost time on hostile texts.
 * Real contents have about 30 bytes. */
enum { MAX_CONTENT_BYTES = 1024 };

/* Adds the token to the vocabulary, unless it is there already. In files that Hugging Face wrote it always
 * is. */
static int enter(struct ot_tokenizer *t, const char *where, const struct ot_string *content, int32_t id,
                 bool special) {
    struct ot_vocab *v = &t->vocab;
    int32_t known = ot_vocab_find(v, content->text, content->bytes);
    if (known >= 0 && known != id)
        return ot_fail(OT_E_INPUT, "%s: added token '%.100s' has id %d, but the vocabulary gives it %d",
                       where, content->text, id, known);
    if (known < 0 && v->tokens[id].text)
        return ot_fail(OT_E_INPUT, "%s: added token '%.100s' has the id %d of token '%.100s'", where,
                       content->text, id, v->tokens[id].text);
    if (known < 0)
        OT_TRY(ot_vocab_add(v, t->arena, content->text, content->bytes, id, 0));
    v->tokens[id].flags |= OT_TOKEN_ADDED | (special ? OT_TOKEN_SPECIAL : 0);
    return 0;
}

/* A `normalized` token is matched, and decoded, by its normalised content. */
static int normalize_content(struct ot_tokenizer *t, struct ot_scratch *scratch,
                             struct ot_added_token *token) {
    struct ot_piece piece = {token->content.text, token->content.bytes, NULL, 0};
    OT_TRY(ot_normalize(t, scratch, piece, &piece));
    if (piece.n == token->content.bytes && memcmp(piece.bytes, token->content.text, piece.n) == 0)
        return 0;
    if (!t->decoded)
        t->decoded = ot_arena_alloc(t->arena, (size_t)t->vocab.n, sizeof *t->decoded);
    char *text = ot_arena_strdup(t->arena, piece.bytes, piece.n);
    if (!t->decoded || !text)
        return ot_fail(OT_E_BUDGET, "no memory for added tokens");
    token->content = t->decoded[token->id] = (struct ot_string){text, piece.n};
    return 0;
}

static int load_one(struct ot_tokenizer *t, const char *where, size_t index, const struct ot_json *value,
                    struct ot_scratch *scratch) {
    struct ot_added_token token = {.id = (int32_t)ot_json_int(ot_json_get(value, "id"), 0)};
    OT_TRY(ot_load_string(t, ot_json_get(value, "content"), &token.content));
    OT_TRY(ot_json_need_bool(value, where, "special", false, &token.special));
    OT_TRY(ot_json_need_bool(value, where, "single_word", false, &token.single_word));
    OT_TRY(ot_json_need_bool(value, where, "lstrip", false, &token.lstrip));
    OT_TRY(ot_json_need_bool(value, where, "rstrip", false, &token.rstrip));
    bool normalized = !token.special;
    OT_TRY(ot_json_need_bool(value, where, "normalized", false, &normalized));
    if (token.content.bytes > MAX_CONTENT_BYTES)
        return ot_fail(OT_E_INPUT, "%s: added_tokens[%zu] is longer than %d bytes", where, index,
                       MAX_CONTENT_BYTES);
    if (token.content.bytes == 0) /* Hugging Face ignores empty tokens */
        return 0;
    OT_TRY(enter(t, where, &token.content, token.id, token.special));
    if (normalized)
        OT_TRY(normalize_content(t, scratch, &token));
    struct ot_trie *trie = normalized ? &t->normalized : &t->raw;
    if (token.content.bytes > 0)
        trie->tokens[trie->n_tokens++] = token;
    return 0;
}

int ot_load_added(struct ot_tokenizer *t, const char *where, const struct ot_json *added) {
    size_t n = ot_json_length(added);
    struct ot_scratch *scratch = NULL;
    int rc = 0;
    if (added && ot_json_type(added) != OT_JSON_ARRAY && ot_json_type(added) != OT_JSON_NULL)
        return ot_fail(OT_E_INPUT, "%s: added_tokens must be an array, not %s", where,
                       ot_json_type_name(ot_json_type(added)));
    t->raw.tokens = ot_arena_alloc(t->arena, n + 1, sizeof *t->raw.tokens);
    t->normalized.tokens = ot_arena_alloc(t->arena, n + 1, sizeof *t->normalized.tokens);
    if (!t->raw.tokens || !t->normalized.tokens)
        return ot_fail(OT_E_BUDGET, "no memory for %zu added tokens", n);
    OT_TRY(ot_scratch_take(t, &scratch));
    for (size_t i = 0; i < n; i++)
        OT_TRY_GOTO(load_one(t, where, i, ot_json_at(added, i), scratch), rc, out);
    OT_TRY_GOTO(ot_trie_build(&t->raw, t->arena), rc, out);
    OT_TRY_GOTO(ot_trie_build(&t->normalized, t->arena), rc, out);
out:
    ot_scratch_give(t, scratch);
    return rc;
}

/* ---- repairs ---- */

/* Repairs damaged copies of Llama-2's tokenizer.json in which a tool has turned no-break spaces into plain
 * spaces: tokens of "\u00a0" became tokens of " ". Hugging Face cannot open such a file, because its merges
 * cannot be split. This program can. The normaliser replaces every plain space, so no text can give these
 * tokens. Therefore they are read as no-break spaces again: ids and decoded text are those of the undamaged
 * file.
 */

enum { NO_BREAK_SPACE = 0xa0 };

static bool replaces_spaces(const struct ot_tokenizer *t) {
    for (int i = 0; i < t->n_normalizers; i++) {
        const struct ot_normalizer *n = &t->normalizers[i];
        if (n->kind == OT_NORMALIZE_REPLACE && n->pattern.kind == OT_PATTERN_LITERAL &&
            n->pattern.literal.bytes == 1 && n->pattern.literal.text[0] == ' ' &&
            !memchr(n->content.text, ' ', n->content.bytes))
            return true;
    }
    return false;
}

/* The token's text with no-break spaces, of two bytes each, in place of spaces. */
static int restore(struct ot_tokenizer *t, const struct ot_token *token, struct ot_string *out) {
    char *text = ot_arena_alloc(t->arena, 2 * (size_t)token->bytes + 4, 1);
    if (!text)
        return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
    *out = (struct ot_string){text, 0};
    for (uint32_t i = 0; i < token->bytes; i++) {
        if (token->text[i] == ' ')
            out->bytes += ot_utf8_encode(NO_BREAK_SPACE, text + out->bytes);
        else
            text[out->bytes++] = token->text[i];
    }
    return 0;
}

int ot_load_repair(struct ot_tokenizer *t) {
    struct ot_bpe *bpe = &t->bpe;
    if (!bpe->spaced_merges) /* always so with Unigram */
        return 0;
    int32_t plain = ot_bpe_symbol(bpe, ' ');
    if (plain < 0 || ot_bpe_symbol(bpe, NO_BREAK_SPACE) >= 0 || !replaces_spaces(t))
        return 0;
    bpe->pages[0][NO_BREAK_SPACE] = plain;
    t->decoded = ot_arena_alloc(t->arena, (size_t)t->vocab.n, sizeof *t->decoded);
    if (!t->decoded)
        return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
    for (int32_t id = 0; id < t->vocab.n; id++) {
        const struct ot_token *token = ot_vocab_token(&t->vocab, id);
        if (token && memchr(token->text, ' ', token->bytes))
            OT_TRY(restore(t, token, &t->decoded[id]));
    }
    return 0;
}
