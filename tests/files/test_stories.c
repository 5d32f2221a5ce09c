/* Two small published models from end to end: files, tokenizer, engine. Losses at every position and greedy
 * continuations must equal those of double precision (read from ../shared/data/models; skipped if absent). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "offload/engine/engine.h"
#include "offload/plan/plan_search.h"
#include "src/base/json.h"
#include "src/files/model_dir.h"
#include "src/tokenizer/tokenizer.h"
#include "tests/support/check.h"

enum { MOST_TOKENS = 256 };

struct story {
    struct ot_model_dir *dir;
    struct ot_model *model;
    struct ot_device *device;
    struct ot_engine *engine;
    struct ot_plan plan;
};

static int set_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    return ot_engine_set(context, OT_SLAB_MASTER, slab, first, n, values);
}

static void open_story(struct story *s, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "models/%s", name);
    skip_without_shared(path);
    check_ok(ot_model_dir_open(shared_path(path), &s->dir));
    check_ok(ot_model_open(&ot_model_dir_facts(s->dir)->config, OT_F32, MOST_TOKENS, &s->model));
    struct ot_device_config device = {.kind = "cpu", .memory_bytes = (size_t)64 << 20, .threads = 1};
    check_ok(ot_device_open(&device, &s->device));
    struct ot_plan_request request = {.chain = ot_model_chain(s->model),
                                      .budget_bytes = {(size_t)32 << 20, (size_t)32 << 20},
                                      .sequence_tokens = MOST_TOKENS,
                                      .step_sequences = 1,
                                      .weights = OT_HOME_HOST,
                                      .state = OT_HOME_AUTO,
                                      .activations = OT_HOME_AUTO,
                                      .keep = OT_KEEP_CHOSEN,
                                      .kept = OT_HOME_AUTO,
                                      .cache_rows = MOST_TOKENS};
    check_ok(ot_plan_make(&request, &s->plan));
    struct ot_engine_config engine = {
        .chain = request.chain, .device = s->device, .plan = &s->plan, .optimizer_threads = 1};
    check_ok(ot_engine_open(&engine, &s->engine));
    check_ok(ot_model_dir_load(s->dir, s->model, NULL, set_values, s->engine));
}

static void close_story(struct story *s) {
    ot_engine_close(s->engine);
    ot_plan_free(&s->plan);
    ot_device_close(s->device);
    ot_model_close(s->model);
    ot_model_dir_close(s->dir);
}

static int64_t read_ids(const struct ot_json *array, int32_t *ids) {
    size_t n = ot_json_length(array);
    assert_true(n > 0 && n < MOST_TOKENS);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)ot_json_int(ot_json_at(array, i), -1);
    return (int64_t)n;
}

/* Losses of ids[1..], each given the tokens before it. The project's bound is 1e-4. */
static void check_losses(struct story *s, const int32_t *ids, int64_t n, const struct ot_json *want) {
    int32_t targets[MOST_TOKENS], position[MOST_TOKENS], row_start[MOST_TOKENS] = {0};
    float losses[MOST_TOKENS];
    assert_int_equal(ot_json_length(want), n - 1);
    for (int64_t i = 0; i < n - 1; i++) {
        targets[i] = ids[i + 1];
        position[i] = (int32_t)i;
    }
    struct ot_micro_batch micro = {
        .n_tokens = n - 1, .tokens = ids, .targets = targets, .position = position, .row_start = row_start};
    check_ok(ot_engine_eval(s->engine, &micro, losses));
    for (int64_t i = 0; i < n - 1; i++) {
        double expected = ot_json_real(ot_json_at(want, (size_t)i), NAN);
        if (!(fabs((double)losses[i] - expected) < 1e-4))
            fail_msg("position %lld: loss %.7f, expected %.7f", (long long)i, (double)losses[i], expected);
    }
}

static int32_t largest(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

static void check_greedy(struct story *s, const int32_t *prompt, int64_t n_prompt, const int32_t *want,
                         int64_t n, const struct ot_json *first_logits) {
    int64_t vocab = ot_model_get_config(s->model)->vocab;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    assert_non_null(logits);
    check_ok(ot_engine_decode_begin(s->engine, n_prompt + n));
    check_ok(ot_engine_decode(s->engine, prompt, n_prompt, logits));
    for (size_t i = 0; i < ot_json_length(first_logits);
         i++) /* logits of magnitude 10: fp32 through the layers keeps 1e-4 */
        assert_true(fabs((double)logits[i] - ot_json_real(ot_json_at(first_logits, i), NAN)) < 1e-4);
    for (int64_t i = 0; i < n; i++) {
        int32_t id = largest(logits, vocab);
        assert_int_equal(id, want[i]);
        if (i + 1 < n)
            check_ok(ot_engine_decode(s->engine, &id, 1, logits));
    }
    ot_engine_decode_end(s->engine);
    free(logits);
}

static struct ot_json *read_json(const struct story *s, const char *name) {
    char path[1024];
    struct ot_json *root;
    snprintf(path, sizeof path, "%s/%s", ot_model_dir_path(s->dir), name);
    check_ok(ot_json_read_file(path, (size_t)1 << 24, &root));
    return root;
}

static void stories260k(void **state) {
    (void)state;
    struct story s = {0};
    int32_t ids[MOST_TOKENS];
    open_story(&s, "stories260k");
    struct ot_json *root = read_json(&s, "expected.json");
    int64_t n = read_ids(ot_json_get(root, "greedy_from_bos_ids"), ids);
    check_losses(&s, ids, n, ot_json_get(ot_json_get(root, "loss_over_those_ids"), "per_position"));
    check_greedy(&s, ids, 1, ids + 1, n - 1, NULL);
    ot_json_free(root);
    close_story(&s);
}

static void check_tokens(const struct story *s, const struct ot_json *text, const int32_t *ids, int64_t n) {
    struct ot_tokenizer *tokenizer;
    struct ot_token_list list = {0};
    size_t bytes;
    const char *words = ot_json_string(text, &bytes);
    check_ok(ot_tokenizer_open(ot_model_dir_facts(s->dir)->tokenizer_path, &tokenizer));
    check_ok(ot_tokenizer_encode(tokenizer, words, bytes, OT_TOKENIZER_ADD_SPECIAL, &list));
    assert_int_equal(list.n, n);
    assert_memory_equal(list.ids, ids, (size_t)n * sizeof *ids);
    ot_token_list_free(&list);
    ot_tokenizer_close(tokenizer);
}

static void story_llama(void **state) {
    (void)state;
    struct story s = {0};
    open_story(&s, "story-llama");
    struct ot_json *root = read_json(&s, "golden.json"), *cases = ot_json_get(root, "cases");
    assert_true(ot_json_length(cases) > 0);
    for (size_t c = 0; c < ot_json_length(cases); c++) {
        const struct ot_json *one = ot_json_at(cases, c);
        int32_t ids[MOST_TOKENS], greedy[MOST_TOKENS];
        int64_t n = read_ids(ot_json_get(one, "ids"), ids);
        int64_t n_greedy = read_ids(ot_json_get(one, "greedy_ids"), greedy);
        check_tokens(&s, ot_json_get(one, "text"), ids, n);
        check_losses(&s, ids, n, ot_json_get(one, "loss_per_position"));
        check_greedy(&s, ids, n, greedy, n_greedy, ot_json_get(one, "last_logits_first16"));
    }
    ot_json_free(root);
    close_story(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(stories260k), cmocka_unit_test(story_llama)};
    skip_without_shared("models");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
