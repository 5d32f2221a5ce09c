/* Tokenizers: from tokenizer.json to keys and back, with the same ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "src/gguf/vocab.h"
#include "src/tokenizer/sentencepiece.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/gguf/fixture.h"

enum { MAX_BYTES = 64 << 20 };

static int write_keys(const char *folder, const struct ot_gguf_keys *keys) {
    struct ot_gguf_writer *writer;
    struct sink sink = {0};
    writer_open(keys, NULL, 0, &sink, &writer);
    check_ok(ot_gguf_writer_finish(writer));
    write_file(folder, "m.gguf", sink.bytes, sink.n);
    ot_gguf_writer_close(writer);
    sink_free(&sink);
    return 0;
}

/* Puts the tokenizer into a file. size 0: as many rows as it has tokens, and 3 more. */
static int export_scored(const char *folder, const char *path, int64_t size,
                         const struct ot_sentencepiece *sentencepiece) {
    struct ot_tokenizer *tokenizer;
    struct ot_gguf_keys keys = {0};
    struct ot_json *root;
    check_ok(ot_json_read_file(path, MAX_BYTES, &root));
    check_ok(ot_tokenizer_open(path, &tokenizer));
    struct ot_gguf_vocab vocab = {.tokenizer = root,
                                  .where = path,
                                  .size = size ? size : ot_tokenizer_vocab_size(tokenizer) + 3,
                                  .bos = 1,
                                  .eos = 2,
                                  .add_bos = true,
                                  .add_eos = true,
                                  .sentencepiece = sentencepiece,
                                  .chat_template = "{{ x }}",
                                  .chat_template_bytes = 7};
    int rc = ot_gguf_put_vocab(&keys, &vocab);
    if (rc == 0)
        write_keys(folder, &keys);
    ot_gguf_keys_free(&keys);
    ot_tokenizer_close(tokenizer);
    ot_json_free(root);
    return rc;
}

static int export_tokenizer(const char *folder, const char *path, int64_t size) {
    return export_scored(folder, path, size, NULL);
}

/* Makes FOLDER/tokenizer.json of the file. */
static int import_tokenizer(const char *folder) {
    struct ot_gguf *file;
    char *text = NULL;
    size_t bytes;
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    int rc = ot_gguf_make_tokenizer(file, &text, &bytes);
    ot_gguf_close(file);
    if (rc == 0)
        write_file(folder, "tokenizer.json", text, bytes);
    free(text);
    return rc;
}

static void check_same_ids(const struct ot_tokenizer *got, const struct ot_tokenizer *want, const char *text,
                           size_t bytes) {
    struct ot_token_list a = {0}, b = {0};
    check_ok(ot_tokenizer_encode(got, text, bytes, 0, &a));
    check_ok(ot_tokenizer_encode(want, text, bytes, 0, &b));
    if (a.n != b.n)
        fail_msg("%zu tokens of '%.200s', should be %zu", a.n, text, b.n);
    for (size_t i = 0; i < a.n; i++)
        if (a.ids[i] != b.ids[i])
            fail_msg("token %d of '%.200s' is %d, should be %d", (int)i, text, a.ids[i], b.ids[i]);
    ot_token_list_free(&a);
    ot_token_list_free(&b);
}

/* True if the text has a token of the golden tokenizers that takes the spaces beside it, counts only as a
 * whole word, or is matched after normalising: GGUF cannot say so. */
static bool has_lost_token(const char *path, const char *text, size_t bytes) {
    static const char *const tokens[] = {"left", "right", "both", "day", "<pad>"};
    if (strstr(path, "o200k") && (memmem(text, bytes, "<|endoftext|>", 13) || memmem(text, bytes, "word", 4)))
        return true;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (memmem(text, bytes, tokens[i], strlen(tokens[i])))
            return true;
    return false;
}

