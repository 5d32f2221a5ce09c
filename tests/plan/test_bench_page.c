/* The page of a bench and its pictures: their content and their markup, for any names and numbers. */
#include "tests/support/check.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "src/page/plot.h"
#include "src/plan/bench_page.h"
#include "src/plan/bench_plot.h"

static int count(const char *text, const char *words) {
    int n = 0;
    for (; (text = strstr(text, words)); text += strlen(words))
        n++;
    return n;
}

/* Elements must close in the reverse order of opening, attributes must be quoted, and every < and & must be
 * markup. Returns the number of elements. */
static int check_markup(const char *html) {
    static const char *const empty[] = {"meta", "br", "!DOCTYPE"};
    char open[32][16];
    int depth = 0, elements = 0;
    for (const char *at = html; *at; at++) {
        if (*at == '&') {
            size_t name = strspn(at + 1, "#abcdefghijklmnopqrstuvwxyz0123456789");
            assert_true(name > 0 && at[1 + name] == ';');
        }
        if (*at != '<')
            continue;
        bool closes = at[1] == '/', alone = false;
        const char *name = at + 1 + closes;
        size_t length = strcspn(name, " \n/>");
        assert_true(length > 0 && length < sizeof open[0]);
        const char *end = name + length;
        for (bool quoted = false; quoted || *end != '>'; end++) {
            assert_true(*end && *end != '<');
            quoted ^= *end == '"';
            alone = !quoted && *end == '/';
        }
        for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
            alone = alone || (strlen(empty[i]) == length && memcmp(empty[i], name, length) == 0);
        if (closes) {
            assert_true(depth > 0 && strlen(open[depth - 1]) == length);
            assert_memory_equal(open[--depth], name, length);
        } else if (!alone) {
            assert_true(depth < 32);
            snprintf(open[depth++], sizeof open[0], "%.*s", (int)length, name);
        }
        elements += !closes;
        at = end;
    }
    assert_int_equal(depth, 0);
    return elements;
}

static bool is_word(const char *text, const char *at, size_t length) {
    return (at == text || !isalpha((unsigned char)at[-1])) && !isalpha((unsigned char)at[length]);
}

