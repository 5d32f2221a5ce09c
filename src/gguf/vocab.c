#include "src/gguf/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/text.h"
#include "src/tokenizer/charsmap.h"
#include "src/tokenizer/sentencepiece.h"

#define WORDS_OF_LLAMA3(digits)                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Words of upper and lower case; `suffix` follows each, such as the English 's. */
#define WORDS_OF_CASE(suffix, digits)                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct ot_gguf_words WORDS[] = {
    {.name = "gpt-2"},
    {.name = "llama-bpe", .regex = WORDS_OF_LLAMA3("\\p{N}{1,3}"), .whole_first = true, .add_bos = true},
    {.name = "dbrx", .regex = WORDS_OF_LLAMA3("\\p{N}{1,3}")},
    {.name = "qwen2", .regex = WORDS_OF_LLAMA3("\\p{N}"), .nfc = true},
    {.name = "smollm", .digits = true},
    {.name = "tekken", .regex = WORDS_OF_CASE("", "\\p{N}"), .whole_first = true, .add_bos = true},
    {.name = "gpt-4o", .regex = WORDS_OF_CASE("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}")},
    {.name = "bloom",
     .regex =
         " ?[^(\\s|[.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c])]+"},
};

const struct ot_gguf_words *ot_gguf_words_at(int index) {
    return index < (int)(sizeof WORDS / sizeof *WORDS) ? &WORDS[index] : NULL;
}

/* A piece of the vocabulary that is written. */
struct token {
    struct ot_gguf_string text; /* text NULL: no token has this id */
    enum ot_gguf_token_type type;
    int64_t rank; /* BPE: of the first merge that makes it; -1: none */
    float score;  /* Unigram */
};

enum kind { BYTE_LEVEL, SENTENCEPIECE, UNIGRAM };

struct vocab {
    const struct ot_gguf_vocab *in;
    const struct ot_json *model;
    enum kind kind;
    struct token *tokens; /* [in->size] */
    struct ot_string_builder joined;
};

static bool is_type(const struct ot_json *value, const char *type) {
    const char *text = ot_json_string(ot_json_get(value, "type"), NULL);
    return text && strcmp(text, type) == 0;
}

static bool is_text(const struct ot_json *value, const char *key, const char *wanted) {
    const char *text = ot_json_string(ot_json_get(value, key), NULL);
    return text && strcmp(text, wanted) == 0;
}

/* ---- the kind ---- */

static bool marks_spaces(const struct ot_json *normalizer) {
    return is_type(normalizer, "Replace") && is_text(ot_json_get(normalizer, "pattern"), "String", " ") &&
           is_text(normalizer, "content", OT_SENTENCEPIECE_SPACE);
}

static bool prepends_mark(const struct ot_json *normalizer) {
    return is_type(normalizer, "Prepend") && is_text(normalizer, "prepend", OT_SENTENCEPIECE_SPACE);
}

/* True if spaces become U+2581 and nothing else is changed. *prefix: a text gets one in front. */
static bool is_sentencepiece(const struct ot_json *tokenizer, bool *prefix) {
    const struct ot_json *normalizer = ot_json_get(tokenizer, "normalizer");
    const struct ot_json *splitter = ot_json_get(tokenizer, "pre_tokenizer");
    const struct ot_json *list = ot_json_get(normalizer, "normalizers");
    *prefix = false;
    if (is_type(splitter, "Metaspace") && ot_json_type(normalizer) == OT_JSON_NULL) {
        *prefix = !is_text(splitter, "prepend_scheme", "never") &&
                  ot_json_bool(ot_json_get(splitter, "add_prefix_space"), true);
        return is_text(splitter, "replacement", OT_SENTENCEPIECE_SPACE) &&
               !ot_json_bool(ot_json_get(splitter, "split"), true);
    }
    /* Gemma's splits at spaces, after the normaliser has replaced all of them. */
    if (ot_json_type(splitter) != OT_JSON_NULL && !is_text(ot_json_get(splitter, "pattern"), "String", " "))
        return false;
    if (marks_spaces(normalizer))
        return true;
    *prefix = ot_json_length(list) == 2 && prepends_mark(ot_json_at(list, 0));
    return is_type(normalizer, "Sequence") && marks_spaces(ot_json_at(list, ot_json_length(list) - 1)) &&
           ot_json_length(list) == (*prefix ? 2 : 1);
}

