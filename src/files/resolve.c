#include "src/files/resolve.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/model.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/text.h"
#include "src/files/adapter_config.h"

enum { REF_MAX_BYTES = 128, NAME_MAX_BYTES = 256 };

/* A search: the name, the places where it was looked for, and the result. */
struct search {
    const char *name, *hub_id; /* NULL: neither a hub preset nor a name of the form org/name */
    bool config_alone;         /* a config.json without weights is a model */
    char looked[1024];         /* "A, B, C", for the error message */
    char path[PATH_MAX];       /* "": not found */
    char source[64];           /* "HF cache" */
};

static bool is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool has_file(const char *directory, const char *name) {
    char path[PATH_MAX];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path &&
           stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* True if the directory is the output of a stopped run, or one of its checkpoints. */
static bool has_checkpoints(const char *directory) {
    char path[PATH_MAX];
    return has_file(directory, "checkpoint.json") ||
           (snprintf(path, sizeof path, "%s/checkpoints", directory) < (int)sizeof path &&
            is_directory(path));
}

static bool has_weights(const char *directory) {
    return has_file(directory, "model.safetensors") || has_file(directory, "model.safetensors.index.json") ||
           has_file(directory, "pytorch_model.bin") || has_file(directory, "pytorch_model.bin.index.json");
}

static void remember(struct search *s, const char *path, const char *remark) {
    size_t at = strlen(s->looked);
    snprintf(s->looked + at, sizeof s->looked - at, "%s%s%s", at ? ", " : "", path, remark);
}

/* Takes a directory if it holds a whole model. An interrupted download leaves a config.json without
 * weights. */
static bool take(struct search *s, const char *path, const char *source) {
    if (!has_file(path, "config.json")) {
        remember(s, path, "");
        return false;
    }
    if (!s->config_alone && !has_weights(path)) {
        remember(s, path, " (incomplete: no model.safetensors, no pytorch_model.bin)");
        return false;
    }
    snprintf(s->path, sizeof s->path, "%s", path);
    snprintf(s->source, sizeof s->source, "%s", source);
    return true;
}

/* Hub names consist of letters, digits, '.', '-', '_', and at most one '/'. They cannot leave a directory.
 * */
static bool is_hub_name(const char *name) {
    size_t slashes = 0, bytes = strlen(name);
    if (bytes == 0 || bytes > NAME_MAX_BYTES || name[0] == '/' || name[bytes - 1] == '/' || name[0] == '.')
        return false;
    for (const char *c = name; *c; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
                     *c == '-' || *c == '_' || *c == '.';
        if (*c == '/')
            slashes++;
        if ((!plain && *c != '/') || (*c == '/' && c[1] == '.'))
            return false;
    }
    return slashes <= 1;
}

/* ---- $OFFLOAD_MODELS ---- */

static bool look_in_models(struct search *s) {
    const char *root = getenv("OFFLOAD_MODELS");
    if (!root || !*root) {
        remember(s, "$OFFLOAD_MODELS", " (not set)");
        return false;
    }
    const char *last = s->hub_id ? strrchr(s->hub_id, '/') + 1 : NULL;
    const char *names[] = {s->name, s->hub_id, last};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[PATH_MAX];
        bool again = i > 0 && names[i] && strcmp(names[i], s->name) == 0;
        if (names[i] && !again && snprintf(path, sizeof path, "%s/%s", root, names[i]) < (int)sizeof path &&
            take(s, path, "$OFFLOAD_MODELS"))
            return true;
    }
    return false;
}

/* ---- the Hugging Face cache ---- */

static bool cache_root(char root[PATH_MAX]) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value)
            return snprintf(root, PATH_MAX, "%s%s", value, places[i].below) < PATH_MAX;
    }
    return false;
}

/* refs/main holds the commit that "main" had at the download. */
static bool read_ref(const char *repository, char ref[REF_MAX_BYTES]) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/refs/main", repository) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t bytes = fread(ref, 1, REF_MAX_BYTES - 1, file);
    fclose(file);
    ref[bytes] = '\0';
    ref[strcspn(ref, " \t\r\n")] = '\0';
    return is_hub_name(ref) && !strchr(ref, '/');
}

