/* Rows that say what this program cannot do are refused by name, and rows that Python wrote are read: lists
 * of turns as prompt and completion, NaN, halves of surrogate pairs. Trained tokens are [in brackets]. */
#include <stdio.h>
#include <string.h>

#include "tests/data/data_support.h"

static void check_text(struct data_fixture *f, const char *row, const char *want) {
    struct ot_dataset *d = load_text(f, row);
    assert_string_equal(row_text(d, 0), want);
    ot_dataset_close(d);
}

static void check_error(struct data_fixture *f, const char *row, const char *words) {
    struct ot_dataset *d;
    put_text(f, row);
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, words);
}

#define TURN(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define TALK             "{\"messages\": [" TURN("user", "u") ", " TURN("assistant", "a") "]"
#define TALK_TEXT        "<256><|user|>\nu<257>\n<|assistant|>\n[a<257>]"

/* A row whose answer is not to be learned never trains. */
static void test_unlearned(void **state) {
    struct data_fixture *f = *state;
    static const char *const rows[] = {"{\"prompt\": \"p\", \"completion\": \"c\"",
                                       "{\"question\": \"q\", \"context\": \"c\", \"answer\": \"a\"",
                                       "{\"instruction\": \"i\", \"output\": \"o\"", TALK};
    static const struct {
        const char *member, *words;
    } refused[] = {{"\"label\": false", "key 'label' is false"},
                   {"\"loss\": false", "key 'loss' is false"},
                   {"\"train\": false", "key 'train' is false"},
                   {"\"weight\": 0", "key 'weight' is 0"},
                   {"\"weight\": 0.0", "key 'weight' is 0"}};
    static const char *const taken[] = {"\"label\": true", "\"label\": null", "\"label\": \"no\"",
                                        "\"label\": 0",    "\"weight\": 1",   "\"loss\": 0.5"};
    char row[512];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < sizeof refused / sizeof *refused; k++) {
            snprintf(row, sizeof row, "%s}\n%s, %s}\n", rows[i], rows[i], refused[k].member);
            check_error(f, row, refused[k].words);
            check_error(f, row, "data.jsonl:2: ");
        }
        for (size_t k = 0; k < sizeof taken / sizeof *taken; k++) {
            snprintf(row, sizeof row, "%s, %s}\n", rows[i], taken[k]);
            ot_dataset_close(load_text(f, row));
        }
    }
    check_text(f, "{\"text\": \"ab\", \"label\": false}", "<256>[ab<257>]"); /* a class */
    check_error(f, "{\"text\": \"ab\", \"loss\": false}", "key 'loss' is false");
    f->config.prompt_format = "{label}:";
    check_error(f, "{\"label\": false, \"answer\": \"a\"}", "key 'label' must be a string");
}

/* A turn with "loss": false is context, as one with "train": false or the weight 0. */
static void test_unlearned_turns(void **state) {
    struct data_fixture *f = *state;
    f->config.seq_len = 256;
    static const char *const members[] = {"\"loss\": false", "\"train\": false", "\"weight\": 0"};
    char row[512];
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        snprintf(
            row, sizeof row,
            "{\"messages\": [" TURN("user", "u") ", {\"role\": \"assistant\", \"content\": \"a\", %s}, " TURN(
                "user", "v") ", " TURN("assistant", "b") "]}",
            members[i]);
        check_text(f, row,
                   "<256><|user|>\nu<257>\n<|assistant|>\na<257>\n<|user|>\nv<257>\n<|assistant|>\n[b<257>]");
    }
    check_error(f, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"loss\": 0}]}",
                "key 'loss' of a turn must be true or false");
    check_error(f, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"loss\": true}]}",
                "only assistant turns can train");
}

static void test_preferences(void **state) {
    struct data_fixture *f = *state;
    check_error(f, "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"r\"}",
                "data.jsonl:1: key 'chosen' makes this a row of preferences");
    check_error(f, "{\"chosen\": [" TURN("user", "u") "], \"rejected\": []}", "messages=chosen");
    check_error(f, "{\"prompt\": \"p\", \"completion\": \"c\", \"rejected\": \"r\"}", "key 'rejected'");
    check_error(f, TALK ", \"rejected_response\": \"r\"}", "key 'rejected_response'");
    check_error(f, TALK ", \"rejected_messages\": [" TURN("user", "u") "]}", "key 'rejected_messages'");
    check_text(f, TALK ", \"chosen\": null, \"rejected\": []}", TALK_TEXT);
    /* The second row may be the first of preferences. */
    check_error(f, TALK "}\n" TALK ", \"rejected\": \"r\"}\n", "data.jsonl:2: key 'rejected'");
    /* The cure that the error names. */
    f->config.columns = "completion=chosen";
    check_text(f, "{\"prompt\": \"p:\", \"chosen\": \"c\", \"rejected\": \"r\"}", "<256>p:[c<257>]");
    f->config.columns = "messages=chosen";
    check_text(f, "{\"chosen\": [" TURN("user", "u") ", " TURN("assistant", "a") "], \"rejected\": [5]}",
               TALK_TEXT);
}

