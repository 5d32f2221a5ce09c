#include "src/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/output.h"
#include "src/base/utf8.h"

static _Atomic int max_level = OT_LOG_INFO;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards stderr and the variables below */
static char status[512];
static struct ot_output *output; /* NULL: stderr is written directly */
static bool is_finished;

void ot_log_set_level(enum ot_log_level level) {
    atomic_store(&max_level, (int)level);
}

bool ot_log_is_terminal(void) {
    return isatty(STDERR_FILENO) == 1;
}

static const char erase_line[] = "\r\033[K";

/* Draws as many characters of the status as fit on a line of the terminal; a line that wraps cannot be
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

/* Hold the mutex. If there is no memory for the queue, writes the text directly to stderr. */
static void write_text(enum ot_output_kind kind, const char *text, size_t bytes) {
    if (is_finished)
        return;
    if (output) {
        if (ot_output_put(output, kind, text, bytes) == -OT_E_BUDGET && write(STDERR_FILENO, text, bytes) < 0)
            return; /* a failure here cannot be reported to anyone */
        return;
    }
    fwrite(text, 1, bytes, stderr);
    fflush(stderr);
}

/* Lines up to this length, with their prefix and status, need no heap memory, so a run without free memory
 * can still print its last error. A longer line is cut if there is no memory for it. */
enum { LINE_BYTES = 2048 };

static void write_line(enum ot_log_level level, enum ot_output_kind kind, char *line) {
    static const char *const prefixes[] = {"error: ", "warning: ", "", "debug: "};
    char few[LINE_BYTES + sizeof status + 64], *text = few;
    ot_utf8_keep_line(line);
    pthread_mutex_lock(&mutex);
    size_t capacity = strlen(line) + sizeof status + 64;
    char *many = capacity > sizeof few ? malloc(capacity) : NULL;
    if (many)
        text = many;
    else if (capacity > sizeof few)
        line[LINE_BYTES] = '\0';
    int bytes = status[0]
                    ? sprintf(text, "%s%s%s\n%.*s", erase_line, prefixes[level], line, status_bytes(), status)
                    : sprintf(text, "%s%s\n", prefixes[level], line);
    if (bytes > 0)
        write_text(kind, text, (size_t)bytes);
    pthread_mutex_unlock(&mutex);
    free(many);
}

void ot_log(enum ot_log_level level, const char *format, ...) {
    if ((int)level > atomic_load(&max_level))
        return;
    va_list args;
    char few[LINE_BYTES], *many = NULL;
    va_start(args, format);
    int length = vsnprintf(few, sizeof few, format, args);
    va_end(args);
    if (length < 0)
        return;
    if ((size_t)length >= sizeof few) {
        va_start(args, format);
        length = vasprintf(&many, format, args);
        va_end(args);
    }
    write_line(level, OT_OUTPUT_TEXT, length >= 0 && many ? many : few);
    free(length >= 0 ? many : NULL);
}

void ot_log_progress(const char *line) {
    char copy[LINE_BYTES];
    if (atomic_load(&max_level) < OT_LOG_INFO)
        return;
    snprintf(copy, sizeof copy, "%s", line);
    write_line(OT_LOG_INFO, OT_OUTPUT_PROGRESS, copy);
}

void ot_log_text(const char *text, size_t bytes) {
    pthread_mutex_lock(&mutex);
    write_text(OT_OUTPUT_TEXT, text, bytes);
    pthread_mutex_unlock(&mutex);
}

bool ot_log_set_status(const char *text) {
    char line[sizeof status + sizeof erase_line];
    if (!ot_log_is_terminal())
        return false;
    pthread_mutex_lock(&mutex);
    bool was_shown = status[0] != '\0';
    snprintf(status, sizeof status, "%s", text);
    ot_utf8_keep_line(status);
    if (was_shown || status[0]) {
        int bytes = snprintf(line, sizeof line, "%s%.*s", erase_line, status_bytes(), status);
        write_text(status[0] ? OT_OUTPUT_REDRAW : OT_OUTPUT_TEXT, line, (size_t)bytes);
    }
    pthread_mutex_unlock(&mutex);
    return true;
}

int ot_log_start(void) {
    struct ot_output_config config = {
        .fd = STDERR_FILENO,
        .name = "stderr",
        .progress_bytes = 16384,
        .most_bytes = 1 << 20,
        .before_count = ot_log_is_terminal() ? "\r\033[Knote    " : "note    ",
        .after_count = " lines of progress are left out here: the reader of this output was too slow\n"};
    pthread_mutex_lock(&mutex);
    int rc = output ? 0 : ot_output_open(&config, &output);
    pthread_mutex_unlock(&mutex);
    return rc;
}

void ot_log_finish(double seconds) {
    pthread_mutex_lock(&mutex);
    struct ot_output *last = output;
    is_finished = last != NULL;
    output = NULL;
    pthread_mutex_unlock(&mutex);
    if (!last)
        return;
    (void)ot_output_flush(last, seconds);
    ot_output_close(last);
}
