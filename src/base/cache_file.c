#include "src/base/cache_file.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/text.h"

int ot_cache_folder(char **out) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    *out = NULL;
    if (cache && *cache)
        return ot_string_format(out, "%s/offload-train", cache);
    return home && *home ? ot_string_format(out, "%s/.cache/offload-train", home) : 0;
}

/* ---- reading ---- */

int ot_cache_read(const char *path, size_t most, char **out, size_t *bytes) {
    struct stat found;
    int rc = 0;
    char *data = NULL;
    *out = NULL;
    *bytes = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe must not block */
    if (file < 0)
        return 0;
    if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size < 1 ||
        (size_t)found.st_size > most)
        goto out;
    data = malloc((size_t)found.st_size + 1);
    if (!data) {
        rc = ot_fail(OT_E_BUDGET, "no memory for %s", path);
        goto out;
    }
    if (ot_read_at(file, data, (size_t)found.st_size, 0) == (int64_t)found.st_size) {
        *bytes = (size_t)found.st_size;
        data[*bytes] = '\0';
        *out = data;
        data = NULL;
    }
out:
    free(data);
    close(file);
    return rc;
}

/* ---- writing ---- */

/* Creates the folder of a path and the folder above it if they are missing. Returns 0, or the errno value of
 * the last folder that cannot be created. */
static int make_folders(char *path) {
    char *last = strrchr(path, '/');
    if (!last || last == path)
        return 0;
    *last = 0;
    char *above = strrchr(path, '/');
    int error = 0;
    if (above && above != path) {
        *above = 0;
        error = mkdir(path, 0777) == 0 || errno == EEXIST ? 0 : errno;
        *above = '/';
    }
    if (error == 0)
        error = mkdir(path, 0777) == 0 || errno == EEXIST ? 0 : errno;
    *last = '/';
    return error;
}

int ot_cache_write(const char *path, const void *data, size_t bytes) {
    char *beside;
    OT_TRY(ot_string_format(&beside, "%s.XXXXXX", path));
    int no_folder = make_folders(beside);
    int rc = 0, file = mkostemp(beside, O_CLOEXEC); /* a new file, mode 0600 */
    if (file < 0) {
        rc = ot_fail_errno(OT_E_IO, errno == ENOENT && no_folder ? no_folder : errno, "%s", path);
        goto out;
    }
    int error = -ot_write_all(NULL, file, data, bytes);
    if (close(file) != 0 && error == 0)
        error = errno;
    if (error == 0 && rename(beside, path) != 0)
        error = errno;
    if (error == 0)
        goto out;
    rc = ot_fail_errno(OT_E_IO, error, "%s", path);
    unlink(beside);
out:
    free(beside);
    return rc;
}

/* ---- the lock ---- */

/* Waits a millisecond at a time. False: it is too late for more. */
static bool wait_until(double deadline) {
    const struct timespec pause = {0, 1000000};
    if (ot_clock_seconds() >= deadline)
        return false;
    nanosleep(&pause, NULL);
    return true;
}

int ot_cache_lock(const char *path, double seconds) {
    char *name;
    if (ot_string_format(&name, "%s", path) < 0)
        return -1;
    (void)make_folders(name); /* if it fails, so does open */
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    free(name);
    if (file < 0)
        return -1;
    double deadline = ot_clock_seconds() + seconds;
    while (flock(file, LOCK_EX | LOCK_NB) != 0)
        if ((errno != EWOULDBLOCK && errno != EINTR) || !wait_until(deadline)) {
            close(file);
            return -1;
        }
    return file;
}

/* ---- the build ---- */

static size_t align4(size_t bytes) {
    return (bytes + 3) & ~(size_t)3;
}

/* Searches one segment of notes. Returns 1 if it found the build id. */
static int search_notes(const char *at, size_t bytes, char *text) {
    while (bytes >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        size_t name = align4(note->n_namesz), body = align4(note->n_descsz), all = sizeof *note + name + body;
        if (all > bytes)
            return 0;
        const unsigned char *id = (const unsigned char *)at + sizeof *note + name;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
            memcmp(at + sizeof *note, "GNU", 4) == 0) {
            for (size_t i = 0; i < note->n_descsz && 2 * i + 2 < OT_BUILD_ID_BYTES; i++)
                snprintf(text + 2 * i, 3, "%02x", id[i]);
            return 1;
        }
        at += all;
        bytes -= all;
    }
    return 0;
}

/* The first object that the loader lists is the program itself. */
static int search_program(struct dl_phdr_info *info, size_t size, void *text) {
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_NOTE &&
            search_notes((const char *)(info->dlpi_addr + segment->p_vaddr), segment->p_memsz, text))
            break;
    }
    return 1;
}

void ot_build_id(char text[OT_BUILD_ID_BYTES]) {
    text[0] = '\0';
    dl_iterate_phdr(search_program, text);
}
