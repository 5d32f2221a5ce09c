/* Dashboards: lines of a log become an event file and a file of metrics. Their failures end no run. The bytes
 * of event files are read back in tests/cli/test_dashboards_program.py. */
#include "src/dashboard/dashboards.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/dashboard/metrics.h"
#include "tests/support/check.h"

struct folder {
    char *root, events[600], metrics[600];
    struct ot_dashboards *dashboards;
};

static int open_folder(void **state) {
    struct folder *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->root = make_folder();
    snprintf(f->events, sizeof f->events, "%s/a/events", f->root);
    snprintf(f->metrics, sizeof f->metrics, "%s/run.prom", f->root);
    *state = f;
    return 0;
}

static int close_folder(void **state) {
    struct folder *f = *state;
    ot_dashboards_close(f->dashboards);
    remove_folder(f->root);
    free(f);
    return 0;
}

static void take(struct folder *f, const char *line) {
    ot_dashboards_take(f->dashboards, line, strlen(line));
}

/* The number of event files. */
static int count(const char *path) {
    DIR *dir = opendir(path);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strncmp(entry->d_name, "events.out.tfevents.", 20) == 0;
    closedir(dir);
    return n;
}

/* The file of metrics. Valid until the next call. */
static const char *metrics_of(const struct folder *f) {
    static char *text;
    size_t bytes;
    free(text);
    check_ok(ot_read_file(f->metrics, 1 << 20, &text, &bytes));
    return text;
}

#define RUN  "{\"event\":\"run\",\"out\":\"a\\\\b\\\"c\\nd\",\"options\":{\"lr\":0.001,\"pack\":true}}"
#define STEP "{\"event\":\"step\",\"step\":%d,\"loss\":%s,\"tokens\":3000000000,\"nvme_read_bytes\":7}"

static void take_step(struct folder *f, int step, const char *loss) {
    char line[200];
    snprintf(line, sizeof line, STEP, step, loss);
    take(f, line);
}

static void the_directory_is_made_and_the_file_comes_with_the_first_step(void **state) {
    struct folder *f = *state;
    check_ok(ot_dashboards_open(f->events, NULL, &f->dashboards));
    take(f, RUN);
    take(f, "{\"event\":\"checkpoint\",\"step\":1}");
    assert_int_equal(count(f->events), 0);
    take_step(f, 2, "1.5");
    assert_int_equal(count(f->events), 1);
    take(f, "{\"event\":\"done\",\"steps\":2}");
    assert_int_equal(count(f->events), 1);
    assert_int_equal(access(f->metrics, F_OK), -1);
}

/* Counters add up, labels are escaped, what is not known is left out, and so is a loss that is not finite. */
static void metrics_have_the_last_values(void **state) {
    struct folder *f = *state;
    check_ok(ot_dashboards_open(NULL, f->metrics, &f->dashboards));
    assert_int_equal(access(f->metrics, F_OK), -1);
    take(f, RUN);
    assert_non_null(strstr(metrics_of(f), "offload_train_finished{out=\"a\\\\b\\\"c\\nd\"} 0\n"));
    assert_null(strstr(metrics_of(f), "offload_train_step"));
    take_step(f, 1, "1.5");
    take_step(f, 2, "0.1");
    take_step(f, 3, "null");
    assert_null(strstr(metrics_of(f), "offload_train_step")); /* a second has not passed */
    take(f, "{\"event\":\"checkpoint\",\"step\":1}");
    take(f, "{\"event\":\"checkpoint\",\"step\":3}");
    assert_non_null(strstr(metrics_of(f), "offload_train_checkpoint_step{out=\"a\\\\b\\\"c\\nd\"} 3\n"));
    take(f, "{\"event\":\"eval\",\"step\":3,\"loss\":0.25}");
    const char *text = metrics_of(f);
    assert_non_null(strstr(text, "# TYPE offload_train_step gauge\noffload_train_step{out=\"a"));
    assert_non_null(strstr(text, "d\"} 3\n# HELP offload_train_loss_nats"));
    assert_non_null(strstr(text, "# TYPE offload_train_loss_nats gauge\noffload_train_loss_nats{"));
    assert_non_null(strstr(text, "} 0.1\n"));
    assert_non_null(strstr(text, "# TYPE offload_train_tokens_total counter\n"));
    assert_non_null(strstr(text, "} 9000000000\n"));
    assert_non_null(strstr(text, "offload_train_nvme_read_bytes_total{out=\"a\\\\b\\\"c\\nd\"} 21\n"));
    assert_non_null(strstr(text, "offload_train_eval_loss_nats{out=\"a\\\\b\\\"c\\nd\"} 0.25\n"));
    assert_null(strstr(text, "offload_train_eval_accuracy"));
    take(f, "{\"event\":\"done\",\"steps\":3,\"interrupted\":true}");
    assert_non_null(strstr(metrics_of(f), "offload_train_finished{out=\"a\\\\b\\\"c\\nd\"} 0\n"));
    take(f, "{\"event\":\"done\",\"steps\":3,\"interrupted\":false}");
    assert_non_null(strstr(metrics_of(f), "offload_train_finished{out=\"a\\\\b\\\"c\\nd\"} 1\n"));
    char partial[640];
    snprintf(partial, sizeof partial, "%s.partial", f->metrics);
    assert_int_equal(access(partial, F_OK), -1);
}

