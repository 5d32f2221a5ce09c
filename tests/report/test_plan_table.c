/* The plan table and the lines of a plan: their sums, their units and their words. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/units.h"
#include "src/report/table.h"

/* Reads the number of a column. The cells are 12 wide, with a space between them. */
static double number_in(const char *line, int column, int columns) {
    char cell[13] = "";
    memcpy(cell, line + strlen(line) - (size_t)(13 * (columns - column) - 1), 12);
    return strtod(cell, NULL);
}

static void check_table(const struct ot_ledger *ledger, const size_t budget[OT_TIER_COUNT], int columns,
                        double unit, char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES]) {
    int n = ot_report_table(ledger, budget, true, lines);
    assert_int_equal(n, 8); /* header, five names, total, budget */
    for (int column = 0; column < columns; column++) {
        double sum = 0, exact = (double)ot_ledger_total(ledger, (enum ot_tier)column) / unit;
        for (int i = 1; i < n - 2; i++)
            sum += number_in(lines[i], column, columns);
        assert_true(fabs(sum - number_in(lines[n - 2], column, columns)) < 0.01);
        assert_true(fabs(number_in(lines[n - 2], column, columns) - exact) <= 0.0501);
        assert_true(fabs(number_in(lines[n - 1], column, columns) - (double)budget[column] / unit) <= 0.0501);
    }
    for (int i = 1; i < n; i++)
        assert_int_equal(strlen(lines[i]), strlen(lines[0]));
}

static void the_table_adds_up(void **state) {
    (void)state;
    struct ot_ledger two = {0}, three = {0};
    static const char *const names[] = {"weights",     "gradients", "weights", "state",
                                        "activations", "staging",   "nothing"};
    for (int i = 0; i < 7; i++) {
        size_t bytes = i == 6 ? 0 : 1234567u * (unsigned)(i + 1);
        two.entries[two.n++] =
            (struct ot_ledger_entry){i % 2 ? OT_TIER_HOST : OT_TIER_GPU, names[i], bytes, 0};
        three.entries[three.n++] = (struct ot_ledger_entry){(enum ot_tier)(i % 3), names[i], 1000 * bytes, 0};
    }
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES];
    check_table(&two, (const size_t[]){64 << 20, 128 << 20, 0}, 2, 0x1p20, lines);
    assert_null(strstr(lines[0], "nvme"));
    assert_non_null(strstr(lines[0], "MiB"));
    assert_non_null(strstr(lines[7], "128.0"));
    assert_non_null(strstr(lines[1], "weights"));
    check_table(&two, (const size_t[]){64 << 20, 128 << 20, 256 << 20}, 3, 0x1p20, lines);
    assert_non_null(strstr(lines[0], "nvme")); /* a tier with a budget is shown, even if it is not used */
    /* Only the tier on disk needs the larger unit. */
    three.entries[5].bytes = (size_t)20 << 30;
    check_table(&three, (const size_t[]){16ull << 30, 32ull << 30, 512ull << 30}, 3, 0x1p30, lines);
    assert_non_null(strstr(lines[0], "GiB"));
}

/* Without --explain the table has five rows, for any names of the ledger. They add up to the same total. */
static void the_short_table_has_five_rows(void **state) {
    (void)state;
    static const struct {
        const char *name, *row;
    } entries[] = {{"workspace", "other"},
                   {"weights", "weights"},
                   {"weight slots", "weights"},
                   {"optimizer state slots", "optimizer"},
                   {"gradient slots", "gradients"},
                   {"activation gradients", "activations"},
                   {"rows", "other"},
                   {"kept activations", "activations"}};
    static const char *const rows[] = {"weights", "optimizer", "gradients", "activations", "other"};
    struct ot_ledger ledger = {0};
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES], full[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES];
    const size_t budget[OT_TIER_COUNT] = {64 << 20, 64 << 20, 0};
    double want[5] = {0};
    for (int i = 0; i < 8; i++) {
        ledger.entries[ledger.n++] =
            (struct ot_ledger_entry){OT_TIER_GPU, entries[i].name, (size_t)(i + 1) << 20, 0};
        for (int r = 0; r < 5; r++)
            want[r] += strcmp(rows[r], entries[i].row) == 0 ? i + 1 : 0;
    }
    assert_int_equal(ot_report_table(&ledger, budget, false, lines), 8);
    for (int r = 0; r < 5; r++) {
        assert_non_null(strstr(lines[r + 1], rows[r]));
        assert_true(number_in(lines[r + 1], 0, 2) == want[r]);
    }
    assert_int_equal(ot_report_table(&ledger, budget, true, full), 11);
    assert_string_equal(lines[6], full[9]); /* the totals */
}

