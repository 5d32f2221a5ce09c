/* The files of the NVMe store: where the bytes go if directories have different limits, the errors for
 * unusable directories, which files are left behind, and who removes them. */
#include "tests/offload/store/store_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "offload/store/store_state.h"
#include "src/base/random.h"

static const char *self; /* path of this program */

/* ---- stripes ---- */

static uint64_t drawn;

static int64_t draw(int64_t below) {
    return (int64_t)ot_random_below(7, OT_RANDOM_TEST, drawn++, (uint64_t)below);
}

/* Every page of the address space has a page of a file of its own, and the files have no other pages. */
static void check_stripes(const struct ot_stripes *stripes, int64_t pages, int n, const int64_t *limits,
                          const int64_t *file_bytes) {
    char *taken[OT_STORE_MAX_DIRS];
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        assert_true(file_bytes[i] <= limits[i]);
        sum += file_bytes[i];
        taken[i] = calloc((size_t)(file_bytes[i] / OT_STORE_ALIGN) + 1, 1);
    }
    assert_int_equal(sum, pages * OT_STORE_ALIGN);
    struct ot_file_run before = {-1, 0, 0};
    for (int64_t page = 0; page < pages; page++) {
        struct ot_file_run run = ot_stripes_locate(stripes, page * OT_STORE_ALIGN);
        assert_in_range(run.file, 0, n - 1);
        assert_true(run.bytes >= OT_STORE_ALIGN && run.bytes % OT_STORE_ALIGN == 0);
        assert_true(run.offset % OT_STORE_ALIGN == 0 && run.offset < file_bytes[run.file]);
        assert_int_equal(taken[run.file][run.offset / OT_STORE_ALIGN]++, 0);
        if (before.bytes > OT_STORE_ALIGN) { /* this page continues its run */
            assert_int_equal(run.file, before.file);
            assert_int_equal(run.offset, before.offset + OT_STORE_ALIGN);
        }
        before = run;
    }
    for (int i = 0; i < n; i++)
        free(taken[i]);
}

static void test_stripes(void **state) {
    (void)state;
    for (int round = 0; round < 500; round++) {
        int64_t limits[OT_STORE_MAX_DIRS], file_bytes[OT_STORE_MAX_DIRS];
        int n = 1 + (int)draw(round % 2 ? OT_STORE_MAX_DIRS : 4);
        for (int i = 0; i < n; i++)
            limits[i] =
                draw(4) ? draw(60) * OT_STORE_ALIGN + draw(OT_STORE_ALIGN) : draw(2) * 7 * OT_STORE_ALIGN;
        int64_t capacity = ot_stripes_capacity(limits, n) / OT_STORE_ALIGN;
        int64_t pages = draw(3) ? draw(capacity + 1) : capacity;
        struct ot_stripes stripes;
        ot_stripes_init(&stripes, limits, n, (1 + draw(6)) * OT_STORE_ALIGN, pages * OT_STORE_ALIGN,
                        file_bytes);
        check_stripes(&stripes, pages, n, limits, file_bytes);
    }
}

/* Directories take turns, and no directory gets more than its limit. */
static void test_stripes_take_turns(void **state) {
    (void)state;
    static const int64_t limits[] = {100 << 20, 40 << 20, 100 << 20};
    int64_t file_bytes[3];
    struct ot_stripes stripes;
    ot_stripes_init(&stripes, limits, 3, 1 << 20, 90 << 20, file_bytes);
    for (int64_t i = 0; i < 90; i++)
        assert_int_equal(ot_stripes_locate(&stripes, i << 20).file, i % 3);
    ot_stripes_init(&stripes, limits, 3, 1 << 20, 200 << 20, file_bytes);
    for (int64_t i = 0; i < 80; i++) /* the small directory is full after 3 x 40 pages */
        assert_int_equal(ot_stripes_locate(&stripes, (120 + i) << 20).file, i % 2 * 2);
    assert_int_equal(file_bytes[0], 80 << 20);
    assert_int_equal(file_bytes[1], 40 << 20);
    assert_int_equal(file_bytes[2], 80 << 20);
}

