/* Helpers for the tests of the NVMe store: system calls that fail on demand, stores that use them, and
 * transfers that the test waits for. */
#ifndef OT_TESTS_OFFLOAD_STORE_FIXTURE_H
#define OT_TESTS_OFFLOAD_STORE_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "offload/store/store.h"
#include "tests/support/check.h"

/* The system's calls with faults. For a ring, the fault replaces a true result: the bytes of a "failed" I/O
 * were moved nevertheless, as may happen on a real disk. All zeros: no faults. */
struct faults {
    bool refuse_direct; /* opening with O_DIRECT fails with EINVAL */
    /* Opening with O_DIRECT works, but writing then fails with EINVAL. */
    bool refuse_direct_io;
    int open_error, allocate_error, punch_error, sync_error; /* errno values; 0: none */
    _Atomic int sync_interrupts;                             /* this number of syncs is interrupted first */
    /* Errors of setting up a ring, of registering files, of registering the arena. */
    int ring_error, files_error, arena_error;
    /* Setting up a ring with these flags fails with EINVAL. */
    unsigned refused_flags;
    /* Short by any number of bytes, odd numbers too. */
    bool short_transfers;
    /* This percentage of results becomes that error. */
    int storm_percent, storm_error;
    _Atomic int64_t fail_at; /* > 0: counts down; the I/O that makes it 0 fails */
    int fail_error;
    bool fail_from_there;     /* and all I/Os after it fail */
    _Atomic bool hold_writes; /* writes do not end while this is true */
    _Atomic int64_t calls, syncs;
    _Atomic int in_flight, most_in_flight; /* I/Os of the thread pool */
    void *user;                            /* for the test's own use */
};
struct ot_io_calls faulty_calls(struct faults *faults);

/* A configuration in which every test of transfers runs: I/O engine, and O_DIRECT or buffered. */
struct way {
    const char *name;
    enum ot_io_choice engine;
    bool buffered;
};
enum { N_WAYS = 4 };
extern const struct way ways[N_WAYS];
/* Runs the tests in every way; the way is the test's *state. Returns the exit code for main(). If the system
 * refuses rings, prints so and leaves out the ways that use one. */
int run_all_ways(const struct CMUnitTest *tests, size_t n);
bool ring_is_refused(void); /* the reason is in the error record */

/* A store in one new folder, with calls that have no faults at first. */
struct fixture {
    char *folder;
    struct faults faults;
    struct ot_io_calls calls;
    struct ot_store *store;
};
/* more: NULL, or depth, chunk_bytes, no_verify and arena of the store */
void fixture_open(struct fixture *f, const struct way *way, int n_extents, const size_t *extent_bytes,
                  const struct ot_store_config *more);
void fixture_close(struct fixture *f);

/* Path of file number `index` (sorted by name) of the store in the folder. NULL if there are fewer files. The
 * string is static. */
const char *store_file(const char *folder, int index);

/* Counts transfers that are in flight. wait_all returns when all are done, with the first error, whose
 * sentence is then in the error record. */
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