static bool is_byte_level(const struct ot_json *splitter, bool own_regex) {
    return is_type(splitter, "ByteLevel") &&
           ot_json_bool(ot_json_get(splitter, "use_regex"), true) == own_regex &&
           !ot_json_bool(ot_json_get(splitter, "add_prefix_space"), false);
}

static bool splits_by(const struct ot_json *splitter, const char *regex) {
    return is_type(splitter, "Split") && is_text(ot_json_get(splitter, "pattern"), "Regex", regex) &&
           (is_text(splitter, "behavior", "Isolated") || is_text(splitter, "behavior", "Removed")) &&
           ot_json_bool(ot_json_get(splitter, "invert"), false) == is_text(splitter, "behavior", "Removed");
}

static bool splits_digits(const struct ot_json *splitter) {
    return is_type(splitter, "Digits") && ot_json_bool(ot_json_get(splitter, "individual_digits"), false);
}

static bool has_words(const struct ot_json *tokenizer, const struct ot_gguf_words *words) {
    const struct ot_json *splitter = ot_json_get(tokenizer, "pre_tokenizer");
    const struct ot_json *list = ot_json_get(splitter, "pretokenizers");
    const struct ot_json *merges = ot_json_get(ot_json_get(tokenizer, "model"), "merges");
    if (!words->regex && !words->digits && ot_json_length(merges) == 0 && is_byte_level(splitter, false))
        return true; /* without merges the words do not matter */
    if (!words->regex && !words->digits)
        return is_byte_level(splitter, true) ||
               (ot_json_length(list) == 1 && is_byte_level(ot_json_at(list, 0), true));
    if (ot_json_length(list) != 2 || !is_byte_level(ot_json_at(list, 1), words->digits))
        return false;
    return words->digits ? splits_digits(ot_json_at(list, 0)) : splits_by(ot_json_at(list, 0), words->regex);
}

static int find_words(const struct ot_gguf_vocab *in, const struct ot_gguf_words **out) {
    const struct ot_json *normalizer = ot_json_get(in->tokenizer, "normalizer");
    bool plain =
        ot_json_type(normalizer) == OT_JSON_NULL || is_type(normalizer, "NFC") ||
        (is_type(normalizer, "Sequence") && ot_json_length(ot_json_get(normalizer, "normalizers")) == 0);
    if (!plain)
        return ot_fail(OT_E_INPUT,
                       "%s: llama.cpp does not know the normalizer of this tokenizer, so the model cannot be "
                       "exported as GGUF",
                       in->where);
    /* Two names may have one regex. That with the tokenizer's ignore_merges comes first. */
    bool whole_first = ot_json_bool(ot_json_get(ot_json_get(in->tokenizer, "model"), "ignore_merges"), false);
    for (int same = 1; same >= 0; same--)
        for (int i = 0; (*out = ot_gguf_words_at(i)); i++)
            if ((!same || (*out)->whole_first == whole_first) && has_words(in->tokenizer, *out))
                return 0;
    return ot_fail(
        OT_E_INPUT,
        "%s: the pre_tokenizer is none of those that GGUF can name (those of GPT-2, Llama 3, Qwen2, "
        "SmolLM, tekken, GPT-4o and BLOOM), so the model cannot be exported as GGUF",
        in->where);
}

/* ---- tokens ---- */

static int put_token(struct vocab *v, const char *text, size_t bytes, int64_t id,
                     enum ot_gguf_token_type type) {
    if (id < 0 || id >= v->in->size)
        return ot_fail(OT_E_INPUT,
                       "%s: token '%.60s' has the id %lld, but the model's embedding has only %lld rows",
                       v->in->where, text, (long long)id, (long long)v->in->size);
    v->tokens[id].text = (struct ot_gguf_string){text, bytes};
    v->tokens[id].type = type;
    return 0;
}

static bool is_byte_token(const char *text) {
    unsigned byte;
    return strlen(text) == 6 && sscanf(text, "<0x%2X>", &byte) == 1;
}

