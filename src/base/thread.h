/* Threads, the pool for loops, and memory that threads make resident. A thread has a name, for debuggers and
 * `top -H`, and blocks all signals: only the main thread receives them, and handles them in order. */
#ifndef OT_BASE_THREAD_H
#define OT_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
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

/* ---- the pool ---- */

/* Thread pool: fork-join loops over a range, for operations and the optimizer.
 *
 * The range is cut into chunks. The borders depend only on the range and the chunk size, never on the number
 * of threads; any thread may run any chunk. To compute a sum, keep one partial result per chunk and add them
 * in chunk order. Then the result does not depend on the number of threads (offload/README.md, rule 1).
 *
 * The calling thread runs chunks too. One loop runs at a time; a second caller waits. A chunk must not start
 * a loop of its own pool. Workers spin for a few microseconds before they sleep, because operations follow
 * each other closely.
 */

struct ot_pool;

/* Works on [begin, end), chunk number `chunk`. `worker` is in [0, threads) and may index scratch memory per
 * thread. */
typedef void (*ot_pool_fn)(void *context, int64_t begin, int64_t end, int64_t chunk, int worker);

struct ot_pool_config {
    int threads; /* >= 1, with the caller of ot_pool_run; a pool of 1 starts no thread */
    const char *name;
    /* Each thread of the pool calls it before its first chunk, to bind itself to cores. `worker` is in [1,
     * threads); worker 0 is the caller of ot_pool_run, which does not call it. NULL: not called. */
    void (*on_start)(void *arg, int worker, int threads);
    void *arg; /* valid until the pool is closed */
};

/* Errors: OT_E_IO when a thread cannot start, OT_E_BUDGET. */
int ot_pool_open_with(const struct ot_pool_config *config, struct ot_pool **out);
int ot_pool_open(int threads, const char *name, struct ot_pool **out); /* without on_start */
void ot_pool_close(struct ot_pool *pool);                              /* NULL is fine */
int ot_pool_threads(const struct ot_pool *pool);

/* Returns when all chunks of [0, count) are done. chunk_size >= 1. */
void ot_pool_run(struct ot_pool *pool, int64_t count, int64_t chunk_size, ot_pool_fn fn, void *context);

static inline int64_t ot_chunk_count(int64_t count, int64_t chunk_size) {
    return (count + chunk_size - 1) / chunk_size;
}

/* ---- resident memory ---- */

/* Makes memory resident before it is used.
 *
 * mmap only reserves pages. The kernel provides each page at the first write to it, one page fault at a time,
 * so pinning an arena of 94 GB on one thread takes most of a minute. Here several threads cause the page
 * faults, which is as fast as the memory. If the system then has too few pages, it kills the program without
 * a message. So this code asks how much memory is free before each piece. If too little is left, it stops
 * with an error that says how far it got. Some virtual machines get more memory while they use it: before it
 * stops, it waits some seconds for that.
 *
 * Linux 5.14 and later populate a range with one call (MADV_POPULATE_WRITE). On older kernels, this code
 * writes to each page.
 */

struct ot_touch_config {
    int threads; /* >= 1 */
    /* Returns the bytes that the system can still provide. NULL: not asked. */
    int64_t (*free_bytes)(void *context);
    void *context;
    double patience_seconds; /* how long to wait for more memory before giving up */
};

enum { OT_TOUCH_PIECE = 256 << 20, OT_TOUCH_RESERVE = 256 << 20 }; /* free memory to leave to the system */

/* memory [bytes]: page-aligned, mapped, writable and all zeros, also afterwards; nobody else uses it. Errors:
 * OT_E_BUDGET: the system has too little memory; the sentence says how much it gave. OT_E_IO: no thread can
 * start. */
int ot_touch_memory(void *memory, size_t bytes, const struct ot_touch_config *config);

#endif
