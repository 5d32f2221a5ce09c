#include "tests/tokenizer/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tests/support/check.h"

struct ot_json *golden_json(const char *name) {
    char path[512];
    struct ot_json *root;
    snprintf(path, sizeof path, "%s/tokenizers/%s", OT_TEST_GOLDEN, name);
    check_ok(ot_json_read_file(path, 1 << 24, &root));
    return root;
}

void golden_tokenizer_path(const char *name, char path[512]) {
    snprintf(path, 512, "%s/tokenizers/%s.json", OT_TEST_GOLDEN, name);
}

struct ot_tokenizer *golden_tokenizer(const char *name) {
    char path[512];
    struct ot_tokenizer *t;
    golden_tokenizer_path(name, path);
    check_ok(ot_tokenizer_open(path, &t));
    return t;
}

/* ---- texts ---- */

static char *allocate(size_t n) {
    char *bytes = calloc(n + 1, 1);
    assert_non_null(bytes);
    return bytes;
}

static struct text from_hex(const char *hex) {
    size_t n = strlen(hex) / 2;
    struct text t = {allocate(n), n, false};
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        t.bytes[i] = (char)byte;
    }
    return t;
}

static struct text repeated(const char *text, size_t n, int64_t times) {
    struct text t = {allocate(n * (size_t)times), n * (size_t)times, true};
    for (int64_t i = 0; i < times; i++)
        memcpy(t.bytes + (size_t)i * n, text, n);
    return t;
}

static struct text read_text(const struct ot_json *value) {
    size_t n;
    const char *hex = ot_json_string(ot_json_get(value, "hex"), NULL);
    if (hex)
        return from_hex(hex);
    const char *repeat = ot_json_string(ot_json_get(value, "repeat"), &n);
    if (repeat)
        return repeated(repeat, n, ot_json_int(ot_json_get(value, "times"), 0));
    const char *text = ot_json_string(value, &n);
    assert_non_null(text);
    return repeated(text, n, 1);
}

static struct text *read_texts(const struct ot_json *list, size_t *n) {
    *n = ot_json_length(list);
    assert_true(*n > 0);
    struct text *texts = calloc(*n, sizeof *texts);
    assert_non_null(texts);
    for (size_t i = 0; i < *n; i++)
        texts[i] = read_text(ot_json_at(list, i));
    return texts;
}

void corpus_open(struct corpus *corpus) {
    struct ot_json *root = golden_json("texts.json");
    corpus->texts = read_texts(ot_json_get(root, "texts"), &corpus->n_texts);
    corpus->random = read_texts(ot_json_get(root, "random"), &corpus->n_random);
    ot_json_free(root);
}

void corpus_close(struct corpus *corpus) {
    for (size_t i = 0; i < corpus->n_texts; i++)
        free(corpus->texts[i].bytes);
    for (size_t i = 0; i < corpus->n_random; i++)
        free(corpus->random[i].bytes);
    free(corpus->texts);
    free(corpus->random);
}

/* ---- comparisons ---- */

uint32_t crc_numbers(uint32_t crc, const void *numbers, size_t n) {
    const uint32_t *values = numbers;
    for (size_t i = 0; i < n; i++) {
        unsigned char bytes[4] = {(unsigned char)values[i], (unsigned char)(values[i] >> 8),
                                  (unsigned char)(values[i] >> 16), (unsigned char)(values[i] >> 24)};
        crc = (uint32_t)crc32(crc, bytes, 4);
    }
    return crc;
}

void round_starts(struct ot_token_list *list, const struct text *text) {
    for (size_t i = 0; i < list->n; i++)
        while (list->start[i] > 0 && list->start[i] < text->n && (text->bytes[list->start[i]] & 0xc0) == 0x80)
            list->start[i]--;
}

static void check_ids(const char *name, size_t index, const struct ot_json *want,
                      const struct ot_token_list *got) {
    for (size_t i = 0; i < got->n && i < ot_json_length(want); i++)
        if (ot_json_int(ot_json_at(want, i), -1) != got->ids[i])
            fail_msg("%s: text %zu: token %zu is %d, wanted %lld", name, index, i, got->ids[i],
                     (long long)ot_json_int(ot_json_at(want, i), -1));
    if (got->n != ot_json_length(want))
        fail_msg("%s: text %zu: %zu tokens, wanted %zu", name, index, got->n, ot_json_length(want));
}

/* Hugging Face counts characters. A text that is not UTF-8 has no characters to round to, so there an offset
 * may lie within the three bytes after a character's first byte. */
static void check_starts(const char *name, size_t index, const struct ot_json *want,
                         const struct ot_token_list *got, bool is_utf8) {
    for (size_t i = 0; i < got->n; i++) {
        int64_t over = got->start[i] - ot_json_int(ot_json_at(want, i), -1);
        if (over < 0 || over > (is_utf8 ? 0 : 3))
            fail_msg("%s: text %zu: token %zu starts at %u, off by %lld", name, index, i, got->start[i],
                     (long long)over);
    }
}

static void check_decoded(const struct ot_tokenizer *t, const char *name, size_t index,
                          const struct ot_json *want, const struct ot_token_list *list, bool skip_special) {
    char *text;
    size_t n, want_n;
    const char *want_text = ot_json_string(want, &want_n);
    if (!want_text)
        return;
    check_ok(ot_tokenizer_decode(t, list->ids, list->n, skip_special, &text, &n));
    if (n != want_n || memcmp(text, want_text, n) != 0)
        fail_msg("%s: text %zu decodes to \"%s\", wanted \"%s\"", name, index, text, want_text);
    free(text);
}