/* The text of the token for unknown characters; NULL: none. */
static const char *unknown_of(const struct vocab *v) {
    const struct ot_json *list = ot_json_get(v->model, "vocab");
    int64_t id = ot_json_int(ot_json_get(v->model, "unk_id"), -1);
    if (v->kind != UNIGRAM)
        return ot_json_string(ot_json_get(v->model, "unk_token"), NULL);
    return id >= 0 ? ot_json_string(ot_json_at(ot_json_at(list, (size_t)id), 0), NULL) : NULL;
}

static int collect_model(struct vocab *v) {
    const struct ot_json *vocab = ot_json_get(v->model, "vocab");
    const char *key, *unknown = unknown_of(v);
    void *cursor = NULL;
    struct ot_json *value;
    while (ot_json_next(vocab, &cursor, &key, &value))
        OT_TRY(put_token(v, key, strlen(key), ot_json_int(value, -1),
                         v->kind == SENTENCEPIECE && is_byte_token(key) ? OT_GGUF_TOKEN_BYTE
                                                                        : OT_GGUF_TOKEN_NORMAL));
    for (size_t i = 0; i < ot_json_length(vocab); i++) {
        size_t bytes = 0;
        const char *text = ot_json_string(ot_json_at(ot_json_at(vocab, i), 0), &bytes);
        bool is_unknown = text && unknown && strcmp(text, unknown) == 0;
        OT_TRY(put_token(v, text ? text : "", bytes, (int64_t)i,
                         is_unknown ? OT_GGUF_TOKEN_UNKNOWN : OT_GGUF_TOKEN_NORMAL));
        v->tokens[i].score = (float)ot_json_real(ot_json_at(ot_json_at(vocab, i), 1), 0);
    }
    return 0;
}

static int collect_tokens(struct vocab *v) {
    const char *unknown = unknown_of(v);
    const struct ot_json *added = ot_json_get(v->in->tokenizer, "added_tokens");
    OT_TRY(collect_model(v));
    for (size_t i = 0; i < ot_json_length(added); i++) {
        const struct ot_json *token = ot_json_at(added, i);
        size_t bytes = 0;
        const char *text = ot_json_string(ot_json_get(token, "content"), &bytes);
        bool is_unknown = text && unknown && strcmp(text, unknown) == 0;
        bool special = ot_json_bool(ot_json_get(token, "special"), false);
        if (text && bytes > 0)
            OT_TRY(put_token(v, text, bytes, ot_json_int(ot_json_get(token, "id"), -1),
                             is_unknown && v->kind != BYTE_LEVEL ? OT_GGUF_TOKEN_UNKNOWN
                             : special                           ? OT_GGUF_TOKEN_CONTROL
                                                                 : OT_GGUF_TOKEN_USER));
    }
    return 0;
}

static void put_tokens(struct vocab *v, struct ot_gguf_keys *keys) {
    ot_gguf_put_array(keys, "tokenizer.ggml.tokens", OT_GGUF_KIND_STRING, v->in->size);
    for (int64_t i = 0; i < v->in->size; i++) {
        char pad[32];
        int n = snprintf(pad, sizeof pad, "[PAD%lld]", (long long)i);
        struct ot_gguf_string text = v->tokens[i].text;
        ot_gguf_put_string_item(keys, text.text ? text.text : pad, text.text ? text.bytes : (size_t)n);
    }
    ot_gguf_put_array(keys, "tokenizer.ggml.token_type", OT_GGUF_KIND_I32, v->in->size);
    for (int64_t i = 0; i < v->in->size; i++)
        ot_gguf_put_i32_item(keys, v->tokens[i].text.text ? v->tokens[i].type : OT_GGUF_TOKEN_UNUSED);
}

/* ---- merges ---- */

/* The two sides of a merge. Errors: OT_E_INPUT. */
static int merge_of(const struct vocab *v, size_t index, struct ot_gguf_string side[2]) {
    const struct ot_json *merge = ot_json_at(ot_json_get(v->model, "merges"), index);
    size_t bytes = 0;
    const char *text = ot_json_string(merge, &bytes), *space = text ? memchr(text, ' ', bytes) : NULL;
    if (space && !memchr(space + 1, ' ', bytes - (size_t)(space + 1 - text))) {
        side[0] = (struct ot_gguf_string){text, (size_t)(space - text)};
        side[1] = (struct ot_gguf_string){space + 1, bytes - side[0].bytes - 1};
        return 0;
    }
    for (size_t i = 0; i < 2; i++)
        side[i].text = ot_json_string(ot_json_at(merge, i), &side[i].bytes);
    if (side[0].text && side[1].text && !memchr(side[0].text, ' ', side[0].bytes) &&
        !memchr(side[1].text, ' ', side[1].bytes))
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: model.merges[%zu] has tokens with spaces, which GGUF cannot store as a merge; a copy "
                   "of Llama 2's tokenizer.json that has such merges is damaged, get it again",
                   v->in->where, index);
}

