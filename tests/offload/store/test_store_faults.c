/* The NVMe store with a faulty system: transfers that are short, interrupted, refused, or corrupt; rings that
 * cannot be made, or break. The store recovers where it can; otherwise the error is one clear sentence. */
#include "tests/offload/store/store_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_EXTENTS = 3, LARGE = 2 };
static const size_t extents[N_EXTENTS] = {4096, 7 * 4096, 256 << 10};
static const struct ot_store_config small_chunks = {.chunk_bytes = 1 << 14, .depth = 4};

static void write_all(struct ot_store *store, uint64_t seed) {
    char *memory = aligned_bytes(extents[LARGE]);
    for (int i = 0; i < N_EXTENTS; i++) {
        fill_bytes(memory, extents[i], seed + (uint64_t)i);
        check_ok(ot_store_write(store, i, memory));
    }
    free(memory);
}

static void read_all(struct ot_store *store, uint64_t seed) {
    char *memory = aligned_bytes(extents[LARGE]), *want = aligned_bytes(extents[LARGE]);
    for (int i = 0; i < N_EXTENTS; i++) {
        memset(memory, 0, extents[i]);
        fill_bytes(want, extents[i], seed + (uint64_t)i);
        check_ok(ot_store_read(store, i, memory));
        assert_memory_equal(memory, want, extents[i]);
    }
    free(memory);
    free(want);
}

static void read_fails(struct ot_store *store, int extent, const char *words) {
    char *memory = aligned_bytes(extents[LARGE]);
    check_fails(ot_store_read(store, extent, memory), OT_E_IO, words);
    free(memory);
}

/* ---- recovered ---- */

static void test_short_and_interrupted_transfers(void **state) {
    static const int errors[] = {EINTR, EAGAIN};
    for (int i = 0; i < 2; i++) {
        struct ot_store_usage usage;
        struct fixture f;
        fixture_open(&f, *state, N_EXTENTS, extents, &small_chunks);
        f.faults.short_transfers = true;
        f.faults.storm_percent = 60;
        f.faults.storm_error = errors[i];
        for (uint64_t round = 0; round < 5; round++) {
            write_all(f.store, round);
            read_all(f.store, round);
        }
        ot_store_usage(f.store, &usage);
        assert_in_range(usage.resumed, 100, 100000);
        assert_int_equal(usage.written_bytes, 5 * (int64_t)(extents[0] + extents[1] + extents[2]));
        fixture_close(&f);
    }
}

/* A file system may accept O_DIRECT when the file is made, and refuse it in a later transfer. */
static void test_o_direct_that_is_refused_later(void **state) {
    const struct way *way = *state;
    struct fixture f;
    if (way->buffered || way->engine != OT_IO_POOL) /* a ring's writes do not go through the fake calls */
        skip();
    fixture_open(&f, way, N_EXTENTS, extents, &small_chunks);
    f.faults.refuse_direct_io = true;
    for (uint64_t round = 0; round < 2; round++) {
        write_all(f.store, round);
        read_all(f.store, round);
    }
    fixture_close(&f);
}

/* ---- not recovered ---- */

static void test_endless_storm_is_given_up(void **state) {
    struct fixture f;
    /* The test takes a second, and the code is the same if buffered. */
    if (((const struct way *)*state)->buffered)
        skip();
    fixture_open(&f, *state, N_EXTENTS, extents, NULL);
    write_all(f.store, 1);
    f.faults.storm_percent = 100;
    f.faults.storm_error = EAGAIN;
    read_fails(f.store, 0, "cannot read 4096 bytes at offset 0: given up after 200 tries without progress");
    f.faults.storm_percent = 0;
    read_all(f.store, 1);
    fixture_close(&f);
}

static void test_read_errors(void **state) {
    struct fixture f;
    fixture_open(&f, *state, N_EXTENTS, extents, &small_chunks);
    write_all(f.store, 1);
    f.faults.fail_error = EIO;
    for (int64_t at = 1; at <= 16; at += 5) {
        atomic_store(&f.faults.fail_at, at);
        read_fails(f.store, LARGE, "cannot read 16384 bytes at offset ");
        assert_non_null(strstr(ot_error_text(), store_file(f.folder, 0)));
        assert_non_null(strstr(ot_error_text(), "Input/output error"));
    }
    read_all(f.store, 1);
    fixture_close(&f);
}

