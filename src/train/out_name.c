#include "src/train/out_name.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/comm/world.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/files/model_dir.h"
#include "src/files/resolve.h"
#include "src/session/base_print.h"
#include "src/train/finished.h"

static int refuse_name(void) {
    return ot_fail(OT_E_USAGE, "no short name for the output directory; give --out DIR");
}

/* The last component of a path, or of a hub name such as "org/model". */
static int find_model_name(const char *given, char name[NAME_MAX + 1]) {
    char *real = given[0] == '.' || given[0] == '/' ? realpath(given, NULL) : NULL;
    const char *model = real ? real : given;
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

int ot_out_name_choose(struct ot_settings *settings, char *text, size_t bytes) {
    const struct ot_options *options = &settings->in_effect;
    char model[NAME_MAX + 1];
    if (options->out)
        return 0;
    OT_TRY(find_model_name(options->model, model));
    const char *data = options->command == OT_COMMAND_BENCH ? "bench" : options->data;
    const char *slash = strrchr(data, '/');
    data = slash ? slash + 1 : data;
    size_t dot = *data ? 1 + strcspn(data + 1, ".") : 0; /* the first dot of a hidden file stays */
    int n = snprintf(text, bytes, "out/%s-%.*s", model, (int)dot, data);
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
