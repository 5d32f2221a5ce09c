#include "src/hub/cache.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/log.h"
#include "src/base/text.h"

/* ---- the environment ---- */

/* Appends the value of $NAME or ${NAME} at `at`. Returns the bytes that it read; 0: no variable of that form,
 * or one that is not set, which stays as it is. */
static size_t expand_variable(const char *at, struct ot_string_builder *out) {
    bool braces = at[1] == '{';
    size_t from = braces ? 2 : 1, bytes = 0;
    char name[128];
    while (isalnum((unsigned char)at[from + bytes]) || at[from + bytes] == '_')
        bytes++;
    if (bytes == 0 || bytes >= sizeof name || (braces && at[from + bytes] != '}'))
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)bytes, at + from);
    const char *value = getenv(name);
    if (value)
        ot_string_append_text(out, value);
    return value ? from + bytes + braces : 0;
}

/* The path of an environment variable, with "~" and variables replaced. */
static bool read_path(const char *variable, const char *below, char path[PATH_MAX]) {
    const char *at = getenv(variable), *home = getenv("HOME");
    struct ot_string_builder out = {0};
    if (!at || !*at)
        return false;
    if (at[0] == '~' && (at[1] == '/' || !at[1]) && home) {
        ot_string_append_text(&out, home);
        at++;
    }
    while (*at) {
        size_t read = *at == '$' ? expand_variable(at, &out) : 0;
        if (!read)
            ot_string_append(&out, at, 1);
        at += read ? read : 1;
    }
    ot_string_append_text(&out, below);
    bool fits = !out.failed && out.bytes < PATH_MAX;
    if (fits)
        snprintf(path, PATH_MAX, "%s", out.text);
    free(out.text);
    return fits;
}

bool ot_hub_home(char home[PATH_MAX]) {
    return read_path("HF_HOME", "", home) || read_path("XDG_CACHE_HOME", "/huggingface", home) ||
           read_path("HOME", "/.cache/huggingface", home);
}

bool ot_hub_cache_root(char root[PATH_MAX]) {
    if (read_path("HF_HUB_CACHE", "", root) || read_path("HUGGINGFACE_HUB_CACHE", "", root))
        return true;
    char home[PATH_MAX];
    return ot_hub_home(home) && snprintf(root, PATH_MAX, "%s/hub", home) < PATH_MAX;
}

bool ot_hub_token_path(char path[PATH_MAX]) {
    char home[PATH_MAX];
    return read_path("HF_TOKEN_PATH", "", path) ||
           (ot_hub_home(home) && snprintf(path, PATH_MAX, "%s/token", home) < PATH_MAX);
}

bool ot_hub_is_offline(void) {
    static const char *const variables[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    static const char *const words[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        for (size_t k = 0; value && *value && k < sizeof words / sizeof *words; k++)
            if (strcasecmp(value, words[k]) == 0)
                return true;
        if (value && *value)
            return false; /* as huggingface_hub: the second counts only without the first */
    }
    return false;
}

/* ---- reading ---- */

bool ot_hub_cache_repository(const struct ot_hub_name *name, char repository[PATH_MAX]) {
    char root[PATH_MAX];
    const char *slash = strchr(name->id, '/');
    return ot_hub_cache_root(root) && snprintf(repository, PATH_MAX, "%s/%s--%.*s--%s", root,
                                               name->kind == OT_HUB_DATASET ? "datasets" : "models",
                                               (int)(slash - name->id), name->id, slash + 1) < PATH_MAX;
}

/* The content of a file in refs. */
static bool read_ref(const char *repository, const char *revision, char commit[OT_HUB_COMMIT_BYTES]) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/refs/%s", repository, revision) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t bytes = fread(commit, 1, OT_HUB_COMMIT_BYTES - 1, file);
    fclose(file);
    commit[bytes] = '\0';
    commit[strcspn(commit, " \t\r\n")] = '\0';
    return ot_hub_is_file(commit);
}

static enum ot_hub_commit find_sole_snapshot(const char *repository, char commit[OT_HUB_COMMIT_BYTES]) {
    char path[PATH_MAX];
    int count = 0;
    DIR *dir =
        snprintf(path, sizeof path, "%s/snapshots", repository) < (int)sizeof path ? opendir(path) : NULL;
    if (!dir)
        return OT_HUB_COMMIT_NONE;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        if (entry->d_name[0] != '.' && strlen(entry->d_name) < OT_HUB_COMMIT_BYTES) {
            memcpy(commit, entry->d_name, strlen(entry->d_name) + 1);
            count++;
        }
    closedir(dir);
    return count == 1 ? OT_HUB_COMMIT_KNOWN : count ? OT_HUB_COMMIT_SEVERAL : OT_HUB_COMMIT_NONE;
}