/* TRL's prompt and completion as lists of turns. Only the completion trains. */
static void test_lists_of_turns(void **state) {
    struct data_fixture *f = *state;
    f->config.seq_len = 256;
    check_text(f, "{\"prompt\": [" TURN("user", "u") "], \"completion\": [" TURN("assistant", "a") "]}",
               TALK_TEXT);
    check_text(f,
               "{\"prompt\": [" TURN("user", "u") ", " TURN("assistant", "a") ", " TURN(
                   "user", "v") "], \"completion\": [" TURN("assistant", "b") "]}",
               "<256><|user|>\nu<257>\n<|assistant|>\na<257>\n<|user|>\nv<257>\n<|assistant|>\n[b<257>]");
    check_error(f, "{\"prompt\": [" TURN("user", "u") "], \"completion\": [" TURN("user", "a") "]}",
                "key 'completion' may have assistant turns alone");
    check_error(f, "{\"prompt\": \"u\", \"completion\": [" TURN("assistant", "a") "]}",
                "key 'completion' must be a string, not an array");
    check_error(f,
                "{\"prompt\": [" TURN("user", "u") "], \"completion\": [" TURN(
                    "assistant", "a") "]}\n"
                                      "{\"prompt\": \"u\", \"completion\": \"a\"}",
                "data.jsonl:2: key 'prompt' must be an array of turns");
    check_error(f,
                "{\"prompt\": [" TURN("user", "u") "], \"completion\": [" TURN(
                    "assistant", "a") "]}\n"
                                      "{\"prompt\": [" TURN("user", "u") "], \"completion\": \"a\"}",
                "data.jsonl:2: key 'completion' must be an array of turns");
}

/* Python writes NaN and halves of surrogate pairs. Where they are not used, they change nothing. */
static void test_python(void **state) {
    struct data_fixture *f = *state;
    static const char *const numbers[] = {"NaN", "Infinity", "-Infinity"};
    char row[256];
    for (int i = 0; i < 3; i++) {
        snprintf(row, sizeof row, "{\"prompt\": \"p:\", \"completion\": \"c\", \"x\": [%s, {\"y\": %s}]}",
                 numbers[i], numbers[i]);
        check_text(f, row, "<256>p:[c<257>]");
        snprintf(row, sizeof row, "{\"prompt\": \"p:\", \"completion\": %s}", numbers[i]);
        check_error(f, row, "key 'completion' has NaN or Infinity");
        snprintf(row, sizeof row, "{\"instruction\": \"p:\", \"input\": %s, \"output\": \"c\"}", numbers[i]);
        check_error(f, row, "key 'input' has NaN or Infinity");
    }
    check_text(f,
               "{\"messages\": [{\"role\": \"user\", \"content\": \"u\", \"rank\": NaN}, " TURN("assistant",
                                                                                                "a") "]}",
               TALK_TEXT);
    check_error(f, "{\"text\": Nan}", "NaN and Infinity are not JSON");
    check_error(f, "{\"text\": -Inf}", "NaN and Infinity are not JSON");
    check_error(f, "{\"prompt\": \"p\", \"completion\": \"a \\ud83d b\"}",
                "data.jsonl:1: key 'completion' has half of a surrogate pair");
    check_error(f, "{\"messages\": [" TURN("user", "\\ude00") ", " TURN("assistant", "a") "]}",
                "key 'messages' has half of a surrogate pair");
    check_error(f, "{\"text\": \"\\ud83d\\ud83d\\ude00\"}", "half of a surrogate pair");
    check_error(f, "{\"text\": \"a\", \"\\ud83d\": 1}", "half of a surrogate pair in a key");
    check_text(f, "{\"text\": \"a\", \"x\": \"\\ud83d\"}", "<256>[a<257>]");
    check_error(f, "{\"instruction\": \"i\", \"input\": 5, \"output\": \"o\"}",
                "key 'input' must be a string");
    /* Skipped and counted. */
    f->config.skip_bad = true;
    struct ot_dataset *d = load_text(f, "{\"text\": \"\\ud83d\"}\n{\"text\": \"a\"}\n");
    assert_int_equal(ot_dataset_stats(d)->bad, 1);
    assert_int_equal(ot_dataset_stats(d)->kept, 1);
    ot_dataset_close(d);
}

/* The same in JSON that is a text in the row. */
static void test_inner_json(void **state) {
    struct data_fixture *f = *state;
    check_error(f, TALK ", \"tools\": \"[{\\\"name\\\": \\\"\\\\ud83d\\\"}]\"}",
                "key 'tools' has half of a surrogate pair");
    check_error(f, TALK ", \"tools\": \"[{\\\"name\\\": NaN}]\"}", "key 'tools' has NaN");
}

int main(void) {
#define row_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        row_test(test_unlearned),      row_test(test_unlearned_turns), row_test(test_preferences),
        row_test(test_lists_of_turns), row_test(test_python),          row_test(test_inner_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
