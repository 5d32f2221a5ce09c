#include "src/train/resume.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/comm/world.h"
#include "offload/store/store.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/manifest.h"
#include "src/files/adapter_config.h"
#include "src/files/out_lock.h"
#include "src/machine/process.h"
#include "src/train/out_name.h"

static const char checkpoints_name[] = "checkpoints";

/* ---- advice ---- */

/* The parent directory of a path. */
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

/* Index of the newest older checkpoint that opens, or -1. The check does not read the checkpoint's
 * contents. */
static int find_intact(const struct ot_checkpoint_list *list, const char *damaged) {
    int first = 0;
    for (int i = 0; i < list->n; i++)
        if (ot_path_is_same(list->entries[i].dir, damaged))
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
    find_parent(damaged, parent);
    int intact = ot_checkpoint_list_make(parent, &list) == 0 ? find_intact(&list, damaged) : -1;
    ot_error_load(&error);
    char *quoted = NULL;
    if (intact >= 0 && ot_process_quote(list.entries[intact].dir, &quoted) == 0)
        rc = ot_fail((enum ot_error_code)error.code,
                     "%s; to resume from the checkpoint before it, use --resume %s", error.text, quoted);
    else
        rc = ot_fail((enum ot_error_code)error.code,
                     "%s; no earlier checkpoint is intact; to start a new run, use --resume never",
                     error.text);
    free(quoted);
    ot_checkpoint_list_free(&list);
    return rc;
}

int ot_resume_advise(const struct ot_resume *resume, int rc) {
    bool is_hurt = resume->checkpoint && rc < 0 && ot_error_cause() == OT_CAUSE_CHECKPOINT;
    return is_hurt ? advise(ot_checkpoint_dir(resume->checkpoint), rc) : rc;
}

/* ---- finding ---- */

/* A run cannot go on without the optimizer's moments. */
static int check_moments(const struct ot_checkpoint *checkpoint) {
    if (!ot_manifest_state(ot_checkpoint_manifest(checkpoint)).lacks_moments)
        return 0;
    const char *dir = ot_checkpoint_dir(checkpoint);
    return ot_fail(OT_E_INPUT,
                   "%s: has the weights of an evaluated state without the optimizer's moments, so no run can "
                   "resume from it; to start a new run with these weights, make a model of them "
                   "(offload-train export %s --out MODEL) and use --model MODEL",
                   dir, dir);
}

static void take_checkpoint(struct ot_checkpoint *checkpoint, struct ot_resume *out) {
    out->checkpoint = checkpoint;
    out->record = ot_checkpoint_record(checkpoint);
    out->dir = ot_checkpoint_dir(checkpoint);
    out->record_name = OT_RECORD_NAME;
}

static int open_checkpoint(const char *dir, struct ot_resume *out) {
    struct ot_checkpoint *checkpoint;
    int rc = ot_checkpoint_open(dir, &checkpoint);
    if (rc < 0)
        return advise(dir, rc);
    if ((rc = check_moments(checkpoint)) < 0) {
        ot_checkpoint_close(checkpoint);
        return rc;
    }
    take_checkpoint(checkpoint, out);
    return ot_checkpoint_check_whole(checkpoint);
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
        rc = ot_fail(OT_E_INPUT, "--resume %s: has no checkpoint to resume from; give the directory of one",
                     dir);
    else
        rc = open_checkpoint(found.list.entries[0].dir, out);
    ot_found_free(&found);
    return rc;
}

static int find_finished(const struct ot_options *options, struct ot_resume *out) {
    bool is_finished;
    OT_TRY(ot_finished_read(options->out, &out->finished, &is_finished));
    if (is_finished) {
        out->record = &out->finished;
        out->dir = options->out;
        out->record_name = OT_FINISHED_NAME;
    }
    return 0;
}

/* With --resume-with: a finished run that the command changes goes on from its newest checkpoint. */
static int find_to_change(const struct ot_options *options, const char *parent, struct ot_resume *out) {
    bool changes = false;
    if (!out->record)
        return ot_fail(OT_E_INPUT, "--resume-with: no such run: %s has no checkpoint and no result",
                       options->out);
    OT_TRY(ot_resume_changes_any(out->record, options, &changes));
    if (!changes)
        return 0;
    int64_t ended = out->record->progress.step;
    ot_resume_close(out);
    OT_TRY(open_newest(parent, out));
    if (out->checkpoint && out->record->progress.step < ended)
        ot_log(
            OT_LOG_WARN,
            "the run in %s ended after step %lld, but its newest checkpoint is of step %lld: it goes on from "
            "there, and later steps are trained again with the new values (--save-end keeps the last state)",
            options->out, (long long)ended, (long long)out->record->progress.step);
    if (out->checkpoint)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "--resume-with: the run in %s is finished and has kept no checkpoint, so its optimizer's "
                   "moments are gone; start a new run from its weights with --model %s and another --out "
                   "(a run with --save-end keeps what it needs to go on)",
                   options->out, options->out);
}

