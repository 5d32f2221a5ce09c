/* Threads. Each has a name, for debuggers and `top -H`, and blocks all signals. Only the main thread receives
 * signals, so two signals that come close together are handled one after the other, in order. */
#ifndef OT_BASE_THREAD_H
#define OT_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Stack size of each thread, independent of `ulimit -s`. Our own functions need less than a tenth of it.
 * oneDNN and cuBLASLt run on these threads too, and their needs are not documented. It is not larger because
 * a limit on memory (`ulimit -d`) counts whole stacks. */
enum { OT_THREAD_STACK_BYTES = 1 << 20 };

/* The name is cut to the 15 bytes that the kernel keeps. Returns 0 or an errno value, as pthread_create
 * does; the caller joins the thread. */
int ot_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg);

/* Initializes a condition whose timed waits use the monotonic clock, so a change of the wall clock does not
 * affect them. The caller destroys it with pthread_cond_destroy. */
void ot_cond_init(pthread_cond_t *cond);
/* Like pthread_cond_wait, but only until ot_clock_ns() reaches until_ns. False: that time is reached. */
bool ot_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns);

#endif
