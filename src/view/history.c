#include "src/view/history.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/utf8.h"

/* A log that is younger belongs to a running process, so its lock is not tried. */
static const double young_seconds = 3;

enum { MOST_CONFIG_BYTES = 1 << 20 };

/* ---- opening ---- */

/* Forgets what was read, for a log that begins anew. */
static void forget(struct ot_history *h) {
    for (int e = 0; e < OT_HISTORY_EVENTS; e++)
        ot_json_free(h->last[e]);
    for (int i = 0; i < h->n_samples; i++)
        ot_json_free(h->samples[i]);
    ot_json_free(h->config);
    if (h->fd >= 0)
        close(h->fd);
    free(h->line);
    char *dir = h->dir, *name = h->name, *path = h->path;
    memset(h, 0, sizeof *h);
    h->dir = dir;
    h->name = name;
    h->path = path;
    h->fd = -1;
}

int ot_history_open(const char *dir, bool may_wait, struct ot_history **out) {
    struct stat facts;
    struct ot_history *h = *out = calloc(1, sizeof *h);
    if (!h)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the run", dir);
    h->fd = -1;
    OT_TRY(ot_string_format(&h->dir, "%s", dir));
    OT_TRY(ot_string_format(&h->name, "%s", dir));
    ot_utf8_keep_line(h->name);
    OT_TRY(ot_string_format(&h->path, "%s/log.jsonl", dir));
    if (stat(dir, &facts) < 0)
        return errno == ENOENT && may_wait ? 0
                                           : ot_fail_errno(OT_E_IO, errno, "%s: cannot read the run", dir);
    return S_ISDIR(facts.st_mode)
               ? 0
               : ot_fail(OT_E_IO, "%s is a file; give the run's directory, which train calls --out", dir);
}

void ot_history_close(struct ot_history *h) {
    if (!h)
        return;
    forget(h);
    free(h->dir);
    free(h->name);
    free(h->path);
    free(h);
}

/* ---- events ---- */

/* NaN for a larger value too: no run has such numbers, and they fit into no integer. */
static double real_of(const struct ot_json *value) {
    double real = ot_json_real(value, NAN);
    return fabs(real) <= OT_HISTORY_MOST ? real : NAN;
}

static double number(const struct ot_json *event, const char *key) {
    return real_of(ot_json_get(event, key));
}

/* Unix time of "2026-01-31T23:59:59.125Z"; 0: not such a text. */
static double time_of(const struct ot_json *event) {
    const char *text = ot_json_string(ot_json_get(event, "time"), NULL);
    struct tm utc = {0};
    const char *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &utc) : NULL;
    double fraction = end && *end == '.' ? strtod(end, NULL) : 0;
    return end ? (double)timegm(&utc) + (fraction < 1 ? fraction : 0) : 0;
}

static void drop_evals(struct ot_history *h, int64_t from) {
    while (h->n_evals > 0 && h->evals[h->n_evals - 1].step >= from)
        h->n_evals--;
}

static void take_step(struct ot_history *h, const struct ot_json *event) {
    int64_t step = ot_json_int(ot_json_get(event, "step"), -1);
    if (step < 1)
        return;
    if (step <= h->step.step) /* a resumed run makes the step again */
        drop_evals(h, step);
    h->step = (struct ot_history_step){step,
                                       number(event, "epoch"),
                                       number(event, "loss"),
                                       number(event, "grad_norm"),
                                       number(event, "lr"),
                                       number(event, "tokens_per_s"),
                                       number(event, "seconds"),
                                       number(event, "roof_share"),
                                       number(event, "gpu_bytes"),
                                       number(event, "host_bytes"),
                                       number(event, "nvme_read_bytes"),
                                       number(event, "nvme_written_bytes")};
    ot_curve_add(&h->loss, step, h->step.loss);
    ot_curve_add(&h->rate, step, h->step.tokens_per_s);
    ot_curve_add(&h->norm, step, h->step.grad_norm);
    ot_curve_add(&h->lr, step, h->step.lr);
    h->skipped += ot_json_get(event, "skipped") != NULL;
    h->spikes += ot_json_bool(ot_json_get(event, "spike"), false);
    h->not_finite += isnan(h->step.loss);
    h->last_step_time = time_of(event);
    if (h->step.seconds > 0) {
        h->timed_steps++;
        h->mean_seconds += (h->step.seconds - h->mean_seconds) / (double)ot_min(h->timed_steps, 20);
        h->step_seconds += h->step.seconds;
    }
}

static void take_eval(struct ot_history *h, const struct ot_json *event) {
    struct ot_history_eval eval = {.step = ot_json_int(ot_json_get(event, "step"), -1),
                                   .rows = ot_json_int(ot_json_get(event, "rows"), 0),
                                   .loss = number(event, "loss"),
                                   .accuracy = number(event, "accuracy"),
                                   .margin = number(event, "reward_margin"),
                                   .exact_match = number(event, "exact_match"),
                                   .equal_results = number(event, "equal_results"),
                                   .seconds = number(event, "seconds")};
    if (eval.step < 0)
        return;
    drop_evals(h, eval.step);
    h->n_evals = ot_min(h->n_evals + 1, OT_HISTORY_EVALS);
    h->evals[h->n_evals - 1] = eval;
    ot_curve_add(&h->eval_loss, eval.step, eval.loss);
}

