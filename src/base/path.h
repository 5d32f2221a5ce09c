/* Paths of what may not be there yet. */
#ifndef OT_BASE_PATH_H
#define OT_BASE_PATH_H

#include <limits.h>
#include <stdbool.h>

/* The path itself or, where nothing has that name yet, the nearest directory above it that exists: "." and
 * "/" always do. False: the path is too long, or may not be looked at. */
bool ot_path_find_nearest(const char *path, char nearest[PATH_MAX]);

#endif
