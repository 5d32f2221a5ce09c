/* Every kind of row, through a whole load: the text that it becomes and the tokens that train ([in brackets];
 * BOS 256, EOS 257). Also the errors for bad rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/data/data_support.h"

/* Loads one row and compares its text. */
static void check_row(struct data_fixture *f, const char *row, const char *want) {
    struct ot_dataset *d = load_text(f, row);
    assert_int_equal(ot_dataset_rows(d), 1);
    assert_string_equal(row_text(d, 0), want);
    struct ot_row first = ot_dataset_row(d, 0);
    int64_t trained = 0;
    for (int64_t i = 0; i < first.n; i++)
        trained += ot_token_trained(first.tokens[i]);
    assert_int_equal(first.trained, trained);
    assert_int_equal(ot_dataset_stats(d)->trained_tokens, trained);
    ot_dataset_close(d);
}

static void check_refused(struct data_fixture *f, const char *text, int code, const char *words) {
    struct ot_dataset *d;
    put_text(f, text);
    check_fails(ot_dataset_open(&f->config, &d), code, words);
    assert_null(d);
}

static void test_kinds(void **state) {
    struct data_fixture *f = *state;
    f->config.seq_len = 4096;
    check_row(f, "{\"text\": \"ab\"}", "<256>[ab<257>]");
    check_row(f, "{\"prompt\": \"p:\", \"completion\": \"c\"}", "<256>p:[c<257>]");
    check_row(f, "{\"prompt\": \"p:\", \"response\": \"r\", \"text\": \"ignored\"}", "<256>p:[r<257>]");
    check_row(f, "{\"question\": \"q?\", \"context\": \"T\", \"answer\": \"A\"}", "<256>T\n-- q?\n[A<257>]");
    check_row(f,
              "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
              "\"content\": \"a\"}]}",
              "<256><|user|>\nu<257>\n<|assistant|>\n[a<257>]");
    check_row(f,
              "{\"conversations\": [{\"from\": \"human\", \"value\": \"u\"}, {\"from\": \"gpt\", \"value\": "
              "\"a\"}, {\"from\": \"human\", \"value\": \"v\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}",
              "<256><|user|>\nu<257>\n<|assistant|>\n[a<257>]\n<|user|>\nv<257>\n<|assistant|>\n[b<257>]");
    static const char *const users[] = {"user", "human"};
    static const char *const models[] = {"assistant", "gpt", "chatgpt", "model"};
    for (int i = 0; i < 8; i++) {
        char row[200];
        snprintf(row, sizeof row,
                 "{\"conversations\": [{\"from\": \"%s\", \"value\": \"u\"}, "
                 "{\"from\": \"%s\", \"value\": \"a\"}]}",
                 users[i % 2], models[i / 2]);
        check_row(f, row, "<256><|user|>\nu<257>\n<|assistant|>\n[a<257>]");
    }
    check_row(f, "{\"instruction\": \"i\", \"input\": \"\", \"output\": \"o\"}",
              "<256>Below is an instruction that describes a task. Write a response that appropriately "
              "completes the request.\n\n### Instruction:\ni\n\n### Response:[o<257>]");
    check_row(f, "{\"instruction\": \"i\", \"input\": \"j\", \"output\": \"o\"}",
              "<256>Below is an instruction that describes a task, paired with an input that provides "
              "further context. "
              "Write a response that appropriately completes the request.\n\n### Instruction:\ni\n\n### "
              "Input:\nj\n\n"
              "### Response:[o<257>]");
}

#define CALL "{\"role\": \"assistant\", \"content\": \"a\", "
#define HEAD "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, "