/* A second later the next step is written, without another event. */
static void metrics_are_written_once_a_second(void **state) {
    struct folder *f = *state;
    struct ot_metrics *metrics;
    struct ot_json *step;
    char line[200];
    snprintf(line, sizeof line, STEP, 5, "2");
    check_ok(ot_json_parse(line, strlen(line), "line", &step));
    check_ok(ot_metrics_open(f->metrics, &metrics));
    check_ok(ot_metrics_write(metrics, false)); /* the first time */
    ot_metrics_take(metrics, step);
    check_ok(ot_metrics_write(metrics, false));
    assert_null(strstr(metrics_of(f), "offload_train_step"));
    usleep(1010000);
    check_ok(ot_metrics_write(metrics, false));
    assert_non_null(strstr(metrics_of(f), "offload_train_step 5\n"));
    ot_metrics_close(metrics);
    ot_json_free(step);
}

static void what_cannot_be_written_is_refused_at_once(void **state) {
    struct folder *f = *state;
    char path[700];
    write_file(f->root, "file", "", 0);
    snprintf(path, sizeof path, "%s/file/events", f->root);
    check_fails(ot_dashboards_open(path, NULL, &f->dashboards), OT_E_IO, "cannot make the directory");
    ot_dashboards_close(f->dashboards);
    snprintf(path, sizeof path, "%s/none/run.prom", f->root);
    check_fails(ot_dashboards_open(NULL, path, &f->dashboards), OT_E_IO, "/none: ");
    ot_dashboards_close(f->dashboards);
    check_fails(ot_dashboards_open(NULL, "execution", &f->dashboards), OT_E_USAGE,
                "--metrics execution: the name must end with .prom");
}

/* Both fail in the middle of the run, each with one warning. */
static void a_dashboard_that_fails_gets_no_more_lines(void **state) {
    struct folder *f = *state;
    check_ok(ot_dashboards_open(f->events, f->metrics, &f->dashboards));
    take(f, "no line of a log");
    take(f, "{\"step\":1}");
    assert_int_equal(mkdir(f->metrics, 0777), 0);
    assert_int_equal(rmdir(f->events), 0);
    for (int step = 1; step < 4; step++)
        take_step(f, step, "1");
    assert_int_equal(rmdir(f->metrics), 0);
    assert_int_equal(mkdir(f->events, 0777), 0);
    take(f, "{\"event\":\"done\",\"steps\":3}");
    assert_int_equal(count(f->events), 0);
    assert_int_equal(access(f->metrics, F_OK), -1);
}

int main(void) {
#define dashboard_test(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)
    const struct CMUnitTest tests[] = {
        dashboard_test(the_directory_is_made_and_the_file_comes_with_the_first_step),
        dashboard_test(metrics_have_the_last_values),
        dashboard_test(metrics_are_written_once_a_second),
        dashboard_test(what_cannot_be_written_is_refused_at_once),
        dashboard_test(a_dashboard_that_fails_gets_no_more_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
