/* Checkpoints that refer to the NVMe store. Content that a checkpoint refers to survives when the store is
 * closed. Content that no checkpoint refers to any more is released. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "tests/checkpoint/fixture.h"

/* A folder with checkpoints and a store whose extents are slab 1's state and weights. */
struct run {
    char *folder, *parent;
    struct ot_chain chain;
    struct ot_store *store;
};

enum { SIDES = 4 };

/* Logs the flush of a store's file in fixture_log, with the number of names that the file has at that
 * time. */
static int logged_sync(void *context, int fd) {
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    if (fixture_log)
        snprintf(fixture_log + strlen(fixture_log), FIXTURE_LOG_BYTES - strlen(fixture_log),
                 "flush a store of %d names; ", (int)info.st_nlink);
    return ot_io_system.fdatasync(context, fd);
}

static struct ot_segment segment_of(const struct run *run, int extent) {
    return (struct ot_segment){
        1,    0, run->chain.slabs[1].n_params, extent == 0, extent == 1, run->chain.state, OT_MASTERS_F32,
        false};
}

static size_t extent_bytes(const struct run *run, int extent) {
    struct ot_segment segment = segment_of(run, extent);
    return ot_segment_padded_bytes(run->chain.dtype, &segment);
}

static void open_store(struct run *run) {
    size_t bytes[2];
    int sides[2] = {SIDES, SIDES};
    for (int i = 0; i < 2; i++)
        bytes[i] = extent_bytes(run, i);
    struct ot_store_dir dir = {.path = run->folder, .bytes = 1 << 20};
    struct ot_io_calls calls = ot_io_system;
    calls.fdatasync = logged_sync;
    struct ot_store_config config = {.n_dirs = 1,
                                     .dirs = &dir,
                                     .engine = OT_IO_POOL,
                                     .n_extents = 2,
                                     .extent_bytes = bytes,
                                     .extent_sides = sides,
                                     .chunk_bytes = 16384,
                                     .depth = 4,
                                     .calls = &calls};
    check_ok(ot_store_open(&config, &run->store));
}

static void open_run_with(struct run *run, enum ot_state_format format) {
    *run = (struct run){.folder = make_folder(), .chain = fixture_chain(OT_BF16, false)};
    run->chain.state = format;
    assert_true(asprintf(&run->parent, "%s/checkpoints", run->folder) > 0);
    assert_int_equal(mkdir(run->parent, 0777), 0);
    open_store(run);
}

static void open_run(struct run *run) {
    open_run_with(run, OT_STATE_F32);
}

static void close_run(struct run *run) {
    ot_store_close(run->store);
    remove_folder(run->folder);
    free(run->parent);
}

static void write_extents(const struct run *run, uint64_t seed) {
    for (int i = 0; i < 2; i++) {
        struct ot_segment segment = segment_of(run, i);
        void *memory = aligned_alloc(4096, extent_bytes(run, i));
        memset(memory, 0, extent_bytes(run, i));
        fixture_fill(run->chain.dtype, seed, &segment, memory);
        check_ok(ot_store_write(run->store, i, memory));
        free(memory);
    }
}

static struct saving save_step(const struct run *run, int64_t step, uint64_t seed) {
    struct saving saving = {.parent = run->parent,
                            .chain = &run->chain,
                            .step = step,
                            .seed = seed,
                            .store = run->store,
                            .faulty = true};
    fixture_clear_fault();
    for (int i = 0; i < 2; i++)
        saving.pins[i] = ot_store_pin_extent(run->store, i);
    check_ok(fixture_save(&saving));
    return saving;
}

static const char *dir_of(const struct saving *saving) {
    static char path[512];
    snprintf(path, sizeof path, "%s/step-%08lld", saving->parent, (long long)saving->step);
    return path;
}

static void check_whole(const struct saving *saving) {
    const char *found = fixture_examine(saving, dir_of(saving));
    if (found)
        fail_msg("%s: %s", dir_of(saving), found);
}

