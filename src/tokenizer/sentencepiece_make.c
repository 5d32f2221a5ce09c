/* Makes tokenizer.json of a SentencePiece model. */
#include "src/tokenizer/sentencepiece_make.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/tokenizer/make_json.h"

#define SPACE OT_SENTENCEPIECE_SPACE

/* ---- settings ---- */

/* words: separated by spaces. */
static bool starts(const char *text, const char *words) {
    const char *word;
    size_t n;
    for (int i = 0; text && (word = ot_words_at(words, i, &n)); i++)
        if (strncmp(text, word, n) == 0)
            return true;
    return false;
}

static enum ot_sentencepiece_class find_class(const struct ot_sentencepiece_files *files) {
    const char *class = ot_json_string(ot_json_get(files->tokenizer_config, "tokenizer_class"), NULL);
    if (class && !starts(class, "PreTrainedTokenizer TokenizersBackend"))
        return starts(class, "Llama LLaMA CodeLlama") ? OT_CLASS_LLAMA
               : starts(class, "T5 MT5")              ? OT_CLASS_T5
               : starts(class, "Gemma")               ? OT_CLASS_GEMMA
                                                      : OT_CLASS_OTHER;
    return starts(files->model_type, "t5 mt5 umt5 longt5") ? OT_CLASS_T5
           : starts(files->model_type, "gemma")            ? OT_CLASS_GEMMA
                                                           : OT_CLASS_LLAMA;
}

static int read_settings(struct ot_sentencepiece_maker *m) {
    const struct ot_json *config = m->files->tokenizer_config;
    m->class = find_class(m->files);
    m->legacy = true;
    m->prefix = m->class == OT_CLASS_OTHER ? m->model->dummy_prefix : m->class != OT_CLASS_GEMMA;
    m->add_bos = m->class == OT_CLASS_LLAMA || m->class == OT_CLASS_GEMMA;
    m->extra_ids = 100;
    m->add_eos = m->class == OT_CLASS_T5;
    if (!config)
        return 0;
    OT_TRY(ot_json_need_bool(config, m->where, "legacy", false, &m->legacy));
    OT_TRY(ot_json_need_int(config, m->where, "extra_ids", false, 0, 10000, &m->extra_ids));
    if (m->class == OT_CLASS_LLAMA || m->class == OT_CLASS_T5)
        OT_TRY(ot_json_need_bool(config, m->where, "add_prefix_space", false, &m->prefix));
    if (m->class == OT_CLASS_T5) /* always ends with </s> */
        return 0;
    OT_TRY(ot_json_need_bool(config, m->where, "add_bos_token", false, &m->add_bos));
    return ot_json_need_bool(config, m->where, "add_eos_token", false, &m->add_eos);
}

/* ---- stages ---- */

static void put_metaspace(struct ot_sentencepiece_maker *m, const char *key, bool split) {
    ot_make_metaspace(&m->w, key, !m->prefix ? "never" : m->legacy ? "always" : "first", split);
}

/* As SentencePiece's own normaliser does it; a piece of text between special tokens counts as a text. */
static int put_own_normalizers(struct ot_sentencepiece_maker *m) {
    const struct ot_sentencepiece *model = m->model;
    OT_TRY(ot_make_charsmap(&m->w, model->charsmap, model->charsmap_bytes));
    if (model->remove_extra_spaces) {
        ot_make_replace(&m->w, "Regex", "\\A +| +\\z", "");
        ot_make_replace(&m->w, "Regex", " {2,}", " ");
    }
    if (m->prefix && m->legacy)
        ot_make_prepend(&m->w, " ");
    if (model->escape_spaces)
        ot_make_replace(&m->w, "String", " ", SPACE);
    return 0;
}

static int put_normalizer(struct ot_sentencepiece_maker *m) {
    if (m->class == OT_CLASS_LLAMA && !m->legacy) {
        ot_json_put_null(&m->w, "normalizer");
        return 0;
    }
    if (m->class == OT_CLASS_T5)
        return ot_make_t5_normalizer(&m->w, m->model->charsmap, m->model->charsmap_bytes, true);
    ot_make_begin_list(&m->w, "normalizer", "normalizers");
    if (m->class == OT_CLASS_OTHER) {
        OT_TRY(put_own_normalizers(m));
    } else {
        if (m->prefix)
            ot_make_prepend(&m->w, SPACE);
        ot_make_replace(&m->w, "String", " ", SPACE);
    }
    ot_make_end_list(&m->w);
    return 0;
}

