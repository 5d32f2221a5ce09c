/* Pictures of characters: widths, dots of Braille, what changes on a terminal; plots of lines as SVG. Whole
 * pictures of runs are tested in tests/cli/test_watch.py. */
#include "src/view/screen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/random.h"
#include "src/page/plot.h"
#include "src/view/picture.h"
#include "tests/support/check.h"

static char *text_of(const struct ot_screen *s) {
    struct ot_string_builder out = {0};
    ot_screen_put_text(s, &out);
    assert_false(out.failed);
    return out.text ? out.text : strdup("");
}

static void check_text(const struct ot_screen *s, const char *expected) {
    char *text = text_of(s);
    assert_string_equal(text, expected);
    free(text);
}

static void texts_are_cut_at_the_columns(void **state) {
    (void)state;
    struct ot_screen s = {0};
    check_ok(ot_screen_open(&s, 3, 6, false));
    check_text(&s, "");
    assert_int_equal(ot_screen_put(&s, 0, 0, 9, OT_STYLE_PLAIN, "abcdefgh"), 6);
    assert_int_equal(ot_screen_put(&s, 1, 4, 9, OT_STYLE_PLAIN, "xyz"), 6);
    assert_int_equal(ot_screen_put(&s, 1, 0, 2, OT_STYLE_PLAIN, "xyz"), 2);
    ot_screen_put(&s, 3, 0, 9, OT_STYLE_PLAIN, "out");
    ot_screen_put(&s, -1, 0, 9, OT_STYLE_PLAIN, "out");
    ot_screen_put(&s, 0, -1, 9, OT_STYLE_PLAIN, "out");
    ot_screen_put(&s, 0, 7, 9, OT_STYLE_PLAIN, "out");
    check_text(&s, "abcdef\nxy  xy\n");
    /* A wide character needs two columns; marks without a width are left out; damaged bytes count as one. */
    check_ok(ot_screen_open(&s, 1, 6, false));
    assert_int_equal(ot_screen_put(&s, 0, 0, 6, OT_STYLE_PLAIN, "a漢\xcc\x81字é漢"), 6);
    check_text(&s, "a漢字é\n");
    assert_int_equal(ot_screen_put(&s, 0, 5, 1, OT_STYLE_PLAIN, "漢"), 5);
    assert_int_equal(ot_screen_put(&s, 0, 0, 6, OT_STYLE_PLAIN, "\xff\xe6z\033"), 3);
    assert_int_equal(ot_screen_width("a漢\xcc\x81字é · b"), 10);
    check_ok(ot_screen_open(&s, 1, 9, true));
    ot_screen_put(&s, 0, 0, 9, OT_STYLE_PLAIN, "a · é漢");
    check_text(&s, "a | ???\n");
    ot_screen_close(&s);
}

static void dots_make_characters(void **state) {
    (void)state;
    struct ot_screen s = {0};
    check_ok(ot_screen_open(&s, 2, 4, false));
    struct ot_dots dots = {&s, 0, 1, 2, 2};
    assert_true(ot_dots_across(&dots) == 4 && ot_dots_down(&dots) == 8);
    ot_dots_put(&dots, 0, 0, 0, OT_STYLE_CURVE);
    ot_dots_put(&dots, 1, 3, 3, OT_STYLE_CURVE);
    ot_dots_put(&dots, 2, 6, 1, OT_STYLE_CURVE);
    for (int at = -1; at <= 8; at += 9) /* outside */
        ot_dots_put(&dots, 3, at, at, OT_STYLE_CURVE);
    ot_dots_put(&dots, 4, 0, 7, OT_STYLE_CURVE);
    ot_dots_put(&dots, -1, 0, 7, OT_STYLE_CURVE);
    check_text(&s, " ⢁⡆\n  ⠇\n");
    check_ok(ot_screen_open(&s, 2, 4, true));
    assert_true(ot_dots_across(&dots) == 2 && ot_dots_down(&dots) == 2);
    ot_dots_put(&dots, 1, 0, 1, OT_STYLE_CURVE);
    check_text(&s, "  *\n  *\n");
    ot_screen_close(&s);
}

