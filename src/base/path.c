#include "src/base/path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool ot_path_find_nearest(const char *path, char nearest[PATH_MAX]) {
    if (snprintf(nearest, PATH_MAX, "%s", path) >= PATH_MAX)
        return false;
    while (access(nearest, F_OK) != 0) {
        char *slash = strrchr(nearest, '/');
        if (errno != ENOENT || strcmp(nearest, ".") == 0 || strcmp(nearest, "/") == 0)
            return false;
        if (slash)
            slash[slash == nearest] = '\0'; /* "/name" becomes "/" */
        else
            strcpy(nearest, ".");
    }
    return true;
}