/* Without refs/main (a copied cache), takes the snapshot if there is only one. */
static bool find_sole_snapshot(const char *repository, char ref[REF_MAX_BYTES], int *count) {
    char path[PATH_MAX];
    *count = 0;
    if (snprintf(path, sizeof path, "%s/snapshots", repository) >= (int)sizeof path)
        return false;
    DIR *dir = opendir(path);
    if (!dir)
        return false;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        if (entry->d_name[0] != '.' && strlen(entry->d_name) < REF_MAX_BYTES) {
            memcpy(ref, entry->d_name, strlen(entry->d_name) + 1);
            (*count)++;
        }
    closedir(dir);
    return *count == 1;
}

static bool look_in_cache(struct search *s) {
    char root[PATH_MAX], repository[PATH_MAX], path[PATH_MAX], ref[REF_MAX_BYTES];
    int snapshots = 0;
    if (!s->hub_id || !cache_root(root))
        return false;
    const char *slash = strchr(s->hub_id, '/');
    if (snprintf(repository, sizeof repository, "%s/models--%.*s--%s", root, (int)(slash - s->hub_id),
                 s->hub_id, slash + 1) >= (int)sizeof repository)
        return false;
    if (!is_directory(repository)) {
        remember(s, repository, "");
        return false;
    }
    if (!read_ref(repository, ref) && !find_sole_snapshot(repository, ref, &snapshots)) {
        remember(s, repository,
                 snapshots > 1 ? " (several snapshots and no refs/main: give the path of one)"
                               : " (no snapshot)");
        return false;
    }
    if (snprintf(path, sizeof path, "%s/snapshots/%s", repository, ref) >= (int)sizeof path)
        return false;
    return take(s, path, "HF cache");
}

/* ---- the result ---- */

static int resolve(const char *name, bool config_alone, struct ot_resolved *out);

/* A directory of adapters: takes their base. */
static int take_adapter(const char *name, struct ot_resolved *out) {
    struct ot_resolved base = {0};
    char *base_name = NULL;
    int rc;
    OT_TRY_GOTO(ot_adapter_config_base(name, &base_name), rc, out);
    rc = has_file(base_name, OT_ADAPTER_CONFIG_NAME) && !has_file(base_name, "config.json")
             ? ot_fail(OT_E_INPUT, "%s holds adapters itself", base_name)
             : resolve(base_name, false, &base);
    if (rc == 0 && !base.path)
        rc = ot_fail(OT_E_INPUT, "%s", base.missing);
    if (rc < 0) {
        rc = ot_fail((enum ot_error_code) - rc,
                     "%s: the base of these adapters: %s; if it is elsewhere, give it with --model and this "
                     "directory with --adapter",
                     name, ot_error_text());
        goto out;
    }
    OT_TRY_GOTO(ot_string_format(&out->adapter, "%s", name), rc, out);
    OT_TRY_GOTO(ot_string_format(&out->found, "%s (adapters of %s)", name, base.found), rc, out);
    out->path = base.path;
    out->base = base_name;
    base.path = base_name = NULL;
out:
    ot_resolved_free(&base);
    free(base_name);
    return rc;
}

