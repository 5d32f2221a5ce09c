/* Makes tokenizer.json from the keys of a file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/utf8.h"
#include "src/gguf/little.h"
#include "src/gguf/vocab.h"
#include "src/tokenizer/make_json.h"

struct maker {
    const struct ot_gguf *file;
    bool is_unigram;                       /* the kind "t5" */
    const struct ot_gguf_words *words;     /* of the kind "gpt2"; else NULL */
    const struct ot_gguf_value *tokens;    /* strings */
    const struct ot_gguf_value *types;     /* i32; NULL: all are normal */
    const struct ot_gguf_value *merges;    /* strings; NULL: absent */
    const struct ot_gguf_value *scores;    /* f32; NULL: absent */
    const struct ot_gguf_value *charsmap;  /* u8 or i8; NULL: absent */
    const struct ot_gguf_string **by_text; /* [tokens->n]: the tokens, sorted */
    struct ot_json_writer w;
    struct ot_string_builder key;
    bool add_bos, add_eos, prefix, merge_spaces;
    int64_t bos, eos, unknown; /* -1: none */
};

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

static int find_words(struct maker *m) {
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

static int find_kind(struct maker *m) {
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

static int check_length(const struct maker *m, const struct ot_gguf_value *array) {
    if (!array || array->n == m->tokens->n)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: key %s has %lld items, but there are %lld tokens", ot_gguf_path(m->file),
                   array->key, (long long)array->n, (long long)m->tokens->n);
}

static int read_charsmap(struct maker *m) {
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

static int read_settings(struct maker *m) {
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

static int read_keys(struct maker *m) {
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

static int type_of(const struct maker *m, int64_t id) {
    return m->types ? (int32_t)ot_little_u32(m->types->data + 4 * id) : OT_GGUF_TOKEN_NORMAL;
}

static bool is_filler(const struct maker *m, int64_t id) {
    struct ot_gguf_string text = m->tokens->strings[id];
    return type_of(m, id) == OT_GGUF_TOKEN_UNUSED && text.bytes > 5 && memcmp(text.text, "[PAD", 4) == 0;
}

static float score_of(const struct maker *m, int64_t id) {
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
static int64_t find_token(const struct maker *m, struct ot_gguf_string text) {
    const struct ot_gguf_string *key = &text;
    const struct ot_gguf_string **found =
        bsearch(&key, m->by_text, (size_t)m->tokens->n, sizeof *m->by_text, by_text);
    return found ? *found - m->tokens->strings : -1;
}

static int check_token(const struct maker *m, int64_t id) {
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

static int sort_tokens(struct maker *m) {
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
static const char *text_of(struct maker *m, struct ot_gguf_string text) {
    m->key.bytes = 0;
    ot_string_append(&m->key, text.text, text.bytes);
    return m->key.failed ? NULL : m->key.text;
}

static int put_tokens(struct maker *m) {
    ot_json_begin_object(&m->w, "vocab");
    for (int64_t i = 0; i < m->tokens->n; i++) {
        const char *text = text_of(m, m->tokens->strings[i]);
        if (!text)
            return ot_fail(OT_E_BUDGET, "%s: no memory for a token", ot_gguf_path(m->file));
        if (!is_filler(m, i))
            ot_json_put_int(&m->w, text, i);
    }
    ot_json_end_object(&m->w);
    return 0;
}

static void put_added(struct maker *m) {
    ot_json_begin_array(&m->w, "added_tokens");
    for (int64_t i = 0; i < m->tokens->n; i++) {
        int type = type_of(m, i);
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

/* All pairs of tokens that make up token `id`. */
static int find_merges(const struct maker *m, int64_t id, struct ot_scored_merges *list) {
    struct ot_gguf_string token = m->tokens->strings[id];
    float score = score_of(m, id);
    if (type_of(m, id) != OT_GGUF_TOKEN_NORMAL)
        return 0;
    if (token.bytes > OT_MAX_MERGED_BYTES)
        return ot_fail(OT_E_INPUT, "%s: tokenizer.ggml.tokens[%lld] has %zu bytes, must have at most %d",
                       ot_gguf_path(m->file), (long long)id, token.bytes, OT_MAX_MERGED_BYTES);
    if (score != score)
        return ot_fail(OT_E_INPUT, "%s: tokenizer.ggml.scores[%lld] is not a number", ot_gguf_path(m->file),
                       (long long)id);
    for (size_t at = 1; at < token.bytes; at++) {
        struct ot_gguf_string left = {token.text, at}, right = {token.text + at, token.bytes - at};
        if (((unsigned char)token.text[at] & 0xc0) == 0x80) /* within a character */
            continue;
        struct ot_scored_merge merge = {.score = score,
                                        .left = find_token(m, left),
                                        .right = find_token(m, right),
                                        .left_length = (int64_t)left.bytes,
                                        .right_length = (int64_t)right.bytes};
        merge.order = merge.left;
        int rc = merge.left >= 0 && merge.right >= 0 ? ot_scored_merges_add(list, merge) : 0;
        if (rc < 0)
            return ot_fail_context(rc, "%s", ot_gguf_path(m->file));
    }
    return 0;
}

static int put_scored_merges(struct maker *m) {
    struct ot_scored_merges list = {0};
    int rc = 0;
    for (int64_t i = 0; i < m->tokens->n && rc == 0; i++)
        rc = find_merges(m, i, &list);
    ot_scored_merges_sort(&list);
    for (size_t i = 0; i < list.n && rc == 0; i++) {
        struct ot_gguf_string left = m->tokens->strings[list.all[i].left],
                              right = m->tokens->strings[list.all[i].right];
        ot_make_merge(&m->w, left.text, left.bytes, right.text, right.bytes);
    }
    free(list.all);
    return rc;
}

static int put_merges(struct maker *m) {
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
        ot_make_merge(&m->w, merge.text, left, space + 1, merge.bytes - left - 1);
    }
    ot_json_end_array(&m->w);
    return rc;
}

/* ---- stages ---- */

static void put_byte_level(struct maker *m, const char *key, bool use_regex) {
    ot_make_begin(&m->w, key, "ByteLevel");
    ot_json_put_bool(&m->w, "add_prefix_space", false);
    ot_json_put_bool(&m->w, "trim_offsets", false);
    ot_json_put_bool(&m->w, "use_regex", use_regex);
    ot_json_end_object(&m->w);
}

static void put_stages_of_llama(struct maker *m) {
    ot_make_begin_list(&m->w, "normalizer", "normalizers");
    if (m->prefix)
        ot_make_prepend(&m->w, OT_SENTENCEPIECE_SPACE);
    ot_make_replace(&m->w, "String", " ", OT_SENTENCEPIECE_SPACE);
    ot_make_end_list(&m->w);
    ot_json_put_null(&m->w, "pre_tokenizer");
    ot_make_bpe_decoder(&m->w, m->prefix);
}

static int put_stages_of_t5(struct maker *m) {
    const char *scheme = m->prefix ? "always" : "never";
    OT_TRY(ot_make_t5_normalizer(&m->w, m->charsmap ? m->charsmap->data : NULL,
                                 m->charsmap ? (size_t)m->charsmap->n : 0, m->merge_spaces));
    ot_make_metaspace(&m->w, "pre_tokenizer", scheme, m->merge_spaces);
    ot_make_metaspace(&m->w, "decoder", scheme, m->merge_spaces);
    return 0;
}

static void put_splitters(struct maker *m) {
    const struct ot_gguf_words *words = m->words;
    if (!words->regex && !words->digits) {
        put_byte_level(m, "pre_tokenizer", true);
        return;
    }
    ot_make_begin_list(&m->w, "pre_tokenizer", "pretokenizers");
    if (words->digits) {
        ot_make_begin(&m->w, NULL, "Digits");
        ot_json_put_bool(&m->w, "individual_digits", true);
        ot_json_end_object(&m->w);
    } else {
        ot_make_split(&m->w, NULL, "Regex", words->regex, "Isolated");
    }
    put_byte_level(m, NULL, words->digits);
    ot_make_end_list(&m->w);
}

static int put_stages(struct maker *m) {
    if (m->is_unigram)
        return put_stages_of_t5(m);
    if (!m->words) {
        put_stages_of_llama(m);
        return 0;
    }
    if (m->words->nfc)
        ot_make_bare(&m->w, "normalizer", "NFC");
    else
        ot_json_put_null(&m->w, "normalizer");
    put_splitters(m);
    put_byte_level(m, "decoder", true);
    return 0;
}

/* Texts begin with bos and end with eos, if the file says so. transformers wants the template of two texts
 * too; this program has no use for it. */
static int put_post_processor(struct maker *m) {
    const bool wanted[2] = {m->add_bos && m->bos >= 0, m->add_eos && m->eos >= 0};
    const int64_t ids[2] = {m->bos, m->eos};
    struct ot_sentencepiece_added tokens[2];
    char *texts[2] = {NULL, NULL};
    int rc = 0;
    if (!wanted[0] && !wanted[1]) {
        ot_json_put_null(&m->w, "post_processor");
        return 0;
    }
    for (int i = 0; i < 2 && rc == 0; i++) {
        if (!wanted[i])
            continue;
        struct ot_gguf_string token = m->tokens->strings[ids[i]];
        texts[i] = ot_string_copy(token.text, token.bytes);
        tokens[i] =
            (struct ot_sentencepiece_added){.text = texts[i], .bytes = token.bytes, .id = (int32_t)ids[i]};
        if (!texts[i])
            rc = ot_fail(OT_E_BUDGET, "%s: no memory for a token", ot_gguf_path(m->file));
    }
    if (rc == 0)
        ot_make_post_processor(&m->w, wanted[0] ? &tokens[0] : NULL, wanted[1] ? &tokens[1] : NULL, true);
    free(texts[0]);
    free(texts[1]);
    return rc;
}

/* ---- all ---- */

/* The number of tokens, without fillers at the end. */
static int64_t count_tokens(const struct maker *m) {
    int64_t n = m->tokens->n;
    while (n > 0 && is_filler(m, n - 1))
        n--;
    return n;
}

/* The unknown characters' score follows from the least score. llama.cpp counts normal tokens only, so others
 * get no lower one: its converter gives added tokens -1000. */
static double least_score(const struct maker *m, int64_t n) {
    double least = 0;
    for (int64_t i = 0; i < n; i++)
        if (type_of(m, i) == OT_GGUF_TOKEN_NORMAL)
            least = fmin(least, score_of(m, i));
    return least;
}

static int put_unigram_model(struct maker *m) {
    int64_t n = count_tokens(m);
    double least = least_score(m, n);
    ot_make_begin(&m->w, "model", "Unigram");
    if (m->unknown >= 0 && m->unknown < n)
        ot_json_put_int(&m->w, "unk_id", m->unknown);
    ot_json_begin_array(&m->w, "vocab");
    for (int64_t i = 0; i < n; i++) {
        float score = score_of(m, i);
        if (!isfinite(score))
            return ot_fail(OT_E_INPUT, "%s: tokenizer.ggml.scores[%lld] is not a number",
                           ot_gguf_path(m->file), (long long)i);
        ot_make_scored(&m->w, m->tokens->strings[i].text, m->tokens->strings[i].bytes, fmax(score, least));
    }
    ot_json_end_array(&m->w);
    ot_json_put_bool(&m->w, "byte_fallback", false);
    ot_json_end_object(&m->w);
    return 0;
}

static int put_model(struct maker *m) {
    if (m->is_unigram)
        return put_unigram_model(m);
    ot_make_begin(&m->w, "model", "BPE");
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

static int put_all(struct maker *m) {
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
    struct maker m = {.file = file, .w = {.indent = 0}};
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