/* Keys of a row beside its turns become turns too, or the row is refused by an error that names the key. */
static void test_nothing_is_lost(void **state) {
    struct data_fixture *f = *state;
    static const struct {
        const char *row, *words;
    } refused[] =
        {
            {HEAD CALL "\"tool_calls\": [{\"id\": \"1\"}]}]}",
             "data.jsonl:1: the built-in chat template zephyr has no place for key 'tool_calls'; use"},
            {HEAD "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{}]}]}", "key 'tool_calls'"},
            {HEAD CALL "\"function_call\": {\"name\": \"f\"}}]}", "key 'function_call'"},
            {HEAD CALL "\"reasoning_content\": \"hm\"}]}", "key 'reasoning_content'"},
            {HEAD CALL "\"x\": 1}], \"tools\": [{\"name\": \"f\"}]}",
             "the built-in chat template zephyr has no place for key 'tools'"},
            {HEAD CALL "\"x\": 1}], \"tools\": \"[{}]\"}", "key 'tools'"},
            {HEAD CALL "\"x\": 1}], \"tools\": 5}", "key 'tools' must be a list of tools"},
            {HEAD CALL "\"x\": 1}], \"functions\": [{}]}", "no place for key 'functions'"},
            {HEAD CALL "\"thinking\": \"hm\"}]}", "no place for key 'thinking'"},
            {HEAD CALL "\"weight\": 0.5}]}", "the weight of a turn must be 0 or 1"},
            {HEAD CALL "\"train\": 1}]}", "key 'train' of a turn must be true or false"},
            {HEAD "{\"role\": \"user\", \"content\": \"v\", \"weight\": 1}]}",
             "only assistant turns can train"},
            {HEAD "{\"from\": \"function_call\", \"value\": \"{}\"}]}", "no place for a function_call turn"},
            {HEAD "{\"from\": \"function_call\", \"value\": \"x\"}]}", "a function_call turn must be JSON"},
            {HEAD CALL "\"x\": 1}], \"system\": 5}", "key 'system' must be a string"},
            {HEAD "{\"role\": \"ipython\", \"content\": \"a\"}]}", "no place for a turn of a tool"},
            {HEAD "{\"role\": \"bot\", \"content\": \"a\"}]}", "unknown role 'bot'"},
            {HEAD "{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
             "is of type 'text', but only parts"},
            {HEAD "{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
             "is of type 'image', but only parts"},
            {HEAD "{\"role\": \"user\", \"content\": {}}]}", "key 'content' must be a string"},
            {"{\"system\": \"s\", \"messages\": [{\"role\": \"system\", \"content\": \"t\"}]}",
             "are both system turns"},
        },
      refused_alone[] = {
          {"{\"instruction\": \"i\", \"output\": \"o\", \"history\": [[\"a\"]]}",
           "'history' must be a list of pairs"},
          {"{\"instruction\": \"i\", \"output\": \"o\", \"history\": [\"ab\"]}",
           "'history' must be a list of pairs"},
          {"{\"prompt\": \"p\", \"completion\": \"c\", \"system\": \"s\"}",
           "key 'system' cannot be part of a prompt without a template"},
          {"{\"prompt\": \"p\", \"completion\": \"c\", \"history\": [[\"a\", \"b\"]]}",
           "key 'history' cannot be part of a prompt"},
      };
    f->config.seq_len = 4096;
    f->config.chat.named = "zephyr";
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        check_refused(f, refused[i].row, OT_E_INPUT, refused[i].words);
    f->config.chat.named = NULL;
    for (size_t i = 0; i < sizeof refused_alone / sizeof *refused_alone; i++)
        check_refused(f, refused_alone[i].row, OT_E_INPUT, refused_alone[i].words);
    check_row(f, HEAD CALL "\"tool_calls\": null, \"function_call\": {}}], \"tools\": [], \"system\": \"\"}",
              "<256><|user|>\nu<257>\n<|assistant|>\n[a<257>]");
    check_row(f, HEAD CALL "\"x\": 1}], \"tools\": \"[]\", \"system\": \"s\"}",
              "<256><|system|>\ns<257>\n<|user|>\nu<257>\n<|assistant|>\n[a<257>]");
    check_row(f,
              "{\"system\": \"s\", \"conversations\": [{\"from\": \"human\", \"value\": \"u\"}, {\"from\": "
              "\"gpt\", \"value\": \"a\"}]}",
              "<256><|system|>\ns<257>\n<|user|>\nu<257>\n<|assistant|>\n[a<257>]");
    check_row(f, "{\"prompt\": \"p\", \"completion\": \"c\", \"system\": \" \", \"history\": []}",
              "<256>p[c<257>]");
    check_row(f, "{\"system\": \"s\", \"instruction\": \"i\", \"output\": \"o\"}",
              "<256>s\n\n### Instruction:\ni\n\n### Response:[o<257>]");
    f->config.chat.named = "mistral-v1";
    check_row(f,
              "{\"prompt\": \"p\", \"completion\": \"c\", \"system\": \"s\", \"history\": [[\"a\", \"b\"]]}",
              "<256> [INST] s\n\na [/INST][ b<257>] [INST] p [/INST][ c<257>]");
    check_row(f,
              "{\"instruction\": \"i\", \"input\": \"j\", \"output\": \"o\", \"history\": [[\"a\", \"\"]]}",
              "<256> [INST] a [/INST] <257> [INST] i\n\nj [/INST][ o<257>]");
}

