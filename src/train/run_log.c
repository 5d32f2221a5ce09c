#include "src/train/run_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/train/answers.h"

/* The end of a run waits at most this long for a reader of stdout that reads nothing. */
static const double slow_reader_seconds = 5;

struct ot_run_log {
    struct ot_output *mirror; /* stdout; NULL: without --json */
    bool is_progress;         /* the open event is a "step", which stdout may leave out */
    int fd;                   /* of log.jsonl; -1: not open yet */
    char path[PATH_MAX];
    int64_t bytes; /* size of the file, which ends with a whole line */
    char *waiting; /* lines that are not in the file yet, each with its newline */
    size_t waiting_bytes;
    struct ot_json_writer writer;
    void (*follow)(void *context, const char *line, size_t bytes); /* NULL: nobody follows */
    void *context;
    bool follows_at_once; /* there is no file */
};

int ot_run_log_open(bool mirror, struct ot_run_log **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory for the log");
    (*out)->fd = -1;
    struct ot_output_config config = {.fd = STDOUT_FILENO,
                                      .name = "stdout",
                                      .progress_bytes = 1 << 20,
                                      .most_bytes = 16 << 20,
                                      .before_count = "{\"event\":\"left_out\",\"records\":",
                                      .after_count = "}\n"};
    return mirror ? ot_output_open(&config, &(*out)->mirror) : 0;
}

void ot_run_log_follow(struct ot_run_log *log, bool has_file,
                       void (*follow)(void *context, const char *line, size_t bytes), void *context) {
    log->follow = follow;
    log->context = context;
    log->follows_at_once = !has_file;
}

/* Lets the follower have whole lines. */
static void tell(struct ot_run_log *log, const char *lines, size_t bytes) {
    const char *end = lines + bytes, *newline;
    for (; log->follow && lines < end; lines = newline + 1) {
        newline = memchr(lines, '\n', (size_t)(end - lines));
        log->follow(log->context, lines, (size_t)(newline - lines));
    }
}

/* Writes the waiting lines. After a failed write it cuts the file back to its old size, so that the file has
 * only whole lines. The lines then wait for the next attempt, when a full disk may have room again. */
static int write_waiting(struct ot_run_log *log) {
    int error = ot_write_all(NULL, log->fd, log->waiting, log->waiting_bytes);
    if (error < 0) {
        bool cut = ftruncate(log->fd, log->bytes) == 0 && lseek(log->fd, log->bytes, SEEK_SET) >= 0;
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot write the log%s", log->path,
                             cut ? "" : "; its last line is incomplete");
    }
    log->bytes += (int64_t)log->waiting_bytes;
    tell(log, log->waiting, log->waiting_bytes);
    log->waiting_bytes = 0;
    return 0;
}

/* Returns the end of the last whole line within the first `bytes` of the file; -1: the file cannot be read.
 */
static int64_t find_whole_lines(int fd, int64_t bytes) {
    enum { PIECE = 4096 };
    char piece[PIECE];
    struct stat facts;
    if (bytes <= 0)
        return 0;
    if (fstat(fd, &facts) < 0)
        return -1;
    bytes = ot_min(facts.st_size, bytes);
    while (bytes > 0) {
        int64_t n = ot_min(bytes, PIECE);
        if (ot_read_at(fd, piece, (size_t)n, bytes - n) != n)
            return -1;
        for (; n > 0 && piece[n - 1] != '\n'; n--)
            bytes--;
        if (n > 0)
            break;
    }
    return bytes;
}

/* False: another run has the lock. `watch` holds it for an instant (src/view/history.c), so it is tried more
 * than once. */
