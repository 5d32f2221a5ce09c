/* The nearest existing parent directory of a path, and extensions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/file_io.h"
#include "tests/support/check.h"

static void check_nearest(const char *path, const char *want) {
    char nearest[PATH_MAX];
    assert_true(ot_path_find_nearest(path, nearest));
    assert_string_equal(nearest, want);
}

static void test_what_is_there_is_its_own_nearest(void **state) {
    check_nearest(*state, *state);
    check_nearest("/", "/");
    check_nearest(".", ".");
}

static void test_missing_names_are_left_out(void **state) {
    char *path;
    assert_true(asprintf(&path, "%s/not/made/yet", (char *)*state) > 0);
    check_nearest(path, *state);
    free(path);
    check_nearest("not-made-either", ".");
    check_nearest("not-made/either", ".");
    check_nearest("/no-such-name-in-the-root/at-all", "/");
}

static void test_a_file_on_the_way_is_no_directory(void **state) {
    char nearest[PATH_MAX], *file, *below;
    assert_true(asprintf(&file, "%s/file", (char *)*state) > 0);
    assert_true(asprintf(&below, "%s/below", file) > 0);
    fclose(fopen(file, "w"));
    assert_false(ot_path_find_nearest(below, nearest));
    free(below);
    free(file);
}

static void test_extensions(void **state) {
    (void)state;
    assert_true(ot_path_has_extension("a/m.gguf", ".gguf"));
    assert_false(ot_path_has_extension(".gguf", ".gguf"));
    assert_false(ot_path_has_extension("m.gguf.part", ".gguf"));
    assert_false(ot_path_has_extension("", ".gguf"));
}

static void test_too_long_a_path_has_none(void **state) {
    static char path[PATH_MAX + 2];
    char nearest[PATH_MAX];
    (void)state;
    memset(path, 'a', sizeof path - 1);
    assert_false(ot_path_find_nearest(path, nearest));
}

static int set_up(void **state) {
    *state = make_folder();
    return 0;
}

static int tear_down(void **state) {
    remove_folder(*state);
    return 0;
}

static void missing_directories_are_made_and_counted(void **state) {
    char *path, *below;
    struct stat info;
    int made = -1;
    assert_true(asprintf(&path, "%s/one/two//three/", (char *)*state) > 0);
    assert_int_equal(ot_path_make_dirs(path, &made), 0);
    assert_int_equal(made, 3);
    assert_true(stat(path, &info) == 0 && S_ISDIR(info.st_mode));
    assert_int_equal(ot_path_make_dirs(path, &made), 0);
    assert_int_equal(made, 0);
    assert_true(asprintf(&below, "%s/one/file", (char *)*state) > 0);
    fclose(fopen(below, "w"));
    free(below);
    assert_true(asprintf(&below, "%s/one/file/four", (char *)*state) > 0);
    char *copy = strdup(below);
    assert_int_equal(ot_path_make_dirs(below, NULL), -ENOTDIR);
    assert_string_equal(below, copy);
    free(copy);
    free(below);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_there_is_its_own_nearest),
        cmocka_unit_test(test_missing_names_are_left_out),
        cmocka_unit_test(test_a_file_on_the_way_is_no_directory),
        cmocka_unit_test(test_extensions),
        cmocka_unit_test(test_too_long_a_path_has_none),
        cmocka_unit_test(missing_directories_are_made_and_counted),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
