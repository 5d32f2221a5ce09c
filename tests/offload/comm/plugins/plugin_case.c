/* One rank that runs a case with a plugin: one of several ranks under mpirun (test_mpi.py), or alone
 * (test_skeleton.py). Prints "rank R: ok" if all went well. Usage: plugin_case PLUGIN CASE */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/device.h"
#include "offload/comm/comm.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/plan/comm_test.h"
#include "tests/offload/comm/plugins/plugin_ranks.h"

static const char *plugin_path;

/* ---- the checks that every communicator passes ---- */

static int check_all(void) {
    static const size_t sizes[] = {0, 1, 4095, 4096, 70001, 300001};
    struct ot_device *device = NULL;
    struct ot_comm *comm = NULL;
    int rc = ot_device_open(&(struct ot_device_config){.kind = "cpu", .threads = 1}, &device);
    const struct ot_comm_config config = {
        .name = plugin_path, .device = device, .device_index = -1, .timeout_seconds = 60};
    if (rc == 0)
        rc = ot_comm_open(&config, &comm);
    struct ot_comm_checks checks = {.comm = comm,
                                    .device = device,
                                    .sizes = sizes,
                                    .n_sizes = sizeof sizes / sizeof *sizes,
                                    .delay_seed = 3};
    if (rc == 0)
        rc = ot_comm_checks_run(&checks);
    if (rc == 0)
        printf("rank %d: ok, %d checks, %s\n", ot_comm_rank(comm), checks.done, ot_comm_describe(comm));
    else
        fprintf(stderr, "%s\n", ot_error_text());
    ot_comm_close(comm);
    ot_device_close(device);
    return rc < 0;
}

/* ---- a rank that calls the plugin itself ---- */

static const struct ot_comm_v1 *api;

/* The plugin finds out which rank this is. */
static void open_rank(struct plugin_rank *rank, double timeout_seconds) {
    *rank = (struct plugin_rank){.rank = -1};
    NEED(rank, plugin_open(rank, api, -1, timeout_seconds) == OT_COMM_OK);
    rank->rank = rank->facts.rank;
    rank->ranks = rank->facts.ranks;
    NEED(rank, rank->facts.local_rank == rank->rank && rank->facts.local_ranks == rank->ranks);
    NEED(rank, rank->ranks <= MOST_RANKS);
}

struct control {
    struct plugin_rank *rank;
    int rounds;
    atomic_int code;
};

static void *gather_all_the_time(void *arg) {
    struct control *c = arg;
    for (int i = 0; i < c->rounds && atomic_load(&c->code) == OT_COMM_OK; i++) {
        int mine[2] = {i, c->rank->rank}, all[2 * MOST_RANKS] = {0};
        int code = api->all_gather_host(c->rank->context, mine, sizeof mine, all);
        for (int r = 0; r < c->rank->ranks && code == OT_COMM_OK; r++)
            code = all[2 * r] == i && all[2 * r + 1] == r ? OT_COMM_OK : OT_COMM_FAILED;
        if (code == OT_COMM_OK && i % 3 == 0)
            code = api->barrier(c->rank->context);
        atomic_store(&c->code, code);
    }
    return NULL;
}

/* Control functions on one thread, operations on another, in no order to each other. */
static void use_two_threads(void) {
    enum { ROUNDS = 60, BYTES = 20000 };
    struct plugin_rank rank;
    pthread_t thread;
    open_rank(&rank, 60);
    struct control control = {.rank = &rank, .rounds = ROUNDS};
    char *all = malloc((size_t)BYTES * (size_t)rank.ranks);
    NEED(&rank, all && pthread_create(&thread, NULL, gather_all_the_time, &control) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        memset(all + (size_t)rank.rank * BYTES, 'a' + rank.rank + i % 16, BYTES);
        NEED(&rank, api->all_gather(rank.context, all + (size_t)rank.rank * BYTES, all, BYTES, NULL) == 0);
        for (int r = 0; r < rank.ranks; r++)
            NEED(&rank, all[r * BYTES] == 'a' + r + i % 16 && all[(r + 1) * BYTES - 1] == 'a' + r + i % 16);
    }
    pthread_join(thread, NULL);
    NEED(&rank, atomic_load(&control.code) == OT_COMM_OK);
    api->close(rank.context, 0);
    NEED(&rank,
         plugin_open(&rank, api, -1, 1) == OT_COMM_UNSUPPORTED && strstr(rank.why, "cannot start twice"));
    printf("rank %d: ok\n", rank.rank);
    free(all);
}

static void *abort_soon(void *arg) {
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    api->abort(arg);
    return NULL;
}