/* AdamW's state takes 10 bytes a parameter and 20 on nvme. The row itself must say why. */
static void room_for_new_content_is_told_in_its_row(void **state) {
    (void)state;
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES];
    const size_t budget[OT_TIER_COUNT] = {64 << 20, 64 << 20, 64 << 20};
    struct ot_ledger ledger = {4,
                               {{OT_TIER_HOST, "optimizer state slots", 1 << 20, 0},
                                {OT_TIER_NVME, "optimizer state", 20 << 20, 10 << 20},
                                {OT_TIER_NVME, "gradients", 2 << 20, 0},
                                {OT_TIER_NVME, "kept activations", 3 << 19, 3 << 18}}};
    static const char *const wants[][2] = {
        {"  optimizer ", "        20.0   10.0 of it: room to write new content beside the old"},
        {"  gradients ", "         2.0"},
        {"  activations ", "         1.5   0.8 of it: room to write new content beside the old"}};
    assert_int_equal(ot_report_table(&ledger, budget, false, lines), 6);
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(wants[i][1]);
        assert_non_null(strstr(lines[i + 1], wants[i][0]));
        assert_string_equal(lines[i + 1] + strlen(lines[i + 1]) - n, wants[i][1]);
    }
    assert_int_equal(ot_report_table(&ledger, budget, true, lines), 7);
    assert_null(strstr(lines[1], "room")); /* slots have no content of their own */
    assert_non_null(strstr(lines[2], "10.0 of it: room"));
}

static void parameters_add_up(void **state) {
    (void)state;
    char text[OT_PARAMS_TEXT_BYTES];
    assert_string_equal(ot_text_params(0, 6738415616, text), "6.74 B parameters");
    assert_string_equal(ot_text_params(656128, 38912, text), "656 K frozen + 38.9 K trained parameters");
}

static void what_moved_has_one_unit(void **state) {
    (void)state;
    char line[OT_TABLE_LINE_BYTES];
    struct ot_moved moved[] = {{"h2d", "a step", 1.29e9, 0.5},
                               {"d2h", "a step", 4e6, 1},
                               {"nvme", "read", 12.3e9, 24},
                               {"nvme", "written", 0, 24}};
    assert_string_equal(ot_report_moved(moved, 4, line),
                        "h2d 1.29 GB a step, 2.58 GB/s · nvme 12.30 GB read, 0.51 GB/s");
    moved[1].bytes = 40e6; /* the smallest number decides for all */
    assert_string_equal(ot_report_moved(moved, 2, line),
                        "h2d 1290.0 MB a step, 2580.0 MB/s · d2h 40.0 MB a step, 40.0 MB/s");
    moved[1].seconds = 0; /* there is no time of a step */
    assert_string_equal(ot_report_moved(moved + 1, 1, line), "");
}

static void a_plan_is_told_in_two_lines(void **state) {
    (void)state;
    char line[OT_TABLE_LINE_BYTES];
    struct ot_slab_plan slabs[] = {
        {.weights = OT_HOME_GPU, .tiles = {[OT_TILE_GPU] = 2}, .state = OT_HOME_HOST},
        {.weights = OT_HOME_NVME, .tiles = {[OT_TILE_GPU] = 1, [OT_TILE_CPU] = 3}, .state = OT_HOME_NVME},
        {.weights = OT_HOME_NVME, .tiles = {[OT_TILE_STREAM] = 2}, .state = OT_HOME_HOST},
    };
    struct ot_plan plan = {.slabs = slabs, .n_slabs = 3, .activations = OT_HOME_HOST};
    assert_string_equal(
        ot_report_homes(&plan, line),
        "weights: 1 of 3 slabs on gpu, 2 on nvme · optimizer state: 3 of 8 tiles on gpu, 2 on "
        "host, 3 on nvme · activations: on host");
    slabs[1].grads = OT_HOME_NVME;
    assert_non_null(strstr(ot_report_homes(&plan, line),
                           " · activations: on host · gradients: of 5 of 8 tiles on gpu, 3 on nvme"));
    assert_string_equal(ot_report_engines(&plan, line), "3 of 8 tiles by gpu (37.5 %), 2 by stream "
                                                        "(25.0 %), 3 by cpu (37.5 %)");
    plan.shadow_frames = 2;
    assert_non_null(strstr(ot_report_engines(&plan, line), "3 by cpu (37.5 %) · 2 ahead of the norm"));
    plan.shadow_frames = 0;
    memset(slabs, 0, sizeof slabs); /* evaluation has no tiles */
    assert_string_equal(ot_report_homes(&plan, line), "weights: all 3 slabs on gpu · activations: on host");
    assert_string_equal(ot_report_engines(&plan, line), "");
    plan.cache = OT_HOME_NVME;
    assert_string_equal(ot_report_homes(&plan, line),
                        "weights: all 3 slabs on gpu · activations: on host · key/value cache: on nvme");
    slabs[0] =
        (struct ot_slab_plan){.weights = OT_HOME_HOST, .tiles = {[OT_TILE_CPU] = 1}, .state = OT_HOME_HOST};
    plan = (struct ot_plan){.slabs = slabs, .n_slabs = 1};
    assert_string_equal(
        ot_report_homes(&plan, line),
        "weights: all 1 slab on host · optimizer state: all 1 tile on host · activations: on gpu");
    assert_string_equal(ot_report_engines(&plan, line), "all 1 tile by cpu");
    assert_string_equal(ot_report_kept(&plan, 1, line), "1 of 1 layer recomputed");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_adds_up),
        cmocka_unit_test(the_short_table_has_five_rows),
        cmocka_unit_test(room_for_new_content_is_told_in_its_row),
        cmocka_unit_test(parameters_add_up),
        cmocka_unit_test(what_moved_has_one_unit),
        cmocka_unit_test(a_plan_is_told_in_two_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
