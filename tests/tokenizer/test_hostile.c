/* Broken and unsupported tokenizer.json files: each gives one clear line that names the file and the
 * component. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tokenizer/regex_match.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/support/check.h"

static char *folder;

static int open_text(const char *text, size_t n) {
    struct ot_tokenizer *t = NULL;
    char path[600];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_file(folder, "tokenizer.json", text, n);
    int rc = ot_tokenizer_open(path, &t);
    if (rc == 0)
        ot_tokenizer_close(t);
    else if (rc != -OT_E_BUDGET)
        assert_non_null(strstr(ot_error_text(), "tokenizer.json"));
    return rc;
}

static void check_refused(const char *text, const char *words) {
    int rc = open_text(text, strlen(text));
    if (rc != -OT_E_INPUT || !strstr(ot_error_text(), words))
        fail_msg("returned %d, \"%s\", wanted \"%s\" for %s", rc, ot_error_text(), words, text);
    assert_null(strchr(ot_error_text(), '\n'));
}

/* Writes a file that differs from a good one in one part. */
static const char *with(const char *part, const char *value) {
    static char text[4096];
    static const char *const parts[] = {"model",         "added_tokens",   "normalizer",
                                        "pre_tokenizer", "post_processor", "decoder"};
    static const char *const good[] = {
        "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}",
        "[{\"id\":3,\"content\":\"<s>\",\"special\":true}]",
        "null",
        "null",
        "null",
        "null"};
    size_t n = (size_t)snprintf(text, sizeof text, "{\"version\":\"1.0\"");
    for (size_t i = 0; i < 6; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",\"%s\":%s", parts[i],
                              strcmp(part, parts[i]) == 0 ? value : good[i]);
    snprintf(text + n, sizeof text - n, "}");
    return text;
}

static void the_good_file_is_good(void **state) {
    (void)state;
    const char *text = with("", "");
    assert_int_equal(open_text(text, strlen(text)), 0);
}

static void models_are_refused_by_name(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"null", "'model' must be an object"},
        {"[]", "'model' must be an object"},
        {"{\"type\":\"WordPiece\",\"vocab\":{}}", "'WordPiece' is not supported; supported: BPE, Unigram"},
        {"{\"type\":7}", "model.type"},
        {"{\"type\":\"BPE\",\"merges\":[]}", "model.vocab must be an object"},
        {"{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}", "model.vocab must be an object, not an array"},
        {"{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}", "model.vocab is empty"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":0}}", "model.merges must be an array"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":{}}",
         "model.merges must be an array, not an object"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}", "model.dropout"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"continuing_subword_prefix\":\"##\"}",
         "continuing_subword_prefix"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}", "end_of_word_suffix"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":1}", "byte_fallback"},
        {"{\"vocab\":{\"a\":-1},\"merges\":[]}", "token 'a' has no id"},
        {"{\"vocab\":{\"a\":99999999999},\"merges\":[]}", "token 'a' has no id"},
        {"{\"vocab\":{\"a\":16777216},\"merges\":[]}", "token 'a' has no id"},
        {"{\"vocab\":{\"a\":0.5},\"merges\":[]}", "token 'a' has no id"},
        {"{\"vocab\":{\"a\":\"0\"},\"merges\":[]}", "token 'a' has no id"},
        {"{\"vocab\":{\"a\":5,\"b\":5},\"merges\":[]}", "have the same id 5"},
        {"{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}", "model.merges[0] ('a' and 'b') needs a token"},
        {"{\"vocab\":{\"a\":0,\"ab\":1},\"merges\":[\"a b\"]}", "model.merges[0]"},
        {"{\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}", "model.merges[0] must be"},
        {"{\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]}", "model.merges[0] must be"},
        {"{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}", "model.merges[0] must be"},
        {"{\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]}", "model.merges[0] must be"},
        {"{\"vocab\":{\"a\":0},\"merges\":[5]}", "model.merges[0] must be"},
        {"{\"vocab\":{\"a\":0},\"merges\":[null]}", "model.merges[0] must be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(with("model", cases[i][0]), cases[i][1]);
}