/* Finds the newest checkpoint of an unfinished run, or the record of a finished one. */
static int find_own(const struct ot_options *options, const char *parent, struct ot_resume *out) {
    bool is_complete = ot_checkpoint_is_complete(parent);
    if (!is_complete)
        OT_TRY(open_newest(parent, out));
    if (out->checkpoint)
        return 0;
    OT_TRY(find_finished(options, out));
    if (options->resume_with)
        return find_to_change(options, parent, out);
    if (!out->record && is_complete)
        ot_log(OT_LOG_INFO, "resume  %s: that run is complete; this is a new run", options->out);
    return 0;
}

/* Removes the remains of a killed run. The store's files go first: otherwise the space that checkpoints hold
 * of them cannot be freed (src/checkpoint/catalog.c). Unreadable --nvme directories are ignored here; the
 * session refuses them and names the option. */
static int tidy_up(const struct ot_options *options, const char *parent) {
    if (access(parent, F_OK) < 0)
        return 0;
    for (int i = 0; i < options->nvme.n; i++)
        (void)ot_store_remove_stale(options->nvme.dirs[i].path);
    return ot_checkpoint_tidy(parent);
}

static int name_parent(const struct ot_options *options, char parent[PATH_MAX]) {
    int n = snprintf(parent, PATH_MAX, "%s/%s", options->out, checkpoints_name);
    if (n < 0 || n >= PATH_MAX)
        return ot_fail(OT_E_USAGE, "%.200s...: the path is too long", options->out);
    return 0;
}

int ot_resume_find(const struct ot_options *options, bool tidy, struct ot_resume *out) {
    char parent[PATH_MAX];
    *out = (struct ot_resume){0};
    if (options->no_save)
        return 0;
    OT_TRY(name_parent(options, parent));
    if (tidy)
        OT_TRY(tidy_up(options, parent));
    if (strcmp(options->resume, "never") == 0)
        return 0;
    return strcmp(options->resume, "auto") == 0 ? find_own(options, parent, out)
                                                : find_within(options->resume, out);
}

/* Rank 0's finding, which it sends to the others. */
struct finding {
    int is_finished;
    char dir[PATH_MAX]; /* of the checkpoint; "": none */
};

/* Opens the checkpoint that rank 0 has found. */
static int follow(const struct ot_options *options, const struct finding *found, struct ot_resume *out) {
    *out = (struct ot_resume){0};
    if (*found->dir)
        return open_checkpoint(found->dir, out);
    return found->is_finished ? find_finished(options, out) : 0;
}

static int find_shared(const struct ot_options *options, bool tidy, struct ot_world *world,
                       struct ot_resume *out) {
    bool leads = !world || ot_world_ranks(world)->rank == 0;
    struct finding mine = {0}, *all;
    *out = (struct ot_resume){0};
    if (leads)
        OT_TRY(ot_resume_find(options, tidy, out));
    if (!world)
        return 0;
    mine.is_finished = ot_resume_is_finished(out);
    if (out->checkpoint)
        snprintf(mine.dir, sizeof mine.dir, "%s", out->dir);
    all = calloc((size_t)ot_world_ranks(world)->ranks, sizeof *all);
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory to hear which checkpoint rank 0 has found");
    int rc = ot_world_all_gather(world, &mine, sizeof mine, all);
    if (rc == 0 && !leads)
        rc = follow(options, &all[0], out);
    free(all);
    return rc;
}

/* ---- finding, with a directory on each host ---- */

enum { MOST_OFFERED = 16 };

struct offer { /* the checkpoints of a rank's directory, as the others hear of them */
    bool is_finished, has_dir;
    int n;
    struct {
        int64_t step;
        uint32_t crc; /* of checkpoint.json: two saves of one step are not the same */
    } list[MOST_OFFERED];
};

/* The checkpoints of this rank's directory that can be opened, newest first. */
struct offered {
    struct ot_checkpoint *list[MOST_OFFERED];
    struct offer offer;
};

