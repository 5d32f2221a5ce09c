#include "tests/support/check.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "src/base/utf8.h"

static void test_sentence_and_code(void **state) {
    (void)state;
    ot_error_clear();
    assert_string_equal(ot_error_text(), "");
    assert_int_equal(ot_fail(OT_E_INPUT, "%s: line %d", "a.json", 7), -OT_E_INPUT);
    assert_string_equal(ot_error_text(), "a.json: line 7");
    assert_int_equal(ot_fail_errno(OT_E_IO, ENOENT, "%s: cannot open", "b"), -OT_E_IO);
    assert_string_equal(ot_error_text(), "b: cannot open: No such file or directory");
    ot_error_clear();
    assert_string_equal(ot_error_text(), "");
}

static void test_context_goes_in_front(void **state) {
    (void)state;
    int rc = ot_fail(OT_E_BUDGET, "too big");
    assert_int_equal(ot_fail_context(rc, "layer %d", 3), -OT_E_BUDGET);
    assert_string_equal(ot_error_text(), "layer 3: too big");
    /* the record's own text may be an argument */
    ot_fail(OT_E_IO, "again: %s", ot_error_text());
    assert_string_equal(ot_error_text(), "again: layer 3: too big");
}

static void check_parts(const char *reason, const char *cures) {
    assert_int_equal(ot_error_reason_bytes(), reason ? (int)strlen(reason) : -1);
    if (reason)
        assert_memory_equal(ot_error_text(), reason, strlen(reason));
    assert_string_equal(ot_error_cures(), cures);
}

/* Callers get the cures and what stands before them, also of a sentence with a context in front. */
static void test_cures_are_a_part_of_the_sentence(void **state) {
    (void)state;
    struct ot_error error;
    char name[OT_ERROR_TEXT_BYTES];
    int rc = ot_fail_cause(OT_E_BUDGET, OT_CAUSE_STEP_TOKENS, "too small");
    check_parts(NULL, "");
    assert_int_equal(ot_fail_add_cures(rc, ". What helps: ", "--a; or --b"), -OT_E_BUDGET);
    assert_string_equal(ot_error_text(), "too small. What helps: --a; or --b");
    assert_int_equal(ot_error_cause(), OT_CAUSE_STEP_TOKENS);
    check_parts("too small", "--a; or --b");
    assert_int_equal(ot_fail_context(rc, "point %d", 3), -OT_E_BUDGET);
    check_parts("point 3: too small", "--a; or --b");
    ot_error_save(&error, rc);
    ot_error_clear();
    check_parts(NULL, "");
    ot_error_load(&error);
    check_parts("point 3: too small", "--a; or --b");
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ot_fail_context(rc, "%s", name); /* the middle is cut out */
    assert_string_equal(ot_error_cures(), "--a; or --b");
    assert_string_equal(ot_error_text() + ot_error_reason_bytes(), ". What helps: --a; or --b");
    ot_fail_add_cures(ot_fail(OT_E_BUDGET, "too small"), ". No option helps", "");
    check_parts("too small", "");
    ot_fail(OT_E_BUDGET, "another");
    check_parts(NULL, "");
}

static void test_sentence_is_one_bounded_line(void **state) {
    (void)state;
    ot_fail(OT_E_INPUT, "a\nb\r\033[2Jc\x7f%s", "\t");
    assert_string_equal(ot_error_text(), "a b  [2Jc  ");
    char name[3 * OT_ERROR_TEXT_BYTES];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ot_fail(OT_E_INPUT, "%s", name);
    assert_int_equal(strlen(ot_error_text()), OT_ERROR_TEXT_BYTES - 1);
    assert_int_equal(ot_fail_context(-OT_E_INPUT, "%s", name), -OT_E_INPUT);
    assert_int_equal(strlen(ot_error_text()), OT_ERROR_TEXT_BYTES - 1);
}

/* A name as long as a path may be does not push the reason out of the message. */
static void test_a_long_name_leaves_the_reason(void **state) {
    (void)state;
    static const char reason[] = "\xe2\x82\xac: cannot open: No such file or directory";
    char name[4096];
    for (size_t i = 0; i + 1 < sizeof name; i += 3)
        memcpy(name + i, "\xe2\x82\xac", 3);
    name[sizeof name - 1] = '\0';
    for (int shift = 0; shift < 3; shift++) {
        ot_fail_errno(OT_E_IO, ENOENT, "%.*s%s: cannot open", shift, "ab", name);
        const char *text = ot_error_text();
        size_t length = strlen(text), good;
        assert_in_range(length, OT_ERROR_TEXT_BYTES - 8, OT_ERROR_TEXT_BYTES - 1);
        assert_non_null(strstr(text, " ... "));
        assert_string_equal(text + length - strlen(reason), reason);
        for (size_t at = 0; at < length; at += good)
            assert_int_not_equal(good = ot_utf8_character(text + at, length - at), 0);
    }
}

struct worker {
    struct ot_error error;
    char before[OT_ERROR_TEXT_BYTES];
};

static void *worker_main(void *arg) {
    struct worker *worker = arg;
    strcpy(worker->before, ot_error_text());
    ot_error_save(&worker->error, ot_fail(OT_E_DEVICE, "lane broke"));
    return NULL;
}

/* Each thread has its own record; save and load copy a record to another thread. */
static void test_records_are_per_thread(void **state) {
    (void)state;
    struct worker worker;
    pthread_t thread;
    ot_fail(OT_E_USAGE, "mine");
    assert_int_equal(pthread_create(&thread, NULL, worker_main, &worker), 0);
    pthread_join(thread, NULL);
    assert_string_equal(worker.before, "");
    assert_string_equal(ot_error_text(), "mine");
    assert_int_equal(ot_error_load(&worker.error), -OT_E_DEVICE);
    assert_string_equal(ot_error_text(), "lane broke");
    ot_error_save(&worker.error, 5); /* a success has no code */
    assert_int_equal(worker.error.code, 0);
}

static int steps;

static int step(int rc) {
    steps++;
    return rc;
}

static int try_steps(int first, int second) {
    OT_TRY(step(first));
    OT_TRY(step(second));
    return 0;
}

static int try_goto(int first) {
    int rc;
    OT_TRY_GOTO(step(first), rc, out);
    rc += 100;
out:
    return rc;
}

static void test_try(void **state) {
    (void)state;
    steps = 0;
    assert_int_equal(try_steps(-OT_E_IO, 0), -OT_E_IO);
    assert_int_equal(steps, 1);
    assert_int_equal(try_steps(3, -OT_E_USAGE), -OT_E_USAGE); /* not negative, so it is a success */
    assert_int_equal(try_steps(3, 0), 0);
    assert_int_equal(try_goto(-OT_E_IO), -OT_E_IO);
    assert_int_equal(try_goto(5), 105);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentence_and_code),
        cmocka_unit_test(test_context_goes_in_front),
        cmocka_unit_test(test_cures_are_a_part_of_the_sentence),
        cmocka_unit_test(test_sentence_is_one_bounded_line),
        cmocka_unit_test(test_a_long_name_leaves_the_reason),
        cmocka_unit_test(test_records_are_per_thread),
        cmocka_unit_test(test_try),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
