/* Tests without a comparison to Hugging Face: the writer of byte-level files, streams, threads, limits and
 * queries. */
#include "tests/tokenizer/corpus.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

static struct ot_tokenizer *open_byte_level(void) {
    char path[600];
    char *folder = make_folder();
    struct ot_tokenizer *t;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    check_ok(ot_tokenizer_write_byte_level(path));
    check_ok(ot_tokenizer_open(path, &t));
    remove_folder(folder);
    return t;
}

static void byte_level_file_gives_bytes(void **state) {
    (void)state;
    struct ot_tokenizer *t = open_byte_level();
    struct ot_token_list list = {0};
    static const char text[] = "A\0\n <|eos|>\xc3\xa9";
    char *back;
    size_t n;
    assert_int_equal(ot_tokenizer_vocab_size(t), OT_BYTE_LEVEL_VOCAB);
    check_ok(ot_tokenizer_encode(t, text, sizeof text - 1, OT_TOKENIZER_ADD_SPECIAL, &list));
    const int32_t ids[] = {OT_BYTE_LEVEL_BOS, 'A', 0, '\n', ' ', OT_BYTE_LEVEL_EOS, 0xc3, 0xa9};
    const uint32_t starts[] = {0, 0, 1, 2, 3, 4, 11, 12};
    assert_int_equal(list.n, 8);
    assert_memory_equal(list.ids, ids, sizeof ids);
    assert_memory_equal(list.start, starts, sizeof starts);
    assert_int_equal(list.specials, 1);
    check_ok(ot_tokenizer_decode(t, list.ids, list.n, true, &back, &n));
    assert_int_equal(n, 6);
    assert_memory_equal(back, "A\0\n \xc3\xa9", 6);
    free(back);
    for (int byte = 0; byte < 0x80; byte++) {
        char c = (char)byte;
        check_ok(ot_tokenizer_encode(t, &c, 1, 0, &list));
        assert_int_equal(list.n, 1);
        assert_int_equal(list.ids[0], byte);
    }
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 16) - 1, file), 1, (1 << 16) - 2);
    fclose(file);
    return text;
}

/* Hugging Face read the committed copy of this file, so the writer must still make the same file. */
static void byte_level_file_is_the_one_hugging_face_read(void **state) {
    (void)state;
    struct corpus corpus;
    char path[600], golden_path[512];
    char *folder = make_folder();
    struct ot_tokenizer *t;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    golden_tokenizer_path("byte_level", golden_path);
    check_ok(ot_tokenizer_write_byte_level(path));
    char *text = read_text(path), *golden = read_text(golden_path);
    assert_string_equal(text, golden);
    check_ok(ot_tokenizer_open(path, &t));
    corpus_open(&corpus);
    check_vectors(t, "byte_level", &corpus);
    corpus_close(&corpus);
    ot_tokenizer_close(t);
    free(golden);
    free(text);
    remove_folder(folder);
}

static void byte_level_file_reports_an_unwritable_path(void **state) {
    (void)state;
    check_fails(ot_tokenizer_write_byte_level("/nonexistent/tokenizer.json"), OT_E_IO,
                "/nonexistent/tokenizer.json");
}

/* ---- streams ---- */

static void check_stream(const struct ot_tokenizer *t, const int32_t *ids, size_t n, bool skip_special) {
    struct ot_decode_stream *stream;
    char *whole, *joined;
    size_t whole_n, at = 0, bytes;
    const char *text;
    check_ok(ot_tokenizer_decode(t, ids, n, skip_special, &whole, &whole_n));
    joined = malloc(whole_n + 1024);
    assert_non_null(joined);
    check_ok(ot_decode_stream_open(t, skip_special, &stream));
    for (size_t i = 0; i <= n; i++) {
        check_ok(i < n ? ot_decode_stream_push(stream, ids[i], &text, &bytes)
                       : ot_decode_stream_finish(stream, &text, &bytes));
        assert_true(at + bytes <= whole_n);
        assert_int_equal(strlen(text) <= bytes, 1);
        memcpy(joined + at, text, bytes);
        at += bytes;
    }
    assert_int_equal(at, whole_n);
    assert_memory_equal(joined, whole, whole_n);
    ot_decode_stream_close(stream);
    free(joined);
    free(whole);
}

