/* Unigram models and their table of replacements, beyond the comparison with Hugging Face: the trie against a
 * plain search, offsets, unknown characters, time, and tables of random bytes. */
#include "tests/tokenizer/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/memory.h"
#include "src/base/random.h"
#include "src/tokenizer/charsmap.h"
#include "src/tokenizer/text.h"
#include "tests/support/check.h"

/* ---- the trie ---- */

enum { TOKENS = 2000, LONGEST = 7 };

/* Random numbers one after the other. */
struct numbers {
    uint64_t seed, used;
};

static uint32_t next(struct numbers *random) {
    return ot_random_u32(random->seed, 0, random->used++);
}

/* A random text over a few letters of one, two and three bytes. */
static size_t random_text(struct numbers *random, int letters, char *out) {
    static const char *const alphabet[] = {"a",           "b", "c", "\xc3\xa4", "\xc3\xbc", "\xe4\xb8\xad",
                                           "\xe4\xb8\xae"};
    size_t n = 0;
    for (int i = 0; i < letters; i++)
        n += (size_t)sprintf(out + n, "%s", alphabet[next(random) % 7]);
    return n;
}

struct words {
    char text[TOKENS][3 * LONGEST + 1];
    size_t bytes[TOKENS];
    double score[TOKENS];
    int n;
};

static int find_word(const struct words *w, const char *text, size_t n) {
    for (int i = 0; i < w->n; i++)
        if (w->bytes[i] == n && memcmp(w->text[i], text, n) == 0)
            return i;
    return -1;
}

static struct words *make_words(struct numbers *random) {
    struct words *w = calloc(1, sizeof *w);
    assert_non_null(w);
    strcpy(w->text[0], "<unk>");
    w->bytes[0] = 5;
    w->n = 1;
    while (w->n < TOKENS) {
        char text[3 * LONGEST + 1];
        size_t n = random_text(random, 1 + (int)(next(random) % LONGEST), text);
        bool is_unknown = n == 3 && text[2] == (char)0xae; /* one letter alone is no token */
        if (is_unknown || find_word(w, text, n) >= 0)
            continue;
        strcpy(w->text[w->n], text);
        w->bytes[w->n] = n;
        w->score[w->n++] = -(double)(next(random) % 4000) / 256;
    }
    return w;
}