/* Rank 0 waits for an operation that the others never begin: until its deadline, or until its abort. MPI
 * starts before the same deadline, which takes long on a busy machine. */
static void wait_in_vain(double timeout_seconds, bool aborts) {
    struct plugin_rank rank;
    char memory[MOST_RANKS] = {0};
    pthread_t thread;
    open_rank(&rank, timeout_seconds);
    NEED(&rank, api->barrier(rank.context) == OT_COMM_OK);
    double start = ot_clock_seconds();
    if (rank.rank == 0) {
        int want = aborts ? OT_COMM_ABORTED : OT_COMM_TIMED_OUT;
        NEED(&rank, !aborts || pthread_create(&thread, NULL, abort_soon, rank.context) == 0);
        NEED(&rank, api->all_gather(rank.context, memory, memory, 1, NULL) == want);
        double seconds = ot_clock_seconds() - start;
        NEED(&rank, seconds > 0.25 && seconds < 20);
        NEED(&rank, api->broadcast(rank.context, memory, 1, 0, NULL) == want);
        NEED(&rank, api->barrier(rank.context) == want);
        NEED(&rank, api->poll_error(rank.context, rank.why, sizeof rank.why) == want);
        NEED(&rank, strstr(rank.why, aborts ? "aborted" : "in all-gather for another rank"));
        if (aborts)
            pthread_join(thread, NULL);
    }
    printf("rank %d: ok\n", rank.rank);
    fflush(stdout);
    if (rank.rank != 0) /* mpirun ends this rank when it sees that rank 0 has ended without MPI_Finalize */
        nanosleep(&(struct timespec){60, 0}, NULL);
    api->close(rank.context, 1);
    NEED(&rank, ot_clock_seconds() - start < 20);
}

static int transfer(struct plugin_rank *rank, int other, bool is_send, void *memory, size_t bytes) {
    const struct ot_comm_transfer_v1 half = {other, is_send, memory, bytes};
    return plugin_transfers(plugin_path)->transfer(rank->context, &half, 1, NULL);
}

/* Waits until mpirun sees that another rank has ended without MPI_Finalize, and ends this one. */
static void be_ended(struct plugin_rank *rank) {
    printf("rank %d: ok\n", rank->rank);
    fflush(stdout);
    nanosleep(&(struct timespec){60, 0}, NULL);
}

/* Rank 0 receives from rank 1, which sends nothing until the deadline. */
static void receive_in_vain(void) {
    struct plugin_rank rank;
    char memory[4];
    open_rank(&rank, 6);
    NEED(&rank, api->barrier(rank.context) == OT_COMM_OK);
    if (rank.rank != 0)
        be_ended(&rank);
    NEED(&rank, transfer(&rank, 1, false, memory, sizeof memory) == OT_COMM_TIMED_OUT);
    NEED(&rank, api->poll_error(rank.context, rank.why, sizeof rank.why) == OT_COMM_TIMED_OUT);
    NEED(&rank, strstr(rank.why, "in a transfer for another rank"));
    NEED(&rank, transfer(&rank, 1, true, memory, sizeof memory) == OT_COMM_TIMED_OUT);
    printf("rank 0: ok\n");
    api->close(rank.context, 1);
}

/* Rank 1 sends one byte more, or less, than rank 0 receives. The transfer before has the right size. */
static void differ_in_size(size_t sent, size_t received, const char *want) {
    struct plugin_rank rank;
    static char memory[4000];
    open_rank(&rank, 60);
    for (size_t bytes = 2000; bytes > 0; bytes -= 1000)
        NEED(&rank,
             rank.rank > 1 || transfer(&rank, 1 - rank.rank, rank.rank == 1, memory, bytes) == OT_COMM_OK);
    if (rank.rank == 1)
        transfer(&rank, 0, true, memory, sent);
    if (rank.rank != 0)
        be_ended(&rank);
    NEED(&rank, transfer(&rank, 1, false, memory, received) == OT_COMM_FAILED);
    NEED(&rank, api->poll_error(rank.context, rank.why, sizeof rank.why) == OT_COMM_FAILED);
    NEED(&rank, strncmp(rank.why, want, strlen(want)) == 0);
    printf("rank 0: ok\n");
    api->close(rank.context, 1);
}

/* Rank 1 dies before its half of the transfer; the other would wait for a minute. */
static void die_in_a_transfer(void) {
    struct plugin_rank rank;
    char memory[4] = "abc";
    open_rank(&rank, 60);
    printf("rank %d: ok\n", rank.rank);
    fflush(stdout);
    NEED(&rank, api->barrier(rank.context) == OT_COMM_OK);
    if (rank.rank == 1)
        kill(getpid(), SIGKILL);
    NEED(&rank, transfer(&rank, 1, false, memory, sizeof memory) == OT_COMM_OK);
}

