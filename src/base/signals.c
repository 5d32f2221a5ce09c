#include "src/base/signals.h"

#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/thread.h"

static const int numbers[] = {SIGINT, SIGTERM};
enum { N_SIGNALS = sizeof numbers / sizeof *numbers };

/* The reader of stderr may be stopped. After this time the process ends without it. */
static const double last_words_seconds = 0.5;

/* Handlers write these, on any thread. They are lock-free. */
static atomic_int signals, first_number;
static atomic_bool save_requested;
static _Atomic int64_t first_ns; /* time of the first signal; 0: none */

static sem_t arrived; /* wakes the thread that answers signals */
static bool is_watched;
static atomic_bool requested; /* the thread has printed the line */

/* Repeating a step costs only its time. Waiting for the end of a long step may leave no time for the
 * checkpoint. */
static _Atomic double patience_seconds = 2;

/* The line that the first signal prints, and whether that signal ends the process. */
static struct phase {
    const char *line;
    bool ends;
} phases[3];
static _Atomic(const struct phase *) phase;
/* Before ot_stop_begin_part: the phase, and the actions if there was no phase (NULL). */
static const struct phase *phase_before_part;
static const int part_numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
enum { N_PART_SIGNALS = sizeof part_numbers / sizeof *part_numbers };
static struct sigaction actions_before_part[N_PART_SIGNALS];

/* timeout(1) and others send a signal to the process and to its group. The two count as one signal. */
static bool is_same_again(int number, int64_t now) {
    enum { SAME_NS = 200000000 };
    int64_t first = 0;
    int none = 0;
    if (atomic_compare_exchange_strong(&first_ns, &first, now))
        first = now;
    return !atomic_compare_exchange_strong(&first_number, &none, number) && none == number &&
           now - first < SAME_NS;
}

/* Only sets flags: output may block, and a handler that blocks also blocks the thread that it interrupted. */
static void on_stop(int number) {
    int before = errno;
    if (!is_same_again(number, ot_clock_ns())) {
        atomic_fetch_add(&signals, 1);
        sem_post(&arrived);
    }
    errno = before;
}

static void on_save(int number) {
    (void)number;
    atomic_store(&save_requested, true);
}

static void say(const char *sentence) {
    ot_log_set_status("");
    ot_log_text(sentence, strlen(sentence));
}

static void end_at_once(void) {
    ot_log_finish(last_words_seconds);
    _exit(OT_E_INTERRUPT);
}

static void *answer_signals(void *arg) {
    (void)arg;
    for (bool is_first = true;; is_first = false) {
        while (sem_wait(&arrived) < 0)
            ; /* EINTR: a debugger, or SIGSTOP and SIGCONT */
        const struct phase *now = atomic_load(&phase);
        say(is_first ? now->line : "error: stopped at once by a second signal; unsaved progress is lost\n");
        if (!is_first || now->ends)
            end_at_once();
        atomic_store(&requested, true);
    }
    return NULL;
}

static int watch_signals(void) {
    pthread_t thread;
    if (is_watched)
        return 0;
    if (sem_init(&arrived, 0, 0) < 0)
        return ot_fail_errno(OT_E_IO, errno, "cannot wait for signals");
    int error = ot_thread_start(&thread, "signals", answer_signals, NULL);
    if (error)
        return ot_fail_errno(OT_E_IO, error, "cannot start the thread that answers signals");
    pthread_detach(thread);
    is_watched = true;
    return 0;
}

static int install(struct phase *next, const char *line, bool ends) {
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    struct sigaction save = {.sa_handler = on_save, .sa_flags = SA_RESTART};
    sigfillset(&stop.sa_mask);
    *next = (struct phase){line, ends};
    atomic_store(&phase, next);
    OT_TRY(watch_signals());
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 &&
            before.sa_handler != SIG_IGN) /* nohup, or a script's background job */
            sigaction(numbers[i], &stop, NULL);
    }
    sigaction(SIGUSR1, &save, NULL);
    signal(SIGHUP, SIG_IGN);
    return 0;
}

int ot_stop_install_early(const char *line) {
    return install(&phases[1], line, true);
}

int ot_stop_install(const char *line) {
    return install(&phases[0], line, false);
}

int ot_stop_begin_part(const char *line) {
    phase_before_part = atomic_load(&phase);
    for (int i = 0; i < N_PART_SIGNALS && !phase_before_part; i++)
        sigaction(part_numbers[i], NULL, &actions_before_part[i]);
    return install(&phases[2], line, true);
}

void ot_stop_end_part(void) {
    if (phase_before_part)
        atomic_store(&phase, phase_before_part);
    for (int i = 0; i < N_PART_SIGNALS && !phase_before_part; i++)
        sigaction(part_numbers[i], &actions_before_part[i], NULL);
}

void ot_stop_ignore(void) {
    for (int i = 0; i < N_SIGNALS; i++)
        signal(numbers[i], SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
}

bool ot_stop_requested(void) {
    return atomic_load(&requested);
}

double ot_stop_seconds(void) {
    int64_t first = atomic_load(&first_ns);
    return first ? 1e-9 * (double)(ot_clock_ns() - first) : 0;
}

void ot_stop_set_grace(double seconds) {
    const double share = 0.25; /* the rest of the grace is for saving */
    if (share * seconds < atomic_load(&patience_seconds))
        atomic_store(&patience_seconds, share * seconds);
}

bool ot_stop_is_urgent(void) {
    return ot_stop_seconds() > atomic_load(&patience_seconds);
}

bool ot_stop_take_save_request(void) {
    return atomic_exchange(&save_requested, false);
}

/* ---- crashes of libraries ---- */

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGABRT};
enum { N_CRASHES = sizeof crash_signals / sizeof *crash_signals };

/* The point where this thread continues after a crash; NULL: no call is being contained. */
static _Thread_local sigjmp_buf *way_out;

static void on_crash(int number) {
    if (way_out)
        siglongjmp(*way_out, 1);
    signal(number, SIG_DFL);
    raise(number);
}

int ot_crash_contain(const char *library, int (*fn)(void *context), void *context) {
    struct sigaction before[N_CRASHES], crash = {.sa_handler = on_crash};
    sigjmp_buf here;
    int rc;
    for (int i = 0; i < N_CRASHES; i++)
        sigaction(crash_signals[i], &crash, &before[i]);
    way_out = &here;
    if (sigsetjmp(here, 1) == 0)
        rc = fn(context);
    else
        rc = ot_fail(OT_E_BUDGET,
                     "%s has crashed, probably because memory ran out; free some memory and try again",
                     library);
    way_out = NULL;
    for (int i = 0; i < N_CRASHES; i++)
        sigaction(crash_signals[i], &before[i], NULL);
    return rc;
}
