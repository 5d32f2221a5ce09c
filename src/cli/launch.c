#include "src/cli/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/device.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/log.h"
#include "src/session/open.h"

static int count_gpus(void) {
    char bus_id[OT_BUS_ID_BYTES];
    int n = 0;
    while (n < OT_MAX_RANKS && ot_device_bus_id("cuda", n, bus_id))
        n++;
    return n;
}

int ot_launch_find(const struct ot_options *options, struct ot_launch *out) {
    bool on_cpu = options->device.kind == OT_DEVICE_CPU;
    struct ot_launch_request request = {
        .gpus = options->gpus,
        .nodes = (int)options->nodes,
        .node_rank = ot_options_given(options, "node-rank") ? (int)options->node_rank : -1,
        .master = options->master,
        .visible_gpus = on_cpu ? OT_CPU_RANKS : count_gpus()};
    return ot_ranks_find(&request, out);
}

static const char *no_variable(void *context, const char *name) {
    (void)context, (void)name;
    return NULL;
}

int ot_launch_count(const struct ot_options *options, int *ranks) {
    struct ot_launch found;
    bool is_all = options->gpus && strcmp(options->gpus, "all") == 0;
    const struct ot_launch_request elsewhere = {.gpus = options->gpus,
                                                .node_rank = -1,
                                                .visible_gpus = is_all ? count_gpus() : OT_CPU_RANKS,
                                                .get_env = no_variable};
    OT_TRY(options->command == OT_COMMAND_MIGRATE ? ot_ranks_find(&elsewhere, &found)
                                                  : ot_launch_find(options, &found));
    bool is_said = options->gpus || options->nodes || found.ranks.ranks > 1;
    *ranks = is_said ? found.ranks.ranks : 0;
    return 0;
}

static struct ot_world_config world_config(const struct ot_options *options, const struct ot_launch *launch) {
    return (struct ot_world_config){.ranks = launch->ranks,
                                    .timeout_seconds = options->comm_timeout,
                                    .listener = launch->listener,
                                    .secret = getenv("OFFLOAD_TRAIN_SECRET"),
                                    .secret_name = "$OFFLOAD_TRAIN_SECRET"};
}

int ot_launch_world(const struct ot_options *options, const struct ot_launch *launch,
                    struct ot_world **world) {
    struct ot_world_config config = world_config(options, launch);
    return ot_world_open(&config, world);
}

int ot_launch_join(const struct ot_options *options, struct ot_world **world) {
    struct ot_launch launch;
    OT_TRY(ot_launch_find(options, &launch));
    if (launch.ranks.ranks <= 1)
        return 0;
    if (launch.ranks.rank != 0)
        ot_log_set_level(OT_LOG_WARN);
    return ot_launch_world(options, &launch, world);
}

int ot_launch_leave(struct ot_session *session, struct ot_world *world, int rc) {
    struct ot_error why; /* errors of closing are not reported */
    ot_error_save(&why, rc);
    if (world && rc < 0)
        ot_error_save(&why, ot_world_fail(world, &why));
    if (session->engine && ot_engine_is_stuck(session->engine)) /* its threads still use all of it */
        return ot_error_load(&why);
    ot_session_close(session);
    ot_world_close(world);
    return ot_error_load(&why);
}

/* True if several ranks can run the command together. plan has --gpus too, but no connections. */
static bool has_ranks(const struct ot_options *options) {
    int index = ot_option_find("master", strlen("master"), options->command);
    return ot_option_at(index)->commands & (1u << options->command);
}

void ot_launch_tell(int argc, char *const *argv, struct ot_options *options, int rc) {
    struct ot_launch launch;
    struct ot_error why;
    ot_error_save(&why, rc);
    ot_options_find_rank(argc, argv, options);
    if (has_ranks(options) && ot_launch_find(options, &launch) == 0 && launch.ranks.ranks > 1) {
        struct ot_world_config config = world_config(options, &launch);
        ot_world_tell(&config, &why);
    }
    ot_error_load(&why);
}

int ot_launch_command(const struct ot_options *options, char **argv, int *exit_code) {
    struct ot_launch found;
    char text[OT_LAUNCH_TEXT_BYTES];
    if (!has_ranks(options))
        return 0;
    OT_TRY(ot_launch_find(options, &found));
    if (*found.note && !options->quiet)
        ot_log(OT_LOG_INFO, "note    %s", found.note);
    if (found.ranks.ranks > 1 && found.ranks.rank == 0 && !options->quiet)
        ot_log(OT_LOG_INFO, "ranks   %s", ot_ranks_describe(&found, text));
    if (!found.n_start)
        return 0;
    struct ot_local_config config = {
        .launch = &found, .argv = argv, .log_dir = options->out, .grace_seconds = options->grace};
    OT_TRY(ot_launch_local(&config, exit_code));
    return 1;
}

