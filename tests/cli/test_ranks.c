/* Which rank a process is: every launcher in a fake environment, options, and what is refused. */
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

#include "src/cli/ranks.h"
#include "src/cli/ranks_state.h"

/* "NAME=VALUE NAME=VALUE": the environment. The last value of a name counts; "NAME=" unsets it. */
static const char *get_env(void *context, const char *name) {
    static char values[16][128];
    static int turn;
    char *value = NULL;
    size_t length = strlen(name);
    for (const char *at = context; *at; at += strspn(at, " ")) {
        size_t word = strcspn(at, " ");
        if (word > length && at[length] == '=' && memcmp(at, name, length) == 0) {
            value = values[turn = (turn + 1) % 16];
            snprintf(value, sizeof *values, "%.*s", (int)(word - length - 1), at + length + 1);
        }
        at += word;
    }
    return value;
}

static struct ot_launch_request request_of(const char *environment) {
    return (struct ot_launch_request){.node_rank = -1,
                                      .visible_gpus = OT_CPU_RANKS,
                                      .get_env = get_env,
                                      .context = (void *)(uintptr_t)environment};
}

/* The environment must give this description. */
static struct ot_launch check_found(const struct ot_launch_request *request, const char *want) {
    struct ot_launch launch;
    char text[OT_LAUNCH_TEXT_BYTES];
    check_ok(ot_ranks_find(request, &launch));
    assert_string_equal(ot_ranks_describe(&launch, text), want);
    return launch;
}

static struct ot_launch check_env(const char *environment, const char *want) {
    struct ot_launch_request request = request_of(environment);
    return check_found(&request, want);
}

static void check_refused(const char *environment, const char *words) {
    struct ot_launch_request request = request_of(environment);
    struct ot_launch launch;
    check_fails(ot_ranks_find(&request, &launch), OT_E_USAGE, words);
}

#define ALONE "rank 0 of 1 (local 0 of 1), found by default; rank 0 is at this host"
#define TORCHRUN                                                                                             \
    "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500 GROUP_RANK=1 "      \
    "TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True "
#define OPEN_MPI                                                                                             \
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "                            \
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-a-1@1 PMIX_RANK=3 "
#define HYDRA "PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3 "
#define SLURM                                                                                                \
    "SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_ID=3 "   \
    "SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_TASKS_PER_NODE=9 SLURM_STEP_NODELIST=n[02-04,7] "               \
    "SLURM_JOB_NODELIST=n[01-09] SLURM_JOB_ID=123456 "
#define PYTORCH_JOB                                                                                          \
    "RANK=1 WORLD_SIZE=4 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_NNODES=1:2 PET_NPROC_PER_NODE=2 "
#define TRAIN_JOB                                                                                            \
    "PET_NNODES=4 PET_NPROC_PER_NODE=auto PET_NODE_RANK=3 PET_MASTER_ADDR=job-node-0-0.job "                 \
    "PET_MASTER_PORT=29500 "

static void without_a_launcher_there_is_one_rank(void **state) {
    (void)state;
    assert_int_equal(check_env("", ALONE).n_start, 0);
    check_env("HOME=/root MASTER_ADDR=a MASTER_PORT=29500", ALONE);
    check_env("WORLD_SIZE=1", ALONE);
    check_env("RANK=0", ALONE);
}

static void torchrun_is_found(void **state) {
    (void)state;
    struct ot_launch launch =
        check_env(TORCHRUN, "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is at a:30500");
    assert_string_equal(launch.ranks.run_id, "torchrun-job7.2");
    assert_int_equal(launch.n_start, 0);
    check_env(TORCHRUN "MASTER_PORT=64535",
              "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is at a:65535");
    check_env(TORCHRUN "MASTER_PORT=64536", /* there is no port 65536 */
              "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is at a:63536");
    check_env(TORCHRUN "MASTER_PORT=65000",
              "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is at a:64000");
    check_env(TORCHRUN "PET_NNODES=4 PET_NODE_RANK=1 PET_MASTER_ADDR=a",
              "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is at a:30500");
    /* DeepSpeed's launcher */
    check_env("RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_SIZE=2 CROSS_RANK=0 CROSS_SIZE=1 MASTER_ADDR=127.0.0.1 "
              "MASTER_PORT=29500",
              "rank 1 of 2 (local 1 of 2), found by torchrun; rank 0 is at 127.0.0.1:30500");
    check_env("RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=29500",
              "rank 0 of 1 (local 0 of 1), found by torchrun; rank 0 is at a:30500");
}

