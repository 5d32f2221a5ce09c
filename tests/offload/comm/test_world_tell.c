/* Ranks that end before all are connected, where rank 0 listens, and the code with which all ranks end. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "tests/offload/comm/world_ranks.h"

/* So long that a rank which waits for it fails the test. */
enum { NEVER = 1000 };

static struct ot_world_config patient_config(int rank, int ranks) {
    struct ot_world_config config = config_of(rank, ranks);
    config.timeout_seconds = NEVER;
    config.linger_seconds = 30;
    return config;
}

static void start_patient(int rank, int ranks) {
    struct ot_world_config config = patient_config(rank, ranks);
    start_rank(&config, NULL);
}

/* Starts a process that fails before it opens its world. */
static pid_t start_failing(int rank, int ranks, enum ot_error_code code) {
    struct ot_world_config config = patient_config(rank, ranks);
    pid_t process = fork();
    assert_true(process >= 0);
    if (process > 0)
        return process;
    struct ot_error why = {.code = (int)code, .text = "unknown option --bogus"};
    ot_world_tell(&config, &why);
    _exit(0);
}

static void await_failing(pid_t process) {
    int status;
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_int_equal(status, 0);
}

/* `failing` ends early, the others start after it in descending order; all of them must end with the code. */
static void check_early_end(int failing, enum ot_error_code code, enum ot_error_code wanted) {
    char words[64];
    pid_t process = start_failing(failing, 3, code);
    for (int rank = 2; rank >= 0; rank--)
        if (rank != failing) {
            usleep(50000);
            start_patient(rank, 3);
        }
    await_ranks();
    await_failing(process);
    snprintf(words, sizeof words, "process %d): unknown option --bogus", process);
    for (int rank = 0; rank < 3; rank++)
        if (rank != failing)
            check_report_code(rank, wanted, words);
}

static void a_rank_that_ends_early_says_why(void **state) {
    for (int failing = 0; failing < 3; failing++) {
        check_early_end(failing, OT_E_USAGE, OT_E_USAGE);
        teardown_ranks(state);
        setup_ranks(state);
    }
    check_early_end(0, OT_E_BUDGET, OT_E_COMM);
    teardown_ranks(state);
    setup_ranks(state);
    check_early_end(1, OT_E_BUDGET, OT_E_COMM);
}

static void ranks_that_all_end_early_wait_for_nobody(void **state) {
    (void)state;
    pid_t processes[3];
    for (int rank = 0; rank < 3; rank++)
        processes[rank] = start_failing(rank, 3, OT_E_USAGE);
    for (int rank = 0; rank < 3; rank++)
        await_failing(processes[rank]);
}

/* Ranks 0 and 1 have found a difference before rank 2 has come. */
static void a_rank_that_comes_late_is_told(void **state) {
    (void)state;
    struct ot_world_hello hello = hello_of(1, 5);
    struct ot_world_reply reply;
    start_patient(0, 3);
    int fd = dial();
    say(fd, &hello, sizeof hello);
    hear(fd, &reply, sizeof reply);
    assert_int_equal(reply.verdict, OT_E_USAGE);
    double until = ot_clock_seconds() + 20;
    while (!strstr(log_text(), "to say why") && ot_clock_seconds() < until)
        usleep(2000);
    start_patient(2, 3);
    await_ranks();
    check_report_code(0, OT_E_USAGE, "rank 1 (host far, process 4711) was started as one of 5 ranks");
    check_report_code(2, OT_E_USAGE, "rank 1 (host far, process 4711) was started as one of 5 ranks");
    check_log("rank 0 waits up to 30 s for ranks 1 and 2, to say why");
    close(fd);
}

static void ranks_without_run_id_are_of_one_run(void **state) {
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct ot_world_config config = patient_config(rank, rank ? 3 : 2);
        config.ranks.run_id[0] = '\0';
        start_rank(&config, NULL);
    }
    await_ranks();
    for (int rank = 0; rank < 2; rank++)
        check_report_code(rank, OT_E_USAGE, "was started as one of 3 ranks");
}

/* ---- a difference that all find ---- */

static int gather(struct ot_world *world) {
    int mine = ot_world_ranks(world)->rank, all[TEST_RANKS];
    return ot_world_all_gather(world, &mine, sizeof mine, all);
}

/* Rank 0 gathers late, and fails at once. Rank 1 must get its result first, and then the failure. */
static int differ(struct ot_world *world) {
    const struct timespec pause = {.tv_nsec = 1000000};
    struct ot_error why = {.code = OT_E_USAGE, .text = "the ranks differ"};
    bool is_root = ot_world_ranks(world)->rank == 0;
    while (is_root && !atomic_load(&shared->go))
        nanosleep(&pause, NULL);
    OT_TRY(gather(world));
    return is_root ? ot_world_fail(world, &why) : ot_fail(OT_E_USAGE, "found by rank 1 itself");
}

static void a_result_counts_more_than_a_later_failure(void **state) {
    for (int i = 0; i < 5; i++) {
        start_ranks(2, differ);
        await_open(2);
        usleep(100000); /* rank 1 has sent its part */
        kill_rank(1, SIGSTOP);
        atomic_store(&shared->go, 1);
        await_report(0);
        usleep(100000); /* both messages are on their way */
        kill_rank(1, SIGCONT);
        await_ranks();
        check_report_code(0, OT_E_USAGE, "the ranks differ");
        check_report_code(1, OT_E_USAGE, "found by rank 1 itself");
        teardown_ranks(state);
        setup_ranks(state);
    }
}

/* ---- where rank 0 listens ---- */

static void check_listening(const char *address, bool is_bound, bool elsewhere) {
    struct ot_world_config config = config_of(0, 2);
    struct ot_world_hello hello = hello_of(1, 2);
    snprintf(config.ranks.address, sizeof config.ranks.address, "%s", address);
    config.ranks.is_bound = is_bound;
    start_rank(&config, NULL);
    int fd = dial(), other = dial_at("127.0.0.2");
    assert_int_equal(other >= 0, elsewhere);
    if (other >= 0)
        close(other);
    say(fd, &hello, sizeof hello);
    close(fd);
    await_ranks();
}

static void rank_0_listens_where_it_was_named(void **state) {
    static const struct {
        const char *address;
        bool is_bound, elsewhere;
    } cases[] = {{"127.0.0.1", true, false},     {"localhost", true, false},
                 {"127.0.0.1", false, true},     {"", true, true},
                 {"a-name.invalid", true, true}, {"192.0.2.1", true, true}}; /* an address that no host has */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_listening(cases[i].address, cases[i].is_bound, cases[i].elsewhere);
        teardown_ranks(state);
        setup_ranks(state);
    }
}

#define RANKS_TEST(name) cmocka_unit_test_setup_teardown(name, setup_ranks, teardown_ranks)

int main(void) {
    const struct CMUnitTest tests[] = {
        RANKS_TEST(a_rank_that_ends_early_says_why),
        RANKS_TEST(ranks_that_all_end_early_wait_for_nobody),
        RANKS_TEST(a_rank_that_comes_late_is_told),
        RANKS_TEST(ranks_without_run_id_are_of_one_run),
        RANKS_TEST(a_result_counts_more_than_a_later_failure),
        RANKS_TEST(rank_0_listens_where_it_was_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