/* ---- ranks of this host ---- */

static const double default_notice_seconds = 5, default_grace_seconds = 60, default_silence_seconds = 30;
static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

enum { TAIL_BYTES = 65536, VARIABLE_BYTES = 640 };

struct child {
    pid_t process; /* 0: not started, or its end is known */
    int output;    /* read end of its pipe; -1: none */
    char *tail;    /* the last bytes that it wrote */
    size_t bytes;
    bool was_told;   /* got SIGTERM or SIGKILL from here, so its end is no reason */
    int status;      /* of waitpid */
    int order;       /* of its end: 1, 2, ... */
    bool is_stopped; /* by SIGSTOP, say */
};

struct local {
    const struct ot_local_config *config;
    struct ot_ranks ranks; /* of the first child */
    int n, n_ended;
    struct child children[OT_MAX_RANKS];
    int signals, listener;
    sigset_t before;
    char variable[VARIABLE_BYTES];
    char **environment;
    int64_t stop_ns; /* when the rest gets SIGTERM, then SIGKILL; 0: no rank has failed */
    int stop_signal;
    bool rest_is_stopped; /* stop_ns is set because of that */
};

/* ---- starting ---- */

/* The environment of the ranks; the variable's text changes from rank to rank. */
static int copy_environment(struct local *l) {
    size_t n = 0, kept = 0, name = strlen(OT_RANKS_VARIABLE "=");
    while (environ[n])
        n++;
    l->environment = malloc((n + 2) * sizeof *l->environment);
    if (!l->environment)
        return ot_fail(OT_E_BUDGET, "no memory for the environment of the ranks");
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], OT_RANKS_VARIABLE "=", name) != 0)
            l->environment[kept++] = environ[i];
    l->environment[kept++] = l->variable;
    l->environment[kept] = NULL;
    return 0;
}

/* If all ranks are here, rank 0 gets a listening socket on a free port of this host. */
static int listen_locally(struct local *l) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    uint64_t id;
    if (l->n < l->ranks.ranks)
        return 0;
    l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->listener < 0 || bind(l->listener, (void *)&at, sizeof at) < 0 ||
        listen(l->listener, 2 * OT_MAX_RANKS) < 0 || getsockname(l->listener, (void *)&at, &bytes) < 0)
        return ot_fail_errno(OT_E_IO, errno, "cannot listen on this host for the ranks");
    if (getrandom(&id, sizeof id, 0) != sizeof id)
        return ot_fail_errno(OT_E_IO, errno, "cannot make the id of the run");
    snprintf(l->ranks.address, sizeof l->ranks.address, "127.0.0.1");
    snprintf(l->ranks.run_id, sizeof l->ranks.run_id, "local-%016llx", (unsigned long long)id);
    l->ranks.port = ntohs(at.sin_port);
    return 0;
}

static int take_signals(struct local *l) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        sigaddset(&set, passed_on[i]);
    signal(SIGCHLD, SIG_DFL); /* the caller may have ignored it, so that no end would be seen */
    if (sigprocmask(SIG_BLOCK, &set, &l->before) < 0)
        return ot_fail_errno(OT_E_IO, errno, "cannot block signals");
    l->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals < 0 ? ot_fail_errno(OT_E_IO, errno, "cannot receive signals") : 0;
}