/* Writes the merges, and notes the rank of the first merge that makes a token. */
static int put_merges(struct vocab *v, struct ot_gguf_keys *keys) {
    size_t n = ot_json_length(ot_json_get(v->model, "merges"));
    const struct ot_json *ids = ot_json_get(v->model, "vocab");
    ot_gguf_put_array(keys, "tokenizer.ggml.merges", OT_GGUF_KIND_STRING, (int64_t)n);
    for (size_t i = 0; i < n; i++) {
        struct ot_gguf_string side[2];
        OT_TRY(merge_of(v, i, side));
        v->joined.bytes = 0;
        ot_string_append(&v->joined, side[0].text, side[0].bytes);
        ot_string_append(&v->joined, side[1].text, side[1].bytes);
        if (v->joined.failed)
            return ot_fail(OT_E_BUDGET, "%s: no memory for a merge", v->in->where);
        int64_t id = ot_json_int(ot_json_get(ids, v->joined.text), -1);
        if (id >= 0 && id < v->in->size && v->tokens[id].rank < 0)
            v->tokens[id].rank = (int64_t)i;
        v->joined.bytes = side[0].bytes;
        ot_string_append(&v->joined, " ", 1);
        ot_string_append(&v->joined, side[1].text, side[1].bytes);
        ot_gguf_put_string_item(keys, v->joined.text, v->joined.bytes);
    }
    return 0;
}

/* True if the SentencePiece model has all tokens that need a score. */
static bool has_scores(const struct vocab *v) {
    const struct ot_sentencepiece *model = v->in->sentencepiece;
    for (int64_t i = 0; model && i < v->in->size; i++) {
        const struct token *token = &v->tokens[i];
        const struct ot_token *piece = ot_vocab_token(&model->vocab, (int32_t)i);
        if (token->text.text && token->type == OT_GGUF_TOKEN_NORMAL &&
            (!piece || piece->bytes != token->text.bytes ||
             memcmp(piece->text, token->text.text, piece->bytes) != 0))
            return false;
    }
    return model;
}

/* In a BPE without known scores, tokens that no merge makes, such as single characters, come last. */
static float score_of(const struct vocab *v, int64_t id, bool known, int64_t n_merges) {
    const struct token *token = &v->tokens[id];
    if (v->kind == UNIGRAM)
        return token->text.text ? token->score : -1000; /* a filler is no part of a text */
    if (!token->text.text || token->type != OT_GGUF_TOKEN_NORMAL)
        return 0;
    if (known)
        return v->in->sentencepiece->pieces[id].score;
    return -(float)(token->rank >= 0 ? token->rank : n_merges);
}

static void put_scores(const struct vocab *v, struct ot_gguf_keys *keys) {
    int64_t n = (int64_t)ot_json_length(ot_json_get(v->model, "merges"));
    bool known = v->kind == SENTENCEPIECE && has_scores(v);
    ot_gguf_put_array(keys, "tokenizer.ggml.scores", OT_GGUF_KIND_F32, v->in->size);
    for (int64_t i = 0; i < v->in->size; i++)
        ot_gguf_put_f32_item(keys, score_of(v, i, known, n));
}

/* ---- all ---- */

static void put_ids(const struct vocab *v, struct ot_gguf_keys *keys) {
    const char *unknown = unknown_of(v);
    int64_t id = v->kind == UNIGRAM ? ot_json_int(ot_json_get(v->model, "unk_id"), -1)
                 : unknown          ? ot_json_int(ot_json_get(ot_json_get(v->model, "vocab"), unknown), -1)
                                    : -1;
    if (v->in->bos >= 0)
        ot_gguf_put_u32(keys, "tokenizer.ggml.bos_token_id", (uint32_t)v->in->bos);
    if (v->in->eos >= 0)
        ot_gguf_put_u32(keys, "tokenizer.ggml.eos_token_id", (uint32_t)v->in->eos);
    if (id >= 0)
        ot_gguf_put_u32(keys, "tokenizer.ggml.unknown_token_id", (uint32_t)id);
    ot_gguf_put_bool(keys, "tokenizer.ggml.add_bos_token", v->in->add_bos);
    ot_gguf_put_bool(keys, "tokenizer.ggml.add_eos_token", v->in->add_eos);
    if (v->in->chat_template)
        ot_gguf_put_string(keys, "tokenizer.chat_template", v->in->chat_template, v->in->chat_template_bytes);
}

