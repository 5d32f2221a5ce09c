#include "tests/offload/comm/world_ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"

struct shared *shared;

static pid_t processes[2 * TEST_RANKS];
static bool killed[2 * TEST_RANKS];
static int rank_of[2 * TEST_RANKS];
static int n_processes, log_fd = -1, port;

static int free_port(void) {
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t bytes = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (void *)&any, sizeof any) == 0);
    assert_int_equal(getsockname(fd, (void *)&any, &bytes), 0);
    close(fd);
    return ntohs(any.sin_port);
}

int setup_ranks(void **state) {
    (void)state;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    log_fd = memfd_create("log", MFD_CLOEXEC);
    n_processes = 0;
    memset(killed, 0, sizeof killed);
    port = free_port();
    return shared != MAP_FAILED && log_fd >= 0 ? 0 : -1;
}

int teardown_ranks(void **state) {
    (void)state;
    for (int i = 0; i < n_processes; i++) { /* after a failed test some are left */
        kill(processes[i], SIGKILL);
        waitpid(processes[i], NULL, 0);
    }
    munmap(shared, sizeof *shared);
    close(log_fd);
    return 0;
}

struct ot_world_config config_of(int rank, int ranks) {
    struct ot_world_config config = {
        .ranks = {.rank = rank, .ranks = ranks, .local_rank = -1, .address = "localhost", .port = port},
        .timeout_seconds = 20,
        .silence_seconds = 10,
        .linger_seconds = 0.3,
        .listener = -1};
    strcpy(config.ranks.run_id, "test");
    return config;
}

static void on_loss(void *report) {
    atomic_fetch_add(&((struct report *)report)->n_losses, 1);
}

/* In the process of the rank. It ends with exit, so that leaks are found. */
static void run_rank(const struct ot_world_config *given, rank_body *body) {
    struct ot_world_config config = *given;
    struct report *report = &shared->reports[config.ranks.rank];
    struct ot_world *world;
    dup2(log_fd, STDERR_FILENO);
    config.on_loss = on_loss;
    config.context = report;
    report->rc = ot_world_open(&config, &world);
    if (report->rc == 0) {
        atomic_fetch_add(&shared->n_open, 1);
        report->rc = body ? body(world) : 0;
    }
    report->seconds = ot_clock_seconds();
    if (report->rc < 0)
        snprintf(report->text, sizeof report->text, "%s", ot_error_text());
    atomic_store(&report->is_done, 1);
    ot_world_close(world);
    exit(0);
}

pid_t start_rank(const struct ot_world_config *config, rank_body *body) {
    fflush(NULL);
    pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0)
        run_rank(config, body);
    rank_of[n_processes] = config->ranks.rank;
    processes[n_processes++] = process;
    return process;
}

void start_ranks(int ranks, rank_body *body) {
    for (int rank = 0; rank < ranks; rank++) {
        struct ot_world_config config = config_of(rank, ranks);
        start_rank(&config, body);
    }
}

void await_ranks(void) {
    while (n_processes > 0) {
        int status;
        n_processes--;
        assert_int_equal(waitpid(processes[n_processes], &status, 0), processes[n_processes]);
        if (!killed[n_processes] && status != 0)
            fail_msg("rank %d ended with status 0x%x; log:\n%s", rank_of[n_processes], status, log_text());
    }
}

static void await_count(atomic_int *count, int wanted) {
    const struct timespec pause = {.tv_nsec = 5000000};
    double until = ot_clock_seconds() + 60;
    while (atomic_load(count) < wanted) {
        if (ot_clock_seconds() > until)
            fail_msg("the ranks take too long; log:\n%s", log_text());
        nanosleep(&pause, NULL);
    }
}

void await_open(int ranks) {
    await_count(&shared->n_open, ranks);
}

void await_report(int rank) {
    await_count(&shared->reports[rank].is_done, 1);
}

static int find(int rank) {
    for (int i = 0; i < n_processes; i++)
        if (rank_of[i] == rank)
            return i;
    fail_msg("rank %d was not started", rank);
    return -1;
}

pid_t rank_process(int rank) {
    return processes[find(rank)];
}

void kill_rank(int rank, int number) {
    int i = find(rank);
    killed[i] = killed[i] || number == SIGKILL;
    assert_int_equal(kill(processes[i], number), 0);
}

const char *log_text(void) {
    static char text[65536];
    ssize_t n = pread(log_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

void check_report_code(int rank, enum ot_error_code code, const char *words) {
    const struct report *report = &shared->reports[rank];
    if (report->rc != -(int)code || !strstr(report->text, words))
        fail_msg("rank %d returned %d '%s', not '%s'; log:\n%s", rank, report->rc, report->text, words,
                 log_text());
}

void check_report(int rank, const char *words) {
    check_report_code(rank, OT_E_COMM, words);
}

void check_log(const char *words) {
    if (!strstr(log_text(), words))
        fail_msg("no '%s' in the log:\n%s", words, log_text());
}

void check_no_errors(int ranks) {
    for (int rank = 0; rank < ranks; rank++)
        if (shared->reports[rank].rc != 0 || shared->reports[rank].n_losses != 0)
            fail_msg("rank %d: %s", rank, shared->reports[rank].text);
}

/* ---- connections by hand ---- */

static struct sockaddr_in place(const char *address) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    assert_int_equal(inet_pton(AF_INET, address, &to.sin_addr), 1);
    return to;
}

int dial_at(const char *address) {
    struct sockaddr_in to = place(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (void *)&to, sizeof to) == 0)
        return fd;
    close(fd);
    assert_int_equal(errno, ECONNREFUSED);
    return -1;
}

int dial(void) {
    double until = ot_clock_seconds() + 20;
    for (;;) {
        int fd = dial_at("127.0.0.1");
        if (fd >= 0)
            return fd;
        assert_true(ot_clock_seconds() < until);
        usleep(2000);
    }
}

int listen_here(void) {
    struct sockaddr_in at = place("0.0.0.0");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (void *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
    return fd;
}

struct ot_world_hello hello_of(uint32_t rank, uint32_t ranks) {
    struct ot_world_hello hello = {.magic = OT_WORLD_MAGIC,
                                   .protocol = OT_WORLD_PROTOCOL,
                                   .rank = rank,
                                   .ranks = ranks,
                                   .process = 4711,
                                   .version = OT_VERSION,
                                   .run_id = "test",
                                   .host = "far"};
    return hello;
}

void say(int fd, const void *data, size_t bytes) {
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

void hear(int fd, void *data, size_t bytes) {
    assert_int_equal(recv(fd, data, bytes, MSG_WAITALL), bytes);
}