/* The blocks that the store's file takes on the disk. File systems count some blocks for themselves. */
static void check_takes(const struct saving *saving, int64_t bytes) {
    char path[600];
    struct stat info;
    snprintf(path, sizeof path, "%s/nvme-0.store", dir_of(saving));
    assert_int_equal(stat(path, &info), 0);
    assert_in_range(info.st_blocks * 512, bytes, bytes + 16384);
}

/* The bytes that a reader takes from the disk: all spans of all segments. */
static void check_bytes(const struct saving *saving) {
    struct ot_checkpoint *checkpoint;
    int64_t bytes = 0;
    check_ok(ot_checkpoint_open(dir_of(saving), &checkpoint));
    const struct ot_manifest *m = ot_checkpoint_manifest(checkpoint);
    for (int64_t i = 0; i < m->n_spans; i++)
        bytes += m->spans[i].bytes;
    assert_int_equal(ot_checkpoint_bytes(checkpoint), bytes);
    assert_true(m->segments[0].n_spans > 0);
    ot_checkpoint_close(checkpoint);
}

static void check_outlives(enum ot_state_format format) {
    struct run run;
    open_run_with(&run, format);
    write_extents(&run, 1);
    struct saving first = save_step(&run, 1, 1);
    write_extents(&run, 2); /* writes over content that the checkpoint refers to */
    struct saving second = save_step(&run, 2, 2);
    write_extents(&run, 3);
    write_extents(&run, 4);
    assert_string_equal(fixture_names(dir_of(&first)), "checkpoint.json manifest.bin nvme-0.store state.bin");
    struct ot_segment copied = {0, 0, run.chain.slabs[0].n_params, true, true, format, OT_MASTERS_F32, false};
    int64_t referred = (int64_t)(extent_bytes(&run, 0) + extent_bytes(&run, 1));
    assert_int_equal(first.referred, referred);
    assert_int_equal(first.written, ot_segment_padded_bytes(run.chain.dtype, &copied));
    check_whole(&first);
    check_whole(&second);
    check_bytes(&first);
    ot_store_close(run.store);
    run.store = NULL;
    check_whole(&first);
    check_whole(&second);
    check_takes(&first, 2 * referred);
    close_run(&run);
}

/* In every format of the state. The extents of compact formats end with padding. */
static void test_what_was_not_copied_outlives_the_store(void **state) {
    (void)state;
    for (enum ot_state_format format = OT_STATE_F32; format < OT_STATE_FORMATS; format++)
        check_outlives(format);
}

/* The manifest promises that the store's files exist. So they get their second name, and are flushed under
 * it, before the manifest is written. */
static void test_order_of_flushes(void **state) {
    (void)state;
    struct run run;
    char log[FIXTURE_LOG_BYTES] = "";
    open_run(&run);
    write_extents(&run, 1);
    fixture_log = log;
    (void)save_step(&run, 1, 1);
    fixture_log = NULL;
    assert_string_equal(log, "flush checkpoint.json; flush state.bin; flush a store of 2 names; "
                             "flush manifest.bin; flush step-00000001.partial; rename; flush checkpoints; ");
    close_run(&run);
}

static void test_extents_that_were_never_written(void **state) {
    (void)state;
    struct run run;
    struct ot_checkpoint *checkpoint;
    open_run(&run);
    struct saving saving = save_step(&run, 1, 1);
    assert_int_equal(saving.referred, 0);
    assert_string_equal(fixture_names(dir_of(&saving)), "checkpoint.json manifest.bin state.bin");
    check_ok(ot_checkpoint_open(dir_of(&saving), &checkpoint));
    int zeros = 0;
    const struct ot_manifest *m = ot_checkpoint_manifest(checkpoint);
    for (int64_t i = 0; i < m->n_segments; i++)
        zeros += m->segments[i].n_spans == 0;
    assert_int_equal(zeros, 2);
    assert_int_equal(ot_checkpoint_bytes(checkpoint), m->files[0].bytes); /* state.bin has everything */
    ot_checkpoint_close(checkpoint);
    close_run(&run);
}

