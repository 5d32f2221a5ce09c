#include "src/base/path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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

bool ot_path_has_extension(const char *path, const char *extension) {
    size_t bytes = strlen(path), end = strlen(extension);
    return bytes > end && strcmp(path + bytes - end, extension) == 0;
}

int ot_path_make_dirs(char *path, int *n_made) {
    int made = 0, error = 0;
    for (char *at = path; at && error == 0;) {
        at = strchr(at + 1, '/');
        if (at)
            *at = '\0';
        if (mkdir(path, 0777) == 0)
            made++;
        else if (errno != EEXIST && errno != EISDIR) /* EISDIR: "/" on some systems */
            error = -errno;
        if (at)
            *at = '/';
    }
    if (n_made)
        *n_made = made;
    return error;
}

bool ot_path_is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
