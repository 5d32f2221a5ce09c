#include "src/tokenizer/make_json.h"

#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/tokenizer/charsmap.h"

/* ---- stages ---- */

void ot_make_begin(struct ot_json_writer *w, const char *key, const char *type) {
    ot_json_begin_object(w, key);
    ot_json_put_text(w, "type", type);
}

void ot_make_begin_list(struct ot_json_writer *w, const char *key, const char *items) {
    ot_make_begin(w, key, "Sequence");
    ot_json_begin_array(w, items);
}

void ot_make_end_list(struct ot_json_writer *w) {
    ot_json_end_array(w);
    ot_json_end_object(w);
}

void ot_make_bare(struct ot_json_writer *w, const char *key, const char *type) {
    ot_make_begin(w, key, type);
    ot_json_end_object(w);
}

void ot_make_prepend(struct ot_json_writer *w, const char *text) {
    ot_make_begin(w, NULL, "Prepend");
    ot_json_put_text(w, "prepend", text);
    ot_json_end_object(w);
}

static void put_pattern(struct ot_json_writer *w, const char *kind, const char *pattern) {
    ot_json_begin_object(w, "pattern");
    ot_json_put_text(w, kind, pattern);
    ot_json_end_object(w);
}

void ot_make_replace(struct ot_json_writer *w, const char *kind, const char *pattern, const char *content) {
    ot_make_begin(w, NULL, "Replace");
    put_pattern(w, kind, pattern);
    ot_json_put_text(w, "content", content);
    ot_json_end_object(w);
}

void ot_make_split(struct ot_json_writer *w, const char *key, const char *kind, const char *pattern,
                   const char *behavior) {
    ot_make_begin(w, key, "Split");
    put_pattern(w, kind, pattern);
    ot_json_put_text(w, "behavior", behavior);
    ot_json_put_bool(w, "invert", false);
    ot_json_end_object(w);
}

void ot_make_metaspace(struct ot_json_writer *w, const char *key, const char *prepend_scheme, bool split) {
    ot_make_begin(w, key, "Metaspace");
    ot_json_put_text(w, "replacement", OT_SENTENCEPIECE_SPACE);
    ot_json_put_text(w, "prepend_scheme", prepend_scheme);
    ot_json_put_bool(w, "split", split);
    ot_json_end_object(w);
}

int ot_make_charsmap(struct ot_json_writer *w, const void *charsmap, size_t bytes) {
    char *text;
    size_t n;
    if (!charsmap)
        return 0;
    OT_TRY(ot_base64_encode(charsmap, bytes, &text, &n));
    ot_make_begin(w, NULL, "Precompiled");
    ot_json_put_string(w, "precompiled_charsmap", text, n);
    ot_json_end_object(w);
    free(text);
    return 0;
}

int ot_make_t5_normalizer(struct ot_json_writer *w, const void *charsmap, size_t bytes, bool merge_spaces) {
    ot_make_begin_list(w, "normalizer", "normalizers");
    OT_TRY(ot_make_charsmap(w, charsmap, bytes));
    if (merge_spaces) {
        ot_make_begin(w, NULL, "Strip");
        ot_json_put_bool(w, "strip_left", false);
        ot_json_put_bool(w, "strip_right", true);
        ot_json_end_object(w);
        ot_make_replace(w, "Regex", " {2,}", OT_SENTENCEPIECE_SPACE);
    }
    ot_make_end_list(w);
    return 0;
}

void ot_make_bpe_decoder(struct ot_json_writer *w, bool prefix) {
    ot_make_begin_list(w, "decoder", "decoders");
    ot_make_replace(w, "String", OT_SENTENCEPIECE_SPACE, " ");
    ot_make_bare(w, NULL, "ByteFallback");
    ot_make_bare(w, NULL, "Fuse");
    if (prefix) {
        ot_make_begin(w, NULL, "Strip");
        ot_json_put_text(w, "content", " ");
        ot_json_put_int(w, "start", 1);
        ot_json_put_int(w, "stop", 0);
        ot_json_end_object(w);
    }
    ot_make_end_list(w);
}

/* ---- post-processor ---- */

static void put_side(struct ot_json_writer *w, const char *kind, const char *id, size_t bytes) {
    ot_json_begin_object(w, NULL);
    ot_json_begin_object(w, kind);
    ot_json_put_string(w, "id", id, bytes);
    ot_json_put_int(w, "type_id", 0);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

static void put_text(struct ot_json_writer *w, const struct ot_sentencepiece_added *bos,
                     const struct ot_sentencepiece_added *eos, const char *sequence) {
    if (bos)
        put_side(w, "SpecialToken", bos->text, bos->bytes);
    put_side(w, "Sequence", sequence, 1);
    if (eos)
        put_side(w, "SpecialToken", eos->text, eos->bytes);
}

static void put_special(struct ot_json_writer *w, const struct ot_sentencepiece_added *token) {
    ot_json_begin_object(w, token->text);
    ot_json_put_string(w, "id", token->text, token->bytes);
    ot_json_begin_array(w, "ids");
    ot_json_put_int(w, NULL, token->id);
    ot_json_end_array(w);
    ot_json_begin_array(w, "tokens");
    ot_json_put_string(w, NULL, token->text, token->bytes);
    ot_json_end_array(w);
    ot_json_end_object(w);
}

void ot_make_post_processor(struct ot_json_writer *w, const struct ot_sentencepiece_added *bos,
                            const struct ot_sentencepiece_added *eos, bool pair) {
    ot_make_begin(w, "post_processor", "TemplateProcessing");
    ot_json_begin_array(w, "single");
    put_text(w, bos, eos, "A");
    ot_json_end_array(w);
    if (pair) {
        ot_json_begin_array(w, "pair");
        put_text(w, bos, eos, "A");
        put_text(w, bos, eos, "B");
        ot_json_end_array(w);
    }
    ot_json_begin_object(w, "special_tokens");
    if (bos)
        put_special(w, bos);
    if (eos && !(bos && bos->id == eos->id))
        put_special(w, eos);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

/* ---- models ---- */

void ot_make_scored(struct ot_json_writer *w, const char *text, size_t bytes, double score) {
    ot_json_begin_array(w, NULL);
    ot_json_put_string(w, NULL, text, bytes);
    ot_json_put_exact(w, NULL, score);
    ot_json_end_array(w);
}

int ot_scored_merges_add(struct ot_scored_merges *list, struct ot_scored_merge merge) {
    OT_TRY(ot_grow(&list->all, &list->capacity, list->n + 1, sizeof *list->all, "merges"));
    list->all[list->n++] = merge;
    return 0;
}

static int by_rank(const void *a, const void *b) {
    const struct ot_scored_merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_length != y->left_length)
        return x->left_length > y->left_length ? -1 : 1;
    if (x->right_length != y->right_length)
        return x->right_length > y->right_length ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

void ot_scored_merges_sort(struct ot_scored_merges *list) {
    if (list->n > 0)
        qsort(list->all, list->n, sizeof *list->all, by_rank);
}

void ot_make_merge(struct ot_json_writer *w, const char *left, size_t left_bytes, const char *right,
                   size_t right_bytes) {
    ot_json_begin_array(w, NULL);
    ot_json_put_string(w, NULL, left, left_bytes);
    ot_json_put_string(w, NULL, right, right_bytes);
    ot_json_end_array(w);
}