/* ---- releasing content ---- */

/* Saves three checkpoints of one run. Each refers to other extents of the store. Returns the bytes of slab
 * 1's state. */
static int64_t open_three_saves(struct run *run, struct saving saves[3]) {
    open_run(run);
    for (int i = 0; i < 3; i++) {
        write_extents(run, (uint64_t)i + 1);
        saves[i] = save_step(run, i + 1, (uint64_t)i + 1);
    }
    return run->chain.slabs[1].n_params * 12;
}

static void test_space_of_removed_checkpoints_is_given_back(void **state) {
    (void)state;
    struct run run;
    struct saving saves[3];
    int64_t slab_bytes = open_three_saves(&run, saves);
    /* While the store is open, all of it stays, whichever checkpoints are removed. */
    check_takes(&saves[1], SIDES * slab_bytes);
    check_ok(ot_checkpoint_prune(run.parent, 2, -1));
    assert_string_equal(fixture_names(run.parent), "step-00000002 step-00000003");
    check_takes(&saves[1], SIDES * slab_bytes);
    ot_store_close(run.store);
    run.store = NULL;
    check_takes(&saves[2], 3 * slab_bytes); /* the pins of the first checkpoint were never released */
    /* Another program has copied the checkpoint by hard links. */
    char here[600], there[600];
    snprintf(here, sizeof here, "%s/nvme-0.store", dir_of(&saves[2]));
    snprintf(there, sizeof there, "%s/backup", run.folder);
    assert_int_equal(link(here, there), 0);
    check_ok(ot_checkpoint_tidy(run.parent));
    check_takes(&saves[2], 3 * slab_bytes);
    assert_int_equal(unlink(there), 0);
    check_ok(ot_checkpoint_tidy(run.parent));
    check_takes(&saves[2], 2 * slab_bytes);
    check_whole(&saves[1]);
    check_whole(&saves[2]);
    check_ok(ot_checkpoint_prune(run.parent, 1, -1));
    check_takes(&saves[2], slab_bytes);
    check_whole(&saves[2]);
    close_run(&run);
}

/* Blocks of 512 bytes that the store's file of this checkpoint takes. */
static int64_t blocks_of(const struct saving *saving) {
    char path[600];
    struct stat info;
    snprintf(path, sizeof path, "%s/nvme-0.store", dir_of(saving));
    assert_int_equal(stat(path, &info), 0);
    return info.st_blocks;
}

/* The released content lies between two checkpoints that stay. A line in the log states how much was
 * released. */
static void test_space_between_checkpoints_is_given_back(void **state) {
    (void)state;
    struct run run;
    struct saving saves[3];
    int64_t slab_bytes = open_three_saves(&run, saves);
    ot_store_close(run.store);
    run.store = NULL;
    check_takes(&saves[2], 3 * slab_bytes);
    char log[256] = "", words[64];
    int64_t blocks = blocks_of(&saves[2]);
    int lines[2], stream = dup(2);
    assert_true(stream >= 0 && pipe(lines) == 0 && dup2(lines[1], 2) == 2);
    int rc = ot_checkpoint_prune(run.parent, 1, 1);
    assert_true(dup2(stream, 2) == 2);
    close(stream);
    close(lines[1]);
    check_ok(rc);
    assert_true(read(lines[0], log, sizeof log - 1) > 0);
    close(lines[0]);
    check_takes(&saves[2], 2 * slab_bytes);
    check_whole(&saves[0]);
    check_whole(&saves[2]);
    snprintf(words, sizeof words, "freed %.1f MB", (double)(blocks - blocks_of(&saves[2])) * 512 / 1e6);
    assert_non_null(strstr(log, words));
    close_run(&run);
}

