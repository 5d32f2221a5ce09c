/* The grid of a bench, its Pareto front, and its result files. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/model.h"
#include "src/base/random.h"
#include "src/plan/bench_export.h"
#include "src/plan/bench_setup.h"

/* ---- the grid ---- */

static struct ot_bench_grid grid_of(struct ot_model *model, size_t gpu_bytes) {
    struct ot_bench_grid grid = {
        .plan = {.chain = ot_model_chain(model),
                 .budget_bytes = {gpu_bytes, (size_t)1 << 30},
                 .sequence_tokens = 128,
                 .train = true,
                 .clip = true,
                 .keep = OT_KEEP_CHOSEN,
                 .kept = OT_HOME_AUTO},
        .step_tokens = {2, {512, 2048}},
    };
    return grid;
}

static struct ot_model *open_model(const char *name) {
    struct ot_model *model;
    check_ok(ot_model_open(&ot_preset_find(name)->config, OT_F32, 128, &model));
    return model;
}

static void the_grid_covers_mixes_budgets_steps_and_micro_batches(void **state) {
    (void)state;
    struct ot_model *model = open_model("tiny-sql");
    struct ot_bench_grid grid = grid_of(model, (size_t)1 << 30);
    struct ot_bench_point points[OT_BENCH_MAX_POINTS], again[OT_BENCH_MAX_POINTS];
    int n, m, planned = 0, single = 0;
    check_ok(ot_bench_grid_make(&grid, points, &n));
    assert_int_equal(n, 2 * (3 + 5) + 2);
    check_ok(ot_bench_grid_make(&grid, again, &m));
    assert_int_equal(m, n);
    for (int i = 0; i < n; i++) /* field by field, because the structs have padding */
        assert_true(points[i].mix == again[i].mix && points[i].gpu_bytes == again[i].gpu_bytes &&
                    points[i].step_tokens == again[i].step_tokens &&
                    points[i].sequence_tokens == again[i].sequence_tokens &&
                    points[i].micro_sequences == again[i].micro_sequences);
    int64_t last = 0;
    for (int i = 0; i < n; i++) {
        const struct ot_bench_point *p = &points[i];
        assert_true(p->step_tokens == 512 || p->step_tokens == 2048);
        assert_true(p->step_tokens >= last || p->micro_sequences);
        last = p->step_tokens;
        assert_int_equal(p->sequence_tokens, 128);
        assert_true(p->gpu_bytes > 0 && p->gpu_bytes <= 1 << 30);
        assert_false(ot_bench_mix_needs_nvme(p->mix));
        single += p->micro_sequences == 1;
        planned += !ot_bench_mix_at(p->mix + 1);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(p, &points[j], sizeof *p);
    }
    assert_int_equal(single, 2);
    assert_int_equal(planned, 10);
    ot_model_close(model);
}

/* The smallest budget of the grid makes a plan and a slightly smaller one does not. With the largest budget
 * everything is on the device. */
static void planned_budgets_run_from_the_least_to_all_resident(void **state) {
    (void)state;
    struct ot_model *model = open_model("tiny-sql");
    struct ot_bench_grid grid = grid_of(model, (size_t)1 << 30);
    struct ot_bench_point points[OT_BENCH_MAX_POINTS];
    int n, first = 3;
    grid.step_tokens.n = 1;
    check_ok(ot_bench_grid_make(&grid, points, &n));
    struct ot_plan_request request = grid.plan;
    request.step_sequences = 4;
    request.weights = request.state = request.activations = OT_HOME_AUTO;
    for (int i = first; i < first + 5; i++) {
        struct ot_plan plan;
        assert_null(ot_bench_mix_at(points[i].mix + 1));
        assert_true(i == first || points[i].gpu_bytes > points[i - 1].gpu_bytes);
        request.budget_bytes[OT_TIER_GPU] = (size_t)points[i].gpu_bytes;
        check_ok(ot_plan_make(&request, &plan));
        int64_t elsewhere = ot_plan_count_tiles(&plan, OT_TILE_CPU);
        assert_true(i == first + 4 ? elsewhere == 0 : i > first || elsewhere > 0);
        ot_plan_free(&plan);
    }
    struct ot_plan plan;
    request.budget_bytes[OT_TIER_GPU] = (size_t)points[first].gpu_bytes / 200 * 199;
    check_fails(ot_plan_make(&request, &plan), OT_E_BUDGET, "gpu memory");
    ot_model_close(model);
}