/* In the child: only calls that are safe after fork. */
static _Noreturn void become_rank(const struct local *l, int index, int output, pid_t parent) {
    static const char failed[] = "error: cannot start a rank: execve failed\n";
    const char *program = l->config->program ? l->config->program : "/proc/self/exe";
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before it could be noticed */
        _exit(OT_E_COMM);
    if (index > 0) {
        int none = open("/dev/null", O_RDONLY);
        if (none < 0 || dup2(none, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
            dup2(output, STDERR_FILENO) < 0)
            _exit(OT_E_IO);
        if (none > STDERR_FILENO)
            close(none);
    } else if (l->listener >= 0 && fcntl(l->listener, F_SETFD, 0) < 0) {
        _exit(OT_E_IO);
    }
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    execve(program, l->config->argv, l->environment);
    if (write(STDERR_FILENO, failed, sizeof failed - 1) < 0)
        _exit(OT_E_INTERNAL);
    _exit(OT_E_IO);
}

static int start(struct local *l, int index) {
    struct child *child = &l->children[index];
    const struct ot_ranks *r = &l->ranks;
    int ends[2] = {-1, -1};
    pid_t parent = getpid();
    snprintf(l->variable, sizeof l->variable, OT_RANKS_VARIABLE "=%d %d %d %d %d %d %s %s", r->rank + index,
             r->ranks, index, l->n, index == 0 ? l->listener : -1, r->port, r->address[0] ? r->address : "-",
             r->run_id[0] ? r->run_id : "-");
    if (index > 0) {
        child->tail = malloc(TAIL_BYTES);
        if (!child->tail)
            return ot_fail(OT_E_BUDGET, "no memory for the output of rank %d", r->rank + index);
        if (pipe2(ends, O_CLOEXEC) < 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0)
            return ot_fail_errno(OT_E_IO, errno, "cannot make a pipe for rank %d", r->rank + index);
    }
    child->output = ends[0];
    child->process = fork();
    if (child->process == 0)
        become_rank(l, index, ends[1], parent);
    int error = errno;
    if (ends[1] >= 0)
        close(ends[1]);
    if (child->process < 0) {
        child->process = 0;
        return ot_fail_errno(OT_E_IO, error, "cannot start rank %d", r->rank + index);
    }
    return 0;
}

/* ---- while they run ---- */

static void signal_all(struct local *l, int number, bool is_end) {
    for (int i = 0; i < l->n; i++)
        if (l->children[i].process > 0) {
            kill(l->children[i].process, number); /* fails only if it is about to be reaped */
            l->children[i].was_told = l->children[i].was_told || is_end;
        }
}

/* Keeps the end of the rank's output. */
static void take_output(struct child *child) {
    while (child->output >= 0) {
        if (child->bytes == TAIL_BYTES) {
            memmove(child->tail, child->tail + TAIL_BYTES / 2, TAIL_BYTES / 2);
            child->bytes = TAIL_BYTES / 2;
        }
        ssize_t n = read(child->output, child->tail + child->bytes, TAIL_BYTES - child->bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            close(child->output);
            child->output = -1;
            return;
        }
        child->bytes += (size_t)n;
    }
}

/* Did the rank fail? One that a signal stopped has saved its state (OT_E_STOPPED). */
static bool has_failed(const struct child *child) {
    int code = WIFEXITED(child->status) ? WEXITSTATUS(child->status) : -1;
    return child->order && code != 0 && code != OT_E_STOPPED;
}

static int64_t after(double seconds) {
    return ot_clock_ns() + (int64_t)(1e9 * seconds);
}

static void reap(struct local *l) {
    for (int i = 0; i < l->n; i++) {
        struct child *child = &l->children[i];
        int status, events = WNOHANG | WUNTRACED | WCONTINUED;
        if (child->process <= 0 || waitpid(child->process, &status, events) != child->process)
            continue;
        child->is_stopped = WIFSTOPPED(status);
        if (!WIFEXITED(status) && !WIFSIGNALED(status))
            continue;
        child->status = status;
        child->process = 0;
        child->order = ++l->n_ended;
        take_output(child);
        if (has_failed(child) && !l->stop_ns) {
            l->stop_ns =
                after(l->config->notice_seconds > 0 ? l->config->notice_seconds : default_notice_seconds);
            l->stop_signal = SIGTERM;
        }
    }
}

/* Sets the end of ranks that are stopped while all others have ended well. A rank that goes on has all its
 * time again. */
static void watch_stopped(struct local *l) {
    bool all = l->n_ended > 0;
    for (int i = 0; i < l->n; i++)
        all = all && (l->children[i].process <= 0 || l->children[i].is_stopped);
    if (all == l->rest_is_stopped || (l->stop_ns && !l->rest_is_stopped))
        return;
    double silence = l->config->silence_seconds > 0 ? l->config->silence_seconds : default_silence_seconds;
    l->rest_is_stopped = all;
    l->stop_ns = all ? after(silence) : 0;
    l->stop_signal = SIGTERM;
}

static void take_signal(struct local *l) {
    struct signalfd_siginfo info;
    ssize_t n;
    while ((n = read(l->signals, &info, sizeof info)) == (ssize_t)sizeof info || (n < 0 && errno == EINTR)) {
        /* those of a terminal go to all processes of its foreground group */
        if (n > 0 && info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL)
            signal_all(l, (int)info.ssi_signo, false);
    }
}

/* A rank has failed, and the others have not ended in time. */
static void stop_rest(struct local *l) {
    double grace = l->config->grace_seconds > 0 ? l->config->grace_seconds : default_grace_seconds;
    if (!l->stop_ns || ot_clock_ns() < l->stop_ns)
        return;
    signal_all(l, l->stop_signal, true);
    for (int i = 0; i < l->n; i++)
        if (l->children[i].process > 0 && l->children[i].is_stopped) /* it takes no other signal */
            kill(l->children[i].process, SIGKILL);
    l->stop_signal = SIGKILL;
    l->stop_ns = after(grace);
}

static int await_all(struct local *l) {
    while (l->n_ended < l->n) {
        struct pollfd fds[1 + OT_MAX_RANKS];
        int n = 0;
        int64_t left = l->stop_ns ? l->stop_ns - ot_clock_ns() : 0;
        fds[n++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
        for (int i = 0; i < l->n; i++)
            fds[n++] = (struct pollfd){.fd = l->children[i].output, .events = POLLIN}; /* -1 is skipped */
        if (poll(fds, (nfds_t)n,
                 !l->stop_ns ? -1
                 : left > 0  ? (int)(left / 1000000) + 1
                             : 0) < 0 &&
            errno != EINTR)
            return ot_fail_errno(OT_E_IO, errno, "cannot wait for the ranks");
        for (int i = 0; i < l->n; i++)
            take_output(&l->children[i]);
        take_signal(l);
        reap(l);
        watch_stopped(l);
        stop_rest(l);
    }
    return 0;
}

/* ---- afterwards ---- */

/* True if the rank wrote into a pipe whose reader has ended. Commands other than train end then without a
 * word, as filters do. */
static bool lost_reader(const struct child *child) {
    return WIFSIGNALED(child->status) && WTERMSIG(child->status) == SIGPIPE;
}

static int code_of(const struct child *child) {
    if (lost_reader(child))
        return 128 + SIGPIPE; /* as a shell says it */
    return WIFEXITED(child->status) ? WEXITSTATUS(child->status) : OT_E_COMM;
}

/* Did the rank fail only because another one did? */
static bool is_consequence(const struct child *child) {
    return child->was_told || (WIFEXITED(child->status) && WEXITSTATUS(child->status) == OT_E_COMM);
}

/* The rank that failed first, of those that failed by themselves if there are any; of those with the same
 * exit code, the first rank. -1: none failed. */
static int find_culprit(const struct local *l) {
    int found = -1;
    for (int i = 0; i < l->n; i++) {
        const struct child *child = &l->children[i], *best = found < 0 ? NULL : &l->children[found];
        bool is_better = !best || (is_consequence(best) && !is_consequence(child)) ||
                         (is_consequence(best) == is_consequence(child) && child->order < best->order);
        if (has_failed(child) && is_better)
            found = i;
    }
    /* All ranks may find the same error. The first one has the terminal, and has said it. */
    const struct child *first = &l->children[0];
    bool is_same = found > 0 && has_failed(first) && !is_consequence(first) &&
                   code_of(first) == code_of(&l->children[found]);
    return is_same ? 0 : found;
}

/* The last line of the rank's output that begins with "error: ", without its end. "": none. Returns true if
 * the rank wrote nothing else. */
static bool find_error_line(const struct child *child, char line[OT_ERROR_TEXT_BYTES]) {
    static const char mark[] = "error: ";
    size_t length = sizeof mark - 1;
    line[0] = '\0';
    for (size_t at = 0; at + length <= child->bytes; at++) {
        bool begins = at == 0 || child->tail[at - 1] == '\n';
        if (!begins || memcmp(child->tail + at, mark, length) != 0)
            continue;
        const char *text = child->tail + at + length, *end = memchr(text, '\n', child->bytes - at - length);
        size_t bytes = end ? (size_t)(end - text) : child->bytes - at - length;
        snprintf(line, OT_ERROR_TEXT_BYTES, "%.*s", (int)bytes, text);
    }
    return *line && child->bytes == length + strlen(line) + 1;
}

/* Writes the rank's output into rank-N.log, or to stderr. */
static void keep_output(const struct local *l, int index, char *place, size_t bytes) {
    const struct child *child = &l->children[index];
    place[0] = '\0';
    if (child->bytes == 0)
        return;
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/rank-%d.log", l->config->log_dir ? l->config->log_dir : "",
                     l->ranks.rank + index);
    int fd = l->config->log_dir && n < (int)sizeof path
                 ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)
                 : -1;
    bool is_kept = fd >= 0 && ot_write_all(NULL, fd, child->tail, child->bytes) == 0;
    if (fd >= 0 && close(fd) < 0)
        is_kept = false;
    char line[OT_ERROR_TEXT_BYTES];
    if (is_kept)
        snprintf(place, bytes, "; its output is in %s", path);
    else if (!find_error_line(child, line)) /* that line is said anyhow */
        ot_log_text(child->tail, child->bytes);
}

