/* Ranks for the tests of a world: processes, made by fork, that open a world, do something, and report. */
#ifndef OT_TESTS_OFFLOAD_WORLD_RANKS_H
#define OT_TESTS_OFFLOAD_WORLD_RANKS_H

#include <stdatomic.h>
#include <sys/types.h>

#include "offload/comm/world_state.h"
#include "tests/support/check.h"

enum { TEST_RANKS = 8 };

/* What the ranks and the test share. */
struct shared {
    struct report {
        int rc; /* what the rank's last call returned */
        char text[OT_ERROR_TEXT_BYTES];
        double seconds;      /* from ot_clock_seconds, when it reported */
        atomic_int n_losses; /* calls of on_loss */
        atomic_int is_done;  /* the fields above are there */
    } reports[TEST_RANKS];
    atomic_int n_open; /* ranks that have opened their world */
    atomic_int go;     /* the test lets the ranks go on */
};
extern struct shared *shared;

/* What a rank does once its world is open. Returns 0 or an error. */
typedef int rank_body(struct ot_world *world);

/* Starts with no ranks and a free port. */
int setup_ranks(void **state);
int teardown_ranks(void **state);

/* The configuration of a rank: run id "test", the port of the test, a deadline of 20 s, 0.3 s for
 * ranks that come after a failure. */
struct ot_world_config config_of(int rank, int ranks);
/* Starts the rank in a process of its own. body NULL: opens and closes. */
pid_t start_rank(const struct ot_world_config *config, rank_body *body);
void start_ranks(int ranks, rank_body *body);
/* Waits until all processes that were started and not killed have ended, and checks that they ended by
 * themselves with exit code 0. */
void await_ranks(void);
void await_open(int ranks);
void await_report(int rank);
void kill_rank(int rank, int signal);
pid_t rank_process(int rank);

/* ---- connections by hand ---- */

/* A connection to rank 0, or to a listener in its place; waits until somebody listens. dial_at: at this IPv4
 * address of the host, or -1 if nobody listens there. */
int dial(void);
int dial_at(const char *address);
/* Listens in place of rank 0. */
int listen_here(void);
/* What a rank on a host "far" says. */
struct ot_world_hello hello_of(uint32_t rank, uint32_t ranks);
void say(int fd, const void *data, size_t bytes);
void hear(int fd, void *data, size_t bytes);

/* The log lines of all ranks so far. */
const char *log_text(void);
/* The rank must have failed with OT_E_COMM, with these words. */
void check_report(int rank, const char *words);
void check_report_code(int rank, enum ot_error_code code, const char *words);
void check_log(const char *words);
void check_no_errors(int ranks);

#endif
