/* Finds out whether llama.cpp's kind "t5" can express the stages of a tokenizer.json with a Unigram model. */
#include <string.h>

#include "src/base/json.h"
#include "src/gguf/vocab.h"

static bool is_type(const struct ot_json *value, const char *type) {
    const char *text = ot_json_string(ot_json_get(value, "type"), NULL);
    return text && strcmp(text, type) == 0;
}

static bool is_text(const struct ot_json *value, const char *key, const char *wanted) {
    const char *text = ot_json_string(ot_json_get(value, key), NULL);
    return text && strcmp(text, wanted) == 0;
}

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
    bool mark = is_text(value, "content", OT_GGUF_SPACE);
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
        else if (is_type(one, "Prepend") && is_text(one, "prepend", OT_GGUF_SPACE))
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
        if (!is_type(one, "Metaspace") || !is_text(one, "replacement", OT_GGUF_SPACE) || s->marks)
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
