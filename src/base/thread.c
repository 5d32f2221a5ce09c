#include "src/base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

int ot_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg) {
    sigset_t all, old;
    char short_name[16];
    pthread_attr_t attr;
    int error = pthread_attr_init(&attr);
    if (error)
        return error;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the new thread inherits the mask */
    error = pthread_attr_setstacksize(&attr, OT_THREAD_STACK_BYTES);
    if (!error)
        error = pthread_create(thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (error)
        return error;
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(*thread, short_name);
    return 0;
}

void ot_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool ot_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns) {
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    return pthread_cond_timedwait(cond, mutex, &until) != ETIMEDOUT;
}
