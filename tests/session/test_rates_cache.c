/* Saved rates of the machine. They are read again under their own key alone; any other file is measured anew;
 * a folder that cannot be written does not stop a run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/cache_file.h"
#include "src/base/text.h"
#include "src/session/measure.h"
#include "tests/support/check.h"

static const struct ot_rates some = {.product_flops = 1.5e12,
                                     .attention = {[OT_HEAD_128] = {2.5e11, 1.5e11}},
                                     .device_bytes = 3e10,
                                     .h2d_bytes = 4e10,
                                     .d2h_bytes = 5e10,
                                     .both_bytes = 6e10,
                                     .triad_bytes = 7e10,
                                     .adamw_bytes = {8e10, 7e10, 6e10},
                                     .nvme_read_bytes = 9e9,
                                     .nvme_read_seconds = 3e-5,
                                     .nvme_write_seconds = 2e-5,
                                     .task_seconds = 1e-5,
                                     .spread = 0.5};

/* Takes the place of the C library's function: what other programs keep busy, in cores. */
static double load_of_others;

int getloadavg(double loads[], int n) {
    assert_int_equal(n, 1);
    loads[0] = load_of_others;
    return 1;
}

static bool finds(const char *folder, const char *key, struct ot_rates *out) {
    bool found;
    check_ok(ot_rates_read(folder, key, out, &found));
    return found;
}

/* The path of the folder's only file. The caller frees it. */
static char *only_file(const char *folder) {
    char command[512], *path;
    snprintf(command, sizeof command, "ls %s", folder);
    FILE *list = popen(command, "r");
    char name[256] = "";
    assert_non_null(list);
    assert_int_equal(fscanf(list, "%255s", name), 1);
    assert_int_equal(fgetc(list), '\n');
    assert_int_equal(fgetc(list), EOF);
    pclose(list);
    check_ok(ot_string_format(&path, "%s/%s", folder, name));
    return path;
}

/* ---- the file ---- */

static void what_is_kept_is_found_again(void **state) {
    (void)state;
    char *folder = make_folder();
    struct ot_rates got = {.cores = 3, .crc_bytes = 4};
    assert_false(finds(folder, "this machine", &got));
    check_ok(ot_rates_write(folder, "this machine", &some));
    assert_true(finds(folder, "this machine", &got));
    struct ot_rates want = some;
    want.cores = 3; /* not measured, so the value must stay */
    assert_memory_equal(&got, &want, sizeof got);
    assert_false(finds(folder, "that machine", &got));
    assert_false(finds(NULL, "this machine", &got));
    check_ok(ot_rates_write(NULL, "this machine", &some));
    remove_folder(folder);
}

static void damaged_files_count_as_none(void **state) {
    (void)state;
    char *folder = make_folder(), *text;
    size_t bytes;
    struct ot_rates got = {.cores = 3};
    const struct ot_rates before = got;
    check_ok(ot_rates_write(folder, "this machine", &some));
    char *path = only_file(folder);
    check_ok(ot_cache_read(path, 1 << 16, &text, &bytes));
    for (size_t cut = 0; cut + 2 < bytes; cut++) { /* without its last brace it is not JSON */
        check_ok(ot_cache_write(path, text, cut));
        assert_false(finds(folder, "this machine", &got));
    }
    static const char *const others[] = {
        "[]",
        "{}",
        "null",
        "{\"key\": \"this machine\"}",
        "{\"key\": \"this machine\", \"rates\": {}}",
        "{\"key\": \"this machine\", \"rates\": 7}",
        "{\"key\": 7, \"rates\": {}}",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        check_ok(ot_cache_write(path, others[i], strlen(others[i])));
        assert_false(finds(folder, "this machine", &got));
    }
    /* A number that no machine has, and missing numbers: of the device, and of the disks that have rates. */
    static const char *const changes[][2] = {{"1.5e+12", "-5.0e12"},
                                             {"h2d_bytes_per_s", "h2d_bytes_per_h"},
                                             {"nvme_write_seconds", "nvme_write_minutes"}};
    for (int i = 0; i < 3; i++) {
        char *changed = strdup(text), *at = strstr(changed, changes[i][0]);
        assert_non_null(at);
        memcpy(at, changes[i][1], strlen(changes[i][1]));
        check_ok(ot_cache_write(path, changed, bytes));
        assert_false(finds(folder, "this machine", &got));
        free(changed);
    }
    assert_memory_equal(&got, &before, sizeof got);
    check_ok(ot_cache_write(path, text, bytes));
    assert_true(finds(folder, "this machine", &got));
    free(text);
    free(path);
    remove_folder(folder);
}

/* ---- noise ---- */

/* Collects the warning on stderr about such rates. */
static void listen(const struct ot_rates *rates, char text[1024]) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    ot_rates_warn(rates);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, 1023, file)] = '\0';
    fclose(file);
}

