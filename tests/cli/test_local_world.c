/* Local ranks that connect: this program starts itself several times (launch.h), and each copy finds its rank
 * (ranks.h) and opens a world (world.h), as a training run does. */
#include "tests/support/check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/cli/launch.h"

enum { RANKS = 4 };

/* ---- a rank ---- */

static int fail_with(struct ot_world *world, int rc) {
    struct ot_error why;
    ot_error_save(&why, rc);
    return ot_world_fail(world, &why);
}

static int gather(struct ot_world *world) {
    int mine = 1 + ot_world_ranks(world)->rank, all[RANKS];
    OT_TRY(ot_world_all_gather(world, &mine, sizeof mine, all));
    for (int rank = 0; rank < RANKS; rank++)
        if (all[rank] != 1 + rank)
            return ot_fail(OT_E_INTERNAL, "rank %d sent %d", rank, all[rank]);
    return 0;
}

/* What a rank does: "ends", "fails" or "kills". */
static int act(struct ot_world *world, const char *how) {
    int rc = gather(world);
    if (rc == 0 && ot_world_ranks(world)->rank == 2 && strcmp(how, "kills") == 0)
        raise(SIGKILL);
    if (rc == 0 && ot_world_ranks(world)->rank == 2 && strcmp(how, "fails") == 0)
        rc = fail_with(world, ot_fail(OT_E_BUDGET, "no memory on this rank"));
    while (rc == 0 && strcmp(how, "ends") != 0)
        rc = gather(world);
    return rc;
}

static int run_rank(const char *how) {
    struct ot_launch_request request = {.node_rank = -1, .visible_gpus = OT_CPU_RANKS};
    struct ot_launch launch;
    struct ot_world *world = NULL;
    int rc = ot_ranks_find(&request, &launch);
    struct ot_world_config config = {
        .ranks = launch.ranks, .timeout_seconds = 30, .listener = rc < 0 ? -1 : launch.listener};
    if (rc == 0)
        rc = ot_world_open(&config, &world);
    if (rc == 0)
        rc = act(world, how);
    if (rc < 0)
        ot_log(OT_LOG_ERROR, "%s", ot_error_text());
    ot_world_close(world);
    return -rc;
}

/* ---- the tests ---- */

static int launch(const char *how, const char *folder) {
    char *argv[] = {"test_local_world", (char *)(uintptr_t)how, NULL};
    struct ot_launch facts = {
        .ranks = {.ranks = RANKS, .local_ranks = RANKS}, .n_start = RANKS, .listener = -1};
    struct ot_local_config config = {.launch = &facts, .argv = argv, .log_dir = folder, .notice_seconds = 60};
    int code = -1, kept = dup(STDERR_FILENO);
    char path[256];
    snprintf(path, sizeof path, "%s/err", folder);
    int err = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(kept >= 0 && err >= 0 && dup2(err, STDERR_FILENO) >= 0);
    int rc = ot_launch_local(&config, &code);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(err);
    check_ok(rc);
    return code;
}

static void check_text(const char *folder, const char *words) {
    char path[256], text[4096];
    snprintf(path, sizeof path, "%s/err", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    if (!strstr(text, words))
        fail_msg("'%s' is not in '%s'", words, text);
}

static void local_ranks_connect(void **state) {
    (void)state;
    char *folder = make_folder();
    assert_int_equal(launch("ends", folder), 0);
    remove_folder(folder);
}

static void a_local_rank_that_fails_gives_its_code(void **state) {
    (void)state;
    char *folder = make_folder();
    double begin = ot_clock_seconds();
    assert_int_equal(launch("fails", folder), OT_E_BUDGET);
    assert_true(ot_clock_seconds() - begin < 30); /* nobody waited for SIGTERM */
    check_text(folder, "error: rank 2 (host ");   /* rank 0 says it first */
    check_text(folder, "): no memory on this rank\n");
    check_text(folder, "note    rank 2 failed with exit code 4; its output is in ");
    remove_folder(folder);
}

static void a_local_rank_that_is_killed_is_named(void **state) {
    (void)state;
    char *folder = make_folder();
    double begin = ot_clock_seconds();
    assert_int_equal(launch("kills", folder), OT_E_COMM);
    assert_true(ot_clock_seconds() - begin < 30);
    check_text(folder, ") is lost: ");
    check_text(folder, "note    rank 2 was killed by signal 9 (Killed)");
    remove_folder(folder);
}

int main(int argc, char **argv) {
    if (getenv(OT_RANKS_VARIABLE) && argc == 2)
        return run_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_ranks_connect),
        cmocka_unit_test(a_local_rank_that_fails_gives_its_code),
        cmocka_unit_test(a_local_rank_that_is_killed_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