static void check_text(const struct ot_tokenizer *t, const char *name, size_t index, const struct text *text,
                       const struct ot_json *want, struct ot_token_list *list) {
    const struct ot_json *ids = ot_json_get(want, "ids");
    check_ok(ot_tokenizer_encode(t, text->bytes, text->n, 0, list));
    if (text->is_utf8)
        round_starts(list, text);
    if (ids) {
        check_ids(name, index, ids, list);
        check_starts(name, index, ot_json_get(want, "start"), list, text->is_utf8);
        check_decoded(t, name, index, ot_json_get(want, "decoded"), list, false);
        check_decoded(t, name, index, ot_json_get(want, "skipped"), list, true);
        return;
    }
    assert_int_equal(list->n, ot_json_int(ot_json_get(want, "n"), -1));
    assert_int_equal(crc_numbers(0, list->ids, list->n), ot_json_int(ot_json_get(want, "ids_crc"), -1));
    assert_int_equal(crc_numbers(0, list->start, list->n), ot_json_int(ot_json_get(want, "start_crc"), -1));
}

static void check_random(const struct ot_tokenizer *t, const char *name, size_t index,
                         const struct text *text, const struct ot_json *want, struct ot_token_list *list) {
    char *decoded;
    size_t n;
    check_ok(ot_tokenizer_encode(t, text->bytes, text->n, 0, list));
    round_starts(list, text);
    if (crc_numbers(0, list->ids, list->n) != ot_json_int(ot_json_at(want, 0), -1))
        fail_msg("%s: random text %zu (\"%s\") has wrong ids", name, index, text->bytes);
    if (crc_numbers(0, list->start, list->n) != ot_json_int(ot_json_at(want, 1), -1))
        fail_msg("%s: random text %zu (\"%s\") has wrong offsets", name, index, text->bytes);
    check_ok(ot_tokenizer_decode(t, list->ids, list->n, false, &decoded, &n));
    if ((int64_t)crc32(0, (const unsigned char *)decoded, (unsigned)n) !=
        ot_json_int(ot_json_at(want, 2), -1))
        fail_msg("%s: random text %zu decodes wrongly, to \"%s\"", name, index, decoded);
    free(decoded);
}

/* The frame around a text (its special tokens), and the starts of its parts. */
static void check_frame(const struct ot_tokenizer *t, const struct ot_json *want,
                        struct ot_token_list *list) {
    const struct ot_json *before = ot_json_get(want, "before"), *after = ot_json_get(want, "after");
    size_t n_before = ot_json_length(before), n_after = ot_json_length(after);
    check_ok(ot_tokenizer_encode(t, "ab", 2, 0, list));
    size_t inner = list->n;
    check_ok(ot_tokenizer_encode(t, "ab", 2, OT_TOKENIZER_ADD_SPECIAL, list));
    assert_int_equal(list->n, n_before + inner + n_after);
    assert_int_equal(list->specials, 0);
    for (size_t i = 0; i < n_before; i++) {
        assert_int_equal(list->ids[i], ot_json_int(ot_json_at(before, i), -1));
        assert_int_equal(list->start[i], 0);
    }
    for (size_t i = 0; i < n_after; i++) {
        assert_int_equal(list->ids[n_before + inner + i], ot_json_int(ot_json_at(after, i), -1));
        assert_int_equal(list->start[n_before + inner + i], 2);
    }
}

void check_vectors(const struct ot_tokenizer *t, const char *name, const struct corpus *corpus) {
    char file[256];
    struct ot_token_list list = {0};
    snprintf(file, sizeof file, "%s.expected.json", name);
    struct ot_json *root = golden_json(file);
    const struct ot_json *texts = ot_json_get(root, "texts"), *random = ot_json_get(root, "random");
    const struct ot_json *plain = ot_json_get(root, "specials_as_text");
    assert_int_equal(ot_json_length(texts), corpus->n_texts);
    assert_int_equal(ot_json_length(random), corpus->n_random);
    for (size_t i = 0; i < corpus->n_texts; i++)
        check_text(t, name, i, &corpus->texts[i], ot_json_at(texts, i), &list);
    for (size_t i = 0; i < corpus->n_random; i++)
        check_random(t, name, i, &corpus->random[i], ot_json_at(random, i), &list);
    for (size_t i = 0; i < ot_json_length(plain); i++) {
        check_ok(ot_tokenizer_encode(t, corpus->texts[i].bytes, corpus->texts[i].n,
                                     OT_TOKENIZER_SPECIALS_AS_TEXT, &list));
        if (crc_numbers(0, list.ids, list.n) != ot_json_int(ot_json_at(plain, i), -1) || list.specials != 0)
            fail_msg("%s: text %zu has wrong ids with special tokens as text", name, i);
    }
    check_frame(t, root, &list);
    ot_token_list_free(&list);
    ot_json_free(root);
}

struct ot_tokenizer *open_tokenizer_json(const char *json) {
    struct ot_tokenizer *t;
    char path[600], *folder = make_folder();
    write_file(folder, "tokenizer.json", json, strlen(json));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    check_ok(ot_tokenizer_open(path, &t));
    remove_folder(folder);
    return t;
}

void check_encoded(const struct ot_tokenizer *t, const char *text, const char *wanted) {
    struct ot_token_list list = {0};
    char got[256] = "";
    check_ok(ot_tokenizer_encode(t, text, strlen(text), 0, &list));
    for (size_t i = 0, used = 0; i < list.n; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, "%d@%u ", list.ids[i], list.start[i]);
    if (strcmp(got, wanted) != 0)
        fail_msg("\"%s\" gives %s instead of %s", text, got, wanted);
    ot_token_list_free(&list);
}