/* ---- directories ---- */

struct place {
    char *folder;
    struct faults faults;
    struct ot_io_calls calls;
    struct ot_store_dir dirs[3];
    char paths[3][600];
    size_t extent;
    struct ot_store_config config;
    struct ot_store *store;
};

/* n directories in one new folder. The first `made` of them exist. One extent of 1 MiB. */
static void place_init(struct place *p, int n, int made) {
    *p = (struct place){.folder = make_folder(), .extent = 1 << 20};
    p->calls = faulty_calls(&p->faults);
    for (int i = 0; i < n; i++) {
        snprintf(p->paths[i], sizeof p->paths[i], "%s/%d", p->folder, i);
        p->dirs[i].path = p->paths[i];
        if (i < made)
            assert_int_equal(mkdir(p->paths[i], 0700), 0);
    }
    p->config = (struct ot_store_config){
        .n_dirs = n, .dirs = p->dirs, .n_extents = 1, .extent_bytes = &p->extent, .calls = &p->calls};
}

static void place_fails(struct place *p, int code, const char *words) {
    check_fails(ot_store_open(&p->config, &p->store), code, words);
    assert_null(p->store);
    for (int i = 0; i < p->config.n_dirs; i++) {
        struct stat info;
        if (stat(p->paths[i], &info) == 0 && S_ISDIR(info.st_mode))
            assert_null(store_file(p->paths[i], 0));
    }
    remove_folder(p->folder);
}

/* Opens the store, requires the words in its description, writes and reads. */
static void place_works(struct place *p, const char *words) {
    check_ok(ot_store_open(&p->config, &p->store));
    if (!strstr(ot_store_describe(p->store), words))
        fail_msg("the description \"%s\" does not contain \"%s\"", ot_store_describe(p->store), words);
    char *memory = aligned_bytes(p->extent), *back = aligned_bytes(p->extent);
    fill_bytes(memory, p->extent, 3);
    check_ok(ot_store_write(p->store, 0, memory));
    check_ok(ot_store_read(p->store, 0, back));
    assert_memory_equal(memory, back, p->extent);
    free(back);
    free(memory);
    ot_store_close(p->store);
    for (int i = 0; i < p->config.n_dirs; i++)
        assert_null(store_file(p->paths[i], 0));
    remove_folder(p->folder);
}

static void test_bad_directories(void **state) {
    (void)state;
    struct place p;
    place_init(&p, 2, 1);
    place_fails(&p, OT_E_IO,
                "/1: make this directory first, or name another for the NVMe store: No such file");
    place_init(&p, 2, 1);
    write_file(p.folder, "1", "x", 1);
    place_fails(&p, OT_E_IO, "/1: is a file; the NVMe store needs a directory");
    place_init(&p, 1, 1);
    p.faults.open_error = EACCES;
    place_fails(&p, OT_E_IO, "/0: cannot make a file for the NVMe store here: Permission denied");
    place_init(&p, 1, 1);
    p.faults.open_error = EROFS;
    place_fails(&p, OT_E_IO, "/0: cannot make a file for the NVMe store here: Read-only file system");
}

static void test_no_space(void **state) {
    (void)state;
    struct place p;
    place_init(&p, 2, 2);
    p.faults.allocate_error = ENOSPC;
    place_fails(&p, OT_E_IO, "/0: cannot reserve 1 MiB for the NVMe store (No space left on device), ");
    place_init(&p, 1, 1);
    p.extent = (size_t)1 << 50;
    p.faults.allocate_error = EOPNOTSUPP;
    p.dirs[0].bytes = (size_t)1 << 52;
    place_fails(&p, OT_E_IO, "/0: cannot reserve 2048 TiB for the NVMe store (No space left on device), ");
}

static void test_limits(void **state) {
    (void)state;
    struct place p;
    place_init(&p, 2, 2);
    p.dirs[0].bytes = 1 << 20;
    p.dirs[1].bytes = 512 << 10;
    place_fails(&p, OT_E_BUDGET, "it needs 2 MiB, but its directories may hold 1.5 MiB (");
    assert_non_null(strstr(ot_error_text(), "/0 1 MiB, "));
    assert_non_null(strstr(ot_error_text(), "/1 512 KiB), short by 512 KiB: raise the limits"));
    place_init(&p, 2, 2);
    p.dirs[0].bytes = 1 << 20;
    p.dirs[1].bytes = 1 << 20;
    place_works(&p, ", O_DIRECT, 2 x");
}