/* ---- Unigram ---- */

static int put_charsmap(const struct vocab *v, struct ot_gguf_keys *keys, const char *text) {
    char *bytes;
    size_t n;
    OT_TRY(ot_base64_decode(text, strlen(text), v->in->where, &bytes, &n));
    ot_gguf_put_bytes(keys, "tokenizer.ggml.precompiled_charsmap", bytes, n);
    free(bytes);
    return 0;
}

static int put_unigram(struct vocab *v, struct ot_gguf_keys *keys) {
    struct ot_gguf_unigram stages;
    if (ot_json_bool(ot_json_get(v->model, "byte_fallback"), false))
        return ot_fail(
            OT_E_INPUT,
            "%s: a Unigram tokenizer with byte_fallback cannot be exported as GGUF: llama.cpp gives "
            "unknown characters no bytes",
            v->in->where);
    if (!ot_gguf_find_unigram(v->in->tokenizer, &stages))
        return ot_fail(
            OT_E_INPUT,
            "%s: llama.cpp does not know the normalizer or the pre_tokenizer of this Unigram tokenizer, "
            "so the model cannot be exported as GGUF",
            v->in->where);
    OT_TRY(collect_tokens(v));
    ot_gguf_put_text(keys, "tokenizer.ggml.model", "t5");
    ot_gguf_put_text(keys, "tokenizer.ggml.pre", "default");
    put_tokens(v, keys);
    put_scores(v, keys);
    ot_gguf_put_bool(keys, "tokenizer.ggml.add_space_prefix", stages.prefix);
    ot_gguf_put_bool(keys, "tokenizer.ggml.remove_extra_whitespaces", stages.merge_spaces);
    if (stages.charsmap)
        OT_TRY(put_charsmap(v, keys, stages.charsmap));
    put_ids(v, keys);
    return 0;
}

/* ---- BPE ---- */

static int put_bpe(struct vocab *v, struct ot_gguf_keys *keys) {
    const struct ot_gguf_vocab *in = v->in;
    const struct ot_gguf_words *words = NULL;
    bool prefix = false;
    if (v->kind == SENTENCEPIECE && !is_sentencepiece(in->tokenizer, &prefix))
        return ot_fail(
            OT_E_INPUT,
            "%s: this tokenizer has byte_fallback, but does more to a text than to replace its "
            "spaces by U+2581, which llama.cpp does not know; the model cannot be exported as GGUF",
            in->where);
    if (v->kind == BYTE_LEVEL)
        OT_TRY(find_words(in, &words));
    OT_TRY(collect_tokens(v));
    ot_gguf_put_text(keys, "tokenizer.ggml.model", v->kind == SENTENCEPIECE ? "llama" : "gpt2");
    ot_gguf_put_text(keys, "tokenizer.ggml.pre", v->kind == SENTENCEPIECE ? "default" : words->name);
    put_tokens(v, keys);
    OT_TRY(put_merges(v, keys));
    if (v->kind == SENTENCEPIECE) {
        put_scores(v, keys);
        ot_gguf_put_bool(keys, "tokenizer.ggml.add_space_prefix", prefix);
    }
    put_ids(v, keys);
    return 0;
}

static int put_vocab(struct vocab *v, struct ot_gguf_keys *keys) {
    enum ot_json_type type = ot_json_type(ot_json_get(v->model, "vocab"));
    if (type != OT_JSON_OBJECT && type != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: only a BPE or Unigram tokenizer can be exported as GGUF",
                       v->in->where);
    v->kind = type == OT_JSON_ARRAY                                         ? UNIGRAM
              : ot_json_bool(ot_json_get(v->model, "byte_fallback"), false) ? SENTENCEPIECE
                                                                            : BYTE_LEVEL;
    return v->kind == UNIGRAM ? put_unigram(v, keys) : put_bpe(v, keys);
}

