/* Checkpoints for tests: a made-up run whose bytes depend on a seed, examined file by file without the
 * reader; and a seam through which calls of the writer fail, move fewer bytes, or end the process. */
#ifndef OT_TESTS_CHECKPOINT_FIXTURE_H
#define OT_TESTS_CHECKPOINT_FIXTURE_H

#include "src/base/file_io.h"
#include "src/checkpoint/writer.h"
#include "tests/support/check.h"

/* ---- a made-up run ---- */

/* Slabs of a few thousand parameters, or with `large` so many that some segments have the full size. */
struct ot_chain fixture_chain(enum ot_dtype dtype, bool large);
/* The bytes of a segment at the step that `seed` stands for. */
void fixture_fill(enum ot_dtype dtype, uint64_t seed, const struct ot_segment *segment, void *memory);

struct saving {
    const char *parent;
    const struct ot_chain *chain;
    int64_t step;
    uint64_t seed;
    int n_slots;
    enum ot_io_choice io_engine;
    bool faulty;     /* uses the seam for faults */
    bool unreserved; /* the writer reserves no space before */
    bool abandoned;  /* closes the writer before the save ends */
    bool lacking;    /* leaves out the segments of slab 1 */
    /* The checkpoint refers to slab 1's state and weights in this store. NULL: it copies everything. */
    struct ot_store *store;
    struct ot_store_pin pins[2];
    int64_t written, referred; /* the writer's own counts, in bytes */
};
/* Opens a writer, passes all segments to it, ends the save and closes the writer. */
int fixture_save(struct saving *saving);
/* Examines the checkpoint. Returns NULL if it is the one of this step and seed, else the first difference. */
const char *fixture_examine(const struct saving *saving, const char *dir);
/* The names in a directory, sorted and joined by spaces. Valid until the next call. */
const char *fixture_names(const char *dir);

/* ---- the seam for faults ---- */

enum fixture_call {
    CALL_OPEN = 1,
    CALL_MAKE_DIR = 2,
    CALL_WRITE = 4,
    CALL_PWRITE = 8,
    CALL_RESERVE = 16,
    CALL_TRUNCATE = 32,
    CALL_FSYNC = 64,
    CALL_RENAME = 128,
    CALL_REMOVE = 256,
    CALL_ALL = 511
};
extern struct fixture_fault {
    unsigned calls; /* call number `at` of these kinds, from 0, is struck; with `lasting` all after it too */
    int at;
    bool lasting;
    int error;      /* 0: the process is killed, in a write after `share` of its bytes */
    unsigned share; /* percent */
    /* Faults that the writer must tolerate. */
    bool short_writes, interrupts, no_direct, no_direct_transfer, no_reserve;
    /* The free space that the file system reports; -1: the truth. */
    int64_t free_bytes;
} fault;
void fixture_clear_fault(void); /* also sets the count of calls to 0 */
bool fixture_was_struck(void);
/* Runs the function in a child. True if it returned, false if the seam ended the process. */
bool fixture_runs_in_child(int (*run)(void *context), void *context);
extern const struct ot_io_calls fixture_calls;
/* A log of flushes and renames, in order: "flush state.bin; ...". NULL: no log. */
extern char *fixture_log;
enum { FIXTURE_LOG_BYTES = 1024 };

#endif