static void what_is_given_is_the_grid(void **state) {
    (void)state;
    struct ot_model *model = open_model("tiny-sql");
    struct ot_bench_grid grid = grid_of(model, (size_t)1 << 30);
    struct ot_bench_point points[OT_BENCH_MAX_POINTS];
    int n;
    grid.gpu_bytes = (struct ot_count_list){2, {1 << 24, 1 << 25}};
    grid.micro_sequences = (struct ot_count_list){2, {1, 8}};
    grid.nvme = true;
    check_ok(ot_bench_grid_make(&grid, points, &n));
    assert_int_equal(n, 6 * 2 + 6 * 2 * 2); /* 8 sequences are more than a step of 512 tokens has */
    for (int i = 0; i < n; i++) {
        assert_true(points[i].micro_sequences == 1 || points[i].micro_sequences == 8);
        assert_true(points[i].gpu_bytes == 1 << 24 || points[i].gpu_bytes == 1 << 25);
    }
    grid.gpu_bytes = (struct ot_count_list){6, {1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20, 6 << 20}};
    check_fails(ot_bench_grid_make(&grid, points, &n), OT_E_USAGE, "more than 64 points; use fewer");
    grid.gpu_bytes.n = 1;
    grid.micro_sequences = (struct ot_count_list){1, {17}};
    check_fails(ot_bench_grid_make(&grid, points, &n), OT_E_USAGE,
                "--micro-batch is more than the 16 sequences of the largest step");
    ot_model_close(model);
}

static void named_mixes_run_alone_and_in_their_order(void **state) {
    (void)state;
    struct ot_model *model = open_model("tiny-sql");
    struct ot_bench_grid grid = grid_of(model, (size_t)1 << 30);
    struct ot_bench_point points[OT_BENCH_MAX_POINTS];
    int n;
    check_ok(ot_bench_mix_list_read("planned,state host", &grid.mixes));
    check_ok(ot_bench_grid_make(&grid, points, &n));
    assert_int_equal(n, 2 * 2); /* of two steps */
    for (int i = 0; i < n; i++) {
        assert_string_equal(ot_bench_mix_at(points[i].mix)->name, i % 2 ? "state host" : "planned");
        assert_int_equal(points[i].gpu_bytes, (size_t)1 << 30);
    }
    grid.gpu_bytes = (struct ot_count_list){2, {1 << 24, 1 << 25}};
    check_ok(ot_bench_grid_make(&grid, points, &n));
    assert_int_equal(n, 2 * 2 * 2);
    ot_model_close(model);
    check_ok(ot_bench_mix_list_read(NULL, &grid.mixes));
    assert_int_equal(grid.mixes.n, 0);
    check_fails(ot_bench_mix_list_read("planned,state", &grid.mixes), OT_E_USAGE,
                "--mix: 'state' is not a mix; use all gpu, state host,");
    check_fails(ot_bench_mix_list_read("", &grid.mixes), OT_E_USAGE, "'' is not a mix");
    check_fails(ot_bench_mix_list_read("planned,planned", &grid.mixes), OT_E_USAGE, "names 'planned' twice");
}

/* The grid has the points of a model that does not fit. When they run, they are refused with a reason. */
static void a_model_that_does_not_fit_has_a_grid_too(void **state) {
    (void)state;
    struct ot_model *model = open_model("llama-7b");
    struct ot_bench_grid grid = grid_of(model, (size_t)1 << 30);
    struct ot_bench_point points[OT_BENCH_MAX_POINTS];
    int n;
    check_ok(ot_bench_grid_make(&grid, points, &n));
    assert_int_equal(n, 2 * (3 + 1) + 2);
    ot_model_close(model);
}

