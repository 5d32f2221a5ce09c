/* offload-train watch: reads what is new in the log of a run, and draws the run again and again on a
 * terminal; without a terminal, once. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/cli/command.h"
#include "src/view/facts.h"
#include "src/view/picture.h"

enum { PIECE_BYTES = 64 << 20, PLAIN_ROWS = 30, PLAIN_COLUMNS = 100, MOST_CELLS = 1000 };

struct watch {
    const struct ot_options *options;
    struct ot_history *history;
    struct ot_gpus *gpus;
    bool has_keys, is_on_screen, is_ascii, with_colours;
    struct termios before; /* of stdin, if has_keys */
    struct ot_screen now, shown;
};

/* ---- signals ---- */

static volatile sig_atomic_t leaves, suspends;

static void on_signal(int number) {
    if (number == SIGTSTP)
        suspends = 1;
    else if (number != SIGWINCH) /* which only interrupts the wait */
        leaves = 1;
}

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH};
enum { SIGNALS = sizeof signals / sizeof *signals };

/* Blocks the signals; only the wait between two pictures lets them through. */
static void catch_signals(sigset_t *through) {
    sigset_t blocked;
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&blocked);
    for (int i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], &action, NULL);
        sigaddset(&blocked, signals[i]);
    }
    sigprocmask(SIG_BLOCK, &blocked, through);
    for (int i = 0; i < SIGNALS; i++)
        sigdelset(through, signals[i]);
}

/* ---- the terminal ---- */

static bool has_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) /* the first one counts */
            return strcasestr(value, "UTF-8") || strcasestr(value, "utf8");
    }
    return false;
}

static bool is_live(const struct ot_options *o) {
    const char *term = getenv("TERM");
    return !o->once && isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

static int write_out(const char *text, size_t bytes) {
    int error = ot_write_all(NULL, STDOUT_FILENO, text, bytes);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "stdout: cannot draw the run") : 0;
}

/* Keys come at once and are not shown; Ctrl-C stays a signal. */
static int enter(struct watch *w) {
    struct termios keys = w->before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    if (w->has_keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
    w->is_on_screen = true;
    ot_screen_close(&w->shown);
    return write_out(ot_screen_enter, strlen(ot_screen_enter));
}

static void leave(struct watch *w) {
    if (!w->is_on_screen)
        return;
    w->is_on_screen = false;
    (void)write_out(ot_screen_leave, strlen(ot_screen_leave));
    if (w->has_keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &w->before);
}

/* Ctrl-Z: the shell gets its terminal back until the process continues. */
static int suspend(struct watch *w) {
    suspends = 0;
    leave(w);
    raise(SIGSTOP);
    return enter(w);
}

/* ---- pictures ---- */

static int open_screen(struct watch *w, int less_rows) {
    struct winsize size = {0};
    bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    int rows = is_known ? size.ws_row - less_rows : PLAIN_ROWS,
        columns = is_known ? size.ws_col : PLAIN_COLUMNS;
    rows = rows < 1 ? 1 : rows > MOST_CELLS ? MOST_CELLS : rows;
    return ot_screen_open(&w->now, rows, columns > MOST_CELLS ? MOST_CELLS : columns, w->is_ascii);
}

/* The sensors of this machine tell something about a run on a GPU only. */
static bool is_on_gpu(const struct ot_history *h) {
    char device[OT_FACT_BYTES];
    ot_fact_text(ot_json_get(ot_json_get(h->last[OT_HISTORY_RUN], "machine"), "device"), device,
                 sizeof device);
    return *device && strncmp(device, "cpu", 3) != 0;
}

static int draw(struct watch *w, enum ot_run_state state, const char *hint, int less_rows) {
    struct ot_gpu_reading readings[OT_GPUS_MAX];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct ot_picture picture = {.history = w->history,
                                 .state = state,
                                 .now = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec,
                                 .gpus = readings,
                                 .n_gpus = is_on_gpu(w->history) ? ot_gpus_read(w->gpus, readings) : 0,
                                 .hint = hint};
    OT_TRY(open_screen(w, less_rows));
    ot_picture_draw(&picture, &w->now);
    return 0;
}

static int show(struct watch *w, enum ot_run_state state) {
    struct ot_string_builder text = {0};
    OT_TRY(draw(w, state, "q leaves", 0));
    ot_screen_put_changes(&w->now, &w->shown, w->with_colours, &text);
    int rc =
        text.failed ? ot_fail(OT_E_BUDGET, "no memory to draw the run") : write_out(text.text, text.bytes);
    free(text.text);
    struct ot_screen old = w->shown;
    w->shown = w->now;
    w->now = old;
    return rc;
}

/* Prints the run as plain text. */
static int print(struct watch *w, enum ot_run_state state) {
    struct ot_string_builder text = {0};
    OT_TRY(draw(w, state, "", 1));
    ot_screen_put_text(&w->now, &text);
    int rc =
        text.failed ? ot_fail(OT_E_BUDGET, "no memory to draw the run") : write_out(text.text, text.bytes);
    free(text.text);
    return rc;
}

/* ---- the command ---- */

/* Waits for a key, a signal or the time of the next picture. */
static void await(struct watch *w, double seconds, const sigset_t *through) {
    struct pollfd keys = {.fd = w->has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    char key;
    if (ppoll(&keys, 1, &time, through) <= 0 || !keys.revents)
        return;
    ssize_t n = read(STDIN_FILENO, &key, 1);
    if (n == 1 && (key == 'q' || key == 'Q'))
        leaves = 1;
    if (n <= 0 && errno != EINTR) /* the terminal is gone */
        leaves = 1;
}

static int run(struct watch *w) {
    enum ot_run_state state = OT_RUN_WAITS;
    sigset_t through;
    catch_signals(&through);
    OT_TRY(enter(w));
    while (!leaves) {
        int more = ot_history_read(w->history, PIECE_BYTES);
        OT_TRY(more);
        state = more ? OT_RUN_RUNS : ot_history_state(w->history);
        if (state != OT_RUN_RUNS && state != OT_RUN_WAITS)
            break;
        OT_TRY(show(w, state));
        await(w, more ? 0 : w->options->every, &through);
        if (suspends)
            OT_TRY(suspend(w));
    }
    leave(w);
    return leaves ? 0 : print(w, state);
}

/* One picture, of a run that exists. */
static int print_once(struct watch *w) {
    OT_TRY(ot_history_read(w->history, INT64_MAX));
    if (w->history->fd < 0 && !w->history->config)
        return ot_fail(OT_E_INPUT, "%s: has neither log.jsonl nor run.json, so it is no output of a run",
                       w->history->dir);
    return print(w, ot_history_state(w->history));
}

int ot_command_watch(const struct ot_options *options) {
    bool live = is_live(options);
    const char *no_colour = getenv("NO_COLOR");
    struct watch w = {.options = options, .is_ascii = !has_utf8(), .with_colours = !no_colour || !*no_colour};
    w.has_keys = live && isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &w.before) == 0;
    int rc = ot_history_open(options->dir, live, &w.history);
    if (rc == 0) {
        w.gpus = ot_gpus_open();
        rc = live ? run(&w) : print_once(&w);
    }
    leave(&w);
    ot_gpus_close(w.gpus);
    ot_screen_close(&w.now);
    ot_screen_close(&w.shown);
    ot_history_close(w.history);
    return rc;
}
