/* Waits with a time limit use the monotonic clock. */
#include "src/base/clock.h"
#include "src/base/thread.h"
#include "tests/support/check.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond;
static bool is_set;

/* A condition variable on the wall clock would return at once, because this time passed on that clock decades
 * ago. */
static void test_a_wait_lasts_until_its_time(void **state) {
    (void)state;
    int64_t began = ot_clock_ns(), until = began + 50000000;
    bool in_time = true;
    pthread_mutex_lock(&mutex);
    while (in_time)
        in_time = ot_cond_wait_until(&cond, &mutex, until);
    pthread_mutex_unlock(&mutex);
    assert_true(ot_clock_ns() >= until);
}

static void *set(void *arg) {
    pthread_mutex_lock(&mutex);
    is_set = true;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex);
    return arg;
}

static void test_a_signal_ends_a_wait(void **state) {
    pthread_t thread;
    bool in_time = true;
    (void)state;
    pthread_mutex_lock(&mutex);
    assert_int_equal(ot_thread_start(&thread, "setter", set, NULL), 0);
    while (!is_set && in_time)
        in_time = ot_cond_wait_until(&cond, &mutex, ot_clock_ns() + 60000000000);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
    assert_true(is_set && in_time);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_lasts_until_its_time),
        cmocka_unit_test(test_a_signal_ends_a_wait),
    };
    ot_cond_init(&cond);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