static void a_terminal_gets_the_rows_that_changed(void **state) {
    (void)state;
    struct ot_screen a = {0}, b = {0};
    struct ot_string_builder out = {0};
    check_ok(ot_screen_open(&a, 3, 5, false));
    check_ok(ot_screen_open(&b, 3, 5, false));
    ot_screen_put(&a, 0, 0, 5, OT_STYLE_BOLD, "ab");
    ot_screen_put(&a, 1, 1, 5, OT_STYLE_GOOD, "c");
    ot_screen_put_changes(&a, NULL, true, &out);
    assert_string_equal(
        out.text,
        "\033[2J\033[1;1H\033[K\033[0;1mab\033[0m\033[2;1H\033[K \033[0;32mc\033[0m\033[3;1H\033[K");
    out.bytes = 0;
    ot_screen_put(&b, 0, 0, 5, OT_STYLE_BOLD, "ab");
    ot_screen_put(&b, 1, 1, 5, OT_STYLE_BAD, "c");
    ot_screen_put_changes(&b, &a, false, &out);
    assert_string_equal(out.text, "\033[2;1H\033[K \033[0mc\033[0m");
    out.bytes = 0;
    ot_screen_put_changes(&b, &b, true, &out);
    assert_int_equal(out.bytes, 0);
    check_ok(ot_screen_open(&a, 3, 4, false)); /* another size */
    ot_screen_put_changes(&a, &b, true, &out);
    assert_memory_equal(out.text, "\033[2J", 4);
    free(out.text);
    ot_screen_close(&a);
    ot_screen_close(&b);
}

/* Any history, in any size: the screen has room for all that is drawn, and the text has no other lines. */
static void pictures_of_any_size_are_whole(void **state) {
    (void)state;
    struct ot_history *h = calloc(1, sizeof *h);
    struct ot_gpu_reading gpus[OT_GPUS_MAX];
    h->name = "out/a-long-name-of-a-run/漢字/that-goes-on";
    for (int i = 0; i < OT_GPUS_MAX; i++)
        gpus[i] = (struct ot_gpu_reading){"GPU", i ? NAN : 50, i, i, NAN, 1e9, 2e9};
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct ot_screen s = {0};
        int rows = 1 + (int)ot_random_below(seed, 1, 0, 60),
            columns = 1 + (int)ot_random_below(seed, 1, 1, 150);
        int64_t steps = (int64_t)ot_random_below(seed, 1, 2, 4) * (int64_t)ot_random_below(seed, 1, 3, 300);
        memset(&h->loss, 0, sizeof h->loss);
        h->rate = h->eval_loss = h->loss;
        h->step = (struct ot_history_step){.step = steps, .loss = 1, .seconds = 1, .tokens_per_s = 1e3};
        for (int64_t i = 1; i <= steps; i++) {
            double value = pow(10, 10 * ot_random_unit(seed, 2, (uint64_t)i)) - (double)(seed % 3);
            ot_curve_add(&h->loss, i, value);
            ot_curve_add(&h->rate, i * (1 + (int64_t)(seed % 5)), seed % 7 ? value : 5);
            if (i % 9 == 0)
                ot_curve_add(&h->eval_loss, i, value);
        }
        struct ot_picture p = {.history = h,
                               .state = (enum ot_run_state)(seed % 6),
                               .now = 1e9,
                               .gpus = gpus,
                               .n_gpus = (int)(seed % OT_GPUS_MAX),
                               .hint = "q leaves"};
        check_ok(ot_screen_open(&s, rows, columns, seed % 4 == 0));
        ot_picture_draw(&p, &s);
        char *text = text_of(&s);
        int lines = 0;
        for (const char *at = text; *at; lines++) {
            size_t n = strcspn(at, "\n");
            char line[1024];
            assert_true(n < sizeof line);
            memcpy(line, at, n);
            line[n] = '\0';
            assert_true(ot_screen_width(line) <= columns);
            at += n + 1;
        }
        assert_true(lines <= rows);
        if (rows > 3 && columns > 16)
            assert_non_null(strstr(text, "q leaves"));
        free(text);
        ot_screen_close(&s);
    }
    free(h);
}