/* Without limits a directory gets the free space, but only once per file system: these directories share
 * one. */
static void test_default_limits(void **state) {
    (void)state;
    struct place p;
    int64_t one[3], all[3];
    place_init(&p, 3, 3);
    check_ok(ot_store_find_limits(p.dirs, 1, one));
    check_ok(ot_store_find_limits(p.dirs, 2, all));
    int64_t slack = one[0] / 10; /* other programs write to the disk meanwhile */
    assert_in_range(all[0], one[0] / 2 - slack, one[0] / 2 + slack);
    assert_int_equal(all[0] > 0, all[1] > 0);
    p.dirs[2].bytes = (size_t)one[0] / 2;
    check_ok(ot_store_find_limits(p.dirs, 3, all));
    assert_in_range(all[0], one[0] / 4 - slack, one[0] / 4 + slack);
    assert_int_equal(all[2], one[0] / 2);
    p.dirs[2].bytes = SIZE_MAX; /* more than is free, so the others get nothing */
    check_ok(ot_store_find_limits(p.dirs, 3, all));
    assert_int_equal(all[0], 0);
    remove_folder(p.folder);
}

static void test_file_systems_that_can_less(void **state) {
    (void)state;
    struct place p;
    place_init(&p, 1, 1);
    p.faults.allocate_error = EOPNOTSUPP;
    place_works(&p, "/0: space not reserved, because its file system cannot");
    place_init(&p, 2, 2);
    p.faults.refuse_direct = true;
    place_works(&p, ", buffered, because O_DIRECT is refused in ");
    place_init(&p, 1, 1);
    p.faults.refuse_direct_io = true;
    p.config.engine = OT_IO_POOL;
    place_works(&p, ", buffered, because O_DIRECT is refused in ");
}

/* A run that keeps nothing on the disks. */
static void test_no_extents(void **state) {
    (void)state;
    struct place p;
    struct ot_store_usage usage;
    place_init(&p, 2, 2);
    p.config.n_extents = 0;
    check_ok(ot_store_open(&p.config, &p.store));
    ot_store_usage(p.store, &usage);
    assert_int_equal(usage.file_bytes, 0);
    ot_store_close(p.store);
    remove_folder(p.folder);
}

static void test_memory_file_system(void **state) {
    (void)state;
    char path[] = "/dev/shm/offload-train-test-XXXXXX";
    size_t extent = 1 << 20;
    struct ot_store_dir dir = {path, 0};
    struct ot_store_config config = {.n_dirs = 1, .dirs = &dir, .n_extents = 1, .extent_bytes = &extent};
    struct ot_store *store;
    if (!mkdtemp(path))
        skip();
    check_ok(ot_store_open(&config, &store));
    char *memory = aligned_bytes(extent), *back = aligned_bytes(extent);
    fill_bytes(memory, extent, 8);
    check_ok(ot_store_write(store, 0, memory));
    check_ok(ot_store_read(store, 0, back));
    assert_memory_equal(memory, back, extent);
    ot_store_close(store);
    free(back);
    free(memory);
    assert_int_equal(rmdir(path), 0);
}

/* ---- files of other processes ---- */