/* ---- options of bench ---- */

/* The options point into the words, which are valid until the next call. */
static int parse(const char *line, struct ot_options *out) {
    static char words[512];
    char *argv[16];
    int argc = 0;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return ot_options_parse(argc, argv, out);
}

static void lists_are_read_and_recorded(void **state) {
    (void)state;
    struct ot_options o;
    char *text;
    check_ok(parse("bench m --tokens-per-step 2k,4000,8192 --gpu-mem 8G,0.5GiB --micro-batch 3", &o));
    assert_int_equal(o.step_tokens_list.n, 3);
    assert_int_equal(o.step_tokens_list.values[0], 2048);
    assert_int_equal(o.step_tokens_list.values[1], 4000);
    assert_int_equal(o.step_tokens_list.values[2], 8192);
    assert_int_equal(o.gpu_mem_list.n, 2);
    assert_int_equal(o.gpu_mem_list.values[1], 1 << 29);
    assert_int_equal(o.micro_batch_list.values[0], 3);
    assert_int_equal(o.tokens_per_step.count, 0); /* an option of train */
    assert_true(o.minutes == 5);
    struct ot_json_writer w = {.indent = -1};
    ot_options_put_json(&o, NULL, &w);
    check_ok(ot_json_writer_take(&w, &text, NULL));
    assert_non_null(strstr(text, "\"tokens-per-step\": \"2048,4000,8192\""));
    assert_non_null(strstr(text, "\"gpu-mem\": \"8589934592,536870912\""));
    free(text);
    ot_options_free(&o);
    static const char *const bad[][2] = {
        {"bench", "bench needs --model"},
        {"bench m --tokens-per-step 4k,", "up to 8 different whole numbers"},
        {"bench m --tokens-per-step ,4k", "up to 8 different whole numbers"},
        {"bench m --tokens-per-step 4k,4096", "up to 8 different whole numbers"},
        {"bench m --tokens-per-step 4k,7", "from 8 to 1000000000"},
        {"bench m --micro-batch 0", "such as 1,4"},
        {"bench m --micro-batch 1,2,3,4,5,6,7,8,9", "up to 8 different"},
        {"bench m --gpu-mem 8G,none", "up to 8 different sizes from 1M to 1024T, such as 8G,16G"},
        {"bench m --minutes 0", "must be a number from 0.01 to 10080"},
        {"bench m --minutes -5", "must be a number from 0.01"},
        {"bench m --time-per-point 0", "must be a number from 0.1"},
        {"bench m --time-per-point 61 --minutes 1", "is longer than the whole bench (--minutes 1)"},
        {"bench m --seq-len 64 --tokens-per-step 4k,32", "32 is less than one sequence (--seq-len 64)"},
        {"bench m --data d.jsonl", "--data has no effect with bench"},
        {"bench m --io-engine pool", "--io-engine has no effect without --nvme"},
        {"train --model m --data d --tokens-per-step 4k,8k", "must be a whole number from 8"},
        {"train --model m --data d --minutes 3", "--minutes has no effect with train; it belongs to bench"},
        {"generate m --tokens-per-step 4k", "it belongs to train, "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        check_fails(parse(bad[i][0], &o), OT_E_USAGE, bad[i][1]);
        ot_options_free(&o);
    }
}

/* ---- the front ---- */

static void fill_random(struct ot_bench *bench, uint64_t seed) {
    memset(bench, 0, sizeof *bench);
    bench->n = 1 + (int)ot_random_below(seed, 0, 0, OT_BENCH_MAX_POINTS);
    for (int i = 0; i < bench->n; i++) {
        struct ot_bench_result *r = &bench->results[i];
        uint64_t at = (uint64_t)i * 4;
        r->status = ot_random_below(seed, 1, at, 8) ? OT_BENCH_DONE : OT_BENCH_UNFIT;
        r->point.step_tokens = 1024 << ot_random_below(seed, 1, at + 1, 2);
        r->device_bytes = (int64_t)ot_random_below(seed, 1, at + 2, 12);
        r->step_seconds = (double)ot_random_below(seed, 1, at + 3, 12);
    }
}

/* The definition: another point is at least as good in both measures and better in one. */
static bool is_beaten(const struct ot_bench *bench, int index) {
    const struct ot_bench_result *r = &bench->results[index];
    for (int i = 0; i < bench->n; i++) {
        const struct ot_bench_result *o = &bench->results[i];
        if (o->status != OT_BENCH_DONE || o->point.step_tokens != r->point.step_tokens)
            continue;
        if ((o->device_bytes < r->device_bytes && o->step_seconds <= r->step_seconds) ||
            (o->device_bytes <= r->device_bytes && o->step_seconds < r->step_seconds))
            return true;
        if (i < index && o->device_bytes == r->device_bytes && o->step_seconds == r->step_seconds)
            return true;
    }
    return false;
}

static void the_front_is_what_nothing_beats(void **state) {
    (void)state;
    struct ot_bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    int on = 0, off = 0;
    for (uint64_t seed = 0; seed < 500; seed++) {
        fill_random(bench, seed);
        for (int i = 0; i < bench->n; i++) {
            bool want = bench->results[i].status == OT_BENCH_DONE && !is_beaten(bench, i);
            assert_int_equal(ot_bench_is_on_front(bench, i), want);
            want ? on++ : off++;
        }
    }
    assert_true(on > 500 && off > 500);
    free(bench);
}

/* ---- CSV and JSON ---- */

/* Takes one field of a CSV line, without quotes, and moves to the next one. */
static char *take_field(const char **at) {
    char *field = calloc(1, strlen(*at) + 1), *out = field;
    assert_non_null(field);
    bool quoted = **at == '"';
    *at += quoted;
    for (; **at; ++*at) {
        if (quoted && **at == '"' && *++*at != '"')
            break;
        if (!quoted && (**at == ',' || **at == '\n'))
            break;
        *out++ = **at;
    }
    assert_true(**at == ',' || **at == '\n');
    ++*at;
    return field;
}

static void check_cell(const struct ot_json *point, const char *name, const char *cell) {
    const struct ot_json *value = ot_json_get(point, name);
    switch (ot_json_type(value)) {
    case OT_JSON_NULL:
        assert_string_equal(cell, "");
        break;
    case OT_JSON_STRING:
        assert_string_equal(cell, ot_json_string(value, NULL));
        break;
    default:
        assert_true(*cell && strtod(cell, NULL) == ot_json_real(value, -1));
    }
}

static void make_results(struct ot_bench *bench) {
    *bench = (struct ot_bench){.model = "a \"model\", <b>&amp;\n", .device = "cpu", .dtype = "fp32", .n = 3};
    for (int i = 0; i < 3; i++)
        bench->results[i] = (struct ot_bench_result){
            .point = {.mix = i, .gpu_bytes = 1 << 20, .step_tokens = 1024, .sequence_tokens = 128},
            .status = OT_BENCH_DONE,
            .micro_sequences = 4,
            .micro_batches = 2,
            .steps = 7,
            .step_seconds = 0.125 * (i + 1),
            .tokens_per_second = 1024 / 0.125,
            .device_bytes = 1000000 + i,
            .predicted_seconds = i ? 0.1 : 0,
            .lanes.busy[OT_LANE_CPU] = 1.0 / 3};
    bench->results[2].status = OT_BENCH_FAILED;
    strcpy(bench->results[2].reason, "/tmp/\"a,b\": no, not 'there'");
}

static void csv_and_json_say_the_same(void **state) {
    (void)state;
    struct ot_bench *bench = calloc(1, sizeof *bench);
    struct ot_string_builder csv = {0};
    struct ot_options options;
    char *const words[] = {"bench", "m"}, *text;
    size_t bytes;
    assert_non_null(bench);
    make_results(bench);
    check_ok(ot_options_parse(2, words, &options));
    ot_bench_put_csv_header(&csv);
    for (int i = 0; i < bench->n; i++)
        ot_bench_put_csv(bench, i, &csv);
    struct ot_json_writer w = {.indent = 0};
    ot_bench_put_json(bench, &options, &w);
    check_ok(ot_json_writer_take(&w, &text, &bytes));
    struct ot_json *tree;
    check_ok(ot_json_parse(text, bytes, "bench.json", &tree));
    assert_string_equal(ot_json_string(ot_json_get(tree, "model"), NULL), bench->model);
    const struct ot_json *points = ot_json_get(tree, "points");
    assert_int_equal(ot_json_length(points), 3);
    const char *line = strchr(csv.text, '\n') + 1;
    for (int i = 0; i < 3; i++) {
        const char *names = csv.text;
        int columns = 0, empty = 0;
        while (names[-(names > csv.text)] != '\n') {
            char *name = take_field(&names), *cell = take_field(&line);
            check_cell(ot_json_at(points, (size_t)i), name, cell);
            empty += !*cell;
            columns++;
            free(name);
            free(cell);
        }
        assert_int_equal(line[-1], '\n');
        assert_true(columns > 40);
        assert_true(i == 2 ? empty > 20 : i == 1 ? empty == 1 : empty > 10);
    }
    assert_int_equal(*line, '\0');
    ot_json_free(tree);
    ot_options_free(&options);
    free(text);
    free(csv.text);
    free(bench);
}

/* ---- files ---- */

static void a_bench_is_never_overwritten(void **state) {
    (void)state;
    char *folder = make_folder(), path[4096], text[16] = "";
    struct ot_bench_files files;
    snprintf(path, sizeof path, "%s/deep/er/", folder);
    check_ok(ot_bench_files_open(path, &files));
    check_ok(ot_bench_files_append_csv(&files, "a,b\n", 4));
    check_ok(ot_bench_files_append_csv(&files, "1,2\n", 4));
    check_ok(ot_bench_files_replace(&files, "bench.json", "{}", 2));
    check_ok(ot_bench_files_replace(&files, "bench.json", "[1]", 3));
    char link[4096];
    snprintf(link, sizeof link, "%s/deep/er/bench.html.partial", folder);
    assert_int_equal(symlink("/dev/null", link), 0); /* a link out of the directory */
    check_fails(ot_bench_files_replace(&files, "bench.html", "<", 1), OT_E_IO, "bench.html: cannot write");
    ot_bench_files_close(&files);
    check_fails(ot_bench_files_open(path, &files), OT_E_INPUT, "already has a bench.csv; choose another");
    ot_bench_files_close(&files);
    snprintf(path, sizeof path, "%s/deep/er/bench.csv", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, sizeof text, file), 8);
    assert_string_equal(text, "a,b\n1,2\n");
    assert_int_equal(fclose(file), 0);
    check_fails(ot_bench_files_open(path, &files), OT_E_IO, "bench.csv");
    ot_bench_files_close(&files);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grid_covers_mixes_budgets_steps_and_micro_batches),
        cmocka_unit_test(planned_budgets_run_from_the_least_to_all_resident),
        cmocka_unit_test(what_is_given_is_the_grid),
        cmocka_unit_test(named_mixes_run_alone_and_in_their_order),
        cmocka_unit_test(a_model_that_does_not_fit_has_a_grid_too),
        cmocka_unit_test(lists_are_read_and_recorded),
        cmocka_unit_test(the_front_is_what_nothing_beats),
        cmocka_unit_test(csv_and_json_say_the_same),
        cmocka_unit_test(a_bench_is_never_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
