/* A world of ranks: gathers, and every way in which a rank can fail. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "offload/comm/plugin.h"
#include "src/base/clock.h"
#include "tests/offload/comm/world_ranks.h"

static void pause_seconds(double seconds) {
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

static int gather_number(struct ot_world *world) {
    int mine = ot_world_ranks(world)->rank, all[TEST_RANKS];
    return ot_world_all_gather(world, &mine, sizeof mine, all);
}

/* Gathers until something fails. */
static int gather_for_ever(struct ot_world *world) {
    int rc;
    do {
        pause_seconds(0.002);
        rc = gather_number(world);
    } while (rc == 0);
    return rc;
}

/* ---- gathers ---- */

static int gather_many_sizes(struct ot_world *world) {
    const struct ot_ranks *ranks = ot_world_ranks(world);
    unsigned char *mine = malloc(OT_COMM_MOST_CONTROL_BYTES + 8);
    unsigned char *all = malloc((size_t)ranks->ranks * OT_COMM_MOST_CONTROL_BYTES);
    unsigned char *want = malloc(OT_COMM_MOST_CONTROL_BYTES + 8);
    int rc = 0;
    for (uint64_t n = 0; n < 60 && rc == 0; n++) {
        size_t bytes = n < 3 ? n : n == 3 ? OT_COMM_MOST_CONTROL_BYTES : mix_bits(n) % 20000;
        fill_bytes(mine, (bytes + 7) / 8 * 8, 100 * n + (uint64_t)ranks->rank);
        errno = EINTR; /* left by an earlier call: one that succeeds does not clear it */
        rc = ot_world_all_gather(world, mine, bytes, all);
        for (int rank = 0; rank < ranks->ranks && rc == 0; rank++) {
            fill_bytes(want, (bytes + 7) / 8 * 8, 100 * n + (uint64_t)rank);
            if (memcmp(all + (size_t)rank * bytes, want, bytes) != 0)
                rc = ot_fail(OT_E_INTERNAL, "gather %d has another part of rank %d", (int)n, rank);
        }
    }
    if (rc == 0 && (ot_world_hosts(world) != 1 || ranks->local_rank != ranks->rank ||
                    ranks->local_ranks != ranks->ranks))
        rc = ot_fail(OT_E_INTERNAL, "%d hosts, local rank %d of %d", ot_world_hosts(world), ranks->local_rank,
                     ranks->local_ranks);
    free(mine);
    free(all);
    free(want);
    return rc;
}

static void gathers_bring_the_parts_of_all(void **state) {
    static const int sizes[] = {1, 2, 3, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        start_ranks(sizes[i], gather_many_sizes);
        await_ranks();
        check_no_errors(sizes[i]);
        assert_int_equal(shared->n_open, sizes[i]);
        teardown_ranks(state);
        setup_ranks(state);
    }
}

static int tell_names(struct ot_world *world) {
    return ot_fail(OT_E_COMM, "%s, %s", ot_world_name(world, 0), ot_world_name(world, 1));
}

static void ranks_have_names(void **state) {
    (void)state;
    char host[128], want[600];
    gethostname(host, sizeof host);
    start_ranks(2, tell_names);
    snprintf(want, sizeof want, "rank 0 (host %s, process %d), rank 1 (host %s, process %d)", host,
             rank_process(0), host, rank_process(1));
    await_ranks();
    check_report(0, want);
    check_report(1, want);
}

static int gather_unequal(struct ot_world *world) {
    char mine[16] = "", all[TEST_RANKS * sizeof mine];
    OT_TRY(gather_number(world));
    return ot_world_all_gather(world, mine, ot_world_ranks(world)->rank == 1 ? 16 : 8, all);
}

static void unequal_sizes_name_the_rank(void **state) {
    (void)state;
    start_ranks(3, gather_unequal);
    await_ranks();
    for (int rank = 0; rank < 3; rank++) {
        check_report(rank, "exchanges 16 bytes in exchange 3, but rank 0");
        assert_int_equal(strncmp(shared->reports[rank].text, "rank 1 (host ", 13), 0);
        assert_int_equal(shared->reports[rank].n_losses, 1);
    }
}

static int gather_too_much(struct ot_world *world) {
    char byte = 0;
    return ot_world_all_gather(world, &byte, OT_COMM_MOST_CONTROL_BYTES + 1, &byte) == -OT_E_INTERNAL
               ? gather_number(world)
               : ot_fail(OT_E_INTERNAL, "took %d bytes", OT_COMM_MOST_CONTROL_BYTES + 1);
}

static void too_large_gathers_are_refused(void **state) {
    (void)state;
    start_ranks(2, gather_too_much);
    await_ranks();
    check_no_errors(2);
}