static void check_all_texts(const char *made, const char *path) {
    static const char *const lists[] = {"texts", "random"};
    struct ot_tokenizer *got, *want;
    struct ot_json *root;
    check_ok(ot_json_read_file(OT_TEST_GOLDEN "/tokenizers/texts.json", MAX_BYTES, &root));
    check_ok(ot_tokenizer_open(made, &got));
    check_ok(ot_tokenizer_open(path, &want));
    for (size_t list = 0; list < 2; list++) {
        const struct ot_json *texts = ot_json_get(root, lists[list]);
        assert_true(ot_json_length(texts) >= 90);
        for (size_t i = 0; i < ot_json_length(texts); i++) {
            size_t bytes;
            const char *text = ot_json_string(ot_json_at(texts, i), &bytes);
            if (text && !has_lost_token(path, text, bytes)) /* other texts are made by a rule */
                check_same_ids(got, want, text, bytes);
        }
    }
    ot_tokenizer_close(got);
    ot_tokenizer_close(want);
    ot_json_free(root);
}

static void test_tokenizers_come_back(void **state) {
    static const char *const names[] = {"gpt2",    "llama3", "qwen",  "byte_level",
                                        "prepend", "words",  "bloom", "o200k"};
    char path[256], made[256];
    char *folder = make_folder();
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, OT_TEST_GOLDEN "/tokenizers/%s.json", names[i]);
        snprintf(made, sizeof made, "%s/tokenizer.json", folder);
        check_ok(export_tokenizer(folder, path, 0));
        check_ok(import_tokenizer(folder));
        check_all_texts(made, path);
    }
    remove_folder(folder);
}

/* The tokens, types and ids of a file. */
static void test_what_the_keys_say(void **state) {
    struct ot_gguf *file;
    struct ot_gguf_string text;
    struct ot_gguf_token_ids ids;
    char *folder = make_folder();
    (void)state;
    check_ok(export_tokenizer(folder, OT_TEST_GOLDEN "/tokenizers/prepend.json", 0));
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    check_ok(ot_gguf_need_string(file, "tokenizer.ggml.model", true, &text));
    assert_true(text.bytes == 5 && memcmp(text.text, "llama", 5) == 0);
    check_ok(ot_gguf_need_string(file, "tokenizer.chat_template", true, &text));
    assert_int_equal(text.bytes, 7);
    check_ok(ot_gguf_read_token_ids(file, &ids));
    assert_true(ids.bos == 1 && ids.eos == 2);
    const struct ot_gguf_value *tokens = ot_gguf_find(file, "tokenizer.ggml.tokens");
    const struct ot_gguf_value *types = ot_gguf_find(file, "tokenizer.ggml.token_type");
    assert_int_equal(types->n, tokens->n);
    assert_int_equal(types->data[4 * (tokens->n - 1)], OT_GGUF_TOKEN_UNUSED);
    assert_memory_equal(tokens->strings[tokens->n - 1].text, "[PAD", 4);
    for (int64_t i = 0; i < tokens->n; i++)
        assert_int_equal(types->data[4 * i] == OT_GGUF_TOKEN_BYTE,
                         tokens->strings[i].bytes == 6 && memcmp(tokens->strings[i].text, "<0x", 3) == 0);
    ot_gguf_close(file);
    remove_folder(folder);
}

static float score_at(const struct ot_gguf_value *scores, int64_t id) {
    float score;
    memcpy(&score, scores->data + 4 * id, 4); /* the tests run on little-endian machines */
    return score;
}

/* Makes FOLDER/tokenizer.json of a golden SentencePiece model, as its directory without other files. */
static struct ot_sentencepiece *make_tokenizer(const char *folder, const char *name, const char *type) {
    struct ot_sentencepiece *model;
    char path[256], *text;
    size_t bytes;
    snprintf(path, sizeof path, OT_TEST_GOLDEN "/tokenizers/%s.model", name);
    check_ok(ot_sentencepiece_open(path, &model));
    struct ot_sentencepiece_files files = {.model_type = type};
    check_ok(ot_sentencepiece_make(model, &files, "here", &text, &bytes));
    write_file(folder, "made.json", text, bytes);
    free(text);
    return model;
}