/* True if the rank that has the terminal has already said which rank failed, and why. */
static bool is_said(const struct local *l) {
    return WIFEXITED(l->children[0].status) && WEXITSTATUS(l->children[0].status) == OT_E_COMM;
}

static void say_reason(const struct local *l, int index, const char *place) {
    const struct child *child = &l->children[index];
    char line[OT_ERROR_TEXT_BYTES];
    int rank = l->ranks.rank + index;
    bool is_known = is_said(l);
    (void)find_error_line(child, line);
    if (l->rest_is_stopped && child->was_told)
        ot_log(OT_LOG_ERROR,
               "rank %d was stopped by a signal and did not go on, so it was killed after the "
               "others had ended%s",
               rank, place);
    else if (WIFSIGNALED(child->status))
        ot_log(is_known ? OT_LOG_INFO : OT_LOG_ERROR, "%srank %d was killed by signal %d (%s)%s%s",
               is_known ? "note    " : "", rank, WTERMSIG(child->status), strsignal(WTERMSIG(child->status)),
               WTERMSIG(child->status) == SIGKILL ? "; if you did not do it, the memory was used up" : "",
               place);
    else if (index > 0 && is_known)
        ot_log(OT_LOG_INFO, "note    rank %d failed with exit code %d%s", rank, code_of(child), place);
    else if (index > 0 && *line && code_of(child) == OT_E_COMM)
        ot_log(OT_LOG_ERROR, "%s%s", line, place); /* the line names the rank that failed */
    else if (index > 0)
        ot_log(OT_LOG_ERROR, "rank %d failed with exit code %d%s%s%s", rank, code_of(child),
               *line ? ": " : "", line, place);
}