/* Keeps the event, and then sets *event to NULL. */
static void take_sample(struct ot_history *h, struct ot_json **event) {
    if (h->n_samples == OT_HISTORY_SAMPLES) {
        ot_json_free(h->samples[0]);
        memmove(h->samples, h->samples + 1, (OT_HISTORY_SAMPLES - 1) * sizeof *h->samples);
        h->n_samples--;
    }
    h->samples[h->n_samples++] = *event;
    *event = NULL;
}

static void keep_event(struct ot_history *h, enum ot_history_event kind, struct ot_json **event) {
    if (kind == OT_HISTORY_RUN) {
        for (int e = 0; e < OT_HISTORY_EVENTS; e++) {
            ot_json_free(h->last[e]);
            h->last[e] = NULL;
        }
        h->began = time_of(*event);
        h->step_seconds = h->mean_seconds = 0;
        h->timed_steps = 0;
    }
    ot_json_free(h->last[kind]);
    h->last[kind] = *event;
    *event = NULL;
}

static void take_line(struct ot_history *h, const char *line, size_t bytes) {
    static const struct {
        const char *name;
        enum ot_history_event kind;
    } kept[] = {{"run", OT_HISTORY_RUN},
                {"resume", OT_HISTORY_RESUME},
                {"predicted_again", OT_HISTORY_AGAIN},
                {"checkpoint", OT_HISTORY_CHECKPOINT},
                {"best", OT_HISTORY_BEST},
                {"checkpoint_failed", OT_HISTORY_LOST},
                {"best_failed", OT_HISTORY_LOST},
                {"trace", OT_HISTORY_TRACE},
                {"done", OT_HISTORY_DONE},
                {"failed", OT_HISTORY_FAILED}};
    struct ot_json *event = NULL;
    if (bytes == 0)
        return;
    const char *name = ot_json_parse(line, bytes, h->path, &event) < 0
                           ? NULL
                           : ot_json_string(ot_json_get(event, "event"), NULL);
    if (!name)
        h->left_out++;
    else if (strcmp(name, "step") == 0)
        take_step(h, event);
    else if (strcmp(name, "eval") == 0)
        take_eval(h, event);
    else if (strcmp(name, "sample") == 0)
        take_sample(h, &event);
    for (size_t i = 0; name && event && i < sizeof kept / sizeof *kept; i++)
        if (strcmp(name, kept[i].name) == 0) {
            keep_event(h, kept[i].kind, &event);
            break;
        }
    ot_json_free(event);
}

/* ---- reading ---- */

/* Takes a piece of the file: the end of a line that waits, whole lines, and the begin of the next line. */
static int take_piece(struct ot_history *h, const char *piece, size_t bytes) {
    const char *end = piece + bytes;
    while (piece < end) {
        const char *newline = memchr(piece, '\n', (size_t)(end - piece));
        size_t n = (size_t)((newline ? newline : end) - piece);
        if (newline && h->line_bytes == 0 && !h->skips_line) { /* the usual case: no copy */
            take_line(h, piece, n);
            piece = newline + 1;
            continue;
        }
        h->skips_line = h->skips_line || h->line_bytes + n > OT_HISTORY_LINE_BYTES;
        if (!h->skips_line) {
            OT_TRY(ot_grow(&h->line, &h->line_capacity, h->line_bytes + n, 1, "bytes of a line of the log"));
            memcpy(h->line + h->line_bytes, piece, n);
            h->line_bytes += n;
        }
        piece += n;
        if (!newline)
            return 0;
        if (h->skips_line)
            h->left_out++;
        else
            take_line(h, h->line, h->line_bytes);
        h->line_bytes = 0;
        h->skips_line = false;
        piece++;
    }
    return 0;
}

/* True if the log still has the bytes that were read last. A run that resumes or begins anew cuts the log. */
static bool has_tail(const struct ot_history *h) {
    char now[OT_HISTORY_TAIL];
    int64_t n = ot_min(h->read_to, OT_HISTORY_TAIL);
    return ot_read_at(h->fd, now, (size_t)n, h->read_to - n) == n && memcmp(now, h->tail, (size_t)n) == 0;
}

