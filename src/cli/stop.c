#include "src/cli/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"

static const int numbers[] = {SIGINT, SIGTERM};
enum { N_SIGNALS = sizeof numbers / sizeof *numbers };

/* Any thread may be interrupted; lock-free, so allowed in a handler. */
static atomic_int signals, first_number;
static atomic_bool save_requested;
static _Atomic int64_t first_ns; /* 0: none came */

/* Making a step again costs no more than its time; waiting for the end of a long one may cost the
 * checkpoint. */
static _Atomic double patience_seconds = 2;

/* What the first signal says, and whether it is the last. */
static struct phase {
    const char *line;
    bool ends;
} phases[2];
static _Atomic(const struct phase *) phase;

static bool at_terminal; /* where a bar may stand on the line */

/* Whether anybody listens does not matter. */
static void say(const char *sentence) {
    ssize_t written = at_terminal ? write(STDERR_FILENO, "\n", 1) : 0;
    written = write(STDERR_FILENO, sentence, strlen(sentence));
    (void)written;
}

/* timeout(1) and others send a signal to the process and to its group: that is one signal, and no hurry. */
static bool is_same_again(int number, int64_t now) {
    enum { SAME_NS = 200000000 };
    int64_t first = 0;
    int none = 0;
    if (atomic_compare_exchange_strong(&first_ns, &first, now))
        first = now;
    return !atomic_compare_exchange_strong(&first_number, &none, number) && none == number &&
           now - first < SAME_NS;
}

static void on_stop(int number) {
    if (is_same_again(number, ot_clock_ns()))
        return;
    if (atomic_fetch_add(&signals, 1) == 0) {
        const struct phase *now = atomic_load(&phase);
        say(now->line);
        if (!now->ends)
            return;
    } else {
        say("error: stopped at once by a second signal; what was not saved yet is lost\n");
    }
    _exit(OT_E_INTERRUPT);
}

static void on_save(int number) {
    (void)number;
    atomic_store(&save_requested, true);
}

static void install(const char *line, bool ends) {
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    struct sigaction save = {.sa_handler = on_save, .sa_flags = SA_RESTART};
    sigfillset(&stop.sa_mask); /* one sentence, then the next */
    phases[ends] = (struct phase){line, ends};
    atomic_store(&phase, &phases[ends]);
    at_terminal = isatty(STDERR_FILENO) == 1;
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 &&
            before.sa_handler != SIG_IGN) /* nohup, or a script's background job */
            sigaction(numbers[i], &stop, NULL);
    }
    sigaction(SIGUSR1, &save, NULL);
    signal(SIGHUP, SIG_IGN);
}

void ot_stop_install_early(const char *line) {
    install(line, true);
}

void ot_stop_install(const char *line) {
    install(line, false);
}

void ot_stop_ignore(void) {
    for (int i = 0; i < N_SIGNALS; i++)
        signal(numbers[i], SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
}

bool ot_stop_requested(void) {
    return atomic_load(&signals) > 0;
}

double ot_stop_seconds(void) {
    int64_t first = atomic_load(&first_ns);
    return first ? 1e-9 * (double)(ot_clock_ns() - first) : 0;
}

void ot_stop_set_grace(double seconds) {
    const double share = 0.25; /* the rest is for saving */
    if (share * seconds < atomic_load(&patience_seconds))
        atomic_store(&patience_seconds, share * seconds);
}

bool ot_stop_is_urgent(void) {
    return ot_stop_seconds() > atomic_load(&patience_seconds);
}

bool ot_stop_take_save_request(void) {
    return atomic_exchange(&save_requested, false);
}