static int gather_late(struct ot_world *world) {
    if (ot_world_ranks(world)->rank == 2)
        while (ot_world_error(world) == 0)
            pause_seconds(0.01);
    return gather_number(world);
}

static void a_late_rank_breaks_the_world(void **state) {
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        struct ot_world_config config = config_of(rank, 3);
        config.timeout_seconds = 1.5;
        start_rank(&config, gather_late);
    }
    await_ranks();
    for (int rank = 0; rank < 3; rank++)
        check_report(rank, "rank 2 of 3 did not arrive at an exchange within 1.5 s");
}

static int gather_without_root(struct ot_world *world) {
    if (ot_world_ranks(world)->rank == 0)
        while (ot_world_error(world) == 0)
            pause_seconds(0.01);
    return gather_number(world);
}

static void a_late_rank_0_breaks_the_world(void **state) {
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct ot_world_config config = config_of(rank, 2);
        config.timeout_seconds = 1.5;
        start_rank(&config, gather_without_root);
    }
    await_ranks();
    for (int rank = 0; rank < 2; rank++) {
        check_report(rank, "did not end an exchange within 1.5 s");
        check_report(rank, "rank 0 (");
    }
}

static int leave_early(struct ot_world *world) {
    OT_TRY(gather_number(world));
    return ot_world_ranks(world)->rank == 1 ? 0 : gather_number(world);
}

static void a_rank_that_ends_early_is_named(void **state) {
    (void)state;
    double begin = ot_clock_seconds();
    start_ranks(3, leave_early);
    await_ranks();
    assert_true(ot_clock_seconds() - begin < 15); /* well before the deadline */
    check_report(0, "rank 1 ended before the others");
    check_report(2, "rank 1 ended before the others");
    assert_int_equal(shared->reports[1].rc, 0);
}

/* ---- lost ranks ---- */

static double seconds_since(double begin, int rank) {
    return shared->reports[rank].seconds - begin;
}

static void check_killed(int victim) {
    char words[64];
    start_ranks(3, gather_for_ever);
    await_open(3);
    snprintf(words, sizeof words, "rank %d (host ", victim);
    double begin = ot_clock_seconds();
    kill_rank(victim, SIGKILL);
    await_ranks();
    for (int rank = 0; rank < 3; rank++)
        if (rank != victim) {
            check_report(rank, words);
            check_report(rank, "is lost: ");
            assert_true(seconds_since(begin, rank) < (tests_are_brief() ? 10 : 2));
            assert_int_equal(shared->reports[rank].n_losses, 1);
        }
}

static void a_killed_rank_ends_all(void **state) {
    (void)state;
    check_killed(1);
}

static void a_killed_rank_0_ends_all(void **state) {
    (void)state;
    check_killed(0);
}

static void check_stopped(int victim) {
    char words[64];
    for (int rank = 0; rank < 3; rank++) {
        struct ot_world_config config = config_of(rank, 3);
        config.silence_seconds = 2;
        start_rank(&config, gather_for_ever);
    }
    await_open(3);
    kill_rank(victim, SIGSTOP);
    pause_seconds(4);
    kill_rank(victim, SIGCONT);
    await_ranks();
    snprintf(words, sizeof words, "rank %d (host ", victim);
    for (int rank = 0; rank < 3; rank++)
        if (rank != victim) {
            check_report(rank, words);
            check_report(rank, "is lost: it was silent for 2 s");
        }
    assert_int_equal(shared->reports[victim].rc, -OT_E_COMM);
}

static void a_stopped_rank_ends_all(void **state) {
    (void)state;
    check_stopped(2);
    check_report(2, "it was silent for 2 s"); /* it reads what the others think of it */
}

static void a_stopped_rank_0_ends_all(void **state) {
    (void)state;
    check_stopped(0);
}

/* Ctrl-Z stops all ranks. Nobody is to blame when they go on. */
static int wait_for_common_go(struct ot_world *world) {
    int go, all[TEST_RANKS];
    do {
        pause_seconds(0.002);
        go = atomic_load(&shared->go);
        OT_TRY(ot_world_all_gather(world, &go, sizeof go, all));
    } while (!all[0]);
    return 0;
}

static void a_pause_of_all_is_no_loss(void **state) {
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        struct ot_world_config config = config_of(rank, 3);
        config.silence_seconds = 2;
        start_rank(&config, wait_for_common_go);
    }
    await_open(3);
    for (int rank = 0; rank < 3; rank++)
        kill_rank(rank, SIGSTOP);
    pause_seconds(3.5);
    for (int rank = 0; rank < 3; rank++)
        kill_rank(rank, SIGCONT);
    pause_seconds(0.3);
    atomic_store(&shared->go, 1);
    await_ranks();
    check_no_errors(3);
}