/* Pictures must not contain NaN or infinity. */
static void check_numbers(const char *html) {
    static const char *const bad[] = {"nan", "inf", "-nan", "-inf", "-0.0\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (const char *at = html; (at = strstr(at, bad[i])); at++)
            if (is_word(html, at, strlen(bad[i])))
                fail_msg("%s in ...%.80s", bad[i], at > html + 40 ? at - 40 : html);
}

static char *page_of(const struct ot_bench *bench) {
    struct ot_string_builder page = {0};
    ot_bench_put_page(bench, &page);
    assert_false(page.failed);
    assert_true(check_markup(page.text) > 10);
    check_numbers(page.text);
    assert_int_equal(count(page.text, "<script"), 0);
    assert_int_equal(count(page.text, "http"), 0); /* the page loads nothing from other places */
    assert_int_equal(count(page.text, "src="), 0);
    assert_int_equal(count(page.text, "@import"), 0);
    return page.text;
}

static struct ot_bench *new_bench(int n) {
    struct ot_bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    *bench = (struct ot_bench){.model = "tiny", .device = "cpu", .dtype = "fp32", .cores = 2, .n = n};
    for (int i = 0; i < n; i++)
        bench->results[i] = (struct ot_bench_result){
            .point = {.mix = i % 6, .gpu_bytes = 1 << 30, .step_tokens = 1024, .sequence_tokens = 128},
            .status = OT_BENCH_DONE,
            .micro_sequences = 4,
            .micro_batches = 2,
            .steps = 8,
            .step_seconds = 0.5 + 0.25 * i,
            .fastest_seconds = 0.45 + 0.25 * i,
            .slowest_seconds = 0.75 + 0.25 * i,
            .tokens_per_second = 2048,
            .device_bytes = (int64_t)(64 - i) << 20,
            .predicted_seconds = 0.5,
            .lanes.busy[OT_LANE_COMPUTE] = 0.4,
            .lanes.exposed[OT_LANE_H2D] = 0.1,
            .predicted_lanes.busy[OT_LANE_COMPUTE] = 0.5};
    return bench;
}

static void a_page_has_its_pictures_and_all_points(void **state) {
    (void)state;
    struct ot_bench *bench = new_bench(6);
    bench->results[5].status = OT_BENCH_UNFIT;
    strcpy(bench->results[5].reason, "gpu memory: short by 1 MiB");
    bench->results[4].point.step_tokens = 2048;
    char *page = page_of(bench);
    assert_int_equal(count(page, "aria-labelledby=\"memory"), 2); /* one for each step size */
    assert_int_equal(count(page, "aria-labelledby=\"lanes"), 2);
    assert_int_equal(count(page, "aria-labelledby=\"prediction"), 1);
    assert_int_equal(count(page, "<title id="), 5);
    assert_int_equal(count(page, "<desc id="), 5);
    assert_int_equal(count(page, "<tr><td"), 5);
    assert_int_equal(count(page, "<path transform="), 2 * 5); /* a marker in each of two pictures */
    assert_int_equal(count(page, "class=\"front\">★"), 5);    /* each takes less memory and more time */
    assert_int_equal(count(page, "short by 1 MiB"), 1);
    assert_int_equal(count(page, "(of steps)\">450 ms to 750 ms (8)</td>"),
                     1);                                                   /* the spread: in the table, */
    assert_int_equal(count(page, "class=\"spread\""), 2 * 5);              /* in each of two pictures, */
    assert_int_equal(count(page, " a step (450 ms to 750 ms), peak "), 2); /* and where the mouse points */
    assert_int_equal(count(page, "width=device-width"), 1);
    assert_int_equal(count(page, "@media screen and (max-width:52rem)"), 1); /* a point is a block there */
    assert_int_equal(count(page, "<td data-name=\""), 5 * (count(page, "<th>") - 1));
    assert_int_equal(count(page, "<td data-name=\"micro-batches\">"), 5);
    assert_int_equal(count(page, "<th>micro-<br>batches</th>"), 1);
    assert_int_equal(count(page, "<td data-name=\"tokens a step\">"), 5);
    assert_int_equal(count(page, "@media print"), 1);
    free(page);
    free(bench);
}

static void hostile_names_stay_text(void **state) {
    (void)state;
    struct ot_bench *bench = new_bench(2);
    bench->model = "</title><script>alert('1')</script>&\"\x01";
    bench->device = "<img onerror=\"x\">";
    bench->results[1].status = OT_BENCH_FAILED;
    strcpy(bench->results[1].reason, "<b>&lt;</b> ]]> \" onload='x'");
    char *page = page_of(bench);
    assert_int_equal(count(page, "<img"), 0);
    assert_int_equal(count(page, "<b>"), 0);
    assert_int_equal(count(page, "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot; "), 2);
    assert_int_equal(count(page, "&lt;b&gt;&amp;lt;&lt;/b&gt; ]]&gt; &quot; onload=&#39;x&#39;"), 1);
    free(page);
    free(bench);
}

static void equal_reasons_are_told_once(void **state) {
    (void)state;
    struct ot_bench *bench = new_bench(5);
    for (int i = 1; i < 4; i++) {
        bench->results[i].status = OT_BENCH_NO_TIME;
        strcpy(bench->results[i].reason, i == 2 ? "another one" : "no time was left");
    }
    bench->results[4].status = OT_BENCH_WAITING;
    char *page = page_of(bench);
    assert_int_equal(count(page, "no time was left"), 1);
    assert_int_equal(count(page, "another one"), 1);
    assert_int_equal(count(page, "not measured yet"), 1);
    assert_int_equal(count(page, "<li>") - count(page, "<li><svg"), 3 + 4);
    free(page);
    free(bench);
}

/* Any state of a point and any size of number: from nanoseconds to weeks, from a byte to 64 TiB. */
static void pages_of_any_numbers_are_sound(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        int n = (int)ot_random_below(seed, 1, 0, 12);
        struct ot_bench *bench = new_bench(n);
        for (int i = 0; i < n; i++) {
            struct ot_bench_result *r = &bench->results[i];
            uint64_t at = (uint64_t)i * 8;
            r->status = (enum ot_bench_status)ot_random_below(seed, 2, at, OT_BENCH_STATUSES);
            r->status = ot_random_below(seed, 2, at + 1, 2) ? OT_BENCH_DONE : r->status;
            r->device_bytes = 1LL << ot_random_below(seed, 2, at + 2, 46);
            r->step_seconds = pow(10, -9 + 15 * ot_random_unit(seed, 2, at + 3));
            r->fastest_seconds = r->step_seconds * (0.1 + 0.9 * ot_random_unit(seed, 4, at));
            r->slowest_seconds = r->step_seconds * (1 + 9 * ot_random_unit(seed, 4, at + 1));
            r->tokens_per_second = 1024 / r->step_seconds;
            r->predicted_seconds = ot_random_below(seed, 2, at + 4, 3)
                                       ? r->step_seconds * (0.5 + ot_random_unit(seed, 2, at + 5))
                                       : 0;
            r->point.micro_sequences = (int64_t)ot_random_below(seed, 2, at + 6, 2);
            for (int l = 0; l < OT_LANE_COUNT; l++)
                r->lanes.exposed[l] = ot_random_below(seed, 2, at + 7, 2) ? r->step_seconds / (l + 1) : 0;
        }
        free(page_of(bench));
        free(bench);
    }
}