static int take_directory(const char *name, struct ot_resolved *out) {
    if (access(name, X_OK) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read this directory", name);
    if (!has_file(name, "config.json") && has_file(name, OT_ADAPTER_CONFIG_NAME))
        return take_adapter(name, out);
    if (!has_file(name, "config.json") && has_checkpoints(name))
        return ot_fail(OT_E_INPUT,
                       "%s: has checkpoints of a stopped run, but no model yet; make a model from the newest "
                       "with 'offload-train export %s --out MODEL', or run its own command again to go on",
                       name, name);
    if (!has_file(name, "config.json"))
        return ot_fail(OT_E_INPUT, "%s: this directory has no config.json, so it is not a Hugging Face model",
                       name);
    OT_TRY(ot_string_format(&out->path, "%s", name));
    if (out->preset)
        return ot_string_format(&out->found, "%s (directory; the preset of that name is not used)", name);
    return ot_string_format(&out->found, "%s (directory)", name);
}

static int take_file(const char *name, struct ot_resolved *out) {
    if (!ot_path_has_extension(name, ".gguf"))
        return ot_fail(
            OT_E_INPUT,
            "%s: this is a file; --model needs the directory that holds config.json, or a .gguf file", name);
    OT_TRY(ot_string_format(&out->path, "%s", name));
    return ot_string_format(&out->found, "%s (GGUF file)", name);
}

/* Some presets whose names begin with the same letter: "presets: llama-7b, llama-13b, ..; ". */
static void list_presets(const char *name, char *list, size_t bytes) {
    enum { MOST = 6 };
    const struct ot_preset *preset;
    size_t used = 0;
    int n = 0;
    *list = '\0';
    for (int i = 0; n < MOST && (preset = ot_preset_at(i)) != NULL; i++)
        if (preset->name[0] == name[0])
            used +=
                (size_t)snprintf(list + used, bytes - used, "%s%s", n++ ? ", " : "presets: ", preset->name);
    if (n > 0)
        snprintf(list + used, bytes - used, ", ..; ");
}

static int report_missing(const struct search *s, struct ot_resolved *out) {
    if (out->preset && !s->hub_id)
        return ot_string_format(
            &out->missing,
            "%s is a preset without published weights: train it with --init random, or give --model "
            "a directory (looked in %s)",
            s->name, s->looked);
    if (out->preset)
        return ot_string_format(
            &out->missing,
            "%s: no weights found in %s; get them with 'hf download %s', or give a directory, "
            "or train from scratch with --init random",
            s->name, s->looked, s->hub_id);
    if (s->hub_id)
        return ot_fail(OT_E_INPUT, "%s: not found in %s; get it with 'hf download %s', or give a directory",
                       s->name, s->looked, s->hub_id);
    char presets[256];
    list_presets(s->name, presets, sizeof presets);
    return ot_fail(
        OT_E_INPUT,
        "%s: no such directory, preset or hub id (org/name); looked in %s; %s'offload-train help models' "
        "lists all presets",
        s->name, s->looked, presets);
}

static int resolve(const char *name, bool config_alone, struct ot_resolved *out) {
    struct search s = {.name = name, .config_alone = config_alone};
    struct stat info;
    out->preset = ot_preset_find(name);
    if (!out->preset)
        out->preset = ot_preset_spelled(name);
    if (is_directory(name))
        return take_directory(name, out);
    if (stat(name, &info) == 0)
        return take_file(name, out);
    if (!is_hub_name(name))
        return ot_fail(OT_E_INPUT, "%s: no such directory", name);
    s.hub_id = strchr(name, '/') ? name : out->preset ? out->preset->hub_id : NULL;
    if (!look_in_models(&s) && !look_in_cache(&s))
        return report_missing(&s, out);
    OT_TRY(ot_string_format(&out->path, "%s", s.path));
    if (out->preset && s.hub_id)
        return ot_string_format(&out->found, "%s → %s (%s, %s)", name, s.hub_id, s.source, s.path);
    return ot_string_format(&out->found, "%s (%s, %s)", name, s.source, s.path);
}

int ot_model_resolve(const char *name, struct ot_resolved *out) {
    *out = (struct ot_resolved){0};
    int rc = resolve(name, false, out);
    if (rc < 0)
        ot_resolved_free(out);
    return rc;
}

/* True for a name that may stand for a model, and is not a path that is wrong. */
static bool is_model_name(const char *name) {
    struct stat info;
    return is_hub_name(name) && stat(name, &info) < 0;
}

static int fail_shape(const char *name) {
    char presets[256];
    list_presets(name, presets, sizeof presets);
    return ot_fail(
        OT_E_INPUT,
        "%s: it is not on this machine, and no preset is this model (%s'offload-train help models' "
        "lists all presets). Its config.json is enough: 'hf download %s config.json', or --model "
        "PATH/config.json",
        name, presets, strchr(name, '/') ? name : "ORG/NAME");
}

int ot_model_resolve_shape(const char *name, struct ot_resolved *out) {
    *out = (struct ot_resolved){0};
    int rc = resolve(name, true, out);
    if (rc == -OT_E_INPUT && is_model_name(name)) {
        ot_resolved_free(out);
        out->preset = ot_preset_shaped(name);
        rc = out->preset ? 0 : fail_shape(name);
    }
    if (rc == 0 && !out->path && strcmp(out->preset->name, name) != 0)
        rc = ot_string_format(&out->found, "%s (preset %s)", name, out->preset->name);
    if (rc < 0)
        ot_resolved_free(out);
    return rc;
}

void ot_resolved_free(struct ot_resolved *resolved) {
    if (!resolved)
        return;
    free(resolved->adapter);
    free(resolved->base);
    free(resolved->path);
    free(resolved->found);
    free(resolved->missing);
    *resolved = (struct ot_resolved){0};
}
