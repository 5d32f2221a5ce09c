#include "src/saving/resume.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/store/store.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/checkpoint/catalog.h"
#include "src/run/process_command.h"
#include "src/saving/find_checkpoints.h"
#include "src/saving/finished.h"

static const char checkpoints_name[] = "checkpoints";

/* ---- advice ---- */

/* The directory that a path lies in. */
static void find_parent(const char *path, char parent[PATH_MAX]) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    while (end > 0 && path[end - 1] != '/')
        end--;
    while (end > 1 && path[end - 1] == '/')
        end--;
    snprintf(parent, PATH_MAX, "%.*s", end ? (int)end : 1, end ? path : ".");
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Which of the older ones opens; its contents are not read. -1: none. */
static int find_intact(const struct ot_checkpoint_list *list, const char *damaged) {
    int first = 0;
    for (int i = 0; i < list->n; i++)
        if (is_same_file(list->entries[i].dir, damaged))
            first = i + 1;
    for (int i = first; i < list->n; i++) {
        struct ot_checkpoint *checkpoint;
        int rc = ot_checkpoint_open(list->entries[i].dir, &checkpoint);
        ot_checkpoint_close(rc == 0 ? checkpoint : NULL);
        if (rc == 0)
            return i;
    }
    return -1;
}

static int advise(const char *damaged, int rc) {
    struct ot_error error;
    struct ot_checkpoint_list list;
    char parent[PATH_MAX];
    ot_error_save(&error, rc);
    if (!strstr(error.text, damaged)) /* of something else */
        return rc;
    find_parent(damaged, parent);
    int intact = ot_checkpoint_list_make(parent, &list) == 0 ? find_intact(&list, damaged) : -1;
    ot_error_load(&error);
    char *quoted = NULL;
    if (intact >= 0 && ot_process_quote(list.entries[intact].dir, &quoted) == 0)
        rc = ot_fail((enum ot_error_code)error.code, "%s; --resume %s goes on from the one before it",
                     error.text, quoted);
    else
        rc = ot_fail((enum ot_error_code)error.code,
                     "%s; there is no intact one before it; --resume never begins anew", error.text);
    free(quoted);
    ot_checkpoint_list_free(&list);
    return rc;
}

int ot_resume_advise(const struct ot_resume *resume, int rc) {
    return resume->checkpoint ? advise(ot_checkpoint_dir(resume->checkpoint), rc) : rc;
}

/* ---- finding ---- */

static int open_checkpoint(const char *dir, struct ot_resume *out) {
    int rc = ot_checkpoint_open(dir, &out->checkpoint);
    if (rc < 0) {
        out->checkpoint = NULL;
        return advise(dir, rc);
    }
    out->record = ot_checkpoint_record(out->checkpoint);
    out->dir = ot_checkpoint_dir(out->checkpoint);
    out->record_name = OT_RECORD_NAME;
    return 0;
}

static int open_newest(const char *parent, struct ot_resume *out) {
    struct ot_checkpoint_list list;
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    int rc = list.n ? open_checkpoint(list.entries[0].dir, out) : 0;
    ot_checkpoint_list_free(&list);
    return rc;
}

static int find_within(const char *dir, struct ot_resume *out) {
    struct ot_found found;
    int rc = ot_find_checkpoints(dir, &found);
    if (rc < 0)
        rc = ot_fail_context(rc, "--resume");
    else if (found.list.n == 0)
        rc = ot_fail(OT_E_INPUT, "--resume %s: is a model, and no complete checkpoint is there", dir);
    else
        rc = open_checkpoint(found.list.entries[0].dir, out);
    ot_found_free(&found);
    return rc;
}

/* The newest checkpoint of a run that is not over, or the record of one that is. */
static int find_own(const struct ot_options *options, const char *parent, struct ot_resume *out) {
    bool is_complete = ot_checkpoint_is_complete(parent), is_finished;
    if (!is_complete)
        OT_TRY(open_newest(parent, out));
    if (out->checkpoint)
        return 0;
    OT_TRY(ot_finished_read(options->out, &out->finished, &is_finished));
    if (is_finished) {
        out->record = &out->finished;
        out->dir = options->out;
        out->record_name = OT_FINISHED_NAME;
    } else if (is_complete) {
        ot_log(OT_LOG_INFO, "resume  %s: that run came to its end; this one begins anew", options->out);
    }
    return 0;
}

