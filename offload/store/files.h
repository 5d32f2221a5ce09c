/* The files of the NVMe store, one in each of its directories: what may be used of a directory, and how a
 * file is made and removed. Any thread.
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
    size_t bytes; /* that may be used there; 0: what is free, less a reserve */
};

/* What may be used of each directory: its limit, or what is free there less a reserve, shared out evenly
 * among those on one file system that have no limit. Removes what crashed runs have left. Errors: OT_E_IO. */
int ot_store_find_limits(const struct ot_store_dir *dirs, int n, int64_t *limits);
/* Removes what crashed runs have left, and nothing else. Second names of such files (ot_store_link) stay.
 * Errors: OT_E_IO. */
int ot_store_remove_stale(const char *dir);

struct ot_store_file {
    char *dir, *path;
    int fd; /* -1: not open */
    int64_t bytes;
    bool direct;   /* O_DIRECT */
    bool reserved; /* the space is the file's; otherwise it was free when the store was opened */
};

/* Makes, locks and reserves the file of the given size; on failure nothing is left. Errors: OT_E_IO,
 * OT_E_BUDGET. */
int ot_store_make_file(const char *dir, int64_t bytes, const struct ot_io_calls *calls,
                       struct ot_store_file *out);
/* Takes away the name that it was made under. True: it has others. */
bool ot_store_unlink_file(const struct ot_store_file *file);
void ot_store_close_file(struct ot_store_file *file);
void ot_store_remove_file(struct ot_store_file *file); /* both */
/* Starts writing what the page cache holds of the range, and drops what is written. For buffered files. */
void ot_store_drop_cache(const struct ot_store_file *file, int64_t offset, int64_t bytes);
/* "1.5 GiB" */
enum { OT_STORE_SIZE_BYTES = 32 };
const char *ot_store_print_size(char text[OT_STORE_SIZE_BYTES], int64_t bytes);

#endif
