#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/checkpoint/record.h"
#include "tests/support/damage.h"

static struct ot_json *parse(const char *text) {
    struct ot_json *root;
    check_ok(ot_json_parse(text, strlen(text), "doc", &root));
    return root;
}

/* A record in which every field has a different value. */
static struct ot_checkpoint_record sample(void) {
    return (struct ot_checkpoint_record){
        .progress = {.step = 120,
                     .adam_step = 117,
                     .loss_scale = 32768.0f,
                     .scaled_steps = 60,
                     .losses = {2.0 / 3, 1e-3 / 7, 119}},
        .position = {.epoch = 2, .sequence = 31},
        .steps = 500,
        .tokens = INT64_C(7864320123),
        .seconds = 0.1 + 0.2,
        .log_bytes = 4711,
        .evals = {.metric = OT_EVAL_ACCURACY,
                  .has_any = true,
                  .last_step = 100,
                  .best_step = 80,
                  .first = {1.0 / 3.0, 0},
                  .last = {0x1.fffffffffffffp-1, 1.0 / 7},
                  .best = {5e-324, 1, 0.25, 2.0 / 3},
                  .without_gain = 2},
        .result_step = 80,
        .phase = {.lr_first = 110, .rows_first = 115, .rows_at = {4, 12}, .evals_first = 99},
        .data = {.rows = 77, .tokens = 9001, .trained_tokens = 4000, .crc = 0xfffffffeu},
        .eval_data = {.rows = 3, .tokens = 200, .trained_tokens = 200, .crc = 1},
        .has_base = true,
        .base_sample = 0xfedcba98u,
        .has_frozen = true,
        .frozen_crc = 0x89abcdefu,
        .library = "0.1.0",
        .device = "NVIDIA \"H100\" é",
        .arithmetic = "avx2 kernels, a library 1.2",
        .made = "2026-11-21T09:30:00Z",
    };
}

static void check_same(const struct ot_checkpoint_record *a, const struct ot_checkpoint_record *b) {
    assert_int_equal(a->progress.step, b->progress.step);
    assert_int_equal(a->progress.adam_step, b->progress.adam_step);
    assert_memory_equal(&a->progress.loss_scale, &b->progress.loss_scale, sizeof(float));
    assert_int_equal(a->progress.scaled_steps, b->progress.scaled_steps);
    assert_memory_equal(&a->progress.losses, &b->progress.losses, sizeof a->progress.losses);
    assert_int_equal(a->position.epoch, b->position.epoch);
    assert_int_equal(a->position.sequence, b->position.sequence);
    assert_int_equal(a->steps, b->steps);
    assert_int_equal(a->tokens, b->tokens);
    assert_memory_equal(&a->seconds, &b->seconds, sizeof(double));
    assert_int_equal(a->log_bytes, b->log_bytes);
    assert_int_equal(a->evals.metric, b->evals.metric);
    assert_int_equal(a->evals.has_any, b->evals.has_any);
    assert_int_equal(a->evals.last_step, b->evals.last_step);
    assert_int_equal(a->evals.best_step, b->evals.best_step);
    assert_memory_equal(&a->evals.first, &b->evals.first, sizeof a->evals.first);
    assert_memory_equal(&a->evals.last, &b->evals.last, sizeof a->evals.last);
    assert_memory_equal(&a->evals.best, &b->evals.best, sizeof a->evals.best);
    assert_int_equal(a->evals.without_gain, b->evals.without_gain);
    assert_int_equal(a->result_step, b->result_step);
    assert_memory_equal(&a->phase, &b->phase, sizeof a->phase);
    assert_memory_equal(&a->data, &b->data, sizeof a->data);
    assert_memory_equal(&a->eval_data, &b->eval_data, sizeof a->eval_data);
    assert_int_equal(a->has_base, b->has_base);
    assert_int_equal(a->base_sample, b->base_sample);
    assert_int_equal(a->has_frozen, b->has_frozen);
    assert_int_equal(a->frozen_crc, b->frozen_crc);
    assert_string_equal(a->library, b->library);
    assert_string_equal(a->device, b->device);
    assert_string_equal(a->arithmetic, b->arithmetic);
    assert_string_equal(a->made, b->made);
}