/* The user's words at the end of a conversation cannot be learned from and are left out. */
static void test_trailing_turn(void **state) {
    check_row(*state,
              "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
              "\"content\": \"a\"}, "
              "{\"role\": \"user\", \"content\": \"bye\"}]}",
              "<256><|user|>\nu<257>\n<|assistant|>\n[a<257>]");
}

static void test_named_template(void **state) {
    struct data_fixture *f = *state;
    f->config.chat.named = "mistral"; /* the template writes the only BOS */
    check_row(f, "{\"prompt\": \"p\", \"completion\": \"c\"}", "<256>[INST] p [/INST][ c<257>]");
    check_row(f, "{\"question\": \"q?\", \"context\": \"T\", \"answer\": \"A\"}",
              "<256>[INST] T\n-- q? [/INST][ A<257>]");
    /* The template's end of turn is not this tokenizer's EOS, so EOS follows. */
    f->config.chat.named = "chatml";
    check_row(f, "{\"prompt\": \"p\", \"completion\": \"c\"}",
              "<256><|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n[c<|im_end|><257>]");
    check_refused(f, "{\"text\": \"t\"}", OT_E_USAGE, "have no turns, so leave out --template chatml");
    const char *spellings[] = {"llama3", "LLAMA-3", "llama_3.", "llama-3"};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        assert_string_equal(ot_chat_template_find(spellings[i])->name, "llama-3");
    assert_string_equal(ot_chat_template_find("qwen2_5")->name, "qwen2.5");
    assert_null(ot_chat_template_find("llama-33"));
    assert_null(ot_chat_template_find("llama"));
    assert_null(ot_chat_template_find(""));
    f->config.chat.named = "lama-2";
    check_refused(f, "{\"prompt\": \"p\", \"completion\": \"c\"}", OT_E_USAGE,
                  "unknown chat template 'lama-2'; known: llama-2, llama-3");
}

static void test_prompt_format(void **state) {
    struct data_fixture *f = *state;
    f->config.prompt_format = "{q}={context}\\n";
    check_row(f, "{\"q\": \"Q\", \"context\": \"C\", \"answer\": \"A\"}", "<256>Q=C\n[A<257>]");
    check_row(f, "{\"q\": \"Q\", \"context\": \"C\", \"output\": \"A\"}", "<256>Q=C\n[A<257>]");
    check_refused(f, "{\"q\": \"Q\", \"context\": \"C\"}", OT_E_INPUT, "the answer in a key 'answer'");
    check_refused(f, "{\"q\": \"Q\", \"answer\": \"A\"}", OT_E_INPUT, ":1: key 'context' is missing");
    /* --prompt-format and a chat template: the format makes the user's turn. */
    f->config.chat.named = "mistral";
    check_row(f, "{\"q\": \"Q\", \"context\": \"C\", \"answer\": \"A\"}", "<256>[INST] Q=C [/INST][ A<257>]");
    f->config.prompt_format = "{q";
    check_refused(f, "{\"q\": \"Q\", \"answer\": \"A\"}", OT_E_USAGE, "prompt format '{q'");
    f->config.prompt_format = "{answer}";
    check_refused(f, "{\"q\": \"Q\", \"answer\": \"A\"}", OT_E_INPUT, "renders only the prompt");
}

