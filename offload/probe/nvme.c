/* The probe of the disks through the store, with checksums: the rates that training gets. probe/engines.c
 * measures the I/O engines alone. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "offload/probe/probe_state.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* WINDOW: transfers in flight in each direction: more than the store's depth, so that its queues are never
 * empty. Small transfers measure the fixed cost of a transfer, so as many are in flight as in training
 * (engine/executor_lanes.c). PASSES: passes of each row. */
enum {
    MOST_EXTENTS = 128,
    LEAST_EXTENTS = 4,
    MOST_SMALL = 64,
    WINDOW = 8,
    SMALL_WINDOW = 2,
    WAYS = 2,
    PASSES = 3
};

struct way { /* one direction: reading or writing */
    struct through *through;
    int64_t started, done;
};

struct through {
    const struct ot_probe_nvme_config *config;
    struct ot_store *store;
    size_t extent_bytes;
    int n_extents;            /* extents in use */
    int first_small, n_small; /* extents of OT_STORE_ALIGN bytes; 0: there is no room for them */
    char *memory;             /* WINDOW extents for each direction */
    size_t memory_bytes;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct way ways[WAYS]; /* index: 0 read, 1 write */
    struct ot_error error; /* the first error; code 0: none */
};

/* ---- transfers ---- */

static void take_done(void *arg, const struct ot_error *error) {
    struct way *way = arg;
    struct through *t = way->through;
    pthread_mutex_lock(&t->mutex);
    way->done++;
    if (error && t->error.code == 0)
        t->error = *error;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
}

/* Starts the direction's next transfer. Its extents are [first, first + n), used in turn. At most n are in
 * flight and they end in the order in which they began, so no extent is written twice at once. */
static int start_next(struct through *t, bool write, int first, int n) {
    struct way *way = &t->ways[write];
    struct ot_store_piece piece = {.extent = first + (int)(way->started % n),
                                   .memory = t->memory + (size_t)(write * WINDOW + way->started % WINDOW) *
                                                             t->extent_bytes};
    struct ot_transfer transfer = {
        .write = write, .n_pieces = 1, .pieces = &piece, .done = take_done, .arg = way};
    way->started++;
    int rc = ot_store_start(t->store, &transfer);
    if (rc < 0)
        way->started--;
    return rc;
}

/* Waits until fewer than `most` transfers of the direction are in flight; most 0: until none is. Returns the
 * first error of any transfer. */
static int wait_for(struct through *t, bool write, int most) {
    struct way *way = &t->ways[write];
    pthread_mutex_lock(&t->mutex);
    while (way->started - way->done > (most ? most - 1 : 0))
        pthread_cond_wait(&t->changed, &t->mutex);
    int rc = t->error.code ? ot_error_load(&t->error) : 0;
    pthread_mutex_unlock(&t->mutex);
    return rc;
}

struct pass {
    enum ot_probe_io io;
    bool small;        /* uses the small extents */
    double limit;      /* seconds after which no transfer is started */
    int64_t most;      /* limit of transfers in each direction */
    double seconds;    /* out */
    int64_t transfers; /* out */
};

static int run_pass(struct through *t, struct pass *pass) {
    bool uses[WAYS] = {pass->io != OT_PROBE_WRITE, pass->io != OT_PROBE_READ};
    bool both = uses[0] && uses[1];
    int first = pass->small ? t->first_small : 0, all = pass->small ? t->n_small : t->n_extents;
    int most = pass->small ? SMALL_WINDOW : WINDOW, n = both ? all / 2 : all, window = ot_min(n, most);
    int rc = 0;
    t->ways[0] = t->ways[1] = (struct way){.through = t};
    double since = ot_clock_seconds();
    for (int64_t i = 0; i < pass->most && rc == 0 && (i == 0 || ot_clock_seconds() - since < pass->limit);
         i++)
        for (int write = 0; write < WAYS && rc == 0; write++) {
            if (!uses[write])
                continue;
            rc = wait_for(t, write, window);
            if (rc == 0)
                rc = start_next(t, write, first + (both && write ? n : 0), n);
        }
    for (int write = 0; write < WAYS; write++) {
        int rest = wait_for(t, write, 0);
        rc = rc < 0 ? rc : rest;
    }
    pass->seconds = ot_clock_seconds() - since;
    pass->transfers = t->ways[0].done + t->ways[1].done;
    return rc;
}

