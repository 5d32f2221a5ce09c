#include "src/train/finished.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/checkpoint/verify.h"
#include "src/options/options.h"
#include "src/train/run_log.h"

int ot_finished_read(const char *dir, struct ot_checkpoint_record *out, bool *is_there) {
    char path[PATH_MAX];
    struct ot_json *tree;
    *is_there = false;
    if (snprintf(path, sizeof path, "%s/" OT_FINISHED_NAME, dir) >= (int)sizeof path)
        return ot_fail(OT_E_IO, "%.200s...: the path is too long", dir);
    if (access(path, F_OK) < 0)
        return errno == ENOENT ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot read", path);
    int rc = ot_json_read_file(path, OT_RECORD_MAX_BYTES, &tree);
    if (rc == 0)
        rc = ot_checkpoint_record_take(tree, path, out);
    *is_there = rc == 0;
    return rc == -OT_E_INPUT ? ot_fail(OT_E_INPUT, "%s; use --resume never to train again", ot_error_text())
                             : rc;
}

static int name_logs(const char *out, char log[PATH_MAX], char old[PATH_MAX]) {
    return snprintf(log, PATH_MAX, "%s/log.jsonl", out) < PATH_MAX &&
                   snprintf(old, PATH_MAX, "%s/log.old.jsonl", out) < PATH_MAX
               ? 0
               : ot_fail(OT_E_IO, "%.200s...: the path is too long", out);
}

int ot_finished_keep_log(const char *out) {
    char log[PATH_MAX], old[PATH_MAX], record[PATH_MAX];
    struct stat info;
    OT_TRY(name_logs(out, log, old));
    snprintf(record, sizeof record, "%s/" OT_FINISHED_NAME, out); /* shorter than the old log's path */
    /* If the old log is kept already, the present log is of a run without a result. */
    if (access(record, F_OK) < 0 || lstat(old, &info) == 0)
        return 0;
    if (lstat(log, &info) == 0 && !S_ISREG(info.st_mode)) /* opening the log refuses it, with its name */
        return 0;
    return rename(log, old) == 0 || errno == ENOENT
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "%s: cannot rename it to %s", log, old);
}

int ot_finished_drop_log(const char *out) {
    char log[PATH_MAX], old[PATH_MAX];
    OT_TRY(name_logs(out, log, old));
    return unlink(old) == 0 || errno == ENOENT ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot remove", old);
}

int ot_finished_restore_log(const char *out) {
    char log[PATH_MAX], old[PATH_MAX];
    OT_TRY(name_logs(out, log, old));
    return rename(old, log) == 0 || errno == ENOENT
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "%s: cannot rename it to %s", old, log);
}

int ot_finished_check_length(const struct ot_options *o, int64_t finished, int64_t steps) {
    if (steps <= finished)
        return 0;
    return ot_fail(OT_E_USAGE,
                   "%s: this run is finished after %lld steps; if checkpoints are left, use --resume "
                   "%s/checkpoints to go on to %lld steps; or use --resume never to train again",
                   o->out, (long long)finished, o->out, (long long)steps);
}

int ot_finished_confirm(const struct ot_options *o, const struct ot_checkpoint_record *record, int64_t steps,
                        struct ot_run_log *log) {
    struct ot_verify result;
    int rc;
    OT_TRY(ot_finished_check_length(o, record->steps, steps));
    OT_TRY(ot_finished_restore_log(o->out));
    OT_TRY_GOTO(ot_verify_model(o->out, !o->quiet, &result), rc, out);
    ot_log_set_status("");
    if (result.n_damages > 0) {
        rc = ot_fail(OT_E_INPUT,
                     "%s: this run is finished, but its result is damaged: %s; use --resume never to "
                     "train again",
                     o->out, result.damages[0]);
        goto out;
    }
    ot_log(OT_LOG_INFO,
           "already finished: %s · %lld of %lld steps on %s · verified: %s · to train again: --resume never",
           o->out, (long long)record->progress.step, (long long)record->steps, record->made, result.what);
    struct ot_json_writer *w = ot_run_log_begin(log, "already_finished");
    ot_json_put_text(w, "out", o->out);
    ot_json_put_int(w, "steps", record->progress.step);
    rc = ot_run_log_end(log);
out:
    ot_verify_free(&result);
    return rc;
}
