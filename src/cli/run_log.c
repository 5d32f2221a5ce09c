#include "src/cli/run_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/output.h"

static const double slow_reader_seconds =
    5; /* at the end, a reader that takes nothing is waited for as long */

struct ot_run_log {
    struct ot_output *mirror; /* stdout; NULL: not asked for */
    bool is_progress;         /* the event that is being written: stdout may go without it */
    FILE *file;
    char path[PATH_MAX];
    int64_t bytes; /* of the file */
    char *early;   /* lines from before the file, each with its newline */
    size_t early_bytes;
    struct ot_json_writer writer;
};

int ot_run_log_open(bool mirror, struct ot_run_log **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory for the log");
    struct ot_output_config config = {.fd = STDOUT_FILENO,
                                      .name = "stdout",
                                      .progress_bytes = 1 << 20,
                                      .most_bytes = 16 << 20,
                                      .before_count = "{\"event\":\"left_out\",\"records\":",
                                      .after_count = "}\n"};
    return mirror ? ot_output_open(&config, &(*out)->mirror) : 0;
}

static int put_line(FILE *file, const char *path, const char *text, size_t bytes) {
    if (fwrite(text, 1, bytes, file) == bytes && fflush(file) == 0)
        return 0;
    return ot_fail_errno(OT_E_IO, errno, "%s: cannot write the log", path);
}

/* The end of the last whole line among the first `bytes` of the file; -1: it cannot be read. */
static int64_t find_whole_lines(int fd, int64_t bytes) {
    enum { PIECE = 4096 };
    char piece[PIECE];
    struct stat facts;
    if (bytes <= 0)
        return 0;
    if (fstat(fd, &facts) < 0)
        return -1;
    bytes = facts.st_size < bytes ? facts.st_size : bytes;
    while (bytes > 0) {
        int64_t n = bytes < PIECE ? bytes : PIECE;
        if (pread(fd, piece, (size_t)n, bytes - n) != n)
            return -1;
        for (; n > 0 && piece[n - 1] != '\n'; n--)
            bytes--;
        if (n > 0)
            break;
    }
    return bytes;
}

/* The log is open as long as its run, so its lock is the run's: of two runs with one output (two with the
 * default name, say) the second would replace the first's result. Where a file system has no locks, that is
 * the user's own doing. */
static int open_alone(struct ot_run_log *log, const char *dir, int64_t keep_bytes) {
    int fd = open(log->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == ELOOP)
        return ot_fail(OT_E_INPUT,
                       "%s: is a symbolic link, and a run writes nothing outside of its output; remove it",
                       log->path);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot write the log", log->path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
        close(fd);
        return ot_fail(OT_E_INPUT, "%s: another run is writing this output; choose another with --out", dir);
    }
    log->bytes = find_whole_lines(fd, keep_bytes);
    /* EINVAL: not a file, so nothing to cut */
    bool cut = log->bytes >= 0 && (ftruncate(fd, log->bytes) == 0 || errno == EINVAL) &&
               (log->bytes == 0 || lseek(fd, log->bytes, SEEK_SET) == log->bytes);
    log->file = cut ? fdopen(fd, "w") : NULL;
    if (log->file)
        return 0;
    int rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write the log", log->path);
    close(fd);
    return rc;
}

int ot_run_log_start_file(struct ot_run_log *log, const char *dir, int64_t keep_bytes) {
    int n = snprintf(log->path, sizeof log->path, "%s/log.jsonl", dir);
    if (n < 0 || (size_t)n >= sizeof log->path)
        return ot_fail(OT_E_IO, "%.200s...: the path is too long", dir);
    OT_TRY(open_alone(log, dir, keep_bytes));
    log->bytes += (int64_t)log->early_bytes;
    OT_TRY(log->early_bytes ? put_line(log->file, log->path, log->early, log->early_bytes) : 0);
    free(log->early);
    log->early = NULL;
    log->early_bytes = 0;
    return 0;
}

int ot_run_log_check(struct ot_run_log *log) {
    if (!log->mirror || ot_output_flush(log->mirror, 0.5))
        return 0;
    return ot_output_put(log->mirror, OT_OUTPUT_TEXT, "", 0); /* why, where a write failed */
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
    if (log->file)
        fclose(log->file);
    free(log->writer.out.text);
    free(log->early);
    free(log);
}