static void streams_give_what_decoding_at_once_gives(void **state) {
    (void)state;
    static const char *const names[] = {"llama3", "gpt2",    "prepend", "words",        "metaspace",
                                        "gemma",  "unknown", "t5",      "unigram_bytes"};
    struct corpus corpus;
    struct ot_token_list list = {0};
    corpus_open(&corpus);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct ot_tokenizer *t = golden_tokenizer(names[k]);
        for (size_t i = 0; i < corpus.n_texts; i++) {
            check_ok(ot_tokenizer_encode(t, corpus.texts[i].bytes,
                                         corpus.texts[i].n < 300 ? corpus.texts[i].n : 300,
                                         OT_TOKENIZER_ADD_SPECIAL, &list));
            check_stream(t, list.ids, list.n, false);
            check_stream(t, list.ids, list.n, true);
        }
        ot_tokenizer_close(t);
    }
    ot_token_list_free(&list);
    corpus_close(&corpus);
}

static void streams_wait_for_whole_characters(void **state) {
    (void)state;
    struct ot_tokenizer *t = open_byte_level();
    struct ot_decode_stream *stream;
    const char *text;
    size_t n;
    const int32_t euro[] = {0xe2, 0x82, 0xac};
    check_ok(ot_decode_stream_open(t, true, &stream));
    for (int i = 0; i < 3; i++) {
        check_ok(ot_decode_stream_push(stream, euro[i], &text, &n));
        assert_string_equal(text, i < 2 ? "" : "\xe2\x82\xac");
    }
    check_ok(ot_decode_stream_push(stream, 0xe2, &text, &n)); /* a character that never ends */
    assert_string_equal(text, "");
    check_ok(ot_decode_stream_push(stream, 'x', &text, &n));
    assert_string_equal(text, "\xef\xbf\xbdx");
    check_ok(ot_decode_stream_push(stream, OT_BYTE_LEVEL_EOS, &text, &n));
    check_ok(ot_decode_stream_push(stream, 99999, &text, &n));
    assert_string_equal(text, "");
    check_ok(ot_decode_stream_push(stream, 0xf0, &text, &n));
    check_ok(ot_decode_stream_finish(stream, &text, &n));
    assert_string_equal(text, "\xef\xbf\xbd");
    ot_decode_stream_close(stream);
    ot_tokenizer_close(t);
}

/* ---- threads ---- */

struct job {
    const struct ot_tokenizer *t;
    const struct corpus *corpus;
    uint32_t sum;
};

static void *encode_all(void *context) {
    struct job *job = context;
    struct ot_token_list list = {0};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < job->corpus->n_random; i++) {
            const struct text *text = &job->corpus->random[i];
            if (ot_tokenizer_encode(job->t, text->bytes, text->n, OT_TOKENIZER_ADD_SPECIAL, &list) < 0)
                return context;
            job->sum = crc_numbers(job->sum, list.ids, list.n);
            job->sum = crc_numbers(job->sum, list.start, list.n);
        }
    }
    ot_token_list_free(&list);
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    enum { THREADS = 6 };
    static const char *const names[] = {"qwen", "words"};
    struct corpus corpus;
    corpus_open(&corpus);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct ot_tokenizer *t = golden_tokenizer(names[k]);
        struct job alone = {t, &corpus, 0}, jobs[THREADS];
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            jobs[i] = (struct job){t, &corpus, 0};
            assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &jobs[i]), 0);
        }
        assert_null(encode_all(&alone));
        for (int i = 0; i < THREADS; i++) {
            void *failed;
            assert_int_equal(pthread_join(threads[i], &failed), 0);
            assert_null(failed);
            assert_int_equal(jobs[i].sum, alone.sum);
        }
        ot_tokenizer_close(t);
    }
    corpus_close(&corpus);
}

/* ---- large texts ---- */

/* Texts of one long line without a word border, and of words. The size suits a sanitizer build, or is that of
 * the largest real file. */
static size_t large_bytes(void) {
    return getenv("OT_TEST_SLOW") ? 50 << 20 : 1 << 20;
}

static void check_large(const char *name, const char *unit, size_t unit_bytes, bool is_exact) {
    struct ot_tokenizer *t = golden_tokenizer(name);
    struct ot_token_list list = {0};
    size_t n = large_bytes() / unit_bytes * unit_bytes, back_n;
    char *text = malloc(n), *back;
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % unit_bytes];
    check_ok(ot_tokenizer_encode(t, text, n, 0, &list));
    assert_in_range(list.n, n / 64, n);
    for (size_t i = 1; i < list.n; i++)
        assert_true(list.start[i] >= list.start[i - 1] && list.start[i] < n);
    check_ok(ot_tokenizer_decode(t, list.ids, list.n, false, &back, &back_n));
    assert_int_equal(back_n, n);
    assert_true(!is_exact || memcmp(back, text, n) == 0);
    free(back);
    free(text);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