/* The launcher and the options disagree. */
static void be_another_rank(void) {
    struct plugin_rank rank = {.rank = 0, .ranks = 64};
    NEED(&rank, plugin_open(&rank, api, -1, 60) == OT_COMM_UNSUPPORTED);
    NEED(&rank, strstr(rank.why, "MPI says rank ") && strstr(rank.why, "the run has rank 0 of 64"));
    printf("rank: ok\n");
}

/* A rank of mpirun never starts MPI (test_mpi.py), so this one waits for it until its deadline. */
static void miss_a_rank(void) {
    struct plugin_rank rank = {.rank = -1};
    double start = ot_clock_seconds();
    NEED(&rank, plugin_open(&rank, api, -1, 2) == OT_COMM_TIMED_OUT);
    NEED(&rank,
         strcmp(rank.why, "MPI did not start in 2 s: a rank is missing, or a host cannot be reached") == 0);
    NEED(&rank, ot_clock_seconds() - start > 2 && ot_clock_seconds() - start < 20);
    printf("rank: ok\n");
}

/* Rank 1 dies in the middle; the others would wait for a minute. */
static void die(void) {
    struct plugin_rank rank;
    char memory[MOST_RANKS] = {0};
    open_rank(&rank, 60);
    printf("rank %d: ok\n", rank.rank);
    fflush(stdout);
    NEED(&rank, api->barrier(rank.context) == OT_COMM_OK);
    if (rank.rank == 1)
        kill(getpid(), SIGKILL);
    NEED(&rank, api->all_gather(rank.context, memory, memory, 1, NULL) == OT_COMM_OK);
}

/* Every hook of a plugin with one rank, and what its functions return after an abort. */
static void use_alone(void) {
    struct plugin_rank rank;
    char memory[8] = "memory";
    open_rank(&rank, 60);
    NEED(&rank, rank.rank == 0 && rank.ranks == 1 && *rank.facts.description);
    NEED(&rank, !api->group_begin || api->group_begin(rank.context) == OT_COMM_OK);
    NEED(&rank, api->broadcast(rank.context, memory, sizeof memory, 0, NULL) == OT_COMM_OK);
    NEED(&rank, !api->group_end || api->group_end(rank.context, NULL) == OT_COMM_OK);
    NEED(&rank, strcmp(memory, "memory") == 0);
    NEED(&rank, api->poll_error(rank.context, rank.why, sizeof rank.why) == OT_COMM_OK && !*rank.why);
    api->abort(rank.context);
    api->abort(rank.context);
    NEED(&rank, api->all_gather(rank.context, memory, memory, 1, NULL) == OT_COMM_ABORTED);
    NEED(&rank, api->all_to_all(rank.context, memory, memory + 4, 1, NULL) == OT_COMM_ABORTED);
    NEED(&rank, api->all_gather_host(rank.context, memory, 1, memory + 4) == OT_COMM_ABORTED);
    NEED(&rank, api->barrier(rank.context) == OT_COMM_ABORTED);
    NEED(&rank, api->poll_error(rank.context, rank.why, sizeof rank.why) == OT_COMM_ABORTED && *rank.why);
    api->close(rank.context, 1);
    printf("rank 0: ok\n");
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    plugin_path = argv[1];
    const char *name = argv[2];
    if (strcmp(name, "checks") == 0)
        return check_all();
    api = plugin_load(plugin_path);
    if (strcmp(name, "threads") == 0)
        use_two_threads();
    else if (strcmp(name, "deadline") == 0)
        wait_in_vain(6, false);
    else if (strcmp(name, "abort") == 0)
        wait_in_vain(60, true);
    else if (strcmp(name, "receive") == 0)
        receive_in_vain();
    else if (strcmp(name, "more") == 0)
        differ_in_size(1500, 1499, "rank 1 sends more than the ");
    else if (strcmp(name, "less") == 0)
        differ_in_size(1499, 1500, "rank 1 sends less than the ");
    else if (strcmp(name, "less-by-a-piece") == 0)
        differ_in_size(1000, 2000, "rank 1 sends less than the ");
    else if (strcmp(name, "die-in-a-transfer") == 0)
        die_in_a_transfer();
    else if (strcmp(name, "another-rank") == 0)
        be_another_rank();
    else if (strcmp(name, "alone") == 0)
        use_alone();
    else if (strcmp(name, "missing") == 0)
        miss_a_rank();
    else if (strcmp(name, "die") == 0)
        die();
    else
        return 2;
    return 0;
}
