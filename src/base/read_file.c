#include "src/base/read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "src/base/error.h"

/* Reads to the end, or one byte more than allowed. It does not trust the file's size, because the file may be
 * a pipe. */
static int read_text(int fd, const char *path, size_t max_bytes, char **text, size_t *bytes) {
    size_t capacity = 0;
    *bytes = 0;
    for (;;) {
        if (*bytes == capacity) {
            capacity = capacity ? capacity * 2 : 1 << 16;
            if (capacity > max_bytes)
                capacity = max_bytes + 1;
            char *grown = realloc(*text, capacity);
            if (!grown)
                return ot_fail(OT_E_BUDGET, "%s: no memory to read it", path);
            *text = grown;
        }
        ssize_t n = read(fd, *text + *bytes, capacity - *bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ot_fail_errno(OT_E_IO, errno, "%s: cannot read it", path);
        if (n == 0)
            return 0;
        *bytes += (size_t)n;
        if (*bytes > max_bytes)
            return ot_fail(OT_E_INPUT, "%s: the file is larger than the limit of %zu bytes", path, max_bytes);
    }
}

int ot_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes) {
    *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open it", path);
    int rc = read_text(fd, path, max_bytes, text, bytes);
    close(fd);
    if (rc < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}