/* ---- ranks that fail by themselves ---- */

static int fail_with(struct ot_world *world, int rc) {
    struct ot_error why;
    ot_error_save(&why, rc);
    return ot_world_fail(world, &why);
}

static int fail_on_rank_2(struct ot_world *world) {
    if (ot_world_ranks(world)->rank != 2)
        return gather_for_ever(world);
    OT_TRY(gather_number(world));
    int rc = fail_with(world, ot_fail(OT_E_NUMERIC, "the loss is not finite"));
    if (rc != -OT_E_NUMERIC || strcmp(ot_error_text(), "the loss is not finite") != 0)
        return ot_fail(OT_E_INTERNAL, "the rank's own error became %d %s", rc, ot_error_text());
    return ot_world_error(world);
}

static int fail_on_rank_0(struct ot_world *world) {
    if (ot_world_ranks(world)->rank != 0)
        return gather_for_ever(world);
    fail_with(world, ot_fail(OT_E_NUMERIC, "the loss is not finite"));
    return ot_world_error(world);
}

static void a_reason_reaches_all(void **state) {
    rank_body *const bodies[] = {fail_on_rank_0, fail_on_rank_2};
    static const char *const names[] = {"rank 0 (host ", "rank 2 (host "};
    for (int i = 0; i < 2; i++) {
        start_ranks(3, bodies[i]);
        await_ranks();
        for (int rank = 0; rank < 3; rank++) {
            check_report(rank, "): the loss is not finite");
            assert_int_equal(strncmp(shared->reports[rank].text, names[i], strlen(names[i])), 0);
            assert_int_equal(shared->reports[rank].n_losses, 1);
        }
        teardown_ranks(state);
        setup_ranks(state);
    }
}

/* Rank 1 sees a broken connection before rank 2 says why it ends. */
static int fail_twice(struct ot_world *world) {
    int rank = ot_world_ranks(world)->rank;
    if (rank == 1)
        return fail_with(world, ot_fail(OT_E_COMM, "the connection to rank 2 closed"));
    if (rank != 2)
        return gather_for_ever(world);
    pause_seconds(0.2);
    fail_with(world, ot_fail(OT_E_BUDGET, "no memory"));
    return ot_world_error(world);
}

static void the_true_reason_wins(void **state) {
    (void)state;
    start_ranks(4, fail_twice);
    await_ranks();
    for (int rank = 0; rank < 4; rank++) {
        check_report(rank, "): no memory");
        assert_int_equal(strncmp(shared->reports[rank].text, "rank 2 (host ", 13), 0);
    }
}

static int fail_after_a_kill(struct ot_world *world) {
    int rank = ot_world_ranks(world)->rank;
    while (rank == 1 && !atomic_load(&shared->go))
        pause_seconds(0.001);
    if (rank == 1)
        return fail_with(world, ot_fail(OT_E_COMM, "the connection to rank 2 closed"));
    return gather_for_ever(world);
}

static void a_loss_wins_over_its_consequence(void **state) {
    (void)state;
    start_ranks(3, fail_after_a_kill);
    await_open(3);
    atomic_store(&shared->go, 1);
    pause_seconds(0.1); /* the consequence is known first */
    kill_rank(2, SIGKILL);
    await_ranks();
    check_report(0, "is lost: ");
    check_report(1, "is lost: ");
}

static void a_consequence_does_not_win_over_the_loss_before_it(void **state) {
    (void)state;
    start_ranks(3, fail_after_a_kill);
    await_open(3);
    kill_rank(2, SIGKILL);
    pause_seconds(0.1);
    atomic_store(&shared->go, 1);
    await_ranks();
    check_report(0, "is lost: ");
    check_report(1, "is lost: ");
}

static int fail_alone(struct ot_world *world) {
    return ot_world_ranks(world)->rank == 1 ? fail_with(world, ot_fail(OT_E_COMM, "the network card is gone"))
                                            : gather_for_ever(world);
}

static void a_consequence_counts_if_nothing_better_comes(void **state) {
    (void)state;
    start_ranks(3, fail_alone);
    await_ranks();
    for (int rank = 0; rank < 3; rank++)
        check_report(rank, "): the network card is gone");
}

static int fail_rescued(struct ot_world *world) {
    if (ot_world_ranks(world)->rank != 0)
        return gather_for_ever(world);
    int rc = fail_with(world, ot_fail_cause(OT_E_COMM, OT_CAUSE_RESCUED, "a stream broke; all is saved"));
    return ot_error_cause() == OT_CAUSE_RESCUED ? rc : ot_fail(OT_E_INTERNAL, "the cause is lost");
}

