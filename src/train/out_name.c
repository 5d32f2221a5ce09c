#include "src/train/out_name.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/comm/world.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/data/source.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/verify.h"
#include "src/files/model_dir.h"
#include "src/files/resolve.h"
#include "src/hub/hub.h"
#include "src/options/options.h"
#include "src/session/weights.h"
#include "src/train/run_log.h"

static int refuse_name(void) {
    return ot_fail(OT_E_USAGE, "no short name for the output directory; give --out DIR");
}

/* The last component of a path, or of a hub name such as "org/model" or "org/model@v1". */
static int find_model_name(const char *given, char name[NAME_MAX + 1]) {
    char *real = given[0] == '.' || given[0] == '/' ? realpath(given, NULL) : NULL;
    struct ot_hub_name hub;
    const char *model = real ? real : ot_hub_name_parse(given, &hub) ? hub.id : given;
    size_t end = strlen(model);
    while (end > 1 && model[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && model[start - 1] != '/')
        start--;
    int n = snprintf(name, NAME_MAX + 1, "%.*s", (int)(end - start), model + start);
    free(real);
    return n < 0 || n > NAME_MAX ? refuse_name() : 0;
}

/* The last component of --data up to its first dot. The first dot of a hidden file stays. A pattern gives
 * what stands before its first wildcard. */
static const char *find_data_name(const struct ot_options *options, size_t *length) {
    const char *data = options->command == OT_COMMAND_BENCH ? "bench" : options->data.items[0];
    size_t end = strcspn(data, ot_hub_is_remote(data) ? "?#" : ""), start;
    while (end > 1 && data[end - 1] == '/')
        end--;
    for (start = end; start > 0 && data[start - 1] != '/';)
        start--;
    *length = end > start ? 1 + strcspn(data + start + 1, ".:/*?[") : 0;
    if (*length > 0 && !strchr("*?[", data[start]) && strcmp(data, OT_SOURCE_STANDARD_INPUT) != 0)
        return data + start;
    *length = strlen("rows");
    return "rows";
}

int ot_out_name_choose(struct ot_settings *settings, char *text, size_t bytes) {
    const struct ot_options *options = &settings->in_effect;
    char model[NAME_MAX + 1];
    if (options->out)
        return 0;
    OT_TRY(find_model_name(options->model, model));
    size_t length;
    const char *data = find_data_name(options, &length);
    int n = snprintf(text, bytes, "out/%s-%.*s", model, (int)length, data);
    if (n < 0 || (size_t)n >= bytes)
        return refuse_name();
    ot_settings_choose_text(settings, "out", text);
    return 0;
}

/* ---- two models of one name ---- */

enum { PRINT_DIGITS = 8 };

static struct ot_base_print print_of(const struct ot_checkpoint_record *record) {
    return (struct ot_base_print){.is_known = record->has_base, .sample = record->base_sample};
}

/* The base of the run in OUT: of its newest checkpoint, else of its result. It is not known if there is
 * neither, or if they are damaged: resuming says so later. */
static struct ot_base_print read_print(const char *out) {
    struct ot_base_print print = {0};
    struct ot_checkpoint_list list = {0};
    struct ot_checkpoint_record finished;
    struct ot_checkpoint *checkpoint;
    char parent[PATH_MAX];
    bool is_finished = false;
    snprintf(parent, sizeof parent, "%s/checkpoints", out);
    if (!ot_checkpoint_is_complete(parent) && ot_checkpoint_list_make(parent, &list) == 0 && list.n > 0 &&
        ot_checkpoint_open(list.entries[0].dir, &checkpoint) == 0) {
        print = print_of(ot_checkpoint_record(checkpoint));
        ot_checkpoint_close(checkpoint);
    } else if (list.n == 0 && ot_finished_read(out, &finished, &is_finished) == 0 && is_finished) {
        print = print_of(&finished);
        ot_checkpoint_record_free(&finished);
    }
    ot_checkpoint_list_free(&list);
    return print;
}

/* True for NAME-PRINT. */
static bool is_variant(const char *entry, const char *name) {
    size_t bytes = strlen(name);
    if (strncmp(entry, name, bytes) != 0 || entry[bytes] != '-' || strlen(entry) != bytes + 1 + PRINT_DIGITS)
        return false;
    for (const char *at = entry + bytes + 1; *at; at++)
        if (!isxdigit((unsigned char)*at) || isupper((unsigned char)*at))
            return false;
    return true;
}

/* True if a run of another model of that name has been here before. */
static bool has_variant(const char *out) {
    const char *name = strrchr(out, '/') + 1;
    char parent[PATH_MAX];
    bool found = false;
    snprintf(parent, sizeof parent, "%.*s", (int)(name - out), out);
    DIR *dir = opendir(parent);
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry && !found; entry = readdir(dir))
        found = is_variant(entry->d_name, name);
    if (dir)
        closedir(dir);
    return found;
}