static void unigram_models_are_checked(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"type\":\"Unigram\",\"vocab\":[]}", "model.vocab is empty"},
        {"{\"type\":\"Unigram\",\"vocab\":{\"a\":0}}", "model.vocab must be an array, not an object"},
        {"{\"unk_id\":2,\"vocab\":[[\"<pad>\",0.0],[\"</s>\",0.0]]}", "unk_id"},
        {"{\"unk_id\":-1,\"vocab\":[[\"<pad>\",0.0]]}", "unk_id"},
        {"{\"unk_id\":\"0\",\"vocab\":[[\"<pad>\",0.0]]}", "unk_id"},
        {"{\"vocab\":[[\"a\"]]}", "model.vocab[0] must be [\"token\", score]"},
        {"{\"vocab\":[[\"a\",1],\"b\"]}", "model.vocab[1] must be"},
        {"{\"vocab\":[[\"a\",1],[1,\"b\"]]}", "model.vocab[1] must be"},
        {"{\"vocab\":[[\"a\",1],[\"b\",1,2]]}", "model.vocab[1] must be"},
        {"{\"vocab\":[[\"a\",1e999]]}", "model.vocab[0] must be"},
        {"{\"vocab\":[[\"a\",1],[\"b\",2],[\"a\",3]]}",
         "model.vocab[0] and model.vocab[2] are the same token 'a'"},
        {"{\"vocab\":[[\"a\",1]],\"byte_fallback\":1}", "byte_fallback"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(with("model", cases[i][0]), cases[i][1]);
}

static void absurdly_long_tokens_are_refused(void **state) {
    (void)state;
    static char name[3000], value[3100];
    memset(name, 'a', sizeof name - 1);
    snprintf(value, sizeof value, "{\"vocab\":{\"%s\":0},\"merges\":[]}", name);
    check_refused(with("model", value), "is longer than 2048 bytes");
    snprintf(value, sizeof value, "{\"vocab\":[[\"%s\",0]]}", name);
    check_refused(with("model", value), "is longer than 2048 bytes");
    snprintf(value, sizeof value, "[{\"content\":\"%s\",\"id\":5}]", name);
    check_refused(with("added_tokens", value), "is longer than 1024 bytes");
}