static void test_scores_of_a_sentencepiece_model_are_exact(void **state) {
    static const char *const names[][2] = {
        {"llama_bpe", "llama"}, {"gemma_bpe", "gemma"}, {"t5_unigram", "t5"}};
    char *folder = make_folder(), path[256], made[256];
    (void)state;
    snprintf(path, sizeof path, "%s/made.json", folder);
    snprintf(made, sizeof made, "%s/tokenizer.json", folder);
    for (size_t i = 0; i < 3; i++) {
        struct ot_sentencepiece *model = make_tokenizer(folder, names[i][0], names[i][1]);
        struct ot_gguf *file;
        check_ok(
            export_scored(folder, path, 0, i < 2 ? model : NULL)); /* Unigram has them in tokenizer.json */
        check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
        const struct ot_gguf_value *scores = ot_gguf_find(file, "tokenizer.ggml.scores");
        int64_t normal = 0;
        for (int32_t id = 0; id < model->vocab.n; id++) {
            if (model->pieces[id].kind != OT_PIECE_NORMAL)
                continue;
            assert_true(score_at(scores, id) == model->pieces[id].score);
            normal++;
        }
        assert_true(normal > 300);
        ot_gguf_close(file);
        check_ok(import_tokenizer(folder));
        check_all_texts(made, path);
        ot_sentencepiece_close(model);
    }
    remove_folder(folder);
}

/* A model whose tokens are others than the tokenizer's has no scores for it. */
static void test_scores_of_another_model_are_not_used(void **state) {
    char *folder = make_folder(), path[256];
    struct ot_gguf *file;
    (void)state;
    snprintf(path, sizeof path, "%s/made.json", folder);
    struct ot_sentencepiece *own = make_tokenizer(folder, "llama_bpe", "llama"), *other;
    check_ok(ot_sentencepiece_open(OT_TEST_GOLDEN "/tokenizers/llama_unigram.model", &other));
    check_ok(export_scored(folder, path, 0, other));
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    const struct ot_gguf_value *scores = ot_gguf_find(file, "tokenizer.ggml.scores");
    for (int32_t id = 0; id < own->vocab.n; id++)
        assert_true(score_at(scores, id) == (float)(int)score_at(scores, id)); /* ranks */
    ot_gguf_close(file);
    ot_sentencepiece_close(own);
    ot_sentencepiece_close(other);
    remove_folder(folder);
}

static void test_what_the_keys_of_a_unigram_say(void **state) {
    struct ot_gguf *file;
    struct ot_gguf_string text;
    bool merge = false, prefix = false, eos = false;
    int64_t unknown;
    char *folder = make_folder();
    (void)state;
    check_ok(export_tokenizer(folder, OT_TEST_GOLDEN "/tokenizers/t5.json", 0));
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    check_ok(ot_gguf_need_string(file, "tokenizer.ggml.model", true, &text));
    assert_true(text.bytes == 2 && memcmp(text.text, "t5", 2) == 0);
    check_ok(ot_gguf_need_bool(file, "tokenizer.ggml.remove_extra_whitespaces", true, &merge));
    check_ok(ot_gguf_need_bool(file, "tokenizer.ggml.add_space_prefix", true, &prefix));
    check_ok(ot_gguf_need_bool(file, "tokenizer.ggml.add_eos_token", true, &eos));
    check_ok(ot_gguf_need_int(file, "tokenizer.ggml.unknown_token_id", true, 0, 9, &unknown));
    assert_true(merge && prefix && eos && unknown == 2);
    const struct ot_gguf_value *types = ot_gguf_find(file, "tokenizer.ggml.token_type");
    const struct ot_gguf_value *charsmap = ot_gguf_find(file, "tokenizer.ggml.precompiled_charsmap");
    assert_true(charsmap && charsmap->item == OT_GGUF_KIND_U8 && charsmap->n > 1000);
    assert_int_equal(types->data[4 * 2], OT_GGUF_TOKEN_UNKNOWN);
    assert_int_equal(types->data[4 * 1], OT_GGUF_TOKEN_CONTROL);
    assert_true(score_at(ot_gguf_find(file, "tokenizer.ggml.scores"), types->n - 1) == -1000);
    ot_gguf_close(file);
    remove_folder(folder);
}