/* The user-defined pieces, the longest first, as alternatives of a regular expression. */
static int by_length(const void *a, const void *b) {
    const struct ot_token *x = *(const struct ot_token *const *)a, *y = *(const struct ot_token *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return (x > y) - (x < y);
}

static void append_escaped(struct ot_string_builder *out, const struct ot_token *token) {
    for (uint32_t i = 0; i < token->bytes; i++) {
        unsigned char c = (unsigned char)token->text[i];
        bool plain = c >= 0x80 || c < ' ' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                     (c >= 'a' && c <= 'z');
        ot_string_append(out, plain ? "" : "\\", !plain);
        ot_string_append(out, token->text + i, 1);
    }
}

static bool has_user_pieces(const struct ot_sentencepiece_maker *m) {
    for (int32_t id = 0; id < m->model->vocab.n; id++)
        if (m->model->pieces[id].kind == OT_PIECE_USER_DEFINED)
            return true;
    return false;
}

static int put_user_split(struct ot_sentencepiece_maker *m) {
    const struct ot_token **list = calloc((size_t)m->model->vocab.n, sizeof *list);
    struct ot_string_builder pattern = {0};
    size_t n = 0;
    if (!list)
        return ot_fail(OT_E_BUDGET, "no memory for the user-defined pieces");
    for (int32_t id = 0; id < m->model->vocab.n; id++)
        if (m->model->pieces[id].kind == OT_PIECE_USER_DEFINED)
            list[n++] = &m->model->vocab.tokens[id];
    qsort(list, n, sizeof *list, by_length);
    for (size_t i = 0; i < n; i++) {
        ot_string_append(&pattern, "|", i > 0);
        append_escaped(&pattern, list[i]);
    }
    int rc = pattern.failed ? ot_fail(OT_E_BUDGET, "no memory for the user-defined pieces") : 0;
    if (rc == 0)
        ot_make_split(&m->w, NULL, "Regex", pattern.text, "Isolated");
    free(pattern.text);
    free(list);
    return rc;
}

static int put_pre_tokenizer(struct ot_sentencepiece_maker *m) {
    static const char key[] = "pre_tokenizer";
    bool marks = !m->legacy && (m->class == OT_CLASS_LLAMA || (m->class == OT_CLASS_OTHER && m->prefix));
    int rc = 0;
    if (m->class == OT_CLASS_T5) {
        put_metaspace(m, key, true);
    } else if (m->class == OT_CLASS_GEMMA) {
        ot_make_split(&m->w, key, "String", " ", "MergedWithPrevious");
    } else if (m->class == OT_CLASS_OTHER && has_user_pieces(m)) {
        ot_make_begin_list(&m->w, key, "pretokenizers");
        if (marks)
            put_metaspace(m, NULL, false);
        rc = put_user_split(m);
        ot_make_end_list(&m->w);
    } else if (marks) {
        put_metaspace(m, key, false);
    } else {
        ot_json_put_null(&m->w, key);
    }
    return rc;
}

static void put_decoder(struct ot_sentencepiece_maker *m) {
    if (m->class == OT_CLASS_T5)
        put_metaspace(m, "decoder", true);
    else
        ot_make_bpe_decoder(&m->w, m->prefix);
}

/* ---- the frame ---- */

static int put_post_processor(struct ot_sentencepiece_maker *m) {
    if ((m->add_bos && !m->bos) || (m->add_eos && !m->eos))
        return ot_fail(OT_E_INPUT, "%s: tokenizer_config.json wants %s in each text, but there is no %s",
                       m->where, m->add_bos && !m->bos ? "bos_token" : "eos_token",
                       m->add_bos && !m->bos ? "bos_token" : "eos_token");
    ot_make_post_processor(&m->w, m->add_bos ? m->bos : NULL, m->add_eos ? m->eos : NULL, false);
    return 0;
}

/* ---- the model ---- */

static void put_added(struct ot_sentencepiece_maker *m) {
    ot_json_begin_array(&m->w, "added_tokens");
    for (size_t i = 0; i < m->n_added; i++)
        ot_added_token_put(&m->w, &m->added[i]);
    ot_json_end_array(&m->w);
}

/* T5's sentinels are tokens of the model too. Those that follow the pieces without a gap are written. */
static void put_unigram(struct ot_sentencepiece_maker *m) {
    const struct ot_vocab *vocab = &m->model->vocab;
    int64_t next = vocab->n;
    ot_make_begin(&m->w, "model", "Unigram");
    ot_json_put_int(&m->w, "unk_id", m->model->unk);
    ot_json_begin_array(&m->w, "vocab");
    for (int32_t id = 0; id < vocab->n; id++)
        ot_make_scored(&m->w, vocab->tokens[id].text, vocab->tokens[id].bytes, m->model->pieces[id].score);
    for (size_t i = 0; i < m->n_added && m->class == OT_CLASS_T5; i++)
        if (m->added[i].id == next && next < vocab->n + m->extra_ids) {
            ot_make_scored(&m->w, m->added[i].text, m->added[i].bytes, 0);
            next++;
        }
    ot_json_end_array(&m->w);
}

/* True if transformers' class lets the piece be part or result of a merge. */
static bool may_merge(const struct ot_sentencepiece_maker *m, int32_t id) {
    return m->class != OT_CLASS_OTHER || m->model->pieces[id].kind == OT_PIECE_NORMAL;
}

static int32_t find(const struct ot_sentencepiece_maker *m, const char *text, size_t n) {
    int32_t id = ot_vocab_find(&m->model->vocab, text, n);
    return id >= 0 && may_merge(m, id) ? id : -1;
}

/* All pairs of pieces that make piece `id`. */
static int find_pairs(const struct ot_sentencepiece_maker *m, int32_t id, struct ot_scored_merges *list) {
    const struct ot_token *piece = &m->model->vocab.tokens[id];
    int32_t chars = 0, before = 0;
    if (piece->bytes > OT_MAX_MERGED_BYTES)
        return ot_fail(OT_E_INPUT,
                       "%s: piece %d of the SentencePiece model has %u bytes, must have at most %d", m->where,
                       id, piece->bytes, OT_MAX_MERGED_BYTES);
    for (uint32_t i = 0; i < piece->bytes; i++)
        chars += ((unsigned char)piece->text[i] & 0xc0) != 0x80;
    for (uint32_t at = 1; at < piece->bytes; at++) {
        if (((unsigned char)piece->text[at] & 0xc0) == 0x80) /* within a character */
            continue;
        before++;
        int32_t left = find(m, piece->text, at);
        int32_t right = left < 0 ? -1 : find(m, piece->text + at, piece->bytes - at);
        if (right >= 0)
            OT_TRY(ot_scored_merges_add(list, (struct ot_scored_merge){.score = m->model->pieces[id].score,
                                                                       .left = left,
                                                                       .right = right,
                                                                       .left_length = before,
                                                                       .right_length = chars - before,
                                                                       .order = id}));
    }
    return 0;
}

static int put_merges(struct ot_sentencepiece_maker *m) {
    const struct ot_token *pieces = m->model->vocab.tokens;
    struct ot_scored_merges list = {0};
    int rc = 0;
    for (int32_t id = 0; id < m->model->vocab.n && rc == 0; id++)
        if (may_merge(m, id))
            rc = find_pairs(m, id, &list);
    ot_scored_merges_sort(&list);
    ot_json_begin_array(&m->w, "merges");
    for (size_t i = 0; i < list.n && rc == 0; i++) {
        const struct ot_token *left = &pieces[list.all[i].left], *right = &pieces[list.all[i].right];
        ot_make_merge(&m->w, left->text, left->bytes, right->text, right->bytes);
    }
    ot_json_end_array(&m->w);
    free(list.all);
    return rc;
}

static int put_bpe(struct ot_sentencepiece_maker *m) {
    const struct ot_vocab *vocab = &m->model->vocab;
    ot_make_begin(&m->w, "model", "BPE");
    ot_json_put_text(&m->w, "unk_token", vocab->tokens[m->model->unk].text);
    ot_json_put_bool(&m->w, "fuse_unk", true);
    ot_json_put_bool(&m->w, "ignore_merges", m->class == OT_CLASS_OTHER && has_user_pieces(m));
    ot_json_begin_object(&m->w, "vocab");
    for (int32_t id = 0; id < vocab->n; id++)
        ot_json_put_int(&m->w, vocab->tokens[id].text, id);
    ot_json_end_object(&m->w);
    return put_merges(m);
}

static int put_model(struct ot_sentencepiece_maker *m) {
    bool fallback = m->class == OT_CLASS_LLAMA || m->class == OT_CLASS_GEMMA ||
                    (m->class == OT_CLASS_OTHER && m->model->byte_fallback);
    if (m->model->type == OT_SENTENCEPIECE_UNIGRAM)
        put_unigram(m);
    else
        OT_TRY(put_bpe(m));
    ot_json_put_bool(&m->w, "byte_fallback", fallback);
    ot_json_end_object(&m->w);
    return 0;
}

static int put_all(struct ot_sentencepiece_maker *m) {
    OT_TRY(read_settings(m));
    OT_TRY(ot_sentencepiece_find_added(m));
    ot_json_begin_object(&m->w, NULL);
    ot_json_put_text(&m->w, "version", "1.0");
    ot_json_put_null(&m->w, "truncation");
    ot_json_put_null(&m->w, "padding");
    put_added(m);
    OT_TRY(put_normalizer(m));
    OT_TRY(put_pre_tokenizer(m));
    OT_TRY(put_post_processor(m));
    put_decoder(m);
    OT_TRY(put_model(m));
    ot_json_end_object(&m->w);
    return 0;
}

int ot_sentencepiece_make(const struct ot_sentencepiece *model, const struct ot_sentencepiece_files *files,
                          const char *where, char **text, size_t *bytes) {
    struct ot_sentencepiece_maker m = {.model = model, .files = files, .where = where, .w = {.indent = -1}};
    OT_TRY(ot_arena_open(&m.arena));
    int rc = put_all(&m);
    if (rc == 0)
        rc = ot_json_writer_take(&m.w, text, bytes);
    free(m.w.out.text);
    free(m.added);
    ot_arena_close(m.arena);
    return rc;
}
