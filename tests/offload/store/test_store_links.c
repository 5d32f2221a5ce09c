/* Content that outlives an NVMe store. If the store is closed, files with a second name (hard link) keep the
 * pinned contents and only those. If its process ends without closing it, they keep everything that was
 * flushed. Also: failures of flushing and of linking. */
#include "tests/offload/store/store_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/hash.h"

static const char *self; /* path of this program */

/* ---- a store in several directories, and a folder for hard links ---- */

enum { N_EXTENTS = 5, N_DIRS = 3, MOST_SPANS = 64, REWRITES = 7 };
static const size_t extents[N_EXTENTS] = {1 << 20, 3 * 4096, 256 << 10, 5 * 4096, 512 << 10};
static const int sides[N_EXTENTS] = {3, 3, 4, 2, 3};

struct place {
    char *folder, paths[N_DIRS][600], links[600];
    int links_fd;
    struct faults faults;
    struct ot_io_calls calls;
    struct ot_store *store;
};

static void name_folders(struct place *p) {
    for (int i = 0; i < N_DIRS; i++)
        snprintf(p->paths[i], sizeof p->paths[i], "%s/%d", p->folder, i);
    snprintf(p->links, sizeof p->links, "%s/links", p->folder);
}

static int open_store(struct place *p, int n_dirs, enum ot_io_choice engine) {
    struct ot_store_dir dirs[N_DIRS];
    for (int i = 0; i < N_DIRS; i++)
        dirs[i] = (struct ot_store_dir){p->paths[i], (size_t)64 << 20};
    p->calls = faulty_calls(&p->faults);
    struct ot_store_config config = {.n_dirs = n_dirs,
                                     .dirs = dirs,
                                     .engine = engine,
                                     .n_extents = N_EXTENTS,
                                     .extent_bytes = extents,
                                     .extent_sides = sides,
                                     .chunk_bytes = 1 << 16,
                                     .calls = &p->calls};
    return ot_store_open(&config, &p->store);
}

static void place_open(struct place *p, int n_dirs, const struct way *way) {
    *p = (struct place){.folder = make_folder()};
    name_folders(p);
    for (int i = 0; i < N_DIRS; i++)
        assert_int_equal(mkdir(p->paths[i], 0700), 0);
    assert_int_equal(mkdir(p->links, 0700), 0);
    p->links_fd = open(p->links, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(p->links_fd >= 0);
    p->faults.refuse_direct = way->buffered;
    check_ok(open_store(p, n_dirs, way->engine));
}

static void place_close(struct place *p) {
    ot_store_close(p->store);
    for (int i = 0; i < N_DIRS; i++)
        assert_null(store_file(p->paths[i], 0));
    close(p->links_fd);
    remove_folder(p->folder);
}

static void link_name(char name[32], int file) {
    snprintf(name, 32, "nvme-%d", file);
}

static int link_all(struct ot_store *store, int links_fd) {
    char name[32];
    for (int i = 0; i < ot_store_file_count(store); i++) {
        link_name(name, i);
        OT_TRY(ot_store_link(store, i, links_fd, name));
    }
    return 0;
}

static int write_all(struct ot_store *store, uint64_t version) {
    char *memory = aligned_bytes(extents[0]);
    int rc = 0;
    for (int i = 0; i < N_EXTENTS && rc == 0; i++) {
        fill_bytes(memory, extents[i], version * 100 + (uint64_t)i);
        rc = ot_store_write(store, i, memory);
    }
    free(memory);
    return rc;
}

/* ---- the contents of the linked files ---- */

struct kept { /* the spans of each extent, all of one version */
    int n[N_EXTENTS];
    struct ot_store_span spans[N_EXTENTS][MOST_SPANS];
};

static void keep(struct ot_store *store, struct kept *kept) {
    memset(kept, 0, sizeof *kept);
    for (int i = 0; i < N_EXTENTS; i++)
        kept->n[i] = ot_store_find_spans(store, ot_store_pin_extent(store, i), kept->spans[i], MOST_SPANS);
}

static int64_t kept_bytes(void) {
    int64_t sum = 0;
    for (int i = 0; i < N_EXTENTS; i++)
        sum += (int64_t)extents[i];
    return sum;
}

static void read_span(const struct place *p, const struct ot_store_span *span, char *memory) {
    char name[32];
    link_name(name, span->file);
    int fd = openat(p->links_fd, name, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, memory, (size_t)span->bytes, span->offset), span->bytes);
    assert_int_equal(ot_crc32(0, memory, (size_t)span->bytes), span->crc);
    close(fd);
}

static void check_kept(const struct place *p, const struct kept *kept, uint64_t version) {
    char *memory = aligned_bytes(extents[0]), *want = aligned_bytes(extents[0]);
    for (int i = 0; i < N_EXTENTS; i++) {
        size_t got = 0;
        for (int k = 0; k < kept->n[i]; k++) {
            read_span(p, &kept->spans[i][k], memory + got);
            got += (size_t)kept->spans[i][k].bytes;
        }
        assert_int_equal(got, extents[i]);
        fill_bytes(want, extents[i], version * 100 + (uint64_t)i);
        assert_memory_equal(memory, want, extents[i]);
    }
    free(want);
    free(memory);
}

