/* Opens and closes a saver, and looks after the directories of its run. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/engine/snapshot.h"
#include "offload/plan/stages.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/writer.h"
#include "src/session/session_ranks.h"
#include "src/train/disk_reserve.h"
#include "src/train/out_name.h"
#include "src/train/saver_state.h"

int ot_saver_remove_all(const char *parent) {
    ot_saver_release_space(parent);
    OT_TRY(ot_checkpoint_clear(parent));
    return rmdir(parent) == 0 || errno == ENOENT
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "%s: cannot remove the directory", parent);
}

/* A mount point, or a directory of an overlay's lower layer, cannot be renamed. If the run there is complete,
 * its checkpoints are removed instead: its result stays. */
static int rename_aside(const char *parent, const char *aside) {
    if (rename(parent, aside) == 0)
        return 0;
    if ((errno == EBUSY || errno == EXDEV) && ot_checkpoint_is_complete(parent))
        return ot_checkpoint_clear(parent);
    return ot_fail_errno(OT_E_IO, errno,
                         "%s: has checkpoints of another run and cannot be renamed to %s; remove them, or "
                         "choose another --out",
                         parent, aside);
}

/* True if the run resumes from a checkpoint that an earlier run set aside. That checkpoint must then stay. */
static bool is_from(const struct ot_saver *sv, const char *aside) {
    char *name = NULL;
    struct stat there, here;
    const char *resumed = sv->config.resumed, *slash = resumed ? strrchr(resumed, '/') : NULL;
    if (!slash || ot_string_format(&name, "%s%s", aside, slash) < 0)
        return false;
    bool is = stat(name, &there) == 0 && stat(resumed, &here) == 0 && there.st_ino == here.st_ino &&
              there.st_dev == here.st_dev;
    free(name);
    return is;
}

int ot_saver_find_any(const char *parent, bool *has) {
    struct ot_checkpoint_list list;
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    *has = *has || list.n > 0;
    ot_checkpoint_list_free(&list);
    return 0;
}

/* Prepares for a new run: existing checkpoints get another name until the new run has its own. */
static int set_aside(struct ot_saver *sv) {
    char *aside = NULL;
    bool has = false;
    OT_TRY(ot_saver_find_any(sv->parent, &has));
    OT_TRY(ot_saver_find_any(sv->best_parent, &has));
    OT_TRY(ot_string_format(&aside, "%s.old", sv->parent));
    int rc = has ? ot_saver_remove_all(is_from(sv, aside) ? sv->parent : aside) : 0;
    if (rc == 0 && has && !is_from(sv, aside))
        rc = rename_aside(sv->parent, aside);
    sv->old_run = access(aside, F_OK) == 0;
    free(aside);
    return rc;
}

int ot_saver_prune(struct ot_saver *sv) {
    int64_t best = sv->keeps_best ? sv->best_step : -1;
    int keep = (int)sv->config.session->options->keep;
    if (best < 0 || !sv->best_is_whole)
        OT_TRY(ot_checkpoint_prune(sv->best_parent, 0, best));
    return ot_checkpoint_prune(sv->parent, keep, sv->best_is_whole ? best : -1);
}

/* Moves the best state away: later ones cannot be compared with it. If an earlier attempt has done that, the
 * state that is there now is of that attempt, and the run makes it again. */
static int move_best(struct ot_saver *sv) {
    struct ot_checkpoint_list list;
    char *place;
    OT_TRY(ot_checkpoint_list_make(sv->best_parent, &list));
    int n = list.n, rc;
    ot_checkpoint_list_free(&list);
    if (n == 0)
        return 0;
    OT_TRY(ot_string_format(&place, "%s/best-before-step-%08lld", sv->config.session->options->out,
                            (long long)sv->config.step));
    if (access(place, F_OK) == 0)
        rc = ot_checkpoint_prune(sv->best_parent, 0, -1);
    else if (rename(sv->best_parent, place) < 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot be renamed to %s", sv->best_parent, place);
    else {
        rc = 0;
        ot_log(OT_LOG_INFO, "best    the best state by the earlier evaluations is now in %s", place);
    }
    free(place);
    return rc;
}

/* Takes over the checkpoints of the run that is resumed. Prunes them: the run may have been killed before it
 * did. */
static int take_over(struct ot_saver *sv) {
    OT_TRY(sv->config.begins_evals ? move_best(sv) : ot_saver_rate_earlier(sv));
    sv->keeps_best = true; /* until it is known whether there is room */
    return ot_saver_prune(sv);
}

int ot_saver_make_path(const char *path) {
    return mkdir(path, 0777) == 0 || errno == EEXIST
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "%s: cannot make the directory", path);
}

int ot_saver_make_dir(struct ot_saver *sv) {
    return ot_saver_make_path(sv->parent);
}

void ot_saver_remove_empty(const struct ot_saver *sv) {
    rmdir(sv->best_parent);
    rmdir(sv->parent);
}

static int open_parent(struct ot_saver *sv) {
    OT_TRY(sv->config.is_own ? take_over(sv) : set_aside(sv));
    OT_TRY(ot_saver_make_dir(sv));
    struct stat info;
    if (lstat(sv->parent, &info) < 0 || !S_ISDIR(info.st_mode))
        return ot_fail(OT_E_IO, "%s: checkpoints need this name, but it is not a directory; move it away",
                       sv->parent);
    OT_TRY(ot_checkpoint_clear_complete(sv->parent));
    if (sv->config.session->options->grace > 0)
        sv->flush_seconds = ot_disk_time_flush(sv->parent);
    return ot_saver_hold_first_space(sv);
}

int ot_saver_open(const struct ot_saver_config *config, struct ot_saver **out) {
    struct ot_saver *sv = *out = calloc(1, sizeof *sv);
    if (!sv)
        return ot_fail(OT_E_BUDGET, "no memory for checkpoints");
    sv->config = *config;
    sv->is_rank0 = ot_is_rank0(config->session);
    sv->leads = config->sharing->leads;
    sv->is_local = config->sharing->is_local;
    sv->writes = sv->leads || ot_plan_is_divided(&config->session->plan.chosen);
    sv->last_step = config->step > 0 ? config->step : -1;
    sv->best_step = -1;
    sv->last_begun = ot_clock_seconds();
    OT_TRY(ot_string_format(&sv->parent, "%s", config->parent));
    OT_TRY(ot_checkpoint_best_parent(config->parent, &sv->best_parent));
    if (config->resumed)
        OT_TRY(ot_string_format(&sv->last_dir, "%s", config->resumed));
    return sv->leads ? open_parent(sv) : 0;
}

void ot_saver_close(struct ot_saver *sv) {
    if (!sv)
        return;
    struct ot_pins *pins = NULL;
    ot_engine_snapshot_give_up(sv->config.session->engine);
    (void)ot_engine_snapshot_finish(sv->config.session->engine, &pins);
    ot_pins_free(pins);
    ot_checkpoint_writer_close(sv->writer);
    for (int i = 0; i < sv->n_held; i++)
        ot_pins_free(sv->pins[i]);
    if (sv->parent && sv->best_parent && sv->leads) {
        ot_saver_release_space(sv->parent);
        ot_saver_remove_empty(sv);
    }
    free(sv->pins);
    free(sv->pins_step);
    free(sv->last_dir);
    free(sv->best_parent);
    free(sv->parent);
    free(sv);
}