static struct ot_tokenizer *open_words(const struct words *w) {
    char *json = malloc((size_t)w->n * 64 + 200);
    assert_non_null(json);
    size_t n = (size_t)sprintf(json, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[");
    for (int i = 0; i < w->n; i++)
        n += (size_t)sprintf(json + n, "%s[\"%s\",%.9g]", i ? "," : "", w->text[i], w->score[i]);
    sprintf(json + n, "]}}");
    struct ot_tokenizer *t = open_tokenizer_json(json);
    free(json);
    return t;
}

/* The greatest sum of scores of a text, by trying all words at all places. */
static double best_score(const struct words *w, const char *text, size_t n) {
    double *best = calloc(n + 1, sizeof *best), least = 0;
    assert_non_null(best);
    for (int i = 0; i < w->n; i++)
        least = w->score[i] < least ? w->score[i] : least;
    for (size_t end = 1; end <= n; end++) {
        best[end] = -1e300;
        for (size_t length = 1; length <= end && length <= 3 * LONGEST; length++) {
            int word = find_word(w, text + end - length, length);
            size_t one;
            ot_utf8_decode(text + end - length, &one);
            if (word < 0 && (one != length || ((unsigned char)text[end - length] & 0xc0) == 0x80))
                continue;
            double score = best[end - length] + (word < 0 ? least - 10 : w->score[word]);
            best[end] = score > best[end] ? score : best[end];
        }
    }
    double score = best[n];
    free(best);
    return score;
}

static void the_path_is_the_best_of_all(void **state) {
    (void)state;
    struct numbers random = {.seed = 11};
    struct words *w = make_words(&random);
    struct ot_tokenizer *t = open_words(w);
    struct ot_token_list list = {0};
    for (int round = 0; round < 20; round++) {
        char text[3 * 40 + 1];
        size_t n = random_text(&random, 40, text);
        check_ok(ot_tokenizer_encode(t, text, n, 0, &list));
        double least = 0, score = 0;
        for (int i = 0; i < w->n; i++)
            least = w->score[i] < least ? w->score[i] : least;
        for (size_t i = 0; i < list.n; i++) {
            size_t end = i + 1 < list.n ? list.start[i + 1] : n, length;
            if (list.ids[i] != 0) {
                assert_int_equal(find_word(w, text + list.start[i], end - list.start[i]), list.ids[i]);
                score += w->score[list.ids[i]];
            }
            for (size_t at = list.start[i]; list.ids[i] == 0 && at < end; at += length) {
                ot_utf8_decode(text + at, &length);
                score += least - 10;
            }
        }
        double want = best_score(w, text, n);
        assert_true(score > want - 1e-9 && score < want + 1e-9);
    }
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
    free(w);
}

/* ---- unknown characters ---- */

static void without_unk_an_unknown_character_is_an_error(void **state) {
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1],[\"b\",-1],[\"\",-1]]}}";
    struct ot_tokenizer *t = open_tokenizer_json(json);
    struct ot_token_list list = {0};
    check_encoded(t, "abba", "0@0 1@1 1@2 0@3 ");
    check_fails(ot_tokenizer_encode(t, "ab\xc3\xa4", 4, 0, &list), OT_E_INPUT, "no token for '\xc3\xa4'");
    assert_int_equal(list.n, 0);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

static void unknown_neighbours_are_one_token(void **state) {
    (void)state;
    static const char json[] =
        "{\"model\":{\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"<0xC3>\",-1],[\"<0xA4>\",-1]],"
        "\"byte_fallback\":true}}";
    struct ot_tokenizer *t = open_tokenizer_json(json);
    check_encoded(t,
                  "a\xc3\xa4\xc3\xa4"
                  "a",
                  "1@0 2@1 3@2 2@3 3@4 1@5 ");
    check_encoded(t, "a\xc3\xa5\xc3\xa4", "1@0 0@1 "); /* a byte of the run is no token */
    check_encoded(t, "xyza", "0@0 1@3 ");
    check_encoded(t, "<unk>a<unk>x", "0@0 1@5 0@6 ");
    ot_tokenizer_close(t);
}

/* An unknown character costs 10 more than the token of the lowest score, as in SentencePiece. "ab" has that
 * score, -1. So "b" after an unknown "a" is better if its score exceeds 10. */
static void an_unknown_character_costs_ten(void **state) {
    (void)state;
    static const char json[] = "{\"model\":{\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"ab\",-1],[\"b\",%s]]}}";
    for (int i = 0; i < 2; i++) {
        char text[sizeof json + 8];
        snprintf(text, sizeof text, json, i ? "10.25" : "9.75");
        struct ot_tokenizer *t = open_tokenizer_json(text);
        check_encoded(t, "ab", i ? "0@0 2@1 " : "1@0 ");
        ot_tokenizer_close(t);
    }
}

/* ---- the table of replacements ---- */

static void removed_characters_do_not_shift_offsets(void **state) {
    (void)state;
    struct ot_tokenizer *t = golden_tokenizer("t5");
    struct ot_token_list plain = {0}, list = {0};
    static const char text[] = "the house";
    static const char removed[] = "\xee\x80\x81the \xee\x80\x81\xee\x80\x81house\xee\x80\x81";
    check_ok(ot_tokenizer_encode(t, text, strlen(text), 0, &plain));
    check_ok(ot_tokenizer_encode(t, removed, strlen(removed), 0, &list));
    assert_int_equal(list.n, plain.n);
    assert_memory_equal(list.ids, plain.ids, plain.n * sizeof *plain.ids);
    assert_int_equal(list.start[0], 3);
    for (size_t i = 0; i < list.n; i++)
        assert_int_equal(list.start[i], plain.start[i] + (plain.start[i] >= 4 ? 9 : 3));
    check_ok(ot_tokenizer_encode(t, "\xee\x80\x81", 3, 0, &list));
    assert_int_equal(list.n, 0);
    ot_token_list_free(&plain);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

/* Tables of random units: whatever they say, the result is UTF-8, and the sanitizers see no access outside.
 */
static void random_tables_do_no_harm(void **state) {
    (void)state;
    static const char text[] =
        "Some t\xc3\xa4xt e\xcc\x81 \r\n\xe2\x80\xa6 \xf0\x9f\x98\x80\xf0\x9f\x8f\xbd end";
    struct numbers random = {.seed = 11};
    struct ot_text out = {0};
    for (int round = 0; round < 3000; round++) {
        struct ot_arena *arena;
        struct ot_charsmap map;
        char table[4 + 4 * 512 + 8];
        uint32_t size = 4 * 512;
        memcpy(table, &size, 4); /* the tests run on little-endian machines */
        for (size_t i = 4; i < 4 + size; i += 4) {
            uint32_t unit = next(&random);
            unit = (unit & 0x7fc00) | (unit & 0x100) | (unit >> 24 & 0x7f); /* small offsets, ASCII labels */
            memcpy(table + i, &unit, 4);
        }
        memcpy(table + 4 + size, "\xc3\xa4x\0yz\xc3\xbc", 8);
        check_ok(ot_arena_open(&arena));
        check_ok(ot_charsmap_open(table, sizeof table, "here", arena, &map));
        struct ot_piece piece = {text, strlen(text), NULL, 0};
        out.n = 0;
        check_ok(ot_charsmap_apply(&map, &piece, &out));
        assert_int_equal(ot_utf8_valid(out.bytes, out.n), out.n);
        for (size_t i = 0; i < out.n; i++)
            assert_true(out.start[i] < strlen(text) && (i == 0 || out.start[i] >= out.start[i - 1]));
        ot_arena_close(arena);
    }
    ot_text_free(&out);
}

static void replacements_have_a_limit(void **state) {
    (void)state;
    static char table[8 + 1200];
    struct ot_arena *arena;
    struct ot_charsmap map;
    table[0] = 4;
    memset(table + 8, 'x', 1100);
    check_ok(ot_arena_open(&arena));
    check_fails(ot_charsmap_open(table, sizeof table, "here", arena, &map), OT_E_INPUT,
                "here: a replacement is longer than 1024 bytes");
    check_fails(ot_charsmap_open(table, 8 + 1025, "here", arena, &map), OT_E_INPUT, "longer than 1024");
    check_ok(ot_charsmap_open(table, 8 + 1024, "here", arena, &map));
    ot_arena_close(arena);
}

/* ---- time ---- */

static void large_words_take_linear_time(void **state) {
    (void)state;
    struct ot_tokenizer *t = golden_tokenizer("unigram_bytes");
    struct ot_token_list list = {0};
    size_t n = 2000000;
    char *text = malloc(n);
    assert_non_null(text);
    clock_t start = clock();
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < n; i++)
            text[i] = kind == 0 ? 'a' : kind == 1 ? "the river "[i % 10] : "\xe4\xb8\xad"[i % 3];
        check_ok(ot_tokenizer_encode(t, text, n - n % 3, 0, &list));
        assert_true(list.n > 1000);
    }
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 20);
    free(text);
    ot_token_list_free(&list);
    ot_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_path_is_the_best_of_all),
        cmocka_unit_test(without_unk_an_unknown_character_is_an_error),
        cmocka_unit_test(unknown_neighbours_are_one_token),
        cmocka_unit_test(an_unknown_character_costs_ten),
        cmocka_unit_test(removed_characters_do_not_shift_offsets),
        cmocka_unit_test(random_tables_do_no_harm),
        cmocka_unit_test(replacements_have_a_limit),
        cmocka_unit_test(large_words_take_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
