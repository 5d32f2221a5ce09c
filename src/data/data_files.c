#include "src/data/data_files.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/data/source.h"
#include "src/hub/hub.h"

static int no_memory(const char *given) {
    return ot_fail(OT_E_BUDGET, "%s: no memory for the names of its files", given);
}

/* Takes the path over, which may be NULL: no memory. */
static int add(struct ot_data_files *files, char *path, const char *given) {
    if (!path || !ot_try_grow(&files->paths, &files->capacity, files->n + 1, sizeof *files->paths)) {
        free(path);
        return no_memory(given);
    }
    files->paths[files->n++] = path;
    return 0;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_rows(const char *name) {
    static const char *const endings[] = {"jsonl", "json", "csv", "tsv", "txt", "parquet"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (name[0] != '.' && ot_source_is_named(name, endings[i]))
            return true;
    return false;
}

/* Adds an entry of a directory if it is no directory itself. */
static int add_entry(struct ot_data_files *files, const char *given, const char *name) {
    struct stat info;
    char *path = NULL;
    bool slash = given[strlen(given) - 1] == '/';
    if (ot_string_format(&path, "%s%s%s", given, slash ? "" : "/", name) < 0)
        return no_memory(given);
    if (stat(path, &info) < 0 || !S_ISDIR(info.st_mode))
        return add(files, path, given); /* a dangling link is an error when it is opened */
    free(path);
    return 0;
}

static int add_directory(struct ot_data_files *files, const char *given) {
    DIR *dir = opendir(given);
    size_t first = files->n;
    int rc = 0;
    if (!dir)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the directory", given);
    for (struct dirent *entry; rc == 0;) {
        errno = 0;
        entry = readdir(dir);
        if (!entry) {
            rc = errno ? ot_fail_errno(OT_E_IO, errno, "%s: cannot read the directory", given) : 0;
            break;
        }
        if (is_rows(entry->d_name))
            rc = add_entry(files, given, entry->d_name);
    }
    closedir(dir);
    if (rc == 0 && files->n == first)
        rc = ot_fail(
            OT_E_INPUT,
            "%s: the directory has no file of rows (.jsonl, .json, .csv, .tsv, .txt, .parquet, or these with "
            ".gz or .zst); give a file, or a pattern in quotes such as '%s/*/train*.jsonl'",
            given, given);
    return rc;
}

static int add_matches(struct ot_data_files *files, const char *given) {
    glob_t found;
    int code = glob(given, GLOB_ERR | GLOB_NOSORT, NULL, &found), rc = 0;
    if (code == GLOB_NOMATCH)
        rc = ot_fail(OT_E_INPUT, "%s: no file matches this pattern", given);
    else if (code != 0)
        rc = code == GLOB_NOSPACE
                 ? no_memory(given)
                 : ot_fail_errno(OT_E_IO, errno, "%s: cannot read a directory of this pattern", given);
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++)
        rc = add(files, strdup(found.gl_pathv[i]), given);
    globfree(&found);
    return rc;
}

int ot_data_files_open(const char *given, struct ot_data_files *files) {
    struct stat info;
    size_t first = files->n;
    char remote[PATH_MAX];
    if (ot_hub_is_remote(given)) {
        OT_TRY(ot_hub_get_remote(given, false, remote));
        return add(files, strdup(remote), given);
    }
    bool is_input = strcmp(given, OT_SOURCE_STANDARD_INPUT) == 0;
    bool exists = !is_input && stat(given, &info) == 0;
    if (exists && S_ISDIR(info.st_mode))
        OT_TRY(add_directory(files, given));
    else if (!exists && !is_input && strpbrk(given, "*?["))
        OT_TRY(add_matches(files, given));
    else
        OT_TRY(add(files, strdup(given), given));
    qsort(files->paths + first, files->n - first, sizeof *files->paths, by_bytes);
    return 0;
}

int64_t ot_data_files_bytes(const struct ot_data_files *files) {
    int64_t total = 0;
    struct stat info;
    for (size_t i = 0; i < files->n; i++) {
        if (stat(files->paths[i], &info) < 0 || !S_ISREG(info.st_mode))
            return 0;
        total += (int64_t)info.st_size;
    }
    return total;
}

void ot_data_files_close(struct ot_data_files *files) {
    for (size_t i = 0; i < files->n; i++)
        free(files->paths[i]);
    free(files->paths);
    *files = (struct ot_data_files){0};
}