int ot_gguf_put_vocab(struct ot_gguf_keys *keys, const struct ot_gguf_vocab *in) {
    struct vocab v = {.in = in, .model = ot_json_get(in->tokenizer, "model")};
    v.tokens = calloc((size_t)in->size + 1, sizeof *v.tokens);
    if (!v.tokens)
        return ot_fail(OT_E_BUDGET, "%s: no memory for a vocabulary of %lld tokens", in->where,
                       (long long)in->size);
    for (int64_t i = 0; i < in->size; i++)
        v.tokens[i].rank = -1;
    int rc = put_vocab(&v, keys);
    free(v.joined.text);
    free(v.tokens);
    return rc;
}

/* ---- Unigram models ---- */

/* Finds out whether llama.cpp's kind "t5" can express the stages of a tokenizer.json with a Unigram model. */

/* The items of a Sequence, or the value itself as the only item. */
static size_t count(const struct ot_json *value, const char *items) {
    if (ot_json_type(value) == OT_JSON_NULL)
        return 0;
    return is_type(value, "Sequence") ? ot_json_length(ot_json_get(value, items)) : 1;
}

static const struct ot_json *item(const struct ot_json *value, const char *items, size_t i) {
    return is_type(value, "Sequence") ? ot_json_at(ot_json_get(value, items), i) : value;
}

struct stages {
    bool strips, marks, cuts; /* strips spaces at the end; writes U+2581 for spaces; cuts words */
};

static bool read_replace(const struct ot_json *value, struct ot_gguf_unigram *out, struct stages *s) {
    const struct ot_json *pattern = ot_json_get(value, "pattern");
    bool mark = is_text(value, "content", OT_SENTENCEPIECE_SPACE);
    if (is_text(pattern, "Regex", " {2,}") && (mark || is_text(value, "content", " "))) {
        out->merge_spaces = true;
        return true;
    }
    s->marks = is_text(pattern, "String", " ") && mark;
    return s->marks;
}

static bool read_normalizer(const struct ot_json *value, struct ot_gguf_unigram *out, struct stages *s) {
    size_t n = count(value, "normalizers");
    for (size_t i = 0; i < n; i++) {
        const struct ot_json *one = item(value, "normalizers", i);
        if (i == 0 && is_type(one, "Precompiled"))
            out->charsmap = ot_json_string(ot_json_get(one, "precompiled_charsmap"), NULL);
        else if (is_type(one, "Strip"))
            s->strips = ot_json_bool(ot_json_get(one, "strip_right"), true);
        else if (is_type(one, "Prepend") && is_text(one, "prepend", OT_SENTENCEPIECE_SPACE))
            out->prefix = true;
        else if (!is_type(one, "Replace") || !read_replace(one, out, s))
            return false;
    }
    return true;
}

static bool read_splitters(const struct ot_json *value, struct ot_gguf_unigram *out, struct stages *s) {
    size_t n = count(value, "pretokenizers");
    for (size_t i = 0; i < n; i++) {
        const struct ot_json *one = item(value, "pretokenizers", i);
        if (is_type(one, "WhitespaceSplit")) {
            out->merge_spaces = s->strips = true;
            continue;
        }
        if (!is_type(one, "Metaspace") || !is_text(one, "replacement", OT_SENTENCEPIECE_SPACE) || s->marks)
            return false;
        s->marks = true;
        s->cuts = ot_json_bool(ot_json_get(one, "split"), true);
        out->prefix = !is_text(one, "prepend_scheme", "never") &&
                      ot_json_bool(ot_json_get(one, "add_prefix_space"), true);
    }
    return true;
}

bool ot_gguf_find_unigram(const struct ot_json *tokenizer, struct ot_gguf_unigram *out) {
    struct stages s = {false, false, false};
    *out = (struct ot_gguf_unigram){.prefix = false};
    if (!read_normalizer(ot_json_get(tokenizer, "normalizer"), out, &s) ||
        !read_splitters(ot_json_get(tokenizer, "pre_tokenizer"), out, &s))
        return false;
    /* A run of spaces that stays must not be cut: llama.cpp never cuts. */
    return s.marks && out->merge_spaces == s.strips && (out->merge_spaces || !s.cuts);
}