/* What a killed run has left: first its store's files, or what checkpoints keep of them would not be given
 * back (src/checkpoint/reclaim.h). A directory that cannot be read the session refuses, with its option. */
static int tidy_up(const struct ot_options *options, const char *parent) {
    if (access(parent, F_OK) < 0)
        return 0;
    for (int i = 0; i < options->nvme.n; i++)
        (void)ot_store_remove_stale(options->nvme.dirs[i].path);
    return ot_checkpoint_tidy(parent);
}

int ot_resume_find(const struct ot_options *options, bool tidy, struct ot_resume *out) {
    char parent[PATH_MAX];
    *out = (struct ot_resume){0};
    if (options->no_save)
        return 0;
    int n = snprintf(parent, sizeof parent, "%s/%s", options->out, checkpoints_name);
    if (n < 0 || (size_t)n >= sizeof parent)
        return ot_fail(OT_E_USAGE, "%.200s...: the path is too long", options->out);
    if (tidy)
        OT_TRY(tidy_up(options, parent));
    if (strcmp(options->resume, "never") == 0)
        return 0;
    return strcmp(options->resume, "auto") == 0 ? find_own(options, parent, out)
                                                : find_within(options->resume, out);
}

bool ot_resume_is_finished(const struct ot_resume *resume) {
    return resume->record == &resume->finished;
}

void ot_resume_forget_finished(struct ot_resume *resume) {
    if (!ot_resume_is_finished(resume))
        return;
    ot_log(OT_LOG_INFO, "resume  %s: already finished; this is the plan of --resume never", resume->dir);
    ot_resume_close(resume);
}

void ot_resume_close(struct ot_resume *resume) {
    ot_checkpoint_close(resume->checkpoint);
    ot_checkpoint_record_free(&resume->finished);
    *resume = (struct ot_resume){0};
}

/* ---- the rest ---- */

void ot_resume_print(const struct ot_resume *resume) {
    char done[OT_TEXT_BYTES], steps[OT_TEXT_BYTES], time[OT_TEXT_BYTES];
    const struct ot_checkpoint_record *r = resume->record;
    if (!r)
        return;
    ot_log(OT_LOG_INFO, "resume  %s · step %s of %s · %s so far · made %s on %s",
           ot_checkpoint_dir(resume->checkpoint), ot_text_count(r->progress.step, done),
           ot_text_count(r->steps, steps), ot_text_duration(r->seconds, time), r->made, r->device);
    if (*resume->taken)
        ot_log(OT_LOG_INFO, "        not given, as it was:%s", resume->taken);
}

/* parent: OUT/checkpoints */
static bool lies_in(const struct ot_resume *resume, const char *parent) {
    char from[PATH_MAX];
    if (!resume->checkpoint)
        return false;
    find_parent(ot_checkpoint_dir(resume->checkpoint), from);
    return is_same_file(from, parent);
}

bool ot_resume_is_own(const struct ot_resume *resume, const char *out) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s/%s", out, checkpoints_name);
    return lies_in(resume, parent);
}

int64_t ot_resume_log_bytes(const struct ot_resume *resume, const char *out) {
    return ot_resume_is_own(resume, out) ? resume->record->log_bytes : 0;
}

int ot_resume_clear_newer(const struct ot_resume *resume, const char *out) {
    char parent[PATH_MAX];
    struct ot_checkpoint_list list;
    int rc = 0;
    if (!ot_resume_is_own(resume, out))
        return 0;
    snprintf(parent, sizeof parent, "%s/%s", out, checkpoints_name);
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    for (int i = 0; i < list.n && rc == 0; i++)
        if (list.entries[i].step > resume->record->progress.step)
            rc = ot_checkpoint_remove(list.entries[i].dir);
    ot_checkpoint_list_free(&list);
    return rc;
}