/* From one write on, every write fails. Later the disk has room again. */
static void test_full_disk(void **state) {
    struct fixture f;
    char *memory = aligned_bytes(extents[LARGE]);
    fixture_open(&f, *state, N_EXTENTS, extents, &small_chunks);
    write_all(f.store, 1);
    f.faults.fail_error = ENOSPC;
    f.faults.fail_from_there = true;
    atomic_store(&f.faults.fail_at, 6);
    check_fails(ot_store_write(f.store, LARGE, memory), OT_E_IO,
                "No space left on device; make room there, or use another directory");
    f.faults.fail_error = 0;
    read_all(f.store, 1);
    write_all(f.store, 2);
    read_all(f.store, 2);
    free(memory);
    fixture_close(&f);
}

static void test_corrupt_byte(void **state) {
    struct ot_store_config unchecked = small_chunks;
    unchecked.no_verify = true;
    for (int verify = 0; verify < 2; verify++) {
        char byte, place[64], *memory = aligned_bytes(extents[LARGE]);
        struct fixture f;
        fixture_open(&f, *state, N_EXTENTS, extents, verify ? &small_chunks : &unchecked);
        write_all(f.store, 1);
        /* On the first side of the large extent. */
        off_t at = (off_t)(extents[0] + extents[1]) + 5 * 16384 + 77;
        int fd = open(store_file(f.folder, 0), O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_int_equal(close(fd), 0);
        if (verify) {
            snprintf(place, sizeof place, "the 16384 bytes at offset %lld are not those", (long long)at - 77);
            read_fails(f.store, LARGE, place);
            assert_non_null(strstr(ot_error_text(), store_file(f.folder, 0)));
        } else {
            check_ok(ot_store_read(f.store, LARGE, memory));
            assert_int_equal(memory[5 * 16384 + 77], byte);
        }
        write_all(f.store, 2); /* goes to the other side; the next write overwrites the bad byte */
        write_all(f.store, 3);
        read_all(f.store, 3);
        free(memory);
        fixture_close(&f);
    }
}

/* A chunk that was read in several pieces is compared as a whole. */
static void test_corrupt_byte_of_short_transfers(void **state) {
    struct ot_store_usage usage;
    struct fixture f;
    char byte;
    fixture_open(&f, *state, N_EXTENTS, extents, &small_chunks);
    write_all(f.store, 1);
    off_t at = (off_t)(extents[0] + extents[1]) + 3 * 16384 + 100; /* on the first side of the large extent */
    int fd = open(store_file(f.folder, 0), O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
    f.faults.short_transfers = true;
    for (int i = 0; i < 8; i++) /* some chunks may be read in one piece */
        read_fails(f.store, LARGE, "are not those that were written");
    ot_store_usage(f.store, &usage);
    assert_true(usage.resumed > 8);
    fixture_close(&f);
}

static void test_truncated_file(void **state) {
    struct fixture f;
    fixture_open(&f, *state, N_EXTENTS, extents, &small_chunks);
    write_all(f.store, 1);
    assert_int_equal(truncate(store_file(f.folder, 0), (off_t)(extents[0] + extents[1])), 0);
    read_fails(f.store, LARGE, "the file ends there");
    fixture_close(&f);
}

/* ---- rings ---- */

/* Replaces the process's rings by /dev/null: the kernel then refuses every call on them. */
static int break_rings(void) {
    char path[300], target[64];
    int n = 0, null = open("/dev/null", O_RDWR);
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strstr(target, "io_uring")) {
            assert_int_equal(dup2(null, atoi(entry->d_name)), atoi(entry->d_name));
            n++;
        }
    }
    closedir(dir);
    close(null);
    return n;
}