static void test_masking_and_eos(void **state) {
    struct data_fixture *f = *state;
    f->config.no_eos = true;
    check_row(f, "{\"prompt\": \"p:\", \"completion\": \"c\"}", "<256>p:[c]");
    check_row(f, "{\"text\": \"ab\"}", "<256>[ab]");
    f->config.no_eos = false;
    f->config.train_prompt = true;
    check_row(f, "{\"prompt\": \"p:\", \"completion\": \"c\"}", "<256>[p:c<257>]");
    f->config.specials.add_bos = false; /* no token predicts the first token */
    check_row(f, "{\"prompt\": \"p:\", \"completion\": \"c\"}", "p[:c<257>]");
    f->config.train_prompt = false;
    f->config.specials.n_eos = 0; /* a tokenizer without EOS */
    check_row(f, "{\"prompt\": \"p:\", \"completion\": \"c\"}", "p:[c]");
}

/* BOS and EOS that the template wrote are not doubled. Those in the user's own text are counted. */
static void test_specials_in_text(void **state) {
    struct data_fixture *f = *state;
    check_row(f, "{\"text\": \"<|bos|>ab<|eos|>\"}", "<256>[ab<257>]");
    f->config.chat.named = "llama-2"; /* the template itself writes BOS and EOS, so they are not counted */
    struct ot_dataset *d = load_text(f, "{\"prompt\": \"p\", \"completion\": \"c\"}\n"
                                        "{\"prompt\": \"p<|pad|>\", \"completion\": \"<|eos|>c\"}\n");
    assert_string_equal(row_text(d, 0), "<256>[INST] p [/INST][ c <257>]");
    assert_int_equal(ot_dataset_stats(d)->with_specials, 1);
    assert_int_equal(ot_dataset_stats(d)->first_special, OT_BYTE_LEVEL_PAD);
    assert_int_equal(ot_dataset_stats(d)->first_special_at.line, 2);
    ot_dataset_close(d);
}

/* UTF-8, escapes, an escaped NUL: the bytes arrive unchanged. */
static void test_text_bytes(void **state) {
    check_row(*state, "{\"text\": \"\\u00e4\\ud83d\\ude00\xc3\xa4\\n\"}",
              "<256>[\xc3\xa4\xf0\x9f\x98\x80\xc3\xa4\n<257>]");
    struct ot_dataset *d = load_text(*state, "{\"text\": \"a\\u0000b\"}");
    struct ot_row row = ot_dataset_row(d, 0);
    assert_int_equal(row.n, 5);
    assert_int_equal(ot_token_id(row.tokens[2]), 0);
    ot_dataset_close(d);
}

static void test_truncation(void **state) {
    struct data_fixture *f = *state;
    f->config.seq_len = 8;
    check_row(f, "{\"prompt\": \"12345\", \"completion\": \"c\"}", "<256>12345[c<257>]");
    check_row(f, "{\"prompt\": \"123456\", \"completion\": \"c\"}", "<256>23456[c<257>]");
    check_row(f, "{\"prompt\": \"123\", \"completion\": \"abcdef\"}", "<256>[abcdef<257>]");
    check_row(f, "{\"prompt\": \"123\", \"completion\": \"abcdefg\"}", "<256>[abcdefg]");
    check_row(f, "{\"prompt\": \"123\", \"completion\": \"abcdefghijk\"}", "<256>[abcdefg]");
    f->config.specials.add_bos = false;
    check_row(f, "{\"prompt\": \"1234567\", \"completion\": \"ab\"}", "34567[ab<257>]");
    check_row(f, "{\"prompt\": \"123\", \"completion\": \"abcdefghijk\"}", "3[abcdefg]");
    check_row(f, "{\"prompt\": \"\", \"completion\": \"abcdefghijk\"}", "a[bcdefgh]");
    struct ot_dataset *d = load_text(f, "{\"prompt\": \"12345\", \"completion\": \"c\"}\n"
                                        "{\"prompt\": \"1234567\", \"completion\": \"c\"}\n");
    assert_int_equal(ot_dataset_stats(d)->truncated, 1);
    assert_int_equal(ot_dataset_stats(d)->kept, 2);
    ot_dataset_close(d);
}

