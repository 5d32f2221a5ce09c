/* Checkpoints for tests: a run that is nothing but bytes made from a seed, looked at file by file without the
 * reader; and a seam that fails, cuts short or ends the process at a call of the writer's. */
#ifndef OT_TESTS_CHECKPOINT_FIXTURE_H
#define OT_TESTS_CHECKPOINT_FIXTURE_H

#include "src/checkpoint/writer.h"
#include "src/base/io_calls.h"
#include "tests/support/check.h"

/* ---- a run ---- */

/* A few thousand parameters in a slab, or so many that some parts are full ones. */
struct ot_chain fixture_chain(enum ot_dtype dtype, bool large);
/* The bytes of a part, as they are at the step that `seed` stands for. */
void fixture_fill(enum ot_dtype dtype, uint64_t seed, const struct ot_part *part, void *memory);

struct saving {
    const char *parent;
    const struct ot_chain *chain;
    int64_t step;
    uint64_t seed;
    int n_slots;
    enum ot_io_choice io_engine;
    bool faulty;     /* through the seam */
    bool unreserved; /* as if nothing were known of what will be put */
    bool abandoned;  /* closed before its end */
    bool lacking;    /* the parts of slab 1 do not come */
    /* Where the state and the weights of slab 1 lie that is referred to; NULL: all is put. */
    struct ot_store *store;
    struct ot_store_pin pins[2];
    int64_t written, referred; /* what the writer counted */
};
/* Opens a writer, hands it all parts, ends it, closes it. */
int fixture_save(struct saving *saving);
/* NULL, or what is wrong with a checkpoint of that step and seed. */
const char *fixture_examine(const struct saving *saving, const char *dir);
/* The names in a directory, sorted, joined by spaces; valid until the next call. */
const char *fixture_names(const char *dir);

/* ---- the seam ---- */

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
    unsigned calls; /* of which the one numbered `at` is struck, from 0; and all after it, if `lasting` */
    int at;
    bool lasting;
    int error;      /* 0: the process is killed, in a write after that part of its bytes */
    unsigned share; /* percent */
    bool short_writes, interrupts, no_direct, no_direct_transfer, no_reserve; /* mere nuisances */
    int64_t free_bytes;                                                       /* -1: as it is */
} fault;
void fixture_clear_fault(void); /* also forgets the calls so far */
bool fixture_was_struck(void);
/* Runs it in a child, which succeeds (true) or is ended by the seam (false). */
bool fixture_runs_in_child(int (*run)(void *context), void *context);
extern const struct ot_io_calls fixture_calls;
/* What was flushed and renamed, in order: "flush state.bin; ...". NULL: not kept. */
extern char *fixture_log;
enum { FIXTURE_LOG_BYTES = 1024 };

#endif
