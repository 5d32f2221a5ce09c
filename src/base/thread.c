#include "src/base/thread.h"

#include <signal.h>
#include <stdio.h>

int ot_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg) {
    sigset_t all, old;
    char short_name[16];
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* a new thread inherits the mask */
    int error = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error)
        return error;
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(*thread, short_name);
    return 0;
}
