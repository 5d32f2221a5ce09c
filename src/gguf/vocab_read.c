/* Makes tokenizer.json from the keys of a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/utf8.h"
#include "src/gguf/little.h"
#include "src/gguf/vocab_maker.h"
#include "src/tokenizer/sentencepiece.h"

/* ---- reading ---- */

static int read_id(const struct ot_gguf *file, const char *key, int64_t n, int64_t *id) {
    *id = -1;
    OT_TRY(ot_gguf_need_int(file, key, false, 0, UINT32_MAX, id));
    if (*id == UINT32_MAX) /* llama.cpp's "none" */
        *id = -1;
    if (*id < n)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: key %s is %lld, but the file has only %lld tokens", ot_gguf_path(file),
                   key, (long long)*id, (long long)n);
}

int ot_gguf_read_token_ids(const struct ot_gguf *file, struct ot_gguf_token_ids *ids) {
    const struct ot_gguf_value *tokens;
    *ids = (struct ot_gguf_token_ids){-1, -1};
    OT_TRY(ot_gguf_need_array(file, "tokenizer.ggml.tokens", false, OT_GGUF_KIND_STRING, &tokens));
    if (!tokens)
        return 0;
    OT_TRY(read_id(file, "tokenizer.ggml.bos_token_id", tokens->n, &ids->bos));
    return read_id(file, "tokenizer.ggml.eos_token_id", tokens->n, &ids->eos);
}

