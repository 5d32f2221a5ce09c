#include "src/plan/bench_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/path.h"
#include "src/base/text.h"

static int check_is_new(const char *dir) {
    static const char *const names[] = {"bench.csv", "bench.json", "bench.html"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path;
        struct stat info;
        OT_TRY(ot_string_format(&path, "%s/%s", dir, names[i]));
        bool is_there = lstat(path, &info) == 0;
        free(path);
        if (is_there)
            return ot_fail(OT_E_INPUT, "%s already has a %s; choose another directory with --out", dir,
                           names[i]);
    }
    return 0;
}

int ot_bench_files_open(const char *dir, struct ot_bench_files *out) {
    char *path;
    *out = (struct ot_bench_files){.csv = -1};
    OT_TRY(ot_string_format(&out->dir, "%s", dir));
    int error = ot_path_make_dirs(out->dir, NULL);
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot create this directory", dir);
    OT_TRY(check_is_new(dir));
    OT_TRY(ot_string_format(&path, "%s/bench.csv", dir));
    out->csv = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    int rc = out->csv < 0 ? ot_fail_errno(OT_E_IO, errno, "%s: cannot create this file", path) : 0;
    free(path);
    return rc;
}

void ot_bench_files_close(struct ot_bench_files *files) {
    if (files->csv >= 0)
        close(files->csv);
    free(files->dir);
    *files = (struct ot_bench_files){.csv = -1};
}

int ot_bench_files_append_csv(struct ot_bench_files *files, const char *text, size_t bytes) {
    int error = ot_write_all(NULL, files->csv, text, bytes);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s/bench.csv: cannot write", files->dir) : 0;
}

int ot_bench_files_replace(struct ot_bench_files *files, const char *name, const char *text, size_t bytes) {
    char *path = NULL, *partial = NULL;
    int rc, fd = -1;
    OT_TRY_GOTO(ot_string_format(&path, "%s/%s", files->dir, name), rc, out);
    OT_TRY_GOTO(ot_string_format(&partial, "%s.partial", path), rc, out);
    fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    int error = fd >= 0 ? -ot_write_all(NULL, fd, text, bytes) : errno;
    if (fd >= 0 && close(fd) < 0 && error == 0)
        error = errno;
    if (error == 0 && rename(partial, path) < 0)
        error = errno;
    if (error) {
        rc = ot_fail_errno(OT_E_IO, error, "%s: cannot write", path);
        unlink(partial);
    }
out:
    free(partial);
    free(path);
    return rc;
}
