/* Output streams whose reader is slow, stopped or gone: no writer waits, and dropped lines are counted. */
#include "tests/support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"

enum { PROGRESS_BYTES = 2000, MOST_BYTES = 8000, LINES = 20000 };

static int ends[2];

static struct ot_output *open_pipe(void) {
    struct ot_output *output;
    struct ot_output_config config = {.name = "the pipe",
                                      .progress_bytes = PROGRESS_BYTES,
                                      .most_bytes = MOST_BYTES,
                                      .before_count = "note ",
                                      .after_count = " left out\n"};
    assert_int_equal(pipe(ends), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    config.fd = ends[1];
    assert_int_equal(ot_output_open(&config, &output), 0);
    return output;
}

static void put(struct ot_output *output, enum ot_output_kind kind, const char *text) {
    assert_int_equal(ot_output_put(output, kind, text, strlen(text)), 0);
}

/* Reads until the text `until` has come. */
static char *read_pipe(const char *until) {
    size_t capacity = 1 << 20, bytes = 0;
    char *text = calloc(1, capacity);
    assert_non_null(text);
    while (!strstr(text, until)) {
        ssize_t n = read(ends[0], text + bytes, capacity - 1 - bytes);
        assert_true(n > 0);
        bytes += (size_t)n;
    }
    return text;
}

static void test_every_text_arrives_in_order(void **state) {
    (void)state;
    struct ot_output *output = open_pipe();
    put(output, OT_OUTPUT_TEXT, "first\n");
    put(output, OT_OUTPUT_PROGRESS, "second\n");
    put(output, OT_OUTPUT_REDRAW, "third\n");
    assert_true(ot_output_flush(output, 10));
    char *text = read_pipe("third\n");
    assert_string_equal(text, "first\nsecond\nthird\n");
    free(text);
    ot_output_close(output);
    close(ends[0]);
    close(ends[1]);
}

/* Each line is there, or a note at its place counts it as dropped. */
static void test_progress_is_left_out_and_counted(void **state) {
    (void)state;
    struct ot_output *output = open_pipe();
    char line[32];
    long shown = 0, next = 0, notes = 0;
    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof line, "line %d\n", i);
        put(output, OT_OUTPUT_PROGRESS, line);
        put(output, OT_OUTPUT_REDRAW, "bar\n");
    }
    put(output, OT_OUTPUT_TEXT, "THE END\n");
    char *text = read_pipe("THE END\n"), *rest = NULL;
    for (char *at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(at, "line ", 5) == 0) {
            assert_int_equal(strtol(at + 5, NULL, 10), next++);
            shown++;
        } else if (strncmp(at, "note ", 5) == 0) {
            next += strtol(at + 5, NULL, 10);
            notes++;
        }
    }
    free(text);
    assert_int_equal(next, LINES);
    assert_in_range(shown, 100, 2000);
    assert_in_range(notes, 1, 20);
    ot_output_close(output);
    close(ends[0]);
    close(ends[1]);
}

/* Nobody reads. No put, no flush and no end waits, and the queue is bounded. */
static void test_nobody_waits_for_a_reader(void **state) {
    (void)state;
    struct ot_output *output = open_pipe();
    double began = ot_clock_seconds();
    for (int i = 0; i < LINES; i++)
        put(output, OT_OUTPUT_TEXT, "a line that is no progress\n");
    assert_false(ot_output_flush(output, 0.1));
    assert_true(ot_clock_seconds() - began >= 0.1);
    ot_output_close(output);
    assert_true(ot_clock_seconds() - began < 20);
    char text[1 << 16];
    assert_true(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    size_t bytes = 0;
    for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0 || bytes == 0;)
        bytes += n > 0 ? (size_t)n : 0;
    assert_in_range(bytes, 1, MOST_BYTES + 4 * 4096); /* the pipe, the write that hangs, and the queue */
    close(ends[0]);
    close(ends[1]);
}

/* A reader that takes a little from time to time is waited for. */
static void *read_slowly(void *arg) {
    char piece[512];
    size_t *bytes = arg;
    for (ssize_t n; (n = read(ends[0], piece, sizeof piece)) > 0; usleep(20000))
        *bytes += (size_t)n;
    return NULL;
}

static void test_flush_waits_for_a_slow_reader(void **state) {
    (void)state;
    struct ot_output *output = open_pipe();
    pthread_t reader;
    size_t bytes = 0, put_bytes = 0;
    for (; put_bytes < MOST_BYTES; put_bytes += 100)
        put(output, OT_OUTPUT_TEXT,
            "012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345"
            "6789");
    assert_int_equal(pthread_create(&reader, NULL, read_slowly, &bytes), 0);
    assert_true(ot_output_flush(output, 5));
    ot_output_close(output);
    close(ends[1]);
    pthread_join(reader, NULL);
    assert_int_equal(bytes, put_bytes);
    close(ends[0]);
}

static void test_a_reader_that_is_gone_is_an_error(void **state) {
    (void)state;
    struct ot_output *output = open_pipe();
    close(ends[0]);
    put(output, OT_OUTPUT_TEXT, "to nobody\n");
    assert_false(ot_output_flush(output, 10));
    assert_int_equal(ot_output_put(output, OT_OUTPUT_TEXT, "more\n", 5), -OT_E_IO);
    assert_string_equal(ot_error_text(), "the pipe: cannot write: Broken pipe");
    ot_output_close(output);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_text_arrives_in_order),
        cmocka_unit_test(test_progress_is_left_out_and_counted),
        cmocka_unit_test(test_nobody_waits_for_a_reader),
        cmocka_unit_test(test_flush_waits_for_a_slow_reader),
        cmocka_unit_test(test_a_reader_that_is_gone_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