static void test_stale_files(void **state) {
    (void)state;
    static const char *const stale[] = {"offload-train.1.0.store", "offload-train.4194304.17.store"};
    static const char *const foreign[] = {"offload-train.1.store",    "offload-train.1.0.store.old",
                                          "offload-train..0.store",   "offload-train.1.x.store",
                                          "xoffload-train.1.0.store", "notes"};
    struct place p;
    char path[1300];
    struct stat info;
    place_init(&p, 1, 1);
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++)
        write_file(p.paths[0], stale[i], "left", 4);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        write_file(p.paths[0], foreign[i], "mine", 4);
    snprintf(path, sizeof path, "%s/offload-train.2.0.store", p.paths[0]);
    assert_int_equal(symlink("notes", path), 0);
    snprintf(path, sizeof path, "%s/offload-train.2.1.store", p.paths[0]);
    assert_int_equal(mkdir(path, 0700), 0);
    check_ok(ot_store_open(&p.config, &p.store));
    ot_store_close(p.store);
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++) {
        snprintf(path, sizeof path, "%s/%s", p.paths[0], stale[i]);
        assert_int_equal(lstat(path, &info), -1);
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        snprintf(path, sizeof path, "%s/%s", p.paths[0], foreign[i]);
        assert_int_equal(lstat(path, &info), 0);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/offload-train.2.%d.store", p.paths[0], i);
        assert_int_equal(lstat(path, &info), 0);
    }
    remove_folder(p.folder);
}

static void test_two_stores_in_one_directory(void **state) {
    (void)state;
    enum { N = 3 };
    struct place p;
    struct ot_store *stores[N];
    place_init(&p, 1, 1);
    char *memory = aligned_bytes(p.extent), *back = aligned_bytes(p.extent);
    for (uint64_t i = 0; i < N; i++) {
        check_ok(ot_store_open(&p.config, &stores[i]));
        fill_bytes(memory, p.extent, i * 1000000);
        check_ok(ot_store_write(stores[i], 0, memory));
    }
    for (uint64_t i = 0; i < N; i++) {
        fill_bytes(memory, p.extent, i * 1000000);
        check_ok(ot_store_read(stores[i], 0, back));
        assert_memory_equal(memory, back, p.extent);
        assert_non_null(store_file(p.paths[0], N - 1 - (int)i));
        ot_store_close(stores[i]);
    }
    assert_null(store_file(p.paths[0], 0));
    free(back);
    free(memory);
    remove_folder(p.folder);
}

/* Runs in the child: opens a store, reports it, and holds it until the child is killed. */
static int hold_store(const char *dir_path) {
    size_t extent = 1 << 20;
    struct ot_store_dir dir = {dir_path, 0};
    struct ot_store_config config = {.n_dirs = 1, .dirs = &dir, .n_extents = 1, .extent_bytes = &extent};
    struct ot_store *store;
    if (ot_store_open(&config, &store) < 0)
        return 1;
    char *memory = aligned_bytes(extent);
    memset(memory, 1, extent);
    if (ot_store_write(store, 0, memory) < 0 || write(STDOUT_FILENO, "held", 4) != 4)
        return 1;
    for (;;)
        pause();
}

static void test_killed_process(void **state) {
    (void)state;
    struct place p;
    int pipe_fds[2], status;
    char word[5] = "";
    place_init(&p, 1, 1);
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_fds[1], STDOUT_FILENO);
        execl(self, self, "hold", p.paths[0], (char *)NULL);
        _exit(1);
    }
    close(pipe_fds[1]);
    assert_int_equal(read(pipe_fds[0], word, 4), 4);
    close(pipe_fds[0]);
    /* the child lives, so its file stays */
    check_ok(ot_store_open(&p.config, &p.store));
    assert_non_null(store_file(p.paths[0], 1));
    ot_store_close(p.store);
    assert_non_null(store_file(p.paths[0], 0));
    /* the child is killed: its file stays until the next store is opened */
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_non_null(store_file(p.paths[0], 0));
    check_ok(ot_store_open(&p.config, &p.store));
    assert_null(store_file(p.paths[0], 1));
    ot_store_close(p.store);
    assert_null(store_file(p.paths[0], 0));
    remove_folder(p.folder);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "hold") == 0)
        return hold_store(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stripes),
        cmocka_unit_test(test_stripes_take_turns),
        cmocka_unit_test(test_bad_directories),
        cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_default_limits),
        cmocka_unit_test(test_file_systems_that_can_less),
        cmocka_unit_test(test_no_extents),
        cmocka_unit_test(test_memory_file_system),
        cmocka_unit_test(test_stale_files),
        cmocka_unit_test(test_two_stores_in_one_directory),
        cmocka_unit_test(test_killed_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
