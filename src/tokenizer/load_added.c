/* Reads "added_tokens": tokens that are cut out of a text before any other stage. */
#include "src/tokenizer/tokenizer_state.h"

#include <string.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/json.h"

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