static void large_texts_take_no_quadratic_time(void **state) {
    (void)state;
    check_large("crossing", "the ", 4, true);
    check_large("crossing", "e", 1, true);
    check_large("prepend", "anda ", 5, true);
    check_large("words", "SELECT a FROM t\n", 16, true);
    check_large("words", "t", 1, true);
    check_large("llama3", " ", 1, true);
    check_large("qwen", "e\xcc\x81\xcc\xa3", 5, false);
}

static void combining_marks_without_end_are_sorted_fast(void **state) {
    (void)state;
    struct ot_tokenizer *t = golden_tokenizer("qwen");
    struct ot_token_list list = {0};
    size_t n = 1 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t i = 0; i + 4 <= n; i += 4)
        memcpy(text + i, i < n / 2 ? "\xcc\x81\xcc\x81" : "\xcc\xa3\xcc\xa3",
               4); /* combining classes 230, 220 */
    check_ok(ot_tokenizer_encode(t, text, n, 0, &list));
    assert_true(list.n > 0);
    free(text);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

static void texts_beyond_the_limit_are_refused(void **state) {
    (void)state;
    struct ot_tokenizer *t = golden_tokenizer("gpt2");
    struct ot_token_list list = {0};
    check_fails(ot_tokenizer_encode(t, "x", (size_t)OT_TOKENIZER_MAX_BYTES + 1, 0, &list), OT_E_INPUT,
                "too long");
    assert_int_equal(list.n, 0);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

/* ---- queries ---- */

static void tokens_are_found_by_text_and_id(void **state) {
    (void)state;
    struct ot_tokenizer *t = golden_tokenizer("prepend");
    int32_t n = ot_tokenizer_vocab_size(t), found = 0;
    for (int32_t id = 0; id < n; id++) {
        size_t bytes;
        const char *text = ot_tokenizer_token(t, id, &bytes);
        if (!text)
            continue;
        assert_int_equal(ot_tokenizer_find(t, text, bytes), id);
        found++;
    }
    assert_true(found > 600);
    assert_int_equal(ot_tokenizer_find(t, "</s>", 4), 2);
    assert_int_equal(ot_tokenizer_find(t, "no such token", 13), -1);
    assert_true(ot_tokenizer_is_special(t, 2));
    assert_false(ot_tokenizer_is_special(t, ot_tokenizer_find(t, "left", 4)));
    assert_false(ot_tokenizer_is_special(t, -1));
    assert_false(ot_tokenizer_is_special(t, n));
    assert_null(ot_tokenizer_token(t, n, NULL));
    assert_null(ot_tokenizer_token(t, INT32_MIN, NULL));
    ot_tokenizer_close(t);
}

static void specials_in_a_text_are_counted_or_plain(void **state) {
    (void)state;
    struct ot_tokenizer *t = golden_tokenizer("llama3");
    struct ot_token_list list = {0};
    static const char text[] = "a<|eot_id|>b<|eot_id|>";
    int32_t eot = ot_tokenizer_find(t, "<|eot_id|>", 10);
    check_ok(ot_tokenizer_encode(t, text, strlen(text), OT_TOKENIZER_ADD_SPECIAL, &list));
    assert_int_equal(list.specials, 2);
    assert_int_equal(list.ids[2], eot);
    assert_int_equal(list.start[2], 1);
    check_ok(ot_tokenizer_encode(t, text, strlen(text), OT_TOKENIZER_SPECIALS_AS_TEXT, &list));
    assert_int_equal(list.specials, 0);
    for (size_t i = 0; i < list.n; i++)
        assert_int_not_equal(list.ids[i], eot);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

/* A single byte beside the word, at either end of the text, counts as a neighbour. */
static void single_words_have_no_letter_beside_them(void **state) {
    (void)state;
    struct ot_tokenizer *t = open_tokenizer_json(
        "{\"added_tokens\":[{\"id\":9,\"content\":\"tok\",\"single_word\":true}],\"model\":{"
        "\"vocab\":{\"a\":0,\" \":1,\"t\":2,\"o\":3,\"k\":4},\"merges\":[]}}");
    check_encoded(t, "tok", "9@0 ");
    check_encoded(t, " tok", "1@0 9@1 ");
    check_encoded(t, "tok ", "9@0 1@3 ");
    check_encoded(t, "atok", "0@0 2@1 3@2 4@3 ");
    check_encoded(t, "toka", "2@0 3@1 4@2 0@3 ");
    check_encoded(t, "a tok a", "0@0 1@1 9@2 1@5 0@6 ");
    ot_tokenizer_close(t);
}

/* Each token of a single byte covers that byte, because training masks are made from these offsets. */
static void bytes_of_unknown_characters_have_their_own_offsets(void **state) {
    (void)state;
    struct ot_tokenizer *t =
        open_tokenizer_json("{\"model\":{\"byte_fallback\":true,\"vocab\":{\"a\":0,\"<0xE2>\":1,\"<0x82>\":2,"
                            "\"<0xAC>\":3},\"merges\":[]}}");
    check_encoded(t,
                  "a\xe2\x82\xac"
                  "a",
                  "0@0 1@1 2@2 3@3 0@4 ");
    ot_tokenizer_close(t);
}

/* See src/tokenizer/load.c. */
static void lost_no_break_spaces_are_found_again(void **state) {
    (void)state;
    static const char file[] =
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
        "\"},\"content\":\"_\"},\"decoder\":{\"type\":"
        "\"Fuse\"},\"model\":{\"vocab\":{\" \":0,\"  \":1,\"a\":2,\"_\":3},\"merges\":[\"   \"]}}";
    static const char text[] = "a \xc2\xa0\xc2\xa0\xc2\xa0";
    static const int32_t ids[] = {2, 3, 1, 0};
    struct ot_token_list list = {0};
    struct ot_tokenizer *t = open_tokenizer_json(file);
    char *back;
    size_t n;
    check_ok(ot_tokenizer_encode(t, text, sizeof text - 1, 0, &list));
    assert_int_equal(list.n, 4);
    assert_memory_equal(list.ids, ids, sizeof ids);
    check_ok(ot_tokenizer_decode(t, list.ids, list.n, false, &back, &n));
    assert_string_equal(back, "a_\xc2\xa0\xc2\xa0\xc2\xa0");
    free(back);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

/* The frame that `tokenizers` 0.23 makes. trim_offsets and add_prefix_space change no ids. A part of a text
 * has no frame, and its offsets count from the beginning of the whole text. */
static void roberta_frames_a_text(void **state) {
    (void)state;
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"post_"
        "processor\":{\"type\":"
        "\"RobertaProcessing\",\"sep\":[\"</"
        "s>\",4],\"cls\":[\"<s>\",3],\"trim_offsets\":true,\"add_prefix_space\":false},"
        "\"decoder\":null,\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<s>\":3,\"</"
        "s>\":4},\"merges\":[\"a b\"]}}";
    static const int32_t framed[] = {3, 2, 2, 4};
    char *folder = make_folder(), path[600];
    struct ot_tokenizer *t;
    struct ot_token_list list = {0};
    write_file(folder, "tokenizer.json", json, strlen(json));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    check_ok(ot_tokenizer_open(path, &t));
    check_ok(ot_tokenizer_encode(t, "abab", 4, OT_TOKENIZER_ADD_SPECIAL, &list));
    assert_int_equal(list.n, 4);
    assert_memory_equal(list.ids, framed, sizeof framed);
    check_ok(ot_tokenizer_encode(t, "", 0, OT_TOKENIZER_ADD_SPECIAL, &list));
    assert_int_equal(list.n, 2);
    assert_true(list.ids[0] == 3 && list.ids[1] == 4);
    ot_token_list_clear(&list);
    check_ok(ot_token_list_add(&list, 4, 0));
    check_ok(ot_tokenizer_encode_part(t, "xxabab", 2, 6, &list));
    assert_int_equal(list.n, 3);
    assert_true(list.ids[0] == 4 && list.ids[2] == 2);
    assert_true(list.start[0] == 0 && list.start[1] == 2 && list.start[2] == 4);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level_file_gives_bytes),
        cmocka_unit_test(byte_level_file_is_the_one_hugging_face_read),
        cmocka_unit_test(byte_level_file_reports_an_unwritable_path),
        cmocka_unit_test(streams_give_what_decoding_at_once_gives),
        cmocka_unit_test(streams_wait_for_whole_characters),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(large_texts_take_no_quadratic_time),
        cmocka_unit_test(combining_marks_without_end_are_sorted_fast),
        cmocka_unit_test(texts_beyond_the_limit_are_refused),
        cmocka_unit_test(single_words_have_no_letter_beside_them),
        cmocka_unit_test(bytes_of_unknown_characters_have_their_own_offsets),
        cmocka_unit_test(lost_no_break_spaces_are_found_again),
        cmocka_unit_test(tokens_are_found_by_text_and_id),
        cmocka_unit_test(specials_in_a_text_are_counted_or_plain),
        cmocka_unit_test(roberta_frames_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