/* Opens the log, again if it is another file by now, or was cut. */
static int open_log(struct ot_history *h) {
    struct stat now, open_one;
    bool is_there = stat(h->path, &now) == 0 && S_ISREG(now.st_mode);
    if (h->fd >= 0 && (!is_there || fstat(h->fd, &open_one) < 0 || now.st_ino != open_one.st_ino ||
                       now.st_dev != open_one.st_dev || !has_tail(h)))
        forget(h);
    if (!is_there)
        return 0;
    if (h->fd < 0)
        h->fd = open(h->path, O_RDONLY | O_CLOEXEC);
    if (h->fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the log", h->path);
    h->changed = (double)now.st_mtim.tv_sec + 1e-9 * (double)now.st_mtim.tv_nsec;
    return 0;
}

static int read_config(struct ot_history *h) {
    char *path = NULL;
    if (h->config || h->last[OT_HISTORY_RUN])
        return 0;
    OT_TRY(ot_string_format(&path, "%s/run.json", h->dir));
    int rc = access(path, F_OK) == 0 ? ot_json_read_file(path, MOST_CONFIG_BYTES, &h->config) : 0;
    free(path);
    return rc == -OT_E_BUDGET ? rc : 0; /* a damaged run.json is as none */
}

/* Keeps the last bytes of what was read, and then of the piece of n bytes behind it. */
static void keep_tail(struct ot_history *h, const char *piece, int64_t n) {
    int64_t add = ot_min(n, OT_HISTORY_TAIL), old = ot_min(h->read_to, OT_HISTORY_TAIL);
    int64_t stays = ot_min(old, OT_HISTORY_TAIL - add);
    memmove(h->tail, h->tail + old - stays, (size_t)stays);
    memcpy(h->tail + stays, piece + n - add, (size_t)add);
}

int ot_history_read(struct ot_history *h, int64_t most) {
    enum { PIECE = 1 << 18 };
    OT_TRY(open_log(h));
    char *piece = h->fd >= 0 ? malloc(PIECE) : NULL;
    int64_t n = PIECE;
    int rc = 0;
    if (h->fd >= 0 && !piece)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the log", h->path);
    for (; h->fd >= 0 && rc == 0 && n == PIECE && most > 0; most -= n) {
        n = ot_read_at(h->fd, piece, PIECE, h->read_to);
        if (n < 0)
            rc = ot_fail_errno(OT_E_IO, (int)-n, "%s: cannot read the log", h->path);
        else if (n > 0)
            rc = take_piece(h, piece, (size_t)n);
        if (n > 0) {
            keep_tail(h, piece, n);
            h->read_to += n;
        }
    }
    free(piece);
    if (rc == 0)
        rc = read_config(h);
    return rc < 0 ? rc : h->fd >= 0 && n == PIECE;
}

/* ---- questions ---- */

/* The lock of a run is exclusive. A shared lock is taken and given back at once, and only on a log that
 * rests: a run that starts at this moment tries again (run_log.c). */
static bool is_held(const struct ot_history *h) {
    if (flock(h->fd, LOCK_SH | LOCK_NB) == 0) {
        flock(h->fd, LOCK_UN);
        return false;
    }
    return true; /* or the file system has no locks, and nothing is known */
}

enum ot_run_state ot_history_state(const struct ot_history *h) {
    if (h->fd < 0)
        return OT_RUN_WAITS;
    if (h->last[OT_HISTORY_FAILED])
        return OT_RUN_FAILED;
    if (h->last[OT_HISTORY_DONE])
        return ot_json_bool(ot_json_get(h->last[OT_HISTORY_DONE], "interrupted"), false) ? OT_RUN_STOPPED
                                                                                         : OT_RUN_DONE;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double age = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - h->changed;
    return fabs(age) < young_seconds || is_held(h) ? OT_RUN_RUNS : OT_RUN_GONE;
}

double ot_history_number(const struct ot_history *h, enum ot_history_event event, const char *path) {
    const struct ot_json *at = h->last[event];
    char key[64];
    for (size_t n; at && *path; path += n + (path[n] == '.')) {
        n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        at = ot_json_get(at, key);
    }
    return real_of(at);
}

int64_t ot_history_steps(const struct ot_history *h) {
    const struct ot_json *plan = ot_json_get(h->last[OT_HISTORY_RUN], "plan");
    int64_t steps = ot_json_int(ot_json_get(plan, "steps"), 0);
    return ot_max(steps, h->step.step);
}

double ot_history_left(const struct ot_history *h, double now) {
    int64_t left = ot_history_steps(h) - h->step.step;
    if (h->mean_seconds <= 0 || !h->last[OT_HISTORY_RUN])
        return NAN;
    double passed = h->last_step_time - h->began, other = h->began > 0 ? passed / h->step_seconds : 1;
    double seconds = (double)left * h->mean_seconds * (other > 1 ? other : 1);
    double since = h->last_step_time > 0 ? now - h->last_step_time : 0;
    return fmax(seconds - fmax(since, 0), 0);
}

const struct ot_json *ot_history_options(const struct ot_history *h) {
    const struct ot_json *options = ot_json_get(h->last[OT_HISTORY_RUN], "options");
    return options ? options : h->config;
}

const char *ot_history_source(const struct ot_history *h, const char *option) {
    const struct ot_json *of = h->last[OT_HISTORY_RUN] ? h->last[OT_HISTORY_RUN] : h->config;
    return ot_json_string(ot_json_get(ot_json_get(of, "sources"), option), NULL);
}

const struct ot_history_eval *ot_history_best(const struct ot_history *h) {
    const struct ot_history_eval *best = NULL;
    for (int i = 0; i < h->n_evals; i++)
        if (!isnan(h->evals[i].loss) && (!best || h->evals[i].loss < best->loss))
            best = &h->evals[i];
    return best;
}
