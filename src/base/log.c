#include "src/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"
#include "src/base/utf8.h"

static _Atomic int max_level = OT_LOG_INFO;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards stderr and the variables below */
static char status[512];
static struct ot_output *output; /* NULL: stderr is written directly */
static bool is_finished;

void ot_log_set_level(enum ot_log_level level) {
    atomic_store(&max_level, (int)level);
}

bool ot_log_is_quiet(void) {
    return atomic_load(&max_level) < OT_LOG_INFO;
}

bool ot_log_is_terminal(void) {
    return isatty(STDERR_FILENO) == 1;
}

static const char erase_line[] = "\r\033[K";

/* Bytes of the status's first words that fit on a line of the terminal, or of its first characters if not
 * even one word fits. A line that wraps cannot be redrawn. */
static int status_bytes(void) {
    struct winsize size = {0};
    int columns = 80, bytes = 0, words = 0;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
        columns = size.ws_col - 1;
    for (; status[bytes]; bytes++) {
        if (status[bytes] == ' ')
            words = bytes;
        if ((status[bytes] & 0xc0) != 0x80 && columns-- == 0)
            return words ? words : bytes;
    }
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
    if (ot_log_is_quiet())
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

/* ---- output ---- */

enum { PIECE_BYTES = 4096 }; /* bytes per write: small, so that flush sees the progress of a slow reader */

struct ot_output {
    struct ot_output_config config;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards all fields below */
    pthread_cond_t filled, written;
    char *queue;
    size_t begin, end, capacity;     /* the unwritten text is queue[begin, end) */
    uint64_t taken;                  /* bytes that the reader has taken */
    int64_t left_out;                /* texts dropped since the last note */
    int failed;                      /* the errno value of the first write that failed; 0: none */
    bool writing, closed, abandoned; /* closed while the thread hung: the thread frees this struct */
};

static void free_output(struct ot_output *o) {
    pthread_cond_destroy(&o->filled);
    pthread_cond_destroy(&o->written);
    pthread_mutex_destroy(&o->mutex);
    free(o->queue);
    free(o);
}

static void *write_queue(void *arg) {
    struct ot_output *o = arg;
    char piece[PIECE_BYTES];
    pthread_mutex_lock(&o->mutex);
    while (!o->closed) {
        size_t bytes = ot_min(o->end - o->begin, PIECE_BYTES);
        if (bytes == 0) {
            pthread_cond_wait(&o->filled, &o->mutex);
            continue;
        }
        memcpy(piece, o->queue + o->begin, bytes);
        o->writing = true;
        pthread_mutex_unlock(&o->mutex);
        int failed = -ot_write_all(NULL, o->config.fd, piece, bytes);
        pthread_mutex_lock(&o->mutex);
        o->writing = false;
        o->failed = failed;
        o->begin = failed ? o->end : o->begin + bytes;
        o->taken += bytes;
        pthread_cond_broadcast(&o->written);
        if (failed)
            break;
    }
    bool abandoned = o->abandoned;
    pthread_mutex_unlock(&o->mutex);
    if (abandoned)
        free_output(o);
    return NULL;
}

int ot_output_open(const struct ot_output_config *config, struct ot_output **out) {
    struct ot_output *o = calloc(1, sizeof *o);
    *out = NULL;
    if (!o)
        return ot_fail(OT_E_BUDGET, "no memory for %s", config->name);
    o->config = *config;
    pthread_mutex_init(&o->mutex, NULL);
    pthread_cond_init(&o->filled, NULL);
    ot_cond_init(&o->written);
    int error = ot_thread_start(&o->thread, config->name, write_queue, o);
    if (error) {
        free(o);
        return ot_fail_errno(OT_E_IO, error, "cannot start the thread that writes %s", config->name);
    }
    *out = o;
    return 0;
}

/* Hold the mutex. Errors: OT_E_BUDGET. */
static int append(struct ot_output *o, const char *text, size_t bytes) {
    if (o->begin > 0 && o->begin >= o->end - o->begin) { /* so each byte is moved at most once */
        memmove(o->queue, o->queue + o->begin, o->end - o->begin);
        o->end -= o->begin;
        o->begin = 0;
    }
    if (!ot_try_grow(&o->queue, &o->capacity, o->end + bytes, 1))
        return ot_fail(OT_E_BUDGET, "no memory for %s", o->config.name);
    memcpy(o->queue + o->end, text, bytes);
    o->end += bytes;
    pthread_cond_signal(&o->filled);
    return 0;
}

static int append_note(struct ot_output *o) {
    char note[256];
    if (o->left_out == 0)
        return 0;
    int bytes = snprintf(note, sizeof note, "%s%lld%s", o->config.before_count, (long long)o->left_out,
                         o->config.after_count);
    o->left_out = 0;
    return append(o, note, (size_t)bytes);
}

int ot_output_put(struct ot_output *o, enum ot_output_kind kind, const char *text, size_t bytes) {
    pthread_mutex_lock(&o->mutex);
    size_t most = kind == OT_OUTPUT_TEXT ? o->config.most_bytes : o->config.progress_bytes;
    if (kind != OT_OUTPUT_TEXT && o->left_out > 0)
        most /= 2; /* one note for many texts, not one note per text */
    bool fits = o->end - o->begin < most;
    int rc = 0;
    if (o->failed) {
        rc = ot_fail_errno(OT_E_IO, o->failed, "%s: cannot write", o->config.name);
    } else if (fits) {
        rc = append_note(o);
        rc = rc == 0 ? append(o, text, bytes) : rc;
    } else if (kind != OT_OUTPUT_REDRAW) {
        o->left_out++;
    }
    pthread_mutex_unlock(&o->mutex);
    return rc;
}

bool ot_output_flush(struct ot_output *o, double seconds) {
    uint64_t taken = 0;
    int64_t until = 0;
    bool late = false;
    pthread_mutex_lock(&o->mutex);
    if (!o->failed)
        (void)append_note(o);
    while (o->begin < o->end && !late) {
        if (o->taken != taken || until == 0) {
            until = ot_clock_ns() + (int64_t)(1e9 * seconds);
            taken = o->taken;
        }
        late = !ot_cond_wait_until(&o->written, &o->mutex, until) && o->taken == taken;
    }
    bool all = !late && !o->failed;
    pthread_mutex_unlock(&o->mutex);
    return all;
}

void ot_output_close(struct ot_output *o) {
    if (!o)
        return;
    pthread_mutex_lock(&o->mutex);
    pthread_t thread = o->thread;
    bool hangs = o->abandoned = o->writing;
    o->closed = true;
    pthread_cond_signal(&o->filled);
    pthread_mutex_unlock(&o->mutex);
    if (hangs) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    free_output(o);
}
