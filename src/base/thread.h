/* Threads. Each is named, for debuggers and `top -H`, and deaf to signals. Signals are for the main thread
 * alone: two that come close together are then answered one after the other, in order.
 */
#ifndef OT_BASE_THREAD_H
#define OT_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The stack of each thread, whatever `ulimit -s` says. Our own functions need less than a tenth of it;
 * oneDNN and cuBLASLt, which run on these threads too, do not say what they need. A limit on memory
 * (`ulimit -d`) counts stacks whole, so they are not larger than that. */
enum { OT_THREAD_STACK_BYTES = 1 << 20 };

/* The name is cut to the 15 bytes that the kernel keeps. Returns 0 or an errno value, as pthread_create
 * does; the caller joins the thread. */
int ot_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg);

/* A condition whose limited waits follow the monotonic clock: setting the wall clock ends none of them early
 * and makes none last. The caller destroys it with pthread_cond_destroy. */
void ot_cond_init(pthread_cond_t *cond);
/* As pthread_cond_wait, until ot_clock_ns() is until_ns at the latest. False: that time has come. */
bool ot_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns);

#endif
