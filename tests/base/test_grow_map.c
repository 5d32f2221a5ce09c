/* Memory and files that grow: contents stay, sizes are exact, and what cannot be is an error. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/grow_map.h"
#include "tests/support/check.h"

static char *folder;

static int open_folder(void **state) {
    (void)state;
    folder = make_folder();
    return folder ? 0 : -1;
}

static int close_folder(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

static const char *path_of(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void fill(struct ot_grow_map *map) {
    for (uint32_t i = 0; i < 300000; i++)
        check_ok(ot_grow_map_add(map, &i, sizeof i));
    check_ok(ot_grow_map_add(map, NULL, 5));
}

static void check_filled(const struct ot_grow_map *map) {
    assert_int_equal(map->bytes, 300000 * sizeof(uint32_t) + 5);
    for (uint32_t i = 0; i < 300000; i++)
        assert_int_equal(((const uint32_t *)(const void *)map->data)[i], i);
    for (int i = 0; i < 5; i++)
        assert_int_equal(map->data[300000 * sizeof(uint32_t) + (size_t)i], 0);
}

static void memory_and_files_have_what_was_added(void **state) {
    (void)state;
    struct ot_grow_map memory = {0}, file, unnamed, read;
    check_ok(ot_grow_map_create(path_of("file"), &file));
    check_ok(ot_grow_map_create_unnamed(folder, &unnamed));
    fill(&memory);
    fill(&file);
    fill(&unnamed);
    check_filled(&memory);
    check_filled(&file);
    check_filled(&unnamed);
    assert_int_equal(ot_grow_map_memory(&memory), memory.bytes);
    assert_int_equal(ot_grow_map_memory(&file), 0);
    check_ok(ot_grow_map_flush(&memory));
    check_ok(ot_grow_map_flush(&file));
    struct stat found;
    assert_int_equal(stat(path_of("file"), &found), 0);
    assert_int_equal(found.st_size, file.bytes);
    check_ok(ot_grow_map_open(path_of("file"), file.bytes, &read));
    check_filled(&read);
    check_ok(ot_grow_map_flush(&read));
    ot_grow_map_close(&read);
    ot_grow_map_close(&memory);
    ot_grow_map_close(&file);
    ot_grow_map_close(&unnamed);
    assert_null(memory.data);
    ot_grow_map_close(&memory);
}

/* True if the kernel expects reads in no order from the mapping at this address. */
static bool is_random(const char *data) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long begin, end;
    bool here = false, random = false;
    assert_non_null(smaps);
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            here = begin == (unsigned long)(uintptr_t)data;
        random = random || (here && strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " rr "));
    }
    (void)fclose(smaps);
    return random;
}

static void a_file_may_be_read_in_no_order(void **state) {
    (void)state;
    struct ot_grow_map memory = {0}, file, read;
    fill(&memory);
    ot_grow_map_expect_random(&memory); /* has no pages around it to read */
    assert_false(is_random(memory.data));
    ot_grow_map_close(&memory);
    check_ok(ot_grow_map_create(path_of("random"), &file));
    fill(&file);
    check_ok(ot_grow_map_flush(&file));
    check_ok(ot_grow_map_open(path_of("random"), file.bytes, &read));
    assert_false(is_random(read.data) || is_random(file.data));
    ot_grow_map_expect_random(&read);
    assert_true(is_random(read.data));
    check_filled(&read);
    ot_grow_map_expect_random(&file);
    assert_true(is_random(file.data));
    ot_grow_map_close(&read);
    ot_grow_map_close(&file);
    ot_grow_map_expect_random(&file); /* empty memory: nothing to tell */
}

static void empty_files_are_fine(void **state) {
    (void)state;
    struct ot_grow_map map;
    check_ok(ot_grow_map_create(path_of("empty"), &map));
    check_ok(ot_grow_map_add(&map, "x", 0));
    check_ok(ot_grow_map_flush(&map));
    ot_grow_map_close(&map);
    check_ok(ot_grow_map_open(path_of("empty"), 0, &map));
    ot_grow_map_close(&map);
    check_fails(ot_grow_map_open(path_of("empty"), 1, &map), OT_E_INPUT, "has not the 1 bytes");
    ot_grow_map_close(&map);
}

static void what_cannot_be_is_an_error(void **state) {
    (void)state;
    struct ot_grow_map map = {0};
    check_fails(ot_grow_map_open(path_of("none"), 1, &map), OT_E_IO, "none: cannot open");
    ot_grow_map_close(&map);
    check_fails(ot_grow_map_create(path_of("no/file"), &map), OT_E_IO, "cannot make the file");
    ot_grow_map_close(&map);
    check_fails(ot_grow_map_create_unnamed(path_of("no"), &map), OT_E_IO, "cannot make the file");
    ot_grow_map_close(&map);
    assert_int_equal(symlink("elsewhere", path_of("link")), 0);
    check_fails(ot_grow_map_create(path_of("link"), &map), OT_E_IO, "cannot make the file");
    ot_grow_map_close(&map);
    check_ok(ot_grow_map_add(&map, "abc", 3));
    check_fails(ot_grow_map_add(&map, NULL, SIZE_MAX - 2), OT_E_BUDGET, "no memory");
    check_fails(ot_grow_map_add(&map, NULL, SIZE_MAX / 2), OT_E_BUDGET, "no memory");
    assert_memory_equal(map.data, "abc", 3);
    assert_int_equal(map.bytes, 3);
    ot_grow_map_close(&map);
}

/* A limit on the size of files stands for a full disk. */
static void a_full_disk_is_an_error_and_no_signal(void **state) {
    (void)state;
    struct rlimit before, small = {1 << 16, RLIM_INFINITY};
    struct ot_grow_map map;
    static char block[1 << 15];
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    check_ok(ot_grow_map_create(path_of("full"), &map));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    check_ok(ot_grow_map_add(&map, block, sizeof block));
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = ot_grow_map_add(&map, block, sizeof block);
    check_fails(rc, OT_E_IO, "full: no space for ");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    size_t kept = map.bytes;
    check_ok(ot_grow_map_add(&map, "more", 4)); /* there is room again */
    assert_memory_equal(map.data + kept, "more", 4);
    ot_grow_map_close(&map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_and_files_have_what_was_added),
        cmocka_unit_test(a_file_may_be_read_in_no_order),
        cmocka_unit_test(empty_files_are_fine),
        cmocka_unit_test(what_cannot_be_is_an_error),
        cmocka_unit_test(a_full_disk_is_an_error_and_no_signal),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