/* The picture of a history with these steps, without evaluations. The caller frees it. */
static char *picture_of(const char *name, int rows, int columns, int first, int steps, double seconds) {
    struct ot_history *h = calloc(1, sizeof *h);
    struct ot_screen s = {0};
    char *copy = strdup(name);
    h->name = copy;
    h->step = (struct ot_history_step){.step = first + steps - 1,
                                       .tokens_per_s = 1e3,
                                       .seconds = seconds,
                                       .gpu_bytes = 1 << 20,
                                       .roof_share = NAN,
                                       .grad_norm = NAN,
                                       .nvme_read_bytes = 1e9,
                                       .nvme_written_bytes = 2e9};
    for (int i = first; i < first + steps; i++)
        ot_curve_add(&h->loss, i, 10 + i);
    struct ot_picture p = {.history = h, .state = OT_RUN_RUNS, .now = 1e9, .hint = "q leaves"};
    check_ok(ot_screen_open(&s, rows, columns, true));
    ot_picture_draw(&p, &s);
    char *text = text_of(&s);
    ot_screen_close(&s);
    free(copy);
    free(h);
    return text;
}

static void check_picture(char *text, const char *words, bool has) {
    if ((strstr(text, words) != NULL) != has)
        fail_msg("'%s' in:\n%s", words, text);
    free(text);
}

static void parts_of_a_picture(void **state) {
    (void)state;
    /* A curve begins at the left and ends at the right, whatever its first step is. */
    check_picture(picture_of("a", 12, 28, 101, 100, 1), "\n    210                 ****\n", true);
    check_picture(picture_of("a", 12, 28, 101, 100, 1), "\n    111 ****\n        101", true);
    check_picture(picture_of("a", 24, 80, 1, 5, 0.5),
                  "disks   read 2 GB/s | write 4 GB/s | a step 1 GB read, 2 GB", true);
    check_picture(picture_of("a", 24, 80, 1, 5, 100), "disks   read 0.01 GB/s | write 0.02 GB/s | a step",
                  true);
    check_picture(picture_of("a", 24, 80, 1, 5, 1), "speed   1,000 tok/s | lr 0.00e+00\n", true);
    check_picture(picture_of("a", 24, 72, 1, 5, 1), "[####################] step 5 of 5", true);
    check_picture(picture_of("a", 24, 71, 1, 5, 1), "[##########] step 5 of 5", true);
    check_picture(picture_of("a", 24, 56, 1, 5, 1), "[##########] step 5 of 5", true);
    check_picture(picture_of("a", 24, 55, 1, 5, 1), "step 5/5 | 100 %\n", true);
    /* A name that is too long keeps its end. */
    check_picture(picture_of("out/0123456789", 5, 20, 1, 5, 1), "...23456789  running\n", false);
    check_picture(picture_of("out/0123456789", 5, 20, 1, 5, 1), "...123456789 running\n", true);
    check_picture(picture_of("out/012345678é", 5, 20, 1, 5, 1), "...12345678? running\n", true);
    check_picture(picture_of("out/0漢3456789", 5, 20, 1, 5, 1), "...??3456789 running\n", true);
    check_picture(picture_of("out/漢23456789a", 5, 20, 1, 5, 1), "...23456789a running\n", true);
}

/* ---- plots ---- */

static int count(const char *text, const char *words) {
    int n = 0;
    for (; (text = strstr(text, words)); text += strlen(words))
        n++;
    return n;
}

static char *plot_of(const struct ot_plot_series *series, int n) {
    struct ot_string_builder out = {0};
    struct ot_plot_lines lines = {"p", "Title <1>", "About", "step", "loss", n, series};
    ot_plot_put_lines(&out, &lines);
    assert_false(out.failed);
    return out.text ? out.text : strdup("");
}

