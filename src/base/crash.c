#include "src/base/crash.h"

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

#include "src/base/error.h"

static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

/* The point where this thread continues after a crash; NULL: no call is being contained. */
static _Thread_local sigjmp_buf *way_out;

static void on_crash(int number) {
    if (way_out)
        siglongjmp(*way_out, 1);
    signal(number, SIG_DFL);
    raise(number);
}

int ot_crash_contain(const char *library, int (*fn)(void *context), void *context) {
    struct sigaction before[N_SIGNALS], crash = {.sa_handler = on_crash};
    sigjmp_buf here;
    int rc;
    for (int i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], &crash, &before[i]);
    way_out = &here;
    if (sigsetjmp(here, 1) == 0)
        rc = fn(context);
    else
        rc = ot_fail(OT_E_BUDGET,
                     "%s has crashed, probably because memory ran out; free some memory and try again",
                     library);
    way_out = NULL;
    for (int i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
    return rc;
}