static void test_split_text(void **state) {
    struct data_fixture *f = *state;
    static const char *const want[] = {"<256>[abc]", "c[def]", "f[g<257>]", "<256>[ab<257>]"};
    f->config.seq_len = 4;
    struct ot_dataset *d = load_text(f, "{\"text\": \"abcdefg\"}\n{\"text\": \"ab\"}\n");
    assert_int_equal(ot_dataset_rows(d), 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(row_text(d, i), want[i]);
        assert_int_equal(ot_dataset_row(d, i).document, i == 3);
    }
    const struct ot_data_stats *stats = ot_dataset_stats(d);
    assert_int_equal(stats->kept, 2);
    assert_int_equal(stats->split, 1);
    assert_int_equal(stats->truncated, 0);
    assert_int_equal(stats->pieces, 4);
    assert_int_equal(stats->longest, 4);
    assert_int_equal(stats->trained_tokens, 8 + 3); /* each byte, and EOS once */
    ot_dataset_close(d);
}

/* For every length, each token after the first is a target exactly once. */
static void test_split_lengths(void **state) {
    struct data_fixture *f = *state;
    f->config.seq_len = 5;
    for (int length = 3; length < 40; length++) {
        put_lengths(f, &length, 1);
        struct ot_dataset *d = load_data(f);
        assert_int_equal(ot_dataset_stats(d)->trained_tokens, length - 1);
        for (int64_t i = 0; i < ot_dataset_rows(d); i++)
            assert_in_range(ot_dataset_row(d, i).n, 2, 5);
        ot_dataset_close(d);
    }
}

static void test_malformed(void **state) {
    struct data_fixture *f = *state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"{\"text\": \"a\"}\n{\"text\": \"b\"\n", "data.jsonl:2: "},
        {"{\"text\": \"a\"}\nnot json\n", "data.jsonl:2: "},
        {"{\"text\": \"a\"}\n[1]\n", "data.jsonl:2: a row must be an object"},
        {"{\"text\": \"a\"}\n{\"text\": 5}\n", "data.jsonl:2: key 'text' must be a string, not an integer"},
        {"{\"text\": \"a\"}\n{\"prompt\": \"p\", \"completion\": \"c\"}\n",
         "data.jsonl:2: key 'text' is missing or null (the file's rows are of kind 'text')"},
        {"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", "data.jsonl:2: "},
        {"{\"text\": \"a\"}\n{\"text\": \"\xc3\"}\n", "data.jsonl:2: "},
        {"{\"text\": \"a\"}\n{\"text\": null}\n", "data.jsonl:2: key 'text' is missing"},
        {"{\"text\": \"a\"}\n\n{\"text\": \"b\"} x\n", "data.jsonl:3: "},
        {"{\"titel\": \"a\", \"body\": \"b\"}\n",
         "data.jsonl:1: unknown kind of row: it has the keys titel, body"},
        {"{\"prompt\": \"a\", \"response\": null}\n", "has the keys prompt, response (null); accepted"},
        {"{\"messages\": \"hello\"}\n",
         "data.jsonl:1: key 'messages' must be an array of turns, but it is a string"},
        {"{\"messages\": [\"hello\"]}\n", "data.jsonl:1: a turn must be an object {...}, not a string"},
        {"{\"messages\": [{\"role\": \"bot\", \"content\": \"x\"}]}\n", "data.jsonl:1: unknown role 'bot'"},
        {"{\"messages\": [{\"role\": \"user\"}]}\n", "data.jsonl:1: key 'content' is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_refused(f, cases[i].text, OT_E_INPUT, cases[i].words);
        assert_non_null(strstr(ot_error_text(), "--skip-bad"));
    }
    static const char nul[] = "{\"text\": \"a\"}\n{\"text\": \"a\0b\"}\n";
    struct ot_dataset *d;
    put_data(f, "nul.jsonl", nul, sizeof nul - 1);
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, "nul.jsonl:2: ");
}

