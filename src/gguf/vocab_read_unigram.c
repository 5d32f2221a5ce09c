/* Makes the parts of a tokenizer.json that only the kind "t5" has. */
#include <math.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/gguf/vocab_maker.h"
#include "src/tokenizer/charsmap.h"
#include "src/tokenizer/sentencepiece.h"

static int put_charsmap(struct ot_gguf_maker *m) {
    char *text;
    size_t n;
    if (!m->charsmap)
        return 0;
    OT_TRY(ot_base64_encode(m->charsmap->data, (size_t)m->charsmap->n, &text, &n));
    ot_gguf_maker_begin(m, NULL, "Precompiled");
    ot_json_put_string(&m->w, "precompiled_charsmap", text, n);
    ot_json_end_object(&m->w);
    free(text);
    return 0;
}

static void put_metaspace(struct ot_gguf_maker *m, const char *key) {
    ot_gguf_maker_begin(m, key, "Metaspace");
    ot_json_put_text(&m->w, "replacement", OT_SENTENCEPIECE_SPACE);
    ot_json_put_text(&m->w, "prepend_scheme", m->prefix ? "always" : "never");
    ot_json_put_bool(&m->w, "split", m->merge_spaces);
    ot_json_end_object(&m->w);
}

int ot_gguf_maker_unigram_stages(struct ot_gguf_maker *m) {
    ot_gguf_maker_begin(m, "normalizer", "Sequence");
    ot_json_begin_array(&m->w, "normalizers");
    OT_TRY(put_charsmap(m));
    if (m->merge_spaces) {
        ot_gguf_maker_begin(m, NULL, "Strip");
        ot_json_put_bool(&m->w, "strip_left", false);
        ot_json_put_bool(&m->w, "strip_right", true);
        ot_json_end_object(&m->w);
        ot_gguf_maker_replace(m, "Regex", " {2,}", OT_SENTENCEPIECE_SPACE);
    }
    ot_json_end_array(&m->w);
    ot_json_end_object(&m->w);
    put_metaspace(m, "pre_tokenizer");
    put_metaspace(m, "decoder");
    return 0;
}

/* The number of tokens, without fillers at the end. */
static int64_t count_tokens(const struct ot_gguf_maker *m) {
    int64_t n = m->tokens->n;
    while (n > 0 && ot_gguf_maker_is_filler(m, n - 1))
        n--;
    return n;
}

/* The unknown characters' score follows from the least score. llama.cpp counts normal tokens only, so others
 * get no lower one: its converter gives added tokens -1000. */
static double least_score(const struct ot_gguf_maker *m, int64_t n) {
    double least = 0;
    for (int64_t i = 0; i < n; i++)
        if (ot_gguf_maker_type(m, i) == OT_GGUF_TOKEN_NORMAL)
            least = fmin(least, ot_gguf_maker_score(m, i));
    return least;
}

int ot_gguf_maker_unigram_model(struct ot_gguf_maker *m) {
    int64_t n = count_tokens(m);
    double least = least_score(m, n);
    ot_gguf_maker_begin(m, "model", "Unigram");
    if (m->unknown >= 0 && m->unknown < n)
        ot_json_put_int(&m->w, "unk_id", m->unknown);
    ot_json_begin_array(&m->w, "vocab");
    for (int64_t i = 0; i < n; i++) {
        float score = ot_gguf_maker_score(m, i);
        if (!isfinite(score))
            return ot_fail(OT_E_INPUT, "%s: tokenizer.ggml.scores[%lld] is not a number",
                           ot_gguf_path(m->file), (long long)i);
        ot_json_begin_array(&m->w, NULL);
        ot_json_put_string(&m->w, NULL, m->tokens->strings[i].text, m->tokens->strings[i].bytes);
        ot_json_put_exact(&m->w, NULL, fmax(score, least));
        ot_json_end_array(&m->w);
    }
    ot_json_end_array(&m->w);
    ot_json_put_bool(&m->w, "byte_fallback", false);
    ot_json_end_object(&m->w);
    return 0;
}