/* Names that other converters give to the same regexes. */
static const char *usual_name(struct ot_gguf_string pre) {
    static const char *const same[][2] = {
        {"llama3", "llama-bpe"},  {"llama-v3", "llama-bpe"}, {"falcon3", "llama-bpe"},
        {"pixtral", "llama-bpe"}, {"smaug-bpe", "dbrx"},     {"deepseek-r1-qwen", "qwen2"},
        {"gpt2", "gpt-2"},        {"phi-2", "gpt-2"},        {"mpt", "gpt-2"},
        {"olmo", "gpt-2"},        {"starcoder", "smollm"},   {"refact", "smollm"},
        {"command-r", "smollm"},  {"codeshell", "smollm"},   {"llama4", "gpt-4o"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (ot_gguf_string_is(pre, same[i][0]))
            return same[i][1];
    return NULL;
}

static int find_words(struct ot_gguf_maker *m) {
    struct ot_gguf_string pre = {"", 0};
    OT_TRY(ot_gguf_need_string(m->file, "tokenizer.ggml.pre", true, &pre));
    const char *usual = usual_name(pre);
    for (int i = 0; (m->words = ot_gguf_words_at(i)); i++)
        if (usual ? strcmp(usual, m->words->name) == 0 : ot_gguf_string_is(pre, m->words->name))
            return 0;
    return ot_fail(
        OT_E_INPUT,
        "%s: key tokenizer.ggml.pre '%.*s' is not supported; known: gpt-2, llama-bpe, dbrx, qwen2, "
        "smollm, tekken, gpt-4o, bloom; use another tokenizer, or the model in Hugging Face's format",
        ot_gguf_path(m->file), (int)ot_min(pre.bytes, 60), pre.text);
}

static int find_kind(struct ot_gguf_maker *m) {
    struct ot_gguf_string kind;
    OT_TRY(ot_gguf_need_string(m->file, "tokenizer.ggml.model", true, &kind));
    if (ot_gguf_string_is(kind, "gpt2"))
        return find_words(m);
    m->is_unigram = ot_gguf_string_is(kind, "t5");
    if (m->is_unigram || ot_gguf_string_is(kind, "llama"))
        return 0;
    return ot_fail(OT_E_INPUT, "%s: key tokenizer.ggml.model '%.*s' is not supported; known: llama, gpt2, t5",
                   ot_gguf_path(m->file), (int)ot_min(kind.bytes, 60), kind.text);
}

static int check_length(const struct ot_gguf_maker *m, const struct ot_gguf_value *array) {
    if (!array || array->n == m->tokens->n)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: key %s has %lld items, but there are %lld tokens", ot_gguf_path(m->file),
                   array->key, (long long)array->n, (long long)m->tokens->n);
}

static int read_charsmap(struct ot_gguf_maker *m) {
    static const char key[] = "tokenizer.ggml.precompiled_charsmap";
    const struct ot_gguf_value *value = ot_gguf_find(m->file, key);
    if (!value || !m->is_unigram)
        return 0;
    if (value->kind != OT_GGUF_KIND_ARRAY ||
        (value->item != OT_GGUF_KIND_U8 && value->item != OT_GGUF_KIND_I8))
        return ot_fail(OT_E_INPUT, "%s: key %s must be an array of bytes", ot_gguf_path(m->file), key);
    m->charsmap = value->n > 0 ? value : NULL;
    return 0;
}

static int read_settings(struct ot_gguf_maker *m) {
    const struct ot_gguf *file = m->file;
    m->add_bos = m->words ? m->words->add_bos : !m->is_unigram;
    m->add_eos = m->is_unigram;
    m->prefix = true;
    OT_TRY(ot_gguf_need_bool(file, "tokenizer.ggml.add_bos_token", false, &m->add_bos));
    OT_TRY(ot_gguf_need_bool(file, "tokenizer.ggml.add_eos_token", false, &m->add_eos));
    OT_TRY(ot_gguf_need_bool(file, "tokenizer.ggml.add_space_prefix", false, &m->prefix));
    OT_TRY(ot_gguf_need_bool(file, "tokenizer.ggml.remove_extra_whitespaces", false, &m->merge_spaces));
    OT_TRY(read_id(file, "tokenizer.ggml.bos_token_id", m->tokens->n, &m->bos));
    OT_TRY(read_id(file, "tokenizer.ggml.eos_token_id", m->tokens->n, &m->eos));
    OT_TRY(read_id(file, "tokenizer.ggml.unknown_token_id", m->tokens->n, &m->unknown));
    if (m->is_unigram && m->unknown < 0 && m->tokens->n > 2) /* llama.cpp's default */
        m->unknown = 2;
    return 0;
}

static int read_keys(struct ot_gguf_maker *m) {
    const struct ot_gguf *file = m->file;
    OT_TRY(find_kind(m));
    OT_TRY(ot_gguf_need_array(file, "tokenizer.ggml.token_type", false, OT_GGUF_KIND_I32, &m->types));
    if (!m->is_unigram)
        OT_TRY(ot_gguf_need_array(file, "tokenizer.ggml.merges", m->words, OT_GGUF_KIND_STRING, &m->merges));
    OT_TRY(ot_gguf_need_array(file, "tokenizer.ggml.scores", !m->words && !m->merges, OT_GGUF_KIND_F32,
                              &m->scores));
    OT_TRY(read_charsmap(m));
    OT_TRY(check_length(m, m->types));
    OT_TRY(check_length(m, m->scores));
    return read_settings(m);
}

int ot_gguf_maker_type(const struct ot_gguf_maker *m, int64_t id) {
    return m->types ? (int32_t)ot_little_u32(m->types->data + 4 * id) : OT_GGUF_TOKEN_NORMAL;
}

bool ot_gguf_maker_is_filler(const struct ot_gguf_maker *m, int64_t id) {
    struct ot_gguf_string text = m->tokens->strings[id];
    return ot_gguf_maker_type(m, id) == OT_GGUF_TOKEN_UNUSED && text.bytes > 5 &&
           memcmp(text.text, "[PAD", 4) == 0;
}

float ot_gguf_maker_score(const struct ot_gguf_maker *m, int64_t id) {
    uint32_t bits = ot_little_u32(m->scores->data + 4 * id);
    float score;
    memcpy(&score, &bits, sizeof score);
    return score;
}

/* ---- tokens ---- */

static int by_text(const void *a, const void *b) {
    const struct ot_gguf_string *x = *(const struct ot_gguf_string *const *)a,
                                *y = *(const struct ot_gguf_string *const *)b;
    int order = memcmp(x->text, y->text, ot_min(x->bytes, y->bytes));
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The id of a token with this text; -1: there is none. */
static int64_t find_token(const struct ot_gguf_maker *m, struct ot_gguf_string text) {
    const struct ot_gguf_string *key = &text;
    const struct ot_gguf_string **found =
        bsearch(&key, m->by_text, (size_t)m->tokens->n, sizeof *m->by_text, by_text);
    return found ? *found - m->tokens->strings : -1;
}

static int check_token(const struct ot_gguf_maker *m, int64_t id) {
    struct ot_gguf_string token = m->tokens->strings[id];
    for (size_t i = 0; i < token.bytes;) {
        size_t length = ot_utf8_character(token.text + i, token.bytes - i);
        if (length == 0 || token.text[i] == '\0')
            return ot_fail(OT_E_INPUT,
                           "%s: tokenizer.ggml.tokens[%lld] contains a NUL, or is not valid UTF-8",
                           ot_gguf_path(m->file), (long long)id);
        i += length;
    }
    return 0;
}

static int sort_tokens(struct ot_gguf_maker *m) {
    int64_t n = m->tokens->n;
    m->by_text = calloc((size_t)n + 1, sizeof *m->by_text);
    if (!m->by_text)
        return ot_fail(OT_E_BUDGET, "%s: no memory for %lld tokens", ot_gguf_path(m->file), (long long)n);
    for (int64_t i = 0; i < n; i++) {
        OT_TRY(check_token(m, i));
        m->by_text[i] = &m->tokens->strings[i];
    }
    qsort(m->by_text, (size_t)n, sizeof *m->by_text, by_text);
    for (int64_t i = 1; i < n; i++)
        if (by_text(&m->by_text[i - 1], &m->by_text[i]) == 0)
            return ot_fail(OT_E_INPUT, "%s: tokenizer.ggml.tokens[%td] and [%td] are the same token",
                           ot_gguf_path(m->file), m->by_text[i - 1] - m->tokens->strings,
                           m->by_text[i] - m->tokens->strings);
    return 0;
}

/* A copy that ends with NUL, valid until the next call. NULL: no memory. */
static const char *text_of(struct ot_gguf_maker *m, struct ot_gguf_string text) {
    m->key.bytes = 0;
    ot_string_append(&m->key, text.text, text.bytes);
    return m->key.failed ? NULL : m->key.text;
}

static int put_tokens(struct ot_gguf_maker *m) {
    ot_json_begin_object(&m->w, "vocab");
    for (int64_t i = 0; i < m->tokens->n; i++) {
        const char *text = text_of(m, m->tokens->strings[i]);
        if (!text)
            return ot_fail(OT_E_BUDGET, "%s: no memory for a token", ot_gguf_path(m->file));
        if (!ot_gguf_maker_is_filler(m, i))
            ot_json_put_int(&m->w, text, i);
    }
    ot_json_end_object(&m->w);
    return 0;
}

static void put_added(struct ot_gguf_maker *m) {
    ot_json_begin_array(&m->w, "added_tokens");
    for (int64_t i = 0; i < m->tokens->n; i++) {
        int type = ot_gguf_maker_type(m, i);
        if (type != OT_GGUF_TOKEN_CONTROL && type != OT_GGUF_TOKEN_USER && type != OT_GGUF_TOKEN_UNKNOWN)
            continue;
        ot_added_token_put(&m->w, &(struct ot_sentencepiece_added){.text = m->tokens->strings[i].text,
                                                                   .bytes = m->tokens->strings[i].bytes,
                                                                   .id = (int32_t)i,
                                                                   .special = type != OT_GGUF_TOKEN_USER});
    }
    ot_json_end_array(&m->w);
}

/* ---- merges ---- */

struct merge {
    float score;
    int64_t left, right; /* ids */
    size_t left_bytes, right_bytes;
};

struct merge_list {
    struct merge *merges;
    size_t n, capacity;
};

/* Best score first; of two merges to the same token the one with the longer left side, as transformers orders
 * them. */
static int by_score(const void *a, const void *b) {
    const struct merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_bytes != y->left_bytes)
        return x->left_bytes > y->left_bytes ? -1 : 1;
    if (x->right_bytes != y->right_bytes)
        return x->right_bytes > y->right_bytes ? -1 : 1;
    return (x->left > y->left) - (x->left < y->left);
}

static int add_merge(const struct ot_gguf_maker *m, struct merge_list *list, struct merge merge) {
    int rc = ot_grow(&list->merges, &list->capacity, list->n + 1, sizeof *list->merges, "merges");
    if (rc < 0)
        return ot_fail_context(rc, "%s", ot_gguf_path(m->file));
    list->merges[list->n++] = merge;
    return 0;
}

/* The work grows with the square of a token's length. No token of a real file is nearly that long. */
enum { MAX_MERGED_BYTES = 512 };

/* All pairs of tokens that make up token `id`. */
static int find_merges(const struct ot_gguf_maker *m, int64_t id, struct merge_list *list) {
    struct ot_gguf_string token = m->tokens->strings[id];
    float score = ot_gguf_maker_score(m, id);
    if (ot_gguf_maker_type(m, id) != OT_GGUF_TOKEN_NORMAL)
        return 0;
    if (token.bytes > MAX_MERGED_BYTES)
        return ot_fail(OT_E_INPUT, "%s: tokenizer.ggml.tokens[%lld] has %zu bytes, must have at most %d",
                       ot_gguf_path(m->file), (long long)id, token.bytes, MAX_MERGED_BYTES);
    if (score != score)
        return ot_fail(OT_E_INPUT, "%s: tokenizer.ggml.scores[%lld] is not a number", ot_gguf_path(m->file),
                       (long long)id);
    for (size_t at = 1; at < token.bytes; at++) {
        struct ot_gguf_string left = {token.text, at}, right = {token.text + at, token.bytes - at};
        if (((unsigned char)token.text[at] & 0xc0) == 0x80) /* within a character */
            continue;
        struct merge merge = {score, find_token(m, left), find_token(m, right), left.bytes, right.bytes};
        if (merge.left >= 0 && merge.right >= 0)
            OT_TRY(add_merge(m, list, merge));
    }
    return 0;
}

static void put_merge(struct ot_gguf_maker *m, struct ot_gguf_string left, struct ot_gguf_string right) {
    ot_json_begin_array(&m->w, NULL);
    ot_json_put_string(&m->w, NULL, left.text, left.bytes);
    ot_json_put_string(&m->w, NULL, right.text, right.bytes);
    ot_json_end_array(&m->w);
}

static int put_scored_merges(struct ot_gguf_maker *m) {
    struct merge_list list = {0};
    int rc = 0;
    for (int64_t i = 0; i < m->tokens->n && rc == 0; i++)
        rc = find_merges(m, i, &list);
    if (rc == 0 && list.n > 0)
        qsort(list.merges, list.n, sizeof *list.merges, by_score);
    for (size_t i = 0; i < list.n && rc == 0; i++)
        put_merge(m, m->tokens->strings[list.merges[i].left], m->tokens->strings[list.merges[i].right]);
    free(list.merges);
    return rc;
}

static int put_merges(struct ot_gguf_maker *m) {
    int rc = 0;
    ot_json_begin_array(&m->w, "merges");
    if (!m->merges)
        rc = put_scored_merges(m);
    for (int64_t i = 0; m->merges && i < m->merges->n; i++) {
        struct ot_gguf_string merge = m->merges->strings[i];
        const char *space = memchr(merge.text, ' ', merge.bytes);
        if (!space)
            return ot_fail(OT_E_INPUT,
                           "%s: tokenizer.ggml.merges[%lld] must be two tokens with a space between",
                           ot_gguf_path(m->file), (long long)i);
        size_t left = (size_t)(space - merge.text);
        put_merge(m, (struct ot_gguf_string){merge.text, left},
                  (struct ot_gguf_string){space + 1, merge.bytes - left - 1});
    }
    ot_json_end_array(&m->w);
    return rc;
}

/* ---- stages ---- */

void ot_gguf_maker_begin(struct ot_gguf_maker *m, const char *key, const char *type) {
    ot_json_begin_object(&m->w, key);
    ot_json_put_text(&m->w, "type", type);
}

void ot_gguf_maker_replace(struct ot_gguf_maker *m, const char *kind, const char *from, const char *to) {
    ot_gguf_maker_begin(m, NULL, "Replace");
    ot_json_begin_object(&m->w, "pattern");
    ot_json_put_text(&m->w, kind, from);
    ot_json_end_object(&m->w);
    ot_json_put_text(&m->w, "content", to);
    ot_json_end_object(&m->w);
}

static void put_byte_level(struct ot_gguf_maker *m, const char *key, bool use_regex) {
    ot_gguf_maker_begin(m, key, "ByteLevel");
    ot_json_put_bool(&m->w, "add_prefix_space", false);
    ot_json_put_bool(&m->w, "trim_offsets", false);
    ot_json_put_bool(&m->w, "use_regex", use_regex);
    ot_json_end_object(&m->w);
}

static void put_stages_of_llama(struct ot_gguf_maker *m) {
    ot_gguf_maker_begin(m, "normalizer", "Sequence");
    ot_json_begin_array(&m->w, "normalizers");
    if (m->prefix) {
        ot_gguf_maker_begin(m, NULL, "Prepend");
        ot_json_put_text(&m->w, "prepend", OT_SENTENCEPIECE_SPACE);
        ot_json_end_object(&m->w);
    }
    ot_gguf_maker_replace(m, "String", " ", OT_SENTENCEPIECE_SPACE);
    ot_json_end_array(&m->w);
    ot_json_end_object(&m->w);
    ot_json_put_null(&m->w, "pre_tokenizer");
    ot_gguf_maker_begin(m, "decoder", "Sequence");
    ot_json_begin_array(&m->w, "decoders");
    ot_gguf_maker_replace(m, "String", OT_SENTENCEPIECE_SPACE, " ");
    ot_gguf_maker_begin(m, NULL, "ByteFallback");
    ot_json_end_object(&m->w);
    ot_gguf_maker_begin(m, NULL, "Fuse");
    ot_json_end_object(&m->w);
    if (m->prefix) {
        ot_gguf_maker_begin(m, NULL, "Strip");
        ot_json_put_text(&m->w, "content", " ");
        ot_json_put_int(&m->w, "start", 1);
        ot_json_put_int(&m->w, "stop", 0);
        ot_json_end_object(&m->w);
    }
    ot_json_end_array(&m->w);
    ot_json_end_object(&m->w);
}

static void put_splitters(struct ot_gguf_maker *m) {
    const struct ot_gguf_words *words = m->words;
    if (!words->regex && !words->digits) {
        put_byte_level(m, "pre_tokenizer", true);
        return;
    }
    ot_gguf_maker_begin(m, "pre_tokenizer", "Sequence");
    ot_json_begin_array(&m->w, "pretokenizers");
    ot_gguf_maker_begin(m, NULL, words->digits ? "Digits" : "Split");
    if (words->digits) {
        ot_json_put_bool(&m->w, "individual_digits", true);
    } else {
        ot_json_begin_object(&m->w, "pattern");
        ot_json_put_text(&m->w, "Regex", words->regex);
        ot_json_end_object(&m->w);
        ot_json_put_text(&m->w, "behavior", "Isolated");
        ot_json_put_bool(&m->w, "invert", false);
    }
    ot_json_end_object(&m->w);
    put_byte_level(m, NULL, words->digits);
    ot_json_end_array(&m->w);
    ot_json_end_object(&m->w);
}

static int put_stages(struct ot_gguf_maker *m) {
    if (m->is_unigram)
        return ot_gguf_maker_unigram_stages(m);
    if (!m->words) {
        put_stages_of_llama(m);
        return 0;
    }
    if (m->words->nfc) {
        ot_gguf_maker_begin(m, "normalizer", "NFC");
        ot_json_end_object(&m->w);
    } else {
        ot_json_put_null(&m->w, "normalizer");
    }
    put_splitters(m);
    put_byte_level(m, "decoder", true);
    return 0;
}

static void put_side(struct ot_gguf_maker *m, const char *what, const char *id) {
    ot_json_begin_object(&m->w, NULL);
    ot_json_begin_object(&m->w, what);
    ot_json_put_text(&m->w, "id", id);
    ot_json_put_int(&m->w, "type_id", 0);
    ot_json_end_object(&m->w);
    ot_json_end_object(&m->w);
}

static int put_special_side(struct ot_gguf_maker *m, bool wanted, int64_t id) {
    const char *text = wanted ? text_of(m, m->tokens->strings[id]) : NULL;
    if (text)
        put_side(m, "SpecialToken", text);
    return text || !wanted ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory for a token", ot_gguf_path(m->file));
}

static int put_special(struct ot_gguf_maker *m, bool wanted, int64_t id) {
    const char *text = wanted ? text_of(m, m->tokens->strings[id]) : NULL;
    if (!text)
        return wanted ? ot_fail(OT_E_BUDGET, "%s: no memory for a token", ot_gguf_path(m->file)) : 0;
    ot_json_begin_object(&m->w, text);
    ot_json_put_text(&m->w, "id", text);
    ot_json_begin_array(&m->w, "ids");
    ot_json_put_int(&m->w, NULL, id);
    ot_json_end_array(&m->w);
    ot_json_begin_array(&m->w, "tokens");
    ot_json_put_text(&m->w, NULL, text);
    ot_json_end_array(&m->w);
    ot_json_end_object(&m->w);
    return 0;
}

/* The template of two texts: transformers wants one, this program has no use for it. */
static int put_pair(struct ot_gguf_maker *m, bool bos, bool eos) {
    ot_json_begin_array(&m->w, "pair");
    for (int i = 0; i < 2; i++) {
        OT_TRY(put_special_side(m, bos, m->bos));
        put_side(m, "Sequence", i ? "B" : "A");
        OT_TRY(put_special_side(m, eos, m->eos));
    }
    ot_json_end_array(&m->w);
    return 0;
}

/* Texts begin with bos and end with eos, if the file says so. */
static int put_post_processor(struct ot_gguf_maker *m) {
    bool bos = m->add_bos && m->bos >= 0, eos = m->add_eos && m->eos >= 0;
    if (!bos && !eos) {
        ot_json_put_null(&m->w, "post_processor");
        return 0;
    }
    ot_gguf_maker_begin(m, "post_processor", "TemplateProcessing");
    ot_json_begin_array(&m->w, "single");
    OT_TRY(put_special_side(m, bos, m->bos));
    put_side(m, "Sequence", "A");
    OT_TRY(put_special_side(m, eos, m->eos));
    ot_json_end_array(&m->w);
    OT_TRY(put_pair(m, bos, eos));
    ot_json_begin_object(&m->w, "special_tokens");
    OT_TRY(put_special(m, bos, m->bos));
    OT_TRY(put_special(m, eos && !(bos && m->bos == m->eos), m->eos));
    ot_json_end_object(&m->w);
    ot_json_end_object(&m->w);
    return 0;
}

/* ---- all ---- */

static int put_model(struct ot_gguf_maker *m) {
    if (m->is_unigram)
        return ot_gguf_maker_unigram_model(m);
    ot_gguf_maker_begin(m, "model", "BPE");
    ot_json_put_null(&m->w, "dropout");
    if (!m->words && m->unknown >= 0)
        ot_json_put_string(&m->w, "unk_token", m->tokens->strings[m->unknown].text,
                           m->tokens->strings[m->unknown].bytes);
    else
        ot_json_put_null(&m->w, "unk_token");
    ot_json_put_null(&m->w, "continuing_subword_prefix");
    ot_json_put_null(&m->w, "end_of_word_suffix");
    ot_json_put_bool(&m->w, "fuse_unk", !m->words);
    ot_json_put_bool(&m->w, "byte_fallback", !m->words);
    ot_json_put_bool(&m->w, "ignore_merges", m->words && m->words->whole_first);
    OT_TRY(put_tokens(m));
    OT_TRY(put_merges(m));
    ot_json_end_object(&m->w);
    return 0;
}

static int put_all(struct ot_gguf_maker *m) {
    OT_TRY(read_keys(m));
    OT_TRY(sort_tokens(m));
    ot_json_begin_object(&m->w, NULL);
    ot_json_put_text(&m->w, "version", "1.0");
    ot_json_put_null(&m->w, "truncation");
    ot_json_put_null(&m->w, "padding");
    put_added(m);
    OT_TRY(put_stages(m));
    OT_TRY(put_post_processor(m));
    OT_TRY(put_model(m));
    ot_json_end_object(&m->w);
    return 0;
}

int ot_gguf_make_tokenizer(const struct ot_gguf *file, char **text, size_t *bytes) {
    struct ot_gguf_maker m = {.file = file, .w = {.indent = 0}};
    *text = NULL;
    OT_TRY(ot_gguf_need_array(file, "tokenizer.ggml.tokens", false, OT_GGUF_KIND_STRING, &m.tokens));
    if (!m.tokens)
        return 0;
    int rc = put_all(&m);
    free(m.by_text);
    free(m.key.text);
    if (rc == 0)
        return ot_json_writer_take(&m.w, text, bytes);
    free(m.w.out.text);
    return rc;
}