enum ot_hub_commit ot_hub_cache_commit(const struct ot_hub_name *name, const char *repository,
                                       char commit[OT_HUB_COMMIT_BYTES]) {
    if (read_ref(repository, name->revision, commit))
        return OT_HUB_COMMIT_KNOWN;
    if (ot_hub_is_commit(name->revision)) {
        snprintf(commit, OT_HUB_COMMIT_BYTES, "%s", name->revision);
        return OT_HUB_COMMIT_KNOWN;
    }
    return strcmp(name->revision, "main") == 0 ? find_sole_snapshot(repository, commit) : OT_HUB_COMMIT_NONE;
}

/* ---- writing ---- */

int ot_hub_make_folders_of(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder)
        return 0;
    *slash = '\0';
    int error = -ot_path_make_dirs(folder, NULL);
    return error ? ot_fail_errno(OT_E_IO, error, "%s: cannot make this folder", folder) : 0;
}

static int too_long(const char *repository) {
    return ot_fail(OT_E_IO,
                   "%.200s: the paths in this folder are too long; set HF_HUB_CACHE to a shorter one",
                   repository);
}

/* A link is made under another name and renamed, so that it replaces an old one at once. */
int ot_hub_cache_link(const char *repository, const char *commit, const char *file, const char *etag) {
    char path[PATH_MAX], beside[PATH_MAX + 16], target[PATH_MAX] = "";
    size_t up = 2;
    if (snprintf(path, sizeof path, "%s/snapshots/%s/%s", repository, commit, file) >= (int)sizeof path)
        return too_long(repository);
    for (const char *c = file; *c; c++)
        up += *c == '/';
    for (size_t i = 0; i < up; i++)
        strcat(target, "../"); /* a file has at most OT_HUB_FILE_BYTES slashes */
    size_t at = strlen(target);
    snprintf(target + at, sizeof target - at, "blobs/%s", etag);
    OT_TRY(ot_hub_make_folders_of(path));
    snprintf(beside, sizeof beside, "%s.%ld.tmp", path, (long)getpid());
    unlink(beside);
    if (symlink(target, beside) < 0 || rename(beside, path) < 0) {
        int error = errno;
        unlink(beside);
        return ot_fail_errno(OT_E_IO, error, "%s: cannot make this link", path);
    }
    return 0;
}

int ot_hub_cache_put_ref(const char *repository, const char *revision, const char *commit) {
    char path[PATH_MAX], beside[PATH_MAX + 16], before[OT_HUB_COMMIT_BYTES];
    if (strcmp(revision, commit) == 0 ||
        (read_ref(repository, revision, before) && strcmp(before, commit) == 0))
        return 0;
    if (snprintf(path, sizeof path, "%s/refs/%s", repository, revision) >= (int)sizeof path)
        return too_long(repository);
    OT_TRY(ot_hub_make_folders_of(path));
    snprintf(beside, sizeof beside, "%s.%ld.tmp", path, (long)getpid());
    int file = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    int error = file < 0 ? errno : -ot_write_all(NULL, file, commit, strlen(commit));
    if (file >= 0 && close(file) < 0 && !error)
        error = errno;
    if (!error && rename(beside, path) < 0)
        error = errno;
    if (!error)
        return 0;
    unlink(beside);
    return ot_fail_errno(OT_E_IO, error, "%s: cannot write this file", path);
}

/* ---- the lock ---- */

/* True if the path still leads to the file: a program that ends its lock may remove the file. */
static bool is_file_of(int file, const char *path) {
    struct stat held, found;
    return fstat(file, &held) == 0 && stat(path, &found) == 0 && held.st_ino == found.st_ino &&
           held.st_dev == found.st_dev;
}

int ot_hub_lock(const char *path, const char *what) {
    const struct timespec pause = {0, 50000000};
    bool is_said = false;
    for (;;) {
        int file = ot_hub_make_folders_of(path) < 0
                       ? -1
                       : open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0664);
        if (file < 0)
            return -1;
        while (flock(file, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK && errno != EINTR) {
                close(file);
                return -1;
            }
            if (!is_said)
                ot_log(OT_LOG_INFO, "note    another process downloads %s: waiting for it", what);
            is_said = true;
            nanosleep(&pause, NULL);
        }
        if (is_file_of(file, path))
            return file;
        close(file);
    }
}
