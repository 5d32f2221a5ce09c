/* Whole transfers over system calls that move fewer bytes than asked for, or are interrupted. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/file_io.h"
#include "tests/support/check.h"

static const char text[] = "all of these bytes, in order";

/* The results of the next calls: an error, or the largest number of bytes. 0 ends the list. */
struct script {
    const int *next;
    int calls;
};

static ssize_t scripted_write(void *context, int fd, const void *data, size_t bytes) {
    struct script *script = context;
    script->calls++;
    if (*script->next == 0)
        return ot_io_system.write(NULL, fd, data, bytes);
    int answer = *script->next++;
    return answer < 0 ? answer : ot_io_system.write(NULL, fd, data, (size_t)answer);
}

static ssize_t write_nothing(void *context, int fd, const void *data, size_t bytes) {
    (void)context, (void)fd, (void)data, (void)bytes;
    return 0;
}

static ssize_t scripted_pwrite(void *context, int fd, const void *data, size_t bytes, off_t at) {
    struct script *script = context;
    script->calls++;
    if (*script->next == 0)
        return ot_io_system.pwrite(NULL, fd, data, bytes, at);
    int answer = *script->next++;
    return answer < 0 ? answer : ot_io_system.pwrite(NULL, fd, data, (size_t)answer, at);
}

static ssize_t pwrite_nothing(void *context, int fd, const void *data, size_t bytes, off_t at) {
    (void)context, (void)fd, (void)data, (void)bytes, (void)at;
    return 0;
}

static int make_file(void) {
    FILE *file = tmpfile();
    assert_non_null(file);
    int fd = dup(fileno(file));
    fclose(file);
    return fd;
}

static void test_short_and_interrupted_writes_go_on(void **state) {
    static const int answers[] = {3, -EINTR, 1, -EINTR, -EINTR, 5, 0};
    struct script script = {.next = answers};
    struct ot_io_calls calls = ot_io_system;
    char got[sizeof text + 1];
    int fd = make_file();
    (void)state;
    calls.context = &script;
    calls.write = scripted_write;
    assert_int_equal(ot_write_all(&calls, fd, text, sizeof text), 0);
    assert_int_equal(script.calls, 7);
    assert_int_equal(ot_read_at(fd, got, sizeof got, 0), sizeof text);
    assert_string_equal(got, text);
    close(fd);
}

static void test_a_write_that_fails_or_takes_nothing_ends(void **state) {
    static const int answers[] = {3, -EIO, 0};
    struct script script = {.next = answers};
    struct ot_io_calls calls = ot_io_system;
    int fd = make_file();
    (void)state;
    calls.context = &script;
    calls.write = scripted_write;
    assert_int_equal(ot_write_all(&calls, fd, text, sizeof text), -EIO);
    assert_int_equal(script.calls, 2);
    calls.write = write_nothing;
    assert_int_equal(ot_write_all(&calls, fd, text, sizeof text), -ENOSPC);
    close(fd);
    assert_int_equal(ot_write_all(NULL, fd, text, sizeof text), -EBADF);
}

/* The second half first. */
static void test_writes_at_offsets_go_on_or_end(void **state) {
    static const int answers[] = {3, -EINTR, 1, -EINTR, 0}, failing[] = {2, -EIO, 0};
    enum { HALF = sizeof text / 2, REST = sizeof text - HALF };
    struct script script = {.next = answers};
    struct ot_io_calls calls = ot_io_system;
    char got[sizeof text + 1];
    int fd = make_file();
    (void)state;
    calls.context = &script;
    calls.pwrite = scripted_pwrite;
    assert_int_equal(ot_write_at(&calls, fd, text + HALF, REST, HALF), 0);
    assert_int_equal(script.calls, 5);
    assert_int_equal(ot_write_at(NULL, fd, text, HALF, 0), 0);
    assert_int_equal(ot_read_at(fd, got, sizeof got, 0), sizeof text);
    assert_string_equal(got, text);
    script.next = failing;
    assert_int_equal(ot_write_at(&calls, fd, text, HALF, 0), -EIO);
    calls.pwrite = pwrite_nothing;
    assert_int_equal(ot_write_at(&calls, fd, text, HALF, 0), -ENOSPC);
    close(fd);
    assert_int_equal(ot_write_at(NULL, fd, text, HALF, 0), -EBADF);
}

static void test_reads_end_where_the_file_ends(void **state) {
    char got[sizeof text];
    int fd = make_file();
    (void)state;
    assert_int_equal(ot_write_all(NULL, fd, text, sizeof text), 0);
    assert_int_equal(ot_read_at(fd, got, 3, 4), 3);
    assert_memory_equal(got, text + 4, 3);
    assert_int_equal(ot_read_at(fd, got, sizeof got, 20), sizeof text - 20);
    assert_int_equal(ot_read_at(fd, got, sizeof got, 1000), 0);
    close(fd);
    assert_int_equal(ot_read_at(fd, got, sizeof got, 0), -EBADF);
}

static int interrupts;

static int interrupted_allocate(void *context, int fd, int mode, off_t offset, off_t bytes) {
    if (interrupts-- > 0)
        return -EINTR;
    (void)context, (void)fd, (void)offset;
    return mode == FALLOC_FL_KEEP_SIZE && bytes == 4096 ? -ENOSPC : 0;
}

static void test_an_interrupted_allocation_begins_again(void **state) {
    struct ot_io_calls calls = ot_io_system;
    (void)state;
    calls.allocate = interrupted_allocate;
    interrupts = 3;
    assert_int_equal(ot_allocate(&calls, -1, FALLOC_FL_KEEP_SIZE, 0, 4096), -ENOSPC);
    assert_int_equal(interrupts, -1);
}

/* Some file systems create the file and then refuse O_DIRECT. */
static int make_and_refuse_direct(void *context, int dir_fd, const char *path, int flags, mode_t mode) {
    int fd = ot_io_system.open(context, dir_fd, path, flags & ~O_DIRECT, mode);
    if (fd < 0 || !(flags & O_DIRECT))
        return fd;
    close(fd);
    return -EINVAL;
}

static void test_a_file_without_o_direct_is_opened_buffered(void **state) {
    struct ot_io_calls calls = ot_io_system;
    char *folder = make_folder(), *path;
    bool direct = true;
    (void)state;
    assert_true(asprintf(&path, "%s/file", folder) > 0);
    calls.open = make_and_refuse_direct;
    int fd = ot_open_direct(&calls, AT_FDCWD, path, O_RDWR, 0600, &direct);
    assert_true(fd >= 0);
    assert_false(direct);
    assert_false(fcntl(fd, F_GETFL) & O_DIRECT);
    close(fd);
    assert_int_equal(ot_open_direct(&ot_io_system, AT_FDCWD, path, O_RDWR, 0600, &direct), -EEXIST);
    free(path);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_and_interrupted_writes_go_on),
        cmocka_unit_test(test_a_write_that_fails_or_takes_nothing_ends),
        cmocka_unit_test(test_writes_at_offsets_go_on_or_end),
        cmocka_unit_test(test_reads_end_where_the_file_ends),
        cmocka_unit_test(test_an_interrupted_allocation_begins_again),
        cmocka_unit_test(test_a_file_without_o_direct_is_opened_buffered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
