#include "tests/support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "src/base/log.h"

/* ---- catching stderr ---- */

static int saved_stderr;
static char caught[1 << 16];

static void catch_in(int fd) {
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
}

static void release(void) {
    fflush(stderr);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
}

static FILE *catch_in_file(void) {
    FILE *file = tmpfile();
    assert_non_null(file);
    catch_in(fileno(file));
    return file;
}

static const char *caught_in_file(FILE *file) {
    release();
    rewind(file);
    size_t bytes = fread(caught, 1, sizeof caught - 1, file);
    caught[bytes] = '\0';
    fclose(file);
    return caught;
}

/* ---- lines ---- */

static void test_levels_and_prefixes(void **state) {
    (void)state;
    FILE *file = catch_in_file();
    ot_log(OT_LOG_INFO, "plain %d", 1);
    ot_log(OT_LOG_WARN, "careful");
    ot_log(OT_LOG_ERROR, "broken");
    ot_log(OT_LOG_DEBUG, "hidden");
    ot_log_set_level(OT_LOG_DEBUG);
    ot_log(OT_LOG_DEBUG, "shown");
    ot_log_set_level(OT_LOG_ERROR);
    ot_log(OT_LOG_WARN, "hidden");
    ot_log(OT_LOG_ERROR, "still");
    ot_log_set_level(OT_LOG_INFO);
    assert_string_equal(caught_in_file(file),
                        "plain 1\nwarning: careful\nerror: broken\ndebug: shown\nerror: still\n");
}

static void test_a_line_is_one_line(void **state) {
    (void)state;
    char name[5000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    FILE *file = catch_in_file();
    ot_log(OT_LOG_INFO, "a\nb\033[2Jc");
    ot_log(OT_LOG_INFO, "%s", name);
    const char *text = caught_in_file(file);
    assert_int_equal(strncmp(text, "a b [2Jc\n", 9), 0);
    assert_int_equal(strlen(text), 9 + 4999 + 1);
}

static void test_no_status_without_a_terminal(void **state) {
    (void)state;
    FILE *file = catch_in_file();
    bool terminal = ot_log_is_terminal(), shown = ot_log_set_status("50 %");
    ot_log(OT_LOG_INFO, "line");
    assert_string_equal(caught_in_file(file), "line\n");
    assert_false(terminal);
    assert_false(shown);
}

/* ---- the status line of a terminal ---- */

static int open_terminal(int *other_end) {
    int main_end = posix_openpt(O_RDWR | O_NOCTTY);
    if (main_end < 0 || grantpt(main_end) < 0 || unlockpt(main_end) < 0)
        return -1;
    *other_end = open(ptsname(main_end), O_RDWR | O_NOCTTY);
    struct winsize size = {.ws_row = 25, .ws_col = 11};
    ioctl(main_end, TIOCSWINSZ, &size);
    return main_end;
}

static const char *caught_in_terminal(int main_end, int other_end) {
    release();
    size_t bytes = 0;
    while (strstr(caught, "THE END\r\n") == NULL) {
        ssize_t n = read(main_end, caught + bytes, sizeof caught - 1 - bytes);
        assert_true(n > 0);
        bytes += (size_t)n;
        caught[bytes] = '\0';
    }
    close(other_end);
    close(main_end);
    return caught;
}

static void test_status_stays_below_the_lines(void **state) {
    (void)state;
    int other_end = -1, main_end = open_terminal(&other_end);
    if (main_end < 0 || other_end < 0) {
        print_message("no pseudo-terminals here\n");
        skip();
    }
    caught[0] = '\0';
    catch_in(other_end);
    bool terminal = ot_log_is_terminal();
    ot_log_set_status("");        /* no status line to remove, so nothing is written */
    ot_log_set_status("step\n1"); /* the newline is replaced: a status is one line */
    ot_log(OT_LOG_WARN, "hm");
    ot_log_set_status("0123456789too long");
    ot_log_set_status("words in two lines"); /* the line has room for "words in t" */
    ot_log_set_status("words in 3 lines");   /* the whole word fits, and the space after it does not */
    /* 11 times the letter e with an acute accent. */
    ot_log_set_status("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3"
                      "\xa9");
    ot_log_set_status("");
    ot_log(OT_LOG_INFO, "THE END");
    const char *text = caught_in_terminal(main_end, other_end);
    assert_true(terminal);
    assert_string_equal(
        text, "\r\033[Kstep 1"
              "\r\033[Kwarning: hm\r\nstep 1"
              "\r\033[K0123456789"
              "\r\033[Kwords in"
              "\r\033[Kwords in 3"
              "\r\033[K\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
              "\r\033[KTHE END\r\n");
}

/* ---- threads ---- */

enum { LINES = 200 };

static void *log_lines(void *arg) {
    for (int i = 0; i < LINES; i++)
        ot_log(OT_LOG_INFO, "%s%s%s", (const char *)arg, (const char *)arg, (const char *)arg);
    return NULL;
}

static void test_lines_of_threads_do_not_mix(void **state) {
    (void)state;
    pthread_t threads[3];
    static char words[3][8] = {"aaaa", "bbbb", "cccc"};
    FILE *file = catch_in_file();
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, log_lines, words[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    char *text = (char *)caught_in_file(file);
    int n = 0;
    for (char *rest, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), n++) {
        assert_int_equal(strlen(line), 12);
        assert_int_equal(strspn(line, (char[]){line[0], '\0'}), 12);
    }
    assert_int_equal(n, 3 * LINES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_and_prefixes),
        cmocka_unit_test(test_a_line_is_one_line),
        cmocka_unit_test(test_no_status_without_a_terminal),
        cmocka_unit_test(test_status_stays_below_the_lines),
        cmocka_unit_test(test_lines_of_threads_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