/* Measures the size of all linked files, and the blocks that they take on the disk. */
static void measure_links(const struct place *p, int n, int64_t *size, int64_t *blocks) {
    *size = *blocks = 0;
    for (int i = 0; i < n; i++) {
        char name[32];
        struct stat info;
        link_name(name, i);
        assert_int_equal(fstatat(p->links_fd, name, &info, 0), 0);
        assert_int_equal(info.st_nlink, 1);
        *size += info.st_size;
        *blocks += (int64_t)info.st_blocks * 512;
    }
}

/* True if the file system can punch holes. Prints a line if it cannot. */
static bool makes_holes(const struct place *p) {
    int fd = openat(p->links_fd, "probe", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && ot_io_system.allocate(NULL, fd, 0, 0, 8192) == 0);
    int rc = ot_io_system.allocate(NULL, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096);
    close(fd);
    unlinkat(p->links_fd, "probe", 0);
    if (rc < 0)
        fprintf(stderr, "SKIP: %s: the file system cannot punch holes (%s), so sizes are not checked\n",
                p->folder, strerror(-rc));
    return rc == 0;
}

/* ---- closing ---- */

static void test_links_keep_what_is_pinned(void **state) {
    for (int n_dirs = 1; n_dirs <= N_DIRS; n_dirs++) {
        struct place p;
        struct kept kept;
        int64_t size, blocks, reserved = (int64_t)ot_store_bytes(extents, sides, N_EXTENTS);
        place_open(&p, n_dirs, *state);
        bool holes = makes_holes(&p);
        check_ok(write_all(p.store, 0));
        for (uint64_t version = 1; version <= REWRITES; version++)
            check_ok(write_all(p.store, version));
        keep(p.store, &kept);
        check_ok(ot_store_sync(p.store));
        assert_int_equal(atomic_load(&p.faults.syncs), n_dirs);
        check_ok(link_all(p.store, p.links_fd));
        check_ok(write_all(p.store, 99)); /* only once, because an extent with two sides has no third side */
        ot_store_close(p.store);
        p.store = NULL;
        check_kept(&p, &kept, REWRITES);
        measure_links(&p, n_dirs, &size, &blocks);
        assert_int_equal(size, reserved);
        if (holes) /* except for blocks that the file system needs for itself */
            assert_in_range(blocks, kept_bytes(), kept_bytes() + 64 * 1024 * n_dirs);
        place_close(&p);
    }
}

/* Nothing is pinned, so only holes are left. */
static void test_link_without_pins_is_empty(void **state) {
    struct place p;
    int64_t size, blocks;
    place_open(&p, 2, *state);
    bool holes = makes_holes(&p);
    check_ok(write_all(p.store, 1));
    struct ot_store_pin pin = ot_store_pin_extent(p.store, 0);
    check_ok(link_all(p.store, p.links_fd));
    ot_store_unpin(p.store, pin);
    ot_store_close(p.store);
    p.store = NULL;
    measure_links(&p, 2, &size, &blocks);
    assert_int_equal(size, ot_store_bytes(extents, sides, N_EXTENTS));
    if (holes)
        assert_in_range(blocks, 0, 64 * 1024 * 2);
    place_close(&p);
}

/* Only the linked file stays. If punching holes is refused, it keeps its size on the disk. */
static void test_refused_holes_and_one_link(void **state) {
    struct place p;
    struct kept kept;
    struct stat info;
    place_open(&p, 1, *state);
    check_ok(write_all(p.store, 1));
    keep(p.store, &kept);
    check_ok(link_all(p.store, p.links_fd));
    assert_int_equal(stat(store_file(p.paths[0], 0), &info), 0);
    int64_t blocks = info.st_blocks;
    p.faults.punch_error = EOPNOTSUPP;
    ot_store_close(p.store);
    check_kept(&p, &kept, 1);
    assert_int_equal(fstatat(p.links_fd, "nvme-0", &info, 0), 0);
    assert_true(info.st_blocks > blocks / 2); /* a third of these blocks was pinned */
    assert_int_equal(unlinkat(p.links_fd, "nvme-0", 0), 0);
    check_ok(open_store(&p, 3, OT_IO_AUTO));
    check_ok(ot_store_link(p.store, 1, p.links_fd, "nvme-1"));
    ot_store_close(p.store);
    p.store = NULL;
    assert_int_equal(fstatat(p.links_fd, "nvme-1", &info, 0), 0);
    assert_int_equal(info.st_nlink, 1);
    place_close(&p);
}

/* ---- processes that end without closing ---- */

/* Runs in the child: pins version 3, reports where it lies, and writes on until it is killed or ends
 * itself. */