/* The rank whose reason counts learns it with its cause, which says what the sentence names. */
static void a_reason_of_the_rank_itself_keeps_its_cause(void **state) {
    (void)state;
    start_ranks(2, fail_rescued);
    await_ranks();
    for (int rank = 0; rank < 2; rank++)
        check_report(rank, "): a stream broke; all is saved");
}

static void count_loss(void *count) {
    atomic_fetch_add((atomic_int *)count, 1);
}

static int set_on_loss_late(struct ot_world *world) {
    atomic_int n = 0, none = 0;
    ot_world_on_loss(world, NULL, NULL);
    int rc = gather_for_ever(world);
    ot_world_on_loss(world, count_loss, &n);
    double until = ot_clock_seconds() + 10;
    while (n == 0 && ot_clock_seconds() < until)
        pause_seconds(0.01);
    ot_world_on_loss(world, count_loss, &none);
    pause_seconds(0.1);
    return n == 1 && none == 0 ? rc : ot_fail(OT_E_INTERNAL, "on_loss was called %d and %d times", n, none);
}

static void on_loss_is_called_once_also_if_set_later(void **state) {
    (void)state;
    struct ot_world_config config = config_of(0, 2);
    start_rank(&config, set_on_loss_late);
    config = config_of(1, 2);
    start_rank(&config, gather_for_ever);
    await_open(2);
    kill_rank(1, SIGKILL);
    await_ranks();
    check_report(0, "is lost: ");
    assert_int_equal(shared->reports[0].n_losses, 0);
}

static void one_rank_needs_no_network(void **state) {
    (void)state;
    struct ot_world_config config = {.ranks = {.rank = 0, .ranks = 1}, .listener = -1};
    struct ot_world *world;
    struct ot_error why = {.code = OT_E_IO, .text = "disk"};
    int mine = 7, all = 0;
    check_ok(ot_world_open(&config, &world));
    check_ok(ot_world_all_gather(world, &mine, sizeof mine, &all));
    check_ok(ot_world_all_gather(world, NULL, 0, NULL));
    assert_int_equal(all, 7);
    assert_int_equal(ot_world_hosts(world), 1);
    check_ok(ot_world_error(world));
    check_fails(ot_world_fail(world, &why), OT_E_IO, "disk");
    check_fails(ot_world_error(world), OT_E_COMM, "): disk");
    ot_world_close(world);
    ot_world_close(NULL);
}

static void sets_of_ranks_are_words(void **state) {
    (void)state;
    char text[OT_RANK_LIST_BYTES];
    assert_string_equal(ot_rank_list(8, text), "rank 3");
    assert_string_equal(ot_rank_list(1 << 2 | 1 << 5, text), "ranks 2 and 5");
    assert_string_equal(ot_rank_list(7, text), "ranks 0, 1 and 2");
    assert_true(strlen(ot_rank_list(UINT64_MAX, text)) < sizeof text - 1);
    assert_non_null(strstr(text, "61, 62 and 63"));
}

#define RANKS_TEST(name) cmocka_unit_test_setup_teardown(name, setup_ranks, teardown_ranks)

int main(void) {
    const struct CMUnitTest tests[] = {
        RANKS_TEST(gathers_bring_the_parts_of_all),
        RANKS_TEST(ranks_have_names),
        RANKS_TEST(unequal_sizes_name_the_rank),
        RANKS_TEST(too_large_gathers_are_refused),
        RANKS_TEST(a_late_rank_breaks_the_world),
        RANKS_TEST(a_reason_of_the_rank_itself_keeps_its_cause),
        RANKS_TEST(a_late_rank_0_breaks_the_world),
        RANKS_TEST(a_rank_that_ends_early_is_named),
        RANKS_TEST(a_killed_rank_ends_all),
        RANKS_TEST(a_killed_rank_0_ends_all),
        RANKS_TEST(a_stopped_rank_ends_all),
        RANKS_TEST(a_stopped_rank_0_ends_all),
        RANKS_TEST(a_pause_of_all_is_no_loss),
        RANKS_TEST(a_reason_reaches_all),
        RANKS_TEST(the_true_reason_wins),
        RANKS_TEST(a_loss_wins_over_its_consequence),
        RANKS_TEST(a_consequence_does_not_win_over_the_loss_before_it),
        RANKS_TEST(a_consequence_counts_if_nothing_better_comes),
        RANKS_TEST(on_loss_is_called_once_also_if_set_later),
        cmocka_unit_test(one_rank_needs_no_network),
        cmocka_unit_test(sets_of_ranks_are_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
