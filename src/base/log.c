#include "src/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "src/base/strings.h"

static _Atomic int max_level = OT_LOG_INFO;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards stderr and the status */
static char status[512];

void ot_log_set_level(enum ot_log_level level) {
    atomic_store(&max_level, (int)level);
}

bool ot_log_is_terminal(void) {
    return isatty(STDERR_FILENO) == 1;
}

static const char erase_line[] = "\r\033[K";

/* The status as far as it fits on a line of the terminal, counted in characters: one that wraps cannot be
 * redrawn. */
static int status_bytes(void) {
    struct winsize size = {0};
    int columns = 80, bytes = 0;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
        columns = size.ws_col - 1;
    for (; status[bytes]; bytes++)
        if ((status[bytes] & 0xc0) != 0x80 && columns-- == 0)
            break;
    return bytes;
}

void ot_log(enum ot_log_level level, const char *format, ...) {
    static const char *const prefixes[] = {"error: ", "warning: ", "", "debug: "};
    if ((int)level > atomic_load(&max_level))
        return;
    va_list args;
    char *line;
    va_start(args, format);
    int length = vasprintf(&line, format, args);
    va_end(args);
    if (length < 0)
        return; /* no memory for a line: nothing that a line could tell */
    ot_string_keep_line(line);
    pthread_mutex_lock(&mutex);
    if (status[0])
        fprintf(stderr, "%s%s%s\n%.*s", erase_line, prefixes[level], line, status_bytes(), status);
    else
        fprintf(stderr, "%s%s\n", prefixes[level], line);
    fflush(stderr);
    pthread_mutex_unlock(&mutex);
    free(line);
}

bool ot_log_set_status(const char *text) {
    if (!ot_log_is_terminal())
        return false;
    pthread_mutex_lock(&mutex);
    bool was_shown = status[0] != '\0';
    snprintf(status, sizeof status, "%s", text);
    ot_string_keep_line(status);
    if (was_shown || status[0]) {
        fprintf(stderr, "%s%.*s", erase_line, status_bytes(), status);
        fflush(stderr);
    }
    pthread_mutex_unlock(&mutex);
    return true;
}
