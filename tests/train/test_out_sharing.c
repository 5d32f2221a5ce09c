/* Which ranks share a directory, and who leads there. Each rank is a process (world_ranks.h). */
#include "tests/offload/comm/world_ranks.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/train/out_name.h"

enum { RANKS = 4 };

static char *folder;
static struct ot_options options; /* of all ranks, but for: */
static const char *const *outs;   /* [RANKS]: --out, inside the folder */

/* Returns what the rank has found as the text of an error: "leads local of 2 on 4 hosts". */
static int find_sharing(struct ot_world *world) {
    struct ot_out_sharing sharing;
    struct ot_options own = options;
    char out[700], hosts[32] = "";
    snprintf(out, sizeof out, "%s/%s", folder, outs[ot_world_ranks(world)->rank]);
    own.out = out;
    OT_TRY(ot_out_sharing_find(&own, world, &sharing));
    int n = sharing.hosts != NULL;
    for (const char *at = sharing.hosts; at && (at = strchr(at, ' ')); at++)
        n++;
    if (n > 0)
        snprintf(hosts, sizeof hosts, " on %d hosts", n);
    int rc = ot_fail(OT_E_COMM, "%s%s of %d%s", sharing.leads ? "leads" : "follows",
                     sharing.is_local ? " local" : "", sharing.sharers, hosts);
    ot_out_sharing_free(&sharing);
    return rc;
}

static int open_folders(void **state) {
    folder = make_folder();
    options = (struct ot_options){0};
    write_under(folder, "a/file", "");
    write_under(folder, "b/file", "");
    return setup_ranks(state);
}

static int close_folders(void **state) {
    remove_folder(folder);
    return teardown_ranks(state);
}

static void run(const char *const out_of[RANKS]) {
    outs = out_of;
    start_ranks(RANKS, find_sharing);
    await_ranks();
}

static void expect(const char *const out_of[RANKS], const char *const found[RANKS]) {
    run(out_of);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(shared->reports[rank].rc, -OT_E_COMM);
        assert_string_equal(shared->reports[rank].text, found[rank]);
    }
    void *state = NULL;
    teardown_ranks(&state);
    setup_ranks(&state);
}

#define EACH(...) ((const char *const[RANKS]){__VA_ARGS__})
static const char *const all_share[] = {"leads of 4", "follows of 4", "follows of 4", "follows of 4"};

static void one_directory_is_led_by_rank_0(void **state) {
    (void)state;
    char link[700];
    expect(EACH("a", "a", "a", "a"), all_share);
    expect(EACH("a", "a/", "a", "a//"), all_share);
    expect(EACH("a/new/run", "a/new/run", "a/new/run/", "a/new/run"), all_share);
    /* Hosts may mount it at different paths. */
    snprintf(link, sizeof link, "%s/link", folder);
    assert_int_equal(symlink("a", link), 0);
    expect(EACH("a", "link", "a", "link"), all_share);
    expect(EACH("a/run", "link/run", "link/run", "a/run"), all_share);
    expect(EACH("a", "b/../a", "a", "a"), all_share);
}

static void several_directories_have_a_leader_each(void **state) {
    (void)state;
    options.save_local = true;
    expect(EACH("a", "a", "b", "b"), EACH("leads local of 2 on 4 hosts", "follows local of 2 on 4 hosts",
                                          "leads local of 2 on 4 hosts", "follows local of 2 on 4 hosts"));
    expect(EACH("a", "b", "b", "b"), EACH("leads local of 1 on 4 hosts", "leads local of 3 on 4 hosts",
                                          "follows local of 3 on 4 hosts", "follows local of 3 on 4 hosts"));
    expect(EACH("b", "a", "b", "c"), EACH("leads local of 2 on 4 hosts", "leads local of 1 on 4 hosts",
                                          "follows local of 2 on 4 hosts", "leads local of 1 on 4 hosts"));
    /* Neither exists yet, and both have the same parent. */
    expect(EACH("new", "new", "newer", "newer"),
           EACH("leads local of 2 on 4 hosts", "follows local of 2 on 4 hosts", "leads local of 2 on 4 hosts",
                "follows local of 2 on 4 hosts"));
}

static void what_they_look_with_is_removed(void **state) {
    (void)state;
    char path[700];
    options.save_local = true;
    expect(EACH("a", "b", "a", "b"), EACH("leads local of 2 on 4 hosts", "leads local of 2 on 4 hosts",
                                          "follows local of 2 on 4 hosts", "follows local of 2 on 4 hosts"));
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i == 0 ? "a" : i == 1 ? "b" : "");
        DIR *dir = opendir(path);
        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir));)
            assert_true(strncmp(entry->d_name, ".offload", 8) != 0);
        closedir(dir);
    }
}

/* Each rank names rank 0's directory, not its own. */
static void several_directories_need_the_option(void **state) {
    (void)state;
    char words[800];
    snprintf(words, sizeof words, " (%s/a): give a directory that all hosts share, or --save-local", folder);
    run(EACH("a", "a", "a", "b"));
    for (int rank = 0; rank < RANKS; rank++) {
        check_report_code(rank, OT_E_USAGE, "rank 3 (host ");
        check_report_code(rank, OT_E_USAGE, "does not see the --out directory of rank 0 (host ");
        check_report_code(rank, OT_E_USAGE, words);
    }
}

static void the_option_without_need_is_said_once(void **state) {
    (void)state;
    options.save_local = true;
    run(EACH("a", "a", "a", "a"));
    const char *said = strstr(log_text(), "--save-local has no effect: all ranks share the directory");
    assert_non_null(said);
    assert_null(strstr(said + 1, "--save-local has no effect"));
}

/* Rank 0 cannot write there, and soon says why. So nobody is refused for it here. */
static void a_directory_that_cannot_be_written_is_taken_to_be_shared(void **state) {
    (void)state;
    char link[700];
    snprintf(link, sizeof link, "%s/system", folder);
    assert_int_equal(symlink("/proc", link), 0);
    expect(EACH("system/out", "b", "a", "b"), all_share);
}

/* Then nothing is written, and the option alone decides. */
static void without_saving_nobody_looks(void **state) {
    (void)state;
    options.no_save = true;
    expect(EACH("a", "b", "a", "b"), all_share);
    options.save_local = true;
    expect(EACH("a", "a", "a", "a"),
           EACH("leads local of 4", "follows local of 4", "follows local of 4", "follows local of 4"));
    options = (struct ot_options){.dry_run = true};
    expect(EACH("a", "b", "a", "b"), all_share);
}

static void one_rank_leads_alone(void **state) {
    struct ot_out_sharing sharing;
    (void)state;
    options.save_local = true;
    check_ok(ot_out_sharing_find(&options, NULL, &sharing));
    assert_true(sharing.leads && sharing.sharers == 1 && !sharing.is_local && !sharing.hosts);
    ot_out_sharing_free(&sharing);
    assert_false(sharing.leads);
}

int main(void) {
#define sharing_test(test) cmocka_unit_test_setup_teardown(test, open_folders, close_folders)
    const struct CMUnitTest tests[] = {
        sharing_test(one_directory_is_led_by_rank_0),
        sharing_test(several_directories_have_a_leader_each),
        sharing_test(what_they_look_with_is_removed),
        sharing_test(several_directories_need_the_option),
        sharing_test(the_option_without_need_is_said_once),
        sharing_test(a_directory_that_cannot_be_written_is_taken_to_be_shared),
        sharing_test(without_saving_nobody_looks),
        sharing_test(one_rank_leads_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
