/* Conversations through a whole load: the template that they get, and that {bos} and {eos} of a template
 * become the tokens themselves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "tests/data/data_support.h"

#define CHAT                                                                                                 \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": "      \
    "\"a\"}]}"
#define PAIR "{\"prompt\": \"u\", \"completion\": \"a\"}"

/* ---- special tokens in templates ---- */

/* A tokenizer like Llama 2's. It normalises special tokens before it searches for them, so it finds "</s>"
 * only after a space. */
static const char normalizing[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    "{\"id\": 0, \"content\": \"<unk>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
    "\"normalized\": true, \"special\": true},"
    "{\"id\": 1, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
    "\"normalized\": true, \"special\": true},"
    "{\"id\": 2, \"content\": \"</s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
    "\"normalized\": true, \"special\": true}],"
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": "
    "\"\\u2581\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": "
    "\"\\u2581\"}]},\"pre_tokenizer\": null, \"post_processor\": null, \"decoder\": null,\"model\": "
    "{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": \"<unk>\", \"continuing_subword_prefix\": null, "
    "\"end_of_word_suffix\": null, \"fuse_unk\": true, \"byte_fallback\": false, \"vocab\": {\"<unk>\": 0, "
    "\"<s>\": 1, \"</s>\": 2, \"\\u2581\": 3, \"a\": 4, \"b\": 5, \"[\": 6, \"]\": 7, \"/\": 8, \"I\": 9, "
    "\"N\": 10, \"S\": 11, \"T\": 12, \"<\": 13, \"s\": 14, \">\": 15, \"\\u2581a\": 16, \"\\u2581b\": 17, "
    "\"\\u2581[\": 18, \"\\n\": 19}, \"merges\": [\"\\u2581 a\", \"\\u2581 b\", \"\\u2581 [\"]}}";

static void use_tokenizer(struct data_fixture *f, const char *json) {
    char path[512];
    write_file(f->folder, "tokenizer.json", json, strlen(json));
    snprintf(path, sizeof path, "%s/tokenizer.json", f->folder);
    ot_tokenizer_close(f->tokenizer);
    f->tokenizer = NULL;
    check_ok(ot_tokenizer_open(path, &f->tokenizer));
    f->config.tokenizer = f->tokenizer;
}

static void check_ids(struct data_fixture *f, const char *template, const char *row, const int32_t *want,
                      int64_t n) {
    f->config.chat.named = template;
    struct ot_dataset *d = load_text(f, row);
    struct ot_row first = ot_dataset_row(d, 0);
    for (int64_t i = 0; i < n && i < first.n; i++)
        assert_int_equal(ot_token_id(first.tokens[i]), want[i]);
    assert_int_equal(first.n, n);
    assert_true(ot_token_trained(first.tokens[n - 1])); /* the end of the answer */
    ot_dataset_close(d);
}

/* The ids are those of `tokenizers` 0.23 for the same texts, if the special tokens are not normalised. */
static void test_marks_are_tokens(void **state) {
    struct data_fixture *f = *state;
    static const char two[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
        "\"content\": \"b\"}, {\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
        "\"assistant\", \"content\": \"b\"}]}";
    static const char one[] = "{\"prompt\": \"a\", \"completion\": \"b\"}";
    static const int32_t mistral[] = {1, 18, 9, 10, 11, 12, 7, 16, 18, 8, 9, 10, 11, 12, 7, 17, 2};
    static const int32_t llama_2[] = {1, 18, 9, 10, 11, 12, 7, 16, 18, 8, 9, 10, 11, 12, 7, 17, 3, 2,
                                      1, 18, 9, 10, 11, 12, 7, 16, 18, 8, 9, 10, 11, 12, 7, 17, 3, 2};
    use_tokenizer(f, normalizing);
    f->config.specials = (struct ot_special_tokens){.bos_id = 1, .add_bos = true, .n_eos = 1, .eos_ids = {2}};
    check_ids(f, "mistral", one, mistral, 17);
    check_ids(f, "llama-2", two, llama_2, 36);
    /* The template's special tokens follow text directly, or stand before a line end. */
    f->config.chat.named = "zephyr";
    struct ot_dataset *d = load_text(f, one);
    struct ot_row row = ot_dataset_row(d, 0);
    int marks = 0;
    for (int64_t i = 0; i < row.n; i++)
        marks += ot_token_id(row.tokens[i]) == 2;
    assert_int_equal(marks, 2);
    assert_int_equal(ot_token_id(row.tokens[row.n - 1]), 2);
    ot_dataset_close(d);
}

/* ---- which template is used ---- */

static void check_choice(struct data_fixture *f, struct ot_template_choice choice, const char *row,
                         const char *name, enum ot_template_source source) {
    f->config.chat = choice;
    struct ot_dataset *d = load_text(f, row);
    const struct ot_data_stats *stats = ot_dataset_stats(d);
    assert_int_equal(stats->template_source, source);
    if (name)
        assert_string_equal(stats->template_name, name);
    else
        assert_null(stats->template_name);
    ot_dataset_close(d);
}

static void check_refused(struct data_fixture *f, struct ot_template_choice choice, const char *row, int code,
                          const char *words) {
    struct ot_dataset *d;
    f->config.chat = choice;
    put_text(f, row);
    check_fails(ot_dataset_open(&f->config, &d), code, words);
}

/* A model's own template: the Jinja text that this program writes for a built-in template. */
static struct ot_chat_renderer *open_named(const char *name) {
    struct ot_chat_renderer *own;
    char *jinja;
    size_t bytes;
    check_ok(ot_chat_template_write(ot_chat_template_find(name), false, &jinja, &bytes));
    check_ok(ot_chat_renderer_open(jinja, bytes, "the template", NULL, &own));
    free(jinja);
    return own;
}

static void test_who_decides(void **state) {
    struct data_fixture *f = *state;
    struct ot_chat_renderer *own = open_named("qwen2.5");
    struct ot_template_choice all = {.named = "chatml", .recorded = "llama-2", .of_model = own};
    struct ot_template_choice run = {.recorded = "llama-2", .of_model = own}, model = {.of_model = own},
                              none = {0};
    f->config.seq_len = 512;
    check_choice(f, all, CHAT, "chatml", OT_TEMPLATE_NAMED);
    check_choice(f, run, CHAT, "llama-2", OT_TEMPLATE_RECORDED);
    check_choice(f, model, CHAT, "qwen2.5", OT_TEMPLATE_OWN);
    check_choice(f, all, PAIR, "chatml", OT_TEMPLATE_NAMED);
    check_choice(f, run, PAIR, "llama-2", OT_TEMPLATE_RECORDED);
    check_choice(f, model, PAIR, NULL,
                 OT_TEMPLATE_NONE); /* a pair is no conversation unless the user names a template */
    check_choice(f, run, "{\"text\": \"ab\"}", NULL, OT_TEMPLATE_NONE);
    check_choice(f, model, "{\"instruction\": \"i\", \"output\": \"o\"}", "alpaca", OT_TEMPLATE_BY_KIND);
    check_choice(f, none, "{\"instruction\": \"i\", \"output\": \"o\"}", "alpaca", OT_TEMPLATE_BY_KIND);
    check_refused(f, all, "{\"text\": \"ab\"}", OT_E_USAGE, "no turns, so leave out --template chatml");
    check_refused(f, (struct ot_template_choice){.recorded = "new"}, CHAT, OT_E_INPUT, "run.json");
    ot_chat_renderer_close(own);
}

/* If neither the user nor the model chooses a template, the conversation is refused. */
static void test_nobody_decides(void **state) {
    struct data_fixture *f = *state;
    check_refused(f, (struct ot_template_choice){0}, CHAT, OT_E_USAGE,
                  "no chat template; choose one with --template");
    struct ot_chat_renderer *own;
    check_ok(ot_chat_renderer_open("{% include 'x' %}", 17, "the template", NULL, &own));
    check_refused(f, (struct ot_template_choice){.of_model = own}, CHAT, OT_E_USAGE,
                  "the model's chat template cannot be used: the template, line 1: {% include %} is "
                  "not supported in chat templates");
    ot_chat_renderer_close(own);
}

/* A tokenizer with a template's own token, which takes the place of its start token. */
static void test_tokens_decide(void **state) {
    struct data_fixture *f = *state;
    struct ot_string_builder text = {0};
    const char *at = normalizing, *found;
    for (; (found = strstr(at, "\"<s>\"")); at = found + strlen("\"<s>\"")) {
        ot_string_append(&text, at, (size_t)(found - at));
        ot_string_append_text(&text, "\"<|im_end|>\"");
    }
    ot_string_append_text(&text, at);
    use_tokenizer(f, text.text);
    free(text.text);
    f->config.specials = (struct ot_special_tokens){.bos_id = -1, .n_eos = 1, .eos_ids = {2}};
    f->config.seq_len = 512;
    check_choice(f, (struct ot_template_choice){0}, CHAT, "chatml", OT_TEMPLATE_GUESSED);
    struct ot_chat_renderer *own = open_named("qwen3");
    check_choice(f, (struct ot_template_choice){.of_model = own}, CHAT, "qwen3", OT_TEMPLATE_OWN);
    ot_chat_renderer_close(own);
}

int main(void) {
#define row_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        row_test(test_marks_are_tokens),
        row_test(test_who_decides),
        row_test(test_nobody_decides),
        row_test(test_tokens_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
