/* Each kind of pre-tokenizer, normalizer and decoder in turn, put into one tokenizer, against Hugging Face;
 * and the characters of the regex classes. */
#include "tests/tokenizer/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "src/tokenizer/regex_match.h"
#include "src/tokenizer/text.h"
#include "tests/support/check.h"

/* Opens crossing.json with the members that the variant replaces. */
static struct ot_tokenizer *open_variant(const struct ot_json *base, const struct ot_json *variant,
                                         const char *folder) {
    struct ot_json_writer w = {.indent = -1};
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    char *text, path[600];
    size_t n;
    ot_json_begin_object(&w, NULL);
    while (ot_json_next(base, &cursor, &key, &value)) {
        bool replaced = false;
        void *inner = NULL;
        const char *inner_key;
        struct ot_json *inner_value;
        while (ot_json_next(variant, &inner, &inner_key, &inner_value)) {
            if (strcmp(key, inner_key) == 0) {
                ot_json_put_value(&w, key, inner_value);
                replaced = true;
            }
        }
        if (!replaced)
            ot_json_put_value(&w, key, value);
    }
    ot_json_end_object(&w);
    check_ok(ot_json_writer_take(&w, &text, &n));
    write_file(folder, "tokenizer.json", text, n);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    struct ot_tokenizer *t;
    check_ok(ot_tokenizer_open(path, &t));
    free(text);
    return t;
}

struct sums {
    int64_t n;
    uint32_t ids, starts, decoded;
};

static void add_text(const struct ot_tokenizer *t, const char *bytes, size_t n, struct sums *sums) {
    struct ot_token_list list = {0};
    struct text text = {(char *)(uintptr_t)bytes, n, true};
    char *decoded;
    check_ok(ot_tokenizer_encode(t, bytes, n, 0, &list));
    round_starts(&list, &text);
    sums->n += (int64_t)list.n;
    sums->ids = crc_numbers(sums->ids, list.ids, list.n);
    sums->starts = crc_numbers(sums->starts, list.start, list.n);
    check_ok(ot_tokenizer_decode(t, list.ids, list.n, false, &decoded, &n));
    sums->decoded = (uint32_t)crc32(sums->decoded, (const unsigned char *)decoded, (unsigned)n + 1);
    free(decoded);
    ot_token_list_free(&list);
}

static void check_variant(const struct ot_tokenizer *t, size_t index, const struct corpus *corpus,
                          const struct ot_json *root, const struct ot_json *variant) {
    struct sums sums = {0};
    const struct ot_json *texts = ot_json_get(root, "texts");
    int64_t hostile = ot_json_int(ot_json_get(root, "hostile"), -1);
    const struct ot_json *decoded = ot_json_get(variant, "decoded_crc");
    int64_t start_crc = ot_json_int(ot_json_get(variant, "start_crc"), -1);
    for (int64_t i = 0; i < hostile; i++)
        add_text(t, corpus->texts[i].bytes, corpus->texts[i].n, &sums);
    for (size_t i = 0; i < ot_json_length(texts); i++) {
        size_t n;
        const char *text = ot_json_string(ot_json_at(texts, i), &n);
        add_text(t, text, n, &sums);
    }
    if (sums.n != ot_json_int(ot_json_get(variant, "n"), -1) ||
        sums.ids != ot_json_int(ot_json_get(variant, "ids_crc"), -1))
        fail_msg("variant %zu: the %lld ids differ from Hugging Face's", index, (long long)sums.n);
    if (start_crc != 0 && sums.starts != start_crc)
        fail_msg("variant %zu: the offsets differ from Hugging Face's", index);
    if (decoded && sums.decoded != ot_json_int(decoded, -1))
        fail_msg("variant %zu: the decoded text differs from Hugging Face's", index);
}

static void every_component_splits_as_hugging_face_does(void **state) {
    (void)state;
    struct corpus corpus;
    struct ot_json *root = golden_json("variants.json"), *base = golden_json("crossing.json");
    const struct ot_json *variants = ot_json_get(root, "variants");
    char *folder = make_folder();
    corpus_open(&corpus);
    assert_true(ot_json_length(variants) > 90);
    for (size_t i = 0; i < ot_json_length(variants); i++) {
        struct ot_tokenizer *t = open_variant(base, ot_json_at(variants, i), folder);
        check_variant(t, i, &corpus, root, ot_json_at(variants, i));
        ot_tokenizer_close(t);
    }
    corpus_close(&corpus);
    remove_folder(folder);
    ot_json_free(base);
    ot_json_free(root);
}

/* True if a sorted list of pairs [a, b] (or of half-open borders) contains c. */
static bool in_ranges(const struct ot_json *ranges, size_t *at, uint32_t c, bool half_open) {
    size_t n = ot_json_length(ranges);
    while (*at < n && (int64_t)c > ot_json_int(ot_json_at(ranges, *at + 1), 0) - half_open)
        *at += 2;
    return *at < n && (int64_t)c >= ot_json_int(ot_json_at(ranges, *at), 0);
}

static void check_class(const struct ot_json *assigned, const struct ot_json *class,
                        struct ot_regex_scratch *scratch) {
    size_t bytes, at = 0, assigned_at = 0, begin, end, members = 0;
    const char *pattern = ot_json_string(ot_json_get(class, "pattern"), &bytes);
    struct ot_regex *regex;
    check_ok(ot_regex_open(pattern, bytes, "test", &regex));
    for (uint32_t c = 0; c < 0x30000; c++) {
        char text[4];
        if (!in_ranges(assigned, &assigned_at, c, true))
            continue;
        bool want = in_ranges(ot_json_get(class, "members"), &at, c, false);
        bool got = ot_regex_match(regex, scratch, text, ot_utf8_encode(c, text), 0, &begin, &end) == 1;
        if (got != want)
            fail_msg("%s: U+%04X is %sa member", pattern, c, want ? "" : "not ");
        members += got;
    }
    assert_true(members > 0);
    ot_regex_close(regex);
}

static void regex_classes_hold_the_same_characters(void **state) {
    (void)state;
    struct ot_json *root = golden_json("classes.json");
    const struct ot_json *classes = ot_json_get(root, "classes");
    struct ot_regex_scratch *scratch;
    check_ok(ot_regex_scratch_open(&scratch));
    assert_true(ot_json_length(classes) > 10);
    for (size_t i = 0; i < ot_json_length(classes); i++)
        check_class(ot_json_get(root, "assigned"), ot_json_at(classes, i), scratch);
    ot_regex_scratch_close(scratch);
    ot_json_free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_component_splits_as_hugging_face_does),
        cmocka_unit_test(regex_classes_hold_the_same_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