/* The newest checkpoint must open. Older ones count only if they do. */
static int offer_all(const struct ot_checkpoint_list *list, struct offered *mine) {
    struct offer *offer = &mine->offer;
    for (int i = 0; i < list->n && offer->n < MOST_OFFERED; i++) {
        struct ot_checkpoint *checkpoint;
        int rc = ot_checkpoint_open(list->entries[i].dir, &checkpoint);
        if (rc < 0 && i == 0)
            return advise(list->entries[i].dir, rc);
        if (rc < 0)
            continue;
        if ((rc = check_moments(checkpoint)) < 0) {
            ot_checkpoint_close(checkpoint);
            return rc;
        }
        mine->list[offer->n] = checkpoint;
        offer->list[offer->n].step = ot_checkpoint_record(checkpoint)->progress.step;
        offer->list[offer->n++].crc = ot_checkpoint_manifest(checkpoint)->record_crc;
    }
    return 0;
}

static int find_offer(const struct ot_options *options, const char *parent, struct offered *mine) {
    struct ot_found found = {0};
    bool is_auto = strcmp(options->resume, "auto") == 0;
    int rc = 0;
    mine->offer.has_dir = access(parent, F_OK) == 0;
    if (strcmp(options->resume, "never") == 0)
        return 0;
    if (!is_auto)
        rc = ot_find_checkpoints(options->resume, &found);
    else if (!ot_checkpoint_is_complete(parent) || options->resume_with)
        rc = ot_checkpoint_list_make(parent, &found.list);
    if (rc == 0)
        rc = offer_all(&found.list, mine);
    ot_found_free(&found);
    return rc < 0 && !is_auto ? ot_fail_context(rc, "--resume") : rc;
}

static int find_in(const struct offer *offer, int64_t step, uint32_t crc) {
    for (int i = 0; i < offer->n; i++)
        if (offer->list[i].step == step && offer->list[i].crc == crc)
            return i;
    return -1;
}

/* Index of the newest checkpoint of this rank that all ranks have, or -1. */
static int find_common(const struct offer *mine, const struct offer *all, int ranks) {
    for (int i = 0; i < mine->n; i++) {
        int r = 0;
        while (r < ranks && find_in(&all[r], mine->list[i].step, mine->list[i].crc) >= 0)
            r++;
        if (r == ranks)
            return i;
    }
    return -1;
}

/* The ranks have no checkpoint in common. If the first save of the run was interrupted, there is nothing to
 * lose. A rank without a directory has lost it, or is on another host than before. */
static int check_lost(const struct ot_options *options, struct ot_world *world, const struct offer *all) {
    bool is_auto = strcmp(options->resume, "auto") == 0;
    int has = -1, lacks = -1;
    for (int r = ot_world_ranks(world)->ranks - 1; r >= 0; r--) {
        has = all[r].n > 0 ? r : has;
        lacks = all[r].n == 0 && (!is_auto || !all[r].has_dir) ? r : lacks;
    }
    if (is_auto && (has < 0 || lacks < 0)) {
        if (has >= 0)
            ot_log(OT_LOG_WARN, "the ranks have no checkpoint in common, because the first save was "
                                "interrupted: the run begins anew");
        return 0;
    }
    char first[256];
    snprintf(first, sizeof first, "%s", ot_world_name(world, ot_max(has, 0)));
    if (has < 0 || lacks < 0)
        return ot_fail(OT_E_INPUT, "--resume %s: the ranks have no checkpoint in common there",
                       options->resume);
    return ot_fail(OT_E_INPUT,
                   "%s has no checkpoint, but %s has that of step %lld: start the ranks on the hosts that "
                   "saved it, or copy the checkpoint's directory of every host into one on each host, or use "
                   "--resume never",
                   ot_world_name(world, lacks), first, (long long)all[has].list[0].step);
}

static int compare_offers(const struct ot_options *options, struct ot_world *world, struct offered *mine,
                          struct ot_resume *out) {
    int ranks = ot_world_ranks(world)->ranks;
    struct offer *all = calloc((size_t)ranks, sizeof *all);
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory to compare the checkpoints of %d ranks", ranks);
    int rc = ot_world_all_gather(world, &mine->offer, sizeof mine->offer, all), common = -1;
    out->is_over = rc == 0 && all[0].is_finished && !out->record;
    if (rc == 0 && !all[0].is_finished && strcmp(options->resume, "never") != 0) {
        common = find_common(&mine->offer, all, ranks);
        rc = common < 0 ? check_lost(options, world, all) : 0;
    }
    if (common >= 0) {
        take_checkpoint(mine->list[common], out);
        mine->list[common] = NULL;
    }
    free(all);
    return rc;
}