static void added_tokens_are_checked(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{}", "added_tokens must be an array"},
        {"[5]", "added_tokens[0] has no string 'content'"},
        {"[{\"id\":3}]", "added_tokens[0] has no string 'content'"},
        {"[{\"content\":\"x\"}]", "token 'x' has no id"},
        {"[{\"content\":\"x\",\"id\":-4}]", "token 'x' has no id"},
        {"[{\"content\":\"x\",\"id\":1}]", "added token 'x' has the id 1 of token 'b'"},
        {"[{\"content\":\"a\",\"id\":7}]", "added token 'a' has id 7, but the vocabulary gives it 0"},
        {"[{\"content\":\"x\",\"id\":3},{\"content\":\"y\",\"id\":3}]", "has the id 3 of token 'x'"},
        {"[{\"content\":\"x\",\"id\":3,\"special\":\"yes\"}]", "special"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(with("added_tokens", cases[i][0]), cases[i][1]);
}

static void components_are_refused_by_name(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"normalizer", "{\"type\":\"Precompiled\"}", "precompiled_charsmap"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}", "no multiple of 4"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AA-A\"}", "byte 2 is none"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}", "cut off or empty"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAAAA==\"}",
         "cut off or empty"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAAAAAAA=\"}",
         "cut off or empty"},
        {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAD/\"}", "not UTF-8"},
        {"normalizer", "{\"type\":\"BertNormalizer\"}",
         "normalizer BertNormalizer is not supported; supported: Sequence"},
        {"normalizer", "[]", "a normalizer must be an object"},
        {"normalizer", "{\"type\":\"Sequence\"}", "'normalizers' must be an array"},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[3]}", "a normalizer must be an object"},
        {"normalizer", "{\"type\":\"Prepend\"}", "prepend"},
        {"normalizer", "{\"type\":\"Replace\",\"content\":\"x\"}", "pattern must be"},
        {"normalizer", "{\"type\":\"Replace\",\"content\":\"x\",\"pattern\":{\"String\":\"\"}}", "not empty"},
        {"normalizer", "{\"type\":\"Replace\",\"content\":\"x\",\"pattern\":{\"Regex\":\"(\"}}",
         "pattern '('"},
        {"normalizer", "{\"type\":\"Strip\",\"strip_left\":1}", "strip_left"},
        {"pre_tokenizer", "{\"type\":\"BertPreTokenizer\"}",
         "pre_tokenizer BertPreTokenizer is not supported"},
        {"pre_tokenizer", "{\"type\":\"UnicodeScripts\"}", "UnicodeScripts"},
        {"pre_tokenizer", "{\"type\":\"FixedLength\",\"length\":5}", "FixedLength is not supported"},
        {"pre_tokenizer", "{\"type\":\"CharDelimiterSplit\"}", "delimiter"},
        {"pre_tokenizer", "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"ab\"}", "one character"},
        {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", "add_prefix_space"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Sideways\"}", "behavior 'Sideways'"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"behavior\":\"Removed\",\"invert\":false,\"pattern\":{\"Regex\":\"[a&&b]\"}}",
         "an intersection of classes is not supported"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}",
         "'replacement' must be one character"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}",
         "prepend_scheme"},
        {"pre_tokenizer", "{\"type\":\"Digits\"}", "individual_digits"},
        {"post_processor", "{\"type\":\"PairProcessing\"}",
         "post_processor PairProcessing is not supported; supported: Sequence"},
        {"post_processor", "{\"type\":\"BertProcessing\"}", "'cls' has an id that is no token"},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", "sequence A once"},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}}]}",
         "'q'"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}},{\"Sequence\":{"
         "\"id\":\"A\"}}],"
         "\"special_tokens\":{\"q\":{\"ids\":[900]}}}",
         "an id that is no token"},
        {"post_processor", "{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",0]}",
         "'sep' has an id that is no token"},
        {"post_processor", "{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",900],\"sep\":[\"</s>\",1]}",
         "'cls' has an id that is no token"},
        {"post_processor",
         "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\",\"single\":["
         "{\"SpecialToken\":{\"id\":\"q\"}},{\"Sequence\":{\"id\":\"A\"}}],"
         "\"special_tokens\":{\"q\":{\"ids\":[1]}}},{\"type\":"
         "\"RobertaProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}]}",
         "RobertaProcessing after a template that adds tokens"},
        {"decoder", "{\"type\":\"WordPiece\"}", "decoder WordPiece is not supported; supported: Sequence"},
        {"decoder", "{\"type\":\"CTC\"}", "CTC"},
        {"decoder", "{\"type\":\"BPEDecoder\"}", "BPEDecoder"},
        {"decoder", "{\"type\":\"Strip\",\"content\":\"\",\"start\":1,\"stop\":0}", "one character"},
        {"decoder", "{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}", "start"},
        {"decoder", "\"ByteLevel\"", "a decoder must be an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(with(cases[i][0], cases[i][1]), cases[i][2]);
}

