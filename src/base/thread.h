/* Starting a thread of ours: named, for debuggers and `top -H`, and deaf to signals. Signals are for the main
 * thread alone: two that come close together are then answered one after the other, in order.
 */
#ifndef OT_BASE_THREAD_H
#define OT_BASE_THREAD_H

#include <pthread.h>

/* The name is cut to the 15 bytes that the kernel keeps. Returns 0 or an errno value, as pthread_create does;
 * the caller joins the thread. */
int ot_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg);

#endif