static void an_incomplete_torchrun_is_an_error(void **state) {
    (void)state;
    check_refused(TORCHRUN "RANK=", "WORLD_SIZE is 8, but RANK is not set; start all ranks with torchrun");
    check_refused("RANK=1 WORLD_SIZE=2", "WORLD_SIZE is 2, but LOCAL_RANK is not set");
    check_refused(TORCHRUN "MASTER_PORT=", "WORLD_SIZE is 8, but MASTER_PORT is not set");
    check_refused(TORCHRUN "WORLD_SIZE=", "RANK is 3, but WORLD_SIZE is not above it");
    /* a batch script exports it for other programs */
    check_env(SLURM "WORLD_SIZE=7 MASTER_ADDR=n02 MASTER_PORT=29500",
              "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at n02:18456");
}

static void nonsense_is_an_error_that_names_the_variable(void **state) {
    (void)state;
    check_refused(TORCHRUN "RANK=x", "the environment variable RANK is 'x', which is no number from 0 to");
    check_refused(TORCHRUN "RANK=8", "RANK is 8, which is not below WORLD_SIZE, 8");
    check_refused(TORCHRUN "WORLD_SIZE=0", "WORLD_SIZE is '0'");
    check_refused(TORCHRUN "WORLD_SIZE=4x", "WORLD_SIZE is '4x'");
    check_refused(TORCHRUN "WORLD_SIZE=99999999999999999999", "WORLD_SIZE is '99999999999999999999'");
    check_refused(TORCHRUN "LOCAL_RANK=-1", "LOCAL_RANK is '-1'");
    check_refused(TORCHRUN "LOCAL_RANK=2", "of torchrun contradict each other: local rank 2 of 2");
    check_refused(TORCHRUN "MASTER_PORT=70000", "MASTER_PORT is '70000', which is no number from 1 to 65535");
    check_refused(TORCHRUN "WORLD_SIZE=65 RANK=1", "65 ranks are more than the 64");
    check_refused(OPEN_MPI "OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_RANK is 4, which is not below");
    check_refused(HYDRA "PMI_SIZE=two", "PMI_SIZE is 'two'");
    check_refused(SLURM "SLURM_PROCID=7", "SLURM_PROCID is 7, which is not below SLURM_STEP_NUM_TASKS, 7");
    check_refused(SLURM "SLURM_PROCID=", "of Slurm are incomplete: SLURM_PROCID is missing");
    check_refused(SLURM "SLURM_JOB_ID=", "SLURM_JOB_ID is missing");
    check_refused(SLURM "SLURM_JOB_ID=x1", "SLURM_JOB_ID is 'x1'");
    check_refused(SLURM "SLURM_STEP_NODELIST=n[1", "'n[1', which is no list of hosts");
    check_refused(TRAIN_JOB "PET_NODE_RANK=", "of TrainJob are incomplete: PET_NODE_RANK is missing");
    check_refused(TRAIN_JOB "PET_MASTER_ADDR=", "PET_MASTER_ADDR is missing");
    check_refused(TRAIN_JOB "PET_NNODES=1:4", "PET_NNODES is '1:4', a range of nodes");
    check_refused(TRAIN_JOB "PET_NPROC_PER_NODE=many", "PET_NPROC_PER_NODE is 'many'");
    check_refused(PYTORCH_JOB "WORLD_SIZE=5",
                  "WORLD_SIZE is 5, which is no multiple of PET_NPROC_PER_NODE, 2");
    check_refused(PYTORCH_JOB "RANK=2", "RANK is 2, which is not below WORLD_SIZE, 4");
    check_refused(OT_RANKS_VARIABLE "=1", "OFFLOAD_TRAIN_LOCAL_RANK is for the program's own use");
}