static void round_trip(const struct ot_checkpoint_record *record, struct ot_checkpoint_record *out) {
    char *text;
    size_t bytes;
    check_ok(ot_checkpoint_record_encode(record, &text, &bytes));
    check_ok(ot_checkpoint_record_decode(text, bytes, "checkpoint.json", out));
    free(text);
}

static void test_what_was_written_is_read(void **state) {
    (void)state;
    struct ot_checkpoint_record record = sample(), read;
    struct ot_json *options = parse("{\"lr\": 0.1, \"steps\": 500, \"nvme\": [\"/mnt/a\"]}");
    struct ot_json *sources = parse("{\"lr\": \"config\"}");
    struct ot_json *history = parse("[{\"step\": 110, \"changes\": {\"lr\": [\"1\", \"2\"]}}]");
    struct ot_json *model = parse("{\"model_type\": \"llama\", \"rope_theta\": 10000.0}");
    record.options = options;
    record.sources = sources;
    record.model = model;
    record.history = history;
    round_trip(&record, &read);
    check_same(&record, &read);
    assert_true(ot_json_real(ot_json_get(read.options, "lr"), 0) == 0.1);
    assert_int_equal(ot_json_int(ot_json_get(read.options, "steps"), 0), 500);
    assert_string_equal(ot_json_string(ot_json_at(ot_json_get(read.options, "nvme"), 0), NULL), "/mnt/a");
    assert_int_equal(ot_json_type(ot_json_get(read.model, "rope_theta")), OT_JSON_REAL);
    assert_string_equal(ot_json_string(ot_json_get(read.sources, "lr"), NULL), "config");
    assert_int_equal(ot_json_int(ot_json_get(ot_json_at(read.history, 0), "step"), 0), 110);
    ot_checkpoint_record_free(&read);
    assert_null(read.tree);
    record.sources = NULL; /* the record of an earlier version */
    round_trip(&record, &read);
    assert_null(read.sources);
    ot_checkpoint_record_free(&read);
    ot_json_free(options);
    ot_json_free(history);
    ot_json_free(sources);
    ot_json_free(model);
}

/* Reals of every exponent, both signs and every length of fraction. */
static void test_reals_keep_their_bits(void **state) {
    (void)state;
    struct ot_checkpoint_record record = sample(), read;
    for (uint64_t i = 1; i <= 3000; i++) {
        uint64_t bits = i * 0x9e3779b97f4a7c15u;
        memcpy(&record.evals.last.loss, &bits, sizeof bits);
        if (!isfinite(record.evals.last.loss))
            continue;
        record.seconds = fabs(record.evals.last.loss);
        record.progress.loss_scale = ldexpf(1.0f, (int)(i % 250) - 125);
        round_trip(&record, &read);
        check_same(&record, &read);
        ot_checkpoint_record_free(&read);
    }
    record.evals.last.loss = -0.0;
    round_trip(&record, &read);
    assert_true(signbit(read.evals.last.loss));
    ot_checkpoint_record_free(&read);
}

static void test_without_evaluation_or_with_one_that_is_not_finite(void **state) {
    (void)state;
    struct ot_checkpoint_record record = sample(), read;
    record.evals.last.loss = INFINITY;
    record.evals.best.loss = NAN;
    round_trip(&record, &read);
    assert_true(isnan(read.evals.last.loss) && isnan(read.evals.best.loss) &&
                read.evals.first.loss == record.evals.first.loss);
    ot_checkpoint_record_free(&read);
    record.evals.has_any = false;
    round_trip(&record, &read);
    assert_false(read.evals.has_any);
    ot_checkpoint_record_free(&read);
}

/* Replaces one value of a good record by another; the record must be refused. */
static void check_refused(const char *old, const char *new, const char *words) {
    struct ot_checkpoint_record record = sample(), read;
    char *text, changed[4096];
    size_t bytes;
    check_ok(ot_checkpoint_record_encode(&record, &text, &bytes));
    char *at = strstr(text, old);
    assert_non_null(at);
    int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    assert_true(n > 0 && (size_t)n < sizeof changed);
    check_fails(ot_checkpoint_record_decode(changed, (size_t)n, "c.json", &read), OT_E_INPUT, words);
    assert_non_null(strstr(ot_error_text(), "c.json: "));
    assert_null(read.tree);
    free(text);
}