static void test_broken_ring(void **state) {
    (void)state;
    struct fixture f;
    struct waiting waiting = WAITING_INIT;
    fixture_open(&f, &ways[0], N_EXTENTS, extents, &small_chunks);
    write_all(f.store, 1);
    assert_int_equal(break_rings(), 2);
    char *memory[N_EXTENTS];
    for (int i = 0; i < N_EXTENTS; i++) {
        memory[i] = aligned_bytes(extents[i]);
        start_transfer(f.store, &waiting, i == 1, 1, &(struct ot_store_piece){i, memory[i]});
    }
    check_fails(wait_all(&waiting), OT_E_IO, "io_uring: cannot ");
    for (int i = 0; i < N_EXTENTS; i++) { /* and so do later transfers */
        check_fails(ot_store_read(f.store, i, memory[i]), OT_E_IO, "io_uring: cannot ");
        free(memory[i]);
    }
    fixture_close(&f);
}

/* ---- set-up ---- */

struct set_up {
    char *folder;
    struct faults faults;
    struct ot_store_dir dir;
    struct ot_io_calls calls;
    struct ot_store_config config;
    struct ot_store *store;
};

static void set_up_init(struct set_up *s, enum ot_io_choice engine) {
    *s = (struct set_up){.folder = make_folder()};
    s->dir = (struct ot_store_dir){s->folder, 1 << 30};
    s->calls = faulty_calls(&s->faults);
    s->config = (struct ot_store_config){.n_dirs = 1,
                                         .dirs = &s->dir,
                                         .engine = engine,
                                         .n_extents = N_EXTENTS,
                                         .extent_bytes = extents,
                                         .calls = &s->calls};
}

/* Opens the store, requires these words in its description, and moves some bytes. */
static void set_up_works(struct set_up *s, const char *words) {
    check_ok(ot_store_open(&s->config, &s->store));
    if (!strstr(ot_store_describe(s->store), words))
        fail_msg("the description \"%s\" does not contain \"%s\"", ot_store_describe(s->store), words);
    write_all(s->store, 1);
    read_all(s->store, 1);
    ot_store_close(s->store);
    remove_folder(s->folder);
}

static void set_up_fails(struct set_up *s, const char *words) {
    check_fails(ot_store_open(&s->config, &s->store), OT_E_IO, words);
    assert_null(s->store);
    assert_null(store_file(s->folder, 0));
    remove_folder(s->folder);
}

static void test_refused_ring(void **state) {
    (void)state;
    static const struct {
        int error;
        const char *reason;
    } refusals[] = {{EPERM, "io_uring is forbidden here, by the container's seccomp profile"},
                    {ENOSYS, "this kernel has no io_uring, or the container hides it"},
                    {ENOMEM, "io_uring is refused memory, raise `ulimit -l`"},
                    {EMFILE, "io_uring cannot be set up: Too many open files"}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct set_up s;
        char words[200];
        set_up_init(&s, OT_IO_AUTO);
        s.faults.ring_error = refusals[i].error;
        snprintf(words, sizeof words, "pool (32 threads, because %s", refusals[i].reason);
        set_up_works(&s, words);
        set_up_init(&s, OT_IO_URING);
        s.faults.ring_error = refusals[i].error;
        set_up_fails(&s, refusals[i].reason);
    }
}

static void test_refused_flags(void **state) {
    (void)state;
    struct set_up s;
    set_up_init(&s, OT_IO_URING);
    set_up_works(&s, "uring (DEFER_TASKRUN)");
    set_up_init(&s, OT_IO_URING);
    s.faults.refused_flags = IORING_SETUP_DEFER_TASKRUN;
    set_up_works(&s, "uring (COOP_TASKRUN)");
    set_up_init(&s, OT_IO_URING);
    s.faults.refused_flags = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN;
    set_up_works(&s, "uring (no flags)");
    set_up_init(&s, OT_IO_URING);
    s.faults.ring_error = EINVAL;
    set_up_fails(&s, "io_uring cannot be set up: Invalid argument");
}

