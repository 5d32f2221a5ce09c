/* A file that is mapped read-only into memory, as a whole, for files of weights.
 *
 * If the file shrinks or the disk fails after open, touching the memory would raise SIGBUS. So callers first
 * call ot_mapped_file_fetch() on the range: it reads the pages in and turns both cases into an error. Only a
 * truncation between fetch and use can still raise SIGBUS. Replacing the file by rename, as every downloader
 * does, cannot. An open file never changes: any number of threads may read it.
 */
#ifndef OT_BASE_MAPPED_FILE_H
#define OT_BASE_MAPPED_FILE_H

#include <stddef.h>

struct ot_mapped_file {
    char *path;
    int fd;
    const char *data; /* NULL: the file is empty, or not mapped yet */
    size_t bytes;
};

/* Opens the file and reads its size, without mapping it. On an error the caller still calls close. Errors:
 * OT_E_IO (cannot open), OT_E_INPUT (not a regular file), OT_E_BUDGET. */
int ot_mapped_file_open(const char *path, struct ot_mapped_file *file);
/* Maps the whole file, which must have a byte at least. Errors: OT_E_IO. */
int ot_mapped_file_map(struct ot_mapped_file *file);
/* A file that is zeroed, or not open, is fine. */
void ot_mapped_file_close(struct ot_mapped_file *file);

/* Reads bytes into memory of the caller, without the map. Errors: OT_E_IO, OT_E_INPUT (the file ends before
 * at + bytes). */
int ot_mapped_file_read(const struct ot_mapped_file *file, void *to, size_t bytes, size_t at);

/* Blocks until [data, data + bytes), which must be within the file, is in memory. Errors: OT_E_IO. */
int ot_mapped_file_fetch(const struct ot_mapped_file *file, const void *data, size_t bytes);
/* Starts reading ahead and returns at once. A hint, which cannot fail. */
void ot_mapped_file_prefetch(const struct ot_mapped_file *file, const void *data, size_t bytes);
/* Removes the range from this process's memory. The page cache may keep it. */
void ot_mapped_file_release(const void *data, size_t bytes);

#endif