/* ---- processes that end ---- */

/* Saves with a store of its own. */
static int save_seventh(void *context) {
    struct run *run = context;
    open_store(run);
    write_extents(run, 7);
    struct saving saving = {.parent = run->parent,
                            .chain = &run->chain,
                            .step = 7,
                            .seed = 7,
                            .io_engine = OT_IO_POOL,
                            .faulty = true,
                            .store = run->store};
    for (int i = 0; i < 2; i++)
        saving.pins[i] = ot_store_pin_extent(run->store, i);
    return fixture_save(&saving);
}

static void test_process_ends_at_every_call(void **state) {
    (void)state;
    struct run run;
    open_run(&run);
    write_extents(&run, 1);
    struct saving old = save_step(&run, 1, 1), new = old;
    ot_store_close(run.store);
    run.store = NULL;
    new.step = new.seed = 7;
    bool killed = true;
    for (int at = 0; killed; at++) {
        fixture_clear_fault();
        fault.calls = CALL_ALL;
        fault.at = at;
        fault.share = 50;
        killed = !fixture_runs_in_child(save_seventh, &run);
        check_ok(ot_store_remove_stale(run.folder));
        check_ok(ot_checkpoint_tidy(run.parent));
        check_whole(&old);
        assert_string_equal(fixture_names(run.folder), "checkpoints");
        check_takes(&old, run.chain.slabs[1].n_params * 12);
        if (!killed || strcmp(fixture_names(run.parent), "step-00000001") != 0) {
            assert_string_equal(fixture_names(run.parent), "step-00000001 step-00000007");
            check_whole(&new);
            check_takes(&new, run.chain.slabs[1].n_params * 12); /* nothing else of the store is left */
            check_ok(ot_checkpoint_remove(dir_of(&new)));
        }
    }
    close_run(&run);
}

static void test_where_files_can_be_linked(void **state) {
    (void)state;
    struct run run;
    open_run(&run);
    assert_true(ot_checkpoint_can_refer(run.parent, run.folder));
    assert_false(ot_checkpoint_can_refer(run.parent, "/proc"));
    char later[512]; /* the first start of a run asks before it makes its directories */
    snprintf(later, sizeof later, "%s/out/new/checkpoints", run.folder);
    assert_true(ot_checkpoint_can_refer(later, run.folder));
    assert_false(ot_checkpoint_can_refer(later, "/proc"));
    assert_false(ot_checkpoint_can_refer("/proc/new/checkpoints", run.folder));
    assert_true(ot_checkpoint_can_refer("new/checkpoints", "."));
    write_file(run.folder, "file", "", 0); /* a directory cannot be made below a file */
    snprintf(later, sizeof later, "%s/file/checkpoints", run.folder);
    assert_false(ot_checkpoint_can_refer(later, run.folder));
    char longest[PATH_MAX + 1]; /* with its terminator the path is one byte too long */
    memset(longest, '/', PATH_MAX);
    longest[PATH_MAX] = '\0';
    memcpy(longest, run.folder, strlen(run.folder));
    assert_false(ot_checkpoint_can_refer(longest, run.folder));
    longest[PATH_MAX - 1] = '\0';
    assert_true(ot_checkpoint_can_refer(longest, run.folder));
    assert_false(ot_checkpoint_can_refer(run.parent, "/nowhere/at/all"));
    close_run(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_not_copied_outlives_the_store),
        cmocka_unit_test(test_order_of_flushes),
        cmocka_unit_test(test_extents_that_were_never_written),
        cmocka_unit_test(test_space_of_removed_checkpoints_is_given_back),
        cmocka_unit_test(test_space_between_checkpoints_is_given_back),
        cmocka_unit_test(test_process_ends_at_every_call),
        cmocka_unit_test(test_where_files_can_be_linked),
    };
    return cmocka_run_group_tests_name("checkpoints and the store", tests, NULL, NULL);
}
