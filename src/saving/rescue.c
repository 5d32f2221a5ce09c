#include "src/saving/rescue.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/files/out_dir.h"
#include "src/files/out_lock.h"
#include "src/run/process_command.h"

int ot_rescue_restore_out(const struct ot_rescue *r) {
    OT_TRY(ot_out_lock_holds(r->lock) ? ot_out_lock_keep_marker(r->lock)
                                      : ot_out_dir_claim(r->options->out, NULL, r->lock));
    return ot_saver_make_dir(r->saver);
}

static int save_in_out(const struct ot_rescue *r, const struct ot_checkpoint_record *record) {
    OT_TRY(ot_rescue_restore_out(r));
    return ot_saver_save_in(r->saver, NULL, record);
}

/* A directory of its own in `dir`. */
static int save_within(const struct ot_rescue *r, const struct ot_checkpoint_record *record,
                       const char *dir) {
    char path[PATH_MAX];
    if (!dir || !*dir ||
        snprintf(path, sizeof path, "%s/offload-train-rescued.%d", dir, (int)getpid()) >= (int)sizeof path)
        return ot_fail(OT_E_IO, "no such directory");
    return ot_saver_save_in(r->saver, path, record);
}

static int save_beside(const struct ot_rescue *r, const struct ot_checkpoint_record *record) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s.rescued", r->lock->out) >= (int)sizeof path)
        return ot_fail(OT_E_IO, "the path is too long");
    return ot_saver_save_in(r->saver, path, record);
}

static int save_elsewhere(const struct ot_rescue *r, const struct ot_checkpoint_record *record) {
    const char *temporary = getenv("TMPDIR");
    if (save_beside(r, record) == 0)
        return 0;
    for (int i = 0; i < r->options->nvme.n; i++)
        if (save_within(r, record, r->options->nvme.dirs[i].path) == 0)
            return 0;
    if (save_within(r, record, ".") == 0 || save_within(r, record, getenv("HOME")) == 0)
        return 0;
    return save_within(r, record, temporary && *temporary ? temporary : "/tmp");
}

static int say_saved(const struct ot_rescue *r, const struct ot_error *why) {
    char *quoted = NULL;
    const char *dir = ot_saver_last_dir(r->saver);
    if (ot_process_quote(dir, &quoted) < 0)
        quoted = NULL;
    int rc = ot_fail((enum ot_error_code)why->code, "%s; step %lld is saved: --resume %s goes on from it",
                     why->text, (long long)ot_saver_last_step(r->saver), quoted ? quoted : dir);
    free(quoted);
    return rc;
}

static int say_lost(const struct ot_rescue *r, const struct ot_error *why, const char *why_not) {
    const char *dir = ot_saver_last_dir(r->saver);
    if (dir)
        return ot_fail((enum ot_error_code)why->code, "%s%s; the last checkpoint is %s", why->text, why_not,
                       dir);
    return ot_fail((enum ot_error_code)why->code, "%s%s; no checkpoint was made before", why->text, why_not);
}

int ot_rescue_save(const struct ot_rescue *r, const struct ot_checkpoint_record *record, int rc) {
    struct ot_error why;
    ot_error_save(&why, rc);
    if (!record)
        return say_lost(r, &why, "");
    if (save_in_out(r, record) < 0) {
        ot_log(OT_LOG_WARN, "step %lld cannot be saved in %s: %s", (long long)record->progress.step,
               r->options->out, ot_error_text());
        if (save_elsewhere(r, record) < 0)
            return say_lost(r, &why, "; its state could not be saved anywhere");
    }
    return say_saved(r, &why);
}
