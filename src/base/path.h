/* Paths of files and directories that may not exist yet. */
#ifndef OT_BASE_PATH_H
#define OT_BASE_PATH_H

#include <limits.h>
#include <stdbool.h>

/* Writes the path itself if it exists, else its nearest existing ancestor; "." and "/" always exist. False:
 * the path is too long, or no permission to search it. */
bool ot_path_find_nearest(const char *path, char nearest[PATH_MAX]);

/* True if both paths exist and lead to the same file or directory. */
bool ot_path_is_same(const char *a, const char *b);

/* True if the path ends with the extension, such as ".gguf", after at least one other character. */
bool ot_path_has_extension(const char *path, const char *extension);

/* Makes the directory `path` and its missing ancestors. Changes `path` while it works, and restores it.
 * n_made (may be NULL): how many directories this call made, also if it fails. Returns 0 or -errno. */
int ot_path_make_dirs(char *path, int *n_made);

#endif
