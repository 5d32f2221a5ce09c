/* Whole runs of the program on the emulated device. A run takes the memory that its plan says; its steps
 * allocate nothing and never wait for a copy; a GPU that is lost during the run ends it with one sentence and
 * leaves the saved checkpoints alone; a run tunes the device if that pays. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/log.h"
#include "src/cli/command.h"
#include "tests/emu/emu_faults.h"
#include "tests/fakes/fake_cublaslt.h"

enum { ROWS = 40, MOST_WORDS = 40, PATH_BYTES = 512 };

struct place {
    char *folder;
    char data[PATH_BYTES], out[PATH_BYTES];
};

static int set_up(void **state) {
    struct place *place = calloc(1, sizeof *place);
    char rows[ROWS * 64];
    int n = 0;
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1); /* the commands of the checks would be counted */
    ot_emu_reset();
    place->folder = make_folder();
    snprintf(place->data, sizeof place->data, "%s/rows.jsonl", place->folder);
    snprintf(place->out, sizeof place->out, "%s/out", place->folder);
    for (int i = 0; i < ROWS; i++)
        n += snprintf(rows + n, sizeof rows - (size_t)n,
                      "{\"prompt\": \"%d + 1 = \", \"completion\": \"%d\"}\n", i, i + 1);
    write_file(place->folder, "rows.jsonl", rows, (size_t)n);
    *state = place;
    return 0;
}

static int tear_down(void **state) {
    struct place *place = *state;
    struct ot_emu_usage usage = ot_emu_usage();
    remove_folder(place->folder);
    free(place);
    return usage.streams + usage.events + usage.allocations + usage.registered;
}

/* Trains the smallest model, without a forecast, because the forecast's own use of the device must not be
 * counted. lengths: of a sequence and a step, in tokens. `more`: options after the common ones. */
static int train_lengths(const struct place *place, const char *steps, const char *lengths,
                         const char *more) {
    char text[256];
    char *words[MOST_WORDS] = {
        "--model", "tiny-test",         "--init", "random",           "--device", "cuda",
        "--data",  (char *)place->data, "--out",  (char *)place->out, "--steps",  (char *)steps};
    int n = 12;
    snprintf(text, sizeof text, "%s --eval-fraction 0 --quiet --no-forecast --resume never %s", lengths,
             more);
    for (char *rest = text, *word; (word = strsep(&rest, " "));)
        if (*word)
            words[n++] = word;
    struct ot_options options;
    int rc = ot_options_parse(n, words, &options);
    if (rc == 0)
        rc = ot_command_train(&options);
    ot_options_free(&options);
    return rc;
}

static int train(const struct place *place, const char *steps, const char *more) {
    return train_lengths(place, steps, "--seq-len 32 --tokens-per-step 64", more);
}

/* Reads a whole file of the result. The caller frees it. */
static char *read_result(const struct place *place, const char *name, size_t *bytes) {
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", place->out, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s does not exist", path);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *content = malloc(*bytes + 1);
    assert_non_null(content);
    assert_int_equal(fread(content, 1, *bytes, file), *bytes);
    content[*bytes] = '\0';
    fclose(file);
    return content;
}

static double log_number(const struct place *place, const char *key) {
    size_t bytes;
    char *log = read_result(place, "log.jsonl", &bytes), *last = NULL;
    for (char *at = log; (at = strstr(at, key)); at++)
        last = at;
    assert_non_null(last);
    double value = strtod(last + strlen(key), NULL);
    free(log);
    return value;
}

static void test_uses_what_the_plan_says(void **state) {
    struct place *place = *state;
    check_ok(train(place, "3", "--gpu-mem 128M"));
    double planned = log_number(place, "\"gpu_planned_bytes\":");
    assert_true(planned > 64e6 && planned == log_number(place, "\"gpu_used_bytes\":"));
    assert_true(log_number(place, "\"host_planned_bytes\":") == log_number(place, "\"host_used_bytes\":"));
    size_t bytes;
    char *record = read_result(place, "run.json", &bytes);
    assert_non_null(strstr(record, "\"cuda:0\""));
    assert_non_null(strstr(record, "\"bf16\"")); /* `auto` on a GPU means bf16 */
    free(record);
}