static void test_bounds(void **state) {
    (void)state;
    check_refused("\"step\": 120", "\"step\": -1", "'step' is -1");
    check_refused("\"step\": 120", "\"step\": 9007199254740993", "'step'");
    check_refused("\"step\": 120", "\"step\": 120.5", "'step'");
    check_refused("\"adam_step\": 117", "\"adam_step\": 121", "'adam_step' is 121");
    check_refused("\"scaled_steps\": 60", "\"scaled_steps\": 1000", "'scaled_steps'");
    check_refused("\"losses\": 119", "\"losses\": 121", "'losses'");
    check_refused("\"loss_variance\": ", "\"loss_variance\": -", "'loss_variance'");
    check_refused("32768.0", "0", "'loss_scale'");
    check_refused("32768.0", "1e39", "'loss_scale'");
    check_refused("32768.0", "null", "'loss_scale' is missing");
    check_refused("\"sequence\": 31", "\"other\": 31", "'sequence' is missing");
    check_refused("\"crc\": 4294967294", "\"crc\": 4294967296", "'crc'");
    check_refused("\"trained_tokens\": 4000", "\"trained_tokens\": 9002", "'trained_tokens'");
    check_refused("\"seconds\": 0.3", "\"seconds\": -0.3", "'seconds'");
    check_refused("\"last_step\": 100", "\"last_step\": \"x\"", "'last_step'");
    check_refused("\"metric\": \"accuracy\"", "\"metric\": \"bleu\"", "unknown metric 'bleu'");
    check_refused("\"best_accuracy\": 1.0", "\"best_accuracy\": 1.5", "'best_accuracy'");
    check_refused("\"without_gain\": 2", "\"without_gain\": -2", "'without_gain'");
    check_refused("\"result_step\": 80", "\"result_step\": 121", "'result_step' is 121");
    check_refused("\"lr_first\": 110", "\"lr_first\": 121", "'lr_first' is 121");
    check_refused("\"rows_first\": 115", "\"rows_first\": 121", "'rows_first' is 121");
    check_refused("\"evals_first\": 99", "\"evals_first\": 121", "'evals_first' is 121");
    check_refused("\"rows_epoch\": 4", "\"rows_epoch\": -1", "'rows_epoch' is -1");
    check_refused("\"rows_sequence\": 12", "\"rows_sequence\": -1", "'rows_sequence' is -1");
    check_refused("\"options\": {}", "\"options\": {}, \"history\": {}",
                  "'history' is an object, not an array");
    check_refused("\"eval\": {", "\"eval\": 1, \"else\": {", "'eval' is an integer");
    check_refused("\"options\": {}", "\"options\": []", "'options' is an array, not an object");
    check_refused("\"options\": {}", "\"options\": null", "'options' is missing");
    check_refused("\"model\": {}", "\"other\": {}", "'model' is missing");
    check_refused("2026-11-21T09:30:00Z", "2026-11-21T09:30:00.0000000000000Z",
                  "'made' has 34 bytes, at most 31 are");
    check_refused("\"format\": 1", "\"format\": 0", "'format' is 0");
    check_refused("\"format\": 1", "\"format\": 2", "format 2, written by offload-train 0.1.0, but this is");
    check_refused("{\n", "[{\n", "");
}

/* In a new run nothing has been counted yet. */
static void test_counts_may_be_zero(void **state) {
    (void)state;
    struct ot_checkpoint_record record = {.progress = {.loss_scale = 1.0f}, .evals = {.has_any = true}}, read;
    round_trip(&record, &read);
    check_same(&record, &read);
    ot_checkpoint_record_free(&read);
}

