#include "src/cli/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"

/* Any thread may be interrupted; lock-free, so allowed in a handler. */
static atomic_int signals;

static void on_signal(int number) {
    static const char sentence[] = "\nerror: stopped at once by a second signal; nothing was saved\n";
    (void)number;
    if (atomic_fetch_add(&signals, 1) == 0)
        return;
    if (write(STDERR_FILENO, sentence, sizeof sentence - 1) < 0)
        _exit(OT_E_INTERRUPT); /* nobody listens any more */
    _exit(OT_E_INTERRUPT);
}

static void set_handler(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void ot_stop_install(void) {
    atomic_store(&signals, 0);
    set_handler(on_signal);
}

void ot_stop_restore(void) {
    set_handler(SIG_DFL);
}

bool ot_stop_requested(void) {
    return atomic_load(&signals) > 0;
}
