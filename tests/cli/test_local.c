/* The ranks that a parent starts on its host. A shell script plays the rank. */
#include "tests/support/check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/cli/launch.h"

static char *folder;
static const char *log_dir; /* of the ranks that launch() starts */

static int make_the_folder(void **state) {
    (void)state;
    folder = make_folder();
    log_dir = folder;
    return 0;
}

static int remove_the_folder(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

/* Sets R to the rank in a script. */
#define RANK "set -- $" OT_RANKS_VARIABLE "; R=$1; "

static void pause_seconds(double seconds) {
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

/* The content of a file in the folder; "" if there is none. */
static const char *read_text(const char *name) {
    static char texts[4][70000];
    static int turn;
    char path[512], *text = texts[turn = (turn + 1) % 4];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof texts[0] - 1);
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
    return text;
}

static void await_file(const char *name) {
    double until = ot_clock_seconds() + 30;
    while (!*read_text(name)) {
        if (ot_clock_seconds() > until)
            fail_msg("nobody wrote %s", name);
        pause_seconds(0.005);
    }
}

/* Starts a process that launches n ranks of the script in the folder and exits with their exit code. Its
 * stdout and stderr are the files `out` and `err`. */
static double silence; /* of the ranks that launch() starts */
static pid_t launch(int n, const char *script, double notice, double grace) {
    static struct ot_launch facts;
    char *argv[] = {"rank", "-c", (char *)(uintptr_t)script, NULL};
    struct ot_local_config config = {.launch = &facts,
                                     .argv = argv,
                                     .log_dir = log_dir,
                                     .program = "/bin/sh",
                                     .notice_seconds = notice,
                                     .grace_seconds = grace,
                                     .silence_seconds = silence};
    facts = (struct ot_launch){.ranks = {.ranks = n, .local_ranks = n}, .n_start = n, .listener = -1};
    fflush(NULL);
    pid_t process = fork();
    if (process)
        return process;
    int code = 99, modes = O_WRONLY | O_CREAT | O_APPEND;
    if (chdir(folder) < 0 || dup2(open("out", modes, 0600), 1) < 0 || dup2(open("err", modes, 0600), 2) < 0)
        exit(98);
    if (ot_launch_local(&config, &code) < 0)
        dprintf(2, "%s\n", ot_error_text());
    exit(code);
}

static int await_code(pid_t process) {
    int status;
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check_text(const char *name, const char *words) {
    if (!strstr(read_text(name), words))
        fail_msg("%s is '%s', not '%s'", name, read_text(name), words);
}

static void ranks_know_who_they_are(void **state) {
    (void)state;
    int code = await_code(launch(
        3, "set -- $" OT_RANKS_VARIABLE "; echo $1 $2 $3 $4 $5 $7 >facts$1; echo $6 >port$1; echo $8 >run$1",
        0, 0));
    assert_int_equal(code, 0);
    assert_string_equal(read_text("facts1"), "1 3 1 3 -1 127.0.0.1\n");
    assert_string_equal(read_text("facts2"), "2 3 2 3 -1 127.0.0.1\n");
    assert_int_equal(strncmp(read_text("facts0"), "0 3 0 3 ", 8), 0);
    assert_true(atoi(read_text("facts0") + 8) > 2);
    assert_true(atoi(read_text("port0")) > 0);
    assert_string_equal(read_text("port0"), read_text("port2"));
    assert_int_equal(strncmp(read_text("run0"), "local-", 6), 0);
    assert_string_equal(read_text("run0"), read_text("run2"));
}

static void rank_0_has_the_listener_and_others_have_not(void **state) {
    (void)state;
    /* /proc says what a descriptor is; a shell opens none of these by itself */
    int code =
        await_code(launch(2,
                          "set -- $" OT_RANKS_VARIABLE "; for f in /proc/$$/fd/*; do case $f in */[012]) ;; "
                          "*) readlink $f >>fds$1;; esac; done; echo end >>fds$1",
                          0, 0));
    assert_int_equal(code, 0);
    check_text("fds0", "socket:[");
    assert_null(strstr(read_text("fds1"), "socket:["));
    check_text("fds1", "end");
}

static void only_the_first_rank_writes(void **state) {
    (void)state;
    assert_int_equal(await_code(launch(3, RANK "echo out$R; echo err$R >&2", 0, 0)), 0);
    assert_string_equal(read_text("out"), "out0\n");
    assert_string_equal(read_text("err"), "err0\n");
    assert_string_equal(read_text("rank-1.log"), "");
}

static void a_failed_rank_is_named_and_keeps_its_log(void **state) {
    (void)state;
    int code = await_code(
        launch(3,
               RANK "[ $R = 1 ] && { echo begin; echo 'error: no memory' >&2; exit 4; }; sleep 0.3; "
                    "[ $R = 2 ] && exit 11; exit 9",
               0, 0));
    assert_int_equal(code, 4);
    check_text("rank-1.log", "begin\nerror: no memory\n");
    assert_string_equal(read_text("rank-2.log"), "");
    check_text("err", "error: rank 1 failed with exit code 4: no memory; its output is in ");
    check_text("err", "/rank-1.log\n");
}

static void a_consequence_before_the_cause_is_not_blamed(void **state) {
    (void)state;
    int code =
        await_code(launch(3,
                          RANK "[ $R = 1 ] && exit 11; [ $R = 2 ] && { sleep 0.3; exit 6; }; sleep 0.5; "
                               "exit 9",
                          0, 0));
    assert_int_equal(code, 6);
    check_text("err", "error: rank 2 failed with exit code 6\n");
}

static void a_failure_of_rank_0_is_its_own_to_explain(void **state) {
    (void)state;
    assert_int_equal(
        await_code(launch(2, RANK "[ $R = 0 ] && { echo mine >&2; exit 3; }; sleep 0.2; exit 11", 0, 0)), 3);
    assert_string_equal(read_text("err"), "mine\n");
}

static void a_killed_rank_is_named(void **state) {
    (void)state;
    assert_int_equal(await_code(launch(2, RANK "[ $R = 1 ] && kill -9 $$; sleep 0.2; exit 0", 0, 0)), 11);
    check_text("err",
               "error: rank 1 was killed by signal 9 (Killed); if you did not do it, the memory was used up");
}

/* Rank 0 ends with OT_E_COMM: it has named the rank that failed. So the parent only adds what it knows. */
static void what_rank_0_has_said_is_no_second_error(void **state) {
    (void)state;
    int code = await_code(launch(
        2, RANK "[ $R = 1 ] && kill -9 $$; sleep 0.2; echo 'error: rank 1 is lost' >&2; exit 11", 0, 0));
    assert_int_equal(code, 11);
    assert_string_equal(read_text("err"),
                        "error: rank 1 is lost\nnote    rank 1 was killed by signal 9 (Killed); "
                        "if you did not do it, the memory was used up\n");
    code = await_code(
        launch(2, RANK "[ $R = 1 ] && { echo 'error: full' >&2; exit 4; }; sleep 0.2; exit 11", 0, 0));
    assert_int_equal(code, 4);
    check_text("err", "note    rank 1 failed with exit code 4; its output is in ");
}

/* A stopped process ignores SIGTERM. The other rank's sentence is said once. */
static void a_stopped_rank_is_killed(void **state) {
    (void)state;
    double begin = ot_clock_seconds();
    log_dir = "no/such/folder";
    int code = await_code(launch(
        2, RANK "[ $R = 0 ] && kill -STOP $$; echo 'error: rank 0 is lost: silent' >&2; exit 11", 0.3, 60));
    assert_int_equal(code, 11);
    assert_true(ot_clock_seconds() - begin < 20);
    assert_string_equal(read_text("err"), "error: rank 0 is lost: silent\n");
}

/* The other rank ends well, so nobody but the parent notices the silence. A rank that goes on in time has not
 * failed, and may then take longer than that. */
static void a_rank_that_is_stopped_at_its_end(void **state) {
    (void)state;
    double begin = ot_clock_seconds();
    silence = 0.4;
    int code = await_code(launch(2, RANK "[ $R = 1 ] && kill -STOP $$; exit 0", 0, 60));
    assert_int_equal(code, 11);
    assert_true(ot_clock_seconds() - begin < 20);
    assert_string_equal(read_text("err"),
                        "error: rank 1 was stopped by a signal and did not go on, so it was "
                        "killed after the others had ended\n");
    silence = 0; /* 30 s */
    pid_t process =
        launch(2, RANK "[ $R = 0 ] && exit 0; echo $$ >self; kill -STOP $$; sleep 1; echo on >on", 0, 60);
    await_file("self");
    pause_seconds(0.3);
    assert_int_equal(kill(atoi(read_text("self")), SIGCONT), 0);
    assert_int_equal(await_code(process), 0);
    assert_string_equal(read_text("on"), "on\n");
}

/* Nobody has ended: somebody has stopped the whole run, and may let it go on at any time. */
static void all_ranks_may_be_stopped(void **state) {
    (void)state;
    silence = 0.2;
    pid_t process = launch(2, RANK "echo $$ >self$R; kill -STOP $$; exit 0", 0, 60);
    await_file("self0");
    await_file("self1");
    pause_seconds(0.8);
    for (int r = 0; r < 2; r++)
        assert_int_equal(kill(atoi(read_text(r ? "self1" : "self0")), SIGCONT), 0);
    assert_int_equal(await_code(process), 0);
    silence = 0;
}

static void long_output_keeps_its_end(void **state) {
    (void)state;
    assert_int_equal(await_code(launch(2,
                                       RANK "[ $R = 1 ] || exit 0; i=0; while [ $i -lt 20000 ]; do echo "
                                            "line$i; i=$((i+1)); done; echo 'error: last' >&2; exit 5",
                                       0, 0)),
                     5);
    const char *text = read_text("rank-1.log"), *at = strchr(text, '\n') + 1;
    assert_true(strlen(text) > 30000 && strlen(text) <= 65536);
    int line = atoi(at + strlen("line")), first = line;
    for (; strncmp(at, "line", 4) == 0; line++, at = strchr(at, '\n') + 1) /* nothing is missing between */
        assert_int_equal(atoi(at + strlen("line")), line);
    assert_true(first > 0 && line == 20000);
    assert_string_equal(at, "error: last\n");
}

/* What one rank wrote is not taken for the sentence of another. */
static void each_rank_has_its_own_sentence(void **state) {
    (void)state;
    log_dir = "no/such/folder";
    int code =
        await_code(launch(3,
                          RANK "[ $R = 1 ] && { echo 'error: full' >&2; while [ ! -e two ]; do sleep 0.02; "
                               "done; sleep 0.3; exit 4; }; "
                               "[ $R = 2 ] && { echo 'no words' >&2; echo >two; exit 5; }; exit 0",
                          0, 0));
    assert_int_equal(code, 5);
    assert_string_equal(read_text("err"), "no words\nerror: rank 2 failed with exit code 5\n");
}

static void output_without_a_folder_goes_to_stderr(void **state) {
    (void)state;
    log_dir = "no/such/folder";
    assert_int_equal(await_code(launch(2, RANK "[ $R = 1 ] || exit 0; echo text; exit 5", 0, 0)), 5);
    assert_string_equal(read_text("err"), "text\nerror: rank 1 failed with exit code 5\n");
}

static void the_rest_is_ended(void **state) {
    (void)state;
    double begin = ot_clock_seconds();
    int code =
        await_code(launch(3,
                          RANK "[ $R = 1 ] && exit 7; [ $R = 2 ] && trap '' TERM; [ $R = 0 ] && trap 'echo "
                               "told >told; exit 10' TERM; echo >up$R; while :; do sleep 0.02; done",
                          0.3, 0.5));
    assert_int_equal(code, 7);
    assert_true(ot_clock_seconds() - begin < 20);
    check_text("told", "told");
}

/* Ranks that a signal stopped have saved their state. The first to end is no failure: the others keep all
 * their time, here three times the notice that the rest gets after a failure. */
static void ranks_may_stop_far_apart(void **state) {
    (void)state;
    int code =
        await_code(launch(2,
                          RANK "[ $R = 0 ] && exit 10; trap 'echo told >told; exit 10' TERM; i=0; while [ $i "
                               "-lt 45 ]; do sleep 0.02; i=$((i+1)); done; echo whole >whole; exit 10",
                          0.3, 60));
    assert_int_equal(code, OT_E_STOPPED);
    assert_string_equal(read_text("told"), "");
    assert_string_equal(read_text("whole"), "whole\n");
    assert_string_equal(read_text("err"), "");
}

/* nohup and background jobs ignore some signals, and a shell cannot trap what it ignored at its start. */
static void signals_are_passed_on(void **state) {
    (void)state;
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    static const char *const names[] = {"INT", "TERM", "HUP", "USR1"};
    for (int i = 0; i < 4; i++) {
        char script[300], name[24];
        assert_true(signal(numbers[i], SIG_DFL) != SIG_ERR);
        snprintf(script, sizeof script,
                 RANK
                 "trap 'echo %s >got-%s-$R; exit 10' %s; echo up >up-%s-$R; while :; do sleep 0.02; done",
                 names[i], names[i], names[i], names[i]);
        pid_t process = launch(2, script, 0, 0);
        for (int rank = 0; rank < 2; rank++) {
            snprintf(name, sizeof name, "up-%s-%d", names[i], rank);
            await_file(name);
        }
        kill(process, numbers[i]);
        assert_int_equal(await_code(process), 10);
        for (int rank = 0; rank < 2; rank++) {
            snprintf(name, sizeof name, "got-%s-%d", names[i], rank);
            check_text(name, names[i]);
        }
    }
    assert_string_equal(read_text("err"), "");
}

static void nobody_outlives_the_parent(void **state) {
    (void)state;
    pid_t process = launch(
        2, RANK "trap 'echo end >end$R; exit 0' TERM; echo up >up$R; while :; do sleep 0.02; done", 0, 0);
    await_file("up0");
    await_file("up1");
    kill(process, SIGKILL);
    assert_int_equal(waitpid(process, NULL, 0), process);
    await_file("end0");
    await_file("end1");
}

static void a_program_that_is_missing_is_an_error(void **state) {
    (void)state;
    char *argv[] = {"rank", NULL};
    struct ot_launch facts = {.ranks = {.ranks = 1, .local_ranks = 1}, .n_start = 1, .listener = -1};
    struct ot_local_config config = {.launch = &facts, .argv = argv, .program = "/no/such/program"};
    int code = 0;
    check_ok(ot_launch_local(&config, &code));
    assert_int_equal(code, OT_E_IO);
}

#define LOCAL_TEST(name) cmocka_unit_test_setup_teardown(name, make_the_folder, remove_the_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        LOCAL_TEST(ranks_know_who_they_are),
        LOCAL_TEST(rank_0_has_the_listener_and_others_have_not),
        LOCAL_TEST(only_the_first_rank_writes),
        LOCAL_TEST(a_failed_rank_is_named_and_keeps_its_log),
        LOCAL_TEST(a_consequence_before_the_cause_is_not_blamed),
        LOCAL_TEST(a_failure_of_rank_0_is_its_own_to_explain),
        LOCAL_TEST(a_killed_rank_is_named),
        LOCAL_TEST(what_rank_0_has_said_is_no_second_error),
        LOCAL_TEST(a_stopped_rank_is_killed),
        LOCAL_TEST(a_rank_that_is_stopped_at_its_end),
        LOCAL_TEST(all_ranks_may_be_stopped),
        LOCAL_TEST(long_output_keeps_its_end),
        LOCAL_TEST(each_rank_has_its_own_sentence),
        LOCAL_TEST(output_without_a_folder_goes_to_stderr),
        LOCAL_TEST(the_rest_is_ended),
        LOCAL_TEST(ranks_may_stop_far_apart),
        LOCAL_TEST(signals_are_passed_on),
        LOCAL_TEST(nobody_outlives_the_parent),
        LOCAL_TEST(a_program_that_is_missing_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