/* More steps make more launches and copies, but no more copies that the host waits for. The guard's checks,
 * which only the first run makes, are off. */
static void test_steps_do_not_wait(void **state) {
    struct place *place = *state;
    static const char *const steps[] = {"2", "6"};
    struct ot_emu_usage usage[2];
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
    for (int i = 0; i < 2; i++) {
        ot_emu_reset();
        check_ok(train(place, steps[i], "--home host"));
        usage[i] = ot_emu_usage();
    }
    unsetenv("OFFLOAD_TRAIN_KERNEL_CHECKS");
    assert_true(usage[1].launches > usage[0].launches && usage[1].copies > usage[0].copies);
    assert_int_equal(usage[1].pageable_copies, usage[0].pageable_copies);
    /* Host threads sleep and do not spin. */
    assert_int_equal(usage[1].spinning_waits, usage[0].spinning_waits);
}

/* The bits are the same in every tier, in every file of the result. */
static void test_offloaded_equals_resident(void **state) {
    struct place *place = *state;
    size_t bytes[2];
    char *weights[2];
    static const char *const homes[] = {"--home gpu --micro-batch 1",
                                        "--home host --slots 1 --micro-batch 1"};
    for (int i = 0; i < 2; i++) {
        check_ok(train(place, "4", homes[i]));
        weights[i] = read_result(place, "model.safetensors", &bytes[i]);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(weights[0], weights[1], bytes[0]);
    free(weights[0]);
    free(weights[1]);
}

/* Trains while the library proposes NARROW first and then `second`, which is faster. The choices are saved in
 * the folder `cache`. */
static void train_tuned(const struct place *place, const char *steps, int second, const char *cache) {
    const int order[OT_FAKE_ALGOS] = {OT_FAKE_NARROW, second, -1, -1, -1};
    setenv("XDG_CACHE_HOME", cache, 1);
    ot_emu_reset();
    ot_fake_cublaslt_reset();
    memcpy(ot_fake_cublaslt.order, order, sizeof order);
    /* Longer than a busy machine delays the other algorithm. */
    ot_fake_cublaslt.delay_us[OT_FAKE_NARROW] = 1000;
    check_ok(train(place, steps, ""));
}

/* A long run tunes the device (only products into fp32: the others are too small here to prove a choice). It
 * saves its choices for the next run, and has the bits of a run without tuning. A short run does not tune. */
static void test_tunes_where_it_pays(void **state) {
    struct place *place = *state;
    size_t bytes[2];
    char *weights[2], cache[PATH_BYTES];
    for (int i = 0; i < 2; i++) {
        snprintf(cache, sizeof cache, "%s/cache%d", place->folder, i);
        train_tuned(place, "22", i == 0 ? -1 : OT_FAKE_TALL, cache);
        weights[i] = read_result(place, "model.safetensors", &bytes[i]);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(weights[0], weights[1], bytes[0]);
    train_tuned(place, "2", OT_FAKE_TALL, cache);
    assert_true(ot_fake_cublaslt.runs[OT_FAKE_TALL] > 0);
    assert_int_equal(ot_fake_cublaslt.heuristics, 0);
    snprintf(cache, sizeof cache, "%s/none", place->folder);
    train_tuned(place, "21", OT_FAKE_TALL, cache);
    assert_int_equal(ot_fake_cublaslt.runs[OT_FAKE_TALL], 0);
    assert_int_not_equal(access(cache, F_OK), 0);
    ot_fake_cublaslt_reset();
    free(weights[0]);
    free(weights[1]);
}

/* An epoch of 40 rows makes 9 packed sequences of 225 to 256 tokens. All have one shape on the device, which
 * the first step meets. */
static void test_a_packed_epoch_has_one_shape(void **state) {
    struct place *place = *state;
    static const char *const steps[] = {"1", "9"};
    char rows[ROWS * 160];
    int n = 0, heuristics[2];
    for (int i = 0; i < ROWS; i++)
        n += snprintf(rows + n, sizeof rows - (size_t)n, "{\"prompt\": \"%0*d\", \"completion\": \"%d\"}\n",
                      40 + i * 7 % 23, i, i);
    write_file(place->folder, "rows.jsonl", rows, (size_t)n);
    for (int i = 0; i < 2; i++) {
        ot_fake_cublaslt_reset();
        check_ok(train_lengths(place, steps[i], "--seq-len 256 --tokens-per-step 256", "--micro-batch 1"));
        heuristics[i] = ot_fake_cublaslt.heuristics;
    }
    assert_true(heuristics[0] > 0);
    assert_int_equal(heuristics[1], heuristics[0]);
}

static void test_gpu_is_lost(void **state) {
    struct place *place = *state;
    size_t bytes, bytes_after;
    check_ok(train(place, "2", ""));
    struct ot_emu_usage usage = ot_emu_usage();
    char *weights = read_result(place, "model.safetensors", &bytes);
    ot_emu_reset();
    ot_emu_lose_gpu((int)(usage.launches + usage.copies),
                    cudaErrorUnknown); /* fails in the middle of the steps */
    check_fails(train(place, "6", ""), OT_E_DEVICE, "CUDA: the GPU stopped answering (unknown error) in '");
    char *after = read_result(place, "model.safetensors", &bytes_after);
    assert_int_equal(bytes, bytes_after);
    assert_memory_equal(weights, after, bytes);
    free(weights);
    free(after);
    ot_emu_reset();
    check_ok(train(place, "2", "")); /* the next run works */
}

static void test_does_not_fit(void **state) {
    struct place *place = *state;
    check_fails(train(place, "2", "--gpu-mem 65600K"), OT_E_BUDGET, "gpu");
    check_fails(train(place, "2", "--gpu-mem 8M"), OT_E_BUDGET,
                "the kernels' workspace alone takes 64.0 MiB");
}

/* A budget larger than the memory is tried: the run takes the memory that its plan needs. */
static void test_more_than_there_is(void **state) {
    struct place *place = *state;
    check_ok(train(place, "2", "--gpu-mem 3G --host-mem 900T"));
}

/* `auto` takes the GPU. If the GPU cannot be used, it takes the cpu device and says so. */
static void test_auto(void **state) {
    struct place *place = *state;
    struct ot_emu_card none = ot_emu_default_card(), old = none;
    none.n_devices = 0;
    old.compute_capability = 70;
    const struct ot_emu_card *const cards[] = {NULL, &none, &old};
    static const char *const used[] = {"\"cuda:0\"", "\"cpu\"", "\"cpu\""};
    for (int i = 0; i < 3; i++) {
        ot_emu_reset();
        if (cards[i])
            ot_emu_set_card(cards[i]);
        char *words[] = {
            "--model",  "tiny-test", "--init", "random",       "--data", place->data,         "--out",
            place->out, "--steps",   "1",      "--seq-len",    "32",     "--tokens-per-step", "64",
            "--quiet",  "--resume",  "never",  "--no-forecast"};
        struct ot_options options;
        check_ok(ot_options_parse(sizeof words / sizeof *words, words, &options));
        check_ok(ot_command_train(&options));
        ot_options_free(&options);
        size_t bytes;
        char *record = read_result(place, "run.json", &bytes);
        assert_non_null(strstr(record, used[i]));
        free(record);
    }
}

int main(void) {
    ot_log_set_level(OT_LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_uses_what_the_plan_says, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_steps_do_not_wait, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_offloaded_equals_resident, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tunes_where_it_pays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_packed_epoch_has_one_shape, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_gpu_is_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_does_not_fit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_more_than_there_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_auto, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