static int find_local(const struct ot_options *options, bool tidy, struct ot_world *world,
                      const struct ot_out_sharing *sharing, struct ot_resume *out) {
    char parent[PATH_MAX];
    struct offered mine = {0};
    bool is_auto = strcmp(options->resume, "auto") == 0;
    int rc;
    *out = (struct ot_resume){0};
    OT_TRY(name_parent(options, parent));
    if (tidy && sharing->leads)
        OT_TRY(tidy_up(options, parent));
    OT_TRY(ot_world_all_gather(world, NULL, 0, NULL)); /* the others look after it was tidied */
    OT_TRY_GOTO(find_offer(options, parent, &mine), rc, out);
    if (is_auto && mine.offer.n == 0 && ot_world_ranks(world)->rank == 0)
        OT_TRY_GOTO(find_finished(options, out), rc, out);
    mine.offer.is_finished = ot_resume_is_finished(out);
    rc = compare_offers(options, world, &mine, out);
out:
    for (int i = 0; i < mine.offer.n; i++)
        ot_checkpoint_close(mine.list[i]);
    return rc;
}

int ot_resume_find_together(const struct ot_options *options, bool tidy, struct ot_world *world,
                            const struct ot_out_sharing *sharing, struct ot_resume *out) {
    return sharing->is_local && !options->no_save ? find_local(options, tidy, world, sharing, out)
                                                  : find_shared(options, tidy, world, out);
}

bool ot_resume_is_finished(const struct ot_resume *resume) {
    return resume->is_over || resume->record == &resume->finished;
}

void ot_resume_forget_finished(struct ot_resume *resume) {
    if (!ot_resume_is_finished(resume))
        return;
    if (resume->record)
        ot_log(OT_LOG_INFO, "resume  %s: this run is finished already; the plan is for --resume never",
               resume->dir);
    ot_resume_close(resume);
}

void ot_resume_close(struct ot_resume *resume) {
    ot_checkpoint_close(resume->checkpoint);
    ot_resume_changes_free(&resume->changes);
    ot_checkpoint_record_free(&resume->finished);
    *resume = (struct ot_resume){0};
}

/* ---- after taking over ---- */

void ot_resume_print(const struct ot_resume *resume) {
    char done[OT_TEXT_BYTES], steps[OT_TEXT_BYTES], time[OT_TEXT_BYTES];
    const struct ot_checkpoint_record *r = resume->record;
    if (!r)
        return;
    ot_log(OT_LOG_INFO, "resume  %s · step %s of %s · %s so far · made %s on %s",
           ot_checkpoint_dir(resume->checkpoint), ot_text_count(r->progress.step, done),
           ot_text_count(r->steps, steps), ot_text_duration(r->seconds, time), r->made, r->device);
    if (*resume->taken)
        ot_log(OT_LOG_INFO, "        taken from the checkpoint:%s", resume->taken);
    ot_resume_changes_print(&resume->changes, r);
}

/* parent: OUT/checkpoints */
static bool lies_in(const struct ot_resume *resume, const char *parent) {
    char from[PATH_MAX];
    if (!resume->checkpoint)
        return false;
    find_parent(ot_checkpoint_dir(resume->checkpoint), from);
    return ot_path_is_same(from, parent);
}

bool ot_resume_is_own(const struct ot_resume *resume, const char *out) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s/%s", out, checkpoints_name);
    return lies_in(resume, parent);
}

int64_t ot_resume_log_bytes(const struct ot_resume *resume, const char *out) {
    return ot_resume_is_own(resume, out) ? resume->record->log_bytes : 0;
}

/* True if a run of `steps` steps made the checkpoint. */
static bool is_of_length(const char *dir, int64_t steps) {
    struct ot_checkpoint *checkpoint;
    if (ot_checkpoint_open(dir, &checkpoint) < 0)
        return false;
    bool is = ot_checkpoint_record(checkpoint)->steps == steps;
    ot_checkpoint_close(checkpoint);
    return is;
}

/* Removes the checkpoints after step `step`. steps: those of a run of that length stay; -1: none stays. */
static int remove_newer(const char *parent, int64_t step, int64_t steps) {
    struct ot_checkpoint_list list;
    int rc = 0;
    OT_TRY(ot_checkpoint_list_make(parent, &list));
    for (int i = 0; i < list.n && rc == 0; i++)
        if (list.entries[i].step > step && (steps < 0 || !is_of_length(list.entries[i].dir, steps)))
            rc = ot_checkpoint_remove(list.entries[i].dir);
    ot_checkpoint_list_free(&list);
    return rc;
}

