#include "src/files/resolve.h"

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
#include "src/hub/cache.h"
#include "src/hub/hub.h"

enum { NAME_MAX_BYTES = 256 };
static const char word_bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

/* A search: the name, the places where it was looked for, and the result. */
struct search {
    const char *name;
    bool is_of_hub; /* a hub preset, or a name of the form org/name or org/name@revision: */
    struct ot_hub_name hub;
    bool config_alone;   /* a config.json without weights is a model */
    bool adapters;       /* adapters are looked for, not a model */
    bool downloads;      /* what is missing */
    char looked[1024];   /* "A, B, C", for the error message */
    char path[PATH_MAX]; /* "": not found */
    char source[64];     /* "HF cache" */
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

static bool has_adapter_weights(const char *directory) {
    return has_file(directory, OT_ADAPTER_WEIGHTS_STEM ".safetensors") ||
           has_file(directory, OT_ADAPTER_WEIGHTS_STEM ".bin");
}

static void remember(struct search *s, const char *path, const char *remark) {
    size_t at = strlen(s->looked);
    snprintf(s->looked + at, sizeof s->looked - at, "%s%s%s", at ? ", " : "", path, remark);
}

/* Why a directory does not hold what is looked for, for the error message. NULL: it does. An interrupted
 * download leaves a config.json without weights. */
static const char *find_lack(const struct search *s, const char *path) {
    bool has_model = has_file(path, "config.json"), has_adapters = has_file(path, OT_ADAPTER_CONFIG_NAME);
    if (s->adapters && !has_adapters)
        return has_model ? " (a model, not adapters)" : "";
    if (s->adapters)
        return has_adapter_weights(path) ? NULL : " (incomplete: no " OT_ADAPTER_WEIGHTS_STEM ".safetensors)";
    if (!has_model)
        return has_adapters ? " (adapters, which --adapter takes)" : "";
    return s->config_alone || has_weights(path) ? NULL
                                                : " (incomplete: no model.safetensors, no pytorch_model.bin)";
}

static bool take(struct search *s, const char *path, const char *source) {
    const char *lack = find_lack(s, path);
    if (lack) {
        remember(s, path, lack);
        return false;
    }
    snprintf(s->path, sizeof s->path, "%s", path);
    snprintf(s->source, sizeof s->source, "%s", source);
    return true;
}

/* Names without '/' consist of letters, digits, '.', '-', '_'. No name can leave a directory. */
static bool is_plain_name(const char *name) {
    struct ot_hub_name hub;
    size_t bytes = strlen(name);
    return ot_hub_name_parse(name, &hub) ||
           (bytes <= NAME_MAX_BYTES && ot_hub_is_file(name) && strspn(name, word_bytes) == bytes);
}

/* ---- $OFFLOAD_MODELS ---- */

static bool look_in_models(struct search *s) {
    const char *root = getenv("OFFLOAD_MODELS");
    if (!root || !*root) {
        remember(s, "$OFFLOAD_MODELS", " (not set)");
        return false;
    }
    /* a directory has no revisions */
    const char *id = s->is_of_hub && !strchr(s->name, '@') ? s->hub.id : NULL;
    const char *names[] = {s->name, id, id ? strrchr(id, '/') + 1 : NULL};
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

static bool look_in_cache(struct search *s) {
    char repository[PATH_MAX], path[PATH_MAX], commit[OT_HUB_COMMIT_BYTES];
    if (!s->is_of_hub || !ot_hub_cache_repository(&s->hub, repository))
        return false;
    if (!is_directory(repository)) {
        remember(s, repository, "");
        return false;
    }
    enum ot_hub_commit found = ot_hub_cache_commit(&s->hub, repository, commit);
    if (found != OT_HUB_COMMIT_KNOWN) {
        remember(s, repository,
                 found == OT_HUB_COMMIT_SEVERAL
                     ? " (several snapshots and no refs/main: give the path of one)"
                     : " (no snapshot)");
        return false;
    }
    if (snprintf(path, sizeof path, "%s/snapshots/%s", repository, commit) >= (int)sizeof path)
        return false;
    if (!s->adapters && !s->config_alone && has_weights(path) && !ot_hub_has_weights(path)) {
        remember(s, path, " (incomplete: not all weights are here)");
        return false;
    }
    return take(s, path, "HF cache");
}

static int download(struct search *s) {
    char snapshot[PATH_MAX];
    if (!s->downloads || !s->is_of_hub || ot_hub_is_offline())
        return 0;
    enum ot_hub_part part = s->adapters       ? OT_HUB_ADAPTERS
                            : s->config_alone ? OT_HUB_SMALL_FILES
                                              : OT_HUB_WEIGHTS;
    OT_TRY(ot_hub_get_model(&s->hub, part, NULL, snapshot));
    take(s, snapshot, "HF cache");
    return 0;
}

/* ---- the result ---- */

/* What a caller of resolve wants. */
enum { CONFIG_ALONE = 1, DOWNLOADS = 2 };

static int resolve(const char *name, int wants, struct ot_resolved *out);

/* shown: the name and the place of the adapters; base: the same of their base, which may be out->found. */
static int put_adapter(const char *directory, const char *shown, const char *base, struct ot_resolved *out) {
    char *found = NULL;
    OT_TRY(ot_string_format(&found, "%s (adapters of %s)", shown, base));
    free(out->found);
    out->found = found;
    return ot_string_format(&out->adapter, "%s", directory);
}

/* A directory of adapters: takes their base. */
static int take_adapter(const char *name, int wants, struct ot_resolved *out) {
    struct ot_resolved base = {0};
    char *base_name = NULL;
    int rc;
    OT_TRY_GOTO(ot_adapter_config_base(name, &base_name), rc, out);
    rc = has_file(base_name, OT_ADAPTER_CONFIG_NAME) && !has_file(base_name, "config.json")
             ? ot_fail(OT_E_INPUT, "%s holds adapters itself", base_name)
             : resolve(base_name, wants & DOWNLOADS, &base);
    if (rc == 0 && !base.path)
        rc = ot_fail(OT_E_INPUT, "%s", base.missing);
    if (rc < 0) {
        rc = ot_fail((enum ot_error_code) - rc,
                     "%s: the base of these adapters: %s; if it is elsewhere, give it with --model and this "
                     "directory with --adapter",
                     name, ot_error_text());
        goto out;
    }
    OT_TRY_GOTO(put_adapter(name, name, base.found, out), rc, out);
    out->path = base.path;
    out->base = base_name;
    base.path = base_name = NULL;
out:
    ot_resolved_free(&base);
    free(base_name);
    return rc;
}

static int take_directory(const char *name, int wants, struct ot_resolved *out) {
    if (access(name, X_OK) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read this directory", name);
    if (!has_file(name, "config.json") && has_file(name, OT_ADAPTER_CONFIG_NAME))
        return take_adapter(name, wants, out);
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

/* hf://ORG/NAME/FILE.gguf */
static int take_url(const char *url, int wants, struct ot_resolved *out) {
    struct ot_hub_name name;
    char path[PATH_MAX];
    OT_TRY(ot_hub_name_parse_url(url, &name));
    if (!ot_path_has_extension(name.file, ".gguf"))
        return ot_fail(OT_E_INPUT,
                       "%.200s: only a .gguf file may be named so; a model is ORG/NAME[@REVISION]", url);
    if (!ot_hub_find_file(&name, path) && !(wants & DOWNLOADS))
        return ot_fail(OT_E_INPUT, "%.200s: is not here; get it with 'offload-train download'", url);
    OT_TRY(ot_hub_get_file(&name, false, path));
    OT_TRY(ot_string_format(&out->path, "%s", path));
    return ot_string_format(&out->found, "%s (GGUF file, %s)", url, path);
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
    const char *offline = ot_hub_is_offline() ? " (HF_HUB_OFFLINE is set, so nothing is downloaded)" : "";
    if (out->preset && !s->is_of_hub)
        return ot_string_format(
            &out->missing,
            "%s is a preset without published weights: train it with --init random, or give --model "
            "a directory (looked in %s)",
            s->name, s->looked);
    if (out->preset)
        return ot_string_format(
            &out->missing,
            "%s: no weights found in %s%s; get them with 'offload-train download %s', or give a directory, "
            "or train from scratch with --init random",
            s->name, s->looked, offline, s->hub.id);
    if (s->is_of_hub)
        return ot_fail(OT_E_INPUT,
                       "%s: not found in %s%s; get it with 'offload-train download %s', or give a directory",
                       s->name, s->looked, offline, s->name);
    char presets[256];
    list_presets(s->name, presets, sizeof presets);
    return ot_fail(
        OT_E_INPUT,
        "%s: no such directory, preset or hub id (org/name); looked in %s; %s'offload-train help models' "
        "lists all presets",
        s->name, s->looked, presets);
}

static int resolve(const char *name, int wants, struct ot_resolved *out) {
    struct search s = {.name = name, .config_alone = wants & CONFIG_ALONE, .downloads = wants & DOWNLOADS};
    struct stat info;
    out->preset = ot_preset_find(name);
    if (!out->preset)
        out->preset = ot_preset_spelled(name);
    if (is_directory(name))
        return take_directory(name, wants, out);
    if (stat(name, &info) == 0)
        return take_file(name, out);
    if (ot_hub_is_url(name))
        return take_url(name, wants, out);
    if (!is_plain_name(name))
        return ot_fail(OT_E_INPUT, "%s: no such directory", name);
    const char *id = strchr(name, '/') ? name : out->preset ? out->preset->hub_id : NULL;
    s.is_of_hub = id && ot_hub_name_parse(id, &s.hub);
    if (!look_in_models(&s) && !look_in_cache(&s))
        OT_TRY(download(&s));
    if (!s.path[0])
        return report_missing(&s, out);
    OT_TRY(ot_string_format(&out->path, "%s", s.path));
    if (out->preset && s.is_of_hub)
        return ot_string_format(&out->found, "%s → %s (%s, %s)", name, s.hub.id, s.source, s.path);
    return ot_string_format(&out->found, "%s (%s, %s)", name, s.source, s.path);
}

static int resolve_or_free(const char *name, int wants, struct ot_resolved *out) {
    *out = (struct ot_resolved){0};
    int rc = resolve(name, wants, out);
    if (rc < 0)
        ot_resolved_free(out);
    return rc;
}

int ot_model_resolve(const char *name, struct ot_resolved *out) {
    return resolve_or_free(name, 0, out);
}

int ot_model_obtain(const char *name, bool weights, struct ot_resolved *out) {
    return resolve_or_free(name, DOWNLOADS | (weights ? 0 : CONFIG_ALONE), out);
}

static int report_missing_adapters(const struct search *s) {
    const char *offline = ot_hub_is_offline() ? " (HF_HUB_OFFLINE is set, so nothing is downloaded)" : "";
    return s->is_of_hub
               ? ot_fail(
                     OT_E_INPUT,
                     "%s: no adapters found in %s%s; get them with 'offload-train download --adapter %s', or "
                     "give a directory",
                     s->name, s->looked, offline, s->name)
               : ot_fail(OT_E_INPUT,
                         "%s: no such directory of adapters, and no hub id (org/name); looked in %s", s->name,
                         s->looked);
}

/* Adapters by a name that is no path of this machine. */
static int find_adapters(struct search *s, struct ot_resolved *out) {
    char *shown = NULL;
    if (!is_plain_name(s->name))
        return ot_fail(OT_E_INPUT,
                       "%.200s: no such directory; adapters of the hub are named ORG/NAME[@REVISION]",
                       s->name);
    s->is_of_hub = ot_hub_name_parse(s->name, &s->hub);
    if (!look_in_models(s) && !look_in_cache(s))
        OT_TRY(download(s));
    if (!s->path[0])
        return report_missing_adapters(s);
    OT_TRY(ot_string_format(&shown, "%s (%s, %s)", s->name, s->source, s->path));
    int rc = put_adapter(s->path, shown, out->found, out);
    free(shown);
    return rc;
}

int ot_adapter_obtain(const char *name, struct ot_resolved *out) {
    struct search s = {.name = name, .adapters = true, .downloads = true};
    struct stat info;
    if (is_directory(name))
        return put_adapter(name, name, out->found, out);
    if (stat(name, &info) == 0)
        return ot_fail(OT_E_INPUT,
                       "%s: this is a file; adapters are the directory that holds " OT_ADAPTER_CONFIG_NAME,
                       name);
    return find_adapters(&s, out);
}

/* True for a name that may stand for a model, and is not a path that is wrong. */
static bool is_model_name(const char *name) {
    struct stat info;
    return is_plain_name(name) && stat(name, &info) < 0;
}

static int fail_shape(const char *name) {
    char presets[256];
    list_presets(name, presets, sizeof presets);
    return ot_fail(
        OT_E_INPUT,
        "%s: it is not on this machine, and no preset is this model (%s'offload-train help models' "
        "lists all presets). Its config.json is enough: --model PATH/config.json, or, where there is a "
        "network, 'hf download %s config.json'",
        name, presets, strchr(name, '/') ? name : "ORG/NAME");
}

int ot_model_resolve_shape(const char *name, struct ot_resolved *out) {
    int rc = resolve_or_free(name, CONFIG_ALONE, out);
    struct ot_hub_name hub;
    if (rc == -OT_E_INPUT && is_model_name(name)) {
        out->preset = ot_preset_shaped(name);
        bool is_known = out->preset || !ot_hub_name_parse(name, &hub) || ot_hub_is_offline();
        rc = !is_known ? resolve(name, CONFIG_ALONE | DOWNLOADS, out) : out->preset ? 0 : fail_shape(name);
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
