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
#ifndef OT_BASE_POOL_H
#define OT_BASE_POOL_H

#include <stdint.h>

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

#endif
