#include "src/base/touch.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/pool.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { CHUNK = 8 << 20, WAIT_MS = 50 };

static double gib(size_t bytes) {
    return (double)bytes / (1 << 30);
}

/* ---- one piece ---- */

struct piece {
    char *memory;
    atomic_int error; /* an errno value; 0: none */
};

static void write_each_page(char *memory, int64_t bytes) {
    long page = sysconf(_SC_PAGESIZE);
    for (int64_t at = 0; at < bytes; at += page)
        *(volatile char *)(memory + at) = 0;
}

static void touch_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct piece *piece = context;
    (void)chunk, (void)worker;
    while (madvise(piece->memory + begin, (size_t)(end - begin), MADV_POPULATE_WRITE) != 0) {
        if (errno == EINVAL) { /* the kernel does not have the call yet */
            write_each_page(piece->memory + begin, end - begin);
            return;
        }
        if (errno != EINTR && errno != EAGAIN) {
            atomic_store(&piece->error, errno);
            return;
        }
    }
}

/* ---- all pieces ---- */

static bool has_room(const struct ot_touch_config *config, size_t bytes) {
    double end = ot_clock_seconds() + config->patience_seconds;
    while (config->free_bytes && config->free_bytes(config->context) < (int64_t)bytes + OT_TOUCH_RESERVE) {
        if (ot_clock_seconds() >= end)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = WAIT_MS * 1000000L}, NULL);
    }
    return true;
}

static int touch_pieces(char *memory, size_t bytes, const struct ot_touch_config *config,
                        struct ot_pool *pool) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = ot_min(bytes - at, OT_TOUCH_PIECE);
        if (!has_room(config, n))
            return ot_fail(OT_E_BUDGET, "the system has no free memory left after %.1f of %.1f GiB", gib(at),
                           gib(bytes));
        struct piece piece = {.memory = memory + at};
        ot_pool_run(pool, (int64_t)n, CHUNK, touch_chunk, &piece);
        int error = atomic_load(&piece.error);
        if (error)
            return ot_fail_errno(OT_E_BUDGET, error, "the system refused memory after %.1f of %.1f GiB",
                                 gib(at), gib(bytes));
    }
    return 0;
}

int ot_touch_memory(void *memory, size_t bytes, const struct ot_touch_config *config) {
    struct ot_pool *pool;
    OT_TRY(ot_pool_open(bytes > CHUNK ? config->threads : 1, "touch", &pool));
    int rc = touch_pieces(memory, bytes, config, pool);
    ot_pool_close(pool);
    return rc;
}
