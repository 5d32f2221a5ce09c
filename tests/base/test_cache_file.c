/* Cache files: complete or absent, readable by the user alone, and never written through a symbolic link. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/cache_file.h"
#include "src/base/text.h"
#include "tests/support/check.h"

enum { MOST = 64 };

static char *path_in(const char *folder, const char *name) {
    char *path;
    check_ok(ot_string_format(&path, "%s/%s", folder, name));
    return path;
}

/* The file must have this content. NULL: the cache must treat the file as absent. */
static void check_content(const char *path, const char *want) {
    char *data;
    size_t bytes;
    check_ok(ot_cache_read(path, MOST, &data, &bytes));
    if (want) {
        assert_non_null(data);
        assert_string_equal(data, want);
    } else {
        assert_null(data);
    }
    assert_int_equal(bytes, want ? strlen(want) : 0);
    free(data);
}

static int count_files(const char *folder) {
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void check_folder(const char *cache, const char *home, const char *want) {
    char *folder;
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("HOME", home, 1);
    check_ok(ot_cache_folder(&folder));
    if (want)
        assert_string_equal(folder, want);
    else
        assert_null(folder);
    free(folder);
}

static void the_folder_follows_the_environment(void **state) {
    (void)state;
    check_folder("/cache", "/home/me", "/cache/offload-train");
    check_folder("", "/home/me", "/home/me/.cache/offload-train");
    check_folder("", "", NULL);
}

static void what_is_written_is_read(void **state) {
    (void)state;
    char *folder = make_folder(), *path = path_in(folder, "a/b/file"), *inner = path_in(folder, "a/b");
    struct stat found;
    check_content(path, NULL);
    check_ok(ot_cache_write(path, "one", 3));
    check_content(path, "one");
    check_ok(ot_cache_write(path, "another", 7));
    check_content(path, "another");
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
    assert_int_equal(count_files(inner), 1);
    free(inner);
    free(path);
    remove_folder(folder);
}

static void what_is_no_file_of_that_size_is_not_there(void **state) {
    (void)state;
    char *folder = make_folder(), *path = path_in(folder, "file"), big[MOST + 1];
    memset(big, 'x', sizeof big);
    check_ok(ot_cache_write(path, big, MOST + 1));
    check_content(path, NULL);
    big[MOST] = '\0';
    check_ok(ot_cache_write(path, big, MOST));
    check_content(path, big);
    check_ok(ot_cache_write(path, "", 0));
    check_content(path, NULL);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* no process ever writes to it */
    check_content(path, NULL);
    check_content(folder, NULL);
    free(path);
    remove_folder(folder);
}

static void links_are_not_followed(void **state) {
    (void)state;
    char *folder = make_folder(), *path = path_in(folder, "file"), *other = path_in(folder, "other");
    struct stat found;
    write_file(folder, "other", "precious", 8);
    assert_int_equal(symlink(other, path), 0);
    check_content(path, NULL);
    check_ok(ot_cache_write(path, "ours", 4));
    check_content(path, "ours");
    check_content(other, "precious");
    assert_int_equal(lstat(path, &found), 0);
    assert_true(S_ISREG(found.st_mode));
    free(other);
    free(path);
    remove_folder(folder);
}

/* Two descriptors of one process exclude each other like two processes. */
static void one_at_a_time_holds_a_lock(void **state) {
    (void)state;
    char *folder = make_folder(), *path = path_in(folder, "a/b/lock"), *plain = path_in(folder, "plain/lock");
    int first = ot_cache_lock(path, 0);
    assert_true(first >= 0);
    assert_int_equal(ot_cache_lock(path, 0), -1);
    assert_int_equal(ot_cache_lock(path, 0.01), -1);
    close(first);
    int second = ot_cache_lock(path, 0);
    assert_true(second >= 0);
    close(second);
    write_file(folder, "plain", "", 0);
    assert_int_equal(ot_cache_lock(plain, 1e9), -1); /* cannot be created: no wait */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("elsewhere", path), 0);
    assert_int_equal(ot_cache_lock(path, 1e9), -1);
    free(plain);
    free(path);
    remove_folder(folder);
}

static void what_cannot_be_written_is_a_sentence(void **state) {
    (void)state;
    char *folder = make_folder(), *path = path_in(folder, "plain/b/file");
    write_file(folder, "plain", "", 0);
    check_fails(ot_cache_write(path, "x", 1), OT_E_IO, "plain/b/file: Not a directory");
    free(path);
    path = path_in(folder, "place");
    assert_int_equal(mkdir(path, 0700), 0);
    check_fails(ot_cache_write(path, "x", 1), OT_E_IO, "place: Is a directory");
    assert_int_equal(count_files(folder), 2); /* no temporary file is left beside it */
    free(path);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_folder_follows_the_environment),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(what_is_no_file_of_that_size_is_not_there),
        cmocka_unit_test(links_are_not_followed),
        cmocka_unit_test(one_at_a_time_holds_a_lock),
        cmocka_unit_test(what_cannot_be_written_is_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
