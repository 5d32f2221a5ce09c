/* What the tests of the NVMe store share: system calls that fail on demand, stores that are opened over them,
 * and transfers that are waited for. */
#ifndef OT_TESTS_OFFLOAD_STORE_FIXTURE_H
#define OT_TESTS_OFFLOAD_STORE_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "offload/store/store.h"
#include "tests/support/check.h"

/* The system's calls with faults. For a ring, a fault is put in the place of a true result: of what "failed"
 * the bytes were moved nevertheless, as they may be on a real disk. Zero it for none. */
struct faults {
    bool refuse_direct;                                      /* opening with O_DIRECT: EINVAL */
    bool refuse_direct_io;                                   /* O_DIRECT can be opened; writing so: EINVAL */
    int open_error, allocate_error, punch_error, sync_error; /* errno values; 0: none */
    _Atomic int sync_interrupts;                             /* so many syncs are interrupted before that */
    int ring_error, files_error, arena_error;                /* of setting a ring up, of registering */
    unsigned refused_flags;                                  /* of setting a ring up: EINVAL */
    bool short_transfers;                                    /* of any length, odd ones as well */
    int storm_percent, storm_error;                          /* so many results become that error */
    _Atomic int64_t fail_at; /* > 0: counts down; the I/O that makes it 0 fails */
    int fail_error;
    bool fail_from_there;     /* and all after it */
    _Atomic bool hold_writes; /* writes do not end while this is set */
    _Atomic int64_t calls, syncs;
    _Atomic int in_flight, most_in_flight; /* of the pool */
    void *user;                            /* a test's own */
};
struct ot_io_calls faulty_calls(struct faults *faults);

/* One of the ways in which every test of transfers runs. */
struct way {
    const char *name;
    enum ot_io_choice engine;
    bool buffered;
};
enum { N_WAYS = 4 };
extern const struct way ways[N_WAYS];
/* Runs the tests in every way, which each has as its *state; returns what main() does. The ways over a ring
 * are left out, loudly, where the system refuses one. */
int run_all_ways(const struct CMUnitTest *tests, size_t n);
bool ring_is_refused(void); /* with the reason in the record */

/* A store in one new folder of its own, over faults that are none at first. */
struct fixture {
    char *folder;
    struct faults faults;
    struct ot_io_calls calls;
    struct ot_store *store;
};
/* more: NULL, or depth, chunk_bytes, no_verify and arena for the store */
void fixture_open(struct fixture *f, const struct way *way, int n_extents, const size_t *extent_bytes,
                  const struct ot_store_config *more);
void fixture_close(struct fixture *f);

/* Path of the file number `index` (by name) of the store in the folder; NULL: there are fewer. Static. */
const char *store_file(const char *folder, int index);

/* Transfers that are counted in; wait_all returns when they are done, with the first error, and its sentence
 * in the record. */
struct waiting {
    _Atomic int n;
    pthread_mutex_t mutex;
    struct ot_error first;
};
#define WAITING_INIT                                                                                         \
    { .mutex = PTHREAD_MUTEX_INITIALIZER }
void start_transfer(struct ot_store *store, struct waiting *waiting, bool write, int n,
                    const struct ot_store_piece *pieces);
int wait_all(struct waiting *waiting);

#endif
