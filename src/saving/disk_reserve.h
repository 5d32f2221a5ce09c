/* Space on a disk that a run will need: held from before step 1 by a file of that size, which gives way
 * when what it was held for is written. What other programs write meanwhile takes nothing from it. */
#ifndef OT_SAVING_DISK_RESERVE_H
#define OT_SAVING_DISK_RESERVE_H

#include <stdint.h>

/* DIR/reserved has that size from here on, in the place of one that was there (a killed run's, too); 0:
 * there is none. Where a file system cannot reserve, it must at least have the room. Returns 0, or 1: there
 * is no room, and nothing is held. Errors: OT_E_IO. */
int ot_disk_reserve(const char *dir, int64_t bytes);
/* Bytes that DIR/reserved takes now; 0: there is none. */
int64_t ot_disk_reserved(const char *dir);
/* Seconds that a small new file in DIR takes until it is on the disk; 0: it cannot be tried. */
double ot_disk_time_flush(const char *dir);
/* Whether this process may write a file of that size (`ulimit -f`). what: for the sentence. Errors:
 * OT_E_IO. */
int ot_disk_check_file_size(const char *what, int64_t bytes);

#endif
