/* A checkpoint that several ranks write together. It exists only when the segments of all of them are joined.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/checkpoint/reader.h"
#include "tests/checkpoint/fixture.h"

enum { RANKS = 3, STEP = 7, SEED = 5 };

struct rank {
    struct ot_checkpoint_writer *writer;
    void *memory;
};

struct team {
    char *folder;
    struct ot_chain chain;
    struct rank ranks[RANKS];
};

/* other: the directory of the last rank; NULL: that of all. */
static void open_ranks_in(struct team *t, const char *other, const char *hosts) {
    struct ot_checkpoint_record record = {.progress = {.step = STEP, .loss_scale = 1},
                                          .library = "test",
                                          .device = "none",
                                          .made = "now",
                                          .hosts = hosts};
    t->folder = make_folder();
    t->chain = fixture_chain(OT_BF16, true);
    for (int r = 0; r < RANKS; r++) {
        struct rank *rank = &t->ranks[r];
        bool is_apart = other && r == RANKS - 1;
        struct ot_checkpoint_writer_config config = {.parent = is_apart ? other : t->folder,
                                                     .chain = &t->chain,
                                                     .record = &record,
                                                     .n_slots = 2,
                                                     .rank = r,
                                                     .ranks = RANKS,
                                                     .joins = r > 0 && !is_apart};
        config.memory = rank->memory = aligned_alloc(4096, 2 * ot_segment_slot_bytes(OT_BF16));
        assert_non_null(rank->memory);
        check_ok(ot_checkpoint_writer_open(&config, &rank->writer));
    }
}

static void open_ranks(struct team *t) {
    open_ranks_in(t, NULL, NULL);
}

/* Closes the others first: they must leave the directory to rank 0. */
static void close_ranks(struct team *t) {
    for (int r = RANKS - 1; r >= 0; r--) {
        ot_checkpoint_writer_close(t->ranks[r].writer);
        free(t->ranks[r].memory);
    }
}

/* Rank r writes its third of each slab. The thirds of small slabs are uneven, and the last may be empty. */
static void write_third(struct team *t, int r) {
    struct ot_snapshot_sink sink = ot_checkpoint_writer_sink(t->ranks[r].writer);
    for (int slab = 0; slab < t->chain.n_slabs; slab++) {
        int64_t params = t->chain.slabs[slab].n_params, share = params / RANKS + 1, first = r * share;
        int64_t end = first + share < params ? first + share : params;
        for (int64_t n; first < end; first += n) {
            void *memory;
            n = end - first < OT_SEGMENT_PARAMS ? end - first : OT_SEGMENT_PARAMS;
            struct ot_segment segment = {slab, first, n, true, true, OT_STATE_F32, OT_MASTERS_F32, false};
            check_ok(sink.room(sink.context, &memory));
            fixture_fill(OT_BF16, SEED, &segment, memory);
            check_ok(sink.put(sink.context, &segment, memory));
        }
    }
    check_ok(sink.end(sink.context));
}

static int join(struct team *t, int from) {
    unsigned char *bytes;
    size_t n;
    check_ok(ot_checkpoint_writer_share(t->ranks[from].writer, &bytes, &n));
    int rc = ot_checkpoint_writer_add(t->ranks[0].writer, bytes, n);
    free(bytes);
    return rc;
}

static void test_joined_segments_are_a_checkpoint(void **state) {
    struct team t;
    char path[512];
    int64_t written, referred;
    (void)state;
    open_ranks(&t);
    for (int r = RANKS - 1; r >= 0; r--)
        write_third(&t, r);
    assert_string_equal(fixture_names(t.folder), "step-00000007.partial");
    check_ok(join(&t, 2));
    check_ok(join(&t, 1));
    check_ok(ot_checkpoint_writer_seal(t.ranks[0].writer));
    ot_checkpoint_writer_count(t.ranks[0].writer, &written, &referred);
    assert_true(written >= ot_checkpoint_state_bytes(&t.chain));
    assert_int_equal(referred, 0);
    close_ranks(&t);
    assert_string_equal(fixture_names(t.folder), "step-00000007");
    snprintf(path, sizeof path, "%s/step-00000007", t.folder);
    struct saving saving = {.parent = t.folder, .chain = &t.chain, .step = STEP, .seed = SEED};
    const char *found = fixture_examine(&saving, path);
    if (found)
        fail_msg("%s", found);
    assert_string_equal(fixture_names(path),
                        "checkpoint.json manifest.bin state-1.bin state-2.bin state.bin");
    remove_folder(t.folder);
}