/* Two names of GGUF have the regex of Llama 3. They differ in whether a word that is a token is merged. The
 * regex of Qwen2 has one name, whatever the tokenizer says of that. */
static void test_the_name_says_whether_words_are_merged(void **state) {
    static const struct {
        const char *tokenizer, *from, *to, *name;
    } cases[] = {{"llama3", "\"ignore_merges\":true", "\"ignore_merges\":true", "llama-bpe"},
                 {"llama3", "\"ignore_merges\":true", "\"ignore_merges\":false", "dbrx"},
                 {"qwen", "\"ignore_merges\":false", "\"ignore_merges\":true", "qwen2"}};
    char *folder = make_folder(), path[256];
    static char text[1 << 16], changed[1 << 16];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_gguf *gguf;
        snprintf(path, sizeof path, OT_TEST_GOLDEN "/tokenizers/%s.json", cases[i].tokenizer);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        size_t bytes = fread(text, 1, sizeof text - 1, file);
        assert_in_range(bytes, 1000, sizeof text - 2);
        text[bytes] = '\0';
        fclose(file);
        snprintf(path, sizeof path, "%s/made.json", folder);
        struct ot_gguf_string pre;
        char *at = strstr(text, cases[i].from);
        assert_non_null(at);
        int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[i].to,
                         at + strlen(cases[i].from));
        write_file(folder, "made.json", changed, (size_t)n);
        check_ok(export_tokenizer(folder, path, 0));
        check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &gguf));
        check_ok(ot_gguf_need_string(gguf, "tokenizer.ggml.pre", true, &pre));
        assert_true(ot_gguf_string_is(pre, cases[i].name));
        ot_gguf_close(gguf);
        check_ok(import_tokenizer(folder));
    }
    remove_folder(folder);
}

static void test_refuses_tokenizers_of_other_kinds(void **state) {
    static const struct {
        const char *name, *words;
    } cases[] = {
        {"falcon", "the pre_tokenizer is none of those that GGUF can name"},
        {"unigram_bytes", "a Unigram tokenizer with byte_fallback cannot be exported as GGUF"},
        {"unigram_ties",
         "llama.cpp does not know the normalizer or the pre_tokenizer of this Unigram tokenizer"},
    };
    char path[256], *folder = make_folder();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, OT_TEST_GOLDEN "/tokenizers/%s.json", cases[i].name);
        check_fails(export_tokenizer(folder, path, 0), OT_E_INPUT, cases[i].words);
    }
    check_fails(export_tokenizer(folder, OT_TEST_GOLDEN "/tokenizers/gpt2.json", 300), OT_E_INPUT,
                "but the model's embedding has only 300 rows");
    remove_folder(folder);
}

/* ---- wrong keys ---- */

/* A small tokenizer of each kind, with one thing wrong. */
enum wrong {
    NOTHING,
    KIND,
    WORDS,
    SAME_TOKENS,
    NOT_UTF8,
    MERGE,
    TYPES,
    BOS,
    SCORE,
    LONG_TOKEN,
    N_WRONG,
};