static int run_child(const char *folder, const char *end, const char *engine) {
    struct place p = {.folder = (char *)folder};
    struct kept kept;
    name_folders(&p);
    int links_fd = open(p.links, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (open_store(&p, N_DIRS, strcmp(engine, "pool") == 0 ? OT_IO_POOL : OT_IO_URING) < 0)
        return 1;
    for (uint64_t version = 1; version <= 3; version++)
        if (write_all(p.store, version) < 0)
            return 1;
    keep(p.store, &kept);
    if (ot_store_sync(p.store) < 0 || link_all(p.store, links_fd) < 0 || write_all(p.store, 4) < 0 ||
        write(STDOUT_FILENO, &kept, sizeof kept) != sizeof kept)
        return 1;
    if (strcmp(end, "exit") == 0)
        _exit(0);
    char *memory = aligned_bytes(extents[0]);
    memset(memory, 1, extents[0]);
    while (ot_store_write(p.store, 0, memory) == 0)
        ;
    return 1;
}

static void read_from_child(int fd, void *memory, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(fd, (char *)memory + got, bytes - got);
        assert_true(n > 0);
        got += (size_t)n;
    }
}

static void end_child(const char *folder, const char *end, const char *engine, struct kept *kept) {
    int pipe_fds[2], status;
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_fds[1], STDOUT_FILENO);
        execl(self, self, folder, end, engine, (char *)NULL);
        _exit(1);
    }
    close(pipe_fds[1]);
    read_from_child(pipe_fds[0], kept, sizeof *kept);
    close(pipe_fds[0]);
    if (strcmp(end, "kill") == 0)
        assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
}

/* The next store removes the dead process's own names. The linked files keep their contents. */
static void test_links_of_a_dead_process(void **state) {
    static const char *const ends[] = {"exit", "kill"};
    const struct way *way = *state;
    if (way->buffered) /* O_DIRECT or not makes no difference here */
        skip();
    for (int i = 0; i < 2; i++) {
        struct place p;
        struct kept kept;
        int64_t size, blocks;
        place_open(&p, 1, way);
        ot_store_close(p.store);
        end_child(p.folder, ends[i], ot_io_choice_name(way->engine), &kept);
        for (int k = 0; k < N_DIRS; k++)
            assert_non_null(store_file(p.paths[k], 0));
        check_kept(&p, &kept, 3);
        check_ok(open_store(&p, N_DIRS, OT_IO_AUTO));
        for (int k = 0; k < N_DIRS; k++)
            assert_null(store_file(p.paths[k], 1));
        check_ok(write_all(p.store, 5));
        measure_links(&p, N_DIRS, &size, &blocks); /* the hard links are the only names */
        check_kept(&p, &kept, 3);
        place_close(&p);
    }
}

/* ---- failures ---- */

static void test_sync(void **state) {
    struct place p;
    char *memory = aligned_bytes(extents[0]);
    place_open(&p, 2, *state);
    check_ok(write_all(p.store, 1));
    atomic_store(&p.faults.sync_interrupts, 3);
    check_ok(ot_store_sync(p.store));
    assert_int_equal(atomic_load(&p.faults.syncs), 2 + 3);
    p.faults.sync_error = EIO;
    check_fails(ot_store_sync(p.store), OT_E_IO, "cannot be flushed to the disk, look for messages about it");
    assert_non_null(strstr(ot_error_text(), store_file(p.paths[0], 0)));
    assert_non_null(strstr(ot_error_text(), "Input/output error"));
    p.faults.sync_error = 0; /* content lost in that failure would no longer be noticed */
    check_fails(ot_store_sync(p.store), OT_E_IO, "may have lost written data");
    assert_non_null(strstr(ot_error_text(), store_file(p.paths[0], 0)));
    check_ok(write_all(p.store, 2));
    check_ok(ot_store_read(p.store, 0, memory));
    free(memory);
    place_close(&p);
}

static void test_refused_links(void **state) {
    struct place p;
    char other[] = "/dev/shm/offload-train-test-XXXXXX";
    struct stat here, there;
    place_open(&p, 1, *state);
    check_ok(ot_store_link(p.store, 0, p.links_fd, "twice"));
    check_fails(ot_store_link(p.store, 0, p.links_fd, "twice"), OT_E_IO,
                "cannot get the second name twice: File exists");
    assert_non_null(strstr(ot_error_text(), store_file(p.paths[0], 0)));
    check_fails(ot_store_link(p.store, 0, p.links_fd, "none/of/that"), OT_E_IO, "No such file or directory");
    assert_int_equal(fstat(p.links_fd, &here), 0);
    if (mkdtemp(other)) {
        int fd = open(other, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(fstat(fd, &there), 0);
        if (here.st_dev != there.st_dev)
            check_fails(ot_store_link(p.store, 0, fd, "away"), OT_E_IO,
                        "cannot get the second name away: that directory is on another file system");
        close(fd);
        assert_int_equal(rmdir(other), 0);
    } else {
        fprintf(stderr, "SKIP: no second file system to link to\n");
    }
    place_close(&p);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc == 4)
        return run_child(argv[1], argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_keep_what_is_pinned),
        cmocka_unit_test(test_link_without_pins_is_empty),
        cmocka_unit_test(test_refused_holes_and_one_link),
        cmocka_unit_test(test_links_of_a_dead_process),
        cmocka_unit_test(test_sync),
        cmocka_unit_test(test_refused_links),
    };
    return run_all_ways(tests, sizeof tests / sizeof *tests);
}