static void too_many_stages_are_refused(void **state) {
    (void)state;
    char value[4096];
    size_t n =
        (size_t)snprintf(value, sizeof value, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}");
    for (int i = 0; i < 40; i++)
        n += (size_t)snprintf(value + n, sizeof value - n, ",{\"type\":\"NFC\"}");
    snprintf(value + n, sizeof value - n, "]}");
    check_refused(with("normalizer", value), "more than 16 normalizers");
    n = (size_t)snprintf(value, sizeof value, "{\"type\":\"Sequence\",\"processors\":[");
    for (int i = 0; i < 17; i++)
        n += (size_t)snprintf(value + n, sizeof value - n,
                              "%s{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}",
                              i ? "," : "");
    snprintf(value + n, sizeof value - n, "]}");
    check_refused(with("post_processor", value), "more than 16 post-processors");
}

static void other_documents_are_refused(void **state) {
    (void)state;
    struct ot_tokenizer *t;
    check_refused("", "");
    check_refused("[]", "not a tokenizer.json");
    check_refused("{}", "'model' must be an object");
    check_refused("{\"version\":\"2.0\"}", "version '2.0'");
    check_refused("{\"model_type\":\"llama\"}", "'model' must be an object");
    check_fails(ot_tokenizer_open("/nonexistent/tokenizer.json", &t), OT_E_IO, "/nonexistent/tokenizer.json");
    char deep[4000];
    memset(deep, '[', sizeof deep);
    assert_int_equal(open_text(deep, sizeof deep), -OT_E_INPUT);
}

/* Every prefix of a file, and the file with each byte changed, is read or refused. The sanitizers watch. */
static void truncated_and_changed_files_do_no_harm(void **state) {
    (void)state;
    char good[4096];
    snprintf(good, sizeof good, "%s",
             with("pre_tokenizer",
                  "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                  "\"[a-c]+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
                  "\"add_prefix_space\":true}]}"));
    size_t n = strlen(good);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(open_text(good, i), -OT_E_INPUT);
    for (size_t i = 0; i < n; i++) {
        char kept = good[i];
        for (size_t k = 0; k < 2; k++) {
            good[i] = "\"]"[k];
            int rc = open_text(good, n);
            assert_true(rc == 0 || rc == -OT_E_INPUT);
        }
        good[i] = kept;
    }
}

static void patterns_are_translated_or_refused(void **state) {
    (void)state;
    static const char *const refused[] = {
        "[a",   "\\",    "[[:alpha:]]", "[a[^b]]",   "(?<n>a)", "(?#c)", "\\1",   "\\k<n>",
        "\\G",  "[\\W]", "x{1,2}+",     "\\pL",      "\\p{}",   "\\p{L", "\\u12", "(*ACCEPT)",
        "[]a]", "[^]a]", "[a&&b]",      "\\p{Nope}", "(",       "\\X"};
    char *out;
    check_ok(ot_regex_translate("[^(\\s|[.,]])]+", 14, "here", &out));
    assert_non_null(strstr(out, "[^(\\x09"));
    assert_non_null(strstr(out, "|\\.,])]+"));
    free(out);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct ot_regex *regex = NULL;
        int rc = ot_regex_open(refused[i], strlen(refused[i]), "here", &regex);
        if (rc != -OT_E_INPUT || !strstr(ot_error_text(), "here: pattern '"))
            fail_msg("%s: returned %d, \"%s\"", refused[i], rc, ot_error_text());
    }
    struct ot_regex *regex;
    check_fails(ot_regex_open("a\0b", 3, "here", &regex), OT_E_INPUT, "NUL");
}

/* The matches of Hugging Face's tokenizers (Split). An option without a group of its own reaches over the
 * alternatives to the end of the group around it. */
