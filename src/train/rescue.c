#include "src/train/rescue.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/files/out_dir.h"
#include "src/files/out_lock.h"
#include "src/machine/process.h"
#include "src/session/session_ranks.h"

int ot_rescue_restore_out(const struct ot_rescue *r) {
    OT_TRY(ot_out_lock_holds(r->lock) ? ot_out_lock_keep_marker(r->lock)
                                      : ot_out_dir_claim(r->options->out, NULL, r->lock));
    return ot_saver_make_dir(r->saver);
}

static int save_in_out(const struct ot_rescue *r, const struct ot_checkpoint_record *record) {
    OT_TRY(ot_session_ranks_agree(r->session, r->lock ? ot_rescue_restore_out(r) : 0));
    return ot_saver_save_in(r->saver, NULL, record);
}

/* Writes the place with this number, or "" if it has no name. False: there are no more. */
static bool name_place(const struct ot_rescue *r, int number, char path[PATH_MAX]) {
    const char *temporary = getenv("TMPDIR");
    const char *more[] = {".", getenv("HOME"), temporary && *temporary ? temporary : "/tmp"};
    int n_disks = r->options->nvme.n, n;
    if (number == 0) {
        n = snprintf(path, PATH_MAX, "%s.rescued", r->lock->out);
    } else {
        int other = number - 1 - n_disks;
        if (other >= (int)(sizeof more / sizeof *more))
            return false;
        const char *dir = other < 0 ? r->options->nvme.dirs[number - 1].path : more[other];
        n = dir ? snprintf(path, PATH_MAX, "%s/offload-train-rescued.%d", dir, (int)getpid()) : 0;
    }
    if (n <= 0 || n >= PATH_MAX)
        path[0] = '\0';
    return true;
}

/* All ranks get the place of rank 0. *path is NULL if there are no more. The caller frees it. */
static int find_place(const struct ot_rescue *r, int number, char **path) {
    char name[PATH_MAX];
    *path = NULL;
    if (ot_is_rank0(r->session) && name_place(r, number, name))
        OT_TRY(ot_string_format(path, "%s", name));
    return ot_session_ranks_tell(r->session, path);
}

static int save_elsewhere(const struct ot_rescue *r, const struct ot_checkpoint_record *record) {
    char *path;
    int rc = -OT_E_IO;
    for (int i = 0; rc < 0 && rc != -OT_E_COMM && !r->only_in_out; i++) {
        int found = find_place(r, i, &path);
        if (found < 0 || !path)
            return found < 0 ? found : rc;
        if (*path)
            rc = ot_saver_save_in(r->saver, path, record);
        free(path);
    }
    return rc;
}

static int say_saved(const struct ot_rescue *r, const struct ot_error *why) {
    char *quoted = NULL;
    const char *dir = ot_saver_last_dir(r->saver);
    if (ot_process_quote(dir, &quoted) < 0)
        quoted = NULL;
    int rc = ot_fail_cause((enum ot_error_code)why->code, OT_CAUSE_RESCUED,
                           "%s; step %lld is saved; resume from it with --resume %s", why->text,
                           (long long)ot_saver_last_step(r->saver), quoted ? quoted : dir);
    free(quoted);
    return rc;
}

static int say_lost(const struct ot_rescue *r, const struct ot_error *why, const char *why_not) {
    const char *dir = ot_saver_last_dir(r->saver);
    bool continues = strcmp(r->options->resume, "auto") == 0;
    if (dir)
        return ot_fail_cause((enum ot_error_code)why->code, OT_CAUSE_RESCUED,
                             "%s%s; the last checkpoint is %s%s", why->text, why_not, dir,
                             continues ? "; the same command continues from it" : "");
    return ot_fail_cause((enum ot_error_code)why->code, OT_CAUSE_RESCUED, "%s%s; there is no checkpoint",
                         why->text, why_not);
}

int ot_rescue_tell(const struct ot_rescue *r, int rc) {
    struct ot_error why;
    ot_error_save(&why, rc);
    return say_saved(r, &why);
}

int ot_rescue_save(const struct ot_rescue *r, const struct ot_checkpoint_record *record, int rc) {
    struct ot_error why;
    ot_error_save(&why, rc);
    if (!record)
        return why.cause == OT_CAUSE_RESCUED ? rc : say_lost(r, &why, "");
    if (save_in_out(r, record) < 0) {
        if (ot_is_rank0(r->session))
            ot_log(OT_LOG_WARN, "step %lld cannot be saved in %s: %s", (long long)record->progress.step,
                   r->options->out, ot_error_text());
        if (save_elsewhere(r, record) < 0)
            return say_lost(r, &why, "; the state could not be saved anywhere");
    }
    return say_saved(r, &why);
}