/* Each key in turn gets another name: a missing key is never read as 0. */
static void test_keys_are_needed(void **state) {
    (void)state;
    static const char *const optional[] = {
        "arithmetic",     "eval",        "metric",        "first_loss", "first_accuracy",  "last_loss",
        "last_accuracy",  "best_loss",   "best_accuracy", "base",       "frozen",          "without_gain",
        "result_step",    "first_match", "last_match",    "best_match", "first_execution", "last_execution",
        "best_execution", "lr_first",    "rows_first",    "rows_epoch", "rows_sequence",   "evals_first"};
    struct ot_checkpoint_record record = sample(), read;
    char *text, words[64];
    size_t bytes;
    int needed = 0, others = 0;
    check_ok(ot_checkpoint_record_encode(&record, &text, &bytes));
    for (char *end = strstr(text, "\": "); end; end = strstr(end + 1, "\": ")) {
        char *key = end;
        while (key[-1] != '"')
            key--;
        snprintf(words, sizeof words, "'%.*s' is missing", (int)(end - key), key);
        bool is_optional = false;
        for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
            is_optional = is_optional || (strlen(optional[i]) == (size_t)(end - key) &&
                                          strncmp(optional[i], key, (size_t)(end - key)) == 0);
        char was = *key;
        *key = '_';
        if (is_optional)
            check_ok(ot_checkpoint_record_decode(text, bytes, "c.json", &read));
        else
            check_fails(ot_checkpoint_record_decode(text, bytes, "c.json", &read), OT_E_INPUT, words);
        ot_checkpoint_record_free(&read);
        *key = was;
        needed += !is_optional;
        others += is_optional;
    }
    assert_true(needed > 30);
    assert_int_equal(others, sizeof optional / sizeof *optional);
    free(text);
}

static void test_unknown_keys_are_passed_over(void **state) {
    (void)state;
    static const char extra[] = "{\"later\": [1, {\"x\": null}], \"format\": 7,";
    struct ot_checkpoint_record record = sample(), read;
    char *text, changed[4096];
    size_t bytes;
    check_ok(ot_checkpoint_record_encode(&record, &text, &bytes));
    /* The last of several "format" keys counts. */
    int n = snprintf(changed, sizeof changed, "%s%s", extra, text + 1);
    check_ok(ot_checkpoint_record_decode(changed, (size_t)n, "c.json", &read));
    check_same(&record, &read);
    ot_checkpoint_record_free(&read);
    free(text);
}

static void test_control_characters_do_not_come_through(void **state) {
    (void)state;
    struct ot_checkpoint_record record = sample(), read;
    strcpy(record.device, "a\033[2Jb\nc");
    round_trip(&record, &read);
    assert_string_equal(read.device, "a [2Jb c");
    ot_checkpoint_record_free(&read);
}

static void test_other_documents(void **state) {
    (void)state;
    struct ot_checkpoint_record read;
    check_fails(ot_checkpoint_record_decode("[]", 2, "c.json", &read), OT_E_INPUT, "is an array, not an");
    check_fails(ot_checkpoint_record_decode("", 0, "c.json", &read), OT_E_INPUT, "c.json");
    char *large = calloc(1, OT_RECORD_MAX_BYTES + 1);
    check_fails(ot_checkpoint_record_decode(large, OT_RECORD_MAX_BYTES + 1, "c.json", &read), OT_E_INPUT,
                "larger than");
    free(large);
}

static void test_damage(void **state) {
    (void)state;
    struct ot_checkpoint_record record = sample(), read;
    char *text, changed[8192];
    size_t bytes;
    int refused = 0;
    check_ok(ot_checkpoint_record_encode(&record, &text, &bytes));
    for (uint64_t round = 0; round < 3000; round++) {
        struct dice dice = {.round = round};
        memcpy(changed, text, bytes);
        size_t n = damage_text(&dice, changed, bytes, sizeof changed);
        int rc = ot_checkpoint_record_decode(changed, n, "c.json", &read);
        assert_true(rc == 0 || rc == -OT_E_INPUT);
        refused += rc < 0;
        ot_checkpoint_record_free(&read);
    }
    assert_in_range(refused, 1000, 2999);
    free(text);
}

/* ---- the history of evaluations ---- */

