#include "tests/fuzz/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/utf8.h"

void fuzz_broken(const char *file, int line, const char *promise) {
    fprintf(stderr, "%s:%d: broken promise: %s (last error: %s)\n", file, line, promise, ot_error_text());
    abort();
}

void fuzz_check_refusal(int rc, int code) {
    const char *text = ot_error_text();
    size_t bytes = strlen(text), length;
    FUZZ_CHECK(rc == -code);
    FUZZ_CHECK(bytes > 10);
    for (size_t i = 0; i < bytes; i += length) {
        length = ot_utf8_character(text + i, bytes - i);
        FUZZ_CHECK(length > 0);
        FUZZ_CHECK((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
        /* C1 control characters. */
        FUZZ_CHECK(memcmp(text + i, "\xc2\x80", 2) < 0 || memcmp(text + i, "\xc2\xa0", 2) >= 0);
    }
    ot_error_clear(); /* so that the next error text belongs to the next refusal */
}

const char *fuzz_file(const void *data, size_t size) {
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        FUZZ_CHECK(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    FUZZ_CHECK(ftruncate(fd, (off_t)size) == 0);
    FUZZ_CHECK(pwrite(fd, data, size, 0) == (ssize_t)size);
    return path;
}