int ot_resume_clear_newer(const struct ot_resume *resume, const char *out, int64_t steps) {
    char parent[PATH_MAX], *best;
    if (!ot_resume_is_own(resume, out))
        return 0;
    snprintf(parent, sizeof parent, "%s/%s", out, checkpoints_name);
    OT_TRY(remove_newer(parent, resume->record->progress.step, -1));
    OT_TRY(ot_checkpoint_best_parent(parent, &best));
    int rc = remove_newer(best, resume->record->progress.step, steps);
    free(best);
    return rc;
}

/* ---- finding checkpoints ---- */

static bool has(const char *dir, const char *name) {
    char path[PATH_MAX];
    struct stat status;
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && lstat(path, &status) == 0;
}

/* Lists the checkpoint and the older ones in its directory. The list is empty if the checkpoint's directory
 * was renamed. */
static int find_older(const char *dir, struct ot_checkpoint_list *list) {
    char *real = realpath(dir, NULL), *slash = real ? strrchr(real, '/') : NULL;
    if (!slash) {
        free(real);
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot resolve the path", dir);
    }
    *slash = '\0';
    int rc = ot_checkpoint_list_make(*real ? real : "/", list), at = 0;
    if (rc == 0) {
        while (at < list->n && strcmp(strrchr(list->entries[at].dir, '/') + 1, slash + 1) != 0)
            at++;
        for (int i = 0; i < at; i++)
            free(list->entries[i].dir);
        list->n -= at;
        memmove(list->entries, list->entries + at, (size_t)list->n * sizeof *list->entries);
    }
    free(real);
    return rc;
}

static int find_one(const char *dir, struct ot_checkpoint_list *list) {
    OT_TRY(find_older(dir, list));
    if (list->n == 0) {
        free(list->entries);
        list->entries = calloc(1, sizeof *list->entries);
        if (!list->entries)
            return ot_fail(OT_E_BUDGET, "%s: no memory to list checkpoints", dir);
        list->n = 1;
        list->entries[0].step = -1;
    }
    free(list->entries[0].dir);
    list->entries[0].dir = strdup(dir); /* the path as the user wrote it */
    return list->entries[0].dir ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory to list checkpoints", dir);
}

static bool is_gguf(const char *path) {
    struct stat status;
    return ot_path_has_extension(path, ".gguf") && stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

/* Lists the checkpoints in a directory, and the best state beside them. */
static int list_in(const char *parent, struct ot_found *out) {
    char *best;
    struct stat status;
    OT_TRY(ot_checkpoint_list_make(parent, &out->list));
    OT_TRY(ot_checkpoint_best_parent(parent, &best));
    bool is_there = lstat(best, &status) == 0 && S_ISDIR(status.st_mode);
    int rc = is_there ? ot_checkpoint_list_make(best, &out->best) : 0;
    free(best);
    return rc;
}

int ot_find_checkpoints(const char *dir, struct ot_found *out) {
    char *inner;
    struct stat status;
    *out = (struct ot_found){0};
    out->is_model = is_gguf(dir);
    if (out->is_model)
        return 0;
    if (stat(dir, &status) < 0 || !S_ISDIR(status.st_mode))
        return ot_fail(OT_E_INPUT, "%s: no such directory", dir);
    if (has(dir, OT_MANIFEST_NAME))
        return find_one(dir, &out->list);
    OT_TRY(list_in(dir, out));
    if (out->list.n + out->best.n == 0) {
        ot_found_free(out);
        OT_TRY(ot_string_format(&inner, "%s/checkpoints", dir));
        int rc = list_in(inner, out);
        free(inner);
        OT_TRY(rc);
    }
    out->is_model = has(dir, "config.json") || has(dir, OT_ADAPTER_CONFIG_NAME);
    if (out->list.n + out->best.n == 0)
        OT_TRY(ot_out_check_whole(dir));
    if (out->list.n + out->best.n == 0 && !out->is_model)
        return ot_fail(OT_E_INPUT,
                       "%s: not a checkpoint (it has no " OT_MANIFEST_NAME
                       "), not a run with checkpoints, and not a model (it has no config.json)",
                       dir);
    return 0;
}

void ot_found_free(struct ot_found *found) {
    ot_checkpoint_list_free(&found->list);
    ot_checkpoint_list_free(&found->best);
    *found = (struct ot_found){0};
}