static void groups_match_as_in_hugging_face(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text, *matches;
    } cases[] = {
        {"(?i)b|c", "xB zC c", "B,C,c,"},
        {"x(?i)b|c", "xB zC c xbC xc Xb", "xB,xb,xc,"},
        {"y|(?i)b|c", "yY B C", "y,B,C,"},
        {"(?:x(?i)b|c)d|e", "xBd XBd xcD xCd e E", "xBd,xCd,e,"},
        {"x(?i)b(?-i)c|d", "xBc xbC xBd", "xBc,xBd,"},
        {"(x(?i)b)c|d", "xBc xBC d D", "xBc,d,"},
        {"a(?im)B.", "ab\n AB aBx", "ab\n,aBx,"},
        {"(?m:a.)b", "a\nb axb", "a\nb,axb,"},
        {"(?<=a)b", "ab bb", "b,"},
        {"(?<!a)b", "ab bb", "b,b,"},
        {"a(?=b)", "ab aa", "a,"},
        {"a(?!b)", "ab aa", "a,a,"},
        {"(?>a|ab)c", "abc ac", "ac,"},
    };
    struct ot_regex_scratch *scratch;
    check_ok(ot_regex_scratch_open(&scratch));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_regex *regex;
        char matches[64] = "";
        size_t n = strlen(cases[i].text), used = 0, begin, end;
        check_ok(ot_regex_open(cases[i].pattern, strlen(cases[i].pattern), "here", &regex));
        for (size_t at = 0; ot_regex_match(regex, scratch, cases[i].text, n, at, &begin, &end) == 1; at = end)
            used += (size_t)snprintf(matches + used, sizeof matches - used, "%.*s,", (int)(end - begin),
                                     cases[i].text + begin);
        if (strcmp(matches, cases[i].matches) != 0)
            fail_msg("%s: the matches are %s, wanted %s", cases[i].pattern, matches, cases[i].matches);
        ot_regex_close(regex);
    }
    ot_regex_scratch_close(scratch);
    struct ot_regex *regex;
    check_fails(ot_regex_open("x(?i)b)c", 8, "here", &regex), OT_E_INPUT, "here: pattern '");
    check_fails(ot_regex_open("(x(?i)b", 7, "here", &regex), OT_E_INPUT, "here: pattern '");
}

static void endless_backtracking_is_an_error(void **state) {
    (void)state;
    struct ot_regex *regex;
    struct ot_regex_scratch *scratch;
    char text[64];
    size_t begin, end;
    memset(text, 'a', sizeof text);
    check_ok(ot_regex_open("(?:(?:a+)+)+[bc]", 16, "here", &regex));
    check_ok(ot_regex_scratch_open(&scratch));
    check_fails(ot_regex_match(regex, scratch, text, sizeof text, 0, &begin, &end), OT_E_INPUT,
                "cannot match");
    ot_regex_scratch_close(scratch);
    ot_regex_close(regex);
}

/* A choice for every character: more than the stack of the compiled matcher holds, and more memory than the
 * interpreter may use. */
static void endless_memory_is_an_error(void **state) {
    (void)state;
    struct ot_regex *regex;
    struct ot_regex_scratch *scratch;
    enum { BYTES = 1 << 20 };
    size_t begin, end;
    char *text = malloc(BYTES);
    assert_non_null(text);
    memset(text, 'a', BYTES);
    check_ok(ot_regex_open("(?:a|b)+", 8, "here", &regex));
    check_ok(ot_regex_scratch_open(&scratch));
    check_fails(ot_regex_match(regex, scratch, text, BYTES, 0, &begin, &end), OT_E_INPUT, "heap limit");
    ot_regex_scratch_close(scratch);
    ot_regex_close(regex);
    free(text);
}

/* Opens a file that is well-formed; only texts show what it does. */
static struct ot_tokenizer *open_with(const char *part, const char *value) {
    struct ot_tokenizer *t;
    char path[600];
    const char *text = with(part, value);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_file(folder, "tokenizer.json", text, strlen(text));
    check_ok(ot_tokenizer_open(path, &t));
    return t;
}

/* Replacements by "a" of Hugging Face's tokenizers. A pattern may match nothing, also at the end of the text,
 * but not where its last match has ended. */