/* What transformers' Trainer and EarlyStoppingCallback make of these numbers: patience 2, threshold 0.1. */
static void test_best_and_patience(void **state) {
    (void)state;
    static const struct {
        double loss, accuracy;
        bool is_best;
        int without_gain;
    } by_loss[] = {{3, 0.5, true, 0},    {3.5, 0.6, false, 1},  {2.95, 0.6, true, 2}, /* too small a gain */
                   {2.86, 0.6, true, 3}, /* small again, for it is compared with 2.95 */
                   {2.75, 0.6, true, 0}, {2.75, 0.7, false, 1}, {2.66, 0.6, true, 2}},
      by_accuracy[] = {
          {3, 0.5, true, 0}, {2, 0.5, false, 1}, {9, 0.55, true, 2}, {9, 0.75, true, 0}, {1, 0.25, false, 1}};
    for (int metric = OT_EVAL_LOSS; metric < OT_EVAL_METRICS; metric++) {
        struct ot_eval_history h = {.metric = (enum ot_eval_metric)metric};
        size_t n = metric == OT_EVAL_LOSS ? sizeof by_loss / sizeof *by_loss
                                          : sizeof by_accuracy / sizeof *by_accuracy;
        assert_true(isnan(ot_eval_history_cost(&h, 0)) && !ot_eval_history_stops(&h, 0, 1));
        /* The base is better than all, and counts for nothing. */
        assert_true(ot_eval_history_add(&h, 0, &(struct ot_eval_score){0.5, 1, 1, 1}, 0.1));
        for (size_t i = 0; i < n; i++) {
            struct ot_eval_score score = {by_loss[i].loss, by_loss[i].accuracy, 0.5, NAN};
            double *const shares[OT_EVAL_METRICS] = {NULL, &score.accuracy, &score.match, &score.execution};
            if (metric != OT_EVAL_LOSS) {
                score.loss = by_accuracy[i].loss;
                *shares[metric] = by_accuracy[i].accuracy;
            }
            bool is_best = metric == OT_EVAL_LOSS ? by_loss[i].is_best : by_accuracy[i].is_best;
            int waits = metric == OT_EVAL_LOSS ? by_loss[i].without_gain : by_accuracy[i].without_gain;
            int64_t step = 10 * ((int64_t)i + 1);
            assert_int_equal(ot_eval_history_add(&h, step, &score, 0.1), is_best);
            assert_int_equal(h.without_gain, waits);
            assert_int_equal(h.last_step, step);
            assert_int_equal(h.best_step == step, is_best);
            assert_true(ot_eval_history_cost(&h, step) ==
                        (metric == OT_EVAL_LOSS ? score.loss : -by_accuracy[i].accuracy));
            assert_true(isnan(ot_eval_history_cost(&h, step - 1)));
            assert_int_equal(ot_eval_history_stops(&h, step, 2), waits >= 2);
            assert_int_equal(ot_eval_history_stops(&h, step, 1), waits >= 1);
            assert_false(ot_eval_history_stops(&h, step, 0) || ot_eval_history_stops(&h, step + 1, 2));
        }
        assert_true(h.first.loss == 0.5 && h.best.loss == (metric == OT_EVAL_LOSS ? 2.66 : 9));
    }
    char text[OT_EVAL_TEXT_BYTES];
    assert_string_equal(ot_eval_cost_text(OT_EVAL_LOSS, 1.23456, text), "eval 1.2346");
    assert_string_equal(ot_eval_cost_text(OT_EVAL_ACCURACY, -0.87654, text), "accuracy 87.65 %");
    assert_string_equal(ot_eval_cost_text(OT_EVAL_MATCH, -0.5, text), "match 50.00 %");
    assert_string_equal(ot_eval_cost_text(OT_EVAL_EXECUTION, -1, text), "execution 100.00 %");
    /* A checkpoint of an older version knows no accuracy: any evaluation is better. */
    struct ot_eval_history old = {
        .metric = OT_EVAL_ACCURACY, .has_any = true, .best_step = 10, .best = {1, NAN, NAN, NAN}};
    assert_true(ot_eval_history_add(&old, 20, &(struct ot_eval_score){2, 0, NAN, NAN}, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_written_is_read),
        cmocka_unit_test(test_reals_keep_their_bits),
        cmocka_unit_test(test_without_evaluation_or_with_one_that_is_not_finite),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_counts_may_be_zero),
        cmocka_unit_test(test_keys_are_needed),
        cmocka_unit_test(test_best_and_patience),
        cmocka_unit_test(test_unknown_keys_are_passed_over),
        cmocka_unit_test(test_control_characters_do_not_come_through),
        cmocka_unit_test(test_other_documents),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
