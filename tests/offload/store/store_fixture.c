#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/offload/store/store_fixture.h"

const struct way ways[N_WAYS] = {{"uring", OT_IO_URING, false},
                                 {"pool", OT_IO_POOL, false},
                                 {"uring, buffered", OT_IO_URING, true},
                                 {"pool, buffered", OT_IO_POOL, true}};

bool ring_is_refused(void) {
    struct ot_io_engine *engine = NULL;
    struct ot_io_engine_config config = {.choice = OT_IO_URING, .depth = 1};
    int rc = ot_io_engine_open(&config, &engine);
    ot_io_engine_close(engine);
    return rc < 0;
}

int run_all_ways(const struct CMUnitTest *tests, size_t n) {
    int failures = 0;
    for (int way = 0; way < N_WAYS; way++) {
        struct CMUnitTest of_way[32];
        assert_in_range(n, 1, sizeof of_way / sizeof *of_way);
        if (ways[way].engine == OT_IO_URING && ring_is_refused()) {
            fprintf(stderr, "SKIP: %s: %s\n", ways[way].name, ot_error_text());
            continue;
        }
        memcpy(of_way, tests, n * sizeof *tests);
        for (size_t i = 0; i < n; i++)
            of_way[i].initial_state = (void *)&ways[way];
        failures += _cmocka_run_group_tests(ways[way].name, of_way, n, NULL, NULL);
    }
    return failures;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* ---- faults ---- */

static int faulty_open(void *context, int dir_fd, const char *path, int flags, mode_t mode) {
    struct faults *f = context;
    if (f->open_error)
        return -f->open_error;
    if (f->refuse_direct && (flags & O_DIRECT))
        return -EINVAL;
    return ot_io_system.open(NULL, dir_fd, path, flags, mode);
}

static int faulty_allocate(void *context, int fd, int mode, off_t offset, off_t bytes) {
    struct faults *f = context;
    int error = mode & FALLOC_FL_PUNCH_HOLE ? f->punch_error : f->allocate_error;
    return error ? -error : ot_io_system.allocate(NULL, fd, mode, offset, bytes);
}

static int faulty_sync(void *context, int fd) {
    struct faults *f = context;
    atomic_fetch_add(&f->syncs, 1);
    if (atomic_load(&f->sync_interrupts) > 0 && atomic_fetch_sub(&f->sync_interrupts, 1) > 0)
        return -EINTR;
    return f->sync_error ? -f->sync_error : ot_io_system.fdatasync(NULL, fd);
}

/* Returns the result that the test reports instead of the true one. */
static int64_t distort(struct faults *f, bool write, int64_t result) {
    uint64_t dice = mix_bits((uint64_t)atomic_fetch_add(&f->calls, 1));
    while (write && atomic_load(&f->hold_writes))
        nap();
    int64_t left = atomic_load(&f->fail_at) > 0 ? atomic_fetch_sub(&f->fail_at, 1) : 0;
    if (left == 1 || (left <= 0 && f->fail_from_there && f->fail_error && atomic_load(&f->fail_at) <= 0))
        return -f->fail_error;
    if ((int)(dice % 100) < f->storm_percent)
        return -f->storm_error;
    if (f->short_transfers && result > 0 && (dice >> 32) % 2)
        return 1 + (int64_t)((dice >> 8) % (uint64_t)result);
    return result;
}

static void count_in(struct faults *f) {
    int now = atomic_fetch_add(&f->in_flight, 1) + 1, most = atomic_load(&f->most_in_flight);
    while (now > most && !atomic_compare_exchange_weak(&f->most_in_flight, &most, now))
        ;
}

static ssize_t faulty_pread(void *context, int fd, void *memory, size_t bytes, off_t offset) {
    struct faults *f = context;
    count_in(f);
    ssize_t n = (ssize_t)distort(f, false, ot_io_system.pread(NULL, fd, memory, bytes, offset));
    atomic_fetch_sub(&f->in_flight, 1);
    return n;
}

static ssize_t faulty_pwrite(void *context, int fd, const void *memory, size_t bytes, off_t offset) {
    struct faults *f = context;
    if (f->refuse_direct_io && (fcntl(fd, F_GETFL) & O_DIRECT))
        return -EINVAL;
    count_in(f);
    ssize_t n = (ssize_t)distort(f, true, ot_io_system.pwrite(NULL, fd, memory, bytes, offset));
    atomic_fetch_sub(&f->in_flight, 1);
    return n;
}

static int faulty_setup(void *context, unsigned flags) {
    struct faults *f = context;
    return flags & f->refused_flags ? -EINVAL : -f->ring_error;
}

static int faulty_register(void *context, bool buffers) {
    struct faults *f = context;
    return buffers ? -f->arena_error : -f->files_error;
}

static int faulty_result(void *context, bool write, int result) {
    return (int)distort(context, write, result);
}

struct ot_io_calls faulty_calls(struct faults *faults) {
    struct ot_io_calls calls = ot_io_system;
    calls.context = faults;
    calls.open = faulty_open;
    calls.allocate = faulty_allocate;
    calls.fdatasync = faulty_sync;
    calls.pread = faulty_pread;
    calls.pwrite = faulty_pwrite;
    calls.ring_setup = faulty_setup;
    calls.ring_register = faulty_register;
    calls.ring_result = faulty_result;
    return calls;
}

/* ---- a store ---- */

void fixture_open(struct fixture *f, const struct way *way, int n_extents, const size_t *extent_bytes,
                  const struct ot_store_config *more) {
    memset(f, 0, sizeof *f);
    f->folder = make_folder();
    f->faults.refuse_direct = way->buffered;
    f->calls = faulty_calls(&f->faults);
    struct ot_store_config config = more ? *more : (struct ot_store_config){0};
    struct ot_store_dir dir = {f->folder, (size_t)1 << 30};
    config.n_dirs = 1;
    config.dirs = &dir;
    config.engine = way->engine;
    config.n_extents = n_extents;
    config.extent_bytes = extent_bytes;
    config.calls = &f->calls;
    check_ok(ot_store_open(&config, &f->store));
}

void fixture_close(struct fixture *f) {
    ot_store_close(f->store);
    assert_null(store_file(f->folder, 0));
    remove_folder(f->folder);
}

static int is_store_file(const struct dirent *entry) {
    return strstr(entry->d_name, ".store") != NULL;
}

const char *store_file(const char *folder, int index) {
    static char path[1024];
    struct dirent **entries;
    int n = scandir(folder, &entries, is_store_file, alphasort);
    assert_true(n >= 0);
    if (index < n)
        snprintf(path, sizeof path, "%s/%s", folder, entries[index]->d_name);
    for (int i = 0; i < n; i++)
        free(entries[i]);
    free(entries);
    return index < n ? path : NULL;
}

/* ---- transfers ---- */

static void count_out(void *arg, const struct ot_error *error) {
    struct waiting *waiting = arg;
    pthread_mutex_lock(&waiting->mutex);
    if (error && waiting->first.code == 0)
        waiting->first = *error;
    pthread_mutex_unlock(&waiting->mutex);
    atomic_fetch_sub(&waiting->n, 1);
}

void start_transfer(struct ot_store *store, struct waiting *waiting, bool write, int n,
                    const struct ot_store_piece *pieces) {
    struct ot_transfer transfer = {write, n, pieces, count_out, waiting};
    atomic_fetch_add(&waiting->n, 1);
    check_ok(ot_store_start(store, &transfer));
}

int wait_all(struct waiting *waiting) {
    while (atomic_load(&waiting->n) > 0)
        nap();
    struct ot_error first = waiting->first;
    waiting->first.code = 0;
    return first.code ? ot_error_load(&first) : 0;
}