static void mpi_launchers_are_found(void **state) {
    (void)state;
    struct ot_launch launch = check_env(
        OPEN_MPI "MASTER_ADDR=a", "rank 3 of 4 (local 1 of 2), found by Open MPI; rank 0 is at a:24463");
    assert_string_equal(launch.ranks.run_id, "mpi-prterun-a-1@1");
    check_env(OPEN_MPI,
              "rank 3 of 4 (local 1 of 2), found by Open MPI; rank 0 is at a host that is not known");
    check_env("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
              "OMPI_COMM_WORLD_LOCAL_SIZE=2",
              "rank 1 of 2 (local 1 of 2), found by Open MPI; rank 0 is at 127.0.0.1:29600");
    check_env(HYDRA, "rank 2 of 3 (local 2 of 3), found by the MPI launcher; rank 0 is at 127.0.0.1:29600");
    check_env("PMI_RANK=2 PMI_SIZE=4 PALS_LOCAL_RANKID=0 PALS_LOCAL_SIZE=2 MASTER_ADDR=x1",
              "rank 2 of 4 (local 0 of 2), found by the MPI launcher; rank 0 is at x1:29600");
    check_env("PMI_RANK=1 PMI_SIZE=4 MASTER_ADDR=x1",
              "rank 1 of 4, found by the MPI launcher; rank 0 is at x1:29600");
    /* half of a launcher's variables are none */
    check_env("OMPI_COMM_WORLD_RANK=3", ALONE);
    check_env("OMPI_COMM_WORLD_SIZE=4", ALONE);
    check_env("PMI_RANK=2 MPI_LOCALRANKID=2", ALONE);
    check_env("PMI_SIZE=3 MPI_LOCALRANKID=2", ALONE);
    /* mpirun in a job of Slurm */
    check_env(HYDRA "SLURM_PROCID=0 SLURM_JOB_ID=7",
              "rank 2 of 3 (local 2 of 3), found by the MPI launcher; rank 0 is at 127.0.0.1:29600");
    /* what srun --mpi=pmi2 sets is no launcher of MPI */
    check_env(SLURM "PMI_RANK=5 PMI_SIZE=7",
              "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at n02:18456");
}

static void slurm_is_found(void **state) {
    (void)state;
    struct ot_launch launch =
        check_env(SLURM, "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at n02:18456");
    assert_string_equal(launch.ranks.run_id, "slurm-123456.3");
    check_env(SLURM "SLURM_STEP_NODELIST= SLURM_JOB_ID=42",
              "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at n01:15042");
    check_env(SLURM "SLURM_STEP_NUM_TASKS=",
              "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at n02:18456");
    /* a shell of salloc, a batch script, one task */
    check_env("SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_JOB_NODELIST=n1", ALONE);
    check_env("SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=4294967290 SLURM_PROCID=0",
              ALONE);
    check_env(SLURM "SLURM_STEP_NUM_TASKS=1", ALONE);
    check_env(SLURM "SLURM_STEP_NUM_TASKS= SLURM_NTASKS=1", ALONE);
}