/* ---- the store ---- */

/* Chooses extents within the allowed disk space: as large as possible with at least LEAST_EXTENTS extents of
 * two sides each. */
static int choose_extents(struct through *t, size_t extent_bytes[MOST_EXTENTS + MOST_SMALL]) {
    const struct ot_probe_nvme_config *c = t->config;
    size_t room = 0;
    for (int i = 0; i < c->store->n_dirs; i++)
        room += c->store->dirs[i].bytes / OT_STORE_ALIGN * OT_STORE_ALIGN;
    room = ot_min(room, c->bytes);
    size_t small = room / OT_STORE_ALIGN / 32; /* two sides each: a sixteenth of the room at most */
    t->n_small = small < MOST_SMALL ? (int)small : MOST_SMALL;
    room -= 2 * (size_t)t->n_small * OT_STORE_ALIGN;
    size_t extent = room / (2 * LEAST_EXTENTS) / OT_STORE_ALIGN * OT_STORE_ALIGN;
    if (extent == 0)
        return ot_fail(OT_E_BUDGET, "%s: the probe needs %d KiB of disk space there", c->store->dirs[0].path,
                       2 * LEAST_EXTENTS * OT_STORE_ALIGN / 1024);
    size_t most = ot_probe_io_bytes(c) / (WAYS * WINDOW) / OT_STORE_ALIGN * OT_STORE_ALIGN;
    if (most == 0)
        return ot_fail(OT_E_BUDGET, "the probe of the disks needs %d KiB of memory",
                       WAYS * WINDOW * OT_STORE_ALIGN / 1024);
    t->extent_bytes = ot_min(extent, most);
    t->n_extents = (int)ot_min(room / 2 / t->extent_bytes, MOST_EXTENTS);
    t->first_small = t->n_extents;
    for (int i = 0; i < t->n_extents + t->n_small; i++)
        extent_bytes[i] = i < t->first_small ? t->extent_bytes : OT_STORE_ALIGN;
    return 0;
}

static int open_store(struct through *t) {
    size_t extent_bytes[MOST_EXTENTS + MOST_SMALL];
    const struct ot_probe_nvme_config *c = t->config;
    OT_TRY(choose_extents(t, extent_bytes));
    t->memory_bytes = WAYS * WINDOW * t->extent_bytes;
    OT_TRY(ot_probe_map_random(t->memory_bytes, &t->memory));
    struct ot_store_config config = *c->store;
    config.n_extents = t->n_extents + t->n_small;
    config.extent_bytes = extent_bytes;
    config.arena = t->memory;
    config.arena_bytes = t->memory_bytes;
    return ot_store_open(&config, &t->store);
}

/* Writes both sides of the extents once. Only the extents written within the time of a row stay in use. */
static int write_first(struct through *t) {
    struct pass pass = {.io = OT_PROBE_WRITE, .limit = t->config->seconds, .most = t->n_extents};
    OT_TRY(run_pass(t, &pass));
    if (pass.transfers < t->n_extents)
        t->n_extents = pass.transfers < LEAST_EXTENTS ? LEAST_EXTENTS : (int)pass.transfers;
    pass = (struct pass){.io = OT_PROBE_WRITE, .limit = 1e9, .most = t->n_extents};
    return run_pass(t, &pass);
}

/* Totals of one kind of I/O. */
struct total {
    double seconds, work;
    struct ot_repeats bytes; /* seconds per byte, a value for each pass */
};

/* Runs PASSES passes of each kind of I/O, alternating. Reading does not wear out the disks; the other kinds
 * write at most as much as the extents hold. */