static void empty_matches_are_replaced(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text, *normal;
    } cases[] = {{"$", "b", "ba"},
                 {"^", "b", "ab"},
                 {"a*", "ba", "aba"},
                 {"b|$", "ab", "aa"},
                 {"(?=b)|$", "ab", "aaba"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char value[200];
        struct ot_token_list got = {0}, want = {0};
        snprintf(value, sizeof value,
                 "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"%s\"},\"content\":\"a\"}", cases[i].pattern);
        struct ot_tokenizer *t = open_with("normalizer", value), *plain = open_with("", "");
        check_ok(ot_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), 0, &got));
        check_ok(ot_tokenizer_encode(plain, cases[i].normal, strlen(cases[i].normal), 0, &want));
        if (got.n != want.n || memcmp(got.ids, want.ids, got.n * sizeof *got.ids) != 0)
            fail_msg("%s does not make '%s' of '%s'", cases[i].pattern, cases[i].normal, cases[i].text);
        ot_token_list_free(&got);
        ot_token_list_free(&want);
        ot_tokenizer_close(t);
        ot_tokenizer_close(plain);
    }
}

/* A sequence of n equal components. */
static const char *repeated(const char *list, const char *component, int n) {
    static char value[3000];
    size_t used = (size_t)snprintf(value, sizeof value, "{\"type\":\"Sequence\",\"%s\":[", list);
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(value + used, sizeof value - used, "%s%s", i ? "," : "", component);
    snprintf(value + used, sizeof value - used, "]}");
    return value;
}

/* Components that each make a text a little longer, one after another, make one character gigabytes. */
static void texts_do_not_grow_without_bound(void **state) {
    (void)state;
    static const char doubling[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaa\"}";
    struct ot_token_list list = {0};
    struct ot_tokenizer *t = open_with("normalizer", repeated("normalizers", doubling, 16));
    check_fails(ot_tokenizer_encode(t, "a", 1, 0, &list), OT_E_INPUT,
                "the tokenizer's normalizers make more than 320 bytes of a text");
    check_ok(ot_tokenizer_encode(t, "b", 1, 0, &list)); /* does not grow */
    assert_int_equal(list.n, 1);
    ot_tokenizer_close(t);
    t = open_with("normalizer", repeated("normalizers", doubling, 4)); /* 256 times */
    check_ok(ot_tokenizer_encode(t, "a", 1, 0, &list));
    assert_int_equal(list.n, 256);
    char many[64];
    memset(many, 'a', sizeof many);
    check_fails(ot_tokenizer_encode(t, many, sizeof many, 0, &list), OT_E_INPUT, "make more than 4352 bytes");
    ot_tokenizer_close(t);
    t = open_with("decoder", repeated("decoders", doubling, 16));
    char *text;
    check_fails(ot_tokenizer_decode(t, (const int32_t[]){0}, 1, false, &text, NULL), OT_E_INPUT,
                "the tokenizer's decoders make more than 320 bytes of a text");
    ot_tokenizer_close(t);
    ot_token_list_free(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_file_is_good),
        cmocka_unit_test(models_are_refused_by_name),
        cmocka_unit_test(unigram_models_are_checked),
        cmocka_unit_test(absurdly_long_tokens_are_refused),
        cmocka_unit_test(added_tokens_are_checked),
        cmocka_unit_test(components_are_refused_by_name),
        cmocka_unit_test(too_many_stages_are_refused),
        cmocka_unit_test(other_documents_are_refused),
        cmocka_unit_test(truncated_and_changed_files_do_no_harm),
        cmocka_unit_test(patterns_are_translated_or_refused),
        cmocka_unit_test(groups_match_as_in_hugging_face),
        cmocka_unit_test(endless_backtracking_is_an_error),
        cmocka_unit_test(endless_memory_is_an_error),
        cmocka_unit_test(empty_matches_are_replaced),
        cmocka_unit_test(texts_do_not_grow_without_bound),
    };
    folder = make_folder();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove_folder(folder);
    return rc;
}