static bool take_lock(int fd) {
    const struct timespec pause = {.tv_nsec = 20000000};
    for (int i = 0; i < 5 && flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
        if (errno != EWOULDBLOCK)
            return true; /* a file system without locks */
        if (i == 4)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

/* Opens and locks log.jsonl. The log stays open as long as the run, so its lock keeps a second run out of the
 * same output directory, where it would replace the result of the first. Two runs with the default name of
 * --out, for example, share a directory. A file system without locks gives no such protection. */
static int open_alone(struct ot_run_log *log, const char *dir, int64_t keep_bytes) {
    int fd = open(log->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == ELOOP)
        return ot_fail(
            OT_E_INPUT,
            "%s is a symbolic link, and a run writes only inside its output directory; remove the link",
            log->path);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot write the log", log->path);
    if (!take_lock(fd)) {
        close(fd);
        return ot_fail(OT_E_INPUT, "%s: another run is writing this output; choose another with --out", dir);
    }
    log->bytes = find_whole_lines(fd, keep_bytes);
    /* EINVAL: not a regular file (/dev/null, a pipe), so there is nothing to cut */
    bool cut = log->bytes >= 0 && (ftruncate(fd, log->bytes) == 0 || errno == EINVAL) &&
               (log->bytes == 0 || lseek(fd, log->bytes, SEEK_SET) == log->bytes);
    if (cut) {
        log->fd = fd;
        return 0;
    }
    int rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write the log", log->path);
    close(fd);
    return rc;
}

int ot_run_log_start_file(struct ot_run_log *log, const char *dir, int64_t keep_bytes) {
    int n = snprintf(log->path, sizeof log->path, "%s/log.jsonl", dir);
    if (n < 0 || (size_t)n >= sizeof log->path)
        return ot_fail(OT_E_IO, "%.200s...: the path is too long", dir);
    OT_TRY(open_alone(log, dir, keep_bytes));
    return write_waiting(log);
}

int ot_run_log_check(struct ot_run_log *log) {
    if (!log->mirror || ot_output_flush(log->mirror, 0.5))
        return 0;
    return ot_output_put(log->mirror, OT_OUTPUT_TEXT, "", 0); /* fails with the reason if a write failed */
}

int ot_run_log_flush(struct ot_run_log *log) {
    if (!log->mirror || ot_output_flush(log->mirror, slow_reader_seconds))
        return 0;
    OT_TRY(ot_run_log_check(log));
    ot_log(OT_LOG_WARN, "stdout: nobody reads it, so the last records of --json are lost");
    return 0;
}

void ot_run_log_close(struct ot_run_log *log) {
    if (!log)
        return;
    ot_output_close(log->mirror);
    if (log->fd >= 0)
        close(log->fd);
    free(log->writer.out.text);
    free(log->waiting);
    free(log);
}

/* ISO 8601 in UTC, with milliseconds. */
static void put_time(struct ot_json_writer *w) {
    struct timespec now;
    struct tm utc;
    char text[64];
    if (clock_gettime(CLOCK_REALTIME, &now) != 0 || !gmtime_r(&now.tv_sec, &utc))
        return;
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, sizeof text - n, ".%03ldZ", now.tv_nsec / 1000000);
    ot_json_put_text(w, "time", text);
}

struct ot_json_writer *ot_run_log_begin(struct ot_run_log *log, const char *event) {
    log->writer.indent = -1;
    log->is_progress = strcmp(event, "step") == 0;
    ot_json_begin_object(&log->writer, NULL);
    ot_json_put_text(&log->writer, "event", event);
    put_time(&log->writer);
    return &log->writer;
}

static int add_waiting(struct ot_run_log *log, const char *line, size_t bytes) {
    size_t capacity = log->waiting_bytes;
    OT_TRY(ot_grow(&log->waiting, &capacity, log->waiting_bytes + bytes, 1, "bytes of the log"));
    memcpy(log->waiting + log->waiting_bytes, line, bytes);
    log->waiting_bytes += bytes;
    return 0;
}

int ot_run_log_end(struct ot_run_log *log) {
    char *text;
    size_t bytes;
    ot_json_end_object(&log->writer);
    OT_TRY(ot_json_writer_take(&log->writer, &text, &bytes));
    text[bytes] = '\n'; /* replaces the NUL */
    int rc = add_waiting(log, text, bytes + 1);
    if (rc == 0 && log->fd >= 0)
        rc = write_waiting(log);
    if (log->follows_at_once)
        tell(log, text, bytes + 1);
    /* stdout comes second: if its reader is gone, the file still has the line */
    enum ot_output_kind kind = log->is_progress ? OT_OUTPUT_PROGRESS : OT_OUTPUT_TEXT;
    if (rc == 0 && log->mirror)
        rc = ot_output_put(log->mirror, kind, text, bytes + 1);
    free(text);
    return rc;
}

/* Counts the waiting lines too: they were logged before the checkpoint that records this size. */
int64_t ot_run_log_bytes(const struct ot_run_log *log) {
    return log->fd >= 0 ? log->bytes + (int64_t)log->waiting_bytes : 0;
}

int ot_run_log_resume(struct ot_run_log *log, int64_t step, const char *checkpoint, int64_t bytes,
                      double seconds, const struct ot_json *history) {
    struct ot_json_writer *w = ot_run_log_begin(log, "resume");
    ot_json_put_int(w, "step", step);
    ot_json_put_text(w, "checkpoint", checkpoint);
    ot_json_put_int(w, "read_bytes", bytes);
    ot_json_put_real(w, "read_seconds", seconds);
    if (history)
        ot_json_put_value(w, "history", history);
    return ot_run_log_end(log);
}

void ot_run_log_fail(struct ot_run_log *log, const struct ot_error *why) {
    if (log->fd < 0)
        return;
    struct ot_json_writer *w = ot_run_log_begin(log, "failed");
    ot_json_put_text(w, "error", why->text);
    ot_json_put_int(w, "exit_code", why->code);
    (void)ot_run_log_end(log); /* the caller reports an error already */
}

void ot_run_log_put_means(struct ot_json_writer *w, const struct ot_compare_means *means) {
    ot_json_put_real(w, "reward_chosen", means->chosen);
    ot_json_put_real(w, "reward_rejected", means->rejected);
    ot_json_put_real(w, "reward_margin", means->chosen - means->rejected);
    ot_json_put_real(w, "reward_accuracy", means->right);
}

int ot_run_log_step(struct ot_run_log *log, const struct ot_step_report *report) {
    struct ot_json_writer *w = ot_run_log_begin(log, "step");
    ot_json_put_int(w, "step", report->step);
    ot_json_put_real(w, "epoch", report->epoch);
    ot_json_put_real(w, "loss", report->loss);
    if (report->compares)
        ot_run_log_put_means(w, &report->compared);
    ot_json_put_real(w, "grad_norm", report->grad_norm);
    ot_json_put_real(w, "clipped_norm", report->clipped_norm);
    ot_json_put_real(w, "lr", report->lr);
    ot_json_put_int(w, "tokens", report->tokens);
    ot_json_put_int(w, "trained_tokens", report->trained_tokens);
    ot_json_put_real(w, "tokens_per_s", report->seconds > 0 ? (double)report->tokens / report->seconds : 0);
    ot_json_put_real(w, "seconds", report->seconds);
    if (report->roof_share > 0)
        ot_json_put_real(w, "roof_share", report->roof_share);
    ot_json_put_int(w, "gpu_bytes", (int64_t)report->gpu_bytes);
    ot_json_put_int(w, "host_bytes", (int64_t)report->host_bytes);
    if (report->nvme_read_bytes || report->nvme_written_bytes) {
        ot_json_put_int(w, "nvme_read_bytes", report->nvme_read_bytes);
        ot_json_put_int(w, "nvme_written_bytes", report->nvme_written_bytes);
    }
    if (report->loss_scale != 1)
        ot_json_put_real(w, "loss_scale", (double)report->loss_scale);
    if (report->skipped)
        ot_json_put_text(w, "skipped", ot_skip_name(report->skipped));
    if (report->spike)
        ot_json_put_bool(w, "spike", true);
    return ot_run_log_end(log);
}

void ot_run_log_show_eval(const struct ot_eval_report *report) {
    static const struct ot_answer_score none;
    const struct ot_answer_score *answers = report->answers ? report->answers : &none;
    char time[OT_TEXT_BYTES], text[OT_ANSWERS_TEXT_BYTES], share[96];
    if (report->compares)
        snprintf(share, sizeof share, "margin %.3f · right %.2f %%",
                 report->compared.chosen - report->compared.rejected, 100 * report->accuracy);
    else
        snprintf(share, sizeof share, "accuracy %.2f %%", 100 * report->accuracy);
    double seconds = report->seconds + answers->seconds + answers->judge_seconds;
    ot_log(OT_LOG_INFO, "eval %lld/%lld loss %.4f · %s%s%s%s · %lld rows in %s", (long long)report->step,
           (long long)report->steps, report->loss, share, answers->rows ? " · " : "",
           answers->rows ? ot_answers_summary(answers, text) : "",
           report->is_best && report->step ? " (best)" : "", (long long)report->rows,
           ot_text_duration(seconds, time));
}

int ot_run_log_eval(struct ot_run_log *log, const struct ot_eval_report *report) {
    struct ot_json_writer *w = ot_run_log_begin(log, "eval");
    ot_json_put_int(w, "step", report->step);
    ot_json_put_real(w, "loss", report->loss);
    if (report->compares)
        ot_run_log_put_means(w, &report->compared);
    else
        ot_json_put_real(w, "perplexity", exp(report->loss));
    ot_json_put_real(w, "accuracy", report->accuracy);
    ot_json_put_int(w, "trained_tokens", report->trained_tokens);
    ot_json_put_int(w, "rows", report->rows);
    ot_json_put_real(w, "seconds", report->seconds);
    if (report->answers && report->answers->rows > 0) {
        ot_answers_put(report->answers, w);
        ot_json_put_real(w, "answer_seconds", report->answers->seconds + report->answers->judge_seconds);
    }
    return ot_run_log_end(log);
}