struct ot_json_writer *ot_run_log_begin(struct ot_run_log *log, const char *event) {
    log->writer.indent = -1;
    log->is_progress = strcmp(event, "step") == 0;
    ot_json_begin_object(&log->writer, NULL);
    ot_json_put_text(&log->writer, "event", event);
    return &log->writer;
}

static int keep_early(struct ot_run_log *log, const char *line, size_t bytes) {
    char *grown = realloc(log->early, log->early_bytes + bytes);
    if (!grown)
        return ot_fail(OT_E_BUDGET, "no memory for the log");
    memcpy(grown + log->early_bytes, line, bytes);
    log->early = grown;
    log->early_bytes += bytes;
    return 0;
}

int ot_run_log_end(struct ot_run_log *log) {
    char *text;
    size_t bytes;
    ot_json_end_object(&log->writer);
    OT_TRY(ot_json_writer_take(&log->writer, &text, &bytes));
    text[bytes] = '\n'; /* in the place of the NUL */
    log->bytes += log->file ? (int64_t)bytes + 1 : 0;
    enum ot_output_kind kind = log->is_progress ? OT_OUTPUT_PROGRESS : OT_OUTPUT_TEXT;
    int rc = log->mirror ? ot_output_put(log->mirror, kind, text, bytes + 1) : 0;
    if (rc == 0)
        rc = log->file ? put_line(log->file, log->path, text, bytes + 1) : keep_early(log, text, bytes + 1);
    free(text);
    return rc;
}

int64_t ot_run_log_bytes(const struct ot_run_log *log) {
    return log->bytes;
}

int ot_run_log_resume(struct ot_run_log *log, int64_t step, const char *checkpoint, int64_t bytes,
                      double seconds) {
    struct ot_json_writer *w = ot_run_log_begin(log, "resume");
    ot_json_put_int(w, "step", step);
    ot_json_put_text(w, "checkpoint", checkpoint);
    ot_json_put_int(w, "read_bytes", bytes);
    ot_json_put_real(w, "read_seconds", seconds);
    return ot_run_log_end(log);
}

int ot_run_log_step(struct ot_run_log *log, const struct ot_step_record *record) {
    struct ot_json_writer *w = ot_run_log_begin(log, "step");
    ot_json_put_int(w, "step", record->step);
    ot_json_put_real(w, "epoch", record->epoch);
    ot_json_put_real(w, "loss", record->loss);
    ot_json_put_real(w, "grad_norm", record->grad_norm);
    ot_json_put_real(w, "clipped_norm", record->clipped_norm);
    ot_json_put_real(w, "lr", record->lr);
    ot_json_put_int(w, "tokens", record->tokens);
    ot_json_put_int(w, "trained_tokens", record->trained_tokens);
    ot_json_put_real(w, "tokens_per_s", record->seconds > 0 ? (double)record->tokens / record->seconds : 0);
    ot_json_put_real(w, "seconds", record->seconds);
    ot_json_put_int(w, "gpu_bytes", (int64_t)record->gpu_bytes);
    ot_json_put_int(w, "host_bytes", (int64_t)record->host_bytes);
    if (record->nvme_read_bytes || record->nvme_written_bytes) {
        ot_json_put_int(w, "nvme_read_bytes", record->nvme_read_bytes);
        ot_json_put_int(w, "nvme_written_bytes", record->nvme_written_bytes);
    }
    if (record->loss_scale != 1)
        ot_json_put_real(w, "loss_scale", (double)record->loss_scale);
    if (record->skipped)
        ot_json_put_text(w, "skipped", ot_skip_name(record->skipped));
    if (record->spike)
        ot_json_put_bool(w, "spike", true);
    return ot_run_log_end(log);
}

int ot_run_log_eval(struct ot_run_log *log, const struct ot_eval_record *record) {
    struct ot_json_writer *w = ot_run_log_begin(log, "eval");
    ot_json_put_int(w, "step", record->step);
    ot_json_put_real(w, "loss", record->loss);
    ot_json_put_real(w, "perplexity", exp(record->loss));
    ot_json_put_int(w, "trained_tokens", record->trained_tokens);
    ot_json_put_int(w, "rows", record->rows);
    ot_json_put_real(w, "seconds", record->seconds);
    return ot_run_log_end(log);
}