static void test_skip_bad(void **state) {
    struct data_fixture *f = *state;
    f->config.skip_bad = true;
    struct ot_dataset *d =
        load_text(f, "oops\n{\"other\": 1}\n{\"text\": \"a\"}\n{\"text\": 5}\n{\"text\": \"\"}\n"
                     "{\"text\": \"\xff\"}\n{\"text\": \"b\"}\n");
    const struct ot_data_stats *stats = ot_dataset_stats(d);
    assert_int_equal(stats->rows, 7);
    assert_int_equal(stats->kept, 2);
    assert_int_equal(stats->bad, 4);
    assert_int_equal(stats->first_bad.line, 1);
    assert_int_equal(stats->untrained, 1);
    assert_int_equal(stats->kind, OT_ROW_TEXT);
    assert_string_equal(row_text(d, 1), "<256>[b<257>]");
    ot_dataset_close(d);
    check_refused(f, "oops\n{\"other\": 1}\n", OT_E_INPUT, "all 2 rows are bad; the first error is: ");
    assert_non_null(strstr(ot_error_text(), "data.jsonl:1: "));
    /* The kind is known, and every row of it is bad. */
    check_refused(f, "{\"messages\": [{\"role\": \"bot\", \"content\": \"x\"}]}\n{\"messages\": [5]}\n",
                  OT_E_INPUT, "all 2 rows are bad; the first error is: ");
    assert_non_null(strstr(ot_error_text(), "data.jsonl:1: unknown role 'bot'"));
}

static void test_untrained(void **state) {
    struct data_fixture *f = *state;
    struct ot_dataset *d = load_text(f, "{\"prompt\": \"p\", \"completion\": \"\"}\n"
                                        "{\"prompt\": \"p\", \"completion\": \" \\n\"}\n"
                                        "{\"prompt\": \"p\", \"completion\": \"c\"}\n");
    assert_int_equal(ot_dataset_stats(d)->untrained, 2);
    assert_int_equal(ot_dataset_rows(d), 1);
    ot_dataset_close(d);
    check_refused(f, "{\"prompt\": \"p\", \"completion\": \"\"}\n", OT_E_INPUT, "has anything to train on");
    check_refused(f, "{\"messages\": []}\n", OT_E_INPUT, "has anything to train on");
    check_refused(f, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n", OT_E_INPUT,
                  "no assistant turn");
    check_refused(f, "[]", OT_E_INPUT, "the file has no rows");
    f->config.specials.add_bos = false;
    f->config.no_eos = true;
    check_refused(f, "{\"text\": \"a\"}\n", OT_E_INPUT,
                  "has anything to train on"); /* nothing predicts the one token */
}

static void test_vocabulary(void **state) {
    struct data_fixture *f = *state;
    f->config.vocab_size = 100;
    check_refused(f, "{\"text\": \"a\"}\n", OT_E_INPUT,
                  "BOS token has the id 256, but the model's embedding has only 100 rows");
    f->config.specials = (struct ot_special_tokens){.bos_id = -1};
    check_refused(f, "{\"text\": \"AB\"}\n{\"text\": \"AxB\"}\n", OT_E_INPUT,
                  "data.jsonl:2: token 120 ('x')");
    f->config.vocab_size = OT_BYTE_LEVEL_VOCAB;
    f->config.seq_len = 1;
    check_refused(f, "{\"text\": \"AB\"}\n", OT_E_USAGE, "--seq-len is 1,");
    f->config.seq_len = (int64_t)1 << 40;
    check_refused(f, "{\"text\": \"AB\"}\n", OT_E_USAGE, "--seq-len is 1099511627776,");
}

int main(void) {
#define row_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        row_test(test_kinds),
        row_test(test_nothing_is_lost),
        row_test(test_trailing_turn),
        row_test(test_named_template),
        row_test(test_prompt_format),
        row_test(test_masking_and_eos),
        row_test(test_specials_in_text),
        row_test(test_text_bytes),
        row_test(test_truncation),
        row_test(test_split_text),
        row_test(test_split_lengths),
        row_test(test_malformed),
        row_test(test_skip_bad),
        row_test(test_untrained),
        row_test(test_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
