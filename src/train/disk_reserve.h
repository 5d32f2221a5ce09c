/* Reserves disk space for a run. A file of that size holds the space from before step 1; it is removed or
 * made smaller when the run writes the data that the space is for. Other programs cannot use the space
 * meanwhile. */
#ifndef OT_TRAIN_DISK_RESERVE_H
#define OT_TRAIN_DISK_RESERVE_H

#include <stdint.h>

/* Makes DIR/reserved a file of `bytes` bytes, in place of an existing one (also of a killed run). 0: removes
 * it. If the file system cannot reserve space, only checks that enough is free. Returns 0, or 1: there is too
 * little space, and nothing is held. Errors: OT_E_IO. */
int ot_disk_reserve(const char *dir, int64_t bytes);
/* Bytes of disk that DIR/reserved uses now; 0: there is no such file. */
int64_t ot_disk_reserved(const char *dir);
/* Bytes free in DIR, or in its nearest existing ancestor; -1: unknown. */
int64_t ot_disk_free(const char *dir);
/* Seconds to write and flush a small new file in DIR; 0: DIR cannot be written. */
double ot_disk_time_flush(const char *dir);
/* Checks that this process may write a file of that size (`ulimit -f`). what: names the file in the error
 * message. Errors: OT_E_IO. */
int ot_disk_check_file_size(const char *what, int64_t bytes);

#endif