static void a_busy_machine_is_told_in_a_line(void **state) {
    (void)state;
    char text[1024];
    listen(&(struct ot_rates){.spread = 0.234, .uncertain = "the optimizer"}, text);
    assert_non_null(strstr(text, "the machine is busy: measurements of the optimizer differ by 23 %"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    listen(&(struct ot_rates){.spread = 0.05, .uncertain = "the optimizer"}, text);
    assert_string_equal(text, "");
    listen(&some, text); /* not measured here */
    assert_string_equal(text, "");
}

/* ---- a session ---- */

struct machine {
    struct ot_options options;
    struct ot_session session;
    char *cache; /* $XDG_CACHE_HOME */
};

static int open_machine(void **state) {
    struct machine *m = calloc(1, sizeof *m);
    struct ot_device_config config = {.kind = "cpu", .memory_bytes = 8 << 20, .threads = 1};
    assert_non_null(m);
    m->options = (struct ot_options){.threads = 1, .quiet = true, .device = {.kind = OT_DEVICE_CPU}};
    m->session = (struct ot_session){.options = &m->options,
                                     .model.dtype = OT_F32,
                                     .machine.budget_bytes = {config.memory_bytes, 16 << 20}};
    check_ok(ot_machine_read("", &m->session.machine.limits));
    check_ok(ot_device_open(&config, &m->session.machine.device));
    m->cache = make_folder();
    setenv("XDG_CACHE_HOME", m->cache, 1);
    load_of_others = m->session.machine.limits.cores;
    *state = m;
    return 0;
}

static int close_machine(void **state) {
    struct machine *m = *state;
    ot_device_close(m->session.machine.device);
    remove_folder(m->cache);
    free(m);
    return 0;
}

/* Writes rates into the cache that no measurement would give. */
static void plant(struct machine *m) {
    assert_int_equal(ot_rates_keep(&m->session, &some), 1);
}

static bool is_planted(struct machine *m) {
    struct ot_rates rates;
    check_ok(ot_rates_obtain(&m->session, true, &rates));
    assert_true(rates.product_flops > 0 && rates.task_seconds > 0 && rates.adamw_bytes[OT_STATE_8BIT] > 0);
    assert_int_equal(rates.cores, m->session.machine.limits.cores);
    assert_int_equal(rates.device_threads, 1);
    assert_true(rates.device_is_host);
    return rates.product_flops == some.product_flops;
}

static void the_second_time_nothing_is_measured(void **state) {
    struct machine *m = *state;
    struct ot_rates first, second;
    check_ok(ot_rates_obtain(&m->session, true, &first));
    check_ok(ot_rates_obtain(&m->session, true, &second));
    /* Equal to the nine digits of the file; two measurements never agree so well in all rates. */
    assert_true(fabs(first.product_flops / second.product_flops - 1) < 1e-8);
    assert_true(fabs(first.adamw_bytes[0] / second.adamw_bytes[0] - 1) < 1e-8);
    assert_true(fabs(first.triad_bytes / second.triad_bytes - 1) < 1e-8);
    plant(m);
    assert_true(is_planted(m));
}

static void rates_of_a_busy_machine_are_measured_again(void **state) {
    struct machine *m = *state;
    plant(m); /* its repeats differ by 50 % */
    assert_true(is_planted(m));
    load_of_others = 0.49 * m->session.machine.limits.cores;
    assert_false(is_planted(m));
    struct ot_rates quiet = some;
    quiet.spread = 0.25;
    assert_int_equal(ot_rates_keep(&m->session, &quiet), 1);
    assert_true(is_planted(m));
}

static void another_machine_is_measured(void **state) {
    struct machine *m = *state;
    plant(m);
    m->session.model.dtype = OT_BF16;
    assert_false(is_planted(m));
    m->session.model.dtype = OT_F32;
    assert_true(is_planted(m));
    m->options.optimizer_threads = 2;
    assert_false(is_planted(m));
    m->options.optimizer_threads = 1; /* the value that the program chooses itself */
    assert_true(is_planted(m));
    m->session.machine.limits.cores++; /* part of the machine's fingerprint */
    assert_false(is_planted(m));
}

static void a_damaged_cache_is_measured_again(void **state) {
    struct machine *m = *state;
    char *folder;
    plant(m);
    check_ok(ot_cache_folder(&folder));
    char *path = only_file(folder);
    check_ok(ot_cache_write(path, "{\"key\"", 6));
    assert_false(is_planted(m));
    plant(m);
    assert_true(is_planted(m));
    free(path);
    free(folder);
}

static void a_cache_that_cannot_be_written_stops_nothing(void **state) {
    struct machine *m = *state;
    write_file(m->cache, "offload-train", "", 0); /* a file at the path of the folder */
    assert_false(is_planted(m));
    setenv("XDG_CACHE_HOME", "", 1);
    setenv("HOME", "", 1);
    assert_false(is_planted(m));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_is_found_again),
        cmocka_unit_test(damaged_files_count_as_none),
        cmocka_unit_test(a_busy_machine_is_told_in_a_line),
        cmocka_unit_test_setup_teardown(the_second_time_nothing_is_measured, open_machine, close_machine),
        cmocka_unit_test_setup_teardown(another_machine_is_measured, open_machine, close_machine),
        cmocka_unit_test_setup_teardown(rates_of_a_busy_machine_are_measured_again, open_machine,
                                        close_machine),
        cmocka_unit_test_setup_teardown(a_damaged_cache_is_measured_again, open_machine, close_machine),
        cmocka_unit_test_setup_teardown(a_cache_that_cannot_be_written_stops_nothing, open_machine,
                                        close_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