static void lines_lie_between_their_axes(void **state) {
    (void)state;
    static const double x[] = {0, 5, 10}, y[] = {1, 2, 3}, steep[] = {1, 10, 100}, low[] = {1e-5, 2e-5, 3e-5};
    struct ot_plot_series s[] = {{.index = 0, .n = 3, .x = x, .y = y, .is_faint = true},
                                 {.index = 7, .n = 2, .x = x, .y = y},
                                 {.index = 2, .n = 1, .x = x + 2, .y = y + 2, .has_markers = true}};
    char *svg = plot_of(s, 3);
    /* The range of y is 1 to 3 with a twentieth of it on each side: the middle is at (14 + 244) / 2. */
    assert_int_equal(
        count(svg, "class=\"faint\" stroke=\"#0072B2\" d=\"M56.0,233.5L196.0,129.0L336.0,24.5\"/>"), 1);
    assert_int_equal(
        count(svg,
              "class=\"curve\" stroke=\"#E69F00\" stroke-dasharray=\"6 3\" d=\"M56.0,233.5L196.0,129.0\""),
        1);
    assert_int_equal(count(svg, "translate(336.0,24.5)"), 1);
    assert_int_equal(count(svg, "<title>10: 3</title>"), 1);
    assert_int_equal(count(svg, "x=\"50.0\" y=\"134.0\" text-anchor=\"end\">2<"), 1);
    assert_int_equal(count(svg, "x=\"196.0\" y=\"262.0\" text-anchor=\"middle\">5<"), 0);
    assert_int_equal(count(svg, "x=\"168.0\" y=\"262.0\" text-anchor=\"middle\">4<"), 1);
    assert_int_equal(count(svg, "x=\"196.0\" y=\"284.0\" text-anchor=\"middle\">step<"), 1);
    assert_int_equal(count(svg, "Title &lt;1&gt;"), 1);
    free(svg);
    s[0].y = steep; /* a logarithmic axis: the middle of 1 to 100 is 10 */
    svg = plot_of(s, 1);
    assert_int_equal(count(svg, "L196.0,129.0L"), 1);
    free(svg);
    s[0].y = low;
    svg = plot_of(s, 1);
    assert_int_equal(count(svg, ">2e-5</text>"), 1);
    free(svg);
    s[0].n = 1; /* one point has axes too */
    svg = plot_of(s, 1);
    assert_int_equal(count(svg, "M56.0,129.0"), 1);
    free(svg);
    s[0].n = 0;
    svg = plot_of(s, 1);
    assert_string_equal(svg, "");
    free(svg);
}

static void numbers_of_axes_are_short(void **state) {
    (void)state;
    struct ot_string_builder out = {0};
    const struct ot_plot_axis axes[] = {
        {0, 3e9, 56, 336, false}, {0, 30000, 56, 336, false}, {0, 0.03, 56, 336, false}};
    for (int i = 0; i < 3; i++)
        ot_plot_columns(&out, &axes[i]);
    const struct ot_plot_axis hundredth = {0, 0.01, 56, 336, false}, decades = {1, 100, 56, 336, true};
    double ticks[OT_PLOT_MOST_TICKS];
    static const double expected[] = {1, 2, 5, 10, 20, 50, 100};
    ot_plot_columns(&out, &hundredth);
    assert_int_equal(count(out.text, ">0.01<"), 2);
    assert_int_equal(ot_plot_ticks(&decades, ticks), 7);
    for (int i = 0; i < 7; i++)
        assert_true(fabs(ticks[i] - expected[i]) < 1e-9);
    for (int i = 0; i < 8; i++) {
        static const char *const texts[] = {">3G<",  ">500M<", ">0<",    ">5k<",
                                            ">30k<", ">0.03<", ">5e-3<", ">0.025<"};
        assert_true(count(out.text, texts[i]) > 0);
    }
    free(out.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_cut_at_the_columns),
        cmocka_unit_test(dots_make_characters),
        cmocka_unit_test(a_terminal_gets_the_rows_that_changed),
        cmocka_unit_test(pictures_of_any_size_are_whole),
        cmocka_unit_test(parts_of_a_picture),
        cmocka_unit_test(lines_lie_between_their_axes),
        cmocka_unit_test(numbers_of_axes_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
