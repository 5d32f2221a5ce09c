/* Reads a tokenizer.json, part by part in the order in which the parts need each other, and answers queries
 * about an open tokenizer. `truncation` and `padding` are ignored: they concern batches, and src/data makes
 * its own.
 */
#include "src/tokenizer/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/json.h"

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
    int rc = 0;
    struct ot_tokenizer *t = calloc(1, sizeof *t);
    if (!t || !(t->spares = calloc(OT_SPARES, sizeof *t->spares)))
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory to read %s", path), rc, out);
    OT_TRY_GOTO(ot_arena_open(&t->arena), rc, out);
    OT_TRY_GOTO(ot_json_read_file(path, OT_TOKENIZER_MAX_FILE_BYTES, &root), rc, out);
    OT_TRY_GOTO(load_root(t, path, root), rc, out);
    *out = t;
    t = NULL;
out:
    ot_json_free(root);
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