static int run_passes(struct through *t, struct total totals[OT_PROBE_IOS]) {
    int64_t most = ot_max(t->n_extents / PASSES, 1);
    for (int number = 0; number < PASSES; number++)
        for (int io = 0; io < OT_PROBE_IOS; io++) {
            struct pass pass = {.io = (enum ot_probe_io)io,
                                .limit = t->config->seconds / 2,
                                .most = io == OT_PROBE_READ ? INT64_MAX : most};
            OT_TRY(run_pass(t, &pass));
            double work = (double)pass.transfers * (double)t->extent_bytes;
            totals[io].work += work;
            totals[io].seconds += pass.seconds;
            ot_repeats_add(&totals[io].bytes, pass.seconds / work);
        }
    return 0;
}

static int probe_store(struct through *t, const double best[OT_PROBE_IOS]) {
    static const enum ot_probe_use uses[OT_PROBE_IOS] = {OT_PROBE_NVME_READ, OT_PROBE_NVME_WRITE,
                                                         OT_PROBE_NVME_MIXED};
    struct total totals[OT_PROBE_IOS] = {0};
    OT_TRY(write_first(t));
    OT_TRY(run_passes(t, totals));
    for (int io = 0; io < OT_PROBE_IOS; io++) {
        char name[32];
        snprintf(name, sizeof name, "store %s", ot_probe_io_name((enum ot_probe_io)io));
        struct ot_probe_row row = {.group = OT_PROBE_NVME,
                                   .use = uses[io],
                                   .name = name,
                                   .seconds = totals[io].seconds,
                                   .work = totals[io].work,
                                   .spread = ot_repeats_spread(&totals[io].bytes),
                                   .peak = best[io],
                                   .disk = {.by_store = true, .io = (enum ot_probe_io)io}};
        OT_TRY(ot_probe_report(&t->config->reader, row));
    }
    return 0;
}

/* The time of a small transfer: it has so few bytes that only its start counts. */
static int probe_starts(struct through *t) {
    static const enum ot_probe_use uses[WAYS] = {OT_PROBE_NVME_READ_START, OT_PROBE_NVME_WRITE_START};
    struct ot_repeats times[WAYS] = {0};
    struct pass first = {.io = OT_PROBE_WRITE, .small = true, .limit = 1e9, .most = t->n_small};
    if (t->n_small == 0)
        return 0;
    OT_TRY(run_pass(t, &first));
    for (int i = 0; i < PASSES * WAYS; i++) {
        struct pass pass = {.io = i % WAYS ? OT_PROBE_WRITE : OT_PROBE_READ,
                            .small = true,
                            .limit = t->config->seconds / 2,
                            .most = 4 * t->n_small};
        OT_TRY(run_pass(t, &pass));
        ot_repeats_add(&times[i % WAYS], pass.seconds / (double)pass.transfers);
    }
    for (int write = 0; write < WAYS; write++) {
        char name[32];
        snprintf(name, sizeof name, "store %s of %d KiB", write ? "write" : "read", OT_STORE_ALIGN / 1024);
        struct ot_probe_row row = {.group = OT_PROBE_TASK, .use = uses[write], .name = name, .work = 1};
        OT_TRY(ot_probe_report_times(&t->config->reader, row, &times[write]));
    }
    return 0;
}

int ot_probe_nvme(const struct ot_probe_nvme_config *config, struct ot_probe_nvme_result *out) {
    struct through t = {
        .config = config, .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    double best[OT_PROBE_IOS] = {0};
    int rc = 0;
    *out = (struct ot_probe_nvme_result){0};
    if (!config->quick)
        OT_TRY_GOTO(ot_probe_engines(config, &out->written_bytes, best), rc, out);
    OT_TRY_GOTO(open_store(&t), rc, out);
    snprintf(out->store, sizeof out->store, "%s", ot_store_describe(t.store));
    OT_TRY_GOTO(probe_store(&t, best), rc, out);
    OT_TRY_GOTO(probe_starts(&t), rc, out);
out:
    if (t.store) {
        struct ot_store_usage usage;
        ot_store_usage(t.store, &usage);
        out->written_bytes += usage.written_bytes;
    }
    ot_store_close(t.store);
    if (t.memory)
        munmap(t.memory, t.memory_bytes);
    return rc;
}