/* The base of this run. If it cannot be read, opening the session says why. */
static struct ot_base_print take_print(const struct ot_options *options) {
    struct ot_base_print print = {0};
    struct ot_resolved resolved = {0};
    struct ot_model_dir *dir = NULL;
    if (ot_model_resolve(options->model, &resolved) == 0 && resolved.path &&
        ot_model_dir_open(resolved.path, &dir) == 0 && ot_model_dir_facts(dir)->has_weights &&
        ot_base_print_take(dir, &ot_model_dir_facts(dir)->config, &print) < 0)
        print.is_known = false;
    ot_model_dir_close(dir);
    ot_resolved_free(&resolved);
    return print;
}

/* The weights are looked at only if there is something to tell apart. */
static void tell_apart(const struct ot_options *options, char *text, size_t bytes) {
    char variant[PATH_MAX];
    struct ot_base_print then = read_print(text), now;
    if (options->init != OT_CHOICE_INIT_FILES || (!then.is_known && !has_variant(text)))
        return;
    now = take_print(options);
    int n = snprintf(variant, sizeof variant, "%s-%08" PRIx32, text, now.sample);
    bool is_other = then.is_known && then.sample != now.sample;
    if (!now.is_known || n >= (int)bytes || n >= (int)sizeof variant ||
        (!is_other && access(variant, F_OK) < 0))
        return;
    if (is_other)
        ot_log(OT_LOG_INFO,
               "note    %s is the output of another model of this name, so this run has --out %s", text,
               variant);
    snprintf(text, bytes, "%s", variant);
}

int ot_out_name_find(struct ot_settings *settings, struct ot_world *world, char *text, size_t bytes) {
    const struct ot_options *options = &settings->in_effect;
    char mine[PATH_MAX], (*all)[PATH_MAX];
    bool is_open = !options->out && !options->no_save;
    if (is_open)
        OT_TRY(ot_out_name_choose(settings, text, bytes));
    if (is_open && (!world || ot_world_ranks(world)->rank == 0))
        tell_apart(options, text, bytes);
    if (!world)
        return 0;
    snprintf(mine, sizeof mine, "%s", options->out ? options->out : "");
    all = calloc((size_t)ot_world_ranks(world)->ranks, sizeof *all);
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory to hear which output rank 0 has");
    int rc = ot_world_all_gather(world, mine, sizeof mine, all);
    if (rc == 0 && is_open && *all[0])
        snprintf(text, bytes, "%s", all[0]);
    free(all);
    return rc;
}

/* ---- finished runs ---- */

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

/* The new run has no result, so OUT still holds the finished run's result: gives its log back. Errors:
 * OT_E_IO. */