/* Round numbers inside the range: enough of them to read the axis, and not too many. */
static void ticks_are_few_and_round(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        bool logarithmic = seed % 2;
        double low = pow(10, -6 + 12 * ot_random_unit(seed, 3, 0));
        double ratio = 1.05 * pow(10, 8 * ot_random_unit(seed, 3, 1));
        struct ot_plot_axis axis = {low, low * ratio, 0, 300, logarithmic};
        double ticks[OT_PLOT_MOST_TICKS];
        int n = ot_plot_ticks(&axis, ticks);
        assert_in_range(n, 2, OT_PLOT_MOST_TICKS);
        for (int i = 0; i < n; i++) {
            double at = ot_plot_at(&axis, ticks[i]),
                   digits = ticks[i] / pow(10, floor(log10(ticks[i]) + 1e-9));
            assert_true(at > -0.01 && at < 300.01);
            assert_true(i == 0 || ticks[i] > ticks[i - 1]);
            assert_true(fabs(digits * 100 - round(digits * 100)) < 1e-4);
        }
    }
    struct ot_plot_axis zero = {0, 0.7, 200, 0, false};
    double ticks[OT_PLOT_MOST_TICKS];
    assert_true(ot_plot_ticks(&zero, ticks) >= 3 && ticks[0] == 0 && !signbit(ticks[0]));
    assert_true(ot_plot_at(&zero, 0) == 200 && fabs(ot_plot_at(&zero, 0.35) - 100) < 1e-9);
}

static void errors_of_predictions(void **state) {
    (void)state;
    struct ot_bench *bench = new_bench(4);
    static const double measured[] = {1, 2, 4, 8}, predicted[] = {1.1, 1, 4, 0};
    for (int i = 0; i < 4; i++) {
        bench->results[i].step_seconds = measured[i];
        bench->results[i].predicted_seconds = predicted[i];
    }
    struct ot_bench_errors errors = ot_bench_prediction_errors(bench);
    assert_int_equal(errors.n, 3);
    assert_true(fabs(errors.median - 0.1) < 1e-12 && errors.worst == 0.5);
    /* A prediction of more than twice the time cannot be "within" a share of it. */
    bench->results[1].predicted_seconds = 4.66;
    char *page = page_of(bench);
    assert_int_equal(count(page,
                           "is off by at most 10 % of the measured time in half of the 3 points, and by "
                           "at most 133 % in all."),
                     1);
    assert_int_equal(count(page, "within 1"), 0);
    free(page);
    bench->results[1].predicted_seconds = 1;
    bench->results[2].status = OT_BENCH_FAILED;
    errors = ot_bench_prediction_errors(bench);
    assert_true(errors.n == 2 && fabs(errors.median - 0.3) < 1e-12);
    free(bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_has_its_pictures_and_all_points),
        cmocka_unit_test(hostile_names_stay_text),
        cmocka_unit_test(equal_reasons_are_told_once),
        cmocka_unit_test(pages_of_any_numbers_are_sound),
        cmocka_unit_test(ticks_are_few_and_round),
        cmocka_unit_test(errors_of_predictions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