static void put_wrong(struct ot_gguf_keys *keys, enum wrong wrong, bool scored) {
    static const char *const tokens[] = {"a", "b", "ab", "<s>"};
    char many[513 + 1] = "";
    int64_t n = 4;
    memset(many, 'x', sizeof many - 1);
    ot_gguf_put_text(keys, "tokenizer.ggml.model", wrong == KIND ? "bert" : scored ? "llama" : "gpt2");
    ot_gguf_put_text(keys, "tokenizer.ggml.pre", wrong == WORDS ? "falcon" : "gpt-2");
    ot_gguf_put_array(keys, "tokenizer.ggml.tokens", OT_GGUF_KIND_STRING, n);
    for (int64_t i = 0; i < n; i++) {
        const char *text = i == 1 && wrong == SAME_TOKENS  ? "a"
                           : i == 1 && wrong == NOT_UTF8   ? "\xc3"
                           : i == 1 && wrong == LONG_TOKEN ? many
                                                           : tokens[i];
        ot_gguf_put_string_item(keys, text, strlen(text));
    }
    ot_gguf_put_array(keys, "tokenizer.ggml.token_type", OT_GGUF_KIND_I32, wrong == TYPES ? 3 : n);
    for (int64_t i = 0; i < (wrong == TYPES ? 3 : n); i++)
        ot_gguf_put_i32_item(keys, i == 3 ? OT_GGUF_TOKEN_CONTROL : OT_GGUF_TOKEN_NORMAL);
    if (!scored) {
        const char *merge = wrong == MERGE ? "ab" : "a b";
        ot_gguf_put_array(keys, "tokenizer.ggml.merges", OT_GGUF_KIND_STRING, 1);
        ot_gguf_put_string_item(keys, merge, strlen(merge));
    } else {
        ot_gguf_put_array(keys, "tokenizer.ggml.scores", OT_GGUF_KIND_F32, n);
        for (int64_t i = 0; i < n; i++)
            ot_gguf_put_f32_item(keys, wrong == SCORE && i == 2 ? __builtin_nanf("") : -1);
    }
    ot_gguf_put_u32(keys, "tokenizer.ggml.bos_token_id", wrong == BOS ? 4 : 3);
}

static void test_refuses_wrong_tokenizer_keys(void **state) {
    static const char *const words[N_WRONG] = {
        [KIND] = "tokenizer.ggml.model 'bert' is not supported; known: llama, gpt2, t5",
        [WORDS] = "tokenizer.ggml.pre 'falcon' is not supported",
        [SAME_TOKENS] = "are the same token",
        [NOT_UTF8] = "tokenizer.ggml.tokens[1] contains a NUL, or is not valid UTF-8",
        [MERGE] = "tokenizer.ggml.merges[0] must be two tokens",
        [TYPES] = "token_type has 3 items, but there are 4 tokens",
        [BOS] = "bos_token_id is 4, but the file has only 4 tokens",
        [SCORE] = "tokenizer.ggml.scores[2] is not a number",
        [LONG_TOKEN] = "tokenizer.ggml.tokens[1] has 513 bytes, must have at most 512",
    };
    char *folder = make_folder(), path[256];
    (void)state;
    for (int wrong = NOTHING; wrong < N_WRONG; wrong++)
        for (int scored = 0; scored < 2; scored++) {
            struct ot_gguf_keys keys = {0};
            bool fits = scored ? wrong != MERGE && wrong != WORDS : wrong != SCORE && wrong != LONG_TOKEN;
            if (!fits)
                continue;
            put_wrong(&keys, (enum wrong)wrong, scored);
            write_keys(folder, &keys);
            ot_gguf_keys_free(&keys);
            if (words[wrong]) {
                check_fails(import_tokenizer(folder), OT_E_INPUT, words[wrong]);
                continue;
            }
            struct ot_tokenizer *tokenizer;
            check_ok(import_tokenizer(folder));
            snprintf(path, sizeof path, "%s/tokenizer.json", folder);
            check_ok(ot_tokenizer_open(path, &tokenizer));
            assert_int_equal(ot_tokenizer_find(tokenizer, "ab", 2), 2);
            assert_true(ot_tokenizer_is_special(tokenizer, 3));
            ot_tokenizer_close(tokenizer);
        }
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizers_come_back),
        cmocka_unit_test(test_what_the_keys_say),
        cmocka_unit_test(test_scores_of_a_sentencepiece_model_are_exact),
        cmocka_unit_test(test_scores_of_another_model_are_not_used),
        cmocka_unit_test(test_what_the_keys_of_a_unigram_say),
        cmocka_unit_test(test_the_name_says_whether_words_are_merged),
        cmocka_unit_test(test_refuses_tokenizers_of_other_kinds),
        cmocka_unit_test(test_refuses_wrong_tokenizer_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