static int finished_restore_log(const char *out) {
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

/* Refuses a command that asks for another state, or another end, than the result has. */
static int check_result(const struct ot_options *o, const struct ot_checkpoint_record *record) {
    const struct ot_eval_history *h = &record->evals;
    bool has_best = record->result_step > 0 || h->best_step == 0 ||
                    ot_checkpoint_record_cost(record) <= ot_eval_cost(h->metric, &h->best);
    bool last = o->result == OT_CHOICE_RESULT_LAST;
    if (ot_options_given_now(o, "result") && (last ? record->result_step > 0 : !has_best))
        return ot_fail(
            OT_E_USAGE,
            "%s: this run is finished and has the model of step %lld; offload-train export %s%s --out "
            "DIR makes the other one, if its checkpoint is left",
            o->out, (long long)(last ? record->result_step : record->progress.step), o->out,
            last ? "" : " --best");
    if (ot_options_given_now(o, "stop-early") && record->progress.step < record->steps &&
        o->stop_early.evaluations > h->without_gain)
        return ot_fail(
            OT_E_USAGE,
            "%s: this run is finished: --stop-early ended it after %lld of %lld steps; if checkpoints "
            "are left, use --resume %s/checkpoints to go on",
            o->out, (long long)record->progress.step, (long long)record->steps, o->out);
    return 0;
}

int ot_finished_confirm(const struct ot_options *o, const struct ot_checkpoint_record *record, int64_t steps,
                        struct ot_run_log *log) {
    struct ot_verify result;
    int rc;
    OT_TRY(ot_finished_check_length(o, record->steps, steps));
    OT_TRY(check_result(o, record));
    OT_TRY(finished_restore_log(o->out));
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

/* ---- directories of ranks ---- */

enum { HOST_BYTES = 64, OUT_BYTES = 512 };

struct facts { /* of a rank */
    char host[HOST_BYTES];
    char out[OUT_BYTES]; /* --out, for people: cut if it is longer */
    uint64_t token;      /* rank 0's counts: part of the names of the files */
    bool looks;          /* this rank saves, so it needs a directory */
    bool local;          /* --save-local */
};

struct sight {     /* of a rank's search */
    uint64_t seen; /* bit r: the file of rank r is there */
    bool wrote;    /* its own file could be made */
};

struct search {
    const struct ot_options *options;
    struct ot_world *world;
    int rank, ranks;
    char dir[PATH_MAX]; /* the nearest existing directory */
    uint32_t hash; /* a checksum of the rest of --out: --out a and --out b differ, though neither exists */
    struct facts *facts;
    struct sight *sights;
};

static void find_dir(struct search *s) {
    const char *out = s->options->out;
    if (!ot_path_find_nearest(out, s->dir))
        snprintf(s->dir, sizeof s->dir, ".");
    size_t known = strlen(s->dir);
    const char *rest = strncmp(out, s->dir, known) == 0 ? out + known : out;
    rest += strspn(rest, "/");
    size_t n = strlen(rest);
    while (n > 0 && rest[n - 1] == '/')
        n--;
    s->hash = ot_crc32(0, rest, n);
}

/* Room for the directory, and for the longest name. */
enum { PATH_BYTES = PATH_MAX + 80 };

static void name_file(const struct search *s, int rank, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/.offload-train-%016" PRIx64 "-%08" PRIx32 "-%d", s->dir, s->facts[0].token,
             s->hash, rank);
}

static bool make_file(const struct search *s) {
    char path[PATH_BYTES];
    name_file(s, s->rank, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd >= 0 && close(fd) == 0;
}

/* No rank has looked for these names before, so a network file system has no old answer for them. */
static uint64_t look(const struct search *s) {
    char path[PATH_BYTES];
    uint64_t seen = 0;
    for (int r = 0; r < s->ranks; r++) {
        name_file(s, r, path);
        if (s->sights[r].wrote && access(path, F_OK) == 0)
            seen |= (uint64_t)1 << r;
    }
    return seen;
}

/* Lets all ranks look at the same time. A rank whose file could not be made is seen by none, but may see the
 * others. */
static int search(struct search *s) {
    char path[PATH_BYTES];
    struct sight mine = {0};
    bool looks = s->facts[s->rank].looks;
    if (looks) {
        find_dir(s);
        mine.wrote = make_file(s);
    }
    int rc = ot_world_all_gather(s->world, &mine, sizeof mine, s->sights);
    if (rc == 0 && looks)
        mine.seen = look(s);
    if (rc == 0)
        rc = ot_world_all_gather(s->world, &mine, sizeof mine, s->sights);
    if (mine.wrote) {
        name_file(s, s->rank, path);
        (void)unlink(path);
    }
    return rc;
}

/* The first rank that shares the directory of `rank`. If rank 0 cannot write its directory, it soon says why,
 * so all are taken to share. */
static int find_leader(const struct search *s, int rank) {
    uint64_t seen = s->sights[rank].seen;
    if (!s->facts[rank].looks || !s->sights[0].wrote)
        return 0;
    return seen ? __builtin_ctzll(seen) : rank;
}

static int refuse(const struct search *s, int rank) {
    char first[256];
    snprintf(first, sizeof first, "%s", ot_world_name(s->world, 0));
    return ot_fail(
        OT_E_USAGE,
        "%s does not see the --out directory of %s (%s): give a directory that all hosts share, or "
        "--save-local, with which each host keeps the checkpoint parts of its own ranks",
        ot_world_name(s->world, rank), first, s->facts[0].out);
}

static int join_hosts(const struct search *s, char **out) {
    size_t used = 0, bytes = (size_t)s->ranks * (HOST_BYTES + 1) + 1;
    *out = calloc(1, bytes);
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory for the names of the hosts");
    for (int r = 0; r < s->ranks; r++)
        used += (size_t)snprintf(*out + used, bytes - used, "%s%s", r ? " " : "", s->facts[r].host);
    return 0;
}

static int conclude(const struct search *s, struct ot_out_sharing *out) {
    int leader_here = find_leader(s, s->rank), other = 0;
    out->sharers = 0;
    for (int r = 0; r < s->ranks; r++) {
        int leader = find_leader(s, r);
        out->sharers += leader == leader_here;
        if (leader > 0 && other == 0)
            other = r;
    }
    out->leads = leader_here == s->rank;
    out->is_local = other > 0;
    if (out->is_local && !s->facts[0].local)
        return refuse(s, other);
    if (out->is_local)
        return join_hosts(s, &out->hosts);
    if (s->facts[0].local && s->rank == 0)
        ot_log(OT_LOG_WARN, "--save-local has no effect: all ranks share the directory %s", s->options->out);
    return 0;
}

static void find_facts(const struct search *s, struct facts *mine) {
    *mine = (struct facts){.looks = !s->options->no_save && !s->options->dry_run,
                           .local = s->options->save_local};
    snprintf(mine->out, sizeof mine->out, "%s", s->options->out ? s->options->out : "");
    if (gethostname(mine->host, sizeof mine->host - 1) < 0 || !*mine->host)
        snprintf(mine->host, sizeof mine->host, "?");
    for (char *at = mine->host; *at; at++)
        if (*at == ' ')
            *at = '_';
    if (getrandom(&mine->token, sizeof mine->token, 0) < 0)
        mine->token = (uint64_t)getpid();
}

int ot_out_sharing_find(const struct ot_options *options, struct ot_world *world,
                        struct ot_out_sharing *out) {
    struct search s = {.options = options, .world = world};
    struct facts mine;
    int rc;
    *out = (struct ot_out_sharing){.leads = true, .sharers = 1};
    if (!world && options->save_local)
        ot_log(OT_LOG_WARN, "--save-local has no effect with one rank");
    if (!world)
        return 0;
    s.rank = ot_world_ranks(world)->rank;
    s.ranks = ot_world_ranks(world)->ranks;
    s.facts = calloc((size_t)s.ranks, sizeof *s.facts);
    s.sights = calloc((size_t)s.ranks, sizeof *s.sights);
    if (!s.facts || !s.sights) {
        rc = ot_fail(OT_E_BUDGET, "no memory to compare the directories of %d ranks", s.ranks);
        goto out;
    }
    find_facts(&s, &mine);
    OT_TRY_GOTO(ot_world_all_gather(world, &mine, sizeof mine, s.facts), rc, out);
    out->leads = s.rank == 0;
    out->sharers = s.ranks;
    out->is_local = s.facts[0].local; /* without looking, each rank reads its own directory */
    if (!s.facts[0].looks)
        goto out;
    OT_TRY_GOTO(search(&s), rc, out);
    rc = conclude(&s, out);
out:
    free(s.facts);
    free(s.sights);
    return rc;
}

void ot_out_sharing_free(struct ot_out_sharing *sharing) {
    free(sharing->hosts);
    *sharing = (struct ot_out_sharing){0};
}