static void slurm_lists_are_read(void **state) {
    (void)state;
    static const char *const lists[][2] = {
        {"n[01-03,7]", "n01"},     {"n7", "n7"},     {"a,b", "a"},
        {"a-1,b", "a-1"},          {"n[7,9]", "n7"}, {"r[1-2]n[03-4].x", "r1n03.x"},
        {"gpu-[8]-x,y", "gpu-8-x"}};
    char host[16];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_true(ot_slurm_first_host(lists[i][0], host, sizeof host));
        assert_string_equal(host, lists[i][1]);
    }
    static const char *const wrong[] = {"",
                                        ",",
                                        "n[",
                                        "n[1",
                                        "n[]",
                                        "n[-3]",
                                        "a b",
                                        "a;b",
                                        "n[01-02]\n",
                                        "a-very-long-name-of-a-host",
                                        "n[0000000000000001]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (ot_slurm_first_host(wrong[i], host, sizeof host))
            fail_msg("'%s' became '%s'", wrong[i], host);
    assert_int_equal(ot_slurm_tasks_of("2(x3),1", 0), 2);
    assert_int_equal(ot_slurm_tasks_of("2(x3),1", 2), 2);
    assert_int_equal(ot_slurm_tasks_of("2(x3),1", 3), 1);
    assert_int_equal(ot_slurm_tasks_of("2(x3),1", 4), 0);
    assert_int_equal(ot_slurm_tasks_of("4", 0), 4);
    static const char *const bad[] = {"", "x", "0", "-1", "2(x", "2(x)", "2(x3", "2(x0)", "2(y3)", "2;1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ot_slurm_tasks_of(bad[i], 1), 0);
}

static void kubeflow_jobs_start_the_ranks_of_a_pod(void **state) {
    (void)state;
    struct ot_launch launch =
        check_env(PYTORCH_JOB, "ranks 2 to 3 of 4, found by PyTorchJob; rank 0 is at job-master-0:23456");
    assert_int_equal(launch.n_start, 2);
    launch = check_env(PYTORCH_JOB "PET_NPROC_PER_NODE=",
                       "rank 1 of 4 (local 0 of 1), found by PyTorchJob; rank 0 is at job-master-0:23456");
    assert_int_equal(launch.n_start, 0);
    launch = check_env(TRAIN_JOB "PET_NPROC_PER_NODE=2",
                       "ranks 6 to 7 of 8, found by TrainJob; rank 0 is at job-node-0-0.job:29500");
    assert_int_equal(launch.n_start, 2);
    struct ot_launch_request request = request_of(TRAIN_JOB);
    request.visible_gpus = 4;
    check_found(&request, "ranks 12 to 15 of 16, found by TrainJob; rank 0 is at job-node-0-0.job:29500");
    request.context = TRAIN_JOB "PET_NPROC_PER_NODE=gpu";
    check_found(&request, "ranks 12 to 15 of 16, found by TrainJob; rank 0 is at job-node-0-0.job:29500");
    request.context = TRAIN_JOB "PET_NPROC_PER_NODE=cpu";
    check_found(&request,
                "rank 3 of 4 (local 0 of 1), found by TrainJob; rank 0 is at job-node-0-0.job:29500");
    request.context = TRAIN_JOB;
    request.gpus = "2";
    check_found(&request, "ranks 6 to 7 of 8, found by TrainJob; rank 0 is at job-node-0-0.job:29500");
    check_env("PET_NNODES=1 PET_NPROC_PER_NODE=3",
              "ranks 0 to 2 of 3, found by TrainJob; rank 0 is at this host");
}

static void two_launchers_are_noted(void **state) {
    (void)state;
    struct ot_launch launch =
        check_env(OPEN_MPI SLURM,
                  "rank 3 of 4 (local 1 of 2), found by Open MPI; rank 0 is at a host that is not known");
    assert_string_equal(launch.note,
                        "Slurm is there too (7 processes), but is not used: Open MPI comes first");
    launch = check_env(SLURM TORCHRUN, "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is at a:30500");
    assert_string_equal(launch.note,
                        "Slurm is there too (7 processes), but is not used: torchrun comes first");
    assert_string_equal(check_env(TORCHRUN TRAIN_JOB,
                                  "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is "
                                  "at a:30500")
                            .note,
                        "");
    /* an error of a launcher that is not used does not matter */
    check_env(TORCHRUN "SLURM_STEP_ID=1 SLURM_NTASKS=x",
              "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is at a:30500");
}

static void options_win(void **state) {
    (void)state;
    struct ot_launch_request request = request_of("");
    request.gpus = "4";
    struct ot_launch launch =
        check_found(&request, "ranks 0 to 3 of 4, found by --gpus; rank 0 is at this host");
    assert_int_equal(launch.n_start, 4);
    request.gpus = "all";
    request.visible_gpus = 2;
    check_found(&request, "ranks 0 to 1 of 2, found by --gpus; rank 0 is at this host");
    request.nodes = 3;
    request.node_rank = 2;
    request.master = "a";
    launch = check_found(&request, "ranks 4 to 5 of 6, found by --nodes; rank 0 is at a:29600");
    assert_int_equal(launch.ranks.local_ranks, 2);
    request.gpus = NULL;
    request.master = "[fe80::1]:99";
    launch = check_found(&request, "rank 2 of 3 (local 0 of 1), found by --nodes; rank 0 is at [fe80::1]:99");
    assert_string_equal(launch.ranks.address, "fe80::1");
    request = request_of(SLURM);
    request.master = ":77";
    check_found(&request, "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at n02:77");
    request.master = ":1";
    check_found(&request, "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at n02:1");
    request.master = "b";
    check_found(&request, "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at b:18456");
    request.master = "::1"; /* no port, but an address with colons */
    check_found(&request, "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at [::1]:18456");
    request.nodes = 2;
    request.node_rank = 0;
    launch = check_found(&request, "rank 0 of 2 (local 0 of 1), found by --nodes; rank 0 is at [::1]:29600");
    assert_string_equal(launch.note,
                        "Slurm is there too (7 processes), but is not used: --nodes comes first");
}

static void one_process_a_host_starts_ranks(void **state) {
    (void)state;
    struct ot_launch_request request =
        request_of(SLURM "SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x7) SLURM_NODEID=5");
    request.gpus = "4";
    struct ot_launch launch =
        check_found(&request, "ranks 20 to 23 of 28, found by Slurm; rank 0 is at n02:18456");
    assert_int_equal(launch.n_start, 4);
    request = request_of(SLURM);
    request.gpus = "2";
    check_fails(ot_ranks_find(&request, &launch), OT_E_USAGE,
                "--gpus 2 starts ranks, but Slurm has started 7 processes, several on a host; remove --gpus");
    request.gpus = "1";
    check_found(&request, "rank 5 of 7 (local 1 of 2), found by Slurm; rank 0 is at n02:18456");
}

static void check_request(struct ot_launch_request request, const char *words) {
    struct ot_launch launch;
    check_fails(ot_ranks_find(&request, &launch), OT_E_USAGE, words);
}

static void impossible_options_are_refused(void **state) {
    (void)state;
    struct ot_launch_request q = request_of("");
#define WITH(...) (q = request_of(""), __VA_ARGS__, q)
    check_request(WITH(q.gpus = "0"), "--gpus '0' is neither all nor a number from 1 to 64");
    check_request(WITH(q.gpus = "65"), "--gpus '65'");
    check_request(WITH(q.gpus = "many"), "--gpus 'many'");
    check_request(WITH(q.gpus = "all"), "with --device cpu, give the number of ranks");
    check_request(WITH(q.gpus = "all", q.visible_gpus = 0), "--gpus all finds no GPU");
    check_request(WITH(q.gpus = "3", q.visible_gpus = 0), "--gpus 3 finds no GPU");
    check_request(WITH(q.gpus = "3", q.visible_gpus = 2),
                  "--gpus 3 is more than the 2 that this process sees");
    check_request(WITH(q.node_rank = 1), "--node-rank has no effect without --nodes");
    check_request(WITH(q.nodes = 2), "--nodes 2 needs --node-rank, from 0 to 1");
    check_request(WITH(q.nodes = 2, q.node_rank = 1), "--nodes 2 needs --master HOST");
    check_request(WITH(q.nodes = 2, q.node_rank = 2, q.master = "a"), "--node-rank 2 is not below --nodes 2");
    check_request(WITH(q.nodes = 2, q.node_rank = 1, q.master = "a:0"),
                  "--master 'a:0' does not end in a port");
    check_request(WITH(q.nodes = 2, q.node_rank = 1, q.master = "a:b"), "--master 'a:b'");
    check_request(WITH(q.nodes = 9, q.node_rank = 1, q.master = "a", q.gpus = "8"), "72 ranks are more than");
}

/* The variable of the parent has blanks. */
static const char *get_parent_env(void *context, const char *name) {
    return strcmp(name, OT_RANKS_VARIABLE) == 0 ? context : get_env((void *)(uintptr_t)TORCHRUN, name);
}

static void a_rank_knows_its_parent(void **state) {
    (void)state;
    struct ot_launch_request request = request_of("5 8 1 4 7 29600 a torchrun-my job.0");
    request.get_env = get_parent_env;
    request.gpus = "4"; /* it has the words of its parent */
    struct ot_launch launch =
        check_found(&request, "rank 5 of 8 (local 1 of 4), found by --gpus; rank 0 is at a:29600");
    assert_int_equal(launch.n_start, 0);
    assert_int_equal(launch.listener, 7);
    assert_string_equal(launch.ranks.run_id, "torchrun-my job.0");
    request.context = (void *)(uintptr_t) "1 2 1 2 -1 0 - -";
    check_found(&request,
                "rank 1 of 2 (local 1 of 2), found by --gpus; rank 0 is at a host that is not known");
}

static void more_gpus_are_noted(void **state) {
    (void)state;
    struct ot_launch_request request = request_of("");
    request.visible_gpus = 4;
    assert_string_equal(check_found(&request, ALONE).note,
                        "4 GPUs are visible, and this run uses one; --gpus all uses all");
    request.gpus = "1";
    assert_string_equal(check_found(&request, ALONE).note, "");
    request = request_of("");
    request.visible_gpus = 1;
    assert_string_equal(check_found(&request, ALONE).note, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_launcher_there_is_one_rank),
        cmocka_unit_test(torchrun_is_found),
        cmocka_unit_test(an_incomplete_torchrun_is_an_error),
        cmocka_unit_test(nonsense_is_an_error_that_names_the_variable),
        cmocka_unit_test(mpi_launchers_are_found),
        cmocka_unit_test(slurm_is_found),
        cmocka_unit_test(slurm_lists_are_read),
        cmocka_unit_test(kubeflow_jobs_start_the_ranks_of_a_pod),
        cmocka_unit_test(two_launchers_are_noted),
        cmocka_unit_test(options_win),
        cmocka_unit_test(one_process_a_host_starts_ranks),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(a_rank_knows_its_parent),
        cmocka_unit_test(more_gpus_are_noted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
