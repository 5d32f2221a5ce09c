/* The files of the NVMe store, one in each directory: how much of a directory may be used, and how a file is
 * made and removed. Any thread.
 */
#ifndef OT_OFFLOAD_STORE_FILES_H
#define OT_OFFLOAD_STORE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/store/io_engine.h"

enum { OT_STORE_ALIGN = 4096, OT_STORE_MAX_DIRS = 16 };

struct ot_store_dir {
    const char *path;
    size_t bytes; /* limit of the directory; 0: all free space, less a reserve */
};

/* Finds how many bytes may be used in each directory. A directory with a limit may use its limit. The other
 * directories of a file system share its free space evenly, less a reserve and less the limits on that file
 * system. Removes files of crashed runs. Errors: OT_E_IO. */
int ot_store_find_limits(const struct ot_store_dir *dirs, int n, int64_t *limits);
/* Removes the store files of crashed runs from a directory. Second names of such files (ot_store_link) stay.
 * Errors: OT_E_IO. */
int ot_store_remove_stale(const char *dir);

struct ot_store_file {
    char *dir, *path;
    int fd; /* -1: not open */
    int64_t bytes;
    bool direct;   /* O_DIRECT */
    bool reserved; /* the space is allocated; false: it was only free when the store was opened */
};

/* Makes a file, locks it and reserves its space. After an error nothing is left on the disk. Errors: OT_E_IO,
 * OT_E_BUDGET. */
int ot_store_make_file(const char *dir, int64_t bytes, const struct ot_io_calls *calls,
                       struct ot_store_file *out);
/* Unlinks the name under which the file was made. Returns true if the file has other names. */
bool ot_store_unlink_file(const struct ot_store_file *file);
void ot_store_close_file(struct ot_store_file *file);
void ot_store_remove_file(struct ot_store_file *file); /* unlinks and closes */
/* For files without O_DIRECT: starts writing out the range from the page cache, and drops written pages. */
void ot_store_drop_cache(const struct ot_store_file *file, int64_t offset, int64_t bytes);
/* "1.5 GiB" */
enum { OT_STORE_SIZE_BYTES = 32 };
const char *ot_store_print_size(char text[OT_STORE_SIZE_BYTES], int64_t bytes);

#endif
