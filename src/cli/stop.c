#include "src/cli/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"

/* A terminal that is closed sends SIGHUP: hours of training should not be lost with it. */
static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_SIGNALS = sizeof numbers / sizeof *numbers };

static const char *first_line;

static bool at_terminal; /* where a bar may stand on the line */

/* Any thread may be interrupted; lock-free, so allowed in a handler. */
static atomic_int signals;

/* Whether anybody listens does not matter. */
static void say(const char *sentence) {
    ssize_t written = at_terminal ? write(STDERR_FILENO, "\n", 1) : 0;
    written = write(STDERR_FILENO, sentence, strlen(sentence));
    (void)written;
}

static void on_signal(int number) {
    (void)number;
    if (atomic_fetch_add(&signals, 1) == 0) {
        say(first_line);
        return;
    }
    say("error: stopped at once by a second signal; what was not saved yet is lost\n");
    _exit(OT_E_INTERRUPT);
}

void ot_stop_install(const char *line) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask); /* one sentence, then the next */
    atomic_store(&signals, 0);
    first_line = line;
    at_terminal = isatty(STDERR_FILENO) == 1;
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 &&
            before.sa_handler != SIG_IGN) /* nohup, or a script's background job */
            sigaction(numbers[i], &action, NULL);
    }
}

void ot_stop_ignore(void) {
    for (int i = 0; i < N_SIGNALS; i++)
        signal(numbers[i], SIG_IGN);
}

bool ot_stop_requested(void) {
    return atomic_load(&signals) > 0;
}
