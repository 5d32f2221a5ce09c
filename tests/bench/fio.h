/* Runs fio beside a benchmark: the rate that a program with nothing else to do gets from the disk with
 * O_DIRECT. */
#ifndef OT_TESTS_BENCH_FIO_H
#define OT_TESTS_BENCH_FIO_H

#include <stdbool.h>
#include <stddef.h>

struct fio {
    const char *file; /* fio makes the file if it does not exist */
    bool own_names;   /* the jobs name their files, from "$BENCH_FIO_FILE". False: all jobs use the file */
    bool uring;       /* fio's io_uring engine instead of libaio */
    size_t block_bytes;
    int depth;
};

/* Runs the jobs at the same time. *rate: GB/s of all jobs together; 0 if fio is not installed. Errors:
 * OT_E_IO. */
int fio_run(const struct fio *fio, const char *jobs, double *rate);

#endif
