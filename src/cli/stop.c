#include "src/cli/stop.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"

static volatile sig_atomic_t signals;

static void on_signal(int number) {
    static const char sentence[] = "\nerror: stopped at once by a second signal; nothing was saved\n";
    (void)number;
    if (signals++ == 0)
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
    signals = 0;
    set_handler(on_signal);
}

void ot_stop_restore(void) {
    set_handler(SIG_DFL);
}

bool ot_stop_requested(void) {
    return signals > 0;
}