static int report(const struct local *l) {
    int culprit = find_culprit(l);
    char place[4200] = "", of_culprit[4200] = "";
    for (int i = 0; i < l->n; i++)
        if (i == culprit)
            keep_output(l, i, of_culprit, sizeof of_culprit);
        else if (has_failed(&l->children[i]) && !is_consequence(&l->children[i]))
            keep_output(l, i, place, sizeof place);
    if (culprit < 0)
        return code_of(&l->children[0]);
    if (!lost_reader(&l->children[culprit]))
        say_reason(l, culprit, of_culprit);
    return code_of(&l->children[culprit]);
}

int ot_launch_local(const struct ot_local_config *config, int *exit_code) {
    struct local *l = calloc(1, sizeof *l);
    int rc;
    if (!l)
        return ot_fail(OT_E_BUDGET, "no memory to start ranks");
    *l = (struct local){.config = config, .ranks = config->launch->ranks, .n = config->launch->n_start};
    l->signals = l->listener = -1;
    sigemptyset(&l->before);
    for (int i = 0; i < l->n; i++)
        l->children[i].output = -1;
    OT_TRY_GOTO(copy_environment(l), rc, out);
    OT_TRY_GOTO(listen_locally(l), rc, out);
    OT_TRY_GOTO(take_signals(l), rc, out);
    for (int i = 0; i < l->n; i++)
        OT_TRY_GOTO(start(l, i), rc, out);
    if (l->listener >= 0) /* rank 0 has it now: if it ends, connections must be refused */
        close(l->listener);
    l->listener = -1;
    OT_TRY_GOTO(await_all(l), rc, out);
    *exit_code = report(l);
out:
    signal_all(l, SIGKILL, true);
    for (int i = 0; i < l->n; i++) {
        while (l->children[i].process > 0 && waitpid(l->children[i].process, NULL, 0) < 0 && errno == EINTR)
            ;
        if (l->children[i].output >= 0)
            close(l->children[i].output);
        free(l->children[i].tail);
    }
    if (l->signals >= 0) {
        close(l->signals);
        sigprocmask(SIG_SETMASK, &l->before, NULL);
    }
    if (l->listener >= 0)
        close(l->listener);
    free(l->environment);
    free(l);
    return rc;
}
