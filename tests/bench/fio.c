#include "tests/bench/fio.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "src/base/error.h"

/* Indices of fields in fio's terse version 3, counted from 0. */
enum { READ_KIB = 5, READ_MS = 8, WRITTEN_KIB = 46, WRITE_MS = 49, FIELDS };

/* The name of the file is passed in the environment, so that the shell does not interpret it. The environment
 * also asks for huge pages, which glibc 2.35 and later passes on to the kernel: our benchmark uses huge pages
 * too. */
int fio_run(const struct fio *fio, const char *jobs, double *rate) {
    char command[1024], line[4096];
    double kib = 0, most_ms = 0;
    *rate = 0;
    snprintf(command, sizeof command,
             "fio --minimal --terse-version=3 %s --direct=1 --ioengine=%s "
             "--bs=%zu --iodepth=%d %s",
             fio->own_names ? "" : "--filename=\"$BENCH_FIO_FILE\"", fio->uring ? "io_uring" : "libaio",
             fio->block_bytes, fio->depth, jobs);
    FILE *pipe = setenv("BENCH_FIO_FILE", fio->file, 1) < 0 ||
                         setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1) < 0
                     ? NULL
                     : popen(command, "re");
    if (!pipe)
        return ot_fail_errno(OT_E_IO, errno, "cannot run fio");
    while (fgets(line, sizeof line, pipe)) {
        if (strncmp(line, "3;", 2) != 0) /* a remark, not a result */
            continue;
        double field[FIELDS] = {0};
        int n = 0;
        for (char *rest = line, *word; n < FIELDS && (word = strsep(&rest, ";")); n++)
            field[n] = atof(word);
        double ms = field[READ_MS] > field[WRITE_MS] ? field[READ_MS] : field[WRITE_MS];
        kib += field[READ_KIB] + field[WRITTEN_KIB];
        most_ms = ms > most_ms ? ms : most_ms;
    }
    int status = pclose(pipe);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return 0;
    if (status != 0 || most_ms == 0)
        return ot_fail(OT_E_IO, "fio failed: %s", command);
    *rate = kib * 1024 / (most_ms * 1e-3) * 1e-9;
    return 0;
}
