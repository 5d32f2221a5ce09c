/* fio beside a bench: what the disk gives a program that does nothing else, through O_DIRECT. */
#ifndef OT_TESTS_BENCH_FIO_H
#define OT_TESTS_BENCH_FIO_H

#include <stdbool.h>
#include <stddef.h>

struct fio {
    const char *file; /* of all jobs; fio makes it where it is not there */
    bool uring;       /* fio's io_uring engine; else libaio */
    size_t block_bytes;
    int depth;
};

/* Runs the jobs at once. *rate: GB/s, of all of them together; 0: there is no fio here. Errors: OT_E_IO. */
int fio_run(const struct fio *fio, const char *jobs, double *rate);

#endif