/* Ranks 0 and 1 share a directory, and rank 2 has one of its own. */
static void test_two_directories_have_the_same_manifest(void **state) {
    struct team t;
    struct ot_checkpoint *checkpoint;
    unsigned char *bytes;
    size_t n;
    char here[512], there[512], host[OT_RECORD_HOST_BYTES];
    char *other = make_folder();
    (void)state;
    open_ranks_in(&t, other, "a a b");
    for (int r = 0; r < RANKS; r++)
        write_third(&t, r);
    check_ok(join(&t, 1));
    check_ok(join(&t, 2));
    check_ok(ot_checkpoint_writer_share(t.ranks[0].writer, &bytes, &n));
    check_fails(ot_checkpoint_writer_take(t.ranks[2].writer, bytes, n - 1), OT_E_INPUT, "damaged");
    check_ok(ot_checkpoint_writer_take(t.ranks[2].writer, bytes, n));
    free(bytes);
    check_ok(ot_checkpoint_writer_seal(t.ranks[0].writer));
    check_ok(ot_checkpoint_writer_seal(t.ranks[2].writer));
    close_ranks(&t);
    snprintf(here, sizeof here, "%s/step-00000007", t.folder);
    snprintf(there, sizeof there, "%s/step-00000007", other);
    assert_string_equal(fixture_names(here), "checkpoint.json manifest.bin state-1.bin state.bin");
    assert_string_equal(fixture_names(there), "checkpoint.json manifest.bin state-2.bin");
    check_ok(ot_checkpoint_open(there, &checkpoint));
    check_fails(ot_checkpoint_check_whole(checkpoint), OT_E_INPUT,
                "state.bin is not here: rank 0 kept it on host a");
    assert_int_equal(ot_error_cause(), OT_CAUSE_CHECKPOINT);
    assert_string_equal(ot_checkpoint_record_host(ot_checkpoint_record(checkpoint), 2, host), "b");
    assert_string_equal(ot_checkpoint_record_host(ot_checkpoint_record(checkpoint), 3, host), "?");
    ot_checkpoint_close(checkpoint);
    strcat(here, "/state-2.bin");
    strcat(there, "/state-2.bin");
    assert_int_equal(rename(there, here), 0);
    *strrchr(here, '/') = '\0';
    struct saving saving = {.parent = t.folder, .chain = &t.chain, .step = STEP, .seed = SEED};
    const char *found = fixture_examine(&saving, here);
    if (found)
        fail_msg("%s", found);
    remove_folder(t.folder);
    remove_folder(other);
}

static void test_a_missing_rank_leaves_nothing(void **state) {
    struct team t;
    (void)state;
    open_ranks(&t);
    for (int r = 0; r < RANKS; r++)
        write_third(&t, r);
    check_ok(join(&t, 2));
    check_fails(ot_checkpoint_writer_seal(t.ranks[0].writer), OT_E_INTERNAL, "was not complete");
    close_ranks(&t);
    assert_string_equal(fixture_names(t.folder), "");
    remove_folder(t.folder);
}

static void test_a_rank_counts_once(void **state) {
    struct team t;
    (void)state;
    open_ranks(&t);
    for (int r = 0; r < RANKS; r++)
        write_third(&t, r);
    check_ok(join(&t, 1));
    check_fails(join(&t, 1), OT_E_INTERNAL, "two ranks have written state-1.bin");
    check_ok(join(&t, 2));
    check_ok(ot_checkpoint_writer_seal(t.ranks[0].writer));
    close_ranks(&t);
    assert_string_equal(fixture_names(t.folder), "step-00000007");
    remove_folder(t.folder);
}

static void test_other_ranks_need_the_directory(void **state) {
    struct ot_chain chain = fixture_chain(OT_F32, false);
    struct ot_checkpoint_record record = {.progress = {.step = STEP, .loss_scale = 1}};
    struct ot_checkpoint_writer *writer;
    char *folder = make_folder();
    struct ot_checkpoint_writer_config config = {.parent = folder,
                                                 .chain = &chain,
                                                 .record = &record,
                                                 .n_slots = 2,
                                                 .rank = 1,
                                                 .ranks = 2,
                                                 .joins = true};
    (void)state;
    check_fails(ot_checkpoint_writer_open(&config, &writer), OT_E_IO,
                "ranks need a directory that they share");
    assert_string_equal(fixture_names(folder), "");
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_segments_are_a_checkpoint),
        cmocka_unit_test(test_two_directories_have_the_same_manifest),
        cmocka_unit_test(test_a_missing_rank_leaves_nothing),
        cmocka_unit_test(test_a_rank_counts_once),
        cmocka_unit_test(test_other_ranks_need_the_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