static void test_refused_registration(void **state) {
    (void)state;
    struct set_up s;
    char *arena = aligned_bytes(1 << 20);
    static const struct {
        int files, arena;
        const char *words;
    } refusals[] = {{0, 0, "DEFER_TASKRUN, registered buffers)"},
                    {EMFILE, 0, "files not registered (Too many open files), registered buffers)"},
                    {0, ENOMEM, "buffers not registered: `ulimit -l` is too small for them)"},
                    {0, EOPNOTSUPP, "buffers not registered (Operation not supported))"}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        set_up_init(&s, OT_IO_URING);
        s.config.arena = arena;
        s.config.arena_bytes = 1 << 20;
        s.faults.files_error = refusals[i].files;
        s.faults.arena_error = refusals[i].arena;
        set_up_works(&s, refusals[i].words);
    }
    free(arena);
}

/* Transfers into the arena, outside it, and across both of its ends. */
static void test_registered_arena(void **state) {
    (void)state;
    struct set_up s;
    enum { BEFORE = 64 << 10, ARENA = 128 << 10 };
    char *memory = aligned_bytes(BEFORE + ARENA + (512 << 10)), *want = aligned_bytes(extents[LARGE]);
    set_up_init(&s, OT_IO_URING);
    s.config.arena = memory + BEFORE;
    s.config.arena_bytes = ARENA;
    s.config.chunk_bytes = 12 << 10;
    check_ok(ot_store_open(&s.config, &s.store));
    for (size_t at = 0; at <= BEFORE + ARENA; at += 28 << 10)
        for (int i = 0; i < N_EXTENTS; i++) {
            fill_bytes(want, extents[i], at + (size_t)i);
            memcpy(memory + at, want, extents[i]);
            check_ok(ot_store_write(s.store, i, memory + at));
            memset(memory + at, 0, extents[i]);
            check_ok(ot_store_read(s.store, i, memory + at));
            assert_memory_equal(memory + at, want, extents[i]);
        }
    ot_store_close(s.store);
    remove_folder(s.folder);
    free(want);
    free(memory);
}

/* The kernel accepts 1 GiB for one buffer. A transfer across the border of two buffers must name neither of
 * them. The test pins that much memory. */
static void test_arena_of_two_buffers(void **state) {
    (void)state;
    if (!getenv("OT_TEST_SLOW"))
        skip();
    const size_t border = (size_t)1 << 30, bytes = border + extents[LARGE];
    struct set_up s;
    char *arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *want = aligned_bytes(extents[LARGE]);
    assert_ptr_not_equal(arena, MAP_FAILED);
    set_up_init(&s, OT_IO_URING);
    s.config.arena = arena;
    s.config.arena_bytes = bytes;
    check_ok(ot_store_open(&s.config, &s.store));
    assert_non_null(strstr(ot_store_describe(s.store), "registered buffers"));
    for (size_t at = border - extents[LARGE]; at <= border; at += extents[LARGE] / 2) {
        fill_bytes(want, extents[LARGE], at);
        memcpy(arena + at, want, extents[LARGE]);
        check_ok(ot_store_write(s.store, LARGE, arena + at));
        memset(arena + at, 0, extents[LARGE]);
        check_ok(ot_store_read(s.store, LARGE, arena + at));
        assert_memory_equal(arena + at, want, extents[LARGE]);
    }
    ot_store_close(s.store);
    remove_folder(s.folder);
    free(want);
    munmap(arena, bytes);
}

int main(void) {
    const struct CMUnitTest transfers[] = {
        cmocka_unit_test(test_short_and_interrupted_transfers),
        cmocka_unit_test(test_o_direct_that_is_refused_later),
        cmocka_unit_test(test_endless_storm_is_given_up),
        cmocka_unit_test(test_read_errors),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_corrupt_byte),
        cmocka_unit_test(test_corrupt_byte_of_short_transfers),
        cmocka_unit_test(test_truncated_file),
    };
    const struct CMUnitTest rings[] = {
        cmocka_unit_test(test_broken_ring),      cmocka_unit_test(test_refused_ring),
        cmocka_unit_test(test_refused_flags),    cmocka_unit_test(test_refused_registration),
        cmocka_unit_test(test_registered_arena), cmocka_unit_test(test_arena_of_two_buffers),
    };
    int failures = run_all_ways(transfers, sizeof transfers / sizeof *transfers);
    if (ring_is_refused())
        fprintf(stderr, "SKIP: rings: %s\n", ot_error_text());
    else
        failures += cmocka_run_group_tests(rings, NULL, NULL);
    return failures;
}
